"""The model: what the user subclasses, and calls."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from hl_dask.aggregate import Aggregate
from hl_dask.blocks import BLOCK_ROWS
from hl_dask.declared import is_row_array, join_points
from hl_dask.errors import DataError, ModelError, OpaqueFormulaError, PlanError, ReadOnlyError
from hl_dask.fingerprint import source_digest, state_digest
from hl_dask.formula import OWN_STATE, BoundFormula, Formula, PlainSession, call_text, read_only
from hl_dask.lazy import LazyResult
from hl_dask.plan import ActionPlan
from hl_dask.planning import build_plan
from hl_dask.points import ModelPoints, is_scalar_record
from hl_dask.record import Recording, Subject, record
from hl_dask.replay import ReportingSession, plain_view, releases, replay_whole, run_before
from hl_dask.report import choose, run_formulas
from hl_dask.result import Result, tabulate
from hl_dask.run import Projection, RunStats, Settings, environment


class _Absent:
    """One object, also after pickling."""

    def __reduce__(self) -> str:
        return "ABSENT"


ABSENT: Any = _Absent()
"""Stands for the value that an attribute had before BeforeRun made it: none."""
TAKEN = ("data", "df", "df_agg", "cache", "cache_agg", "plan", "result")
"""Lowercase names of the framework; no formula and no assumption can have them."""


def _wrap_formulas(cls: type, base: type) -> None:
    """Turn the public lowercase functions of a class body (or of a mixin) into formulas."""
    for name, value in list(vars(base).items()):
        if not name[:1].islower() or not isinstance(value, types.FunctionType):
            continue
        if base is cls or getattr(cls, name, None) is value:
            setattr(cls, name, Formula(value, name, cls.__qualname__))


class Model:
    """A projection written as formulas: public methods whose names start with a lowercase letter.

    Parameters
    ----------
    data : DataFrame, mapping, path or ModelPoints, optional
        Model points: anything that :class:`~hl_dask.ModelPoints` takes; or a dict of scalars, one policy.
    **assumptions
        Become attributes.

    Raises
    ------
    ModelError
        When an assumption has the name of a formula or of the framework.

    Notes
    -----
    ``model_points = ("initial_pols_if", "mp")`` on the class declares attributes that have an entry for
    each policy. ``assumptions = ("rates",)`` declares arrays that are shared although they are as long as
    the data. ``BeforeRun`` may derive attributes from data, ``AfterRun`` is called after ``RunModel``;
    formulas may not write attributes.

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

    model_points: ClassVar[tuple[str, ...]] = ()
    assumptions: ClassVar[tuple[str, ...]] = ()
    default_agg: ClassVar[Callable[..., Any] | None] = staticmethod(np.sum)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        taken = [
            name
            for name in TAKEN
            if name in vars(cls) and cls.__module__.split(".")[0] != "hl_dask"
        ]
        if taken:
            msg = f"class {cls.__qualname__} defines {taken[0]!r}, a name of the framework"
            raise ModelError(
                msg,
                remedy=f"choose another name; taken are {', '.join(TAKEN)}",
            )
        for base in reversed(cls.__mro__):
            if base is cls or not issubclass(base, Model):
                _wrap_formulas(cls, base)

    def __init__(self, *, data: Any = None, **assumptions: Any) -> None:
        state = self.__dict__
        state.update(
            _points=None, _scalars=None, _plan=None, _recording=None, _proj_len=None, _derived={}
        )
        self._clear()
        for name, value in assumptions.items():
            self._check_name(name)
            state[name] = value
        if data is not None:
            self.data = data

    # ---- attributes --------------------------------------------------------------------------

    @classmethod
    def _formulas(cls) -> list[Formula]:
        """Formulas in the order of definition, those of base classes first."""
        found: dict[str, Formula] = {}
        for base in reversed(cls.__mro__):
            for name in vars(base):
                formula = getattr(cls, name, None)
                if name not in found and type(formula) is Formula:
                    found[name] = formula
        return list(found.values())

    def _check_name(self, name: str) -> None:
        if isinstance(getattr(type(self), name, None), Formula):
            msg = f"{name!r} is a formula of {type(self).__name__} and cannot be an assumption as well"
            raise ModelError(
                msg,
                remedy="rename the assumption or the formula",
            )
        if name in TAKEN or (
            hasattr(Model, name) and name not in ("model_points", "assumptions", "default_agg")
        ):
            msg = f"{name!r} is a name of the framework"
            raise ModelError(
                msg,
                remedy=f"choose another name; taken are {', '.join(TAKEN)}",
            )

    def __setattr__(self, name: str, value: Any) -> None:
        if self._session.refuses_writes():
            msg = f"a formula assigns the attribute {name!r}: formulas may not write attributes"
            raise ReadOnlyError(
                msg,
                remedy="return the value from a formula of its own, or set it in BeforeRun",
            )
        if name in ("data", "plan"):
            object.__setattr__(self, name, value)
            return
        if name == "__class__":
            for key in [k for k, v in self.__dict__.items() if isinstance(v, BoundFormula)]:
                del self.__dict__[key]
            object.__setattr__(self, name, value)
            self._clear()
            return
        self._check_name(name)
        self.__dict__[name] = value
        self._derived.pop(name, None)
        if not self._session.setting_up:
            self._clear()

    def __delattr__(self, name: str) -> None:
        if self._session.refuses_writes():
            msg = f"a formula deletes the attribute {name!r}: formulas may not write attributes"
            raise ReadOnlyError(msg)
        super().__delattr__(name)
        self._clear()

    @property
    def data(self) -> Any:
        """The model points: ``data["age"]`` or ``data.age``, ``len(data)``, ``data.frame()``.

        Assign a DataFrame, a dict of arrays, Parquet paths or ModelPoints.
        """
        data = self._session.data
        if data is None and self._session.refuses_writes():
            msg = "a formula asks for self.data, and the model has no data"
            raise DataError(
                msg,
                remedy=f"assign it: {type(self).__name__}(data=...), or model.data = ...",
            )
        return data

    @data.setter
    def data(self, value: Any) -> None:
        state = self.__dict__
        if value is None or is_scalar_record(value):
            state["_points"], state["_scalars"] = None, value
        else:
            state["_points"], state["_scalars"] = ModelPoints.of(value), None
        self._clear()

    def _clear(self) -> None:
        """Forget the values and results of the last run."""
        session = PlainSession()
        state = self.__dict__
        session.data = (
            state["_scalars"] if state["_scalars"] is not None else plain_view(state["_points"])
        )
        state["_session"] = session
        state["_result"] = None
        state["_reports"] = None

    def Clear(self) -> None:
        """Forget cached values and results; the plan stays."""
        self._clear()

    # ---- copies ------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        dropped = {"_session", "_result", "_reports", "_recording"}
        return {
            k: v
            for k, v in self.__dict__.items()
            if k not in dropped and not isinstance(v, BoundFormula)
        }

    def _given(self) -> dict[str, Any]:
        """Attributes as the user gave them, without what BeforeRun made of them in an earlier run."""
        given = self.__getstate__()
        for name, value in self._derived.items():
            if value is ABSENT:
                given.pop(name, None)
            else:
                given[name] = value
        return given

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _recording=None)
        self._clear()

    def _clone(self, session: Any) -> Any:
        """A fresh model with the present attributes that evaluates in a session of its own."""
        clone = object.__new__(type(self))
        for name, value in self._given().items():
            clone.__dict__[name] = read_only(value) if type(value) is np.ndarray else value
        clone.__dict__["_session"] = session
        return clone

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
        """
        proj_len = _check_len(proj_len)
        points = self._row_points()
        if points is not None and not points.in_memory:
            points = points.loaded()
        wanted = choose(self._formulas(), self._default(), everything=True)
        data = self._scalars if self._scalars is not None else plain_view(points)
        session = ReportingSession(
            data, points.rows if points is not None else None, wanted, proj_len
        )
        clone = self._clone(session)
        run_before(session, clone)
        run_formulas(wanted, clone, proj_len)
        session.running = False
        self._publish(clone, session, proj_len)
        if hasattr(self, "AfterRun"):
            self.AfterRun()

    def _publish(self, clone: Any, session: ReportingSession, proj_len: int) -> None:
        """Make the run that has just ended the last run of this model."""
        state = self.__dict__
        given = self._given()
        for name, value in clone.__getstate__().items():
            if name in OWN_STATE:
                continue
            if name not in given or (value is not given[name] and not _view_of(value, given[name])):
                state[name] = value
                self._derived[name] = given.get(name, ABSENT)
        state.update(
            _session=session,
            _proj_len=proj_len,
            _reports=self._in_order([(f, k, v) for (f, k), v in session.reports.items()]),
            _result=None,
        )

    @property
    def cache(self) -> dict[str, dict[tuple[Any, ...], Any]]:
        """Cached values of the last run: formula name -> arguments -> value."""
        formulas = {f.name: self._session.values_of(f) for f in self._formulas()}
        return {name: dict(values) for name, values in formulas.items() if values}

    @property
    def cache_agg(self) -> dict[str, dict[tuple[Any, ...], Any]]:
        """Aggregated values of the last run: formula name -> arguments -> value."""
        out: dict[str, dict[tuple[Any, ...], Any]] = {}
        for formula, key, value in self._last_reports():
            out.setdefault(formula.name, {})[key] = value
        return out

    @property
    def df(self) -> pd.DataFrame:
        """Values of the formulas of t of the last plain run: a row for each t, arrays in the cells."""
        values = {f.name: self._session.values_of(f) for f in self._formulas() if f.of_t}
        series = {
            name: pd.Series({key[0]: _cell(v) for key, v in sorted(cells.items())}, dtype=object)
            for name, cells in values.items()
            if cells
        }
        frame = pd.DataFrame(series)
        frame.index.name = "t"
        return frame

    @property
    def df_agg(self) -> pd.DataFrame:
        """Totals of the last run by t; see :class:`~hl_dask.result.Result`."""
        return tabulate(self._last_reports(), self._proj_len or 0)[0]

    def _in_order(self, reports: list[Any]) -> list[Any]:
        """Reports in the order of definition of the formulas, then by arguments."""
        ranks = {f: k for k, f in enumerate(self._formulas())}
        return sorted(reports, key=lambda r: (ranks[r[0]], [_sortable(a) for a in r[1]]))

    def _last_reports(self) -> list[Any]:
        if self._reports is None:
            msg = "the model has not been run since its data or assumptions were set"
            raise PlanError(
                msg,
                remedy="call RunModel(proj_len) or ExecuteActions()",
            )
        return list(self._reports)

    # ---- recording and replay ----------------------------------------------------------------

    @property
    def plan(self) -> ActionPlan | None:
        """The recorded action list, None before ``GenerateActions``."""
        return self._plan

    @plan.setter
    def plan(self, value: ActionPlan | None) -> None:
        if value is not None and not isinstance(value, ActionPlan):
            msg = f"a plan is an ActionPlan, got {type(value).__name__}"
            raise PlanError(
                msg,
                remedy="use ActionPlan.load(path)",
            )
        self.__dict__.update(_plan=value, _recording=None)

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
            Model points to record on; the model's data by default, of which some 1,500 rows are read.
        block_rows : int
            Rows of a block, the unit of summation. Results are bit-identical for equal block sizes.

        Returns
        -------
        ActionPlan
            Also kept as ``model.plan``.

        Raises
        ------
        RowMixingError, FormulaError, UnsupportedError
        """
        _check_whole("block_rows", block_rows)
        proj_len = self._proj_len_or_last(proj_len)
        points = self._row_points(None if sample is None else ModelPoints.of(sample))
        recording = self._record(points, proj_len, outputs)
        plan = self._plan_of(recording, outputs, block_rows, points)
        self.__dict__.update(
            _plan=plan,
            _recording=(recording, self._state(points, proj_len, outputs)),
            _proj_len=proj_len,
        )
        return plan

    def ExecuteActions(
        self,
        proj_len: int | None = None,
        outputs: Sequence[str] | None = None,
        *,
        memory: int | str | None = None,
        scheduler: str | None = None,
        workers: int | None = None,
        block_rows: int | None = None,
        chunk_blocks: int | None = None,
        progress: bool | None = None,
        compute: bool = True,
    ) -> Any:
        """Replay the action list on the data, block by block, in bounded memory.

        Records first when there is no plan, or when formulas, assumptions or the kind of data are not
        those of the recording: a plan is a hint, and the numbers are always those of the present model.

        Parameters
        ----------
        proj_len, outputs
            As in :meth:`GenerateActions`; those of the plan by default.
        memory : int or str, optional
            Total resident memory that the process may reach, such as ``"1GB"``. By default what is
            resident now and half of what the machine or the control group has free.
        scheduler : str, optional
            ``"threads"`` (default) or ``"synchronous"``.
        workers : int, optional
            Threads; one for each processor by default.
        block_rows : int, optional
            Rows of a block; that of the plan by default.
        chunk_blocks : int, optional
            Blocks read and scheduled together; chosen to fit by default. Does not change results.
        progress : bool, optional
            Show a progress bar; by default when a terminal watches.
        compute : bool
            ``False`` gives a lazy Dask object with ``compute``, ``persist`` and ``visualize``.

        Returns
        -------
        Result
            Also kept as ``model.result``; ``model.df_agg`` gives its totals.

        Raises
        ------
        MemoryBudgetError
            Before any work, when the projected peak is above ``memory``.
        OpaqueFormulaError
            When formulas cannot be followed and the data are not in memory.
        """
        plan = self._plan
        if proj_len is None and plan is not None:
            proj_len = plan.proj_len
        if outputs is None and plan is not None:
            outputs = plan.outputs
        proj_len = self._proj_len_or_last(proj_len)
        for name, value in (
            ("block_rows", block_rows),
            ("chunk_blocks", chunk_blocks),
            ("workers", workers),
        ):
            _check_whole(name, value)
        block_rows = block_rows or (plan.block_rows if plan is not None else BLOCK_ROWS)
        settings = Settings(memory, scheduler, workers, chunk_blocks, progress)
        run = _Run(self, proj_len, outputs, block_rows, settings)
        return run.execute() if compute else LazyResult(run)

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
        from hl_dask.check import compare  # noqa: PLC0415 - only for checking

        if proj_len is None and self._plan is not None:
            proj_len = self._plan.proj_len
        return compare(self, self._proj_len_or_last(proj_len))

    def _proj_len_or_last(self, proj_len: int | None) -> int:
        if proj_len is None:
            proj_len = self._proj_len
        if proj_len is None:
            msg = "the projection length is not known: the model has not been run"
            raise PlanError(
                msg,
                remedy="give proj_len=..., or call RunModel first",
            )
        return _check_len(proj_len)

    def _default(self) -> Any:
        return self.__dict__.get("_default_agg", type(self).default_agg)

    def _row_points(self, points: ModelPoints | None = None) -> ModelPoints | None:
        """Model points with declared attributes, after checking that no attribute was forgotten."""
        points = points if points is not None else self._points
        missing = [name for name in type(self).model_points if not hasattr(self, name)]
        if missing:
            msg = f"model_points declares {missing[0]!r}, and the model has no such attribute"
            raise ModelError(
                msg,
                remedy=f"pass it in: {type(self).__name__}({missing[0]}=...)",
            )
        joined = join_points(points, self._declared())
        if joined is not None:
            self._check_undeclared(joined.rows)
        return joined

    def _declared(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).model_points}

    def _check_undeclared(self, rows: int) -> None:
        declared = set(type(self).model_points) | set(type(self).assumptions)
        for name, value in self._given().items():
            if name in OWN_STATE or name in declared or not is_row_array(value) or rows == 1:
                continue
            if value.shape[0] == rows:
                shown = _line("model_points", type(self).model_points, name)
                other = _line("assumptions", type(self).assumptions, name)
                msg = (
                    f"the attribute {name!r} is an array with {rows:,} entries, as many as there are policies, "
                    "and hl_dask does not know whether they belong to the policies"
                )
                raise ModelError(
                    msg,
                    remedy=f"if they do, add to class {type(self).__name__}: {shown}; if it is shared by all "
                    f"policies: {other}",
                )

    def _subject(self, points: ModelPoints | None, outputs: Sequence[str] | None) -> Subject:
        wanted = choose(self._formulas(), self._default(), outputs)
        return Subject(self._clone, self._formulas(), points, self._declared(), wanted)

    def _record(
        self, points: ModelPoints | None, proj_len: int, outputs: Sequence[str] | None
    ) -> Recording:
        if self._scalars is not None:
            msg = "the data are a dict of scalars, one policy: there is nothing to cut into blocks"
            raise ModelError(
                msg,
                remedy="use RunModel, or give the data as arrays or a DataFrame",
            )
        return record(self._subject(points, outputs), proj_len)

    def _plan_of(
        self,
        recording: Recording,
        outputs: Sequence[str] | None,
        block_rows: int,
        points: ModelPoints | None,
    ) -> ActionPlan:
        fingerprint = {f.name: source_digest(f) for f in self._formulas()}
        named = None if outputs is None else tuple(outputs)
        return build_plan(recording, type(self).__name__, named, block_rows, fingerprint, points)

    def _state(
        self, points: ModelPoints | None, proj_len: int, outputs: Sequence[str] | None
    ) -> Any:
        """What a recording rests on; None when that cannot be told."""
        skip = OWN_STATE | set(type(self).model_points)
        digest = state_digest(type(self), self._given(), skip)
        if digest is None:
            return None
        return digest, proj_len, None if outputs is None else tuple(outputs), repr(self._default())


