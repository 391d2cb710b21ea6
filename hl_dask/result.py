"""What a run gives back."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from hl_dask.errors import ModelError, UnsupportedError
from hl_dask.formula import DEFAULT, Formula
from hl_dask.labels import flat_columns, label_text
from hl_dask.memory import size_text
from hl_dask.periods import roll_up
from hl_dask.plan import ActionPlan
from hl_dask.report import Report, by_call
from hl_dask.settings import RunStats
from hl_dask.storage import write_together, write_whole
from hl_dask.thresholds import Threshold

EXCEL_ROWS, EXCEL_COLUMNS = 1_048_576, 16_384
"""What a sheet can hold."""


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
            for entry, part in np.ndenumerate(np.asarray(value)):
                columns.setdefault((*label, *entry), {})[int(key[where])] = part
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


def _plain(value: Any) -> Any:
    """A reported value as Python has it: numbers, texts, lists of them."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, np.ndarray):
        return plain.tolist()
    return plain if isinstance(plain, (bool, int, float, str)) else str(plain)


def _json_plain(value: Any) -> Any:
    """A value for JSON, which has no NaN and no infinity: they go as texts."""
    plain = _plain(value)
    return repr(plain) if isinstance(plain, float) and not np.isfinite(plain) else plain


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
    summed : frozenset of str
        Formulas whose aggregate is a sum.
    thresholds : sequence of Threshold
        Comparisons of totals.

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
        *,
        summed: frozenset[str] = frozenset(),
        thresholds: Sequence[Threshold] = (),
    ) -> None:
        self.df_agg, self.values = tabulate(reports, proj_len)
        self._rollups = {
            f.name: f.rollup for f, _, _ in reports if f.rollup is not DEFAULT and "t" in f.params
        }
        self._summed = summed
        self._thresholds = tuple(thresholds)
        self.reports = reports
        self.cache_agg = by_call(reports)
        self.proj_len = proj_len
        self.stats = stats
        self.plan = plan
        self._graph = graph

    def __getstate__(self) -> dict[str, Any]:
        # Formulas of a class that is pickled by value cannot be pickled apart from it.
        return {**self.__dict__, "_graph": None, "reports": []}

    @property
    def thresholds(self) -> pd.DataFrame:
        """Totals that were compared, and how near they came: a row for each comparison.

        Columns ``call``, ``left``, ``comparison``, ``right`` and ``margin``, the distance relative
        to the size of the totals on both sides. Below some 1e-12 rounding may decide, and a warning
        says so. Totals that a formula turned into Python numbers before it compared them are not
        seen.
        """
        return pd.DataFrame(self._thresholds, columns=list(Threshold._fields))

    # ---- by period ---------------------------------------------------------------------------

    def by_year(
        self,
        how: Mapping[str, str | None] | None = None,
        *,
        default: str | None = "required",
        start: int = 0,
    ) -> pd.DataFrame:
        """Totals by year; see :meth:`by_period`."""
        return self.by_period(12, how, default=default, start=start, name="year")

    def by_quarter(
        self,
        how: Mapping[str, str | None] | None = None,
        *,
        default: str | None = "required",
        start: int = 0,
    ) -> pd.DataFrame:
        """Totals by quarter; see :meth:`by_period`."""
        return self.by_period(3, how, default=default, start=start, name="quarter")

    def by_period(
        self,
        months: int,
        how: Mapping[str, str | None] | None = None,
        *,
        default: str | None = "required",
        start: int = 0,
        name: str = "period",
    ) -> pd.DataFrame:
        """Totals by period.

        Parameters
        ----------
        months : int
            Months of a period.
        how : mapping of str to str or None, optional
            What becomes of the months of a period, by formula: ``"sum"`` (flows), ``"first"``,
            ``"last"`` (stocks), ``"mean"``, ``"min"``, ``"max"``, None to leave the formula out.
            By default what :func:`~hl_dask.rollup` declares.
        default : str or None, optional
            For formulas of which nothing is said; they are an error by default, because a stock
            that is summed looks like a number. ``"sum"`` holds for those that are sums over the
            policies, and not for ratios, rates, largest values and the like.
        start : int
            Months of the first period that lie before t = 0: with 3 a projection from the end of
            March is cut into calendar years.
        name : str
            Name of the index.

        Returns
        -------
        DataFrame
            A row for each period from 0; the first and the last may have fewer months. NaN in a
            month that counts makes NaN of the period.

        Raises
        ------
        ModelError
            When it is not said for a formula what becomes of its months.
        """
        known = {**self._rollups, **(how or {})}
        labels: list[Any] = list(self.df_agg.columns)
        formulas = {label[0] if isinstance(label, tuple) else label for label in labels}
        slips = [formula for formula in how or {} if formula not in formulas]
        if slips:
            msg = f"{slips[0]!r} is not among the reported formulas of t"
            raise ModelError(msg, remedy=f"these are: {', '.join(map(str, self.df_agg.columns))}")
        if default != "required":
            known = {**dict.fromkeys(formulas, default), **known}
            if default == "sum":
                self._check_sums(formulas.difference(self._rollups, how or {}))
        return roll_up(self.df_agg, known, months, start=start, name=name)

    def _check_sums(self, formulas: set[Any]) -> None:
        """Refuse to add up months of what is not even added up over the policies."""
        by_policy = {c.formula for c in self.plan.calls if c.reported and c.kind == "per-point"}
        others = sorted(formulas - (self._summed & by_policy))
        if others:
            msg = (
                'default="sum" is for sums over the policies; these are rates, ratios, totals that '
                "were worked with, or other aggregates"
            )
            raise ModelError(
                msg,
                formula=", ".join(others),
                remedy=f'say what becomes of their months: how={{"{others[0]}": "last"}}, or None '
                "to leave them out",
            )

    # ---- to pandas and to files --------------------------------------------------------------

    def to_pandas(self) -> pd.DataFrame:
        """The totals by t: a copy, with what has no t and how the run was made in ``attrs``.

        ``attrs["values"]`` has :attr:`values` by text, ``pv_claims`` or ``pv_claims[death]``, as
        plain Python numbers and lists, so that frames can still be concatenated and written.
        """
        frame = self.df_agg.copy()
        values = {label_text(name): _plain(value) for name, value in self.values.items()}
        frame.attrs.update(self._origin(), values=values)
        return frame

    def _origin(self) -> dict[str, Any]:
        return {
            "model": self.plan.model,
            "proj_len": self.proj_len,
            "rows": self.stats.rows,
            "environment": dict(self.stats.environment),
            "fingerprint": dict(self.plan.fingerprint),
        }

    def _flat(self) -> pd.DataFrame:
        """The totals by t with one text for each column: ``pols_if_at[BEF_DECR]``."""
        frame = self.df_agg.copy()
        frame.columns = flat_columns(frame.columns)
        return frame

    def _values_frame(self) -> pd.DataFrame:
        rows = [
            (label_text((*(name if isinstance(name, tuple) else (name,)), *entry)), part)
            for name, value in self.values.items()
            for entry, part in np.ndenumerate(np.asarray(value))
        ]
        return pd.DataFrame(rows, columns=["name", "value"])

    def to_parquet(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the totals by t as Parquet.

        Columns have one text each, see :func:`hl_dask.labels.split_columns` for the way back. What
        has no t, the model and the versions are in the schema's metadata, as JSON under the key
        ``hl_dask``. The file gets its name when it is complete.

        Raises
        ------
        StorageError
            When the file exists and ``overwrite`` is not set, or it cannot be written.
        """
        values = self._values_frame()
        described = self._origin() | {
            "values": dict(zip(values["name"], map(_json_plain, values["value"]), strict=True))
        }
        try:
            table = pa.Table.from_pandas(self._flat().reset_index(), preserve_index=False)
        except pa.ArrowException as error:
            msg = f"a total is of a kind that Parquet files do not have: {error}"
            raise UnsupportedError(msg, remedy="let aggregates give numbers or texts") from error
        metadata = {**(table.schema.metadata or {}), b"hl_dask": json.dumps(described).encode()}
        table = table.replace_schema_metadata(metadata)
        return write_whole(path, lambda file: pq.write_table(table, file), overwrite=overwrite)

    def to_csv(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the totals by t as CSV, in full precision.

        What has no t goes into a second file, ``NAME.values.csv``, if there is such a thing; if
        there is not, a file of that name is removed, or an error unless ``overwrite`` is set.
        Numbers have all their digits; to read the last bit back with a pandas before 3.1, give
        ``pandas.read_csv`` the option ``float_precision="round_trip"``.

        Raises
        ------
        StorageError
            When a file exists and ``overwrite`` is not set, or it cannot be written.
        """
        final, values, totals = Path(path), self._values_frame(), self._flat()
        beside = final.with_name(f"{final.stem}.values{final.suffix}")

        def write_values(file: Path) -> None:
            values.to_csv(file, index=False, na_rep="nan")

        written = write_together(
            {
                beside: write_values if len(values) else None,
                final: lambda file: totals.to_csv(file, na_rep="nan"),
            },
            overwrite=overwrite,
        )
        return written[1]

    def to_excel(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write an Excel workbook with sheets for totals by t, for what has no t, and for the run.

        Raises
        ------
        StorageError
            When the file exists and ``overwrite`` is not set, or it cannot be written.
        UnsupportedError
            When openpyxl is not installed, or a sheet cannot hold so many rows or columns.
        """
        if importlib.util.find_spec("openpyxl") is None:
            msg = "writing Excel files needs openpyxl, which is not installed"
            raise UnsupportedError(msg, remedy="install it: pip install 'hl-dask[excel]'")
        totals, values = self._flat(), self._values_frame()
        if totals.shape[0] >= EXCEL_ROWS or totals.shape[1] >= EXCEL_COLUMNS:
            msg = (
                f"the totals have {totals.shape[0]:,} rows and {totals.shape[1]:,} columns; "
                f"a sheet holds {EXCEL_ROWS:,} and {EXCEL_COLUMNS:,}"
            )
            raise UnsupportedError(msg, remedy="use to_parquet or to_csv")
        origin = pd.Series(
            {
                k: v if isinstance(v, (str, int)) else json.dumps(v)
                for k, v in self._origin().items()
            }
        )

        def write(file: Path) -> None:
            with pd.ExcelWriter(file, engine="openpyxl") as book:
                totals.to_excel(book, sheet_name="by t", na_rep="nan")
                values.to_excel(book, sheet_name="values", index=False, na_rep="nan")
                origin.to_frame("run").to_excel(book, sheet_name="run")

        return write_whole(path, write, overwrite=overwrite)

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
