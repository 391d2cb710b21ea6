"""Arrow types and arrays: which kind of column they are, and what is in them as NumPy.

Parquet, Arrow, CSV and Dask data all come as Arrow arrays, and a row filter is evaluated on them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from hl_dask._columns import EXACT, Array, type_error
from hl_dask.errors import DataError

_EXACT_POWER = 22
"""Powers of ten up to this one are floats."""


def arrow_is_text(kind: pa.DataType) -> bool:
    """Whether an Arrow type holds text, dictionary-encoded or not."""
    kind = plain(kind)
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of a dictionary, and any other type as it is."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def arrow_dtype(name: str, kind: pa.DataType, file: str | None = None) -> np.dtype[Any]:
    """Return the widened NumPy dtype of an Arrow type that is not text.

    Raises
    ------
    DataError
        For types that have no such dtype (lists, structs, bytes, times with a zone, ...).
    """
    value = plain(kind)
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


def merged_kind(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return a type for the values of two columns that are to be one; None when there is none.

    Text is text however it is stored; integers and floats or decimals are floats (a value that a
    float cannot hold exactly is refused where it is read); of dates and times the finer unit.
    """
    if pa.types.is_null(first) or pa.types.is_null(second):
        return second if pa.types.is_null(first) else first
    if arrow_is_text(first) or arrow_is_text(second):
        return pa.string() if arrow_is_text(first) and arrow_is_text(second) else None
    try:
        one, other = arrow_dtype("", first), arrow_dtype("", second)
    except DataError:
        return first if first == second else None
    if one == other:
        return first
    if {one.kind, other.kind} == {"i", "f"}:
        return pa.float64()
    if one.kind == other.kind and one.kind in "mM":
        unit = np.datetime_data(np.promote_types(one, other))[0]
        return pa.timestamp(unit) if one.kind == "M" else pa.duration(unit)
    return None


# --- what is in an array -------------------------------------------------------------------------


def arrow_values(values: pa.Array) -> Array:
    """Return an Arrow array without nulls as NumPy, without a copy where that is possible."""
    values = decoded(values)
    if pa.types.is_decimal(values.type):
        return _nearest_floats(values)
    result: Array = values.to_numpy(zero_copy_only=False)
    if pa.types.is_date32(values.type):
        return result.astype("datetime64[D]", copy=False)
    return result


def decoded(values: pa.Array) -> pa.Array:
    """Return the values of a dictionary-encoded array, and any other array as it is.

    Raises
    ------
    pyarrow.lib.ArrowIndexError
        Where an index points outside of the dictionary, as in a damaged file.
    """
    if pa.types.is_dictionary(values.type):
        return values.dictionary.take(values.indices)
    return values


