"""Rows, blocks and chunks against enumeration of the rows."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hl_dask.blocks import BLOCK_ROWS, Blocks

cuts = st.builds(
    Blocks,
    rows=st.integers(1, 400),
    block_rows=st.integers(1, 60),
    chunk_blocks=st.integers(1, 12),
)
quick = settings(max_examples=150, deadline=None)


def rows_of_block(cut: Blocks, block: int) -> list[int]:
    return [row for row in range(cut.rows) if row // cut.block_rows == block]


@quick
@given(cuts)
def test_each_block_holds_the_rows_whose_quotient_it_is(cut: Blocks) -> None:
    quotients = {row // cut.block_rows for row in range(cut.rows)}
    assert cut.n_blocks == len(quotients)
    for block in range(cut.n_blocks):
        assert list(range(*cut.block(block))) == rows_of_block(cut, block)


@quick
@given(cuts)
def test_blocks_are_full_but_the_last(cut: Blocks) -> None:
    sizes = [stop - start for start, stop in map(cut.block, range(cut.n_blocks))]
    assert set(sizes[:-1]) <= {cut.block_rows}
    assert 1 <= sizes[-1] <= cut.block_rows
    assert sum(sizes) == cut.rows


@quick
@given(cuts)
def test_chunks_are_whole_blocks_in_order_and_cover_everything_once(cut: Blocks) -> None:
    chunks = list(cut)
    assert len(chunks) == cut.n_chunks
    assert [block for chunk in chunks for block in chunk] == list(range(cut.n_blocks))
    assert all(len(chunk) == cut.chunk_blocks for chunk in chunks[:-1])
    assert 1 <= len(chunks[-1]) <= cut.chunk_blocks


@quick
@given(cuts)
def test_the_rows_of_a_chunk_are_those_of_its_blocks(cut: Blocks) -> None:
    largest = 0
    for number, blocks in enumerate(cut):
        assert cut.blocks_of(number) == blocks
        rows = [row for block in blocks for row in rows_of_block(cut, block)]
        assert list(range(*cut.chunk(number))) == rows
        largest = max(largest, len(rows))
    assert cut.chunk_rows == largest


@quick
@given(cuts, st.integers(1, 12))
def test_blocks_do_not_depend_on_the_chunk_size(cut: Blocks, chunk_blocks: int) -> None:
    other = dataclasses.replace(cut, chunk_blocks=chunk_blocks)
    assert list(map(other.block, range(other.n_blocks))) == list(
        map(cut.block, range(cut.n_blocks))
    )


@pytest.mark.parametrize("name", ["rows", "block_rows", "chunk_blocks"])
@pytest.mark.parametrize("value", [0, -1, 1.0, "4", None, True])
def test_counts_are_whole_numbers_of_at_least_one(name: str, value: object) -> None:
    arguments = {"rows": 5, "block_rows": 2, "chunk_blocks": 1, name: value}
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1"):
        Blocks(**arguments)


def test_defaults_and_immutability() -> None:
    cut = Blocks(3 * BLOCK_ROWS + 1, chunk_blocks=4)
    assert (cut.block_rows, cut.n_blocks, cut.n_chunks) == (BLOCK_ROWS, 4, 1)
    assert cut == Blocks(3 * BLOCK_ROWS + 1, BLOCK_ROWS, 4)
    assert len({cut, Blocks(3 * BLOCK_ROWS + 1, chunk_blocks=4)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        cut.rows = 4
