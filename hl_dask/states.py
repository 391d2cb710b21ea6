"""What a chunk hands on from one task to the next: values that are still needed, and partials."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hl_dask._columns import TEXT_BYTES
from hl_dask.aggregate import Partial, Tree

Array = NDArray[Any]
_NUMBER_BYTES = 64


class State:
    """The state of a chunk between two segments. Nothing of it is ever changed.

    Parameters
    ----------
    values : dict of int to ndarray
        Values by node, of all rows of the chunk; arrays of their own, not views.
    partials : tuple of dict
        Partials of the blocks of the chunk so far.
    """

    __slots__ = ("__weakref__", "partials", "values")

    def __init__(self, values: dict[int, Array], partials: tuple[Partial, ...]) -> None:
        self.values = values
        self.partials = partials

    def __sizeof__(self) -> int:
        # Dask asks for it when it decides what to spill, and cannot know of the arrays inside.
        held = sum(map(_size, self.values.values()))
        for partial in self.partials:
            held += sum(_size(part) for part in partial.values())
        return object.__sizeof__(self) + held

    def __reduce__(self) -> tuple[Any, ...]:
        return State, (self.values, self.partials)


class Handed:
    """What a phase of a chunk hands on on a cluster; nothing of it is ever changed.

    Parameters
    ----------
    values : dict of int to ndarray
        Values by node that later phases need, of all rows of the chunk; arrays of their own.
    tree : Tree
        Partials of the reductions of the phase.
    """

    __slots__ = ("__weakref__", "tree", "values")

    def __init__(self, values: dict[int, Array], tree: Tree) -> None:
        for value in values.values():
            value.setflags(write=False)
        self.values = values
        self.tree = tree

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + sum(map(_size, self.values.values()))

    def __reduce__(self) -> tuple[Any, ...]:
        return Handed, (self.values, self.tree)


def _size(part: Any) -> int:
    if isinstance(part, np.ndarray):
        return part.nbytes if not part.dtype.hasobject else part.size * TEXT_BYTES
    return sum(int(getattr(item, "nbytes", _NUMBER_BYTES)) for item in part)
