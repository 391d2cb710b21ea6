"""The engines of the basic_term benchmark, each run by itself in a fresh process.

``python -m benchmarks._engines ENGINE FOLDER MONTHS`` reads the policies that `_portfolio` wrote,
projects them, and prints times, memory and results as one line of JSON. Starting processes,
importing and loading are outside the clock for every engine.
"""

import json
import multiprocessing
import sys
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks import _measure, _portfolio

BATCH_ROWS = 50_000
PROCESSES = 2
SAMPLE_ROWS = 100  # heavylight records on these what to release when
OUTPUTS = ("pols_if", "premiums", "claims", "expenses", "commissions", "net_cf")

Answer = dict[str, Any]
"""record_s, plan_s, replay_s, peak_mb, result, and totals: output -> one number for each month."""


def hl_dask(folder: Path, months: int) -> Answer:
    """Run hl_dask on threads."""
    from examples.basic_term_me import BasicTermME, read_assumptions

    data = _portfolio.read(folder, _portfolio.COLUMNS)
    model = BasicTermME(data=data, months=months, **read_assumptions())
    with _measure.PeakMemory() as memory:
        start = perf_counter()
        result = model.ExecuteActions(proj_len=months - 1, scheduler="threads")
        totals = {name: result.df_agg[name].tolist() for name in OUTPUTS}
        pv = float(result.values["pv_net_cf"])
        seconds = perf_counter() - start
    stats = result.stats
    return {
        "record_s": stats.record_s,
        # All that is neither tracing nor passing over the rows.
        "plan_s": seconds - stats.record_s - stats.replay_s,
        "replay_s": stats.replay_s,
        "peak_mb": memory.above_mb,
        "result": pv,
        "totals": totals,
    }


def heavylight(folder: Path, months: int) -> Answer:
    """Run heavylight: record on a sample, then ``RunOptimized`` on all rows at once."""
    model = _light_model(folder)
    data = _portfolio.read(folder, _portfolio.COLUMNS)
    with _measure.PeakMemory() as memory:
        start = perf_counter()
        model.data = {name: values[:SAMPLE_ROWS] for name, values in data.items()}
        model.RunModel(months - 1)
        recorded = perf_counter()
        model.data = data
        model.RunOptimized()
        frame = model.df_agg
        end = perf_counter()
    return {
        "record_s": recorded - start,
        "plan_s": 0.0,  # a part of RunOptimized, and too short to tell
        "replay_s": end - recorded,
        "peak_mb": memory.above_mb,
        "result": float(frame["net_cf"] @ frame["disc_factor"]),
        "totals": {name: frame[name].tolist() for name in OUTPUTS},
    }


def _light_model(folder: Path) -> Any:
    from benchmarks._heavylight_model import BasicTermLight

    return BasicTermLight(_portfolio.read(folder, _portfolio.TABLES))


class _Batches:
    """What one worker of the batches engine keeps between its batches."""

    def __init__(self, folder: Path, months: int, barrier: Barrier):
        self.folder = folder
        self.months = months
        self.barrier = barrier
        self.model = _light_model(folder)
        self.memory = _measure.PeakMemory()
        self.memory.__enter__()

    def record(self) -> None:
        self.model.data = _portfolio.read_rows(self.folder, 0, SAMPLE_ROWS)
        self.model.RunModel(self.months - 1)

    def project(self, start: int, stop: int) -> Any:
        self.model.data = _portfolio.read_rows(self.folder, start, stop)
        self.model.RunOptimized()
        return self.model.df_agg[[*OUTPUTS, "disc_factor"]].to_numpy(dtype=float)


_worker: _Batches


def _start_worker(folder: Path, months: int, barrier: Barrier) -> None:
    global _worker
    _worker = _Batches(folder, months, barrier)


def _in_every_worker(step: str) -> float:
    # No worker gets past the barrier before each of them has taken one of these tasks.
    _worker.barrier.wait()
    if step == "record":
        _worker.record()
    elif step == "peak":
        _worker.memory.__exit__()
    return _worker.memory.above_mb


def _project(span: tuple[int, int]) -> Any:
    return _worker.project(*span)


def batches(folder: Path, months: int) -> Answer:
    """Run heavylight by hand: batches of 50,000 rows over two processes, totals added up."""
    rows = len(np.load(folder / "duration_mth.npy", mmap_mode="r"))
    spans = [(at, min(at + BATCH_ROWS, rows)) for at in range(0, rows, BATCH_ROWS)]
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    with context.Pool(PROCESSES, _start_worker, (folder, months, barrier)) as pool:
        pool.map(_in_every_worker, ["start"] * PROCESSES, chunksize=1)
        start = perf_counter()
        pool.map(_in_every_worker, ["record"] * PROCESSES, chunksize=1)
        recorded = perf_counter()
        parts = pool.map(_project, spans, chunksize=1)
        totals = np.sum(parts, axis=0)
        end = perf_counter()
        peaks = pool.map(_in_every_worker, ["peak"] * PROCESSES, chunksize=1)
    disc_factor = parts[0][:, -1]
    return {
        "record_s": recorded - start,
        "plan_s": 0.0,
        "replay_s": end - recorded,
        "peak_mb": sum(peaks),
        "result": float(totals[:, OUTPUTS.index("net_cf")] @ disc_factor),
        "totals": {name: totals[:, k].tolist() for k, name in enumerate(OUTPUTS)},
    }


ENGINES: dict[str, Callable[[Path, int], Answer]] = {
    "hl_dask": hl_dask,
    "heavylight": heavylight,
    "batches": batches,
}

if __name__ == "__main__":
    _engine, _folder, _months = sys.argv[1:]
    print(json.dumps(ENGINES[_engine](Path(_folder), int(_months))))
