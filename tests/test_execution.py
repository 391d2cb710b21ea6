"""From plan to result: what an execution takes from the plan, publishes, and leaves behind."""

from __future__ import annotations

import pickle
import signal
import sys
import threading
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import cloudpickle
import dask
import numpy as np
import pandas as pd
import pytest
from dask.base import is_dask_collection

import hl_dask as hl
import hl_dask.kernel
from hl_dask.errors import (
    FormulaError,
    MemoryBudgetError,
    ModelError,
    OpaqueFormulaError,
    PlanError,
    RowMixingError,
    SchedulerError,
    UnsupportedError,
)
from hl_dask.session import HOP
from tests.reference import Columns, policies, total

ROWS = 1_300


@pytest.fixture
def columns() -> Columns:
    return policies(np.random.default_rng(11), ROWS)


class Term(hl.Model):
    """Decrements and a present value; small enough to check by hand."""

    def pols_if(self, t):
        if t == 0:
            return self.data["policy_count"]
        return self.pols_if(t - 1) * (1 - self.lapse)

    def premiums(self, t):
        return self.pols_if(t) * self.data["premium"]

    def pv(self):
        return sum(self.premiums(t) for t in range(3))


class Guarded(Term):
    """Turns a total into a Python value, which the sample gets wrong."""

    def bonus(self, t):
        if self.premiums(t).sum() > self.hurdle:
            return self.premiums(t) * 2
        return self.premiums(t)


class Unseen(Term):
    """A formula that hl_dask cannot follow."""

    def unseen(self, t):
        return np.asarray(self.data["premium"]) * self.pols_if(t)


def check_term(frame: pd.DataFrame, d: Columns, n: int, lapse: float = 0.1) -> None:
    assert list(frame.index) == list(range(n + 1))
    for t in range(n + 1):
        expected = d["policy_count"] * d["premium"] * (1 - lapse) ** t
        assert total(expected).matches(frame["premiums"].loc[t])


# --- lazy results ------------------------------------------------------------------------------


def test_a_lazy_result_is_a_dask_collection(columns: Columns) -> None:
    model = Term(data=columns, lapse=0.1)
    eager = model.ExecuteActions(proj_len=3, block_rows=100)
    lazy = model.ExecuteActions(compute=False, chunk_blocks=1)
    assert is_dask_collection(lazy)
    assert "not computed" in repr(lazy)
    assert "Term" in repr(lazy)
    assert "1,300" in repr(lazy)
    (first,) = dask.compute(lazy)
    for result in (first, lazy.compute(), lazy.compute(scheduler="synchronous")):
        pd.testing.assert_frame_equal(result.df_agg, eager.df_agg)
        assert result.values == eager.values
    assert model.result is result
    pd.testing.assert_frame_equal(lazy.persist().compute().df_agg, eager.df_agg)


def test_two_lazy_results_are_computed_together(columns: Columns) -> None:
    one = Term(data=columns, lapse=0.1).ExecuteActions(2, compute=False)
    other = Term(data=columns, lapse=0.2).ExecuteActions(2, compute=False)
    first, second = dask.compute(one, other)
    check_term(first.df_agg, columns, 2)
    check_term(second.df_agg, columns, 2, 0.2)


@pytest.mark.parametrize("workers", [None, 1, 3])
@pytest.mark.parametrize("scheduler", [None, "threads", "synchronous"])
def test_a_lazy_result_takes_scheduler_and_workers(
    columns: Columns, scheduler: str | None, workers: int | None
) -> None:
    model = Term(data=columns, lapse=0.1)
    lazy = model.ExecuteActions(
        2, compute=False, scheduler=scheduler, workers=workers, block_rows=64, chunk_blocks=1
    )
    check_term(lazy.compute().df_agg, columns, 2)
    check_term(lazy.compute(num_workers=2).df_agg, columns, 2)


