"""A ``pyarrow.dataset``: its Parquet files with the keys that it has for them.

What the dataset would do to the rows on the way is not done, and is therefore refused: filters,
casts to the types of its schema, fragments of some row groups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from hl_dask._hive import HiveSource, Keys
from hl_dask._kinds import arrow_dtype, arrow_is_text
from hl_dask._parquet import ParquetSource
from hl_dask.errors import DataError

_REMEDY = "read it into memory (dataset.to_table()), or give the paths of Parquet files"


def from_dataset(dataset: ds.Dataset) -> ParquetSource:
    """Model points in a dataset of local Parquet files, in the order of their paths.

    Raises
    ------
    DataError
        When it is of another format or place, or would do something to the rows.
    """
    files: list[tuple[str, Keys]] = []
    for part in _parts(dataset):
        files += [_file(fragment) for fragment in part.get_fragments()]
    if not files:
        msg = "the dataset has no files"
        raise DataError(msg, remedy="give a dataset with at least one file")
    files.sort(key=lambda pair: pair[0])
    source = HiveSource(files, f"dataset {files[0][0]} ...")
    columns = source._footers.columns
    for field in dataset.schema:
        footer = columns.get(field.name)
        if footer is not None and footer.problem is None and not _as_stored(field, footer.type):
            msg = (
                f"the dataset has type {field.type} for column {field.name!r}, and its files have "
                f"{footer.type}"
            )
            problem = DataError(
                msg, column=field.name, remedy="open it without schema=, or " + _REMEDY
            )
            columns[field.name] = dataclasses.replace(footer, problem=problem)
    return source


def _parts(dataset: ds.Dataset) -> Iterator[ds.FileSystemDataset]:
    """The datasets of files that a dataset is made of, checked."""
    if getattr(dataset, "_scan_options", None):
        msg = "the dataset carries a filter"
        raise DataError(msg, remedy="give the dataset without it, and the filter as where=")
    if isinstance(dataset, ds.UnionDataset):
        for part in dataset.children:
            yield from _parts(part)
        return
    if not isinstance(dataset, ds.FileSystemDataset):
        msg = f"model points given as {type(dataset).__name__}; expected a dataset of files"
        raise DataError(msg, remedy=_REMEDY)
    kind = dataset.format.default_extname
    if not isinstance(dataset.filesystem, pafs.LocalFileSystem) or kind != "parquet":
        msg = (
            f"the dataset is of {kind} files on {type(dataset.filesystem).__name__}; "
            "expected Parquet files on local disks"
        )
        raise DataError(msg, remedy=_REMEDY)
    yield dataset


def _file(fragment: ds.ParquetFileFragment) -> tuple[str, Keys]:
    try:
        groups = len(fragment.row_groups), fragment.metadata.num_row_groups
    except (pa.ArrowException, OSError) as error:
        msg = f"cannot read the Parquet footer: {' '.join(str(error).split())}"
        raise DataError(
            msg, file=fragment.path, remedy="write the file anew: it is truncated, or no Parquet"
        ) from error
    if groups[0] != groups[1]:
        msg = f"the dataset has {groups[0]} of the {groups[1]} row groups of a file"
        raise DataError(msg, file=fragment.path, remedy=_REMEDY + ", with a filter as where=")
    return fragment.path, ds.get_partition_keys(fragment.partition_expression)


def _as_stored(field: pa.Field, stored: pa.DataType) -> bool:
    """Whether the cast to the type of a field changes no value."""
    kind = field.type
    if kind == stored or pa.types.is_null(stored):
        return True
    if arrow_is_text(kind) or arrow_is_text(stored):
        return arrow_is_text(kind) and arrow_is_text(stored)
    if pa.types.is_decimal(kind) != pa.types.is_decimal(stored):
        return False
    if pa.types.is_floating(kind) and kind.bit_width < stored.bit_width:
        return False
    try:
        return bool(arrow_dtype("", kind) == arrow_dtype("", stored))
    except DataError:
        return False
