"""Totals that feed back: examples/with_profits.py against straight NumPy, and states beyond memory.

``python -m benchmarks.feedback ENGINE ROWS`` is one measurement in a fresh process;
``python -m benchmarks.feedback spill WHERE FOLDER`` is a run whose states do not fit.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import hl_dask as hl
from benchmarks import _measure
from examples import with_profits

SPILL_ROWS, SPILL_WIDTH, SPILL_PHASES = 9_400_000, 40, 12  # states of 3 GB
SPILL_PLACES = {"threads, 1GB": "1GB", "2 workers of 600 MB": "600MB"}
SPILL_RUNS = 3


def run(sizes: Sequence[int], repeat: int) -> list[_measure.Row]:
    """Measure both engines at every size, in turn, ``repeat`` times."""
    rows = []
    for size in sizes:
        answers: dict[str, list[dict[str, Any]]] = {"whole": [], "hl_dask": []}
        for _ in range(repeat):
            for engine, found in answers.items():
                found.append(_measure.fresh_process("benchmarks.feedback", engine, size))
        base = median(answer["seconds"] for answer in answers["whole"])
        rows += [
            _measure.row_of(engine, size, with_profits.MONTHS, found, base)
            for engine, found in answers.items()
        ]
        whole, ours = (found[0]["result"] for found in answers.values())
        if abs(ours / whole - 1) > 1e-12:
            message = f"{size:,} rows: {ours!r} against {whole!r}"
            raise SystemExit(message)
    return rows


def spill() -> list[str]:
    """Run states of 3 GB where they do not fit, three times each; what it took, as lines."""
    lines = []
    with tempfile.TemporaryDirectory(prefix="hl-dask-bench-") as folder:
        _write(Path(folder))
        results = set()
        for name, place in SPILL_PLACES.items():
            for _ in range(SPILL_RUNS):
                found = _measure.fresh_process("benchmarks.feedback", "spill", place, folder)
                results.add(found["bits"])
                lines.append(
                    f"{name}: {found['seconds']:.1f} s, peak {found['peak_mb']:,.0f} MB, projected "
                    f"{found['projected_mb']:,.0f} MB, {found['phases']} phases"
                )
        lines.append(f"the same bits everywhere: {len(results) == 1}")
    return lines


def _measure_once(engine: str, rows: int) -> dict[str, Any]:
    data, returns = with_profits.portfolio(rows), with_profits.market()
    start = perf_counter()
    if engine == "whole":
        totals = with_profits.whole_array(data, returns)["guaranteed"]
    else:
        model = with_profits.WithProfits(data=data, returns=returns)
        frame = model.ExecuteActions(with_profits.MONTHS - 1, workers=2).df_agg
        totals = frame["guaranteed"].to_numpy()
    seconds = perf_counter() - start
    return {
        "seconds": seconds,
        "peak_mb": _measure.high_water_bytes() / _measure.MB,
        "result": float(totals[-1]),
    }


# ---- states beyond memory ----------------------------------------------------------------------


class Wide(hl.Model):
    """A value of 320 bytes for each policy, all of which waits for a total in every step."""

    def value(self, t):
        if t == 0:
            return self.data["x"][:, np.newaxis] * np.arange(1.0, SPILL_WIDTH + 1)
        return self.value(t - 1) * (1.0 + self.rate(t - 1))

    @hl.agg(None)
    def rate(self, t):
        return np.tanh(self.value(t).sum() * 1e-12)


def _write(folder: Path) -> None:
    rng = np.random.default_rng(1)
    part = SPILL_ROWS // 10
    for k in range(10):
        pq.write_table(pa.table({"x": rng.random(part)}), folder / f"{k}.parquet")


def _spill_once(memory: str, folder: str) -> dict[str, Any]:
    model = Wide(data=f"{folder}/*.parquet")
    model.GenerateActions(SPILL_PHASES - 1)
    options: dict[str, Any] = {"block_rows": 32_768, "scratch": folder}
    start = perf_counter()
    if memory == "1GB":
        result = model.ExecuteActions(memory=memory, workers=2, **options)
    else:
        from distributed import Client, LocalCluster

        with (
            LocalCluster(
                n_workers=2, threads_per_worker=1, memory_limit=memory, dashboard_address=":0"
            ) as cluster,
            Client(cluster) as client,
        ):
            result = model.ExecuteActions(scheduler=client, **options)
    return {
        "seconds": perf_counter() - start,
        "peak_mb": result.stats.measured_bytes / _measure.MB,
        "projected_mb": result.stats.projected_bytes / _measure.MB,
        "phases": result.stats.phases,
        "bits": result.df_agg.to_numpy().tobytes().hex(),
    }


if __name__ == "__main__":
    _engine, *_rest = sys.argv[1:]
    if _engine == "spill":
        print(json.dumps(_spill_once(*_rest)))
    else:
        print(json.dumps(_measure_once(_engine, int(_rest[0]))))
