"""Rules for functions that work within each row, along an axis other than the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from hl_dask.traced.base import has_rows, is_traced
from hl_dask.traced.ops import call
from hl_dask.traced.rules import (
    ORDER_REMEDY,
    Rule,
    checked,
    on_rows,
    options_of,
    remaining_position,
)
from hl_dask.traced.tracer import Tracer


def along(names: str, *, keeps: bool, default: int | None = None) -> Rule:
    """Functions that are given an array and the axis to work along.

    Parameters
    ----------
    names : str
        Their parameters, the array first.
    keeps : bool
        Whether the result has as many axes as the operand (sort, cumsum), or one less (argmax).
    default : int or None
        What ``axis=`` is when it is left out.
    """
    first = names.split(maxsplit=1)[0]

    def rule(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        options = options_of(tracer, func, names, args, kwargs)
        if not has_rows(options):
            return call(tracer, func, (options.pop(first),), options, axis=-1)
        x = checked(tracer, options.pop(first))
        if options.pop("overwrite_input", False) or not is_traced(x) or has_rows(options):
            msg = f"np.{_name(func)} with arguments by row, or in place,"
            raise tracer.mixing(msg, ORDER_REMEDY)
        axis = options.setdefault("axis", default)
        if on_rows(x, axis):
            msg = f"np.{_name(func)} over the rows"
            raise tracer.mixing(msg, ORDER_REMEDY)
        if axis is None and x.ndim > 1:
            # Flattens a total; rows were refused.
            return call(tracer, func, (x,), options, axis=-1)
        position = remaining_position(x, axis, keeps or bool(options.get("keepdims", False)))
        # Several quantiles lie along a new first axis.
        position += np.ndim(options.get("q", 0))
        return call(tracer, func, (x,), options, axis=position)

    return rule


def _name(func: Any) -> str:
    """The name of a function or of a method of a ufunc."""
    owner = getattr(func, "__self__", None)
    return f"{owner.__name__}.{func.__name__}" if isinstance(owner, np.ufunc) else func.__name__


def diff(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.diff``; what is put in front or behind may be rows."""
    options = options_of(tracer, func, "a n axis prepend append", args, kwargs)
    ends = {k: options[k] for k in ("prepend", "append") if k in options}
    if has_rows(ends) and has_rows(options["a"]):
        x, axis = options["a"], options.get("axis", -1)
        parts = [ends.get("prepend"), x, ends.get("append")]
        shape = list(x.shape)
        shape[axis] = 1
        parts = [
            np.broadcast_to(p, tuple(shape)) if p is not None and np.ndim(p) == 0 else p
            for p in parts
        ]
        options = {k: v for k, v in options.items() if k not in ends}
        options["a"] = np.concatenate([p for p in parts if p is not None], axis=axis)
    return _DIFF(tracer, func, (), options)


_DIFF = along("a n axis prepend append", keeps=True, default=-1)


def gradient(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.gradient`` along one axis; the distances follow the array by position."""
    options = options_of(tracer, func, "f axis edge_order", args[:1], kwargs)
    x, distances = checked(tracer, options.pop("f")), args[1:]
    axis = options.get("axis")
    if not has_rows((x, distances)):
        return call(tracer, func, (x, *distances), options, axis=-1)
    if not isinstance(axis, (int, np.integer)) or on_rows(x, axis) or has_rows(distances):
        msg = "np.gradient over the rows"
        raise tracer.mixing(msg, "name another axis: np.gradient(x, axis=1)")
    return call(tracer, func, (x, *distances), options, axis=x.axis)
