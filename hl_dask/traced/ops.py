"""How an operation on traced arrays becomes a node: alignment of rows, ufuncs, calls.

Every operation is *done* on the sample values by NumPy itself, so that dtypes, shapes and errors
are NumPy's own, and *written down* as a node. The question answered here is where the rows are: the
point axis of each operand, counted from the end because broadcasting aligns from the end, has to be
the same for all operands, and becomes the point axis of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hl_dask.errors import HlDaskError
from hl_dask.expr import Frozen, Op, Slot
from hl_dask.traced.base import UNSEEN, Traced, dimensions, is_traced, traced_operands
from hl_dask.traced.tracer import Tracer

NUMBERS = (bool, int, float, complex, np.generic)
OPERATION_ERRORS = (ArithmeticError, LookupError, ValueError, TypeError)


def attempt(tracer: Tracer, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Do the operation on the sample; an error is noted, because a formula may catch it."""
    if tracer.blind:
        raise tracer.value_needed()
    try:
        return func(*args, **kwargs)
    except HlDaskError as error:
        tracer.fail(error)
        raise
    except OPERATION_ERRORS:
        tracer.notes.op_errors += 1
        raise


# ---- operands --------------------------------------------------------------------------------


def check_session(tracer: Tracer, value: Traced) -> None:
    """Refuse a traced array of another trace: state that outlived its run."""
    if value.tracer is not tracer:
        raise tracer.kept()


def row_offset(tracer: Tracer, operands: tuple[Any, ...]) -> int | None:
    """Position of the point axis counted from the end (-1 is the last), None if there is none."""
    offset: int | None = None
    for operand in operands:
        if not is_traced(operand):
            continue
        if operand.tracer is not tracer:
            check_session(tracer, operand)
        axis = tracer.graph.metas[operand.node].axis
        if axis < 0:
            continue
        found = axis - operand.ndim
        if offset is None:
            offset = found
        elif offset != found:
            msg = (
                "an operation between arrays whose rows lie on different axes "
                "(an outer product of rows)"
            )
            raise tracer.mixing(
                msg,
                "bring the rows to the same axis, such as x[:, None] with a (rows, k) array",
            )
    return offset


def lift(tracer: Tracer, operand: Any, offset: int | None) -> tuple[int, Any]:
    """Node and sample value of an operand that is aligned with the rows at ``offset``."""
    if is_traced(operand):
        check_session(tracer, operand)
        if offset is not None and tracer.graph.metas[operand.node].axis < 0:
            _check_broadcast(tracer, operand.sample_shape, offset)
        return operand.node, UNSEEN if tracer.blind else operand.value
    if isinstance(operand, (list, tuple)):
        operand = np.asarray(operand)
    if (
        isinstance(operand, np.ndarray)
        and operand.ndim
        and offset is not None
        and operand.ndim >= -offset
    ):
        axis = operand.ndim + offset
        if operand.shape[axis] != 1:
            full = full_rows(tracer, operand, axis)
            return full.node, UNSEEN if tracer.blind else full.value
    return tracer.constant(operand), operand


def _check_broadcast(tracer: Tracer, shape: tuple[int, ...], offset: int) -> None:
    if len(shape) >= -offset and shape[offset] != 1:
        msg = (
            f"a portfolio array of shape {shape} does not broadcast with one entry per row "
            f"({tracer.rows} rows)"
        )
        raise ValueError(msg)


def full_rows(tracer: Tracer, array: Any, axis: int) -> Any:
    """The traced form of a plain array that has an entry for every row, all of them equal."""
    if array.shape[axis] != tracer.rows:
        msg = (
            f"operands could not be broadcast together: an array of shape {array.shape} "
            f"with one entry per row ({tracer.rows} rows)"
        )
        raise ValueError(msg)
    tracer.notes.asked_rows = True
    row = tracer.same_rows(array, axis)
    if row is None:
        msg = f"a plain array with one entry per row (shape {array.shape}) and differing entries"
        raise tracer.mixing(
            msg,
            "take it from a column of the model points, declare the attribute in "
            "model_points = (...), or compute it from columns with array operations",
        )
    return repeat_row(tracer, np.array(row, subok=False), axis)


