"""Following a trace, call by call: what is reported, and whether two traces are one.

The first trace is followed for its outputs. The second one is also compared: every call must be the
one that the first trace made, and its value must be made of the same nodes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hl_dask.aggregate import Aggregate
from hl_dask.errors import FormulaError, HlDaskError, RowMixingError
from hl_dask.expr import Op
from hl_dask.formula import DEFAULT, Formula, running
from hl_dask.liveness import last_use
from hl_dask.report import (
    AGGREGATES,
    SUMMABLE,
    Wanted,
    aggregate_failed,
    check_reported,
    not_summable,
    reported,
)
from hl_dask.trace import RELEASED, Call, TraceSession, calls_differ, describe_owner
from hl_dask.traced import Notes, TracedArray, TracedText, Tracer, is_traced, total_of_rows
from hl_dask.values import ValueShape, template_of, value_shape


@dataclass(frozen=True, slots=True)
class Output:
    """One reported number (or array): a formula call after aggregation.

    Attributes
    ----------
    node : int or None
        The portfolio node; None when the value does not depend on the rows.
    value : object
        The value when there is no node.
    """

    formula: Formula
    key: tuple[Any, ...]
    node: int | None
    value: Any = None


class First:
    """Follows the first trace: aggregates reported values as soon as they are there."""

    def __init__(self, wanted: Wanted, proj_len: int) -> None:
        self.wanted = wanted
        self.proj_len = proj_len
        self.outputs: list[Output] = []
        self.templates: dict[int, Any] = {}

    def finished(self, session: TraceSession, number: int) -> None:
        """A call has been evaluated."""
        if session.calls[number].formula in self.wanted.aggregates:
            output = _output_of(self.wanted, session, number, self.proj_len)
            if output is not None:
                self.outputs.append(output)

    def finish(self, session: TraceSession) -> list[ValueShape]:
        """Compact forms of all values; the values themselves are dropped."""
        shapes = []
        for number, call in enumerate(session.calls):
            value = call.value
            one = type(value) is TracedArray
            shapes.append((None, (value.node,)) if one else value_shape(value))
            if not one:
                self.templates[number] = template_of(value, [])
            call.value = None
        return shapes


class Second(First):
    """Follows the second trace: compares every value with the first trace, and lets it go.

    A value is not needed after the last call, in order of completion, that read it in the first
    trace.
    """

    def __init__(
        self,
        wanted: Wanted,
        proj_len: int,
        first: TraceSession,
        outputs: First,
        values: list[ValueShape],
    ) -> None:
        super().__init__(wanted, proj_len)
        self.calls = first.calls
        self.order = first.finished
        self.guards = first.tracer.guards
        self.expected = {(o.formula, o.key): o.node for o in outputs.outputs}
        self.values = values
        self.dying: dict[int, list[int]] = {}
        reads = {number: call.reads for number, call in enumerate(first.calls)}
        metas = first.tracer.graph.metas
        for number, position in last_use(first.finished, reads.__getitem__).items():
            if all(metas[node].axis < 0 for node in values[number][1]):
                # It is small, and other models of the portfolio may ask for it.
                continue
            self.dying.setdefault(first.finished[position], []).append(number)

    def finished(self, session: TraceSession, number: int) -> None:
        """A call has been evaluated: it must be what the first trace evaluated."""
        call = session.calls[number]
        mine = self.calls[number] if number < len(self.calls) else None
        position = len(session.finished) - 1
        if (
            mine is None
            or (mine.formula, mine.key) != (call.formula, call.key)
            or self.order[position] != number
        ):
            raise calls_differ(call.text)
        value = call.value
        shape = (None, (value.node,)) if type(value) is TracedArray else value_shape(value)
        if shape != self.values[number]:
            msg = "the formula gives another expression on another sample of the rows"
            raise RowMixingError(
                msg,
                formula=call.text,
                remedy="derive nothing from the rows but by array operations and totals",
            )
        if self.wanted.aggregates.get(call.formula) is not np.sum:
            # The sum of the same expression is the same; a function of the user's may do anything.
            self._compare_aggregate(session, number)
        for dead in self.dying.get(number, ()):
            session.calls[dead].value = RELEASED

    def _compare_aggregate(self, session: TraceSession, number: int) -> None:
        call = session.calls[number]
        output = _output_of(self.wanted, session, number, self.proj_len)
        if output is None or output.node == self.expected.get((call.formula, call.key)):
            return
        msg = "the aggregate gives another expression on another sample of the rows"
        raise RowMixingError(
            msg,
            formula=call.text,
            remedy="use np.sum, np.min, np.max, hl.Sum or hl.Aggregate",
        )

    def finish(self, session: TraceSession) -> list[ValueShape]:
        """The second trace must have come to the same end."""
        if len(session.calls) != len(self.calls):
            raise calls_differ(self.calls[min(len(session.calls), len(self.calls) - 1)].text)
        # A formula that goes through the rows asks for a total once for each of them.
        mine, other = _first_of_each(self.guards), _first_of_each(session.tracer.guards)
        if [node for node, _ in mine] != [node for node, _ in other]:
            msg = (
                "a Python value taken from a total is kept between runs (in a module, a class or a "
                "container)"
            )
            raise RowMixingError(
                msg,
                formula=describe_owner(_first_difference(mine, other)),
                remedy="keep values in formulas only; a run starts from nothing",
            )
        return self.values


def _output_of(wanted: Wanted, session: TraceSession, number: int, proj_len: int) -> Output | None:
    """The aggregate of a call's value, if it is reported."""
    call = session.calls[number]
    function = wanted.aggregates.get(call.formula)
    if function is None or not reported(call.formula, call.key, proj_len):
        return None
    tracer = session.tracer
    outer, tracer.notes = tracer.notes, Notes(call)
    try:
        with running(None):
            return _output(session, call, function, explicit=call.formula.agg is not DEFAULT)
    finally:
        if tracer.notes.asked_rows:
            outer.asked_rows = True
        tracer.notes = outer


