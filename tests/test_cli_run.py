"""``hl-dask run``, ``explain`` and ``check``: a model in a file, policies in files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from hl_dask.cli import main

ROWS = 700
MODEL = """
import numpy as np
import pandas as pd
import hl_dask as hl


class Base(hl.Model):
    @hl.rollup("first")
    def pols_if(self, t):
        return self.data["count"] * (1 - self.lapse) ** t


class Term(Base):
    @hl.rollup("sum")
    def claims(self, t):
        return self.pols_if(t) * self.mort[self.data["age"]] * self.data["sum_assured"]

    def pv_claims(self):
        return sum(self.claims(t) * 1.01**-t for t in range(self.months))


def make(lapse=0.5):
    ages = np.arange(20, 60)
    mort = hl.Table(pd.DataFrame({"age|int": ages, "rate": ages / 1e5}))
    return Term(mort=mort, lapse=lapse, months=3)


def make_nothing():
    return 3


class Wrong(hl.Model):
    def value(self, t):
        return np.sort(self.data["sum_assured"])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(4)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 60, ROWS),
            "count": rng.integers(1, 5, ROWS),
            "sum_assured": np.round(rng.uniform(1e3, 9e5, ROWS), 2),
        }
    )
    frame.to_parquet(tmp_path / "policies.parquet")
    frame.to_csv(tmp_path / "policies.csv", index=False)
    ages = np.arange(20, 60)
    pd.DataFrame({"age|int": ages, "rate": ages / 1e5}).to_csv(tmp_path / "mort.csv", index=False)
    (tmp_path / "term.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(main, [str(a) for a in arguments])


TERM = ["term.py:Term", "--data", "policies.parquet", "--proj-len", "13"]
SETTINGS = ["--set", "lapse=0.02", "--set", "mort=@mort.csv", "--set", "months=3"]


def claims(folder: Path, t: int, lapse: float = 0.02) -> float:
    f = pd.read_parquet(folder / "policies.parquet")
    return float(np.sum(f["count"] * (1 - lapse) ** t * f["age"] / 1e5 * f["sum_assured"]))


def test_run_prints_totals(folder: Path) -> None:
    done = run("run", *TERM, *SETTINGS)
    assert done.exit_code == 0, done.output
    line = next(line for line in done.stdout.splitlines() if line.startswith("13 "))
    assert float(line.split()[2]) == pytest.approx(claims(folder, 13), rel=1e-5)
    pv = float(done.stdout.splitlines()[-1].removeprefix("pv_claims: "))
    assert pv == pytest.approx(sum(claims(folder, t) * 1.01**-t for t in range(3)), rel=1e-12)


def test_run_by_year_from_csv_with_one_output(folder: Path) -> None:
    options = [*SETTINGS, "--outputs", "claims", "--by", "year", "-v"]
    done = run("run", "term.py:Term", "--data", "policies.csv", "--proj-len", 13, *options)
    assert done.exit_code == 0, done.output
    years = [line.split() for line in done.stdout.splitlines() if line[:1].isdigit()]
    expected = [sum(claims(folder, t) for t in months) for months in (range(12), range(12, 14))]
    assert [float(total) for _, total in years] == pytest.approx(expected, rel=1e-5)
    assert "memory: projected" in done.stderr
    assert "pols_if" not in done.stdout


def test_run_writes_files(folder: Path) -> None:
    done = run("run", *TERM, *SETTINGS, "--out", "totals.parquet")
    assert done.exit_code == 0, done.output
    frame = pd.read_parquet("totals.parquet")
    assert frame["claims"].tolist() == pytest.approx([claims(folder, t) for t in range(14)])
    again = run("run", *TERM, *SETTINGS, "--out", "totals.parquet")
    assert again.exit_code == 2
    assert "--overwrite" in again.output
    assert run("run", *TERM, *SETTINGS, "--out", "totals.parquet", "--overwrite").exit_code == 0
    assert run("run", *TERM, *SETTINGS, "--out", "totals.csv").exit_code == 0
    assert Path("totals.values.csv").read_text().startswith("name,value\npv_claims,")


def test_a_function_that_makes_the_model(folder: Path) -> None:
    done = run("run", "term.py:make", "--data", "policies.parquet", "--proj-len", 0)
    assert done.exit_code == 0, done.output
    done = run("run", "term:make", *TERM[1:], "--set", "lapse=0.02")
    line = next(line for line in done.stdout.splitlines() if line.startswith("13 "))
    assert float(line.split()[2]) == pytest.approx(claims(folder, 13), rel=1e-5)


def test_explain_says_what_a_run_would_take(folder: Path) -> None:
    done = run("explain", *TERM, *SETTINGS, "--memory", "2GB", "--actions", "--save", "plan.json")
    assert done.exit_code == 0, done.output
    assert "Term: t = 0..13" in done.stdout
    assert "columns read" in done.stdout
    assert "claims(13)" in done.stdout
    assert Path("plan.json").exists()


def test_check_compares_with_a_plain_run(folder: Path) -> None:
    done = run("check", *TERM, *SETTINGS)
    assert done.exit_code == 0, done.output
    assert "agrees" in done.stdout


def test_check_says_what_differs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hl_dask import Model

    table = pd.DataFrame({"call": ["claims(0)"], "plain": [1.0], "replay": [2.0]})
    monkeypatch.setattr(Model, "Check", lambda self, proj_len: table)
    done = run("check", *TERM, *SETTINGS)
    assert done.exit_code == 1
    assert "claims(0)" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["run", "none.py:Term", "--proj-len", "1"], 3, "no file 'none.py'"),
        (["run", "no_such_module:Term", "--proj-len", "1"], 3, "No module named"),
        (["run", "term.py:Trem", "--proj-len", "1"], 3, "models there are: Term, Wrong"),
        (["run", "term.py", "--proj-len", "1"], 3, "2 model classes"),
        (["run", "term.py:make_nothing", "--proj-len", "1"], 3, "returned int"),
        (["run", "term.py:Term", "--proj-len", "-1"], 2, "not in the range"),
        (["run", "term.py:Term"], 2, "Missing option '--proj-len'"),
        (["run", *TERM, "--set", "lapse"], 3, "form name=value"),
        (["run", *TERM, "--set", "mort=@mort.txt"], 3, "kind is not known"),
        (["run", *TERM, "--set", "mort=@none.csv"], 3, "none.csv"),
        (["run", *TERM, "--set", "pols_if=3"], 3, "pols_if"),
        (["run", *TERM, "--set", "months=3"], 3, "--set lapse=..."),
        (["run", *TERM, *SETTINGS, "--outputs", "nothing"], 3, "nothing"),
        (["run", *TERM, *SETTINGS, "--memory", "much"], 3, "'much' is not an amount"),
        (["run", *TERM, *SETTINGS, "--memory", "1MB"], 3, "allow at least"),
        (["run", *TERM, *SETTINGS, "--scheduler", "processes"], 3, "use scheduler='threads'"),
        (["run", *TERM, *SETTINGS, "--out", "totals.txt"], 2, "ends in .parquet"),
        (["run", *TERM, *SETTINGS, "--out", "x.csv", "--by", "year"], 2, "--by is for"),
        (["run", *TERM, *SETTINGS, "--out", "none/x.csv"], 3, "cannot be written"),
        (["run", "term.py:Term", "--data", "none/*.parquet", "--proj-len", "1"], 3, "no Parquet"),
        (["run", "term.py:Wrong", *TERM[1:]], 3, "np.sort"),
        (["explain", "term.py:Wrong", *TERM[1:]], 3, "value(0)"),
        (["run", "broken.py", "--proj-len", "1"], 3, "broken.py, line 2"),
        (["run", "raises.py", "--proj-len", "1"], 3, "ZeroDivisionError"),
    ],
)
def test_errors_say_what_to_do_without_a_traceback(
    arguments: list[str], code: int, says: str, folder: Path
) -> None:
    (folder / "broken.py").write_text("import hl_dask\nclass :\n")
    (folder / "raises.py").write_text("import hl_dask\nx = 1 / 0\n")
    done = run(*arguments)
    assert done.exit_code == code, done.output
    assert says in done.output
    assert "Error" in done.output
    assert "Traceback" not in done.output
    assert done.stdout == ""


