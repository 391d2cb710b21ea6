"""Where a program is cut, so that a task does a part of it: a time step, a formula call.

::

    order      a  b  c  d | e  f  g | h  i          operations, in the order of evaluation
    segment    0          | 1       | 2
    state                a, d      d, f             values that are made before a cut and read after

What passes a cut is the state of a chunk. A segment is given what it *uses* of it, and adds what it
*makes*; the rest it *keeps* is handed on as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple


class Label(NamedTuple):
    """What the operations of a segment have in common.

    Attributes
    ----------
    group : str
        The formula, or ``step``.
    text : str
        The call, or the time step.
    """

    group: str
    text: str


class Segment(NamedTuple):
    """Operations that one task does.

    Attributes
    ----------
    start, stop : int
        Their positions in the order of the program.
    uses, makes, keeps : tuple of int
        Values that come from the state, values for the state, and values of the state that are
        still needed later.
    columns : tuple of str
        Columns of the model points that are read.
    phase : int
        Phase that it belongs to; see :mod:`hl_dask.phases`.
    loads : tuple of int
        Columns that an earlier segment has loaded, to be loaded again.
    """

    label: Label
    start: int
    stop: int
    uses: tuple[int, ...]
    makes: tuple[int, ...]
    keeps: tuple[int, ...]
    columns: tuple[str, ...]
    phase: int = 0
    loads: tuple[int, ...] = ()


def cut(
    order: Sequence[int],
    reads: Callable[[int], Iterable[int]],
    last: Mapping[int, int],
    label: Callable[[int], Label],
    column: Callable[[int], str | None],
    phase: Callable[[int], int] = lambda op: 0,
    again: Callable[[int], bool] = lambda op: False,
) -> list[Segment]:
    """Cut an order where the label changes.

    Parameters
    ----------
    reads : callable
        ``reads(op)``: the operations whose values it needs.
    last : mapping of int to int
        Position of the last use of each value; see :func:`~hl_dask.liveness.last_use`.
    column : callable
        ``column(op)``: the column that an operation loads, if it does.
    phase : callable
        ``phase(op)``: its phase; of one label are one phase.
    again : callable
        ``again(op)``: whether the column that an operation loads is loaded again where it is
        needed, and is not part of the state.
    """
    segments: list[Segment] = []
    state: list[int] = []
    start = 0
    while start < len(order):
        stop = start + 1
        wanted = label(order[start])
        while stop < len(order) and label(order[stop]) == wanted:
            stop += 1
        here = order[start:stop]
        new = set(here)
        read = {value for op in here for value in reads(op)}
        uses = tuple(op for op in state if op in read)
        keeps = tuple(op for op in state if last[op] >= stop)
        makes = tuple(op for op in here if last[op] >= stop and not again(op))
        loads = tuple(sorted(op for op in read if op not in new and again(op)))
        columns = {name for op in (*here, *loads) if (name := column(op)) is not None}
        segments.append(
            Segment(
                wanted,
                start,
                stop,
                uses,
                makes,
                keeps,
                tuple(sorted(columns)),
                phase(here[0]),
                loads,
            )
        )
        state = [*keeps, *makes]
        start = stop
    return segments
