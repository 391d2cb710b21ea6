"""Partitions of Dask collections: computed one by one, in the thread that asks.

A chunk of a projection is a task itself. Whatever it needs of a collection is computed within it,
by dask's synchronous scheduler, so that no pool of threads runs inside another and a worker of a
cluster can do it as well. Only the tasks that a partition depends on are run.
"""

from __future__ import annotations

import abc
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import psutil
import pyarrow as pa

from hl_dask._columns import Array
from hl_dask._dask_compat import as_tasks, lengths_of, needed, partitions_stay, run_here
from hl_dask._kinds import to_arrow
from hl_dask.errors import DataError, HlDaskError

WRITE_FIRST = "write it to Parquet files (frame.to_parquet('folder')) and give their path"
_FEW_PARTITIONS = 8
_LOOKED_AT = 16
_SAMPLED_S = 0.002

Columns = dict[str, "pa.Array | DataError"]
"""Columns of a partition; an error where one is of no type that Arrow knows."""


class Partitions(abc.ABC):
    """Columns in partitions that can be computed.

    Parameters
    ----------
    kinds : mapping of str to DataType
        Types of the columns; of type null where only the values can tell.
    edges : ndarray
        First row of each partition, and the number of rows at the end.
    what : str
        What it is, in words.
    """

    def __init__(self, kinds: Mapping[str, pa.DataType], edges: Array, what: str) -> None:
        self.kinds = dict(kinds)
        self.edges = edges
        self.what = what
        self._graphs: dict[tuple[str, ...], tuple[dict[Any, Any], list[list[Any]]]] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_graphs": {}, "_lock": None}
        # Graphs hold lambdas and functions of scripts, which plain pickle does not take.
        state["collection"] = cloudpickle.dumps(state["collection"])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.collection = cloudpickle.loads(state["collection"])
        self._lock = threading.Lock()

    collection: Any

    @abc.abstractmethod
    def _lowered(self, names: tuple[str, ...]) -> tuple[dict[Any, Any], list[list[Any]]]:
        """Tasks, and for each partition the keys of what it is made of."""

    @abc.abstractmethod
    def _columns(self, names: tuple[str, ...], values: list[Any]) -> tuple[int, dict[str, Any]]:
        """Rows and columns of a partition from the values of its keys."""

    def place(self, partition: int) -> str:
        """Where a partition is, for messages."""
        return f"partition {partition} of the {self.what}"

    def tasks(self, names: tuple[str, ...]) -> tuple[dict[Any, Any], list[list[Any]]]:
        """The tasks of some columns, and the keys of each partition."""
        with self._lock:
            if names not in self._graphs:
                self._graphs[names] = self._lowered(names)
            return self._graphs[names]

    def compute(self, partition: int, names: tuple[str, ...]) -> Columns:
        """Compute some columns of a partition.

        Raises
        ------
        DataError
            When computing fails, or gives another number of rows than there were.
        """
        tasks, keys = self.tasks(names)
        try:
            values = [run_here(needed(tasks, key), key) for key in keys[partition]]
            rows, columns = self._columns(names, values)
        except HlDaskError:
            raise
        except Exception as error:
            msg = f"a partition cannot be computed: {type(error).__name__}: {error}"
            raise DataError(
                msg, file=self.place(partition), remedy="check that collection.compute() works"
            ) from error
        expected = int(self.edges[partition + 1] - self.edges[partition])
        if rows != expected:
            msg = f"a partition has {rows:,} rows, and had {expected:,} when they were counted"
            raise DataError(
                msg,
                file=self.place(partition),
                remedy="let it give the same rows each time, or " + WRITE_FIRST,
            )
        return {name: _as_arrow(name, column) for name, column in columns.items()}

    def bytes_of(self, names: tuple[str, ...]) -> int:
        """About what computing the largest partition holds, measured on it."""
        largest = int(np.argmax(np.diff(self.edges)))
        with _growth() as growth:
            columns = self.compute(largest, names)
        held = sum(int(each.nbytes) for each in columns.values() if isinstance(each, pa.Array))
        # Pandas and Arrow both hold it for a while, and one makes the other from a third.
        return max(growth[0] * 5 // 4, 3 * held) + held


def _as_arrow(name: str, column: Any) -> pa.Array | DataError:
    try:
        return to_arrow(name, column)
    except DataError as error:
        return error


def _kind_of(name: str, empty: Any) -> pa.DataType:
    """The type of a column without rows; null where only its values can tell."""
    # Objects can be anything, and dask does not always know the categories.
    if empty.dtype == object or isinstance(empty.dtype, pd.CategoricalDtype):
        return pa.null()
    found = _as_arrow(name, empty)
    return pa.null() if isinstance(found, DataError) else found.type


@contextlib.contextmanager
def _growth() -> Iterator[list[int]]:
    """Measure by how much the resident memory of this process grows meanwhile."""
    process = psutil.Process()
    before, found, done = process.memory_info().rss, [0], threading.Event()

    def watch() -> None:
        while True:
            found[0] = max(found[0], process.memory_info().rss - before)
            if done.wait(_SAMPLED_S):
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()


def edges_of(lengths: Sequence[int]) -> Array:
    """First row of each partition, and the number of rows at the end."""
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]).astype(np.int64)


