"""``hl-dask demo``: what it prints, what it refuses, and that it leaves nothing behind."""

import inspect
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from hl_dask import demo
from hl_dask.cli import main
from hl_dask.errors import DataError

ROOT = Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, "-c", "from hl_dask.cli import main; main()"]


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The directory in which temporary directories are made; to be found empty afterwards."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(main, list(arguments))


def plain_pols_if(columns, month):
    """Policies in force after some months, without the model."""
    mort = 0.0003 + 0.00004 * 1.1 ** (np.arange(140) - 20.0)
    lapse = np.array([0.10, 0.08, 0.06, 0.05, 0.04, 0.03])
    pols = np.where(columns["duration_mth"] < 12 * columns["policy_term"], 1.0, 0.0)
    for t in range(month):
        months = columns["duration_mth"] + t
        factor = np.where(columns["sex"] == "F", 0.8, 1.0)
        q = 1 - (1 - factor * mort[columns["age_at_entry"] + months // 12]) ** (1 / 12)
        w = 1 - (1 - lapse[np.minimum(months // 12, 5)]) ** (1 / 12)
        pols = np.where(months + 1 < 12 * columns["policy_term"], pols * (1 - q) * (1 - w), 0.0)
    return pols.sum()


def test_demo_prints_totals_memory_and_speed(temporary):
    done = run("demo", "--rows", "3000")
    assert done.exit_code == 0, done.output
    assert re.search(r"^0 +3,000 ", done.output, re.MULTILINE)
    assert re.search(r"^22 ", done.output, re.MULTILINE)
    assert re.search(r"Present value of net cash flows: [\d,]+\.\d\d", done.output)
    projected, measured, allowed = (
        int(number.replace(",", ""))
        for number in re.search(
            r"projected ([\d,]+) MB, measured ([\d,]+) MB, allowed ([\d,]+) MB", done.output
        ).groups()
    )
    assert allowed == 1000
    assert 0 < projected <= allowed
    assert measured > 0
    assert "million policies x months per second" in done.output
    assert "How to go on" in done.output
    assert list(temporary.iterdir()) == []


def test_demo_gives_the_same_totals_for_the_same_seed(temporary):
    def totals(seed):
        output = run("demo", "--rows", "500", "--seed", seed).output
        return re.search(r"Totals by year.*Present value[^\n]*", output, re.DOTALL).group()

    assert totals("5") == totals("5")
    assert totals("5") != totals("6")


def test_demo_runs_as_a_command_within_its_projection(temporary):
    done = subprocess.run(
        [*COMMAND, "demo", "--rows", "70000"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert done.returncode == 0, done.stderr
    projected, measured = re.search(
        r"projected ([\d,]+) MB, measured ([\d,]+) MB", done.stdout
    ).groups()
    assert int(measured.replace(",", "")) <= int(projected.replace(",", ""))
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--rows", "0"], 2, "0 is not in the range x>=1"),
        (["--rows", "many"], 2, "'many' is not a valid integer"),
        (["--seed", "-1"], 2, "-1 is not in the range x>=0"),
        (["--memory", "plenty"], 3, "plenty"),
        (["--memory", "1MB", "--rows", "100"], 3, "1"),
        (["--colour", "blue"], 2, "No such option"),
    ],
)
def test_bad_options_are_refused_without_a_traceback(options, code, says, temporary):
    done = run("demo", *options)
    assert done.exit_code == code
    assert says in done.output
    assert "Error:" in done.output
    assert "Traceback" not in done.output
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (DataError("a column is missing", remedy="add it"), "what to do: add it"),
    ],
)
def test_errors_are_shown_without_a_traceback(error, says, temporary, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(demo, "write_portfolio", fail)
    done = run("demo", "--rows", "10")
    assert done.exit_code == 3
    assert says in done.output
    assert "Traceback" not in done.output
    assert list(temporary.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to another process")
@pytest.mark.usefixtures("interruptible")
def test_interrupt_removes_the_temporary_files(temporary):
    process = subprocess.Popen(
        [*COMMAND, "demo", "--rows", "3000000"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"},
    )
    while "projecting" not in process.stdout.readline():
        assert process.poll() is None
    assert len(list(temporary.iterdir())) == 1
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted." in errors
    assert "Traceback" not in errors
    assert list(temporary.iterdir()) == []


def test_help_names_the_commands():
    assert "demo" in run("--help").output
    assert "--rows" in run("demo", "--help").output


def test_the_portfolio_is_written_in_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "FILE_ROWS", 2 * demo.ROW_GROUP_ROWS)
    rows = 2 * demo.ROW_GROUP_ROWS + 10
    written_bytes = demo.write_portfolio(tmp_path, rows)
    files = sorted(tmp_path.iterdir())
    assert written_bytes == sum(path.stat().st_size for path in files)
    sizes = [
        [pq.ParquetFile(path).metadata.row_group(k).num_rows for k in range(groups)]
        for path, groups in zip(files, (2, 1), strict=True)
    ]
    assert sizes == [[demo.ROW_GROUP_ROWS] * 2, [10]]


def test_every_policy_has_ended_at_the_end():
    (columns,) = demo.portfolio(20_000)
    left = 12 * columns["policy_term"] - columns["duration_mth"]
    assert left.min() >= 1
    assert left.max() <= demo.MONTHS - 1
    assert columns["premium_mth"].min() > 0


def test_the_demo_model_projects_what_a_plain_loop_does():
    (columns,) = demo.portfolio(700)
    model = demo.TermAssurance(data=pd.DataFrame(columns), **demo.assumptions())
    totals = model.ExecuteActions(proj_len=60, block_rows=128).df_agg["pols_if"]
    for month in (0, 1, 13, 60):
        assert totals[month] == pytest.approx(plain_pols_if(columns, month), rel=1e-12)


def test_totals_by_year_add_flows_and_take_the_first_of_stocks():
    (columns,) = demo.portfolio(300)
    model = demo.TermAssurance(data=pd.DataFrame(columns), **demo.assumptions())
    result = model.ExecuteActions(proj_len=13)
    yearly, monthly = result.by_year(), result.df_agg
    assert yearly["pols_if"].tolist() == [monthly.loc[0, "pols_if"], monthly.loc[12, "pols_if"]]
    for flow in set(monthly) - {"pols_if"}:
        expected = [monthly.loc[:11, flow].sum(), monthly.loc[12:, flow].sum()]
        assert yearly[flow].tolist() == pytest.approx(expected, rel=1e-12)


def test_the_readme_quotes_the_model_as_it_is():
    readme = (ROOT / "examples" / "term_assurance" / "README.md").read_text(encoding="utf-8")
    quotes = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    source = inspect.getsource(demo.TermAssurance).replace("\n    ", "\n")
    formulas = [quote for quote in quotes if not quote.startswith("class ")]
    assert len(formulas) >= 5
    for formula in formulas:
        # Two blank lines between functions, one between methods.
        assert formula.strip().replace("\n\n\n", "\n\n") in source
