"""In which phase an operation is done, where some have to wait for totals over all rows.

A total is complete when all blocks have been through the phase that its parts are taken in, and
what needs it comes in a later phase::

    phase 0     assets(0)   sum(assets(0))
                            |  over all blocks
    phase 1                 bonus(0)   assets(1)   sum(assets(1))
    phase 2                                        bonus(1)   assets(2) ...

There are as many phases as the longest chain of totals makes necessary. What could be done early
and is needed late is done late, in the order of the trace: what is made early has to be kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NONE: tuple[int, ...] = ()


def phases_of(
    order: Sequence[int],
    reads: Mapping[int, Sequence[int]],
    waits: Mapping[int, Sequence[int]],
) -> dict[int, int]:
    """The phase of each operation.

    Parameters
    ----------
    order : sequence of int
        Operations in a topological order, that of the trace.
    reads : mapping of int to sequence of int
        For each operation, those whose values of the same rows it reads.
    waits : mapping of int to sequence of int
        For some operations, those whose totals over all rows they need.

    Returns
    -------
    dict of int to int
        Phases from 0: not before those of its reads, and after those it waits for.
    """
    earliest = _earliest(order, reads, waits)
    last = max(earliest.values(), default=0)
    if not last:
        return dict.fromkeys(order, 0)
    due = _due(order, reads, waits, last)
    found: dict[int, int] = {}
    left: list[int] = []
    at = 0
    position = {op: k for k, op in enumerate(order)}
    waited_for = {total for ops in waits.values() for total in ops}
    totals = [op for op in order if op in waited_for]
    for phase in range(last):
        needed = [op for op in totals if op not in found and due[op] <= phase]
        urgent = _with_reads(needed, reads, found)
        reached = max([at, *(position[op] + 1 for op in urgent)])
        later: list[int] = []
        for op in [*left, *order[at:reached]]:
            # What the trace has come by is done as well, unless it waits for a total of this phase.
            is_free = all(found.get(read, last) <= phase for read in reads.get(op, NONE)) and all(
                found.get(total, phase) < phase for total in waits.get(op, NONE)
            )
            if is_free:
                found[op] = phase
            else:
                later.append(op)
        left, at = later, reached
    for op in order:
        found.setdefault(op, last)
    return found


def _earliest(
    order: Sequence[int],
    reads: Mapping[int, Sequence[int]],
    waits: Mapping[int, Sequence[int]],
) -> dict[int, int]:
    found: dict[int, int] = {}
    for op in order:
        phase = max((found[read] for read in reads.get(op, NONE)), default=0)
        for total in waits.get(op, NONE):
            phase = max(phase, found[total] + 1)
        found[op] = phase
    return found


def _due(
    order: Sequence[int],
    reads: Mapping[int, Sequence[int]],
    waits: Mapping[int, Sequence[int]],
    last: int,
) -> dict[int, int]:
    """The latest phase in which each operation may be done."""
    due = dict.fromkeys(order, last)
    for op in reversed(order):
        for read in reads.get(op, NONE):
            due[read] = min(due[read], due[op])
        for total in waits.get(op, NONE):
            due[total] = min(due[total], due[op] - 1)
    return due


def _with_reads(
    ops: Sequence[int], reads: Mapping[int, Sequence[int]], done: Mapping[int, int]
) -> set[int]:
    """Operations, and all they read that has not been done."""
    found: set[int] = set()
    stack = list(ops)
    while stack:
        op = stack.pop()
        if op not in found and op not in done:
            found.add(op)
            stack += reads.get(op, NONE)
    return found
