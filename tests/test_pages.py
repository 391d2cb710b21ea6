"""Sizes of Parquet pages, for the projection of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hl_dask._pages import page_sizes
from hl_dask.points import ModelPoints

ROWS = 300_000
RNG = np.random.default_rng(2)
TABLE = pa.table(
    {
        "x": RNG.random(ROWS),
        "k": RNG.integers(0, 100, ROWS),
        "s": RNG.choice(["a", "bb", "ccc"], ROWS),
    }
)


def sizes_of(path: Path, column: int) -> Any:
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(column)
    first = chunk.dictionary_page_offset
    return page_sizes(str(path), chunk.data_page_offset if first is None else first)


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("page_bytes", [64 << 10, 1 << 20, 8 << 20])
def test_plain_pages_are_as_large_as_the_writer_was_told(
    compression: str, version: str, page_bytes: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        TABLE,
        path,
        use_dictionary=False,
        compression=compression,
        data_page_version=version,
        data_page_size=page_bytes,
        row_group_size=ROWS,
        write_statistics=True,
        max_rows_per_page=10**9,
    )
    found = sizes_of(path, 0)
    expected = min(page_bytes, 8 * ROWS)
    assert found is not None
    assert found.dictionary == 0
    assert expected <= found.page <= expected + 64 * 1024


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_dictionaries_are_seen_before_the_data(version: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(TABLE, path, data_page_version=version)
    found = sizes_of(path, 1)
    assert found is not None
    assert found.dictionary == 8 * 100
    assert 0 < found.page < 8 * ROWS


def test_what_is_no_page_has_no_sizes(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1" + bytes(range(256)))
    assert page_sizes(str(path), 4) is None
    assert page_sizes(str(path), 10_000) is None
    assert page_sizes(str(tmp_path / "none"), 0) is None
    with path.open("wb") as file:
        file.write(RNG.bytes(5_000))
    for at in range(0, 5_000, 7):
        assert page_sizes(str(path), at) is None or at >= 0


def test_a_giant_page_is_counted_in_the_projection(tmp_path: Path) -> None:
    paths = []
    for page_bytes in (1 << 20, 64 << 20):
        paths.append(tmp_path / f"{page_bytes}.parquet")
        pq.write_table(
            pa.table({"x": RNG.random(4_000_000)}),
            paths[-1],
            use_dictionary=False,
            data_page_size=page_bytes,
            row_group_size=4_000_000,
            max_rows_per_page=10**9,
        )
    small, giant = (ModelPoints(path).read_bytes(["x"], 100_000) for path in paths)
    assert giant - small > 30e6
