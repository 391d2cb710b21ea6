"""Partials of blocks, combined in one fixed binary tree.

The tree stands over the block index, whatever the chunks, workers or order of completion::

    level 2              (2,0)                          (2,1)
    level 1      (1,0)          (1,1)            (1,2)
    level 0   (0,0) (0,1)    (0,2) (0,3)      (0,4)

Node ``(level, i)`` covers the blocks ``i * 2**level`` up to ``(i + 1) * 2**level``. A node whose
right child lies wholly beyond the last block *is* its left child. A :class:`Tree` holds any set of
nodes and merges siblings as soon as both are there; since every sum is the sum of one fixed pair,
the order in which blocks arrive cannot change a bit. A tree over ``b`` blocks holds at most about
``2 log2(b)`` partials when blocks come in sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Partial = dict[str, Any]
"""Partials of one block or more: for each way of combining, a flat vector (or a list of
objects)."""


def combine_moments(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Combine (count, mean, sum of squared deviations) of two sets of rows.

    Parameters
    ----------
    left, right : ndarray, shape (3, k)
        Count, mean and squared deviations from the mean for k values.

    Notes
    -----
    Chan, Golub and LeVeque (1983), "Algorithms for computing the sample variance".
    """
    n_left, mean_left, m2_left = left
    n_right, mean_right, m2_right = right
    count = n_left + n_right
    delta = mean_right - mean_left
    share = n_right / np.where(count == 0, 1, count)
    mean = mean_left + delta * share
    m2 = m2_left + m2_right + delta * delta * n_left * share
    return np.stack([count, mean, m2])


UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "fmin": np.fmin,
    "fmax": np.fmax,
    "any": np.logical_or,
    "all": np.logical_and,
}
"""Reductions that combine two partials as they combine two rows."""
COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    **UFUNCS,
    "moments": combine_moments,
    "nanmoments": combine_moments,
}


@dataclass(slots=True)
class Tree:
    """A partly combined tree over the block index.

    Parameters
    ----------
    n_blocks : int
        Blocks in all; with it, the shape of the tree is known.
    combine : mapping of str to callable
        How two partials of a kind are combined; see :data:`COMBINE`.
    """

    n_blocks: int
    combine: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=lambda: COMBINE)
    nodes: dict[tuple[int, int], Partial] = field(default_factory=dict)

    def add(self, block: int, partial: Partial) -> None:
        """Put in the partial of one block and merge what can be merged."""
        self._put(0, block, partial)

    def merge(self, other: Tree) -> Tree:
        """Take over all nodes of another tree over the same blocks; returns self."""
        for (level, index), partial in sorted(other.nodes.items()):
            self._put(level, index, partial)
        return self

    def result(self) -> Partial:
        """The combination of all blocks.

        Raises
        ------
        ValueError
            When blocks are missing.
        """
        if (
            len(self.nodes) != 1
            or (key := next(iter(self.nodes)))[1] != 0
            or (1 << key[0]) < self.n_blocks
        ):
            msg = f"the tree is not complete: {len(self.nodes)} parts over {self.n_blocks} blocks"
            raise ValueError(msg)
        return self.nodes[key]

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the functions: those of the user's aggregates may be unknown where this arrives.
        return Tree, (self.n_blocks, {}, self.nodes)

    def _put(self, level: int, index: int, partial: Partial) -> None:
        while (1 << level) < self.n_blocks:
            sibling = index ^ 1
            if (sibling << level) >= self.n_blocks:
                level, index = level + 1, index >> 1
                continue
            other = self.nodes.pop((level, sibling), None)
            if other is None:
                break
            left, right = (other, partial) if sibling < index else (partial, other)
            partial = self._combine(left, right)
            level, index = level + 1, index >> 1
        if (level, index) in self.nodes:
            msg = f"blocks of tree node {(level, index)} were added twice"
            raise ValueError(msg)
        self.nodes[level, index] = partial

    def _combine(self, left: Partial, right: Partial) -> Partial:
        out: Partial = {}
        for kind, value in left.items():
            if isinstance(value, list):
                merge = self.combine[kind]
                out[kind] = [merge(a, b) for a, b in zip(value, right[kind], strict=True)]
            else:
                out[kind] = self.combine[kind](value, right[kind])
        return out


def merge_trees(
    trees: Iterable[Tree], combine: Mapping[str, Callable[[Any, Any], Any]] | None = None
) -> Tree:
    """Merge trees over the same blocks into a new one; the inputs stay as they are.

    Parameters
    ----------
    combine : mapping of str to callable, optional
        How partials are combined, for trees that have been sent, which goes without functions.
    """
    iterator = iter(trees)
    first = next(iterator)
    merged = Tree(first.n_blocks, combine or first.combine, dict(first.nodes))
    for tree in iterator:
        merged.merge(tree)
    return merged


@dataclass(frozen=True)
class Sum:
    """Sum over rows, and over which other axes.

    Parameters
    ----------
    axis : int, tuple of int or None
        As in :func:`numpy.sum`. ``None`` adds up everything; ``0`` adds over the rows only and
        keeps a scenario axis.
    """

    axis: int | tuple[int, ...] | None = None

    def __call__(self, value: Any) -> Any:
        """Sum of an array; see :func:`numpy.sum`."""
        return np.sum(value, axis=self.axis)


@dataclass(frozen=True)
class Aggregate:
    """An aggregate of your own, for which you know how parts of the rows are put together.

    Parameters
    ----------
    map : callable
        ``map(values) -> partial``: from the values of some rows, shape (rows, ...).
    combine : callable
        ``combine(partial, partial) -> partial``: of two disjoint sets of rows, the first before the
        second.
    finalise : callable, optional
        ``finalise(partial) -> value``; the partial itself by default.

    Examples
    --------
    The root mean square:

    >>> import numpy as np
    >>> rms = Aggregate(
    ...     map=lambda x: np.array([np.sum(x * x), x.size]),
    ...     combine=np.add,
    ...     finalise=lambda p: float(np.sqrt(p[0] / p[1])),
    ... )
    >>> rms(np.array([3.0, 4.0, 5.0, 0.0]))
    3.5355339059327378
    """

    map: Callable[[Any], Any]
    combine: Callable[[Any, Any], Any]
    finalise: Callable[[Any], Any] | None = None

    def __call__(self, value: Any) -> Any:
        """The aggregate of an array that holds all rows."""
        return self.finish(self.map(value))

    def finish(self, partial: Any) -> Any:
        """The value of the partial of all rows."""
        return partial if self.finalise is None else self.finalise(partial)
