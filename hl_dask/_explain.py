"""What a plan says of itself: its work, its memory, and what is special about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hl_dask.blocks import Blocks
from hl_dask.errors import MemoryBudgetError
from hl_dask.memory import parse_bytes, size_text

Plan = Any
"""An :class:`~hl_dask.plan.ActionPlan`, which is above this room."""


def summary(plan: Plan, cut: Blocks) -> list[str]:
    """What is done: calls, operations, values alive, columns, blocks."""
    kinds = {k: sum(i.kind == k for i in plan.calls) for k in ("shared", "per-point", "portfolio")}
    return [
        f"{plan.model}: t = 0..{plan.proj_len}, {len(plan.calls):,} formula calls "
        f"({', '.join(f'{n:,} {k}' for k, n in kinds.items())}), {plan.output_count:,} outputs",
        f"  {plan.nodes:,} array operations, {plan.row_nodes:,} of them on every block of "
        f"{plan.block_rows:,} rows; phases: {plan.phases}",
        f"  values alive at once: {plan.live_row_bytes:,} bytes a row, in "
        f"{plan.register_row_bytes:,} of registers (formula by formula it would be at most "
        f"{plan.peak_calls} formula values)",
        f"  highest memory at: {', '.join(plan.peak_live[:8]) or 'no per-policy value'}"
        + (" ..." if len(plan.peak_live) > 8 else ""),
        f"  columns read ({plan.column_row_bytes} bytes a row): "
        f"{', '.join(plan.columns) or 'none'}",
        f"  {cut.rows:,} policies: {cut.n_blocks:,} blocks, {cut.n_chunks:,} chunks of at most "
        f"{cut.chunk_rows:,} rows",
        f"  a plain run would keep {size_text(plan.unoptimised_row_bytes * cut.rows)}; "
        f"this plan works in {size_text(plan.thread_bytes(cut.chunk_rows))} a thread",
    ]


def notes(plan: Plan) -> list[str]:
    """What is special: opaque formulas, long histories, totals as Python values."""
    lines = [f"  evaluated as Python on each block: {n} ({why})" for n, why in plan.opaque.items()]
    lines += [f"  stays pinned: {text}" for text in plan.pinned]
    lines += [f"  forces a replay in one piece: {n} ({why})" for n, why in plan.whole.items()]
    if plan.guards:
        lines.append(f"  totals turned into Python values by: {_by_formula(plan.guards)}")
    return lines


def explain_memory(
    plan: Plan, memory: int | str | None, cut: Blocks, projector: Callable[..., Any] | None
) -> list[str]:
    """What a run takes, where it is known, or what a thread works in."""
    if projector is None or plan.whole:
        return [] if memory is None else [_thread(plan, parse_bytes(memory), cut)]
    try:
        fit = projector(plan, cut.rows, memory)
    except MemoryBudgetError as error:
        return [f"  refused: {error.message}", f"    what to do: {error.remedy}"]
    return memory_lines(fit)


def memory_lines(fit: Any) -> list[str]:
    """The projection item by item, and where the states between phases wait."""
    works, fitted, _ = fit
    projected = fitted.projected
    sizes = [(text, size_text(size)) for text, size in projected.items() if size]
    width = max(len(text) for text, _ in sizes)
    chunk_rows = max(blocks.chunk_rows for blocks in fitted.cuts)
    return [
        f"  projected to reach {size_text(projected.total_bytes)} of "
        f"{size_text(fitted.allowed_bytes)} allowed, with {fitted.workers} thread(s) and chunks of "
        f"{chunk_rows:,} rows:",
        *(f"    {text:<{width}}  {size:>10}" for text, size in sizes),
        *_states(fitted, list(works.values())),
    ]


def _states(fitted: Any, works: Sequence[Any]) -> list[str]:
    phases = max(work.program.phases for work in works)
    if phases == 1:
        return []
    each = max(
        work.program.state_row_bytes * blocks.chunk_rows
        for work, blocks in zip(works, fitted.cuts, strict=True)
    )
    total = sum(work.program.state_row_bytes * work.rows for work in works)
    where = "in scratch files, which memory has no room for" if fitted.in_files else "in memory"
    return [
        f"  {phases:,} phases: totals over all policies decide what comes next; between them a "
        f"chunk keeps at most {size_text(each)}, all chunks {size_text(total)}, {where}"
    ]


def _thread(plan: Plan, allowed: int, cut: Blocks) -> str:
    one = plan.thread_bytes(cut.chunk_rows)
    smallest = plan.thread_bytes(plan.block_rows)
    verdict = (
        "fits" if one < allowed else f"needs smaller chunks: one block takes {size_text(smallest)}"
    )
    return (
        f"  of {size_text(allowed)} allowed in all, a thread with a full chunk takes "
        f"{size_text(one)} beside the interpreter and its libraries: {verdict}"
    )


def _by_formula(calls: Sequence[str]) -> str:
    """Calls by formula, with their number where a formula has several."""
    counts = Counter(call.split("(", 1)[0] for call in calls)
    return ", ".join(name if n == 1 else f"{name} ({n} calls)" for name, n in counts.items())
