"""Totals over all policies that feed values of policies: the numbers of the whole-array run."""

from __future__ import annotations

import json
import linecache
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hl_dask as hl
from hl_dask import shelves
from hl_dask.budget import resident_bytes
from hl_dask.chunks import ChunkRunner
from hl_dask.cluster import run_keeping
from hl_dask.errors import FormulaError, MemoryBudgetError, StorageError
from hl_dask.run import Projection
from hl_dask.shelves import FileShelf, MemoryShelf
from hl_dask.ways import Way, ways_on
from tests.random_feedback import Writer
from tests.test_zoo import bits

MONTHS = 24
EARNED = np.random.default_rng(5).normal(0.004, 0.01, 200)


class WithProfits(hl.Model):
    """A bonus from total assets against what is guaranteed; a mean; a present value."""

    def assets(self, t):
        if t == 0:
            return self.data["premium"] * 10.0
        return self.assets(t - 1) * (1.0 + self.earned[t]) + self.data["premium"] * self.alive(
            t - 1
        )

    @hl.agg(None)
    def alive(self, t):
        return np.where(self.data["term"] > t, 1.0, 0.0)

    def guaranteed(self, t):
        if t == 0:
            return self.data["sum"] * 1.0
        return self.guaranteed(t - 1) * (1.0 + self.bonus(t - 1)) * self.alive(t)

    @hl.agg(None)
    def bonus(self, t):
        cover = self.assets(t).sum() / self.guaranteed(t).sum()
        return np.clip((cover - 1.0) * 0.01, 0.0, 0.05)

    def deviation(self, t):
        return np.abs(self.guaranteed(t) - self.guaranteed(t).mean())

    def pv(self):
        return sum(self.guaranteed(t) * 1.002**-t for t in range(MONTHS))


def policies(rows: int, seed: int = 1) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "premium": rng.uniform(10, 90, rows),
        "term": rng.integers(12, 200, rows),
        "sum": rng.uniform(500, 900, rows),
    }


def by_hand(data: dict[str, Any]) -> dict[str, Any]:
    """The same by straight NumPy."""
    premium, term, guaranteed = data["premium"], data["term"], data["sum"] * 1.0
    assets = premium * 10.0
    out: dict[str, Any] = {"assets": [], "guaranteed": [], "deviation": []}
    pv = np.zeros(len(premium))
    for t in range(MONTHS):
        out["assets"].append(assets.sum())
        out["guaranteed"].append(guaranteed.sum())
        out["deviation"].append(np.abs(guaranteed - guaranteed.mean()).sum())
        pv += guaranteed * 1.002**-t
        bonus = np.clip((assets.sum() / guaranteed.sum() - 1.0) * 0.01, 0.0, 0.05)
        assets = assets * (1.0 + EARNED[t + 1]) + premium * (term > t)
        guaranteed = guaranteed * (1.0 + bonus) * (term > t + 1)
    return {**out, "pv": pv.sum()}


def with_profits(data: Any) -> WithProfits:
    return WithProfits(data=data, earned=EARNED)


def kept_in_files(fit: Any) -> Any:
    """What a run is fitted to, with states in files, however much memory there is."""
    return fit._replace(way=fit.way._replace(in_files=True))


