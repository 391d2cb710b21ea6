"""Tasks of a chunk, a time step or a formula call: the same bits, and values that are let go."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
from dask.sizeof import sizeof
from dask.utils import key_split
from hypothesis import given
from hypothesis import strategies as st

import hl_dask as hl
from hl_dask import demo, states
from hl_dask.chunks import State
from hl_dask.errors import FormulaError, MemoryBudgetError, PlanError
from hl_dask.liveness import last_use, regroup
from hl_dask.lower import label_of
from hl_dask.segments import Label, cut
from tests.reference import Columns, Entry, policies
from tests.test_liveness import Dag, dags, quick
from tests.test_zoo import bits, recorded
from tests.zoo import ZOO

FINER = ("step", "formula")
finer = pytest.mark.parametrize("granularity", FINER)
OUTPUTS = ["pols_if", "pols_death", "claims", "premiums", "net_cf"]
OPTIONS = {"proj_len": 24, "block_rows": 500, "outputs": OUTPUTS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policies")
    demo.write_portfolio(path, 10_000)
    return path


def term(folder: Path) -> hl.Model:
    return demo.TermAssurance(data=f"{folder}/*.parquet", **demo.assumptions())


# ---- cutting -----------------------------------------------------------------------------------


@quick
@given(dags(), st.data())
def test_regrouping_is_a_topological_permutation(dag: Dag, data: Any) -> None:
    labels = [data.draw(st.integers(0, 3)) for _ in dag.order]
    order = regroup(dag.order, dag.reads, labels.__getitem__)
    assert sorted(order) == dag.order
    place = {op: k for k, op in enumerate(order)}
    assert all(place[read] < place[op] for op in order for read in dag.reads[op])
    # A label is left only when none of its operations can be done.
    for k in range(1, len(order)):
        if labels[order[k]] != labels[order[k - 1]]:
            done = set(order[:k])
            left = [op for op in order[k:] if labels[op] == labels[order[k - 1]]]
            assert all(set(dag.reads[op]) - done for op in left)


@quick
@given(dags(), st.data())
def test_what_passes_a_cut_is_what_is_read_after_it(dag: Dag, data: Any) -> None:
    labels = [Label("f", str(data.draw(st.integers(0, 3)))) for _ in dag.order]
    order = regroup(dag.order, dag.reads, labels.__getitem__)
    reads = dag.reads.__getitem__
    segments = cut(order, reads, last_use(order, reads), labels.__getitem__, lambda op: None)
    assert [op for s in segments for op in order[s.start : s.stop]] == order
    state: set[int] = set()
    for segment in segments:
        here, later = set(order[segment.start : segment.stop]), order[segment.stop :]
        assert {labels[op] for op in here} == {segment.label}
        needed = {read for op in here for read in reads(op)} - here
        assert set(segment.uses) == needed <= state
        state = {op for op in state | here if any(op in reads(user) for user in later)}
        assert {*segment.keeps, *segment.makes} == state
        assert set(segment.makes) <= here
    assert not state


# ---- the same bits -----------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ZOO.values(), ids=list(ZOO))
@finer
def test_the_zoo_gives_the_same_bits(entry: Entry, granularity: str) -> None:
    model = recorded(entry, entry.columns())
    expected = bits(model.ExecuteActions(block_rows=100, scheduler="synchronous"))
    for chunk_blocks, scheduler in ((1, "threads"), (4, "synchronous"), (10**6, "threads")):
        options = {"block_rows": 100, "chunk_blocks": chunk_blocks, "scheduler": scheduler}
        assert bits(model.ExecuteActions(granularity=granularity, **options)) == expected


@finer
@pytest.mark.parametrize("chunk_blocks", [1, 3, 20])
def test_files_give_the_same_bits(folder: Path, granularity: str, chunk_blocks: int) -> None:
    model = term(folder)
    expected = bits(model.ExecuteActions(**OPTIONS))
    result = model.ExecuteActions(granularity=granularity, chunk_blocks=chunk_blocks, **OPTIONS)
    assert bits(result) == expected
    lazy = model.ExecuteActions(granularity=granularity, compute=False, **OPTIONS)
    assert bits(lazy.compute()) == expected


class Both(hl.Model):
    """Forward and backward in time, text, and a formula that is evaluated as Python."""

    def alive(self, t):
        return self.data["n"] if t == 0 else self.alive(t - 1) * np.where(self.short(), 0.9, 0.95)

    @hl.agg(None)
    def short(self):
        return self.data["product"] == "short"

    def reserve(self, t):
        return 0.0 if t > 6 else self.alive(t) * 3.0 + self.reserve(t + 1) / 1.01

    @hl.per_point
    def loaded(self, t):
        return np.array([float(v) + t for v in self.alive(t)])

    def present_value(self):
        return sum(self.loaded(t) * 1.01**-t for t in range(7))

    @hl.agg(np.mean)
    def average(self, t):
        return self.alive(t)

    @hl.agg(hl.Aggregate(map=lambda x: [float(x.max())], combine=lambda a, b: [max(a[0], b[0])]))
    def largest(self, t):
        return self.alive(t)


def both(rows: int = 1_500) -> Both:
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"n": rng.random(rows), "product": rng.choice(["short", "long"], rows)})
    return Both(data=frame)


@finer
def test_both_directions_and_python_formulas(granularity: str) -> None:
    model = both()
    plain = both()
    plain.RunModel(6)
    expected = model.ExecuteActions(proj_len=6, block_rows=128)
    result = model.ExecuteActions(proj_len=6, block_rows=128, granularity=granularity)
    assert bits(result) == bits(expected)
    pd.testing.assert_frame_equal(
        result.df_agg[["alive", "reserve"]], plain.df_agg[["alive", "reserve"]], rtol=1e-12
    )


# ---- values are let go -------------------------------------------------------------------------


class Census:
    """Counts states, and the values in them, that are alive."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.alive = self.most = self.most_values = self.made = 0
        make = State.__init__

        def counted(state: Any, values: Any, partials: Any) -> None:
            make(state, values, partials)
            self.made += 1
            self.alive += 1
            self.most = max(self.most, self.alive)
            self.most_values = max(self.most_values, len(values))
            weakref.finalize(state, self.gone)

        monkeypatch.setattr(states.State, "__init__", counted)

    def gone(self) -> None:
        self.alive -= 1