def test_a_lazy_result_verifies_guesses(columns: Columns) -> None:
    hurdle = float((columns["policy_count"] * columns["premium"]).sum()) * 0.95
    model = Guarded(data=columns, lapse=0.1, hurdle=hurdle)
    model.RunModel(2)
    expected = model.df_agg
    for _ in range(2):
        lazy = model.ExecuteActions(2, compute=False)
        pd.testing.assert_frame_equal(lazy.compute().df_agg, expected, rtol=1e-12)


def test_a_lazy_result_in_one_piece(columns: Columns) -> None:
    lazy = Unseen(data=columns, lapse=0.1).ExecuteActions(2, compute=False)
    assert is_dask_collection(lazy)
    with pytest.warns(UserWarning, match="unseen"):
        (result,) = dask.compute(lazy)
    check_term(result.df_agg, columns, 2)


def test_a_lazy_result_without_a_pass() -> None:
    class Constant(hl.Model):
        def rate(self, t):
            return 0.5 * t

    lazy = Constant(data={"a": np.arange(5.0)}).ExecuteActions(2, compute=False)
    assert lazy.compute().df_agg["rate"].tolist() == [0.0, 0.5, 1.0]


def test_a_lazy_result_is_of_the_model_as_it_was(columns: Columns) -> None:
    hurdle = float((columns["policy_count"] * columns["premium"]).sum()) * 0.95
    model = Guarded(data=columns, lapse=0.1, hurdle=hurdle)
    model.RunModel(2)
    expected = model.df_agg
    lazy = model.ExecuteActions(2, compute=False)
    model.hurdle = 1e30
    model.lapse = 0.5
    model.data = {name: column[:7] for name, column in columns.items()}
    pd.testing.assert_frame_equal(lazy.compute().df_agg, expected, rtol=1e-12)
    # The model is another one now, and this is no result of it.
    assert model.result is None
    with pytest.raises(PlanError):
        _ = model.df_agg


def test_a_lazy_result_checks_memory_at_once(columns: Columns) -> None:
    with pytest.raises(MemoryBudgetError):
        Term(data=columns, lapse=0.1).ExecuteActions(2, memory="1MB", compute=False)


def test_drawing_without_graphviz_says_what_to_install(
    columns: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "graphviz", None)
    model = Term(data=columns, lapse=0.1)
    lazy = model.ExecuteActions(2, compute=False)
    result = lazy.compute()
    for drawable in (lazy, result):
        with pytest.raises(UnsupportedError, match="graphviz"):
            drawable.visualize()


def test_a_result_can_be_pickled(columns: Columns) -> None:
    result = Term(data=columns, lapse=0.1).ExecuteActions(2)
    copied = pickle.loads(pickle.dumps(result))
    pd.testing.assert_frame_equal(copied.df_agg, result.df_agg)
    assert copied.values == result.values
    assert copied.cache_agg == result.cache_agg
    assert repr(copied) == repr(result)
    with pytest.raises(UnsupportedError, match="pickled"):
        copied.visualize()


