"""Parquet files as one long table: rows by global position.

The files stand one after the other in a fixed order, and so do their row groups::

    file    |----- a.parquet -----|-- b.parquet --|
    group   |  a:0  |  a:1  | a:2 |  b:0  |  b:1  |
    rows    0 ..................................... N      a read asks for start:stop of these

A read decodes batches of rows into preallocated arrays, so that beside its result it holds about
one batch, however large a row group is. Parquet cannot be entered in the middle of a row group;
streams that stopped there are kept (:class:`_StreamPool`) and carried on by the next read.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hl_dask._columns import (
    MAX_CATEGORIES,
    OBJECT,
    Array,
    CategoryCoder,
    ColumnSpec,
    arrow_distinct,
    arrow_dtype,
    arrow_first_null,
    arrow_is_text,
    arrow_values,
    fill_numbers,
    null_error,
)
from hl_dask._footers import Footers, ParquetFile
from hl_dask._pages import PageSizes, page_sizes
from hl_dask.errors import DataError

BATCH_ROWS = 32_768
"""Rows decoded at a time."""

BUFFER_BYTES = 1 << 18
"""Bytes of a column chunk read from the file at a time."""

PAGE_BYTES = 8 << 20
"""Largest page to allow for where the header of one cannot be read (writers make some 1 MiB)."""

DICTIONARY_BYTES = 2 << 20
"""Largest dictionary of a column chunk to allow for, likewise."""

USUAL_PAGE_BYTES = 5 << 18
"""A page that any writer may make, whatever its first one was (that of a dictionary is smaller)."""

PAGE_MARGIN = 64 << 10
"""Added to twice the dictionary that was seen."""

ALLOCATOR_BYTES = 20 << 20
"""What the allocators keep for each thread that reads, measured beside what Arrow asks for."""

_KEPT_METADATA = 4
_REWRITTEN = "assign the data again, so that the footers are read anew"


class _Stream:
    """Rows of one file from a position to its end, decoded batch by batch."""

    def __init__(self, key: tuple[int, tuple[str, ...]], position: int, batches: Any) -> None:
        self.key = key
        self.position = position  # the global row that comes next
        self._batches = batches
        self._rest: Any = None

    def next(self, most: int) -> tuple[int, Any]:
        """Return (global row, at most ``most`` rows)."""
        batch = self._rest if self._rest is not None else next(self._batches)
        self._rest = batch.slice(most) if batch.num_rows > most else None
        batch = batch.slice(0, most)
        start = self.position
        self.position += batch.num_rows
        return start, batch


class _StreamPool:
    """Streams that stopped within a row group, for the next read to carry on.

    There are never more streams, in use and kept, than reads that ran at once: keeping them needs
    no more memory than the reads did.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[_Stream] = []
        self._active = 0
        self._most = 0

    def acquire(self, key: tuple[int, tuple[str, ...]], low: int, high: int) -> _Stream | None:
        """Return the kept stream that is nearest below ``high``, if it is not below ``low``."""
        with self._lock:
            self._active += 1
            self._most = max(self._most, self._active)
            fit = [s for s in self._kept if s.key == key and low <= s.position <= high]
            best = max(fit, key=lambda stream: stream.position, default=None)
            if best is not None:
                self._kept.remove(best)
            del self._kept[: max(0, len(self._kept) + self._active - self._most)]
            return best

    def release(self, stream: _Stream | None) -> None:
        """Say that a stream is no longer in use; keep it, if it is given."""
        with self._lock:
            self._active -= 1
            if stream is not None:
                self._kept.append(stream)

    def clear(self) -> None:
        """Close the kept streams."""
        with self._lock:
            self._kept.clear()
            self._most = self._active


