"""The session of a trace: formulas run as plain Python, on traced arrays.

One :class:`TraceSession` is one run of the model on one sample. It keeps, for every formula call,
what it read and what it gave, in the order in which evaluations *finish*. Formulas whose use of the
rows cannot be seen are evaluated on plain arrays instead, and become a single node each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hl_dask.dataview import DataView
from hl_dask.errors import FormulaError, HlDaskError, RowMixingError
from hl_dask.formula import Formula, bind_key, call_text, unhashable
from hl_dask.opaque import (
    MEASURED_TIMES,
    OpaqueCall,
    Rows,
    SampleSession,
    Temporaries,
    as_rows,
    check_per_point,
    has_rows,
)
from hl_dask.points import ModelPoints
from hl_dask.reach import Reach, put_back
from hl_dask.session import HOP, CallStack, formula_error, on_fresh_stack
from hl_dask.traced import (
    UNSEEN,
    Notes,
    SampleUsedError,
    TracedArray,
    TracedText,
    Tracer,
    is_traced,
)
from hl_dask.values import (
    comparable,
    held_bytes,
    normalise,
    plain_value,
    same_value,
    template_of,
    value_shape,
)

BEFORE_RUN = "BeforeRun"
RELEASED: Any = object()
"""Takes the place of a value that the second trace does not need any more."""
NO_COLUMNS: dict[str, None] = {}
SHADOWS = 3
"""First calls of a formula that are evaluated on plain arrays as well."""
SHADOW_EVERY = 64
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
    member : str or None
        Name of its model in the portfolio.
    """

    formula: Formula
    key: tuple[Any, ...]
    reads: Any = field(default_factory=dict)
    columns: dict[str, None] = field(default_factory=dict)
    value: Any = None
    opaque: str | None = None
    member: str | None = None

    @property
    def text(self) -> str:
        """The call as it would be written."""
        return call_text(self.formula.name, self.key)


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

    Attributes
    ----------
    shadow : bool
        Evaluate formulas on plain arrays as well and compare: in the first trace.
    probe : bool
        Stop with :class:`SampleUsedError` where values of the rows come to matter.
    limit_bytes : int or None
        Stop with :class:`Restart` where the values held are larger.
    reach : Reach or None
        What formulas can reach outside the trace, which may have to be put back as it was.
    peers : sequence of TraceSession
        The sessions of all models that are traced together, this one included.
    """

    def __init__(self, tracer: Tracer, points: ModelPoints | None, positions: Any) -> None:
        self.tracer = tracer
        self.points = points
        self.positions = positions
        self.shadow = False
        self.calls: list[Call] = []
        self.finished: list[int] = []
        self.index: dict[tuple[Formula, tuple[Any, ...]], int] = {}
        self.stack = CallStack()
        self.frames: list[Call] = []
        self.shadows: dict[Formula, int] = {}
        self.checked: dict[Formula, int] = {}
        self.temporaries: dict[Formula, Temporaries] = {}
        self.instance: Any = None
        self.twin: Any = None
        self.attributes: dict[str, Any] = {}
        self.opaque: dict[str, str] = {}
        self.columns: dict[str, Any] = {}
        self.running = False
        self.setting_up = True
        self.limit_bytes: int | None = None
        self.probe = False
        self.reach: Reach | None = None
        self.peers: Sequence[TraceSession] = (self,)
        self.assumed_before: tuple[tuple[int, Any], ...] = ()
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
            node = self.tracer.node(self.tracer.leaf("column", name), (), sample, 0)
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
        return self.tracer.length()

    def _frame(self) -> Any:
        self.tracer.escape("self.data.frame() gives pandas, which is not followed")
        return self._plain_session(None).frame()

    def to_plain(self, value: Any, rows: Rows | None = None) -> Any:
        """The value on the sample (or on a selection of its rows) without traces."""
        return plain_value(value, self.tracer.assumed, rows)

    def _plain_session(self, rows: Rows | None) -> SampleSession:
        """Plain values on the sample; what is read is noted as read by the running formula."""

        def column(name: str) -> Any:
            traced = self.traced_column(name)
            if self.frames:
                self.frames[-1].columns[name] = None
            return self.to_plain(traced, rows)

        def value(formula: Formula, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return self.to_plain(self.calls[self.call_id(formula, args, kwargs)].value, rows)

        def values(formula: Formula) -> dict[tuple[Any, ...], Any]:
            return {k: self.to_plain(v, rows) for k, v in self.values_of(formula).items()}

        count = len(self.positions if rows is None else rows.index)
        return SampleSession(self.data.columns, column, value, values, count)

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
        if not kwargs and len(args) == formula.arity and self.frames:
            # Most calls read a value that is there, and need no more than this.
            try:
                known = self.index.get((formula, args))
            except TypeError:
                known = None
            if known is not None:
                self.frames[-1].reads[known] = None
                value = self.calls[known].value
                if value is not RELEASED:
                    return value
        value = self.calls[self.call_id(formula, args, kwargs)].value
        if value is RELEASED and self.frames:
            # Only the run itself asks for a value again, and does not use it.
            raise calls_differ(call_text(formula.name, args))
        return value

    def call_id(self, formula: Formula, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Number of a call, evaluated if need be, and noted as read by the running one."""
        key = args if not kwargs and len(args) == formula.arity else bind_key(formula, args, kwargs)
        frame = (formula, key)
        try:
            call_id = self.index.get(frame)
        except TypeError as error:
            raise unhashable(formula, key) from error
        if call_id is None:
            if TracedArray in map(type, key):
                frame = (formula, tuple(a.concrete() if is_traced(a) else a for a in key))
                call_id = self.index.get(frame)
            if call_id is None:
                call_id = self._evaluate(frame)
        if self.frames:
            self.frames[-1].reads[call_id] = None
        return call_id

    def _evaluate(self, frame: tuple[Formula, tuple[Any, ...]]) -> int:
        self.stack.push(*frame)
        call = Call(*frame, member=self.tracer.member)
        call_id = len(self.calls)
        self.calls.append(call)
        tracer = self.tracer
        outer = tracer.notes
        notes = tracer.notes = Notes(call)
        guards = len(tracer.guards)
        self.frames.append(call)
        try:
            if len(self.stack.frames) % HOP == 0:
                call.value = on_fresh_stack(lambda: self._traced_value(call, guards), self.stack)
            else:
                call.value = self._traced_value(call, guards)
        except HlDaskError as error:
            if error not in outer.failures:
                # A caller that swallows the error would go on with a value that other rows lack.
                outer.failures = [*outer.failures, error]
            raise
        finally:
            self.frames.pop()
            self.stack.pop()
            tracer.notes = outer
            if notes.asked_rows:
                outer.asked_rows = True
        self.index[frame] = call_id
        self._finish(call_id, call)
        return call_id

    def _finish(self, call_id: int, call: Call) -> None:
        self.finished.append(call_id)
        call.reads, call.columns = tuple(call.reads), NO_COLUMNS
        if self.on_finish is not None:
            self.on_finish(call_id)
        if self.limit_bytes is not None:
            value = call.value
            self.held_bytes += value.value.nbytes if is_traced(value) else held_bytes(value)
            if self.held_bytes > self.limit_bytes:
                self.limit_bytes = None
                if not any(p.tracer.told for p in self.peers) or self._untouched():
                    raise Restart
        if self.probe:
            self.check_probe()

    def check_probe(self) -> None:
        """Give up a first attempt with few rows, or with none, when they come to matter.

        Not when a formula has kept something meanwhile that cannot be put back, which may be a
        number of these rows: the next attempt would take it for a constant. And not while a formula
        runs, which might take the end of the trace for an error of its own.
        """
        if self.probe and self.tracer.sample_used and not any(p.frames for p in self.peers):
            if self.tracer.blind or self._untouched():
                raise SampleUsedError
            self.probe = False

    def _untouched(self) -> bool:
        return self.reach is not None and self.reach.untouched()

    def _traced_value(self, call: Call, guards: int) -> Any:
        formula, tracer, notes = call.formula, self.tracer, self.tracer.notes
        try:
            raw = formula.evaluate(self.instance, call.key)
            if notes.failures:
                raise notes.failures[0]
            if notes.op_errors:
                raise tracer.fail(swallowed_error())
            if not notes.escapes:
                value = normalise(tracer, raw)
                if not notes.escapes:
                    is_shadowed = self.shadow and not formula.built_in
                    return self._shadowed(call, value, guards) if is_shadowed else value
            reason = notes.escapes[0]
        except HlDaskError as error:
            error.formula = error.formula or call.text
            if not (formula.per_point and isinstance(error, RowMixingError)):
                error.called_by(call.text)
                raise
            reason = error.message
        except Exception as error:
            reason = f"raises {type(error).__name__} with the arrays of a recording: {error}"
        return self._opaque_value(call, reason)

    # ---- other models of the portfolio -------------------------------------------------------

    def call_stack(self) -> CallStack:
        """The formula calls that are being evaluated."""
        return self.stack

    def has_rows(self, value: Any) -> bool:
        """Whether a value has an entry for each policy."""
        return type(value) is TracedText or (is_traced(value) and value.axis >= 0)

    def received(self, value: Any) -> Any:
        """A value without rows of a formula of another model."""
        if not is_traced(value):
            return value
        if self.tracer.blind:
            return TracedArray(self.tracer, value.node, UNSEEN, fresh=False)
        return TracedArray(self.tracer, value.node, value.value, fresh=False)

    # ---- plain evaluation: the shadow of a traced formula, and opaque formulas -----------------

    def plainly(self, call: Call, rows: Rows | None = None) -> Any:
        """Evaluate a formula on plain arrays, on the whole sample or on a selection of its rows."""
        twin = self.twin
        outer = twin.__dict__.get("_session")
        twin.__dict__["_session"] = self._plain_session(rows)
        for name, value in self.attributes.items():
            twin.__dict__[name] = self.to_plain(value, rows)
        try:
            return call.formula.evaluate(twin, call.key)
        finally:
            twin.__dict__["_session"] = outer

    def _shadowed(self, call: Call, value: Any, guards: int) -> Any:
        """The traced value, after comparing it with that of a plain evaluation."""
        tracer = self.tracer
        seen = self.shadows[call.formula] = self.shadows.get(call.formula, 0) + 1
        if seen > SHADOWS and seen % SHADOW_EVERY:
            # A formula goes one way with plain arrays and another with traced ones because of what
            # it asks of their type, which is no matter of t: some of its calls tell.
            return value
        reads, columns = dict(call.reads), dict(call.columns)
        asked = len(tracer.guards)
        exact = asked == guards
        try:
            here = self._at_sample_size(call) if tracer.notes.asked_rows else value
            plain = self.plainly(call)
            if same_value(self.to_plain(here), plain, exact=exact):
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
            return normalise(self.tracer, call.formula.evaluate(self.instance, call.key))
        finally:
            tracer.rows = rows

    def _check_repeats(self, call: Call, value: Any) -> None:
        """Tell a formula that asks for the type of its arrays from one that gives what it likes."""
        again = normalise(self.tracer, call.formula.evaluate(self.instance, call.key))
        if value_shape(again) != value_shape(value):
            msg = (
                "the formula gives another value when it is evaluated again: it draws random "
                "numbers, asks for the time, or keeps something between calls"
            )
            raise RowMixingError(
                msg,
                formula=call.text,
                remedy="draw random numbers and fix dates before the run and pass them in, and let "
                "formulas keep nothing",
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
        tracer.sample_used = tracer.told = True
        tracer.notes.failures, tracer.notes.op_errors = (), 0
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
            if not has_rows(plain, len(self.positions)):
                # Only the plain replay in one piece can go on from here; the trace ends soon.
                return plain
        array = as_rows(plain, len(self.positions), call.text, reason)
        if formula.per_point:
            self._check_per_point(call, array)
        value = self._opaque_node(call, array)
        if formula in self.temporaries:
            tracer.graph.temporary_bytes[value.node] = self.temporaries[formula].law()
        return value

    def _check_per_point(self, call: Call, array: Any) -> None:
        """Each trial starts from what the user had, so that what a formula keeps shows."""
        reach, formula = self.reach, call.formula
        seen = self.checked[formula] = self.checked.get(formula, 0) + 1
        if seen == 1 or not seen % SHADOW_EVERY:
            temporaries = self.temporaries.setdefault(formula, Temporaries())
        else:
            temporaries = None
        now = reach.snapshot() if reach is not None else None

        def evaluate(rows: Rows) -> Any:
            if reach is not None:
                reach.restore()
            if temporaries is None:
                return self.plainly(call, rows)
            with temporaries.measured(len(rows.index)):
                return self.plainly(call, rows)

        try:
            check_per_point(evaluate, array, call.text)
            if temporaries is not None:
                evaluate(Rows(np.tile(np.arange(len(array)), MEASURED_TIMES)))
        finally:
            if now is not None:
                put_back(now)

    def _opaque_node(self, call: Call, plain: Any) -> Any:
        formula, tracer = call.formula, self.tracer
        ids: list[int] = []
        reads = tuple(
            (self.calls[r].formula, self.calls[r].key, template_of(self.calls[r].value, ids))
            for r in call.reads
        )
        columns = tuple((c, template_of(self.columns[c], ids)) for c in call.columns)
        attributes = tuple((a, template_of(v, ids)) for a, v in self.attributes.items())
        # What it reads may be a total as a Python value, which another pass will know better.
        content = tuple(comparable(template) for _, _, template in reads)
        known = repr(self.assumed_before)
        op = tracer.leaf("opaque", (formula.owner, formula.name, call.key, content, known))
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


def describe_owner(owner: Call | None) -> str:
    """The formula call that an operation belongs to, as text."""
    return BEFORE_RUN if owner is None else owner.text


def calls_differ(text: str) -> RowMixingError:
    """The error for formulas that are called on one sample of the rows and not on another."""
    return RowMixingError(
        "which formulas are called depends on the sample of the rows",
        formula=text,
        remedy="let t and assumptions decide which formulas are called, and np.where what a row "
        "gets",
    )


def swallowed_error() -> RowMixingError:
    """The error for a formula that catches an exception of an array operation."""
    return RowMixingError(
        "the formula catches an error that an array operation raised: on other rows it may not be "
        "raised, and the formula would go another way",
        remedy="test for the condition with np.where before the operation",
    )


class Restart(BaseException):
    """The samples are too large for this model.

    Not an Exception, so that no formula swallows it.
    """
