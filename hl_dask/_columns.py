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

from hl_dask.errors import DataError

MAX_CATEGORIES = 65_536
"""A text column with more distinct values than this stays text."""

TEXT_BYTES = 64
"""Assumed bytes of one Python string, its pointer included, in memory projections."""

Array = npt.NDArray[Any]

EXACT = 2**53
"""Integers up to this are floats."""

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
    if out.dtype.kind == "f" and values.dtype.kind in "iu" and values.size:
        _check_exact(values, name, first_row, file)
    np.copyto(out, values, casting="unsafe")
    if out.dtype.kind in "mM" and out.dtype != values.dtype:
        _check_unit(out, values, name, first_row, file)


def _check_exact(values: Array, name: str, first_row: int, file: str | None) -> None:
    """Refuse integers that are no floats, where other files have made the column one of floats."""
    if values.min() >= -EXACT and values.max() <= EXACT:
        return
    size = np.abs(values.astype(object)) if values.dtype.kind == "i" else values.astype(object)
    for at in np.flatnonzero(size.ravel() > EXACT):
        value = int(values.ravel()[at])
        if int(float(value)) != value:
            row = first_row + int(at) // int(np.prod(values.shape[1:], dtype=np.int64))
            msg = (
                f"column {name!r} holds the integer {value} in row {row:,}, which no float64 is, "
                "and other rows hold floats"
            )
            raise DataError(
                msg,
                column=name,
                file=file,
                remedy="write all files with the same type; store such identifiers as text",
            )


def _check_unit(out: Array, values: Array, name: str, first_row: int, file: str | None) -> None:
    """Refuse dates beyond the range of the finer unit that other files have."""
    wrong = np.flatnonzero(out.astype(values.dtype) != values)
    if wrong.size:
        at = int(wrong[0])
        msg = (
            f"column {name!r} holds {values[at]} in row {first_row + at:,}, beyond the range of "
            f"{out.dtype}, which other files have"
        )
        raise DataError(
            msg, column=name, file=file, remedy="write all files with the same unit, such as days"
        )
