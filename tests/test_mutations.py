"""A hundred and more spoilt inputs: the right number, or an error that says what to do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import hl_dask as hl
from hl_dask.cli import main
from tests import mutations
from tests.mutations import MUTATIONS, RATES

MODEL = """
import numpy as np
import hl_dask as hl

class Cover(hl.Model):
    def value(self, t):
        loading = np.where(self.data["sex"] == "F", 1.0, 1.5)
        return self.data["premium"] * loading * self.rates[self.data["age"] + t]
"""


class Cover(hl.Model):
    """Reads numbers, text, and a table by position."""

    def value(self, t):
        loading = np.where(self.data["sex"] == "F", 1.0, 1.5)
        return self.data["premium"] * loading * self.rates[self.data["age"] + t]


def test_there_are_more_than_a_hundred() -> None:
    assert len(MUTATIONS) > 150


def data_in(folder: Path) -> str:
    csv = folder / "policies.csv"
    return str(csv) if csv.exists() else str(folder / "*.parquet")


def expected(folder: Path) -> list[float] | None:
    """The right totals, None where there are none."""
    try:
        return mutations.answer(mutations.read(folder))
    except Exception:  # pandas, pyarrow and NumPy refuse damaged data in many ways
        return None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    mutations.good(tmp_path)
    (tmp_path / "cover.py").write_text(MODEL)
    np.save(tmp_path / "rates.npy", RATES)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def run(folder: Path) -> list[float]:
    model = Cover(data=data_in(folder), rates=RATES)
    result = model.ExecuteActions(proj_len=2, block_rows=128)
    return [float(x) for x in result.df_agg["value"]]


def command(folder: Path) -> Any:
    arguments = ["run", f"{folder}/cover.py", "--data", data_in(folder), "--proj-len", "2"]
    return CliRunner().invoke(main, [*arguments, "--set", f"rates=@{folder}/rates.npy"])


def test_the_good_portfolio_is_right(folder: Path) -> None:
    right = expected(folder)
    assert right is not None
    np.testing.assert_allclose(run(folder), right, rtol=1e-12)
    assert command(folder).exit_code == 0


# Where pandas and pyarrow read something, and hl_dask refuses it.
STRICTER = (
    "bytes",  # a footer that Arrow makes something of by luck
    "age in one file: bool",
    "age in all files: huge",
    "CSV: a cell too few",
    "CSV: a column twice",
)


def outcome(folder: Path) -> list[float] | hl.HlDaskError:
    try:
        return run(folder)
    except hl.HlDaskError as error:
        return error


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", list(MUTATIONS))
def test_the_right_number_or_an_error_that_helps(name: str, folder: Path) -> None:
    MUTATIONS[name](folder)
    right = expected(folder)
    shown = command(folder)
    assert "Traceback" not in shown.output
    found = outcome(folder)
    if isinstance(found, hl.HlDaskError):
        text = str(found)
        assert right is None or name.startswith(STRICTER), f"pandas reads it: {text}"
        assert found.remedy
        # Of a value that no table has, the formula and the value are told.
        where = str(folder) if isinstance(found, hl.errors.DataError) else "value("
        assert where in text
        assert shown.exit_code == 3
        assert found.message.splitlines()[0][:40] in shown.stderr
    else:
        assert right is not None, f"pandas refuses it, and here it gives {found}"
        np.testing.assert_allclose(found, right, rtol=1e-12)
        assert shown.exit_code == 0, shown.output
