"""Models made up at random: plain run, replay and an evaluation by NumPy alone agree.

A model is drawn as plain data. :class:`Reference` evaluates the data with NumPy on whole arrays, by
recursion and without hl_dask; :func:`model_class` makes a class with a formula for each entry.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import hl_dask as hl
from tests.reference import Amount, exact, total

# Without the phase that explains failures, which traces every line.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
FEW = settings(
    max_examples=25, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.too_slow]
)
MANY = settings(FEW, max_examples=200)

PROJ_LEN = 6
SERIES = np.array([0.5, 1.0, 0.25, 2.0, 1.5, 0.75, 1.25])
CAUSES = ("death", "lapse")

Expression = tuple[Any, ...]


# ---- expressions ---------------------------------------------------------------------------------
#
# ("column", name) ("number", x) ("t",) ("rate",) ("series",)  leaves
# ("call", formula, shift, cause)                                another formula at t + shift
# (operation, operand, ...)                                      see OPERATIONS

OPERATIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "average": (2, lambda x, y: 0.5 * (x + y)),
    "less": (2, lambda x, y: x - 0.3 * y),
    "least": (2, np.minimum),
    "most": (2, np.maximum),
    "choice": (3, lambda x, y, z: np.where(x > y, x, 0.9 * z)),
    "band": (1, lambda x: np.clip(x, -40.0, 90.0)),
    "round": (1, lambda x: np.round(x, 2)),
    "root": (1, lambda x: np.sqrt(np.abs(x))),
    "square": (1, lambda x: x**2 / 100),
    "shrink": (1, lambda x: x * 0.97),
    "divide": (2, lambda x, y: x / (1.0 + np.abs(y))),
    "whole": (1, lambda x: np.floor(x) // 3),
    "flag": (2, lambda x, y: (x >= y) * 2.0 - 1),
    "negate": (1, lambda x: -x),
}


def evaluate(expression: Expression, leaf: Callable[[Expression], Any]) -> Any:
    head, *rest = expression
    if head in OPERATIONS:
        return OPERATIONS[head][1](*(evaluate(operand, leaf) for operand in rest))
    return leaf(expression)


@dataclass(frozen=True)
class Entry:
    """A formula.

    Attributes
    ----------
    kind : str
        ``shared`` (no rows), ``back`` (needs t - 1, t - 2), ``forth`` (needs t + 1), ``cause``
        (as ``back``, one value for each cause), ``total`` (a number over all rows), ``alone`` (no
        arguments).
    base : expression
        Before the first (after the last) time step.
    step : expression
        Else; for totals the sort of total and the formulas that it reads.
    agg : str
        Name of the aggregate.
    """

    name: str
    kind: str
    base: Expression
    step: Expression
    agg: str


AGGREGATES: dict[str, Any] = {
    "default": "default",
    "none": None,
    "max": np.max,
    "min": np.min,
    "mean": np.mean,
    "any": np.any,
}


def with_rows(found: Expression) -> Expression:
    """Make sure that there is one value for each row."""
    return ("less", found, ("column", "count"))


def calls_to(name: str, kind: str, shifts: tuple[int, ...]) -> list[Expression]:
    causes = CAUSES if kind == "cause" else (None,)
    return [("call", name, shift, cause) for shift in shifts for cause in causes]


class Drawing:
    """Draws the formulas of a model, one kind after the other."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.entries: list[Entry] = []

    def above(self, kinds: str, shifts: tuple[int, ...] = (0,)) -> list[Expression]:
        """Calls of the formulas that are there already."""
        known = [e for e in self.entries if e.kind in kinds.split()]
        return [call for e in known for call in calls_to(e.name, e.kind, shifts)]

    def expression(
        self, calls: list[Expression], *, rows: bool = True, most: int = 5
    ) -> Expression:
        fixed: list[Expression] = [("t",), ("rate",), ("series",), ("number", 1.5), ("number", -2)]
        if rows:
            fixed += [("column", "count"), ("column", "age"), ("column", "sum_assured")]
        leaf = st.sampled_from(fixed)
        if calls:
            leaf = st.one_of(leaf, st.sampled_from(calls), st.sampled_from(calls))

        def grow(inner: Any) -> Any:
            return st.one_of(
                *(st.tuples(st.just(name), *[inner] * n) for name, (n, _) in OPERATIONS.items())
            )

        return self.draw(st.recursive(leaf, grow, max_leaves=most))

    def add(self, name: str, kind: str, base: Expression, step: Expression) -> None:
        aggregate = self.draw(st.sampled_from(["default", "default", *AGGREGATES]))
        self.entries.append(Entry(name, kind, base, step, aggregate))

    def shared(self) -> None:
        for k in range(self.draw(st.integers(0, 2))):
            here = calls_to(f"shared{k}", "shared", (-1,))
            step = self.expression(here + self.above("shared", (0, -1)), rows=False)
            base = self.expression([], rows=False, most=2)
            self.add(f"shared{k}", "shared", base, step)

    def backward(self) -> None:
        """Earlier values of all recursive formulas, and present ones of those above."""
        kinds = self.draw(st.lists(st.sampled_from(["back", "cause"]), min_size=1, max_size=4))
        names = [f"{kind}{k}" for k, kind in enumerate(kinds)]
        earlier = [
            call
            for name, kind in zip(names, kinds, strict=True)
            for call in calls_to(name, kind, (-1, -2))
        ]
        for name, kind in zip(names, kinds, strict=True):
            base = with_rows(self.expression(self.above("shared"), most=2))
            step = with_rows(self.expression(earlier + self.above("shared back cause")))
            self.add(name, kind, base, step)

    def forward(self) -> None:
        for k in range(self.draw(st.integers(0, 2))):
            here = calls_to(f"forth{k}", "forth", (1,))
            step = with_rows(self.expression(here + self.above("shared back cause forth")))
            base = with_rows(self.expression(self.above("back"), most=2))
            self.add(f"forth{k}", "forth", base, step)

    def totals(self) -> None:
        by_row = [e.name for e in self.entries if e.kind in ("back", "forth")]
        if not by_row:
            return
        one = st.sampled_from(by_row)
        for k in range(self.draw(st.integers(0, 3))):
            step = self.draw(st.tuples(st.sampled_from(sorted(TOTALS)), one, one))
            self.entries.append(Entry(f"total{k}", "total", (), step, "default"))
        if self.draw(st.booleans()):
            self.entries.append(Entry("pv", "alone", (), (self.draw(one),), "default"))


