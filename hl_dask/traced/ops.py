"""How an operation on traced arrays becomes a node: alignment of rows, indexing, look-ups.

Every operation is *done* on the sample values by NumPy itself, so that dtypes, shapes and errors are
NumPy's own, and *written down* as a node. The question answered here is where the rows are: the
point axis of each operand, counted from the end because broadcasting aligns from the end, has to be
the same for all operands, and becomes the point axis of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hl_dask.errors import HlDaskError
from hl_dask.expr import Frozen, Op, Slot
from hl_dask.traced.base import Traced, is_traced
from hl_dask.traced.tracer import Tracer

FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {}
"""NumPy function -> rule(tracer, func, args, kwargs); filled by the functions module."""

NUMBERS = (bool, int, float, complex, np.generic)
OPERATION_ERRORS = (ArithmeticError, LookupError, ValueError, TypeError)


def attempt(tracer: Tracer, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Do the operation on the sample; an error is noted, because a formula may catch it."""
    try:
        return func(*args, **kwargs)
    except HlDaskError as error:
        tracer.fail(error)
        raise
    except OPERATION_ERRORS:
        tracer.op_errors += 1
        raise


# ---- operands --------------------------------------------------------------------------------


def check_session(tracer: Tracer, value: Traced) -> None:
    """Refuse a traced array of another trace: state that outlived its run."""
    if value.tracer is not tracer:
        msg = "a value kept from an earlier run (in a module, a class or a container on self)"
        raise tracer.mixing(
            msg,
            "keep values in formulas only; a run starts from nothing",
        )


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
        found = axis - np.ndim(operand.value)
        if offset is None:
            offset = found
        elif offset != found:
            msg = "an operation between arrays whose rows lie on different axes (an outer product of rows)"
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
            _check_broadcast(tracer, operand.value, offset)
        return operand.node, operand.value
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
            return full.node, full.value
    return tracer.constant(operand), operand


def _check_broadcast(tracer: Tracer, value: Any, offset: int) -> None:
    shape = np.shape(value)
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
    tracer.asked_rows = True
    row = tracer.same_rows(array, axis, "")
    if row is None:
        msg_0 = f"a plain array with one entry per row (shape {array.shape}) and differing entries"
        raise tracer.mixing(
            msg_0,
            "take it from a column of the model points, declare the attribute in model_points = (...), or "
            "compute it from columns with array operations",
        )
    return repeat_row(tracer, np.array(row, subok=False), axis)


def repeat_row(tracer: Tracer, row: Any, axis: int) -> Any:
    """The traced array that repeats one row (an axis of length 1 at ``axis``) for all rows."""
    shape = (*row.shape[:axis], tracer.sample_rows, *row.shape[axis + 1 :])
    value = np.broadcast_to(row, shape)
    node = tracer.node(Op("full", axis), (tracer.constant(row),), value, axis)
    return Traced.make(tracer, node, value)


def result(
    tracer: Tracer, op: Op, args: tuple[int, ...], value: Any, axis: int, fresh: bool = True
) -> Any:
    """The traced array of a new node."""
    return Traced.make(tracer, tracer.node(op, args, value, axis), value, fresh)


# ---- universal functions ---------------------------------------------------------------------

_OPS: dict[Callable[..., Any], Op] = {}
_NO_OPTIONS: dict[str, Any] = {}


