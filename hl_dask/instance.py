"""A model as an object: its formulas, its data, its assumptions, and copies of it.

What a model can do is on the floor above; here is what it consists of, and what happens when a part
is assigned. Everything that belongs to the framework is kept under the names in
:data:`~hl_dask.formula.OWN_STATE`; all other attributes are the user's assumptions.
"""

from __future__ import annotations

import types
from abc import ABCMeta
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from hl_dask.budget import allowed_bytes, resident_bytes
from hl_dask.declared import check_undeclared, join_points
from hl_dask.errors import DataError, ModelError, PlanError, ReadOnlyError
from hl_dask.execution import Recorded
from hl_dask.formula import DEFAULT, OWN_STATE, BoundFormula, Formula, Session
from hl_dask.members import ALONE, PortfolioView
from hl_dask.plan import ActionPlan
from hl_dask.points import ModelPoints, is_scalar_record
from hl_dask.record import Subject
from hl_dask.replay import plain_view
from hl_dask.report import Report, choose
from hl_dask.result import Result
from hl_dask.running import RunningTotal
from hl_dask.session import PlainSession, read_only

ABSENT: Any = object()
"""Stands for the value that an attribute had before a run made it: none."""
TAKEN = ("data", "portfolio", "df", "df_agg", "cache", "cache_agg", "plan", "result")
"""Lowercase names of the framework; no formula and no assumption can have them."""
OPTIONS = ("model_points", "assumptions", "default_agg")
"""What a class may set, or an instance."""


class ModelType(ABCMeta):
    """Type of model classes: a function that is assigned to a class later is a formula, too."""

    def __setattr__(cls, name: str, value: Any) -> None:
        if name[:1].islower() and isinstance(value, types.FunctionType):
            value = Formula(value, name, cls.__qualname__)
        super().__setattr__(name, value)


