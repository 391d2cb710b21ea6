"""Several models run together: totals across models, and the numbers of straight NumPy."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster

import hl_dask as hl
from examples import two_products
from examples.two_products import MONTHS, Annuity, Endowment
from hl_dask.errors import (
    CycleError,
    FormulaError,
    HlDaskError,
    MemoryBudgetError,
    ModelError,
    OpaqueFormulaError,
    PlanError,
    RowMixingError,
)
from hl_dask.run import Projection
from tests.test_cluster import QUIET
from tests.test_feedback import kept_in_files

# ---- the example -------------------------------------------------------------------------------


def book_of(endowments: int, annuities: int) -> tuple[hl.Portfolio, dict[str, Any]]:
    one, other = two_products.policies(endowments, annuities)
    returns = two_products.market()
    models = {
        "endowment": Endowment(data=one, returns=returns),
        "annuity": Annuity(data=other, returns=returns),
    }
    return hl.Portfolio(models), two_products.whole_array(one, other, returns)


def close(result: Any, expected: dict[str, Any]) -> None:
    for name, values in expected.items():
        np.testing.assert_allclose(result[name].df_agg["assets"], values, rtol=1e-11)


@pytest.mark.parametrize("rows", [(1, 1), (7, 2_001), (1_300, 900)], ids=str)
def test_the_totals_of_straight_numpy(rows: tuple[int, int]) -> None:
    book, expected = book_of(*rows)
    book.RunModel(MONTHS - 1)
    close(book, expected)
    bits = set()
    for chunk_blocks, scheduler in ((1, "threads"), (3, "synchronous"), (100, "threads")):
        result = book.ExecuteActions(
            MONTHS - 1, block_rows=400, chunk_blocks=chunk_blocks, scheduler=scheduler
        )
        close(result, expected)
        bits.add(result.df_agg.to_numpy().tobytes())
    assert len(bits) == 1
    assert result.stats.phases == MONTHS
    assert result.stats.rows == sum(rows)


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_on_two_workers(tmp_path: Path) -> None:
    book, expected = book_of(900, 1_300)
    here = book.ExecuteActions(MONTHS - 1, block_rows=400)
    one, _ = two_products.policies(900, 1_300)
    pd.DataFrame(one).to_parquet(tmp_path / "one.parquet", row_group_size=350)
    book["endowment"].data = str(tmp_path / "one.parquet")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, **QUIET) as cluster,
        Client(cluster),
    ):
        result = book.ExecuteActions(MONTHS - 1, block_rows=400, chunk_blocks=2, scratch=tmp_path)
    close(result, expected)
    pd.testing.assert_frame_equal(result.df_agg, here.df_agg, rtol=0, atol=0)
    assert [path.name for path in tmp_path.iterdir()] == ["one.parquet"]


def test_the_script_prints_its_totals(capsys: pytest.CaptureFixture[str]) -> None:
    two_products.main(9_000, 5_000)
    assert "120 phases; the same bits for all chunk sizes: True" in capsys.readouterr().out


def test_states_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = Projection._fitted
    book, expected = book_of(900, 1_300)
    here = book.ExecuteActions(MONTHS - 1, block_rows=400)
    monkeypatch.setattr(Projection, "_fitted", lambda *a: kept_in_files(fitted(*a)))
    result = book.ExecuteActions(MONTHS - 1, block_rows=400, chunk_blocks=2, scratch=tmp_path)
    close(result, expected)
    assert result.df_agg.to_numpy().tobytes() == here.df_agg.to_numpy().tobytes()
    assert list(tmp_path.iterdir()) == []


# ---- small models ------------------------------------------------------------------------------


class Fund(hl.Model):
    """Assets that earn a rate which depends on the assets of all models."""

    def assets(self, t):
        if t == 0:
            return self.data["x"] * self.scale
        return self.assets(t - 1) * (1 + self.rate(t - 1))

    @hl.agg(None)
    def rate(self, t):
        return 0.01 * self.assets(t).sum() / self.portfolio.total("assets", t)


class Decides(Fund):
    """The same with Python values of totals of other models, one a month."""

    @hl.agg(None)
    def rate(self, t):
        total = float(self.portfolio.total("assets", t))
        return 0.01 if total > self.level * (1 + 0.01 * t) else 0.002 + 1e-9 * total


class Market(hl.Model):
    """No policies: what all products share."""

    def rate(self, t):
        return self.first if t == 0 else self.rate(t - 1) * 0.9


class Follows(hl.Model):
    def value(self, t):
        return self.data["x"] * self.portfolio["market"].rate(t)


def numbers(rows: int, seed: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(seed).uniform(1, 9, rows)}


def two(cls: Any = Fund, **assumptions: Any) -> hl.Portfolio:
    """Two models of one class, with columns of one name."""
    one = cls(data=numbers(3_000, 1), scale=1.0, **assumptions)
    return hl.Portfolio({"a": one, "b": cls(data=numbers(1_700, 2), scale=3.0, **assumptions)})


def check(book: hl.Portfolio, proj_len: int, **options: Any) -> Any:
    """Run in both ways; the result of the replay."""
    bits = set()
    for chunk_blocks in (1, 2, 50):
        result = book.ExecuteActions(proj_len, block_rows=300, chunk_blocks=chunk_blocks, **options)
        bits.add(result.df_agg.to_numpy().tobytes())
    assert len(bits) == 1
    book.RunModel(proj_len)
    pd.testing.assert_frame_equal(result.df_agg, book.df_agg, rtol=1e-12, check_dtype=False)
    return result


def test_two_models_of_one_class() -> None:
    result = check(two(), 6)
    assets = [numbers(3_000, 1)["x"].sum(), 3.0 * numbers(1_700, 2)["x"].sum()]
    for t in range(7):
        assert result.df_agg["a"]["assets"][t] == pytest.approx(assets[0], rel=1e-12)
        assert result.df_agg["b"]["assets"][t] == pytest.approx(assets[1], rel=1e-12)
        assets = [x * (1 + 0.01 * x / sum(assets)) for x in assets]


@pytest.mark.parametrize("level", [0.0, 44_000.0, 1e9])
def test_totals_of_all_models_as_python_values(level: float) -> None:
    result = check(two(Decides, level=level), 8)
    assets = [numbers(3_000, 1)["x"].sum(), 3.0 * numbers(1_700, 2)["x"].sum()]
    for t in range(9):
        assert result.df_agg["a"]["assets"][t] == pytest.approx(assets[0], rel=1e-12)
        total = sum(assets)
        rate = 0.01 if total > level * (1 + 0.01 * t) else 0.002 + 1e-9 * total
        assets = [x * (1 + rate) for x in assets]


class Watches(Fund):
    """Conditions of both models on totals of their own, with a retrace for each of them."""

    @hl.agg(None)
    def rate(self, t):
        if self.assets(t).max() > self.level:
            return 0.0
        return 0.01 + float(self.portfolio.total("assets", t)) * 1e-9


def test_thresholds_belong_to_their_models() -> None:
    book = two(Watches, level=9.5)
    result = check(book, 5)
    found = result.thresholds
    assert list(found.columns) == ["model", "call", "left", "comparison", "right", "margin"]
    for name, scale, seed, rows in (("a", 1.0, 1, 3_000), ("b", 3.0, 2, 1_700)):
        own = found[found["model"] == name]
        assert list(own["call"]) == [f"rate({t})" for t in range(5)]
        assert own["left"].iloc[0] == pytest.approx(scale * numbers(rows, seed)["x"].max())
        assert result[name].thresholds["left"].tolist() == own["left"].tolist()


def test_a_model_without_policies() -> None:
    models = {"market": Market(first=0.5), "policies": Follows(data=numbers(2_000, 1))}
    result = check(hl.Portfolio(models), 4)
    expected = numbers(2_000, 1)["x"].sum() * 0.5 * 0.9 ** np.arange(5)
    np.testing.assert_allclose(result["policies"].df_agg["value"], expected, rtol=1e-12)
    np.testing.assert_allclose(result["market"].df_agg["rate"], 0.5 * 0.9 ** np.arange(5))


def test_models_that_share_nothing_are_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    class Alone(hl.Model):
        def value(self, t):
            return self.data["x"] * 1.01**t

        def pv(self):
            return sum(self.value(t) for t in range(4))

    models = {"a": Alone(data=numbers(2_000, 1)), "b": Alone(data=numbers(900, 2))}
    own = {
        name: copy.copy(model).ExecuteActions(3, block_rows=300) for name, model in models.items()
    }
    book = hl.Portfolio(models)
    for granularity in ("chunk", "step", "formula"):
        result = check(book, 3, granularity=granularity)
        assert (result.stats.passes, result.stats.phases) == (1, 0)
        for name, alone in own.items():
            assert result[name].df_agg.equals(alone.df_agg)
            assert result.values[name, "pv"] == alone.values["pv"]
    lazy = book.ExecuteActions(3, compute=False)
    assert sum("chunk-" in str(key) for key in lazy.__dask_graph__()) == 7 + 3
    assert lazy.compute().df_agg.equals(result.df_agg)


def test_formulas_that_are_evaluated_as_python(tmp_path: Path) -> None:
    class ByRow(Fund):
        @hl.per_point
        def part(self, t):
            total = self.portfolio.total("assets", t)
            return np.array([x / float(total) for x in np.asarray(self.assets(t))])

    book = two(ByRow)
    book["a"].data = frame_file(tmp_path, numbers(3_000, 1))
    result = check(book, 2)
    assert (result["a"].df_agg["part"] + result["b"].df_agg["part"]).tolist() == pytest.approx(
        [1.0] * 3
    )


def frame_file(tmp_path: Path, data: dict[str, Any]) -> str:
    pd.DataFrame(data).to_parquet(tmp_path / "x.parquet", row_group_size=700)
    return str(tmp_path / "x.parquet")


def test_formulas_that_cannot_be_cut(tmp_path: Path) -> None:
    class Whole(Fund):
        def middle(self, t):
            return np.sort(np.asarray(self.assets(t)))[0] * np.ones(len(self.data))

    book = two(Whole)
    book.RunModel(2)
    expected = book.df_agg
    with pytest.warns(UserWarning, match="replaying in one piece"):
        result = book.ExecuteActions(2)
    pd.testing.assert_frame_equal(result.df_agg, expected)
    book["a"].data = frame_file(tmp_path, numbers(3_000, 1))
    with pytest.raises(OpaqueFormulaError, match="middle"):
        book.ExecuteActions(2)


def test_groups_of_all_models() -> None:
    class Groups(hl.Model):
        def share(self, t):
            return self.data["x"] / self.portfolio.total_by("fund", "x", t)

        def numbered(self, t):
            total = self.portfolio.total_by("k", "x", t, groups=[0, 1, 2])
            return np.where(total > 0, self.data["x"] / np.maximum(total, 1e-9), 0.0)

        @hl.agg(None)
        def x(self, t):
            return self.data["x"] * (1.0 + t)

        @hl.agg(hl.Sum(axis=0))
        def wide(self, t):
            return self.pair(t) / self.portfolio.total_by("fund", "pair", t)

        @hl.agg(None)
        def pair(self, t):
            return self.x(t)[:, np.newaxis] * np.array([1.0, 3.0])

    rng = np.random.default_rng(4)
    frames = [
        pd.DataFrame({**numbers(n, n), "fund": rng.choice(f, n), "k": rng.integers(0, 4, n)})
        for n, f in ((800, ["u", "v"]), (500, ["v", "w"]))
    ]
    book = hl.Portfolio({"a": Groups(data=frames[0]), "b": Groups(data=frames[1])})
    result = check(book, 1)
    both = pd.concat(frames, keys=["a", "b"])
    for name in "ab":
        mine = both.loc[name]
        for column, formula in (("fund", "share"), ("k", "numbered")):
            total = mine[column].map(both.groupby(column).x.sum())
            share = mine.x / total * (mine[column] != 3)
            expected = share[share.notna()].sum()
            if formula == "share":
                assert result[name].df_agg[formula][0] == pytest.approx(expected, rel=1e-12)
                wide = result[name].df_agg["wide"].loc[0]
                assert wide.tolist() == pytest.approx([expected] * 2)


def test_what_before_run_derives() -> None:
    class Derives(Fund):
        def BeforeRun(self):
            self.twice = self.data["x"] * 2.0

        def doubled(self, t):
            return self.twice / self.portfolio.total("assets", t)

    check(two(Derives), 2)


# ---- what a portfolio is -----------------------------------------------------------------------


def test_a_model_that_stands_alone_is_a_portfolio_of_one() -> None:
    model = Fund(data=numbers(3_000, 1), scale=1.0)
    model.RunModel(2)
    np.testing.assert_allclose(
        model.df_agg["assets"], numbers(3_000, 1)["x"].sum() * 1.01 ** np.arange(3)
    )
    result = model.ExecuteActions(2, block_rows=300)
    np.testing.assert_allclose(result.df_agg, model.df_agg, rtol=1e-12)


def test_results_belong_to_the_models_as_they_are() -> None:
    book = two()
    result = book.ExecuteActions(3)
    assert book.result is result
    assert book["a"].result is result["a"]
    assert book["b"].df_agg.equals(result["b"].df_agg)
    assert book.df_agg.equals(result.df_agg)
    # A call afterwards sees the other models.
    assets = [result[name].df_agg["assets"][2] for name in "ab"]
    assert float(book["a"].rate(2)) == pytest.approx(0.01 * assets[0] / sum(assets))
    book["a"].scale = 2.0
    assert book.result is None
    with pytest.raises(PlanError, match="has not been run since"):
        _ = book["b"].df_agg
    again = check(book, 3)
    assert again.df_agg["a"]["assets"][0] == pytest.approx(2 * result.df_agg["a"]["assets"][0])
    book.Clear()
    with pytest.raises(PlanError):
        _ = book.df_agg


def test_outputs_are_chosen_by_model() -> None:
    book = two()
    result = book.ExecuteActions(3, outputs={"b": ["assets"]})
    assert list(result.df_agg.columns) == [("b", "assets")]
    whole = book.ExecuteActions(3, outputs={"a": None, "b": None})
    assert list(whole.df_agg.columns) == [("a", "assets"), ("b", "assets")]
    assert whole.df_agg["b"].equals(result.df_agg["b"])
    with pytest.raises(ModelError, match="outputs names no model of the portfolio: c"):
        book.ExecuteActions(3, outputs={"c": ["assets"]})
    with pytest.raises(ModelError, match="given by model"):
        book.ExecuteActions(3, outputs=["assets"])  # type: ignore[arg-type]


def test_plans_and_what_they_say() -> None:
    book = two()
    plans = book.GenerateActions(5)
    assert list(plans) == ["a", "b"]
    assert "portfolio.total('assets', (3,))" in {call.call for call in plans["a"].calls}
    text = book.explain(memory="16GB")
    assert "a: Fund: t = 0..5" in text
    assert "3,000 policies" in text
    assert "1,700 policies" in text
    assert "6 phases: totals over all policies decide what comes next" in text
    assert "in memory" in text
    assert "of 16.0 GB allowed" in plans["a"].explain(rows=10_000, memory="16GB")
    assert "refused:" in book.explain(memory="1MB")
    with pytest.raises(PlanError, match="of 'a' within a portfolio"):
        _ = plans["a"].evaluate
    with pytest.raises(MemoryBudgetError):
        book.ExecuteActions(memory="1MB")
    assert len(book.ExecuteActions().df_agg) == 6


def test_copies() -> None:
    book = two()
    book.RunModel(3)
    again = pickle.loads(pickle.dumps(book))
    again.RunModel(3)
    assert again.df_agg.equals(book.df_agg)
    assert again["a"] is not book["a"]
    for made in (copy.copy(book["a"]), pickle.loads(pickle.dumps(book["a"]))):
        with pytest.raises(ModelError, match="belongs to a portfolio"):
            made.rate(1)
    moved = hl.Portfolio({"a": copy.copy(book["a"])})
    moved.RunModel(3)
    assert moved.df_agg["a"]["assets"][1] == pytest.approx(1.01 * moved.df_agg["a"]["assets"][0])


def test_a_model_goes_to_the_last_portfolio() -> None:
    book = two()
    other = hl.Portfolio({"only": book["a"]})
    other.RunModel(1)
    with pytest.raises(ModelError, match="another portfolio since: a"):
        book.RunModel(1)
    with pytest.raises(ModelError, match="another portfolio since: a"):
        book.ExecuteActions(1)


def test_deep_recursion_from_model_to_model() -> None:
    class Chain(hl.Model):
        def value(self, t):
            if t == 0:
                return self.data["x"] * 1.0
            other = self.portfolio[self.other].total(t - 1)
            return self.value(0) * other / 1e4

        @hl.agg(None)
        def total(self, t):
            return self.value(t).sum() / 1e4

    a, b = Chain(data=numbers(5, 1), other="b"), Chain(data=numbers(4, 2), other="a")
    hl.Portfolio({"a": a, "b": b})
    assert np.isfinite(a.value(3_000)).all()


# ---- what is refused ---------------------------------------------------------------------------


class Asks(Fund):
    def asked(self, t):
        return self.ask(self)


@pytest.mark.parametrize(
    ("ask", "error", "message", "remedy"),
    [
        (lambda m: m.portfolio.total("asets", 0), ModelError, "no model .* 'asets'", "'assets'"),
        (lambda m: m.portfolio["c"].rate(0), ModelError, "has no model 'c'", "there are a, b"),
        (lambda m: m.portfolio["b"].rat(0), ModelError, "no formula 'rat'", "'rate'"),
        (lambda m: m.portfolio["b"].assets(0), ModelError, "each policy of another", "total"),
        (lambda m: m.portfolio.total("rate", 0), ModelError, "no entry for each policy", "sum"),
        (lambda m: m.portfolio.total_by("x", "assets", 0), ModelError, "text columns", "groups"),
        (lambda m: m.portfolio.total_by("y", "assets", 0), HlDaskError, "y", ""),
    ],
    ids=["total", "model", "formula", "rows", "no rows", "no groups", "no column"],
)
def test_what_formulas_cannot_ask(ask: Any, error: Any, message: str, remedy: str) -> None:
    book = two(Asks, ask=ask)
    for run in (book.RunModel, book.ExecuteActions):
        with pytest.raises(error, match=message) as caught:
            run(1)
        assert "asked(0)" in str(caught.value)
        assert remedy in (caught.value.remedy or "")


def test_a_formula_must_not_swallow_an_error_of_another_model() -> None:
    class Swallows(Fund):
        def tried(self, t):
            try:
                return self.portfolio["b"].fails(t)
            except HlDaskError:
                return 0.0

        @hl.agg(None)
        def fails(self, t):
            return self.assets(t)[0]

    with pytest.raises(RowMixingError):
        two(Swallows).ExecuteActions(1)


def test_rows_that_leak_from_model_to_model() -> None:
    kept: list[Any] = []

    class Leaks(Fund):
        def leaked(self, t):
            kept.append(self.assets(t))
            return self.assets(t) + kept[0]

    book = hl.Portfolio(
        {name: Leaks(data=numbers(2_000, k), scale=1.0) for k, name in enumerate("ab")}
    )
    with pytest.raises(HlDaskError):
        book.ExecuteActions(1)


def test_a_cycle_through_two_models() -> None:
    class Cycles(Fund):
        def mine(self, t):
            other = "b" if self.scale == 1.0 else "a"
            return self.portfolio[other].mine(t)

    book = two(Cycles)
    for run in (book.RunModel, book.ExecuteActions):
        with pytest.raises(CycleError, match="needs its own value"):
            run(1)


def test_a_model_that_is_run_by_itself() -> None:
    book = two()
    for run in (book["a"].RunModel, book["a"].ExecuteActions):
        with pytest.raises(ModelError, match="belongs to a portfolio") as caught:
            run(2)
        assert "portfolio.RunModel" in (caught.value.remedy or "")
    # The portfolio is as it was.
    check(book, 2)


def test_before_run_cannot_ask_other_models() -> None:
    class Early(Fund):
        def BeforeRun(self):
            self.total = self.portfolio.total("assets", 0)

    book = two(Early)
    for run in (book.RunModel, book.ExecuteActions):
        with pytest.raises(ModelError, match="BeforeRun") as caught:
            run(1)
        assert caught.value.formula


def test_portfolios_that_are_refused() -> None:
    model = Fund(data=numbers(3, 1), scale=1.0)
    for models, message in (
        ({}, "at least one model"),
        ({"a": Fund}, "models by name"),
        ({1: model}, "models by name"),
        ({"a": model, "b": model}, "given twice"),
    ):
        with pytest.raises(ModelError, match=message) as caught:
            hl.Portfolio(models)  # type: ignore[arg-type]
        assert caught.value.remedy
    with pytest.raises(PlanError, match="length is not known"):
        two().ExecuteActions()
    with pytest.raises(ModelError, match="a name of the framework"):
        type("Taken", (hl.Model,), {"portfolio": lambda self: 1})
    with pytest.raises(FormulaError, match="ZeroDivisionError") as caught_other:
        two(Asks, ask=lambda m: m.portfolio["b"].assets(1 / 0)).RunModel(0)
    assert caught_other.value.formula == "asked(0)"
