"""Look-ups in tables with several keys, checked, and in plain arrays.

A table holds one value for each combination of its keys, flat, in the order of its axes; a look-up
adds up ``position * stride`` over the axes and takes from the flat values::

    age|int   sex|str   rate                      F       M
    20        F         0.1            20      [ 0.1     0.2
    20        M         0.2    ->      21        0.3     0.4 ]   -> values, strides (2, 1)
    21        F         0.3
    21        M         0.4

Keys that the table does not hold raise :class:`~hl_dask.errors.LookupKeyError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from hl_dask._axes import Axis, PositionAxis, build_axis, split_header
from hl_dask._columns import Array
from hl_dask._lookups import BoundTable, Lookup
from hl_dask._memory import memory_column
from hl_dask.errors import DataError, ModelError

__all__ = ["ArrayTable", "BoundTable", "Table", "lookup"]

_MOST_VALUES = 10**9


class Table(Lookup):
    """A look-up table with one or more keys, from a long DataFrame.

    All columns but the last are keys, the last is the value. The suffix of a key column says how
    keys are found:

    ``age|int``
        Consecutive integers; others are an error.
    ``dur|int_bound``
        Consecutive integers; below the lowest and above the highest, these are taken.
    ``term|int_cat``
        The integers listed.
    ``sex|str``
        Text.
    ``size|band``
        Numbers; each key of the table is the upper bound of its band. Above the top band is an
        error, as is NaN.

    Parameters
    ----------
    df : pandas.DataFrame or Table
        One row for each combination of keys, in any order. It is not altered.
    rectify : bool
        Whether combinations that have no row get the value ``fill``.
    fill : scalar
        That value.
    name : str, optional
        Name of the table in messages; the name of the value column when not given.

    Raises
    ------
    DataError
        If a key column has no suffix, holds other things than it says, or has missing values; if a
        combination of keys occurs twice or, unless rectified, not at all.

    Examples
    --------
    >>> import pandas as pd
    >>> rates = Table(pd.DataFrame({"age|int": [20, 21], "qx": [0.001, 0.002]}))
    >>> float(rates[21])
    0.002
    """

    _keeps_bound = True

    def __init__(
        self,
        df: Any,
        rectify: bool = False,
        *,
        fill: Any = np.nan,
        name: str | None = None,
    ) -> None:
        if isinstance(df, Table):
            self.__dict__.update(df.__dict__)
            return
        if not isinstance(df, pd.DataFrame) or len(df.columns) < 2 or not len(df):
            msg = f"a table from {type(df).__name__} of shape {np.shape(df)}"
            remedy = "give a DataFrame with rows, one or more key columns and, last, a value column"
            raise DataError(msg, remedy=remedy)
        label = str(df.columns[-1]) if name is None else name
        headers = [str(header) for header in df.columns[:-1]]
        _check_headers(headers)
        pairs = [
            build_axis(header, df.iloc[:, at], gaps=rectify) for at, header in enumerate(headers)
        ]
        axes = [axis for axis, _ in pairs]
        values = _value_column(df.columns[-1], df.iloc[:, -1])
        sizes = [axis.size for axis in axes]
        total = int(np.prod([float(size) for size in sizes]))
        flat = np.zeros(len(df), dtype=np.int64)
        if total > _MOST_VALUES:
            msg = f"table {label!r} would have {total:,} combinations of keys for {len(df):,} rows"
            raise DataError(
                msg,
                remedy="use |int_cat or |band, or several smaller tables",
            )
        for axis, keys in pairs:
            flat = flat * axis.size + axis.index(keys, f"table {label!r}") - axis.origin
        _check_combinations(headers, axes, flat, total, rectify=rectify)
        super().__init__(f"table {label!r}", axes, _spread(values, flat, total, fill))

    @property
    def name(self) -> str:
        """Name of the table, as in messages."""
        return str(self.owner.removeprefix("table ")[1:-1])

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of different keys, key by key."""
        return tuple(axis.size for axis in self._axes)

    @classmethod
    def read_csv(cls, path: Any, **options: Any) -> Table:
        """Read a table from CSV; options go to :func:`pandas.read_csv`.

        Key columns of kind ``|str`` are read as the text that is there, so that 'NA' and '01'
        stay what they are.
        """
        header = pd.read_csv(path, **{**options, "nrows": 0})
        if hasattr(path, "seek"):
            path.seek(0)
        text = _text_keys(header.columns)
        converters = _marking(text, options.pop("converters", {}))
        return cls(_unmark(pd.read_csv(path, converters=converters, **options), text))

    @classmethod
    def read_excel(cls, path: Any, sheet_name: Any = 0, **options: Any) -> Table:
        """Read a table from a sheet of a workbook; options go to :func:`pandas.read_excel`.

        Key columns of kind ``|str`` are read as text, as in :meth:`read_csv`.
        """
        header = pd.read_excel(path, sheet_name=sheet_name, **{**options, "nrows": 0})
        text = _text_keys(header.columns)
        converters = _marking(text, options.pop("converters", {}))
        frame = pd.read_excel(path, sheet_name=sheet_name, converters=converters, **options)
        return cls(_unmark(frame, text))

    @classmethod
    def rectify(cls, df: pd.DataFrame, fill: Any = np.nan) -> Table:
        """Build a table whose missing combinations of keys have the value ``fill``."""
        return cls(df, rectify=True, fill=fill)

    def __repr__(self) -> str:
        keys = ", ".join(f"{a.name}|{a.kind} ({a.valid()})" for a in self._axes)
        return f"<Table {self.name!r}: {keys}; {self._values.size:,} values, {self.dtype}>"