def apply_ufunc(tracer: Tracer, ufunc: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """An elementwise operation with positional operands and nothing else: a ufunc, or np.where."""
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


def operation(ufunc: Callable[..., Any]) -> Op:
    """The operation of a ufunc, or of another function whose operands broadcast."""
    op = _OPS.get(ufunc)
    if op is None:
        op = _OPS.setdefault(ufunc, Op("ufunc" if isinstance(ufunc, np.ufunc) else "rowwise", ufunc))
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
    value = attempt(tracer, ufunc, values, _NO_OPTIONS)
    op = operation(ufunc)
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


_POWERS = {2: np.square, -1: np.reciprocal, 0.5: np.sqrt, 1: np.positive}


def power(base: Traced, exponent: Any) -> Any:
    """``base ** exponent`` with the special cases that NumPy's operator makes, bit for bit."""
    if isinstance(exponent, (int, float)) and not isinstance(exponent, (bool, np.generic)):
        kind = base.value.dtype.kind
        ufunc = _POWERS.get(exponent)
        if (
            ufunc is not None
            and (kind in "fc" or (kind in "iu" and exponent == 2))
            and base.value.ndim
        ):
            if kind in "iu" and isinstance(exponent, float):
                return apply_ufunc(base.tracer, np.power, (base, exponent))
            return apply_ufunc(base.tracer, ufunc, (base,))
    return apply_ufunc(base.tracer, np.power, (base, exponent))


def apply_ufunc_method(
    tracer: Tracer, ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """NumPy's ``__array_ufunc__`` protocol."""
    out = kwargs.pop("out", None)
    if out is not None:
        target = out[0]
        if not (len(out) == 1 and is_traced(target) and method == "__call__" and not kwargs):
            msg = f"out= of np.{ufunc.__name__}"
            raise tracer.mixing(msg, "use the value that the function returns")
        return target.take_over(apply_ufunc(tracer, ufunc, inputs), ufunc.__name__)  # type: ignore[attr-defined]
    if ufunc is np.matmul:
        return FUNCTIONS[np.matmul](tracer, np.matmul, inputs, kwargs)
    if method == "__call__" and ufunc.signature is None:
        kwargs = {k: v for k, v in kwargs.items() if v is not True or k != "where"}
        if not kwargs:
            return apply_ufunc(tracer, ufunc, inputs)
        return elementwise(tracer, ufunc, inputs, kwargs)
    rule = FUNCTIONS.get(REDUCE_AS.get(ufunc)) if method == "reduce" else None  # type: ignore[arg-type]
    if rule is not None:
        kwargs.setdefault("axis", 0)
        return rule(tracer, REDUCE_AS[ufunc], inputs, kwargs)
    raise tracer.mixing(
        f"np.{ufunc.__name__}.{method}" if method != "__call__" else f"np.{ufunc.__name__}",
        "write it with elementwise operations and totals (sum, min, max, any, all)",
    )


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
    """NumPy's ``__array_function__`` protocol: a rule, or an escape that makes the formula opaque."""
    rule = FUNCTIONS.get(func)
    if rule is None:
        name = getattr(func, "__name__", repr(func))
        tracer.escape(f"np.{name} is not followed by hl_dask")
        msg = f"np.{name} is not followed by hl_dask"
        raise TypeError(msg)
    return rule(tracer, func, args, kwargs)


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
    axis: Callable[[Any], int],
    offset: int | None = None,
) -> Any:
    """Any function that keeps rows apart; ``axis`` tells the point axis of its result."""
    ids: list[int] = []
    values: list[Any] = []
    template = flatten(tracer, tuple(args), ids, values, offset)
    options = flatten(tracer, dict(kwargs), ids, values, offset)
    value = attempt(tracer, func, fill(template, values), fill(options, values))
    return result(tracer, Op("call", (func, template, options)), tuple(ids), value, axis(value))


def traced_operands(value: Any) -> list[Any]:
    """All traced arrays within (nested) arguments."""
    if is_traced(value):
        return [value]
    if isinstance(value, (list, tuple)):
        return [x for v in value for x in traced_operands(v)]
    if isinstance(value, dict):
        return [x for v in value.values() for x in traced_operands(v)]
    return []


def elementwise(
    tracer: Tracer,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    value_args: tuple[int, ...] | None = None,
) -> Any:
    """A function whose operands broadcast against each other (where, clip, isclose ...)."""
    offset = row_offset(tracer, tuple(traced_operands((args, kwargs))))
    return call(
        tracer,
        func,
        args,
        kwargs,
        axis=lambda value: -1 if offset is None else np.ndim(value) + offset,
        offset=offset,
    )


# ---- look-ups --------------------------------------------------------------------------------


def apply_lookup(tracer: Tracer, table: Any, keys: tuple[Any, ...]) -> Any:
    """``hl.Table`` and ``hl.lookup`` with a traced key: a node that gathers in a shared table."""
    categories = tuple(key.categories if _is_text(key) else None for key in keys)
    codes = tuple(key.codes if _is_text(key) else key for key in keys)
    offset = row_offset(tracer, codes)
    ids, values = [], []
    for key in codes:
        node, value = lift(tracer, key, offset)
        ids.append(node)
        values.append(value)
    op, bound = _bound(tracer, table, categories)
    value = attempt(tracer, bound, values, _NO_OPTIONS)
    axis = -1 if offset is None else np.ndim(value) + offset
    traced = result(tracer, op, tuple(ids), value, axis)
    tracer.graph.values.setdefault(traced.node, bound)
    return traced


def _bound(tracer: Tracer, table: Any, categories: tuple[Any, ...]) -> tuple[Op, Any]:
    """The operation of looking up in a table with keys of these kinds; made once for each table."""
    key = (id(table), *map(id, categories))
    found = tracer.tables.get(key)
    if found is None:
        op = Op("lookup", (table.digest(), _digest(categories)))
        # The table and the categories are kept, lest another object take over their identity.
        found = tracer.tables[key] = (op, table.bind(categories), table, categories)
    return found[0], found[1]


def _is_text(key: Any) -> bool:
    return hasattr(type(key), "__hl_text__")


def _digest(categories: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if c is None else tuple(c) for c in categories)


def gather(array: Any, index: Any) -> Any:
    """``array[index]``, the index being an array, or a tuple with arrays among slices and numbers."""
    return array[index]


def apply_gather(tracer: Tracer, array: Any, index: Any) -> Any:
    """``assumption[index]`` where the index holds traced arrays."""
    parts = index if isinstance(index, tuple) else (index,)
    rows: list[Any] = [p for p in parts if is_traced(p) and p.axis >= 0]
    if any(not isinstance(p, (int, np.integer, np.ndarray, Traced)) for p in parts):
        if len(parts) > 1 and len([p for p in parts if is_traced(p)]) > 1:
            msg = "an index that mixes slices with several arrays of rows"
            raise tracer.mixing(msg, "use hl.lookup")
    if any(p.value.dtype.kind == "b" for p in rows):
        msg = "a mask of rows as the index into a shared array"
        raise tracer.mixing(msg, "use np.where(mask, a, b)")
    offset = row_offset(tracer, tuple(parts))
    first = next((k for k, p in enumerate(parts) if is_traced(p)), 0)
    index_ndim = max((np.ndim(p.value) for p in parts if is_traced(p)), default=0)
    plain_before = sum(1 for p in parts[:first] if isinstance(p, slice))

    def axis(value: Any) -> int:
        return -1 if offset is None else plain_before + index_ndim + offset

    return call(tracer, gather, (np.asarray(array), index), {}, axis=axis)


# ---- indexing, assignment, shape -------------------------------------------------------------


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


ORDER_REMEDY = (
    "sort, rank or select before the run and pass the result in as a column; np.where and totals over the "
    "rows (sum, min, max, any, all, mean) are followed"
)
GATHER_REMEDY = "look values up in a shared array (hl.lookup) or in an hl.Table"
