"""The portfolio as the formulas of a model see it: totals over all its models.

The models of a portfolio have rows of their own, so that only values without rows pass from one to
another: totals, rates, numbers. What passes is a formula call like any other, of formulas that
every model has::

    endowment.bonus(3)
        reads  portfolio.total('assets', (3,))         a call of the endowment
            reads  total('assets', (3,))               a call of the endowment
            reads  total('assets', (3,))               a call of the annuity

It is memoised, recorded and released as the others are, and is in the action list.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hl_dask.errors import ModelError
from hl_dask.formula import Formula, call_text
from hl_dask.grouped import MOST_GROUPS, by_group, group_names, group_total
from hl_dask.session import on_fresh_stack


class _Alone:
    """Stands for the other models where they are out of reach; one object, also after pickling."""

    def __reduce__(self) -> str:
        return "ALONE"


ALONE: Any = _Alone()
"""In place of the other models, where a model that belongs to a portfolio is run by itself."""
MOST_FRAMES = 200
"""Python frames on a thread beyond which a formula of another model is asked on a fresh stack."""
Args = tuple[Any, ...]


def link(names: Sequence[str], models: Sequence[Any], to: Sequence[Any]) -> None:
    """Let some models see a portfolio."""
    members = dict(zip(names, models, strict=True))
    for model in to:
        model.__dict__["_portfolio"] = members


def models_seen_by(model: Any) -> Mapping[str, Any]:
    """The models of the portfolio by name; the model itself where it stands alone.

    Raises
    ------
    ModelError
        When the model belongs to a portfolio, and is run by itself.
    """
    found = model.__dict__.get("_portfolio")
    if found is None:
        return {type(model).__name__: model}
    if found is ALONE:
        msg = "the model belongs to a portfolio, and the other models are not part of this run"
        raise ModelError(
            msg,
            remedy="run the portfolio: portfolio.RunModel(...), portfolio.ExecuteActions(...); "
            "BeforeRun cannot ask other models",
        )
    models: Mapping[str, Any] = found
    return models


class PortfolioView(Mapping[str, "OtherModel"]):
    """What ``self.portfolio`` is in a formula: totals over all models, and the models by name.

    A model that stands alone is a portfolio of one.
    """

    __slots__ = ("_model",)

    def __init__(self, model: Any) -> None:
        self._model = model

    def total(self, formula: str, *args: Any) -> Any:
        """The total of a formula over all policies of all models that have it.

        Parameters
        ----------
        formula : str
            Name of a formula with an entry for each policy.
        *args
            Its arguments, such as t.

        Returns
        -------
        number or array
            The sum over the policies, model by model in the order of the portfolio; what other axes
            the values have stays.

        Raises
        ------
        ModelError
            When no model has the formula, or its values are totals already.
        """
        return _ask(self._model, TOTAL, formula, args)

    def total_by(self, column: str, formula: str, *args: Any, groups: Any = None) -> Any:
        """The total of a formula over the policies of the same group in all models.

        Parameters
        ----------
        column : str
            Name of the column with the group, such as ``"fund"``, in every model that has the
            formula.
        formula : str
            Name of a formula with an entry for each policy.
        *args
            Its arguments, such as t.
        groups : sequence, optional
            The groups there are; those of the text columns by default.

        Returns
        -------
        array, shape (policies, ...)
            For each policy of this model the total of its group; see :func:`hl_dask.total_by`.

        Raises
        ------
        ModelError
            When the groups are not known, or are too many; when no model has the formula.
        """
        names = tuple(_ask(self._model, GROUPS, column, formula) if groups is None else groups)
        totals = [_ask(self._model, GROUP_TOTAL, column, name, formula, args) for name in names]
        return by_group(self._model.data[column], names, totals)

    def __getitem__(self, member: str) -> OtherModel:
        return OtherModel(self._model, member)

    def __iter__(self) -> Iterator[str]:
        return iter(_ask(self._model, NAMES))

    def __len__(self) -> int:
        return len(_ask(self._model, NAMES))

    def __repr__(self) -> str:
        return f"<the portfolio of {type(self._model).__name__}>"


class OtherModel:
    """A model of the portfolio, for formulas of another one: its values without rows."""

    __slots__ = ("_member", "_model")

    def __init__(self, model: Any, member: str) -> None:
        self._model = model
        self._member = member

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def value(*args: Any) -> Any:
            return _ask(self._model, OF_OTHER, self._member, name, args)

        return value

    def __repr__(self) -> str:
        return f"<model {self._member!r} of the portfolio>"


def _ask(model: Any, formula: Formula, *key: Any) -> Any:
    return model._session.call(formula, model, key, {})


# ---- formulas that every model has -----------------------------------------------------------


class PortfolioFormula(Formula):
    """A formula of the framework."""

    built_in = True

    def __init__(self, function: Callable[..., Any], name: str, home: str) -> None:
        super().__init__(function, name, "Portfolio")
        self.home = home

    def __reduce__(self) -> str:
        # There is one of each, wherever a model travels.
        return self.home


def _own_total(self: Any, name: str, args: Args) -> Any:
    return _by_policy(self, name, args).sum(axis=0)


def _own_group_total(self: Any, column: str, group: Any, name: str, args: Args) -> Any:
    return group_total(self.data[column], group, _by_policy(self, name, args))


def _own_groups(self: Any, column: str) -> tuple[Any, ...]:
    return tuple(group_names(self.data[column], None))


def _total(self: Any, name: str, args: Args) -> Any:
    return _added(self, OWN_TOTAL, name, name, args)


def _group_total(self: Any, column: str, group: Any, name: str, args: Args) -> Any:
    return _added(self, OWN_GROUP_TOTAL, name, column, group, name, args)


def _groups(self: Any, column: str, name: str) -> tuple[Any, ...]:
    found: dict[Any, None] = {}
    for model in _having(self, name):
        found |= dict.fromkeys(_from(self, model, lambda m: _ask(m, OWN_GROUPS, column)))
    if len(found) > MOST_GROUPS:
        msg = f"there are {len(found):,} groups of {column!r}; total_by takes at most {MOST_GROUPS}"
        raise ModelError(msg, remedy="give fewer with groups=")
    return tuple(found)


def _of_other(self: Any, member: str, name: str, args: Args) -> Any:
    models = models_seen_by(self)
    if member not in models:
        msg = f"the portfolio has no model {member!r}"
        raise ModelError(msg, remedy=_near(member, models))
    model = models[member]
    if not _has(model, name):
        msg = f"the model {member!r} of the portfolio has no formula {name!r}"
        raise ModelError(msg, remedy=_near(name, _formulas(model)))
    return _from(self, model, lambda m: getattr(m, name)(*args))


def _names(self: Any) -> tuple[str, ...]:
    return tuple(models_seen_by(self))


OWN_TOTAL = PortfolioFormula(_own_total, "total", "OWN_TOTAL")
OWN_GROUP_TOTAL = PortfolioFormula(_own_group_total, "total_by", "OWN_GROUP_TOTAL")
OWN_GROUPS = PortfolioFormula(_own_groups, "groups", "OWN_GROUPS")
TOTAL = PortfolioFormula(_total, "portfolio.total", "TOTAL")
GROUP_TOTAL = PortfolioFormula(_group_total, "portfolio.total_by", "GROUP_TOTAL")
GROUPS = PortfolioFormula(_groups, "portfolio.groups", "GROUPS")
OF_OTHER = PortfolioFormula(_of_other, "portfolio.value", "OF_OTHER")
NAMES = PortfolioFormula(_names, "portfolio.names", "NAMES")


# ---- what they do ----------------------------------------------------------------------------


def _by_policy(model: Any, name: str, args: Args) -> Any:
    """The value of a formula, which must have an entry for each policy."""
    value = getattr(model, name)(*args)
    if not model._session.has_rows(value):
        msg = f"{call_text(name, args)} has no entry for each policy to be added up"
        raise ModelError(
            msg,
            remedy="give a formula with one; to add what are totals already: "
            f"sum(model.{name}(...) for model in self.portfolio.values())",
        )
    return value


def _added(self: Any, formula: Formula, name: str, *key: Any) -> Any:
    """The sum over the models that have a formula, in the order of the portfolio."""
    parts = [_from(self, m, lambda m: _ask(m, formula, *key)) for m in _having(self, name)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _having(self: Any, name: str) -> list[Any]:
    models = models_seen_by(self)
    found = [model for model in models.values() if _has(model, name)]
    if not found:
        msg = f"no model of the portfolio has a formula {name!r}"
        known = {formula for model in models.values() for formula in _formulas(model)}
        raise ModelError(msg, remedy=_near(name, known))
    return found


def _from(self: Any, model: Any, ask: Callable[[Any], Any]) -> Any:
    """What a model answers, as a value that the asking one can work with."""
    session = model._session
    value = on_fresh_stack(lambda: ask(model), session.call_stack()) if _is_deep() else ask(model)
    return _passed(self, session, value)


def _passed(self: Any, session: Any, value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_passed(self, session, part) for part in value)
    if isinstance(value, list):
        return [_passed(self, session, part) for part in value]
    if isinstance(value, dict):
        return {key: _passed(self, session, part) for key, part in value.items()}
    if session.has_rows(value):
        msg = "the value has an entry for each policy of another model"
        raise ModelError(
            msg, remedy='take the total: self.portfolio.total("name", t), or a formula that does'
        )
    return self._session.received(value)


def _is_deep() -> bool:
    """Whether so many Python calls are nested on this thread that another model needs a new one."""
    frame: Any = sys._getframe()
    count = 0
    while frame is not None and count < MOST_FRAMES:
        frame, count = frame.f_back, count + 1
    return frame is not None


def _formulas(model: Any) -> list[str]:
    return [formula.name for formula in type(model)._formulas()]


def _has(model: Any, name: str) -> bool:
    return isinstance(getattr(type(model), name, None), Formula)


def _near(name: str, known: Any) -> str:
    near = difflib.get_close_matches(str(name), [str(k) for k in known], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"{hint}there are {', '.join(sorted(map(str, known)))}"
