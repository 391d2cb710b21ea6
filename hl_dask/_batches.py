"""Sources whose rows come in batches of Arrow arrays: Parquet files and Dask collections.

The rows lie in *parts* that stand one after the other: row groups, partitions. What a source of
this kind has to say is how to get batches of some columns; what columns are, how they are widened,
which rows a filter lets pass and how reads are put together is the same for all, and is here.

With a filter there are two ways to count rows::

    stored    |   part 0    |   part 1   |  part 2  |     ``_stored``: where parts begin
    passing   . 0 . . 1 2 . . . . . . . . 3 4 . . 5 .     ``_edges``: the same in rows that pass

Rows are those that pass everywhere but in ``_batches``.
"""

from __future__ import annotations

import abc
import copy
import hashlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Self

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
)
from hl_dask._selection import Selection, SelectionBuilder
from hl_dask._where import Where
from hl_dask.errors import DataError, HlDaskError

ASSIGN_AGAIN = "assign the data again, so that it is looked at anew"
READ_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError, IndexError, MemoryError)
"""What Arrow, NumPy and the decoding of text raise on damaged data."""


class BatchSource(abc.ABC):
    """Rows in parts, read batch by batch; see :class:`hl_dask.points.ModelPoints`.

    Parameters
    ----------
    columns : sequence of str
        Names of the columns.
    stored : ndarray
        First row of each part, and the number of rows at the end.
    """

    in_memory = False
    description: str
    home: str | None = None
    """Where the columns are, for messages: the first of the files."""

    def __init__(self, columns: Sequence[str], stored: Array, description: str) -> None:
        self.columns = tuple(columns)
        self.description = description
        self._stored = stored
        self._edges = stored
        self._selection: Selection | None = None
        self._specs: dict[str, ColumnSpec] = {}
        self._coders: dict[str, CategoryCoder] = {}
        self._from: BatchSource | None = None
        self._renew()

    def _renew(self) -> None:
        """Make what does not travel and is not shared."""
        self._spec_lock = threading.RLock()

    def _passing(self) -> tuple[str, ...]:
        """Names of attributes that do not travel."""
        return ("_spec_lock", "_from")

    def __getstate__(self) -> dict[str, Any]:
        passing = self._passing()
        return {key: value for key, value in self.__dict__.items() if key not in passing}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._from = None
        self._renew()

    # --- what a source has to say ----------------------------------------------------------------

    @abc.abstractmethod
    def _batches(
        self, start: int, stop: int, names: tuple[str, ...], *, keep: bool
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (row, record batch) that together are the rows start:stop, as they are stored.

        Parts of which no row passes may be left out.
        With ``keep``, what was opened may be kept for a read that goes on there.
        """

    @abc.abstractmethod
    def kind(self, name: str) -> pa.DataType:
        """Return the Arrow type of a column.

        Raises
        ------
        DataError
            When the column cannot be used.
        """

    @abc.abstractmethod
    def place(self, row: int) -> str:
        """Return where a row is, for messages: a file with its row group, a partition."""

    @abc.abstractmethod
    def release(self) -> None:
        """Close what is kept open between reads."""

    @abc.abstractmethod
    def read_bytes(self, columns: Sequence[str], chunk_rows: int) -> int:
        """Return an upper bound of what one read of ``chunk_rows`` rows holds."""

    @abc.abstractmethod
    def stored_bytes(self) -> int:
        """Return the bytes of the data as they are stored."""

    @abc.abstractmethod
    def token(self) -> str:
        """Return a digest of the source."""

    # --- rows that pass --------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self._edges[-1])

    def _part_of(self, row: int) -> int:
        return int(np.searchsorted(self._edges, row, side="right")) - 1

    def filtered(self, where: Where) -> Self:
        """Return the rows that pass a filter, found in one pass over its columns."""
        names = where.names(self.kind)
        new = copy.copy(self)
        new._from = self  # which may own the files
        new._specs, new._coders = {}, {}
        new._renew()
        new._leave_out(where, names)
        new._select(new._passed(where, names))
        new.description = f"{self.description}, where {where}"
        return new

    def _leave_out(self, where: Where, names: tuple[str, ...]) -> None:
        """Note the parts of which no row can pass, where something is known of them."""
        del where, names

    def _candidates(self) -> Sequence[int]:
        """Parts of which rows may pass, in order."""
        return range(len(self._stored) - 1)

    def _passed(self, where: Where, names: tuple[str, ...]) -> Selection:
        builder, before = SelectionBuilder(), self._selection
        for part in self._candidates():
            first, last = int(self._stored[part]), int(self._stored[part + 1])
            for at, batch in self._batches(first, last, names, keep=False):
                mask = where.mask(batch)
                if before is not None:
                    mask = mask & before.mask(at, at + len(mask))
                builder.add(at, mask)
        return builder.done()

    def _select(self, selection: Selection) -> None:
        self._selection = selection
        self._edges = selection.counts(self._stored)

    def _pieces(
        self, start: int, stop: int, names: tuple[str, ...], *, keep: bool = False
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (row, record batch) that together are the rows start:stop."""
        if self._selection is None:
            yield from self._batches(start, stop, names, keep=keep)
            return
        for first, last, mask in self._selection.ranges(start, stop):
            for at, stored in self._batches(first, last, names, keep=True):
                batch = stored
                if mask is not None:
                    part = mask[at - first : at - first + stored.num_rows]
                    batch = stored.filter(pa.array(part))
                if batch.num_rows:
                    yield start, batch
                start += batch.num_rows
                del stored, batch  # free them before the next ones are decoded

    # --- columns ---------------------------------------------------------------------------------

    def schema(self, name: str) -> ColumnSpec:
        """Return the spec of a column; the first time for text, its strings are collected."""
        spec = self._specs.get(name)
        if spec is None:
            with self._spec_lock:
                spec = self._specs.get(name)
                if spec is None:
                    spec = self._specs[name] = self._find_spec(name)
        return spec

    def _find_spec(self, name: str) -> ColumnSpec:
        kind = self.kind(name)
        shape: tuple[int, ...] = ()
        if pa.types.is_fixed_size_list(kind):
            kind, shape = kind.value_type, (kind.list_size,)
        dtype = None
        if not arrow_is_text(kind) and not pa.types.is_null(kind):
            dtype = arrow_dtype(name, kind, self.home)
        part = self._with_null(name)
        if part is not None or pa.types.is_null(kind):
            # It is known that there is one: say so now, and not after hours of work.
            first, end = (0, self.rows) if part is None else self._edges[part : part + 2]
            for at, batch in self._pieces(int(first), int(end), (name,)):
                self._check_nulls(name, dtype, at, batch.column(name))
        if dtype is not None:
            return ColumnSpec(name, dtype, shape)
        categories = self._collect(name)
        if categories is None:
            return ColumnSpec(name, OBJECT)
        self._coders[name] = CategoryCoder(categories)
        return ColumnSpec(name, np.dtype(np.int32), (), categories)

    def _with_null(self, name: str) -> int | None:
        """Return a part that is known to have a null in a column, if there is one."""
        del name
        return None

    def _collect(self, name: str) -> Array | None:
        """The sorted texts of a column, or None when they are too many for categories."""
        found: set[str] = set()
        for at, batch in self._pieces(0, self.rows, (name,)):
            values = batch.column(name)
            self._check_nulls(name, None, at, values)
            try:
                found |= arrow_distinct(values)
            except READ_ERRORS as error:
                raise self._damaged(name, at, error) from error
            if len(found) > MAX_CATEGORIES:
                return None
        categories = np.array(sorted(found), dtype=object)
        categories.setflags(write=False)
        return categories

    def _check_nulls(self, name: str, dtype: Any, at: int, values: Any) -> None:
        null = arrow_first_null(values)
        if null is not None:
            raise null_error(name, at + null, dtype=dtype, file=self.place(at + null))

    def _fill(self, name: str, out: Array, at: int, values: Any) -> None:
        spec = self._specs[name]
        self._check_nulls(name, None if spec.is_text else spec.dtype, at, values)
        try:
            self._convert(spec, out, at, values)
        except HlDaskError:
            raise
        except READ_ERRORS as error:
            raise self._damaged(name, at, error) from error

    def _convert(self, spec: ColumnSpec, out: Array, at: int, values: Any) -> None:
        if spec.categories is not None:
            out[:] = self._coders[spec.name].codes(values)
            if out.size and out.min() < 0:
                msg = (
                    f"column {spec.name!r} holds text that it did not hold when its text was "
                    "collected"
                )
                raise DataError(msg, column=spec.name, file=self.place(at), remedy=ASSIGN_AGAIN)
        elif spec.is_text:
            out[:] = decoded(values).to_numpy(zero_copy_only=False)
        else:
            if spec.shape:
                values = values.flatten()
            numbers = arrow_values(values).reshape(out.shape)
            fill_numbers(out, numbers, spec.name, at, self.place(at))

    def _damaged(self, name: str, at: int, error: Exception) -> DataError:
        msg = f"column {name!r} cannot be decoded: {' '.join(str(error).split())}"
        return DataError(
            msg, column=name, file=self.place(at), remedy="write the file anew: it is damaged"
        )

    # --- reading ---------------------------------------------------------------------------------

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Array]:
        """Read rows start:stop of these columns into new arrays."""
        names = tuple(dict.fromkeys(columns))
        specs = {name: self.schema(name) for name in names}
        outputs = {
            name: np.empty((stop - start, *spec.shape), dtype=spec.dtype)
            for name, spec in specs.items()
        }
        for at, batch in self._pieces(start, stop, names, keep=True) if names else ():
            for name in names:
                part = outputs[name][at - start : at - start + batch.num_rows]
                self._fill(name, part, at, batch.column(name))
        return outputs

    def take(self, name: str, positions: Array) -> Array:
        """Read one column at sorted positions, only where they are."""
        spec = self.schema(name)
        out = np.empty((len(positions), *spec.shape), dtype=spec.dtype)
        cuts = np.searchsorted(positions, self._edges)
        for part in np.flatnonzero(np.diff(cuts)):
            first, last = int(self._edges[part]), int(positions[int(cuts[part + 1]) - 1]) + 1
            for at, batch in self._pieces(first, last, (name,)):
                low, high = np.searchsorted(positions, [at, at + batch.num_rows])
                if high > low:
                    values = np.empty((batch.num_rows, *spec.shape), dtype=out.dtype)
                    self._fill(name, values, at, batch.column(name))
                    out[low:high] = values[positions[low:high] - at]
        return out

    def sample_ranges(self, n: int, most: int) -> list[tuple[int, int]]:
        """Return parts spread over the rows: ``most``, or as many as hold n rows."""
        parts = np.flatnonzero(np.diff(self._edges))
        while True:
            count = min(most, len(parts))
            picked = parts[np.unique(np.linspace(0, len(parts) - 1, count).round().astype(int))]
            lengths = self._edges[picked + 1] - self._edges[picked]
            if count == len(parts) or lengths.sum() >= n:
                return [(int(self._edges[at]), int(self._edges[at + 1])) for at in picked]
            most *= 2

    def _digest(self, *facts: object) -> str:
        """A digest of these facts and of what every source has."""
        digest = hashlib.sha256(repr((facts, self.columns, self.rows)).encode())
        if self._selection is not None:
            digest.update(self._selection.digest())
        return digest.hexdigest()