class ArrayTable(Lookup):
    """A plain array to look up in by position, checked; see :func:`lookup`.

    Parameters
    ----------
    array : array_like
        Array of one or more dimensions. It is not copied.
    """

    def __init__(self, array: Any) -> None:
        values = np.asarray(array)
        if values.ndim == 0:
            msg = f"look-up in the scalar {array!r}; expected an array"
            raise ModelError(msg)
        axes = [PositionAxis(number, size) for number, size in enumerate(values.shape)]
        super().__init__(f"array of shape {values.shape}", axes, values)

    def _check_count(self, count: int, exact: int | None = None) -> None:
        # Fewer keys than dimensions take rows.
        if exact is None and 1 <= count <= len(self._axes):
            return
        super()._check_count(count, exact)

    def __repr__(self) -> str:
        return f"<ArrayTable: {self.owner}, {self.dtype}>"


def lookup(array: Any, *index: Any) -> Any:
    """Take from an array by position, checked, and traced in a recording.

    Parameters
    ----------
    array : array_like
        The array, not one of model points.
    *index : int or array_like of int
        As many as the array has dimensions, or fewer to take rows.

    Returns
    -------
    numpy.ndarray or scalar
        ``array[index]``, of the broadcast shape of the index and the dimensions left.

    Raises
    ------
    LookupKeyError
        If an index is negative, too large, or not an integer.
    """
    return ArrayTable(array).get(*index)


# --- building ------------------------------------------------------------------------------------


def _check_headers(headers: Sequence[str]) -> None:
    names = [split_header(header)[0] for header in headers]
    for name in names:
        if names.count(name) > 1:
            msg = f"key {name!r} occurs twice in the table"
            raise DataError(msg, column=name)


def _text_keys(columns: Any) -> list[Any]:
    return [header for header in columns[:-1] if split_header(header)[1] == "str"]


def _marking(columns: list[Any], given: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the converters given, and ones that mark the cells of these columns."""
    return {**given, **{name: partial(_mark, given.get(name, str)) for name in columns}}


def _mark(convert: Callable[[Any], Any], cell: Any) -> str:
    # pandas looks for missing values behind converters too: a mark keeps 'NA' from being one.
    return f"|{convert(cell)}"


def _unmark(frame: pd.DataFrame, columns: list[Any]) -> pd.DataFrame:
    plain = {name: [str(cell).removeprefix("|") for cell in frame[name]] for name in columns}
    return frame.assign(
        **{name: pd.Series(cells, frame.index, object) for name, cells in plain.items()}
    )


def _value_column(header: Any, data: Any) -> Array:
    column = memory_column(str(header), data)
    if column.spec.categories is not None:
        return column.spec.categories[column.base]
    return column.read(0, len(column.base))


def _check_combinations(
    headers: Sequence[str], axes: Sequence[Axis], flat: Array, total: int, *, rectify: bool
) -> None:
    distinct, first, counts = np.unique(flat, return_index=True, return_counts=True)
    del first
    twice = distinct[counts > 1]
    if twice.size:
        msg = f"the table has more than one row for {_combinations(headers, axes, twice)}"
        raise DataError(
            msg,
            remedy="keep one row for each combination of keys",
        )
    if distinct.size < total and not rectify:
        # Among the first rows + 5 combinations at least five are missing, or all that are.
        head = np.arange(min(total, len(flat) + 5))
        missing = np.setdiff1d(head, distinct, assume_unique=True)
        msg = (
            f"the table has no row for {total - distinct.size:,} combinations of its keys: "
            f"{_combinations(headers, axes, missing)}"
        )
        raise DataError(
            msg,
            remedy="add the rows, or fill them by Table.rectify(df, fill=...)",
        )


def _combinations(headers: Sequence[str], axes: Sequence[Axis], flat: Array, most: int = 3) -> str:
    sizes = [axis.size for axis in axes]
    texts = []
    for at in flat[:most]:
        place = np.unravel_index(int(at), sizes)
        labels = (axis.labels()[[i]].tolist()[0] for axis, i in zip(axes, place, strict=True))
        texts.append(
            "(" + ", ".join(f"{h}={v!r}" for h, v in zip(headers, labels, strict=True)) + ")"
        )
    return ", ".join(texts) + (", ..." if len(flat) > most else "")


def _spread(values: Array, flat: Array, total: int, fill: Any) -> Array:
    """Return the values in the order of the axes, ``fill`` where there is none."""
    if total == len(values):
        ordered = np.empty(total, dtype=values.dtype)
    else:
        ordered = np.full(total, fill, dtype=_filled_dtype(values.dtype, fill))
    ordered[flat] = values
    return ordered


def _filled_dtype(dtype: np.dtype[Any], fill: Any) -> np.dtype[Any]:
    if dtype == np.dtype(object):
        fits, result = isinstance(fill, str), dtype
    elif dtype.kind == "b":
        fits, result = isinstance(fill, bool | np.bool_), dtype
    else:
        fits = isinstance(fill, int | float | np.integer | np.floating) and dtype.kind in "if"
        result = np.result_type(dtype, np.float64) if isinstance(fill, float) else dtype
    if not fits:
        msg = f"fill={fill!r} does not fit values of dtype {dtype}"
        raise DataError(
            msg,
            remedy="give fill= of the type of the values",
        )
    return result