@st.composite
def models(draw: Any) -> tuple[Entry, ...]:
    drawing = Drawing(draw)
    drawing.shared()
    drawing.backward()
    drawing.forward()
    drawing.totals()
    return tuple(drawing.entries)


def ratio(x: Any, y: Any) -> Any:
    return x.sum() / (1.0 + np.abs(y).sum())


def ratio_amount(x: Any, y: Any) -> Amount:
    divisor = 1.0 + np.abs(y).sum()
    return Amount(ratio(x, y), 2 * np.abs(x).sum() / divisor)


def capped(x: Any, y: Any) -> Any:
    return np.maximum(x.sum(), 0.0)


def chosen(x: Any, y: Any) -> Any:
    """A total turned into a Python value decides what comes next."""
    return x.min() if x.max() > y.max() else y.max()


def counted(x: Any, y: Any) -> Any:
    return (x > y).sum()


def spread(x: Any, y: Any) -> Any:
    return max(x.max(), y.max()) - x.min()


def averaged(x: Any, y: Any) -> Any:
    return x.mean() - y.mean()


TOTALS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Amount]]] = {
    "ratio": (ratio, ratio_amount),
    "capped": (capped, lambda x, y: Amount(capped(x, y), np.abs(x).sum())),
    "chosen": (chosen, lambda x, y: exact(chosen(x, y))),
    "counted": (counted, lambda x, y: exact(counted(x, y))),
    "spread": (spread, lambda x, y: exact(spread(x, y))),
    "averaged": (
        averaged,
        lambda x, y: Amount(averaged(x, y), np.abs(x).mean() + np.abs(y).mean()),
    ),
}


def base_case(entry: Entry, t: int) -> bool:
    """Say where a recursion starts; values beyond its start are those of the start."""
    return t >= PROJ_LEN if entry.kind == "forth" else t <= 0


# ---- the class and the reference -----------------------------------------------------------------


