"""One execution of a model: a recording that still holds or a new one, passes, a result.

An :class:`Order` is a snapshot of the model and of what the user asked for. An :class:`Execution`
needs nothing else, so that a prepared run gives the numbers of the model that it was prepared from,
whatever happens to the model in the meantime.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hl_dask.budget import processors
from hl_dask.errors import ModelError, OpaqueFormulaError
from hl_dask.fingerprint import source_digest
from hl_dask.formula import Formula
from hl_dask.lazy import LazyResult
from hl_dask.parcel import environment
from hl_dask.plan import ActionPlan
from hl_dask.planning import build_plan, programs_of
from hl_dask.points import ColumnSpec
from hl_dask.program import Program
from hl_dask.record import Recording, Subject, record_together
from hl_dask.replay import releases, replay_whole
from hl_dask.report import Report, in_order, summed
from hl_dask.result import Result
from hl_dask.run import Projection
from hl_dask.settings import RunStats, Settings, check_granularity, check_scheduler
from hl_dask.thresholds import Threshold, thresholds_of, warn_of_narrow
from hl_dask.ways import Fit, fit_programs, ways_of


@dataclass(frozen=True)
class Order:
    """What is to be run.

    Attributes
    ----------
    model : str
        Name of the model class.
    subject : Subject
        The model as it is now.
    proj_len : int
        The last time step.
    outputs : tuple of str or None
        Formulas asked for; None for all that are reported.
    block_rows : int
        Rows of a block.
    state : hashable or None
        What a recording rests on, apart from the data; None when that cannot be told.
    bind : callable
        Puts the model behind the plan of a recording, so that the plan can be evaluated.
    """

    model: str
    subject: Subject
    proj_len: int
    outputs: tuple[str, ...] | None
    block_rows: int
    state: Hashable | None
    bind: Callable[[ActionPlan], ActionPlan]

    @property
    def rows(self) -> int:
        """Number of policies; 1 when the model has no data."""
        points = self.subject.points
        return points.rows if points is not None else 1


@dataclass(frozen=True)
class Recorded:
    """A recording, its plan, and what it rests on."""

    recording: Recording
    plan: ActionPlan
    state: Hashable | None
    formulas: list[Formula]


def record_order(order: Order) -> Recorded:
    """Record a model and plan its replay; see :func:`record_orders`."""
    (recorded,) = record_orders([order])
    return recorded


def record_orders(orders: Sequence[Order]) -> list[Recorded]:
    """Record a model, or the models of a portfolio together, and plan their replay.

    Raises
    ------
    RowMixingError, FormulaError, UnsupportedError
    """
    recordings = record_together([order.subject for order in orders], orders[0].proj_len)
    found = []
    for number, (order, recording) in enumerate(zip(orders, recordings, strict=True)):
        subject = order.subject
        fingerprint = {f.name: source_digest(f) for f in subject.formulas}
        plan = build_plan(
            recording,
            order.model,
            order.outputs,
            order.block_rows,
            fingerprint,
            subject.points,
            partial(_program, recordings, number),
        )
        found.append(Recorded(recording, order.bind(plan), order.state, subject.formulas))
    return found


def _program(recordings: Sequence[Recording], number: int) -> Program:
    return programs_of(recordings)[number]


def same_model(recorded: Recorded, order: Order) -> bool:
    """Whether formulas and assumptions are those of a recording."""
    if order.state is None or recorded.state != order.state:
        return False
    mine, other = order.subject.formulas, recorded.formulas
    # The class may have been made anew (cloudpickle does that), or a formula of it assigned.
    return len(mine) == len(other) and all(a is b for a, b in zip(mine, other, strict=True))


def still_holds(recorded: Recorded, order: Order) -> bool:
    """Whether a recording may be used for an order: nothing has changed that it has taken in."""
    if not same_model(recorded, order):
        return False
    recording, points = recorded.recording, order.subject.points
    if recording.asked_rows and recording.rows != order.rows:
        return False
    if points is None:
        return not recording.columns and not recording.schemas
    return points.columns == recording.columns and all(
        _same_kind(points.schema(name), *kind) for name, kind in recording.schemas.items()
    )


def all_hold(recorded: Sequence[Recorded], orders: Sequence[Order]) -> bool:
    """Whether the recordings of all models hold: those that were made together."""
    return all(still_holds(each, order) for each, order in zip(recorded, orders, strict=True))


def _same_kind(spec: ColumnSpec, dtype: Any, shape: tuple[int, ...], categories: Any) -> bool:
    if spec.dtype != dtype or spec.shape != shape:
        return False
    if spec.categories is None or categories is None:
        return spec.categories is categories
    return spec.categories is categories or np.array_equal(spec.categories, categories)


def project_memory(
    recorded: Sequence[Recorded],
    orders: Sequence[Order],
    rows: Sequence[int],
    memory: int | str | None,
) -> Fit | None:
    """What a run on threads is projected to take; None for a replay in one piece.

    Parameters
    ----------
    rows : sequence of int
        Number of policies of each model.

    Raises
    ------
    MemoryBudgetError
        When it would be refused.
    """
    recordings = [each.recording for each in recorded]
    if any(recording.opaque for recording in recordings):
        return None
    points = [order.subject.points for order in orders]
    return fit_programs(
        lambda again: programs_of(recordings, again=again),
        points,
        rows,
        ways_of(points),
        block_rows=orders[0].block_rows,
        memory=memory,
        most_workers=processors(),
        chunk_blocks=None,
    )


class Execution:
    """One execution of a model, or of the models of a portfolio together.

    Parameters
    ----------
    orders : sequence of Order
        What is to be run, for each model.
    settings : Settings
        Memory, scheduler, threads.
    known : sequence of Recorded, optional
        Earlier recordings, used if they still hold.
    publish : callable
        ``publish(results)`` is called when there are results, one for each model, and gives what
        the run gives back.
    """

    def __init__(
        self,
        orders: Sequence[Order],
        settings: Settings,
        known: Sequence[Recorded] | None,
        publish: Callable[[list[Result]], Any],
    ) -> None:
        check_scheduler(settings.scheduler)
        check_granularity(settings.granularity)
        self.orders = list(orders)
        self.settings = settings
        self._publish = publish
        self.record_s = 0.0
        if known is not None and all_hold(known, orders):
            self.recorded = list(known)
        else:
            self.recorded = record_orders(orders)
            self.record_s = self.recorded[0].recording.elapsed_s
        self.plans = [recorded.plan for recorded in self.recorded]
        block_rows = orders[0].block_rows
        if self.plans[0].block_rows != block_rows:
            self.plans = [plan.with_blocks(block_rows) for plan in self.plans]

    def projection(self) -> Projection | None:
        """The passes over the rows, not started; None when all is replayed in one piece."""
        recordings = [recorded.recording for recorded in self.recorded]
        if any(recording.opaque for recording in recordings):
            return None
        points = [order.subject.points for order in self.orders]
        projection = Projection(
            recordings, self._again, points, self.orders[0].block_rows, self.settings
        )
        projection.stats.record_s = self.record_s
        return projection

    def _again(self, recordings: list[Recording], assumed: dict[int, Any]) -> list[Recording]:
        """The recordings with known totals in place of those of the sample."""
        subjects = [order.subject for order in self.orders]
        graph = recordings[0].graph
        return record_together(subjects, self.orders[0].proj_len, assumed=assumed, graph=graph)

    def execute(self, projection: Projection | None = None) -> Any:
        """Run, and publish the results.

        Parameters
        ----------
        projection : Projection, optional
            Passes that have been prepared, and perhaps computed.

        Raises
        ------
        MemoryBudgetError, OpaqueFormulaError, FormulaError, UnsupportedError
        """
        started = time.perf_counter()
        if projection is None:
            projection = self.projection()
        if projection is None:
            reports, stats = self._in_one_piece()
            thresholds: list[list[Threshold]] = [[] for _ in self.orders]
        else:
            values = projection.run()
            stats = projection.stats
            reports = [
                [
                    (o.formula, o.key, o.value if o.node is None else values[o.node])
                    for o in recording.outputs
                ]
                for recording in projection.recordings
            ]
            thresholds = thresholds_of(projection.recordings, projection.known)
            warn_of_narrow([t for found in thresholds for t in found], stacklevel=4)
        stats.elapsed_s = time.perf_counter() - started + self.record_s
        stats.environment = environment()
        results = [
            Result(
                in_order(found, order.subject.formulas),
                order.proj_len,
                stats,
                plan,
                self.lazy,
                summed=summed(order.subject.wanted),
                thresholds=own,
            )
            for order, plan, found, own in zip(
                self.orders, self.plans, reports, thresholds, strict=True
            )
        ]
        return self._publish(results)

    def lazy(self) -> LazyResult:
        """The run as a Dask collection that computes the result."""
        names = ", ".join(order.model for order in self.orders)
        rows = sum(order.rows for order in self.orders)
        title = f"{names}: {rows:,} policies x {self.orders[0].proj_len + 1} months"
        return LazyResult(title, self.projection(), self.settings, self.execute)

    def _in_one_piece(self) -> tuple[list[list[Report]], RunStats]:
        """Reports of a replay on all rows at once, for formulas that cannot be followed."""
        recordings = [recorded.recording for recorded in self.recorded]
        opaque = {name: why for recording in recordings for name, why in recording.opaque.items()}
        reasons = "; ".join(f"{name}: {why}" for name, why in opaque.items())
        points = [order.subject.points for order in self.orders]
        if any(each is not None and not each.in_memory for each in points):
            msg = (
                "hl_dask cannot see what these formulas do to the rows, and the data are not in "
                f"memory: {reasons}"
            )
            raise OpaqueFormulaError(
                msg,
                formula=", ".join(opaque),
                remedy="if each row's value depends on that row alone, add @hl.per_point above the "
                "formula; else write it with array operations and totals, or with hl.Table and "
                "hl.lookup",
            )
        warnings.warn(
            "replaying in one piece, because hl_dask cannot see what these formulas do to the "
            f"rows: {reasons}. If each row's value depends on that row alone, add @hl.per_point "
            "above the formula",
            stacklevel=4,
        )
        release: list[Any] = [None] * len(recordings)
        if len(recordings) == 1:
            # What a model asks of another is not among the reads of the other.
            (recording,) = recordings
            calls = recording.calls
            release = [
                releases(
                    recording.finished,
                    lambda c: calls[c].reads,
                    lambda c: (calls[c].formula, calls[c].key),
                )
            ]
        proj_len = self.orders[0].proj_len
        found = replay_whole([order.subject for order in self.orders], proj_len, release)
        rows = sum(order.rows for order in self.orders)
        stats = RunStats(rows=rows, months=proj_len + 1, record_s=self.record_s, passes=1)
        return [[(f, k, v) for (f, k), v in each.items()] for each in found], stats


def check_count(name: str, value: Any) -> None:
    """Refuse what is neither None nor a whole number of at least 1.

    Raises
    ------
    ModelError
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        msg = f"{name} is a whole number of at least 1; got {value!r}"
        raise ModelError(msg, remedy="leave it out to let hl_dask choose")
