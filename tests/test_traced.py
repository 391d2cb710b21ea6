"""The traced array against NumPy: hundreds of expressions, on blocks and on whole arrays."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hl_dask as hl
from hl_dask.errors import OpaqueFormulaError, RowMixingError
from tests import traced_cases as cases

ROWS = 300
BLOCK_ROWS = 64
STAND_IN = 777.0
"""Takes the place of NaN and infinities, which would hide all other entries of a total."""

ASSUMPTIONS: dict[str, Any] = {
    "rates": np.array([0.5, 0.1, 0.7, 0.2, 0.9]),
    "grid": np.arange(15.0).reshape(5, 3) ** 1.5,
    "steps": np.array([-2.0, -1.0, 0.0, 1.0, 2.0]),
    "three": np.array([1.0, 2.0, 4.0]),
    "matrix": np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
    "rate": 1.25,
}


def columns() -> dict[str, np.ndarray]:
    """Make the data; see :mod:`tests.traced_cases` for what they are."""
    rng = np.random.default_rng(3)
    holes = rng.random((ROWS, 4)) < 0.25
    holes[:, 3] = False  # no row of `q` is all NaN
    return {
        "x": rng.normal(size=ROWS) * 2.0,
        "y": rng.uniform(0.5, 3.0, ROWS),
        "z": np.where(holes[:, 0], np.nan, rng.normal(size=ROWS)),
        "k": rng.integers(0, 5, ROWS),
        "n": rng.integers(18, 70, ROWS),
        "b": rng.random(ROWS) < 0.5,
        "c": rng.random(ROWS) < 0.6,
        "w": rng.uniform(0.2, 3.0, (ROWS, 3)),
        "v": rng.uniform(0.2, 3.0, (ROWS, 3)),
        "m": rng.integers(0, 5, (ROWS, 3)),
        "q": np.where(holes[:, 1:], np.nan, rng.normal(size=(ROWS, 3)) + 1.0),
        "s": rng.choice(["A", "B", "C"], ROWS),
        "weight": rng.uniform(1.0, 2.0, ROWS),
    }


COLUMNS = columns()


class Names:
    """The names of an expression: columns and assumptions of a model."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __getitem__(self, name: str) -> Any:
        if name in COLUMNS:
            return self.model.data[name]
        if name in ASSUMPTIONS:
            return getattr(self.model, name)
        raise KeyError(name)


def evaluate(expression: str, model: Any) -> Any:
    """Evaluate an expression on the columns and assumptions of a model."""
    return eval(compile(expression, expression, "eval"), {"np": np}, Names(model))


def finite(value: Any) -> Any:
    """Put a number in place of NaN and infinities."""
    return np.where(np.isfinite(value), value, STAND_IN)


def expected(expression: str) -> np.ndarray:
    """Evaluate an expression with NumPy on whole arrays."""
    plain = SimpleNamespace(data=COLUMNS | {"s": pd.Categorical(COLUMNS["s"])}, **ASSUMPTIONS)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(evaluate(expression, plain))


def row_weights(value: np.ndarray) -> Any:
    """Say how a weight for each row broadcasts against the value, None when it has no rows."""
    axes = [axis for axis, length in enumerate(value.shape) if length == ROWS]
    return tuple(slice(None) if a == axes[0] else None for a in range(value.ndim)) if axes else None


def model_of(expression: str, value: np.ndarray) -> tuple[Any, dict[str, Any]]:
    """Make a model that reports an expression, and the right answers."""
    if value.ndim == 0:
        return number_model(expression), {"value": value}
    tidy, rows = finite(value), row_weights(value)
    if rows is None:
        weights = np.arange(1.0, value.size + 1.0).reshape(value.shape)
        return entries_model(expression, weights), {"weighted": np.sum(tidy * weights)}
    answers = {"total": np.sum(tidy), "low": np.min(tidy), "high": np.max(tidy)}
    answers["weighted"] = np.sum(tidy * COLUMNS["weight"][rows])
    return rows_model(expression, rows), answers


