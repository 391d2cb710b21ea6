"""Which rows pass a filter, as one bit a row.

::

    rows      0 ............................................. N
    segments  |  0  |  1  |  2  |     | 4  |      at most 65,536 rows; those without a row that
    bits      |0110.|     |10010|     |    |      passes are left out, and where all pass there
    edges     0     4     9    11     11   15     are no bits
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from hl_dask._columns import Array

SEGMENT_ROWS = 65_536
"""Rows whose bits are kept together."""


class Selection:
    """The rows that pass a filter, one bit each.

    Attributes
    ----------
    rows : int
        How many there are.
    """

    def __init__(self, starts: list[int], lengths: list[int], bits: list[bytes | None]) -> None:
        self._starts = np.array(starts, dtype=np.int64)
        self._lengths = np.array(lengths, dtype=np.int64)
        self._bits = bits
        counts = [
            length if packed is None else int(_unpacked(packed, length).sum())
            for length, packed in zip(lengths, bits, strict=True)
        ]
        self._edges = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.rows = int(self._edges[-1])

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        packed = sum(len(bits) for bits in self._bits if bits is not None)
        return packed + 24 * len(self._bits)

    def digest(self) -> bytes:
        """A digest of the rows that pass."""
        found = hashlib.sha256(self._starts.tobytes() + self._lengths.tobytes())
        for bits in self._bits:
            found.update(bits or b"all")
        return found.digest()

    def _mask(self, segment: int) -> Array:
        length, packed = int(self._lengths[segment]), self._bits[segment]
        return np.ones(length, dtype=bool) if packed is None else _unpacked(packed, length)

    def ranges(self, start: int, stop: int) -> Iterator[tuple[int, int, Array | None]]:
        """Where the selected rows start:stop are, by numbers of all rows.

        Yields
        ------
        (first, last, mask)
            Rows first:last, of which those pass where the mask is true (all without a mask).
        """
        segment = int(np.searchsorted(self._edges, start, side="right")) - 1
        while start < stop:
            low, high = int(self._edges[segment]), int(self._edges[segment + 1])
            end, first = min(stop, high), int(self._starts[segment])
            if self._bits[segment] is None:
                yield first + start - low, first + end - low, None
            else:
                mask = self._mask(segment)
                at = np.flatnonzero(mask)[[start - low, end - low - 1]]
                yield first + int(at[0]), first + int(at[1]) + 1, mask[at[0] : at[1] + 1]
            start = end
            segment += 1

    def mask(self, first: int, last: int) -> Array:
        """Which of the rows first:last, by numbers of all rows, are selected."""
        out = np.zeros(last - first, dtype=bool)
        segment = max(0, int(np.searchsorted(self._starts, first, side="right")) - 1)
        while segment < len(self._starts) and self._starts[segment] < last:
            start = int(self._starts[segment])
            low, high = max(first, start), min(last, start + int(self._lengths[segment]))
            if low < high:
                out[low - first : high - first] = self._mask(segment)[low - start : high - start]
            segment += 1
        return out

    def counts(self, rows: Array) -> Array:
        """How many rows are selected before each of these rows, by numbers of all rows."""
        out = np.zeros(len(rows), dtype=np.int64)
        for k, row in enumerate(rows):
            segment = int(np.searchsorted(self._starts, row, side="left"))
            out[k] = self._edges[segment]
            inside = int(row) - int(self._starts[segment - 1]) if segment else 0
            if segment and inside < self._lengths[segment - 1]:
                kept = self._mask(segment - 1)[:inside]
                out[k] = self._edges[segment - 1] + np.count_nonzero(kept)
        return out


def _unpacked(packed: bytes, length: int) -> Array:
    bits = np.frombuffer(packed, dtype=np.uint8)
    return np.unpackbits(bits, count=length).view(np.bool_)


class SelectionBuilder:
    """Puts a selection together from masks of consecutive rows."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._lengths: list[int] = []
        self._bits: list[bytes | None] = []
        self._begin = 0
        self._waiting: list[Array] = []
        self._rows = 0

    def add(self, at: int, mask: Array) -> None:
        """Add the mask of the rows from ``at`` on; rows between two masks are not selected."""
        if at != self._begin + self._rows or self._rows + len(mask) > SEGMENT_ROWS:
            self._close()
            self._begin = at
        self._waiting.append(mask)
        self._rows += len(mask)

    def _close(self) -> None:
        mask = np.concatenate([*self._waiting, np.zeros(0, dtype=bool)])
        chosen = int(np.count_nonzero(mask))
        if chosen:
            self._starts.append(self._begin)
            self._lengths.append(len(mask))
            whole = chosen == len(mask)
            self._bits.append(None if whole else np.packbits(mask).tobytes())
        self._waiting, self._rows = [], 0

    def done(self) -> Selection:
        """The selection."""
        self._close()
        return Selection(self._starts, self._lengths, self._bits)
