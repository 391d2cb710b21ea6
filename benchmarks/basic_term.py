"""hl_dask against heavylight on the BasicTerm_ME model and random policies in memory."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import _measure, _portfolio

MONTHS = 277
PEERS = ("heavylight", "batches")
AGREE = 1e-9  # largest relative difference between two engines' totals


def run(sizes: Sequence[int], peers: Sequence[str], repeat: int) -> list[_measure.Row]:
    """Measure hl_dask and its peers at every size, in turn, ``repeat`` times."""
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="hl-dask-bench-") as folder:
            _portfolio.write(Path(folder), size)
            rows += _compare(folder, size, ("hl_dask", *peers), repeat)
    return rows


def _compare(folder: str, size: int, engines: Sequence[str], repeat: int) -> list[_measure.Row]:
    answers: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
    # In turn, so that a busy quarter of an hour of the machine does not fall on one engine.
    for _ in range(repeat):
        for engine in engines:
            answer = _measure.fresh_process("benchmarks._engines", engine, folder, MONTHS)
            answer["seconds"] = answer["record_s"] + answer["plan_s"] + answer["replay_s"]
            answers[engine].append(answer)
    _require_agreement({engine: runs[0] for engine, runs in answers.items()})
    base = _middle(answers["hl_dask"], "seconds")
    return [_row(engine, size, runs, base) for engine, runs in answers.items()]


def _row(engine: str, size: int, runs: list[dict[str, Any]], base: float) -> _measure.Row:
    seconds = _middle(runs, "seconds")
    return _measure.Row(
        engine=engine,
        rows=size,
        months=MONTHS,
        record_s=_middle(runs, "record_s"),
        plan_s=_middle(runs, "plan_s"),
        replay_s=_middle(runs, "replay_s"),
        seconds=seconds,
        ns_per_policy_month=seconds * 1e9 / (size * MONTHS),
        peak_mb=_middle(runs, "peak_mb"),
        result=runs[0]["result"],
        ratio=seconds / base,
    )


def _middle(runs: list[dict[str, Any]], key: str) -> float:
    return median(run[key] for run in runs)


def _require_agreement(answers: dict[str, dict[str, Any]]) -> None:
    """Stop when engines disagree: a time for other numbers would mean nothing."""
    (first, base), *others = answers.items()
    for engine, answer in others:
        pairs = [("present value", base["result"], answer["result"])]
        pairs += [(name, base["totals"][name], answer["totals"][name]) for name in base["totals"]]
        for name, ours, theirs in pairs:
            scale = np.max(np.abs(ours))
            if not np.max(np.abs(np.subtract(ours, theirs))) <= AGREE * scale:
                message = f"{first} and {engine} disagree on {name}: {ours} and {theirs}"
                raise SystemExit(message)
