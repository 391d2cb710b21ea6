"""What the rules for NumPy's functions have in common.

A rule is called as ``rule(tracer, func, args, kwargs)`` with the arguments that the formula gave to
``func``, and returns what the function returns, or refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hl_dask.traced.base import has_rows, is_traced
from hl_dask.traced.dispatch import plainly
from hl_dask.traced.ops import call, check_session
from hl_dask.traced.tracer import Tracer

Rule = Callable[[Tracer, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

ORDER_REMEDY = (
    "sort, rank or select before the run and pass the result in as a column; np.where and totals "
    "over the rows (sum, min, max, any, all, mean) are followed"
)
GATHER_REMEDY = "look values up in a shared array (hl.lookup) or in an hl.Table"


def options_of(
    tracer: Tracer, func: Any, names: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Arguments by name, those left out and NumPy's own no-value markers dropped.

    Parameters
    ----------
    names : str
        Names of the parameters in NumPy's order, separated by blanks.

    Raises
    ------
    RowMixingError
        For an option that the rule does not know, which it must not ignore, and for ``out=``.
    """
    order = names.split()
    found = dict(zip(order, args, strict=False))
    found.update(kwargs)
    found = {k: v for k, v in found.items() if v is not np._NoValue}
    if found.pop("out", None) is not None:
        msg = f"out= of np.{func.__name__}"
        raise tracer.mixing(msg, "use the value that the function returns")
    for name in found.keys() - set(order):
        msg = f"the option {name}= of np.{func.__name__}"
        raise tracer.mixing(msg, "leave the option out, or write it with elementwise operations")
    return found


def checked(tracer: Tracer, value: Any) -> Any:
    """An operand, after a look whether it belongs to this trace."""
    if is_traced(value):
        check_session(tracer, value)
    return value


def axes_of(array: Any, axis: Any) -> set[int]:
    """The axes, counted from the front, that ``axis=`` means."""
    if axis is None:
        return set(range(array.ndim))
    return {int(a) % array.ndim for a in (axis if isinstance(axis, (tuple, list)) else (axis,))}


def on_rows(array: Any, axis: Any) -> bool:
    """Whether an operation over ``axis`` goes over the rows."""
    return bool(array.axis >= 0 and array.axis in axes_of(array, axis))


def remaining_position(array: Any, axis: Any, keepdims: bool) -> int:
    """The point axis of a reduction over other axes."""
    position = int(array.axis)
    if position < 0 or keepdims:
        return position
    return position - sum(1 for a in axes_of(array, axis) if a < position)


def refused(remedy: str) -> Rule:
    """A rule for functions that rank, order, shift or pick rows; totals are worked with."""

    def rule(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        if not has_rows((args, kwargs)):
            return plainly(func, args, kwargs)
        msg = f"np.{func.__name__}"
        raise tracer.mixing(msg, remedy)

    return rule


def without_rows(rule: Rule) -> Rule:
    """The rule, for functions of which any argument may be a total instead of an array of rows."""

    def either(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        if has_rows((args, kwargs)):
            return rule(tracer, func, args, kwargs)
        return call(tracer, func, args, kwargs, axis=-1)

    return either
