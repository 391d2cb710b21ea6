"""Where NumPy's protocols hand over: universal functions, and functions that have a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hl_dask.traced.base import Traced, has_rows, is_traced
from hl_dask.traced.ops import apply_ufunc, elementwise
from hl_dask.traced.tracer import Tracer

FUNCTIONS: dict[Any, Callable[..., Any]] = {}
"""NumPy function -> rule(tracer, func, args, kwargs); filled by the functions module."""


_POWERS: dict[float, np.ufunc] = {
    2: np.square,
    -1: np.reciprocal,
    0.5: np.sqrt,
    1: np.positive,
}


def power(base: Traced, exponent: Any) -> Any:
    """``base ** exponent`` with the special cases that NumPy's operator makes, bit for bit."""
    return apply_ufunc(base.tracer, *_power_operation(base, exponent))


def _power_operation(base: Traced, exponent: Any) -> tuple[np.ufunc, tuple[Any, ...]]:
    general = (np.power, (base, exponent))
    if type(exponent) not in (int, float) or not base.ndim:
        return general
    ufunc = _POWERS.get(exponent)
    if ufunc is None:
        return general
    kind = base.dtype.kind
    whole = kind in "iu" and type(exponent) is int and exponent == 2
    return (ufunc, (base,)) if whole or kind in "fc" else general


def apply_ufunc_method(
    tracer: Tracer, ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """NumPy's ``__array_ufunc__`` protocol."""
    if method == "__call__":
        return _call_ufunc(tracer, ufunc, inputs, kwargs)
    if method == "reduce":
        kwargs.setdefault("axis", 0)
    func = REDUCE_AS.get(ufunc) if method == "reduce" else None
    if func is None:
        func = getattr(ufunc, method)
    rule = FUNCTIONS.get(func)
    if rule is not None:
        return rule(tracer, func, inputs, kwargs)
    msg = f"np.{ufunc.__name__}.{method}"
    raise tracer.mixing(msg, UFUNC_REMEDY)


UFUNC_REMEDY = "write it with elementwise operations and totals (sum, min, max, any, all)"


def _call_ufunc(
    tracer: Tracer, ufunc: np.ufunc, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call of a universal function, with its options ``out=`` and ``where=``."""
    out = kwargs.pop("out", None)
    where = kwargs.pop("where", True)
    if out is not None and (len(out) != 1 or not is_traced(out[0])):
        msg = f"out= of np.{ufunc.__name__} with an array that was not made from the rows"
        raise tracer.mixing(msg, "make it with np.zeros_like(x), or use np.where(condition, a, b)")
    if out is None and where is not True:
        msg = f"np.{ufunc.__name__} with where= but without out= leaves entries undefined and"
        raise tracer.mixing(msg, "add out=np.zeros_like(x), or use np.where(condition, a, b)")
    if ufunc.signature is not None:
        if ufunc not in FUNCTIONS:
            msg = f"np.{ufunc.__name__}"
            raise tracer.mixing(msg, UFUNC_REMEDY)
        value = FUNCTIONS[ufunc](tracer, ufunc, inputs, kwargs)
    elif kwargs:
        value = elementwise(tracer, ufunc, inputs, kwargs)
    else:
        value = apply_ufunc(tracer, ufunc, inputs)
    if out is None:
        return value
    if where is not True:
        value = np.where(where, value, out[0])
    return out[0].take_over(value, ufunc.__name__)


REDUCE_AS: dict[np.ufunc, Callable[..., Any]] = {
    np.add: np.sum,
    np.multiply: np.prod,
    np.minimum: np.min,
    np.maximum: np.max,
    np.logical_or: np.any,
    np.logical_and: np.all,
}


# ---- functions of the array namespace --------------------------------------------------------


def apply_function(tracer: Tracer, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """NumPy's ``__array_function__`` protocol: a rule, or an escape that makes formulas opaque."""
    rule = FUNCTIONS.get(func)
    if rule is not None:
        return rule(tracer, func, args, kwargs)
    if not has_rows((args, kwargs)):
        return plainly(func, args, kwargs)
    msg = f"np.{getattr(func, '__name__', repr(func))} is not followed by hl_dask"
    tracer.escape(msg)
    raise TypeError(msg)


def plainly(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function on the real values of totals: right for all that are given no rows."""
    return func(*_concrete(args), **_concrete(kwargs))


def _concrete(value: Any) -> Any:
    if is_traced(value):
        return value.concrete()
    if isinstance(value, (list, tuple)):
        return type(value)(_concrete(v) for v in value)
    if isinstance(value, dict):
        return {k: _concrete(v) for k, v in value.items()}
    return value
