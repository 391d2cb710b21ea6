"""Rules for reductions over the rows: what blocks can add up, and operations afterwards.

The tree over the blocks knows a few ways of combining partials (sum, prod, min, max, any, all, and
the moments behind a variance). All other totals are broken down into those.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from hl_dask.aggregate import UFUNCS
from hl_dask.expr import Op
from hl_dask.traced import ops
from hl_dask.traced.base import Traced, dimensions, has_rows, is_traced, sample_value
from hl_dask.traced.dispatch import plainly
from hl_dask.traced.ops import call
from hl_dask.traced.rules import (
    ORDER_REMEDY,
    Rule,
    axes_of,
    checked,
    on_rows,
    options_of,
    remaining_position,
)
from hl_dask.traced.tracer import Tracer

SUM_OF_ROWS = Op("reduce", ("sum", (0,), False, None))
NEUTRAL = {"sum": 0, "prod": 1, "any": False, "all": True}
"""What an entry that ``where=`` leaves out counts as."""


# ---- the reductions that the tree knows ------------------------------------------------------


def total_of_rows(tracer: Tracer, x: Any) -> int:
    """The node of ``np.sum(x)`` of one number for each row: what nearly every output is.

    Nothing but its type depends on the value, which is not worked out.
    """
    graph = tracer.graph
    found = graph.find(SUM_OF_ROWS, (x.node,))
    if found is None:
        found = tracer.new_node(SUM_OF_ROWS, (x.node,), _sum_of_none(x.dtype), -1)
    return found


@cache
def _sum_of_none(dtype: np.dtype[Any]) -> Any:
    """The sum of no numbers, for its dtype."""
    return np.add.reduce(np.empty(0, dtype))


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
        UFUNCS[kind].reduce(x, axis=axes, dtype=dtype, out=out, keepdims=keepdims)
        if kind in ("sum", "prod")
        else UFUNCS[kind].reduce(x, axis=axes, out=out, keepdims=keepdims)
    )


def _reduce(tracer: Tracer, kind: str, x: Any, axis: Any, keepdims: bool, dtype: Any = None) -> Any:
    """A reduction over the rows (and perhaps other axes) that the tree can combine."""
    text = None if dtype is None else np.dtype(dtype).str
    op = Op("reduce", (kind, tuple(sorted(axes_of(x, axis))), keepdims, text))
    if tracer.blind:
        return ops.recalled(tracer, op, (x.node,))
    value = ops.attempt(tracer, reduce_rows, (x.value, op.static), {})
    return ops.result(tracer, op, (x.node,), value, -1)


def _within(tracer: Tracer, func: Any, x: Any, options: dict[str, Any]) -> Any:
    """A reduction over other axes than the rows: each row gives its own value."""
    position = remaining_position(x, options.get("axis"), bool(options.get("keepdims", False)))
    return call(tracer, func, (x,), options, axis=position)


# ---- sums, products, extremes ----------------------------------------------------------------


def total(kind: str, names: str = "", *, skip_nan: bool = False) -> Rule:
    """sum, prod, min, max, any, all, and those that skip NaN.

    Parameters
    ----------
    kind : str
        How the tree combines the partials.
    names : str
        Parameters, when they are not those of the function of this name.
    skip_nan : bool
        Whether NaN counts as nothing.
    """
    typed = kind in ("sum", "prod")
    dtype_name = "dtype " if typed else ""
    names = names or f"a axis {dtype_name}out keepdims initial where"

    def rule(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        options = options_of(tracer, func, names, args, kwargs)
        x = checked(tracer, options.pop(names.split(maxsplit=1)[0]))
        initial, mask = options.pop("initial", None), options.pop("where", True)
        if not is_traced(x):
            if mask is not True and has_rows(mask):
                x = np.broadcast_arrays(x, mask)[0]
            else:
                return plainly(func, args, kwargs)
        if mask is not True:
            x = np.where(mask, x, _left_out(tracer, kind, x, initial))
        if not on_rows(x, options.get("axis")):
            value = _within(tracer, func, x, {"axis": None, **options})
        else:
            if skip_nan and typed and x.dtype.kind in "fc":
                x = np.where(np.isnan(x), np.asarray(NEUTRAL[kind], dtype=x.dtype), x)
            keepdims, dtype = bool(options.get("keepdims", False)), options.get("dtype")
            value = _reduce(tracer, kind, x, options.get("axis"), keepdims, dtype)
        if initial is None:
            return value
        return UFUNCS[kind](value, _as_dtype(initial, value.dtype))

    return rule


def _left_out(tracer: Tracer, kind: str, x: Any, initial: Any) -> Any:
    """What takes the place of the entries that ``where=`` leaves out."""
    if kind in NEUTRAL:
        return np.asarray(NEUTRAL[kind], dtype=x.dtype)
    if initial is None:
        msg = f"np.{kind} with where= and no initial= has no value for an empty selection and"
        raise tracer.mixing(msg, "give initial= as well")
    return _as_dtype(initial, x.dtype)


def _as_dtype(value: Any, dtype: Any) -> Any:
    return value.astype(dtype) if is_traced(value) else np.asarray(value, dtype=dtype)[()]


def row_operation(kind: str) -> Rule:
    """``ufunc.reduce`` that blocks cannot combine: followed along other axes only."""

    def rule(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        options = options_of(tracer, func, "array axis dtype out keepdims", args, kwargs)
        x = checked(tracer, options.pop("array"))
        if not on_rows(x, options["axis"]):
            return _within(tracer, func, x, options)
        msg = f"np.{kind}.reduce over the rows"
        raise tracer.mixing(msg, ORDER_REMEDY)

    return rule


def count_nonzero(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.count_nonzero``."""
    options = options_of(tracer, func, "a axis keepdims", args, kwargs)
    return np.sum(options.pop("a") != 0, **options)


