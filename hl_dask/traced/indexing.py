"""Indexing, assignment and reshaping of traced arrays: every row has to stay a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from hl_dask.expr import Frozen, Op
from hl_dask.traced.base import Traced, has_rows, is_traced, sample_value
from hl_dask.traced.lookups import apply_gather, gather
from hl_dask.traced.ops import attempt, call, check_session, flatten, lift, result, row_offset
from hl_dask.traced.tracer import Tracer



def apply_index(array: Any, index: Any) -> Any:
    """``x[index]`` of a traced array; the rows must be taken whole."""
    tracer: Tracer = array.tracer
    check_session(tracer, array)
    parts = list(index) if isinstance(index, tuple) else [index]
    axis = array.axis
    if axis < 0:
        return _portfolio_index(tracer, array, index, parts)
    consumed = sum(1 for p in parts if p is not None and p is not Ellipsis)
    if Ellipsis in [p for p in parts if p is None or p is Ellipsis]:
        where = next(k for k, p in enumerate(parts) if p is Ellipsis)
        parts[where : where + 1] = [slice(None)] * (array.ndim - consumed)
    else:
        parts += [slice(None)] * (array.ndim - consumed)
    result_axis = source = 0
    found = -1
    for part in parts:
        if part is None:
            result_axis += 1
            continue
        if source == axis:
            _whole_rows(tracer, part)
            found = result_axis
            result_axis += 1
        elif isinstance(part, slice):
            result_axis += 1
        elif not isinstance(part, (int, np.integer)):
            result_axis = _fancy_column(tracer, part, result_axis, parts)
        source += 1
    if source > array.ndim:
        msg = f"too many indices for array: array is {array.ndim}-dimensional"
        raise IndexError(msg)
    wanted = tuple(slice(None) if k_is_rows else p for p, k_is_rows in _mark_rows(parts, axis))
    value = attempt(tracer, gather, (array.value, wanted), {})
    ids: list[int] = [array.node]
    values: list[Any] = [array.value]
    template = flatten(tracer, wanted, ids, values, None)
    basic = all(isinstance(p, (slice, int, np.integer)) or p is None for p in wanted)
    array.fresh = array.fresh and not basic
    op = Op("view" if basic else "index", _static_index(wanted) if basic else template)
    args = (array.node,) if basic else tuple(ids)
    return result(tracer, op, args, value, found, fresh=not basic)


def _mark_rows(parts: list[Any], axis: int) -> list[tuple[Any, bool]]:
    out, source = [], 0
    for part in parts:
        out.append((part, part is not None and source == axis))
        source += part is not None
    return out


def _static_index(index: tuple[Any, ...]) -> Any:
    return tuple(
        Frozen("slice", (p.start, p.stop, p.step))
        if isinstance(p, slice)
        else (None if p is None else int(p))
        for p in index
    )


def _fancy_column(tracer: Tracer, part: Any, result_axis: int, parts: list[Any]) -> int:
    arrays = [p for p in parts if isinstance(p, (list, np.ndarray)) or is_traced(p)]
    if is_traced(part) or len(arrays) > 1 or any(isinstance(p, (int, np.integer)) for p in parts):
        msg = "an index that picks another column for each row"
        raise tracer.mixing(
            msg,
            "use np.take_along_axis(x, k[:, None], axis=1)[:, 0]",
        )
    return result_axis + np.ndim(part)


def _whole_rows(tracer: Tracer, part: Any) -> None:
    """Check that an index takes all rows in their order."""
    if isinstance(part, slice):
        whole = (
            part.start in (None, 0)
            and part.step in (None, 1)
            and (part.stop is None or (not is_traced(part.stop) and part.stop == tracer.rows))
        )
        if whole:
            return
    what = "an index into the rows (x[0], x[1:], x[::-1], x[order])"
    remedy = "use row-wise operations; the total over rows is x.sum(), the first entry has no counterpart"
    if is_traced(part) and part.value.dtype.kind == "b":
        what, remedy = (
            "a selection of rows (x[mask])",
            (
                "np.where(mask, x, 0) keeps one value for every row, and its totals are those of the selection"
            ),
        )
    raise tracer.mixing(what, remedy)


def _portfolio_index(tracer: Tracer, array: Any, index: Any, parts: list[Any]) -> Any:
    if any(is_traced(p) and p.axis >= 0 for p in parts):
        return apply_gather(tracer, array, index)
    return call(tracer, gather, (array, index), {}, axis=lambda value: -1)


def assign(array: Any, index: Any, value: Any) -> Any:
    """A copy of the array with ``array[index] = value`` done."""
    copy = np.array(array)
    copy[index] = value
    return copy


def apply_assignment(array: Any, index: Any, value: Any) -> Any:
    """``x[index] = value`` on a copy: a new node, for masks of rows and for whole columns."""
    tracer: Tracer = array.tracer
    axis = array.axis
    parts = index if isinstance(index, tuple) else (index,)
    if axis < 0:
        return call(tracer, assign, (array, index, value), {}, axis=lambda out: -1)
    mask = parts[0] if len(parts) == 1 and is_traced(parts[0]) else None
    if mask is not None and mask.value.dtype.kind == "b" and mask.axis == 0 and axis == 0:
        if is_traced(value) and value.axis >= 0:
            msg = "assigning selected rows (x[mask] = y[mask])"
            raise tracer.mixing(msg, "use x = np.where(mask, y, x)")
        if np.ndim(value if not is_traced(value) else value.value):
            msg = "assigning an array to selected rows"
            raise tracer.mixing(msg, "use x = np.where(mask, y, x)")
        return call(tracer, assign, (array, index, value), {}, axis=lambda out: 0)
    whole = [p for p in parts if p is not Ellipsis]
    if axis == 0 and all(isinstance(p, (slice, int, np.integer)) for p in whole):
        if whole:
            _whole_rows(tracer, whole[0])
        cleaned = tuple(
            slice(None) if p is not Ellipsis and k == 0 else p for k, p in enumerate(parts)
        )
        offset = -(np.ndim(array.value) - sum(isinstance(p, (int, np.integer)) for p in whole))
        found = row_offset(tracer, (value,))
        if found not in (None, offset):
            msg = "assigning an array whose rows lie on another axis"
            raise tracer.mixing(msg, "transpose it first")
        node, concrete = lift(tracer, value, offset)
        if concrete is not value and not is_traced(value):
            value = Traced.make(tracer, node, concrete)
        return call(tracer, assign, (array, cleaned, value), {}, axis=lambda out: 0)
    msg = "assigning to some rows"
    raise tracer.mixing(msg, "use x = np.where(condition, new, x)")


def apply_reshape(array: Any, shape: tuple[Any, ...]) -> Any:
    """``x.reshape(shape)`` where every row stays a row of its own."""
    tracer: Tracer = array.tracer
    if array.axis < 0:
        return call(
            tracer, np.reshape, (array, tuple(int(s) for s in shape)), {}, axis=lambda v: -1
        )
    per_row = int(np.prod(array.tracer.graph.metas[array.node].shape, dtype=np.int64))
    rest = tuple(int(s) for s in shape[1:])
    size_rest = int(np.prod(rest, dtype=np.int64))
    first = int(shape[0]) if shape else 0
    known = -1 not in rest and size_rest == per_row
    if -1 in rest and first == tracer.rows and -size_rest > 0 and per_row % -size_rest == 0:
        rest = tuple(per_row // -size_rest if s == -1 else s for s in rest)
        known = True
    if array.axis != 0 or not known or first not in (-1, tracer.rows):
        msg = f"reshape to {shape}"
        raise tracer.mixing(msg, "keep the rows as the first axis: x.reshape(-1, k), x[:, None]")
    value = array.value.reshape((-1, *rest))
    array.fresh = False
    return result(tracer, Op("reshape", rest), (array.node,), value, 0, fresh=False)


def apply_squeeze(array: Any, axis: Any) -> Any:
    """``x.squeeze()``; the point axis always stays."""
    shape = array.tracer.graph.metas[array.node].shape
    if array.axis != 0 or axis is not None or any(s == 1 for s in shape) is False:
        return array if axis is None and 1 not in shape else _squeeze_axis(array, axis)
    index = (slice(None), *(0 if s == 1 else slice(None) for s in shape))
    return apply_index(array, index)


def _squeeze_axis(array: Any, axis: Any) -> Any:
    axes = {int(a) % array.ndim for a in np.atleast_1d(axis)}
    index = tuple(0 if k in axes else slice(None) for k in range(array.ndim))
    return apply_index(array, index)