# --- DataFrames ----------------------------------------------------------------------------------


class FramePartitions(Partitions):
    """A Dask DataFrame."""

    def __init__(self, frame: Any) -> None:
        meta = frame._meta
        what = "dask DataFrame"
        kinds = {name: _kind_of(name, meta[name]) for name in meta.columns}
        self.collection = frame
        super().__init__(kinds, edges_of([0] * frame.npartitions), what)
        check_futures(frame, what)
        self.edges = edges_of(self._lengths(_cheapest(meta)))

    def _lengths(self, name: str) -> list[int]:
        """Rows of each partition, all in one computation."""
        check_independent(*self.tasks((name,)), self.what)
        with counting(self.what), partitions_stay():
            counts = self.collection[[name]].map_partitions(
                _length, meta=pd.Series([0]), enforce_metadata=False
            )
            found = [int(count) for count in counts.compute()]
            if len(found) != self.collection.npartitions:
                # A dask that puts partitions together all the same.
                parts = self.collection.to_delayed(optimize_graph=False)
                (found,) = lengths_of([parts])
        return found

    def _lowered(self, names: tuple[str, ...]) -> tuple[dict[Any, Any], list[list[Any]]]:
        frame = self.collection[list(names)]
        with partitions_stay():
            for each in (frame.optimize(), frame):
                keys = each.__dask_keys__()
                if len(keys) == self.collection.npartitions:
                    return as_tasks(each), [[key] for key in keys]
        msg = f"dask cuts the frame into {len(keys)} partitions where it has {frame.npartitions}"
        raise DataError(msg, remedy=WRITE_FIRST)

    def _columns(self, names: tuple[str, ...], values: list[Any]) -> tuple[int, dict[str, Any]]:
        (frame,) = values
        return len(frame), {name: frame[name] for name in names}


def _length(frame: pd.DataFrame) -> pd.Series[int]:
    return pd.Series([len(frame)])


def _cheapest(meta: pd.DataFrame) -> str:
    """The column that takes least to read."""
    sizes = {
        name: getattr(meta[name].dtype, "itemsize", 64) if meta[name].dtype.kind in "biuf" else 64
        for name in meta.columns
    }
    return min(sizes, key=lambda name: sizes[name])


# --- arrays --------------------------------------------------------------------------------------


class ArrayPartitions(Partitions):
    """Dask arrays whose rows are cut in the same way."""

    def __init__(self, arrays: Mapping[str, Any], lengths: Sequence[int]) -> None:
        self.collection = dict(arrays)
        kinds = {
            name: _kind_of(name, np.empty((0, *array.shape[1:]), dtype=array.dtype))
            for name, array in arrays.items()
        }
        super().__init__(kinds, edges_of(lengths), "dask arrays")

    def _lowered(self, names: tuple[str, ...]) -> tuple[dict[Any, Any], list[list[Any]]]:
        tasks: dict[Any, Any] = {}
        keys: list[list[Any]] = [[] for _ in range(len(self.edges) - 1)]
        for name in names:
            array = self.collection[name]
            tasks |= as_tasks(array)
            rest = (0,) * (array.ndim - 1)
            for partition, of_partition in enumerate(keys):
                of_partition.append((array.name, partition, *rest))
        return tasks, keys

    def _columns(self, names: tuple[str, ...], values: list[Any]) -> tuple[int, dict[str, Any]]:
        rows = {len(value) for value in values}
        return max(rows), dict(zip(names, values, strict=True))


