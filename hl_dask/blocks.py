"""Rows, blocks and chunks: the only arithmetic that decides which rows meet in a sum.

::

    rows    0 ............................................................. rows blocks  |  0  |  1
    |  2  |  3  |  4  |  5  |  6  |  7  |  8  |  9  |10|    block_rows each, the last chunks  |
    0        |        1        |        2        |    3   |    chunk_blocks each

A block is the unit of summation and a constant of the plan, a chunk the unit of reading and
scheduling. A chunk is a whole number of blocks, hence results do not depend on the chunk size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

BLOCK_ROWS = 131_072
"""Default rows of a block.

Smaller blocks stay nearer to a processor, but NumPy hands the interpreter's lock over at every
operation. Where an operation is done sooner than a thread that waits for the lock wakes up, some 50
microseconds on virtual machines, the threads take turns instead of running at once.
"""
CHUNK_BLOCKS = 1
"""Blocks of a chunk by default: some 130,000 rows, half a second."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a number of rows is cut.

    Parameters
    ----------
    rows : int
        Rows in all, at least 1.
    block_rows : int
        Rows of a block; the last block may have fewer.
    chunk_blocks : int
        Blocks of a chunk; the last chunk may have fewer.
    """

    rows: int
    block_rows: int = BLOCK_ROWS
    chunk_blocks: int = CHUNK_BLOCKS

    def __post_init__(self) -> None:
        for name in ("rows", "block_rows", "chunk_blocks"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                msg = f"{name} must be a whole number of at least 1, got {value!r}"
                raise ValueError(msg)

    @property
    def n_blocks(self) -> int:
        """Blocks in all."""
        return -(-self.rows // self.block_rows)

    @property
    def n_chunks(self) -> int:
        """Chunks in all."""
        return -(-self.n_blocks // self.chunk_blocks)

    @property
    def chunk_rows(self) -> int:
        """Rows of the largest chunk."""
        return min(self.rows, self.block_rows * self.chunk_blocks)

    def block(self, index: int) -> tuple[int, int]:
        """First row of the block and the row after its last."""
        start = index * self.block_rows
        return start, min(start + self.block_rows, self.rows)

    def blocks_of(self, chunk: int) -> range:
        """Indices of the blocks of a chunk."""
        first = chunk * self.chunk_blocks
        return range(first, min(first + self.chunk_blocks, self.n_blocks))

    def chunk(self, chunk: int) -> tuple[int, int]:
        """First row of the chunk and the row after its last."""
        blocks = self.blocks_of(chunk)
        return self.block(blocks[0])[0], self.block(blocks[-1])[1]

    def __iter__(self) -> Iterator[range]:
        return (self.blocks_of(chunk) for chunk in range(self.n_chunks))
