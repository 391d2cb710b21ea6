"""The demo's model over Parquet files, within a budget of memory.

``python -m benchmarks.parquet FOLDER MEMORY [MONTHS]`` is one measurement, in the fresh process
that `run` starts; ``python -m benchmarks.parquet FOLDER --write ROWS`` writes the portfolio, in a
process of its own as well.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks import _measure
from hl_dask import demo


def run(sizes: Sequence[int], memory: str, repeat: int) -> list[_measure.Row]:
    """Measure every size ``repeat`` times; the rows of one size share their files."""
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="hl-dask-bench-") as folder:
            _measure.fresh_process("benchmarks.parquet", folder, "--write", size)
            answers = [
                _measure.fresh_process("benchmarks.parquet", folder, memory) for _ in range(repeat)
            ]
        rows.append(_row(size, answers))
    return rows


def _row(size: int, answers: list[dict[str, Any]]) -> _measure.Row:
    middle = {
        key: median(answer[key] for answer in answers)
        for key in ("record_s", "replay_s", "peak_mb", "projected_mb")
    }
    seconds = middle["record_s"] + middle["replay_s"]
    return _measure.Row(
        engine="hl_dask parquet",
        rows=size,
        months=demo.MONTHS,
        record_s=middle["record_s"],
        plan_s=None,
        replay_s=middle["replay_s"],
        seconds=seconds,
        ns_per_policy_month=seconds * 1e9 / (size * demo.MONTHS),
        peak_mb=middle["peak_mb"],
        result=answers[0]["result"],
        ratio=None,
        projected_mb=middle["projected_mb"],
    )


def _measure_once(folder: str, memory: str, months: int = demo.MONTHS) -> dict[str, float]:
    assumed = {**demo.assumptions(), "months": months}
    model = demo.TermAssurance(data=f"{folder}/*.parquet", **assumed)
    start = perf_counter()
    model.GenerateActions(proj_len=months - 1)
    recorded = perf_counter()
    result = model.ExecuteActions(memory=memory)
    pv = float(result.values["pv_net_cf"])
    end = perf_counter()
    return {
        "record_s": recorded - start,
        "replay_s": end - recorded,
        "projected_mb": result.stats.projected_bytes / _measure.MB,
        "peak_mb": _measure.high_water_bytes() / _measure.MB,
        "result": pv,
        "row_bytes": model.plan.column_row_bytes,
    }


if __name__ == "__main__":
    _folder, *_rest = sys.argv[1:]
    if _rest[0] == "--write":
        print(json.dumps({"bytes": demo.write_portfolio(Path(_folder), int(_rest[1]))}))
    else:
        print(json.dumps(_measure_once(_folder, _rest[0], *map(int, _rest[1:]))))
