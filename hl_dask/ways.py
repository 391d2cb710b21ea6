"""Where what chunks keep between phases may be, and the first place that it fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hl_dask.budget import Fitted, Work, allowed_bytes, fit
from hl_dask.chunks import split_held
from hl_dask.declared import all_columns
from hl_dask.errors import MemoryBudgetError
from hl_dask.points import ModelPoints
from hl_dask.program import Program

STATE_SHARE = 0.04
"""Of the memory of a worker that the state of a chunk may take: what is spilled at a time."""
HOLDING_SHARE = 0.6
"""Of the memory of a worker that is planned with: beyond it, distributed begins to spill."""
SPILLING_SHARE = 0.5
"""The same where states are spilled, which takes room for what is on its way."""


class Way(NamedTuple):
    """Where what chunks keep between phases is.

    Attributes
    ----------
    again : tuple of frozenset of str
        For each model, columns that are not kept, but loaded again in each phase.
    in_files : bool
        Whether states are in files.
    holders : int
        Workers of a cluster that hold them otherwise; 0 when they are in this process.
    spills : bool
        Whether the workers have no room for them, and spill.
    share : float
        How much of the memory allowed may be planned with.
    """

    again: tuple[frozenset[str], ...] = ()
    in_files: bool = False
    holders: int = 0
    spills: bool = False
    share: float = 1.0

    @property
    def place(self) -> str:
        """Where states are, in a word."""
        if self.holders:
            return "workers, spilled" if self.spills else "workers"
        return "files" if self.in_files else "memory"


def ways_on(number: int, *, is_shared: bool) -> list[Way]:
    """Ways on a cluster of so many workers, the fastest first.

    Without a directory that all workers see, states that do not fit are spilled by the workers.

    Parameters
    ----------
    is_shared : bool
        Whether all workers see the scratch directory.
    """
    first = Way(holders=number, share=HOLDING_SHARE)
    if is_shared:
        return [first, Way(in_files=True)]
    return [first, Way(holders=number, spills=True, share=SPILLING_SHARE)]


def ways_of(points: Sequence[ModelPoints | None]) -> list[Way]:
    """Ways in this process, the fastest first.

    To load a column that is in memory costs next to nothing, to decode it from a file anew in each
    phase less than to keep a larger state in files.
    """
    names = [[] if p is None else list(all_columns(p)) for p in points]
    held = [frozenset(split_held(p, n)[0]) for p, n in zip(points, names, strict=True)]
    every = list(map(frozenset, names))
    ways = [Way(tuple(held)), Way(tuple(every)), Way(tuple(held), in_files=True)]
    return ways if held != every else [ways[0], ways[2]]


class Fit(NamedTuple):
    """Programs that fit into the memory allowed.

    Attributes
    ----------
    works : dict of int to Work
        What is done with the rows of each model, by number; models of which nothing is done are
        left out.
    """

    works: dict[int, Work]
    fitted: Fitted
    way: Way


def fit_programs(
    programs: Callable[[tuple[frozenset[str], ...]], list[Program]],
    points: Sequence[ModelPoints | None],
    rows: Sequence[int],
    ways: Sequence[Way],
    *,
    memory: int | str | None,
    all_workers: bool = False,
    **settings: Any,
) -> Fit:
    """The first of some ways in which a pass fits into the memory allowed.

    Parameters
    ----------
    programs : callable
        ``programs(again)``: the programs when each phase loads some columns again.
    points, rows : sequence
        Model points of each model, and their number.
    ways : sequence of Way
        A pass of one phase, which keeps nothing, goes the first.
    memory, all_workers, **settings
        As for :func:`~hl_dask.budget.fit`.

    Raises
    ------
    MemoryBudgetError
        When none fits.
    """
    allowed = allowed_bytes(memory)
    for number, way in enumerate(ways):
        works = {
            k: Work(program, points[k], rows[k])
            for k, program in enumerate(programs(way.again))
            if program.order
        }
        is_phased = any(work.program.is_phased for work in works.values())
        share = way.share if is_phased else 1.0
        try:
            fitted = fit(
                list(works.values()),
                memory=int(allowed * share),
                # What is spilled is in files of the workers.
                in_files=(way.in_files or way.spills) and is_phased,
                holders=way.holders,
                state_bytes=int(allowed * STATE_SHARE) if way.holders else None,
                # Phases are tasks of whole chunks, whatever was asked for.
                all_workers=all_workers and not is_phased,
                **settings,
            )
        except MemoryBudgetError:
            if number == len(ways) - 1 or not is_phased:
                raise
            continue
        if way.spills and is_phased:
            # The workers keep what they can, up to what they are allowed.
            spare = max(0, allowed - fitted.projected.total_bytes)
            most = fitted.projected.state_bytes + spare
            fitted = fitted._replace(
                projected=replace(fitted.projected, state_bytes=most), allowed_bytes=allowed
            )
        return Fit(works, fitted, way)
    msg = "there is no way to choose from"
    raise ValueError(msg)
