"""What a result can be turned into: frames, files, and totals by period."""

from __future__ import annotations

import errno
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import hl_dask as hl
from hl_dask import periods as rolling
from hl_dask.errors import ModelError, StorageError, UnsupportedError
from hl_dask.labels import label_of, label_text, split_columns
from hl_dask.storage import write_together, write_whole

MONTHS = 30
RNG = np.random.default_rng(8)
DATA = {"count": RNG.integers(1, 9, 500), "premium": RNG.uniform(1, 90, 500)}


class Cover(hl.Model):
    """Two flows and two stocks, one of them with a further argument."""

    @hl.rollup("first")
    def pols_if(self, t):
        return self.data["count"] * 0.99**t

    @hl.rollup("sum")
    def premiums(self, t):
        return self.pols_if(t) * self.data["premium"]

    @hl.rollup("last")
    @hl.agg(np.max)
    def largest(self, t):
        return self.premiums(t)

    @hl.rollup(None)
    def rate(self, t):
        return 0.01 * t

    def pv(self):
        return sum(self.premiums(t) for t in range(MONTHS))


class ByTiming(Cover):
    """The same with columns of tuples."""

    @hl.rollup("last")
    def pols_at(self, t, timing):
        return self.pols_if(t) * (0.5 if timing == "end" else 1.0)

    @hl.rollup("sum")
    def twice(self, t):
        return self.pols_at(t, "start") + self.pols_at(t, "end")


class Unsaid(Cover):
    """An overriding formula says nothing of its months."""

    def premiums(self, t):
        return self.pols_if(t) * self.data["premium"]


def result_of(cls: type[hl.Model] = Cover) -> hl.Result:
    return cls(data=DATA).ExecuteActions(proj_len=MONTHS - 1)