class ParquetSource:
    """Model points in Parquet files; see :class:`hl_dask.points.ModelPoints`."""

    in_memory = False

    def __init__(self, footers: Footers, description: str) -> None:
        files = len(footers.files)
        self.description = f"{files:,} Parquet file{'s' if files != 1 else ''} ({description})"
        self.columns = tuple(footers.columns)
        self.rows = int(footers.edges[-1])
        self._footers = footers
        self._edges = footers.edges
        self._specs: dict[str, ColumnSpec] = {}
        self._page_sizes: dict[str, PageSizes] = {}
        self._coders: dict[str, CategoryCoder] = {}
        self._renew()

    def _renew(self) -> None:
        self._spec_lock = threading.RLock()
        self._pool = _StreamPool()
        self._metadata: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        passing = ("_spec_lock", "_pool", "_metadata")
        return {key: value for key, value in self.__dict__.items() if key not in passing}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._renew()

    # --- where rows are --------------------------------------------------------------------------

    def _group_of(self, row: int) -> int:
        return int(np.searchsorted(self._edges, row, side="right")) - 1

    def _file_of(self, group: int) -> ParquetFile:
        return self._footers.files[int(self._footers.group_file[group])]

    def where(self, row: int) -> str:
        """Return file and row group of a global row, for messages."""
        group = self._group_of(row)
        number = int(self._footers.group_number[group])
        return f"{self._file_of(group).path}, row group {number}"

    def _groups_left(self, group: int) -> range:
        """Return this row group and those that follow in its file."""
        of_group = self._footers.group_file
        return range(group, int(np.searchsorted(of_group, of_group[group], side="right")))

    # --- streams ---------------------------------------------------------------------------------

    def _open(self, group: int, names: tuple[str, ...]) -> Any:
        """Return an iterator of record batches, from this row group to the end of its file."""
        known = self._file_of(group)
        try:
            stat = Path(known.path).stat()
            if (stat.st_size, stat.st_mtime_ns) != (known.size, known.mtime_ns):
                msg = "the file has changed since its footer was read"
                raise DataError(msg, file=known.path, remedy=_REWRITTEN)
            file = pq.ParquetFile(
                known.path,
                metadata=self._metadata.get(known.path),
                read_dictionary=[name for name in names if self._coded(name)],
                buffer_size=BUFFER_BYTES,
                pre_buffer=False,
            )
            if known.path not in self._metadata:
                if len(self._metadata) >= _KEPT_METADATA:
                    self._metadata = {}
                self._metadata[known.path] = file.metadata
            numbers = self._footers.group_number
            batches = file.iter_batches(
                BATCH_ROWS,
                row_groups=[int(numbers[at]) for at in self._groups_left(group)],
                columns=list(names),
                use_threads=False,
            )
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(known.path, error) from error
        return iter(batches)

    def _coded(self, name: str) -> bool:
        spec = self._specs.get(name)
        text = arrow_is_text(self._footers.columns[name].type)
        return text and (spec is None or spec.categories is not None)

    def _pieces(
        self, start: int, stop: int, names: tuple[str, ...], *, keep: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """Yield (global row, record batch) that together are the rows start:stop."""
        while start < stop:
            group = self._group_of(start)
            end = int(self._edges[self._groups_left(group).stop])
            key = (int(self._footers.group_file[group]), names)
            stream = self._pool.acquire(key, int(self._edges[group]), start)
            kept = None
            try:
                if stream is None:
                    stream = _Stream(key, int(self._edges[group]), self._open(group, names))
                for at, batch in self._stretch(stream, start, min(stop, end)):
                    yield at, batch
                    del batch  # free it before the next one is decoded
                if keep and stream.position < end:
                    kept = stream
            finally:
                self._pool.release(kept)
            start = min(stop, end)

    def _stretch(self, stream: _Stream, start: int, stop: int) -> Iterator[tuple[int, Any]]:
        """Yield the rows start:stop of a stream, passing over those before."""
        while stream.position < stop:
            before = stream.position < start
            try:
                at, batch = stream.next((start if before else stop) - stream.position)
            except (pa.ArrowException, OSError, StopIteration) as error:
                path = self._footers.files[stream.key[0]].path
                raise _unreadable(path, error) from error
            if not before:
                yield at, batch

    def release(self) -> None:
        """Close the files that are kept open between reads, and return unused memory."""
        self._pool.clear()
        pa.default_memory_pool().release_unused()

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
        footer = self._footers.columns[name]
        text = arrow_is_text(footer.type)
        empty = pa.types.is_null(footer.type)
        dtype = None
        if not text and not empty:
            dtype = arrow_dtype(name, footer.type, self._footers.files[0].path)
        if footer.null_group is not None or empty:
            # The footer says that there is one: say so now, and not after hours of work.
            group = footer.null_group or 0
            first, end = int(self._edges[group]), int(self._edges[group + 1])
            for at, batch in self._pieces(first, end, (name,)):
                self._check_nulls(name, dtype, at, batch.column(0))
        if dtype is not None:
            return ColumnSpec(name, dtype)
        categories = self._collect(name)
        if categories is None:
            return ColumnSpec(name, OBJECT)
        self._coders[name] = CategoryCoder(categories)
        return ColumnSpec(name, np.dtype(np.int32), (), categories)

    def _collect(self, name: str) -> Array | None:
        found: set[str] = set()
        many = False
        for at, batch in self._pieces(0, self.rows, (name,)):
            values = batch.column(0)
            self._check_nulls(name, None, at, values)
            found |= arrow_distinct(values)
            many = len(found) > MAX_CATEGORIES
            if many:
                break
        if many:
            return None
        categories = np.array(sorted(found), dtype=object)
        categories.setflags(write=False)
        return categories

    def _check_nulls(self, name: str, dtype: Any, at: int, values: Any) -> None:
        null = arrow_first_null(values)
        if null is not None:
            raise null_error(name, at + null, dtype=dtype, file=self.where(at + null))

    def _fill(self, name: str, out: Array, at: int, values: Any) -> None:
        spec = self._specs[name]
        self._check_nulls(name, None if spec.is_text else spec.dtype, at, values)
        if spec.categories is not None:
            out[:] = self._coders[name].codes(values)
            if out.size and out.min() < 0:
                msg = f"column {name!r} holds text that it did not hold when its text was collected"
                raise DataError(msg, column=name, file=self.where(at), remedy=_REWRITTEN)
        elif spec.is_text:
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            out[:] = values.to_numpy(zero_copy_only=False)
        else:
            fill_numbers(out, arrow_values(values), name, at, self.where(at))

    # --- reading ---------------------------------------------------------------------------------

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Array]:
        """Read rows start:stop of these columns into new arrays."""
        names = tuple(dict.fromkeys(columns))
        outputs = {name: np.empty(stop - start, dtype=self.schema(name).dtype) for name in names}
        for at, batch in self._pieces(start, stop, names, keep=True) if names else ():
            for name in names:
                part = outputs[name][at - start : at - start + batch.num_rows]
                self._fill(name, part, at, batch.column(name))
        return outputs

    def take(self, name: str, positions: Array) -> Array:
        """Read one column at sorted global positions, only where they are."""
        out = np.empty(len(positions), dtype=self.schema(name).dtype)
        cuts = np.searchsorted(positions, self._edges)
        for group in np.flatnonzero(np.diff(cuts)):
            first, last = int(self._edges[group]), int(positions[int(cuts[group + 1]) - 1]) + 1
            for at, batch in self._pieces(first, last, (name,)):
                low, high = np.searchsorted(positions, [at, at + batch.num_rows])
                if high > low:
                    part = np.empty(batch.num_rows, dtype=out.dtype)
                    self._fill(name, part, at, batch.column(0))
                    out[low:high] = part[positions[low:high] - at]
        return out

    def sample_ranges(self, n: int, most: int) -> list[tuple[int, int]]:
        """Return row groups spread over the files: ``most``, or as many as hold n rows."""
        groups = len(self._edges) - 1
        while True:
            count = min(most, groups)
            picked = np.unique(np.linspace(0, groups - 1, count).round().astype(np.int64))
            lengths = self._edges[picked + 1] - self._edges[picked]
            if count == groups or lengths.sum() >= n:
                return [(int(self._edges[at]), int(self._edges[at + 1])) for at in picked]
            most *= 2

    def read_bytes(self, columns: Sequence[str], chunk_rows: int) -> int:
        """Return an upper bound of what one read of ``chunk_rows`` rows holds."""
        batch_rows = min(BATCH_ROWS, self.rows)
        total = ALLOCATOR_BYTES
        for name in dict.fromkeys(columns):
            spec, footer = self.schema(name), self._footers.columns[name]
            # The buffer of the file, a page as stored and decompressed, a decoded dictionary.
            page, dictionary = self._pages(name)
            total += BUFFER_BYTES + min(footer.stored_bytes, page)
            total += min(footer.decoded_bytes, page) + min(footer.decoded_bytes, dictionary)
            # A batch, the one that is being built, and the temporary of a conversion.
            total += 3 * batch_rows * max(spec.row_bytes, 8)
            total += chunk_rows * spec.row_bytes
        return total

    def _pages(self, name: str) -> PageSizes:
        """The largest page and dictionary of a column to allow for."""
        found = self._page_sizes.get(name)
        if found is None:
            footer = self._footers.columns[name]
            # Seen in the largest column chunk: others of the same writer are of the same size.
            sizes = page_sizes(*footer.largest) if footer.largest is not None else None
            if sizes is not None:
                found = PageSizes(
                    max(2 * sizes.page, USUAL_PAGE_BYTES), 2 * sizes.dictionary + PAGE_MARGIN
                )
            elif self._footers.small_pages:
                found = PageSizes(PAGE_BYTES, DICTIONARY_BYTES)
            else:
                found = PageSizes(footer.decoded_bytes, DICTIONARY_BYTES)
            self._page_sizes[name] = found
        return found

    def stored_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(file.size for file in self._footers.files)

    def token(self) -> str:
        """Return a digest of paths, sizes, times and rows."""
        digest = hashlib.sha256()
        for file in self._footers.files:
            digest.update(repr((file.path, file.size, file.mtime_ns)).encode())
        digest.update(repr((self.rows, self.columns)).encode())
        return digest.hexdigest()


def _unreadable(path: str, error: Exception) -> DataError:
    what = (
        "it ends before the rows that its footer tells"
        if isinstance(error, StopIteration)
        else error
    )
    msg = f"cannot read the Parquet file: {what}"
    return DataError(msg, file=path, remedy="write the file anew")
