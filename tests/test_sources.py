"""The same rows from every kind of source: the same columns, and the same bits."""

from __future__ import annotations

import gc
import gzip
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import hl_dask as hl
from hl_dask.errors import DataError, MissingColumnError, ModelError
from hl_dask.points import ModelPoints

ROWS = 3_000


def portfolio(rows: int = ROWS, seed: int = 5) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    fund = np.sort(rng.choice(["bonds", "mixed", "shares"], rows))
    return pd.DataFrame(
        {
            "age": rng.integers(20, 80, rows),
            "premium": np.round(rng.uniform(10, 500, rows), 2),
            "smoker": rng.random(rows) < 0.3,
            "sex": rng.choice(["F", "M"], rows),
            "issued": (np.datetime64("2001-01-01") + rng.integers(0, 8_000, rows)).astype(
                "datetime64[D]"
            ),
            "fund": fund,
        }
    )


FRAME = portfolio()
TABLE = pa.Table.from_pandas(FRAME.astype({"issued": "datetime64[s]"}), preserve_index=False)
TABLE = TABLE.set_column(4, "issued", TABLE["issued"].cast(pa.date32()))


class Exported:
    """An object of some other library that exports an Arrow stream."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return TABLE.__arrow_c_stream__(requested_schema)


class ExportedBatch:
    """An object of some other library that exports one batch."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return TABLE.combine_chunks().to_batches()[0].__arrow_c_array__(requested_schema)


def pieces(size: int) -> pa.Table:
    """Return the table in many chunks."""
    return pa.concat_tables([TABLE.slice(k, size) for k in range(0, ROWS, size)])


def parquet(folder: Path) -> Path:
    pq.write_table(TABLE, folder / "a.parquet", row_group_size=700)
    return folder / "a.parquet"


def hive(folder: Path) -> Path:
    pq.write_to_dataset(TABLE, folder / "hive", partition_cols=["fund"])
    return folder / "hive"


def csv(folder: Path) -> Path:
    pacsv.write_csv(TABLE, folder / "a.csv")
    return folder / "a.csv"


def csv_parts(folder: Path) -> str:
    for k in range(3):
        text = TABLE.slice(k * 1_000, 1_000).to_pandas().to_csv(index=False)
        with gzip.open(folder / f"part-{k}.csv.gz", "wt") as file:
            file.write(text)
    return str(folder / "part-*.csv.gz")


def polars(folder: Path) -> Any:
    return pytest.importorskip("polars").from_arrow(TABLE)


def duckdb(folder: Path) -> Any:
    return pytest.importorskip("duckdb").from_arrow(TABLE)


def dask_frame(folder: Path) -> Any:
    return dd.from_pandas(FRAME, npartitions=7, sort=False)


def dask_parquet(folder: Path) -> Any:
    for k in range(4):
        pq.write_table(TABLE.slice(k * 750, 750), folder / f"{k}.parquet", row_group_size=200)
    return dd.read_parquet(folder)


def dask_arrays(folder: Path) -> Any:
    text = {name: FRAME[name].to_numpy(dtype=object) for name in ("sex", "fund")}
    return {
        name: da.from_array(
            text[name] if name in text else FRAME[name].to_numpy(),
            chunks=((k + 3) * 137 if k % 2 else 700),
        )
        for k, name in enumerate(FRAME.columns)
    }


def split(folder: Path) -> Path:
    """Files of three writers: types, order of columns and units differ."""
    narrow = TABLE.slice(0, 1_000)
    narrow = narrow.set_column(0, "age", narrow["age"].cast(pa.int16()))
    narrow = narrow.set_column(3, "sex", narrow["sex"].dictionary_encode())
    moments = TABLE.slice(1_000, 1_000)
    moments = moments.set_column(4, "issued", moments["issued"].cast(pa.timestamp("ms")))
    turned = TABLE.slice(2_000).select(TABLE.column_names[::-1])
    turned = turned.set_column(0, "fund", turned["fund"].cast(pa.large_string()))
    for k, table in enumerate((narrow, moments, turned)):
        pq.write_table(table, folder / f"{k}.parquet", row_group_size=300)
    return folder


