"""Arrow data in memory: tables, record batches, readers, and whatever can be exported as Arrow.

A table comes in chunks, as its maker liked. They stay where they are: a read that lies in one chunk
of plain numbers is a view of it, and another one copies the rows that it asks for, and no others::

    chunks   |----- 0 -----|----- 1 -----|-- 2 --|
    reads       [ view ]  [ copy ]   [  view ]
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from hl_dask._columns import MAX_CATEGORIES, OBJECT, Array, ColumnSpec, fill_numbers, null_error
from hl_dask._kinds import (
    CategoryCoder,
    arrow_distinct,
    arrow_dtype,
    arrow_first_null,
    arrow_is_text,
    arrow_values,
    decoded,
    without_views,
)
from hl_dask._machine import free_bytes
from hl_dask._memory import Column, MemoryColumn, MemorySource
from hl_dask.errors import DataError, HlDaskError, MemoryBudgetError

PIECE_ROWS = 65_536
"""Rows converted at a time: what a conversion needs beside its result has this length."""
_PLAIN = (pa.int64(), pa.float64())
"""Types that formulas read without a check or a conversion."""


def is_arrow(data: object) -> bool:
    """Whether an object is Arrow data, or can be exported as such (the PyCapsule interface)."""
    kinds = (pa.Table, pa.RecordBatch, pa.RecordBatchReader)
    capsule = hasattr(type(data), "__arrow_c_stream__") or hasattr(type(data), "__arrow_c_array__")
    return isinstance(data, kinds) or capsule


def from_arrow(data: Any) -> MemorySource:
    """Model points in an Arrow table, batch or reader, or in anything that exports one.

    A reader can be read once: its rows are kept in memory as a table.

    Raises
    ------
    DataError
        When it is no table, or its reader fails.
    MemoryBudgetError
        When the rows of a reader do not fit into memory.
    """
    kind = f"{type(data).__module__.split('.')[0]} {type(data).__name__}"
    try:
        table = _table(data, kind)
    except HlDaskError:
        raise
    except Exception as error:  # whatever the library that exports it raises
        said = " ".join(str(error).split())
        msg = f"model points given as {kind} cannot be taken as an Arrow table: {said}"
        raise DataError(msg, remedy="give a table: columns of one length with names") from error
    names = table.column_names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        msg = f"column {twice!r} occurs twice in the {kind}"
        raise DataError(msg, column=twice, remedy="rename one")
    if not names:
        msg = f"the model points have no columns: {kind}"
        raise DataError(msg, remedy="give at least one column")
    if isinstance(data, pa.RecordBatchReader) and not table.num_rows:
        msg = f"the model points have no rows: {kind}"
        remedy = "a reader gives its rows once: keep the ModelPoints that were made of it"
        raise DataError(msg, remedy=remedy)
    return ArrowSource(table, kind)


def _table(data: Any, kind: str) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return _read_all(data, kind)
    if hasattr(type(data), "__arrow_c_stream__"):
        return _read_all(pa.RecordBatchReader.from_stream(data), kind)
    return pa.Table.from_batches([pa.record_batch(data)])


def _read_all(reader: pa.RecordBatchReader, kind: str) -> pa.Table:
    """All rows of a stream, as long as there is memory for them.

    It may come from a file or a query of any size; to be killed by the system is no message.
    """
    batches: list[pa.RecordBatch] = []
    held = 0
    for batch in reader:
        batches.append(batch)
        held += batch.nbytes
        free = free_bytes()
        if batch.nbytes > free:
            msg = (
                f"the rows of the {kind} do not fit into memory: {held:,} bytes are read, and "
                f"{free:,} bytes are free"
            )
            remedy = "write them to Parquet files, and give the path: those are read in pieces"
            raise MemoryBudgetError(msg, remedy=remedy)
    return pa.Table.from_batches(batches, reader.schema)


class ArrowSource(MemorySource):
    """Columns of an Arrow table, looked at on first use."""

    def __init__(self, table: pa.Table, kind: str) -> None:
        columns = dict(zip(table.column_names, table.columns, strict=True))
        super().__init__(columns, table.num_rows, kind)

    def __copy__(self) -> ArrowSource:
        # copy.copy would take the state that travels, and with it a copy of all rows.
        new = object.__new__(type(self))
        MemorySource.__setstate__(new, super().__getstate__())
        return new

    def __getstate__(self) -> dict[str, Any]:
        # In Arrow's own format, which has the rows of a slice and not those around it, as the
        # pickle of a pyarrow array would.
        columns = {name: self._raw(name) for name in self.columns}
        sink = pa.BufferOutputStream()
        table = pa.table(columns)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return {**super().__getstate__(), "_data": sink.getvalue()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        table = pa.ipc.open_stream(state["_data"]).read_all()
        columns = dict(zip(table.column_names, table.columns, strict=True))
        super().__setstate__({**state, "_data": columns})

    def _raw(self, name: str) -> pa.ChunkedArray:
        return without_views(super()._raw(name))

    def _make(self, name: str, data: Any) -> Column:
        return arrow_column(name, data)

    def stored_bytes(self) -> int:
        """See :class:`MemorySource`."""
        return sum(int(getattr(column, "nbytes", 0)) for column in self._data.values())

    def token(self) -> str:
        """See :class:`MemorySource`."""
        kinds = [(name, str(getattr(data, "type", ""))) for name, data in self._data.items()]
        return hashlib.sha256(repr((self.rows, kinds)).encode()).hexdigest()


def arrow_column(name: str, data: pa.ChunkedArray) -> Column:
    """Find out what an Arrow column is, and how to read it.

    Raises
    ------
    DataError
        If the column has nulls or a type that cannot be computed with.
    """
    kind = data.type
    if pa.types.is_null(kind):
        raise null_error(name, 0, dtype=None)
    shape: tuple[int, ...] = ()
    if pa.types.is_fixed_size_list(kind):
        kind, shape = kind.value_type, (kind.list_size,)
    if arrow_is_text(kind) and not shape:
        _check_nulls(name, data, None)
        return _text_column(name, data)
    dtype = arrow_dtype(name, kind)
    _check_nulls(name, data, dtype)
    return ArrowColumn(ColumnSpec(name, dtype, shape), data)


def _check_nulls(name: str, data: pa.ChunkedArray, dtype: np.dtype[Any] | None) -> None:
    for at, chunk in _pieces(data, len(data)):
        null = arrow_first_null(chunk)
        if null is not None:
            raise null_error(name, at + null, dtype=dtype)


def _text_column(name: str, data: pa.ChunkedArray) -> Column:
    """Codes for all rows, 4 bytes each; text is decoded as it is read where it has too many."""
    found: set[str] = set()
    for _, piece in _pieces(data, PIECE_ROWS):
        found |= arrow_distinct(piece)
        if len(found) > MAX_CATEGORIES:
            return ArrowColumn(ColumnSpec(name, OBJECT), data)
    categories = np.array(sorted(found), dtype=object)
    categories.setflags(write=False)
    coder = CategoryCoder(categories)
    codes = np.empty(len(data), dtype=np.int32)
    for at, piece in _pieces(data, PIECE_ROWS):
        codes[at : at + len(piece)] = coder.codes(piece)
    return MemoryColumn(ColumnSpec(name, codes.dtype, (), categories), codes)


def _pieces(data: pa.ChunkedArray, most: int) -> Iterator[tuple[int, pa.Array]]:
    """Yield (row, array) of at most so many rows each, that together are the column."""
    at = 0
    for chunk in data.chunks:
        for first in range(0, len(chunk), max(1, most)):
            piece = chunk.slice(first, most)
            yield at, piece
            at += len(piece)


class ArrowColumn:
    """A column in chunks of Arrow arrays without nulls, converted as it is read."""

    def __init__(self, spec: ColumnSpec, data: pa.ChunkedArray) -> None:
        self.spec = spec
        self._chunks = [chunk for chunk in data.chunks if len(chunk)]
        self._edges = np.cumsum([0, *map(len, self._chunks)])
        self._is_plain = data.type in _PLAIN

    def _within(self, start: int, stop: int) -> Iterator[tuple[int, pa.Array]]:
        """Yield (row, rows of one chunk) that together are the rows start:stop."""
        while start < stop:
            at = int(np.searchsorted(self._edges, start, side="right")) - 1
            end = min(stop, int(self._edges[at + 1]))
            yield start, self._chunks[at].slice(start - int(self._edges[at]), end - start)
            start = end

    def read(self, start: int, stop: int) -> Array:
        """Return rows start:stop, widened, contiguous and read-only; a view where that is so."""
        if self._is_plain:
            first = next(self._within(start, stop), None)
            if first is not None and len(first[1]) == stop - start:
                return arrow_values(first[1])
        out = np.empty((stop - start, *self.spec.shape), dtype=self.spec.dtype)
        for at, rows in self._within(start, stop):
            for first_row in range(0, len(rows), PIECE_ROWS):
                piece = rows.slice(first_row, PIECE_ROWS)
                place = at + first_row
                self._fill(out[place - start : place - start + len(piece)], piece, place)
        out.setflags(write=False)
        return out

    def _fill(self, out: Array, values: pa.Array, at: int) -> None:
        if self.spec.is_text:
            out[:] = decoded(values).to_numpy(zero_copy_only=False)
            return
        if self.spec.shape:
            values = values.flatten()
        fill_numbers(out, arrow_values(values).reshape(out.shape), self.spec.name, at)

    def take(self, positions: Array) -> Array:
        """Return the rows at sorted positions, widened and read-only."""
        out = np.empty((len(positions), *self.spec.shape), dtype=self.spec.dtype)
        cuts = np.searchsorted(positions, self._edges)
        for at in np.flatnonzero(np.diff(cuts)):
            low, high = int(cuts[at]), int(cuts[at + 1])
            local = positions[low:high] - self._edges[at]
            taken = self._chunks[at].take(pa.array(local))
            try:
                self._fill(out[low:high], taken, int(positions[low]))
            except DataError:
                # Once more, one by one: these are no neighbours, and the error names a row.
                for k in range(low, high):
                    self._fill(out[k : k + 1], taken.slice(k - low, 1), int(positions[k]))
                raise
        out.setflags(write=False)
        return out

    def read_bytes(self, rows: int) -> int:
        """Return an upper bound of what a read of so many rows needs."""
        if self._is_plain and len(self._chunks) == 1:
            return 0
        # The result, and the temporaries of a piece: decoded, cast, and as NumPy has it.
        return (rows + 3 * min(rows, PIECE_ROWS)) * self.spec.row_bytes
