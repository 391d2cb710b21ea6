"""Model points in Dask collections: a DataFrame, or a mapping of arrays.

The rows stand in the order of the partitions, whose lengths are counted once. Blocks and chunks are
cut as in every other source, so that a chunk may need two partitions, and a partition may serve two
chunks::

    partitions  |---- 0 ----|---- 1 ----|-- 2 --|
    chunks      |   0   |   1   |   2   |   3   |
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dask
import numpy as np
import pyarrow as pa

from hl_dask._batches import BatchSource
from hl_dask._columns import Array
from hl_dask._dask_compat import lengths_of
from hl_dask._kinds import arrow_first_null, decoded, merged_kind, plain
from hl_dask._memory import check_names
from hl_dask._partitions import (
    ArrayPartitions,
    Columns,
    FramePartitions,
    PartitionCache,
    Partitions,
    check_futures,
    check_independent,
    counting,
)
from hl_dask.errors import DataError

BATCH_ROWS = 65_536
"""Rows converted at a time."""
ALLOCATOR_BYTES = 20 << 20
"""What the allocators keep for each thread that reads."""
_SAMPLED_COLUMNS = 256
"""A sample is taken of all columns at once where there are no more."""


def is_dask_frame(data: object) -> bool:
    """Whether data is a Dask DataFrame; ``dask.dataframe`` is not imported for it."""
    module = sys.modules.get("dask.dataframe")
    return module is not None and isinstance(data, module.DataFrame)


def is_dask_array(data: object) -> bool:
    """Whether data is a Dask array; ``dask.array`` is not imported for it."""
    module = sys.modules.get("dask.array")
    return module is not None and isinstance(data, module.Array)


class DaskSource(BatchSource):
    """Columns in partitions of Dask collections."""

    def __init__(self, tables: Sequence[Partitions], columns: Sequence[str], what: str) -> None:
        self._tables = list(tables)
        self._home = {name: at for at, table in enumerate(tables) for name in table.kinds}
        self._kinds: dict[str, pa.DataType] = {}
        self._costs: dict[tuple[str, ...], int] = {}
        super().__init__(columns, np.unique(np.concatenate([t.edges for t in tables])), what)

    def _renew(self) -> None:
        super()._renew()
        self._cache = PartitionCache()
        self._sampled: tuple[bytes, Columns] | None = None
        self._cost_lock = threading.RLock()

    def _passing(self) -> tuple[str, ...]:
        return (*super()._passing(), "_cache", "_sampled", "_cost_lock")

    def place(self, row: int) -> str:
        """Return the partition of a row, for messages."""
        table, row = self._tables[0], self._stored_row(row)
        if len(self._tables) > 1:
            return f"row {row:,} of the {table.what}"
        return table.place(int(np.searchsorted(table.edges, row, side="right")) - 1)

    def _stored_row(self, row: int) -> int:
        if self._selection is None:
            return row
        return next(self._selection.ranges(row, row + 1))[0]

    # --- columns ---------------------------------------------------------------------------------

    def kind(self, name: str) -> pa.DataType:
        """Return the Arrow type of a column, of its first rows where the collection has none."""
        found = self._kinds.get(name)
        if found is None:
            table = self._tables[self._home[name]]
            found = table.kinds[name]
            for partition in np.flatnonzero(np.diff(table.edges)):
                if not pa.types.is_null(found):
                    break
                column = table.compute(int(partition), (name,))[name]
                if isinstance(column, DataError):
                    raise column
                found = column.type
            self._kinds[name] = found
        return found

    def _checked(self, table: Partitions, partition: int, name: str, column: Any) -> pa.Array:
        """A column of a partition, when it goes together with the others."""
        if isinstance(column, DataError):
            raise copy.deepcopy(column)
        kind = self.kind(name)
        both = kind if pa.types.is_fixed_size_list(kind) else merged_kind(kind, column.type)
        # Integers may stand for floats, and not the other way round.
        if both is None or (pa.types.is_floating(both) and not _holds_floats(kind)):
            msg = f"column {name!r} is of type {column.type} here, and of {kind} in other rows"
            raise DataError(
                msg,
                column=name,
                file=table.place(partition),
                remedy=f"give all partitions one dtype, e.g. frame.astype({{{name!r}: ...}})",
            )
        return column

    # --- reading ---------------------------------------------------------------------------------

    def _batches(
        self, start: int, stop: int, names: tuple[str, ...], *, keep: bool
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        del keep  # what is computed is kept until its rows have been handed out
        homes = {
            at: tuple(n for n in names if self._home[n] == at) for at in range(len(self._tables))
        }
        homes = {at: found for at, found in homes.items() if found}
        with self._cache.reading():
            while start < stop:
                end = min(stop, start + BATCH_ROWS)
                for at in homes:
                    edges = self._tables[at].edges
                    end = min(end, int(edges[np.searchsorted(edges, start, side="right")]))
                columns: dict[str, pa.Array] = {}
                for at, found in homes.items():
                    columns |= self._part(at, found, start, end)
                yield start, pa.RecordBatch.from_pydict(columns)
                start = end

    def _part(self, at: int, names: tuple[str, ...], start: int, stop: int) -> dict[str, pa.Array]:
        """Rows start:stop of some columns of one table, all in one partition."""
        table = self._tables[at]
        partition = int(np.searchsorted(table.edges, start, side="right")) - 1
        first, last = int(table.edges[partition]), int(table.edges[partition + 1])
        key = (at, partition, names)
        columns = self._cache.get(key, last - first, lambda: table.compute(partition, names))
        found = {
            name: self._checked(table, partition, name, columns[name]).slice(
                start - first, stop - start
            )
            for name in names
        }
        self._cache.handed_out(key, stop - start)
        return found

    def take(self, name: str, positions: Array) -> Array:
        """Read one column at sorted positions; the others are kept for the calls that follow."""
        spec = self.schema(name)
        out = np.empty((len(positions), *spec.shape), dtype=spec.dtype)
        if len(positions):
            values = self._sample(name, positions)
            null = arrow_first_null(values)
            if null is not None:
                self._check_nulls(name, spec.dtype, int(positions[null]) - null, values)
            self._convert(spec, out, int(positions[0]), values)
        return out

    def _sample(self, name: str, positions: Array) -> pa.Array:
        """A column at some rows, computed with all others of its table: a sample reads many."""
        stored = positions
        if self._selection is not None:
            stored = np.array([self._stored_row(int(row)) for row in positions])
        table = self._tables[self._home[name]]
        few = len(table.kinds) <= _SAMPLED_COLUMNS
        key = repr((self._home[name], "" if few else name)).encode() + stored.tobytes()
        with self._cost_lock:
            if self._sampled is None or self._sampled[0] != key:
                names = tuple(table.kinds) if few else (name,)
                self._sampled = key, self._taken(table, names, stored)
            column = self._sampled[1][name]
        if isinstance(column, DataError):
            raise copy.deepcopy(column)
        return column

    def _taken(self, table: Partitions, names: tuple[str, ...], stored: Array) -> Columns:
        parts: dict[str, list[Any]] = {name: [] for name in names}
        cuts = np.searchsorted(stored, table.edges)
        for partition in np.flatnonzero(np.diff(cuts)):
            columns = table.compute(int(partition), names)
            inside = stored[cuts[partition] : cuts[partition + 1]] - table.edges[partition]
            for name, found in parts.items():
                try:
                    column = self._checked(table, int(partition), name, columns[name])
                    found.append(decoded(column.take(pa.array(inside))))
                except DataError as error:
                    found.append(error)
        return {name: _joined(found) for name, found in parts.items()}

    def release(self) -> None:
        """Drop what has been computed, and return unused memory."""
        self._cache.clear()
        pa.default_memory_pool().release_unused()

    # --- sizes and identity ----------------------------------------------------------------------

    def read_bytes(self, columns: Sequence[str], chunk_rows: int) -> int:
        """Return about what one read of ``chunk_rows`` rows holds.

        What it takes to compute a partition is known to nobody; the largest one is computed once,
        and measured.
        """
        names = tuple(dict.fromkeys(columns))
        total = ALLOCATOR_BYTES
        for name in names:
            spec = self.schema(name)
            total += chunk_rows * spec.row_bytes + 3 * BATCH_ROWS * max(spec.row_bytes, 8)
        with self._cost_lock:
            if names not in self._costs:
                self._costs[names] = sum(
                    table.bytes_of(found)
                    for at, table in enumerate(self._tables)
                    if (found := tuple(name for name in names if self._home[name] == at))
                )
        return total + self._costs[names]

    def stored_bytes(self) -> int:
        """Return about what the rows take."""
        kinds = [kind for table in self._tables for kind in table.kinds.values()]
        widths = [
            kind.bit_width // 8 if pa.types.is_primitive(kind) else np.dtype(np.int64).itemsize
            for kind in kinds
        ]
        return int(self._stored[-1]) * sum(widths)

    def token(self) -> str:
        """Return a digest of the graphs and rows."""
        return self._digest(*[dask.base.tokenize(table.collection) for table in self._tables])


def _holds_floats(kind: pa.DataType) -> bool:
    kind = plain(kind)
    return bool(pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _joined(parts: list[Any]) -> pa.Array | DataError:
    errors = [part for part in parts if isinstance(part, DataError)]
    if errors:
        return errors[0]
    kind = parts[0].type
    for part in parts[1:]:
        kind = merged_kind(kind, part.type) or kind
    try:
        # Integers among floats, or several units of dates.
        return pa.concat_arrays([part.cast(kind) for part in parts])
    except pa.ArrowException as error:
        msg = f"the types of a column in some partitions do not go together: {error}"
        return DataError(msg, remedy="give all partitions one dtype")


def from_dask_frame(frame: Any) -> DaskSource:
    """Model points in a Dask DataFrame.

    Raises
    ------
    DataError
        When it is persisted on a cluster, its partitions depend on each other, or its rows cannot
        be counted.
    """
    names = list(frame.columns)
    check_names(names)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        msg = f"column {twice!r} occurs twice in the dask DataFrame"
        raise DataError(msg, column=twice, remedy="rename one")
    if not names:
        msg = "the model points have no columns: dask DataFrame"
        raise DataError(msg, remedy="give at least one column")
    table = FramePartitions(frame)
    return DaskSource([table], names, f"dask DataFrame of {frame.npartitions:,} partitions")


def from_dask_arrays(data: Mapping[Any, Any]) -> DaskSource:
    """Model points in Dask arrays, one a column; some may be NumPy arrays.

    Raises
    ------
    DataError
        When they are of different lengths, of more than two dimensions, or persisted on a cluster.
    """
    check_names(list(data))
    arrays = {name: _array(name, value) for name, value in data.items()}
    lengths = _lengths(arrays)
    first = next(iter(lengths))
    for name, found in lengths.items():
        if sum(found) != sum(lengths[first]):
            msg = (
                f"columns differ in length: {first!r} has {sum(lengths[first]):,} rows, {name!r} "
                f"has {sum(found):,}"
            )
            raise DataError(msg, column=name, remedy="give arrays of one length")
    alike: dict[tuple[int, ...], dict[str, Any]] = {}
    for name, found in lengths.items():
        alike.setdefault(found, {})[name] = arrays[name]
    tables = [ArrayPartitions(columns, found) for found, columns in alike.items()]
    for table in tables:
        for name in table.kinds:
            check_independent(*table.tasks((name,)), "dask array")
    return DaskSource(tables, list(arrays), "dask arrays")


def _array(name: str, value: Any) -> Any:
    """A column as a Dask array whose rows are in one piece each."""
    from dask import array as da  # noqa: PLC0415 - only for those who have imported it already

    array = value
    if isinstance(value, np.ndarray):
        array = da.from_array(value, chunks=-1)  # type: ignore[no-untyped-call]
    if not is_dask_array(array) or array.ndim not in (1, 2):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        msg = f"column {name!r} is {kind} with {np.ndim(value)} dimensions"
        raise DataError(
            msg,
            column=name,
            remedy="give Dask or NumPy arrays of one or two dimensions, the first over the rows",
        )
    check_futures(array, "dask array")
    if array.ndim == 2:
        if np.isnan(array.shape[1]):
            msg = f"column {name!r} has an unknown number of values a row"
            raise DataError(msg, column=name, remedy="call its compute_chunk_sizes() before")
        array = array.rechunk({1: -1})
    return array


def _lengths(arrays: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Rows of the chunks of each array; where they are not known, counted in one computation."""
    unknown = [name for name, array in arrays.items() if np.isnan(array.shape[0])]
    with counting("dask arrays"):
        found = lengths_of([list(arrays[name].to_delayed().ravel()) for name in unknown])
    counted = dict(zip(unknown, found, strict=True))
    return {
        name: tuple(int(rows) for rows in counted.get(name, array.chunks[0]))
        for name, array in arrays.items()
    }
