"""Dask collections as model points: aligned to blocks, counted once, computed piece by piece."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import hl_dask as hl
from hl_dask.errors import DataError, MissingColumnError
from hl_dask.points import ModelPoints

ROWS = 2_000


class Lives(hl.Model):
    """Reads one column of numbers and one of text."""

    def value(self, t):
        return self.data["x"] * np.where(self.data["sex"] == "F", 2.0, 1.0) * (t + 1)


def frame(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {"x": rng.random(rows), "sex": rng.choice(["F", "M"], rows), "n": np.arange(rows)}
    )


def cut(data: pd.DataFrame, *edges: int) -> Any:
    parts = [data.iloc[a:b] for a, b in zip((0, *edges), (*edges, len(data)), strict=True)]
    return dd.from_delayed([dask.delayed(lambda part: part)(part) for part in parts])


def bits(data: Any, **options: Any) -> bytes:
    result = Lives(data=data).ExecuteActions(proj_len=2, block_rows=64, **options)
    return bytes(result.df_agg["value"].to_numpy().tobytes())


@pytest.mark.parametrize(
    "edges",
    [
        (),
        (1,),
        (64, 128),
        (63, 65, 66),
        (0, 0, 500, 500, 1_999),
        (2_000,),
        tuple(range(0, 2_000, 37)),
    ],
    ids=str,
)
def test_partitions_of_any_length(edges: tuple[int, ...]) -> None:
    points = ModelPoints(cut(frame(), *edges))
    assert points.rows == ROWS
    expected = bits(frame())
    for chunk_blocks in (1, 5, 40):
        assert bits(points, chunk_blocks=chunk_blocks) == expected
    assert bits(pickle.loads(pickle.dumps(points)), scheduler="synchronous") == expected
    whole = Lives(data=points)
    whole.RunModel(2)
    by_hand = frame().x * np.where(frame().sex == "F", 2.0, 1.0)
    np.testing.assert_allclose(
        whole.df_agg["value"], [by_hand.sum() * k for k in (1, 2, 3)], rtol=1e-13
    )


def test_a_partition_is_computed_once_a_run_and_only_with_the_columns_that_are_read() -> None:
    seen: Counter[tuple[int, tuple[str, ...]]] = Counter()
    data = frame()

    def make(k: int, columns: Any = None) -> pd.DataFrame:
        part = data.iloc[k * 500 : (k + 1) * 500]
        part = part if columns is None else part[list(columns)]
        seen[k, tuple(part.columns)] += 1
        return part

    collection = dd.from_map(make, range(4), meta=data.iloc[:0])
    points = ModelPoints(collection)
    counted = dict(seen)
    assert sum(counted.values()) <= 5  # once each, and perhaps one for the schema
    assert points.rows == ROWS
    points.schema("sex")
    points.read_bytes(["x", "sex"], 64)
    seen.clear()
    for start in range(0, ROWS, 64):
        points.read(start, min(ROWS, start + 64), ["x", "sex"])
    assert {k: n for (k, _), n in seen.items()} == {0: 1, 1: 1, 2: 1, 3: 1}
    assert all("n" not in columns for _, columns in seen)


def test_what_cannot_be_read_piece_by_piece() -> None:
    data = dd.from_pandas(frame(), npartitions=16)
    with pytest.raises(DataError, match="partitions cannot be computed one by one") as caught:
        ModelPoints(data.assign(total=data.x.cumsum())[["total", "sex"]])
    assert "to_parquet" in str(caught.value.remedy)
    with pytest.raises(DataError, match="partitions cannot be computed one by one"):
        ModelPoints(data.shuffle("sex"))


def test_partitions_that_do_not_go_together() -> None:
    data = frame()
    parts = [data.iloc[:500], data.iloc[500:1_000].astype({"x": str}), data.iloc[1_000:]]
    collection = dd.from_delayed(
        [dask.delayed(lambda part: part)(p) for p in parts], meta=data.iloc[:0], verify_meta=False
    )
    points = ModelPoints(collection)
    assert points.values("n").tolist() == list(range(ROWS))
    with pytest.raises(
        DataError, match=r"column 'x' is of type .*string here, and of double"
    ) as caught:
        points.values("x")
    assert caught.value.column == "x"
    assert "partition 1 of the dask DataFrame" in str(caught.value.file)


def test_a_partition_that_changes_is_refused() -> None:
    lengths = iter([10, 10, 10, 20, 20, 20, 20, 20, 20, 20, 20, 20])

    def make(k: int) -> pd.DataFrame:
        return frame(next(lengths))

    points = ModelPoints(dd.from_map(make, [0], meta=frame(0)))
    with pytest.raises(DataError, match="a partition has 20 rows, and had 10"):
        [points.read(0, points.rows, ["x"]) for _ in range(3)]


def test_a_partition_that_fails_says_which() -> None:
    def make(k: int) -> pd.DataFrame:
        if k == 2 and failing:
            msg = "the disk is gone"
            raise OSError(msg)
        return frame(100)

    failing: list[int] = []
    points = ModelPoints(dd.from_map(make, range(3), meta=frame(0)))
    failing.append(1)
    with pytest.raises(DataError, match="OSError: the disk is gone") as caught:
        points.read(150, 300, ["x"])
    assert caught.value.file == "partition 2 of the dask DataFrame"
    with pytest.raises(DataError, match="cannot be counted: OSError"):
        ModelPoints(dd.from_map(make, range(3), meta=frame(0)))


def test_nulls_say_where_they_are() -> None:
    data = frame()
    data.loc[700, "sex"] = None
    points = ModelPoints(cut(data, 500, 1_000))
    assert points.values("x").tolist() == data.x.tolist()
    with pytest.raises(DataError, match="'sex' has a null, first in row 700") as caught:
        points.values("sex")
    assert caught.value.file == "partition 1 of the dask DataFrame"


def test_arrays_of_several_kinds() -> None:
    data = frame()
    table = np.random.default_rng(1).random((ROWS, 3))
    x = da.from_array(data.x.to_numpy(), chunks=300)
    kept = x[x > 0.5]  # of unknown length
    points = ModelPoints(
        {"x": kept, "n": da.from_array(data.n.to_numpy()[data.x > 0.5], chunks=411)}
    )
    assert points.rows == int((data.x > 0.5).sum())
    assert points.values("x").tolist() == data.x[data.x > 0.5].tolist()
    assert points.values("n").tolist() == data.n[data.x > 0.5].tolist()
    points = ModelPoints(
        {"x": x, "table": da.from_array(table, chunks=(700, 2)), "n": data.n.to_numpy()}
    )
    np.testing.assert_array_equal(points.values("table"), table)
    assert points.values("n").tolist() == data.n.tolist()
    with pytest.raises(MissingColumnError, match="no column 'y'"):
        points.values("y")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": da.ones(10, chunks=5), "y": da.ones(11, chunks=5)}, "differ in length"),
        ({"x": da.ones((2, 2, 2), chunks=1)}, "3 dimensions"),
        ({"x": da.ones(4, chunks=2), "y": [1, 2, 3, 4]}, "'y' is builtins.list"),
        ({"x": da.ones(0, chunks=1)}, "no rows"),
        ({3: da.ones(4, chunks=2)}, "expected a string"),
        ({"x": da.ones(4, chunks=2).astype(complex)}, "'x' is of type complex128"),
    ],
    ids=["lengths", "dimensions", "list", "empty", "name", "complex"],
)
def test_arrays_that_are_refused(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        ModelPoints(data).values("x")
    assert caught.value.remedy


@pytest.mark.cluster
def test_on_a_cluster() -> None:
    distributed = pytest.importorskip("distributed")
    expected = bits(frame())
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        collection = cut(frame(), 100, 900, 1_100)
        assert bits(collection, chunk_blocks=2) == expected
        arrays = {
            "x": da.from_array(frame().x.to_numpy(), chunks=300),
            "sex": frame().sex.to_numpy(object),
        }
        assert bits(arrays, chunk_blocks=2) == expected
        with pytest.raises(DataError, match="persisted on a cluster"):
            ModelPoints(client.persist(collection))
