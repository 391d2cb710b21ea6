"""Right answers with the size of their terms, and the register of the zoo's models.

The contract compares a number with ``1e-12 x sum of |terms|``, so a reference has to know both the
value and the size of the terms that made it. References are written with NumPy on whole arrays and
loops over t; they never use hl_dask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

RELATIVE = 1e-12

Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class Amount:
    """A right answer.

    Attributes
    ----------
    value : scalar or ndarray
        The answer.
    size : scalar or ndarray
        Sum of the absolute terms; 0 asks for equality.
    """

    value: Any
    size: Any = 0.0

    def matches(self, actual: Any) -> bool:
        """Say whether ``actual`` keeps C1; NaN matches NaN, an infinity only itself."""
        actual = np.asarray(actual)
        value = np.asarray(self.value)
        if actual.shape != value.shape or actual.dtype == object:
            return False
        finite = np.isfinite(value.astype(np.float64))
        special_ok = np.array_equal(actual[~finite], value[~finite], equal_nan=True)
        size = np.broadcast_to(np.asarray(self.size, dtype=np.float64), value.shape)[finite]
        gap = np.abs(actual[finite].astype(np.float64) - value[finite].astype(np.float64))
        return special_ok and bool(np.all(gap <= RELATIVE * size))

    def __truediv__(self, other: Amount) -> Amount:
        """Quotient of two sums; the relative errors of both add up."""
        size = self.size / abs(other.value) + abs(self.value) * other.size / other.value**2
        return Amount(self.value / other.value, size)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.value - other.value, self.size + other.size)

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.value + other.value, self.size + other.size)

    def __mul__(self, factor: float) -> Amount:
        return Amount(self.value * factor, self.size * abs(factor))

    __rmul__ = __mul__


def total(rows: Any) -> Amount:
    """Sum over all values, exactly rounded; integers and booleans must be met exactly."""
    rows = np.asarray(rows)
    if rows.dtype.kind in "iub":
        return Amount(int(rows.sum(dtype=np.int64)))
    if not np.isfinite(rows).all():
        return Amount(float(rows.sum()), 0.0)
    flat = rows.ravel()
    return Amount(math.fsum(flat.tolist()), float(np.abs(flat).sum()))


def totals(rows: np.ndarray) -> Amount:
    """Sum over the first axis only: one number per scenario."""
    cells = [total(rows[:, k]) for k in range(rows.shape[1])]
    return Amount(np.array([c.value for c in cells]), np.array([c.size for c in cells]))


def mean(rows: Any) -> Amount:
    """Mean over all values."""
    rows = np.asarray(rows)
    return total(rows.astype(np.float64)) * (1.0 / rows.size)


def variance(rows: Any) -> Amount:
    """Mean squared deviation, in two exactly rounded passes."""
    rows = np.asarray(rows, dtype=np.float64)
    deviations = rows - mean(rows).value
    return total(deviations * deviations) * (1.0 / rows.size)


def exact(value: Any) -> Amount:
    """An answer that must be met to the last bit: a minimum, a count, a flag."""
    return Amount(value)


def near(value: Any) -> Amount:
    """An answer that is one term."""
    return Amount(value, np.abs(value))


class Ledger(dict[str, dict[tuple[Any, ...], Amount]]):
    """Expected outputs: formula name -> arguments -> amount."""

    def by_t(
        self, name: str, values: Iterable[Any], reduce: Callable[[Any], Amount] = total
    ) -> None:
        """Enter one value for each t = 0, 1, ..."""
        self[name] = {(t,): reduce(value) for t, value in enumerate(values)}

    def once(self, name: str, amount: Amount) -> None:
        """Enter a formula without arguments."""
        self[name] = {(): amount}

    def at(self, name: str, args: tuple[Any, ...], amount: Amount) -> None:
        """Enter one call of a formula with several arguments."""
        self.setdefault(name, {})[args] = amount


Reference = Callable[[Columns, Any, int], Ledger]


@dataclass(frozen=True)
class Entry:
    """One model of the zoo.

    Attributes
    ----------
    name : str
        Name of the entry, used as test id.
    model : type
        The model class.
    data : callable
        ``(rng, rows) -> columns``.
    reference : callable
        ``(columns, assumptions, proj_len) -> Ledger``, with no use of hl_dask.
    assumptions : callable
        ``() -> dict`` of keyword arguments of the model.
    proj_len : int
        Last t of the projection.
    rows : int
        Rows of the data.
    attributes : callable, optional
        ``columns -> (columns left in data, keyword arguments)`` for per-point attributes.
    change : callable, optional
        Applied to the model after recording and to the reference's assumptions.
    declared : bool
        Whether the model has opaque formulas that are declared per-point.
    """

    name: str
    model: type
    data: Callable[[np.random.Generator, int], Columns]
    reference: Reference
    assumptions: Callable[[], dict[str, Any]] = dict
    proj_len: int = 12
    rows: int = 2_300
    attributes: Callable[[Columns], tuple[Columns, dict[str, Any]]] | None = None
    change: Callable[[Any], None] | None = None
    declared: bool = False

    def columns(self, seed: int = 7) -> Columns:
        """Make the data."""
        return self.data(np.random.default_rng(seed), self.rows)

    def build(self, columns: Columns) -> Any:
        """Make a model on these columns."""
        extra: dict[str, Any] = {}
        if self.attributes is not None:
            columns, extra = self.attributes(columns)
        return self.model(data=columns, **self.assumptions(), **extra)

    def expected(self, columns: Columns, *, changed: bool = False) -> Ledger:
        """Compute the right answers."""
        assumptions = SimpleNamespace(**self.assumptions())
        if changed and self.change is not None:
            self.change(assumptions)
        return self.reference(columns, assumptions, self.proj_len)


@dataclass
class Zoo:
    """Register of entries; the decorator names an entry after its reference function."""

    entries: dict[str, Entry] = field(default_factory=dict)

    def entry(
        self, model: type, data: Callable[[np.random.Generator, int], Columns], **options: Any
    ) -> Callable[[Reference], Reference]:
        """Register the decorated reference function together with its model."""

        def register(reference: Reference) -> Reference:
            name = reference.__name__
            assert name not in self.entries, f"the zoo already has a {name}"
            self.entries[name] = Entry(name, model, data, reference, **options)
            return reference

        return register


def policies(rng: np.random.Generator, rows: int) -> Columns:
    """Random term policies; money in currency units, ages and terms in years."""
    term = rng.choice([10, 15, 20], rows)
    return {
        "policy_count": rng.integers(1, 4, rows).astype(np.float64),
        "age": rng.integers(20, 60, rows),
        "term": term,
        "duration_mth": rng.integers(0, 24, rows),
        "sum_assured": np.round(rng.uniform(10_000, 900_000, rows), 2),
        "premium": np.round(rng.uniform(5.0, 400.0, rows), 2),
        "sex": rng.choice(["M", "F"], rows),
        "product": rng.choice(["TERM", "WHOLE", "ENDOW", "UL"], rows),
        "smoker": rng.random(rows) < 0.2,
    }


def read_cell(frame: pd.DataFrame, values: Mapping[str, Any], name: str, args: Any) -> Any:
    """Return what a run reports for ``name(*args)``: from ``values`` or a cell of ``df_agg``."""
    if not args:
        return values[name]
    t, *others = args
    column = frame[(name, *others)] if others else frame[name]
    cell = column.loc[t]
    # A formula that reports an array has a column for each entry.
    return cell.to_numpy() if isinstance(column, pd.DataFrame) else cell


def mismatches(frame: pd.DataFrame, values: Mapping[str, Any], expected: Ledger) -> list[str]:
    """List the reported cells that miss their right answer."""
    missed = []
    for name, calls in expected.items():
        for args, amount in calls.items():
            try:
                actual = read_cell(frame, values, name, args)
            except KeyError as error:
                missed.append(f"{name}{args} is not reported: {error!r}")
                continue
            if not amount.matches(actual):
                missed.append(f"{name}{args}: {actual!r}, right is {amount.value!r}")
    return missed
