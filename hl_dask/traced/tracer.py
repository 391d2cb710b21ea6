"""The tracer: one trace of one model on one sample, writing into an expression graph."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hl_dask.errors import HlDaskError, MemoryBudgetError, RowMixingError
from hl_dask.expr import POINT, SHARED, Graph, Meta, OfMember, Op, what_of

Array = NDArray[Any]
SMALL_BYTES = 512
"""Constants up to this size are compared by their bytes, larger ones by a digest."""


class SampleUsedError(BaseException):
    """Values of the sample come to matter in a trace that had begun with few rows, or with none.

    Not an Exception, so that no formula swallows it: the trace starts again.
    """


class Notes:
    """What has been noticed while one formula call is evaluated, without the calls that it makes.

    Attributes
    ----------
    owner : object
        The formula call; None outside of all.
    escapes : sequence of str
        How values of rows have left the trace.
    failures : sequence of HlDaskError
        Errors that the formula must not swallow.
    op_errors : int
        Errors that operations on arrays have raised.
    asked_rows : bool
        Whether the number of rows was asked for.
    """

    escapes: Sequence[str] = ()
    failures: Sequence[HlDaskError] = ()
    op_errors = 0
    asked_rows = False

    def __init__(self, owner: Any) -> None:
        self.owner = owner


class Tracer:
    """Records operations of traced arrays in a graph.

    Parameters
    ----------
    graph : Graph
        Where operations go. A second trace writes into the graph of the first.
    rows : int
        The real number of model points; ``len(self.data)`` and ``x.shape[0]`` answer with it.
    sample_rows : int
        Rows that the concrete values have.
    frozen : bool
        When set, the graph must already hold every operation: the second trace.
    assumed : dict
        For portfolio values that formulas turned into Python values: what they were taken to be.
    blind : bool
        Whether operations are only looked up in a frozen graph and not done: traced arrays have no
        values then, and :class:`SampleUsedError` says that one is wanted.
    member : str, optional
        Name of the model within its portfolio, whose tracers share one graph.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        rows: int,
        sample_rows: int,
        frozen: bool,
        assumed: dict[int, Any],
        blind: bool = False,
        member: str | None = None,
    ) -> None:
        self.graph = graph
        self.rows = rows
        self.sample_rows = sample_rows
        self.frozen = frozen
        self.blind = blind
        self.assumed = assumed
        self.member = member
        self.guards: list[tuple[int, Any]] = []
        self.watch_errors = True
        self.filters = list(warnings.filters)
        self.most_rows: int | None = None
        self.sample_used = False
        self.told = False
        self.over = False
        self.notes = Notes(None)
        self.describe_owner: Callable[[Any], str] = str
        self.tables: dict[Any, Any] = {}
        self._metas: dict[Any, Meta] = {}
        self.scalars: dict[Any, int] = {}
        self._arrays: dict[int, tuple[Array, int]] = {}

    # ---- what formulas may ask about the rows ------------------------------------------------

    def row_count(self) -> int:
        """The real number of rows; remembers that it was asked for."""
        self.told = True
        self.notes.asked_rows = True
        return self.rows

    def length(self) -> int:
        """As :meth:`row_count`, for a formula that may make an array of that length with it."""
        if self.most_rows is not None and self.rows > self.most_rows:
            message = (
                f"the formula asks for the number of rows, {self.rows:,}, with which it can make "
                f"arrays of {self.rows * 8 / 1e6:,.0f} MB each while it is recorded; that does not "
                "fit into the memory allowed"
            )
            remedy = (
                "use np.zeros_like(self.data[...]) for an entry per row and x.mean() for x.sum() / "
                "len(self.data), or allow more memory"
            )
            raise self.fail(MemoryBudgetError(message, remedy=remedy))
        return self.row_count()

    def escape(self, reason: str) -> None:
        """A per-point value left the trace: the running formula is opaque."""
        self.sample_used = self.told = True
        self.notes.escapes = [*self.notes.escapes, reason]

    def value_needed(self) -> BaseException:
        """What to raise in a blind trace where it cannot go on without values."""
        if self.over:
            return self.kept()
        self.sample_used = True
        return SampleUsedError()

    def kept(self) -> HlDaskError:
        """The error for a traced array that is used outside its trace."""
        return self.mixing(
            "a value kept from an earlier run (in a module, a class or a container on self)",
            "keep values in formulas only; a run starts from nothing",
        )

    def fail(self, error: HlDaskError) -> HlDaskError:
        """Remember an error that user code must not swallow; to be raised by the caller."""
        if error.formula is None:
            error.formula = self.describe_owner(self.notes.owner)
        self.notes.failures = [*self.notes.failures, error]
        return error

    def mixing(self, what: str, remedy: str) -> HlDaskError:
        """The error for an operation that combines rows in a way that blocks cannot reproduce."""
        return self.fail(
            RowMixingError(
                f"{what} combines or picks rows of the whole portfolio and cannot be cut into "
                "blocks",
                remedy=remedy,
            )
        )

    def concretise(self, array: Any) -> Any:
        """The real value of a portfolio array, where a formula wants a Python value.

        The first time, the value on the sample is taken; the run verifies it against the value over
        all rows, and the model is traced again where the guess was wrong.
        """
        node = array.node
        if node not in self.assumed:
            self.sample_used = self.told = True
            self.assumed[node] = array.value
        last, owner = self.guards[-1] if self.guards else (None, None)
        if last != node or owner is not self.notes.owner:
            self.guards.append((node, self.notes.owner))
        return self.assumed[node]

    # ---- nodes -------------------------------------------------------------------------------

    def node(self, op: Op, args: tuple[int, ...], value: Any, axis: int) -> int:
        """Id of an operation, appended to the graph when it is new.

        Not for blind traces, but for leaves and what is made of constants.

        Parameters
        ----------
        value : array or scalar
            The result on the sample, for dtype and shape.
        axis : int
            The point axis of the result, -1 if it has none.
        """
        found = self.graph.find(op, args)
        return self.new_node(op, args, value, axis) if found is None else found

    def leaf(self, name: str, what: Hashable) -> Op:
        """An operation that begins with the rows of this model."""
        return Op(name, what if self.member is None else OfMember(self.member, what))

    def new_node(self, op: Op, args: tuple[int, ...], value: Any, axis: int) -> int:
        """Append an operation that the graph does not hold; an error in the second trace."""
        if self.frozen:
            raise self.fail(self._differs(op, args))
        if self.watch_errors and (np.geterr() != QUIET or warnings.filters != self.filters):
            self.escape(
                "np.errstate (or a filter of warnings) within the formula notices floating-point "
                "errors, which depend on the rows"
            )
        meta = self._meta(value, axis)
        return self.graph.add(op, args, LEAVES.get(op.name), meta, self.notes.owner)

    def _meta(self, value: Any, axis: int) -> Meta:
        """What is known of a value's type, one object for all values that are alike."""
        try:
            dtype, shape = value.dtype, value.shape
        except AttributeError:
            return Meta("|O", np.shape(value), axis)
        # Values with rows differ in their number of rows only from sample to sample.
        key = (dtype, shape, axis)
        found = self._metas.get(key)
        if found is None:
            if dtype.kind == "T":
                self.escape("texts of NumPy's StringDType are not followed")
            rest = shape if axis < 0 else shape[:axis] + shape[axis + 1 :]
            found = self._metas.setdefault(key, Meta(dtype.str, rest, axis))
        return found

    def constant(self, value: Any) -> int:
        """Node of a shared value: a Python or NumPy scalar or an array without a point axis."""
        if isinstance(value, np.ndarray):
            return self._array_constant(value)
        kind = type(value)
        key: Hashable = (kind, value)
        if (kind is not float and kind is not int) or value == 0 or value != value:
            # Equal is not the same: 0.0 and -0.0, a day and 24 hours; and NaN is not even equal.
            key = _exact_key(value)
        found = self.scalars.get(key)
        if found is None:
            found = self._intern_constant(key, value)
            self.scalars[key] = found
        return found

    def _array_constant(self, value: Array) -> int:
        known = self._arrays.get(id(value))
        if known is not None and known[0] is value and not value.flags.writeable:
            return known[1]
        if value.dtype.hasobject:
            content: Hashable = repr(value.tolist())
        elif value.nbytes <= SMALL_BYTES:
            content = value.tobytes()
        else:
            content = hashlib.sha256(np.ascontiguousarray(value).data.cast("B")).hexdigest()
        kept = value
        if type(value) is not np.ndarray or _may_change(value):
            # The user may change the array after the trace; the graph keeps what it was.
            kept = np.array(value, subok=False)
            kept.setflags(write=False)
        node = self._intern_constant((repr(value.dtype), value.shape, content), kept)
        self._arrays[id(value)] = (value, node)
        return node

    def _intern_constant(self, key: Hashable, value: Any) -> int:
        op = Op("constant", key)
        found = self.graph.find(op, ())
        if found is None:
            if self.frozen:
                raise self.fail(self._leak(value))
            found = self.node(op, (), value, -1)
            self.graph.values[found] = value
        return found

    def _leak(self, value: Any) -> HlDaskError:
        shown = repr(value) if not isinstance(value, np.ndarray) else f"an array {value.shape}"
        return RowMixingError(
            f"the constant {shown[:80]} appears on one sample of the rows and not on another: it "
            "was derived from the rows, drawn at random, or kept from an earlier call",
            remedy="keep it in the formulas as an array operation (x.sum(), x.mean() are "
            "followed), pass it as an assumption, or seed the random draw and pass it in",
        )

    def _differs(self, op: Op, args: tuple[int, ...]) -> HlDaskError:
        shown = what_of(op) if op.name != "column" else f"column {what_of(op)}"
        return RowMixingError(
            f"the operation {op.name} {str(shown)[:80]} is done on one sample of the rows and not "
            "on another: which operations are done depends on the rows",
            remedy="use np.where for choices by row, and totals such as (x > 0).any() for choices "
            "by portfolio",
        )

    # ---- sample values -----------------------------------------------------------------------

    def same_rows(self, value: Array, axis: int) -> Array | None:
        """The single row (kept as an axis of length 1) of a plain array with one row per point.

        Returns None when the array's rows differ, which makes it a leak of row order or count.
        """
        row = value.take([0], axis=axis)
        if value.strides[axis] == 0:
            return row
        moved = np.moveaxis(value, axis, 0)
        for start in range(0, len(moved), 65_536):
            part = moved[start : start + 65_536]
            same = part == row.reshape((1, *moved.shape[1:]))
            if value.dtype.kind == "f":
                same |= np.isnan(part) & np.isnan(row.reshape((1, *moved.shape[1:])))
            if not np.all(same):
                return None
        return row

    def kind(self, node: int) -> str:
        """Kind of a node's value."""
        return self.graph.kinds[node]


def _may_change(array: Array) -> bool:
    """Whether somebody can write to the memory of an array, through it or what it is a view of."""
    part: Any = array
    while isinstance(part, np.ndarray):
        if part.flags.writeable:
            return True
        part = part.base
    return part is not None


QUIET = {"divide": "ignore", "over": "ignore", "under": "ignore", "invalid": "ignore"}
"""NumPy's error state during a recording."""
LEAVES = {"constant": SHARED, "column": POINT, "opaque": POINT, "full": POINT}


def _exact_key(value: Any) -> Hashable:
    """A key that two scalars share only when they are the same bit for bit."""
    kind = type(value)
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return (kind, value.dtype.str, value.tobytes())
    if isinstance(value, (bool, int, float, complex, str, bytes)):
        return (kind, repr(value))
    try:
        hash(value)
    except TypeError:
        return (kind, "id", id(value))
    return (kind, value)
