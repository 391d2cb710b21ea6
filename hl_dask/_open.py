"""Opening model points: which source reads what the user gave."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.dataset as ds

from hl_dask._arrow import from_arrow, is_arrow
from hl_dask._csv import CsvSource, is_csv
from hl_dask._dask_source import (
    DaskSource,
    from_dask_arrays,
    from_dask_frame,
    is_dask_array,
    is_dask_frame,
)
from hl_dask._dataset import from_dataset
from hl_dask._footers import find_files, read_footers
from hl_dask._hive import HiveSource, keys_of, typed_keys
from hl_dask._memory import MemorySource, from_frame, from_mapping
from hl_dask._parquet import ParquetSource
from hl_dask.errors import DataError

Source = MemorySource | ParquetSource | DaskSource
KINDS = (
    "a pandas DataFrame, a dict of arrays, an Arrow table (or what exports one, as Polars and "
    "DuckDB do), a pyarrow dataset, a dask DataFrame, or the path of Parquet or CSV files"
)


def open_source(data: Any) -> Source:
    """The source of some model points.

    Raises
    ------
    DataError
        When it is of no known kind, or cannot be read.
    """
    if isinstance(data, pd.DataFrame):
        return from_frame(data)
    if is_dask_frame(data):
        return from_dask_frame(data)
    if isinstance(data, Mapping):
        if any(is_dask_array(value) for value in data.values()):
            return from_dask_arrays(data)
        return from_mapping(data)
    if isinstance(data, str | Path):
        return open_paths([data])
    if isinstance(data, list | tuple) and data and all(isinstance(p, str | Path) for p in data):
        return open_paths(data)
    if isinstance(data, ds.Dataset):
        return from_dataset(data)
    if is_arrow(data):
        return from_arrow(data)
    msg = f"model points given as {type(data).__module__}.{type(data).__qualname__}"
    raise DataError(msg, remedy=f"give {KINDS}")


def open_paths(paths: Sequence[str | Path], types: Mapping[str, Any] | None = None) -> Source:
    """The source of files: Parquet, or CSV when the names say so.

    Parameters
    ----------
    paths : sequence of str or Path
        Files, directories and globs.
    types : mapping, optional
        Types of the columns of CSV files.
    """
    if not all(str(path).strip() for path in paths):
        msg = "the path of the model points is empty"
        raise DataError(msg, remedy="give the path of Parquet or CSV files")
    if any(is_csv(path) for path in paths):
        return CsvSource(_csv_files(paths), types)
    files: list[str] = []
    keys: dict[str, dict[str, str]] = {}
    for path in paths:
        found = find_files(path)
        files += found
        keys |= {file: keys_of(file, _root(path)) for file in found}
    described = str(paths[0]) if len(paths) == 1 else f"{paths[0]} ... {paths[-1]}"
    if any(keys.values()):
        return HiveSource(typed_keys([(file, keys[file]) for file in files]), described)
    return ParquetSource(read_footers(files), described)


def _root(path: str | Path) -> str:
    """The directory below which directory names are keys: that of a glob's first wildcard."""
    place = Path(path).expanduser()
    if place.is_file():
        return str(place.parent)
    fixed: list[str] = []
    for part in place.parts:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return str(Path(*fixed)) if fixed else "."


def _csv_files(paths: Sequence[str | Path]) -> list[str]:
    files: list[str] = []
    for path in paths:
        place = str(Path(path).expanduser())
        if not is_csv(place):
            msg = f"{path} is among CSV files and is none"
            raise DataError(msg, file=place, remedy="give CSV files or Parquet files, not both")
        found = [place] if Path(place).is_file() else sorted(glob.glob(place, recursive=True))
        if not found:
            msg = f"no CSV file at {str(path)!r}"
            raise DataError(msg, file=place, remedy="check the path")
        files += found
    return files