@pytest.fixture
def in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep states in files, however much memory there is."""
    fitted = Projection._fitted
    monkeypatch.setattr(Projection, "_fitted", lambda *a: kept_in_files(fitted(*a)))


ROWS = 9_000
OPTIONS = {"proj_len": MONTHS - 1, "block_rows": 1_000}


# ---- the numbers -------------------------------------------------------------------------------


def test_the_numbers_of_straight_numpy(tmp_path: Path) -> None:
    data = policies(ROWS)
    pd.DataFrame(data).to_parquet(tmp_path / "a.parquet", row_group_size=2_500)
    expected = by_hand(data)
    first = None
    for source in (data, str(tmp_path / "a.parquet")):
        for chunk_blocks, scheduler in ((1, "threads"), (2, "synchronous"), (100, "threads")):
            result = with_profits(source).ExecuteActions(
                chunk_blocks=chunk_blocks, scheduler=scheduler, **OPTIONS
            )
            for name in ("assets", "guaranteed", "deviation"):
                np.testing.assert_allclose(result.df_agg[name], expected[name], rtol=1e-12)
            assert result.values["pv"] == pytest.approx(expected["pv"], rel=1e-12)
            first = first or bits(result)
            assert bits(result) == first
    assert result.stats.phases == MONTHS + 1
    assert result.stats.passes == 1
    assert result.stats.states == "memory"


def test_states_in_files_are_removed(in_files: None, tmp_path: Path) -> None:
    result = with_profits(policies(ROWS)).ExecuteActions(
        scratch=tmp_path, chunk_blocks=2, **OPTIONS
    )
    expected = by_hand(policies(ROWS))
    np.testing.assert_allclose(result.df_agg["assets"], expected["assets"], rtol=1e-12)
    assert list(tmp_path.iterdir()) == []
    assert result.stats.states == "files"


def test_memory_and_files_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_profits(policies(ROWS))
    expected = bits(model.ExecuteActions(**OPTIONS))
    fitted = Projection._fitted
    monkeypatch.setattr(Projection, "_fitted", lambda *a: kept_in_files(fitted(*a)))
    for chunk_blocks in (1, 4):
        assert bits(model.ExecuteActions(chunk_blocks=chunk_blocks, **OPTIONS)) == expected


class Like(hl.Model):
    """Arrays like totals."""

    def value(self, t):
        if t == 0:
            return self.data["premium"] * np.ones_like(self.data["premium"].mean())
        before = self.value(t - 1)
        return (
            before * np.full_like(before.sum(), 1.5) + np.zeros_like(before.mean()) + before.mean()
        )


def test_arrays_like_totals() -> None:
    model = Like(data=policies(2_000))
    model.RunModel(3)
    for chunk_blocks in (1, 5):
        result = model.ExecuteActions(3, block_rows=300, chunk_blocks=chunk_blocks)
        np.testing.assert_allclose(result.df_agg, model.df_agg, rtol=1e-12)


class ByFund(hl.Model):
    """A rate of each fund from its total; two values a policy; integer groups."""

    def value(self, t):
        if t == 0:
            return self.data["premium"] * 1.0
        total = hl.total_by(self.data["fund"], self.value(t - 1))
        return self.value(t - 1) * (1 + np.tanh(total * 1e-6))

    @hl.agg(None)
    def both(self, t):
        return self.value(t)[:, np.newaxis] * np.array([1.0, 2.0])

    def wide(self, t):
        return self.both(t) / hl.total_by("fund", self.both(t))

    def by_number(self, t):
        return self.data["term"] / hl.total_by(
            self.data["k"], self.data["term"], groups=range(-1, 3)
        )


def test_totals_by_group() -> None:
    rng = np.random.default_rng(3)
    rows = 4_000
    data = {
        **policies(rows),
        "fund": np.array(["bonds", "mixed", "shares"])[rng.integers(0, 3, rows)],
        "k": rng.integers(0, 3, rows),
    }
    model = ByFund(data=data)
    model.RunModel(3)
    frame = pd.DataFrame(data)
    value = frame.premium.copy()
    for t in range(4):
        assert model.df_agg["value"][t] == pytest.approx(value.sum(), rel=1e-12)
        value = value * (1 + np.tanh(value.groupby(frame.fund).transform("sum") * 1e-6))
    assert model.df_agg["wide"].tolist() == pytest.approx([6.0] * 4)
    assert model.df_agg["by_number"].tolist() == pytest.approx([3.0] * 4)
    first = None
    for chunk_blocks in (1, 3, 100):
        result = model.ExecuteActions(3, block_rows=300, chunk_blocks=chunk_blocks)
        first = first or bits(result)
        assert bits(result) == first
    pd.testing.assert_frame_equal(result.df_agg, model.df_agg, rtol=1e-12)
    # A fund without policies, after a recording that knew it.
    empty = {name: column[data["fund"] != "mixed"] for name, column in data.items()}
    categories = pd.Categorical(empty["fund"], categories=["bonds", "mixed", "shares"])
    model.data = pd.DataFrame(empty).assign(fund=categories)
    again = model.ExecuteActions(3, block_rows=300)
    model.RunModel(3)
    pd.testing.assert_frame_equal(again.df_agg, model.df_agg, rtol=1e-12)


@pytest.mark.parametrize(
    ("group", "groups", "message"),
    [
        ("fund", None, "no formula is running whose model has the column"),
        (np.array([1, 2]), None, "known of text columns only"),
        (np.array([1, 2]), [], "there are 0 groups"),
        (np.array([1, 2]), range(500), "there are 500 groups"),
    ],
    ids=["text", "numbers", "none", "many"],
)
def test_groups_that_are_refused(group: Any, groups: Any, message: str) -> None:
    with pytest.raises(hl.errors.ModelError, match=message) as caught:
        hl.total_by(group, np.ones(2), groups)
    assert caught.value.remedy


class AnyKind(hl.Model):
    """Columns of all kinds, and a declared attribute, which every phase reads."""

    model_points = ("initial",)

    def value(self, t):
        if t == 0:
            return self.initial * 1.0
        grown = self.value(t - 1) * self.rate(t - 1) + self.data["wide"][:, t % 3]
        member = np.where(self.data["flag"], 1.0, 0.5) + (self.data["fund"] == "mixed")
        days = (np.datetime64("2026-01-01") - self.data["born"]) / np.timedelta64(1, "D")
        return grown * member + days * 1e-4 + self.initial * 0.1

    @hl.agg(None)
    def rate(self, t):
        return 1.0 + np.tanh(self.value(t).mean() * 1e-3)


def test_columns_of_any_kind_are_loaded_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    rows, months = 1_500, 6
    born = np.datetime64("1970-01-01") + rng.integers(0, 9_000, rows).astype("m8[D]")
    plain = {
        "flag": rng.random(rows) > 0.5,
        "fund": rng.choice(["bonds", "mixed"], rows),
        "born": born,
    }
    wide, initial = rng.random((rows, 3)), rng.random(rows)
    value = initial.copy()
    expected = [value.sum()]
    for t in range(1, months + 1):
        member = np.where(plain["flag"], 1.0, 0.5) + (plain["fund"] == "mixed")
        days = (np.datetime64("2026-01-01") - born) / np.timedelta64(1, "D")
        grown = value * (1.0 + np.tanh(value.mean() * 1e-3)) + wide[:, t % 3]
        value = grown * member + days * 1e-4 + initial * 0.1
        expected.append(value.sum())
    table = pa.table({**plain, "wide": pa.FixedSizeListArray.from_arrays(wide.ravel(), 3)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=400)
    found = set()
    for data in ({**plain, "wide": wide}, str(tmp_path / "a.parquet")):
        model = AnyKind(data=data, initial=initial)
        model.RunModel(months)
        np.testing.assert_allclose(model.df_agg["value"], expected, rtol=1e-12)
        for chunk_blocks in (1, 3, 50):
            result = model.ExecuteActions(months, block_rows=200, chunk_blocks=chunk_blocks)
            np.testing.assert_allclose(result.df_agg["value"], expected, rtol=1e-12)
            found.add(bits(result))
    assert len(found) == 1


def test_a_column_is_named_where_a_model_is_at_work() -> None:
    class Early(hl.Model):
        def BeforeRun(self):
            self.total = hl.total_by("fund", self.data["x"])

        def share(self, t):
            return self.helped() / self.total

        def _x(self):
            return hl.total_by("fund", self.data["x"]) * 0 + self.data["x"]

        @hl.agg(None)
        def helped(self):
            return self._x()

    data = {"x": np.arange(1.0, 901.0), "fund": np.array(["a", "b", "b"] * 300)}
    model = Early(data=data)
    model.RunModel(0)
    assert model.df_agg["share"][0] == pytest.approx(2.0)
    assert model.ExecuteActions(0, block_rows=100).df_agg["share"][0] == pytest.approx(2.0)

    class InAggregate(hl.Model):
        @hl.agg(lambda values: hl.total_by("fund", values).max())
        def x(self, t):
            return self.data["x"]

    # An aggregate has the values only, whatever model has asked for the formula.
    for run in (InAggregate(data=data).RunModel, InAggregate(data=data).ExecuteActions):
        with pytest.raises(hl.errors.ModelError, match="no formula is running") as caught:
            run(0)
        assert caught.value.formula == "x(0)"


# ---- random models -----------------------------------------------------------------------------


def random_models(seed: int) -> dict[str, Any]:
    source = Writer(seed).source()
    file = f"<random model {seed}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"hl": hl, "np": np}
    exec(compile(source, file, "exec"), namespace)
    return {name: namespace[name] for name in Writer(seed).classes}


def random_data(rng: Any) -> dict[str, Any]:
    rows = int(rng.integers(300, 3_000))
    return {
        "a": rng.normal(size=rows),
        "b": rng.random(rows),
        "k": rng.integers(-3, 4, rows),
        "g": rng.choice(rng.permutation(["x", "y", "z"])[: rng.integers(1, 4)], rows),
    }


def check_random(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    classes = random_models(seed)
    rng = np.random.default_rng(seed)
    data = {name: random_data(rng) for name in classes}

    def made() -> Any:
        models = {name: cls(data=data[name]) for name, cls in classes.items()}
        return hl.Portfolio(models) if len(models) > 1 else models["First"]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = made()
        plain.RunModel(4)
        first = None
        fitted = Projection._fitted
        for chunk_blocks, scheduler, files in (
            (1, "threads", False),
            (3, "synchronous", True),
            (1_000, "threads", False),
        ):
            with monkeypatch.context() as patch:
                if files:
                    patch.setattr(Projection, "_fitted", lambda *a: kept_in_files(fitted(*a)))
                run = made()
                result = run.ExecuteActions(
                    4, block_rows=64, chunk_blocks=chunk_blocks, scheduler=scheduler
                )
            for name in classes:
                expected = plain[name] if len(classes) > 1 else plain
                found = result[name] if len(classes) > 1 else result
                whole = expected.df.loc[0:4].drop(columns="more", errors="ignore")
                names = list(whole.columns)
                scale = whole.map(lambda value: np.abs(value).sum()).to_numpy(float) + 1e-300
                gap = np.abs(found.df_agg[names] - expected.df_agg[names]).to_numpy() / scale
                assert gap.max() <= 1e-11, linecache.getlines(f"<random model {seed}>")
            first = first or bits(result)
            assert bits(result) == first


@pytest.mark.parametrize("seed", range(int(os.environ.get("HL_DASK_MODELS", "40"))))
def test_random_models(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_random(seed, monkeypatch)


# ---- totals as Python values -------------------------------------------------------------------


def test_a_total_asked_for_once_for_each_row() -> None:
    class ByRow(hl.Model):
        @hl.agg(None)
        def totals(self, t):
            return self.data["premium"].sum(), self.data["sum"].sum()

        @hl.per_point
        def part(self, t):
            one, other = self.totals(t)
            values = np.asarray(self.data["premium"])
            return np.array([x / float(one) + 0 * float(other) for x in values])

    model = ByRow(data=policies(2_000))
    assert model.ExecuteActions(1, block_rows=300).df_agg["part"].tolist() == pytest.approx([1, 1])


class Decides(hl.Model):
    """The rate of each month is a Python number that comes from a total."""

    def assets(self, t):
        if t == 0:
            return self.data["premium"] * 10.0
        return self.assets(t - 1) * (1.0 + self.rate(t - 1)) + self.data["premium"]

    @hl.agg(None)
    def rate(self, t):
        total = float(self.assets(t).sum())
        return 0.01 if total > self.level * (1 + t) else 0.002 + total * 1e-9


def test_one_python_value_a_month_computes_each_month_once(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    put = MemoryShelf.put

    def counted(shelf: Any, chunk: int, made: Any, kinds: Any) -> None:
        done.append(chunk)
        put(shelf, chunk, made, kinds)

    monkeypatch.setattr(MemoryShelf, "put", counted)
    counts = []
    for months in (10, 20, 40):
        done.clear()
        model = Decides(data=policies(4_000), level=4_000 * 500.0)
        result = model.ExecuteActions(months, block_rows=1_000)
        counts.append(len(done) // 4)
        model.RunModel(months)
        np.testing.assert_allclose(result.df_agg["assets"], model.df_agg["assets"], rtol=1e-12)
    assert counts == [9, 19, 39]  # the first total is found out beforehand, on its own


class Compares(hl.Model):
    """Totals against thresholds: as a Python condition, in the graph, and of arrays."""

    def assets(self, t):
        return self.data["premium"] * (1.0 if t == 0 else self.rate(t - 1))

    @hl.agg(None)
    def rate(self, t):
        if self.assets(t).sum() < self.limit:
            return 1.5
        gap = self.assets(t).sum() - (self.data["premium"] * self.part).sum()
        return np.where(gap > 0.0, 1.0, 0.9)

    @hl.agg(None)
    def several(self, t):
        totals = (self.assets(t)[:, np.newaxis] * np.array([1.0, 2.0])).sum(axis=0)
        return np.where(totals >= np.array([1e9, 4.0 * self.limit]), 1.0, 0.0)

    def used(self, t):
        return self.data["premium"] * self.several(t).sum()


def test_thresholds_and_their_margins() -> None:
    data = policies(3_000)
    total = data["premium"].sum()
    model = Compares(data=data, limit=1.2 * total, part=0.25)
    found = model.ExecuteActions(2, block_rows=500).thresholds
    assert list(found.columns) == ["call", "left", "comparison", "right", "margin"]
    by_call = {(row.call, row.comparison): row for row in found.itertuples()}
    first = by_call["rate(0)", "<"]
    assert first.left == pytest.approx(total)
    assert first.right == pytest.approx(1.2 * total)
    assert first.margin == pytest.approx(0.2 / 2.2)
    # 1.5 less a quarter, of what is made of 1.5 and a quarter.
    second = by_call["rate(1)", ">"]
    assert second.left == pytest.approx(1.25 * total)
    assert second.margin == pytest.approx(1.25 / 1.75)
    # Of arrays the entry that is nearest.
    assert by_call["several(0)", ">="].left == pytest.approx(2.0 * total)
    assert "rate(2)" not in set(found["call"])  # nothing asks for it
    assert len(WithProfits(data=data, earned=EARNED).ExecuteActions(1).thresholds) == 0


@pytest.mark.parametrize(("limit", "part"), [(1.0 + 4e-16, 0.25), (0.6, 1.0 + 4e-16)])
def test_a_threshold_that_rounding_may_decide(limit: float, part: float) -> None:
    data = policies(3_000)
    total = data["premium"].sum()
    model = Compares(data=data, limit=limit * total, part=part)
    with pytest.warns(UserWarning, match="rounding may decide .* in rate") as caught:
        model.ExecuteActions(1)
    assert caught[0].filename == __file__


def test_a_value_of_a_column_costs_a_light_pass() -> None:
    class Longest(hl.Model):
        def value(self, t):
            return self.data["premium"] * (t < self.data["term"])

        def total(self):
            return sum(self.value(t) for t in range(int(self.data["term"].max())))

    data = policies(5_000)
    data["term"][77] = 260  # no sample knows of it
    result = Longest(data=data).ExecuteActions(3, block_rows=500)
    assert (result.stats.passes, result.stats.phases) == (2, 0)
    assert result.values["total"] == pytest.approx(
        np.sum(data["premium"] * data["term"]), rel=1e-12
    )


# ---- memory ------------------------------------------------------------------------------------

SPILLS = """
import json, sys
import numpy as np
import hl_dask as hl
from hl_dask.budget import peak_bytes

