"""Parquet files as one long table: rows by global position.

The files stand one after the other in a fixed order, and so do their row groups::

    file    |----- a.parquet -----|-- b.parquet --|
    group   |  a:0  |  a:1  | a:2 |  b:0  |  b:1  |
    rows    0 ..................................... N      a read asks for start:stop of these

A read decodes batches of rows into preallocated arrays, so that beside its result it holds about
one batch, however large a row group is. Parquet cannot be entered in the middle of a row group;
streams that stopped there are kept (:class:`~hl_dask._streams.StreamPool`) and carried on by the
next read.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from hl_dask._batches import ASSIGN_AGAIN, READ_ERRORS, BatchSource
from hl_dask._footers import Footers, ParquetFile
from hl_dask._kinds import arrow_is_text
from hl_dask._pages import PageSizes, page_sizes
from hl_dask._selection import Selection
from hl_dask._streams import Stream, StreamPool
from hl_dask._where import Where, pruning_type
from hl_dask.errors import DataError, HlDaskError

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


class ParquetSource(BatchSource):
    """Model points in Parquet files; see :class:`hl_dask.points.ModelPoints`."""

    def __init__(self, footers: Footers, description: str) -> None:
        files = len(footers.files)
        described = f"{files:,} Parquet file{'s' if files != 1 else ''} ({description})"
        super().__init__(tuple(footers.columns), footers.edges, described)
        self.home = footers.files[0].path if footers.files else None
        self._footers = footers
        self._page_sizes: dict[str, PageSizes] = {}
        # Row groups that reads may enter: those with rows that pass.
        self._wanted = np.ones(len(footers.group_file), dtype=bool)

    def _renew(self) -> None:
        super()._renew()
        self._pool = StreamPool()
        self._metadata: dict[str, Any] = {}

    def _passing(self) -> tuple[str, ...]:
        return (*super()._passing(), "_pool", "_metadata")

    # --- where rows are --------------------------------------------------------------------------

    def _file_of(self, group: int) -> ParquetFile:
        return self._footers.files[int(self._footers.group_file[group])]

    def place(self, row: int) -> str:
        """Return file and row group of a row, for messages."""
        group = self._part_of(row)
        number = int(self._footers.group_number[group])
        return f"{self._file_of(group).path}, row group {number}"

    def kind(self, name: str) -> pa.DataType:
        """Return the type of a column in all files."""
        footer = self._footers.columns[name]
        if footer.problem is not None:
            # A copy: an error gathers the formulas that it passes through.
            raise copy.deepcopy(footer.problem)
        return footer.type

    def _with_null(self, name: str) -> int | None:
        return self._footers.columns[name].null_group

    # --- row filters -----------------------------------------------------------------------------

    def _leave_out(self, where: Where, names: tuple[str, ...]) -> None:
        wanted = self._wanted.copy()
        kinds = {name: self.kind(name) for name in names}
        condition = where.pruning(kinds)
        if condition is not None:
            schema = pa.schema([(name, pruning_type(kind)) for name, kind in kinds.items()])
            for file in range(len(self._footers.files)):
                groups = np.flatnonzero(self._footers.group_file == file)
                kept = self._groups_kept(file, condition, schema)
                if kept is not None:
                    wanted[groups] &= np.isin(self._footers.group_number[groups], kept)
        self._wanted = wanted

    def _groups_kept(self, file: int, condition: Any, schema: pa.Schema) -> list[int] | None:
        """Numbers of the row groups whose statistics let a row pass; None when they do not tell."""
        with contextlib.suppress(*READ_ERRORS):
            fragment = ds.ParquetFileFormat().make_fragment(
                self._footers.files[file].path,
                filesystem=pafs.LocalFileSystem(),
                partition_expression=self._known_of(file),
            )
            kept = fragment.subset(filter=condition, schema=schema).row_groups
            return [group.id for group in kept]
        return None

    def _known_of(self, file: int) -> Any:
        """What is known of all rows of a file, as an expression; None when nothing is."""
        del file

    def _candidates(self) -> Sequence[int]:
        return [int(group) for group in np.flatnonzero(self._wanted)]

    def _select(self, selection: Selection) -> None:
        super()._select(selection)
        self._wanted = self._wanted & (np.diff(self._edges) > 0)

    # --- streams ---------------------------------------------------------------------------------

    def _run_of(self, group: int) -> range:
        """Return this row group and those that follow in its file without a gap."""
        end = int(
            np.searchsorted(self._footers.group_file, self._footers.group_file[group], "right")
        )
        gaps = np.flatnonzero(~self._wanted[group:end])
        return range(group, group + int(gaps[0]) if gaps.size else end)

    def _open(self, groups: range, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Return an iterator of the record batches of row groups of one file."""
        known = self._file_of(groups.start)
        with _reading(known.path):
            stat = Path(known.path).stat()
            if (stat.st_size, stat.st_mtime_ns) != (known.size, known.mtime_ns):
                msg = "the file has changed since its footer was read"
                raise DataError(msg, file=known.path, remedy=ASSIGN_AGAIN)
            file = pq.ParquetFile(
                known.path,
                metadata=self._metadata.get(known.path),
                read_dictionary=[name for name in names if self._coded(name)],
                buffer_size=BUFFER_BYTES,
                pre_buffer=False,
                page_checksum_verification=True,
            )
            if known.path not in self._metadata:
                if len(self._metadata) >= _KEPT_METADATA:
                    self._metadata = {}
                self._metadata[known.path] = file.metadata
            numbers = self._footers.group_number
            return iter(
                file.iter_batches(
                    BATCH_ROWS,
                    row_groups=[int(numbers[at]) for at in groups],
                    columns=list(names),
                    use_threads=False,
                )
            )

    def _coded(self, name: str) -> bool:
        spec = self._specs.get(name)
        text = arrow_is_text(self._footers.columns[name].type)
        return text and (spec is None or spec.categories is not None)

    def _batches(
        self, start: int, stop: int, names: tuple[str, ...], *, keep: bool
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        while start < stop:
            group = int(np.searchsorted(self._stored, start, side="right")) - 1
            if not self._wanted[group]:
                start = int(self._stored[group + 1])
                continue
            run = self._run_of(group)
            begin, end = int(self._stored[group]), int(self._stored[run.stop])
            key = (int(self._footers.group_file[group]), names)
            stream = self._pool.acquire(key, begin, start)
            kept = None
            try:
                if stream is None:
                    stream = Stream(key, begin, self._open(run, names))
                for at, batch in self._stretch(stream, start, min(stop, end)):
                    yield at, batch
                    del batch  # free it before the next one is decoded
                if keep and stream.position < end:
                    kept = stream
            finally:
                self._pool.release(kept)
            start = min(stop, end)

    def _stretch(
        self, stream: Stream, start: int, stop: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows start:stop of a stream, passing over those before."""
        path = self._footers.files[stream.key[0]].path
        while stream.position < stop:
            before = stream.position < start
            with _reading(path):
                at, batch = stream.next((start if before else stop) - stream.position)
            if not before:
                yield at, batch

    def release(self) -> None:
        """Close the files that are kept open between reads, and return unused memory."""
        self._pool.clear()
        pa.default_memory_pool().release_unused()

    # --- sizes and identity ----------------------------------------------------------------------

    def read_bytes(self, columns: Sequence[str], chunk_rows: int) -> int:
        """Return an upper bound of what one read of ``chunk_rows`` rows holds."""
        batch_rows = min(BATCH_ROWS, int(self._stored[-1]))
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
        files = [(file.path, file.size, file.mtime_ns) for file in self._footers.files]
        return self._digest(files)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turn whatever Arrow raises on a damaged file into an error that names the file."""
    try:
        yield
    except HlDaskError:
        raise
    except StopIteration as error:
        msg = "cannot read the Parquet file: it ends before the rows that its footer tells"
        raise DataError(msg, file=path, remedy="write the file anew") from error
    except READ_ERRORS as error:
        msg = f"cannot read the Parquet file: {' '.join(str(error).split())}"
        raise DataError(msg, file=path, remedy="write the file anew") from error
