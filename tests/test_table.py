"""Look-up tables, every kind against a plain dictionary, and every mistake seen elsewhere."""

import copy
import io
import itertools
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hl_dask.errors import DataError, LookupKeyError, ModelError
from hl_dask.table import ArrayTable, BoundTable, Table, lookup

AGES, DURATIONS, TERMS, SEXES, BANDS = (
    range(18, 61),
    range(6),
    (10, 15, 20),
    "FM",
    (1e3, 5e4, np.inf),
)


def long_frame(seed: int = 0) -> pd.DataFrame:
    keys = list(itertools.product(AGES, DURATIONS, TERMS, SEXES, BANDS))
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        keys, columns=["age|int", "dur|int_bound", "term|int_cat", "sex|str", "size|band"]
    )
    frame["rate"] = rng.random(len(frame))
    return frame.iloc[rng.permutation(len(frame))]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return long_frame()


@pytest.fixture(scope="module")
def table(frame: pd.DataFrame) -> Table:
    return Table(frame)


def brute(frame: pd.DataFrame, age: int, dur: int, term: int, sex: str, size: float) -> float:
    rates = {tuple(row[:-1]): row[-1] for row in frame.itertuples(index=False)}
    band = min(bound for bound in BANDS if size <= bound)
    return rates[age, min(max(dur, 0), 5), term, sex, band]


def keys(rows: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(rows)
    return (
        rng.integers(18, 61, rows),
        rng.integers(-3, 40, rows),
        rng.choice(TERMS, rows),
        rng.choice(list(SEXES), rows),
        rng.choice([0, 1e3, 1000.5, 5e4, 7e9], rows),
    )


# --- right values --------------------------------------------------------------------------------


def test_every_kind_against_brute_force(frame: pd.DataFrame, table: Table) -> None:
    columns = keys(300)
    right = [brute(frame, *row) for row in zip(*(c.tolist() for c in columns), strict=True)]
    assert table[columns].tolist() == right
    assert table.get(*columns).tolist() == right
    text = columns[3]
    for sex in (
        text.astype(object),
        text.tolist(),
        pd.Series(text),
        pd.Series(text, dtype="category"),
        pd.Categorical(text, categories=["M", "unused", "F"]),
        pd.array(text, dtype="string"),
        text.astype(np.dtypes.StringDType()),
    ):
        assert table[columns[0], columns[1], columns[2], sex, columns[4]].tolist() == right
    scalar = table[30, 2, 10, "M", 5.0]
    assert isinstance(scalar, np.float64)
    assert scalar == brute(frame, 30, 2, 10, "M", 5.0)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_tables_against_a_dictionary(data: st.DataObject) -> None:
    kinds = data.draw(
        st.lists(
            st.sampled_from(["int", "int_bound", "int_cat", "str", "band"]), min_size=1, max_size=3
        )
    )
    integers = st.integers(-(2**40), 2**40) | st.integers(-20, 20)
    axes: list[list] = []
    for kind in kinds:
        if kind in ("int", "int_bound"):
            low = data.draw(integers)
            axes.append(list(range(low, low + data.draw(st.integers(1, 5)))))
        elif kind == "int_cat":
            axes.append(data.draw(st.lists(integers, min_size=1, max_size=5, unique=True)))
        elif kind == "str":
            axes.append(
                data.draw(st.lists(st.text(max_size=3), min_size=1, max_size=5, unique=True))
            )
        else:
            numbers = st.floats(-1e6, 1e6) | st.just(np.inf)
            axes.append(sorted(data.draw(st.lists(numbers, min_size=1, max_size=5, unique=True))))
    rows = data.draw(st.permutations(list(itertools.product(*axes))))
    names = [f"k{at}|{kind}" for at, kind in enumerate(kinds)]
    frame = pd.DataFrame(rows, columns=names)
    frame["value"] = np.arange(len(rows)) * 0.5
    before = frame.copy()
    table = pickle.loads(pickle.dumps(Table(frame)))
    pd.testing.assert_frame_equal(frame, before)
    values = dict(zip(rows, frame["value"], strict=True))

    picked, found = [], []
    for _ in range(4):
        row = [data.draw(st.sampled_from(axis)) for axis in axes]
        key = list(row)
        for at, kind in enumerate(kinds):
            if kind == "int_bound" and row[at] == axes[at][-1]:
                key[at] += data.draw(st.integers(0, 9))
            if kind == "band" and np.isfinite(row[at]):
                lower = max((b for b in axes[at] if b < row[at]), default=row[at] - 1)
                key[at] = data.draw(st.sampled_from([row[at], np.nextafter(lower, row[at])]))
        picked.append(key)
        found.append(values[tuple(row)])
        assert table[tuple(key)] == found[-1]
    columns = [
        np.array(column, dtype=object if kind == "str" else None)
        for kind, column in zip(kinds, zip(*picked, strict=True), strict=True)
    ]
    assert table.get(*columns).tolist() == found


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint64", "float16", "float64"]
)
def test_no_wrap_on_any_dtype(dtype: str) -> None:
    # 100 x 7 x 300 values: positions far beyond int8 and int16.
    frame = pd.DataFrame(
        list(itertools.product(range(20, 120), range(7), [3, 100, 120])),
        columns=["age|int", "dur|int_bound", "cat|int_cat"],
    )
    frame["v"] = np.arange(len(frame))
    table = Table(frame)
    age, dur, cat = (np.array(x, dtype=dtype) for x in ([20, 119, 64], [0, 6, 100], [3, 100, 120]))
    right = [0, (99 * 7 + 6) * 3 + 1, (44 * 7 + 6) * 3 + 2]
    assert table[age, dur, cat].tolist() == right
    assert lookup(np.arange(40_000), np.array([0, 127], "int8")).tolist() == [0, 127]
    assert int(table[age[1], dur[1], cat[1]]) == right[1]