def test_debug_shows_the_traceback(folder: Path) -> None:
    done = run("run", "term.py:Wrong", *TERM[1:], "--debug")
    assert done.exit_code == 3
    assert "Traceback" in done.stderr


def test_an_unexpected_error_has_a_code_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hl_dask.cli as module

    def fail(text: str) -> None:
        raise ZeroDivisionError(text)

    monkeypatch.setattr(module, "load_model", fail)
    done = run("run", *TERM)
    assert done.exit_code == 4
    assert "ZeroDivisionError" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["run", "explain", "check", "demo"])
def test_help_of_every_command(command: str) -> None:
    done = run(command, "--help")
    assert done.exit_code == 0
    assert "hl-dask" in done.output or command == "demo"


def test_the_command_in_a_process_of_its_own(folder: Path) -> None:
    command = [sys.executable, "-m", "hl_dask", "run", *TERM, *SETTINGS, "--out", "t.csv"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert len(Path("t.csv").read_text().splitlines()) == 15


def test_some_of_the_policies(folder: Path) -> None:
    frame = pd.read_parquet(folder / "policies.parquet")
    base = ["term.py:Base", "--proj-len", "0", "--set", "lapse=0", "--data", "policies.csv"]
    for filters, kept in (
        (["age >= 40"], frame.age >= 40),
        (["age in 20, 21", "count>1"], frame.age.isin([20, 21]) & (frame["count"] > 1)),
        (["age not  in 20,21"], ~frame.age.isin([20, 21])),
        (["sum_assured < 1e5"], frame.sum_assured < 1e5),
    ):
        options = [each for text in filters for each in ("--where", text)]
        found = run("run", *base, *options)
        assert found.exit_code == 0, found.output
        assert float(found.stdout.split()[-1]) == frame["count"][kept].sum()
    for text, message in (
        ("age", "'age' is no filter"),
        ("ages > 3", "no column 'ages'"),
        ("age > old", "compares column 'age'"),
        ("age == '30'", "with '30'"),
        ("age > 1000", "no row passes the filter"),
        ("age > 30 and count > 1", "no value of a filter"),
        ("age <> 30", "no value of a filter"),
        ("age in 30, x or y", "no value of a filter"),
    ):
        found = run("run", *base, "--where", text)
        assert found.exit_code == 3
        assert message in found.stderr
        assert "what to do" in found.stderr
    found = run("run", "term.py:Base", "--proj-len", "0", "--where", "age > 3")
    assert found.exit_code == 2


def test_every_granularity_prints_the_same(folder: Path) -> None:
    base = ["term.py:Term", "--data", "policies.parquet", "--proj-len", "13", *SETTINGS]
    texts = [run("run", *base, "--granularity", g).stdout for g in ("chunk", "step", "formula")]
    assert texts[0]
    assert texts[1:] == texts[:1] * 2
    assert run("run", *base, "--granularity", "month").exit_code == 2


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_scheduler_by_its_address(folder: Path) -> None:
    distributed = pytest.importorskip("distributed")
    base = ["term.py:Term", "--data", "policies.parquet", "--proj-len", "13", *SETTINGS]
    here = run("run", *base).stdout
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0"
    ) as cluster:
        there = run("run", *base, "--scheduler", cluster.scheduler_address)
        assert there.exit_code == 0, there.output
        assert there.stdout == here
    gone = run("run", *base, "--scheduler", "tcp://127.0.0.1:1")
    assert gone.exit_code == 3
    assert "no dask scheduler answers" in gone.stderr
