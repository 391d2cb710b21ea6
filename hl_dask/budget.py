"""The memory of a run: what is resident, what is allowed, what a pass is projected to take.

Everything is projected before any work, as an upper bound, and a run that does not fit is refused.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from hl_dask._machine import free_bytes
from hl_dask.blocks import CHUNK_BLOCKS, Blocks
from hl_dask.errors import MemoryBudgetError
from hl_dask.memory import MemoryEstimate, parse_bytes, size_text
from hl_dask.points import ModelPoints
from hl_dask.program import Program

STEP_BYTES = 900
"""Python objects that binding one step to memory takes, for a full and for a short block."""
TASK_BYTES = 1500
"""A task in a graph and in a local scheduler."""
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


class Work(NamedTuple):
    """What a pass has to do with the rows of one model."""

    program: Program
    points: ModelPoints | None
    rows: int


def estimate(
    work: Work,
    blocks: Blocks,
    workers: int,
    base_bytes: int | None = None,
    *,
    in_files: bool = False,
    holders: int = 0,
) -> MemoryEstimate:
    """Projected peak of a pass in one process; see :class:`~hl_dask.plan.MemoryEstimate`.

    Parameters
    ----------
    work : Work
        Program and rows.
    base_bytes : int, optional
        Resident before the run; what this process has by default.
    in_files : bool
        Whether states between phases are in files.
    holders : int
        Workers of a cluster that hold the states between phases; 0 for this process.
    """
    program, points, _ = work
    block_rows = min(blocks.block_rows, blocks.rows)
    threads = min(workers, blocks.n_chunks)
    read = 0
    if points is not None and program.columns:
        read = points.read_bytes(program.columns, blocks.chunk_rows)
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
    tasks = blocks.n_chunks * max(1, len(program.segments))
    return MemoryEstimate(
        base_bytes=resident_bytes() if base_bytes is None else base_bytes,
        slack_bytes=SLACK_BYTES,
        read_bytes=read * threads,
        value_bytes=program.arena_bytes(block_rows) * threads,
        temporary_bytes=program.temporary_bytes(block_rows) * threads,
        step_bytes=STEP_BYTES * len(program.order) * threads,
        state_bytes=_state_bytes(program, blocks, threads, in_files=in_files, holders=holders),
        partial_bytes=partials,
        task_bytes=TASK_BYTES * tasks,
        threads=threads,
    )


def estimate_all(
    works: Sequence[Work],
    cuts: Sequence[Blocks],
    workers: int,
    base_bytes: int | None = None,
    *,
    in_files: bool = False,
    holders: int = 0,
) -> MemoryEstimate:
    """The same of several models whose chunks are run side by side."""
    found = [
        estimate(work, blocks, workers, base_bytes, in_files=in_files, holders=holders)
        for work, blocks in zip(works, cuts, strict=True)
    ]
    if len(found) == 1:
        return found[0]
    # A thread reads the columns of one chunk at a time, and keeps the registers of each model.
    return MemoryEstimate(
        base_bytes=found[0].base_bytes,
        slack_bytes=SLACK_BYTES,
        read_bytes=max(e.read_bytes // e.threads for e in found) * workers,
        value_bytes=sum(e.value_bytes for e in found),
        temporary_bytes=max(e.temporary_bytes // e.threads for e in found) * workers,
        step_bytes=sum(e.step_bytes for e in found),
        state_bytes=sum(e.state_bytes for e in found),
        partial_bytes=sum(e.partial_bytes for e in found),
        task_bytes=sum(e.task_bytes for e in found),
        threads=min(workers, sum(blocks.n_chunks for blocks in cuts)),
    )


def _state_bytes(
    program: Program, blocks: Blocks, threads: int, *, in_files: bool, holders: int
) -> int:
    """Of the states of chunks: those that tasks hand on, or those that wait between phases."""
    if program.is_phased:
        made = program.made_row_bytes * blocks.chunk_rows * threads
        # What is written is put in order before.
        if in_files:
            return 2 * made
        if not holders:
            return made + program.state_row_bytes * blocks.rows
        # A worker may get some chunks more than the others, and what one phase has made is let go
        # only when the scheduler has heard that the next one is done with it.
        rows = min(blocks.rows, blocks.rows // holders + 3 * blocks.chunk_rows)
        return made + (program.state_row_bytes + program.made_row_bytes) * rows + SLACK_BYTES
    if not program.segments:
        return 0
    partials = program.partial_bytes(0) * blocks.chunk_blocks
    partials += program.partial_bytes(blocks.chunk_rows) - program.partial_bytes(0)
    # One that a task reads, with that which it makes in the meantime.
    one = 2 * (program.state_row_bytes * blocks.chunk_rows + partials)
    return one * min(blocks.n_chunks, threads + 1)


class Fitted(NamedTuple):
    """How a pass is cut, and what it is projected to take.

    Attributes
    ----------
    cuts : list of Blocks
        The blocks of each model.
    workers : int
        Threads.
    """

    cuts: list[Blocks]
    workers: int
    projected: MemoryEstimate
    allowed_bytes: int
    in_files: bool


def fit(
    works: Sequence[Work],
    block_rows: int,
    *,
    memory: int | str | None,
    most_workers: int,
    chunk_blocks: int | None,
    base_bytes: int | None = None,
    all_workers: bool = False,
    in_files: bool = False,
    holders: int = 0,
    state_bytes: int | None = None,
) -> Fitted:
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
    all_workers : bool
        Take all threads, where nobody can hold some of them back.
    in_files : bool
        Whether states between phases are in files.
    holders : int
        Workers of a cluster that hold the states between phases; 0 for this process.
    state_bytes : int, optional
        The largest state of a chunk, if there are smaller chunks.

    Raises
    ------
    MemoryBudgetError
        When not even one thread with chunks of one block fits.
    """
    allowed = allowed_bytes(memory)
    chunks = [chunk_blocks] if chunk_blocks else _halves(CHUNK_BLOCKS)
    for workers in [most_workers] if all_workers else _halves(most_workers):
        for size in chunks:
            cuts = [Blocks(work.rows, block_rows, size) for work in works]
            if state_bytes is not None and size > chunks[-1]:
                each = zip(works, cuts, strict=True)
                if any(w.program.state_row_bytes * b.chunk_rows > state_bytes for w, b in each):
                    continue
            projected = estimate_all(
                works, cuts, workers, base_bytes, in_files=in_files, holders=holders
            )
            if projected.total_bytes <= allowed:
                return Fitted(cuts, workers, projected, allowed, in_files)
    raise _too_small(works, projected, allowed)


def _halves(number: int) -> list[int]:
    """A number, half of it, and so on down to 1."""
    return [number >> k for k in range(number.bit_length())]


def _too_small(works: Sequence[Work], smallest: MemoryEstimate, allowed: int) -> MemoryBudgetError:
    in_memory = all(work.points is None or work.points.in_memory for work in works)
    program = max((work.program for work in works), key=lambda p: p.live_row_bytes)
    owners = [program.describe(program.graph.owners[n]) for n in program.live_at_peak]
    pinned = ", ".join(list(dict.fromkeys(owners))[:6])
    items = "; ".join(f"{text} {size_text(size)}" for text, size in smallest.items() if size)
    message = (
        f"the run is projected to reach {size_text(smallest.total_bytes)} with "
        f"{smallest.threads} thread{'s' if smallest.threads > 1 else ''} and the smallest chunks, "
        f"and {size_text(allowed)} are allowed: {items}; alive at the highest point: "
        f"{pinned or 'no values'}"
    )
    return MemoryBudgetError(
        message,
        remedy=f"allow at least memory={smallest.total_bytes + 2**20:_} bytes, or use a smaller "
        f"block_rows{', or read the data from Parquet' if in_memory else ''}",
    )
