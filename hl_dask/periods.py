"""Monthly totals by quarter, year or any other period."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from hl_dask.errors import ModelError
from hl_dask.formula import ROLLUPS

UFUNCS = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum}


def roll_up(
    frame: pd.DataFrame,
    how: Mapping[str, str | None],
    months: int,
    *,
    start: int = 0,
    name: str = "period",
) -> pd.DataFrame:
    """Totals by period.

    Parameters
    ----------
    frame : DataFrame
        A row for each month, a column for each formula (or columns of tuples that begin with it).
    how : mapping of str to str or None
        What becomes of the months of a period, by formula; None leaves the formula out.
    months : int
        Months of a period.
    start : int
        Months of the first period that lie before t = 0, so that it can be a calendar year.
    name : str
        Name of the index.

    Returns
    -------
    DataFrame
        A row for each period; the first and the last one perhaps of fewer months. NaN in a month
        that counts makes NaN of the period, lest a missing number pass for zero.

    Raises
    ------
    ModelError
        When it is not said for a formula what becomes of its months, or its values cannot be
        treated so.
    """
    checks: list[tuple[str, Any, int]] = [("months", months, 1), ("start", start, 0)]
    for what, value, least in checks:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            msg = f"{what} is a whole number of at least {least}; got {value!r}"
            raise ModelError(msg, remedy="a year has months=12, a quarter months=3")
    if start >= months:
        msg = f"start={start} months of the first period lie before t = 0, and it has {months}"
        raise ModelError(msg, remedy=f"give a number from 0 to {months - 1}")
    labels: list[Any] = list(frame.columns)
    formulas = {label: label[0] if isinstance(label, tuple) else label for label in labels}
    require_known(dict.fromkeys(formulas.values()), how)
    period = (frame.index.to_numpy() + start) // months
    numbers, firsts = np.unique(period, return_index=True)
    kept = {c: how[f] for c, f in formulas.items() if how[f] is not None}
    columns = {
        column: _rolled(frame[column].to_numpy(), str(way), firsts, formulas[column])
        for column, way in kept.items()
    }
    rolled = pd.DataFrame(columns, index=pd.Index(numbers))
    if isinstance(frame.columns, pd.MultiIndex):
        names = frame.columns.names
        rolled.columns = pd.MultiIndex.from_tuples(list(columns), names=names)
    return rolled.rename_axis(name)


def _rolled(values: Any, way: str, firsts: Any, formula: Any) -> Any:
    """What becomes of months: periods begin at the positions ``firsts``."""
    lasts = np.append(firsts[1:], len(values)) - 1
    if way in ("first", "last"):
        return values[firsts if way == "first" else lasts]
    added = way in ("sum", "mean")
    try:
        months = values.astype(np.int64) if added and values.dtype.kind == "b" else values
        parts = UFUNCS[way].reduceat(months, firsts)
        return parts / (lasts - firsts + 1) if way == "mean" else parts
    except TypeError as error:
        msg = f"there is no {way} of values of type {values.dtype}"
        raise ModelError(
            msg, formula=str(formula), remedy="choose 'first' or 'last', or None to leave it out"
        ) from error


def require_known(formulas: Iterable[Any], how: Mapping[str, Any]) -> None:
    """Refuse formulas of which nobody has said what becomes of their months, and slips."""
    unsaid = [str(formula) for formula in formulas if formula not in how]
    if unsaid:
        msg = (
            "it is not said what becomes of the months of a period: a flow is summed, of a stock "
            "the first or the last month is taken"
        )
        raise ModelError(
            msg,
            formula=", ".join(unsaid),
            remedy='put @hl.rollup("sum") or @hl.rollup("last") above the formula, or give '
            f'by_year(how={{"{unsaid[0]}": "sum"}}) or by_year(default="sum")',
        )
    for formula, way in how.items():
        if way is not None and way not in ROLLUPS:
            msg = f"{way!r} is no way to roll months up; the ways are {', '.join(ROLLUPS)}, None"
            raise ModelError(msg, formula=str(formula), remedy="choose one of them")