SOURCES: dict[str, Callable[[Path], Any]] = {
    "table": lambda folder: TABLE,
    "table in chunks": lambda folder: pieces(271),
    "batch": lambda folder: TABLE.combine_chunks().to_batches()[0],
    "reader": lambda folder: pieces(500).to_reader(),
    "stream": lambda folder: Exported(),
    "array": lambda folder: ExportedBatch(),
    "dictionary": lambda folder: TABLE.set_column(3, "sex", TABLE["sex"].dictionary_encode()),
    "narrow": lambda folder: TABLE.set_column(0, "age", TABLE["age"].cast(pa.uint8())),
    "parquet": parquet,
    "hive": hive,
    "dataset": lambda folder: ds.dataset(hive(folder), partitioning="hive"),
    "csv": csv,
    "csv in parts": csv_parts,
    "files that differ": split,
    "dask frame": dask_frame,
    "dask frame of files": dask_parquet,
    "dask arrays": dask_arrays,
    "polars": polars,
    "duckdb": duckdb,
}
sources = pytest.mark.parametrize("make", SOURCES.values(), ids=list(SOURCES))


class Cover(hl.Model):
    """Reads a column of every type."""

    def value(self, t):
        old = self.data["issued"] < np.datetime64("2010-01-01")
        loading = np.where(self.data["smoker"], 1.7, 1.0) * np.where(self.data["sex"] == "F", 1, 2)
        rate = self.rates[self.data["age"] + t] * np.where(self.data["fund"] == "bonds", 0.5, 1.0)
        return self.data["premium"] * loading * rate * np.where(old, 1.0, 1.1)

    def oldest(self):
        return self.data["age"].max()


RATES = 1.05 ** np.arange(120) / 100


def by_hand(t: int) -> float:
    f = FRAME
    old = f["issued"].to_numpy() < np.datetime64("2010-01-01")
    loading = np.where(f["smoker"], 1.7, 1.0) * np.where(f["sex"] == "F", 1, 2)
    rate = RATES[f["age"].to_numpy() + t] * np.where(f["fund"] == "bonds", 0.5, 1.0)
    return float(np.sum(f["premium"].to_numpy() * loading * rate * np.where(old, 1.0, 1.1)))


def bits(data: Any, **options: Any) -> tuple[bytes, ...]:
    result = Cover(data=data, rates=RATES).ExecuteActions(proj_len=3, **options)
    return result.df_agg["value"].to_numpy().tobytes(), bytes(result.values["oldest"].tobytes())


@sources
def test_every_source_gives_the_same_bits(make: Callable[[Path], Any], tmp_path: Path) -> None:
    points = ModelPoints(make(tmp_path))
    expected = bits(FRAME, block_rows=256)
    found = np.frombuffer(expected[0])
    np.testing.assert_allclose(found, [by_hand(t) for t in range(4)], rtol=1e-12)
    for chunk_blocks in (1, 3, 12):
        for scheduler in ("threads", "synchronous"):
            options = {"block_rows": 256, "chunk_blocks": chunk_blocks, "scheduler": scheduler}
            assert bits(points, **options) == expected


@sources
def test_every_source_gives_the_same_columns(make: Callable[[Path], Any], tmp_path: Path) -> None:
    points = ModelPoints(make(tmp_path))
    assert set(points.columns) == set(FRAME.columns)
    assert points.rows == ROWS
    copy = pickle.loads(pickle.dumps(points))
    for name in FRAME.columns:
        for each in (points, copy):
            got = np.asarray(each.frame(690, 1_500, [name])[name])
            np.testing.assert_array_equal(got, np.asarray(FRAME[name][690:1_500]), strict=False)
        where = points.sample_positions(100)
        taken = points.take(name, where)
        categories = points.schema(name).categories
        taken = taken if categories is None else categories[taken]
        np.testing.assert_array_equal(taken, FRAME[name].to_numpy()[where])
    assert points.read_bytes(["age", "fund"], 500) >= 0
    assert points["premium"].sum().compute() == pytest.approx(FRAME["premium"].sum(), rel=1e-12)
    assert len(points.to_dask(["age", "sex"]).compute()) == ROWS
    assert "rows" in repr(points)


def test_numbers_of_one_arrow_chunk_are_not_copied() -> None:
    points = ModelPoints(TABLE.combine_chunks())
    part = points.read(10, 20, ["premium"])["premium"]
    whole = TABLE.combine_chunks()["premium"].chunk(0).to_numpy()
    assert np.shares_memory(part, whole)


def test_an_arrow_null_says_where_it_is() -> None:
    table = pa.table({"x": pa.chunked_array([[1.0, 2.0], [3.0, None]]), "y": [1, 2, 3, 4]})
    points = ModelPoints(table)
    assert points.read(0, 4, ["y"])["y"].tolist() == [1, 2, 3, 4]
    with pytest.raises(DataError, match="'x' has a null, first in row 3") as caught:
        points.read(0, 1, ["x"])
    assert caught.value.column == "x"
    with pytest.raises(DataError, match="'x' has a null"):
        ModelPoints(pa.table({"x": pa.nulls(3)})).schema("x")