def make_formula(entry: Entry) -> Callable[..., Any]:
    def of_t(self, t, cause=None):
        def leaf(expression):
            head = expression[0]
            if head == "column":
                return self.data[expression[1]]
            if head == "call":
                _, name, shift, other = expression
                args = (t + shift,) if other is None else (t + shift, other)
                return getattr(self, name)(*args)
            return scalar(expression, t, self.rate, self.series)

        value = evaluate(entry.base if base_case(entry, t) else entry.step, leaf)
        return value * 0.5 if cause == "lapse" else value

    if entry.kind == "cause":
        return lambda self, t, cause="death": of_t(self, t, cause)
    if entry.kind == "alone":
        read = entry.step[0]
        return lambda self: sum(getattr(self, read)(t) * 0.9**t for t in range(PROJ_LEN + 1))
    if entry.kind == "total":
        function, (x, y) = TOTALS[entry.step[0]][0], entry.step[1:]
        return lambda self, t: function(getattr(self, x)(t), getattr(self, y)(t))
    return lambda self, t: of_t(self, t)


def scalar(expression: Expression, t: int, rate: float, series: Any) -> Any:
    head = expression[0]
    if head == "series":
        return series[t % len(series)]
    return {"t": t, "rate": rate, "number": expression[-1]}[head]


def model_class(entries: tuple[Entry, ...]) -> type[hl.Model]:
    body: dict[str, Any] = {"assumptions": ("series",)}
    for entry in entries:
        formula = make_formula(entry)
        if entry.agg != "default":
            formula = hl.agg(AGGREGATES[entry.agg])(formula)
        body[entry.name] = formula
    return type("Drawn", (hl.Model,), body)


class Reference:
    """Values by recursion with NumPy on whole arrays."""

    def __init__(self, entries: tuple[Entry, ...], columns: dict[str, Any], rate: float) -> None:
        self.entries = {e.name: e for e in entries}
        self.columns = columns
        self.rate = rate
        self.value = functools.cache(self._value)

    def _value(self, name: str, t: int, cause: str | None = None) -> Any:
        entry = self.entries[name]
        expression = entry.base if base_case(entry, t) else entry.step
        value = evaluate(expression, lambda e: self._leaf(e, t))
        return value * 0.5 if cause == "lapse" else value

    def _leaf(self, expression: Expression, t: int) -> Any:
        if expression[0] == "column":
            return self.columns[expression[1]]
        if expression[0] == "call":
            _, name, shift, cause = expression
            return self.value(name, t + shift, cause)
        return scalar(expression, t, self.rate, SERIES)

    def amount(self, name: str, t: int, cause: str | None = None) -> Amount:
        """The reported value of a formula."""
        entry = self.entries[name]
        if entry.kind == "total":
            sort, x, y = entry.step
            return TOTALS[sort][1](self.value(x, t), self.value(y, t))
        value = self.value(name, t, cause)
        if np.ndim(value) == 0:
            return Amount(value)
        if entry.agg == "mean":
            return total(value) * (1 / len(value))
        return total(value) if entry.agg == "default" else exact(AGGREGATES[entry.agg](value))

    def pv(self) -> Amount:
        read = self.entries["pv"].step[0]
        values = [self.value(read, t) * 0.9**t for t in range(PROJ_LEN + 1)]
        return Amount(total(np.sum(values, axis=0)).value, np.abs(values).sum())


def columns_of(rows: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "count": np.round(rng.exponential(2.0, rows), 2),
        "age": rng.integers(18, 66, rows),
        "sum_assured": np.round(rng.normal(20.0, 15.0, rows), 1),
    }


def bits(result: Any) -> list[tuple[str, Any, bytes, str]]:
    return [
        (f.name, key, np.asarray(value).tobytes(), np.asarray(value).dtype.str)
        for f, key, value in result.reports
    ]


def assert_reports(cache_agg: dict[str, dict[Any, Any]], entries: Any, right: Reference) -> None:
    reported = {e.name for e in entries if e.agg != "none"}
    # Formulas with a cause are evaluated where others need them.
    assert set(cache_agg) <= reported
    assert {n for n in reported if right.entries[n].kind != "cause"} <= set(cache_agg)
    for name, calls in cache_agg.items():
        if name == "pv":
            assert right.pv().matches(calls[()])
            continue
        if right.entries[name].kind != "cause":
            assert set(calls) == {(t,) for t in range(PROJ_LEN + 1)}
        for key, value in calls.items():
            assert right.amount(name, *key).matches(value), (name, key, value)


def assert_cached(model: hl.Model, right: Reference) -> None:
    """Every value of the plain run has the bits of the reference."""
    for name, calls in model.cache.items():
        if right.entries[name].kind in ("total", "alone"):
            continue
        for key, value in calls.items():
            np.testing.assert_array_equal(value, right.value(name, *key))


