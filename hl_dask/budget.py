"""The memory of a run: what is resident, what is allowed, what a pass is projected to take.

Everything is projected before any work, as an upper bound, and a run that does not fit is refused.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path

import psutil

from hl_dask._machine import free_bytes
from hl_dask.blocks import Blocks
from hl_dask.errors import MemoryBudgetError
from hl_dask.memory import MemoryEstimate, parse_bytes, size_text
from hl_dask.points import ModelPoints
from hl_dask.program import Program

CHUNK_BLOCKS = 1
"""Blocks of a chunk by default: some 130,000 rows, half a second."""
STEP_BYTES = 900
"""Python objects that binding one step to memory takes, for a full and for a short block."""
SLACK_BYTES = 24 * 2**20
"""Thread stacks, the allocators' reserves and modules imported on the way."""


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """Highest resident memory of this process so far.

    On Linux of this program alone: ``ru_maxrss`` there starts from what the parent process had.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def allowed_bytes(memory: int | str | None) -> int:
    """Total resident memory that a run may reach.

    By default what is resident now, and half of what the machine or the control group has free.
    """
    return resident_bytes() + free_bytes() // 2 if memory is None else parse_bytes(memory)


def processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def estimate(
    program: Program,
    points: ModelPoints | None,
    blocks: Blocks,
    workers: int,
    base_bytes: int | None = None,
) -> MemoryEstimate:
    """Projected peak of a pass in one process; see :class:`~hl_dask.plan.MemoryEstimate`.

    Parameters
    ----------
    base_bytes : int, optional
        Resident before the run; what this process has by default.
    """
    block_rows = min(blocks.block_rows, blocks.rows)
    threads = min(workers, blocks.n_chunks)
    read = 0
    if points is not None and program.columns:
        read = points.read_bytes(program.columns, blocks.chunk_rows)
    work = program.arena_bytes(block_rows) + program.temporary_bytes(block_rows)
    work += STEP_BYTES * len(program.order)
    # A chunk hands on the tree nodes that its blocks make up, a merge at most as many again.
    nodes = (
        1
        if blocks.chunk_blocks & (blocks.chunk_blocks - 1) == 0
        else 2 * blocks.chunk_blocks.bit_length()
    )
    waiting = min(blocks.n_chunks, 8 * (1 + len(bin(blocks.n_chunks)) // 3)) + threads
    # Partials that keep their rows add up to those of all rows, with a copy while two are joined.
    partials = program.partial_bytes(0) * (waiting * nodes + 4)
    partials += 2 * (program.partial_bytes(blocks.rows) - program.partial_bytes(0))
    tasks = 1500 * blocks.n_chunks
    return MemoryEstimate(
        (resident_bytes() if base_bytes is None else base_bytes) + SLACK_BYTES,
        read * threads,
        work * threads,
        partials + tasks,
    )


def fit(
    program: Program,
    points: ModelPoints | None,
    rows: int,
    block_rows: int,
    *,
    memory: int | str | None,
    most_workers: int,
    chunk_blocks: int | None,
    base_bytes: int | None = None,
) -> tuple[Blocks, int, MemoryEstimate, int]:
    """Chunk size, threads and projected peak that stay within the memory allowed.

    Parameters
    ----------
    memory : int or str or None
        Total resident memory that the run may reach; see :func:`allowed_bytes`.
    most_workers : int
        Threads, if they fit.
    chunk_blocks : int or None
        Blocks of a chunk; chosen to fit by default.
    base_bytes : int, optional
        Resident before the run; what this process has by default.

    Raises
    ------
    MemoryBudgetError
        When not even one thread with chunks of one block fits.
    """
    allowed = allowed_bytes(memory)
    chunks = [chunk_blocks] if chunk_blocks else _halves(CHUNK_BLOCKS)
    for workers in _halves(most_workers):
        for size in chunks:
            blocks = Blocks(rows, block_rows, size)
            projected = estimate(program, points, blocks, workers, base_bytes)
            if projected.total_bytes <= allowed:
                return blocks, workers, projected, allowed
    raise _too_small(program, projected, allowed, in_memory=points is None or points.in_memory)


def _halves(number: int) -> list[int]:
    """A number, half of it, and so on down to 1."""
    return [number >> k for k in range(number.bit_length())]


def _too_small(
    program: Program, smallest: MemoryEstimate, allowed: int, *, in_memory: bool
) -> MemoryBudgetError:
    owners = [program.describe(program.graph.owners[n]) for n in program.live_at_peak]
    pinned = ", ".join(list(dict.fromkeys(owners))[:6])
    message = (
        f"the run is projected to reach {size_text(smallest.total_bytes)} with one thread and the "
        f"smallest chunks, and {size_text(allowed)} are allowed; of it "
        f"{size_text(smallest.base_bytes)} for the interpreter, libraries and data in memory, "
        f"{size_text(smallest.read_bytes)} for reading, {size_text(smallest.work_bytes)} for "
        f"values and {size_text(smallest.result_bytes)} for results; alive at the highest point: "
        f"{pinned or 'no values'}"
    )
    return MemoryBudgetError(
        message,
        remedy=f"allow at least memory={smallest.total_bytes + 2**20:_} bytes, or use a smaller "
        f"block_rows{', or read the data from Parquet' if in_memory else ''}",
    )