# --- checks --------------------------------------------------------------------------------------


def check_futures(collection: Any, what: str) -> None:
    """Refuse what lives on the workers of a cluster.

    Raises
    ------
    DataError
    """
    distributed = sys.modules.get("distributed")
    if distributed is not None and distributed.futures_of(collection):
        msg = f"the {what} is persisted on a cluster, and its partitions are out of reach of tasks"
        raise DataError(
            msg, remedy=f"give the collection as it was before persist(), or {WRITE_FIRST}"
        )


def check_independent(tasks: dict[Any, Any], keys: list[list[Any]], what: str) -> None:
    """Refuse a collection whose partitions each depend on most of the others.

    To compute them one by one would take the whole work, and all the memory, for each.

    Raises
    ------
    DataError
    """
    if len(keys) < _FEW_PARTITIONS:
        return
    some = np.unique(np.linspace(0, len(keys) - 1, _LOOKED_AT).astype(int))
    roots = _roots(tasks)
    mean = float(np.mean([_roots(needed(tasks, key)) for at in some for key in keys[at]]))
    if mean > roots / 4:
        msg = (
            f"a partition of the {what} is made from {mean:,.0f} of its {roots:,} pieces, as after "
            "a shuffle, a sort or a running total; partitions cannot be computed one by one"
        )
        raise DataError(msg, remedy=WRITE_FIRST)


def _roots(tasks: dict[Any, Any]) -> int:
    return sum(not task.dependencies for task in tasks.values())


@contextlib.contextmanager
def counting(what: str) -> Iterator[None]:
    """Turn whatever fails while rows are counted into a DataError."""
    try:
        yield
    except HlDaskError:
        raise
    except Exception as error:
        msg = f"the rows of the {what} cannot be counted: {type(error).__name__}: {error}"
        raise DataError(msg, remedy="check that collection.compute() works") from error


# --- a partition for several chunks --------------------------------------------------------------


class _Entry:
    def __init__(self, rows: int) -> None:
        self.ready = threading.Event()
        self.columns: Columns | None = None
        self.left = rows


class PartitionCache:
    """Partitions that have been computed, for the chunks that lie in them.

    A partition is computed by one thread, for which others wait, and dropped when all of its rows
    have been handed out. There are never more than reads that ran at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[Any, _Entry] = {}
        self._active = 0
        self._most = 1

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """One read more while this lasts."""
        with self._lock:
            self._active += 1
            self._most = max(self._most, self._active)
        try:
            yield
        finally:
            with self._lock:
                self._active -= 1

    def get(self, key: Any, rows: int, compute: Callable[[], Columns]) -> Columns:
        """The columns of a partition of so many rows."""
        while True:
            with self._lock:
                entry = self._entries.get(key)
                mine = entry is None
                if entry is None:
                    self._make_room()
                    entry = self._entries[key] = _Entry(rows)
            if mine:
                try:
                    entry.columns = compute()
                except BaseException:
                    with self._lock:
                        self._entries.pop(key, None)
                    raise
                finally:
                    entry.ready.set()
            entry.ready.wait()
            if entry.columns is not None:
                return entry.columns

    def _make_room(self) -> None:
        done = [key for key, entry in self._entries.items() if entry.ready.is_set()]
        for key in done[: max(0, len(self._entries) + 1 - self._most)]:
            del self._entries[key]

    def handed_out(self, key: Any, rows: int) -> None:
        """Say that rows of a partition have been used."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                entry.left -= rows
                if entry.left <= 0:
                    del self._entries[key]

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._entries.clear()
            self._most = max(1, self._active)
