"""One column of the model points: what it is, and how it is widened.

Whatever the source, a formula meets only these kinds of column: ``int64``, ``float64``, ``bool``,
``datetime64``/``timedelta64``, and text. Text is kept as ``int32`` codes into the sorted distinct
strings of the whole data, as long as there are at most :data:`MAX_CATEGORIES` of them, and as
Python strings beyond. A null is never turned into a number: it is an error that says where it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hl_dask.errors import DataError

MAX_CATEGORIES = 65_536
"""A text column with more distinct values than this stays text."""

TEXT_BYTES = 64
"""Assumed bytes of one Python string, its pointer included, in memory projections."""

Array = npt.NDArray[Any]

_FILL = "fill the nulls before, e.g. df[{name!r}] = df[{name!r}].fillna({value})"
OBJECT = np.dtype(object)


@dataclass(frozen=True, eq=False)
class ColumnSpec:
    """What a column is after widening.

    Parameters
    ----------
    name : str
        Name of the column.
    dtype : numpy.dtype
        Widened dtype: int64, float64, bool, datetime64, timedelta64; int32 for the codes of a text
        column with categories, object (of str) for other text.
    shape : tuple of int
        Trailing shape: ``()`` for one value a row, ``(k,)`` for k values a row.
    categories : numpy.ndarray or None
        The sorted distinct values (object array of str) of a text column, which codes point to.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    categories: Array | None = None

    @property
    def is_text(self) -> bool:
        """Whether the column holds text, as codes or as strings."""
        return self.categories is not None or self.dtype == OBJECT

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, an estimate where the values are Python strings."""
        size = TEXT_BYTES if self.dtype == OBJECT else self.dtype.itemsize
        return size * int(np.prod(self.shape, dtype=np.int64))

    def _key(self) -> tuple[Any, ...]:
        categories = None if self.categories is None else tuple(self.categories)
        return (self.name, self.dtype, self.shape, categories)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ColumnSpec) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self.name, self.dtype, self.shape))


def null_error(
    name: str, row: int, *, dtype: np.dtype[Any] | None, file: str | None = None
) -> DataError:
    """Build the error for a null at a row (counted from 0 over the whole data)."""
    value = {"i": "0", "f": "0.0", "b": "False", "M": "some_date"}.get(
        "O" if dtype is None else dtype.kind, "''"
    )
    remedy = _FILL.format(name=name, value=value)
    if dtype is not None and dtype.kind == "f":
        remedy += " (pandas' to_parquet writes NaN as null; NaN itself would be kept as a value)"
    return DataError(
        f"column {name!r} has a null, first in row {row:,} (rows count from 0); "
        "a null has no value to compute with",
        column=name,
        file=file,
        remedy=remedy,
    )


def type_error(name: str, type_name: str, file: str | None = None) -> DataError:
    """Build the error for a column whose type no formula can compute with."""
    return DataError(
        f"column {name!r} is of type {type_name}; expected integers, floats, bool, text or dates",
        column=name,
        file=file,
        remedy="convert the column before, or leave it out of the formulas",
    )


def range_error(name: str, row: int, value: int, file: str | None = None) -> DataError:
    """Build the error for an unsigned integer that int64 cannot hold."""
    return DataError(
        f"column {name!r} holds {value} in row {row:,}, above the largest int64 {2**63 - 1}",
        column=name,
        file=file,
        remedy="store such identifiers as text",
    )


def widened_dtype(name: str, dtype: np.dtype[Any], file: str | None = None) -> np.dtype[Any]:
    """Return the dtype that a fixed-width column is widened to."""
    if dtype.kind in "iu":
        return np.dtype(np.int64)
    if dtype.kind == "f":
        return np.dtype(np.float64)
    if dtype.kind == "b":
        return np.dtype(np.bool_)
    if dtype.kind in "mM" and np.datetime_data(dtype)[0] != "generic":
        return dtype.newbyteorder("=")
    raise type_error(name, str(dtype), file)


def fill_numbers(
    out: Array, values: Array, name: str, first_row: int, file: str | None = None
) -> None:
    """Write fixed-width values into an array of the widened dtype, checked.

    ``first_row`` is the global row of ``values[0]``, for the message.
    """
    if values.dtype.kind == "u" and values.dtype.itemsize == 8 and values.size:
        bad = np.flatnonzero(values.reshape(len(values), -1).max(axis=1) > np.uint64(2**63 - 1))
        if bad.size:
            at = int(bad[0])
            raise range_error(name, first_row + at, int(np.max(values[at])), file)
    if values.dtype.kind in "mM":
        missing = np.isnat(values)
        if missing.any():
            at = int(np.argmax(missing.reshape(len(values), -1).any(axis=1)))
            raise null_error(name, first_row + at, dtype=values.dtype, file=file)
    np.copyto(out, values, casting="unsafe")


# --- Arrow ---------------------------------------------------------------------------------------


def arrow_is_text(kind: pa.DataType) -> bool:
    """Whether an Arrow type holds text, dictionary-encoded or not."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def arrow_dtype(name: str, kind: pa.DataType, file: str | None = None) -> np.dtype[Any]:
    """Return the widened NumPy dtype of an Arrow type that is not text.

    Raises
    ------
    DataError
        For types that have no such dtype (lists, structs, bytes, times with a zone, ...).
    """
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_integer(value):
        return np.dtype(np.int64)
    if pa.types.is_floating(value) or pa.types.is_decimal(value):
        return np.dtype(np.float64)
    if pa.types.is_boolean(value):
        return np.dtype(np.bool_)
    if pa.types.is_date32(value):
        return np.dtype("datetime64[D]")
    if pa.types.is_date64(value):
        return np.dtype("datetime64[ms]")
    if pa.types.is_timestamp(value) and value.tz is None:
        return np.dtype(f"datetime64[{value.unit}]")
    if pa.types.is_duration(value):
        return np.dtype(f"timedelta64[{value.unit}]")
    raise type_error(name, str(kind), file)


