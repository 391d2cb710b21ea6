"""A plan as a function of a frame: policies go in as rows, their values come out as rows.

What a run adds up is here the thing itself: :class:`Evaluator` replays the recorded operations on
the rows of a DataFrame and gives the values that formulas have for each of them. It can be pickled,
so that it serves the partitions of a Dask DataFrame on any scheduler::

    recording  --->  calls, graph  --->  request  --->  program  --->  columns of a frame
               once                once for what is asked      for each frame
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pandas as pd

from hl_dask.aggregate import Aggregate
from hl_dask.errors import HlDaskError, ModelError, PlanError
from hl_dask.expr import PORTFOLIO, Graph, Op
from hl_dask.kernel import Machine
from hl_dask.labels import flat_columns, stacked
from hl_dask.partition import check_frame, places_of, recorded_columns
from hl_dask.policies import Column, Known, Packed, columns_of, known_of, packed, unpacked
from hl_dask.program import Program, compile_program
from hl_dask.record import Recording, Subject, record
from hl_dask.settings import floating_errors
from hl_dask.values import from_template


def _same(values: Any) -> Any:
    return values


def _beside(left: Any, right: Any) -> Any:
    return np.concatenate([left, right])


KEEP = Aggregate(map=_same, combine=_beside)
"""An aggregate that keeps the values brings them out of the kernel as they are."""


@dataclass
class Request:
    """Columns, and the program that computes them.

    Attributes
    ----------
    kept : dict of int to int
        The reduction that keeps the values of a node.
    machines : list of Machine
        The program bound to memory, for threads that are at work at the same time.
    """

    columns: list[Column]
    program: Program | None
    kept: dict[int, int]
    machines: list[Machine] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """Columns of the frame that are read."""
        return self.program.columns if self.program is not None else []


# ---- evaluating ------------------------------------------------------------------------------


class Evaluator:
    """Values of formulas for each policy of a frame: what ``model.plan.evaluate`` is.

    Parameters
    ----------
    known : Known
        What is known of the recording.
    content : Packed, optional
        What it was unpacked from.
    """

    __name__ = "evaluate"

    def __init__(
        self,
        known: Known,
        content: Packed | None = None,
    ) -> None:
        self._known = known
        self._extend: Callable[[frozenset[str]], Known] | None = None
        self._extra: frozenset[str] = frozenset()
        self._requests: dict[Hashable, Request] = {}
        self._lock = threading.RLock()
        self._packed = content
        self._identity = uuid.uuid4().hex

    def __call__(
        self,
        frame: pd.DataFrame,
        outputs: str | Sequence[str] | None = None,
        t: Any = None,
        *,
        flat: bool = False,
    ) -> pd.DataFrame:
        """Evaluate formulas for the policies of a frame.

        Parameters
        ----------
        frame : DataFrame
            A row for each policy, with the columns that the plan reads; none at all is fine.
        outputs : str or sequence of str, optional
            Formulas, reported or not. By default those that the plan reports.
        t : int, sequence of int, or "all", optional
            Time steps at which formulas of t are evaluated; without it all for those in
            ``outputs``, and none by default.
        flat : bool
            Columns of one level: ``premiums[3]`` for ``("premiums", 3)``.

        Returns
        -------
        DataFrame
            With the index of ``frame``. A column for each formula; columns ``(formula, t,
            argument, ...)`` where there are formulas of t. A value that is the same for all
            policies is repeated.

        Raises
        ------
        MissingColumnError, DataError
            When the frame lacks a column, has nulls in one, or one of another kind than that of the
            recording.
        UnsupportedError
            When a formula's value is one over the portfolio, or depends on one.
        ModelError
            When there is no such formula, or no such t.
        """
        check_frame(frame)
        request = self._request(outputs, t)
        columns = recorded_columns(frame, request.names, self._known.kinds)
        values = self._values(request, columns, len(frame))
        made = {k: self._column(c, values, len(frame)) for k, c in enumerate(request.columns)}
        found = pd.DataFrame(made, index=frame.index)
        labels = [column.label for column in request.columns]
        found.columns = flat_columns(labels) if flat else stacked(labels, ("formula", "t"))
        return found

    def meta(
        self,
        like: Any = None,
        outputs: str | Sequence[str] | None = None,
        t: Any = None,
        *,
        flat: bool = False,
    ) -> pd.DataFrame:
        """The empty frame that describes what evaluating gives, for Dask's ``meta=``.

        Parameters
        ----------
        like : DataFrame or Dask DataFrame, optional
            Gives the index.
        outputs, t, flat
            As for evaluating.
        """
        index = getattr(like, "_meta", like)
        names = self._request(outputs, t).names
        places = [place for name in names for place in places_of(name, self._known.kinds[name])]
        empty = pd.DataFrame(
            {place: [] for place in places}, index=None if index is None else index.index[:0]
        )
        return self(empty, outputs, t, flat=flat)

    def extend_with(self, extend: Callable[[frozenset[str]], Known]) -> None:
        """Let formulas be recorded that the plan does not need: ``extend(names)`` does it."""
        self._extend = extend

    # ---- requests ----------------------------------------------------------------------------

    def _request(self, outputs: str | Sequence[str] | None, t: Any) -> Request:
        names = None if outputs is None else self._chosen(outputs)
        months = None if t is None else _months(t, self._known.proj_len)
        asked = (names, months)
        with self._lock:
            request = self._requests.get(asked)
            if request is None:
                request = self._requests[asked] = self._made(names, months)
            return request

    def _chosen(self, outputs: str | Sequence[str]) -> tuple[str, ...]:
        params = self._known.params
        named = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        unknown = [name for name in named if name not in params]
        if unknown or not named:
            msg = (
                f"outputs names no formula of the model: {', '.join(map(str, unknown))}"
                if unknown
                else "outputs is empty"
            )
            raise ModelError(msg, remedy=f"choose among {', '.join(sorted(params))}")
        return tuple(dict.fromkeys(named))

    def _made(self, names: tuple[str, ...] | None, months: tuple[int, ...] | None) -> Request:
        known = self._known
        if names is None:
            names = tuple(
                n for n in known.reported if months is not None or "t" not in known.params[n]
            )
        if not names:
            msg = "the plan reports no formula without t, which evaluate gives by default"
            raise ModelError(
                msg, remedy='say which formulas, outputs=[...], and at which t, t=[...] or t="all"'
            )
        at = range(known.proj_len + 1) if months is None else months
        known = self._with(names, at)
        columns = [column for name in names for column in self._columns(known, name, at)]
        nodes = {column.node for column in columns if column.node is not None}
        kept = {node: _keeper(known.graph, node) for node in sorted(nodes)}
        program = None
        if kept:
            program = compile_program(known.graph, kept.values(), known.describe)
        return Request(columns, program, kept)

    def _columns(self, known: Known, name: str, months: Sequence[int]) -> list[Column]:
        at = frozenset(months)
        rows = [r for r in known.calls.get(name, ()) if known.at(name, r.key) in {None, *at}]
        if not rows:
            msg = "the plan does not call the formula, at none of these t"
            raise ModelError(
                msg,
                formula=f"{name}({', '.join(known.params[name])})",
                remedy="a formula with arguments beside t is evaluated where others call it",
            )
        order = sorted(range(len(rows)), key=lambda k: (known.at(name, rows[k].key) or 0, k))
        return [column for k in order for column in columns_of(known, name, rows[k])]

    def _with(self, names: Iterable[str], months: Iterable[int]) -> Known:
        """What is known, with formulas that the plan does not need recorded as well."""
        at = list(months)
        lacking = [
            name
            for name in names
            if self._known.params[name] in ((), ("t",)) and not self._known.has(name, at)
        ]
        if not lacking:
            return self._known
        if self._extend is None:
            msg = "the formula is not part of the plan, and the model is not here to record it"
            raise PlanError(
                msg,
                formula=", ".join(lacking),
                remedy="ask for the same once where the model is, meta = model.plan.meta(frame, "
                "outputs=..., t=...), before the work is sent out",
            )
        self._extra |= frozenset(lacking)
        self._known = self._extend(self._extra)
        self._requests.clear()
        self._packed, self._identity = None, uuid.uuid4().hex
        return self._known

    # ---- values ------------------------------------------------------------------------------

    def _values(self, request: Request, columns: Mapping[str, Any], rows: int) -> dict[int, Any]:
        """Values of nodes, an array over all rows for each."""
        program = request.program
        if program is None:
            return {}
        metas = program.graph.metas
        values = {
            node: np.empty((rows, *metas[node].shape), metas[node].dtype) for node in request.kept
        }
        if not rows:
            return values
        block_rows = min(self._known.block_rows, rows)
        machine = self._machine(request, program, block_rows)
        with np.errstate(**floating_errors()):
            for start in range(0, rows, block_rows):
                stop = min(start + block_rows, rows)
                part = {name: array[start:stop] for name, array in columns.items()}
                try:
                    partial = machine.run_block(part, stop - start)
                except HlDaskError as error:
                    error.rows = f"{start:,} to {stop - 1:,} of the frame, counted from the first"
                    raise
                for node, keeper in request.kept.items():
                    values[node][start:stop] = partial[program.slots[keeper].key][0]
        with self._lock:
            request.machines.append(machine)
        return values

    def _machine(self, request: Request, program: Program, block_rows: int) -> Machine:
        with self._lock:
            while request.machines:
                machine = request.machines.pop()
                if machine.block_rows >= block_rows:
                    return machine
        return Machine(program, block_rows)

    def _column(self, column: Column, values: Mapping[int, Any], rows: int) -> Any:
        if column.node is None:
            return np.full(rows, column.content)
        array = values[column.node][(slice(None), *column.entry)]
        return array if column.content is None else from_template(column.content, [array])

    # ---- journeys ----------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        with self._lock:
            if self._packed is None:
                self._packed = packed(self._known)
            return _arrived, (self._packed,)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return ("hl_dask.evaluate", self._identity)

    def __repr__(self) -> str:
        known = self._known
        return f"<evaluate of {known.model}: t = 0..{known.proj_len}, {len(known.calls)} formulas>"


def _months(t: Any, proj_len: int) -> tuple[int, ...]:
    """Time steps that are asked for."""
    if isinstance(t, str) and t == "all":
        return tuple(range(proj_len + 1))
    given = [t] if isinstance(t, (int, np.integer)) else t
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [t]
    for month in listed:
        whole = isinstance(month, (int, np.integer)) and not isinstance(month, bool)
        if not whole or not 0 <= month <= proj_len:
            msg = f"t is a time step from 0 to {proj_len}, or several of them; got {month!r}"
            raise ModelError(
                msg, remedy='give t=12, t=range(0, 241, 12) or t="all"; a plan goes to its proj_len'
            )
    return tuple(dict.fromkeys(int(month) for month in listed))


def _keeper(graph: Graph, node: int) -> int:
    """The reduction that brings the values of a node out of the kernel."""
    op = Op("aggregate", "values by policy")
    found = graph.find(op, (node,))
    if found is None:
        found = graph.add(op, (node,), PORTFOLIO, graph.metas[node], graph.owners[node])
        graph.values[found] = KEEP
    return found


# ---- where evaluators come from --------------------------------------------------------------


def evaluator_of(recording: Recording, subject: Subject, model: str, block_rows: int) -> Evaluator:
    """The evaluator of a recording, made once.

    Raises
    ------
    OpaqueFormulaError, UnsupportedError
        When values of a policy may depend on other policies.
    """
    evaluator: Evaluator | None = recording.evaluator
    if evaluator is None:
        known = known_of(recording, subject, model, block_rows)
        evaluator = recording.evaluator = Evaluator(known)
    # With the data of now, which may be others of the same kind.
    evaluator.extend_with(partial(_extended, subject, model, recording.proj_len, block_rows))
    return evaluator


def _extended(
    subject: Subject, model: str, proj_len: int, block_rows: int, names: frozenset[str]
) -> Known:
    """What is known when formulas are recorded that the plan does not need."""
    if subject.points is None:
        msg = "the formula is not part of the plan, and the model has no data to record on"
        raise PlanError(
            msg,
            formula=", ".join(sorted(names)),
            remedy="assign model.data = ..., some typical policies will do",
        )
    wanted, formulas = subject.wanted, subject.formulas
    of_t = tuple(f for f in formulas if f in wanted.of_t or (f.of_t and f.name in names))
    alone = tuple(f for f in formulas if f in wanted.alone or (not f.params and f.name in names))
    more = replace(subject, wanted=replace(wanted, of_t=of_t, alone=alone))
    return known_of(record(more, proj_len), more, model, block_rows)


_ARRIVED: WeakValueDictionary[str, Evaluator] = WeakValueDictionary()
_ARRIVING = threading.Lock()


def _arrived(content: Packed) -> Evaluator:
    """The evaluator that was sent, unpacked once in each process while somebody works with it."""
    with _ARRIVING:
        found = _ARRIVED.get(content.digest)
        if found is None:
            found = _ARRIVED[content.digest] = Evaluator(unpacked(content), content)
        return found
