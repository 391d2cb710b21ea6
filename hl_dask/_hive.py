"""Parquet files in directories named ``key=value``, whose names are columns."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from hl_dask._columns import Array, ColumnSpec
from hl_dask._footers import read_footers
from hl_dask._memory import MemoryColumn, memory_column
from hl_dask._parquet import ParquetSource
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
        by_path = dict(files)
        kept = [by_path[file.path] for file in footers.files]  # those without rows do not count
        names = list(dict.fromkeys(name for keys in kept for name in keys))
        _check_keys(names, kept, [file.path for file in footers.files], footers.columns)
        super().__init__(footers, description)
        self._keys: dict[str, MemoryColumn] = {
            name: memory_column(name, _values([keys[name] for keys in kept])) for name in names
        }
        ends = np.searchsorted(footers.group_file, np.arange(len(kept)), side="right")
        self._file_edges = np.concatenate([[0], footers.edges[ends]])
        self.columns = (*self.columns, *names)

    def schema(self, name: str) -> ColumnSpec:
        """See :class:`ParquetSource`."""
        return self._keys[name].spec if name in self._keys else super().schema(name)

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
        column = self._keys[name]
        values: Array = column.read(0, len(column.base))[files]
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
        keys = {
            name: column.read(0, len(column.base)).tolist() for name, column in self._keys.items()
        }
        return hashlib.sha256(repr((super().token(), keys)).encode()).hexdigest()


def _values(texts: Sequence[Any]) -> Array:
    """Values of a key by file: whole numbers where all are, else text."""
    if all(isinstance(value, (int, np.integer)) for value in texts):
        return np.array(texts, dtype=np.int64)
    plain = [str(value) for value in texts]
    if all(value.removeprefix("-").isdecimal() and str(int(value)) == value for value in plain):
        return np.array([int(value) for value in plain], dtype=np.int64)
    out = np.empty(len(plain), dtype=object)
    out[:] = plain
    return out


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


def from_dataset(dataset: Any) -> ParquetSource:
    """Model points in a ``pyarrow.dataset`` of local Parquet files.

    Raises
    ------
    DataError
        When it is of another format or place, or carries a filter.
    """
    parts = dataset.children if isinstance(dataset, ds.UnionDataset) else [dataset]
    files: list[tuple[str, Keys]] = []
    for part in parts:
        remedy = "read it into memory (dataset.to_table()), or give the paths of Parquet files"
        if not isinstance(part, ds.FileSystemDataset):
            msg = f"model points given as {type(part).__name__}; expected a dataset of files"
            raise DataError(msg, remedy=remedy)
        if getattr(part, "_scan_options", None):
            msg = "the dataset carries a filter, which would have to be applied row by row"
            raise DataError(msg, remedy=remedy)
        local = isinstance(part.filesystem, pafs.LocalFileSystem)
        if not local or part.format.default_extname != "parquet":
            msg = (
                f"the dataset is of {part.format.default_extname} files on "
                f"{type(part.filesystem).__name__}; expected Parquet files on local disks"
            )
            raise DataError(msg, remedy=remedy)
        files += [
            (f.path, ds.get_partition_keys(f.partition_expression)) for f in part.get_fragments()
        ]
    if not files:
        msg = "the dataset has no files"
        raise DataError(msg, remedy="give a dataset with at least one file")
    files.sort(key=lambda pair: pair[0])
    described = f"dataset {files[0][0]} ..."
    return HiveSource(files, described)
