"""Which Parquet files a path means, and what their footers say.

Footers are read once, when the model points are opened. What is kept of them is small: where each
row group starts in the global order, and for each column its type, its largest chunk and the first
row group that holds a null.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hl_dask._columns import Array
from hl_dask._kinds import merged_kind
from hl_dask._thrift import Struct, read_struct
from hl_dask.errors import DataError, HlDaskError

_ANEW = "write the file anew: it is damaged"
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


# ---- the footer as it is stored --------------------------------------------------------------

# Numbers of fields in the structs of the Parquet format.
_CREATED_GROUPS = 4
_GROUP_COLUMNS, _GROUP_ROWS = 1, 3
_CHUNK_METADATA = 3
_TYPE = 1
_VALUES, _DECODED, _STORED, _DATA_AT, _DICTIONARY_AT = 5, 6, 7, 9, 11
_STATISTICS, _SIZES = 12, 16
_BOUNDS, _NULLS = (1, 2, 5, 6), 3
_TEXT_BYTES, _LEVELS = 1, (2, 3)
_PHYSICAL = {
    "BOOLEAN": 0,
    "INT32": 1,
    "INT64": 2,
    "INT96": 3,
    "FLOAT": 4,
    "DOUBLE": 5,
    "BYTE_ARRAY": 6,
    "FIXED_LEN_BYTE_ARRAY": 7,
}
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}


class _Leaf(NamedTuple):
    """A column as files store it: its name, physical type and levels."""

    name: str
    physical: str
    repetition: int
    definition: int


class _RowGroup(NamedTuple):
    rows: int
    columns: list[Struct]


def _leaves(schema: Any) -> list[_Leaf]:
    columns = [schema.column(k) for k in range(len(schema))]
    return [
        _Leaf(c.path, c.physical_type, c.max_repetition_level, c.max_definition_level)
        for c in columns
    ]


def _row_groups(path: str) -> Iterator[_RowGroup]:
    """What the footer of a file says of its row groups.

    Arrow's own objects for them end the process where a footer is damaged in certain ways.
    """
    with open(path, "rb") as file:
        file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, os.SEEK_END)
        footer, _ = read_struct(file.read(length))
    for group in footer.get(_CREATED_GROUPS, []):
        try:
            chunks = [chunk[_CHUNK_METADATA] for chunk in group[_GROUP_COLUMNS]]
            yield _RowGroup(group[_GROUP_ROWS], chunks)
        except (LookupError, TypeError) as error:
            msg = "the footer lacks a part"
            raise DataError(msg, file=path, remedy=_ANEW) from error


def _check_chunk(chunk: Struct, leaf: _Leaf, path: str, number: int) -> None:
    """Refuse what Arrow would end the process for."""
    sizes, stats = chunk.get(_SIZES, {}), chunk.get(_STATISTICS, {})
    width = _WIDTHS.get(leaf.physical)
    lengths = [len(sizes.get(levels, [])) for levels in _LEVELS]
    fine = (
        all(isinstance(chunk.get(key), int) for key in (_VALUES, _DECODED, _STORED, _DATA_AT))
        and chunk.get(_TYPE) == _PHYSICAL.get(leaf.physical)
        and lengths[0] in (0, leaf.repetition + 1)
        and lengths[1] in (0, leaf.definition + 1)
        and (_TEXT_BYTES not in sizes or leaf.physical == "BYTE_ARRAY")
        and (width is None or all(len(stats[at]) == width for at in _BOUNDS if at in stats))
    )
    if not fine:
        msg = f"the footer contradicts itself on column {leaf.name!r} in row group {number}"
        raise DataError(msg, column=leaf.name, file=path, remedy=_ANEW)


# ---- all footers -----------------------------------------------------------------------------


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
        except (
            pa.ArrowException,
            OSError,
            ValueError,
            TypeError,
            AttributeError,
            LookupError,
            OverflowError,
            MemoryError,
        ) as error:
            msg = f"cannot read the Parquet footer: {' '.join(str(error).split())}"
            raise DataError(
                msg, file=path, remedy="write the file anew: it is truncated, or no Parquet file"
            ) from error

    def _add(self, path: str) -> None:
        stat = Path(path).stat()
        with pq.ParquetFile(path, pre_buffer=False) as file:
            metadata, schema = file.metadata, file.schema_arrow
            leaves = _leaves(file.schema)
        if metadata.num_rows or not self.types:
            self._add_schema(path, schema, with_rows=metadata.num_rows > 0)
        self.small_pages &= "fastparquet" not in str(metadata.created_by)
        self.files.append(ParquetFile(path, stat.st_size, stat.st_mtime_ns))
        rows = 0
        for number, group in enumerate(_row_groups(path)):
            rows += group.rows
            self._add_group(number, group, leaves)
        if rows != metadata.num_rows:
            msg = f"the footer tells of {metadata.num_rows:,} rows, and of {rows:,} in row groups"
            raise DataError(msg, file=path, remedy=_ANEW)

    def _add_group(self, number: int, group: _RowGroup, leaves: list[_Leaf]) -> None:
        path = self.files[-1].path
        if len(group.columns) != len(leaves):
            msg = f"row group {number} has {len(group.columns)} columns, the schema {len(leaves)}"
            raise DataError(msg, file=path, remedy=_ANEW)
        for chunk, leaf in zip(group.columns, leaves, strict=True):
            _check_chunk(chunk, leaf, path, number)
            self._add_chunk(number, group.rows, chunk, leaf.name)
        if group.rows:
            self.groups.append((len(self.files) - 1, number, group.rows))

    def _add_chunk(self, number: int, rows: int, chunk: Struct, name: str) -> None:
        path = self.files[-1].path
        if "." not in name and chunk[_VALUES] != rows:
            msg = (
                f"row group {number} has {rows:,} rows, and {chunk[_VALUES]:,} values in column "
                f"{name!r}"
            )
            raise DataError(msg, column=name, file=path, remedy=_ANEW)
        if not rows:
            return
        self.stored[name] = max(self.stored.get(name, 0), chunk[_STORED])
        if chunk[_DECODED] > self.decoded.get(name, -1):
            self.decoded[name] = chunk[_DECODED]
            self.largest[name] = (path, chunk.get(_DICTIONARY_AT) or chunk[_DATA_AT])
        if chunk.get(_STATISTICS, {}).get(_NULLS):
            self.null_group.setdefault(name, len(self.groups))

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