class Wide(hl.Model):
    def value(self, t):
        if t == 0:
            return self.data["x"] * np.ones(40)
        return self.value(t - 1) * (1.0 + self.rate(t - 1))

    @hl.agg(None)
    def rate(self, t):
        return np.tanh(self.value(t).sum() * 1e-9)

data = {"x": np.random.default_rng(1).random((ROWS, 1))}
result = Wide(data=data).ExecuteActions(4, memory=sys.argv[1], block_rows=32_768, workers=2)
print(json.dumps({"peak": peak_bytes(), "projected": result.stats.projected_bytes,
                  "allowed": result.stats.allowed_bytes,
                  "bits": result.df_agg.to_numpy().tobytes().hex()}))
"""


def test_states_go_to_files_where_memory_has_no_room(tmp_path: Path) -> None:
    found = {}
    script = SPILLS.replace("ROWS", "1_000_000")  # 320 MB of states
    for memory in ("300MB", "2GB"):
        done = subprocess.run(
            [sys.executable, "-c", script, memory],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        assert done.returncode == 0, done.stderr[-2_000:]
        found[memory] = json.loads(done.stdout)
        assert found[memory]["peak"] <= found[memory]["projected"] <= found[memory]["allowed"]
    assert found["300MB"]["bits"] == found["2GB"]["bits"]
    assert found["2GB"]["peak"] > 450e6
    assert list(tmp_path.iterdir()) == []


def test_explain_says_where_states_wait() -> None:
    model = with_profits(policies(ROWS))
    model.GenerateActions(MONTHS - 1)
    text = model.plan.explain(memory="16GB", rows=1_000_000)
    assert f"{MONTHS + 1} phases: totals over all policies decide what comes next" in text
    assert "between them a chunk keeps at most 4.2 MB, all chunks 32.0 MB, in memory" in text
    assert "states of chunks between tasks or phases" in text
    tight = model.plan.explain(memory=resident_bytes() + 80_000_000, rows=20_000_000)
    assert "in scratch files, which memory has no room for" in tight


# ---- what goes wrong ---------------------------------------------------------------------------


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "scratch"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []


def test_no_room_for_states(in_files: None, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_profits(policies(ROWS))
    usage = shutil.disk_usage(scratch)._replace(free=100)
    with monkeypatch.context() as patch:
        patch.setattr(shelves.shutil, "disk_usage", lambda path: usage)
        with pytest.raises(StorageError, match="states between phases may take") as caught:
            model.ExecuteActions(scratch=scratch, **OPTIONS)
    assert "scratch=" in str(caught.value.remedy)
    with pytest.raises(StorageError, match="no scratch directory can be made"):
        model.ExecuteActions(scratch=scratch / "none", **OPTIONS)
    assert model.ExecuteActions(scratch=scratch, **OPTIONS).stats.phases == MONTHS + 1


def test_a_disk_that_is_full_meanwhile(
    in_files: None, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_profits(policies(ROWS))
    replace, written = os.replace, []

    def full(source: Any, target: Any) -> None:
        written.append(target)
        if len(written) > 40:
            raise OSError(28, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(shelves.os, "replace", full)
        with pytest.raises(StorageError, match=r"cannot be written: .*No space left") as caught:
            model.ExecuteActions(scratch=scratch, **OPTIONS)
    assert str(scratch) in str(caught.value.file)
    assert list(scratch.iterdir()) == []
    assert model.ExecuteActions(scratch=scratch, **OPTIONS).stats.phases == MONTHS + 1


def test_an_error_in_what_is_computed_from_totals(in_files: None, scratch: Path) -> None:
    class Fails(WithProfits):
        @hl.agg(None)
        def bonus(self, t):
            cover = self.assets(t).sum() / self.guaranteed(t).sum()
            return self.rates[np.floor(cover * self.scale).astype(int)]

    model = Fails(data=policies(ROWS), earned=EARNED, rates=np.full(100, 0.001), scale=1.0)
    model.GenerateActions(MONTHS - 1)
    model.scale = 1e3
    with pytest.raises(hl.HlDaskError, match="bonus"):
        model.ExecuteActions(scratch=scratch, **OPTIONS)
    model.scale = 1.0
    assert model.ExecuteActions(scratch=scratch, **OPTIONS).stats.phases == MONTHS + 1


def test_ctrl_c_between_phases(
    in_files: None, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_profits(policies(ROWS))
    expected = bits(model.ExecuteActions(scratch=scratch, **OPTIONS))
    finish, phases = FileShelf.finish, []

    def interrupted(shelf: FileShelf) -> None:
        finish(shelf)
        phases.append(1)
        if len(phases) == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FileShelf, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.ExecuteActions(scratch=scratch, **OPTIONS)
    assert list(scratch.iterdir()) == []
    assert bits(model.ExecuteActions(scratch=scratch, **OPTIONS)) == expected


def test_a_state_that_is_damaged_or_gone(in_files: None, scratch: Path) -> None:
    for spoil, message in (
        (lambda path: path.write_bytes(path.read_bytes()[:100]), "has .* bytes of a value"),
        (lambda path: path.unlink(), "cannot be read"),
    ):
        finish, phases = FileShelf.finish, []

        def spoilt(
            shelf: FileShelf,
            spoil: Any = spoil,
            phases: list[int] = phases,
            finish: Any = finish,
        ) -> None:
            finish(shelf)
            phases.append(1)
            if len(phases) == 3:
                spoil(sorted(Path(shelf.folder).iterdir())[-1])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FileShelf, "finish", spoilt)
            with pytest.raises(StorageError, match=message):
                with_profits(policies(ROWS)).ExecuteActions(scratch=scratch, **OPTIONS)


def test_a_run_that_does_not_fit_even_with_files() -> None:
    with pytest.raises(MemoryBudgetError, match="are allowed"):
        with_profits(policies(ROWS)).ExecuteActions(memory="20MB", **OPTIONS)
    with pytest.raises(FormulaError):
        WithProfits(data=policies(ROWS), earned=EARNED[:3]).ExecuteActions(**OPTIONS)


# ---- on a cluster ------------------------------------------------------------------------------


CLUSTER = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def marked(test: Any) -> Any:
    for mark in CLUSTER:
        test = mark(test)
    return test


@marked
@pytest.mark.parametrize("place", ["stored", "not shared", "files"])
def test_on_two_workers_one_of_which_is_killed(
    place: str, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed")
    model = with_profits(policies(40_000))
    expected = bits(model.ExecuteActions(**OPTIONS))
    decides = Decides(data=policies(4_000), level=4_000 * 500.0)
    decided = bits(decides.ExecuteActions(20, block_rows=1_000))
    if place == "not shared":
        monkeypatch.setattr("hl_dask.run.share_folder", lambda *a: False)
    if place == "files":
        monkeypatch.setattr("hl_dask.run.ways_on", lambda *a, **k: [Way(in_files=True)])
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs="CRITICAL"
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        options = {**OPTIONS, "scheduler": client}
        if place != "not shared":
            options["scratch"] = scratch
        assert bits(model.ExecuteActions(chunk_blocks=5, **options)) == expected
        victim = next(iter(cluster.workers.values())).pid

        def meanwhile() -> None:
            time.sleep(0.7)
            os.kill(victim, signal.SIGKILL)

        thread = threading.Thread(target=meanwhile)
        thread.start()
        result = model.ExecuteActions(chunk_blocks=1, **options)
        assert bits(result) == expected
        assert result.stats.states == ("files" if place == "files" else "workers")
        thread.join()
        again = decides.ExecuteActions(
            20, block_rows=1_000, scheduler=client, scratch=options.get("scratch")
        )
        assert bits(again) == decided
        assert again.stats.measured_bytes <= again.stats.projected_bytes


@pytest.fixture(scope="module")
def threads_of_one_worker() -> Iterator[Any]:
    """A client of a worker in this process, whose parts can be patched."""
    distributed = pytest.importorskip("distributed")
    with distributed.Client(
        processes=False,
        n_workers=1,
        threads_per_worker=2,
        set_as_default=False,
        dashboard_address=":0",
        silence_logs="CRITICAL",
    ) as client:
        yield client


@marked
def test_states_that_are_handed_on(
    threads_of_one_worker: Any, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored every eight phases; and what goes wrong leaves nothing behind."""
    model = with_profits(policies(ROWS))
    expected = bits(model.ExecuteActions(**OPTIONS))
    options = {**OPTIONS, "scheduler": threads_of_one_worker, "scratch": scratch}
    stored: list[int] = []
    put = FileShelf.put

    def counted(shelf: Any, chunk: int, made: Any, kinds: Any) -> None:
        stored.append(chunk)
        put(shelf, chunk, made, kinds)

    with monkeypatch.context() as patch:
        patch.setattr(FileShelf, "put", counted)
        assert bits(model.ExecuteActions(chunk_blocks=3, **options)) == expected
    assert sorted(stored) == sorted([0, 1, 2] * (MONTHS // 8))
    handed: list[Any] = []
    relay = ChunkRunner.relay

    def noted(*args: Any) -> Any:
        handed.append(relay(*args))
        return handed[-1]

    with monkeypatch.context() as patch:
        patch.setattr(ChunkRunner, "relay", noted)
        model.ExecuteActions(chunk_blocks=3, **options)
    for state in handed:
        arrays = list(state.values.values())
        assert all(not array.flags.writeable and array.flags.owndata for array in arrays)
        assert 0 <= sys.getsizeof(state) - sum(array.nbytes for array in arrays) < 200

    def full(shelf: Any, chunk: int, made: Any, kinds: Any) -> None:
        msg = "the state of a chunk cannot be written: disk full"
        raise StorageError(msg, remedy="free some")

    with monkeypatch.context() as patch:
        patch.setattr(FileShelf, "put", full)
        with pytest.raises(StorageError, match="disk full"):
            model.ExecuteActions(**options)
    graphs: list[int] = []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        graphs.append(1)
        if len(graphs) == 3:
            raise KeyboardInterrupt
        return run_keeping(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr("hl_dask.relay.run_keeping", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.ExecuteActions(**options)
    model.earned = EARNED[:20]
    with pytest.raises(FormulaError):
        model.ExecuteActions(**options)
    assert list(scratch.iterdir()) == []
    model.earned = EARNED
    assert bits(model.ExecuteActions(**options)) == expected


@marked
def test_a_scratch_directory_that_workers_do_not_see(
    threads_of_one_worker: Any, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_profits(policies(ROWS))
    expected = bits(model.ExecuteActions(**OPTIONS))
    options = {**OPTIONS, "scheduler": threads_of_one_worker}
    with pytest.raises(StorageError, match="no scratch directory can be made"):
        model.ExecuteActions(scratch=scratch / "gone", **options)
    monkeypatch.setattr("hl_dask.cluster._can_write", lambda folder: False)
    with pytest.raises(StorageError, match="not all workers see the scratch directory") as caught:
        model.ExecuteActions(scratch=scratch, **options)
    assert "stay with the workers" in (caught.value.remedy or "")
    assert bits(model.ExecuteActions(**options)) == expected
    # Workers without room for all states keep what they can, up to what they are allowed.
    spilling = ways_on(1, is_shared=False)[1:]
    assert [way.place for way in spilling] == ["workers, spilled"]
    monkeypatch.setattr("hl_dask.run.ways_on", lambda *a, **k: spilling)
    result = model.ExecuteActions(memory="16GB", **options)
    assert bits(result) == expected
    assert result.stats.states == "workers, spilled"
    assert result.stats.estimate.total_bytes == result.stats.allowed_bytes == 16_000_000_000
