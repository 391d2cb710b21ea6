"""What each NumPy function does to the rows.

A rule has the signature ``rule(tracer, func, args, kwargs)``. There are five families:

elementwise
    operands broadcast; every row of the result comes from that row of the operands.
along another axis
    ``axis=`` names an axis other than the rows: reductions, sorts, cumulative sums within a row.
totals
    reductions over the rows: partials by block, combined in the tree. They are broken down here into
    the few that the tree knows (sum, prod, min, max, any, all, moments) and operations afterwards.
shape
    stacking, transposing, repeating within a row.
refused
    everything that ranks, orders, shifts or picks rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hl_dask.expr import Op
from hl_dask.traced import ops
from hl_dask.traced.base import Traced, is_traced
from hl_dask.traced.ops import FUNCTIONS, call, elementwise, row_offset, traced_operands
from hl_dask.traced.tracer import Tracer

Rule = Callable[[Tracer, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
_MISSING: Any = object()


def _options(
    names: str, args: tuple[Any, ...], kwargs: dict[str, Any], defaults: Any = None
) -> dict[str, Any]:
    """Positional and keyword arguments by name; NumPy's own no-value markers are dropped."""
    out = dict(zip(names.split(), args, strict=False))
    out.update(kwargs)
    return {k: v for k, v in out.items() if v is not np._NoValue}


def _first_traced(tracer: Tracer, value: Any) -> Any:
    if is_traced(value):
        ops.check_session(tracer, value)
        return value
    found = traced_operands(value)
    if found and isinstance(value, (list, tuple)):
        return np.stack(value)
    return value


def _on_rows(array: Any, axis: Any) -> bool:
    """Whether a reduction over ``axis`` goes over the rows."""
    if array.axis < 0:
        return False
    if axis is None:
        return True
    axes = axis if isinstance(axis, tuple) else (axis,)
    return array.axis in {int(a) % array.ndim for a in axes}


# ---- elementwise -----------------------------------------------------------------------------


