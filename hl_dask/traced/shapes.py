"""Rules for stacking, splitting, transposing and repeating, and for questions about shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from hl_dask.expr import Op
from hl_dask.traced import ops
from hl_dask.traced.base import Traced, dimensions, has_rows, is_traced, traced_operands
from hl_dask.traced.indexing import apply_reshape, apply_squeeze
from hl_dask.traced.ops import call, elementwise, row_offset
from hl_dask.traced.rules import Rule, checked, on_rows, options_of
from hl_dask.traced.tracer import Tracer

# ---- joining ---------------------------------------------------------------------------------


def _with_rows(tracer: Tracer, arrays: Any) -> tuple[list[Any], int, int]:
    """Arrays to be joined, their number of axes, and the axis on which all have their rows."""
    arrays = list(arrays)
    traced = [a for a in traced_operands(arrays) if a.axis >= 0]
    offset = row_offset(tracer, tuple(traced))
    if offset is None:
        return arrays, max(dimensions(a) for a in arrays), -1
    out = []
    for array in arrays:
        if has_rows(array):
            out.append(array)
            continue
        if is_traced(array) or np.ndim(array) < -offset:
            msg = "stacking rows with a value that has none"
            raise tracer.mixing(msg, "use np.full_like(x, value)")
        node, value = ops.lift(tracer, np.asarray(array), offset)
        out.append(Traced.make(tracer, node, value))
    ndim = traced[0].ndim
    return out, ndim, ndim + offset


def stack(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.stack``."""
    options = options_of(tracer, func, "arrays axis out", args, kwargs)
    arrays, ndim, rows = _with_rows(tracer, options["arrays"])
    axis = int(options.get("axis", 0)) % (ndim + 1)
    position = -1 if rows < 0 else rows + (axis <= rows)
    return call(tracer, np.stack, (arrays,), {"axis": axis}, axis=position)


