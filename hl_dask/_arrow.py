"""Arrow data in memory: tables, record batches, readers, and whatever can be exported as Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from hl_dask._columns import (
    OBJECT,
    Array,
    ColumnSpec,
    arrow_dtype,
    arrow_first_null,
    arrow_is_text,
    arrow_values,
    fill_numbers,
    null_error,
)
from hl_dask._memory import MemoryColumn, MemorySource, memory_column
from hl_dask.errors import DataError


def is_arrow(data: object) -> bool:
    """Whether an object is Arrow data, or can be exported as such (the PyCapsule interface)."""
    kinds = (pa.Table, pa.RecordBatch, pa.RecordBatchReader)
    capsule = hasattr(type(data), "__arrow_c_stream__") or hasattr(type(data), "__arrow_c_array__")
    return isinstance(data, kinds) or capsule


def from_arrow(data: Any) -> MemorySource:
    """Model points in an Arrow table, batch or reader, or in anything that exports one.

    A reader can be read once: its rows are kept in memory as a table.
    """
    kind = f"{type(data).__module__.split('.')[0]} {type(data).__name__}"
    try:
        table = _table(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        msg = f"model points given as {kind} cannot be taken as an Arrow table: {error}"
        raise DataError(msg, remedy="give a table: columns of one length with names") from error
    names = table.column_names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        msg = f"column {twice!r} occurs twice in the {kind}"
        raise DataError(msg, column=twice, remedy="rename one")
    if not names:
        msg = f"the model points have no columns: {kind}"
        raise DataError(msg, remedy="give at least one column")
    return ArrowSource(table, kind)


def _table(data: Any) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if hasattr(type(data), "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data).read_all()
    return pa.Table.from_batches([pa.record_batch(data)])


class ArrowSource(MemorySource):
    """Columns of an Arrow table, decoded on first use."""

    def __init__(self, table: pa.Table, kind: str) -> None:
        columns = dict(zip(table.column_names, table.columns, strict=True))
        super().__init__(columns, table.num_rows, kind)

    def _make(self, name: str, data: Any) -> MemoryColumn:
        return arrow_column(name, data)


def arrow_column(name: str, data: pa.ChunkedArray) -> MemoryColumn:
    """Find out what an Arrow column is; a view of its memory where that holds plain numbers.

    Raises
    ------
    DataError
        If the column has nulls or a type that cannot be computed with.
    """
    kind = data.type
    if pa.types.is_null(kind):
        raise null_error(name, 0, dtype=None)
    dtype = None if arrow_is_text(kind) else arrow_dtype(name, kind)
    _check_nulls(name, data.chunks, dtype)
    if dtype is None:
        # Not as Python strings: ten million of them need a gigabyte.
        return memory_column(name, pd.arrays.ArrowExtensionArray(data))
    chunks = [chunk for chunk in data.chunks if len(chunk)]
    if len(chunks) == 1:
        base = arrow_values(chunks[0])
        return MemoryColumn(ColumnSpec(name, dtype), base)
    return MemoryColumn(ColumnSpec(name, dtype), _joined(name, chunks, dtype))


def _check_nulls(name: str, chunks: Sequence[pa.Array], dtype: np.dtype[Any] | None) -> None:
    at = 0
    for chunk in chunks:
        null = arrow_first_null(chunk)
        if null is not None:
            raise null_error(name, at + null, dtype=dtype)
        at += len(chunk)


def _joined(name: str, chunks: Sequence[pa.Array], dtype: np.dtype[Any]) -> Array:
    assert dtype != OBJECT
    out = np.empty(sum(map(len, chunks)), dtype=dtype)
    at = 0
    for chunk in chunks:
        fill_numbers(out[at : at + len(chunk)], arrow_values(chunk), name, at)
        at += len(chunk)
    return out
