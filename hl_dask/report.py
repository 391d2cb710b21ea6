"""What a run evaluates and what it reports of it.

The plain run, the recording and the replay in one piece share these rules, so that they cannot
differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hl_dask.aggregate import Sum
from hl_dask.errors import FormulaError, HlDaskError, ModelError
from hl_dask.formula import DEFAULT, Formula

SUMMABLE = "biufc"
"""Kinds of dtype whose values can be summed."""
AGGREGATES = "np.sum, np.min, np.max, np.mean, np.any, np.all, len, hl.Sum or hl.Aggregate"
"""What a message offers."""
Report = tuple[Formula, tuple[Any, ...], Any]
"""A reported value: formula, arguments, value."""


@dataclass(frozen=True)
class Wanted:
    """Formulas of a run.

    Attributes
    ----------
    of_t : tuple of Formula
        Evaluated at every t, in this order.
    alone : tuple of Formula
        Formulas without arguments, evaluated after the last t.
    aggregates : dict of Formula to callable
        Formulas whose calls are reported, with the aggregate over the rows.
    """

    of_t: tuple[Formula, ...]
    alone: tuple[Formula, ...]
    aggregates: dict[Formula, Any]


def choose(
    formulas: Sequence[Formula],
    default: Any,
    outputs: Sequence[str] | None = None,
) -> Wanted:
    """The formulas of a run.

    Parameters
    ----------
    formulas : sequence of Formula
        All formulas in the order of definition.
    default : callable or None
        Aggregate of formulas that name none.
    outputs : sequence of str, optional
        Names of the formulas to be reported; all that have an aggregate by default.

    Raises
    ------
    ModelError
        When a name in ``outputs`` is no formula.
    """
    names = {f.name for f in formulas}
    unknown = [name for name in outputs or () if name not in names]
    if unknown:
        msg = f"outputs names no formula of the model: {', '.join(map(str, unknown))}"
        raise ModelError(msg, remedy=f"choose among {', '.join(sorted(names))}")
    aggregates = {}
    for formula in formulas:
        function = default if formula.agg is DEFAULT else formula.agg
        if outputs is not None and formula.name in outputs and function is None:
            function = default if default is not None else np.sum
        if function is not None and (outputs is None or formula.name in outputs):
            aggregates[formula] = function
    return Wanted(
        tuple(f for f in formulas if f.of_t and f in aggregates),
        tuple(f for f in formulas if not f.params and f in aggregates),
        aggregates,
    )


def unreported(formulas: Sequence[Formula], wanted: Wanted) -> Wanted:
    """The other formulas of t, which a plain run evaluates as well, and reports nothing of."""
    return Wanted(tuple(f for f in formulas if f.of_t and f not in wanted.aggregates), (), {})


def summed(wanted: Wanted) -> frozenset[str]:
    """Names of the formulas whose aggregate is a sum."""
    return frozenset(
        f.name for f, a in wanted.aggregates.items() if a is np.sum or isinstance(a, Sum)
    )


def check_proj_len(proj_len: Any) -> int:
    """The last time step as an int.

    Raises
    ------
    ModelError
        When it is no whole number, or below 0.
    """
    if isinstance(proj_len, bool) or not isinstance(proj_len, (int, np.integer)) or proj_len < 0:
        msg = f"proj_len is the last time step, a whole number of at least 0; got {proj_len!r}"
        raise ModelError(msg, remedy="for 277 months, t = 0..276, give 276")
    return int(proj_len)


def run_formulas(wanted: Wanted, instance: Any, proj_len: int) -> None:
    """Evaluate, t by t and in the order of definition, what is wanted."""
    for t in range(proj_len + 1):
        for formula in wanted.of_t:
            getattr(instance, formula.name)(t)
    for formula in wanted.alone:
        getattr(instance, formula.name)()


def reported(formula: Formula, key: tuple[Any, ...], proj_len: int) -> bool:
    """Whether a call belongs to the report: its t lies within 0..proj_len, if it has one."""
    if "t" not in formula.params:
        return True
    t = key[formula.params.index("t")]
    return isinstance(t, (int, np.integer)) and bool(0 <= t <= proj_len)


def check_reported(value: Any, text: str, rows: int, *, explicit: bool) -> None:
    """Refuse to report a value that is neither one number nor one entry for each policy.

    Raises
    ------
    FormulaError
        With the shape found and the ways to declare what is meant.
    """
    if isinstance(value, (tuple, list, dict)):
        seen = f"a {type(value).__name__}"
    else:
        shape = getattr(value, "sample_shape", np.shape(value))
        if shape == () or explicit:
            return
        seen = f"an array of shape {shape}"
    msg = (
        f"the formula returned {seen}; a reported formula returns one entry for each policy "
        f"({rows:,}) or one number"
    )
    raise FormulaError(
        msg,
        formula=text,
        remedy="mend the length, mark the formula @hl.agg(None) if it is not to be reported, or "
        "@hl.agg(hl.Sum(axis=0)) if it is an array of totals",
    )


def aggregate_value(
    function: Any, value: Any, rows: int | None, text: str, *, explicit: bool
) -> Any:
    """The reported value of a formula in a plain run.

    Parameters
    ----------
    function : callable
        The aggregate over the rows.
    value : object
        The formula's value over all rows.
    rows : int or None
        Number of rows; None when the model has no data.
    text : str
        The formula call, for messages.
    explicit : bool
        Whether the formula names its aggregate itself.

    Returns
    -------
    object
        ``function(value)`` when the value has one entry for each row, else the value as it is.
    """
    whole = isinstance(value, (tuple, list, dict))
    if whole or rows is None or np.ndim(value) == 0 or np.shape(value)[0] != rows:
        check_reported(value, text, rows or 0, explicit=explicit)
        return value
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    if (function is np.sum or isinstance(function, Sum)) and array.dtype.kind not in SUMMABLE:
        raise not_summable(array.dtype, text)
    try:
        return function(array)
    except HlDaskError as error:
        error.formula = error.formula or text
        raise
    except Exception as error:
        raise aggregate_failed(function, error, text) from error


def not_summable(dtype: Any, text: str) -> FormulaError:
    """The error for values, such as texts, that np.sum cannot take."""
    return FormulaError(
        f"values of dtype {dtype} cannot be summed",
        formula=text,
        remedy="mark the formula @hl.agg(None), or give another aggregate",
    )


def aggregate_failed(function: Any, error: Exception, text: str) -> FormulaError:
    """The error for an aggregate that raised an exception."""
    return FormulaError(
        f"the aggregate {function!r} raised {type(error).__name__}: {error}",
        formula=text,
        remedy=f"use {AGGREGATES}",
    )


def in_order(reports: Iterable[Report], formulas: Sequence[Formula]) -> list[Report]:
    """Reports in the order of definition of the formulas, then by arguments."""
    ranks = {f: k for k, f in enumerate(formulas)}
    return sorted(reports, key=lambda r: (ranks[r[0]], [_sortable(a) for a in r[1]]))


def _sortable(value: Any) -> tuple[str, Any]:
    if isinstance(value, (bool, int, float, np.number)):
        return "", value
    return type(value).__name__, value if isinstance(value, str) else repr(value)


def by_call(reports: Iterable[Report]) -> dict[str, dict[tuple[Any, ...], Any]]:
    """Reported values by formula name and arguments."""
    out: dict[str, dict[tuple[Any, ...], Any]] = {}
    for formula, key, value in reports:
        out.setdefault(formula.name, {})[key] = value
    return out
