"""Where the states of chunks are between phases: in memory, or in files of a scratch directory.

Between two phases every chunk of the portfolio waits for the totals, with what it will still need.
In a file, values of one phase stand one after the other, rows along the first axis, so that a block
of a value is read in one piece::

    phase-0003-chunk-000007   | value 81 | value 85 | value 92 |
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hl_dask.errors import StorageError
from hl_dask.expr import Meta
from hl_dask.memory import size_text

Array = NDArray[Any]
SPARE_BYTES = 64 << 20
"""Room that is left on the disk."""


class MemoryShelf:
    """States in this process: values by chunk and node, arrays of their own."""

    in_memory = True

    def __init__(self) -> None:
        self._states: dict[int, dict[int, Array]] = {}
        self._keeps: tuple[int, ...] = ()
        self.nodes: tuple[int, ...] = ()

    def begin(self, makes: Sequence[int], keeps: Sequence[int], kinds: Mapping[int, Meta]) -> None:
        """Say what the next phase makes, and what of the states it keeps."""
        del kinds
        self._keeps, self.nodes = tuple(keeps), (*keeps, *makes)

    def rows(self, chunk: int, node: int, kind: Meta, first: int, last: int, total: int) -> Array:
        """Rows first:last of a value, of a chunk of ``total`` rows."""
        del total
        return self._states[chunk][node][(*[slice(None)] * kind.axis, slice(first, last))]

    def put(self, chunk: int, made: Mapping[int, Array], kinds: Mapping[int, Meta]) -> None:
        """Add what was made of a chunk to what it keeps of its state; the rest is let go."""
        del kinds
        before = self._states.pop(chunk, {})
        self._states[chunk] = {node: before[node] for node in self._keeps} | dict(made)

    def finish(self) -> None:
        """Say that the phase is over."""

    def close(self) -> None:
        """Let go of everything."""
        self._states.clear()
        self.nodes = ()


class _Place(NamedTuple):
    serial: int
    before: int
    """Bytes of a row of all values before it in the file."""


class FileShelf:
    """States in files that several processes may see.

    Parameters
    ----------
    parent : str or Path, optional
        Directory in which the scratch directory is made; that for temporary files by default.
    needed_bytes : int
        What the states may take, for a check that there is room.

    Raises
    ------
    StorageError
        When there is no room, or the directory cannot be written.
    """

    in_memory = False

    def __init__(self, parent: str | Path | None, needed_bytes: int) -> None:
        try:
            self.folder = tempfile.mkdtemp(prefix="hl-dask-states-", dir=parent)
            free = shutil.disk_usage(self.folder).free
        except OSError as error:
            msg = f"no scratch directory can be made: {error}"
            raise StorageError(
                msg, file=str(parent or tempfile.gettempdir()), remedy="give another one: scratch="
            ) from error
        # Also when the program is interrupted, or ends without closing.
        self._remove: Any = weakref.finalize(self, _remove_folder, self.folder)
        self._places: dict[int, _Place] = {}
        self._next: dict[int, _Place] = {}
        self._serial = 0
        if needed_bytes + SPARE_BYTES > free:
            self.close()
            msg = (
                f"the states between phases may take {size_text(needed_bytes)} of disk, and "
                f"{size_text(free)} are free"
            )
            raise StorageError(
                msg,
                file=self.folder,
                remedy="free some, name a larger disk with scratch=, or allow more memory",
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_remove": None}

    @property
    def nodes(self) -> tuple[int, ...]:
        """Nodes of the values that are there."""
        return tuple(self._places)

    def begin(self, makes: Sequence[int], keeps: Sequence[int], kinds: Mapping[int, Meta]) -> None:
        """Say what the next phase makes, and what of the states it keeps."""
        self._serial += 1
        self._next = {node: self._places[node] for node in keeps}
        before = 0
        for node in makes:
            self._next[node] = _Place(self._serial, before)
            before += row_bytes(kinds[node])

    def finish(self) -> None:
        """Say that the phase is over; files of which nothing is needed any more are removed."""
        self._places = self._next
        used = {place.serial for place in self._places.values()}
        for path in Path(self.folder).iterdir():
            with contextlib.suppress(OSError, ValueError):
                if int(path.name.split("-")[1]) not in used:
                    path.unlink()

    def _path(self, serial: int, chunk: int) -> str:
        return os.path.join(self.folder, f"phase-{serial:05d}-chunk-{chunk:07d}")

    def rows(self, chunk: int, node: int, kind: Meta, first: int, last: int, total: int) -> Array:
        """Rows first:last of a chunk of ``total`` rows, of a value."""
        place = self._places[node]
        each = row_bytes(kind)
        out = np.empty((last - first, *kind.shape), dtype=kind.dtype)
        path = self._path(place.serial, chunk)
        try:
            with open(path, "rb", buffering=0) as file:
                file.seek(place.before * total + first * each)
                read = file.readinto(_bytes_of(out))
        except OSError as error:
            msg = f"the state of a chunk cannot be read: {error}"
            raise StorageError(msg, file=path, remedy=_SEEN) from error
        if read != out.nbytes:
            msg = f"the state of a chunk has {read:,} bytes of a value of {out.nbytes:,}"
            raise StorageError(msg, file=path, remedy="run again: the scratch file is damaged")
        return np.moveaxis(out, 0, kind.axis) if kind.axis else out

    def put(self, chunk: int, made: Mapping[int, Array], kinds: Mapping[int, Meta]) -> None:
        """Write what was made of a chunk."""
        if not made:
            return
        path = self._path(self._serial, chunk)
        # Another worker may be doing the same, after one was given up.
        partial = f"{path}.{os.getpid()}.{threading.get_ident()}"
        try:
            with open(partial, "wb", buffering=0) as file:
                for node, value in made.items():
                    whole = np.ascontiguousarray(np.moveaxis(value, kinds[node].axis, 0))
                    left = _bytes_of(whole)
                    while left.nbytes:
                        left = left[file.write(left) :]
            os.replace(partial, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            msg = f"the state of a chunk cannot be written: {error}"
            raise StorageError(
                msg, file=path, remedy="free some room, or name a larger disk with scratch="
            ) from error

    def close(self) -> None:
        """Remove the scratch directory."""
        if self._remove is not None:
            self._remove()


_SEEN = "all workers have to see the scratch directory under the same path: scratch="


def _remove_folder(folder: str) -> None:
    """Remove a folder into which threads may still write that nobody waits for any more."""
    for _ in range(_TRIALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(_PAUSE_S)


_TRIALS, _PAUSE_S = 100, 0.05


def _bytes_of(array: Array) -> memoryview:
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat)


Shelf = MemoryShelf | FileShelf


def row_bytes(kind: Meta) -> int:
    """Bytes of one row of a value."""
    return int(np.dtype(kind.dtype).itemsize * np.prod(kind.shape, dtype=np.int64))
