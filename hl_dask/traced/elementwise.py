"""Rules for functions that work on each row by itself, whatever the shape of their operands."""

from __future__ import annotations

from typing import Any

import numpy as np

from hl_dask.traced import ops
from hl_dask.traced.base import dimensions, has_rows, is_traced
from hl_dask.traced.dispatch import plainly
from hl_dask.traced.ops import aligned, call, elementwise, row_offset
from hl_dask.traced.rules import GATHER_REMEDY, Rule, checked, on_rows, options_of
from hl_dask.traced.tracer import Tracer


def broadcasting(names: str) -> Rule:
    """Functions whose operands broadcast against each other; ``names`` are their parameters."""
    order = names.split()

    def rule(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        given = dict(zip(order, args, strict=False)) | kwargs
        out = given.pop("out", None)
        options = options_of(tracer, func, names, (), given)
        if out is not None and not is_traced(out):
            msg = f"out= of np.{func.__name__}"
            raise tracer.mixing(msg, "use the value that the function returns")
        # By position as far as they go: some functions take their operands in no other way.
        positional = []
        for name in order:
            if name not in options:
                break
            positional.append(options.pop(name))
        value = elementwise(tracer, func, tuple(positional), options)
        return value if out is None else out.take_over(value, func.__name__)

    return rule


def where(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.where``; with one argument it picks rows."""
    if len(args) == 3 and not kwargs:
        return ops.apply_ufunc(tracer, func, args)
    if not has_rows((args, kwargs)):
        return plainly(func, args, kwargs)
    msg = "np.where with one argument"
    raise tracer.mixing(msg, "use np.where(condition, a, b)")


def choose(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.choose``: the choices lie along the first axis of an array, or in a list."""
    options = options_of(tracer, func, "a choices out mode", args, kwargs)
    choices = list(options["choices"])
    mode = options.get("mode", "raise")
    return elementwise(tracer, np.choose, (options["a"], choices), {"mode": mode})


def nan_to_num(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.nan_to_num``, not in place: the operand may be a column, or used elsewhere."""
    options = options_of(tracer, func, "x copy nan posinf neginf", args, kwargs)
    if not options.pop("copy", True):
        msg = "np.nan_to_num(copy=False)"
        raise tracer.mixing(msg, "use the value that np.nan_to_num(x) returns")
    return elementwise(tracer, func, (options.pop("x"),), options)


def round_whole(value: Any, decimals: int) -> Any:
    """Integers rounded to tens, hundreds ...; NumPy cannot write these into a given array."""
    return np.round(value, decimals)


def round_(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.round``."""
    options = options_of(tracer, func, "a decimals out", args, kwargs)
    x = checked(tracer, options["a"])
    decimals = int(options.get("decimals", 0))
    function = round_whole if x.dtype.kind in "iu" and decimals < 0 else np.round
    return elementwise(tracer, function, (x, decimals), {})


def real(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.real`` and ``np.imag``."""
    (x,) = args
    if x.dtype.kind == "c":
        return elementwise(tracer, func, args, kwargs)
    return x if func is np.real else np.zeros_like(x)


def real_if_close(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.real_if_close``: the dtype of its result depends on all entries."""
    if args and is_traced(args[0]) and args[0].dtype.kind != "c":
        return args[0]
    if not has_rows((args, kwargs)):
        return plainly(func, args, kwargs)
    msg = "np.real_if_close of complex numbers"
    raise tracer.mixing(msg, "use np.real(x)")


def astype(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.astype``."""
    options = options_of(tracer, func, "x dtype copy device", args, kwargs)
    return options["x"].astype(options["dtype"], copy=options.get("copy", True))


def polyval(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.polyval``: Horner's scheme, in NumPy's order."""
    options = options_of(tracer, func, "p x", args, kwargs)
    coefficients, x = options["p"], options["x"]
    if has_rows(coefficients):
        msg = "np.polyval with coefficients by row"
        raise tracer.mixing(msg, "write the polynomial out")
    value = np.zeros_like(x)
    for k in range(np.shape(coefficients)[0]):
        value = value * x + coefficients[k]
    return value


def isin(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.isin`` in a set that all rows share."""
    options = options_of(tracer, func, "element test_elements assume_unique invert", args, kwargs)
    x, test = options.pop("element"), options.pop("test_elements")
    if has_rows(test):
        msg = "np.isin in a set made of rows"
        raise tracer.mixing(msg, "use a set that is an assumption")
    if not is_traced(x):
        return plainly(func, (x, test), options)
    if not is_traced(test):
        test = np.asarray(list(test) if isinstance(test, (set, frozenset)) else test)
    return call(tracer, func, (x, test), options, axis=x.axis)


def search(names: str, moving: str, tables: tuple[str, ...]) -> Rule:
    """A look-up of traced values in shared tables: searchsorted, digitize, interp.

    Parameters
    ----------
    moving : str
        The parameter that may be rows.
    tables : tuple of str
        The parameters that may not.
    """
    order = names.split()

    def rule(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        options = options_of(tracer, func, names, args, kwargs)
        x = options[moving]
        if has_rows({k: v for k, v in options.items() if k != moving}):
            msg = f"np.{func.__name__} in a table made of rows"
            raise tracer.mixing(msg, "use a shared table")
        axis = x.axis if is_traced(x) else -1
        positional = tuple(options.pop(name) for name in order if name in (moving, *tables))
        return call(tracer, func, positional, options, axis=axis)

    return rule


def take(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.take``: columns of an array of rows, or entries of a shared array."""
    options = options_of(tracer, func, "a indices axis out mode", args, kwargs)
    a, indices, axis = options["a"], options["indices"], options.get("axis")
    extra = {k: v for k, v in options.items() if k in ("axis", "mode") and v is not None}
    if has_rows(a):
        if axis is None or on_rows(a, axis) or is_traced(indices):
            msg = "np.take from the rows"
            raise tracer.mixing(msg, GATHER_REMEDY)
        shift = 0 if axis % a.ndim > a.axis else np.ndim(indices) - 1
        return call(tracer, func, (a, indices), extra, axis=a.axis + shift)
    offset = row_offset(tracer, (indices,))
    a = a if is_traced(a) or isinstance(a, np.ndarray) else np.asarray(a)
    before = 0 if axis is None else axis % a.ndim
    position = -1 if offset is None else before + indices.ndim + offset
    return call(tracer, func, (a, indices), extra, axis=position)


def like(fill: Any) -> Rule:
    """zeros_like, ones_like, empty_like and, with None, full_like: one row repeated."""
    names = "a fill_value dtype" if fill is None else "a dtype"

    def rule(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        options = options_of(tracer, func, f"{names} order subok", args, kwargs)
        x = checked(tracer, options["a"])
        value = options["fill_value"] if fill is None else fill
        dtype = np.dtype(options.get("dtype") or x.dtype)
        if is_traced(value):
            return np.broadcast_arrays(value, x)[0].astype(dtype)
        shape = list(x.sample_shape)
        if x.axis < 0:
            return np.full(tuple(shape), value, dtype)
        shape[x.axis] = 1
        return ops.repeat_row(tracer, np.full(shape, value, dtype), x.axis)

    return rule


def take_along(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.take_along_axis``: another column for each row."""
    options = options_of(tracer, func, "arr indices axis", args, kwargs)
    x, indices, axis = options["arr"], options["indices"], options.get("axis", -1)
    offset = row_offset(tracer, (x, indices))
    ndim = dimensions(x)
    if offset is not None and (axis is None or int(axis) % ndim == ndim + offset):
        msg = "np.take_along_axis over the rows"
        raise tracer.mixing(msg, GATHER_REMEDY)
    return call(
        tracer,
        func,
        (x, indices, axis if axis is None else int(axis)),
        {},
        offset=offset,
        axis=lambda value: aligned(value, offset),
    )