def ptp(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.ptp``: the range of values."""
    options = options_of(tracer, func, "a axis out keepdims", args, kwargs)
    x = options.pop("a")
    return np.max(x, **options) - np.min(x, **options)


# ---- means and deviations --------------------------------------------------------------------


def mean(skip_nan: bool) -> Rule:
    """``np.mean`` and ``np.nanmean``: a sum divided by a count."""

    def rule(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        options = options_of(tracer, func, "a axis dtype out keepdims where", args, kwargs)
        x = checked(tracer, options.pop("a"))
        dtype, mask = options.pop("dtype", None), options.pop("where", True)
        if not is_traced(x):
            x = np.broadcast_arrays(x, mask)[0]
        if dtype is not None:
            x = x.astype(dtype)
        if mask is True and not on_rows(x, options.get("axis")):
            return _within(tracer, func, x, {"axis": None, **options})
        if x.dtype.kind in "iub":
            x = x.astype(np.float64)
        if skip_nan:
            mask = np.logical_and(mask, ~np.isnan(x))
        if mask is True:
            added, counted = x, np.ones_like(x, dtype=np.int64)
        else:
            added = np.where(mask, x, np.zeros((), x.dtype))
            counted = np.broadcast_arrays(mask, x)[0]
        value = np.sum(added, **options) / np.sum(counted, **options)
        return value.astype(x.dtype) if value.dtype != x.dtype else value

    return rule


def deviation(*, root: bool, skip_nan: bool) -> Rule:
    """``np.var``, ``np.std``, ``np.nanvar`` and ``np.nanstd``."""

    def rule(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        names = "a axis dtype out ddof keepdims correction"
        options = options_of(tracer, func, names, args, kwargs)
        x = checked(tracer, options.pop("a"))
        if not on_rows(x, options.get("axis")):
            return _within(tracer, func, x, {"axis": None, **options})
        dtype = options.get("dtype")
        if dtype is not None or x.dtype.kind in "iub":
            x = x.astype(np.float64 if dtype is None else dtype)
        keepdims = bool(options.get("keepdims", False))
        kind = "nanmoments" if skip_nan else "moments"
        parts = _reduce(tracer, kind, x, options.get("axis"), keepdims)
        freedom = parts[0] - options.get("ddof", options.get("correction", 0))
        if skip_nan:
            freedom = np.where(freedom > 0, freedom, np.nan)
        variance = parts[2] / np.maximum(freedom, 0)
        return np.sqrt(variance) if root else variance

    return rule


def average(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.average``, weights of the shape of the values or along one axis."""
    options = options_of(tracer, func, "a axis weights returned keepdims", args, kwargs)
    x, weights = checked(tracer, options.pop("a")), options.pop("weights", None)
    returned = options.pop("returned", False)
    axis = options.get("axis")
    if weights is None:
        value, scale = np.mean(x, **options), np.sum(np.ones_like(x, dtype=np.float64), **options)
    else:
        given, weights = weights, _weights_of(tracer, x, weights, axis)
        scale = np.sum(np.broadcast_arrays(weights, x)[0].astype(np.float64), **options)
        value = np.sum(np.multiply(x, weights, dtype=_weighted_dtype(x, weights)), **options)
        value = value / scale
        if is_traced(value) and value.axis < 0:
            # NumPy may add up in another order, and the recording compares with its value.
            keepdims = bool(options.get("keepdims", False))
            if not tracer.blind:
                there = func(sample_value(x), axis, sample_value(given), keepdims=keepdims)
                value = Traced.make(tracer, value.node, there)
    return (value, scale) if returned else value


def _weighted_dtype(x: Any, weights: Any) -> Any:
    """The dtype in which NumPy adds weighted values up: floats, whatever they were."""
    return np.result_type(x.dtype, weights.dtype, np.float64)


def _weights_of(tracer: Tracer, x: Any, weights: Any, axis: Any) -> Any:
    """Weights that broadcast against the values."""
    if not is_traced(weights):
        weights = np.asarray(weights)
    ndim = dimensions(x)
    shape = weights.sample_shape if is_traced(weights) else weights.shape
    if len(shape) == ndim:
        return weights
    if len(shape) != 1 or not isinstance(axis, (int, np.integer)):
        msg = "np.average with weights of another shape"
        raise tracer.mixing(msg, "divide np.sum(x * w) by np.sum(w)")
    return weights[tuple(slice(None) if k == axis % ndim else None for k in range(ndim))]


def norm(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.linalg.norm``: the Euclidean one over the rows, any within a row."""
    options = options_of(tracer, func, "x ord axis keepdims", args, kwargs)
    x, axis = checked(tracer, options["x"]), options.get("axis")
    if not on_rows(x, axis):
        return _within(tracer, func, options.pop("x"), options)
    if options.get("ord") is not None:
        msg = "np.linalg.norm with ord= over the rows"
        raise tracer.mixing(msg, "write it with np.abs, ** and np.sum or np.max")
    squares = np.square(np.abs(x))
    return np.sqrt(np.sum(squares, axis=axis, keepdims=bool(options.get("keepdims", False))))


# ---- comparisons of whole arrays -------------------------------------------------------------


def allclose(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.allclose``."""
    return bool(np.all(np.isclose(*args, **kwargs)))


def array_equal(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.array_equal``: the shapes are compared over all rows."""
    options = options_of(tracer, func, "a1 a2 equal_nan", args, kwargs)
    a, b = options["a1"], options["a2"]
    if np.shape(a) != np.shape(b):
        return False
    same = a == b
    if options.get("equal_nan"):
        same = same | (np.isnan(a) & np.isnan(b))
    return bool(np.all(same))
