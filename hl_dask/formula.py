"""Formulas: the memoised methods of a model class, and their signatures.

A formula is called through a *session*, kept on the instance as ``_session``. The plain session
memoises values; the session of a trace records them; the session of a block hands out values of
that block. The wrapper on the class is the same for all.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

import numpy as np
import pandas as pd

from hl_dask.errors import ModelError

OWN_STATE = frozenset(
    [
        "_session",
        "_points",
        "_scalars",
        "_plan",
        "_kept",
        "_result",
        "_reports",
        "_proj_len",
        "_default_agg",
        "_derived",
        "_edition",
        "_portfolio",
    ]
)
"""Attributes of a model instance that belong to the framework."""


class _Default:
    """Stands for the aggregate of the model; one object, also after pickling."""

    def __repr__(self) -> str:
        return "default aggregate"

    def __reduce__(self) -> str:
        return "DEFAULT"


DEFAULT: Any = _Default()
RUNNING: ContextVar[Any] = ContextVar("running model", default=None)
"""The model whose formula is running."""
ROLLUPS = ("sum", "first", "last", "mean", "min", "max")
"""What may become of the months of a period."""
F = TypeVar("F", bound=Callable[..., Any])


@contextlib.contextmanager
def running(model: Any) -> Iterator[None]:
    """While code of the user's runs that is no formula: of a model, or of none (an aggregate)."""
    token = RUNNING.set(model)
    try:
        yield
    finally:
        RUNNING.reset(token)


def agg(function: Callable[..., Any] | None) -> Callable[[F], F]:
    """Say how the values of a formula are aggregated over the model points.

    Parameters
    ----------
    function : callable or None
        ``None``: the formula is evaluated but not reported. ``np.sum`` (the default of a model),
        ``np.min``, ``np.max``, ``np.mean``, ``np.any``, ``np.all``, ``len``,
        :class:`~hl_dask.Sum`, :class:`~hl_dask.Aggregate`; any other callable is traced like a
        formula, and used or refused.

    Returns
    -------
    callable
        A decorator for a formula.
    """

    def decorate(method: F) -> F:
        method._hl_agg = function  # type: ignore[attr-defined]
        return method

    return decorate


def per_point(method: F) -> F:
    """Declare that a formula works row by row, although hl_dask cannot see that it does.

    Such a formula is evaluated as plain Python on blocks of rows. The declaration is checked on
    the sample: a random third of the rows, single rows, duplicated rows and changed columns must
    give the same values row by row.

    Parameters
    ----------
    method : callable
        The formula; it returns an array with an entry for each row.

    Raises
    ------
    OpaqueFormulaError
        When a recording finds that the declaration is wrong.
    """
    method._hl_per_point = True  # type: ignore[attr-defined]
    return method


def rollup(how: str | None) -> Callable[[F], F]:
    """Say what becomes of a formula's months in ``Result.by_year`` and the like.

    Parameters
    ----------
    how : str or None
        ``"sum"`` for a flow, ``"first"`` or ``"last"`` for a stock, ``"mean"``, ``"min"``,
        ``"max"``; None to leave the formula out.

    Returns
    -------
    callable
        A decorator for a formula.

    Raises
    ------
    ModelError
        When it is none of these.
    """
    if how is not None and how not in ROLLUPS:
        shown = getattr(how, "__name__", repr(how))
        msg = f"{shown} is no way to roll months up; the ways are {', '.join(ROLLUPS)} and None"
        raise ModelError(msg, remedy='write @hl.rollup("sum") for a flow, @hl.rollup("last") ...')

    def decorate(method: F) -> F:
        method._hl_rollup = how  # type: ignore[attr-defined]
        return method

    return decorate


def call_text(name: str, args: tuple[Any, ...]) -> str:
    """A formula call as it would be written: ``pols_if_at(3, 'BEF_DECR')``."""
    return f"{name}({', '.join(_short(a) for a in args)})"


