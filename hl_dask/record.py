"""Recording: a model is traced on two disjoint samples, and the graphs must be one.

The first trace writes the expression graph. The second one, on other rows and another number of
them, must find every operation and every constant already there, and must give every formula call
the same nodes. What depends on the rows in any way that the graph does not show (their values in a
Python number, a random draw, state kept between calls) makes a difference, and a difference is an
error that names the formula.
"""

from __future__ import annotations

import contextlib
import gc
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from hl_dask.declared import rebuild
from hl_dask.errors import FormulaError, HlDaskError, RowMixingError
from hl_dask.expr import Graph
from hl_dask.fingerprint import mentions
from hl_dask.follow import First, Output, Second
from hl_dask.formula import OWN_STATE, BoundFormula, Formula, running
from hl_dask.members import link
from hl_dask.points import ModelPoints
from hl_dask.reach import Reach
from hl_dask.report import Wanted, run_formulas
from hl_dask.trace import (
    BEFORE_RUN,
    Call,
    Restart,
    TraceSession,
    describe_owner,
)
from hl_dask.traced import SampleUsedError, Tracer, is_traced, share
from hl_dask.values import ValueShape, template_of

SAMPLE_ROWS = (997, 499)
"""Rows of the two samples; unusual, so that they meet no other length by accident."""
PROBE_ROWS = (257, 127)
"""Rows to begin with. The graph of a model in which no value of a row leaves the trace, and no
total becomes a Python value, is the same whatever the rows are, and their number only costs time.
Where one does, the samples are taken in full."""
SAMPLE_BYTES = 64 * 2**20
"""Sample values that a trace may hold before it starts again with fewer rows."""
CHANGE_ERRORS = frozenset(
    ("errstate", "seterr", "seterrcall", "catch_warnings", "simplefilter", "filterwarnings")
)
"""Names without which no formula changes what becomes of floating-point errors."""
TYPE_QUESTIONS = frozenset({"type", "isinstance", "issubclass", "hasattr", "__class__"})
"""Names without which no formula goes another way with plain arrays than with traced ones, which
few rows might not show."""
SMALLEST_SAMPLE = 31