class Instance(metaclass=ModelType):
    """What a model consists of; see :class:`~hl_dask.Model`, its one direct subclass."""

    model_points: ClassVar[tuple[str, ...]] = ()
    assumptions: ClassVar[tuple[str, ...]] = ()
    default_agg: ClassVar[Callable[..., Any] | None] = staticmethod(np.sum)

    # The framework's own state (OWN_STATE); all other attributes are the user's.
    _session: Session
    _points: ModelPoints | None
    _scalars: Any
    _plan: ActionPlan | None
    _kept: Recorded | None
    _result: Result | None
    _reports: list[Report] | None
    _proj_len: int | None
    _default_agg: Any
    _derived: dict[str, Any]
    _edition: int
    _portfolio: Any

    _names: ClassVar[frozenset[str]] = frozenset()
    """Names of the framework's methods."""

    def __init_subclass__(cls, *, framework: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if framework:
            cls._names = frozenset(dir(cls)).difference(OPTIONS)
            return
        taken = [name for name in TAKEN if name in vars(cls)]
        if taken:
            msg = f"class {cls.__qualname__} defines {taken[0]!r}, a name of the framework"
            raise ModelError(msg, remedy=f"choose another name; taken are {', '.join(TAKEN)}")
        for base in reversed(cls.__mro__):
            if base is cls or not issubclass(base, Instance):
                _wrap_formulas(cls, base)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """A model without data; here, so that ``__init__`` of a subclass may assign at once."""
        model = super().__new__(cls)
        model.__dict__.update(
            _points=None, _scalars=None, _plan=None, _kept=None, _proj_len=None, _edition=0
        )
        model.__dict__["_portfolio"] = None
        model.__dict__.update(_default_agg=DEFAULT, _derived={})
        model._clear()
        return model

    def __init__(self, *positional: Any, data: Any = None, **assumptions: Any) -> None:
        if positional:
            kinds = ", ".join(type(value).__name__ for value in positional)
            msg = f"{type(self).__name__} takes arguments by name; got {kinds} by position"
            raise ModelError(
                msg, remedy=f"write {type(self).__name__}(data=..., name_of_assumption=...)"
            )
        for name, value in assumptions.items():
            self._check_name(name)
            self.__dict__[name] = value
        if data is not None:
            self.data = data

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

    def _default(self) -> Callable[..., Any] | None:
        """The aggregate of formulas that name none: given to the constructor, or by the class."""
        given: Any = self.__dict__.get("default_agg", self._default_agg)
        return type(self).default_agg if given is DEFAULT else given

    def _check_name(self, name: str) -> None:
        if isinstance(getattr(type(self), name, None), Formula):
            owner = type(self).__name__
            msg = f"{name!r} is a formula of {owner} and cannot be an assumption as well"
            raise ModelError(msg, remedy="rename the assumption or the formula")
        if name in TAKEN or name in OWN_STATE or name in self._names:
            msg = f"{name!r} is a name of the framework"
            raise ModelError(msg, remedy=f"choose another name; taken are {', '.join(TAKEN)}")

    def __setattr__(self, name: str, value: Any) -> None:
        # Every assignment comes by here, because each has consequences: a formula that writes would
        # do so once for each block, in any order; a name of the framework would break it; and all
        # that was computed with the old value is void. The framework itself writes to __dict__.
        self._check_writing(f"assigns the attribute {name!r}")
        if name in ("data", "plan"):
            object.__setattr__(self, name, value)
            return
        if name == "__class__":
            for key in [k for k, v in self.__dict__.items() if isinstance(v, BoundFormula)]:
                del self.__dict__[key]
            object.__setattr__(self, name, value)
            self._changed()
            return
        self._check_name(name)
        if self._session.setting_up:
            self._derived.setdefault(name, self.__dict__.get(name, ABSENT))
        else:
            self._derived.pop(name, None)
            self._changed()
        self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        self._check_writing(f"deletes the attribute {name!r}")
        super().__delattr__(name)
        if not self._session.setting_up:
            self._derived.pop(name, None)
            self._changed()

    def _check_writing(self, what: str) -> None:
        if self._session.refuses_writes():
            msg = f"a formula {what}: formulas may not write attributes"
            remedy = "return the value from a formula of its own, or set it in BeforeRun"
            raise ReadOnlyError(msg, remedy=remedy)

    @property
    def data(self) -> Any:
        """The model points: ``data["age"]`` or ``data.age``, ``len(data)``, ``data.frame()``.

        Assign a DataFrame, a dict of arrays, Parquet paths or ModelPoints.
        """
        data = self._session.data
        if data is None and self._session.refuses_writes():
            msg = "a formula asks for self.data, and the model has no data"
            remedy = f"assign it: {type(self).__name__}(data=...), or model.data = ..."
            raise DataError(msg, remedy=remedy)
        return data

    @data.setter
    def data(self, value: Any) -> None:
        if value is None or is_scalar_record(value):
            self.__dict__.update(_points=None, _scalars=value)
        else:
            self.__dict__.update(_points=ModelPoints.of(value), _scalars=None)
        self._changed()

    def _changed(self) -> None:
        """Data or assumptions are not those of the last run, nor of a run that is prepared.

        What other models of the portfolio have worked out rests on them, too.
        """
        others = self._portfolio.values() if isinstance(self._portfolio, Mapping) else ()
        for model in {id(m): m for m in (self, *others)}.values():
            model.__dict__["_edition"] += 1
            model._clear()

    @property
    def portfolio(self) -> PortfolioView:
        """The portfolio, for formulas: totals over all its models; see :class:`PortfolioView`."""
        return PortfolioView(self)

    def _clear(self) -> None:
        """Forget the values and results of the last run, and the attributes that it derived."""
        state = self.__dict__
        _restore(state, self._derived)
        session = PlainSession()
        scalars = state["_scalars"]
        session.data = scalars if scalars is not None else plain_view(state["_points"])
        state.update(_session=session, _result=None, _reports=None, _derived={})

    def Clear(self) -> None:  # noqa: N802 - a framework method
        """Forget cached values and results; the plan stays."""
        self._clear()

    @property
    def plan(self) -> ActionPlan | None:
        """The action list: recorded by the last ``GenerateActions`` or run, or assigned."""
        return self._plan

    @plan.setter
    def plan(self, value: ActionPlan | None) -> None:
        if value is not None and not isinstance(value, ActionPlan):
            msg = f"a plan is an ActionPlan, got {type(value).__name__}"
            raise PlanError(msg, remedy="use ActionPlan.load(path)")
        self.__dict__.update(_plan=None if value is None else self._bind(value), _kept=None)

    def _bind(self, plan: ActionPlan) -> ActionPlan:
        """A plan with this model behind it."""
        return plan

    # ---- copies ------------------------------------------------------------------------------

    def _snapshot(self) -> Callable[[Any], Any]:
        """Makes fresh models with the present attributes, each with a session of its own."""
        cls, state = type(self), self.__getstate__()
        alone = None if self._portfolio is None else ALONE

        def clone(session: Any) -> Any:
            made = object.__new__(cls)
            for name, value in state.items():
                made.__dict__[name] = read_only(value) if type(value) is np.ndarray else value
            # The other models are part of a run of the portfolio only, which links them then.
            made.__dict__.update(_session=session, _derived={}, _portfolio=alone)
            return made

        return clone

    def __getstate__(self) -> dict[str, Any]:
        """The model as the user made it, without what a run has made of it."""
        dropped = {"_session", "_result", "_reports", "_kept", "_portfolio"}
        state = {
            k: v
            for k, v in self.__dict__.items()
            if k not in dropped and not isinstance(v, BoundFormula)
        }
        _restore(state, self._derived)
        state["_derived"] = {}
        if self._portfolio is not None:
            # A copy is none of its models, and must not take itself for all there is.
            state["_portfolio"] = ALONE
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _kept=None)
        self.__dict__.setdefault("_portfolio", None)
        if self._plan is not None:
            self.__dict__["_plan"] = self._bind(self._plan)
        self._clear()

    def _given(self) -> dict[str, Any]:
        """The user's attributes, without those that the last run derived."""
        return {k: v for k, v in self.__getstate__().items() if k not in OWN_STATE}

    # ---- as the lower floors see it -----------------------------------------------------------

    def _row_points(self, points: ModelPoints | None = None) -> ModelPoints | None:
        """Model points with declared attributes, after checking that no attribute was forgotten."""
        cls = type(self)
        missing = [name for name in self.model_points if not hasattr(self, name)]
        if missing:
            msg = f"model_points declares {missing[0]!r}, and the model has no such attribute"
            raise ModelError(msg, remedy=f"pass it in: {cls.__name__}({missing[0]}=...)")
        joined = join_points(points if points is not None else self._points, self._declared())
        if joined is not None:
            given = self._given()
            check_undeclared(cls.__name__, given, self.model_points, self.assumptions, joined.rows)
        return joined

    def _declared(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.model_points}

    def _subject(
        self,
        points: ModelPoints | None,
        outputs: Sequence[str] | None,
        memory: int | str | None = None,
    ) -> Subject:
        """A snapshot of the model for a recording."""
        formulas = self._formulas()
        wanted = choose(formulas, self._default(), outputs)
        # A formula that knows the number of rows makes a few arrays of that length at a time.
        most_rows = max(0, allowed_bytes(memory) - resident_bytes()) // (8 * 4)
        return Subject(self._snapshot(), formulas, points, self._declared(), wanted, most_rows)


def _wrap_formulas(cls: type, base: type) -> None:
    """Turn the public lowercase functions of a class body (or of a mixin) into formulas."""
    for name, value in list(vars(base).items()):
        if not name[:1].islower() or not isinstance(value, (types.FunctionType, RunningTotal)):
            continue
        if base is cls or getattr(cls, name, None) is value:
            made: Any = value
            if isinstance(value, RunningTotal):
                made = value.function(name, cls.__qualname__)
            setattr(cls, name, Formula(made, name, cls.__qualname__))


def _restore(state: dict[str, Any], derived: dict[str, Any]) -> None:
    """Put back the values that attributes had before a run wrote to them."""
    for name, before in derived.items():
        if before is ABSENT:
            state.pop(name, None)
        else:
            state[name] = before