def test_arrow_types_that_cannot_be_computed_with() -> None:
    points = ModelPoints(pa.table({"x": [[1], [2, 3]], "y": [1.5, 2.5]}))
    with pytest.raises(DataError, match="type list") as caught:
        points.schema("x")
    assert caught.value.column == "x"
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(DataError, match="'x' occurs twice"):
        ModelPoints(twice)
    with pytest.raises(DataError, match="no rows"):
        ModelPoints(TABLE.slice(0, 0))


# ---- directories named key=value ---------------------------------------------------------------


def test_names_of_directories_are_columns(tmp_path: Path) -> None:
    for year in (2019, 2020):
        for code in ("007", "a b"):
            folder = tmp_path / f"year={year}" / f"code={code.replace(' ', '%20')}"
            folder.mkdir(parents=True)
            pd.DataFrame({"x": np.arange(3.0) + year}).to_parquet(folder / "a.parquet")
    for data in (tmp_path, str(tmp_path / "**" / "*.parquet"), str(tmp_path / "*")):
        points = ModelPoints(data)
        assert points.columns == ("x", "year", "code")
        frame = points.frame()
        assert points.schema("year").dtype == np.int64
        assert frame["year"].tolist() == [2019] * 6 + [2020] * 6
        assert list(frame["code"]) == (["007"] * 3 + ["a b"] * 3) * 2
        assert frame["x"].tolist() == [2019.0, 2020.0, 2021.0] * 2 + [2020.0, 2021.0, 2022.0] * 2
        assert points.loaded(["year"]).values("year").tolist() == frame["year"].tolist()
    with pytest.raises(MissingColumnError, match="years"):
        points.schema("years")


def test_keys_that_do_not_fit(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1.0]})
    for folder in ("a=1", "a=2/b=3"):
        (tmp_path / "uneven" / folder).mkdir(parents=True)
        frame.to_parquet(tmp_path / "uneven" / folder / "f.parquet")
    with pytest.raises(DataError, match="no value of 'b'") as caught:
        ModelPoints(tmp_path / "uneven")
    assert str(caught.value.file).endswith("f.parquet")
    (tmp_path / "both" / "x=1").mkdir(parents=True)
    frame.to_parquet(tmp_path / "both" / "x=1" / "f.parquet")
    with pytest.raises(DataError, match="'x' is in the files and in the names"):
        ModelPoints(tmp_path / "both")


def test_datasets_that_are_refused(tmp_path: Path) -> None:
    dataset = ds.dataset(hive(tmp_path), partitioning="hive")
    with pytest.raises(DataError, match="carries a filter"):
        ModelPoints(dataset.filter(ds.field("age") > 30))
    with pytest.raises(DataError, match="csv files"):
        ModelPoints(ds.dataset(csv(tmp_path), format="csv"))
    with pytest.raises(DataError, match="expected a dataset of files"):
        ModelPoints(ds.dataset(TABLE))


# ---- CSV ---------------------------------------------------------------------------------------


def written(folder: Path, text: str, name: str = "a.csv") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_types_of_csv_columns_fit_every_row(tmp_path: Path) -> None:
    late = "\n".join(f"{k},{k},{k}.5,true,2020-01-31,x" for k in range(100_000))
    path = written(tmp_path, f"a,b,c,d,e,f\n{late}\n0.25,x,1e3,false,2020-02-29,\n")
    points = ModelPoints(path)
    kinds = {name: points.schema(name).dtype.kind for name in "acde"}
    assert kinds == {"a": "f", "c": "f", "d": "b", "e": "M"}
    assert points.schema("b").is_text
    last = points.frame(99_999, 100_001)
    assert last["a"].tolist() == [99_999.0, 0.25]
    assert list(last["b"]) == ["99999", "x"]
    assert last["c"].tolist() == [99_999.5, 1_000.0]
    assert list(last["f"]) == ["x", ""]
    assert "a: double" in repr(points)


def test_numbers_with_leading_zeros_are_text(tmp_path: Path) -> None:
    points = ModelPoints(written(tmp_path, "policy,rate,zero\n007,0.5,0\n012,-0.25,0\n"))
    assert list(points.values("policy")) == ["007", "012"]
    assert points.values("rate").tolist() == [0.5, -0.25]
    assert points.values("zero").tolist() == [0, 0]


