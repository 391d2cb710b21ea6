"""What a run gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from hl_dask.errors import UnsupportedError
from hl_dask.formula import Formula
from hl_dask.memory import size_text
from hl_dask.plan import ActionPlan
from hl_dask.report import Report, by_call
from hl_dask.run import RunStats


def tabulate(reports: Iterable[Report], proj_len: int) -> tuple[pd.DataFrame, dict[Any, Any]]:
    """Reported values as a table by t, and those that have no t.

    Parameters
    ----------
    reports : iterable of (formula, arguments, value)
        Reported values; arrays give a column for each entry.
    proj_len : int
        The last time step.

    Returns
    -------
    (DataFrame, dict)
        A column for each formula of t, ``(name, argument, ...)`` where there are other arguments or
        entries. In the dict, a formula without arguments is known by its name, another one by
        ``(name, argument, ...)``.
    """
    columns: dict[tuple[Any, ...], dict[int, Any]] = {}
    values: dict[Any, Any] = {}
    for formula, key, value in reports:
        if "t" not in formula.params:
            values[formula.name if not key else (formula.name, *key)] = value
            continue
        where = formula.params.index("t")
        label = (formula.name, *key[:where], *key[where + 1 :])
        if np.ndim(value):
            for entry in np.ndindex(np.shape(value)):
                columns.setdefault((*label, *entry), {})[int(key[where])] = value[entry]
        else:
            columns.setdefault(label, {})[int(key[where])] = value
    index = pd.RangeIndex(proj_len + 1, name="t")
    width = max((len(label) for label in columns), default=1)
    data = {
        (label[0] if width == 1 else (*label, *[""] * (width - len(label)))): _column(
            cells, proj_len
        )
        for label, cells in columns.items()
    }
    frame = pd.DataFrame(data, index=index)
    if width > 1:
        frame.columns = pd.MultiIndex.from_tuples(
            list(data), names=["formula", *[None] * (width - 1)]
        )
    return frame, values


def _column(cells: Mapping[int, Any], proj_len: int) -> Any:
    if len(cells) == proj_len + 1:
        return np.asarray([cells[t] for t in range(proj_len + 1)])
    return pd.Series(cells).reindex(range(proj_len + 1)).to_numpy()


def tabulate_values(values: Mapping[Formula, Mapping[tuple[Any, ...], Any]]) -> pd.DataFrame:
    """Values of formulas of t: a row for each t, arrays in the cells."""
    series = {
        formula.name: pd.Series({key[0]: v for key, v in sorted(cells.items())}, dtype=object)
        for formula, cells in values.items()
        if formula.of_t and cells
    }
    frame = pd.DataFrame(series)
    frame.index.name = "t"
    return frame


class Drawable(Protocol):
    """What can draw its Dask graph."""

    def visualize(self, filename: str | Path = ..., **options: Any) -> Any:
        """Draw."""
        ...


class Result:
    """Totals of a run.

    Parameters
    ----------
    reports : list of (formula, arguments, value)
        Reported values.
    proj_len : int
        The last time step.
    stats : RunStats
        Time, memory, chunks.
    plan : ActionPlan
        The action list that was replayed.
    graph : callable, optional
        ``graph()`` prepares the run again, for drawing.

    Attributes
    ----------
    df_agg : DataFrame
        A row for each t, a column for each reported formula of t; formulas with further arguments
        have columns ``(name, argument, ...)``.
    values : dict
        Reported formulas without t.
    cache_agg : dict of str to dict
        Reported values by formula name and arguments.
    reports : list of (formula, arguments, value)
        The same as a list in the order of definition; empty in a copy.
    proj_len : int
        The last time step.
    stats : RunStats
        Time, memory, chunks.
    plan : ActionPlan
        The action list that was replayed.
    """

    def __init__(
        self,
        reports: list[Report],
        proj_len: int,
        stats: RunStats,
        plan: ActionPlan,
        graph: Callable[[], Drawable] | None = None,
    ) -> None:
        self.df_agg, self.values = tabulate(reports, proj_len)
        self.reports = reports
        self.cache_agg = by_call(reports)
        self.proj_len = proj_len
        self.stats = stats
        self.plan = plan
        self._graph = graph

    def __getstate__(self) -> dict[str, Any]:
        # Formulas of a class that is pickled by value cannot be pickled apart from it.
        return {**self.__dict__, "_graph": None, "reports": []}

    def visualize(self, filename: str | Path = "hl_dask.svg", **options: Any) -> Any:
        """Draw the Dask graph of the run; see :func:`dask.visualize`. Needs the extra ``plot``.

        Raises
        ------
        UnsupportedError
            When the result has been pickled, or graphviz is not installed.
        """
        if self._graph is None:
            msg = "the result has been copied or pickled, and the graph stays where it was run"
            raise UnsupportedError(msg, remedy="draw the graph of the result of ExecuteActions")
        return self._graph().visualize(filename=filename, **options)

    def __repr__(self) -> str:
        stats = self.stats
        memory = (
            f", projected peak {size_text(stats.projected_bytes)}" if stats.projected_bytes else ""
        )
        return (
            f"<Result of {self.plan.model}: {stats.rows:,} policies x {stats.months} months, "
            f"{len(self.df_agg.columns)} columns, {len(self.values)} values, "
            f"{stats.elapsed_s:.2f} s{memory}>"
        )

    def _repr_html_(self) -> str:
        return f"<p>{repr(self)[1:-1]}</p>{self.df_agg.to_html(max_rows=20)}"