def arrow_values(values: pa.Array) -> Array:
    """Return an Arrow array without nulls as NumPy, without a copy where that is possible."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.float64())
    result: Array = values.to_numpy(zero_copy_only=False)
    if pa.types.is_date32(values.type):
        return result.astype("datetime64[D]", copy=False)
    return result


def arrow_first_null(values: pa.Array) -> int | None:
    """Return the position of the first null, also one that hides in a dictionary."""
    missing = None
    if values.null_count:
        missing = values.is_null()
    elif pa.types.is_dictionary(values.type) and values.dictionary.null_count:
        missing = values.dictionary_decode().is_null()
    if missing is None:
        return None
    flags = missing.to_numpy(zero_copy_only=False)
    return int(np.argmax(flags)) if flags.any() else None


def arrow_distinct(values: pa.Array) -> set[str]:
    """Return the distinct strings that occur in an Arrow text array without nulls."""
    if not pa.types.is_dictionary(values.type):
        return set(values.unique().to_pylist())
    # A dictionary may hold entries that no row uses: a category is what occurs.
    used = np.flatnonzero(
        np.bincount(values.indices.to_numpy(zero_copy_only=False), minlength=len(values.dictionary))
    )
    return set(values.dictionary.take(pa.array(used)).to_pylist())


class CategoryCoder:
    """Turns text into codes of given categories; safe to share among threads."""

    def __init__(self, categories: Array) -> None:
        self._categories = categories
        self._arrow: dict[Any, Any] = {}  # the categories as Arrow has them, by type

    def codes(self, values: pa.Array) -> Array:
        """Return the int32 codes of an Arrow text array without nulls, -1 for unknown text."""
        if not pa.types.is_dictionary(values.type):
            values = values.dictionary_encode()
        if not len(values):
            return np.empty(0, dtype=np.int32)
        kind = values.dictionary.type
        known = self._arrow.get(kind)
        if known is None:
            known = self._arrow[kind] = pa.array(self._categories, type=kind)
        found = pc.fill_null(pc.index_in(values.dictionary, value_set=known), -1)
        mapping: Array = found.to_numpy().astype(np.int32, copy=False)
        codes: Array = np.take(mapping, values.indices.to_numpy(zero_copy_only=False))
        return codes
