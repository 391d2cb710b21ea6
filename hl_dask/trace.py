"""The session of a trace: formulas run as plain Python, on traced arrays.

One :class:`TraceSession` is one run of the model on one sample. It keeps, for every formula call, what
it read and what it gave, in the order in which evaluations *finish*. Formulas whose use of the rows
cannot be seen are evaluated on plain arrays instead, and become a single node each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hl_dask.dataview import DataView
from hl_dask.declared import Record
from hl_dask.errors import FormulaError, HlDaskError, OpaqueFormulaError, RowMixingError
from hl_dask.expr import Op
from hl_dask.formula import (
    HOP,
    BoundFormula,
    CallStack,
    Formula,
    bind_key,
    call_text,
    formula_error,
    on_fresh_stack,
    unhashable,
)
from hl_dask.points import ModelPoints
from hl_dask.traced import TracedArray, TracedText, Tracer, check_session, full_rows, is_traced

BEFORE_RUN = "BeforeRun"
RELEASED: Any = object()
"""Takes the place of a value that the second trace does not need any more."""
NO_COLUMNS: dict[str, None] = {}
SHADOWS = 4
"""First calls of a formula that are evaluated on plain arrays as well."""
SHADOW_EVERY = 32
"""After them, one call in so many is."""


@dataclass(slots=True)
class Call:
    """One formula call of a trace.

    Attributes
    ----------
    reads : dict of int to None, or tuple of int
        Calls whose values it read, in the order of reading: an ordered set while it is evaluated.
    columns : dict of str to None
        Columns that it read while it was evaluated on plain arrays.
    value : object
        The value as formulas see it: traced arrays within.
    """

    formula: Formula
    key: tuple[Any, ...]
    reads: Any = field(default_factory=dict)
    columns: dict[str, None] = field(default_factory=dict)
    value: Any = None
    opaque: str | None = None

    @property
    def text(self) -> str:
        """The call as it would be written."""
        return call_text(self.formula.name, self.key)


@dataclass(frozen=True)
class OpaqueCall:
    """How an opaque formula call is evaluated on the rows of a block.

    Attributes
    ----------
    reads : tuple of (formula, key, template)
        Values of other formulas that it reads; a template has a slot for each argument of the node.
    columns : tuple of (name, template)
        Columns that it reads.
    attributes : tuple of (name, template)
        Per-point attributes of the model.
    """

    formula: Formula
    key: tuple[Any, ...]
    reads: tuple[tuple[Formula, tuple[Any, ...], Any], ...]
    columns: tuple[tuple[str, Any], ...]
    attributes: tuple[tuple[str, Any], ...]
    instance: Any
    shape: tuple[int, ...]
    dtype: str


class TraceSession:
    """Evaluates formulas on traced arrays and keeps what they did.

    Parameters
    ----------
    tracer : Tracer
        Writes the operations down.
    points : ModelPoints
        The model points.
    positions : ndarray of int64
        The sample: global row numbers.
    shadow : bool
        Evaluate every formula on plain arrays as well and compare: the first trace.
    """

    def __init__(
        self, tracer: Tracer, points: ModelPoints | None, positions: Any, *, shadow: bool
    ) -> None:
        self.tracer = tracer
        self.points = points
        self.positions = positions
        self.shadow = shadow
        self.calls: list[Call] = []
        self.finished: list[int] = []
        self.index: dict[tuple[Formula, tuple[Any, ...]], int] = {}
        self.stack = CallStack()
        self.frames: list[Call] = []
        self.shadows: dict[Formula, int] = {}
        self.instance: Any = None
        self.twin: Any = None
        self.attributes: dict[str, Any] = {}
        self.opaque: dict[str, str] = {}
        self.columns: dict[str, Any] = {}
        self.running = False
        self.setting_up = True
        self.limit_bytes: int | None = None
        self.held_bytes = 0
        self.data = DataView(
            points.columns if points is not None else (),
            self.traced_column,
            self._rows,
            self._frame,
        )
        tracer.describe_owner = describe_owner
        self.on_finish: Callable[[int], None] | None = None

    # ---- model points ------------------------------------------------------------------------

    def traced_column(self, name: str) -> Any:
        """The traced form of a column."""
        found = self.columns.get(name)
        if found is None:
            if self.points is None:
                raise self._no_data(name)
            spec = self.points.schema(name)
            sample = self.points.take(name, self.positions)
            node = self.tracer.node(Op("column", name), (), sample, 0)
            found = TracedArray(self.tracer, node, sample, fresh=False)
            if spec.categories is not None:
                found = TracedText(self.tracer, found, spec.categories)
            self.columns[name] = found
        return found

    def _no_data(self, name: str) -> HlDaskError:
        return FormulaError(
            f"the model has no data, column {name!r} was asked for",
            column=name,
            remedy="assign model.data = ... before the run",
        )

    def _rows(self) -> int:
        return self.tracer.row_count()

    def _frame(self) -> Any:
        self.tracer.escape("self.data.frame() gives pandas, which is not followed")
        return PlainSession(self, None).frame()

    def to_plain(self, value: Any, rows: Any = None) -> Any:
        """The value on the sample (or on a selection of its rows) without traces."""
        if is_traced(value):
            axis = value.axis
            plain = value.value if axis >= 0 else self.tracer.assumed.get(value.node, value.value)
            if axis >= 0 and rows is not None:
                plain = rows.of(plain, axis)
            if isinstance(plain, np.ndarray):
                plain = plain.view()
                plain.setflags(write=False)
            return plain
        if type(value) is TracedText:
            return value.plain(self.to_plain(value.codes, rows))
        if hasattr(type(value), "__hl_record__"):
            return value.mapped(lambda v: self.to_plain(v, rows))
        if type(value) is tuple:
            return tuple(self.to_plain(v, rows) for v in value)
        if type(value) is list:
            return [self.to_plain(v, rows) for v in value]
        if type(value) is dict:
            return {k: self.to_plain(v, rows) for k, v in value.items()}
        return value

    # ---- calls -------------------------------------------------------------------------------

    def refuses_writes(self) -> bool:
        """Whether attributes must not change: always, but in BeforeRun."""
        return self.running

    def values_of(self, formula: Formula) -> dict[tuple[Any, ...], Any]:
        """Values of a formula so far."""
        return {c.key: c.value for c in self.calls if c.formula is formula}

    def call(
        self, formula: Formula, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Value of a formula, as traced arrays."""
        value = self.calls[self.call_id(formula, args, kwargs)].value
        if value is RELEASED and self.frames:
            # Only the run itself asks for a value again, and does not use it.
            raise calls_differ(call_text(formula.name, args))
        return value

    def call_id(self, formula: Formula, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Number of a call, evaluated now if it was not before; noted as read by the running one."""
        key = args if not kwargs and len(args) == formula.arity else bind_key(formula, args, kwargs)
        frame = (formula, key)
        try:
            call_id = self.index.get(frame)
        except TypeError as error:
            raise unhashable(formula, key) from error
        if call_id is None:
            if any(is_traced(a) for a in key):
                frame = (formula, tuple(a.concrete() if is_traced(a) else a for a in key))
                call_id = self.index.get(frame)
            if call_id is None:
                call_id = self._evaluate(frame)
        if self.frames:
            self.frames[-1].reads[call_id] = None
        return call_id

    def _evaluate(self, frame: tuple[Formula, tuple[Any, ...]]) -> int:
        self.stack.push(*frame)
        call = Call(*frame)
        call_id = len(self.calls)
        self.calls.append(call)
        tracer = self.tracer
        saved = (tracer.owner, tracer.escapes, tracer.failures, tracer.op_errors, tracer.asked_rows)
        tracer.owner, tracer.escapes, tracer.failures = call, [], []
        tracer.op_errors, tracer.asked_rows = 0, False
        guards = len(tracer.guards)
        self.frames.append(call)
        failed: HlDaskError | None = None
        try:
            if len(self.stack.frames) % HOP == 0:
                call.value = on_fresh_stack(lambda: self._traced_value(call, guards))
            else:
                call.value = self._traced_value(call, guards)
        except HlDaskError as error:
            failed = error
            raise
        finally:
            self.frames.pop()
            self.stack.pop()
            asked = tracer.asked_rows
            tracer.owner, tracer.escapes, tracer.failures, tracer.op_errors, tracer.asked_rows = (
                saved
            )
            tracer.asked_rows |= asked
            if failed is not None and failed not in tracer.failures:
                # A caller that swallows the error would go on with a value that other rows lack.
                tracer.failures.append(failed)
        self.index[frame] = call_id
        self._finish(call_id, call)
        return call_id

    def _finish(self, call_id: int, call: Call) -> None:
        self.finished.append(call_id)
        call.reads, call.columns = tuple(call.reads), NO_COLUMNS
        if self.on_finish is not None:
            self.on_finish(call_id)
        if self.limit_bytes is not None:
            self.held_bytes += held_bytes(call.value)
            if self.held_bytes > self.limit_bytes:
                raise Restart

    def _traced_value(self, call: Call, guards: int) -> Any:
        formula, tracer = call.formula, self.tracer
        try:
            raw = formula.evaluate(self.instance, call.key)
            if tracer.failures:
                raise tracer.failures[0]
            if tracer.op_errors:
                raise tracer.fail(swallowed_error())
            if not tracer.escapes:
                value = self.normalise(raw)
                if not tracer.escapes:
                    return self._shadowed(call, value, guards)
            reason = tracer.escapes[0]
        except HlDaskError as error:
            error.formula = error.formula or call.text
            if not (formula.per_point and isinstance(error, RowMixingError)):
                error.called_by(call.text)
                raise
            reason = error.message
        except Exception as error:
            reason = f"raises {type(error).__name__} with the arrays of a recording: {error}"
        return self._opaque_value(call, reason)

    def normalise(self, raw: Any) -> Any:
        """The value of a formula with plain row-long arrays turned into traced ones, read-only."""
        if is_traced(raw):
            check_session(self.tracer, raw)
            raw.fresh = False
            return raw
        if type(raw) is tuple:
            return tuple(self.normalise(v) for v in raw)
        if type(raw) is list:
            return [self.normalise(v) for v in raw]
        if type(raw) is dict:
            return {k: self.normalise(v) for k, v in raw.items()}
        if isinstance(raw, Iterator):
            message = f"the formula returned a {type(raw).__name__}, which can be gone through once only"
            raise FormulaError(message, remedy="return a list, an array, or a number")
        if isinstance(raw, np.ndarray):
            if raw.ndim and raw.shape[0] == self.tracer.rows and self.tracer.asked_rows:
                lifted = full_rows(self.tracer, raw, 0)
                lifted.fresh = False
                return lifted
            if raw.flags.writeable:
                raw = raw.view()
                raw.setflags(write=False)
        return raw

    # ---- plain evaluation: the shadow of a traced formula, and opaque formulas -----------------

    def plainly(self, call: Call, rows: Any = None) -> Any:
        """Evaluate a formula on plain arrays, on the whole sample or on a selection of its rows."""
        twin = self.twin
        outer = twin.__dict__.get("_session")
        twin.__dict__["_session"] = PlainSession(self, rows)
        for name, value in self.attributes.items():
            twin.__dict__[name] = self.to_plain(value, rows)
        try:
            return call.formula.evaluate(twin, call.key)
        finally:
            twin.__dict__["_session"] = outer

    def _shadowed(self, call: Call, value: Any, guards: int) -> Any:
        """The traced value, after comparing it with that of a plain evaluation."""
        tracer = self.tracer
        if not self.shadow:
            return value
        seen = self.shadows[call.formula] = self.shadows.get(call.formula, 0) + 1
        if seen > SHADOWS and seen % SHADOW_EVERY:
            # A formula goes one way with plain arrays and another with traced ones because of what it
            # asks of their type, which is no matter of t: some of its calls tell.
            return value
        reads, columns = dict(call.reads), dict(call.columns)
        asked = len(tracer.guards)
        exact = asked == guards
        try:
            if tracer.asked_rows:
                value_here = self._at_sample_size(call)
            else:
                value_here = value
            plain = self.plainly(call)
            if same_value(self.to_plain(value_here), plain, exact=exact):
                return value
            self._check_repeats(call, value)
        except HlDaskError:
            raise
        except Exception as error:
            raise self._plain_error(call, error) from error
        finally:
            call.reads, call.columns = reads, columns
            del tracer.guards[asked:]
        return self._opaque_value(
            call, "gives another value with plain arrays than with those of a recording"
        )

    def _at_sample_size(self, call: Call) -> Any:
        """The traced value that the formula gives when the sample is all there is."""
        tracer = self.tracer
        rows, tracer.rows = tracer.rows, tracer.sample_rows
        try:
            return self.normalise(call.formula.evaluate(self.instance, call.key))
        finally:
            tracer.rows = rows

    def _check_repeats(self, call: Call, value: Any) -> None:
        """Tell a formula that depends on the type of its arrays from one that gives what it likes."""
        again = self.normalise(call.formula.evaluate(self.instance, call.key))
        first: list[int] = []
        second: list[int] = []
        same = strip(template_of(value, first)) == strip(template_of(again, second))
        if not same or first != second:
            msg = (
                "the formula gives another value when it is evaluated again: it draws random numbers, asks "
                "for the time, or keeps something between calls"
            )
            raise RowMixingError(
                msg,
                formula=call.text,
                remedy="draw random numbers and fix dates before the run and pass them in, and let formulas "
                "keep nothing",
            )

    def _plain_error(self, call: Call, error: BaseException) -> FormulaError:
        memo: dict[Formula, dict[Any, Any]] = {}
        for read in call.reads:
            other = self.calls[read]
            memo.setdefault(other.formula, {})[other.key] = self.to_plain(other.value)
        return formula_error(call.formula, call.key, error, memo)

    def _opaque_value(self, call: Call, reason: str) -> Any:
        """The value of a formula that is evaluated as Python on each block."""
        formula, tracer = call.formula, self.tracer
        tracer.failures, tracer.op_errors = [], 0
        call.opaque = reason
        call.reads, call.columns = {}, {}
        try:
            plain = self.plainly(call)
        except HlDaskError:
            raise
        except Exception as error:
            raise self._plain_error(call, error) from error
        if not formula.per_point:
            self.opaque.setdefault(formula.name, reason)
            if np.ndim(plain) == 0 or np.shape(plain)[0] != len(self.positions):
                # Only the plain replay in one piece can go on from here; the trace ends soon.
                return plain
        return self._opaque_node(call, as_rows(call, plain, len(self.positions)))

    def _opaque_node(self, call: Call, plain: Any) -> Any:
        formula, tracer = call.formula, self.tracer
        if formula.per_point:
            self._check_rows(call, plain)
        ids: list[int] = []
        reads = tuple(
            (self.calls[r].formula, self.calls[r].key, template_of(self.calls[r].value, ids))
            for r in call.reads
        )
        columns = tuple((c, template_of(self.columns[c], ids)) for c in call.columns)
        attributes = tuple((a, template_of(v, ids)) for a, v in self.attributes.items())
        op = Op("opaque", (formula.owner, formula.name, call.key))
        node = tracer.node(op, tuple(ids), plain, 0)
        if node not in tracer.graph.values:
            tracer.graph.values[node] = OpaqueCall(
                formula,
                call.key,
                reads,
                columns,
                attributes,
                self.twin,
                plain.shape[1:],
                plain.dtype.str,
            )
        return TracedArray(tracer, node, plain, fresh=False)

    def _check_rows(self, call: Call, plain: Any) -> None:
        """Check on the sample that a formula declared per-point gives each row its own value."""
        n = len(self.positions)
        rng = np.random.default_rng(n)
        trials = [
            ("asked twice", np.arange(n)),
            ("on a third of the rows", np.sort(rng.choice(n, max(1, n // 3), replace=False))),
            ("on one row alone", np.array([0])),
            ("on one row alone", np.array([n - 1])),
            ("on rows in another order", rng.permutation(n)),
            ("on duplicated rows", np.repeat(np.arange(0, n, 2), 3)),
            ("with half of the other rows replaced", _replaced(rng, n)),
        ]
        for what, rows in trials:
            try:
                part = np.asarray(self.plainly(call, Rows(rows)))
            except HlDaskError:
                raise
            except Exception as error:
                raise self._not_per_point(call, f"fails {what}: {error}") from error
            if part.shape[:1] != (len(rows),):
                raise self._not_per_point(
                    call, f"gives shape {part.shape} for {len(rows)} rows, {what}"
                )
            keep = slice(None) if "replaced" not in what else rows == np.arange(n)
            if not same_value(plain[rows][keep], part.astype(plain.dtype)[keep]):
                raise self._not_per_point(call, f"gives other values {what}")
        self._check_altered(call, n, rng)

    def _check_altered(self, call: Call, n: int, rng: np.random.Generator) -> None:
        """Let some rows have unusual values (NaN, zero, negative, large): the others' results must stay.

        A formula that cannot take such values at all tells nothing here.
        """
        keep = rng.random(n) < 0.5
        others = np.where(keep, np.arange(n), rng.integers(0, n, n))
        first = Rows(np.arange(n), noise=_noise(rng, n))
        second = Rows(others, noise=np.where(keep, first.noise, _noise(rng, n)))
        try:
            mine = np.asarray(self.plainly(call, first))
            other = np.asarray(self.plainly(call, second))
        except Exception:
            return
        if mine.shape != other.shape or not same_value(mine[keep], other[keep].astype(mine.dtype)):
            raise self._not_per_point(
                call, "gives a row another value when other rows have NaN, zero or large values"
            )

    def _not_per_point(self, call: Call, what: str) -> OpaqueFormulaError:
        return OpaqueFormulaError(
            f"the formula is declared @hl.per_point, but on the sample it {what}",
            formula=call.text,
            remedy="let each row's value depend on that row alone, or write the part that looks across rows "
            "as a formula with totals (x.sum(), x.mean(), x.max())",
        )


@dataclass(frozen=True)
class Rows:
    """Rows of the sample for a trial, with values changed where there is noise.

    Attributes
    ----------
    index : ndarray of int64
        Positions within the sample.
    noise : ndarray of int8, optional
        For each of these rows, what happens to its floats: 0 nothing, 1 NaN, 2 zero, 3 sign, 4 large.
    """

    index: Any
    noise: Any = None

    def of(self, array: Any, axis: int) -> Any:
        """The rows of an array."""
        part = array.take(self.index, axis=axis)
        if self.noise is None or part.dtype.kind != "f":
            return part
        noise = self.noise.reshape((-1, *[1] * (part.ndim - 1 - axis)))
        return np.select(
            [noise == 0, noise == 1, noise == 2, noise == 3], [part, np.nan, 0.0, -part], part * 1e4
        )


def _noise(rng: np.random.Generator, n: int) -> Any:
    return rng.choice(5, n, p=[0.4, 0.15, 0.15, 0.15, 0.15])


def _replaced(rng: np.random.Generator, n: int) -> Any:
    rows = np.arange(n)
    change = rng.random(n) < 0.5
    rows[change] = rng.integers(0, n, int(change.sum()))
    return rows


def describe_owner(owner: Call | None) -> str:
    """The formula call that an operation belongs to, as text."""
    return BEFORE_RUN if owner is None else owner.text


def calls_differ(text: str) -> RowMixingError:
    """The error for formulas that are called on one sample of the rows and not on another."""
    return RowMixingError(
        "which formulas are called depends on the sample of the rows",
        formula=text,
        remedy="let t and assumptions decide which formulas are called, and np.where what a row gets",
    )


def swallowed_error() -> RowMixingError:
    """The error for a formula that catches an exception of an array operation."""
    return RowMixingError(
        "the formula catches an error that an array operation raised: on other rows it may not be raised, "
        "and the formula would go another way",
        remedy="test for the condition with np.where before the operation",
    )


def as_rows(call: Call, plain: Any, n: int) -> Any:
    """The value of an opaque formula as an array with an entry for each row."""
    array = plain.to_numpy() if hasattr(plain, "to_numpy") else np.asarray(plain)
    if array.ndim == 0 or array.shape[0] != n:
        msg = f"the formula gave a value of shape {array.shape} for {n} rows of the sample ({call.opaque})"
        raise OpaqueFormulaError(
            msg,
            formula=call.text,
            remedy="a formula declared @hl.per_point returns one entry for each row",
        )
    array = np.ascontiguousarray(array)
    array.setflags(write=False)
    return array


def strip(template: Any) -> Any:
    """A template in comparable form: constants by content."""
    kind = template[0]
    if kind == "is":
        return _content(template[1])
    if kind in ("tuple", "list"):
        return (kind, tuple(strip(t) for t in template[1]))
    if kind in ("dict", "record"):
        return (kind, tuple((k, strip(t)) for k, t in template[1]))
    return (kind, template[1]) if kind == "arg" else (kind, strip(template[1]))


def _content(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        content = repr(value.tolist()) if value.dtype.hasobject else value.tobytes()
        return ("is", value.dtype.str, value.shape, content)
    if isinstance(value, (int, float, complex, str, bytes, bool, np.generic, type(None))):
        return ("is", type(value), repr(value))
    return ("is", type(value))


TOLERANCE = 1e-9
"""Relative difference allowed where a total enters as a Python value, whose last bits may differ."""


def same_value(a: Any, b: Any, *, exact: bool = True) -> bool:
    """Equality of two values of a formula, bit for bit where they are numbers (NaN equals NaN)."""
    if type(a) in (tuple, list) and type(a) is type(b):
        return len(a) == len(b) and all(
            same_value(x, y, exact=exact) for x, y in zip(a, b, strict=True)
        )
    if type(a) is dict and type(b) is dict:
        return a.keys() == b.keys() and all(same_value(a[k], b[k], exact=exact) for k in a)
    if np.shape(a) != np.shape(b):
        return False
    try:
        left, right = np.asarray(a), np.asarray(b)
        if left.dtype != right.dtype:
            return False
        if np.array_equal(left, right, equal_nan=left.dtype.kind in "fcmM"):
            return True
        # Totals are put together in another order here than by np.mean or np.std in one go.
        loose = left.dtype.kind in "fc" and (not exact or left.ndim == 0)
        return loose and np.allclose(left, right, rtol=TOLERANCE, atol=0, equal_nan=True)
    except (TypeError, ValueError):
        return a is b


def template_of(value: Any, ids: list[int]) -> Any:
    """A picture of a value with the number of a node's argument in place of each traced array."""
    if is_traced(value):
        ids.append(value.node)
        return ("arg", len(ids) - 1)
    if type(value) is TracedText:
        return ("text", template_of(value.codes, ids), value.categories)
    if hasattr(type(value), "__hl_record__"):
        return ("record", tuple((k, template_of(v, ids)) for k, v in value.fields()))
    if type(value) is tuple:
        return ("tuple", tuple(template_of(v, ids) for v in value))
    if type(value) is list:
        return ("list", tuple(template_of(v, ids) for v in value))
    if type(value) is dict:
        return ("dict", tuple((k, template_of(v, ids)) for k, v in value.items()))
    return ("is", value)


def from_template(template: Any, args: list[Any]) -> Any:
    """The value that a template describes, with plain arrays in place of traced ones."""
    kind, content = template[0], template[1]
    if kind == "arg":
        return args[content]
    if kind == "text":
        import pandas as pd  # noqa: PLC0415 - only for text in opaque formulas

        dtype = pd.CategoricalDtype(pd.Index(template[2]))
        return pd.Categorical.from_codes(from_template(content, args), dtype=dtype, validate=False)
    if kind == "record":
        return Record({k: from_template(t, args) for k, t in content})
    if kind == "tuple":
        return tuple(from_template(t, args) for t in content)
    if kind == "list":
        return [from_template(t, args) for t in content]
    if kind == "dict":
        return {k: from_template(t, args) for k, t in content}
    return content


def held_bytes(value: Any) -> int:
    """Bytes of the sample values that a formula's value holds."""
    if is_traced(value):
        return int(value.value.nbytes)
    if type(value) in (tuple, list):
        return sum(held_bytes(v) for v in value)
    return 0


class Restart(BaseException):
    """The samples are too large for this model; not an Exception, so that no formula swallows it."""


class BlockSession:
    """Hands the values of one block to an opaque formula.

    Parameters
    ----------
    call : OpaqueCall
        The formula call and what it reads.
    args : list of ndarray
        The values, in the order of the node's arguments.
    rows : int
        Rows of the block.
    """

    def refuses_writes(self) -> bool:
        """Whether attributes must not change: a formula is running."""
        return True

    def __init__(self, call: OpaqueCall, args: list[Any], rows: int) -> None:
        self.opaque = call
        self.rows = rows
        self.values = {(f, k): from_template(t, args) for f, k, t in call.reads}
        self.columns = {name: from_template(t, args) for name, t in call.columns}
        self.attributes = {name: from_template(t, args) for name, t in call.attributes}
        self.data = DataView(tuple(self.columns), self.column, lambda: rows, self.frame)

    def call(
        self, formula: Formula, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Value of a formula that was read in the recording."""
        key = args if not kwargs and len(args) == formula.arity else bind_key(formula, args, kwargs)
        try:
            return self.values[formula, key]
        except KeyError:
            raise self._unseen(call_text(formula.name, key)) from None

    def values_of(self, formula: Formula) -> dict[tuple[Any, ...], Any]:
        """Values of a formula that are at hand."""
        return {k: v for (f, k), v in self.values.items() if f is formula}

    def column(self, name: str) -> Any:
        """A column that was read in the recording."""
        try:
            return self.columns[name]
        except KeyError:
            msg = f"column {name!r}"
            raise self._unseen(msg) from None

    def frame(self) -> Any:
        """The columns as a pandas DataFrame."""
        import pandas as pd  # noqa: PLC0415 - only for formulas that ask for pandas

        return pd.DataFrame(self.columns)

    def _unseen(self, what: str) -> OpaqueFormulaError:
        return OpaqueFormulaError(
            f"the formula read {what}, which it did not read on the sample",
            formula=call_text(self.opaque.formula.name, self.opaque.key),
            remedy=f"read {what} at the start of the formula, whatever the rows, so that the plan knows of it",
        )

    def evaluate(self) -> Any:
        """The value of the formula, an array with an entry for each row of the block."""
        call = self.opaque
        instance = object.__new__(type(call.instance))
        state = {k: v for k, v in call.instance.__dict__.items() if not isinstance(v, BoundFormula)}
        instance.__dict__.update(state)
        instance.__dict__.update(self.attributes)
        instance.__dict__["_session"] = self
        raw = call.formula.evaluate(instance, call.key)
        array = raw.to_numpy() if hasattr(raw, "to_numpy") else np.asarray(raw)
        if array.shape != (self.rows, *call.shape):
            msg = f"the formula gave shape {array.shape} for {self.rows} rows"
            raise OpaqueFormulaError(
                msg,
                formula=call_text(call.formula.name, call.key),
                remedy=f"return an array of shape (rows{''.join(f', {s}' for s in call.shape)})",
            )
        if not np.can_cast(array.dtype, call.dtype, "same_kind"):
            msg = f"the formula gave dtype {array.dtype}, on the sample it gave {np.dtype(call.dtype)}"
            raise OpaqueFormulaError(
                msg,
                formula=call_text(call.formula.name, call.key),
                remedy="return one dtype whatever the rows: x.astype(float)",
            )
        return array


class PlainSession:
    """Hands plain sample values to a formula that runs outside the trace.

    Parameters
    ----------
    trace : TraceSession
        Where values come from; what is read is noted there.
    rows : Rows, optional
        Which rows of the sample, with which values; all as they are by default.
    """

    def refuses_writes(self) -> bool:
        """Whether attributes must not change: a formula is running."""
        return True

    def __init__(self, trace: TraceSession, rows: Any) -> None:
        self.trace = trace
        self.rows = rows
        points = trace.points
        self.data = DataView(
            points.columns if points is not None else (), self.column, self.row_count, self.frame
        )

    def call(
        self, formula: Formula, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Value of a formula as plain arrays."""
        trace = self.trace
        return trace.to_plain(trace.calls[trace.call_id(formula, args, kwargs)].value, self.rows)

    def values_of(self, formula: Formula) -> dict[tuple[Any, ...], Any]:
        """Values of a formula so far, plain."""
        return {
            k: self.trace.to_plain(v, self.rows) for k, v in self.trace.values_of(formula).items()
        }

    def row_count(self) -> int:
        """Rows at hand."""
        return len(self.trace.positions if self.rows is None else self.rows.index)

    def column(self, name: str) -> Any:
        """A column as it is in a plain run."""
        trace = self.trace
        traced = trace.traced_column(name)
        if trace.frames:
            trace.frames[-1].columns[name] = None
        return trace.to_plain(traced, self.rows)

    def frame(self) -> Any:
        """All columns that can be used, as a pandas DataFrame."""
        import pandas as pd  # noqa: PLC0415 - only for formulas that ask for pandas

        columns: dict[str, Any] = {}
        for name in self.data.columns:
            value = self.column(name)
            if value.ndim == 1:
                columns[name] = value
            else:
                columns.update({f"{name}[{k}]": value[:, k] for k in range(value.shape[1])})
        return pd.DataFrame(columns)