@finer
def test_only_as_many_states_are_alive_as_threads(
    folder: Path, granularity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    census = Census(monkeypatch)
    result = term(folder).ExecuteActions(
        granularity=granularity, chunk_blocks=1, workers=2, **OPTIONS
    )
    assert result.stats.n_chunks == 20
    assert census.made >= 20 * 24
    # One that is read and one that is made for each thread, and what has just been made.
    assert census.most <= 5
    gc.collect()
    assert census.alive == 0


@finer
def test_values_in_a_state_do_not_grow_with_time(
    folder: Path, granularity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for proj_len in (6, 60):
        census = Census(monkeypatch)
        term(folder).ExecuteActions(
            **{**OPTIONS, "proj_len": proj_len},
            granularity=granularity,
            scheduler="synchronous",
        )
        found.append(census.most_values)
    assert found[0] == found[1] <= 16


def test_a_state_says_exactly_what_it_takes() -> None:
    values = {3: np.zeros(1_000), 4: np.zeros((2, 500)), 5: np.array(["a", "b"], dtype=object)}
    partial = {"sum|<f8": np.zeros(10), "aggregate|0": [np.zeros(5), 3.0]}
    state = State(values, (partial, partial))
    arrays = 8_000 + 8_000 + 2 * 64 + 2 * (80 + 40 + 64)
    assert arrays <= sizeof(state) <= arrays + 200


# ---- names -------------------------------------------------------------------------------------


def keys_of(lazy: Any) -> list[Any]:
    return [key for key in lazy.__dask_graph__() if isinstance(key, tuple)]


def test_the_dashboard_groups_tasks_by_formula(folder: Path) -> None:
    model = term(folder)
    lazy = model.ExecuteActions(granularity="formula", compute=False, **OPTIONS)
    groups = Counter(key_split(key) for key in keys_of(lazy))
    formulas = {call.formula for call in model.plan.calls if call.kind == "per-point"}
    assert {"pols_if", "pols_death", "claims", "premiums"} <= set(groups)
    assert set(groups) <= formulas | {"merge"}
    assert groups["pols_death"] >= 20 * 24
    lazy = model.ExecuteActions(granularity="step", compute=False, **OPTIONS)
    assert set(map(key_split, keys_of(lazy))) == {"step", "merge"}


@finer
def test_a_drawing_names_calls_and_time_steps(
    folder: Path, granularity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphviz = ModuleType("graphviz")
    graphviz.__spec__ = pytest.__spec__
    drawn: list[Any] = []
    monkeypatch.setitem(sys.modules, "graphviz", graphviz)
    monkeypatch.setattr(dask, "visualize", lambda *args, **kwargs: drawn.append(kwargs))
    model = term(folder)
    model.ExecuteActions(granularity=granularity, compute=False, **OPTIONS).visualize(rankdir="LR")
    labels = {each["label"] for each in drawn[0]["function_attributes"].values()}
    wanted = {"step": "t = 3\nchunk 7", "formula": "pols_death(3)\nchunk 7"}[granularity]
    assert {wanted, "merge", "total"} <= labels
    assert drawn[0]["rankdir"] == "LR"
    model.ExecuteActions(compute=False, **OPTIONS).visualize()
    assert {"chunk\nchunk 7", "merge"} <= {
        each["label"] for each in drawn[1]["function_attributes"].values()
    }


def test_labels_of_keys() -> None:
    assert label_of(("f-f(-1, 'a-b')-3-0123456789ab", 2)) == "f(-1, 'a-b')\nchunk 2"
    assert label_of(("merge-0123456789ab", 1, 0)) == "merge"


# ---- what is refused ---------------------------------------------------------------------------


def test_more_than_fifty_thousand_tasks_are_refused(folder: Path) -> None:
    model = term(folder)
    with pytest.raises(
        PlanError, match=r"tasks for each of 1,000 chunks are [0-9,]+, and more"
    ) as e:
        model.ExecuteActions(granularity="formula", proj_len=24, block_rows=10, chunk_blocks=1)
    assert "'step'" in str(e.value.remedy)
    model.ExecuteActions(granularity="step", proj_len=24, block_rows=100, chunk_blocks=1)


def test_a_granularity_that_is_not_known(folder: Path) -> None:
    for compute in (True, False):
        with pytest.raises(PlanError, match="'month' is not known") as caught:
            term(folder).ExecuteActions(granularity="month", compute=compute, **OPTIONS)
        assert "'chunk', 'step', 'formula'" in str(caught.value.remedy)


@finer
def test_an_error_names_the_call_and_the_rows(granularity: str) -> None:
    class Fails(hl.Model):
        @hl.per_point
        def value(self, t):
            if t == 2 and np.any(np.asarray(self.data["x"]) > 999):
                msg = "too large"
                raise ValueError(msg)
            return self.data["x"] * t

    model = Fails(data={"x": np.arange(999.0)})
    model.GenerateActions(3)
    model.data = {"x": np.arange(1_200.0)}
    texts = []
    for each in ("chunk", granularity):
        with pytest.raises(FormulaError, match="too large") as caught:
            model.ExecuteActions(block_rows=100, chunk_blocks=4, granularity=each, workers=1)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert "value(2)" in texts[0]
    assert "1,000 to 1,099" in texts[0]


def test_states_count_in_the_projection(folder: Path) -> None:
    model = term(folder)
    chunk = model.ExecuteActions(**OPTIONS).stats.estimate
    step = model.ExecuteActions(granularity="step", chunk_blocks=20, **OPTIONS).stats.estimate
    assert chunk.state_bytes == 0
    assert step.state_bytes > 10_000 * 50
    with pytest.raises(MemoryBudgetError, match="states of chunks between tasks"):
        model.ExecuteActions(granularity="step", memory="1MB", **OPTIONS)


# ---- on a cluster ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            memory_limit="1GB",
            dashboard_address=":0",
            silence_logs="CRITICAL",
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.cluster
@finer
def test_the_same_bits_on_two_processes(folder: Path, granularity: str, two: Any) -> None:
    model = term(folder)
    expected = bits(model.ExecuteActions(**OPTIONS))
    result = model.ExecuteActions(granularity=granularity, scheduler=two, **OPTIONS)
    assert bits(result) == expected
    for name in ("decrements", "scenarios", "every_aggregate", "text_columns"):
        entry = ZOO.get(name)
        if entry is not None:
            model = entry.build(entry.columns())
            options = {"proj_len": entry.proj_len, "block_rows": 500}
            expected = bits(model.ExecuteActions(scheduler="synchronous", **options))
            again = model.ExecuteActions(scheduler=two, granularity=granularity, **options)
            assert bits(again) == expected


@pytest.mark.cluster
@finer
def test_about_as_many_states_are_alive_on_a_cluster(
    granularity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed")
    columns: Columns = policies(np.random.default_rng(1), 20_000)
    entry = ZOO["decrements"]
    with distributed.Client(
        processes=False,
        n_workers=1,
        threads_per_worker=2,
        set_as_default=False,
        dashboard_address=":0",
    ) as client:
        model = entry.build(columns)
        options = {"proj_len": entry.proj_len, "block_rows": 1_000}
        expected = bits(model.ExecuteActions(scheduler="synchronous", **options))
        census = Census(monkeypatch)
        result = model.ExecuteActions(scheduler=client, granularity=granularity, **options)
        assert bits(result) == expected
        assert result.stats.n_chunks == 20
    assert census.made >= 20 * entry.proj_len
    assert census.most <= 10