def concatenate(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.concatenate`` along another axis than the rows."""
    options = options_of(tracer, func, "arrays axis out", args, kwargs)
    arrays, ndim, rows = _with_rows(tracer, options["arrays"])
    axis = options.get("axis", 0)
    if rows >= 0 and (axis is None or int(axis) % ndim == rows):
        msg = "joining arrays along the rows"
        raise tracer.mixing(msg, "use np.stack([a, b], axis=1)")
    return call(tracer, np.concatenate, (arrays,), {"axis": axis}, axis=rows)


def _ndim(array: Any) -> int:
    return dimensions(array)


def _array(array: Any) -> Any:
    return array if is_traced(array) else np.asarray(array)


def column_stack(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.column_stack``."""
    given = options_of(tracer, func, "tup", args, kwargs)["tup"]
    arrays = [_array(a)[:, None] if _ndim(a) == 1 else a for a in given]
    return np.concatenate(arrays, axis=1)


def vstack(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.vstack``."""
    given = options_of(tracer, func, "tup", args, kwargs)["tup"]
    return np.concatenate([np.atleast_2d(a) for a in given], axis=0)


def hstack(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.hstack``."""
    given = [np.atleast_1d(a) for a in options_of(tracer, func, "tup", args, kwargs)["tup"]]
    return np.concatenate(given, axis=0 if _ndim(given[0]) == 1 else 1)


def dstack(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.dstack``."""
    given = options_of(tracer, func, "tup", args, kwargs)["tup"]
    return np.concatenate([np.atleast_3d(a) for a in given], axis=2)


def append(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.append`` of columns."""
    options = options_of(tracer, func, "arr values axis", args, kwargs)
    arrays = [_array(options["arr"]), _array(options["values"])]
    return np.concatenate(arrays, axis=options.get("axis"))


def edited(names: str) -> Rule:
    """``np.insert`` and ``np.delete`` of columns that are the same for all rows."""

    def rule(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        options = options_of(tracer, func, names, args, kwargs)
        x, axis = options.pop("arr"), options.get("axis")
        if axis is None or not has_rows(x) or on_rows(x, axis) or has_rows(options):
            msg = f"np.{func.__name__} of rows"
            raise tracer.mixing(msg, "use np.concatenate along another axis, or np.where")
        return call(tracer, func, (x,), options, axis=x.axis)

    return rule


# ---- splitting -------------------------------------------------------------------------------


def split(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.split`` and ``np.array_split`` along another axis than the rows."""
    options = options_of(tracer, func, "ary indices_or_sections axis", args, kwargs)
    return _parts(tracer, func, options["ary"], options, int(options.get("axis", 0)))


def hsplit(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.hsplit``: along the second axis, or the only one."""
    options = options_of(tracer, func, "ary indices_or_sections", args, kwargs)
    x = options["ary"]
    return _parts(tracer, np.split, x, options, 0 if x.ndim == 1 else 1)


def _parts(tracer: Tracer, func: Any, x: Any, options: dict[str, Any], axis: int) -> list[Any]:
    sections = options["indices_or_sections"]
    if not is_traced(x) or on_rows(x, axis) or traced_operands(sections):
        msg = f"np.{func.__name__} of rows"
        raise tracer.mixing(msg, "use np.where(mask, x, 0) for each part")
    axis %= x.ndim
    # NumPy tells how it cuts by cutting the positions.
    cuts = func(np.arange(x.shape[axis]), sections)
    lead = (slice(None),) * axis
    starts = np.cumsum([0, *(len(c) for c in cuts)])
    if isinstance(sections, (int, np.integer)):
        bounds: list[Any] = [(int(starts[k]), int(starts[k + 1])) for k in range(len(cuts))]
    else:
        bounds = list(zip([0, *sections], [*sections, None], strict=True))
    return [x[(*lead, slice(a, b))] for a, b in bounds]


def unstack(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.unstack`` along another axis than the rows."""
    options = options_of(tracer, func, "x axis", args, kwargs)
    x, axis = options["x"], int(options.get("axis", 0))
    return tuple(iter(np.moveaxis(x, axis, 0)))


# ---- axes ------------------------------------------------------------------------------------


def transpose(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.transpose``."""
    options = options_of(tracer, func, "a axes", args, kwargs)
    x, axes = checked(tracer, options["a"]), options.get("axes")
    order = tuple(reversed(range(x.ndim))) if axes is None else tuple(int(a) % x.ndim for a in axes)
    if x.axis < 0:
        return call(tracer, np.transpose, (x, order), {}, axis=-1)
    x.fresh = False
    op = Op("transpose", order)
    if tracer.blind:
        return ops.recalled(tracer, op, (x.node,), fresh=False)
    value = ops.attempt(tracer, x.value.transpose, (order,), {})
    return ops.result(tracer, op, (x.node,), value, order.index(x.axis), fresh=False)


def swapaxes(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.swapaxes``."""
    options = options_of(tracer, func, "a axis1 axis2", args, kwargs)
    x, first, second = options["a"], options["axis1"], options["axis2"]
    order = list(range(x.ndim))
    order[first], order[second] = order[second], order[first]
    return np.transpose(x, order)


def moveaxis(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.moveaxis``."""
    options = options_of(tracer, func, "a source destination", args, kwargs)
    x = options["a"]
    sources, targets = (
        [int(a) % x.ndim for a in np.atleast_1d(options[k])] for k in ("source", "destination")
    )
    order = [k for k in range(x.ndim) if k not in sources]
    for target, source in sorted(zip(targets, sources, strict=True)):
        order.insert(target, source)
    return np.transpose(x, order)


def rollaxis(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.rollaxis``."""
    options = options_of(tracer, func, "a axis start", args, kwargs)
    x, axis, start = options["a"], options["axis"] % options["a"].ndim, options.get("start", 0)
    start += x.ndim * (start < 0)
    return np.moveaxis(x, axis, start - (axis < start))


def matrix_transpose(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.matrix_transpose``: the last two axes change places."""
    return np.swapaxes(options_of(tracer, func, "x", args, kwargs)["x"], -1, -2)


def fliplr(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.fliplr``."""
    return args[0][:, ::-1]


def flipud(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.flipud``."""
    return args[0][::-1]


def expand_dims(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.expand_dims``."""
    options = options_of(tracer, func, "a axis", args, kwargs)
    x, axis = options["a"], options["axis"]
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    ndim = x.ndim + len(axes)
    wanted = {int(a) % ndim for a in axes}
    return x[tuple(None if k in wanted else slice(None) for k in range(ndim))]


def squeeze(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.squeeze``."""
    options = options_of(tracer, func, "a axis", args, kwargs)
    return apply_squeeze(options["a"], options.get("axis"))


def reshape(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.reshape``."""
    options = options_of(tracer, func, "a shape order copy", args, kwargs)
    shape, order = options["shape"], options.get("order", "C")
    if order != "C":
        msg = f"np.reshape with order={order!r}"
        raise tracer.mixing(msg, "leave the order out")
    return apply_reshape(options["a"], tuple(shape) if np.ndim(shape) else (shape,))


def ravel(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.ravel``, of one number for each row."""
    options = options_of(tracer, func, "a order", args, kwargs)
    return np.reshape(options["a"], (-1,), order=options.get("order", "C"))


def atleast(ndim: int) -> Rule:
    """atleast_1d, atleast_2d, atleast_3d."""

    def rule(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        if len(args) > 1:
            return tuple(func(a) for a in args)
        (x,) = args
        if x.ndim >= ndim:
            return x
        if x.axis < 0:
            return call(tracer, func, (x,), {}, axis=-1)
        if ndim == 2:
            return x[None, :]
        return x[None, :, None] if x.ndim == 1 else x[:, :, None]

    return rule


# ---- repeating -------------------------------------------------------------------------------


def broadcast_to(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.broadcast_to``."""
    options = options_of(tracer, func, "array shape subok", args, kwargs)
    x, shape = options["array"], tuple(np.atleast_1d(options["shape"]))
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


def _sample_shape(array: Any) -> tuple[int, ...]:
    return array.sample_shape if is_traced(array) else np.shape(array)


def broadcast_arrays(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.broadcast_arrays``."""
    shape = np.broadcast_shapes(*(_sample_shape(a) for a in args))
    out = []
    for k, a in enumerate(args):
        same = is_traced(a) and a.sample_shape == shape
        out.append(a if same else elementwise(tracer, take_broadcast, (k, *args), {}))
    return tuple(out)


def repeat(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.repeat`` along another axis than the rows."""
    options = options_of(tracer, func, "a repeats axis", args, kwargs)
    x, axis = options["a"], options.get("axis")
    if not has_rows(x) or axis is None or on_rows(x, axis) or is_traced(options["repeats"]):
        msg = "np.repeat of rows"
        raise tracer.mixing(msg, "every row has to stay one row")
    return call(tracer, func, (x, options["repeats"], int(axis)), {}, axis=x.axis)


def tile(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.tile`` along other axes than the rows."""
    options = options_of(tracer, func, "A reps", args, kwargs)
    x, reps = options["A"], options["reps"]
    times = (reps,) if np.ndim(reps) == 0 else tuple(reps)
    if not has_rows(x) or traced_operands(times):
        msg = "np.tile by a number that depends on rows"
        raise tracer.mixing(msg, "use x[:, None] and broadcasting")
    ndim = max(x.ndim, len(times))
    times = (1,) * (ndim - len(times)) + tuple(int(n) for n in times)
    position = x.axis + ndim - x.ndim
    if times[position] != 1:
        msg = "np.tile of rows"
        raise tracer.mixing(msg, "use x[:, None] and broadcasting")
    return call(tracer, func, (x, times), {}, axis=position)


# ---- questions about shape and type ----------------------------------------------------------


def question(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """Functions that only ask for shape or type: answered for all rows."""
    x = args[0] if args else kwargs["a"]
    if func is np.ndim:
        return x.ndim
    if func is np.shape:
        return x.shape
    if func is np.size:
        axis = kwargs.get("axis", args[1] if len(args) > 1 else None)
        axes = axis if isinstance(axis, tuple) else (axis,)
        return x.size if axis is None else int(np.prod([x.shape[a] for a in axes]))
    probes = [np.empty(0, a.dtype) if is_traced(a) else a for a in args]
    return func(*probes, **kwargs)


def copy(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.copy``."""
    return options_of(tracer, func, "a order subok", args, kwargs)["a"].copy()