def _output(session: TraceSession, call: Call, function: Any, *, explicit: bool) -> Output:
    value = call.value
    tracer = session.tracer
    if type(value) is TracedText:
        if function is not len:
            msg = f"a column of texts can be counted (len), and not aggregated with {function!r}"
            raise FormulaError(
                msg, formula=call.text, remedy="mark the formula @hl.agg(None) or @hl.agg(len)"
            )
        value = value.numbers
    if session.opaque:
        # The replay will be in one piece, and the rest of this trace works on plain sample values.
        return Output(call.formula, call.key, None, None)
    if is_traced(value) and value.axis > 0:
        # A plain run cannot tell such an array from one of totals.
        check_reported(value, call.text, tracer.rows, explicit=False)
    if is_traced(value) and value.axis >= 0:
        if function is np.sum and value.ndim == 1 and value.dtype.kind in SUMMABLE:
            return Output(call.formula, call.key, total_of_rows(tracer, value))
        aggregated = _aggregate(tracer, call, value, function)
        if is_traced(aggregated) and aggregated.axis < 0:
            return Output(call.formula, call.key, aggregated.node)
        if is_traced(aggregated):
            msg = f"the aggregate {function!r} gives one value for each row"
            raise RowMixingError(
                msg,
                formula=call.text,
                remedy="use one that gives a total (np.sum, np.max, hl.Aggregate), or "
                "@hl.agg(None)",
            )
        return Output(call.formula, call.key, None, aggregated)
    check_reported(value, call.text, tracer.rows, explicit=explicit)
    if is_traced(value):
        return Output(call.formula, call.key, value.node)
    plain = value.view(np.ndarray) if isinstance(value, np.ndarray) else value
    return Output(call.formula, call.key, None, plain)


def _aggregate(tracer: Tracer, call: Call, value: Any, function: Any) -> Any:
    """The aggregate of a traced value over its rows, traced as well."""
    if function is np.sum and value.dtype.kind not in SUMMABLE:
        raise not_summable(value.dtype, call.text)
    try:
        if isinstance(function, Aggregate):
            return _declared_aggregate(tracer, value, function)
        result = _count(value) if function is len else function(value)
    except HlDaskError as error:
        error.formula = call.text
        raise
    except Exception as error:
        raise aggregate_failed(function, error, call.text) from error
    if tracer.notes.escapes:
        msg = f"the aggregate {function!r} cannot be followed: {tracer.notes.escapes[0]}"
        raise RowMixingError(
            msg,
            formula=call.text,
            remedy=f"use {AGGREGATES}(map=, combine=, finalise=)",
        )
    return result


def _declared_aggregate(tracer: Tracer, value: Any, function: Aggregate) -> Any:
    op = Op("aggregate", id(function))
    if tracer.blind:
        return TracedArray.make(tracer, tracer.node(op, (value.node,), None, -1))
    partial = function.map(value.value)
    sample = function.finish(partial)
    node = tracer.node(op, (value.node,), np.asarray(sample), -1)
    tracer.graph.values.setdefault(node, function)
    tracer.graph.partial_bytes.setdefault(node, _partial_bytes(partial, tracer.sample_rows))
    return TracedArray(tracer, node, sample)


def _partial_bytes(partial: Any, rows: int) -> tuple[int, int]:
    """Bytes of a partial whatever the rows, and bytes for each row where it keeps its rows."""
    if isinstance(partial, np.ndarray):
        if partial.ndim and partial.shape[0] == rows:
            return 0, partial.nbytes // max(rows, 1) + 1
        return partial.nbytes + 128, 0
    if isinstance(partial, (list, tuple, dict)):
        items = partial.values() if isinstance(partial, dict) else partial
        sizes = [_partial_bytes(item, rows) for item in items]
        return sys.getsizeof(partial) + sum(s[0] for s in sizes), sum(s[1] for s in sizes)
    return sys.getsizeof(partial), 0


def _count(value: Any) -> Any:
    ones = np.ones_like(value[(slice(None), *([0] * (value.ndim - 1)))], dtype=np.int64)
    return np.sum(ones)


def _first_of_each(guards: Iterable[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """Guards without those of totals that were asked for before."""
    found: dict[int, Any] = {}
    for node, owner in guards:
        found.setdefault(node, owner)
    return list(found.items())


def _first_difference(mine: list[tuple[int, Any]], other: list[tuple[int, Any]]) -> Any:
    """The formula call at which two lists of guards part."""
    for a, b in zip(mine, other, strict=False):
        if a[0] != b[0]:
            return a[1]
    longer = mine if len(mine) > len(other) else other
    return longer[min(len(mine), len(other))][1] if longer else None
