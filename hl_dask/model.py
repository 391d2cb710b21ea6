"""The model: what the user subclasses, and calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hl_dask.blocks import BLOCK_ROWS
from hl_dask.check import compare
from hl_dask.declared import shared_fields
from hl_dask.errors import ModelError, PlanError
from hl_dask.evaluate import Evaluator, evaluator_of
from hl_dask.execution import (
    Execution,
    Order,
    Recorded,
    check_count,
    project_memory,
    record_order,
    same_model,
    still_holds,
)
from hl_dask.fingerprint import state_digest
from hl_dask.formula import OWN_STATE, BoundFormula
from hl_dask.instance import ABSENT, Instance
from hl_dask.plan import ActionPlan
from hl_dask.points import ModelPoints
from hl_dask.replay import ReportingSession, plain_view, run_together
from hl_dask.report import (
    Report,
    by_call,
    check_proj_len,
    choose,
    in_order,
    run_formulas,
    unreported,
)
from hl_dask.result import Result, tabulate, tabulate_values
from hl_dask.settings import Settings


class Model(Instance, framework=True):
    """A projection written as formulas: public methods whose names start with a lowercase letter.

    Parameters
    ----------
    data : DataFrame, mapping, path or ModelPoints, optional
        Model points: anything that :class:`~hl_dask.ModelPoints` takes; or a dict of scalars, one
        policy.
    **assumptions
        Become attributes.

    Raises
    ------
    ModelError
        When an assumption has the name of a formula or of the framework.

    Notes
    -----
    ``model_points = ("initial_pols_if", "mp")`` on the class declares attributes that have an entry
    for each policy. ``assumptions = ("rates",)`` declares arrays that are shared although they are
    as long as the data.

    ``BeforeRun`` may derive attributes from data before the formulas are evaluated. ``AfterRun`` is
    called on the model at the end of ``RunModel`` and of ``ExecuteActions``, with the results in
    place, and may keep what it makes of them as attributes. What the two assign belongs to that
    run: it is gone when data or assumptions are assigned, as the results are, and the next run
    starts without it. Attributes that ``BeforeRun`` derives can be looked at after ``RunModel``
    only; a replay derives them block by block. Formulas may not write attributes.

    Examples
    --------
    >>> class Term(Model):
    ...     def pols_if(self, t):
    ...         if t == 0:
    ...             return self.data["policy_count"]
    ...         return self.pols_if(t - 1) * (1 - self.lapse_rate)
    >>> model = Term(data={"policy_count": np.array([100.0, 50.0])}, lapse_rate=0.1)
    >>> model.RunModel(2)
    >>> model.df_agg["pols_if"].round(6).tolist()
    [150.0, 135.0, 121.5]
    """

    # ---- plain runs --------------------------------------------------------------------------

    def RunModel(self, proj_len: int) -> None:
        """Run in memory with every value cached: the debugging mode.

        Parameters
        ----------
        proj_len : int
            The last time step; formulas of t are evaluated at t = 0..proj_len.

        Raises
        ------
        FormulaError, CycleError, DataError
            The model is as it was before the call then.
        """
        self._check_outside("runs the model")
        run_models({None: self}, check_proj_len(proj_len))

    def _plain_clone(self, proj_len: int) -> Model:
        """A copy for a plain run, with a session that reports."""
        points = self._row_points()
        if points is not None and not points.in_memory:
            points = points.loaded()
        wanted = choose(self._formulas(), self._default())
        data = self._scalars if self._scalars is not None else plain_view(points)
        rows = points.rows if points is not None else None
        clone: Model = self._snapshot()(ReportingSession(data, rows, wanted, proj_len))
        return clone

    def _publish(self, clone: Model, proj_len: int) -> None:
        """Make the run that has just ended the last run of this model.

        A run works on a clone, so that one that fails leaves no trace. What ``BeforeRun`` has
        assigned there comes over, because formulas called later (``model.pols_if(3)``) read it,
        with a note of the value before it, which the next run starts from.
        """
        self._clear()
        given = self._given()
        session: Any = clone._session
        for name, value in clone.__dict__.items():
            if name in OWN_STATE or isinstance(value, BoundFormula):
                continue
            before = given.get(name, ABSENT)
            is_view = isinstance(value, np.ndarray) and value.base is before
            if value is not before and not is_view:
                self.__dict__[name] = value
                self._derived[name] = before
        reports = in_order([(f, k, v) for (f, k), v in session.reports.items()], self._formulas())
        self.__dict__.update(_session=session, _proj_len=proj_len, _reports=reports)

    def _after_run(self) -> None:
        """Run the user's AfterRun; what it assigns belongs to the run, and does not end it."""
        if hasattr(self, "AfterRun"):
            session = self._session
            session.setting_up = True
            try:
                self.AfterRun()
            finally:
                session.setting_up = False

    @property
    def cache(self) -> dict[str, dict[tuple[Any, ...], Any]]:
        """Cached values of the last run: formula name -> arguments -> value."""
        self._check_outside("reads model.cache")
        formulas = {f.name: self._session.values_of(f) for f in self._formulas()}
        return {name: dict(values) for name, values in formulas.items() if values}

    @property
    def cache_agg(self) -> dict[str, dict[tuple[Any, ...], Any]]:
        """Aggregated values of the last run: formula name -> arguments -> value."""
        return by_call(self._last_reports())

    @property
    def df(self) -> pd.DataFrame:
        """Values of the formulas of t of the last plain run: a row for each t, arrays in cells."""
        self._check_outside("reads model.df")
        return tabulate_values({f: self._session.values_of(f) for f in self._formulas()})

    @property
    def df_agg(self) -> pd.DataFrame:
        """Totals of the last run by t; see :class:`~hl_dask.result.Result`."""
        return tabulate(self._last_reports(), self._proj_len or 0)[0]

    def _check_outside(self, what: str) -> None:
        """Refuse what a formula must not do: what it sees would depend on what has been run."""
        if self._session.refuses_writes():
            msg = f"a formula {what}"
            raise ModelError(msg, remedy="let formulas read formulas, columns and assumptions only")

    def _last_reports(self) -> list[Report]:
        self._check_outside("reads the results of the model")
        if self._reports is None:
            msg = "the model has not been run since its data or assumptions were set"
            raise PlanError(msg, remedy="call RunModel(proj_len) or ExecuteActions()")
        return self._reports

    # ---- recording and replay ----------------------------------------------------------------

    @property
    def result(self) -> Result | None:
        """The result of the last ``ExecuteActions``, None after anything was changed."""
        return self._result

    def GenerateActions(
        self,
        proj_len: int | None = None,
        outputs: Sequence[str] | None = None,
        sample: Any = None,
        *,
        block_rows: int = BLOCK_ROWS,
    ) -> ActionPlan:
        """Record the action list.

        Parameters
        ----------
        proj_len : int, optional
            The last time step; that of the last run by default.
        outputs : sequence of str, optional
            Formulas to be reported; only what they need is evaluated. By default all that have an
            aggregate.
        sample : optional
            Model points to record on; the model's data by default, of which some 1,500 rows are
            read.
        block_rows : int
            Rows of a block, the unit of summation. Results are bit-identical for equal block sizes.

        Returns
        -------
        ActionPlan
            Also kept as ``model.plan``.

        Raises
        ------
        RowMixingError, FormulaError, UnsupportedError
            The former plan stays then.
        """
        points = None if sample is None else ModelPoints.of(sample)
        order = self._order(self._length(proj_len), outputs, block_rows, points)
        kept = record_order(order)
        self.__dict__.update(_plan=kept.plan, _kept=kept, _proj_len=order.proj_len)
        return kept.plan

    def ExecuteActions(
        self,
        proj_len: int | None = None,
        outputs: Sequence[str] | None = None,
        *,
        memory: int | str | None = None,
        scheduler: Any = None,
        workers: int | None = None,
        block_rows: int | None = None,
        chunk_blocks: int | None = None,
        granularity: str = "chunk",
        scratch: str | Path | None = None,
        progress: bool | None = None,
        compute: bool = True,
    ) -> Any:
        """Replay the action list on the data, block by block, in bounded memory.

        Records first when there is no plan, or when formulas, assumptions or the kind of data are
        not those of the recording: a plan is a hint, and the numbers are always those of the
        present model.

        Parameters
        ----------
        proj_len, outputs
            As in :meth:`GenerateActions`; those of the plan by default.
        memory : int or str, optional
            Total resident memory that the process may reach, such as ``"1GB"``. By default what is
            resident now and half of what the machine or the control group has free.
        scheduler : str or Client, optional
            ``"threads"``, ``"synchronous"``, ``"distributed"``, a client of dask.distributed or the
            address of a scheduler. By default the active client, or else threads.
        workers : int, optional
            Threads of a process; one for each processor by default.
        block_rows : int, optional
            Rows of a block; that of the plan by default.
        chunk_blocks : int, optional
            Blocks read and scheduled together; chosen to fit by default. Does not change results.
        granularity : str, optional
            What one task does: all of a ``"chunk"``, a time ``"step"`` of it, or a ``"formula"``
            call, so that drawings and the dashboard show the action list. Does not change results.
        scratch : str or Path, optional
            Directory for what chunks keep between phases, where totals over all policies decide
            what comes next and memory has no room; all workers of a cluster have to see one that
            is named. By default the directory for temporary files.
        progress : bool, optional
            Show a progress bar; by default when a terminal watches.
        compute : bool
            ``False`` gives a lazy Dask object with ``compute``, ``persist`` and ``visualize``, for
            the model as it is now.

        Returns
        -------
        Result
            Also kept as ``model.result``; ``model.df_agg`` gives its totals, and ``model.plan`` is
            the plan that was replayed.

        Raises
        ------
        MemoryBudgetError
            Before any work, when the projected peak is above ``memory``.
        OpaqueFormulaError
            When formulas cannot be followed and the data are not in memory.
        PlanError
            When a granularity would make more than 50,000 tasks.
        StorageError
            When the scratch directory has no room.
        """
        for name, value in (("chunk_blocks", chunk_blocks), ("workers", workers)):
            check_count(name, value)
        plan = self._plan
        if plan is not None:
            proj_len = plan.proj_len if proj_len is None else proj_len
            outputs = plan.outputs if outputs is None else outputs
            block_rows = plan.block_rows if block_rows is None else block_rows
        block_rows = BLOCK_ROWS if block_rows is None else block_rows
        order = self._order(self._length(proj_len), outputs, block_rows, memory=memory)
        settings = Settings(
            memory, scheduler, workers, chunk_blocks, progress, granularity, scratch
        )
        edition = self._edition

        def publish(results: list[Result]) -> Result:
            self._take_over(results[0], edition)
            return results[0]

        known = None if self._kept is None else [self._kept]
        execution = Execution([order], settings, known, publish)
        # The recording serves the next attempt, whatever comes of this one.
        self.__dict__["_kept"] = execution.recorded[0]
        if compute:
            return execution.execute()
        lazy = execution.lazy()
        self.__dict__["_plan"] = execution.plans[0]
        return lazy

    def _take_over(self, result: Result, edition: int) -> None:
        """Make an execution the last run, unless the model has been changed since it was begun."""
        if edition == self._edition:
            self._clear()
            self.__dict__.update(
                _result=result,
                _reports=result.reports,
                _proj_len=result.proj_len,
                _plan=result.plan,
            )
            self._after_run()

    def Check(self, proj_len: int | None = None) -> pd.DataFrame:
        """Compare the replay with a plain run on a sample, value by value.

        Parameters
        ----------
        proj_len : int, optional
            The last time step; that of the plan or the last run by default.

        Returns
        -------
        DataFrame
            A row for each formula call whose values differ between the two: call, plain, replay,
            difference (the largest over the rows). Empty when all agree.
        """
        if proj_len is None and self._plan is not None:
            proj_len = self._plan.proj_len
        return compare(self._subject(self._row_points(), None), self._length(proj_len))

    def _length(self, proj_len: int | None) -> int:
        """The projection length asked for, that of the last run by default."""
        proj_len = self._proj_len if proj_len is None else proj_len
        if proj_len is None:
            msg = "the projection length is not known: the model has not been run"
            raise PlanError(msg, remedy="give proj_len=..., or call RunModel first")
        return check_proj_len(proj_len)

    def _order(
        self,
        proj_len: int,
        outputs: Sequence[str] | None,
        block_rows: int,
        points: ModelPoints | None = None,
        memory: int | str | None = None,
    ) -> Order:
        """A snapshot of the model with what is asked of it."""
        self._check_outside("runs the model")
        check_count("block_rows", block_rows)
        if self._scalars is not None:
            msg = "the data are a dict of scalars, one policy: there is nothing to cut into blocks"
            raise ModelError(msg, remedy="use RunModel, or give the data as arrays or a DataFrame")
        names = (outputs,) if isinstance(outputs, str) else outputs
        if names is not None and not isinstance(names, Iterable):
            msg = f"outputs are names of formulas; got {names!r}"
            raise ModelError(msg, remedy='give a list of names, such as outputs=["premiums"]')
        names = None if names is None else tuple(names)
        points = self._row_points(points)
        cls = type(self)
        given = self._given()
        for name in self.model_points:
            # Arrays are data; what else a declared object holds is an assumption.
            given[name] = shared_fields(given.get(name))
        given["the default aggregate"] = self._default()
        digest = state_digest(cls, given, OWN_STATE)
        state = None if digest is None else (digest, proj_len, names)
        subject = self._subject(points, names, memory)
        return Order(cls.__name__, subject, proj_len, names, block_rows, state, self._bind)

    def _bind(self, plan: ActionPlan) -> ActionPlan:
        return plan.bound(self._evaluator, self._projector)

    def _evaluator(self, plan: ActionPlan) -> Evaluator:
        """What evaluates a plan with the model as it is now."""
        kept, order = self._recorded(plan)
        return evaluator_of(kept.recording, order.subject, order.model, plan.block_rows)

    def _projector(self, plan: ActionPlan, rows: int, memory: int | str | None) -> Any:
        """The memory that a run of a plan is projected to take."""
        kept, order = self._recorded(plan)
        return project_memory([kept], [order], [rows], memory)

    def _recorded(self, plan: ActionPlan) -> tuple[Recorded, Order]:
        """The recording of a plan, made anew where it does not hold for the model as it is now."""
        order = self._order(plan.proj_len, plan.outputs, plan.block_rows)
        kept = self._kept
        holds = same_model if order.subject.points is None else still_holds
        if kept is None or not holds(kept, order):
            kept = record_order(order)
            if plan is self._plan:
                self.__dict__["_kept"] = kept
        return kept, order