def reported_fully(entries: tuple[Entry, ...]) -> set[str]:
    """Formulas that every run evaluates at every time step."""
    return {e.name for e in entries if e.kind != "cause"}


def check(entries: tuple[Entry, ...], rows: int, seed: int, block_rows: int) -> None:
    columns = columns_of(rows, seed)
    rate = 0.25 + seed / 100
    model = model_class(entries)(data=columns, rate=rate, series=SERIES)
    right = Reference(entries, columns, rate)
    model.RunModel(PROJ_LEN)
    assert_cached(model, right)
    assert_reports(model.cache_agg, entries, right)
    plain = model.cache_agg

    first = model.ExecuteActions(block_rows=block_rows, chunk_blocks=1, scheduler="synchronous")
    assert_reports(first.cache_agg, entries, right)
    # A plain run evaluates formulas that are not reported as well, and what they call is.
    missing = [e for e in entries if e.name in set(plain) - set(first.cache_agg)]
    assert {e.kind for e in missing} <= {"cause"}
    kept = [name for name in plain if name in first.cache_agg]
    assert kept == list(first.cache_agg)
    assert [list(plain[name]) for name in kept if name in reported_fully(entries)] == [
        list(first.cache_agg[name]) for name in kept if name in reported_fully(entries)
    ]
    for chunk_blocks, scheduler in [(3, "threads"), (10**6, "synchronous"), (None, "threads")]:
        again = model.ExecuteActions(
            block_rows=block_rows, chunk_blocks=chunk_blocks, scheduler=scheduler
        )
        assert bits(again) == bits(first), (chunk_blocks, scheduler)
    one_block = model.ExecuteActions(block_rows=rows, workers=1)
    assert_reports(one_block.cache_agg, entries, right)


drawn = given(models(), st.integers(2, 90), st.integers(0, 50), st.integers(1, 40))


@FEW
@drawn
def test_a_model_drawn_at_random(entries: Any, rows: int, seed: int, block_rows: int) -> None:
    check(entries, rows, seed, block_rows)


@pytest.mark.slow
@MANY
@drawn
def test_many_models_drawn_at_random(entries: Any, rows: int, seed: int, block_rows: int) -> None:
    check(entries, rows, seed, block_rows)


@FEW
@given(models(), st.integers(1, 60), st.integers(0, 50), st.integers(1, 25))
def test_a_plan_of_other_rows_and_another_assumption(
    entries: Any, rows: int, seed: int, block_rows: int
) -> None:
    model = model_class(entries)(data=columns_of(300, seed + 1), rate=0.5, series=SERIES)
    model.GenerateActions(proj_len=PROJ_LEN)
    columns = columns_of(rows, seed)
    model.data = columns
    model.rate = 0.125
    result = model.ExecuteActions(block_rows=block_rows, chunk_blocks=2)
    assert_reports(result.cache_agg, entries, Reference(entries, columns, 0.125))


@FEW
@given(models(), st.data())
def test_fewer_outputs_are_the_same_numbers(entries: Any, data: Any) -> None:
    columns = columns_of(50, 7)
    model = model_class(entries)(data=columns, rate=0.5, series=SERIES)
    everything = model.ExecuteActions(proj_len=PROJ_LEN, block_rows=12)
    of_t = [e.name for e in entries if e.kind in ("back", "forth", "total") and e.agg != "none"]
    if not of_t:
        return
    name = data.draw(st.sampled_from(of_t))
    one = model.ExecuteActions(proj_len=PROJ_LEN, outputs=[name], block_rows=12)
    assert bits(one) == [entry for entry in bits(everything) if entry[0] == name]


@FEW
@given(models())
def test_the_actions_of_a_model_drawn_at_random(entries: Any) -> None:
    model = model_class(entries)(data=columns_of(40, 3), rate=0.5, series=SERIES)
    plan = model.GenerateActions(proj_len=PROJ_LEN)
    cache: set[str] = set()
    reads = {info.call: set(info.reads) for info in plan.calls}
    assert len(reads) == len(plan.calls)
    for action in plan.actions:
        if action.kind == "compute":
            assert reads[action.call] <= cache
            cache.add(action.call)
        elif action.kind == "release":
            cache.remove(action.call)
        else:
            assert action.call in cache
    assert not cache


@FEW
@given(models())
def test_replay_and_plain_run_agree_node_by_node(entries: Any) -> None:
    model = model_class(entries)(data=columns_of(40, 3), rate=0.5, series=SERIES)
    assert len(model.Check(proj_len=PROJ_LEN)) == 0