def periods(values: Any, months: int, start: int = 0) -> list[Any]:
    """Months of each period, by a plain loop."""
    found: dict[int, list[float]] = {}
    for t, value in enumerate(values):
        found.setdefault((t + start) // months, []).append(float(value))
    return list(found.values())


# ---- by period ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("months", "start"), [(12, 0), (12, 5), (3, 0), (3, 2), (7, 1), (100, 0)])
def test_months_become_periods_as_declared(months: int, start: int) -> None:
    result = result_of()
    rolled = result.by_period(months, start=start)
    frame = result.df_agg
    assert list(rolled.columns) == ["pols_if", "premiums", "largest"]
    assert rolled.index.name == "period"
    assert rolled["pols_if"].tolist() == [p[0] for p in periods(frame["pols_if"], months, start)]
    assert rolled["largest"].tolist() == [p[-1] for p in periods(frame["largest"], months, start)]
    sums = [sum(p) for p in periods(frame["premiums"], months, start)]
    np.testing.assert_allclose(rolled["premiums"], sums, rtol=1e-14)


def test_years_and_quarters() -> None:
    result = result_of()
    pd.testing.assert_frame_equal(result.by_year(), result.by_period(12, name="year"))
    pd.testing.assert_frame_equal(
        result.by_quarter(start=1), result.by_period(3, start=1, name="quarter")
    )
    by_hand = sum(DATA["count"] * 0.99**12 * DATA["premium"])
    assert result.by_year(how={"premiums": "first"}).loc[1, "premiums"] == pytest.approx(by_hand)
    assert "rate" in result.by_year(how={"rate": "mean"})


def test_columns_of_tuples() -> None:
    rolled = result_of(ByTiming).by_year()
    ends = rolled[("pols_at", "end")]
    np.testing.assert_allclose(
        ends, [sum(DATA["count"]) * 0.99**t / 2 for t in (11, 23, 29)], rtol=1e-12
    )
    assert isinstance(rolled.columns, pd.MultiIndex)


def test_a_formula_that_says_nothing_is_not_summed_by_itself() -> None:
    result = result_of(Unsaid)
    with pytest.raises(ModelError, match="not said") as caught:
        result.by_year()
    assert caught.value.formula == "premiums"
    expected = result_of().by_year()
    pd.testing.assert_frame_equal(result.by_year(how={"premiums": "sum"}), expected)
    pd.testing.assert_frame_equal(result.by_year(default="sum"), expected)
    assert result.by_year(default="last").loc[2, "premiums"] == result.df_agg["premiums"].iloc[-1]
    assert "premiums" not in result.by_year(default=None)


def test_slips_in_rolling_up() -> None:
    result = result_of()
    with pytest.raises(ModelError, match="'premium' is not among"):
        result.by_year(how={"premium": "sum"})
    with pytest.raises(ModelError, match="'total' is no way"):
        result.by_year(how={"premiums": "total"})
    with pytest.raises(ModelError, match="months is a whole number"):
        result.by_period(0)
    with pytest.raises(ModelError, match="start is a whole number"):
        result.by_year(start=-1)
    with pytest.raises(ModelError, match="start=12 months of the first period"):
        result.by_year(start=12)


def test_a_number_that_is_missing_is_not_zero() -> None:
    values = np.arange(1.0, 7.0)
    values[[2, 3]] = np.nan
    frame = pd.DataFrame(dict.fromkeys(("sum", "mean", "min", "max", "first", "last"), values))
    how = {name: name for name in frame}
    rolled = rolling.roll_up(frame, how, 3)
    for name in ("sum", "mean", "min", "max"):
        assert rolled[name].isna().all()
    assert rolled["first"].tolist()[0] == 1.0
    assert np.isnan(rolled["first"].tolist()[1])
    assert np.isnan(rolled["last"].tolist()[0])
    assert rolled["last"].tolist()[1] == 6.0


@pytest.mark.parametrize("way", ["sum", "mean", "min", "max", "first", "last"])
def test_ways_to_roll_up_against_a_loop(way: str) -> None:
    rng = np.random.default_rng(2)
    frame = pd.DataFrame(
        {
            "whole": rng.integers(-9, 9, 40),
            "real": rng.normal(size=40),
            "flag": rng.random(40) < 0.5,
        }
    )
    rolled = rolling.roll_up(frame, dict.fromkeys(frame, way), 7, start=4)
    of = {"first": lambda p: p[0], "last": lambda p: p[-1], "mean": np.mean}
    for name in frame:
        values = frame[name].to_numpy()
        parts = [values[max(0, 7 * k - 4) : 7 * k + 3] for k in range(7)]
        expected = [of.get(way, getattr(np, way, None))(part) for part in parts if len(part)]
        np.testing.assert_allclose(rolled[name].astype(float), expected, rtol=1e-14)
    kept = {name: dtype for name, dtype in frame.dtypes.items() if way != "mean"}
    if way in ("sum", "mean"):
        kept = {"whole": np.dtype(np.int64 if way == "sum" else float)}
    for name, dtype in kept.items():
        assert rolled[name].dtype == dtype


def test_what_cannot_be_added_up() -> None:
    frame = pd.DataFrame({"note": np.array(["a", "b"], dtype=object), "x": [1.0, 2.0]})
    assert rolling.roll_up(frame, {"note": "last", "x": "sum"}, 2)["note"].tolist() == ["b"]
    dates = pd.DataFrame({"day": np.array(["2026-01-01", "2026-02-01"], dtype="datetime64[D]")})
    with pytest.raises(ModelError, match="there is no sum of values of type datetime64") as caught:
        rolling.roll_up(dates, {"day": "sum"}, 2)
    assert caught.value.formula == "day"


class Ratios(Cover):
    """Outputs that are no sums over the policies."""

    def loss_ratio(self, t):
        return self.pols_if(t).sum() / self.premiums(t).sum()

    def discount(self, t):
        return 1.01**-t

    @hl.agg(np.max)
    def highest(self, t):
        return self.premiums(t)

    def flow(self, t):
        return self.premiums(t)


@pytest.mark.parametrize("copied", [False, True])
def test_a_default_sum_is_for_sums_over_policies(copied: bool) -> None:
    result = result_of(Ratios)
    if copied:
        result = pickle.loads(pickle.dumps(result))
    with pytest.raises(ModelError, match="sums over the policies") as caught:
        result.by_year(default="sum")
    assert caught.value.formula == "discount, highest, loss_ratio"
    rest = dict.fromkeys(("discount", "highest", "loss_ratio"))
    rolled = result.by_year(rest, default="sum")
    assert rolled["flow"].tolist() == rolled["premiums"].tolist()
    assert "highest" in result.by_year(rest | {"highest": "max"}, default="sum")


@pytest.mark.parametrize("how", ["total", 1, sum])
def test_a_slip_in_the_declaration_is_told_at_once(how: Any) -> None:
    with pytest.raises(ModelError, match="is no way to roll months up"):
        hl.rollup(how)


def test_a_copied_result_rolls_up_as_well() -> None:
    result = result_of()
    copy = pickle.loads(pickle.dumps(result))
    pd.testing.assert_frame_equal(copy.by_year(), result.by_year())


# ---- to pandas and to files --------------------------------------------------------------------


def test_to_pandas_is_a_copy_with_the_values() -> None:
    result = result_of()
    frame = result.to_pandas()
    frame.loc[0, "premiums"] = -1.0
    assert result.df_agg.loc[0, "premiums"] > 0
    assert frame.attrs["values"]["pv"] == result.values["pv"]
    assert frame.attrs["model"] == "Cover"


class Several(Cover):
    """Values with arguments and entries."""

    @hl.agg(hl.Sum(axis=0))
    def by_scenario(self):
        return self.data["premium"][:, None] * np.array([1.0, np.nan, 2.0])

    def pv_of(self, cause):
        return self.premiums(0) * (2.0 if cause == "death" else 1.0)

    def paid(self, t):
        return self.pv_of("death") + self.pv_of(2) + self.pv_of("2")


def test_frames_with_values_can_be_put_together_and_written(tmp_path: Path) -> None:
    result = result_of(Several)
    one, two = result.to_pandas(), result.to_pandas()
    assert len(pd.concat([one, two])) == 2 * MONTHS
    named = {"pv", "by_scenario", "pv_of[death]", "pv_of[2]", "pv_of['2']"}
    assert set(one.attrs["values"]) == named
    assert one.attrs["values"]["by_scenario"][2] == result.values["by_scenario"][2]
    one.to_parquet(tmp_path / "frame.parquet")
    told = json.loads(
        pq.read_schema(result.to_parquet(tmp_path / "t.parquet")).metadata[b"hl_dask"]
    )
    assert told["values"]["by_scenario[1]"] == "nan"
    assert told["values"]["by_scenario[2]"] == float(result.values["by_scenario"][2])


def test_parquet_holds_everything_to_the_last_bit(tmp_path: Path) -> None:
    result = result_of(ByTiming)
    path = result.to_parquet(tmp_path / "totals.parquet")
    frame = pd.read_parquet(path)
    assert frame["t"].tolist() == list(range(MONTHS))
    assert "pols_at[end]" in frame
    for column in result.df_agg.columns:
        name = column[0] if column[1] == "" else f"{column[0]}[{column[1]}]"
        assert frame[name].to_numpy().tobytes() == result.df_agg[column].to_numpy().tobytes()
    told = json.loads(pq.read_schema(path).metadata[b"hl_dask"])
    assert told["values"] == {"pv": float(result.values["pv"])}
    assert told["model"] == "ByTiming"
    assert told["environment"]["numpy"] == np.__version__


def test_csv_holds_everything_to_the_last_bit(tmp_path: Path) -> None:
    result = result_of()
    path = result.to_csv(tmp_path / "totals.csv")
    frame = pd.read_csv(path, index_col="t")
    assert len(frame) == MONTHS
    rows = [line.split(",") for line in path.read_text().splitlines()]
    for k, name in enumerate(result.df_agg, start=1):
        assert rows[0][k] == name
        assert [float(row[k]) for row in rows[1:]] == result.df_agg[name].astype(float).tolist()
    text = (tmp_path / "totals.values.csv").read_text().splitlines()
    assert text == ["name,value", f"pv,{float(result.values['pv'])!r}"]
    with pytest.raises(StorageError, match="exists already") as caught:
        result.to_csv(path)
    assert "totals" in str(caught.value.file)
    result.to_csv(path, overwrite=True)


def test_values_of_another_run_are_not_left_beside(tmp_path: Path) -> None:
    class Flows(hl.Model):
        def premiums(self, t):
            return self.data["premium"]

    result_of().to_csv(tmp_path / "totals.csv")
    flows = result_of(Flows)
    with pytest.raises(StorageError, match="exists already"):
        flows.to_csv(tmp_path / "totals.csv")
    (tmp_path / "totals.csv").unlink()
    with pytest.raises(StorageError, match="exists already") as caught:
        flows.to_csv(tmp_path / "totals.csv")
    assert "totals.values.csv" in str(caught.value.file)
    flows.to_csv(tmp_path / "totals.csv", overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["totals.csv"]


def test_numbers_come_back_from_csv(tmp_path: Path) -> None:
    class Hard(hl.Model):
        def x(self, t):
            return self.data["x"] * self.factors[t]

    factors = np.array([1 / 3, 0.1, np.nan, np.inf, -np.inf, -0.0, 5e-324, 1.7e308, 2**0.5])
    result = Hard(data={"x": np.ones(1)}, factors=factors).ExecuteActions(proj_len=8)
    texts = result.to_csv(tmp_path / "hard.csv").read_text().splitlines()
    assert texts[0] == "t,x"
    read = np.array([float(text.split(",")[1]) for text in texts[1:]])
    assert read.tobytes() == result.df_agg["x"].to_numpy().tobytes()
    assert np.isnan(read[2])


def test_two_arguments_that_print_alike_are_not_mixed_up(tmp_path: Path) -> None:
    class Cause:
        def __str__(self) -> str:
            return "death"

    one, two = Cause(), Cause()

    class Odd(hl.Model):
        def claims(self, t, cause):
            return self.data["premium"]

        def paid(self, t):
            return self.claims(t, one) + self.claims(t, two)

    with pytest.raises(UnsupportedError, match="same text"):
        result_of(Odd).to_csv(tmp_path / "odd.csv")
    assert not list(tmp_path.iterdir())


LABELS = [
    ("pols_if",),
    ("claims", "death"),
    ("claims", "3"),
    ("claims", 3),
    ("claims", -3, 0.1),
    ("claims", True, None),
    ("claims", "True", "None"),
    ("claims", "not a name", "it's", 'say "x"'),
    ("claims", "", "x"),
    ("claims", ("a", 1), ("b",)),
    ("claims", "a,b", "c]"),
    ("claims", "lambda", "é"),
    ("claims", float("inf"), float("-inf")),
    ("claims", "inf", "nan"),
]


@pytest.mark.parametrize("label", LABELS, ids=str)
def test_a_label_comes_back_from_its_text(label: tuple[Any, ...]) -> None:
    back = label_of(label_text(label))
    assert back == label
    assert list(map(type, back)) == list(map(type, label))


def test_labels_that_are_no_plain_values() -> None:
    assert label_text(("claims", np.int64(3), np.str_("death"), "", "")) == "claims[3, death]"
    assert label_text("pols_if") == "pols_if"
    assert label_of("claims[3") == ("claims[3",)
    assert label_of("claims[f(x)]") == ("claims[f(x)]",)
    assert np.isnan(label_of("claims[nan]")[1])


def test_columns_come_back_from_their_texts(tmp_path: Path) -> None:
    result = result_of(ByTiming)
    frame = pd.read_parquet(result.to_parquet(tmp_path / "totals.parquet")).set_index("t")
    frame.columns = split_columns(frame.columns)
    pd.testing.assert_frame_equal(frame, result.df_agg, check_index_type=False)


def test_excel_has_a_sheet_for_everything(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    result = result_of()
    path = result.to_excel(tmp_path / "totals.xlsx")
    sheets = pd.read_excel(path, sheet_name=None)
    assert list(sheets) == ["by t", "values", "run"]
    np.testing.assert_allclose(sheets["by t"]["premiums"], result.df_agg["premiums"], rtol=1e-15)
    assert sheets["values"].loc[0, "value"] == pytest.approx(float(result.values["pv"]), rel=1e-15)


def test_a_file_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = result_of()
    path = tmp_path / "totals.parquet"
    path.write_text("what was there")

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(StorageError, match="No space left"):
        result.to_parquet(path, overwrite=True)
    assert path.read_text() == "what was there"
    assert [p.name for p in tmp_path.iterdir()] == ["totals.parquet"]
    with pytest.raises(StorageError, match="cannot be written"):
        result.to_csv(tmp_path / "none" / "totals.csv")
    with pytest.raises(StorageError, match="name of a directory"):
        result.to_csv(tmp_path / "..")


def test_a_sheet_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openpyxl")
    monkeypatch.setattr("hl_dask.result.EXCEL_ROWS", MONTHS)
    with pytest.raises(UnsupportedError, match="30 rows and 4 columns"):
        result_of().to_excel(tmp_path / "totals.xlsx")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="needs openpyxl"):
        result_of().to_excel(tmp_path / "totals.xlsx")


def test_files_that_belong_together_come_together(tmp_path: Path) -> None:
    def fails(file: Path) -> None:
        file.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = {tmp_path / "a": lambda file: file.write_text("a"), tmp_path / "b": fails}
    with pytest.raises(StorageError, match="No space left") as caught:
        write_together(files)
    assert caught.value.file == str(tmp_path / "b")
    assert not list(tmp_path.iterdir())

    def interrupted(file: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_together({tmp_path / "a": files[tmp_path / "a"], tmp_path / "b": interrupted})
    assert not list(tmp_path.iterdir())


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "totals"

    def slow(file: Path) -> None:
        file.write_text("mine")
        path.write_text("theirs")

    with pytest.raises(StorageError, match="exists already"):
        write_whole(path, slow)
    assert [p.name for p in tmp_path.iterdir()] == ["totals"]
    assert path.read_text() == "theirs"


def test_a_link_is_followed_and_permissions_are_kept(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    real, link = tmp_path / "there" / "totals", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    assert write_whole(link, lambda file: file.write_text("new"), overwrite=True) == link
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o640


def test_a_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    path = result_of().to_parquet(tmp_path / "totals.parquet")
    assert path.stat().st_mode == plain.stat().st_mode
