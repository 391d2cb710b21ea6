"""The traced array itself: operators, indexing, methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from hl_dask.errors import ReadOnlyError
from hl_dask.traced import dispatch, indexing, lookups, ops
from hl_dask.traced.base import UNSEEN
from hl_dask.traced.concrete import Concrete
from hl_dask.traced.tracer import Tracer

WAYS_OUT = {
    "sort": "sort the data before the run, or declare the formula @hl.per_point if it works row by "
    "row",
    "iterate": "write it with array operations; totals (x.sum(), x.max()) are followed",
}


class TracedArray(Concrete):
    """A NumPy-like array over a sample of the rows that records what is done to it.

    Made by hl_dask while a model is recorded, never by users. ``isinstance(x, np.ndarray)`` is true
    wherever it is true for the value in a plain run, so that such a branch goes the same way.
    """

    __slots__ = ()
    __array_priority__ = 1000

    # ---- what the array is -------------------------------------------------------------------

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return np.ndarray if self.ndim else type(self.value)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the value has over all rows."""
        _, shape, axis = self.tracer.graph.metas[self.node]
        return shape if axis < 0 else (*shape[:axis], self.tracer.row_count(), *shape[axis:])

    @property
    def size(self) -> int:
        """The number of elements over all rows."""
        if self.axis >= 0:
            self.tracer.length()
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def itemsize(self) -> int:
        """See :class:`numpy.ndarray`."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes over all rows."""
        return self.size * self.itemsize

    @property
    def T(self) -> Any:  # noqa: N802
        """See :class:`numpy.ndarray`."""
        return self.transpose()

    @property
    def real(self) -> Any:
        """See :class:`numpy.ndarray`."""
        return np.real(self)

    @property
    def imag(self) -> Any:
        """See :class:`numpy.ndarray`."""
        return np.imag(self)

    # ---- NumPy's protocols -------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return dispatch.apply_ufunc_method(self.tracer, ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return dispatch.apply_function(self.tracer, func, args, kwargs)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if not self.per_point:
            return np.asarray(self.concrete(), dtype=dtype)
        self.tracer.escape(
            "np.asarray, or an operation that hl_dask cannot see, took a plain array"
        )
        view = np.asarray(self.value, dtype=dtype)
        if view is self.value:
            view = view.view()
            view.setflags(write=False)
        return view

    def __hl_lookup__(self, table: Any, keys: tuple[Any, ...]) -> Any:
        return lookups.apply_lookup(self.tracer, table, keys)

    def __hl_gather__(self, array: Any, index: Any) -> Any:
        return lookups.apply_gather(self.tracer, array, index)

    # ---- rows --------------------------------------------------------------------------------

    def __len__(self) -> int:
        if self.ndim == 0:
            msg = "len() of unsized object"
            raise TypeError(msg)
        return self.tracer.length() if self.axis == 0 else self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if self.axis == 0:
            msg = "iterating over the rows"
            raise self.tracer.mixing(msg, WAYS_OUT["iterate"])
        if self.ndim == 0:
            msg = "iteration over a 0-d array"
            raise TypeError(msg)
        return iter([self[k] for k in range(self.sample_shape[0])])

    def __contains__(self, item: Any) -> bool:
        return bool((self == item).any())

    def __getitem__(self, index: Any) -> Any:
        return indexing.apply_index(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._writable()
        self._become(indexing.apply_assignment(self, index, value))

    def __delitem__(self, index: Any) -> NoReturn:
        msg = "cannot delete array elements"
        raise ValueError(msg)

    def _writable(self) -> None:
        if not self.fresh:
            raise self.tracer.fail(
                ReadOnlyError(
                    "columns and the values of formulas are read-only, and so are views of arrays",
                    remedy="change a copy (x = self.f(t).copy()), or use "
                    "np.where(condition, new, x)",
                )
            )

    def _become(self, result: Any) -> None:
        if not self.tracer.blind:
            self.value = result.value
        self.node = result.node

    def take_over(self, result: Any, what: str) -> TracedArray:
        """Become the result of an in-place operation, if it fits and may be changed."""
        self._writable()
        if result.sample_shape != self.sample_shape:
            msg = f"non-broadcastable output operand with shape {self.sample_shape}"
            raise ValueError(msg)
        if result.dtype != self.dtype:
            if not np.can_cast(result.dtype, self.dtype, "same_kind"):
                msg = f"cannot cast {what} output from {result.dtype} to {self.dtype}"
                raise TypeError(msg)
            result = result.astype(self.dtype)
        self._become(result)
        return self

    # ---- methods with rules of their own -----------------------------------------------------

    def astype(
        self,
        dtype: Any,
        order: str = "K",
        casting: str = "unsafe",
        subok: bool = True,
        copy: bool = True,
    ) -> Any:
        """See :class:`numpy.ndarray`."""
        target = np.dtype(dtype)
        if target == self.dtype:
            return self.copy() if copy else self
        return ops.elementwise(self.tracer, ops.cast, (self, target.str), {})

    def copy(self, order: str = "C") -> TracedArray:
        """A copy that may be changed by assignment."""
        value = UNSEEN if self.tracer.blind else self.value.copy()
        return TracedArray(self.tracer, self.node, value, fresh=True)

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> TracedArray:
        return self.copy()

    def clip(self, min: Any = None, max: Any = None, out: Any = None, **kwargs: Any) -> Any:  # noqa: A002
        """See :class:`numpy.ndarray`."""
        return np.clip(self, min, max, out=out, **kwargs)

    def fill(self, value: Any) -> None:
        """See :class:`numpy.ndarray`."""
        self[...] = value

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        """See :class:`numpy.ndarray`; the rows must stay as they are."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        return indexing.apply_reshape(self, tuple(wanted))

    def ravel(self, order: str = "C") -> Any:
        """See :class:`numpy.ndarray`."""
        return self.reshape(-1)

    def flatten(self, order: str = "C") -> Any:
        """See :class:`numpy.ndarray`."""
        return self.reshape(-1).copy()

    def squeeze(self, axis: Any = None) -> Any:
        """See :class:`numpy.ndarray`."""
        return indexing.apply_squeeze(self, axis)

    def transpose(self, *axes: Any) -> Any:
        """See :class:`numpy.ndarray`."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return np.transpose(self, order or None)

    def sort(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: sorts rows."""
        msg = "sort"
        raise self.tracer.mixing(msg, WAYS_OUT["sort"])

    def dot(self, other: Any) -> Any:
        """See :class:`numpy.ndarray`."""
        return np.dot(self, other)

    def __matmul__(self, other: Any) -> Any:
        return np.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return np.matmul(other, self)

    def __divmod__(self, other: Any) -> Any:
        return np.divmod(self, other)

    def __rdivmod__(self, other: Any) -> Any:
        return np.divmod(other, self)

    def __pow__(self, other: Any, mod: Any = None) -> Any:
        return dispatch.power(self, other)


def _forward(name: str) -> Any:
    """A method that NumPy has as a function too: x.clip(...) is np.clip(x, ...)."""
    function = getattr(np, name)

    def method(self: TracedArray, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"See :func:`numpy.{name}`."
    return method


def _node(tracer: Tracer, operand: Any) -> int | None:
    """The node of an operand of the usual kinds that has one already."""
    kind = type(operand)
    if kind is TracedArray:
        return operand.node if operand.tracer is tracer else None
    return tracer.scalars.get((kind, operand)) if kind is float or kind is int else None


def _operator(ufunc: np.ufunc, reverse: bool) -> Any:
    """A binary operator.

    The usual case, two arrays of one shape or an array and a number, is done here, because a model
    does it tens of thousands of times.
    """
    op = ops.operation(ufunc)

    def operator(self: TracedArray, other: Any) -> Any:
        tracer = self.tracer
        node = _node(tracer, other)
        if node is None:
            return general(self, other)
        graph = tracer.graph
        args = (node, self.node) if reverse else (self.node, node)
        found = graph.index.get((graph.op_id(op), *args))
        if tracer.blind:
            return general(self, other) if found is None else TracedArray(tracer, found, UNSEEN)
        return done(self, other, args, found)

    def done(self: TracedArray, other: Any, args: tuple[int, int], found: int | None) -> Any:
        tracer, value = self.tracer, self.value
        axis = tracer.graph.metas[self.node].axis
        if type(other) is TracedArray:
            operand = other.value
            if operand.ndim != value.ndim or tracer.graph.metas[other.node].axis != axis:
                return general(self, other)
        else:
            operand = other
        try:
            result = ufunc(operand, value) if reverse else ufunc(value, operand)
        except ops.OPERATION_ERRORS:
            tracer.notes.op_errors += 1
            raise
        if found is None:
            found = tracer.new_node(op, args, result, axis)
        return TracedArray(tracer, found, result)

    def general(self: TracedArray, other: Any) -> Any:
        return ops.apply_ufunc(self.tracer, ufunc, (other, self) if reverse else (self, other))

    return operator


def _unary_operator(ufunc: np.ufunc) -> Any:
    def operator(self: TracedArray) -> Any:
        return ops.apply_ufunc(self.tracer, ufunc, (self,))

    return operator


def _inplace_operator(ufunc: np.ufunc) -> Any:
    def operator(self: TracedArray, other: Any) -> TracedArray:
        result = ops.apply_ufunc(self.tracer, ufunc, (self, other))
        return self.take_over(result, ufunc.__name__)

    return operator


BINARY: dict[str, np.ufunc] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.true_divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
}
COMPARE: dict[str, np.ufunc] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
UNARY: dict[str, np.ufunc] = {
    "neg": np.negative,
    "pos": np.positive,
    "abs": np.absolute,
    "invert": np.invert,
}
METHODS = [
    "sum",
    "prod",
    "min",
    "max",
    "mean",
    "var",
    "std",
    "any",
    "all",
    "round",
    "cumsum",
    "cumprod",
    "argmin",
    "argmax",
    "argsort",
    "take",
    "repeat",
    "swapaxes",
    "diagonal",
    "trace",
    "nonzero",
    "searchsorted",
    "choose",
    "compress",
    "ptp",
    "partition",
    "argpartition",
]

for _name, _ufunc in BINARY.items():
    setattr(TracedArray, f"__{_name}__", _operator(_ufunc, reverse=False))
    setattr(TracedArray, f"__r{_name}__", _operator(_ufunc, reverse=True))
    setattr(TracedArray, f"__i{_name}__", _inplace_operator(_ufunc))
# Set here, == does not take the hash away, as it would if it were defined within the class.
for _name, _ufunc in COMPARE.items():
    setattr(TracedArray, f"__{_name}__", _operator(_ufunc, reverse=False))
for _name, _ufunc in UNARY.items():
    setattr(TracedArray, f"__{_name}__", _unary_operator(_ufunc))
for _name in METHODS:
    if not hasattr(np.ndarray, _name):
        continue  # ndarray.ptp left NumPy in 2.0; a plain run has no such method either
    setattr(TracedArray, _name, _forward(_name))
for _name, _method in {
    "__rpow__": _operator(np.power, reverse=True),
    "__ipow__": _inplace_operator(np.power),
    "conj": _forward("conjugate"),
    "conjugate": _forward("conjugate"),
}.items():
    setattr(TracedArray, _name, _method)
