"""Streams of record batches that stopped within a row group, kept for the next read.

Parquet cannot be entered in the middle of a row group. A read that begins there carries on a stream
that an earlier read has left, or decodes what lies before. In a group of many chunks each thread
decodes the group about once, however many chunks there are.
"""

from __future__ import annotations

import threading
from typing import Any

Key = tuple[int, tuple[str, ...]]
"""A file by its number, and the columns that are read."""


class Stream:
    """Rows of one file from a position on, decoded batch by batch."""

    def __init__(self, key: Key, position: int, batches: Any) -> None:
        self.key = key
        self.position = position  # the row that comes next, by numbers of all rows
        self._batches = batches
        self._rest: Any = None

    def next(self, most: int) -> tuple[int, Any]:
        """Return (row, at most ``most`` rows)."""
        batch = self._rest if self._rest is not None else next(self._batches)
        self._rest = batch.slice(most) if batch.num_rows > most else None
        batch = batch.slice(0, most)
        start = self.position
        self.position += batch.num_rows
        return start, batch


class StreamPool:
    """Streams that stopped within a row group, for the next read to carry on.

    There are never more streams, in use and kept, than reads that ran at once: keeping them needs
    no more memory than the reads did.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[Stream] = []
        self._active = 0
        self._most = 0

    def acquire(self, key: Key, low: int, high: int) -> Stream | None:
        """Return the kept stream that is nearest below ``high``, if it is not below ``low``."""
        with self._lock:
            self._active += 1
            self._most = max(self._most, self._active)
            fit = [s for s in self._kept if s.key == key and low <= s.position <= high]
            best = max(fit, key=lambda stream: stream.position, default=None)
            if best is not None:
                self._kept.remove(best)
            del self._kept[: max(0, len(self._kept) + self._active - self._most)]
            return best

    def release(self, stream: Stream | None) -> None:
        """Say that a stream is no longer in use; keep it, if it is given."""
        with self._lock:
            self._active -= 1
            if stream is not None:
                self._kept.append(stream)

    def clear(self) -> None:
        """Close the kept streams."""
        with self._lock:
            self._kept.clear()
            self._most = self._active