def test_broadcasting_as_numpy_does(table: Table, frame: pd.DataFrame) -> None:
    age = np.arange(18, 22)
    flat = table[age, 0, 10, "F", 1.0]
    assert flat.shape == (4,)
    wide = table[age[:, None], np.arange(3), 10, "F", 1.0]
    assert wide.shape == (4, 3)
    assert (wide[:, 0] == flat).all()
    assert table[20, np.arange(3)[:, None], np.array([10, 15]), "F", 1.0].shape == (3, 2)
    text = np.array([["F", "M"], ["M", "F"]])
    assert table[20, 0, 10, text, 1.0].tolist() == [
        [brute(frame, 20, 0, 10, sex, 1.0) for sex in row] for row in text
    ]
    assert table[np.array([], dtype=int), 0, 10, "F", 1.0].shape == (0,)
    assert table[np.array(20), 0, 10, np.array("F"), 1.0] == flat[2]
    with pytest.raises(ValueError, match="broadcast"):
        table[age, np.arange(3), 10, "F", 1.0]


def test_one_key_and_negative_integers() -> None:
    table = Table(pd.DataFrame({"t|int": [-1, 1, 0], "v": [9, 11, 10]}))
    assert table[-1] == 9
    assert table[np.array([1, -1, 0])].tolist() == [11, 9, 10]
    assert table[[1, 0]].tolist() == [11, 10]
    assert table.dtype == np.int64
    assert isinstance(table[0], np.int64)
    assert table.get(1.0) == 11


def test_text_and_bool_values() -> None:
    keyed = pd.DataFrame({"p|str": ["a", "b"], "q": ["x", "y"]})
    table = Table(keyed)
    assert table["b"] == "y"
    assert table[["b", "a", "b"]].tolist() == ["y", "x", "y"]
    assert table.dtype == object
    flags = Table(pd.DataFrame({"p|str": ["a", "b"], "q": [True, False]}))
    assert flags.dtype == bool
    assert flags[["b", "a"]].tolist() == [False, True]
    assert Table(pd.DataFrame({"p|str": ["a", "b"], "q": pd.Categorical(["u", "w"])}))["a"] == "u"
    assert Table(pd.DataFrame({"p|str": ["a"], "q": np.array([1], "int8")})).dtype == np.int64
    with pytest.raises(DataError, match="null"):
        Table(pd.DataFrame({"p|str": ["a", "b"], "q": ["x", None]}))


def test_facts_about_a_table(table: Table) -> None:
    assert table.key_names == ("age", "dur", "term", "sex", "size")
    assert table.key_kinds == ("int", "int_bound", "int_cat", "str", "band")
    assert table.shape == (43, 6, 3, 2, 3)
    assert table.nbytes == 43 * 6 * 3 * 2 * 3 * 8
    assert table.name == "rate"
    assert repr(table).startswith("<Table 'rate': age|int (18 to 60), dur|int_bound (0 to 5)")
    assert Table(long_frame(), name="mortality").name == "mortality"