def _short(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 40 else text[:37] + "..."


class Session(Protocol):
    """What evaluates the formulas of one model instance.

    Attributes
    ----------
    data : object
        What ``self.data`` is.
    setting_up : bool
        Whether BeforeRun or AfterRun is on: attributes may be written, as part of the run.
    """

    data: Any
    setting_up: bool

    def refuses_writes(self) -> bool:
        """Whether attributes must not change now."""
        ...

    def values_of(self, formula: Formula) -> dict[tuple[Any, ...], Any]:
        """Values of a formula that are at hand, by arguments."""
        ...

    def call(
        self, formula: Formula, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The value of a formula."""
        ...


class Formula:
    """A formula of a model class: a descriptor around the user's function.

    Attributes
    ----------
    name : str
        The attribute name, whatever the function's own name is (lambdas are all called alike).
    params : tuple of str
        Parameters without ``self``.
    agg : callable, None or DEFAULT
        How values are aggregated.
    per_point : bool
        Declared with :func:`per_point`.
    rollup : str, None or DEFAULT
        Declared with :func:`rollup`.
    """

    built_in = False
    """Whether it is the framework's own, and not to be checked for what users do."""

    def __init__(self, function: Callable[..., Any], name: str, owner: str) -> None:
        self.function = function
        self.name = name
        self.owner = owner
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self.agg: Any = getattr(function, "_hl_agg", DEFAULT)
        self.per_point: bool = getattr(function, "_hl_per_point", False)
        self.rollup: Any = getattr(function, "_hl_rollup", DEFAULT)
        parameters = list(inspect.signature(function).parameters.values())[1:]
        self.signature = inspect.Signature(parameters)
        self.params = tuple(p.name for p in parameters)
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.arity = len(parameters) if all(p.kind in positional for p in parameters) else -1

    def __repr__(self) -> str:
        return f"<formula {self.owner}.{self.name}({', '.join(self.params)})>"

    @property
    def of_t(self) -> bool:
        """Whether t is the only parameter."""
        return self.params == ("t",)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Canonical arguments: ``f(1)``, ``f(t=1)`` and a defaulted argument give one tuple."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return tuple(
            tuple(sorted(v.items())) if isinstance(v, dict) else v for v in bound.arguments.values()
        )

    def evaluate(self, instance: Any, key: tuple[Any, ...]) -> Any:
        """Call the user's function with canonical arguments."""
        token = RUNNING.set(instance)
        try:
            return self._evaluate(instance, key)
        finally:
            RUNNING.reset(token)

    def _evaluate(self, instance: Any, key: tuple[Any, ...]) -> Any:
        if self.arity >= 0:
            return self.function(instance, *key)
        bound = self.signature.bind_partial()
        for parameter, value in zip(self.signature.parameters.values(), key, strict=True):
            is_dict = parameter.kind is inspect.Parameter.VAR_KEYWORD
            bound.arguments[parameter.name] = dict(value) if is_dict else value
        return self.function(instance, *bound.args, **bound.kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        bound = BoundFormula(self, instance)
        if getattr(type(instance), self.name, None) is self:
            # The next access finds it in the instance without coming here. An overridden formula,
            # reached through super(), must not take the place of the overriding one.
            instance.__dict__[self.name] = bound
        return bound


class BoundFormula:
    """A formula of one model instance: call it, or look at its cached values."""

    __slots__ = ("formula", "instance")

    def __init__(self, formula: Formula, instance: Any) -> None:
        self.formula = formula
        self.instance = instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The formula's value, evaluated now if it was not before."""
        return self.instance._session.call(self.formula, self.instance, args, kwargs)

    def __reduce__(self) -> Any:
        return getattr, (self.instance, self.formula.name)

    def __repr__(self) -> str:
        return f"{self.formula!r}, {len(self.cache)} cached values"

    @property
    def __name__(self) -> str:
        """The formula's name."""
        return self.formula.name

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        """The formula's own documentation."""
        return self.formula.__doc__

    @property
    def cache(self) -> dict[tuple[Any, ...], Any]:
        """Cached values by arguments."""
        values: dict[tuple[Any, ...], Any] = self.instance._session.values_of(self.formula)
        return values

    @property
    def df(self) -> pd.DataFrame:
        """The cached values: a column for each parameter and one for the value."""
        rows = [(*key, value) for key, value in self.cache.items()]
        return pd.DataFrame(rows, columns=[*self.formula.params, self.formula.name])


def bind_key(formula: Formula, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Canonical arguments, or an error that names the formula and its parameters."""
    try:
        return formula.bind(args, kwargs)
    except TypeError as error:
        msg = f"{formula.name} takes the arguments ({', '.join(formula.params)}): {error}"
        raise ModelError(
            msg,
            formula=call_text(formula.name, args),
            remedy="call it with these arguments",
        ) from error


def unhashable(formula: Formula, key: tuple[Any, ...]) -> ModelError:
    """The error for an argument that cannot be a key of the memo."""
    bad = next(
        (a for a in key if getattr(type(a), "__hash__", None) is None or hasattr(a, "shape")), key
    )
    return ModelError(
        "arguments of a formula must be numbers, texts or other hashable values, got "
        f"{type(bad).__name__}",
        formula=formula.name,
        remedy="call the formula with t or another key, and let it read arrays from formulas and "
        "columns",
    )
