"""Model points in memory: a DataFrame, or a mapping of arrays."""

from __future__ import annotations

import copy
import datetime
import decimal
import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa

from hl_dask._columns import (
    MAX_CATEGORIES,
    OBJECT,
    Array,
    ColumnSpec,
    fill_numbers,
    null_error,
    type_error,
    widened_dtype,
)
from hl_dask._kinds import arrow_dtype, arrow_is_text, arrow_values, to_arrow, without_views
from hl_dask._where import Where
from hl_dask.errors import DataError

_ARRAYS = (np.ndarray, pd.Series, pd.Index, pd.api.extensions.ExtensionArray)
_CODE = np.dtype(np.int32)
_FILTER_ROWS = 262_144
"""Rows to which a filter is applied at a time."""
# The kinds of object columns that are one sort of value, and the dtype that holds it.
_UNIFORM = {
    "integer": np.dtype(np.int64),
    "floating": np.dtype(np.float64),
    "decimal": np.dtype(np.float64),
    "boolean": np.dtype(np.bool_),
    "date": np.dtype("datetime64[D]"),
}
_UNIFORM_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int, np.integer),
    "floating": (float, np.floating),
    "decimal": (decimal.Decimal,),
    "boolean": (bool, np.bool_),
    "date": (datetime.date,),
}


class Column(Protocol):
    """What a source in memory has of a column."""

    @property
    def spec(self) -> ColumnSpec:
        """What it is."""

    def read(self, start: int, stop: int) -> Array:
        """Return rows start:stop, widened, contiguous and read-only; a view where that is so."""

    def take(self, positions: Array) -> Array:
        """Return the rows at sorted positions, widened and read-only."""

    def read_bytes(self, rows: int) -> int:
        """Return an upper bound of what a read of so many rows needs."""


@dataclass(frozen=True, eq=False)
class MemoryColumn:
    """A column in memory: its spec, and the array (not yet widened) that ``read`` cuts."""

    spec: ColumnSpec
    base: Array

    def read(self, start: int, stop: int) -> Array:
        """Return rows start:stop, widened, contiguous and read-only; a view where that is so."""
        part = self.base[start:stop]
        checked = part.dtype.kind in "mM" or part.dtype == np.uint64
        if part.dtype != self.spec.dtype or checked or not part.flags.c_contiguous:
            wide = np.empty(part.shape, dtype=self.spec.dtype)
            fill_numbers(wide, part, self.spec.name, start)
            part = wide
        view = part.view(np.ndarray)
        view.setflags(write=False)
        return view

    def take(self, positions: Array) -> Array:
        """Return the rows at sorted positions, widened and read-only."""
        return MemoryColumn(self.spec, self.base[positions]).read(0, len(positions))

    def read_bytes(self, rows: int) -> int:
        """Return what a read of so many rows needs: nothing, where it is a view."""
        same = self.base.dtype == self.spec.dtype and self.base.dtype.kind not in "mM"
        return 0 if same and self.base.flags.c_contiguous else rows * self.spec.row_bytes


def memory_column(name: str, data: Any) -> MemoryColumn:
    """Find out what a column in memory is.

    Parameters
    ----------
    name : str
        Name of the column.
    data : array-like
        NumPy array or memmap of one or two dimensions, pandas Series, Categorical or extension
        array, or a list.

    Raises
    ------
    DataError
        If the column has nulls or a type that cannot be computed with.
    """
    values = data.array if isinstance(data, pd.Series | pd.Index) else data
    if isinstance(values, pd.api.extensions.ExtensionArray):
        return _extension_column(name, values)
    if isinstance(values, np.ma.MaskedArray):
        if np.ma.is_masked(values):
            mask = np.ma.getmaskarray(values).reshape(len(values), -1).any(axis=1)
            raise null_error(name, int(np.argmax(mask)), dtype=values.dtype)
        values = values.data
    array = as_array(values)
    if array.dtype.kind in "UT":
        return _text_column(name, array.astype(object))
    if array.dtype.kind == "O":
        return _object_column(name, array)
    dtype = widened_dtype(name, array.dtype)
    return MemoryColumn(ColumnSpec(name, dtype, array.shape[1:]), array)


def as_array(values: Any) -> Array:
    """Return NumPy arrays as they are and lists as arrays that keep what was in the list."""
    if isinstance(values, np.ndarray):
        return values
    array = np.asarray(values)
    if array.dtype.kind in "biuf" or array.ndim != 1:
        return array
    # NumPy would turn ["a", 1] into two strings.
    kept = np.empty(len(values), dtype=object)
    kept[:] = list(values)
    return kept


