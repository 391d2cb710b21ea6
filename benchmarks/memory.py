"""The memory promise: projected and measured peaks for several sizes and budgets.

Every cell is the demo's model over the same Parquet files in a fresh process; the bits of all cells
of one size must be equal, whatever threads and chunks the budget allowed.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks import _measure
from hl_dask import demo
from hl_dask.memory import parse_bytes

ROW_BYTES = 44  # of the columns that the demo's model reads, as its formulas see them
LARGEST_RATIO = 1.5  # of the projected to the measured peak


def run(sizes: Sequence[int], budgets: Sequence[str]) -> list[_measure.Row]:
    """Measure every size with every budget."""
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="hl-dask-bench-") as folder:
            _measure.fresh_process("benchmarks.parquet", folder, "--write", size)
            cells = [_cell(folder, size, budget) for budget in budgets]
        if len({cell.result for cell in cells}) > 1:
            message = f"{size:,} rows: results differ with the budget: {cells}"
            raise SystemExit(message)
        rows += cells
    return rows


def scale(budget: str, times: Sequence[int], months: int) -> list[_measure.Row]:
    """Measure data that are so many times as large as the memory allowed, by their columns."""
    rows: list[_measure.Row] = []
    for factor in times:
        size = factor * parse_bytes(budget) // ROW_BYTES
        with tempfile.TemporaryDirectory(prefix="hl-dask-bench-") as folder:
            _measure.fresh_process("benchmarks.parquet", folder, "--write", size)
            answer = _measure.fresh_process("benchmarks.parquet", folder, budget, months)
        if answer["row_bytes"] != ROW_BYTES:
            message = f"a row has {answer['row_bytes']} bytes of columns, expected {ROW_BYTES}"
            raise SystemExit(message)
        rows.append(_as_row(f"{factor} x {budget}", size, months, answer))
    first = rows[0].ns_per_policy_month or 0.0
    return [replace(row, ratio=first / (row.ns_per_policy_month or 1.0)) for row in rows]


def broken_promises(rows: Sequence[_measure.Row]) -> list[str]:
    """Cells whose measured peak is above the projected one, or far below it."""
    found = []
    for row in rows:
        ratio = (row.projected_mb or 0.0) / row.peak_mb if row.peak_mb else 0.0
        if not 1 <= ratio <= LARGEST_RATIO:
            found.append(f"{row.engine}, {row.rows:,} rows: projected / measured is {ratio:.2f}")
    return found


def _cell(folder: str, size: int, budget: str) -> _measure.Row:
    answer = _measure.fresh_process("benchmarks.parquet", folder, budget)
    return _as_row(f"hl_dask {budget}", size, demo.MONTHS, answer)


def _as_row(engine: str, size: int, months: int, answer: dict[str, Any]) -> _measure.Row:
    seconds = answer["record_s"] + answer["replay_s"]
    return _measure.Row(
        engine=engine,
        rows=size,
        months=months,
        record_s=answer["record_s"],
        plan_s=None,
        replay_s=answer["replay_s"],
        seconds=seconds,
        ns_per_policy_month=seconds * 1e9 / (size * months),
        peak_mb=answer["peak_mb"],
        result=answer["result"],
        ratio=None,
        projected_mb=answer["projected_mb"],
    )
