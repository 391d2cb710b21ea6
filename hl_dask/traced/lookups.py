"""Look-ups of traced values in tables and arrays that all rows share."""

from __future__ import annotations

from typing import Any

from hl_dask.expr import Op
from hl_dask.traced.base import dimensions, has_rows, is_traced
from hl_dask.traced.ops import aligned, attempt, call, lift, recalled, result, row_offset
from hl_dask.traced.tracer import Tracer


def apply_lookup(tracer: Tracer, table: Any, keys: tuple[Any, ...]) -> Any:
    """``hl.Table`` and ``hl.lookup`` with a traced key: a node that gathers in a shared table."""
    categories = tuple(key.categories if _is_text(key) else None for key in keys)
    codes = tuple(key.numbers if _is_text(key) else key for key in keys)
    offset = row_offset(tracer, codes)
    ids, values = [], []
    for key in codes:
        node, value = lift(tracer, key, offset)
        ids.append(node)
        values.append(value)
    op, bound = _bound(tracer, table, categories)
    if tracer.blind:
        return recalled(tracer, op, tuple(ids))
    value = attempt(tracer, bound, values, {})
    traced = result(tracer, op, tuple(ids), value, aligned(value, offset))
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
    """``array[index]``, the index an array, or a tuple with arrays among slices and numbers."""
    return array[index]


def apply_gather(tracer: Tracer, array: Any, index: Any) -> Any:
    """``assumption[index]`` where the index holds traced arrays.

    The arrays of the index broadcast against each other, and the axes of the result that they make
    stand where the first of them stood, or in front when a slice separates them.
    """
    parts = index if not is_traced(index) and isinstance(index, tuple) else (index,)
    offset = row_offset(tracer, parts)
    if offset is None:
        return call(tracer, gather, (array, index), {}, axis=-1)
    arrays = [k for k, p in enumerate(parts) if not (p is None or p is ... or isinstance(p, slice))]
    if any(has_rows(p) and p.dtype.kind == "b" for p in parts):
        msg = "a mask of rows as the index into a shared array"
        raise tracer.mixing(msg, "use np.where(mask, a, b)")
    if ... in [p for p in parts if p is ...] or arrays[-1] - arrays[0] + 1 != len(arrays):
        msg = "an index of rows with ... or with a slice between arrays"
        raise tracer.mixing(msg, "index all axes one after the other, or use hl.lookup")
    index_ndim = max(dimensions(parts[k]) for k in arrays)
    position = arrays[0] + index_ndim + offset
    return call(tracer, gather, (array, index), {}, axis=position)