def without_views(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return string views, which Arrow has few operations for, as strings; others as they are."""
    kind = column.type
    if not pa.types.is_string_view(plain(kind)):
        return column
    text = pa.large_string()
    if not pa.types.is_dictionary(kind):
        return column.cast(text)
    chunks = [
        pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(text))
        for chunk in column.chunks
    ]
    return pa.chunked_array(chunks, pa.dictionary(kind.index_type, text))


def _nearest_floats(values: pa.Array) -> Array:
    """The float nearest to each decimal, as Python's ``float(Decimal)`` is.

    Arrow's own cast is off in the last bit of some, so that a column of a file would have other
    bits than the same column of a DataFrame.
    """
    kind = values.type
    if kind.bit_width < 128:
        values = values.cast(pa.decimal128(kind.precision, kind.scale))
    if kind.bit_width > 128 or not len(values):
        return _floats_of_text(values)
    words = np.frombuffer(values.buffers()[1], np.int64).reshape(-1, 2)
    low, high = words[values.offset : values.offset + len(values)].T
    # A division of two exact floats gives the nearest float.
    exact = (high == low >> 63) & (low <= EXACT) & (low >= -EXACT)
    if not 0 <= kind.scale <= _EXACT_POWER:
        exact[:] = False
    out: Array = low / 10.0 ** max(0, min(kind.scale, _EXACT_POWER))
    if not exact.all():
        rest = np.flatnonzero(~exact)
        out[rest] = _floats_of_text(values.take(pa.array(rest)))
    return out


def _floats_of_text(values: pa.Array) -> Array:
    floats: Array = values.cast(pa.string()).cast(pa.float64()).to_numpy(zero_copy_only=False)
    return floats


def arrow_first_null(values: pa.Array) -> int | None:
    """Return the position of the first null, also one that hides in a dictionary."""
    missing = None
    if values.null_count:
        missing = values.is_null()
    elif pa.types.is_fixed_size_list(values.type):
        inner = arrow_first_null(values.flatten())
        return None if inner is None else inner // int(values.type.list_size)
    elif pa.types.is_dictionary(values.type) and values.dictionary.null_count:
        missing = decoded(values).is_null()
    if missing is None:
        return None
    flags = missing.to_numpy(zero_copy_only=False)
    return int(np.argmax(flags)) if flags.any() else None


def _indices(values: pa.Array) -> Array:
    """The indices of a dictionary-encoded array without nulls, checked."""
    found: Array = values.indices.to_numpy(zero_copy_only=False)
    if found.size and (found.min() < 0 or found.max() >= len(values.dictionary)):
        msg = "an index points outside of the dictionary"
        raise pa.ArrowIndexError(msg)
    return found


def arrow_distinct(values: pa.Array) -> set[str]:
    """Return the distinct strings that occur in an Arrow text array without nulls."""
    if not pa.types.is_dictionary(values.type):
        return set(values.unique().to_pylist())
    # A dictionary may hold entries that no row uses: a category is what occurs.
    used = np.flatnonzero(np.bincount(_indices(values), minlength=len(values.dictionary)))
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
        codes: Array = np.take(mapping, _indices(values))
        return codes


# --- from NumPy and pandas -----------------------------------------------------------------------


def to_arrow(name: str, data: Any) -> pa.Array:
    """Return a column of whatever kind as an Arrow array, NaN kept as a value.

    Several values a row become lists of fixed size.

    Raises
    ------
    DataError
        When it holds what Arrow has no type for, or several types.
    """
    if isinstance(data, pa.ChunkedArray):
        return data.chunk(0) if data.num_chunks == 1 else data.combine_chunks()
    if isinstance(data, pa.Array):
        return data
    values = data.array if isinstance(data, pd.Series | pd.Index) else data
    if isinstance(values, pd.arrays.NumpyExtensionArray):
        values = values.to_numpy()
    try:
        made = _of_numpy(values) if isinstance(values, np.ndarray) else pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        dtype = getattr(data, "dtype", type(data).__name__)
        raise type_error(name, f"{dtype} ({' '.join(str(error).split())})") from error
    return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made


def _of_numpy(values: Array) -> pa.Array:
    kind = values.dtype.kind
    if kind == "O":
        return _of_objects(values)
    if kind in "mM":
        unit = np.datetime_data(values.dtype)[0]
        # Arrow knows seconds and finer units, and days.
        if unit not in ("s", "ms", "us", "ns") and (kind, unit) != ("M", "D"):
            values = values.astype(f"{kind}8[s]")
    elif kind == "f" and values.dtype.itemsize > np.dtype(np.float64).itemsize:
        values = values.astype(np.float64)
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    mask = np.ma.getmaskarray(values) if np.ma.is_masked(values) else None
    values = np.ma.getdata(values)
    if values.ndim == 1:
        return pa.array(values, mask=mask, from_pandas=False)
    rows = None if mask is None else pa.array(mask.any(axis=1))
    flat = pa.array(values.ravel(), from_pandas=False)
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1], mask=rows)


def _of_objects(values: Array) -> pa.Array:
    try:
        return pa.array(values, from_pandas=False)  # NaN is a value among floats
    except (pa.ArrowException, TypeError, ValueError):
        return pa.array(values, from_pandas=True)  # ... and a null among texts