def _extension_column(name: str, values: Any) -> MemoryColumn:
    if isinstance(values, pd.arrays.NumpyExtensionArray):
        return memory_column(name, values.to_numpy())
    dtype = values.dtype
    missing = np.asarray(values.isna())
    if isinstance(dtype, pd.CategoricalDtype):
        return _categorical_column(name, values, missing)
    if isinstance(dtype, pd.StringDtype):
        return _extension_text(name, values, missing)
    if isinstance(dtype, pd.ArrowDtype):
        return _arrow_column(name, values, missing)
    plain = getattr(dtype, "numpy_dtype", None)
    if not isinstance(plain, np.dtype) or plain.kind not in "biuf":
        if getattr(dtype, "kind", "") in "mM" and getattr(dtype, "tz", None) is None:
            return memory_column(name, np.asarray(values))
        raise type_error(name, str(dtype))
    if missing.any():
        raise null_error(name, int(np.argmax(missing)), dtype=plain)
    return memory_column(name, values.to_numpy(dtype=plain, copy=False))


def _arrow_column(name: str, values: Any, missing: Array) -> MemoryColumn:
    kind = values.dtype.pyarrow_dtype
    if arrow_is_text(kind):
        return _extension_text(name, values, missing)
    dtype = arrow_dtype(name, kind)
    if missing.any():
        raise null_error(name, int(np.argmax(missing)), dtype=dtype)
    chunks = values.__arrow_array__()
    pieces = chunks.chunks if isinstance(chunks, pa.ChunkedArray) else [chunks]
    out = np.empty(len(values), dtype=dtype)
    at = 0
    for piece in pieces:
        fill_numbers(out[at : at + len(piece)], arrow_values(piece), name, at)
        at += len(piece)
    return MemoryColumn(ColumnSpec(name, out.dtype), out)


def _extension_text(name: str, values: Any, missing: Array) -> MemoryColumn:
    if missing.any():
        raise null_error(name, int(np.argmax(missing)), dtype=None)
    # Not as Python strings: ten million of them need a gigabyte.
    codes, distinct = pd.factorize(values)
    return _coded_column(name, codes, np.asarray(distinct, dtype=object))


def _categorical_column(name: str, values: pd.Categorical, missing: Array) -> MemoryColumn:
    categories = np.asarray(values.categories, dtype=object)
    if missing.any():
        raise null_error(name, int(np.argmax(missing)), dtype=None)
    codes = np.asarray(values.codes)
    if not all(isinstance(category, str) for category in categories):
        inner = memory_column(name, values.categories.array)
        return MemoryColumn(
            ColumnSpec(name, inner.spec.dtype), inner.read(0, len(categories))[codes]
        )
    return _coded_column(name, codes, categories)


def _object_column(name: str, array: Array) -> MemoryColumn:
    kind = pd.api.types.infer_dtype(array.ravel(), skipna=True)
    missing = np.asarray(pd.isna(array))
    if kind in ("string", "empty"):
        return _text_column(name, array, missing)
    if kind not in _UNIFORM:
        raise type_error(name, f"object ({kind})")
    # NaN is a value of a float column, None and pandas.NA are nulls.
    kinds = _UNIFORM_TYPES[kind]
    for position in np.flatnonzero(missing):
        if not isinstance(array.ravel()[position], kinds):
            row = int(position) // max(1, int(np.prod(array.shape[1:])))
            raise null_error(name, row, dtype=_UNIFORM[kind])
    try:
        wide = array.astype(_UNIFORM[kind])
    except (OverflowError, TypeError, ValueError) as error:
        raise type_error(name, f"object ({kind}: {error})") from error
    return MemoryColumn(ColumnSpec(name, wide.dtype, wide.shape[1:]), wide)


def _text_column(name: str, array: Array, missing: Array | None = None) -> MemoryColumn:
    flags = np.asarray(pd.isna(array)) if missing is None else missing
    if flags.any():
        row = int(np.argmax(flags.reshape(len(array), -1).any(axis=1)))
        raise null_error(name, row, dtype=None)
    codes, distinct = pd.factorize(array.ravel())
    return _coded_column(name, codes.reshape(array.shape), np.asarray(distinct, dtype=object))


def _coded_column(name: str, codes: Array, distinct: Array) -> MemoryColumn:
    used = np.flatnonzero(np.bincount(codes.ravel(), minlength=len(distinct)))
    if len(used) > MAX_CATEGORIES:
        strings = distinct[codes]
        return MemoryColumn(ColumnSpec(name, OBJECT, codes.shape[1:]), strings)
    present = sorted((str(distinct[at]), int(at)) for at in used)
    categories = np.array([text for text, _ in present], dtype=object)
    categories.setflags(write=False)
    recode = np.zeros(len(distinct), dtype=_CODE)
    recode[[at for _, at in present]] = np.arange(len(present), dtype=_CODE)
    return MemoryColumn(ColumnSpec(name, _CODE, codes.shape[1:], categories), recode[codes])


# --- the source ----------------------------------------------------------------------------------


class _Chosen:
    """Some rows of a column, copied when they are used."""

    def __init__(self, data: Any, mask: Array) -> None:
        self._data = data
        self._mask = mask
        self.dtype = getattr(data, "dtype", getattr(data, "type", ""))

    def rows(self) -> Any:
        """The column with these rows only."""
        data = self._data.rows() if isinstance(self._data, _Chosen) else self._data
        if isinstance(data, pa.ChunkedArray):
            return without_views(data).filter(pa.array(self._mask))
        return data[self._mask]


