"""Row filters: the rows that pandas would keep, from every source, with what cannot pass unread."""

from __future__ import annotations

import decimal
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hl_dask as hl
from hl_dask._selection import SelectionBuilder
from hl_dask.errors import DataError, MissingColumnError
from hl_dask.points import ModelPoints
from tests.test_sources import FRAME, ROWS, SOURCES, TABLE, bits

F = FRAME
DAY = F.issued[1_234].to_datetime64().astype("M8[D]")
# What is given, and the rows that NumPy keeps.
FILTERS: dict[str, tuple[Any, Any]] = {
    "one": (("age", ">", 40), F.age > 40),
    "all of": ([("age", ">=", 30), ("age", "<", 33)], (F.age >= 30) & (F.age < 33)),
    "one of": (
        [[("age", "<", 25), ("smoker", "==", True)], [("premium", ">", 490.5)]],
        ((F.age < 25) & F.smoker) | (F.premium > 490.5),
    ),
    "text": (("fund", "=", "mixed"), F.fund == "mixed"),
    "texts": (("fund", "in", ["mixed", "bonds", "none"]), F.fund.isin(["mixed", "bonds"])),
    "not text": (("fund", "not in", {"mixed"}), F.fund != "mixed"),
    "day": (("issued", ">=", DAY), F.issued >= DAY),
    "written day": (("issued", "<", str(DAY)), F.issued < DAY),
    "date": (("issued", "!=", DAY.item()), F.issued != DAY),
    "stamps": (
        ("issued", "in", [pd.Timestamp(DAY), pd.Timestamp(DAY) + pd.Timedelta(hours=1)]),
        F.issued == DAY,
    ),
    "float of integers": (("age", "<=", 40.5), F.age <= 40.5),
    "floats of integers": (("age", "in", [40.0, 41.5, 1e300, np.int8(7)]), F.age == 40),
    "bool": (("smoker", "!=", np.True_), ~F.smoker),
    "nearly none": (("premium", "==", F.premium[1_234]), F.premium == F.premium[1_234]),
    "all": (("age", "is not", None), F.age > 0),
    "expression": (
        (pc.field("age") * 2 > 100) & ~(pc.field("fund") == "bonds"),
        (F.age * 2 > 100) & (F.fund != "bonds"),
    ),
}
filters = pytest.mark.parametrize(("where", "kept"), FILTERS.values(), ids=list(FILTERS))


def chosen(kept: Any) -> pd.DataFrame:
    return FRAME[np.asarray(kept)].reset_index(drop=True)


def same_rows(
    points: ModelPoints, frame: pd.DataFrame, start: int = 0, stop: int | None = None
) -> None:
    got = points.frame(start, stop, list(frame.columns))
    for name in frame.columns:
        want = np.asarray(frame[name][start:stop])
        np.testing.assert_array_equal(np.asarray(got[name]), want, strict=False)


