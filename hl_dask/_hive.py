"""Parquet files in directories named ``key=value``, whose names are columns."""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from hl_dask._arrow import arrow_column
from hl_dask._columns import Array, ColumnSpec
from hl_dask._footers import read_footers
from hl_dask._parquet import BATCH_ROWS, ParquetSource
from hl_dask._selection import Selection
from hl_dask.errors import DataError

Keys = Mapping[str, Any]
NULL = "__HIVE_DEFAULT_PARTITION__"


class HiveSource(ParquetSource):
    """Parquet files with one value of each key for all rows of a file.

    Parameters
    ----------
    files : sequence of (path, keys)
        Files in the order of their rows.
    description : str
        What was given, in words.
    """

    def __init__(self, files: Sequence[tuple[str, Keys]], description: str) -> None:
        footers = read_footers([path for path, _ in files])
        kept = [keys for _, keys in files]
        names = list(dict.fromkeys(name for keys in kept for name in keys))
        _check_keys(names, kept, [file.path for file in footers.files], footers.columns)
        super().__init__(footers, description)
        self._values = {name: pa.array([keys[name] for keys in kept]) for name in names}
        self.columns = (*self.columns, *names)
        self._set_keys()

    def _set_keys(self) -> None:
        """Find where files begin, and the keys of those that have rows."""
        files = np.arange(len(self._footers.files))
        ends = np.searchsorted(self._footers.group_file, files, side="right")
        edges = self._edges[np.concatenate([[0], ends])]
        with_rows = np.diff(edges) > 0
        self._file_edges = np.concatenate([[0], edges[1:][with_rows]])
        self._keys = {
            name: arrow_column(name, pa.chunked_array([values.filter(pa.array(with_rows))]))
            for name, values in self._values.items()
        }

    def _select(self, selection: Selection) -> None:
        super()._select(selection)
        self._set_keys()

    def kind(self, name: str) -> pa.DataType:
        """See :class:`ParquetSource`."""
        return self._values[name].type if name in self._values else super().kind(name)

    def schema(self, name: str) -> ColumnSpec:
        """See :class:`ParquetSource`."""
        return self._keys[name].spec if name in self._keys else super().schema(name)

    def _known_of(self, file: int) -> Any:
        known = [ds.field(name) == values[file] for name, values in self._values.items()]
        return functools.reduce(operator.and_, known) if known else None

    def _batches(
        self, start: int, stop: int, names: tuple[str, ...], *, keep: bool
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        keys = [name for name in names if name in self._values]
        stored = tuple(name for name in names if name not in self._values)
        if not keys:
            yield from super()._batches(start, stop, names, keep=keep)
            return
        pieces = (
            super()._batches(start, stop, stored, keep=keep)
            if stored
            else self._without_columns(start, stop)
        )
        for at, batch in pieces:
            file = self._file_at(at)
            columns = {name: batch.column(name) for name in stored}
            for name in keys:
                columns[name] = pa.repeat(self._values[name][file], batch.num_rows)
            yield at, pa.RecordBatch.from_pydict(columns)

    def _file_at(self, row: int) -> int:
        """The file of a row, by numbers of all rows."""
        return int(self._footers.group_file[np.searchsorted(self._stored, row, side="right") - 1])

    def _without_columns(self, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield batches of rows of one file that have no columns; nothing is read."""
        while start < stop:
            groups = np.flatnonzero(self._footers.group_file == self._file_at(start))
            end = min(stop, start + BATCH_ROWS, int(self._stored[groups[-1] + 1]))
            rows = pa.array(np.zeros(end - start, dtype=bool))
            yield start, pa.RecordBatch.from_arrays([rows], names=[""])
            start = end

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Array]:
        """See :class:`ParquetSource`."""
        stored = super().read(start, stop, [name for name in columns if name not in self._keys])
        files = np.searchsorted(self._file_edges, np.arange(start, stop), side="right") - 1
        keys = {name: self._of_files(name, files) for name in columns if name in self._keys}
        return {name: stored[name] if name in stored else keys[name] for name in columns}

    def take(self, name: str, positions: Array) -> Array:
        """See :class:`ParquetSource`."""
        if name not in self._keys:
            return super().take(name, positions)
        return self._of_files(name, np.searchsorted(self._file_edges, positions, side="right") - 1)

    def _of_files(self, name: str, files: Array) -> Array:
        values: Array = self._keys[name].read(0, len(self._file_edges) - 1)[files]
        return values

    def read_bytes(self, columns: Sequence[str], chunk_rows: int) -> int:
        """See :class:`ParquetSource`."""
        keys = [name for name in dict.fromkeys(columns) if name in self._keys]
        stored = [name for name in columns if name not in self._keys]
        positions = 16 * chunk_rows if keys else 0
        own = sum(self._keys[name].spec.row_bytes for name in keys) * chunk_rows
        return super().read_bytes(stored, chunk_rows) + own + positions

    def token(self) -> str:
        """See :class:`ParquetSource`."""
        keys = {name: values.to_pylist() for name, values in self._values.items()}
        return hashlib.sha256(repr((super().token(), keys)).encode()).hexdigest()


def typed_keys(files: Sequence[tuple[str, Mapping[str, str]]]) -> list[tuple[str, Keys]]:
    """Keys with their values: whole numbers where all files have one of int64, text elsewhere."""
    texts: dict[str, list[str]] = {}
    for _, keys in files:
        for name, text in keys.items():
            texts.setdefault(name, []).append(text)
    numbers = {name for name, found in texts.items() if all(map(_is_number, found))}
    return [
        (path, {name: int(text) if name in numbers else text for name, text in keys.items()})
        for path, keys in files
    ]


def _is_number(text: str) -> bool:
    # Text again what it was: 007 stays 007.
    digits = text.removeprefix("-")
    return digits.isdecimal() and str(int(text)) == text and -(2**63) <= int(text) < 2**63


def _check_keys(
    names: Sequence[str], keys: Sequence[Keys], paths: Sequence[str], columns: Mapping[str, Any]
) -> None:
    for name in names:
        if name in columns:
            msg = f"column {name!r} is in the files and in the names of their directories"
            raise DataError(msg, column=name, file=paths[0], remedy="rename one of the two")
        for path, found in zip(paths, keys, strict=True):
            if found.get(name) in (None, NULL):
                msg = f"the directory names give no value of {name!r} for this file"
                raise DataError(
                    msg,
                    column=name,
                    file=path,
                    remedy=f"put the file into a directory named {name}=VALUE, as the others are",
                )


def keys_of(path: str, root: str) -> dict[str, str]:
    """Keys and values in the directory names of a file below ``root``."""
    parts = Path(path).relative_to(root).parts[:-1]
    pairs = (part.partition("=") for part in parts if "=" in part)
    return {unquote(name): unquote(value) for name, _, value in pairs}