def _elementwise(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    out = kwargs.pop("out", None)
    value = elementwise(tracer, func, args, kwargs)
    return value if out is None else out.take_over(value, func.__name__)


def _where(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    if len(args) != 3 or kwargs:
        msg = "np.where with one argument"
        raise tracer.mixing(msg, "use np.where(condition, a, b)")
    return ops.apply_ufunc(tracer, func, args)


def _real(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    (x,) = args
    if x.dtype.kind != "c":
        return x if func is np.real else np.zeros_like(x)
    return elementwise(tracer, func, args, kwargs)


def _isin(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    options = _options("element test_elements assume_unique invert", args, kwargs)
    x, test = options.pop("element"), options.pop("test_elements")
    if any(t.axis >= 0 for t in traced_operands(test)):
        msg = "np.isin in a set made of rows"
        raise tracer.mixing(msg, "use a set that is an assumption")
    if not is_traced(x):
        return func(
            x,
            np.asarray([np.asarray(t) for t in test] if isinstance(test, list) else test),
            **options,
        )
    test = np.asarray(list(test) if isinstance(test, (set, frozenset)) else test)
    return call(tracer, func, (x, test), options, axis=lambda v: x.axis)


def _search(names: str, moving: str, tables: tuple[str, ...]) -> Rule:
    """A look-up of traced values in shared tables: searchsorted, digitize, interp."""

    def rule(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        options = _options(names, args, kwargs)
        for name in tables:
            if any(t.axis >= 0 for t in traced_operands(options.get(name))):
                msg = f"np.{func.__name__} in a table made of rows"
                raise tracer.mixing(msg, "use a shared table")
        x = options[moving]
        axis = x.axis if is_traced(x) else -1
        order = names.split()
        count = max(order.index(name) for name in (moving, *tables) if name != "sorter") + 1
        positional = tuple(options.pop(name) for name in order[:count] if name in options)
        return call(tracer, func, positional, options, axis=lambda v: axis)

    return rule


def _take(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    options = _options("a indices axis out mode", args, kwargs)
    a, indices, axis = options["a"], options["indices"], options.get("axis")
    if is_traced(a) and a.axis >= 0:
        if axis is None or _on_rows(a, axis) or is_traced(indices):
            msg = "np.take from the rows"
            raise tracer.mixing(msg, ops.GATHER_REMEDY)
        shift = 0 if axis % a.ndim > a.axis else np.ndim(indices) - 1
        return call(
            tracer, func, (a, indices), _without_none(axis=axis), axis=lambda v: a.axis + shift
        )
    offset = row_offset(tracer, (indices,))
    before = 0 if axis is None else axis % np.ndim(a)
    index_ndim = np.ndim(indices.value) if is_traced(indices) else np.ndim(indices)
    kwargs = _without_none(axis=axis, mode=options.get("mode"))
    return call(
        tracer,
        func,
        (a if is_traced(a) else np.asarray(a), indices),
        kwargs,
        axis=lambda v: -1 if offset is None else before + index_ndim + offset,
    )


def _without_none(**kwargs: Any) -> dict[str, Any]:
    return {k: v for k, v in kwargs.items() if v is not None}


def _like(fill: Any) -> Rule:
    """zeros_like, ones_like, full_like: one row repeated."""

    def rule(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        options = _options("a fill_value dtype" if fill is None else "a dtype", args, kwargs)
        x = options["a"]
        value = options["fill_value"] if fill is None else fill
        dtype = np.dtype(options.get("dtype") or x.dtype)
        if is_traced(value):
            return np.broadcast_arrays(value, x)[0].astype(dtype).copy()
        if x.axis < 0:
            return call(
                tracer, np.full, (np.shape(x.value), value, dtype.str), {}, axis=lambda v: -1
            )
        shape = list(np.shape(x.value))
        shape[x.axis] = 1
        return ops.repeat_row(tracer, np.full(shape, value, dtype), x.axis)

    return rule


# ---- along another axis ----------------------------------------------------------------------


def _along(names: str, *, keeps: bool, default: Any = None) -> Rule:
    """Functions that work within each row when ``axis`` is not the rows.

    ``keeps``: the result has as many axes as the operand (sort, cumsum), else one less (argmax).
    """

    def rule(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        options = _options(names, args, kwargs)
        first = names.split(maxsplit=1)[0]
        x = _first_traced(tracer, options.pop(first))
        axis = options.get("axis", default)
        if not is_traced(x) or x.axis < 0:
            return call(tracer, func, (x,), options, axis=lambda v: -1)
        if axis is None and x.ndim == 1:
            axis = 0
        if axis is None or _on_rows(x, axis):
            msg = f"np.{func.__name__} over the rows"
            raise tracer.mixing(msg, ops.ORDER_REMEDY)
        if any(t.axis >= 0 for t in traced_operands(list(options.values()))):
            msg = f"np.{func.__name__} with arguments by row"
            raise tracer.mixing(msg, ops.ORDER_REMEDY)
        position = x.axis
        if not keeps and not options.get("keepdims"):
            axes = axis if isinstance(axis, tuple) else (axis,)
            position -= sum(1 for a in axes if int(a) % x.ndim < x.axis)
        options["axis"] = axis
        return call(tracer, func, (x,), options, axis=lambda v: position)

    return rule


def _take_along(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    options = _options("arr indices axis", args, kwargs)
    x, indices, axis = options["arr"], options["indices"], options.get("axis", -1)
    reference = x if is_traced(x) else indices
    if axis is None or int(axis) % np.ndim(reference.value) == reference.axis:
        msg = "np.take_along_axis over the rows"
        raise tracer.mixing(msg, ops.GATHER_REMEDY)
    offset = row_offset(tracer, (x, indices))
    return call(
        tracer,
        func,
        (x, indices, int(axis)),
        {},
        offset=offset,
        axis=lambda v: -1 if offset is None else v.ndim + offset,
    )


# ---- totals ----------------------------------------------------------------------------------


def total_of_rows(tracer: Tracer, x: Any) -> Any:
    """``np.sum(x)`` of one number for each row: what nearly every reported formula asks for."""
    value = np.add.reduce(x.value)
    return ops.result(tracer, SUM_OF_ROWS, (x.node,), value, -1)


SUM_OF_ROWS = Op("reduce", ("sum", (0,), False, None))


def _reduce(tracer: Tracer, kind: str, x: Any, axis: Any, keepdims: bool, dtype: Any = None) -> Any:
    """A reduction over the rows (and perhaps other axes) that the tree can combine."""
    axes = (
        tuple(range(x.ndim))
        if axis is None
        else tuple(int(a) % x.ndim for a in (axis if isinstance(axis, tuple) else (axis,)))
    )
    op = Op(
        "reduce",
        (kind, tuple(sorted(axes)), keepdims, None if dtype is None else np.dtype(dtype).str),
    )
    value = ops.attempt(tracer, reduce_rows, (x.value, op.static), {})
    return ops.result(tracer, op, (x.node,), value, -1)


REDUCERS: dict[str, Callable[..., Any]] = {
    "sum": np.add.reduce,
    "prod": np.multiply.reduce,
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
    "fmin": np.fmin.reduce,
    "fmax": np.fmax.reduce,
    "any": np.logical_or.reduce,
    "all": np.logical_and.reduce,
}


def moments(x: Any, axes: tuple[int, ...], keepdims: bool, skip_nan: bool) -> Any:
    """Count, mean and squared deviations from the mean over ``axes``, stacked on a first axis."""
    valid = ~np.isnan(x) if skip_nan else np.ones_like(x, dtype=bool)
    count = np.sum(valid, axis=axes, keepdims=True)
    mean = np.sum(x, axis=axes, keepdims=True, where=valid) / np.maximum(count, 1)
    m2 = np.sum(np.square(x - mean), axis=axes, keepdims=True, where=valid)
    parts = np.stack([count.astype(m2.dtype), mean, m2])
    return parts if keepdims else np.squeeze(parts, axis=tuple(a + 1 for a in axes))


def reduce_rows(
    x: Any, static: tuple[str, tuple[int, ...], bool, str | None], out: Any = None
) -> Any:
    """Do a reduction described by the static part of its node, on a block or on a sample."""
    kind, axes, keepdims, dtype = static
    if kind.endswith("moments"):
        value = moments(x, axes, keepdims, kind == "nanmoments")
        if out is not None:
            out[...] = value
        return value
    return (
        REDUCERS[kind](x, axis=axes, dtype=dtype, out=out, keepdims=keepdims)
        if kind in ("sum", "prod")
        else REDUCERS[kind](x, axis=axes, out=out, keepdims=keepdims)
    )


def _total(kind: str) -> Rule:
    """sum, prod, min, max, any, all."""
    names = (
        "a axis dtype out keepdims initial where"
        if kind in ("sum", "prod")
        else "a axis out keepdims initial where"
    )

    def rule(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        options = _options(names, args, kwargs)
        x = _first_traced(tracer, options.pop("a"))
        axis = options.pop("axis", None)
        keepdims = bool(options.pop("keepdims", False))
        dtype = options.pop("dtype", None)
        initial = options.pop("initial", None)
        where = options.pop("where", True)
        if options.pop("out", None) is not None:
            msg = f"out= of np.{func.__name__}"
            raise tracer.mixing(msg, "use the value that the function returns")
        if where is not True:
            if kind not in NEUTRAL:
                msg = f"where= of np.{func.__name__}"
                raise tracer.mixing(msg, "use np.where inside it")
            x = np.where(where, x, np.asarray(NEUTRAL[kind], dtype=x.dtype))
        if not _on_rows(x, axis):
            extra = {} if dtype is None else {"dtype": np.dtype(dtype).str}
            total = _within(tracer, func, x, axis, keepdims, extra)
        else:
            total = _reduce(tracer, kind, x, axis, keepdims, dtype)
        return total if initial is None else INITIAL[kind](total, initial)

    return rule


NEUTRAL = {"sum": 0, "prod": 1, "any": False, "all": True}
INITIAL: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "any": np.logical_or,
    "all": np.logical_and,
}


def _within(
    tracer: Tracer, func: Any, x: Any, axis: Any, keepdims: bool, extra: dict[str, Any]
) -> Any:
    """A reduction over other axes than the rows: each row gives its own value."""
    if x.axis < 0:
        return call(
            tracer, func, (x,), {"axis": axis, "keepdims": keepdims, **extra}, axis=lambda v: -1
        )
    axes = {int(a) % x.ndim for a in (axis if isinstance(axis, tuple) else (axis,))}
    position = x.axis if keepdims else x.axis - sum(1 for a in axes if a < x.axis)
    return call(
        tracer, func, (x,), {"axis": axis, "keepdims": keepdims, **extra}, axis=lambda v: position
    )


def _count(x: Any, axis: Any) -> Any:
    """How many elements a reduction over ``axis`` combines, as a total of ones."""
    return np.sum(np.ones_like(x, dtype=np.float64), axis=axis)


def _mean(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    options = _options("a axis dtype out keepdims where", args, kwargs)
    x = _first_traced(tracer, options["a"])
    axis, keepdims = options.get("axis"), bool(options.get("keepdims", False))
    where = options.get("where", True)
    dtype = options.get("dtype")
    if dtype is not None:
        x = x.astype(dtype)
    if not _on_rows(x, axis) and where is True:
        return _within(tracer, func, x, axis, keepdims, {})
    if x.dtype.kind in "iub":
        x = x.astype(np.float64)
    if where is True:
        total, count = x, np.ones_like(x)
    else:
        total = np.where(where, x, np.zeros((), x.dtype))
        count = np.where(where, np.ones_like(x), np.zeros((), x.dtype))
    return np.sum(total, axis=axis, keepdims=keepdims) / np.sum(count, axis=axis, keepdims=keepdims)


def _variance(root: bool, skip_nan: bool) -> Rule:
    def rule(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        options = _options("a axis dtype out ddof keepdims", args, kwargs)
        x = _first_traced(tracer, options["a"])
        axis, ddof = options.get("axis"), options.get("ddof", options.get("correction", 0))
        keepdims = bool(options.get("keepdims", False))
        if not _on_rows(x, axis):
            return _within(tracer, func, x, axis, keepdims, {"ddof": ddof})
        if x.dtype.kind in "iub":
            x = x.astype(np.float64)
        parts = _reduce(tracer, "nanmoments" if skip_nan else "moments", x, axis, keepdims)
        variance = parts[2] / (parts[0] - ddof)
        return np.sqrt(variance) if root else variance

    return rule


def _nan_total(kind: str) -> Rule:
    """nansum, nanprod, nanmin, nanmax over the rows."""

    def rule(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        options = _options(
            "a axis dtype out keepdims" if kind in ("sum", "prod") else "a axis out keepdims",
            args,
            kwargs,
        )
        x = _first_traced(tracer, options["a"])
        axis, keepdims = options.get("axis"), bool(options.get("keepdims", False))
        if not _on_rows(x, axis):
            return _within(tracer, func, x, axis, keepdims, {})
        if kind in ("fmin", "fmax"):
            return _reduce(tracer, kind, x, axis, keepdims)
        filled = (
            np.where(np.isnan(x), np.asarray(NEUTRAL[kind], dtype=x.dtype), x)
            if x.dtype.kind in "fc"
            else x
        )
        return _reduce(tracer, kind, filled, axis, keepdims, options.get("dtype"))

    return rule


def _nanmean(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    options = _options("a axis dtype out keepdims", args, kwargs)
    x = _first_traced(tracer, options["a"])
    axis, keepdims = options.get("axis"), bool(options.get("keepdims", False))
    if not _on_rows(x, axis):
        return _within(tracer, func, x, axis, keepdims, {})
    if x.dtype.kind not in "fc":
        return np.mean(x, axis=axis, keepdims=keepdims)
    valid = ~np.isnan(x)
    total = np.sum(np.where(valid, x, np.zeros((), x.dtype)), axis=axis, keepdims=keepdims)
    return total / np.sum(valid, axis=axis, keepdims=keepdims)


def _count_nonzero(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    options = _options("a axis", args, kwargs)
    x = _first_traced(tracer, options["a"])
    return np.sum(x != 0, axis=options.get("axis"), keepdims=bool(options.get("keepdims", False)))


def _ptp(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    options = _options("a axis out keepdims", args, kwargs)
    x, axis, keepdims = options["a"], options.get("axis"), bool(options.get("keepdims", False))
    return np.max(x, axis=axis, keepdims=keepdims) - np.min(x, axis=axis, keepdims=keepdims)


def _average(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    options = _options("a axis weights returned", args, kwargs)
    x, axis, weights = (
        _first_traced(tracer, options["a"]),
        options.get("axis"),
        options.get("weights"),
    )
    if options.get("returned"):
        msg = "np.average(returned=True)"
        raise tracer.mixing(msg, "divide np.sum(x * w) by np.sum(w)")
    if weights is None:
        return np.mean(x, axis=axis)
    if is_traced(weights) and np.shape(weights.value) != np.shape(getattr(x, "value", x)):
        msg = "np.average with weights of another shape"
        raise tracer.mixing(msg, "divide np.sum(x * w) by np.sum(w)")
    return np.sum(x * weights, axis=axis) / np.sum(np.broadcast_arrays(weights, x)[0], axis=axis)


def _allclose(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    return bool(np.all(np.isclose(*args, **kwargs)))


def _array_equal(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    a, b = args[:2]
    if kwargs or np.shape(getattr(a, "value", a)) != np.shape(getattr(b, "value", b)):
        msg = "np.array_equal of arrays of other shapes"
        raise tracer.mixing(msg, "use (a == b).all()")
    return bool(np.all(a == b))


def _dot(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    a, b = (x if is_traced(x) else np.asarray(x) for x in args[:2])
    nd = [np.ndim(x.value) if is_traced(x) else x.ndim for x in (a, b)]
    if 0 in nd and func is not np.matmul:
        return a * b
    axes = [x.axis if is_traced(x) else -1 for x in (a, b)]
    if nd == [1, 1] and max(axes) >= 0:
        return np.sum(a * b)
    if axes == [-1, -1]:
        return call(tracer, func, (a, b), {}, axis=lambda v: -1)
    # (rows, k) @ shared (k,) or (k, m): every row is multiplied by the same matrix.
    if axes[1] < 0 and nd[1] <= 2 and axes[0] < nd[0] - 1:
        return call(tracer, func, (a, b), {}, axis=lambda v: axes[0])
    # shared (m, k) @ (k, rows): the rows are the columns of the result.
    if axes[0] < 0 and nd[0] <= 2 and nd[1] == 2 and axes[1] == 1:
        return call(tracer, func, (a, b), {}, axis=lambda v: v.ndim - 1)
    msg = f"np.{func.__name__} over the rows"
    raise tracer.mixing(
        msg,
        "write it as a total: (x[:, :, None] * y[:, None, :]).sum(axis=0)",
    )


# ---- shape -----------------------------------------------------------------------------------


def _same_rows_arrays(tracer: Tracer, arrays: Any) -> tuple[list[Any], int]:
    """Arrays to be stacked, all with rows on one axis; plain ones are repeated for all rows."""
    traced = traced_operands(list(arrays))
    offset = row_offset(tracer, tuple(traced))
    if offset is None:
        return list(arrays), -1
    out = []
    for array in arrays:
        if is_traced(array) and array.axis >= 0:
            out.append(array)
            continue
        if is_traced(array) or np.ndim(array) < -offset:
            msg = "stacking rows with a value that has none"
            raise tracer.mixing(msg, "use np.full_like(x, value)")
        node, value = ops.lift(tracer, np.asarray(array), offset)
        out.append(Traced.make(tracer, node, value))
    return out, np.ndim(traced[0].value) + offset


def _stack(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    options = _options("arrays axis out", args, kwargs)
    arrays, rows = _same_rows_arrays(tracer, options["arrays"])
    ndim = max(np.ndim(getattr(a, "value", a)) for a in arrays) + 1
    axis = int(options.get("axis", 0)) % ndim
    position = -1 if rows < 0 else rows + (axis <= rows)
    return call(tracer, np.stack, (arrays,), {"axis": axis}, axis=lambda v: position)


def _concatenate(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    options = _options("arrays axis out", args, kwargs)
    arrays, rows = _same_rows_arrays(tracer, options["arrays"])
    ndim = max(np.ndim(getattr(a, "value", a)) for a in arrays)
    axis = options.get("axis", 0)
    if rows >= 0 and (axis is None or int(axis) % ndim == rows):
        msg = "joining arrays along the rows"
        raise tracer.mixing(msg, "use np.stack([a, b], axis=1)")
    return call(tracer, np.concatenate, (arrays,), {"axis": axis}, axis=lambda v: rows)


def _column_stack(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    arrays = [a[:, None] if np.ndim(getattr(a, "value", a)) == 1 else a for a in args[0]]
    return np.concatenate(arrays, axis=1)


def _vstack(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    arrays = [a[None, :] if np.ndim(getattr(a, "value", a)) == 1 else a for a in args[0]]
    return np.concatenate(arrays, axis=0)


def _hstack(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    axis = 0 if np.ndim(getattr(args[0][0], "value", args[0][0])) == 1 else 1
    return np.concatenate(args[0], axis=axis)


def _transpose(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    options = _options("a axes", args, kwargs)
    x, axes = options["a"], options.get("axes")
    order = tuple(reversed(range(x.ndim))) if axes is None else tuple(int(a) % x.ndim for a in axes)
    if x.axis < 0:
        return call(tracer, np.transpose, (x, order), {}, axis=lambda v: -1)
    x.fresh = False
    value = x.value.transpose(order)
    return ops.result(
        tracer, Op("transpose", order), (x.node,), value, order.index(x.axis), fresh=False
    )


def _swapaxes(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    x, a, b = args
    order = list(range(x.ndim))
    order[a], order[b] = order[b], order[a]
    return np.transpose(x, order)


def _expand_dims(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    options = _options("a axis", args, kwargs)
    x, axis = options["a"], options["axis"]
    axes = axis if isinstance(axis, tuple) else (axis,)
    ndim = x.ndim + len(axes)
    wanted = {int(a) % ndim for a in axes}
    return x[tuple(None if k in wanted else slice(None) for k in range(ndim))]


def _broadcast_to(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    options = _options("array shape subok", args, kwargs)
    x, shape = options["array"], tuple(np.atleast_1d(options["shape"]))
    if x.axis < 0:
        msg = "np.broadcast_to of a total"
        raise tracer.mixing(msg, "operations broadcast by themselves")
    position = len(shape) + x.axis - x.ndim
    if position < 0 or int(shape[position]) != tracer.rows:
        msg = f"cannot broadcast one entry per row ({tracer.rows} rows) to shape {shape}"
        raise ValueError(msg)
    rest = tuple(int(s) for k, s in enumerate(shape) if k != position)
    zero_row = np.zeros((*rest[:position], 1, *rest[position:]), dtype=x.dtype)
    return np.broadcast_arrays(x, ops.repeat_row(tracer, zero_row, position))[0]


def take_broadcast(k: int, *arrays: Any) -> Any:
    """The k-th of the arrays, broadcast against all of them."""
    return np.broadcast_arrays(*arrays)[k].copy()


def _broadcast_arrays(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    shape = np.broadcast_shapes(*(np.shape(getattr(a, "value", a)) for a in args))
    out = []
    for k, a in enumerate(args):
        same = is_traced(a) and np.shape(a.value) == shape
        out.append(a if same else elementwise(tracer, take_broadcast, (k, *args), {}))
    return tuple(out)


def _atleast(ndim: int) -> Rule:
    def rule(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        (x,) = args
        if x.ndim >= ndim:
            return x
        if x.axis < 0:
            return call(tracer, func, (x,), {}, axis=lambda v: -1)
        return x[None, :] if ndim == 2 else x

    return rule


def _repeat(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    options = _options("a repeats axis", args, kwargs)
    x, axis = options["a"], options.get("axis")
    if not is_traced(x) or axis is None or _on_rows(x, axis) or is_traced(options["repeats"]):
        msg = "np.repeat of rows"
        raise tracer.mixing(msg, "every row has to stay one row")
    return call(tracer, func, (x, options["repeats"], int(axis)), {}, axis=lambda v: x.axis)


def _tile(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    msg = f"np.{func.__name__} of rows"
    raise tracer.mixing(msg, "use x[:, None] and broadcasting")


# ---- questions about shape and type ----------------------------------------------------------


def _plain(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """Functions that only ask for shape or type: answered for all rows."""
    x = args[0]
    if func is np.ndim:
        return x.ndim
    if func is np.shape:
        return x.shape
    if func is np.size:
        axis = kwargs.get("axis", args[1] if len(args) > 1 else None)
        return x.size if axis is None else x.shape[axis]
    probes = [np.empty(0, a.dtype) if is_traced(a) else a for a in args]
    return func(*probes, **kwargs)


def _copy(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    return args[0].copy()


def _round(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    options = _options("a decimals out", args, kwargs)
    decimals = int(options.get("decimals", 0))
    return elementwise(tracer, np.round, (options["a"], decimals), {})


def _refuse(remedy: str) -> Rule:
    def rule(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        msg = f"np.{func.__name__}"
        raise tracer.mixing(msg, remedy)

    return rule


def _register(rule: Rule, *names: str) -> None:
    for name in names:
        function = getattr(np, name, None)
        if function is not None:
            FUNCTIONS[function] = rule


def install() -> None:
    """Fill the table of rules."""
    _register(
        _elementwise,
        *[
            "clip",
            "nan_to_num",
            "isclose",
            "select",
            "choose",
            "fix",
            "sinc",
            "i0",
            "angle",
            "real_if_close",
            "isneginf",
            "isposinf",
        ],
    )
    _register(_where, "where")
    _register(_round, "round", "around")
    _register(_real, "real", "imag")
    _register(_isin, "isin")
    _register(_search("a v side sorter", "v", ("a", "sorter")), "searchsorted")
    _register(_search("x bins right", "x", ("bins",)), "digitize")
    _register(_search("x xp fp left right period", "x", ("xp", "fp")), "interp")
    _register(_take, "take")
    _register(_like(0), "zeros_like")
    _register(_like(1), "ones_like")
    _register(_like(0), "empty_like")
    _register(_like(None), "full_like")
    _register(_copy, "copy")
    for kind in ("sum", "prod", "min", "max", "any", "all"):
        _register(_total(kind), kind)
    _register(_total("min"), "amin")
    _register(_total("max"), "amax")
    _register(_mean, "mean")
    _register(_nanmean, "nanmean")
    for name in ("var", "std", "nanvar", "nanstd"):
        _register(_variance(name.endswith("std"), name.startswith("nan")), name)
    for name, kind in (
        ("nansum", "sum"),
        ("nanprod", "prod"),
        ("nanmin", "fmin"),
        ("nanmax", "fmax"),
    ):
        _register(_nan_total(kind), name)
    _register(_count_nonzero, "count_nonzero")
    _register(_ptp, "ptp")
    _register(_average, "average")
    _register(_allclose, "allclose")
    _register(_array_equal, "array_equal")
    _register(_dot, "dot", "matmul", "vdot", "inner")
    _register(_along("a axis dtype", keeps=True), "cumsum", "cumprod", "nancumsum", "nancumprod")
    _register(
        _along("a axis", keeps=True, default=-1), "sort", "argsort", "flip", "diff", "gradient"
    )
    _register(_along("a kth axis", keeps=True, default=-1), "partition", "argpartition")
    _register(_along("a shift axis", keeps=True), "roll")
    _register(
        _along("a axis", keeps=False),
        "argmax",
        "argmin",
        "nanargmax",
        "nanargmin",
        "median",
        "nanmedian",
    )
    _register(
        _along("a q axis", keeps=False), "percentile", "quantile", "nanpercentile", "nanquantile"
    )
    _register(_take_along, "take_along_axis")
    _register(_stack, "stack")
    _register(_concatenate, "concatenate")
    _register(_column_stack, "column_stack")
    _register(_vstack, "vstack")
    _register(_hstack, "hstack")
    _register(_transpose, "transpose")
    _register(_swapaxes, "swapaxes")
    _register(_expand_dims, "expand_dims")
    _register(_broadcast_to, "broadcast_to")
    _register(_broadcast_arrays, "broadcast_arrays")
    _register(_atleast(1), "atleast_1d")
    _register(_atleast(2), "atleast_2d")
    _register(_repeat, "repeat")
    _register(_tile, "tile", "resize", "append", "insert", "delete")
    _register(
        _plain,
        "ndim",
        "shape",
        "size",
        "iscomplexobj",
        "isrealobj",
        "result_type",
        "can_cast",
        "min_scalar_type",
    )
    _register(
        _refuse(ops.ORDER_REMEDY),
        *[
            "unique",
            "bincount",
            "histogram",
            "nonzero",
            "argwhere",
            "flatnonzero",
            "lexsort",
            "compress",
            "extract",
            "convolve",
            "correlate",
            "trapezoid",
            "interp1d",
            "outer",
            "kron",
            "cov",
            "corrcoef",
            "diagonal",
            "trace",
            "rot90",
            "flipud",
            "array_split",
            "split",
            "cumulative_sum",
            "cumulative_prod",
            "unique_values",
            "unique_counts",
            "searchsorted_",
            "intersect1d",
            "setdiff1d",
            "union1d",
            "ediff1d",
            "nanmedian_",
            "put",
            "place",
            "copyto",
            "putmask",
        ],
    )
    for ufunc in (np.add,):
        FUNCTIONS.setdefault(ufunc, _elementwise)
