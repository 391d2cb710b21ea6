"""Look-ups of traced values in tables and arrays that all rows share."""

from __future__ import annotations

from typing import Any

import numpy as np

from hl_dask.expr import Op
from hl_dask.traced.base import has_rows, is_traced, sample_value
from hl_dask.traced.ops import attempt, call, lift, result, row_offset
from hl_dask.traced.tracer import Tracer



def apply_lookup(tracer: Tracer, table: Any, keys: tuple[Any, ...]) -> Any:
    """``hl.Table`` and ``hl.lookup`` with a traced key: a node that gathers in a shared table."""
    categories = tuple(key.categories if _is_text(key) else None for key in keys)
    codes = tuple(key.codes if _is_text(key) else key for key in keys)
    offset = row_offset(tracer, codes)
    ids, values = [], []
    for key in codes:
        node, value = lift(tracer, key, offset)
        ids.append(node)
        values.append(value)
    op, bound = _bound(tracer, table, categories)
    value = attempt(tracer, bound, values, _NO_OPTIONS)
    axis = -1 if offset is None else np.ndim(value) + offset
    traced = result(tracer, op, tuple(ids), value, axis)
    tracer.graph.values.setdefault(traced.node, bound)
    return traced


def _bound(tracer: Tracer, table: Any, categories: tuple[Any, ...]) -> tuple[Op, Any]:
    """The operation of looking up in a table with keys of these kinds; made once for each table."""
    key = (id(table), *map(id, categories))
    found = tracer.tables.get(key)
    if found is None:
        op = Op("lookup", (table.digest(), _digest(categories)))
        # The table and the categories are kept, lest another object take over their identity.
        found = tracer.tables[key] = (op, table.bind(categories), table, categories)
    return found[0], found[1]


def _is_text(key: Any) -> bool:
    return hasattr(type(key), "__hl_text__")


def _digest(categories: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if c is None else tuple(c) for c in categories)


def gather(array: Any, index: Any) -> Any:
    """``array[index]``, the index being an array, or a tuple with arrays among slices and numbers."""
    return array[index]


def apply_gather(tracer: Tracer, array: Any, index: Any) -> Any:
    """``assumption[index]`` where the index holds traced arrays."""
    parts = index if isinstance(index, tuple) else (index,)
    rows: list[Any] = [p for p in parts if is_traced(p) and p.axis >= 0]
    if any(not isinstance(p, (int, np.integer, np.ndarray, Traced)) for p in parts):
        if len(parts) > 1 and len([p for p in parts if is_traced(p)]) > 1:
            msg = "an index that mixes slices with several arrays of rows"
            raise tracer.mixing(msg, "use hl.lookup")
    if any(p.value.dtype.kind == "b" for p in rows):
        msg = "a mask of rows as the index into a shared array"
        raise tracer.mixing(msg, "use np.where(mask, a, b)")
    offset = row_offset(tracer, tuple(parts))
    first = next((k for k, p in enumerate(parts) if is_traced(p)), 0)
    index_ndim = max((np.ndim(p.value) for p in parts if is_traced(p)), default=0)
    plain_before = sum(1 for p in parts[:first] if isinstance(p, slice))

    def axis(value: Any) -> int:
        return -1 if offset is None else plain_before + index_ndim + offset

    return call(tracer, gather, (np.asarray(array), index), {}, axis=axis)


