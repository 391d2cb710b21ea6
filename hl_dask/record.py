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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hl_dask.declared import rebuild
from hl_dask.errors import FormulaError, HlDaskError, RowMixingError
from hl_dask.expr import Graph
from hl_dask.fingerprint import mentions, reachable_digests
from hl_dask.follow import First, Output, Second
from hl_dask.formula import OWN_STATE, BoundFormula, Formula
from hl_dask.points import ModelPoints
from hl_dask.report import Wanted, run_formulas
from hl_dask.trace import BEFORE_RUN, Call, Restart, TraceSession, describe_owner
from hl_dask.traced import Tracer, is_traced, share
from hl_dask.values import template_of

SAMPLE_ROWS = (997, 499)
"""Rows of the two samples; unusual, so that they meet no other length by accident."""
SAMPLE_BYTES = 64 * 2**20
"""Sample values that a trace may hold before it starts again with fewer rows."""
CHANGE_ERRORS = frozenset({"errstate", "seterr", "seterrcall"})
"""Names without which no formula changes how NumPy treats floating-point errors."""
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
    guards : list of (node, call)
        Portfolio values that formulas turned into Python values.
    assumed : dict
        What they were taken to be.
    opaque : dict of str to str
        Formulas that are evaluated as Python and do not declare that they work by row, with the
        reason.
    declared_opaque : dict of str to str
        Formulas that are evaluated as Python on each block, with the reason.
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
    elapsed_s: float = 0.0
    programs: dict[tuple[int, ...], Any] = field(default_factory=dict, repr=False)

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
    """

    clone: Callable[[Any], Any]
    formulas: list[Formula]
    points: ModelPoints | None
    declared: dict[str, Any]
    wanted: Wanted
    most_rows: int | None = None


def record(
    subject: Subject,
    proj_len: int,
    *,
    assumed: dict[int, Any] | None = None,
    graph: Graph | None = None,
) -> Recording:
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
    sizes = sample_sizes((proj_len + 1) * len(subject.formulas))
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


def sample_sizes(calls: int) -> tuple[int, int]:
    """Sizes of the two samples for a model with about so many formula calls."""
    first, second = SAMPLE_ROWS
    while first > SMALLEST_SAMPLE and calls * first * 8 > SAMPLE_BYTES:
        first, second = first // 4, second // 4
    return max(first, SMALLEST_SAMPLE), max(second, SMALLEST_SAMPLE // 2)


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
    subject: Subject, proj_len: int, sizes: tuple[int, int], assumed: dict[int, Any], graph: Graph
) -> Recording:
    first_rows, second_rows = split_sample(subject.points, sizes)
    before, names = reachable_digests(subject.clone(None), subject.formulas)
    first = First(subject.wanted, proj_len)
    # Asking NumPy for its error state at every operation takes a tenth of the recording.
    watch = names is None or bool(names & CHANGE_ERRORS)
    session = _trace(
        subject, proj_len, first_rows, graph, assumed, first, frozen=False, watch_errors=watch
    )
    _check_state(subject, session, before)
    values = first.finish(session)
    opaque = dict(session.opaque)
    if not opaque:
        second = Second(subject.wanted, proj_len, session, first, values)
        known = dict(session.tracer.assumed)
        again = _trace(subject, proj_len, second_rows, graph, known, second, frozen=True)
        second.finish(again)
        opaque = dict(again.opaque)
    return Recording(
        graph=graph,
        proj_len=proj_len,
        rows=session.tracer.rows,
        calls=session.calls,
        finished=session.finished,
        nodes=[ids for _, ids in values],
        outputs=first.outputs,
        guards=session.tracer.guards,
        assumed=session.tracer.assumed,
        asked_rows=session.tracer.asked_rows,
        opaque=opaque,
        declared_opaque={c.formula.name: c.opaque for c in session.calls if c.opaque},
        sample_rows=(len(first_rows), len(second_rows)),
        schemas=_schemas(subject.points, session),
        columns=subject.points.columns if subject.points is not None else (),
    )


def _check_state(subject: Subject, session: TraceSession, before: dict[str, str]) -> None:
    """Refuse formulas that keep something, when what they keep may be a number of the sample.

    Without totals turned into Python values, and without the row count, no number of the sample can
    get out of the trace, and a cache is as good as none.
    """
    if not session.tracer.guards and not session.tracer.asked_rows:
        return
    after, _ = reachable_digests(subject.clone(None), subject.formulas)
    changed = [name for name, digest in before.items() if after.get(name, digest) != digest]
    if changed:
        own = {f.name for f in subject.formulas}
        users = [
            f.name for f in subject.formulas for c in changed if c not in own and mentions(f, c)
        ]
        msg = (
            f"something that {', '.join(changed)} can reach (a module variable, a class attribute, "
            "a container or a cache) was changed while formulas turned totals or the row count "
            "into Python values"
        )
        raise RowMixingError(
            msg,
            formula=", ".join(dict.fromkeys(users + [c for c in changed if c in own])) or None,
            remedy="keep values in formulas only, which remember them for the run; fill caches "
            "before the run",
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
    subject: Subject,
    proj_len: int,
    positions: Any,
    graph: Graph,
    assumed: dict[int, Any],
    follower: First,
    *,
    frozen: bool,
    watch_errors: bool = False,
) -> TraceSession:
    rows = subject.points.rows if subject.points is not None else 1
    tracer = Tracer(graph, rows=rows, sample_rows=len(positions), frozen=frozen, assumed=assumed)
    tracer.watch_errors = watch_errors
    tracer.most_rows = subject.most_rows
    session = TraceSession(tracer, subject.points, positions, shadow=not frozen and not assumed)
    if len(positions) > SMALLEST_SAMPLE and not frozen:
        session.limit_bytes = SAMPLE_BYTES
    session.on_finish = lambda number: follower.finished(session, number)
    instance = session.instance = subject.clone(session)
    session.twin = subject.clone(session)
    with np.errstate(all="ignore"):
        _set_up(subject, session, instance)
        run_formulas(subject.wanted, instance, proj_len)
    return session


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
            msg = f"{type(error).__name__}: {error}"
            raise FormulaError(
                msg,
                formula=BEFORE_RUN,
                remedy="see the exception above, which BeforeRun raised; columns and assumptions "
                "are read-only",
            ) from error
        reason = tracer.escapes[0]
    finally:
        session.frames.pop()
    if tracer.op_errors:
        msg = "BeforeRun catches an error that an array operation raised"
        raise RowMixingError(
            msg,
            formula=BEFORE_RUN,
            remedy="test for the condition with np.where before the operation",
        )
    if reason is not None:
        session.opaque[BEFORE_RUN] = reason
    tracer.escapes = []


BEFORE = Formula(lambda self: None, BEFORE_RUN, "Model")
