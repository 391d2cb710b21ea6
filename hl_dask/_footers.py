"""Which Parquet files a path means, and what their footers say.

Footers are read once, when the model points are opened. What is kept of them is small: where each
row group starts in the global order, and for each column its type, its largest chunk and the first
row group that holds a null.
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hl_dask._columns import Array
from hl_dask._kinds import merged_kind
from hl_dask.errors import DataError, HlDaskError

_SUFFIXES = {".parquet", ".parq", ".pq"}


@dataclass(frozen=True)
class ParquetFile:
    """A file as it was when its footer was read."""

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, eq=False)
class ColumnFooter:
    """What the footers say about a column: its Arrow type and the largest chunk of a row group.

    ``largest`` is where that chunk is: its file, and the position of its first page. ``problem`` is
    what to raise when the column is used: files differ in it.
    """

    type: Any
    stored_bytes: int
    decoded_bytes: int
    null_group: int | None
    largest: tuple[str, int] | None = None
    problem: DataError | None = None


@dataclass(frozen=True, eq=False)
class Footers:
    """The files in order and their row groups that have rows.

    ``edges`` has the first global row of each row group, and the number of rows at its end.
    ``small_pages`` says that no writer is known to put a whole column chunk into one page.
    """

    files: tuple[ParquetFile, ...]
    columns: dict[str, ColumnFooter]
    group_file: Array
    group_number: Array
    edges: Array
    small_pages: bool


class _Collector:
    """Adds up footers, file by file.

    The columns are those of all files. One that a file lacks, or whose types do not go together, is
    no error before it is used.
    """

    def __init__(self) -> None:
        self.files: list[ParquetFile] = []
        self.types: dict[str, Any] = {}
        self.problems: dict[str, DataError] = {}
        self._homes: dict[str, str] = {}  # the first file that has the column
        self._model: str | None = None  # the first file with rows
        self.groups: list[tuple[int, int, int]] = []
        self.stored: dict[str, int] = {}
        self.decoded: dict[str, int] = {}
        self.largest: dict[str, tuple[str, int]] = {}
        self.null_group: dict[str, int] = {}
        self.small_pages = True

    def add(self, path: str) -> None:
        try:
            self._add(path)
        except HlDaskError:
            raise
        except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
            msg = f"cannot read the Parquet footer: {' '.join(str(error).split())}"
            raise DataError(
                msg, file=path, remedy="write the file anew: it is truncated, or no Parquet file"
            ) from error

    def _add(self, path: str) -> None:
        stat = Path(path).stat()
        with pq.ParquetFile(path, pre_buffer=False) as file:
            metadata, schema = file.metadata, file.schema_arrow
        if metadata.num_rows or not self.types:
            self._add_schema(path, schema, with_rows=metadata.num_rows > 0)
        self.small_pages &= "fastparquet" not in str(metadata.created_by)
        self.files.append(ParquetFile(path, stat.st_size, stat.st_mtime_ns))
        rows = 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            rows += group.num_rows
            self._add_group(number, group)
        if rows != metadata.num_rows:
            msg = f"the footer tells of {metadata.num_rows:,} rows, and of {rows:,} in row groups"
            raise DataError(msg, file=path, remedy=_ANEW)

    def _add_group(self, number: int, group: Any) -> None:
        if not group.num_rows:
            return
        path = self.files[-1].path
        for leaf in range(group.num_columns):
            chunk = group.column(leaf)
            name = chunk.path_in_schema
            if "." not in name and chunk.num_values != group.num_rows:
                msg = (
                    f"row group {number} has {group.num_rows:,} rows, and {chunk.num_values:,} "
                    f"values in column {name!r}"
                )
                raise DataError(msg, column=name, file=path, remedy=_ANEW)
            self.stored[name] = max(self.stored.get(name, 0), chunk.total_compressed_size)
            if chunk.total_uncompressed_size > self.decoded.get(name, -1):
                self.decoded[name] = chunk.total_uncompressed_size
                first = chunk.dictionary_page_offset
                first = chunk.data_page_offset if first is None else first
                self.largest[name] = (path, first)
            stats = chunk.statistics
            if stats is not None and stats.has_null_count and stats.null_count:
                self.null_group.setdefault(name, len(self.groups))
        self.groups.append((len(self.files) - 1, number, group.num_rows))

    def _add_schema(self, path: str, schema: Any, *, with_rows: bool) -> None:
        types = {field.name: field.type for field in schema}
        if len(types) < len(schema.names):
            twice = next(name for name in schema.names if schema.names.count(name) > 1)
            msg = f"column {twice!r} occurs twice"
            raise DataError(msg, column=twice, file=path, remedy="write the file with other names")
        if self._model is None:
            self.types = types
            self._homes = dict.fromkeys(types, path)
            self._model = path if with_rows else None
            return
        for name in self.types.keys() - types.keys():
            self.problems.setdefault(name, _lacks(name, self._homes[name], path))
        for name, kind in types.items():
            self._add_type(path, name, kind)

    def _add_type(self, path: str, name: str, kind: Any) -> None:
        if name not in self.types:
            assert self._model is not None
            self.problems.setdefault(name, _lacks(name, path, self._model))
            self._homes[name], self.types[name] = path, kind
            return
        known = self.types[name]
        both = merged_kind(known, kind)
        if both is not None:
            self.types[name] = both
            return
        msg = (
            f"the files have different types for column {name!r}: {known} in {self._homes[name]}, "
            f"{kind} in {path}"
        )
        self.problems.setdefault(
            name, DataError(msg, column=name, file=path, remedy="write all files with one type")
        )


_ANEW = "write the file anew: it is damaged"


def _lacks(name: str, has: str, lacks: str) -> DataError:
    msg = f"the files have different columns: {name!r} is in {has} and not in {lacks}"
    return DataError(
        msg,
        column=name,
        file=lacks,
        remedy="write all files with this column, or leave it out of the formulas",
    )


def read_footers(paths: Sequence[str]) -> Footers:
    """Read the footers of Parquet files, in this order.

    Raises
    ------
    DataError
        If a file cannot be read. Files without rows do not count.
    """
    collector = _Collector()
    for path in paths:
        collector.add(path)
    table = np.array(collector.groups, dtype=np.int64).reshape(-1, 3)
    columns = {
        name: ColumnFooter(
            kind,
            collector.stored.get(name, 0),
            collector.decoded.get(name, 0),
            collector.null_group.get(name),
            collector.largest.get(name),
            collector.problems.get(name),
        )
        for name, kind in collector.types.items()
    }
    edges = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(table[:, 2])])
    return Footers(
        tuple(collector.files), columns, table[:, 0], table[:, 1], edges, collector.small_pages
    )


def find_files(path: str | Path) -> list[str]:
    """Return the Parquet files of a path, directory or glob, sorted."""
    place = Path(path).expanduser()
    if place.is_file():
        return [str(place)]
    if place.is_dir():
        return _files_below(place)
    found = sorted(glob.glob(str(place), recursive=True))
    files = [name for entry in found for name in find_files(entry) if _visible(Path(entry))]
    if not files:
        msg = f"no Parquet file at {str(path)!r}"
        raise DataError(
            msg,
            file=str(path),
            remedy="check the path, which is a file, a directory, a glob or a list of these",
        )
    return list(dict.fromkeys(files))


def _visible(path: Path) -> bool:
    return not path.name.startswith((".", "_"))


def _files_below(directory: Path) -> list[str]:
    files = []
    for path in sorted(directory.rglob("*")):
        inner = path.relative_to(directory)
        if path.suffix.lower() not in _SUFFIXES or not path.is_file():
            continue
        if not all(_visible(Path(part)) for part in inner.parts):
            continue
        files.append(str(path))
    if not files:
        msg = f"no Parquet file in directory {directory}"
        raise DataError(
            msg,
            file=str(directory),
            remedy=f"expected names that end in {', '.join(sorted(_SUFFIXES))}",
        )
    return files