def test_large_and_wide_integer_categories() -> None:
    wide = [-(2**50), 0, 7, 2**50]
    table = Table(pd.DataFrame({"k|int_cat": wide, "v": range(4)}))
    assert table[np.array(wide[::-1])].tolist() == [3, 2, 1, 0]
    for missing in (1, -1, 2**50 - 1, 2**51, -(2**51)):
        with pytest.raises(LookupKeyError, match=str(missing)):
            table[np.array([0, missing])]
    far = Table(pd.DataFrame({"k|int": [2**60, 2**60 + 1], "v": [5, 6]}))
    assert far[np.array([2**60 + 1])].tolist() == [6]


# --- keys that are not there ---------------------------------------------------------------------

OK = (30, 0, 10, "M", 1.0)
BAD = {
    "below": (0, 17, "has no 'age' = 17; valid (int): 18 to 60", "age|int_bound"),
    "above": (0, np.array([30, 61, 99]), "'age' = 61, 99; 2 of 3 keys, first at row 1", "add rows"),
    "2-D": (0, np.array([[30, 61]]), "first at index (0, 1)", "add rows"),
    "uint64": (0, np.array([2**64 - 1], "uint64"), "18446744073709551615", "add rows"),
    "huge": (0, 2**70, "1180591620717411303424", "valid: 18 to 60"),
    "not whole": (0, np.array([30, 30.5]), "is no whole number: 30.5", "round"),
    "NaN": (0, np.array([30, np.nan]), "is a missing value (NaN)", "fill"),
    "infinite": (0, np.inf, "is no whole number: inf", "round"),
    "bool": (0, True, "takes integers, got bool True", "convert"),
    "bool array": (0, np.array([True]), "takes integers, got bool", "convert"),
    "text": (0, "30", "takes integers, got object", "convert"),
    "text array": (0, ["30", "31"], "takes integers, got object", "convert"),
    "None": (0, None, "key 'age' (int) is None", "valid: 18 to 60"),
    "pandas NA": (0, pd.array([30, None], dtype="Int64"), "null, first in row 1", "fill"),
    "date": (0, np.datetime64("2020-01-01"), "takes integers, got datetime64", "convert"),
    "slice": (0, slice(3), "is slice", "valid"),
    "float bound": (1, 2.5, "'dur' (int_bound) is no whole number", "round"),
    "NaN bound": (1, np.nan, "missing value", "fill"),
    "category": (2, 12, "has no 'term' = 12; valid (int_cat): 10, 15, 20", "add rows"),
    "categories": (2, np.array([10, 25, 5]), "'term' = 25, 5; 2 of 3", "add rows"),
    "category NaN": (2, np.nan, "missing value", "fill"),
    "string": (3, "Male", "has no 'sex' = 'Male'; valid (str): 'F', 'M'", "mend"),
    "string lower": (3, np.array(["M", "m"]), "'sex' = 'm'; 1 of 2 keys, first at row 1", "mend"),
    "string object": (3, np.array(["M", "G"], object), "has no 'sex' = 'G'", "mend"),
    "string category": (3, pd.Categorical(["M", "G"]), "has no 'sex' = 'G'", "mend"),
    "string empty": (3, "", "has no 'sex' = ''", "mend"),
    "string null": (3, ["M", None], "null, first in row 1", "fillna"),
    "number for text": (3, 1, "takes text, got int64", "convert"),
    "numbers for text": (3, np.array([1.5]), "takes text, got float64", "convert"),
    "band NaN": (
        4,
        np.array([1.0, np.nan]),
        "NaN (a missing value); 1 of 2 keys, first at row 1",
        "fill",
    ),
    "band text": (4, "big", "takes numbers, got object", "convert"),
    "band bool": (4, True, "takes numbers, got bool", "convert"),
}


