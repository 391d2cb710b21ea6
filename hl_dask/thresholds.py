"""By how much totals are on their side of a threshold.

``if self.surplus(t) < 0`` and ``np.where(self.cover(t) > 1.2, ...)`` go one way or the other for
the whole portfolio. Totals are right to some fifteen digits, in whatever order they are summed;
where one is nearer to its threshold than that, rounding decides, and so may another program.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hl_dask.expr import PORTFOLIO, REDUCTIONS, Graph
from hl_dask.kernel import evaluate_global, portfolio_ancestors
from hl_dask.planning import roots_of
from hl_dask.record import Recording

COMPARISONS: dict[Any, str] = {
    np.less: "<",
    np.less_equal: "<=",
    np.greater: ">",
    np.greater_equal: ">=",
    np.equal: "==",
    np.not_equal: "!=",
}
NARROW = 1e-12
"""A margin below which a threshold is warned of: the accuracy that a run promises of its totals."""


class Threshold(NamedTuple):
    """A comparison of a total.

    Attributes
    ----------
    call : str
        The formula call.
    left, comparison, right : object, str, object
        What was compared; of arrays the entries that are nearest to each other.
    margin : float
        Their distance, relative to the size of what they were made of: of two assets of 100 whose
        difference of 1 is compared with 0 it is 1 / 200.
    """

    call: str
    left: Any
    comparison: str
    right: Any
    margin: float


def thresholds_of(
    recordings: Sequence[Recording], known: Mapping[int, Any]
) -> list[list[Threshold]]:
    """The thresholds of a run, for each recording, in the order of the trace.

    Parameters
    ----------
    recordings : sequence of Recording
        Of one graph.
    known : mapping of int to object
        Values of the reductions.
    """
    graph, describe = recordings[0].graph, recordings[0].describe
    number = {recording.member: k for k, recording in enumerate(recordings)}
    found: list[list[Threshold]] = [[] for _ in recordings]
    nodes = [n for n in graph.ancestors(roots_of(recordings)) if _compares(graph, n)]
    nodes = [n for n in nodes if _is_known(graph, n, known)]
    values = evaluate_global(graph, [a for n in nodes for a in graph.args[n]], known, describe)
    sizes = _Sizes(graph, values)
    for node in nodes:
        owner = graph.owners[node]
        left, right = graph.args[node]
        if not all(np.asarray(values[a]).dtype.kind in "biuf" for a in (left, right)):
            continue
        nearest = _nearest(values[left], values[right], sizes.of(left) + sizes.of(right))
        if nearest is not None:
            sign = COMPARISONS[graph.ops[node].static]
            one, other, margin = nearest
            found[number.get(getattr(owner, "member", None), 0)].append(
                Threshold(describe(owner), one, sign, other, margin)
            )
    return found


def warn_of_narrow(thresholds: Iterable[Threshold], stacklevel: int) -> None:
    """Warn of totals that rounding may have put on their side of a threshold."""
    narrow = [t for t in thresholds if 0 < t.margin <= NARROW]
    if narrow:
        first = narrow[0]
        warnings.warn(
            f"rounding may decide {len(narrow):,} threshold{'s' * (len(narrow) > 1)}: in "
            f"{first.call}, {first.left!r} {first.comparison} {first.right!r} has a margin of "
            f"{first.margin:.1g} of the totals that it was made of; see result.thresholds",
            stacklevel=stacklevel,
        )


def _compares(graph: Graph, node: int) -> bool:
    op = graph.ops[node]
    return graph.kinds[node] == PORTFOLIO and op.name == "ufunc" and op.static in COMPARISONS


def _is_known(graph: Graph, node: int, known: Mapping[int, Any]) -> bool:
    rests_on = portfolio_ancestors(graph, [node])
    return all(n in known for n in rests_on if graph.ops[n].name in REDUCTIONS)


class _Sizes:
    """How large the totals are that a value is made of, which tells how exact it is."""

    def __init__(self, graph: Graph, values: Mapping[int, Any]) -> None:
        self.graph = graph
        self.values = values
        self.known: dict[int, Any] = {}

    def of(self, node: int) -> Any:
        """The size of a value; its magnitude, but for sums and products of others."""
        stack = [node]
        while stack:
            top = stack[-1]
            missing = [a for a in self._made_of(top) if a not in self.known]
            if missing:
                stack += missing
                continue
            self.known[top] = self._size(top)
            stack.pop()
        return self.known[node]

    def _made_of(self, node: int) -> Sequence[int]:
        op = self.graph.ops[node]
        is_sum = op.name == "ufunc" and op.static in (
            np.add,
            np.subtract,
            np.multiply,
            np.true_divide,
        )
        if not is_sum or op.name in REDUCTIONS:
            return ()
        return [a for a in self.graph.args[node] if a in self.values]

    def _size(self, node: int) -> Any:
        made_of = self._made_of(node)
        magnitude = np.abs(np.asarray(self.values[node], dtype=float))
        if len(made_of) < 2:
            return magnitude
        with np.errstate(all="ignore"):
            a, b = (np.abs(np.asarray(self.values[arg], dtype=float)) for arg in made_of)
            size_a, size_b = (self.known[arg] for arg in made_of)
            static = self.graph.ops[node].static
            if static in (np.add, np.subtract):
                return size_a + size_b
            if static is np.multiply:
                return np.maximum(a * size_b, b * size_a)
            return np.maximum(size_a / b, a * size_b / b**2)


def _nearest(left: Any, right: Any, size: Any) -> tuple[Any, Any, float] | None:
    """The entries of two values that are nearest to each other, and their relative distance."""
    one, other = np.broadcast_arrays(np.asarray(left), np.asarray(right))
    if not one.size:
        return None
    with np.errstate(all="ignore"):
        gap = np.abs(one.astype(float) - other.astype(float))
        margin = np.where(gap == 0, 0.0, gap / np.broadcast_to(size, one.shape))
    if np.isnan(margin).all():
        return None
    k = int(np.nanargmin(margin))
    return one.flat[k].item(), other.flat[k].item(), float(margin.flat[k])