def repeat_row(tracer: Tracer, row: Any, axis: int) -> Any:
    """The traced array that repeats one row (an axis of length 1 at ``axis``) for all rows."""
    shape = (*row.shape[:axis], tracer.sample_rows, *row.shape[axis + 1 :])
    value = np.broadcast_to(row, shape)
    node = tracer.node(tracer.leaf("full", axis), (tracer.constant(row),), value, axis)
    return Traced.make(tracer, node, value)


def result(
    tracer: Tracer, op: Op, args: tuple[int, ...], value: Any, axis: int, fresh: bool = True
) -> Any:
    """The traced array of a new node."""
    return Traced.make(tracer, tracer.node(op, args, value, axis), value, fresh)


def recalled(tracer: Tracer, op: Op, args: tuple[int, ...], fresh: bool = True) -> Any:
    """The traced array of a node that the graph must hold, in a blind trace."""
    found = tracer.graph.find(op, args)
    if found is None:
        # What is wrong shows when the operation is done.
        raise tracer.value_needed()
    return Traced.make(tracer, found, fresh=fresh)


# ---- universal functions ---------------------------------------------------------------------

_OPS: dict[Callable[..., Any], Op] = {}
_NO_OPTIONS: dict[str, Any] = {}


def apply_ufunc(tracer: Tracer, ufunc: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """An elementwise operation with positional operands and nothing else: a ufunc, or np.where."""
    if tracer.blind:
        return _recalled_ufunc(tracer, ufunc, inputs)
    metas = tracer.graph.metas
    array_type = Traced.array_type
    ids: list[int] = []
    values: list[Any] = []
    offset: int | None = None
    for operand in inputs:
        kind = type(operand)
        if kind is array_type and operand.tracer is tracer:
            axis = metas[operand.node].axis
            if axis >= 0 and offset is None:
                offset = axis - operand.value.ndim
            elif axis < 0 or offset != axis - operand.value.ndim:
                return _unequal(tracer, ufunc, inputs)
            ids.append(operand.node)
        elif kind is float or kind is int:
            ids.append(tracer.constant(operand))
            values.append(operand)
            continue
        else:
            return _unequal(tracer, ufunc, inputs)
        values.append(operand.value)
    return _elementary(tracer, ufunc, ids, values, offset)


def _recalled_ufunc(tracer: Tracer, ufunc: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """As :func:`apply_ufunc` in a blind trace: what the graph holds has been found to be right."""
    ids: list[int] = []
    array_type = Traced.array_type
    for operand in inputs:
        kind = type(operand)
        if kind is array_type and operand.tracer is tracer:
            ids.append(operand.node)
        elif kind is float or kind is int:
            ids.append(tracer.constant(operand))
        else:
            return _unequal(tracer, ufunc, inputs)
    graph = tracer.graph
    found = graph.index.get((graph.op_id(operation(ufunc)), *ids))
    if found is None:
        return _unequal(tracer, ufunc, inputs)
    return array_type(tracer, found, UNSEEN)


def operation(ufunc: Callable[..., Any]) -> Op:
    """The operation of a ufunc, or of another function whose operands broadcast."""
    op = _OPS.get(ufunc)
    if op is None:
        name = "ufunc" if isinstance(ufunc, np.ufunc) else "rowwise"
        op = _OPS.setdefault(ufunc, Op(name, ufunc))
    return op


def _unequal(tracer: Tracer, ufunc: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """As :func:`apply_ufunc`, for operands of all kinds: arrays, totals, rows on other axes."""
    offset = row_offset(tracer, inputs)
    ids = []
    values = []
    for operand in inputs:
        node, value = lift(tracer, operand, offset)
        ids.append(node)
        values.append(value)
    return _elementary(tracer, ufunc, ids, values, offset)


def _elementary(
    tracer: Tracer,
    ufunc: Callable[..., Any],
    ids: list[int],
    values: list[Any],
    offset: int | None,
) -> Any:
    op = operation(ufunc)
    if tracer.blind:
        outputs = getattr(ufunc, "nout", 1)
        if outputs == 1:
            return recalled(tracer, op, tuple(ids))
        items = [Op("item", (op, k)) for k in range(outputs)]
        return tuple(recalled(tracer, item, tuple(ids)) for item in items)
    value = attempt(tracer, ufunc, values, _NO_OPTIONS)
    if type(value) is tuple:
        return split(tracer, op, tuple(ids), value, offset)
    graph = tracer.graph
    number = graph.op_ids.get(op)
    if number is None:
        number = graph.op_id(op)
    found = graph.index.get((number, *ids))
    if found is None:
        axis = -1 if offset is None else value.ndim + offset
        found = tracer.new_node(op, tuple(ids), value, axis)
    return Traced.array_type(tracer, found, value)


def split(
    tracer: Tracer, op: Op, args: tuple[int, ...], values: tuple[Any, ...], offset: int | None
) -> Any:
    """The results of an operation with several outputs (divmod, modf): one node for each."""
    out = []
    for k, value in enumerate(values):
        axis = -1 if offset is None else value.ndim + offset
        out.append(result(tracer, Op("item", (op, k)), args, value, axis))
    return tuple(out)


# ---- calls of functions ----------------------------------------------------------------------


def cast(value: Any, dtype: str) -> Any:
    """``value.astype(dtype)``, also of a scalar."""
    return np.asarray(value).astype(dtype)[()] if np.ndim(value) == 0 else value.astype(dtype)


def flatten(
    tracer: Tracer, value: Any, ids: list[int], values: list[Any], offset: int | None
) -> Any:
    """Template of an argument: nodes become slots, containers hashable; fills ids and values."""
    if is_traced(value) or isinstance(value, (np.ndarray, *NUMBERS)):
        node, concrete = lift(tracer, value, offset)
        ids.append(node)
        values.append(concrete)
        return Slot(len(ids) - 1)
    if isinstance(value, (list, tuple)):
        parts = tuple(flatten(tracer, v, ids, values, offset) for v in value)
        return Frozen("list", parts) if isinstance(value, list) else parts
    if isinstance(value, dict):
        items = tuple((k, flatten(tracer, v, ids, values, offset)) for k, v in value.items())
        return Frozen("dict", items)
    if isinstance(value, slice):
        return Frozen("slice", (value.start, value.stop, value.step))
    return value


def fill(template: Any, values: Any) -> Any:
    """The inverse of :func:`flatten`: puts values into the slots of a template."""
    if isinstance(template, Slot):
        return values[template.index]
    if isinstance(template, tuple):
        return tuple(fill(t, values) for t in template)
    if isinstance(template, Frozen):
        if template.kind == "list":
            return [fill(t, values) for t in template.items]
        if template.kind == "dict":
            return {k: fill(t, values) for k, t in template.items}
        return slice(*template.items)
    return template


def call(
    tracer: Tracer,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    axis: int | Callable[[Any], int],
    offset: int | None = None,
) -> Any:
    """Any function that keeps rows apart.

    Parameters
    ----------
    axis : int or callable
        The point axis of the result, or a function that tells it from the result on the sample.
    offset : int, optional
        Where plain arrays among the arguments have their rows, counted from the end.
    """
    ids: list[int] = []
    values: list[Any] = []
    template = flatten(tracer, tuple(args), ids, values, offset)
    options = flatten(tracer, dict(kwargs), ids, values, offset)
    op = Op("call", (func, template, options))
    if tracer.blind:
        return recalled(tracer, op, tuple(ids))
    value = attempt(tracer, func, fill(template, values), fill(options, values))
    position = axis(value) if callable(axis) else axis
    return result(tracer, op, tuple(ids), value, position)


def elementwise(
    tracer: Tracer,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """A function whose operands broadcast against each other (where, clip, isclose ...)."""
    offset = row_offset(tracer, tuple(traced_operands((args, kwargs))))
    return call(
        tracer,
        func,
        args,
        kwargs,
        axis=lambda value: aligned(value, offset),
        offset=offset,
    )


def aligned(value: Any, offset: int | None) -> int:
    """The point axis of a value whose rows lie at ``offset``, counted from the end."""
    return -1 if offset is None else dimensions(value) + offset