def number_model(expression: str) -> Any:
    """Make a model that reports one number."""

    class Number(hl.Model):
        def value(self):
            return evaluate(expression, self)

    return Number


def entries_model(expression: str, weights: np.ndarray) -> Any:
    """Make a model that reports the entries of an array without rows, in one number."""

    class Entries(hl.Model):
        @hl.agg(None)
        def value(self):
            return evaluate(expression, self)

        def weighted(self):
            return np.sum(finite(self.value()) * weights)

    return Entries


def rows_model(expression: str, rows: Any) -> Any:
    """Make a model that reports totals of an array with rows.

    The sum weighted by row tells rows that changed places, minimum and maximum single rows.
    """

    class Rows(hl.Model):
        @hl.agg(None)
        def value(self):
            return evaluate(expression, self)

        def total(self):
            return np.sum(finite(self.value()))

        def low(self):
            return np.min(finite(self.value()))

        def high(self):
            return np.max(finite(self.value()))

        def weighted(self):
            return np.sum(finite(self.value()) * self.data["weight"][rows])

    return Rows


def replay(model: type, chunk_blocks: int) -> dict[str, Any]:
    """Run a model block by block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        run = model(data=columns(), **ASSUMPTIONS)
        return run.ExecuteActions(
            proj_len=0, block_rows=BLOCK_ROWS, chunk_blocks=chunk_blocks, scheduler="synchronous"
        ).values


def check(model: type, answers: dict[str, Any], single: bool) -> None:
    """Compare replays in chunks of one block and of three with the right answers."""
    first, second = replay(model, 1), replay(model, 3)
    for name, answer in answers.items():
        actual, right = np.asarray(first[name]), np.asarray(answer)
        assert actual.tobytes() == np.asarray(second[name]).tobytes()
        assert actual.dtype == right.dtype
        tolerance = 1e-5 if single else 1e-12
        np.testing.assert_allclose(actual, right, rtol=tolerance, atol=1e-300)


def lines(*groups: str) -> list[str]:
    """Return the expressions of some groups."""
    return [line for group in groups for line in group.strip().splitlines()]


FOLLOWED = lines(cases.ELEMENTWISE, cases.SHAPES, cases.WITHIN_ROWS, cases.TOTALS)


@pytest.mark.parametrize("expression", FOLLOWED)
def test_an_expression_is_followed_block_by_block(expression: str) -> None:
    value = expected(expression)
    model, answers = model_of(expression, value)
    # A warning would say that the run was made in one piece; pytest turns it into an error.
    check(model, answers, single=value.dtype == np.float32)


@pytest.mark.parametrize("expression", lines(cases.OPAQUE))
def test_an_escape_is_replayed_in_one_piece_with_a_warning(expression: str) -> None:
    value = expected(expression)
    model, answers = model_of(expression, value)
    with pytest.warns(UserWarning, match="value"):
        check(model, answers, single=False)


@pytest.mark.parametrize("expression", lines(cases.REFUSED))
def test_mixing_of_rows_is_refused_with_a_remedy(expression: str) -> None:
    class Refused(hl.Model):
        @hl.agg(len)
        def picked(self):
            return evaluate(expression, self)

    with pytest.raises((RowMixingError, OpaqueFormulaError), match="picked") as caught:
        replay(Refused, 1)
    assert caught.value.remedy


def test_there_are_several_hundred_cases() -> None:
    assert len(FOLLOWED) >= 700
    assert len(lines(cases.REFUSED)) >= 120
    everything = FOLLOWED + lines(cases.OPAQUE, cases.REFUSED)
    assert len(everything) == len(set(everything))


# ---- statements ------------------------------------------------------------------------------


def add_in_place(d: Any) -> Any:
    x = d["x"].copy()
    x += d["y"]
    x *= 2
    x -= 1
    x /= d["y"]
    x **= 2
    return x


def whole_numbers_in_place(d: Any) -> Any:
    n = d["n"].copy()
    n //= 7
    n += d["k"]
    n %= 5
    return n


def flags_in_place(d: Any) -> Any:
    b = d["b"].copy()
    b &= d["c"]
    b |= d["x"] > 1
    b ^= d["c"]
    return b


def masked_assignment(d: Any) -> Any:
    x = d["x"].copy()
    x[d["x"] < 0] = 0.0
    x[d["b"]] = 5
    return x


def column_assignment(d: Any) -> Any:
    w = d["w"].copy()
    w[:, 1] = d["x"]
    w[:, 2] = 0
    w[:, 0] = d["y"] + 1
    w[..., 2] = 3.0
    w[:, :2] = 1.5 * d["v"][:, 1:]
    return w


def new_array(d: Any) -> Any:
    out = np.zeros((len(d["x"]), 3)) + d["w"] * 0
    for j in range(3):
        out[:, j] = d["x"] * j
    return out


def all_entries(d: Any) -> Any:
    x = np.empty_like(d["x"])
    x[:] = d["y"]
    x[...] = x + 1
    return x


def fill(d: Any) -> Any:
    x = np.empty_like(d["x"])
    x.fill(3.0)
    return x + d["y"]


def safe_division(d: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(d["k"] > 0, d["x"] / d["k"], 0.0)


def safe_division_in_place(d: Any) -> Any:
    out = np.zeros_like(d["x"])
    np.divide(d["x"], d["k"], out=out, where=d["k"] > 0)
    return out


def output_arguments(d: Any) -> Any:
    out = np.empty_like(d["x"])
    np.add(d["x"], d["y"], out=out)
    np.multiply(out, 2, out=out)
    np.clip(out, -3, 3, out=out)
    np.sqrt(np.abs(out), out)
    return out


def copies_are_apart(d: Any) -> Any:
    first = d["x"].copy()
    second = first.copy()
    second += 1
    return first * 100 + second


STATEMENTS = [
    add_in_place,
    whole_numbers_in_place,
    flags_in_place,
    masked_assignment,
    column_assignment,
    new_array,
    all_entries,
    fill,
    safe_division,
    safe_division_in_place,
    output_arguments,
    copies_are_apart,
]


@pytest.mark.parametrize("statements", STATEMENTS)
def test_changes_of_copies_are_followed(statements: Any) -> None:
    value = statements(COLUMNS)
    rows = row_weights(value)

    class Changed(hl.Model):
        @hl.agg(None)
        def value(self):
            return statements(self.data)

        def weighted(self):
            return np.sum(self.value() * self.data["weight"][rows])

    answer = np.sum(value * COLUMNS["weight"][rows])
    check(Changed, {"weighted": answer}, single=False)


def change_a_column(d: Any) -> Any:
    x = d["x"]
    x += 1
    return x


def assign_to_a_column(d: Any) -> Any:
    x = d["x"]
    x[x < 0] = 0
    return x


def change_a_view(d: Any) -> Any:
    w = d["w"].copy()
    first = w[:, 0]
    first += 1
    return w


def change_a_column_in_place(d: Any) -> Any:
    w = d["w"].copy()
    w[:, 0] += d["x"]
    return w


def change_what_was_viewed(d: Any) -> Any:
    w = d["w"].copy()
    first = w[:, 0]
    w += 1
    return first


@pytest.mark.parametrize(
    "statements",
    [
        change_a_column,
        assign_to_a_column,
        change_a_view,
        change_a_column_in_place,
        change_what_was_viewed,
    ],
)
def test_changes_that_would_be_seen_elsewhere_are_refused(statements: Any) -> None:
    class Changed(hl.Model):
        def value(self):
            return statements(self.data)

    with pytest.raises(hl.HlDaskError, match="read-only") as caught:
        replay(Changed, 1)
    assert caught.value.formula == "value()"
    assert caught.value.remedy


def test_an_assignment_by_rows_is_refused() -> None:
    class Assigned(hl.Model):
        def value(self):
            x = self.data["x"].copy()
            x[self.data["b"]] = self.data["y"][self.data["b"]]
            return x

    with pytest.raises(RowMixingError, match=r"value\(\)"):
        replay(Assigned, 1)
