"""Indexing, assignment and reshaping of traced arrays: every row has to stay a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from hl_dask.expr import Frozen, Op
from hl_dask.traced.base import Traced, dimensions, has_rows, is_traced
from hl_dask.traced.lookups import apply_gather, gather
from hl_dask.traced.ops import (
    attempt,
    call,
    check_session,
    flatten,
    lift,
    recalled,
    result,
    row_offset,
)
from hl_dask.traced.tracer import Tracer


def apply_index(array: Any, index: Any) -> Any:
    """``x[index]`` of a traced array; the rows must be taken whole."""
    tracer: Tracer = array.tracer
    check_session(tracer, array)
    axis = array.axis
    if axis < 0:
        if has_rows(index):
            return apply_gather(tracer, array, index)
        return call(tracer, gather, (array, index), {}, axis=-1)
    parts = _expanded(array, index)
    wanted, position = _row_position(tracer, parts, axis)
    ids: list[int] = [array.node]
    view = all(p is None or isinstance(p, (slice, int, np.integer)) for p in wanted)
    value = None if tracer.blind else attempt(tracer, gather, (array.value, wanted), {})
    if view:
        array.fresh = False
        op = Op("view", _static_index(wanted))
    else:
        op = Op("index", flatten(tracer, wanted, ids, [value], None))
    if tracer.blind:
        return recalled(tracer, op, tuple(ids), fresh=not view)
    return result(tracer, op, tuple(ids), value, position, fresh=not view)


def _expanded(array: Any, index: Any) -> list[Any]:
    """The index with one part for each axis of the array, and None for each new axis."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(p, (bool, np.bool)) for p in parts):
        parts = _without_flags(array.tracer, parts)
    consumed = sum(_axes_taken(p) for p in parts if p is not None and p is not ...)
    if consumed > array.ndim:
        msg = (
            f"too many indices for array: array is {array.ndim}-dimensional, "
            f"but {consumed} were indexed"
        )
        raise IndexError(msg)
    missing = [slice(None)] * (array.ndim - consumed)
    dots = [k for k, p in enumerate(parts) if p is ...]
    if not dots:
        return parts + missing
    return parts[: dots[0]] + missing + parts[dots[0] + 1 :]


def _without_flags(tracer: Tracer, parts: list[Any]) -> list[Any]:
    """The index with a new axis in place of True, which is equal to 1 and means another thing."""
    others = [p for p in parts if not (p is None or p is ... or isinstance(p, (slice, bool)))]
    if others or parts.count(True) != 1 or False in parts:
        msg = "an index with a flag that is not an array"
        raise tracer.mixing(msg, "use np.where(flag, x, 0), or x[:, None] for a new axis")
    return [None if isinstance(p, bool) else p for p in parts]


def _axes_taken(part: Any) -> int:
    """How many axes a part of an index takes: a mask takes as many as it has."""
    value = np.asarray(part) if isinstance(part, list) else part
    mask = (is_traced(value) or isinstance(value, np.ndarray)) and value.dtype.kind == "b"
    return max(value.ndim, 1) if mask else 1


def _row_position(tracer: Tracer, parts: list[Any], axis: int) -> tuple[tuple[Any, ...], int]:
    """The index with all rows in full, and the point axis of what it gives."""
    wanted: list[Any] = []
    source = position = 0
    found = -1
    for part in parts:
        if part is None:
            position += 1
        elif source == axis:
            _whole_rows(tracer, part)
            found = position
            position += 1
        elif isinstance(part, slice):
            position += 1
        elif not isinstance(part, (int, np.integer)):
            position += _fancy_axes(tracer, part, parts)
        wanted.append(slice(None) if part is not None and source == axis else part)
        source += 0 if part is None else _axes_taken(part)
    return tuple(wanted), found


def _static_index(index: tuple[Any, ...]) -> Any:
    return tuple(
        Frozen("slice", (p.start, p.stop, p.step))
        if isinstance(p, slice)
        else (None if p is None else int(p))
        for p in index
    )


def _fancy_axes(tracer: Tracer, part: Any, parts: list[Any]) -> int:
    """How many axes an array among the parts of an index makes."""
    arrays = [p for p in parts if not (p is None or isinstance(p, slice))]
    if is_traced(part) or len(arrays) > 1:
        msg = "an index that picks another column for each row"
        raise tracer.mixing(msg, "use np.take_along_axis(x, k[:, None], axis=1)[:, 0]")
    value = np.asarray(part)
    return 1 if value.dtype.kind == "b" else value.ndim


def _whole_rows(tracer: Tracer, part: Any) -> None:
    """Check that an index takes all rows in their order."""
    if isinstance(part, slice):
        stop = part.stop
        to_the_end = stop is None or (not is_traced(stop) and stop == tracer.rows)
        if part.start in (None, 0) and part.step in (None, 1) and to_the_end:
            return
    if is_traced(part) and part.dtype.kind == "b":
        msg = "a selection of rows (x[mask])"
        remedy = (
            "np.where(mask, x, 0) keeps one value for every row, and its totals are those of the "
            "selection"
        )
        raise tracer.mixing(msg, remedy)
    msg = "an index into the rows (x[0], x[1:], x[::-1], x[order])"
    remedy = (
        "use row-wise operations; the total over rows is x.sum(), the first entry has no "
        "counterpart"
    )
    raise tracer.mixing(msg, remedy)


