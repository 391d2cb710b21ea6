"""CSV files, converted once to Parquet in a scratch directory.

The types are found by reading every value, because a number that is text in the last row is text.
A value is a whole number, a number, true or false, a date (YYYY-MM-DD), or text, whichever comes
first and fits all rows; numbers with leading zeros are text, lest policy ``007`` become 7.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from hl_dask._footers import read_footers
from hl_dask._parquet import ParquetSource
from hl_dask.errors import DataError

SUFFIXES = (".csv", ".csv.gz", ".csv.bz2", ".csv.zst")
BLOCK_BYTES = 4 << 20
"""Bytes of a file that are parsed at a time."""
GROUP_ROWS = 262_144
LEADING_ZERO = "^[-+]?0[0-9]"
"""Numbers that are written as codes are."""
WHOLE = "^-?(0|[1-9][0-9]*)$"
LONG = "^[-+]?[0-9]{16,}$"
"""Whole numbers that may be beyond those that every float is."""
CANDIDATES = (pa.int64(), pa.float64(), pa.bool_(), pa.date32())


def is_csv(path: str | Path) -> bool:
    """Whether a path names a CSV file."""
    return str(path).lower().endswith(SUFFIXES)


class CsvSource(ParquetSource):
    """CSV files, read from their copy in Parquet.

    Parameters
    ----------
    paths : sequence of str
        Files with one header, in the order of their rows.
    types : mapping of str to pyarrow.DataType or str, optional
        Types of columns; found from the values by default.

    Raises
    ------
    DataError
        When a file cannot be parsed, headers differ, or the scratch directory has no room.
    """

    def __init__(self, paths: Sequence[str], types: Mapping[str, Any] | None = None) -> None:
        given = {name: _arrow_type(name, kind) for name, kind in (types or {}).items()}
        header = _header(paths)
        unknown = [name for name in given if name not in header]
        if unknown:
            msg = f"there is no column {unknown[0]!r}, of which a type is given"
            raise DataError(msg, column=unknown[0], file=paths[0], remedy=f"columns: {header}")
        kinds = {name: given[name] for name in header if name in given}
        kinds |= _found_types(paths, [name for name in header if name not in given])
        kinds = {name: kinds[name] for name in header}
        scratch = _scratch(paths)
        self._remove = weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
        files = [str(Path(scratch) / f"part-{k:05d}.parquet") for k in range(len(paths))]
        for path, file in zip(paths, files, strict=True):
            _convert(path, file, kinds)
        super().__init__(read_footers(files), "")
        shown = ", ".join(f"{name}: {kind}" for name, kind in list(kinds.items())[:12])
        more = ", ..." if len(kinds) > 12 else ""
        self.description = f"{len(paths):,} CSV file{'s' if len(paths) > 1 else ''} ({shown}{more})"
        self._origin = dict(zip(files, paths, strict=True))
        self.home = paths[0]

    def __getstate__(self) -> dict[str, Any]:
        # The copy is removed by the process that made it, and not by one that reads it as well.
        return {**super().__getstate__(), "_remove": None}

    def place(self, row: int) -> str:
        """Return the CSV file of a row, for messages."""
        return str(self._origin[self._file_of(self._part_of(row)).path])


def _arrow_type(name: str, kind: Any) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    try:
        return pa.type_for_alias(str(kind)) if isinstance(kind, str) else pa.from_numpy_dtype(kind)
    except (ValueError, TypeError, pa.ArrowException) as error:
        msg = f"{kind!r} is not a type of a CSV column"
        raise DataError(
            msg, column=name, remedy='give one such as "int64", "float64", "string", "date32"'
        ) from error


def _scratch(paths: Sequence[str]) -> str:
    scratch = tempfile.mkdtemp(prefix="hl-dask-csv-")
    packed = any(not path.lower().endswith(".csv") for path in paths)
    needed = sum(Path(path).stat().st_size for path in paths) * (8 if packed else 1)
    free = shutil.disk_usage(scratch).free
    if needed > free:
        shutil.rmtree(scratch, ignore_errors=True)
        msg = f"converting the CSV files may take {needed:,} bytes of scratch, {free:,} are free"
        raise DataError(
            msg, file=scratch, remedy="set TMPDIR to a larger disk, or convert them to Parquet"
        )
    return scratch


def _batches(path: str, kinds: Mapping[str, pa.DataType] | None) -> Iterator[Any]:
    """The record batches of a file; all columns as text when no types are given."""
    convert = pacsv.ConvertOptions(
        column_types=dict(kinds)
        if kinds is not None
        else dict.fromkeys(_header([path]), pa.string()),
        null_values=[""],
        strings_can_be_null=False,
        quoted_strings_can_be_null=False,
    )
    read = pacsv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False)
    parse = pacsv.ParseOptions(newlines_in_values=True)
    try:
        with pacsv.open_csv(
            path, read_options=read, parse_options=parse, convert_options=convert
        ) as reader:
            yield from reader
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: Exception) -> DataError:
    msg = f"the CSV file cannot be read: {' '.join(str(error).split())}"
    return DataError(
        msg, file=path, remedy="check separators, quotes and encoding (comma, double quote, UTF-8)"
    )


def _header(paths: Sequence[str]) -> list[str]:
    """The names of the columns, the same in all files."""
    headers = []
    for path in paths:
        try:
            with pacsv.open_csv(path, read_options=pacsv.ReadOptions(use_threads=False)) as reader:
                headers.append(list(reader.schema.names))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _unreadable(path, error) from error
        names = headers[-1]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            msg = f"column {twice!r} occurs twice"
            raise DataError(msg, column=twice, file=path, remedy="rename one")
        if names != headers[0]:
            odd = sorted(set(names) ^ set(headers[0])) or names
            msg = (
                f"the files have different headers: {odd[0]!r} is not in both, or stands elsewhere"
            )
            raise DataError(
                msg,
                column=odd[0],
                file=path,
                remedy=f"write all files with the header of {paths[0]}",
            )
    return headers[0]


def _found_types(paths: Sequence[str], names: Sequence[str]) -> dict[str, pa.DataType]:
    """The first type that fits all values of a column."""
    left = {name: list(CANDIDATES) for name in names}
    empty = set(names)
    for path in paths:
        for batch in _batches(path, None):
            for name in names:
                values = batch.column(name)
                values = values.filter(pc.not_equal(values, ""))
                if len(values):
                    empty.discard(name)
                    left[name] = [kind for kind in left[name] if _fits(values, kind)]
    text = pa.string()
    return {name: left[name][0] if left[name] and name not in empty else text for name in names}


def _fits(values: Any, kind: pa.DataType) -> bool:
    """Whether all values are of a type, and none becomes another one by it."""
    if kind == pa.int64() and not pc.all(pc.match_substring_regex(values, WHOLE)).as_py():
        return False
    if kind == pa.float64() and pc.any(pc.match_substring_regex(values, LEADING_ZERO)).as_py():
        return False
    try:
        found = pc.cast(values, kind)
    except pa.ArrowException:
        return False
    return kind != pa.float64() or _same_numbers(values, found)


def _same_numbers(texts: Any, floats: Any) -> bool:
    """Whether floats are what texts say: neither beyond their range nor rounded whole numbers."""
    beyond = pc.and_(
        pc.is_inf(floats), pc.invert(pc.match_substring_regex(texts, "inf", ignore_case=True))
    )
    if pc.any(beyond).as_py():
        return False
    long = pc.match_substring_regex(texts, LONG)
    pairs = zip(texts.filter(long).to_pylist(), floats.filter(long).to_pylist(), strict=True)
    return all(int(text) == int(number) for text, number in pairs)


def _convert(path: str, file: str, kinds: Mapping[str, pa.DataType]) -> None:
    """Write a CSV file as Parquet, batch by batch."""
    schema = pa.schema(list(kinds.items()))
    try:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for table in _groups(_batches(path, kinds), schema):
                writer.write_table(table, row_group_size=GROUP_ROWS)
    except OSError as error:
        msg = f"the copy of the CSV file in Parquet cannot be written: {error}"
        raise DataError(
            msg, file=path, remedy="set TMPDIR to a disk with room, or convert it to Parquet"
        ) from error


def _groups(batches: Iterator[Any], schema: Any) -> Iterator[Any]:
    """Tables of about one row group."""
    held: list[Any] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= GROUP_ROWS:
            yield pa.Table.from_batches(held, schema)
            held, count = [], 0
    if held:
        yield pa.Table.from_batches(held, schema)
