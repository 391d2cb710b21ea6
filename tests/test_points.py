"""The model points: every source, against pandas."""

import datetime
import decimal
import itertools
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hl_dask._parquet as parquet_module
import hl_dask._streams as streams_module
from hl_dask._columns import MAX_CATEGORIES
from hl_dask.errors import DataError, MissingColumnError
from hl_dask.points import ColumnSpec, ModelPoints, is_scalar_record


def portfolio(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(0, 99, rows).astype("int8"),
            "sum_assured": rng.random(rows).astype("float32"),
            "policy": np.arange(rows),
            "smoker": rng.random(rows) < 0.3,
            "sex": rng.choice(["M", "F", "ü"], rows),
            "product": pd.Categorical(
                rng.choice(["term", "whole"], rows), categories=["whole", "unused", "term"]
            ),
            "issued": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 99, rows), "D"),
        }
    )


def expected(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what ``frame()`` should give, made by pandas alone."""
    return pd.DataFrame(
        {
            "age": frame["age"].astype("int64"),
            "sum_assured": frame["sum_assured"].astype("float64"),
            "policy": frame["policy"],
            "smoker": frame["smoker"],
            "sex": pd.Categorical(frame["sex"].astype(object)),
            "product": pd.Categorical(frame["product"].astype(object)),
            "issued": frame["issued"],
        }
    ).reset_index(drop=True)


def write(frame: pd.DataFrame, path: Path, cuts: list[int], group_rows: int) -> None:
    edges = [0, *sorted(cuts), len(frame)]
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        frame.iloc[start:stop].to_parquet(
            path / f"part-{number:03}.parquet", row_group_size=group_rows, index=False
        )


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return portfolio(5000)


@pytest.fixture(scope="module")
def folder(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policies")
    write(frame, path, [1000, 2300, 2300, 4999], 700)  # the third file is empty
    return path


@pytest.fixture(scope="module", params=["frame", "dict", "folder", "glob", "list", "loaded"])
def points(request: pytest.FixtureRequest, frame: pd.DataFrame, folder: Path) -> ModelPoints:
    sources = {
        "frame": lambda: frame,
        "dict": lambda: {
            name: frame[name].to_numpy() if name != "product" else frame[name].array
            for name in frame.columns
        },
        "folder": lambda: folder,
        "glob": lambda: str(folder / "*.parquet"),
        "list": lambda: sorted(folder.iterdir()),
        "loaded": lambda: ModelPoints(folder).loaded(),
    }
    return ModelPoints(sources[request.param]())


# --- all sources alike ---------------------------------------------------------------------------


def test_all_sources_give_the_same_frame(points: ModelPoints, frame: pd.DataFrame) -> None:
    assert points.rows == len(points) == 5000
    assert points.columns == tuple(frame.columns)
    assert "age" in points
    assert "agee" not in points
    pd.testing.assert_frame_equal(points.frame(), expected(frame), check_categorical=False)
    part = points.frame(990, 2310, ["sex", "policy"])
    assert list(part.index) == list(range(990, 2310))
    assert part["sex"].astype(object).tolist() == frame["sex"].iloc[990:2310].tolist()


def test_specs_are_widened(points: ModelPoints, frame: pd.DataFrame) -> None:
    kinds = {name: str(points.schema(name).dtype) for name in frame.columns[:-1]}
    assert kinds == {
        "age": "int64",
        "sum_assured": "float64",
        "policy": "int64",
        "smoker": "bool",
        "sex": "int32",
        "product": "int32",
    }
    assert points.schema("issued").dtype.kind == "M"
    assert points.schema("sex").categories.tolist() == ["F", "M", "ü"]
    # A category that no row has is not one.
    assert points.schema("product").categories.tolist() == ["term", "whole"]
    assert points.categorical("sex")
    assert not points.categorical("age")
    assert points.nbytes_per_row(["age", "smoker", "sex", "sex"]) == 8 + 1 + 4


def test_arrays_are_read_only_and_contiguous(points: ModelPoints) -> None:
    for name, array in points.read(10, 3000, points.columns).items():
        assert not array.flags.writeable, name
        assert array.flags.c_contiguous
        assert type(array) is np.ndarray
        assert array.dtype == points.schema(name).dtype
        with pytest.raises(ValueError, match="read-only"):
            array[0] = array[1]
    assert not points.take("age", np.array([3, 4])).flags.writeable
    assert points.read(7, 7, ["age"])["age"].shape == (0,)
    assert points.read(0, 5, []) == {}


def test_values_of_a_whole_column(points: ModelPoints, frame: pd.DataFrame) -> None:
    assert (points.values("age") == frame["age"].to_numpy()).all()
    sex = points.values("sex")
    assert isinstance(sex, pd.Categorical)
    assert list(sex.categories) == ["F", "M", "ü"]
    assert not sex.codes.flags.writeable
    assert ((sex == "M") == (frame["sex"] == "M").to_numpy()).all()


def test_take_and_sample(points: ModelPoints, frame: pd.DataFrame) -> None:
    for n in (1, 2, 499, 997, 1496, 4999, 5000, 9999):
        positions = points.sample_positions(n)
        assert positions.dtype == np.int64
        assert len(positions) == min(n, 5000)
        assert (np.diff(positions) > 0).all()
        assert positions[0] >= 0
        assert positions[-1] < 5000
        assert (positions == points.sample_positions(n)).all()
        assert (points.take("policy", positions) == positions).all()
        assert (
            points.take("sum_assured", positions) == frame["sum_assured"].to_numpy()[positions]
        ).all()
    sample = points.sample_positions(1000)
    assert sample[0] < 700
    assert sample[-1] > 4300
    with pytest.raises(IndexError):
        points.take("age", np.array([5000]))
    with pytest.raises(IndexError):
        points.take("age", np.array([2, 1]))


def test_pickle_keeps_everything(points: ModelPoints) -> None:
    again = pickle.loads(pickle.dumps(points.with_chunks(600)))
    assert again.chunks == (600,) * 8 + (200,)
    assert again.token() == points.token()
    pd.testing.assert_frame_equal(again.frame(), points.frame())
    assert ModelPoints.of(again) is again
    assert ModelPoints(again).chunks == again.chunks


def test_points_cannot_be_changed(points: ModelPoints) -> None:
    with pytest.raises(AttributeError):
        points.rows = 3  # type: ignore[misc]
    with pytest.raises(AttributeError):
        points.extra = 3  # type: ignore[attr-defined]


def test_missing_column_names_near_matches(points: ModelPoints) -> None:
    for use in (
        lambda: points.schema("agee"),
        lambda: points.read(0, 1, ["agee"]),
        lambda: points.take("agee", np.array([0])),
        lambda: points["agee"],
        lambda: points.read_bytes(["agee"], 10),
        lambda: points.loaded(["agee"]).frame() if not points.in_memory else points.schema("agee"),
    ):
        with pytest.raises(MissingColumnError, match="no column 'agee'") as caught:
            use()
        assert "did you mean 'age'?" in str(caught.value)
        assert "The columns are: age, sum_assured" in str(caught.value)


def test_range_is_checked(points: ModelPoints) -> None:
    for start, stop in ((-1, 3), (3, 2), (0, 5001)):
        with pytest.raises(IndexError):
            points.read(start, stop, ["age"])


def test_repr_and_description(points: ModelPoints) -> None:
    text = repr(points)
    assert "5,000 rows x 7 columns" in text
    assert "KB" in text
    assert points.description in text


# --- dask ----------------------------------------------------------------------------------------


def test_dask_array_is_chunked_and_lazy(
    points: ModelPoints, frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunked = points.with_chunks(1200)
    asked = []
    read = ModelPoints.read

    def spy(self: ModelPoints, start: int, stop: int, columns: object) -> object:
        asked.append((start, stop, list(columns)))
        return read(self, start, stop, columns)

    monkeypatch.setattr(ModelPoints, "read", spy)
    age, sex = chunked["age"], chunked["sex"]
    assert asked == []
    assert age.chunks == (chunked.chunks,) == ((1200, 1200, 1200, 1200, 200),)
    assert age.dtype == np.int64
    assert sex.dtype == object
    assert int(age.sum().compute(scheduler="synchronous")) == int(frame["age"].astype(int).sum())
    assert sorted(asked) == [(s, min(s + 1200, 5000), ["age"]) for s in range(0, 5000, 1200)]
    assert sex.compute(scheduler="threads").tolist() == frame["sex"].tolist()
    some = age[1000:4000:7].compute(scheduler="synchronous")
    assert (some == frame["age"].to_numpy()[1000:4000:7]).all()


def test_dask_frame(points: ModelPoints) -> None:
    lazy = points.with_chunks(1200).to_dask()
    assert lazy.divisions == (0, 1200, 2400, 3600, 4800, 4999)
    pd.testing.assert_frame_equal(lazy.compute(scheduler="synchronous"), points.frame())
    one = points.to_dask(["age"])
    assert list(one.columns) == ["age"]
    assert one.npartitions == 1


def test_two_arrays_of_one_shape_are_not_one_for_dask() -> None:
    a, b = ModelPoints({"x": np.zeros(3)}), ModelPoints({"x": np.ones(3)})
    assert a.token() == b.token()
    assert a["x"].name != b["x"].name
    assert float((a["x"] + b["x"]).sum().compute(scheduler="synchronous")) == 3.0
    assert pickle.loads(pickle.dumps(a))["x"].name == a["x"].name


def test_chunks() -> None:
    points = ModelPoints({"x": np.zeros(600_000)})
    assert points.chunks == (262_144, 262_144, 75_712)
    assert points.with_chunks(600_000).chunks == (600_000,)
    assert points.with_chunks(300_000).chunks == (300_000, 300_000)
    with pytest.raises(DataError, match="at least 1"):
        points.with_chunks(0)


# --- data in memory ------------------------------------------------------------------------------


def test_memory_is_not_copied_where_it_has_the_widened_dtype(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random(100)
    on_disk = np.memmap(tmp_path / "x.bin", dtype="float64", mode="w+", shape=100)
    on_disk[:] = x
    y = np.arange(100, dtype="int32")
    points = ModelPoints({"x": x, "m": on_disk, "y": y, "strided": np.arange(200.0)[::2]})
    part = points.read(10, 20, ["x", "m", "y", "strided"])
    assert np.shares_memory(part["x"], x)
    assert np.shares_memory(part["m"], on_disk)
    assert (part["m"] == x[10:20]).all()
    assert part["y"].tolist() == list(range(10, 20))
    assert part["strided"].tolist() == list(np.arange(20.0, 40.0, 2))
    assert x.flags.writeable  # the caller's array stays what it was
    assert points.read_bytes(["x", "m"], 1000) == 0
    assert points.read_bytes(["x", "y", "strided"], 1000) == 16_000


def test_later_changes_of_a_frame_stay_outside() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0]})
    points = ModelPoints(frame)
    frame.loc[0, "x"] = 99.0
    frame["y"] = 1
    assert points.values("x").tolist() == [1.0, 2.0, 3.0]
    assert points.columns == ("x",)


def test_scenarios_are_two_dimensional() -> None:
    rates = np.arange(12, dtype="float32").reshape(4, 3)
    points = ModelPoints({"rates": rates, "n": np.arange(4), "text": np.array([["a", "b"]] * 4)})
    assert points.schema("rates") == ColumnSpec("rates", np.dtype("float64"), (3,))
    assert points.schema("text").shape == (2,)
    assert points.nbytes_per_row(["rates"]) == 24
    assert points.read(1, 3, ["rates"])["rates"].tolist() == rates[1:3].tolist()
    assert points.take("rates", np.array([0, 3])).shape == (2, 3)
    assert list(points.frame(0, 2, ["n", "rates"]).columns) == [
        "n",
        "rates[0]",
        "rates[1]",
        "rates[2]",
    ]
    assert points["rates"].shape == (4, 3)
    assert points["rates"].compute(scheduler="synchronous").tolist() == rates.tolist()
    assert points["text"][1:2].compute(scheduler="synchronous").tolist() == [["a", "b"]]


NULLABLE = {
    "Int64": (pd.array([1, 2, 3], dtype="Int64"), "int64", [1, 2, 3]),
    "UInt8": (pd.array([1, 2, 255], dtype="UInt8"), "int64", [1, 2, 255]),
    "Float32": (pd.array([1.5, 2, 3], dtype="Float32"), "float64", [1.5, 2.0, 3.0]),
    "boolean": (pd.array([True, False, True], dtype="boolean"), "bool", [True, False, True]),
    "arrow_int": (pd.array([1, 2, 3], dtype="int16[pyarrow]"), "int64", [1, 2, 3]),
    "arrow_bool": (
        pd.array([True, False, True], dtype="bool[pyarrow]"),
        "bool",
        [True, False, True],
    ),
    "arrow_decimal": (
        pd.array([decimal.Decimal("1.25")] * 3, dtype=pd.ArrowDtype(pa.decimal128(9, 2))),
        "float64",
        [1.25] * 3,
    ),
    "category": (pd.Categorical([7, 5, 7]), "int64", [7, 5, 7]),
    "category_float": (pd.Categorical([0.5, 1.5, 0.5]), "float64", [0.5, 1.5, 0.5]),
    "float_nan": (np.array([1.0, np.nan, 3.0]), "float64", [1.0, np.nan, 3.0]),
    "float16": (np.array([1, 2, 3], dtype="float16"), "float64", [1.0, 2.0, 3.0]),
    "big_endian": (np.array([1, 2, 3], dtype=">i4"), "int64", [1, 2, 3]),
    "uint64": (np.array([1, 2, 2**63 - 1], dtype="uint64"), "int64", [1, 2, 2**63 - 1]),
    "object_int": (np.array([1, 2, 3], dtype=object), "int64", [1, 2, 3]),
    "object_float": (np.array([1.5, np.nan, 3.0], dtype=object), "float64", [1.5, np.nan, 3.0]),
    "object_bool": (np.array([True, False, True], dtype=object), "bool", [True, False, True]),
    "object_decimal": (np.array([decimal.Decimal(1)] * 3, dtype=object), "float64", [1.0] * 3),
    "list": ([1, 2, 3], "int64", [1, 2, 3]),
    "index": (pd.Index([1, 2, 3]), "int64", [1, 2, 3]),
    "masked_full": (np.ma.masked_array([1, 2, 3], mask=False), "int64", [1, 2, 3]),
}


@pytest.mark.parametrize("kind", NULLABLE)
def test_widening_in_memory(kind: str) -> None:
    data, dtype, values = NULLABLE[kind]
    points = ModelPoints({"x": data})
    assert points.schema("x") == ColumnSpec("x", np.dtype(dtype))
    np.testing.assert_array_equal(points.read(0, 3, ["x"])["x"], np.array(values, dtype=dtype))
    np.testing.assert_array_equal(
        points.take("x", np.array([2])), np.array(values[2:], dtype=dtype)
    )


def test_dates_in_memory() -> None:
    days = [datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)]
    points = ModelPoints(
        {
            "object": np.array(days, dtype=object),
            "numpy": np.array(days, dtype="datetime64[D]"),
            "arrow": pd.array(days, dtype=pd.ArrowDtype(pa.date32())),
            "delta": np.array([1, 2], dtype="timedelta64[D]"),
        }
    )
    for name in ("object", "numpy", "arrow"):
        assert points.schema(name).dtype == np.dtype("datetime64[D]")
        assert points.values(name).tolist() == days
    assert points.schema("delta").dtype == np.dtype("timedelta64[D]")


@pytest.mark.parametrize(
    "data",
    [
        np.array(["b", "a", "b"]),
        np.array(["b", "a", "b"], dtype=object),
        np.array(["b", "a", "b"], dtype=np.dtypes.StringDType()),
        pd.Series(["b", "a", "b"]),
        pd.array(["b", "a", "b"], dtype="string[python]"),
        pd.array(["b", "a", "b"], dtype="string[pyarrow]"),
        pd.array(["b", "a", "b"], dtype=pd.ArrowDtype(pa.string())),
        pd.array(["b", "a", "b"], dtype=pd.ArrowDtype(pa.dictionary(pa.int8(), pa.string()))),
        pd.Categorical(["b", "a", "b"], categories=["z", "b", "a"], ordered=True),
        ["b", "a", "b"],
    ],
    ids=lambda data: str(getattr(data, "dtype", "list")),
)
def test_text_in_memory(data: object) -> None:
    points = ModelPoints({"x": data})
    assert points.schema("x").categories.tolist() == ["a", "b"]
    assert points.schema("x").dtype == np.int32
    assert points.schema("x").is_text
    assert points.read(0, 3, ["x"])["x"].tolist() == [1, 0, 1]
    assert all(type(text) is str for text in points.schema("x").categories)
    assert points.frame()["x"].tolist() == ["b", "a", "b"]
    assert points["x"].compute(scheduler="synchronous").tolist() == ["b", "a", "b"]


NULLS = {
    "None in text": (np.array(["a", None], dtype=object), "df['x'].fillna('')"),
    "NaN in text": (pd.Series(["a", np.nan], dtype=object), "fillna('')"),
    "str": (pd.Series(["a", None]), "fillna('')"),
    "Int64": (pd.array([1, None], dtype="Int64"), "fillna(0)"),
    "boolean": (pd.array([True, None], dtype="boolean"), "fillna(False)"),
    "category": (pd.Categorical(["a", None]), "fillna('')"),
    "number category": (pd.Categorical([1, None]), "fillna"),
    "arrow": (pd.array([1.5, None], dtype="float64[pyarrow]"), "fillna(0.0)"),
    "NaT": (np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"), "fillna"),
    "masked": (np.ma.masked_array([1, 2], mask=[False, True]), "fillna(0)"),
    "None among floats": (np.array([1.5, None], dtype=object), "fillna(0.0)"),
    "None among ints": ([1, None], "fillna(0)"),
}


@pytest.mark.parametrize("kind", NULLS)
def test_nulls_in_memory_are_errors_when_used(kind: str) -> None:
    data, remedy = NULLS[kind]
    points = ModelPoints({"x": data, "ok": [1, 2]})
    assert points.values("ok").tolist() == [1, 2]
    with pytest.raises(DataError, match="column 'x' has a null, first in row 1") as caught:
        points.read(0, 2, ["x"])
    assert remedy in str(caught.value)
    assert caught.value.column == "x"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (np.array([b"a", b"b"]), "S1"),
        (np.array([1j, 2j]), "complex128"),
        (np.array([[1, 2], "a"], dtype=object), "object"),
        (["a", 1], "object (mixed"),
        (pd.Series([(1,), (2,)]), "object"),
        (pd.Series(pd.date_range("2020", periods=2, tz="UTC")), "UTC"),
        (pd.Series(pd.period_range("2020", periods=2)), "period"),
        (pd.array([[1], [2]], dtype=pd.ArrowDtype(pa.list_(pa.int64()))), "list"),
        (pd.array([b"a", b"b"], dtype=pd.ArrowDtype(pa.binary())), "binary"),
    ],
)
def test_other_types_are_errors_when_used(data: object, name: str) -> None:
    points = ModelPoints({"x": data, "ok": [1, 2]})
    assert points.values("ok").tolist() == [1, 2]
    with pytest.raises(DataError, match="column 'x' is of type") as caught:
        points.schema("x")
    assert name in str(caught.value)


def test_integers_beyond_int64() -> None:
    points = ModelPoints({"x": np.array([1, 2**63], dtype="uint64")})
    with pytest.raises(DataError, match=r"holds 9223372036854775808 in row 1") as caught:
        points.read(1, 2, ["x"])
    assert "as text" in str(caught.value)


def test_text_with_many_values_stays_text(tmp_path: Path) -> None:
    rows = MAX_CATEGORIES + 1
    ids = np.array([f"p{i:06}" for i in range(rows)], dtype=object)
    pd.DataFrame({"id": ids}).to_parquet(tmp_path / "a.parquet", row_group_size=10_000)
    for points in (ModelPoints({"id": ids}), ModelPoints(tmp_path), ModelPoints(tmp_path).loaded()):
        assert points.schema("id").categories is None
        assert points.schema("id").dtype == object
        assert points.schema("id").is_text
        assert not points.categorical("id")
        assert points.read(65_530, rows, ["id"])["id"].tolist() == ids[65_530:].tolist()
        assert points.take("id", np.array([1, 20_000])).tolist() == ["p000001", "p020000"]
        assert points.values("id")[-1] == ids[-1]
        assert not points.read(0, 5, ["id"])["id"].flags.writeable
    points = ModelPoints({"id": ids[:-1]})
    assert len(points.schema("id").categories) == MAX_CATEGORIES


# --- wrong data ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pd.DataFrame({"x": []}), "no rows"),
        ({"x": np.array([])}, "no rows"),
        (pd.DataFrame(), "no rows"),
        ({}, "no columns"),
        (pd.DataFrame([[1, 2]]), "column name 0 is int"),
        ({1: [1]}, "column name 1 is int"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "column 'a' occurs twice"),
        ({"a": [1, 2], "b": [1]}, "'a' has 2 rows, 'b' has 1"),
        ({"a": [1, 2], "b": 5}, "column 'b' is builtins.int with 0 dimensions"),
        ({"a": [1, 2], "b": "xy"}, "column 'b' is builtins.str"),
        ({"a": np.zeros((2, 2, 2))}, "with 3 dimensions"),
        (42, "model points given as builtins.int"),
        ([], "model points given as builtins.list"),
        (None, "NoneType"),
    ],
)
def test_malformed_data(data: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ModelPoints(data)


def test_scalar_record() -> None:
    assert is_scalar_record({"age": 30, "sex": "M", "sum": np.float64(1.0)})
    assert is_scalar_record({"born": datetime.date(1980, 1, 1), "end": None})
    assert not is_scalar_record({"age": [30]})
    assert not is_scalar_record({"nested": {"age": 30}})
    assert not is_scalar_record({"age": 30, "x": np.array([1])})
    assert not is_scalar_record({})
    assert not is_scalar_record(pd.DataFrame({"x": [1]}))


# --- Parquet -------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_range_of_any_files(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = data.draw(st.integers(1, 60), "rows")
    cuts = data.draw(st.lists(st.integers(0, rows), max_size=4), "cuts")
    group_rows = data.draw(st.integers(1, 20), "group_rows")
    batch_rows = data.draw(st.integers(1, 9), "batch_rows")
    frame = portfolio(rows, seed=rows)
    path = tmp_path_factory.mktemp("any")
    write(frame, path, cuts, group_rows)
    points = ModelPoints(path)
    whole = ModelPoints(frame)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_module, "BATCH_ROWS", batch_rows)
        for _ in range(6):
            start = data.draw(st.integers(0, rows))
            stop = data.draw(st.integers(start, rows))
            columns = data.draw(st.lists(st.sampled_from(list(frame.columns)), unique=True))
            read = points.read(start, stop, columns)
            right = whole.read(start, stop, columns)
            assert list(read) == list(right) == columns
            for name in columns:
                np.testing.assert_array_equal(read[name], right[name])
        n = data.draw(st.integers(1, rows))
        positions = points.sample_positions(n)
        assert len(np.unique(positions)) == n
        for name in ("policy", "sex"):
            np.testing.assert_array_equal(points.take(name, positions), whole.take(name, positions))


def test_threads_read_one_source_at_once(
    folder: Path, frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_module, "BATCH_ROWS", 97)
    points = ModelPoints(folder)
    right = ModelPoints(frame).read(0, 5000, frame.columns)
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(15):
                start = int(rng.integers(0, 5000))
                stop = int(rng.integers(start, min(5000, start + 1500) + 1))
                for name, array in points.read(start, stop, ["sex", "policy", "product"]).items():
                    np.testing.assert_array_equal(array, right[name][start:stop])
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(points._source._pool._kept) <= 6
    points.release()
    assert points._source._pool._kept == []


def test_one_giant_row_group_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_module, "BATCH_ROWS", 100)
    frame = portfolio(3000)
    frame.to_parquet(tmp_path / "a.parquet", row_group_size=3000)
    points = ModelPoints(tmp_path)
    opened = []
    open_stream = parquet_module.ParquetSource._open
    monkeypatch.setattr(
        parquet_module.ParquetSource,
        "_open",
        lambda self, *args: opened.append(args) or open_stream(self, *args),
    )
    got = [points.read(s, s + 150, ["policy"])["policy"] for s in range(0, 3000, 150)]
    assert np.concatenate(got).tolist() == list(range(3000))
    assert len(opened) == 1
    # Back to the start, and a jump ahead.
    assert points.read(0, 2, ["policy"])["policy"].tolist() == [0, 1]
    assert points.read(2500, 2502, ["policy"])["policy"].tolist() == [2500, 2501]
    assert len(opened) == 2


def test_kept_streams_do_not_add_up(folder: Path) -> None:
    points = ModelPoints(folder)
    for start in (0, 3000, 100, 4000, 300):
        for columns in (["age"], ["age", "sex"], ["policy"]):
            points.read(start, start + 10, columns)
            assert len(points._source._pool._kept) <= 1


def test_only_the_columns_asked_for_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = pq.ParquetFile.iter_batches

    def spy(self: object, *args: object, **kwargs: object) -> object:
        seen.append((kwargs["columns"], kwargs["row_groups"], kwargs["use_threads"]))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    points = ModelPoints(folder)
    points.schema("age")
    assert seen == []
    points.read(800, 900, ["age", "smoker"])
    assert seen == [(["age", "smoker"], [1], False)]
    points.schema("sex")
    points.schema("sex")
    assert [entry[0] for entry in seen[1:]] == [["sex"]] * 4  # one pass over four files with rows


def test_order_of_files(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        pd.DataFrame({"x": [name]}).to_parquet(tmp_path / f"{name}.parquet")
    (tmp_path / "_metadata.parquet").write_text("no")
    (tmp_path / ".hidden.parquet").write_text("no")
    (tmp_path / "readme.txt").write_text("no")
    inner = tmp_path / "inner"
    inner.mkdir()
    pd.DataFrame({"x": ["d"]}).to_parquet(inner / "0.parquet")

    def order(data: object) -> list[str]:
        return ModelPoints(data).frame()["x"].tolist()

    a, b = str(tmp_path / "a.parquet"), tmp_path / "b.parquet"
    assert order(tmp_path) == ["a", "b", "c", "d"]
    assert order(tmp_path / "[ab].parquet") == ["a", "b"]
    assert order(str(tmp_path / "**/*.parquet")) == ["a", "b", "c", "d"]
    assert order([b, a]) == ["b", "a"]
    assert order((str(inner), a)) == ["d", "a"]
    assert order(b) == ["b"]


def test_paths_without_parquet(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no Parquet file at"):
        ModelPoints(tmp_path / "none.parquet")
    with pytest.raises(DataError, match="no Parquet file at"):
        ModelPoints(str(tmp_path / "*.parquet"))
    with pytest.raises(DataError, match="no Parquet file in directory"):
        ModelPoints(tmp_path)
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match="cannot read the Parquet footer") as caught:
        ModelPoints(broken)
    assert caught.value.file == str(broken)
    with pytest.raises(DataError, match="is empty"):
        ModelPoints("")


def test_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    portfolio(1000).to_parquet(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError) as caught:
        ModelPoints(path)
    assert str(path) in str(caught.value)


def test_damaged_pages_and_changed_files(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    portfolio(1000).to_parquet(path)
    points = ModelPoints(path)
    good = path.read_bytes()
    path.write_bytes(good + b"x")
    with pytest.raises(DataError, match="has changed since its footer was read"):
        points.read(0, 10, ["age"])
    path.write_bytes(good[:4] + b"\xff" * 200 + good[204:])
    with pytest.raises(DataError, match="cannot read the Parquet file") as caught:
        ModelPoints(path).read(0, 10, ["age"])
    assert str(path) in str(caught.value)


def test_all_files_empty(tmp_path: Path) -> None:
    portfolio(5).iloc[:0].to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="have no rows"):
        ModelPoints(tmp_path)


def test_empty_files_and_row_groups_are_fine(tmp_path: Path) -> None:
    pd.DataFrame({"y": []}).to_parquet(tmp_path / "0.parquet")  # even of another schema
    table = pa.table({"x": [1, 2, 3]})
    with pq.ParquetWriter(tmp_path / "1.parquet", table.schema) as writer:
        for part in (table.slice(0, 0), table.slice(0, 2), table.slice(0, 0), table.slice(2)):
            writer.write_table(part)
    pd.DataFrame({"x": []}, dtype="object").to_parquet(tmp_path / "2.parquet")
    points = ModelPoints(tmp_path)
    assert points.columns == ("x",)
    assert points.values("x").tolist() == [1, 2, 3]
    assert points.sample_positions(9).tolist() == [0, 1, 2]


def test_differing_schemas(tmp_path: Path) -> None:
    a, b = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pd.DataFrame({"x": ["1"], "y": [1]}).to_parquet(a)
    pd.DataFrame({"x": [1.5], "y": [2]}).to_parquet(b)
    points = ModelPoints(tmp_path)
    assert points.values("y").tolist() == [1, 2]
    with pytest.raises(
        DataError, match=r"different types for column 'x': .*string in .*, double in"
    ) as caught:
        points.schema("x")
    assert caught.value.file == str(b)
    assert caught.value.column == "x"
    for frame, name, lacks in (
        (pd.DataFrame({"x": ["1"]}), "y", b),
        (pd.DataFrame({"x": ["1"], "y": [1], "z": [1]}), "z", a),
    ):
        frame.to_parquet(b)
        points = ModelPoints(tmp_path)
        assert len(points.values("x")) == 2
        with pytest.raises(DataError, match=f"different columns: '{name}'") as caught:
            points.read(0, 1, [name])
        assert caught.value.column == name
        assert caught.value.file == str(lacks)
    # What widening makes equal is no difference, nor is the order of columns.
    pd.DataFrame({"x": [1], "y": [1]}).to_parquet(a)
    pd.DataFrame({"y": [2], "x": [7]}, dtype="int8").to_parquet(b)
    assert ModelPoints(tmp_path).values("x").tolist() == [1, 7]


def test_text_encodings_may_differ_among_files(tmp_path: Path) -> None:
    for number, kind in enumerate(
        [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string()), pa.string_view()]
    ):
        column = pa.array(["v", "u", f"w{number}"]).cast(kind)
        pq.write_table(pa.table({"x": column}), tmp_path / f"{number}.parquet")
    points = ModelPoints(tmp_path)
    assert points.schema("x").categories.tolist() == ["u", "v", "w0", "w1", "w2", "w3"]
    assert points.frame()["x"].tolist() == [
        "v",
        "u",
        "w0",
        "v",
        "u",
        "w1",
        "v",
        "u",
        "w2",
        "v",
        "u",
        "w3",
    ]


def test_null_column_of_one_file(tmp_path: Path) -> None:
    pd.DataFrame({"x": [None], "y": [1]}).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"x": ["u"], "y": [2]}).to_parquet(tmp_path / "b.parquet")
    points = ModelPoints(tmp_path)
    assert points.values("y").tolist() == [1, 2]
    with pytest.raises(DataError, match="column 'x' has a null, first in row 0"):
        points.schema("x")
    with pytest.raises(DataError, match="column 'x' has a null, first in row 0"):
        ModelPoints(tmp_path / "a.parquet").schema("x")


@pytest.mark.parametrize(
    ("values", "kind", "remedy"),
    [
        ([1, None], pa.int64(), "fillna(0)"),
        ([1.0, None], pa.float64(), "writes NaN as null"),
        ([True, None], pa.bool_(), "fillna(False)"),
        (["a", None], pa.string(), "fillna('')"),
        (["a", None], pa.dictionary(pa.int32(), pa.string()), "fillna('')"),
        ([1, None], pa.dictionary(pa.int32(), pa.int64()), "fillna(0)"),
        ([datetime.date(2020, 1, 1), None], pa.date32(), "fillna"),
    ],
)
@pytest.mark.parametrize("statistics", [True, False])
def test_nulls_in_parquet(
    tmp_path: Path, values: list[object], kind: pa.DataType, remedy: str, statistics: bool
) -> None:
    good = pa.table({"x": pa.array(values[:1] * 3, type=kind), "y": [0, 1, 2]})
    bad = pa.table({"x": pa.array([*values[:1], *values], type=kind), "y": [3, 4, 5]})
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, good.schema, write_statistics=statistics) as writer:
        writer.write_table(good)
        writer.write_table(bad)
    points = ModelPoints(path)
    assert points.values("y").tolist() == list(range(6))
    with pytest.raises(DataError, match="column 'x' has a null, first in row 5") as caught:
        points.read(3, 6, ["x"])
    assert caught.value.column == "x"
    assert caught.value.file == f"{path}, row group 1"
    assert remedy in str(caught.value)
    if statistics:
        # Known from the footer, so that it is said before any work.
        with pytest.raises(DataError, match="column 'x' has a null, first in row 5"):
            points.schema("x")
    loaded = points.loaded()
    assert loaded.columns == ("x", "y") or not statistics


def test_nan_is_a_value(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1.0, float("nan")])}), tmp_path / "a.parquet")
    for points in (ModelPoints(tmp_path), ModelPoints(pd.DataFrame({"x": [1.0, np.nan]}))):
        np.testing.assert_array_equal(points.values("x"), [1.0, np.nan])


def test_arrow_types(tmp_path: Path) -> None:
    day = datetime.date(2020, 2, 3)
    noon = datetime.datetime(2020, 2, 3, 12)
    columns = {
        "decimal": (pa.array([decimal.Decimal("1.25")], pa.decimal128(9, 2)), "float64", 1.25),
        "half": (pa.array(np.array([1.5], "float16")), "float64", 1.5),
        "uint64": (pa.array([5], pa.uint64()), "int64", 5),
        "numbers": (pa.array([7]).dictionary_encode(), "int64", 7),
        "day": (pa.array([day]), "datetime64[D]", day),
        "time": (pa.array([noon], pa.timestamp("ms")), "datetime64[ms]", noon),
        "duration": (
            pa.array([3], pa.duration("s")),
            "timedelta64[s]",
            datetime.timedelta(seconds=3),
        ),
        "a.dotted name": (pa.array([4]), "int64", 4),
    }
    odd = {
        "list": pa.array([[1]]),
        "struct": pa.array([{"u": 1}]),
        "bytes": pa.array([b"a"]),
        "zoned": pa.array([noon], pa.timestamp("us", tz="UTC")),
        "clock": pa.array([noon.time()]),
    }
    table = pa.table({name: entry[0] for name, entry in columns.items()} | odd)
    pq.write_table(table, tmp_path / "a.parquet")
    points = ModelPoints(tmp_path)
    for name, (_, dtype, value) in columns.items():
        assert points.schema(name).dtype == np.dtype(dtype), name
        assert points.values(name).tolist() == [value]
    read = points.read(0, 1, list(columns))
    assert [array.tolist()[0] for array in read.values()] == [
        entry[2] for entry in columns.values()
    ]
    for name in odd:
        with pytest.raises(DataError, match=f"column '{name}' is of type"):
            points.schema(name)
    loaded = points.loaded()
    assert loaded.in_memory
    assert loaded.values("decimal").tolist() == [1.25]
    with pytest.raises(DataError, match="column 'list' is of type list"):
        loaded.schema("list")
    with pytest.raises(DataError, match="column 'list' is of type list"):
        pickle.loads(pickle.dumps(loaded)).schema("list")
    assert ModelPoints(tmp_path).loaded(["half"]).columns == ("half",)


def test_uint64_beyond_int64_in_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1, 2**63], pa.uint64())}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="9223372036854775808 in row 1") as caught:
        ModelPoints(tmp_path).values("x")
    assert "row group 0" in str(caught.value)


def test_duplicate_columns_in_a_file(tmp_path: Path) -> None:
    pq.write_table(
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"]), tmp_path / "a.parquet"
    )
    with pytest.raises(DataError, match="column 'x' occurs twice"):
        ModelPoints(tmp_path)


def test_token_follows_the_files(tmp_path: Path, folder: Path) -> None:
    assert ModelPoints(folder).token() == ModelPoints(str(folder / "*.parquet")).token()
    path = tmp_path / "a.parquet"
    pd.DataFrame({"x": [1]}).to_parquet(path)
    before = ModelPoints(path)
    first = before["x"].name
    assert ModelPoints(path)["x"].name == first
    pd.DataFrame({"x": [1, 2]}).to_parquet(path)
    assert ModelPoints(path).token() != before.token()


def test_sample_of_many_row_groups_opens_few(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(40_000)})
    frame.to_parquet(tmp_path / "a.parquet", row_group_size=1000)
    positions = ModelPoints(tmp_path).sample_positions(1496)
    groups = np.unique(positions // 1000)
    assert len(positions) == 1496
    assert len(groups) == 8
    assert groups[0] == 0
    assert groups[-1] == 39
    # Tiny row groups: more of them, so that the sample has its size.
    frame.iloc[:4000].to_parquet(tmp_path / "a.parquet", row_group_size=10)
    assert len(ModelPoints(tmp_path).sample_positions(1496)) == 1496


def measured_frame(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "x": rng.random(rows),
            "n": rng.integers(0, 9, rows),
            "sex": rng.choice(["M", "F"], rows),
            "code": rng.integers(0, 20_000, rows).astype(str),
        }
    )


@pytest.mark.parametrize("group_rows", [20_000, 400_000])
def test_read_bytes_bounds_what_arrow_and_numpy_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_rows: int
) -> None:
    frame = measured_frame(400_000)
    columns = list(frame.columns)
    frame.to_parquet(tmp_path / "a.parquet", row_group_size=group_rows)
    points = ModelPoints(tmp_path)
    bound = points.read_bytes(columns, 50_000)
    before = pa.total_allocated_bytes()
    seen = []
    original = streams_module.Stream.next

    def spy(self: object, most: int) -> object:
        result = original(self, most)
        seen.append(pa.total_allocated_bytes() - before)
        return result

    monkeypatch.setattr(streams_module.Stream, "next", spy)
    for start in range(0, len(frame), 50_000):
        points.read(start, start + 50_000, columns)
    assert max(seen) + 50_000 * points.nbytes_per_row(columns) <= bound
    points.release()
    # What stays are the categories.
    assert pa.total_allocated_bytes() - before < 1_000_000


MEASURE = """
import resource, sys
from hl_dask.points import ModelPoints

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

points = ModelPoints(sys.argv[1])
columns = ["x", "n", "sex", "code"]
bound = points.read_bytes(columns, 300_000)
before = peak()
for start in range(0, points.rows, 300_000):
    read = points.read(start, min(points.rows, start + 300_000), columns)
    del read
print(peak() - before, bound)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in bytes elsewhere")
@pytest.mark.parametrize("group_rows", [65_536, 3_000_000])
def test_read_bytes_bounds_the_resident_size(tmp_path: Path, group_rows: int) -> None:
    path = tmp_path / "a.parquet"
    measured_frame(3_000_000).to_parquet(path, row_group_size=group_rows)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    measured, bound = map(int, done.stdout.split())
    assert measured <= bound