class LightModel(Model):
    """A model with heavylight's constructor: the aggregate first, keyword arguments as in Model.

    Parameters
    ----------
    agg_function : callable or None
        Default aggregate of formulas; ``None`` reports only formulas with one of their own.
    """

    def __init__(
        self,
        agg_function: Callable[..., Any] | None = np.sum,
        *,
        data: Any = None,
        **assumptions: Any,
    ) -> None:
        super().__init__(data=data, **assumptions)
        self.__dict__["_default_agg"] = agg_function

    def RunOptimized(self) -> None:
        """Run again to the last projection length, releasing each value after its last use."""
        if self._proj_len is None:
            msg = "the model has not been run yet"
            raise PlanError(msg, remedy="call RunModel(proj_len) first")
        self.ClearOptimize()
        self.ExecuteActions(self._proj_len)

    def ClearOptimize(self) -> None:
        """Forget cached values; the next run releases values."""
        proj_len = self._proj_len
        self._clear()
        self.__dict__["_proj_len"] = proj_len


class _Run:
    """One execution of a model: a recording, passes over the rows, a result."""

    def __init__(
        self,
        model: Model,
        proj_len: int,
        outputs: Sequence[str] | None,
        block_rows: int,
        settings: Settings,
    ) -> None:
        self.model = model
        self.proj_len = proj_len
        self.outputs = outputs
        self.block_rows = block_rows
        self.settings = settings
        self.points = model._row_points()
        self.stats_record_s = 0.0
        self.recording, self.plan = self._recorded()
        self.projection: Projection | None = None
        if not self.recording.opaque:
            self.projection = Projection(
                self.recording, self._again, self.points, block_rows, settings
            )
            self.projection.stats.record_s = self.stats_record_s

    def _recorded(self) -> tuple[Recording, ActionPlan]:
        """The recording of the plan if it still holds, else a new one."""
        model = self.model
        state = model._state(self.points, self.proj_len, self.outputs)
        kept = model._recording
        if kept is not None and state is not None and kept[1] == state and self._fits(kept[0]):
            plan = model._plan
            if plan is not None:
                return kept[0], plan
        recording = model._record(self.points, self.proj_len, self.outputs)
        self.stats_record_s = recording.elapsed_s
        plan = model._plan_of(recording, self.outputs, self.block_rows, self.points)
        model.__dict__.update(_plan=plan, _recording=(recording, state))
        return recording, plan

    def _fits(self, recording: Recording) -> bool:
        """Whether the data are of the kind that was recorded."""
        rows = self.points.rows if self.points is not None else 1
        columns = self.points.columns if self.points is not None else ()
        if (recording.asked_rows and recording.rows != rows) or set(columns) != set(
            recording.columns
        ):
            return False
        for name, (dtype, shape, categories) in recording.schemas.items():
            spec = self.points.schema(name) if self.points is not None else None
            if spec is None or spec.dtype != dtype or spec.shape != shape:
                return False
            same = spec.categories is categories or (
                spec.categories is not None
                and categories is not None
                and np.array_equal(spec.categories, categories)
            )
            if not same:
                return False
        return True

    def _again(self, recording: Recording, assumed: dict[int, Any]) -> Recording:
        subject = self.model._subject(self.points, self.outputs)
        return record(subject, self.proj_len, assumed=assumed, graph=recording.graph)

    def execute(self) -> Result:
        """Run and publish."""
        import time  # noqa: PLC0415

        started = time.perf_counter()
        if self.recording.opaque:
            reports, stats = self._in_one_piece()
        else:
            assert self.projection is not None
            values = self.projection.run()
            reports, stats = self.reports(values), self.projection.stats
        stats.elapsed_s = time.perf_counter() - started + self.stats_record_s
        stats.environment = environment()
        return self.publish(reports, stats)

    def reports(self, values: dict[int, Any]) -> list[Any]:
        """Reported values of a verified pass."""
        assert self.projection is not None
        outputs = self.projection.recording.outputs
        return self.model._in_order(
            [(o.formula, o.key, o.value if o.node is None else values[o.node]) for o in outputs]
        )

    def publish(self, reports: list[Any], stats: RunStats) -> Result:
        """Keep the result as that of the model's last run."""
        model = self.model
        result = Result(reports, self.proj_len, stats, self.plan, self._graph)
        model._clear()
        model.__dict__.update(_result=result, _reports=reports, _proj_len=self.proj_len)
        return result

    def _graph(self) -> Any:
        return LazyResult(
            _Run(self.model, self.proj_len, self.outputs, self.block_rows, self.settings)
        )

    def _in_one_piece(self) -> tuple[list[Any], RunStats]:
        model, recording = self.model, self.recording
        reasons = "; ".join(f"{name}: {why}" for name, why in recording.opaque.items())
        names = ", ".join(recording.opaque)
        if self.points is not None and not self.points.in_memory:
            msg = f"hl_dask cannot see what these formulas do to the rows, and the data are not in memory: {reasons}"
            raise OpaqueFormulaError(
                msg,
                formula=names,
                remedy="if each row's value depends on that row alone, add @hl.per_point above the formula; else "
                "write it with array operations and totals, or with hl.Table and hl.lookup",
            )
        warnings.warn(
            f"replaying in one piece, because hl_dask cannot see what these formulas do to the rows: {reasons}. "
            "If each row's value depends on that row alone, add @hl.per_point above the formula",
            stacklevel=4,
        )
        calls = recording.calls
        release = releases(
            recording.finished, lambda c: calls[c].reads, lambda c: (calls[c].formula, calls[c].key)
        )
        wanted = choose(model._formulas(), model._default(), self.outputs)
        found = replay_whole(model._clone, self.points, wanted, self.proj_len, release)
        rows = self.points.rows if self.points is not None else 1
        stats = RunStats(
            rows=rows, months=self.proj_len + 1, record_s=self.stats_record_s, passes=1
        )
        return model._in_order([(f, k, v) for (f, k), v in found.items()]), stats


def _check_len(proj_len: Any) -> int:
    if isinstance(proj_len, bool) or not isinstance(proj_len, (int, np.integer)) or proj_len < 0:
        msg = f"proj_len is the last time step, a whole number of at least 0; got {proj_len!r}"
        raise ModelError(
            msg,
            remedy="for 277 months, t = 0..276, give 276",
        )
    return int(proj_len)


def _line(variable: str, names: tuple[str, ...], name: str) -> str:
    """The class attribute that declares one more name, as it is written in source."""
    entries = ", ".join(f'"{n}"' for n in (*names, name))
    return f"{variable} = ({entries}{',' if not names else ''})"


def _check_whole(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        msg = f"{name} is a whole number of at least 1; got {value!r}"
        raise ModelError(
            msg,
            remedy="leave it out to let hl_dask choose",
        )


def _sortable(value: Any) -> tuple[str, Any]:
    if isinstance(value, (bool, int, float, np.number)):
        return "", value
    return type(value).__name__, value if isinstance(value, str) else repr(value)


def _view_of(value: Any, original: Any) -> bool:
    return isinstance(value, np.ndarray) and value.base is original


def _cell(value: Any) -> Any:
    return value


__all__ = ["Aggregate", "LightModel", "Model", "call_text"]
