"""The demo's model over Parquet files: threads of one process, and local worker processes.

``python -m benchmarks.cluster FOLDER ENGINE`` is one measurement in a fresh process. Starting a
cluster is outside the clock; the first run on it, which sends the model, is inside.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks import _measure
from hl_dask import demo

ENGINES = {"2 threads": None, "1 worker x 2 threads": (1, 2), "2 workers x 1 thread": (2, 1)}


def run(sizes: Sequence[int], repeat: int) -> list[_measure.Row]:
    """Measure every engine at every size, in turn, ``repeat`` times."""
    rows = []
    for size in sizes:
        answers: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
        with tempfile.TemporaryDirectory(prefix="hl-dask-bench-") as folder:
            _measure.fresh_process("benchmarks.parquet", folder, "--write", size)
            for _ in range(repeat):
                for engine, found in answers.items():
                    found.append(_measure.fresh_process("benchmarks.cluster", folder, engine))
        if len({answer["bits"] for found in answers.values() for answer in found}) > 1:
            message = f"{size:,} rows: the bits of the engines differ"
            raise SystemExit(message)
        base = median(answer["seconds"] for answer in answers["2 threads"])
        rows += [
            _measure.row_of(engine, size, demo.MONTHS, found, base)
            for engine, found in answers.items()
        ]
    return rows


def overheads(rows: Sequence[_measure.Row]) -> list[str]:
    """What a cluster adds for each chunk, as lines to print."""
    base = {row.rows: row.seconds for row in rows if row.engine == "2 threads"}
    lines = []
    for row in rows:
        if row.engine != "2 threads":
            chunks = -(-row.rows // 131_072)
            added = (row.seconds - base[row.rows]) / chunks * 1e3
            lines.append(f"{row.engine}, {row.rows:,} rows: {added:+.1f} ms a chunk")
    return lines


def _measure_once(folder: str, engine: str) -> dict[str, Any]:
    from distributed import Client, LocalCluster

    model = demo.TermAssurance(data=f"{folder}/*.parquet", **demo.assumptions())
    model.GenerateActions(proj_len=demo.MONTHS - 1)
    shape = ENGINES[engine]
    if shape is None:
        return _timed(model, "threads")
    workers, threads = shape
    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            memory_limit="4GB",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        return _timed(model, client)


def _timed(model: Any, scheduler: Any) -> dict[str, Any]:
    start = perf_counter()
    result = model.ExecuteActions(scheduler=scheduler, workers=2)
    seconds = perf_counter() - start
    return {
        "seconds": seconds,
        "peak_mb": result.stats.measured_bytes / _measure.MB,
        "result": float(result.values["pv_net_cf"]),
        "bits": result.df_agg.to_numpy(dtype=float).tobytes().hex()[:10_000],
    }


if __name__ == "__main__":
    print(json.dumps(_measure_once(*sys.argv[1:])))
