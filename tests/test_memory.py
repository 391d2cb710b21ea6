"""The memory promise: projected before the run, refused when too much, and kept."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hl_dask as hl
from hl_dask.budget import SLACK_BYTES, resident_bytes
from hl_dask.errors import MemoryBudgetError
from hl_dask.memory import parse_bytes, size_text
from hl_dask.opaque import Temporaries

RUN = """
import json, sys
from hl_dask import demo

model = demo.TermAssurance(data=sys.argv[1], **demo.assumptions())
result = model.ExecuteActions(proj_len=24, memory=sys.argv[2], workers=2)
stats = result.stats
print(json.dumps({"projected": stats.projected_bytes, "measured": stats.measured_bytes,
                  "allowed": stats.allowed_bytes, "rows": stats.rows, "workers": stats.workers}))
"""


class Long(hl.Model):
    """Keeps many values alive: each month looks at every month before it."""

    def level(self, t):
        return self.data["x"] * (1.0 + t)

    @hl.agg(np.max)
    def highest(self, t):
        best = self.level(0)
        for s in range(1, t + 1):
            best = np.maximum(best, self.level(s) * (t - s))
        return best


def test_a_budget_that_is_too_small_is_refused_before_any_work() -> None:
    model = Long(data={"x": np.arange(200_000.0)})
    model.GenerateActions(12)
    with pytest.raises(MemoryBudgetError) as info:
        model.ExecuteActions(memory="20MB")
    text = str(info.value)
    assert "20.0 MB are allowed" in text
    assert "with 1 thread and the smallest chunks" in text
    assert "level(" in text  # what is alive at the highest point
    assert "memory=" in text
    assert "Parquet" in text  # the data are in memory
    assert model.result is None


def test_the_remedy_of_a_refusal_is_enough() -> None:
    model = Long(data={"x": np.arange(200_000.0)})
    model.GenerateActions(12)
    with pytest.raises(MemoryBudgetError) as info:
        model.ExecuteActions(memory="20MB", workers=1)
    remedy = info.value.remedy or ""
    smallest = int(remedy.split("memory=")[1].split(" ")[0].replace("_", ""))
    result = model.ExecuteActions(memory=smallest + 10**7, workers=1)
    assert result.stats.estimate.total_bytes <= smallest + 10**7
    assert result.df_agg["level"].loc[0] == np.arange(200_000.0).sum()


def test_less_memory_means_fewer_threads() -> None:
    model = Long(data={"x": np.arange(600_000.0)})
    plenty = model.ExecuteActions(12, memory="8GB", workers=4)
    assert plenty.stats.workers == 4
    one = plenty.stats.estimate.work_bytes / 4
    tight = model.ExecuteActions(
        memory=int(resident_bytes() + SLACK_BYTES + 2.5 * one + 1e7),
        workers=4,
    )
    assert tight.stats.workers < 4
    pd.testing.assert_frame_equal(tight.df_agg, plenty.df_agg)


HEAVY = """
import json, sys
import numpy as np
import hl_dask as hl
from hl_dask.budget import peak_bytes

class Heavy(hl.Model):
    @hl.per_point
    def value(self, t):
        x = np.asarray(self.data["x"])
        table = np.repeat(x[:, None], 60, axis=1) * np.arange(60)
        return (table * table).sum(axis=1) + t

    @hl.per_point
    def listed(self, t):
        return np.array([float(v) * t for v in self.data["x"]])

result = Heavy(data={"x": np.random.default_rng(1).random(1_000_000)}).ExecuteActions(2, workers=2)
print(json.dumps({"projected": result.stats.projected_bytes, "measured": peak_bytes()}))
"""


def test_what_formulas_allocate_on_the_way_is_in_the_projection() -> None:
    done = subprocess.run([sys.executable, "-c", HEAVY], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["measured"] <= found["projected"] <= 1.5 * found["measured"]


def test_a_law_of_what_is_allocated() -> None:
    temporaries = Temporaries()
    for rows in (10, 100, 1_000, 16_000):
        with temporaries.measured(rows):
            np.zeros(500) + np.zeros(500)
            np.zeros(rows) + 1.0
    fixed, each = temporaries.law()
    assert 15 <= each <= 17
    assert fixed <= 12_500
    assert fixed + 100 * each >= 12_000
    assert not tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        with temporaries.measured(5):
            pass
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


def fresh_run(pattern: str, memory: str) -> dict[str, Any]:
    """Run the demo's model in a fresh process; the numbers that it reports of itself."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, pattern, memory], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="the measured peak is exact on Linux only")
def test_the_measured_peak_is_below_the_projection_and_does_not_grow(tmp_path: Path) -> None:
    from hl_dask import demo

    peaks = {}
    for rows in (300_000, 1_200_000):
        folder = tmp_path / str(rows)
        folder.mkdir()
        demo.write_portfolio(folder, rows, 1)
        found = fresh_run(f"{folder}/*.parquet", "1GB")
        assert found["rows"] == rows
        assert found["measured"] <= found["projected"] <= found["allowed"] == parse_bytes("1GB")
        peaks[rows] = found["measured"]
    assert peaks[1_200_000] <= 1.1 * peaks[300_000]


def test_amounts_of_memory_for_people() -> None:
    assert size_text(999) == "999 bytes"
    assert size_text(1_500_000) == "1.5 MB"
    assert size_text(2.5e12) == "2.5 TB"
