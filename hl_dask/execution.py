"""One execution of a model: a recording that still holds or a new one, passes, a result.

An :class:`Order` is a snapshot of the model and of what the user asked for. An :class:`Execution`
needs nothing else, so that a prepared run gives the numbers of the model that it was prepared from,
whatever happens to the model in the meantime.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hl_dask.blocks import Blocks
from hl_dask.budget import fit_states, processors
from hl_dask.errors import ModelError, OpaqueFormulaError
from hl_dask.fingerprint import source_digest
from hl_dask.formula import Formula
from hl_dask.lazy import LazyResult
from hl_dask.memory import MemoryEstimate
from hl_dask.parcel import environment
from hl_dask.plan import ActionPlan
from hl_dask.planning import build_plan, program_of
from hl_dask.points import ColumnSpec
from hl_dask.record import Recording, Subject, record
from hl_dask.replay import releases, replay_whole
from hl_dask.report import Report, in_order, summed
from hl_dask.result import Result
from hl_dask.run import Projection, RunStats, Settings, check_granularity, check_scheduler


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
    """Record a model and plan its replay.

    Raises
    ------
    RowMixingError, FormulaError, UnsupportedError
    """
    subject = order.subject
    recording = record(subject, order.proj_len)
    fingerprint = {f.name: source_digest(f) for f in subject.formulas}
    plan = build_plan(
        recording, order.model, order.outputs, order.block_rows, fingerprint, subject.points
    )
    return Recorded(recording, order.bind(plan), order.state, subject.formulas)


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


def _same_kind(spec: ColumnSpec, dtype: Any, shape: tuple[int, ...], categories: Any) -> bool:
    if spec.dtype != dtype or spec.shape != shape:
        return False
    if spec.categories is None or categories is None:
        return spec.categories is categories
    return spec.categories is categories or np.array_equal(spec.categories, categories)


def project_memory(
    recorded: Recorded, order: Order, rows: int, memory: int | str | None
) -> tuple[Blocks, int, MemoryEstimate, int, bool] | None:
    """What a run on threads is projected to take; None for a replay in one piece.

    Raises
    ------
    MemoryBudgetError
        When it would be refused.
    """
    recording = recorded.recording
    if recording.opaque:
        return None
    return fit_states(
        program_of(recording),
        order.subject.points,
        rows,
        order.block_rows,
        memory=memory,
        most_workers=processors(),
        chunk_blocks=None,
    )


class Execution:
    """One execution of a model.

    Parameters
    ----------
    order : Order
        What is to be run.
    settings : Settings
        Memory, scheduler, threads.
    known : Recorded, optional
        An earlier recording, used if it still holds.
    publish : callable
        ``publish(result)`` is called when there is a result.
    """

    def __init__(
        self,
        order: Order,
        settings: Settings,
        known: Recorded | None,
        publish: Callable[[Result], None],
    ) -> None:
        check_scheduler(settings.scheduler)
        check_granularity(settings.granularity)
        self.order = order
        self.settings = settings
        self._publish = publish
        self.record_s = 0.0
        if known is not None and still_holds(known, order):
            self.recorded = known
        else:
            self.recorded = record_order(order)
            self.record_s = self.recorded.recording.elapsed_s
        self.plan = self.recorded.plan
        if self.plan.block_rows != order.block_rows:
            self.plan = self.plan.with_blocks(order.block_rows)

    def projection(self) -> Projection | None:
        """The passes over the rows, not started; None when the model is replayed in one piece."""
        recording = self.recorded.recording
        if recording.opaque:
            return None
        order = self.order
        projection = Projection(
            recording, self._again, order.subject.points, order.block_rows, self.settings
        )
        projection.stats.record_s = self.record_s
        return projection

    def _again(self, recording: Recording, assumed: dict[int, Any]) -> Recording:
        """The recording with known totals in place of those of the sample."""
        order = self.order
        return record(order.subject, order.proj_len, assumed=assumed, graph=recording.graph)

    def execute(self, projection: Projection | None = None) -> Result:
        """Run, and publish the result.

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
        else:
            values = projection.run()
            stats = projection.stats
            reports = [
                (o.formula, o.key, o.value if o.node is None else values[o.node])
                for o in projection.recording.outputs
            ]
        stats.elapsed_s = time.perf_counter() - started + self.record_s
        stats.environment = environment()
        order = self.order
        reports = in_order(reports, order.subject.formulas)
        sums = summed(order.subject.wanted)
        result = Result(reports, order.proj_len, stats, self.plan, self.lazy, summed=sums)
        self._publish(result)
        return result

    def lazy(self) -> LazyResult:
        """The run as a Dask collection that computes the result."""
        order = self.order
        title = f"{order.model}: {order.rows:,} policies x {order.proj_len + 1} months"
        return LazyResult(title, self.projection(), self.settings, self.execute)

    def _in_one_piece(self) -> tuple[list[Report], RunStats]:
        """Reports of a replay on all rows at once, for formulas that cannot be followed."""
        order, recording = self.order, self.recorded.recording
        subject = order.subject
        reasons = "; ".join(f"{name}: {why}" for name, why in recording.opaque.items())
        if subject.points is not None and not subject.points.in_memory:
            msg = (
                "hl_dask cannot see what these formulas do to the rows, and the data are not in "
                f"memory: {reasons}"
            )
            raise OpaqueFormulaError(
                msg,
                formula=", ".join(recording.opaque),
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
        calls = recording.calls
        release = releases(
            recording.finished, lambda c: calls[c].reads, lambda c: (calls[c].formula, calls[c].key)
        )
        found = replay_whole(subject.clone, subject.points, subject.wanted, order.proj_len, release)
        stats = RunStats(
            rows=order.rows, months=order.proj_len + 1, record_s=self.record_s, passes=1
        )
        return [(f, k, v) for (f, k), v in found.items()], stats


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