@pytest.mark.parametrize(
    "cells",
    [
        ["9223372036854775808", "9223372036854775809"],
        ["9007199254740993", "0.5"],
        ["12E345", "12E346"],
        ["1e400", "1"],
        ["+07", "1"],
        ["00e1", "2"],
        ["007.5", "1.5"],
        ["0x1F", "3"],
    ],
    ids=str,
)
def test_what_no_number_is_exactly_stays_text(cells: list[str], tmp_path: Path) -> None:
    points = ModelPoints(written(tmp_path, "a\n" + "\n".join(cells) + "\n"))
    assert list(points.values("a")) == cells


def test_numbers_of_every_kind_stay_numbers(tmp_path: Path) -> None:
    text = "a,b,c\n0,-0.5,inf\n7,1e300,-Infinity\n9223372036854775807,9007199254740992,0.0\n"
    points = ModelPoints(written(tmp_path, text))
    assert points.values("a").tolist() == [0, 7, 2**63 - 1]
    assert points.values("b").tolist() == [-0.5, 1e300, 2.0**53]
    assert points.values("c").tolist() == [np.inf, -np.inf, 0.0]


def test_a_file_listed_twice_counts_twice(tmp_path: Path) -> None:
    path = written(tmp_path, "a\n1\n2\n")
    assert ModelPoints([path, path]).values("a").tolist() == [1, 2, 1, 2]
    with pytest.raises(DataError, match="types are given as list"):
        ModelPoints.read_csv(path, types=["a"])  # type: ignore[arg-type]


def test_given_types_of_csv_columns(tmp_path: Path) -> None:
    path = written(tmp_path, "policy,x\n1,2\n3,4\n")
    points = ModelPoints.read_csv(path, types={"policy": "string", "x": np.float64})
    assert list(points.values("policy")) == ["1", "3"]
    assert points.values("x").tolist() == [2.0, 4.0]
    with pytest.raises(DataError, match="no column 'y'"):
        ModelPoints.read_csv(path, types={"y": "string"})
    with pytest.raises(DataError, match="'money' is not a type"):
        ModelPoints.read_csv(path, types={"x": "money"})
    with pytest.raises(DataError, match="cannot be read") as caught:
        ModelPoints.read_csv(written(tmp_path, "x\n1\ntwo\n"), types={"x": "int64"})
    assert "two" in str(caught.value)


def test_empty_cells_of_numbers_are_nulls(tmp_path: Path) -> None:
    path = written(tmp_path, "x,y\n1.5,1\n,2\n")
    points = ModelPoints(path)
    assert points.values("y").tolist() == [1, 2]
    with pytest.raises(DataError, match="'x' has a null, first in row 1") as caught:
        points.values("x")
    assert caught.value.file == str(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("a,b\n1,2\n3\n", "cannot be read"),
        ("a,a\n1,2\n", "'a' occurs twice"),
        ("a,b\n", "no rows"),
    ],
)
def test_csv_files_that_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(DataError, match=message) as caught:
        ModelPoints(path)
    assert str(path) in str(caught.value) or "no rows" in str(caught.value)
    assert caught.value.remedy


def test_csv_files_with_other_headers_and_other_files(tmp_path: Path) -> None:
    a, b = written(tmp_path, "x\n1\n"), written(tmp_path, "y\n1\n", "b.csv")
    with pytest.raises(DataError, match="different headers") as caught:
        ModelPoints([a, b])
    assert caught.value.file == str(b)
    with pytest.raises(DataError, match="not both"):
        ModelPoints([a, parquet(tmp_path)])
    with pytest.raises(DataError, match="no CSV file at"):
        ModelPoints(tmp_path / "none-*.csv")


def test_the_copy_of_a_csv_file_is_removed(tmp_path: Path) -> None:
    points = ModelPoints(csv(tmp_path))
    copies = [Path(f.path) for f in points._source._footers.files]  # type: ignore[union-attr]
    assert all(path.exists() for path in copies)
    del points
    gc.collect()
    assert not any(path.exists() for path in copies)


def test_no_room_for_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hl_dask._csv as module

    usage = module.shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DataError, match="are free"):
        ModelPoints(csv(tmp_path))


def test_what_is_no_model_points_at_all() -> None:
    with pytest.raises(DataError, match="Arrow table"):
        ModelPoints(3)
    with pytest.raises(ModelError, match="data="):
        Cover(FRAME)  # type: ignore[misc]
