"""Time and memory of trace and plan alone, for a real model and for a long, wide one.

``python -m benchmarks.recording CASE`` is one measurement, in the fresh process that `run` starts.
"""

import json
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import hl_dask as hl
from benchmarks import _measure, _portfolio

ROWS = 10_000
SEGMENTS = 20  # of five formulas each


def run(repeat: int) -> list[_measure.Row]:
    """Measure every case ``repeat`` times."""
    rows = []
    for case, (_, months) in CASES.items():
        answers = [_measure.fresh_process("benchmarks.recording", case) for _ in range(repeat)]
        seconds = median(answer["seconds"] for answer in answers)
        rows.append(
            _measure.Row(
                engine=f"hl_dask {case}",
                rows=ROWS,
                months=months,
                record_s=seconds,
                plan_s=None,
                replay_s=None,
                seconds=seconds,
                ns_per_policy_month=None,
                peak_mb=median(answer["peak_mb"] for answer in answers),
                result=None,
                ratio=None,
            )
        )
    return rows


def _basic_term() -> hl.Model:
    from examples.basic_term_me import BasicTermME, read_assumptions

    return BasicTermME(data=_portfolio.random_policies(ROWS), **read_assumptions())


def _generated() -> hl.Model:
    rng = np.random.default_rng(1)
    data = {
        "age": rng.integers(20, 60, ROWS),
        "count": rng.uniform(1, 100, ROWS),
        "sum_assured": rng.uniform(1e4, 1e6, ROWS),
        "premium": rng.uniform(10, 100, ROWS),
    }
    return GENERATED(data=data)


def _formulas(segments: int) -> dict[str, Callable[..., Any]]:
    """Five formulas for each segment: a decrement model, each segment fed by the one before.

    The namespace is what a class statement with 100 formulas would leave.
    """
    namespace: dict[str, Callable[..., Any]] = {}
    for k in range(segments):
        for formula in (_in_force(k), _deaths(k), _mort_rate(k), _claims(k), _cash_flow(k)):
            formula.__name__ = f"{formula.__name__}_{k:02d}"
            formula.__qualname__ = f"Generated.{formula.__name__}"
            namespace[formula.__name__] = formula
    return namespace


def _in_force(k: int) -> Callable[..., Any]:
    def in_force(self, t):
        if t == 0:
            return self.data["count"] * (k + 1)
        return getattr(self, f"in_force_{k:02d}")(t - 1) - getattr(self, f"deaths_{k:02d}")(t - 1)

    return in_force


def _deaths(k: int) -> Callable[..., Any]:
    def deaths(self, t):
        return getattr(self, f"in_force_{k:02d}")(t) * getattr(self, f"mort_rate_{k:02d}")(t)

    return deaths


def _mort_rate(k: int) -> Callable[..., Any]:
    def mort_rate(self, t):
        return np.minimum(self.data["age"] + t // 12, 120) * (1e-5 * (k + 1))

    return mort_rate


def _claims(k: int) -> Callable[..., Any]:
    def claims(self, t):
        return getattr(self, f"deaths_{k:02d}")(t) * self.data["sum_assured"]

    return claims


def _cash_flow(k: int) -> Callable[..., Any]:
    def cash_flow(self, t):
        income = getattr(self, f"in_force_{k:02d}")(t) * self.data["premium"]
        own = income - getattr(self, f"claims_{k:02d}")(t)
        return own if k == 0 else own + getattr(self, f"cash_flow_{k - 1:02d}")(t)

    return cash_flow


GENERATED = type("Generated", (hl.Model,), _formulas(SEGMENTS))

CASES: dict[str, tuple[Callable[[], hl.Model], int]] = {
    "basic_term": (_basic_term, 277),
    "1200 months x 100 formulas": (_generated, 1200),
}


def _measure_case(case: str) -> dict[str, float]:
    build, months = CASES[case]
    model = build()
    with _measure.PeakMemory() as memory:
        start = perf_counter()
        model.GenerateActions(proj_len=months - 1)
        seconds = perf_counter() - start
    return {"seconds": seconds, "peak_mb": memory.above_mb}


if __name__ == "__main__":
    print(json.dumps(_measure_case(sys.argv[1])))