class MemorySource:
    """Columns in memory, widened on first use."""

    in_memory = True
    home: str | None = None

    def __init__(self, data: Mapping[str, Any], rows: int, description: str) -> None:
        self.columns = tuple(data)
        self.rows = rows
        self.description = description
        self._data = dict(data)
        self._ready: dict[str, Column] = {}
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None, "_ready": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def _column(self, name: str) -> Column:
        column = self._ready.get(name)
        if column is None:
            with self._lock:
                column = self._ready.get(name)
                if column is None:
                    column = self._ready[name] = self._make(name, self._raw(name))
        return column

    def _raw(self, name: str) -> Any:
        data = self._data[name]
        if isinstance(data, DataError):
            # A copy: an error gathers the formulas that it passes through.
            raise copy.deepcopy(data)
        return data.rows() if isinstance(data, _Chosen) else data

    def _make(self, name: str, data: Any) -> Column:
        return memory_column(name, data)

    def filtered(self, where: Where) -> MemorySource:
        """Return the rows that pass a filter; a column is copied when it is used."""
        kept: dict[str, Any] = {}

        def piece(name: str, start: int, stop: int) -> pa.Array:
            if name not in kept:
                kept[name] = self._raw(name)
            data = kept[name]
            part = data.iloc[start:stop] if isinstance(data, pd.Series) else data[start:stop]
            return to_arrow(name, part)

        names = where.names(lambda name: piece(name, 0, _FILTER_ROWS).type)
        mask = np.zeros(self.rows, dtype=bool)
        for start in range(0, self.rows, _FILTER_ROWS):
            stop = min(self.rows, start + _FILTER_ROWS)
            batch = {name: piece(name, start, stop) for name in names}
            mask[start:stop] = where.mask(pa.RecordBatch.from_pydict(batch))
        new = copy.copy(self)
        new._data = {
            name: data if isinstance(data, DataError) else _Chosen(data, mask)
            for name, data in self._data.items()
        }
        new.rows = int(np.count_nonzero(mask))
        new.description = f"{self.description}, where {where}"
        return new

    def schema(self, name: str) -> ColumnSpec:
        return self._column(name).spec

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Array]:
        return {name: self._column(name).read(start, stop) for name in columns}

    def take(self, name: str, positions: Array) -> Array:
        return self._column(name).take(positions)

    def sample_ranges(self, n: int, most: int) -> list[tuple[int, int]]:
        """Return the row ranges to sample from: all rows."""
        del n, most
        return [(0, self.rows)]

    def read_bytes(self, columns: Sequence[str], chunk_rows: int) -> int:
        ready = [self._column(name) for name in dict.fromkeys(columns)]
        return sum(column.read_bytes(chunk_rows) for column in ready)

    def release(self) -> None:
        """Do nothing: no file is open."""

    def stored_bytes(self) -> int:
        return sum(int(getattr(value, "nbytes", 0)) for value in self._data.values())

    def token(self) -> str:
        shapes = [
            (name, str(getattr(value, "dtype", type(value).__name__)), np.shape(value))
            for name, value in self._data.items()
        ]
        return hashlib.sha256(repr((self.rows, shapes)).encode()).hexdigest()


def from_frame(frame: pd.DataFrame) -> MemorySource:
    check_names(list(frame.columns))
    if frame.columns.has_duplicates:
        twice = str(frame.columns[frame.columns.duplicated()][0])
        msg = f"column {twice!r} occurs twice in the DataFrame"
        raise DataError(msg, column=twice, remedy="rename one")
    # A shallow copy: pandas copies on write, so that later changes of the frame stay outside.
    kept = frame.copy(deep=False)
    data = {name: kept[name] for name in kept.columns}
    return MemorySource(data, len(frame), "pandas DataFrame")


def from_mapping(data: Mapping[Any, Any]) -> MemorySource:
    check_names(list(data))
    if not data:
        msg = "the model points have no columns"
        raise DataError(msg, remedy="give at least one array")
    kept: dict[str, Any] = {}
    first = next(iter(data))
    for name, value in data.items():
        column = as_array(value) if isinstance(value, list | tuple) else value
        dimensions = len(np.shape(column))
        if not isinstance(column, _ARRAYS) or dimensions not in (1, 2):
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            msg = (
                f"column {name!r} is {kind} with {dimensions} dimensions; "
                "expected an array of one or two dimensions, the first over the rows"
            )
            raise DataError(
                msg,
                column=name,
                remedy=f"give one value per row, e.g. np.full(rows, data[{name!r}])",
            )
        kept[name] = column
        if len(column) != len(kept[first]):
            msg = (
                f"columns differ in length: {first!r} has {len(kept[first]):,} rows, "
                f"{name!r} has {len(column):,}"
            )
            raise DataError(
                msg,
                column=name,
            )
    return MemorySource(kept, len(kept[first]), "arrays in memory")


def check_names(names: Sequence[Any]) -> None:
    for name in names:
        if not isinstance(name, str):
            msg = f"column name {name!r} is {type(name).__name__}; expected a string"
            raise DataError(
                msg,
                column=str(name),
                remedy="rename the columns, e.g. df.columns = df.columns.map(str)",
            )