@filters
@pytest.mark.parametrize("make", SOURCES.values(), ids=list(SOURCES))
def test_the_rows_that_pandas_keeps(
    make: Callable[[Path], Any], where: Any, kept: Any, tmp_path: Path
) -> None:
    points = ModelPoints(make(tmp_path), where=where)
    frame = chosen(kept)
    assert points.rows == len(frame)
    same_rows(points, frame)
    if len(frame) > 3:
        same_rows(points, frame, len(frame) // 3, len(frame) - 1)
    picked = points.sample_positions(50)
    for name in ("age", "fund"):
        categories = points.schema(name).categories
        taken = points.take(name, picked)
        taken = taken if categories is None else categories[taken]
        np.testing.assert_array_equal(taken, frame[name].to_numpy()[picked])
        if categories is not None:
            assert categories.tolist() == sorted(set(frame[name]))
    assert "where" in points.description


@pytest.mark.parametrize("make", SOURCES.values(), ids=list(SOURCES))
def test_the_same_bits_as_a_frame_that_was_filtered_before(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    where = [[("age", ">", 40), ("fund", "!=", "mixed")], [("smoker", "==", True)]]
    frame = chosen(((F.age > 40) & (F.fund != "mixed")) | F.smoker)
    expected = bits(frame, block_rows=256)
    points = ModelPoints(make(tmp_path), where=where)
    for chunk_blocks in (1, 3):
        for scheduler in ("threads", "synchronous"):
            options = {"block_rows": 256, "chunk_blocks": chunk_blocks, "scheduler": scheduler}
            assert bits(points, **options) == expected
    assert bits(pickle.loads(pickle.dumps(points)), block_rows=256) == expected


def test_filters_of_filtered_points(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=700)
    frame = chosen((F.age > 30) & (F.age < 60) & F.smoker)
    for data in (FRAME, TABLE, tmp_path / "a.parquet"):
        once = ModelPoints(data, where=("age", ">", 30))
        points = ModelPoints(
            ModelPoints(once, where=("age", "<", 60)), where=("smoker", "==", True)
        )
        same_rows(points, frame)
        assert once.rows == int((F.age > 30).sum())
        assert points.token() != once.token()


def test_a_model_takes_filtered_points(tmp_path: Path) -> None:
    class Count(hl.Model):
        def lives(self, t):
            return self.data["n"] * (t + 1)

    frame = pd.DataFrame({"n": np.arange(1_000), "product": ["term", "whole"] * 500})
    frame.to_parquet(tmp_path / "a.parquet", row_group_size=64)
    model = Count(data=frame)
    model.GenerateActions(proj_len=1)
    model.data = hl.ModelPoints(tmp_path / "a.parquet", where=("product", "==", "whole"))
    expected = int(np.arange(1, 1_000, 2).sum())
    assert model.ExecuteActions().df_agg["lives"].tolist() == [expected, 2 * expected]
    model.RunModel(1)
    assert model.df_agg["lives"].tolist() == [expected, 2 * expected]


# --- what cannot pass is not read ----------------------------------------------------------------


@pytest.fixture
def groups_read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Columns and row groups that were asked for."""
    seen: list[tuple[str, int]] = []
    original = pq.ParquetFile.iter_batches

    def spy(self: Any, *args: Any, **options: Any) -> Any:
        seen.extend((name, group) for name in options["columns"] for group in options["row_groups"])
        return original(self, *args, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    return seen


def sorted_file(path: Path) -> pd.DataFrame:
    rows = np.arange(10_000)
    frame = pd.DataFrame(
        {
            "year": 2000 + rows // 1_000,
            "day": np.datetime64("2000-01-01") + rows // 1_000 * 365,
            "rate": (rows // 1_000) / 8,
            "region": np.array([f"r{k}" for k in range(10)])[rows // 1_000],
            "x": rows * 1.0,
            "unused": rows.astype(str),
        }
    )
    table = pa.Table.from_pandas(frame, preserve_index=False)
    pq.write_table(table, path, row_group_size=1_000)
    return frame


@pytest.mark.parametrize(
    "where",
    [
        ("year", "==", 2004),
        ("year", "in", [2004, 1999]),
        [("year", ">", 2003), ("year", "<=", 2004)],
        [("year", ">", 2003), ("year", "not in", [2005, 2006, 2007, 2008, 2009])],
        [("region", "==", "r4"), ("x", "!=", -1.0)],
        ("rate", "==", 0.5),
        [("day", ">", "2003-01-01"), ("day", "<", "2004-06-01")],
        [[("year", "==", 2004)], [("rate", "==", 99.0)]],
        (pc.field("year") == 2004) & (pc.field("region") == "r4"),
    ],
    ids=str,
)
def test_row_groups_that_cannot_pass_are_never_read(
    where: Any, tmp_path: Path, groups_read: list[tuple[str, int]]
) -> None:
    sorted_file(tmp_path / "a.parquet")
    points = ModelPoints(tmp_path / "a.parquet", where=where)
    used = {name for name, _ in groups_read}
    assert used <= {"year", "region", "rate", "day", "x"}
    assert {group for _, group in groups_read} == {4}
    assert points.rows == 1_000
    assert points.values("x").tolist() == list(range(4_000, 5_000))
    assert points.take("x", points.sample_positions(10)).min() >= 4_000
    assert points.schema("unused").categories.tolist() == [str(k) for k in range(4_000, 5_000)]
    assert {group for _, group in groups_read} == {4}


def test_row_groups_without_a_row_that_passes_are_not_read_again(
    tmp_path: Path, groups_read: list[tuple[str, int]]
) -> None:
    frame = sorted_file(tmp_path / "a.parquet")
    # Statistics do not tell: the first and the last value of a group are those of all groups.
    table = pa.table({"k": np.tile([0, *range(1, 999), 999], 10), "x": frame["x"]})
    table = table.set_column(0, "k", pa.array(np.where(frame["x"] == 2_500, 500, frame["x"] % 2)))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1_000)
    points = ModelPoints(tmp_path / "a.parquet", where=("k", "==", 500))
    assert points.values("x").tolist() == [2_500.0]
    assert {group for name, group in groups_read if name == "x"} == {2}


def test_nan_is_unknown_to_statistics(tmp_path: Path) -> None:
    values = np.where(np.arange(4_000) % 100 == 7, np.nan, 5.0)
    frame = pd.DataFrame({"x": values, "n": np.arange(4_000)})
    table = pa.table({name: pa.array(frame[name].to_numpy()) for name in frame})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=500)
    for where, kept in (
        (("x", "!=", 5.0), np.isnan(values)),
        (("x", "not in", [5.0]), np.isnan(values)),
        (pc.field("x") != 5.0, np.isnan(values)),
        (~(pc.field("x") < 6), np.isnan(values)),
        (pc.is_nan(pc.field("x")), np.isnan(values)),
        (("x", "<", 6.0), ~np.isnan(values)),
        (("x", "in", [np.nan, 1.0]), np.isnan(values)),
        ([("x", "!=", 5.0), ("n", "<", 1_000)], np.isnan(values) & (frame.n < 1_000)),
    ):
        for data in (frame, tmp_path / "a.parquet"):
            assert ModelPoints(data, where=where).values("n").tolist() == frame.n[kept].tolist()


def test_keys_of_directories_leave_out_files(
    tmp_path: Path, groups_read: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_to_dataset(TABLE, tmp_path / "h", partition_cols=["fund"])
    points = ModelPoints(tmp_path / "h", where=[("fund", "!=", "bonds"), ("fund", "!=", "shares")])
    assert groups_read == []  # the names of the directories say it all
    same_rows(points, chosen(F.fund == "mixed"))
    assert points.schema("fund").categories.tolist() == ["mixed"]
    mixed = ModelPoints(
        tmp_path / "h", where=[("fund", "in", ["bonds", "mixed"]), ("age", ">", 50)]
    )
    same_rows(mixed, chosen(F.fund.isin(["bonds", "mixed"]) & (F.age > 50)))
    assert pickle.loads(pickle.dumps(mixed)).values("age").min() > 50


def several(folder: Path, *arrays: pa.Array) -> Path:
    for k, values in enumerate(arrays):
        pq.write_table(pa.table({"a": values}), folder / f"{k}.parquet", row_group_size=2)
    return folder


@pytest.mark.parametrize(
    ("arrays", "where", "kept"),
    [
        ([[0.0, 0.0, 0.0, 5.0]], ("a", "in", [0.0, 5.0]), [0.0, 0.0, 0.0, 5.0]),
        ([[0.0, 0.0], [0.0, 5.0]], ("a", "in", [0]), [0.0, 0.0, 0.0]),
        ([[-0.0, 0.0], [1.0, 2.0]], ("a", "in", [0]), [0.0, 0.0]),
        ([[-0.0, -0.0], [0.0, 1.0]], ("a", "not in", [0.0]), [1.0]),
        ([[-0.0, 0.0], [0.0, 1.0]], ("a", "in", [-0.0]), [0.0, 0.0, 0.0]),
        ([np.float32([0.5, 0.25]), [0.1, 0.1]], ("a", "==", 0.1), [0.1, 0.1]),
        ([np.float32([0.5, 0.25]), [0.1, 0.1]], ("a", "<", 0.1000000001), [0.1, 0.1]),
        ([np.float32([0.5, 0.25]), [0.3, 0.3]], ("a", "<=", 0.3), [0.25, 0.3, 0.3]),
        ([np.float32([0.5, 0.25]), [1e300, 0.3]], ("a", "==", 1e300), [1e300]),
        ([np.float32([0.5, 0.25]), [0.3, 0.3]], ("a", "in", [0.3, 7.0]), [0.3, 0.3]),
        ([np.int8([1, 2]), [300, 310]], ("a", "in", [2, 300]), [2, 300]),
        ([np.int32([1, 2]), [2**40, 2**40 + 1]], ("a", "in", [2**40, 1]), [1, 2**40]),
        ([np.uint32([1, 2]), [-7, -5]], ("a", "in", [-5]), [-5]),
        ([np.int8([-5, 3]), np.uint8([200, 250])], ("a", "in", [200]), [200]),
        ([np.uint64([5, 6]), [-7, -5]], ("a", "<", 0), [-7, -5]),
        ([np.int8([1, 2]), np.int16([300, 310])], pc.field("a") > 305, [310]),
    ],
    ids=str,
)
def test_zeros_and_files_of_several_widths(
    arrays: list[Any], where: Any, kept: list[float], tmp_path: Path
) -> None:
    for k in range(2):  # whichever file comes first
        folder = tmp_path / str(k)
        folder.mkdir()
        parts = [pa.array(values) for values in (arrays, arrays[::-1])[k]]
        points = ModelPoints(several(folder, *parts), where=where)
        assert sorted(points.values("a").tolist()) == sorted(kept)
        whole = np.concatenate([np.asarray(part) for part in parts])
        in_memory = ModelPoints({"a": whole}, where=where)
        assert sorted(in_memory.values("a").tolist()) == sorted(kept)


# --- nulls ---------------------------------------------------------------------------------------


def test_nulls_pass_no_comparison_and_do_no_harm_where_they_do_not_pass(tmp_path: Path) -> None:
    table = pa.table(
        {
            "x": pa.array([1.0, None, 3.0, None, 5.0]),
            "s": pa.array(["a", "b", None, "d", "e"]),
            "k": [0, 1, 2, 3, 4],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    for data in (table, frame, tmp_path / "a.parquet"):

        def rows(where: Any, data: Any = data) -> list[int]:
            return ModelPoints(data, where=where).values("k").tolist()

        assert rows(("x", "!=", 3.0)) == [0, 4]
        assert rows(("x", "not in", [3.0])) == [0, 4]
        assert rows(("x", "is", None)) == [1, 3]
        assert rows([[("s", "==", "b")], [("x", ">", 4)]]) == [1, 4]
        assert rows(("s", "<", "c")) == [0, 1]
        full = ModelPoints(data, where=[("x", "is not", None), ("s", "is not", None)])
        assert full.values("x").tolist() == [1.0, 5.0]
        assert list(full.values("s")) == ["a", "e"]
        with pytest.raises(DataError, match="'x' has a null, first in row 1") as caught:
            ModelPoints(data, where=("k", "in", [0, 3])).values("x")
        if isinstance(data, Path):
            assert caught.value.file == f"{data}, row group 1"


def test_decimals_and_narrow_floats_are_compared_as_formulas_see_them(tmp_path: Path) -> None:
    cents = [decimal.Decimal(k) / 100 for k in range(300)]
    table = pa.table(
        {
            "d": pa.array(cents, pa.decimal128(9, 2)),
            "f": pa.array(np.arange(300) / 10, pa.float32()),
            "u": pa.array(np.arange(300).astype(np.uint64) + np.uint64(2**63 - 10)),
            "n": pa.array(range(300)),
            "big": pa.array(range(2**53, 2**53 + 300)),
            "t": pa.array(["a", "b", "c"] * 100).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=50)
    for data in (table, tmp_path / "a.parquet"):
        assert ModelPoints(data, where=("d", "==", 0.07)).values("n").tolist() == [7]
        assert ModelPoints(data, where=("d", ">", decimal.Decimal("2.97"))).rows == 2
        assert ModelPoints(data, where=("d", "in", [1, 2.5])).values("n").tolist() == [100, 250]
        assert ModelPoints(data, where=("f", "==", 0.5)).values("n").tolist() == [5]
        with pytest.raises(DataError, match="no row passes"):
            ModelPoints(data, where=("f", "==", 0.1))  # 0.1 is no float32
        for where, rows in {
            ("u", "<", 2**63): 10,
            ("u", ">", -1): 300,
            ("u", "!=", 0.5): 300,
            ("u", "in", (2**63 + 5, -1)): 1,
            ("n", ">=", 2.5): 297,
            ("n", ">", -0.5): 300,
            ("n", "<", 2.5): 3,
            ("n", "<", 10**30): 300,
            ("n", "!=", -1e300): 300,
            ("n", "<", np.inf): 300,
            ("n", "!=", np.nan): 300,
            ("big", "==", 2**53 + 1): 1,
            ("big", "<", 2**53 + 1): 1,
            ("big", "<", 2.0**53 + 2): 2,
        }.items():
            assert ModelPoints(data, where=where).rows == rows, where
        assert ModelPoints(data, where=("t", "==", "b")).rows == 100


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["frame", "file"])
@pytest.mark.parametrize(
    ("where", "message"),
    [
        (("age", ">", "old"), "compares column 'age', which is of type int64, with 'old'"),
        (("age", "==", True), "with True"),
        (("fund", "==", 3), "with 3"),
        (("fund", "in", ["bonds", 3]), "with 3"),
        (("smoker", "==", 1), "with 1"),
        (("issued", ">", "soon"), "with 'soon'"),
        (("issued", ">", 2020), "with 2020"),
        (("issued", ">", np.datetime64("NaT")), "with .*NaT"),
        (("issued", ">", pd.Timestamp("2020-01-01", tz="UTC")), "UTC"),
        (("age", "~", 3), "operator '~'"),
        (("fund", "in", "bonds"), "takes a list"),
        (("age", "is", 3), "'is'"),
        (pc.field("age") > "x", "cannot be evaluated"),
        (pc.field("age") + 1, "gives values of type int64"),
        (pc.field("age", "inner") == 1, "cannot be evaluated"),
        ("age > 3", "the filter is 'age > 3'"),
        ([], "the filter is"),
        ([("age", ">")], "the filter is"),
        ([[]], "the filter is"),
        ((3, ">", 4), "the filter is"),
        (("age", ">", 1_000), "no row passes the filter: .*where age > 1000"),
    ],
    ids=str,
)
def test_filters_that_are_refused(where: Any, message: str, data: str, tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=message) as caught:
        ModelPoints({"frame": FRAME, "file": tmp_path / "a.parquet"}[data], where=where)
    assert caught.value.remedy


@pytest.mark.parametrize("where", [("agee", ">", 3), pc.field("agee") > 3], ids=str)
def test_a_filter_of_a_column_that_is_not_there(where: Any, tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    for data in (FRAME, TABLE, tmp_path / "a.parquet", {"age": np.arange(3)}):
        with pytest.raises(MissingColumnError, match="no column 'agee'") as caught:
            ModelPoints(data, where=where)
        assert caught.value.column == "agee"
        assert "did you mean 'age'" in str(caught.value)


def test_columns_that_no_filter_can_compare(tmp_path: Path) -> None:
    table = pa.table({"x": [[1], [2]], "y": [1, 2]})
    pq.write_table(table, tmp_path / "a.parquet")
    for data in (table, tmp_path / "a.parquet"):
        with pytest.raises(DataError, match="which a filter cannot compare") as caught:
            ModelPoints(data, where=("x", "==", 1))
        assert caught.value.column == "x"
    with pytest.raises(DataError, match="which a filter cannot compare"):
        ModelPoints({"x": np.ones((3, 2))}, where=("x", "==", 1))
    mixed = pd.DataFrame({"x": [1, "a"], "y": [1, 2]})
    with pytest.raises(DataError, match="object") as caught:
        ModelPoints(mixed, where=("x", "==", 1))
    assert caught.value.column == "x"


def test_columns_in_memory_of_many_kinds() -> None:
    n = 10
    columns = {
        "object": np.array([f"s{k}" for k in range(n)], dtype=object),
        "fixed": np.array([f"s{k}" for k in range(n)]),
        "big endian": np.arange(n, dtype=">i4"),
        "long": np.arange(n, dtype=np.longdouble),
        "half": np.arange(n, dtype=np.float16),
        "months": np.datetime64("2020-01") + np.arange(n),
        "days": np.datetime64("2020-01-01") + np.arange(n),
        "masked": np.ma.array(np.arange(n), mask=np.arange(n) == 3),
        "category": pd.Categorical([f"s{k}" for k in range(n)]),
        "nullable": pd.array([*range(n - 1), None], dtype="Int64"),
        "series": pd.Series(range(n), index=range(n, 0, -1)),
        "k": np.arange(n),
    }
    for where, kept in {
        ("object", "==", "s4"): [4],
        ("fixed", "in", ("s4", "s5")): [4, 5],
        ("big endian", ">", 7): [8, 9],
        ("long", "<", 2): [0, 1],
        ("half", "<", 2): [0, 1],
        ("months", "<", "2020-02-15"): [0, 1],
        ("days", "==", "2020-01-03"): [2],
        ("masked", "<", 5): [0, 1, 2, 4],
        ("category", ">", "s7"): [8, 9],
        ("nullable", "!=", 0): [1, 2, 3, 4, 5, 6, 7, 8],
        ("series", "<", 2): [0, 1],
    }.items():
        points = ModelPoints(columns, where=where)
        assert points.values("k").tolist() == kept
        assert points.values("series").tolist() == kept


# --- the bits ------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_selections_against_brute_force(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 10_000))
    rng = np.random.default_rng(seed)
    builder, parts, at = SelectionBuilder(), [], 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hl_dask._selection.SEGMENT_ROWS", int(rng.integers(1, 40)))
        for _ in range(int(rng.integers(1, 12))):
            length = int(rng.integers(1, 30))
            mask = rng.random(length) < rng.choice([0.0, 0.05, 0.5, 1.0])
            if rng.random() < 0.2:  # a part that is left out
                mask = np.zeros(length, dtype=bool)
            else:
                builder.add(at, mask)
            parts.append(mask)
            at += length
        selection = builder.done()
    whole = np.concatenate(parts)
    rows = np.flatnonzero(whole)
    assert selection.rows == len(rows)
    assert selection.counts(np.arange(at + 1)).tolist() == [0, *np.cumsum(whole).tolist()]
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    found = [
        first + np.flatnonzero(np.ones(last - first) if mask is None else mask)
        for first, last, mask in selection.ranges(start, stop)
    ]
    np.testing.assert_array_equal(np.concatenate([*found, []]), rows[start:stop])
    first = data.draw(st.integers(0, at))
    last = data.draw(st.integers(first, at))
    np.testing.assert_array_equal(selection.mask(first, last), whole[first:last])


def test_a_filter_takes_a_bit_a_row(tmp_path: Path) -> None:
    rows = 1_000_000
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": rng.random(rows), "n": np.arange(rows)})
    frame.to_parquet(tmp_path / "a.parquet")
    points = ModelPoints(tmp_path / "a.parquet", where=("x", "<", 0.5))
    selection = points._source._selection
    assert selection is not None
    assert rows / 8 <= selection.nbytes <= rows / 8 + 10_000
    assert points.rows > ROWS
    assert points.values("n").tolist() == frame.n[frame.x < 0.5].tolist()
    all_pass = ModelPoints(tmp_path / "a.parquet", where=("x", "<", 2))._source._selection
    assert all_pass.nbytes < 1_000
