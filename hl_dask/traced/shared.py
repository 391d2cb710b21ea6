"""Assumption arrays that keep a look-up by a traced index visible."""

from __future__ import annotations

from typing import Any

import numpy as np

from hl_dask.traced.base import is_traced
from hl_dask.traced.dispatch import FUNCTIONS


class SharedArray(np.ndarray[Any, Any]):
    """A read-only view of an assumption array; indexing it with a traced array is recorded.

    In all other respects it is the array it views.
    """

    def __getitem__(self, index: Any) -> Any:
        parts = index if not is_traced(index) and isinstance(index, tuple) else (index,)
        for part in parts:
            gather = getattr(type(part), "__hl_gather__", None)
            if gather is not None:
                return gather(part, self, index)
        return super().__getitem__(index)

    def take(self, indices: Any, axis: Any = None, out: Any = None, mode: Any = "raise") -> Any:
        """See :func:`numpy.take`."""
        if hasattr(type(indices), "__hl_gather__"):
            # np.take looks at the array only, and would come back here.
            options = {"axis": axis, "mode": mode}
            return FUNCTIONS[np.take](indices.tracer, np.take, (self, indices), options)
        return super().take(indices, axis, out, mode)

    def searchsorted(self, v: Any, side: Any = "left", sorter: Any = None) -> Any:
        """See :func:`numpy.searchsorted`."""
        if hasattr(type(v), "__hl_gather__"):
            return np.searchsorted(self, v, side=side, sorter=sorter)
        return super().searchsorted(v, side, sorter)


def share(value: np.ndarray[Any, Any]) -> SharedArray:
    """The read-only shared view of a plain array."""
    view = value.view(SharedArray)
    view.setflags(write=False)
    return view
