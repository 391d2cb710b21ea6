"""The model points: rows and columns, whatever they are in.

:class:`ModelPoints` is the one face of all sources. Rows have a fixed global order; a read gives
rows start:stop of some columns as read-only NumPy arrays of widened dtype, and holds no more than
that while it reads.
"""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from hl_dask._columns import Array, ColumnSpec
from hl_dask._memory import MemorySource
from hl_dask._open import Source, open_paths, open_source
from hl_dask._where import Where
from hl_dask.errors import DataError, MissingColumnError

__all__ = ["ColumnSpec", "ModelPoints", "is_scalar_record"]

CHUNK_ROWS = 262_144
"""Rows of a chunk where nothing else is said."""

_SAMPLE_GROUPS = 8


def is_scalar_record(data: object) -> bool:
    """Whether data is one policy given as a mapping of names to scalars (or strings)."""
    return (
        isinstance(data, Mapping)
        and bool(data)
        and all(pd.api.types.is_scalar(value) for value in data.values())
    )


class ModelPoints:
    """Rows and columns of model points in memory or in files.

    Parameters
    ----------
    data : DataFrame, mapping, Arrow data, str, Path, list of these paths, or ModelPoints
        A pandas DataFrame; a mapping of names to arrays, memmaps, Series or Categoricals of one
        length (2-D arrays hold k values a row, e.g. scenarios); a pyarrow Table, RecordBatch or
        RecordBatchReader, or anything that exports one (Polars and DuckDB do); a pyarrow Dataset of
        Parquet files; a Parquet file, directory or glob, or a list of them; CSV files, which are
        converted to Parquet in a scratch directory. Directories and globs are read in sorted order
        of paths, lists as given. Names of directories of the form ``key=value`` are columns. A Dask
        DataFrame, or a mapping with Dask arrays.
    where : tuple, list of tuples, list of lists of tuples, or pyarrow.compute.Expression, optional
        Which rows to take: ``(column, operator, value)``; a list of these, which must all hold; a
        list of such lists, of which one must hold. Operators are ==, !=, <, <=, >, >=, in, not in,
        and with None also is, is not. A null passes no comparison. Rows are counted from 0 over
        those that pass, as if the others were not there.

    Raises
    ------
    DataError
        If the data is empty, malformed or unreadable, or no row passes the filter. A column of a
        type that cannot be computed with, or with nulls, is an error only when it is used.
    MissingColumnError
        If the filter has a column that is not there.

    Notes
    -----
    Immutable and picklable; several threads may read at once.
    """

    __slots__ = ("_chunk_rows", "_identity", "_source")

    _source: Source
    _chunk_rows: int
    _identity: str

    def __init__(self, data: Any, where: Any = None) -> None:
        if isinstance(data, ModelPoints):
            self._source = data._source
            self._chunk_rows = data._chunk_rows
            self._identity = data._identity
        else:
            self._source = open_source(data)
            self._chunk_rows = CHUNK_ROWS
            self._identity = uuid.uuid4().hex
        self._with_rows()
        if where is not None:
            self._source = self._source.filtered(Where(where, self._known))
            self._identity = uuid.uuid4().hex
            self._with_rows("no row passes the filter", "change the filter given as where=")

    def _with_rows(
        self,
        problem: str = "the model points have no rows",
        remedy: str = "give at least one model point",
    ) -> Self:
        if self._source.rows == 0:
            msg = f"{problem}: {self._source.description}"
            raise DataError(msg, file=self._source.home, remedy=remedy)
        return self

    @classmethod
    def read_csv(
        cls, paths: str | Path | Sequence[str | Path], types: Mapping[str, Any] | None = None
    ) -> ModelPoints:
        """Return model points in CSV files.

        Parameters
        ----------
        paths : str, Path or list of these
            Files or globs, ending in .csv, .csv.gz, .csv.bz2 or .csv.zst.
        types : mapping of str to type, optional
            Types of columns, such as ``{"policy": "string"}``; found from the values by default.

        Raises
        ------
        DataError
            If a file cannot be parsed, or a value is not of the type given.
        """
        several = [paths] if isinstance(paths, str | Path) else list(paths)
        points = object.__new__(cls)
        points._chunk_rows = CHUNK_ROWS
        points._identity = uuid.uuid4().hex
        if not isinstance(types or {}, Mapping):
            msg = f"types are given as {type(types).__name__}"
            raise DataError(msg, remedy='give a dict of types by column, {"policy": "string"}')
        points._source = open_paths(several, types or {})
        return points._with_rows()

    @classmethod
    def of(cls, data: Any) -> ModelPoints:
        """Return data as ModelPoints, and ModelPoints as they are."""
        return data if isinstance(data, ModelPoints) else cls(data)

    def _like(self, source: Source, chunk_rows: int) -> Self:
        new = object.__new__(type(self))
        new._source = source
        new._chunk_rows = chunk_rows
        new._identity = self._identity if source is self._source else uuid.uuid4().hex
        return new

    # --- what there is ---------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._source.rows

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, also of those that cannot be used."""
        return self._source.columns

    @property
    def in_memory(self) -> bool:
        """Whether the rows are in memory (or in a memmap), not in files to be decoded."""
        return self._source.in_memory

    @property
    def description(self) -> str:
        """What the model points are in, in words."""
        return self._source.description

    def __len__(self) -> int:
        return self.rows

    def __contains__(self, column: object) -> bool:
        return column in self.columns

    def schema(self, column: str) -> ColumnSpec:
        """Return what a column is after widening.

        For text in Parquet files, the first call reads the column once, to find its categories.

        Raises
        ------
        MissingColumnError
            If there is no such column.
        DataError
            If the column cannot be used: its type, or a null in it.
        """
        return self._source.schema(self._known(column))

    def categorical(self, column: str) -> bool:
        """Whether a column is text given as codes of categories."""
        return self.schema(column).categories is not None

    def nbytes_per_row(self, columns: Sequence[str]) -> int:
        """Return the bytes of one row of these columns, widened."""
        return sum(self.schema(name).row_bytes for name in dict.fromkeys(columns))

    def _known(self, column: str) -> str:
        if column not in self._source.columns:
            near = difflib.get_close_matches(str(column), self.columns, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            shown = ", ".join(self.columns[:20]) + (", ..." if len(self.columns) > 20 else "")
            msg = f"the model points have no column {column!r}"
            raise MissingColumnError(
                msg,
                column=str(column),
                file=self._source.home,
                remedy=f"{hint}The columns are: {shown}",
            )
        return column

    # --- reading ---------------------------------------------------------------------------------

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Array]:
        """Read rows start:stop of some columns.

        Parameters
        ----------
        start, stop : int
            Global rows, 0 <= start <= stop <= rows.
        columns : sequence of str
            The columns to read.

        Returns
        -------
        dict of str to numpy.ndarray
            Contiguous read-only arrays of shape ``(stop - start, *trailing)``: views of data in
            memory that have the widened dtype already, new arrays otherwise. Text with categories
            comes as int32 codes.
        """
        if not 0 <= start <= stop <= self.rows:
            msg = f"rows {start}:{stop} of {self.rows}"
            raise IndexError(msg)
        names = [self._known(name) for name in columns]
        return _read_only(self._source.read(int(start), int(stop), names))

    def take(self, column: str, positions: Array) -> Array:
        """Read one column at sorted global positions.

        Returns
        -------
        numpy.ndarray
            Read-only, of shape ``(len(positions), *trailing)``; codes for text with categories.
        """
        where = np.asarray(positions, dtype=np.int64)
        if where.size and not (
            where[0] >= 0 and where[-1] < self.rows and np.all(np.diff(where) >= 0)
        ):
            msg = f"positions must be sorted and within 0:{self.rows}"
            raise IndexError(msg)
        return _read_only({"": self._source.take(self._known(column), where)})[""]

    def sample_positions(self, n: int) -> Array:
        """Choose n distinct rows (all, if there are fewer), the same ones each time.

        Returns
        -------
        numpy.ndarray
            Sorted int64 positions, spread over all rows in memory, and over at most 8 row groups
            of Parquet files.
        """
        ranges = self._source.sample_ranges(n, _SAMPLE_GROUPS)
        lengths = np.array([stop - start for start, stop in ranges], dtype=np.int64)
        if n >= lengths.sum():
            return np.concatenate([np.arange(*edges, dtype=np.int64) for edges in ranges])
        shares = _shares(n, lengths)
        rng = np.random.default_rng(0)
        picked = [
            start + np.sort(rng.choice(stop - start, size=int(share), replace=False))
            for (start, stop), share in zip(ranges, shares, strict=True)
        ]
        return np.concatenate(picked).astype(np.int64)

    def read_bytes(self, columns: Sequence[str], chunk_rows: int) -> int:
        """Return an upper bound of the bytes that one ``read`` of chunk_rows rows holds."""
        return self._source.read_bytes([self._known(name) for name in columns], int(chunk_rows))

    def release(self) -> None:
        """Close files that reads keep open to carry on where they stopped."""
        self._source.release()

    def values(self, column: str) -> Array | pd.Categorical:
        """Return a whole column: a read-only array, or a pandas Categorical for text."""
        return self._decoded(column, self.read(0, self.rows, [column])[column])

    def _decoded(self, column: str, array: Array) -> Array | pd.Categorical:
        categories = self.schema(column).categories
        if categories is None or array.ndim > 1:
            return array if categories is None else categories[array]
        dtype = pd.CategoricalDtype(pd.Index(categories, dtype=object))
        return pd.Categorical.from_codes(array, dtype=dtype, validate=False)

    def frame(
        self, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None
    ) -> pd.DataFrame:
        """Return rows as a DataFrame, indexed by global row; text as Categorical.

        A column with k values a row becomes k columns ``name[0]``, ``name[1]``, ...
        """
        end = self.rows if stop is None else stop
        names = list(self.columns if columns is None else columns)
        parts: dict[str, Any] = {}
        for name, array in self.read(start, end, names).items():
            value = self._decoded(name, array)
            if value.ndim == 1:
                parts[name] = value
            else:
                parts.update({f"{name}[{k}]": value[:, k] for k in range(value.shape[1])})
        return pd.DataFrame(parts, index=pd.RangeIndex(start, end))

    def loaded(self, columns: Sequence[str] | None = None) -> ModelPoints:
        """Return the same model points in memory, with only these columns (default all).

        A column that cannot be used stays listed, and its error is raised when it is used.
        """
        if self.in_memory:
            return self
        data: dict[str, Any] = {}
        usable = []
        for name in self.columns if columns is None else columns:
            try:
                self.schema(name)
                usable.append(name)
            except MissingColumnError:
                raise
            except DataError as error:
                data[name] = error
        read = self._read_usable(usable, data)
        data |= {name: self._decoded(name, read[name]) for name in usable}
        order = [name for name in self.columns if name in data]
        source = MemorySource({name: data[name] for name in order}, self.rows, self.description)
        return self._like(source, self._chunk_rows)

    def _read_usable(self, names: list[str], errors: dict[str, Any]) -> dict[str, Array]:
        """Read whole columns; move those that cannot be read from ``names`` to ``errors``."""
        while True:
            try:
                return self.read(0, self.rows, names)
            except DataError as error:
                if error.column not in names:
                    raise
                errors[error.column] = error
                names.remove(error.column)

    # --- chunks and dask -------------------------------------------------------------------------

    @property
    def chunks(self) -> tuple[int, ...]:
        """Rows of each chunk, as dask writes them."""
        full, rest = divmod(self.rows, self._chunk_rows)
        return (self._chunk_rows,) * full + ((rest,) if rest else ())

    def with_chunks(self, chunk_rows: int) -> ModelPoints:
        """Return the same model points in chunks of ``chunk_rows`` rows."""
        if chunk_rows < 1:
            msg = f"a chunk of {chunk_rows} rows; expected at least 1"
            raise DataError(msg)
        return self._like(self._source, int(chunk_rows))

    def __getitem__(self, column: str) -> Any:
        """Return a column as a lazy dask array, one task per chunk; text as an object array."""
        import dask.array as da  # noqa: PLC0415  (it would slow `import hl_dask`)

        view = _ColumnView(self, column)
        chunks = (self.chunks, *((k,) for k in view.shape[1:]))
        name = "-".join(["hl-points", *map(str, self.__dask_tokenize__()[1:]), column])
        return da.from_array(  # type: ignore[no-untyped-call]
            view, chunks=chunks, name=name, fancy=False, meta=np.empty((0,) * view.ndim, view.dtype)
        )

    def to_dask(self, columns: Sequence[str] | None = None) -> Any:
        """Return a lazy dask DataFrame with one partition per chunk and known divisions."""
        import dask.dataframe as dd  # noqa: PLC0415  (it would slow `import hl_dask`)

        names = list(self.columns if columns is None else columns)
        edges = [0, *np.cumsum(self.chunks).tolist()]
        return dd.from_map(  # type: ignore[no-untyped-call]
            _FrameReader(self, names),
            edges[:-1],
            edges[1:],
            meta=self.frame(0, 0, names),
            divisions=(*edges[:-1], self.rows - 1),
        )

    # --- identity --------------------------------------------------------------------------------

    def token(self) -> str:
        """Return a digest of the source.

        For files of their paths, sizes, times and rows; for data in memory of names, shapes and
        dtypes only.
        """
        return self._source.token()

    def __dask_tokenize__(self) -> tuple[str, str, int]:
        # Two arrays of one shape have one token: dask must not take one for the other.
        identity = self._identity if self.in_memory else ""
        return ("hl_dask.ModelPoints", self.token()[:32] + identity, self._chunk_rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self._source, self._chunk_rows, self._identity)

    def __repr__(self) -> str:
        return (
            f"<ModelPoints: {self.rows:,} rows x {len(self.columns)} columns, "
            f"{self.description}, {_bytes(self._source.stored_bytes())}>"
        )


def _restore(cls: type[ModelPoints], source: Any, chunk_rows: int, identity: str) -> ModelPoints:
    points = object.__new__(cls)
    points._source = source
    points._chunk_rows = chunk_rows
    points._identity = identity
    return points


class _ColumnView:
    """One column with the face of an array, for dask to cut."""

    def __init__(self, points: ModelPoints, column: str) -> None:
        spec = points.schema(column)
        self._points = points
        self._column = column
        self.shape = (points.rows, *spec.shape)
        self.ndim = len(self.shape)
        self.dtype = np.dtype(object) if spec.is_text else spec.dtype

    def __getitem__(self, index: Any) -> Array:
        index = index if isinstance(index, tuple) else (index,)
        start, stop, step = index[0].indices(self.shape[0])
        array = self._points.read(start, max(start, stop), [self._column])[self._column]
        categories = self._points.schema(self._column).categories
        if categories is not None:
            array = categories[array]
        part: Array = array[(slice(None, None, step), *index[1:])]
        return part


class _FrameReader:
    """Reads a partition of :meth:`ModelPoints.to_dask`."""

    def __init__(self, points: ModelPoints, columns: list[str]) -> None:
        self._points = points
        self._columns = columns

    def __call__(self, start: int, stop: int) -> pd.DataFrame:
        return self._points.frame(start, stop, self._columns)

    def __dask_tokenize__(self) -> Any:
        return ("hl_dask.frame", self._points.__dask_tokenize__(), self._columns)


def _read_only(arrays: dict[str, Array]) -> dict[str, Array]:
    for array in arrays.values():
        array.setflags(write=False)
    return arrays


def _shares(n: int, lengths: Array) -> Array:
    """Split n over ranges in proportion to their lengths, none beyond its length."""
    edges = np.cumsum(lengths) * n // lengths.sum()
    shares: Array = np.diff(edges, prepend=0)
    return shares


def _bytes(size: int) -> str:
    amount = float(size)
    for unit in ("bytes", "KB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"