def run_models(models: Mapping[Any, Model], proj_len: int) -> None:
    """A plain run of a model, or of the models of a portfolio by name, which becomes their last."""
    clones = {name: model._plain_clone(proj_len) for name, model in models.items()}
    sessions: list[Any] = [clone._session for clone in clones.values()]
    run_together(list(clones), [s.wanted for s in sessions], list(clones.values()), proj_len)
    for clone, session in zip(clones.values(), sessions, strict=True):
        # The report is closed before formulas are evaluated that are not part of it: what only they
        # call is not part of it either, as in a replay.
        session.wanted = unreported(clone._formulas(), session.wanted)
    for clone, session in zip(clones.values(), sessions, strict=True):
        run_formulas(session.wanted, clone, proj_len)
        session.running = False
    for name, model in models.items():
        model._publish(clones[name], proj_len)
    for model in models.values():
        model._after_run()


class LightModel(Model, framework=True):
    """A model with heavylight's constructor: the aggregate first, keyword arguments as in Model.

    Parameters
    ----------
    agg_function : callable or None
        Default aggregate of formulas; ``None`` reports only formulas with one of their own.
    data, **assumptions
        As in :class:`Model`.
    """

    def __init__(
        self,
        agg_function: Callable[..., Any] | None = np.sum,
        *,
        data: Any = None,
        **assumptions: Any,
    ) -> None:
        self.__dict__["_default_agg"] = agg_function
        super().__init__(data=data, **assumptions)

    def RunOptimized(self) -> None:
        """Run again to the last projection length, releasing each value after its last use.

        Raises
        ------
        PlanError
            When the model has not been run yet.
        """
        if self._proj_len is None:
            msg = "the model has not been run yet"
            raise PlanError(msg, remedy="call RunModel(proj_len) first")
        self.ClearOptimize()
        if self._scalars is not None:
            self.RunModel(self._proj_len)
        else:
            self.ExecuteActions(self._proj_len)

    def ClearOptimize(self) -> None:
        """Forget cached values; the next run releases values."""
        self._clear()