@pytest.mark.parametrize("case", BAD)
def test_unknown_keys_raise_and_name_the_key(table: Table, case: str) -> None:
    at, key, message, remedy = BAD[case]
    asked = [*OK[:at], key, *OK[at + 1 :]]
    with pytest.raises(LookupKeyError) as caught:
        table[tuple(asked)]
    text = str(caught.value)
    assert message in text
    assert "table 'rate'" in text
    assert remedy in text
    assert caught.value.column == table.key_names[at]
    assert isinstance(caught.value, KeyError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def test_above_the_top_band() -> None:
    table = Table(pd.DataFrame({"size|band": [10, 20.0], "v": [1, 2]}))
    assert table[np.array([-5, 10, 10.5, 20])].tolist() == [1, 1, 2, 2]
    with pytest.raises(
        LookupKeyError, match=r"has no 'size' = 20.5; 1 of 2 .* up to 20; upper bounds 10.0, 20.0"
    ) as caught:
        table[np.array([20.5, 3])]
    assert "inf" in str(caught.value)
    with pytest.raises(LookupKeyError, match="inf"):
        table[np.inf]


def test_near_matches_of_strings() -> None:
    products = ["term", "whole life", "endowment"]
    table = Table(pd.DataFrame({"product|str": products, "v": range(3)}))
    with pytest.raises(LookupKeyError, match="near matches: 'whole life'"):
        table["whole lif"]


def test_a_string_between_two_others_is_not_its_neighbour() -> None:
    table = Table(pd.DataFrame({"k|str": ["a", "c"], "v": [1, 3]}))
    for key in ("b", "", "A", "d", "a ", "aa"):
        with pytest.raises(LookupKeyError):
            table[key]
        with pytest.raises(LookupKeyError):
            table[np.array(["a", key])]
        with pytest.raises(LookupKeyError):
            table[np.array(["a", key], dtype=object)]


def test_number_of_keys(table: Table) -> None:
    for asked in ((30,), OK[:-1], (*OK, 1)):
        with pytest.raises(ModelError, match=f"with {len(asked)} keys; expected 5: age, dur, term"):
            table.get(*asked)
    with pytest.raises(ModelError, match="with 0 keys"):
        table.get()


# --- building ------------------------------------------------------------------------------------


def build(**columns: object) -> Table:
    return Table(pd.DataFrame({name.replace("__", "|"): data for name, data in columns.items()}))


@pytest.mark.parametrize(
    ("columns", "message", "remedy"),
    [
        ({"k__int": [1, 2, 2], "v": [1, 2, 3]}, r"more than one row for \(k\|int=2\)", "one row"),
        # As many duplicates as gaps: the number of rows is right, the table is not.
        (
            {"a__int": [1, 1, 2, 2], "s__str": ["x", "x", "y", "x"], "v": [1, 2, 3, 4]},
            r"more than one row for \(a\|int=1, s\|str='x'\)",
            "one row",
        ),
        (
            {"a__int": [1, 1, 2], "s__str": ["x", "y", "x"], "v": [1, 2, 3]},
            r"no row for 1 combinations of its keys: \(a\|int=2, s\|str='y'\)",
            "Table.rectify",
        ),
        (
            {"k__int": [1, 2, 4], "v": [1, 2, 3]},
            "has a gap: 3 is missing between 2 and 4",
            r"k\|int_cat",
        ),
        ({"k__int_bound": [1, 4], "v": [1, 2]}, "has a gap: 2 is missing", "int_cat"),
        ({"k__int": [1, 2.5], "v": [1, 2]}, r"holds 2.5 in row 1; expected integers", "band"),
        ({"k__int": [1, np.nan], "v": [1, 2]}, "holds nan in row 1; expected integers", "fill"),
        ({"k__int": ["1", "2"], "v": [1, 2]}, "holds text; expected integers", "convert"),
        ({"k__int": [True, False], "v": [1, 2]}, "holds bool; expected integers", "convert"),
        ({"k__str": [1, 2], "v": [1, 2]}, "holds int64; expected text", "astype"),
        ({"k__str": ["a", None], "v": [1, 2]}, "null, first in row 1", "fill"),
        ({"k__band": [1, np.nan], "v": [1, 2]}, "missing value, first in row 1", "inf"),
        ({"k__band": ["a", "b"], "v": [1, 2]}, "expected upper bounds as numbers", ""),
        ({"k": [1], "v": [1]}, "'k' of the table has no known suffix", r"\|int, \|int_bound"),
        ({"k__float": [1], "v": [1]}, "no known suffix", "end its name"),
        ({"k__int": [1], "k__str": ["a"], "v": [1]}, "key 'k' occurs twice", ""),
        ({"v": [1]}, "a table from DataFrame of shape", "a value column"),
        ({"k__int": [], "v": []}, "a table from DataFrame of shape", "rows"),
        (
            {"a__int_cat": range(40_000), "b__int_cat": range(40_000), "v": 0},
            "1,600,000,000",
            "smaller",
        ),
    ],
)
def test_malformed_tables(columns: dict, message: str, remedy: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        build(**columns)
    assert remedy.replace("\\", "") in str(caught.value)


def test_not_a_frame() -> None:
    with pytest.raises(DataError, match="a table from dict"):
        Table({"k|int": [1], "v": [1]})


def test_whole_floats_as_keys_of_a_table() -> None:
    table = build(k__int=[2.0, 1.0], v=[20, 10])
    assert table[[1, 2]].tolist() == [10, 20]


def test_rectify() -> None:
    frame = pd.DataFrame({"age|int": [1, 1, 4], "sex|str": ["F", "M", "F"], "v": [1, 2, 3]})
    table = Table.rectify(frame)
    assert table.dtype == np.float64
    np.testing.assert_array_equal(
        table[[1, 1, 2, 4, 4], ["F", "M", "F", "F", "M"]], [1, 2, np.nan, 3, np.nan]
    )
    assert Table.rectify(frame, fill=0).dtype == np.int64
    assert Table(frame, rectify=True, fill=-1)[3, "M"] == -1
    assert (
        Table(Table.rectify(frame, 7))[3, "M"] == 7
    )  # a Table of a Table, as heavylight writes it
    assert Table.rectify(frame, fill=0.5)[3, "M"] == 0.5
    text = pd.DataFrame({"age|int": [1, 3], "v": ["a", "b"]})
    assert Table.rectify(text, fill="none")[2] == "none"
    for fill in (np.nan, 0, None):
        with pytest.raises(DataError, match="does not fit"):
            Table.rectify(text, fill=fill)
    with pytest.raises(DataError, match="does not fit"):
        Table.rectify(frame, fill="x")
    with pytest.raises(LookupKeyError):
        table[5, "F"]


def test_order_of_rows_does_not_matter(frame: pd.DataFrame, table: Table) -> None:
    assert Table(frame.sort_values("rate")).digest() == table.digest()
    assert Table(frame.astype({"age|int": "int8"})).digest() == table.digest()


def test_digest_sees_every_change(frame: pd.DataFrame, table: Table) -> None:
    others = [
        frame.assign(rate=frame["rate"] + 1e-16 * (frame["rate"] > 0.5)),
        frame.assign(rate=frame["rate"] + 1),
        frame.rename(columns={"age|int": "aged|int"}),
        frame.rename(columns={"age|int": "age|int_bound"}),
        frame.assign(**{"age|int": frame["age|int"] + 1}),
        frame.replace({"sex|str": {"M": "N"}}),
        frame.replace({"size|band": {1e3: 1e3 + 1}}),
    ]
    digests = {table.digest(), *(Table(other).digest() for other in others[1:])}
    assert len(digests) == len(others)
    text = [build(k__str=["a", "b"], v=v).digest() for v in (["x", "y"], ["xy", ""], ["x", "y "])]
    assert len(set(text)) == 3
    assert len(table.digest()) == 64


def test_tables_are_immutable(frame: pd.DataFrame) -> None:
    mine = frame.copy()
    table = Table(mine)
    pd.testing.assert_frame_equal(mine, frame)
    value = table[OK]
    mine["rate"] = 0.0
    mine.iloc[0, 0] = 99
    assert table[OK] == value
    for other in (table, pickle.loads(pickle.dumps(table)), copy.copy(table), copy.deepcopy(table)):
        assert other[OK] == value
        assert other.digest() == table.digest()
        with pytest.raises(ValueError, match="read-only"):
            other._values[0] = 1.0
        with pytest.raises(ModelError, match="'rate' cannot be changed"):
            other.name = "x"  # type: ignore[misc]
    result = table[np.array([30, 31]), 0, 10, "M", 1.0]
    result[0] = -1  # what a look-up gives belongs to the caller
    assert table[OK] == value


# --- files ---------------------------------------------------------------------------------------

CSV = "code|str,age|int,v\nNA,1,0.5\n01,1,1.5\n1,1,2.5\nNA,2,3.5\n01,2,4.5\n1,2,\n"


def test_csv_keeps_text_keys(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(CSV)
    for source in (path, str(path), io.StringIO(CSV)):
        table = Table.read_csv(source)
        assert table[["NA", "01", "1"], 1].tolist() == [0.5, 1.5, 2.5]
        assert np.isnan(table["1", 2])
        with pytest.raises(LookupKeyError, match="'code' = 'nan'"):
            table["nan", 1]
    path.write_text(CSV.replace(",", ";").replace(".", ","))
    assert Table.read_csv(path, sep=";", decimal=",")["01", 2] == 4.5
    path.write_text("code|str,v\n x,1\nna ,2\n|,3\n")
    stripped = Table.read_csv(path, converters={"code|str": lambda cell: cell.strip().upper()})
    assert stripped[["X", "NA", "|"]].tolist() == [1, 2, 3]
    path.write_text("age|int,v\n1,0\n,1\n")
    with pytest.raises(DataError, match="holds nan in row 1"):
        Table.read_csv(path)
    path.write_text("age,v\n1,0\n")
    with pytest.raises(DataError, match="no known suffix"):
        Table.read_csv(path)


def test_excel_keeps_text_keys(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    path = tmp_path / "t.xlsx"
    frame = pd.DataFrame(
        {"code|str": ["NA", "01", "1", 7], "age|int": [1, 1, 1, 1], "v": [0.5, 1.5, 2.5, 3.5]}
    )
    with pd.ExcelWriter(path) as writer:
        frame.to_excel(writer, sheet_name="first", index=False)
        frame.assign(v=0.0).to_excel(writer, sheet_name="other", index=False)
    assert Table.read_excel(path, sheet_name="first")[["NA", "01", "1", "7"], 1].tolist() == [
        0.5,
        1.5,
        2.5,
        3.5,
    ]
    assert Table.read_excel(path)["NA", 1] == 0.5
    assert Table.read_excel(path, sheet_name="other")["NA", 1] == 0.0


# --- bound look-ups ------------------------------------------------------------------------------


def test_bound_to_codes(frame: pd.DataFrame, table: Table) -> None:
    age, dur, term, sex, size = keys(200)
    categories = np.array(["M", "X", "F"], dtype=object)
    codes = np.where(sex == "M", 0, 2).astype(np.int32)
    bound = table.bind((None, None, None, categories, None))
    right = table[age, dur, term, sex, size]
    for other in (bound, pickle.loads(pickle.dumps(bound))):
        assert isinstance(other, BoundTable)
        assert (other(age, dur, term, codes, size) == right).all()
        out = np.empty(200)
        assert other(age, dur, term, codes, size, out=out) is out
        assert (out == right).all()
    assert bound(30, 0, 10, np.int32(0), 1.0) == table[OK]
    codes[7] = 1
    with pytest.raises(LookupKeyError, match="has no 'sex' = 'X'; 1 of 200 keys, first at row 7"):
        bound(age, dur, term, codes, size)
    with pytest.raises(LookupKeyError, match="'age' = 61"):
        bound(np.array([61]), 0, 10, np.array([0]), 1.0)
    with pytest.raises(ModelError, match="with 2 keys; expected 5"):
        bound(1, 2)
    with pytest.raises(ModelError, match="with 1 keys"):
        table.bind((None,))
    assert "sex" in repr(bound)
    assert len(pickle.dumps(bound)) < 2 * len(pickle.dumps(table)) + 500


def test_bound_does_not_change_its_keys() -> None:
    table = Table(
        pd.DataFrame(
            list(itertools.product(range(3), range(1, 4))), columns=["a|int", "b|int"]
        ).assign(v=range(9))
    )
    a, b = np.array([0, 1, 2]), np.array([1, 2, 3])
    for key in (a, b):
        key.setflags(write=False)
    assert table[a, b].tolist() == [0, 4, 8]
    assert table.bind((None, None))(a, b, out=np.empty(3, dtype=np.int64)).tolist() == [0, 4, 8]
    assert table[a[:, None], b].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert table[a[:, None], b[None, :1]].tolist() == [[0], [3], [6]]
    assert table[a[:1], b[:, None]].tolist() == [[0], [1], [2]]


def test_encode_text(table: Table) -> None:
    assert table.encode_text(3, np.array(["M", "X", "F"], dtype=object)).tolist() == [1, -1, 0]
    assert table.encode_text(3, np.array(["M"], dtype=object)).dtype == np.int64
    with pytest.raises(LookupKeyError, match="key 'age'"):
        table.encode_text(0, np.array(["M"], dtype=object))
    with pytest.raises(LookupKeyError, match="key 'age'"):
        table.bind((np.array(["M"], dtype=object), None, None, None, None))


class Traced:
    """Stands for a traced array: says that it wants to look up by itself."""

    def __hl_lookup__(self, table: object, asked: tuple) -> object:
        return ("traced", table, asked)


def test_hook_of_traced_keys(table: Table) -> None:
    key = Traced()
    assert table[30, key, 10, "M", 1.0] == ("traced", table, (30, key, 10, "M", 1.0))
    assert table.get(key) == ("traced", table, (key,))
    kind, array, asked = lookup(np.arange(3), key)
    assert (kind, asked) == ("traced", (key,))
    assert isinstance(array, ArrayTable)
    plain = Traced()
    plain.__dict__["__hl_lookup__"] = None  # looked up on the type
    assert table.get(plain)[0] == "traced"


# --- plain arrays --------------------------------------------------------------------------------


def test_lookup_in_arrays() -> None:
    array = np.arange(24.0).reshape(2, 3, 4)
    i, j, k = np.array([0, 1, 1]), np.array([2, 0, 1], "int8"), np.array([3, 3, 0], "uint8")
    assert lookup(array, i, j, k).tolist() == array[i, j, k].tolist()
    assert lookup(array, i, j).tolist() == array[i, j].tolist()
    assert lookup(array, i).tolist() == array[i].tolist()
    assert lookup(array, 1, 2, 3) == 23.0
    assert lookup(array, 1, j, 3).tolist() == array[1, j, 3].tolist()
    assert lookup(array, i[:, None], j).shape == (3, 3, 4)
    assert lookup(array.transpose(2, 1, 0), k, j, i).tolist() == array[i, j, k].tolist()
    assert lookup(np.array(["a", "b"], dtype=object), [1, 0]).tolist() == ["b", "a"]
    assert lookup([10, 20], 1) == 20
    assert lookup(array, pd.Series(i)).tolist() == array[i].tolist()
    assert array.flags.writeable


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ((-1,), r"has no 'axis 0' = -1; valid \(int\): 0 to 1, size 2"),
        ((2,), "has no 'axis 0' = 2"),
        ((0, np.array([0, 3])), "'axis 1' = 3; 1 of 2 keys, first at row 1"),
        ((0, 0, 4), "'axis 2' = 4; valid .*: 0 to 3, size 4"),
        ((1.0,), "'axis 0' .* takes integers, got float64 1.0"),
        ((np.array([0.5]),), "takes integers, got float64"),
        ((True,), "takes integers, got bool"),
        ((np.array([True, False]),), "takes integers, got bool"),
        (("a",), "takes integers, got object"),
        ((None,), "is None"),
        ((slice(1),), "is slice"),
    ],
)
def test_lookup_in_arrays_is_checked(index: tuple, message: str) -> None:
    with pytest.raises(LookupKeyError, match=message) as caught:
        lookup(np.arange(24.0).reshape(2, 3, 4), *index)
    assert "array of shape (2, 3, 4)" in str(caught.value)


def test_lookup_misuse() -> None:
    with pytest.raises(ModelError, match="with 2 keys; expected 1"):
        lookup(np.arange(3), 0, 0)
    with pytest.raises(ModelError, match="with 0 keys"):
        lookup(np.arange(3))
    with pytest.raises(ModelError, match="in the scalar 5"):
        lookup(5, 0)
    with pytest.raises(LookupKeyError, match="none, size 0"):
        lookup(np.zeros(0), 0)


def test_array_table_binds_and_digests() -> None:
    array = np.arange(6.0).reshape(2, 3)
    table = ArrayTable(array)
    bound = pickle.loads(pickle.dumps(table.bind((None, None))))
    out = np.empty(2)
    assert bound(np.array([0, 1]), np.array([2, 0]), out=out).tolist() == [2.0, 3.0]
    rows = np.empty((2, 3))
    assert table.bind((None,))(np.array([1, 0]), out=rows).tolist() == [[3, 4, 5], [0, 1, 2]]
    assert table.digest() == ArrayTable(array.copy()).digest()
    assert table.digest() != ArrayTable(array + 1).digest()
    assert table.digest() != ArrayTable(array.reshape(3, 2)).digest()
    assert table.digest() != ArrayTable(array.astype("float32")).digest()
    assert table.key_names == ("axis 0", "axis 1")
    assert table.dtype == np.float64
    assert table.nbytes == 48
    array[0, 2] = 9.0  # not a copy
    assert table.get(0, 2) == 9.0
