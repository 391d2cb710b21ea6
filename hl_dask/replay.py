"""Replay in one piece: formulas as plain Python on all rows, values released after their last use.

The way of last resort for models whose formulas hl_dask cannot follow, when their data are in
memory: no chunks, so that any formula is right, and no more memory than the values that are alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from hl_dask.dataview import DataView
from hl_dask.errors import FormulaError, HlDaskError
from hl_dask.formula import DEFAULT, Formula, call_text, running
from hl_dask.liveness import last_use
from hl_dask.members import link
from hl_dask.points import ModelPoints
from hl_dask.report import Wanted, aggregate_value, reported, run_formulas
from hl_dask.session import PlainSession

CallKey = tuple[Formula, tuple[Any, ...]]


def plain_view(points: ModelPoints | None) -> DataView | None:
    """``self.data`` of a plain run: whole columns in memory."""
    if points is None:
        return None
    return DataView(points.columns, points.values, lambda: points.rows, points.frame)


class ReportingSession(PlainSession):
    """A plain run that aggregates every reported value and, given a plan, releases values.

    Parameters
    ----------
    data : object
        What ``self.data`` is.
    rows : int or None
        Number of rows.
    wanted : Wanted
        What is reported.
    proj_len : int
        The last time step.
    release : dict, optional
        For a call, the calls whose values are dropped when it has finished.
    """

    def __init__(
        self,
        data: Any,
        rows: int | None,
        wanted: Wanted,
        proj_len: int,
        release: dict[CallKey, list[CallKey]] | None = None,
    ) -> None:
        super().__init__()
        self.data = data
        self.rows = rows
        self.wanted = wanted
        self.proj_len = proj_len
        self.release = release or {}
        self.reports: dict[CallKey, Any] = {}
        self.finished: list[CallKey] = []

    def refuses_writes(self) -> bool:
        """Whether attributes must not change."""
        return self.running or super().refuses_writes()

    def evaluate(
        self, formula: Formula, instance: Any, key: tuple[Any, ...], memo: dict[Any, Any]
    ) -> Any:
        """Evaluate a formula, report it, and drop what is not needed any more."""
        value = super().evaluate(formula, instance, key, memo)
        function = self.wanted.aggregates.get(formula)
        if (
            function is not None
            and (formula, key) not in self.reports
            and reported(formula, key, self.proj_len)
        ):
            with running(None):
                self.reports[formula, key] = aggregate_value(
                    function,
                    value,
                    self.rows,
                    call_text(formula.name, key),
                    explicit=formula.agg is not DEFAULT,
                )
        for other, dead in self.release.get((formula, key), ()):
            self.memo.get(other, {}).pop(dead, None)
        return value


def releases(
    finished: Sequence[int], reads: Callable[[int], Iterable[int]], key: Callable[[int], CallKey]
) -> dict[CallKey, list[CallKey]]:
    """After which call each value is dropped: the last, in order of completion, that reads it."""
    out: dict[CallKey, list[CallKey]] = {}
    for call, position in last_use(finished, reads).items():
        out.setdefault(key(finished[position]), []).append(key(call))
    return out


class Replayable(Protocol):
    """A model to be run in one piece; see :class:`hl_dask.record.Subject`."""

    @property
    def clone(self) -> Callable[[Any], Any]: ...  # noqa: D102
    @property
    def points(self) -> ModelPoints | None: ...  # noqa: D102
    @property
    def wanted(self) -> Wanted: ...  # noqa: D102
    @property
    def member(self) -> str | None: ...  # noqa: D102


def replay_whole(
    subjects: Sequence[Replayable],
    proj_len: int,
    release: Sequence[dict[CallKey, list[CallKey]] | None],
) -> list[dict[CallKey, Any]]:
    """Run formulas on all rows at once, releasing values; the reported values by call."""
    sessions, instances = [], []
    for subject, dead in zip(subjects, release, strict=True):
        points = subject.points
        rows = points.rows if points is not None else None
        session = ReportingSession(plain_view(points), rows, subject.wanted, proj_len, dead)
        sessions.append(session)
        instances.append(subject.clone(session))
    run_together([s.member for s in subjects], [s.wanted for s in subjects], instances, proj_len)
    return [session.reports for session in sessions]


def run_together(
    names: Sequence[str | None], wanted: Sequence[Wanted], instances: Sequence[Any], proj_len: int
) -> None:
    """Run models whose sessions are plain; those of a portfolio see each other."""
    for instance in instances:
        run_before(instance._session, instance)
    if names[0] is not None:
        link([str(name) for name in names], instances, instances)
    for each, instance in zip(wanted, instances, strict=True):
        run_formulas(each, instance, proj_len)


def run_before(session: PlainSession, instance: Any) -> None:
    """Run the user's BeforeRun, which may write attributes; afterwards they are read-only."""
    session.setting_up = True
    if hasattr(instance, "BeforeRun"):
        try:
            with running(instance):
                instance.BeforeRun()
        except HlDaskError as error:
            error.formula = error.formula or "BeforeRun"
            raise
        except Exception as error:
            msg = f"{type(error).__name__}: {error}"
            raise FormulaError(
                msg,
                formula="BeforeRun",
                remedy="see the exception above, which BeforeRun raised; columns and assumptions "
                "are read-only",
            ) from error
    session.setting_up, session.running = False, True


def same_number(a: Any, b: Any) -> bool:
    """Equality with NaN equal to NaN, of scalars and arrays."""
    left, right = np.asarray(a), np.asarray(b)
    if left.shape != right.shape or left.dtype.kind != right.dtype.kind:
        return False
    return bool(np.array_equal(left, right, equal_nan=left.dtype.kind in "fcmM"))
