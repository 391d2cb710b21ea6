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
from hl_dask.errors import ModelError, StorageError

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


def test_a_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    path = result_of().to_parquet(tmp_path / "totals.parquet")
    assert path.stat().st_mode == plain.stat().st_mode