def test_a_result_draws_its_graph(
    columns: Columns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    graphviz = ModuleType("graphviz")
    graphviz.__spec__ = ModuleSpec("graphviz", None)
    monkeypatch.setitem(sys.modules, "graphviz", graphviz)
    monkeypatch.setattr(dask, "visualize", lambda *args, **kwargs: drawn.append((args, kwargs)))
    result = Term(data=columns, lapse=0.1).ExecuteActions(2, block_rows=100)
    result.visualize(tmp_path / "graph.svg")
    (collection,), options = drawn[0]
    assert options["filename"] == str(tmp_path / "graph.svg")
    names = {key[0].split("-")[0] for key in collection.__dask_graph__() if isinstance(key, tuple)}
    assert names == {"chunk", "merge"}


# --- what is published -------------------------------------------------------------------------


def test_results_are_those_of_the_last_run(columns: Columns) -> None:
    model = Term(data=columns, lapse=0.1)
    model.RunModel(1)
    assert model.result is None
    result = model.ExecuteActions(4)
    assert model.result is result
    assert model.plan is result.plan
    pd.testing.assert_frame_equal(model.df_agg, result.df_agg)
    assert model.cache_agg == result.cache_agg
    assert model.cache_agg["pv"][()] == result.values["pv"]
    assert model.cache_agg["pols_if"][(2,)] == result.df_agg["pols_if"].loc[2]
    assert model.cache == {}
    assert "Term" in repr(result)
    model.lapse = 0.2
    assert model.result is None
    with pytest.raises(PlanError):
        _ = model.cache_agg
    check_term(model.ExecuteActions().df_agg, columns, 4, 0.2)
    model.Clear()
    assert model.result is None
    assert model.plan is not None


def test_results_outlive_changes_of_the_model(columns: Columns) -> None:
    model = Term(data=columns, lapse=0.1)
    first = model.ExecuteActions(2)
    before = first.df_agg.copy()
    model.lapse = 0.5
    model.ExecuteActions(2)
    pd.testing.assert_frame_equal(first.df_agg, before)


# --- failures ----------------------------------------------------------------------------------


def test_a_failing_run_leaves_model_and_plan(columns: Columns) -> None:
    class Failing(Term):
        def extra(self, t):
            if self.broken and t == 2:
                raise ZeroDivisionError
            return self.premiums(t)

    model = Failing(data=columns, lapse=0.1, broken=False)
    plan = model.GenerateActions(3)
    model.broken = True
    for action in (model.ExecuteActions, model.GenerateActions, lambda: model.RunModel(3)):
        with pytest.raises(FormulaError, match="ZeroDivisionError"):
            action()
        assert model.plan is plan
    model.broken = False
    check_term(model.ExecuteActions().df_agg, columns, 3)


def test_a_run_that_does_not_fit_leaves_the_plan(columns: Columns) -> None:
    model = Term(data=columns, lapse=0.1)
    plan = model.GenerateActions(2)
    model.lapse = 0.2
    with pytest.raises(MemoryBudgetError):
        model.ExecuteActions(5, memory="1MB")
    assert model.plan is plan
    check_term(model.ExecuteActions().df_agg, columns, 2, 0.2)


@pytest.mark.parametrize("option", ["workers", "block_rows", "chunk_blocks"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "3", True])
def test_counts_are_checked(columns: Columns, option: str, value: object) -> None:
    model = Term(data=columns, lapse=0.1)
    with pytest.raises(ModelError, match=option):
        model.ExecuteActions(2, **{option: value})


def test_an_unknown_scheduler_is_refused_before_recording(columns: Columns) -> None:
    model = Term(data=columns, lapse=0.1)
    with pytest.raises(SchedulerError):
        model.ExecuteActions(2, scheduler="gpu")
    assert model.plan is None


@pytest.mark.parametrize("action", ["RunModel", "GenerateActions", "ExecuteActions"])
def test_ctrl_c_in_a_formula_leaves_the_model_usable(columns: Columns, action: str) -> None:
    class Interrupted(Term):
        def extra(self, t):
            if switch.on and t == 1:
                raise KeyboardInterrupt
            return self.premiums(t)

    switch = SimpleNamespace(on=False)
    model = Interrupted(data=columns, lapse=0.1)
    plan = model.GenerateActions(2)
    model.plan = plan
    switch.on = True
    with pytest.raises(KeyboardInterrupt):
        getattr(model, action)(2)
    assert model.plan is plan
    switch.on = False
    model.RunModel(2)
    check_term(model.df_agg, columns, 2)
    check_term(model.ExecuteActions().df_agg, columns, 2)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_on_the_way_down_stops_all_of_it() -> None:
    """The main thread gets the interrupt while another one is deep in the recursion."""

    class Deep(hl.Model):
        def down(self, t):
            called.append(t)
            if t == 2 * HOP and switch.on:
                signal.pthread_kill(main.ident, signal.SIGINT)
            if t > 2 * HOP and switch.on:
                time.sleep(0.001)
            return self.data["a"] if t >= 50 * HOP else self.down(t + 1) + 1.0

    called: list[int] = []
    switch, main = SimpleNamespace(on=True), threading.main_thread()
    model = Deep(data={"a": np.arange(3.0)})
    with pytest.raises(KeyboardInterrupt):
        model.down(0)
    assert max(called) < 50 * HOP
    switch.on = False
    assert np.asarray(model.down(0)).tolist() == [50.0 * HOP + k for k in range(3)]


# --- plans -------------------------------------------------------------------------------------


def test_a_loaded_plan_says_what_is_run(columns: Columns, tmp_path: Path) -> None:
    model = Term(data=columns, lapse=0.1)
    model.GenerateActions(3, outputs=["premiums"], block_rows=128).save(tmp_path / "plan.json")
    other = Term(data=columns, lapse=0.1)
    other.plan = hl.ActionPlan.load(tmp_path / "plan.json")
    result = other.ExecuteActions()
    assert list(result.df_agg.columns) == ["premiums"]
    assert result.values == {}
    assert result.plan.block_rows == 128
    assert result.plan.outputs == ("premiums",)
    assert result.stats.n_blocks == -(-ROWS // 128)
    check_term(result.df_agg, columns, 3)


def test_only_a_plan_can_be_the_plan(columns: Columns) -> None:
    model = Term(data=columns, lapse=0.1)
    with pytest.raises(PlanError, match="dict"):
        model.plan = {}  # type: ignore[assignment]


def test_other_outputs_than_those_of_the_plan(columns: Columns) -> None:
    model = Term(data=columns, lapse=0.1)
    model.GenerateActions(2, outputs=["pols_if"])
    result = model.ExecuteActions(outputs=["premiums", "pv"])
    assert list(result.df_agg.columns) == ["premiums"]
    assert list(result.values) == ["pv"]
    assert result.plan.outputs == ("premiums", "pv")
    check_term(result.df_agg, columns, 2)
    with pytest.raises(ModelError, match="premium_s"):
        model.ExecuteActions(outputs=["premium_s"])


def test_one_output_may_be_named_alone(columns: Columns) -> None:
    model = Term(data=columns, lapse=0.1)
    plan = model.GenerateActions(2, outputs="premiums")
    assert plan.outputs == ("premiums",)
    assert list(model.ExecuteActions().df_agg.columns) == ["premiums"]


@pytest.mark.parametrize("proj_len", [0, 2, 5, 9])
def test_another_length_than_that_of_the_plan(columns: Columns, proj_len: int) -> None:
    model = Term(data=columns, lapse=0.1)
    model.GenerateActions(5)
    result = model.ExecuteActions(proj_len)
    check_term(result.df_agg, columns, proj_len)
    assert result.plan.proj_len == proj_len
    assert list(model.ExecuteActions().df_agg.index) == list(range(proj_len + 1))


def test_another_block_size_than_that_of_the_plan(columns: Columns) -> None:
    model = Term(data=columns, lapse=0.1)
    model.GenerateActions(2, block_rows=512)
    recorded = model.plan.record_s
    result = model.ExecuteActions(block_rows=100)
    assert result.plan.block_rows == 100
    assert result.stats.n_blocks == 13
    assert result.stats.record_s == 0.0
    assert result.plan.record_s == recorded
    assert model.plan is result.plan
    again = model.ExecuteActions()
    assert again.stats.n_blocks == 13
    pd.testing.assert_frame_equal(again.df_agg, result.df_agg, check_exact=True)
    assert model.ExecuteActions(block_rows=512).plan.block_rows == 512


def test_a_plan_that_still_holds_is_not_recorded_again(columns: Columns) -> None:
    model = Term(data=columns, lapse=0.1)
    model.GenerateActions(2)
    model.data = {name: column[: ROWS // 2].copy() for name, column in columns.items()}
    assert model.ExecuteActions().stats.record_s == 0.0
    model.lapse = 0.3
    assert model.ExecuteActions().stats.record_s > 0.0
    model.plan = None
    assert model.ExecuteActions(2).stats.record_s > 0.0


# --- heavylight --------------------------------------------------------------------------------


class Light(hl.LightModel):
    def __init__(self, mp, rate):
        self.rate = rate
        super().__init__()
        self.mp = mp

    model_points = ("mp",)

    def pols_if(self, t):
        if t == 0:
            return self.mp.policy_count
        return self.pols_if(t - 1) * (1 - self.rate)

    def premiums(self, t):
        return self.pols_if(t) * self.mp.premium


@pytest.mark.parametrize("kind", ["object", "frame", "dict"])
def test_a_declared_object_of_arrays(columns: Columns, kind: str) -> None:
    fields = {"policy_count": columns["policy_count"], "premium": columns["premium"]}
    if kind == "dict":

        class Model(Light):
            def pols_if(self, t):
                if t == 0:
                    return self.mp["policy_count"]
                return self.pols_if(t - 1) * (1 - self.rate)

            def premiums(self, t):
                return self.pols_if(t) * self.mp["premium"]

        model: Light = Model(fields, 0.1)
    else:
        model = Light(SimpleNamespace(**fields) if kind == "object" else pd.DataFrame(fields), 0.1)
    model.RunModel(3)
    check_term(model.df_agg, columns, 3)
    result = model.ExecuteActions(block_rows=100)
    check_term(result.df_agg, columns, 3)
    assert model.Check().empty


def test_run_optimized_follows_a_plain_run(columns: Columns) -> None:
    class Model(hl.LightModel):
        def premiums(self, t):
            return self.data["premium"] * self.data["policy_count"] * 0.9**t

    few = {name: column[:50] for name, column in columns.items()}
    model = Model(data=few)
    with pytest.raises(PlanError):
        model.RunOptimized()
    model.RunModel(3)
    model.data = columns
    model.RunOptimized()
    check_term(model.df_agg, columns, 3)
    assert model.cache == {}
    model.ClearOptimize()
    model.RunOptimized()
    check_term(model.df_agg, columns, 3)


def test_run_optimized_of_one_policy() -> None:
    class Model(hl.LightModel):
        def premiums(self, t):
            return self.data["premium"] * 0.5**t

    model = Model(data={"premium": 8.0})
    model.RunModel(2)
    model.RunOptimized()
    assert model.df_agg["premiums"].tolist() == [8.0, 4.0, 2.0]


@pytest.mark.parametrize("positional", [True, False])
def test_the_aggregate_of_a_light_model(columns: Columns, positional: bool) -> None:
    class Model(hl.LightModel):
        def premium(self, t):
            return self.data["premium"]

        @hl.agg(np.sum)
        def count(self, t):
            return self.data["policy_count"]

    def made(function: object) -> hl.LightModel:
        if positional:
            return Model(function, data=columns)
        return Model(agg_function=function, data=columns)

    silent = made(None)
    silent.RunModel(1)
    assert list(silent.df_agg.columns) == ["count"]
    assert list(silent.df.columns) == ["premium", "count"]
    assert list(silent.ExecuteActions().df_agg.columns) == ["count"]
    largest = made(np.max)
    for frame in (largest.ExecuteActions(1).df_agg, pickle_of(largest).ExecuteActions(1).df_agg):
        assert frame["premium"].loc[0] == columns["premium"].max()
        assert total(columns["policy_count"]).matches(frame["count"].loc[1])


def pickle_of(model: hl.LightModel) -> hl.LightModel:
    copied: hl.LightModel = cloudpickle.loads(cloudpickle.dumps(model))
    return copied


def test_a_subclass_need_not_call_the_constructor(columns: Columns) -> None:
    class Model(Term):
        def __init__(self, rate):
            self.lapse = rate

    model = Model(0.1)
    model.data = columns
    model.RunModel(1)
    check_term(model.df_agg, columns, 1)


@pytest.mark.parametrize("name", ["_session", "_plan", "_derived", "GenerateActions", "df"])
def test_names_of_the_framework_cannot_be_assumptions(name: str) -> None:
    with pytest.raises(ModelError, match=name):
        setattr(Term(lapse=0.1), name, None)
    with pytest.raises(ModelError, match=name):
        Term(lapse=0.1, **{name: None})


# --- before and after a run --------------------------------------------------------------------


class Framed(Term):
    """Derives attributes from data, and keeps something of the results."""

    def BeforeRun(self):
        self.amount = self.data["premium"] * self.data["policy_count"]
        self._half = 0.5
        self.woman = self.data["sex"]
        self.pair = (self.data["premium"], 2.0)

    def AfterRun(self):
        self.first_premium = self.df_agg["premiums"].loc[0]
        self.calls.append(self.result)

    def scaled(self, t):
        return self.amount * self._half

    def women(self, t):
        return np.where(self.woman == "F", self.pair[0] * self.pair[1], 0.0)


def framed(columns: Columns) -> Framed:
    columns["sex"] = np.where(np.arange(len(columns["premium"])) % 3 == 0, "F", "M")
    return Framed(data=columns, lapse=0.1, calls=[])


def test_after_run_follows_both_kinds_of_run(columns: Columns) -> None:
    model = framed(columns)
    model.RunModel(2)
    assert model.calls == [None]
    assert model.first_premium == model.df_agg["premiums"].loc[0]
    expected = model.df_agg
    result = model.ExecuteActions()
    assert model.calls == [None, result]
    assert model.first_premium == result.df_agg["premiums"].loc[0]
    pd.testing.assert_frame_equal(result.df_agg, expected, rtol=1e-12)
    assert model.result is result
    lazy = model.ExecuteActions(compute=False)
    assert len(model.calls) == 2
    lazy.compute()
    assert len(model.calls) == 3


def test_what_a_run_derives_does_not_stay(columns: Columns) -> None:
    model = framed(columns)
    model.RunModel(2)
    assert len(model.amount) == ROWS
    fewer = {name: column[:700] for name, column in columns.items()}
    for _ in range(2):
        model.ExecuteActions()
        model.RunModel(1)
    model.data = fewer
    assert not hasattr(model, "amount")
    assert not hasattr(model, "first_premium")
    for _ in range(2):
        result = model.ExecuteActions()
        check_term(result.df_agg, fewer, 2)
        amount = fewer["premium"] * fewer["policy_count"]
        assert total(amount * 0.5).matches(result.df_agg["scaled"].loc[1])
    model.RunModel(1)
    assert len(model.amount) == 700


def test_what_after_run_keeps_does_not_cost_a_recording(columns: Columns) -> None:
    class Keeps(Term):
        def AfterRun(self):
            self.totals = self.df_agg["premiums"].to_numpy()

    model = Keeps(data=columns, lapse=0.1)
    model.ExecuteActions(3)
    assert len(model.totals) == 4
    assert model.ExecuteActions().stats.record_s == 0.0


def test_an_assumption_that_before_run_changes_is_restored(columns: Columns) -> None:
    class Doubles(Term):
        def BeforeRun(self):
            self.lapse = self.lapse * 2

    model = Doubles(data=columns, lapse=0.05)
    for _ in range(2):
        model.RunModel(2)
        assert model.lapse == 0.1
        check_term(model.df_agg, columns, 2)
        check_term(model.ExecuteActions().df_agg, columns, 2)
        assert model.lapse == 0.05


def test_before_run_may_delete_an_attribute(columns: Columns) -> None:
    class Deletes(Term):
        def BeforeRun(self):
            del self.scratch

    model = Deletes(data=columns, lapse=0.1, scratch=1)
    model.RunModel(1)
    check_term(model.df_agg, columns, 1)
    assert model.scratch == 1
    check_term(model.ExecuteActions().df_agg, columns, 1)


# --- formulas that cannot be followed ----------------------------------------------------------


def test_opaque_formulas_need_data_in_memory(columns: Columns, tmp_path: Path) -> None:
    pd.DataFrame(columns).to_parquet(tmp_path / "policies.parquet")
    model = Unseen(data=tmp_path / "policies.parquet", lapse=0.1)
    with pytest.raises(OpaqueFormulaError, match="per_point"):
        model.ExecuteActions(2)
    model.data = columns
    with pytest.warns(UserWarning, match="unseen") as seen:
        result = model.ExecuteActions(2)
    assert seen[0].filename == __file__
    check_term(result.df_agg, columns, 2)


def test_a_declared_formula_that_gives_a_tuple_is_refused(columns: Columns) -> None:
    class Model(Term):
        @hl.agg(None)
        @hl.per_point
        def parts(self, t):
            return np.asarray(self.data["premium"]), 3.0

        def f(self, t):
            return self.parts(t)[0]

    with pytest.raises(OpaqueFormulaError, match="tuple"):
        Model(data=columns, lapse=0.1).GenerateActions(1)


def test_a_failing_aggregate_is_named(columns: Columns) -> None:
    def broken(values):
        raise ZeroDivisionError

    class Model(Term):
        @hl.agg(hl.Aggregate(map=broken, combine=np.add))
        def f(self, t):
            return self.data["premium"]

    for action in ("RunModel", "GenerateActions"):
        with pytest.raises((FormulaError, RowMixingError), match=r"f\(0\)"):
            getattr(Model(data=columns, lapse=0.1), action)(1)


def test_a_plain_run_reports_what_a_replay_reports(columns: Columns) -> None:
    class Model(hl.Model):
        def g(self, t, k):
            return self.data["premium"] * k

        @hl.agg(None)
        def h(self, t):
            return self.g(t, 2) + self.g(t, 3)

        def f(self, t):
            return self.g(t, 3)

    model = Model(data=columns)
    model.RunModel(2)
    plain = model.df_agg
    assert list(plain.columns) == [("g", 3), ("f", "")]
    assert len(model.cache["h"]) == 3
    result = model.ExecuteActions()
    pd.testing.assert_frame_equal(result.df_agg, plain)


def test_an_error_in_a_block_says_which_rows(columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return hl.lookup(self.rates, self.data["age"])

    model = Model(data=columns, rates=np.zeros(130))
    model.GenerateActions(0)
    ages = np.full(1000, 30)
    ages[777] = 200
    model.data = {**{k: v[:1000] for k, v in columns.items()}, "age": ages}
    with pytest.raises(hl.HlDaskError) as info:
        model.ExecuteActions(block_rows=100)
    assert "rows 700 to 799" in str(info.value)
    assert "200" in str(info.value)
    assert "f(0)" in str(info.value)


def test_check_takes_the_sample_for_all_there_is(columns: Columns) -> None:
    class Model(hl.Model):
        def mean(self, t):
            return self.data["premium"].sum() / len(self.data)

        def deviation(self, t):
            return self.data["premium"] - float(self.mean(t))

        def sign(self, t):
            return self.data["premium"] * (1 if self.mean(t) > 200.0 else -1)

    many = {k: np.concatenate([v, v, v]) for k, v in columns.items()}
    many["premium"] = np.sort(many["premium"])
    assert len(Model(data=many).Check(1)) == 0


def test_check_lists_what_differs(columns: Columns, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Term(data=columns, lapse=0.1)
    assert model.Check(2).empty
    original = hl_dask.kernel.Machine._load

    def shifted(self: Any, column: str, out: Any) -> Any:
        function, arguments = original(self, column, out)

        def load() -> None:
            function(*arguments)
            out[0] += 1

        return load, ()

    monkeypatch.setattr(hl_dask.kernel.Machine, "_load", shifted)
    differences = model.Check(2)
    assert set(differences.columns) == {"call", "plain", "replay", "difference"}
    assert "pols_if(0)" in set(differences["call"])
    assert (differences["difference"] > 0).all()


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_during_a_replay_on_threads_ends_soon_and_leaves_the_model_usable() -> None:
    class Slow(hl.Model):
        @hl.per_point
        def slow(self, t):
            if switch.on and threading.current_thread() is not main:
                signal.pthread_kill(main.ident, signal.SIGINT)
                time.sleep(0.05)
            return np.asarray(self.data["x"]) * (t + 1.0)

    switch, main = SimpleNamespace(on=False), threading.main_thread()
    x = np.arange(4_000.0)
    model = Slow(data={"x": x})
    model.GenerateActions(1)
    switch.on = True
    started = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        model.ExecuteActions(block_rows=10, workers=2)
    assert time.perf_counter() - started < 20
    switch.on = False
    result = model.ExecuteActions(block_rows=10, workers=2)
    assert result.df_agg["slow"].tolist() == [x.sum(), 2 * x.sum()]