@dataclass(slots=True)
class Recording:
    """What two traces found.

    Attributes
    ----------
    calls, finished
        Formula calls, and their numbers in the order in which evaluations finish.
    nodes : list of tuple of int
        For each call, the graph nodes of its value.
    templates : dict of int to object
        What the value of a call is made of, where it is not one traced array; see
        :func:`~hl_dask.values.template_of`.
    guards : list of (node, call)
        Portfolio values that formulas turned into Python values.
    assumed : dict
        What they were taken to be.
    opaque : dict of str to str
        Formulas that are evaluated as Python and do not declare that they work by row, with the
        reason.
    declared_opaque : dict of str to str
        Formulas that are evaluated as Python on each block, with the reason.
    member : str or None
        Name of the model in its portfolio, whose recordings share graph, guards and assumptions.
    """

    graph: Graph
    proj_len: int
    rows: int
    calls: list[Call]
    finished: list[int]
    nodes: list[tuple[int, ...]]
    outputs: list[Output]
    guards: list[tuple[int, Any]]
    assumed: dict[int, Any]
    asked_rows: bool
    opaque: dict[str, str]
    declared_opaque: dict[str, str]
    sample_rows: tuple[int, int]
    schemas: dict[str, tuple[Any, tuple[int, ...], Any]]
    columns: tuple[str, ...]
    member: str | None = None
    elapsed_s: float = 0.0
    templates: dict[int, Any] = field(default_factory=dict, repr=False)
    programs: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False)
    evaluator: Any = field(default=None, repr=False)

    def describe(self, owner: Any) -> str:
        """The formula call that an operation belongs to, as text."""
        return describe_owner(owner)


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
    most_rows : int or None
        Rows up to which a formula may be told their number, with which it makes whole arrays.
    rows : int or None
        Number of policies that formulas are told; that of ``points`` by default.
    member : str or None
        Name of the model in its portfolio; None when it is recorded alone.
    """

    clone: Callable[[Any], Any]
    formulas: list[Formula]
    points: ModelPoints | None
    declared: dict[str, Any]
    wanted: Wanted
    most_rows: int | None = None
    rows: int | None = None
    member: str | None = None


def record(
    subject: Subject,
    proj_len: int,
    *,
    assumed: dict[int, Any] | None = None,
    graph: Graph | None = None,
) -> Recording:
    """Trace a model that stands alone; see :func:`record_together`."""
    (recording,) = record_together([subject], proj_len, assumed=assumed, graph=graph)
    return recording


def record_together(
    subjects: Sequence[Subject],
    proj_len: int,
    *,
    assumed: dict[int, Any] | None = None,
    graph: Graph | None = None,
) -> list[Recording]:
    """Trace models on two samples, into one graph.

    Parameters
    ----------
    subjects : sequence of Subject
        The model, or the models of a portfolio, which have names then.
    proj_len : int
        The last time step; t = 0..proj_len.
    assumed : dict, optional
        Known portfolio values by node of ``graph``, from an earlier pass over all rows.
    graph : Graph, optional
        The graph of the earlier pass, to be continued.

    Returns
    -------
    list of Recording
        One for each model.

    Raises
    ------
    RowMixingError
        When rows are combined in a way that cannot be cut into blocks, or leak into constants.
    FormulaError
        When a formula raises.
    """
    started = time.perf_counter()
    reach = Reach([(partial(subject.clone, None), subject.formulas) for subject in subjects])
    formulas = sum(len(subject.formulas) for subject in subjects)
    full = sizes = sample_sizes((proj_len + 1) * formulas)
    if not assumed and reach.names is not None and not reach.names & TYPE_QUESTIONS:
        sizes = min(full, PROBE_ROWS)
    while True:
        known = dict(assumed or {})
        probe = sizes < full
        try:
            with no_collection():
                recordings = _record(
                    subjects, proj_len, sizes, known, graph or Graph(), reach, probe=probe
                )
        except SampleUsedError:
            sizes = full
            continue
        except Restart:
            full = sizes = _quarter(sizes)
            graph, assumed = None, None
            continue
        finally:
            reach.restore()
        elapsed_s = time.perf_counter() - started
        for recording in recordings:
            recording.elapsed_s = elapsed_s
        return recordings


def sample_sizes(calls: int) -> tuple[int, int]:
    """Sizes of the two samples for a model with about so many formula calls."""
    first, second = SAMPLE_ROWS
    while first > SMALLEST_SAMPLE and calls * first * 8 > SAMPLE_BYTES:
        first, second = _quarter((first, second))
    return first, second


def _quarter(sizes: tuple[int, int]) -> tuple[int, int]:
    return max(sizes[0] // 4, SMALLEST_SAMPLE), max(sizes[1] // 4, SMALLEST_SAMPLE // 2)


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Switch the cyclic garbage collector off for a while.

    A recording makes some hundred thousand small objects that all live on; going through them again
    and again would take as long as the recording itself.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if gc.get_freeze_count() == 0:
                # What was made meanwhile is old by now: the next collection of young objects, which
                # comes at once, would go through all of it.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _record(
    subjects: Sequence[Subject],
    proj_len: int,
    sizes: tuple[int, int],
    assumed: dict[int, Any],
    graph: Graph,
    reach: Reach,
    *,
    probe: bool,
) -> list[Recording]:
    samples = [split_sample(subject.points, sizes) for subject in subjects]
    firsts = [First(subject.wanted, proj_len) for subject in subjects]
    sessions = [
        _session(subject, rows, graph, assumed)
        for subject, (rows, _) in zip(subjects, samples, strict=True)
    ]
    # Asking NumPy for its error state at every operation takes a tenth of the recording.
    watch_errors = reach.names is None or bool(reach.names & CHANGE_ERRORS)
    for session in sessions:
        session.shadow = not assumed
        session.probe = probe
        if len(session.positions) > SMALLEST_SAMPLE:
            session.limit_bytes = SAMPLE_BYTES // len(sessions)
        session.tracer.watch_errors = watch_errors
    _trace(subjects, proj_len, sessions, firsts, reach)
    reach.restore()
    _check_state(subjects, sessions, reach)
    values = [first.finish(session) for first, session in zip(firsts, sessions, strict=True)]
    opaque = [dict(session.opaque) for session in sessions]
    if not any(opaque):
        others = [rows for _, rows in samples]
        again = _second_trace(subjects, proj_len, others, sessions, firsts, values, reach)
        opaque = [dict(session.opaque) for session in again]
    return [
        Recording(
            graph=graph,
            proj_len=proj_len,
            rows=session.tracer.rows,
            calls=session.calls,
            finished=session.finished,
            nodes=[ids for _, ids in shapes],
            outputs=first.outputs,
            guards=session.tracer.guards,
            assumed=session.tracer.assumed,
            asked_rows=session.tracer.notes.asked_rows,
            opaque=found,
            declared_opaque={c.formula.name: c.opaque for c in session.calls if c.opaque},
            sample_rows=(len(one), len(other)),
            schemas=_schemas(subject.points, session),
            columns=subject.points.columns if subject.points is not None else (),
            templates=first.templates,
            member=subject.member,
        )
        for subject, session, first, shapes, found, (one, other) in zip(
            subjects, sessions, firsts, values, opaque, samples, strict=True
        )
    ]


def _second_trace(
    subjects: Sequence[Subject],
    proj_len: int,
    positions: Sequence[Any],
    firsts: Sequence[TraceSession],
    outputs: Sequence[First],
    values: Sequence[list[ValueShape]],
    reach: Reach,
) -> list[TraceSession]:
    """The trace on other rows, which must come to the same graph.

    Its operations need not be done: they are looked up in the graph (a *blind* trace). Where
    something asks for a value, an opaque formula for one, the trace is made again with values. No
    number of the rows has got out of it by then.
    """
    tracer = firsts[0].tracer
    for blind in (True, False):
        known = dict(tracer.assumed)
        seconds = [
            Second(subject.wanted, proj_len, first, output, shapes)
            for subject, first, output, shapes in zip(
                subjects, firsts, outputs, values, strict=True
            )
        ]
        sessions = [
            _session(subject, rows, tracer.graph, known, frozen=True, blind=blind)
            for subject, rows in zip(subjects, positions, strict=True)
        ]
        for session in sessions:
            session.probe = blind
        try:
            _trace(subjects, proj_len, sessions, seconds, reach)
            for second, session in zip(seconds, sessions, strict=True):
                second.finish(session)
            break
        except KeyboardInterrupt:
            raise
        except BaseException:
            # Whatever the formulas make of it, a blind trace that is asked for a value is over.
            if not (blind and any(session.tracer.sample_used for session in sessions)):
                raise
        reach.restore()
    return sessions


def _check_state(
    subjects: Sequence[Subject], sessions: Sequence[TraceSession], reach: Reach
) -> None:
    """Refuse formulas that keep something, when what they keep may be a number of the sample.

    Without totals turned into Python values, without the row count, and without opaque formulas, no
    number of the sample can get out of the trace, and a cache is as good as none.
    """
    if not any(session.tracer.told or session.tracer.guards for session in sessions):
        return
    # A replay in one piece would go on with what an object has kept of the sample.
    changed = reach.changed(unknown=any(session.opaque for session in sessions))
    if changed:
        formulas = [f for subject in subjects for f in subject.formulas]
        own = {f.name for f in formulas}
        users = [f.name for f in formulas for c in changed if c not in own and mentions(f, c)]
        msg = (
            f"something that {', '.join(changed)} can reach (a module variable, a class attribute, "
            "a container or an iterator) was changed, and cannot be put back, while formulas "
            "turned totals, the row count or values of rows into Python values"
        )
        raise RowMixingError(
            msg,
            formula=", ".join(dict.fromkeys(users + [c for c in changed if c in own])) or None,
            remedy="keep values in formulas only, which remember them for the run; fill caches "
            "before the run, and declare formulas that work row by row @hl.per_point",
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
    n_second = min(sizes[1], -(-len(positions) // 3))
    order = np.random.default_rng(len(positions)).permutation(len(positions))
    second, first = np.sort(order[:n_second]), np.sort(order[n_second:][: sizes[0]])
    return positions[first], positions[second]


def _session(
    subject: Subject,
    positions: Any,
    graph: Graph,
    assumed: dict[int, Any],
    *,
    frozen: bool = False,
    blind: bool = False,
) -> TraceSession:
    """What a trace on these rows is made with."""
    rows = subject.points.rows if subject.points is not None else 1
    tracer = Tracer(
        graph,
        rows=rows if subject.rows is None else subject.rows,
        sample_rows=len(positions),
        frozen=frozen,
        assumed=assumed,
        blind=blind,
        member=subject.member,
    )
    tracer.watch_errors = False
    tracer.filters = list(warnings.filters)
    tracer.most_rows = subject.most_rows
    return TraceSession(tracer, subject.points, positions)


def _trace(
    subjects: Sequence[Subject],
    proj_len: int,
    sessions: Sequence[TraceSession],
    followers: Sequence[First],
    reach: Reach,
) -> None:
    """Run the formulas of all models; what passes between them they ask of each other."""
    guards: list[tuple[int, Any]] = []
    for subject, session, follower in zip(subjects, sessions, followers, strict=True):
        session.on_finish = partial(follower.finished, session)
        session.instance = subject.clone(session)
        session.twin = subject.clone(session)
        session.peers, session.reach = sessions, reach
        session.tracer.guards = guards
    try:
        with np.errstate(all="ignore"):
            for subject, session in zip(subjects, sessions, strict=True):
                _set_up(subject, session, session.instance)
            if subjects[0].member is not None:
                names = [str(subject.member) for subject in subjects]
                for each in ([s.instance for s in sessions], [s.twin for s in sessions]):
                    link(names, [s.instance for s in sessions], each)
            for subject, session in zip(subjects, sessions, strict=True):
                run_formulas(subject.wanted, session.instance, proj_len)
        for session in sessions:
            session.check_probe()
    finally:
        for session in sessions:
            session.tracer.over = True


def _set_up(subject: Subject, session: TraceSession, instance: Any) -> None:
    """Declared attributes become traced, shared arrays watchful, and BeforeRun runs."""
    state = instance.__dict__
    for name, value in subject.declared.items():
        state[name] = session.attributes[name] = rebuild(name, value, session.traced_column)
    _share_arrays(instance, session)
    if hasattr(instance, BEFORE_RUN):
        _before_run(session, instance)
        for name, value in state.items():
            if name in OWN_STATE or name in session.attributes or isinstance(value, BoundFormula):
                continue
            if _holds_rows(value):
                session.attributes[name] = value
            else:
                session.twin.__dict__[name] = value
        _share_arrays(instance, session)
    session.running = True


def _holds_rows(value: Any) -> bool:
    """Whether traced arrays are within a value that BeforeRun has assigned."""
    if is_traced(value):
        value.fresh = False
        return True
    nodes: list[int] = []
    template_of(value, nodes)
    return bool(nodes)


def _share_arrays(instance: Any, session: TraceSession) -> None:
    names = {
        k for c in type(instance).__mro__ for k, v in vars(c).items() if isinstance(v, np.ndarray)
    }
    names |= {k for k, v in instance.__dict__.items() if isinstance(v, np.ndarray)}
    for name in names - set(session.attributes):
        value = getattr(instance, name)
        if type(value) is np.ndarray:
            instance.__dict__[name] = share(value)


def _before_run(session: TraceSession, instance: Any) -> None:
    notes = session.tracer.notes
    session.frames.append(Call(BEFORE, ()))
    try:
        with running(instance):
            instance.BeforeRun()
        reason = notes.escapes[0] if notes.escapes else None
        if notes.failures:
            raise notes.failures[0]
    except HlDaskError as error:
        error.formula = error.formula or BEFORE_RUN
        raise
    except Exception as error:
        if not notes.escapes:
            msg = f"{type(error).__name__}: {error}"
            raise FormulaError(
                msg,
                formula=BEFORE_RUN,
                remedy="see the exception above, which BeforeRun raised; columns and assumptions "
                "are read-only",
            ) from error
        reason = notes.escapes[0]
    finally:
        session.frames.pop()
    if notes.op_errors:
        msg = "BeforeRun catches an error that an array operation raised"
        raise RowMixingError(
            msg,
            formula=BEFORE_RUN,
            remedy="test for the condition with np.where before the operation",
        )
    # What BeforeRun has made of a total may be anywhere by now.
    session.assumed_before = tuple((n, session.tracer.assumed[n]) for n, _ in session.tracer.guards)
    if reason is not None:
        session.opaque[BEFORE_RUN] = reason
    notes.escapes = ()


BEFORE = Formula(lambda self: None, BEFORE_RUN, "Model")