def assign(array: Any, index: Any, value: Any) -> Any:
    """A copy of the array with ``array[index] = value`` done."""
    copy = np.array(array)
    copy[index] = value
    return copy


def apply_assignment(array: Any, index: Any, value: Any) -> Any:
    """``x[index] = value`` on a copy: a new node, for masks of rows and for whole columns."""
    tracer: Tracer = array.tracer
    if array.axis < 0:
        if has_rows((index, value)):
            msg = "assigning rows to entries of a total"
            raise tracer.mixing(msg, "use np.where")
        return call(tracer, assign, (array, index, value), {}, axis=-1)
    parts = index if isinstance(index, tuple) else (index,)
    mask = parts[0] if len(parts) == 1 and is_traced(parts[0]) else None
    if mask is not None and mask.dtype.kind == "b" and array.axis == mask.axis == 0:
        return _assign_selected(tracer, array, mask, value)
    if array.axis == 0 and all(p is ... or isinstance(p, (slice, int, np.integer)) for p in parts):
        return _assign_columns(tracer, array, parts, value)
    msg = "assigning to some rows"
    raise tracer.mixing(msg, "use x = np.where(condition, new, x)")


def _assign_selected(tracer: Tracer, array: Any, mask: Any, value: Any) -> Any:
    """``x[mask] = number``; NumPy would take an array to have one entry per selected row."""
    if dimensions(value):
        msg = "assigning an array to selected rows (x[mask] = y)"
        raise tracer.mixing(msg, "use x = np.where(mask, y, x)")
    return call(tracer, assign, (array, mask, value), {}, axis=0)


def _assign_columns(tracer: Tracer, array: Any, parts: tuple[Any, ...], value: Any) -> Any:
    """``x[:, j] = y`` and ``x[...] = y``."""
    expanded = _expanded(array, parts)
    _whole_rows(tracer, expanded[0])
    offset = sum(isinstance(p, (int, np.integer)) for p in expanded) - array.ndim
    if row_offset(tracer, (value,)) not in (None, offset):
        msg = "assigning an array whose rows lie on another axis"
        raise tracer.mixing(msg, "transpose it first")
    node, concrete = lift(tracer, value, offset)
    if not is_traced(value) and concrete is not value:
        # A plain array with equal entries for all rows became one that is as long as the sample.
        value = Traced.make(tracer, node, concrete)
    index = (slice(None), *expanded[1:])
    return call(tracer, assign, (array, index, value), {}, axis=0)


def apply_reshape(array: Any, shape: tuple[Any, ...]) -> Any:
    """``x.reshape(shape)`` where every row stays a row of its own."""
    tracer: Tracer = array.tracer
    wanted = tuple(int(s) for s in shape)
    if array.axis < 0:
        return call(tracer, np.reshape, (array, wanted), {}, axis=-1)
    rest = _row_shape(tracer, wanted, array)
    if rest is None:
        msg = f"reshape to {wanted}"
        raise tracer.mixing(msg, "keep the rows as the first axis: x.reshape(-1, k), x[:, None]")
    array.fresh = False
    if tracer.blind:
        return recalled(tracer, Op("reshape", rest), (array.node,), fresh=False)
    value = array.value.reshape((-1, *rest))
    return result(tracer, Op("reshape", rest), (array.node,), value, 0, fresh=False)


def _row_shape(tracer: Tracer, shape: tuple[int, ...], array: Any) -> tuple[int, ...] | None:
    """The shape of one row after a reshape, or None when rows would be mixed."""
    if array.axis != 0 or not shape or shape[0] not in (-1, tracer.rows):
        return None
    per_row = int(np.prod(tracer.graph.metas[array.node].shape, dtype=np.int64))
    rest = shape[1:]
    if rest.count(-1) == 1 and shape[0] != -1:
        others = -int(np.prod(rest, dtype=np.int64))
        if others <= 0 or per_row % others:
            return None
        rest = tuple(per_row // others if s == -1 else s for s in rest)
    if min(rest, default=0) < 0 or int(np.prod(rest, dtype=np.int64)) != per_row:
        return None
    return rest


def apply_squeeze(array: Any, axis: Any) -> Any:
    """``x.squeeze()``; the point axis always stays."""
    shape = array.sample_shape
    if axis is None:
        axes = {k for k, length in enumerate(shape) if length == 1 and k != array.axis}
    else:
        axes = {int(a) % array.ndim for a in (axis if isinstance(axis, tuple) else (axis,))}
    if any(shape[k] != 1 for k in axes):
        msg = "cannot select an axis to squeeze out which has size not equal to one"
        raise ValueError(msg)
    if not axes:
        return array
    return apply_index(array, tuple(0 if k in axes else slice(None) for k in range(array.ndim)))
