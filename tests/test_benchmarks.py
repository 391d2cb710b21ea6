"""The benchmark harness on tiny inputs: it runs, agrees with its peers, and keeps its form."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import _measure, _portfolio, basic_term, cluster, memory, recording

ROOT = Path(__file__).resolve().parent.parent
KEYS = [
    "engine",
    "rows",
    "months",
    "record_s",
    "plan_s",
    "replay_s",
    "seconds",
    "ns_per_policy_month",
    "peak_mb",
    "result",
    "ratio",
]


def benchmarks(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_basic_term_writes_one_object_for_each_engine(tmp_path):
    file = tmp_path / "out.json"
    done = benchmarks(
        "basic_term", "--rows", "500,800", "--peers", "", "--repeat", "1", "--json", str(file)
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())
    assert [list(row) for row in rows] == [KEYS, KEYS]
    assert [(row["engine"], row["rows"], row["months"]) for row in rows] == [
        ("hl_dask", 500, 277),
        ("hl_dask", 800, 277),
    ]
    for row in rows:
        assert row["seconds"] > 0
        assert row["peak_mb"] >= 0
        assert row["ratio"] == 1.0
    assert "ns_per_policy_month" in done.stdout


@pytest.mark.slow
def test_peers_agree_with_hl_dask(tmp_path):
    pytest.importorskip("heavylight")
    file = tmp_path / "out.json"
    done = benchmarks("basic_term", "--rows", "1500", "--repeat", "1", "--json", str(file))
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())
    assert [row["engine"] for row in rows] == ["hl_dask", "heavylight", "batches"]
    results = [row["result"] for row in rows]
    assert results == pytest.approx([results[0]] * 3, rel=1e-9)


@pytest.mark.slow
def test_parquet_reports_projected_and_measured_memory(tmp_path):
    file = tmp_path / "out.json"
    done = benchmarks("parquet", "--rows", "1000", "--repeat", "1", "--json", str(file))
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(file.read_text())
    assert list(row) == [*KEYS, "projected_mb"]
    assert 0 < row["peak_mb"] <= row["projected_mb"] <= 1000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("basic_term", "--rows", "0"), "at least 1"),
        (("basic_term", "--rows", "lots"), "invalid literal"),
        (("basic_term", "--peers", "modelx"), "'modelx' is not a peer"),
        (("basic_term", "--repeat", "0"), "not in the range"),
        (("speed",), "No such command"),
    ],
)
def test_bad_arguments_are_refused(arguments, says):
    done = benchmarks(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_engines_that_disagree_stop_the_benchmark():
    ours = {"result": 1.0, "totals": {"premiums": [1.0, 2.0]}}
    nearly = {"result": 1.0 + 1e-12, "totals": {"premiums": [1.0, 2.0]}}
    wrong = {"result": 1.0, "totals": {"premiums": [1.0, 2.1]}}
    nothing = {"result": float("nan"), "totals": {"premiums": [1.0, 2.0]}}
    basic_term._require_agreement({"hl_dask": ours, "peer": nearly})
    with pytest.raises(SystemExit, match="hl_dask and peer disagree on premiums"):
        basic_term._require_agreement({"hl_dask": ours, "peer": wrong})
    with pytest.raises(SystemExit, match="disagree on present value"):
        basic_term._require_agreement({"hl_dask": ours, "peer": nothing})


def test_random_policies_are_within_bounds_and_distinct():
    columns = _portfolio.random_policies(5000)
    assert set(columns["policy_term"]) == {10, 15, 20}
    assert columns["age_at_entry"].min() == 20
    assert columns["age_at_entry"].max() == 59
    assert columns["duration_mth"].min() == -36
    assert (12 * columns["policy_term"] - columns["duration_mth"]).min() == 1
    assert len(np.unique(columns["sum_assured"])) == 5000


def test_memory_has_a_cell_for_every_size_and_budget(tmp_path):
    file = tmp_path / "out.json"
    done = benchmarks("memory", "--rows", "400,900", "--memory", "600MB,1GB", "--json", str(file))
    assert done.returncode == 0, done.stderr
    cells = json.loads(file.read_text())
    assert [(c["engine"], c["rows"]) for c in cells] == [
        (f"hl_dask {budget}", rows) for rows in (400, 900) for budget in ("600MB", "1GB")
    ]
    assert all(c["peak_mb"] <= c["projected_mb"] for c in cells)
    assert "projected / measured" not in done.stdout.replace("projected / measured is 1", "")


@pytest.mark.cluster
def test_cluster_compares_workers_with_threads(tmp_path):
    file = tmp_path / "out.json"
    done = benchmarks("cluster", "--rows", "2000", "--repeat", "1", "--json", str(file))
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())
    assert [row["engine"] for row in rows] == list(cluster.ENGINES)
    assert len({row["result"] for row in rows}) == 1
    assert rows[0]["ratio"] == 1.0
    assert "ms a chunk" in done.stdout


def test_a_broken_promise_is_told():
    good = _measure.Row("hl_dask 1GB", 10, 1, 0, None, 0, 0, 0, 100.0, 1.0, None, 140.0)
    above = dataclasses.replace(good, projected_mb=99.0)
    far = dataclasses.replace(good, projected_mb=160.0)
    assert memory.broken_promises([good]) == []
    assert len(memory.broken_promises([above, good, far])) == 2


def test_peak_memory_sees_what_has_been_freed():
    with _measure.PeakMemory() as peak:
        block = np.ones(8_000_000)
        del block
    assert peak.above_mb >= 50


def test_the_generated_model_has_a_hundred_formulas():
    formulas = recording._formulas(recording.SEGMENTS)
    assert len(formulas) == 100
    assert all(name == formula.__name__ for name, formula in formulas.items())


def test_the_generated_model_adds_up_its_segments():
    model = recording.GENERATED(
        data={
            "age": np.array([30, 40]),
            "count": np.array([1.0, 2.0]),
            "sum_assured": np.array([1000.0, 2000.0]),
            "premium": np.array([10.0, 20.0]),
        }
    )
    model.RunModel(2)
    deaths = (30 * 1 + 40 * 2) * 1e-5
    assert model.df_agg.loc[0, "deaths_00"] == pytest.approx(deaths)
    assert model.df_agg.loc[1, "in_force_00"] == pytest.approx(3 - deaths)
    assert model.df_agg.loc[0, "in_force_19"] == pytest.approx(60)
