"""Recording: a model is traced on two disjoint samples, and the graphs must be one.

The first trace writes the expression graph. The second one, on other rows and another number of them,
must find every operation and every constant already there, and must give every formula call the same
nodes. What depends on the rows in any way that the graph does not show (their values in a Python
number, a random draw, state kept between calls) makes a difference, and a difference is an error that
names the formula.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hl_dask.aggregate import Aggregate
from hl_dask.declared import rebuild
from hl_dask.errors import FormulaError, HlDaskError, RowMixingError
from hl_dask.expr import Graph, Op
from hl_dask.fingerprint import mentions, reachable_digests
from hl_dask.formula import DEFAULT, Formula, call_text
from hl_dask.points import ModelPoints
from hl_dask.report import Wanted, check_reported, reported, run_formulas
from hl_dask.trace import BEFORE_RUN, Call, Restart, TraceSession, strip, template_of
from hl_dask.traced import Tracer, TracedArray, is_traced, share

SAMPLE_ROWS = (997, 499)
"""Rows of the two samples; unusual, so that they meet no other length by accident."""
SAMPLE_BYTES = 96 * 2**20
"""Sample values that a trace may hold before it starts again with fewer rows."""
SMALLEST_SAMPLE = 31


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


@dataclass(slots=True)
class Recording:
    """What two traces found.

    Attributes
    ----------
    calls, finished
        Formula calls, and their numbers in the order in which evaluations finish.
    nodes : list of list of int
        For each call, the graph nodes of its value.
    guards : list of (node, call)
        Portfolio values that formulas turned into Python values.
    assumed : dict
        What they were taken to be.
    opaque : dict of str to str
        Formulas that are evaluated as Python and do not declare that they work by row, with the reason.
    declared_opaque : dict of str to str
        Formulas that are evaluated as Python on each block, with the reason.
    """

    graph: Graph
    proj_len: int
    rows: int
    calls: list[Call]
    finished: list[int]
    nodes: list[list[int]]
    outputs: list[Output]
    guards: list[tuple[int, int]]
    assumed: dict[int, Any]
    asked_rows: bool
    opaque: dict[str, str]
    declared_opaque: dict[str, str]
    sample_rows: tuple[int, int]
    schemas: dict[str, tuple[Any, tuple[int, ...], Any]]
    columns: tuple[str, ...]
    elapsed_s: float = 0.0
    programs: dict[tuple[int, ...], Any] = field(default_factory=dict, repr=False)
    sample: Any = field(default=None, repr=False)

    def describe(self, owner: int) -> str:
        """The formula call with this number, as text."""
        return self.calls[owner].text if owner >= 0 else BEFORE_RUN


@dataclass(frozen=True)
class Subject:
    """The model to be recorded, as far as this floor needs to know it.

    Attributes
    ----------
    clone : callable
        ``clone(session)`` gives a fresh copy of the model that evaluates in the session.
    formulas : list of Formula
        All formulas.
    points : ModelPoints or None
        Model points, declared attributes included.
    declared : dict
        Declared per-point attributes by name.
    wanted : Wanted
        Formulas to be evaluated and reported.
    """

    clone: Callable[[Any], Any]
    formulas: list[Formula]
    points: ModelPoints | None
    declared: dict[str, Any]
    wanted: Wanted


def record(subject: Subject, proj_len: int, *, assumed: dict[int, Any] | None = None, graph: Graph | None = None) -> Recording:
    """Trace a model on two samples.

    Parameters
    ----------
    subject : Subject
        The model.
    proj_len : int
        The last time step; t = 0..proj_len.
    assumed : dict, optional
        Known portfolio values by node of ``graph``, from an earlier pass over all rows.
    graph : Graph, optional
        The graph of the earlier pass, to be continued.

    Raises
    ------
    RowMixingError
        When rows are combined in a way that cannot be cut into blocks, or leak into constants.
    FormulaError
        When a formula raises.
    """
    started = time.perf_counter()
    sizes = SAMPLE_ROWS
    while True:
        try:
            with no_collection():
                recording = _record(subject, proj_len, sizes, dict(assumed or {}), graph or Graph())
        except Restart:
            sizes = (max(SMALLEST_SAMPLE, sizes[0] // 4), max(SMALLEST_SAMPLE // 2, sizes[1] // 4))
            graph, assumed = None, None
            continue
        recording.elapsed_s = time.perf_counter() - started
        return recording


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Switch the cyclic garbage collector off for a while.

    A recording makes some hundred thousand small objects that all live on; going through them again and
    again would take as long as the recording itself.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _record(
    subject: Subject, proj_len: int, sizes: tuple[int, int], assumed: dict[int, Any], graph: Graph
) -> Recording:
    first_rows, second_rows = split_sample(subject.points, sizes)
    before = reachable_digests(subject.clone(None), subject.formulas)
    session, outputs = _trace(subject, proj_len, first_rows, graph, assumed, frozen=False)
    _check_state(subject, session, before)
    opaque = dict(session.opaque)
    if not opaque:
        second, again = _trace(subject, proj_len, second_rows, graph, dict(session.tracer.assumed), frozen=True)
        _compare(session, outputs, second, again)
        opaque = dict(second.opaque)
    nodes = []
    for call in session.calls:
        ids: list[int] = []
        template_of(call.value, ids)
        nodes.append(ids)
        call.value = None
    return Recording(
        graph=graph,
        proj_len=proj_len,
        rows=session.tracer.rows,
        calls=session.calls,
        finished=session.finished,
        nodes=nodes,
        outputs=outputs,
        guards=session.tracer.guards,
        assumed=session.tracer.assumed,
        asked_rows=session.tracer.asked_rows,
        opaque=opaque,
        declared_opaque={c.formula.name: c.opaque for c in session.calls if c.opaque},
        sample_rows=(len(first_rows), len(second_rows)),
        schemas=_schemas(subject.points, session),
        columns=subject.points.columns if subject.points is not None else (),
        sample=first_rows,
    )


def _check_state(subject: Subject, session: TraceSession, before: dict[str, str]) -> None:
    """Refuse formulas that keep something, when what they keep may be a number of the sample.

    Without totals turned into Python values, and without the row count, no number of the sample can get
    out of the trace, and a cache is as good as none.
    """
    if not session.tracer.guards and not session.tracer.asked_rows:
        return
    after = reachable_digests(subject.clone(None), subject.formulas)
    changed = [name for name, digest in before.items() if after.get(name, digest) != digest]
    if changed:
        own = {f.name for f in subject.formulas}
        users = [f.name for f in subject.formulas for c in changed if c not in own and mentions(f, c)]
        raise RowMixingError(
            f"something that {', '.join(changed)} can reach (a module variable, a class attribute, a "
            "container or a cache) was changed while formulas turned totals or the row count into Python values",
            formula=", ".join(dict.fromkeys(users + [c for c in changed if c in own])) or None,
            remedy="keep values in formulas only, which remember them for the run; fill caches before the run",
        )


def _schemas(points: ModelPoints | None, session: TraceSession) -> dict[str, Any]:
    """What the columns were that the formulas read."""
    if points is None:
        return {}
    specs = {name: points.schema(name) for name in session.columns}
    return {name: (spec.dtype, spec.shape, spec.categories) for name, spec in specs.items()}


def split_sample(points: ModelPoints | None, sizes: tuple[int, int]) -> tuple[Any, Any]:
    """Two disjoint sets of global row numbers; of one row only when there is but one."""
    if points is None:
        return np.arange(1), np.arange(1)
    positions = points.sample_positions(sum(sizes))
    if len(positions) == 1:
        return positions, positions
    n_second = min(sizes[1], max(1, len(positions) // 3))
    order = np.random.default_rng(len(positions)).permutation(len(positions))
    second, first = np.sort(order[:n_second]), np.sort(order[n_second:][: sizes[0]])
    return positions[first], positions[second]


def _trace(
    subject: Subject, proj_len: int, positions: Any, graph: Graph, assumed: dict[int, Any], *, frozen: bool
) -> tuple[TraceSession, list[Output]]:
    rows = subject.points.rows if subject.points is not None else 1
    tracer = Tracer(graph, rows=rows, sample_rows=len(positions), frozen=frozen, assumed=assumed)
    session = TraceSession(tracer, subject.points, positions, shadow=not frozen and not assumed)
    if len(positions) > SMALLEST_SAMPLE:
        session.limit_bytes = SAMPLE_BYTES
    instance = session.instance = subject.clone(session)
    session.twin = subject.clone(session)
    with np.errstate(all="ignore"):
        _set_up(subject, session, instance)
        run_formulas(subject.wanted, instance, proj_len)
        return session, _aggregate_outputs(subject, session, proj_len)


def _set_up(subject: Subject, session: TraceSession, instance: Any) -> None:
    """Declared attributes become traced, shared arrays watchful, and BeforeRun runs."""
    state = instance.__dict__
    for name, value in subject.declared.items():
        state[name] = session.attributes[name] = rebuild(name, value, session.traced_column)
    _share_arrays(subject, instance, session)
    if hasattr(instance, BEFORE_RUN):
        _before_run(session, instance)
        for name, value in list(state.items()):
            if is_traced(value) and name not in session.attributes:
                value.fresh = False
                session.attributes[name] = value
        plain = {k: v for k, v in state.items() if k not in session.attributes and k[0] != "_"}
        session.twin.__dict__.update({k: v for k, v in plain.items() if not hasattr(v, "formula")})
        _share_arrays(subject, instance, session)
    session.running = True


def _share_arrays(subject: Subject, instance: Any, session: TraceSession) -> None:
    names = {k for c in type(instance).__mro__ for k, v in vars(c).items() if isinstance(v, np.ndarray)}
    names |= {k for k, v in instance.__dict__.items() if isinstance(v, np.ndarray)}
    for name in names - set(session.attributes):
        value = getattr(instance, name)
        if type(value) is np.ndarray:
            instance.__dict__[name] = share(value)


def _before_run(session: TraceSession, instance: Any) -> None:
    tracer = session.tracer
    session.frames.append(Call(BEFORE, ()))
    try:
        instance.BeforeRun()
        reason = tracer.escapes[0] if tracer.escapes else None
        if tracer.failures:
            raise tracer.failures[0]
    except HlDaskError as error:
        error.formula = error.formula or BEFORE_RUN
        raise
    except Exception as error:
        if not tracer.escapes:
            raise FormulaError(
                f"{type(error).__name__}: {error}",
                formula=BEFORE_RUN,
                remedy="see the exception above, which BeforeRun raised; columns and assumptions are read-only",
            ) from error
        reason = tracer.escapes[0]
    finally:
        session.frames.pop()
    if tracer.op_errors:
        raise RowMixingError(
            "BeforeRun catches an error that an array operation raised", formula=BEFORE_RUN,
            remedy="test for the condition with np.where before the operation",
        )
    if reason is not None:
        session.opaque[BEFORE_RUN] = reason
    tracer.escapes = []


BEFORE = Formula(lambda self: None, BEFORE_RUN, "Model")


def _aggregate_outputs(subject: Subject, session: TraceSession, proj_len: int) -> list[Output]:
    outputs = []
    for number, call in enumerate(session.calls):
        function = subject.wanted.aggregates.get(call.formula)
        done = (call.formula, call.key) in session.index
        if function is None or not done or not reported(call.formula, call.key, proj_len):
            continue
        session.tracer.owner = number
        explicit = call.formula.agg is not DEFAULT
        outputs.append(_output(session, call, function, explicit=explicit))
    return outputs


def _output(session: TraceSession, call: Call, function: Any, *, explicit: bool) -> Output:
    value = call.value
    tracer = session.tracer
    if call.formula.name in session.opaque:
        return Output(call.formula, call.key, None, None)
    if is_traced(value) and value.axis >= 0:
        aggregated = _aggregate(tracer, call, value, function)
        if is_traced(aggregated) and aggregated.axis < 0:
            return Output(call.formula, call.key, aggregated.node)
        if is_traced(aggregated):
            raise RowMixingError(
                f"the aggregate {function!r} gives one value for each row",
                formula=call.text,
                remedy="use one that gives a total (np.sum, np.max, hl.Aggregate), or @hl.agg(None)",
            )
        return Output(call.formula, call.key, None, aggregated)
    check_reported(value, call.text, tracer.rows, explicit=explicit)
    if is_traced(value):
        return Output(call.formula, call.key, value.node)
    plain = value.view(np.ndarray) if isinstance(value, np.ndarray) else value
    return Output(call.formula, call.key, None, plain)


def _aggregate(tracer: Tracer, call: Call, value: Any, function: Any) -> Any:
    if isinstance(function, Aggregate):
        op = Op("aggregate", id(function))
        sample = function(value.value)
        node = tracer.node(op, (value.node,), np.asarray(sample), -1)
        tracer.graph.values.setdefault(node, function)
        return TracedArray(tracer, node, sample)
    if function is len:
        function = _count
    if function is np.sum and value.dtype.kind not in "biufc":
        raise FormulaError(
            f"values of dtype {value.dtype} cannot be summed",
            formula=call.text,
            remedy="mark the formula @hl.agg(None), or give another aggregate",
        )
    tracer.escapes, tracer.failures = [], []
    try:
        result = function(value)
    except HlDaskError as error:
        error.formula = call.text
        raise
    except Exception as error:
        raise FormulaError(
            f"the aggregate {function!r} raised {type(error).__name__}: {error}",
            formula=call.text,
            remedy="use np.sum, np.min, np.max, np.mean, np.any, np.all, len, hl.Sum or hl.Aggregate",
        ) from error
    if tracer.escapes:
        raise RowMixingError(
            f"the aggregate {function!r} cannot be followed: {tracer.escapes[0]}",
            formula=call.text,
            remedy="use np.sum, np.min, np.max, np.mean, np.any, np.all, len, hl.Sum or hl.Aggregate(map=, "
            "combine=, finalise=)",
        )
    return result


def _count(value: Any) -> Any:
    ones = np.ones_like(value[(slice(None), *([0] * (value.ndim - 1)))], dtype=np.int64)
    return np.sum(ones)


def _compare(first: TraceSession, outputs: list[Output], second: TraceSession, again: list[Output]) -> None:
    """The two traces must have made the same calls, given them the same nodes, and asked the same."""
    keys = [(c.formula, c.key) for c in first.calls]
    others = [(c.formula, c.key) for c in second.calls]
    if keys != others:
        name = next((a[0].name for a, b in zip(keys, others, strict=False) if a != b), keys[-1][0].name if keys else "")
        raise RowMixingError(
            "which formulas are called depends on the sample of the rows",
            formula=name,
            remedy="let t and assumptions decide which formulas are called, and np.where what a row gets",
        )
    for mine, other in zip(first.calls, second.calls, strict=True):
        left: list[int] = []
        right: list[int] = []
        if strip(template_of(mine.value, left)) != strip(template_of(other.value, right)) or left != right:
            raise RowMixingError(
                "the formula gives another expression on another sample of the rows",
                formula=mine.text,
                remedy="derive nothing from the rows but by array operations and totals",
            )
    if [g[0] for g in first.tracer.guards] != [g[0] for g in second.tracer.guards]:
        owner = _first_difference(first.tracer.guards, second.tracer.guards)
        raise RowMixingError(
            "a Python value taken from a total is kept between runs (in a module, a class or a container)",
            formula=first.calls[owner].text if 0 <= owner < len(first.calls) else BEFORE_RUN,
            remedy="keep values in formulas only; a run starts from nothing",
        )
    for a, b in zip(outputs, again, strict=True):
        if a.node != b.node:
            raise RowMixingError(
                "the aggregate gives another expression on another sample of the rows",
                formula=call_text(a.formula.name, a.key),
                remedy="use np.sum, np.min, np.max, hl.Sum or hl.Aggregate",
            )


def _first_difference(mine: Iterable[tuple[int, int]], other: Iterable[tuple[int, int]]) -> int:
    left, right = list(mine), list(other)
    for a, b in zip(left, right, strict=False):
        if a[0] != b[0]:
            return a[1]
    longer = left if len(left) > len(right) else right
    return longer[min(len(left), len(right))][1] if longer else -1
