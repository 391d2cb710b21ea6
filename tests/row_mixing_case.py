"""A case of row mixing: one formula, its right answer on other data, and what may happen.

The sample and the big data differ on purpose: the sample's premiums are positive and sorted, its
columns ``flag`` and ``fx`` constant, its products and ages few; the big data have negative and
heavy-tailed premiums, rare products, more ages, NaN in ``lapse``, an additional column and another
order of columns. A formula that is right on the sample by accident is wrong on the big data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

import hl_dask as hl
from tests.reference import Amount, Columns

SAMPLE_ROWS = 1_000
BIG_ROWS = 100_000

Expect = Literal["right", "refused", "either"]
Right = Callable[[Columns, int], Amount]


def sample_columns() -> Columns:
    """Return the sample that plans are recorded on."""
    rng = np.random.default_rng(101)
    rows = SAMPLE_ROWS
    return {
        "age": rng.integers(30, 50, rows),
        "premium": np.sort(rng.uniform(100.0, 200.0, rows)),
        "sum_assured": np.sort(rng.uniform(1e5, 2e5, rows)),
        "term": rng.choice([10, 20], rows),
        "group": rng.integers(0, 4, rows),
        "units": rng.integers(1, 9, rows),
        "sex": rng.choice(["M", "F"], rows),
        "product": rng.choice(["TERM", "WHOLE"], rows),
        "policy_id": np.array([f"P{i:06d}" for i in range(rows)]),
        "flag": np.ones(rows, dtype=bool),
        "fx": np.ones(rows),
        "lapse": rng.uniform(0.0, 0.1, rows),
    }


def big_columns(rows: int = BIG_ROWS) -> Columns:
    """Return the data that the plan is replayed on."""
    rng = np.random.default_rng(202)
    product = rng.choice(["TERM", "WHOLE", "ENDOW", "GROUP"], rows, p=[0.1, 0.2, 0.4, 0.3])
    product[rng.choice(rows, 5, replace=False)] = "RARE"
    columns = {
        "lapse": np.where(rng.random(rows) < 0.02, np.nan, rng.uniform(0.0, 0.3, rows)),
        "extra": rng.random(rows),
        "fx": rng.uniform(0.5, 1.5, rows),
        "flag": rng.random(rows) < 0.6,
        "policy_id": np.array([f"P{i:06d}" for i in range(rows)])[rng.permutation(rows)],
        "product": product,
        "sex": rng.choice(["M", "F"], rows, p=[0.9, 0.1]),
        "units": np.round(rng.uniform(0.0, 20.0, rows), 1),
        "group": rng.integers(0, 11, rows),
        "term": rng.choice([5, 10, 15, 20, 25], rows),
        "sum_assured": rng.lognormal(11.0, 1.0, rows),
        "premium": rng.gamma(0.8, 90.0, rows) - 4.0,
        "age": rng.integers(18, 80, rows),
    }
    columns["age"][rows // 2] = 97
    return columns


@dataclass(frozen=True)
class Case:
    """One formula that mixes rows, or leaks something of the sample.

    Attributes
    ----------
    name : str
        Name of the formula, which a refusal has to mention.
    model : type
        The model class.
    right : callable or None
        ``(columns, t) -> Amount``; None where no right answer exists and only a refusal will do.
    expect : str
        ``"right"`` and ``"refused"`` where the contract demands it, else ``"either"``.
    rows : int
        Rows of the big data.
    assumptions : callable
        ``() -> dict`` of keyword arguments of the model.
    reset : callable or None
        Called with the model class before recording, where formulas keep state outside the model.
    declared : bool
        Whether the formula is declared per-point.
    fresh_only : bool
        The right answer is that of a model that has not run before.
    """

    name: str
    model: type
    right: Right | None
    expect: Expect = "either"
    rows: int = BIG_ROWS
    assumptions: Callable[[], dict[str, Any]] = dict
    reset: Callable[[type], None] | None = None
    declared: bool = False
    fresh_only: bool = False


Formula = Callable[..., Any]


@dataclass
class Register:
    """Collects cases; the decorator makes a model of the formula and names the case after it."""

    cases: dict[str, Case] = field(default_factory=dict)
    declared: bool = False

    def case(
        self,
        right: Right | None,
        expect: Expect = "either",
        *,
        base: type = hl.Model,
        agg: Any = ...,
        **options: Any,
    ) -> Callable[[Formula], Formula]:
        """Register the decorated formula; ``base`` may bring further formulas."""

        def register(formula: Formula) -> Formula:
            name = formula.__name__
            assert name not in self.cases, f"there is a case {name} already"
            reported = formula
            if self.declared:
                reported = hl.per_point(reported)
            if agg is not ...:
                reported = hl.agg(agg)(reported)
            model = type(name.title().replace("_", ""), (base,), {name: reported})
            if right is None:
                expect_here: Expect = "refused"
            else:
                expect_here = expect
            self.cases[name] = Case(
                name, model, right, expect_here, declared=self.declared, **options
            )
            return formula

        return register
