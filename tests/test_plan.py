"""The action list: checked by simulation, printed, saved and loaded, and only ever a hint."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hl_dask as hl
from hl_dask.blocks import BLOCK_ROWS
from hl_dask.errors import HlDaskError, PlanError
from hl_dask.memory import MemoryEstimate, parse_bytes
from hl_dask.plan import COMPUTE, RELEASE, STORE, ActionPlan, CallInfo

quick = settings(max_examples=60, deadline=None)


# ---- plans made up -------------------------------------------------------------------------------


def plan_of(calls: tuple[CallInfo, ...], **changed: Any) -> ActionPlan:
    values: dict[str, Any] = {
        "model": "Term",
        "proj_len": 12,
        "outputs": None,
        "block_rows": 1_000,
        "calls": calls,
        "columns": ("age", "policy_count"),
        "opaque": {},
        "whole": {},
        "fingerprint": {"pols_if": "abc"},
        "nodes": 30,
        "row_nodes": 20,
        "peak_live": ("pols_if(1)",),
        "pinned": ("12 values of f at once",),
        "live_row_bytes": 24,
        "register_row_bytes": 32,
        "column_row_bytes": 16,
        "output_count": 7,
        "guards": (),
        "sample_rows": (997, 499),
        "record_s": 0.25,
        "rows": 5_000,
    }
    return ActionPlan(**{**values, **changed})


@st.composite
def call_lists(draw: Any) -> tuple[CallInfo, ...]:
    n = draw(st.integers(0, 20))
    calls: list[CallInfo] = []
    for k in range(n):
        reads = draw(st.lists(st.sampled_from(calls), max_size=3)) if calls else []
        calls.append(
            CallInfo(
                call=f"f{k % 3}({k})",
                formula=f"f{k % 3}",
                kind=draw(st.sampled_from(["shared", "per-point", "portfolio"])),
                phase=draw(st.integers(0, 2)),
                reads=tuple(info.call for info in reads),
                row_bytes=draw(st.sampled_from([0, 8, 16])),
                reported=draw(st.booleans()),
            )
        )
    return tuple(calls)


def simulate(plan: ActionPlan) -> int:
    """Go through the actions with a cache; the most values that it held."""
    infos = {info.call: info for info in plan.calls}
    assert len(infos) == len(plan.calls), "two calls have the same text"
    readers = {call: [i.call for i in plan.calls if call in i.reads] for call in infos}
    cache: set[str] = set()
    finished: list[str] = []
    released: list[str] = []
    stored: list[str] = []
    most = 0
    for action in plan.actions:
        if action.kind == COMPUTE:
            assert set(infos[action.call].reads) <= cache, f"{action.call} reads what is not there"
            assert action.call not in finished
            finished.append(action.call)
            cache.add(action.call)
        elif action.kind == STORE:
            assert action.call == finished[-1]
            assert action.call in cache
            stored.append(action.call)
        else:
            assert action.kind == RELEASE
            cache.remove(action.call)
            released.append(action.call)
            last = [f for f in finished if f in readers[action.call]] or [action.call]
            assert last[-1] == finished[-1], (
                f"{action.call} is not released right after its last reader"
            )
            assert set(readers[action.call]) <= set(finished), "a later call reads it"
        most = max(most, len(cache))
    assert finished == [info.call for info in plan.calls]
    assert stored == [info.call for info in plan.calls if info.reported]
    assert Counter(released) == Counter(finished)
    assert not cache
    return most


@quick
@given(call_lists())
def test_actions_replay_from_nothing_and_release_after_the_last_reader(
    calls: tuple[CallInfo, ...],
) -> None:
    plan = plan_of(calls)
    assert simulate(plan) == plan.peak_calls


@quick
@given(call_lists())
def test_the_frame_tells_the_calls_in_order_of_completion(calls: tuple[CallInfo, ...]) -> None:
    frame = plan_of(calls).to_frame()
    assert list(frame["call"]) == [info.call for info in calls]
    for k, info in enumerate(calls):
        row = frame.iloc[k]
        assert row["reads"] == ", ".join(info.reads)
        assert (row["formula"], row["kind"], row["phase"]) == (info.formula, info.kind, info.phase)
        assert (row["row_bytes"], row["reported"]) == (info.row_bytes, info.reported)
        assert row["released"] == max(
            [k, *(p for p, i in enumerate(calls) if info.call in i.reads)]
        )


texts = st.text(max_size=12)
plans = st.builds(
    plan_of,
    call_lists(),
    model=texts,
    outputs=st.none() | st.lists(texts, max_size=3).map(tuple),
    opaque=st.dictionaries(texts, texts, max_size=2),
    whole=st.dictionaries(texts, texts, max_size=2),
    fingerprint=st.dictionaries(texts, texts, max_size=2),
    guards=st.lists(texts, max_size=2).map(tuple),
    record_s=st.floats(0, 1e3),
    uses_row_count=st.booleans(),
)


@quick
@given(plan=plans)
def test_a_plan_comes_back_from_its_file(
    plan: ActionPlan, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    asked = plan.actions
    plan.save(path)
    loaded = ActionPlan.load(str(path))
    assert loaded == plan
    assert loaded.actions == asked
    assert repr(loaded) == repr(plan)
    assert [p.name for p in path.parent.iterdir()] == ["plan.json"], "nothing half-written stays"


@quick
@given(plan=plans, data=st.data())
def test_a_damaged_file_is_refused_or_harmless(
    plan: ActionPlan, data: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    plan.save(path)
    raw = path.read_bytes()
    cut = data.draw(st.integers(0, len(raw) - 1))
    path.write_bytes(raw[:cut])
    with pytest.raises(PlanError) as refused:
        ActionPlan.load(path)
    assert refused.value.file == str(path)
    assert "record the plan again" in refused.value.remedy


FOREIGN = {
    "empty": "",
    "no JSON": "pols_if = 3",
    "binary": "\x00\x01",
    "a list": "[]",
    "a list of plans": '[{"hl_dask_plan": 1}]',
    "a number": "5",
    "a text": '"hl_dask_plan"',
    "null": "null",
    "another object": '{"name": "something"}',
    "another version": '{"hl_dask_plan": 999}',
    "version as text": '{"hl_dask_plan": "1"}',
    "nothing but the version": '{"hl_dask_plan": 1}',
    "nested without end": "[" * 100_000,
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=list(FOREIGN))
def test_foreign_files_are_refused_with_a_remedy(content: str, tmp_path: Path) -> None:
    path = tmp_path / "foreign.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(PlanError) as refused:
        ActionPlan.load(path)
    assert str(path) in str(refused.value)
    assert "record the plan again (model.GenerateActions()) and save it" in str(refused.value)


def test_a_file_that_is_not_text_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(PlanError, match="not a plan file"):
        ActionPlan.load(path)
    path.write_bytes(b"\xff\xfe\x00PAR1")
    with pytest.raises(PlanError, match="not a plan file"):
        ActionPlan.load(path)
    with pytest.raises(PlanError, match="not a plan file"):
        ActionPlan.load(tmp_path)


DAMAGE = {
    "a field lost": lambda s: s.pop("columns"),
    "a field too many": lambda s: s.update(surprise=1),
    "calls is a number": lambda s: s.update(calls=3),
    "calls holds numbers": lambda s: s.update(calls=[1, 2]),
    "a call without reads": lambda s: s["calls"][0].pop("reads"),
    "a call with more": lambda s: s["calls"][0].update(surprise=1),
    "reads is a number": lambda s: s["calls"][0].update(reads=7),
}

QUIET_DAMAGE = {
    "reads is a text": lambda s: s["calls"][0].update(reads="f0(0)"),
    "a call that is read is not there": lambda s: s["calls"][0].update(reads=["g(1)"]),
    "block_rows is a text": lambda s: s.update(block_rows="many"),
    "block_rows is zero": lambda s: s.update(block_rows=0),
    "proj_len is a text": lambda s: s.update(proj_len="long"),
    "rows is null": lambda s: s.update(rows=None),
    "opaque is null": lambda s: s.update(opaque=None),
    "columns is a text": lambda s: s.update(columns="age"),
    "outputs is a number": lambda s: s.update(outputs=3),
    "row_bytes is a text": lambda s: s["calls"][0].update(row_bytes="8"),
}


def refuse_damaged(change: Any, path: Path) -> None:
    plan_of((CallInfo("f0(0)", "f0", "per-point", 0, (), 8, True),)).save(path)
    state = json.loads(path.read_text())
    change(state)
    path.write_text(json.dumps(state))
    with pytest.raises(PlanError) as refused:
        ActionPlan.load(path)
    assert "damaged" in str(refused.value)
    assert "record the plan again" in str(refused.value)


@pytest.mark.parametrize("change", DAMAGE.values(), ids=list(DAMAGE))
def test_a_damaged_plan_is_refused_with_a_remedy(change: Any, tmp_path: Path) -> None:
    refuse_damaged(change, tmp_path / "plan.json")


@pytest.mark.parametrize("change", QUIET_DAMAGE.values(), ids=list(QUIET_DAMAGE))
def test_a_plan_with_fields_of_another_type_is_refused(change: Any, tmp_path: Path) -> None:
    refuse_damaged(change, tmp_path / "plan.json")


def test_the_file_is_json_with_a_version(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan_of(()).save(path)
    state = json.loads(path.read_text(encoding="utf-8"))
    assert state["hl_dask_plan"] == 1
    assert "_actions" not in state
    assert state["fingerprint"] == {"pols_if": "abc"}


def test_saving_where_a_plan_is_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan_of(()).save(path)
    plan_of((), proj_len=3).save(path)
    assert ActionPlan.load(path).proj_len == 3


def test_a_plan_can_be_pickled_and_not_changed() -> None:
    plan = plan_of((CallInfo("f0(0)", "f0", "per-point", 0, (), 8, True),))
    assert pickle.loads(pickle.dumps(plan)) == plan
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.rows = 3


def test_another_block_size_is_another_plan() -> None:
    plan = plan_of((CallInfo("f0(0)", "f0", "per-point", 0, (), 8, True),))
    actions = plan.actions
    other = plan.with_blocks(7)
    assert (other.block_rows, plan.block_rows) == (7, 1_000)
    assert other.actions == actions
    assert other != plan


# ---- amounts of memory ---------------------------------------------------------------------------

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@quick
@given(
    st.integers(1, 4_000),
    st.sampled_from(list(UNITS)),
    st.sampled_from(["", " ", "  "]),
    st.sampled_from([str, str.lower, str.upper]),
)
def test_amounts_with_units(number: int, unit: str, space: str, case: Any) -> None:
    assert parse_bytes(case(f"{number}{space}{unit}")) == number * UNITS[unit]
    assert parse_bytes(f" {number}{unit} ") == number * UNITS[unit]


@quick
@given(st.integers(1, 2**60))
def test_amounts_as_numbers(number: int) -> None:
    assert parse_bytes(number) == pytest.approx(number, rel=1e-15)
    assert parse_bytes(np.int64(number)) == parse_bytes(number)


def test_fractions_of_a_unit() -> None:
    assert parse_bytes("1.5GB") == 1_500_000_000
    assert parse_bytes("0.5 MiB") == 524_288
    assert parse_bytes(1.5e9) == 1_500_000_000
    assert parse_bytes("1e9") == 10**9


@pytest.mark.parametrize(
    "value",
    [
        *("", "GB", "much", "1XB", "-1GB", "0", "nan", "inf", "1 GB 2", "0x10", "1,5GB", "0.1 B"),
        *(0, -5, 0.25, float("nan"), float("inf"), None, [1], {}),
        pytest.param(10**400, id="huge"),
    ],
)
def test_what_is_no_amount(value: Any) -> None:
    with pytest.raises(PlanError, match="is not an amount of memory") as refused:
        parse_bytes(value)
    assert '"1GB"' in refused.value.remedy


def test_an_estimate_adds_up() -> None:
    assert MemoryEstimate(1, 20, read_bytes=300, task_bytes=4_000).total_bytes == 4_321


# ---- plans of models -----------------------------------------------------------------------------


class Term(hl.Model):
    @hl.agg(None)
    def age(self, t):
        return self.data["age"] + t // 12

    @hl.agg(None)
    def discount(self, t):
        return 1.0 if t == 0 else self.discount(t - 1) / (1 + self.rate)

    def pols_if(self, t):
        if t == 0:
            return self.data["policy_count"]
        return self.pols_if(t - 1) - self.decrement(t - 1, "death") - self.decrement(t - 1, "lapse")

    @hl.agg(None)
    def decrement(self, t, cause):
        rate = 0.0004 * 1.09 ** (self.age(t) - 20) if cause == "death" else 0.01
        return self.pols_if(t) * rate

    def claims(self, t):
        return self.decrement(t, "death") * self.data["sum_assured"]

    def pv_claims(self):
        return sum(self.claims(t) * self.discount(t) for t in range(self.months + 1))

    def claim_rate(self, t):
        return self.claims(t).sum() / self.pols_if(t).sum()


class Changed(Term):
    def claims(self, t):
        return self.decrement(t, "lapse") * self.data["sum_assured"] * 2


def policies(n: int = 2_000, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "age": rng.integers(20, 60, n),
        "policy_count": rng.random(n) * 10,
        "sum_assured": rng.random(n) * 1e5,
    }


def term(cls: type[hl.Model] = Term, months: int = 8, **changed: Any) -> Any:
    model = cls(data=policies(), **{"rate": 0.002, "months": months, **changed})
    model.GenerateActions(proj_len=months, block_rows=300)
    return model


def test_the_actions_of_a_model_replay() -> None:
    model = term()
    assert simulate(model.plan) == model.plan.peak_calls
    calls = {info.call: info for info in model.plan.calls}
    assert calls["pols_if(3)"].reads == (
        "pols_if(2)",
        "decrement(2, 'death')",
        "decrement(2, 'lapse')",
    )
    assert calls["discount(2)"].kind == "shared"
    assert calls["claims(2)"].kind == "per-point"
    assert (calls["claim_rate(2)"].kind, calls["claim_rate(2)"].phase) == ("portfolio", 1)
    assert [i.formula for i in model.plan.calls if not i.reported] == [
        i.formula for i in model.plan.calls if i.formula in ("age", "discount", "decrement")
    ]


def test_values_do_not_pile_up_with_the_months() -> None:
    class Running(hl.Model):
        def pols_if(self, t):
            return self.data["policy_count"] if t == 0 else self.pols_if(t - 1) * 0.99

        def pv(self, t):
            return self.pols_if(t) if t == 0 else self.pv(t - 1) + self.pols_if(t) * 0.9**t

    peaks = []
    for months in (5, 50):
        model = Running(data=policies())
        plan = model.GenerateActions(proj_len=months)
        peaks.append((plan.peak_calls, plan.live_row_bytes, plan.register_row_bytes))
        simulate(plan)
    assert peaks[0] == peaks[1]
    assert peaks[0][0] <= 4


@pytest.mark.parametrize("length", [20, 60])
def test_calls_that_differ_late_in_a_long_text_are_told_apart(length: int) -> None:
    names = ["x" * length + "one", "x" * length + "two"]

    class Long(hl.Model):
        def total(self, t):
            return self.part(t, names[0]) + self.part(t, names[1])

        @hl.agg(None)
        def part(self, t, name):
            return self.data["sum_assured"] * (1 if name == names[0] else 2)

    simulate(Long(data=policies()).GenerateActions(proj_len=2))


def test_a_formula_and_the_one_it_overrides_are_told_apart() -> None:
    class Doubled(Term):
        def claims(self, t):
            return super().claims(t) * 2

    model = term(Doubled)
    simulate(model.plan)
    model.ExecuteActions()


def test_lambdas_are_told_apart() -> None:
    class Lambdas(hl.Model):
        first = lambda self, t: self.data["age"] * t  # noqa: E731
        second = lambda self, t: self.first(t) + self.data["age"]  # noqa: E731

    plan = Lambdas(data=policies()).GenerateActions(proj_len=3)
    simulate(plan)
    assert {i.formula for i in plan.calls} == {"first", "second"}


# ---- looking at a plan ---------------------------------------------------------------------------


def test_explain_tells_what_a_run_does_and_costs() -> None:
    model = term()
    text = model.plan.explain()
    plan = model.plan
    counts = Counter(info.kind for info in plan.calls)
    for part in (
        "Term: t = 0..8",
        f"{len(plan.calls)} formula calls",
        f"{counts['shared']} shared, {counts['per-point']} per-point, "
        f"{counts['portfolio']} portfolio",
        f"{plan.output_count} outputs",
        f"{plan.nodes} array operations, {plan.row_nodes} of them on every block of 300 rows",
        "phases: 1",
        f"at most {plan.peak_calls} formula values",
        f"{plan.live_row_bytes} bytes a row, in {plan.register_row_bytes} of registers",
        "highest memory at: ",
        "age, policy_count, sum_assured",
        "2,000 policies: 7 blocks, 7 chunks",
    ):
        assert part in text
    for call in plan.peak_live[:8]:
        assert call in text
    assert "10,000,000 policies: 33,334 blocks" in plan.explain(rows=10**7)


def test_explain_itemises_the_projection(tmp_path: Path) -> None:
    model = term()
    text = model.plan.explain(memory="16GB")
    assert "of 16.0 GB allowed" in text
    result = model.ExecuteActions(memory="16GB")
    for name, size in result.stats.estimate.items():
        assert (f"    {name} " in text) == (size > 0)
    assert "projected to reach" in model.plan.explain()
    tight = model.plan.explain(rows=10**6, memory=1_000)
    assert "refused: the run is projected to reach" in tight
    assert "alive at the highest point: " in tight
    smallest = int(tight.split("memory=")[1].split(" ")[0].replace("_", ""))
    assert "projected to reach" in model.plan.explain(rows=10**6, memory=smallest + 10**7)
    with pytest.raises(PlanError, match="is not an amount of memory"):
        model.plan.explain(memory="a lot")
    # What the plan takes follows the model as it is now, and more rows from files take no more.
    pd.DataFrame(policies()).to_parquet(tmp_path / "a.parquet")
    model.data = tmp_path / "a.parquet"
    few, many = (
        model._projector(model.plan, rows, None).fitted.projected.value_bytes
        for rows in (10**5, 10**8)
    )
    assert few == many


def test_a_plan_from_a_file_says_what_a_thread_works_in(tmp_path: Path) -> None:
    term().plan.save(tmp_path / "plan.json")
    plan = hl.ActionPlan.load(tmp_path / "plan.json")
    assert "fits" in plan.explain(rows=10**6, memory="1GB")
    assert "of 1.0 GB allowed in all" in plan.explain(memory="1GB")
    assert "needs smaller chunks" in plan.explain(rows=10**6, memory=1_000)
    assert "allowed" not in plan.explain()
    with pytest.raises(PlanError, match="is not an amount of memory"):
        plan.explain(memory="a lot")


def test_explain_names_what_is_opaque_and_what_turns_totals_into_values() -> None:
    class Guarded(Term):
        @hl.per_point
        def bonus(self, t):
            return np.array([1.0 if a > 40 else 2.0 for a in self.data["age"]])

        def capped(self, t):
            return self.claims(t) * (2 if self.claims(t).sum() < 0 else 1)

    plan = term(Guarded, months=2).plan
    text = plan.explain()
    assert set(plan.opaque) == {"bonus"}
    assert "evaluated as Python on each block: bonus (" in text
    assert "totals turned into Python values by: capped (3 calls)" in text
    assert plan.whole == {}


def test_explain_names_what_forces_one_piece() -> None:
    class Ranked(hl.Model):
        def rank(self, t):
            return pd.Series(np.asarray(self.data["age"])).rank().to_numpy()

    plan = Ranked(data=policies()).GenerateActions(proj_len=1)
    assert set(plan.whole) == {"rank"}
    assert "forces a replay in one piece: rank (" in plan.explain()


def test_a_plan_shows_itself() -> None:
    plan = term().plan
    text = repr(plan).removeprefix("<ActionPlan ").removesuffix(">")
    assert plan.explain().startswith(text)
    html = plan._repr_html_()
    assert html.startswith("<pre>Term: t = 0..8")
    assert html.count("<tr>") == 1 + min(50, len(plan.calls))
    assert "pols_if(0)" in html


def test_html_is_escaped() -> None:
    info = CallInfo("f('<b>&')", "f", "per-point", 0, (), 8, True)
    html = plan_of((info,), model="<i>", peak_live=(info.call,))._repr_html_()
    assert "<b>" not in html
    assert "<i>" not in html
    assert "&lt;b&gt;&amp;" in html


def test_the_frame_of_a_model() -> None:
    model = term()
    frame = model.plan.to_frame()
    assert list(frame.columns) == [
        *("call", "formula", "kind", "phase", "reads", "row_bytes", "reported", "released")
    ]
    assert len(frame) == len(model.plan.calls)
    assert model.plan.unoptimised_row_bytes == frame["row_bytes"].sum()
    released = frame.set_index("call")["released"]
    assert frame["call"][released["pols_if(3)"]] in ("pols_if(4)", "claim_rate(3)")


@quick
@given(st.integers(1, 10**7), st.integers(1, 64))
def test_bytes_of_a_thread_grow_with_the_chunk_and_not_the_rows(rows: int, blocks: int) -> None:
    plan = plan_of(())
    cut = plan.blocks(rows, blocks)
    assert (cut.rows, cut.block_rows) == (rows, plan.block_rows)
    taken = plan.thread_bytes(cut.chunk_rows)
    assert taken <= plan.block_rows * (plan.register_row_bytes + blocks * plan.column_row_bytes)


# ---- a plan is a hint ----------------------------------------------------------------------------


def same(left: Any, right: Any) -> bool:
    frames = left.df_agg.equals(right.df_agg)
    values = {k: np.asarray(v).tobytes() for k, v in left.values.items()}
    return frames and values == {k: np.asarray(v).tobytes() for k, v in right.values.items()}


def test_a_plan_from_a_file_runs_right(tmp_path: Path) -> None:
    recorded = term()
    expected = recorded.ExecuteActions()
    recorded.plan.save(tmp_path / "term.json")

    model = Term(data=policies(), rate=0.002, months=8)
    model.plan = ActionPlan.load(tmp_path / "term.json")
    assert model.plan == recorded.plan
    result = model.ExecuteActions()
    assert same(result, expected)
    assert model.plan.block_rows == 300
    assert result.proj_len == 8


def test_outputs_of_a_plan_are_kept(tmp_path: Path) -> None:
    recorded = Term(data=policies(), rate=0.002, months=8)
    recorded.GenerateActions(proj_len=8, outputs=["claims"]).save(tmp_path / "claims.json")
    assert {i.formula for i in recorded.plan.calls if i.reported} == {"claims"}
    model = Term(data=policies(), rate=0.002, months=8)
    model.plan = ActionPlan.load(tmp_path / "claims.json")
    assert list(model.ExecuteActions().df_agg.columns) == ["claims"]
    assert list(model.ExecuteActions(outputs=["pols_if"]).df_agg.columns) == ["pols_if"]


def test_a_plan_of_changed_formulas_never_changes_a_number() -> None:
    expected = Changed(data=policies(), rate=0.002, months=8).ExecuteActions(8, block_rows=300)
    model = Changed(data=policies(), rate=0.002, months=8)
    model.plan = term().plan
    assert same(model.ExecuteActions(), expected)
    model.RunModel(8)
    np.testing.assert_allclose(model.df_agg["claims"], expected.df_agg["claims"], rtol=1e-12)


def test_a_plan_of_changed_assumptions_never_changes_a_number() -> None:
    model = term()
    before = model.ExecuteActions()
    model.rate = 0.01
    after = model.ExecuteActions()
    fresh = term(rate=0.01).ExecuteActions()
    assert same(after, fresh)
    assert not same(after, before)


def test_a_plan_of_another_model_never_changes_a_number() -> None:
    class Other(hl.Model):
        def claims(self, t):
            return self.data["sum_assured"] * t

    expected = Other(data=policies()).ExecuteActions(8, block_rows=300)
    model = Other(data=policies())
    model.plan = term().plan
    assert same(model.ExecuteActions(), expected)
    with_outputs = Other(data=policies())
    with_outputs.plan = dataclasses.replace(term().plan, outputs=("pols_if",), _actions=[])
    with pytest.raises(HlDaskError, match="pols_if"):
        with_outputs.ExecuteActions()


@quick
@given(data=st.data())
def test_a_plan_that_lies_never_changes_a_number(data: Any) -> None:
    """Whatever a plan says of calls, columns and costs, the numbers are those of the model."""
    honest = term(months=2)
    expected = honest.ExecuteActions()
    calls = honest.plan.calls
    lies = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "calls": st.sampled_from([(), calls[:3], calls[::-1]]),
                "columns": st.sampled_from([(), ("age",), ("nonsense",)]),
                "opaque": st.sampled_from([{"claims": "no reason"}, {"nonsense": "none"}]),
                "whole": st.just({"claims": "no reason"}),
                "fingerprint": st.just({}),
                "rows": st.sampled_from([1, 10**9]),
                "guards": st.just(("claims(0)",)),
                "peak_live": st.just(()),
                "pinned": st.just(("nonsense",)),
                "register_row_bytes": st.sampled_from([0, 10**9]),
                "uses_row_count": st.booleans(),
                "model": st.just("Other"),
            },
        )
    )
    model = Term(data=policies(), rate=0.002, months=2)
    model.plan = dataclasses.replace(honest.plan, **lies, _actions=[])
    assert same(model.ExecuteActions(), expected)


class Histories(hl.Model):
    """A value that many readers ask for at once, one that is read again much later, and neither."""

    def f(self, t):
        return self.data["age"] * 1.01**t if t == 0 else self.f(t - 1) * 1.01

    @hl.agg(np.sum)
    def highest(self):
        return np.stack([self.f(t) for t in range(30)]).max(axis=0)

    @hl.agg(np.sum)
    def squares(self):
        return np.stack([self.f(t) ** 2 for t in range(30)]).max(axis=0)

    def lagged(self, t):
        return self.f(t - 12) + self.g(t) if t > 12 else self.g(t)

    @hl.agg(None)
    def g(self, t):
        return np.sqrt(self.f(t))

    def pv(self):
        return sum(self.f(t) * 0.9**t for t in range(30))


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("highest", "30 values of f at once: highest() reads them together; as a recursion"),
        ("lagged", "values of f at once: they are read again many steps later, as by lagged("),
        ("squares", "31 values that squares() makes, at once; as a formula of t"),
        ("pv", None),
        ("g", None),
    ],
)
def test_long_histories_are_named(output: str, text: str | None) -> None:
    model = Histories(data=policies())
    model.GenerateActions(30, outputs=[output])
    shown = model.plan.explain()
    assert ("stays pinned" in shown) == (text is not None)
    assert text is None or text in shown


def test_only_plans_are_plans() -> None:
    model = term()
    with pytest.raises(PlanError, match="a plan is an ActionPlan, got dict"):
        model.plan = {"calls": []}
    model.plan = None
    assert model.plan is None
    assert model.ExecuteActions().plan.block_rows == BLOCK_ROWS
