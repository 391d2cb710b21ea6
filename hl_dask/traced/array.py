"""The traced array itself: operators, indexing, methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from hl_dask.errors import ReadOnlyError
from hl_dask.traced import ops
from hl_dask.traced.base import Traced

WAYS_OUT = {
    "sort": "sort the data before the run, or declare the formula @hl.per_point if it works row by row",
    "select": "np.where(mask, x, 0) keeps one value for every row; totals of it are totals of the rows "
    "selected",
    "iterate": "write it with array operations; totals (x.sum(), x.max()) are followed",
}


class TracedArray(Traced):
    """A NumPy-like array over a sample of the rows that records what is done to it.

    Made by hl_dask while a model is recorded, never by users. ``isinstance(x, np.ndarray)`` is true
    wherever it is true for the value in a plain run, so that such a branch goes the same way.
    """

    __slots__ = ()
    __array_priority__ = 1000

    # ---- what the array is -------------------------------------------------------------------

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return type(self.value)

    @property
    def axis(self) -> int:
        """The point axis, -1 for a portfolio value."""
        return self.tracer.graph.metas[self.node].axis

    @property
    def per_point(self) -> bool:
        """Whether there is one value (or one row of values) for each model point."""
        return self.axis >= 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """See :class:`numpy.ndarray`."""
        dtype: np.dtype[Any] = self.value.dtype
        return dtype

    @property
    def ndim(self) -> int:
        """See :class:`numpy.ndarray`."""
        return int(self.value.ndim)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the value has over all rows."""
        shape = tuple(self.value.shape)
        axis = self.axis
        if axis < 0:
            return shape
        return (*shape[:axis], self.tracer.row_count(), *shape[axis + 1 :])

    @property
    def size(self) -> int:
        """The number of elements over all rows."""
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
        return np.real(self)  # type: ignore[call-overload]

    @property
    def imag(self) -> Any:
        """See :class:`numpy.ndarray`."""
        return np.imag(self)  # type: ignore[call-overload]

    # ---- NumPy's protocols -------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return ops.apply_ufunc_method(self.tracer, ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return ops.apply_function(self.tracer, func, args, kwargs)

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
        return ops.apply_lookup(self.tracer, table, keys)

    def __hl_gather__(self, array: Any, index: Any) -> Any:
        return ops.apply_gather(self.tracer, array, index)

    # ---- portfolio values as Python values ---------------------------------------------------

    def concrete(self) -> Any:
        """The value over all rows, as a plain value, of a portfolio value."""
        return self.tracer.concretise(self.node, self.value)

    def _scalar(self, what: str) -> Any:
        if self.per_point:
            self.tracer.escape(f"{what} of a value with one entry per row")
            return self.value
        return self.concrete()

    def __bool__(self) -> bool:
        if self.per_point:
            msg = (
                "the truth value of an array with one entry per row is ambiguous; "
                "use np.where(condition, a, b), or .any() and .all()"
            )
            raise ValueError(msg)
        return bool(self.concrete())

    def __float__(self) -> float:
        return float(self._scalar("float()"))

    def __int__(self) -> int:
        return int(self._scalar("int()"))

    def __index__(self) -> int:
        if self.per_point:
            msg = "only integer scalar arrays can be converted to a scalar index"
            raise TypeError(msg)
        return int(self.concrete().__index__())

    def __complex__(self) -> complex:
        return complex(self._scalar("complex()"))

    def __round__(self, ndigits: int | None = None) -> Any:
        if self.per_point:
            return round(self.value, ndigits)
        return round(self.concrete()) if ndigits is None else round(self.concrete(), ndigits)

    def __format__(self, spec: str) -> str:
        return format(self._scalar("text"), spec)

    def __str__(self) -> str:
        return str(self._scalar("str()"))

    def __repr__(self) -> str:
        return repr(self._scalar("repr()"))

    def item(self, *args: Any) -> Any:
        """See :class:`numpy.ndarray`."""
        return self._scalar("item()").item(*args)

    def tolist(self) -> Any:
        """See :class:`numpy.ndarray`."""
        return self._scalar("tolist()").tolist()

    def tobytes(self, *args: Any) -> bytes:
        """See :class:`numpy.ndarray`."""
        return bytes(self._scalar("tobytes()").tobytes(*args))

    # ---- rows --------------------------------------------------------------------------------

    def __len__(self) -> int:
        if self.ndim == 0:
            msg = "len() of unsized object"
            raise TypeError(msg)
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if self.axis == 0:
            msg = "iterating over the rows"
            raise self.tracer.mixing(msg, WAYS_OUT["iterate"])
        if self.ndim == 0:
            msg = "iteration over a 0-d array"
            raise TypeError(msg)
        return iter([self[k] for k in range(self.value.shape[0])])

    def __contains__(self, item: Any) -> bool:
        return bool((self == item).any())

    def __getitem__(self, index: Any) -> Any:
        return ops.apply_index(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._writable()
        result = ops.apply_assignment(self, index, value)
        self.node, self.value = result.node, result.value

    def __delitem__(self, index: Any) -> NoReturn:
        msg = "cannot delete array elements"
        raise ValueError(msg)

    def _writable(self) -> None:
        if not self.fresh:
            raise self.tracer.fail(
                ReadOnlyError(
                    "columns and the values of formulas are read-only, and so are views of arrays",
                    remedy="change a copy (x = self.f(t).copy()), or use np.where(condition, new, x)",
                )
            )

    def take_over(self, result: Any, what: str) -> Any:
        """Become the result of an in-place operation, if it fits and may be changed."""
        self._writable()
        if np.shape(result.value) != self.value.shape:
            msg = f"non-broadcastable output operand with shape {self.value.shape}"
            raise ValueError(msg)
        if result.dtype != self.dtype:
            if not np.can_cast(result.dtype, self.dtype, "same_kind"):
                msg = f"cannot cast {what} output from {result.dtype} to {self.dtype}"
                raise TypeError(msg)
            result = result.astype(self.dtype)
        self.node, self.value = result.node, result.value
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
        return ops.elementwise(self.tracer, ops.cast, (self, target.str), {}, value_args=(0,))

    def copy(self, order: str = "C") -> TracedArray:
        """A copy that may be changed by assignment."""
        return TracedArray(self.tracer, self.node, self.value.copy(), fresh=True)

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> TracedArray:
        return self.copy()

    def fill(self, value: Any) -> None:
        """See :class:`numpy.ndarray`."""
        self[...] = value

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        """See :class:`numpy.ndarray`; the rows must stay as they are."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        return ops.apply_reshape(self, tuple(wanted))

    def ravel(self, order: str = "C") -> Any:
        """See :class:`numpy.ndarray`."""
        return self.reshape(-1)

    def flatten(self, order: str = "C") -> Any:
        """See :class:`numpy.ndarray`."""
        return self.reshape(-1).copy()

    def squeeze(self, axis: Any = None) -> Any:
        """See :class:`numpy.ndarray`."""
        return ops.apply_squeeze(self, axis)

    def transpose(self, *axes: Any) -> Any:
        """See :class:`numpy.ndarray`."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return np.transpose(self, order or None)  # type: ignore[call-overload]

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
        return ops.power(self, other)


def _forward(name: str) -> Any:
    """A method that NumPy has as a function too: x.clip(...) is np.clip(x, ...)."""
    function = getattr(np, name)

    def method(self: TracedArray, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"See :func:`numpy.{name}`."
    return method


def _operator(ufunc: np.ufunc, reverse: bool) -> Any:
    """A binary operator. The usual case, two arrays of one shape or an array and a number, is done
    here: a model does it tens of thousands of times.
    """
    op = ops.operation(ufunc)

    def operator(self: TracedArray, other: Any) -> Any:
        tracer = self.tracer
        value = self.value
        kind = type(other)
        if kind is TracedArray:
            metas = tracer.graph.metas
            same = (
                other.tracer is tracer
                and other.value.ndim == value.ndim
                and metas[other.node].axis == metas[self.node].axis
            )
            if not same:
                return general(self, other)
            node, operand = other.node, other.value
        elif (kind is float or kind is int) and (known := tracer.scalars.get((kind, other))) is not None:
            node, operand = known, other
        else:
            return general(self, other)
        args = (node, self.node) if reverse else (self.node, node)
        try:
            done = ufunc(operand, value) if reverse else ufunc(value, operand)
        except ops.OPERATION_ERRORS:
            tracer.op_errors += 1
            raise
        graph = tracer.graph
        number = graph.op_ids.get(op)
        found = None if number is None else graph.index.get((number, *args))
        if found is None:
            found = tracer.new_node(op, args, done, graph.metas[self.node].axis)
        return TracedArray(tracer, found, done)

    def general(self: TracedArray, other: Any) -> Any:
        return ops.apply_ufunc(self.tracer, ufunc, (other, self) if reverse else (self, other))

    return operator


def _inplace_operator(ufunc: np.ufunc) -> Any:
    def operator(self: TracedArray, other: Any) -> TracedArray:
        return self.take_over(ops.apply_ufunc(self.tracer, ufunc, (self, other)), ufunc.__name__)

    return operator


BINARY = {
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
COMPARE = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
UNARY = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}
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
    "clip",
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
for _name, _ufunc in COMPARE.items():
    setattr(TracedArray, f"__{_name}__", _operator(_ufunc, reverse=False))
for _name, _ufunc in UNARY.items():
    setattr(
        TracedArray,
        f"__{_name}__",
        lambda self, _u=_ufunc: ops.apply_ufunc(self.tracer, _u, (self,)),
    )
for _name in METHODS:
    if not hasattr(np.ndarray, _name):
        continue  # ndarray.ptp left NumPy in 2.0; a plain run has no such method either
    setattr(TracedArray, _name, _forward(_name))
TracedArray.__rpow__ = _operator(np.power, reverse=True)  # type: ignore[attr-defined]
TracedArray.__ipow__ = _inplace_operator(np.power)  # type: ignore[attr-defined]
TracedArray.conj = TracedArray.conjugate = _forward("conjugate")  # type: ignore[attr-defined]


def _portfolio_hash(self: TracedArray) -> int:
    """Hash of a portfolio scalar, as NumPy scalars have one; arrays have none."""
    if self.per_point or self.ndim:
        msg = "unhashable type: 'numpy.ndarray'"
        raise TypeError(msg)
    return hash(self.concrete())


TracedArray.__hash__ = _portfolio_hash  # type: ignore[assignment]
