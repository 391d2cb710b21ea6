"""Running totals: what one would write, in a line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hl_dask as hl
from hl_dask.errors import ModelError
from hl_dask.running import RunningTotal
from tests.test_zoo import bits

MONTHS = 30


class Base(hl.Model):
    """A flow and a weight."""

    def flow(self, t):
        return self.data["x"] * (1 + t % 5)

    @hl.agg(None)
    def weight(self, t):
        return 1.01**-t


class Lines(Base):
    present = hl.RunningTotal("flow", weight="weight", to_t="months")
    part = hl.RunningTotal("flow", from_t=3, to_t=7)
    up = hl.RunningTotal("flow", direction="forward")
    late = hl.RunningTotal("flow", weight="weight", from_t="start", direction="forward")
    down = hl.RunningTotal("flow", to_t="months", direction="backward")
    hidden = hl.agg(None)(hl.RunningTotal("flow", to_t=3))
    mean = hl.agg(np.mean)(hl.RunningTotal("flow", to_t=3))


class Written(Base):
    def present(self):
        return sum(self.flow(t) * self.weight(t) for t in range(self.months + 1))

    def part(self):
        return sum(self.flow(t) for t in range(3, 8))

    def up(self, t):
        return self.flow(t) if t == 0 else self.flow(t) + self.up(t - 1)

    def late(self, t):
        if t < self.start:
            return 0.0
        term = self.flow(t) * self.weight(t)
        return term if t == self.start else term + self.late(t - 1)

    def down(self, t):
        return self.flow(t) if t == self.months else self.flow(t) + self.down(t + 1)

    @hl.agg(np.mean)
    def mean(self):
        return sum(self.flow(t) for t in range(4))


def model(cls: Any) -> Any:
    x = np.random.default_rng(1).random(3_000)
    return cls(data={"x": x}, months=MONTHS, start=4)


def test_a_line_is_the_formula_that_one_would_write() -> None:
    lines, written = (model(cls).ExecuteActions(MONTHS, block_rows=500) for cls in (Lines, Written))
    assert set(lines.df_agg.columns) == {"flow", "up", "late", "down"}
    assert set(lines.values) == {"present", "part", "mean"}
    names = ["flow", "up", "late", "down"]
    assert lines.df_agg[names].equals(written.df_agg[names])
    assert lines.values == written.values
    plain = model(Lines)
    plain.RunModel(MONTHS)
    np.testing.assert_allclose(plain.df_agg[names], lines.df_agg[names], rtol=1e-12)


def test_one_array_however_many_months() -> None:
    rows = []
    for months in (12, 240):
        longer = model(Lines)
        longer.months = months
        plan = longer.GenerateActions(months, outputs=["present"])
        rows.append(plan.live_row_bytes)
    assert rows[0] == rows[1] <= 64


def test_a_derived_class_inherits_and_overrides() -> None:
    class Derived(Lines):
        part = hl.RunningTotal("flow", to_t=0)

    result = model(Derived).ExecuteActions(MONTHS, block_rows=500)
    base = model(Lines).ExecuteActions(MONTHS, block_rows=500)
    assert result.values["present"] == base.values["present"]
    assert result.values["part"] == pytest.approx(float(base.df_agg["flow"][0]))
    assert bits(result) != bits(base)
    step = model(Lines).ExecuteActions(MONTHS, block_rows=500, granularity="step")
    assert bits(step) == bits(base)


def test_its_source_is_what_it_does() -> None:
    text = RunningTotal("a", weight="w", to_t="n").source("pv")
    assert text == (
        "def pv(self):\n    return sum(self.a(t) * self.w(t) for t in range(0, self.n + 1))\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"formula": "a b", "to_t": 3}, "formula of a running total"),
        ({"formula": 3, "to_t": 3}, "formula of a running total"),
        ({"formula": "a", "weight": "w(t)", "to_t": 3}, "weight of a running total"),
        ({"formula": "a"}, "no last time step"),
        ({"formula": "a", "to_t": "n + 1"}, "time step of a running total"),
        ({"formula": "a", "direction": "up"}, "direction='up'"),
    ],
    ids=str,
)
def test_what_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        hl.RunningTotal(arguments.pop("formula"), **arguments)
    assert caught.value.remedy
