"""Zoo, second hall: NumPy functions, data types, text, tables, scenarios, aggregates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

import hl_dask as hl
from tests.reference import (
    Amount,
    Columns,
    Ledger,
    Zoo,
    exact,
    mean,
    near,
    policies,
    total,
    totals,
    variance,
)

VALUES = Zoo()


class Text(hl.Model):
    """Text columns: comparison, membership, where, and as a formula's value."""

    @hl.agg(None)
    def sex(self):
        return self.data["sex"]

    def women(self, t):
        return (self.sex() == "F") * self.data["policy_count"]

    def not_term(self, t):
        return np.where(self.data["product"] != "TERM", self.data["premium"], 0.0)

    def savings(self, t):
        chosen = np.isin(self.data["product"], ["ENDOW", "UL"])
        return chosen * self.data["premium"] * t

    def protection(self, t):
        chosen = self.data["product"].isin(["TERM", "WHOLE", "NONE"])
        return np.where(chosen & (self.sex() == "M"), self.data["sum_assured"], -1.0)

    def absent(self, t):
        return (self.data["product"] == "GROUP") * 1.0

    def count_by_kind(self, t, kind):
        return self.data["product"] == kind

    def kinds(self, t):
        return self.count_by_kind(t, "UL") * 1 + self.count_by_kind(t, kind="TERM") * 10


@VALUES.entry(Text, policies, proj_len=3)
def text_columns(d: Columns, a: Any, n: int) -> Ledger:
    out = Ledger()
    months = range(n + 1)
    out.by_t("women", [(d["sex"] == "F") * d["policy_count"] for _ in months])
    out.by_t("not_term", [np.where(d["product"] != "TERM", d["premium"], 0.0) for _ in months])
    savings = (d["product"] == "ENDOW") | (d["product"] == "UL")
    out.by_t("savings", [savings * d["premium"] * t for t in months])
    chosen = ((d["product"] == "TERM") | (d["product"] == "WHOLE")) & (d["sex"] == "M")
    out.by_t("protection", [np.where(chosen, d["sum_assured"], -1.0) for _ in months])
    out.by_t("absent", [np.zeros(len(savings)) for _ in months])
    unit, term = d["product"] == "UL", d["product"] == "TERM"
    out.by_t("kinds", [unit * 1 + term * 10 for _ in months])
    for t in months:
        out.at("count_by_kind", (t, "UL"), exact(int(unit.sum())))
        out.at("count_by_kind", (t, "TERM"), exact(int(term.sum())))
    return out


class TextMadeByWhere(hl.Model):
    """Text that formulas make, and that looks up a table."""

    @hl.agg(None)
    def group(self, t):
        return np.where(self.data["age"] + t < 40, "young", "old")

    def loading(self, t):
        return self.loadings[self.group(t)] * self.data["premium"]

    def young(self, t):
        return (self.group(t) == "young") & self.data["smoker"]


def loadings() -> dict[str, Any]:
    frame = pd.DataFrame({"group|str": ["old", "young"], "loading": [1.5, 0.5]})
    return {"loadings": hl.Table(frame)}


@VALUES.entry(TextMadeByWhere, policies, assumptions=loadings, proj_len=5)
def text_made_by_where(d: Columns, a: Any, n: int) -> Ledger:
    out = Ledger()
    young = [d["age"] + t < 40 for t in range(n + 1)]
    out.by_t("loading", [np.where(y, 0.5, 1.5) * d["premium"] for y in young])
    out.by_t("young", [y & d["smoker"] for y in young])
    return out


class Scenarios(hl.Model):
    """Points x scenarios: two axes, totals over both, over points, over scenarios."""

    def fund(self, t):
        if t == 0:
            return self.data["premium"][:, None] * np.ones(self.growth.shape[1])
        return self.fund(t - 1) * self.growth[t] + self.data["premium"][:, np.newaxis]

    @hl.agg(hl.Sum(axis=0))
    def fund_by_scenario(self, t):
        return self.fund(t)

    def shortfall(self, t):
        return np.maximum(self.data["sum_assured"][:, None] * 0.01 - self.fund(t), 0.0)

    def mean_shortfall(self, t):
        return self.shortfall(t).mean(axis=1)

    def worst(self, t):
        return np.min(self.fund(t), axis=-1)

    def hit(self, t):
        return (self.shortfall(t) > 100.0).any(axis=1)

    def first_scenario(self, t):
        return self.fund(t)[:, 0] + self.fund(t)[:, -1]

    def some(self, t):
        return self.fund(t)[:, 1:3]

    @hl.agg(hl.Sum(axis=0))
    def total_by_scenario(self, t):
        return self.fund(t).sum(axis=0)

    def total_of_all(self, t):
        return self.fund(t).sum()

    def worst_total(self, t):
        return self.fund(t).sum(axis=0).min()

    def value_at_risk(self, t):
        return np.quantile(self.total_by_scenario(t), 0.75)

    @hl.agg(hl.Sum(axis=0))
    def ordered_totals(self, t):
        return np.sort(self.fund(t).sum(axis=0))

    def weighted_totals(self, t):
        return self.fund(t).sum(axis=0) @ np.arange(5.0)


def growth() -> dict[str, Any]:
    return {"growth": np.random.default_rng(3).normal(1.01, 0.05, (9, 5))}


@VALUES.entry(Scenarios, policies, assumptions=growth, proj_len=8)
def scenarios(d: Columns, a: Any, n: int) -> Ledger:
    premium = d["premium"][:, None]
    fund = [premium * np.ones(5)]
    for t in range(1, n + 1):
        fund.append(fund[-1] * a.growth[t] + premium)
    shortfall = [np.maximum(d["sum_assured"][:, None] * 0.01 - x, 0.0) for x in fund]
    out = Ledger()
    out.by_t("fund", fund)
    out.by_t("total_of_all", fund)
    out.by_t("fund_by_scenario", fund, totals)
    for t, x in enumerate(fund):
        by_scenario = totals(x)
        ordered = np.sort(by_scenario.value)
        out.at("worst_total", (t,), near(ordered[0]))
        out.at("value_at_risk", (t,), near(ordered[3]))
        out.at("ordered_totals", (t,), near(ordered))
        weighted = float(by_scenario.value @ np.arange(5.0))
        out.at("weighted_totals", (t,), Amount(weighted, float(by_scenario.size @ np.arange(5.0))))
    out.by_t("total_by_scenario", fund, totals)
    out.by_t("shortfall", shortfall)
    out.by_t("mean_shortfall", [x.mean(axis=1) for x in shortfall])
    out.by_t("worst", [x.min(axis=1) for x in fund])
    out.by_t("hit", [(x > 100.0).any(axis=1) for x in shortfall])
    out.by_t("first_scenario", [x[:, 0] + x[:, -1] for x in fund])
    out.by_t("some", [x[:, 1:3] for x in fund])
    return out


class CountAndMean(hl.Model):
    """Counts, means and variances of the portfolio."""

    def count(self, t):
        return (self.data["age"] + t > 40).sum()

    def count_nonzero(self, t):
        return np.count_nonzero(self.data["duration_mth"] - t)

    def mean_age(self, t):
        return (self.data["age"] + t).mean()

    def mean_premium(self, t):
        return np.mean(self.data["premium"]) * (t + 1)

    def variance(self, t):
        return np.var(self.data["premium"] + t)

    def shifted_variance(self, t):
        return (self.data["premium"] + 1e6).var()

    def shifted_nan_variance(self, t):
        return np.nanvar(self.data["premium"] + 1e6)

    def deviation(self, t):
        return self.data["premium"].std()

    def sample_variance(self, t):
        return np.var(self.data["premium"], ddof=1)

    def any_old(self, t):
        return (self.data["age"] + t > 61).any()

    def all_young(self, t):
        return np.all(self.data["age"] + t < 61)

    def spread(self, t):
        return np.max(self.data["premium"]) - self.data["premium"].min()

    def dot(self, t):
        return np.dot(self.data["premium"], self.data["policy_count"])

    def dot_by_operator(self, t):
        return self.data["premium"] @ self.data["policy_count"]

    def sum_of_ages(self, t):
        return self.data["age"].sum(dtype=np.float64)

    def products(self, t):
        return self.data["smoker"].sum() * self.data["age"].max()


@VALUES.entry(CountAndMean, policies, proj_len=3)
def count_and_mean(d: Columns, a: Any, n: int) -> Ledger:
    out = Ledger()
    premium, age = d["premium"], d["age"]
    rows = len(age)
    shifted = variance(premium + 1e6)
    for t in range(n + 1):
        out.at("count", (t,), exact(int((age + t > 40).sum())))
        out.at("count_nonzero", (t,), exact(int((d["duration_mth"] != t).sum())))
        out.at("mean_age", (t,), mean(age + t))
        out.at("mean_premium", (t,), mean(premium) * (t + 1))
        out.at("variance", (t,), variance(premium + t))
        out.at("shifted_variance", (t,), shifted)
        out.at("shifted_nan_variance", (t,), shifted)
        out.at("deviation", (t,), near(float(np.sqrt(variance(premium).value))))
        out.at("sample_variance", (t,), variance(premium) * (rows / (rows - 1)))
        out.at("any_old", (t,), exact(bool((age + t > 61).any())))
        out.at("all_young", (t,), exact(bool((age + t < 61).all())))
        out.at("spread", (t,), exact(float(premium.max() - premium.min())))
        out.at("dot", (t,), total(premium * d["policy_count"]))
        out.at("dot_by_operator", (t,), total(premium * d["policy_count"]))
        out.at("sum_of_ages", (t,), exact(float(age.sum())))
        out.at("products", (t,), exact(int(d["smoker"].sum() * age.max())))
    return out


def moments(x: np.ndarray) -> np.ndarray:
    """Count, sum and sum of squares of one block."""
    return np.array([len(x), x.sum(), (x * x).sum()])


def add(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Combine two partials."""
    return left + right


def variance_of_moments(m: np.ndarray) -> float:
    """Variance from the three sums."""
    return float(m[2] / m[0] - (m[1] / m[0]) ** 2)


class EveryAggregate(hl.Model):
    """One formula for each aggregate."""

    def amount(self, t):
        return self.data["sum_assured"] * 1.01**t - 5e4

    @hl.agg(np.sum)
    def amount_sum(self, t):
        return self.amount(t)

    @hl.agg(np.min)
    def amount_min(self, t):
        return self.amount(t)

    @hl.agg(np.max)
    def amount_max(self, t):
        return self.amount(t)

    @hl.agg(np.mean)
    def amount_mean(self, t):
        return self.amount(t)

    @hl.agg(np.any)
    def above(self, t):
        return self.amount(t) > 8.6e5

    @hl.agg(np.all)
    def below(self, t):
        return self.amount(t) < 8.6e5

    @hl.agg(len)
    def rows(self, t):
        return self.amount(t)

    @hl.agg(None)
    def hidden(self, t):
        return self.amount(t)

    @hl.agg(hl.Aggregate(map=moments, combine=add, finalise=variance_of_moments))
    def amount_variance(self, t):
        return self.hidden(t)

    @hl.agg(hl.Aggregate(map=np.max, combine=max, finalise=float))
    def amount_peak(self, t):
        return self.amount(t)

    @hl.agg(np.max)
    def oldest(self):
        return self.data["age"]


@VALUES.entry(EveryAggregate, policies, proj_len=4)
def every_aggregate(d: Columns, a: Any, n: int) -> Ledger:
    out = Ledger()
    amounts = [d["sum_assured"] * 1.01**t - 5e4 for t in range(n + 1)]
    out.by_t("amount", amounts)
    out.by_t("amount_sum", amounts)
    out.by_t("amount_min", amounts, lambda x: exact(float(x.min())))
    out.by_t("amount_max", amounts, lambda x: exact(float(x.max())))
    out.by_t("amount_peak", amounts, lambda x: exact(float(x.max())))
    out.by_t("amount_mean", amounts, mean)
    out.by_t("above", amounts, lambda x: exact(bool((x > 8.6e5).any())))
    out.by_t("below", amounts, lambda x: exact(bool((x < 8.6e5).all())))
    out.by_t("rows", amounts, lambda x: exact(len(x)))
    out.by_t(
        "amount_variance",
        amounts,
        lambda x: Amount(variance(x).value, float(np.mean(x * x) + np.mean(x) ** 2)),
    )
    out.once("oldest", exact(int(d["age"].max())))
    return out


class WholeNumbers(hl.Model):
    """Integer and boolean outputs stay exact, beyond 2**53."""

    def flag(self, t):
        return self.data["age"] + t > 45

    def either(self, t):
        return (self.flag(t) | self.data["smoker"]) & ~(self.data["sex"] == "F")

    def neither(self, t):
        return np.logical_not(np.logical_or(self.flag(t), self.data["smoker"]))

    def months(self, t):
        return 12 * self.data["term"] - self.data["duration_mth"] - t

    def quarter(self, t):
        return (self.data["duration_mth"] + t) // 3 % 4

    def huge(self, t):
        return self.data["age"] * 1_000_000_000_000_001 + t

    def bits(self, t):
        return self.data["age"] ^ self.data["term"] << 2

    def as_int(self, t):
        return (self.data["premium"] * 1.1**t).astype(int)

    def as_float(self, t):
        return self.flag(t).astype(np.float64) / 3


@VALUES.entry(WholeNumbers, policies, proj_len=4)
def whole_numbers(d: Columns, a: Any, n: int) -> Ledger:
    out = Ledger()
    flags = [d["age"] + t > 45 for t in range(n + 1)]
    out.by_t("flag", flags)
    out.by_t("either", [(f | d["smoker"]) & (d["sex"] == "M") for f in flags])
    out.by_t("neither", [~(f | d["smoker"]) for f in flags])
    out.by_t("months", [12 * d["term"] - d["duration_mth"] - t for t in range(n + 1)])
    out.by_t("quarter", [(d["duration_mth"] + t) // 3 % 4 for t in range(n + 1)])
    out.by_t("huge", [d["age"] * 1_000_000_000_000_001 + t for t in range(n + 1)])
    out.by_t("bits", [d["age"] ^ (d["term"] << 2) for _ in range(n + 1)])
    out.by_t("as_int", [np.trunc(d["premium"] * 1.1**t).astype(np.int64) for t in range(n + 1)])
    out.by_t("as_float", [f / 3 for f in flags])
    return out


def narrow_columns(rng: np.random.Generator, rows: int) -> Columns:
    """Columns of small types, which the model sees widened."""
    return {
        "age": rng.integers(20, 100, rows).astype(np.int8),
        "units": rng.integers(0, 250, rows).astype(np.uint8),
        "premium": rng.uniform(0, 100, rows).astype(np.float32),
        "count": rng.integers(0, 60_000, rows).astype(np.uint16),
        "active": rng.random(rows) < 0.5,
    }


class Widened(hl.Model):
    """Sums that would overflow int8, uint8 and float32."""

    def age_twice(self, t):
        return self.data["age"] * 2 + self.data["units"]

    def negative(self, t):
        return t - self.data["count"]

    def premium(self, t):
        return self.data.premium * 1.1 + 1e6

    def active(self, t):
        return self.data.active * self.data.premium


@VALUES.entry(Widened, narrow_columns, proj_len=2)
def widened_columns(d: Columns, a: Any, n: int) -> Ledger:
    out = Ledger()
    premium = d["premium"].astype(np.float64)
    age, units = d["age"].astype(np.int64), d["units"].astype(np.int64)
    for t in range(n + 1):
        out.at("age_twice", (t,), total(age * 2 + units))
        out.at("negative", (t,), total(t - d["count"].astype(np.int64)))
        out.at("premium", (t,), total(premium * 1.1 + 1e6))
        out.at("active", (t,), total(d["active"] * premium))
    return out


class Piecewise(hl.Model):
    """select, choose, clip, round, nan_to_num, isclose, isin and friends."""

    def select(self, t):
        age = self.data["age"] + t
        conditions = [age < 30, age < 50, self.data["smoker"]]
        return np.select(conditions, [age * 1.0, age * 2.0, self.data["premium"]], default=-1.0)

    def choose(self, t):
        third = self.data["duration_mth"] % 3
        return np.choose(third, [self.data["premium"], self.data["sum_assured"], t * 1.0])

    def clip(self, t):
        return np.clip(self.data["premium"] * (1 + t), 50.0, 300.0) + self.data["age"].clip(30, 40)

    def clip_by_row(self, t):
        return np.clip(self.data["premium"], None, self.data["age"] * 4.0)

    def rounded(self, t):
        return np.round(self.data["premium"] * 1.07**t, 1) + (self.data["premium"] / 7).round(2)

    def mended(self, t):
        ratio = np.log(np.maximum(self.data["age"] - 30.0, 1e-300)) / 3
        return np.nan_to_num(np.where(ratio < -1, np.nan, ratio), nan=0.25)

    def close(self, t):
        return np.isclose(self.data["premium"], 100.0 + t, rtol=0.1)

    def chosen_terms(self, t):
        return np.isin(self.data["term"], [10, 20, 99]) * self.data["premium"]

    def functions(self, t):
        x = self.data["premium"]
        return np.exp(-x / 100) + np.log1p(x) * np.sqrt(x) - np.abs(x - 200) + np.hypot(x, t)

    def powers(self, t):
        return np.power(self.data["premium"], 0.5) + self.data["age"] ** 2 - 2.0 ** (-t)

    def divided(self, t):
        whole, rest = np.divmod(self.data["duration_mth"] + t, 12)
        return whole * 100 + rest

    def guarded(self, t):
        below = np.minimum(self.data["age"] - 40, 0)
        return np.where(below == 0, 0.0, self.data["premium"] / np.where(below == 0, 1, below))

    def signs(self, t):
        x = self.data["premium"] - 150.0
        return np.sign(x) * np.floor(np.abs(x)) + np.ceil(x) + np.rint(x) - np.trunc(x)

    def extremes(self, t):
        return np.maximum(self.data["premium"], t * 50) - np.fmin(self.data["premium"], 60.0)

    def mixed_where(self, t):
        return np.where(self.data["smoker"], 2, self.data["premium"])


@VALUES.entry(Piecewise, policies, proj_len=3)
def piecewise_functions(d: Columns, a: Any, n: int) -> Ledger:
    out = Ledger()
    x, age, smoker = d["premium"], d["age"], d["smoker"]
    third = d["duration_mth"] % 3
    safe = np.where(age >= 40, 1, age - 40)
    y = x - 150.0
    for t in range(n + 1):
        at = age + t
        inner = np.where(at < 50, at * 2.0, np.where(smoker, x, -1.0))
        out.at("select", (t,), total(np.where(at < 30, at * 1.0, inner)))
        chosen = np.where(third == 0, x, np.where(third == 1, d["sum_assured"], t * 1.0))
        out.at("choose", (t,), total(chosen))
        money = np.minimum(np.maximum(x * (1 + t), 50.0), 300.0)
        out.at("clip", (t,), total(money + np.minimum(np.maximum(age, 30), 40)))
        out.at("clip_by_row", (t,), total(np.minimum(x, age * 4.0)))
        out.at("rounded", (t,), total(np.round(x * 1.07**t, 1) + np.round(x / 7, 2)))
        logs = np.log(np.maximum(age - 30.0, 1e-300)) / 3
        out.at("mended", (t,), total(np.where(logs < -1, 0.25, logs)))
        gap = np.abs(x - (100.0 + t)) <= 1e-8 + 0.1 * (100.0 + t)
        out.at("close", (t,), total(gap))
        out.at("chosen_terms", (t,), total(np.where(d["term"] == 15, 0.0, x)))
        parts = [np.exp(-x / 100), np.log1p(x) * np.sqrt(x), -np.abs(x - 200), np.hypot(x, t)]
        out.at("functions", (t,), total(np.stack(parts)))
        out.at("powers", (t,), total(x**0.5 + age**2 - 2.0 ** (-t)))
        months = d["duration_mth"] + t
        out.at("divided", (t,), total(months // 12 * 100 + months % 12))
        out.at("guarded", (t,), total(np.where(age >= 40, 0.0, x / safe)))
        signs = np.sign(y) * np.floor(np.abs(y)) + np.ceil(y) + np.rint(y) - np.trunc(y)
        out.at("signs", (t,), total(signs))
        out.at("extremes", (t,), total(np.stack([np.maximum(x, t * 50), -np.minimum(x, 60.0)])))
        out.at("mixed_where", (t,), total(np.where(smoker, 2.0, x)))
    return out


class SharedTables(hl.Model):
    """Gathers in arrays that all policies share."""

    def interpolated(self, t):
        return np.interp(self.data["age"] + 0.5, self.ages, self.heights)

    def place(self, t):
        return np.searchsorted(self.limits, self.data["premium"] * (t + 1))

    def place_right(self, t):
        return np.searchsorted(self.limits, self.data["premium"], side="right") + t

    def bucket(self, t):
        return np.digitize(self.data["premium"], self.limits) * 1.0

    def taken(self, t):
        return np.take(self.rates, self.data["age"] // 10) * self.data["premium"]

    def indexed(self, t):
        return self.rates[self.data["age"] // 10] + self.rates[t]

    def looked_up(self, t):
        column = np.minimum(self.data["duration_mth"] // 12 + t, 2)
        return hl.lookup(self.grid, self.data["age"] - 20, column)

    def looked_up_shared(self, t):
        return hl.lookup(self.grid, 5, t) + self.grid[6, t] * self.data["premium"]

    def indexed_grid(self, t):
        return self.grid[self.data["age"] - 20, t]


def shared_tables() -> dict[str, Any]:
    rng = np.random.default_rng(11)
    return {
        "ages": np.array([15.0, 25.0, 40.0, 55.0, 70.0]),
        "heights": np.array([0.001, 0.003, 0.004, 0.01, 0.05]),
        "rates": np.array([0.001, 0.003, 0.004, 0.01, 0.05, 0.09]),
        "limits": np.array([25.0, 100.0, 200.0, 390.0]),
        "grid": rng.uniform(0.0, 1.0, (40, 3)),
    }


@VALUES.entry(SharedTables, policies, assumptions=shared_tables, proj_len=2)
def shared_table_gathers(d: Columns, a: Any, n: int) -> Ledger:
    out = Ledger()
    x, age = d["premium"], d["age"]
    for t in range(n + 1):
        line = np.array([_interpolate(v + 0.5, a.ages, a.heights) for v in age.tolist()])
        out.at("interpolated", (t,), total(line))
        scaled = x * (t + 1)
        out.at("place", (t,), total((scaled[:, None] > a.limits).sum(axis=1)))
        right = (x[:, None] >= a.limits).sum(axis=1)
        out.at("place_right", (t,), total(right + t))
        out.at("bucket", (t,), total(right * 1.0))
        by_decade = np.array([a.rates[v // 10] for v in age.tolist()])
        out.at("taken", (t,), total(by_decade * x))
        out.at("indexed", (t,), total(by_decade + a.rates[t]))
        column = np.minimum(d["duration_mth"] // 12 + t, 2)
        pairs = zip(age.tolist(), column.tolist(), strict=True)
        out.at("looked_up", (t,), total(np.array([a.grid[i - 20][j] for i, j in pairs])))
        out.at("looked_up_shared", (t,), total(a.grid[5, t] + a.grid[6, t] * x))
        out.at("indexed_grid", (t,), total(np.array([a.grid[i - 20][t] for i in age.tolist()])))
    return out


def _interpolate(x: float, xp: np.ndarray, fp: np.ndarray) -> float:
    """Interpolate one value by hand."""
    k = int(np.searchsorted(xp, x, side="right")) - 1
    if k >= len(xp) - 1:
        return float(fp[-1])
    slope = (fp[k + 1] - fp[k]) / (xp[k + 1] - xp[k])
    return float(slope * (x - xp[k]) + fp[k])


class StackAndMatmul(hl.Model):
    """Other axes: stack, columns, matmul with a shared right side."""

    @hl.agg(None)
    def features(self, t):
        return np.stack([self.data["premium"], self.data["age"] * 1.0, self.bump(t)], axis=1)

    @hl.agg(None)
    def bump(self, t):
        return self.data["premium"] * 0.01 * t

    def scores(self, t):
        return self.features(t) @ self.weights

    @hl.agg(hl.Sum(axis=0))
    def scores_by_column(self, t):
        return np.matmul(self.features(t), self.weights)

    def score(self, t):
        return self.features(t) @ self.weights[:, 0]

    def largest(self, t):
        return self.features(t).max(axis=1)

    def middle(self, t):
        return self.features(t)[:, 1] - self.features(t)[..., 2]

    def row_sums(self, t):
        return np.sum(self.features(t) * np.array([1.0, -1.0, 2.0]), axis=1)

    def kept(self, t):
        return (self.features(t) - self.features(t).mean(axis=1, keepdims=True)) ** 2

    def best(self, t):
        return np.argmax(self.features(t), axis=1)

    def last_axis(self, t):
        both = np.stack((self.features(t), self.features(t) * 2), axis=-1)
        return both[:, 1, :].sum(axis=-1)


def weights() -> dict[str, Any]:
    return {"weights": np.array([[0.5, 1.0], [-2.0, 0.25], [1.5, 3.0]])}


@VALUES.entry(StackAndMatmul, policies, assumptions=weights, proj_len=3)
def stack_and_matmul(d: Columns, a: Any, n: int) -> Ledger:
    out = Ledger()
    x, age, w = d["premium"], d["age"] * 1.0, a.weights
    for t in range(n + 1):
        bump = x * 0.01 * t
        terms = [np.stack([x * w[0, k], age * w[1, k], bump * w[2, k]]) for k in (0, 1)]
        both = [total(k) for k in terms]
        out.at("scores", (t,), both[0] + both[1])
        out.at("score", (t,), both[0])
        by_column = Amount(np.array([k.value for k in both]), np.array([k.size for k in both]))
        out.at("scores_by_column", (t,), by_column)
        out.at("largest", (t,), total(np.maximum(np.maximum(x, age), bump)))
        out.at("middle", (t,), total(np.stack([age, -bump])))
        out.at("row_sums", (t,), total(np.stack([x, -age, bump * 2.0])))
        centre = (x + age + bump) / 3
        deviations = np.stack([(part - centre) ** 2 for part in (x, age, bump)])
        size = float(np.sum(x**2 + age**2 + bump**2))
        out.at("kept", (t,), Amount(total(deviations).value, size))
        best = np.where(age > x, np.where(bump > age, 2, 1), np.where(bump > x, 2, 0))
        out.at("best", (t,), total(best))
        out.at("last_axis", (t,), total(age * 3))
    return out


class Zeros(hl.Model):
    """Constants with one entry per row."""

    def start(self, t):
        if t == 0:
            return np.zeros(len(self.data))
        return self.start(t - 1) + self.data["premium"]

    def ones(self, t):
        return np.ones(len(self.data)) * (t + 1)

    def filled(self, t):
        return np.full(len(self.data), 0.25) * self.data["age"]

    def like(self, t):
        return np.zeros_like(self.data["premium"]) + np.ones_like(self.data["age"])

    def by_shape(self, t):
        return np.full(self.data["premium"].shape, 2.0) + np.full_like(self.data["premium"], t)

    def two_axes(self, t):
        return np.zeros((len(self.data), 3)) + self.data["premium"][:, None]

    def tiled_rates(self, t):
        return np.tile([0.5, 1.0, 2.5], (len(self.data), 1)) * self.data["premium"][:, None]

    def repeated(self, t):
        return np.repeat(t + 0.5, len(self.data)) + np.zeros(np.shape(self.data["premium"]))

    def broadcast(self, t):
        return np.where(self.data["smoker"], np.zeros(len(self.data)), 1.0)


@VALUES.entry(Zeros, policies, proj_len=4)
def zeros(d: Columns, a: Any, n: int) -> Ledger:
    out = Ledger()
    x = d["premium"]
    running = np.zeros(len(x))
    for t in range(n + 1):
        out.at("start", (t,), total(running))
        out.at("ones", (t,), total(np.full(len(x), t + 1.0)))
        out.at("filled", (t,), total(0.25 * d["age"]))
        out.at("like", (t,), exact(float(len(x))))
        out.at("by_shape", (t,), total(np.full(len(x), 2.0 + t)))
        out.at("two_axes", (t,), total(np.stack([x] * 3)))
        out.at("tiled_rates", (t,), total(np.stack([x * 0.5, x, x * 2.5])))
        out.at("repeated", (t,), total(np.full(len(x), t + 0.5)))
        out.at("broadcast", (t,), total(np.where(d["smoker"], 0.0, 1.0)))
        running = running + x
    return out


class TableLookups(hl.Model):
    """Every kind of table key: int, int_bound, int_cat, str, band."""

    def mortality(self, t):
        duration = (self.data["duration_mth"] + t) // 2
        return self.mort[self.data["age"], duration, self.data["sex"]]

    def deferred(self, t):
        return self.period_table[self.deferral()] * self.data["premium"]

    @hl.agg(None)
    def deferral(self):
        codes = self.data["duration_mth"] % 5
        return np.select([codes == 0, codes == 1, codes == 2, codes == 3], [1, 4, 13, 26], 52)

    def discount(self, t):
        return self.bands[self.data["sum_assured"]] * self.data["premium"]

    def band_edges(self, t):
        return self.bands[np.round(self.data["sum_assured"], -5) + 100_000.0]

    def whole_floats(self, t):
        return self.points[self.data["age"] * 1.0 + t]

    def spot(self, t):
        return self.points[20 + t] + self.mort[30, 99, "M"]

    def mixed(self, t):
        return self.mort[self.data["age"], t, "F"] * 1000 - self.mort[25, t, self.data["sex"]]

    def by_code(self, t):
        return self.codes[self.data["product"]]


def mortality_rate(age: int, duration: int, sex: str) -> float:
    """Rate of the test table, by formula."""
    return 0.0001 * age + 0.001 * min(max(duration, 0), 5) + (0.01 if sex == "M" else 0.002)


PERIODS = {1: 0.1, 4: 0.2, 13: 0.4, 26: 0.7, 52: 1.1}
BANDS = {100_000.0: 1.0, 300_000.0: 0.9, 500_000.0: 0.8, 1_100_000.0: 0.7}
CODES = {"TERM": 3, "WHOLE": 1, "ENDOW": 4, "UL": 5, "GROUP": 9}


def tables() -> dict[str, Any]:
    keys = [(g, u, s) for g in range(20, 60) for u in range(6) for s in ("M", "F")]
    mort = pd.DataFrame(keys, columns=["age|int", "duration|int_bound", "sex|str"])
    mort["rate"] = [mortality_rate(*key) for key in keys]
    return {
        "mort": hl.Table(mort.sample(frac=1.0, random_state=1)),
        "period_table": hl.Table(
            pd.DataFrame({"weeks|int_cat": list(PERIODS), "factor": list(PERIODS.values())})
        ),
        "bands": hl.Table(pd.DataFrame({"sum|band": list(BANDS), "factor": list(BANDS.values())})),
        "points": hl.Table(
            pd.DataFrame({"age|int": np.arange(10, 80), "value": np.arange(10, 80) ** 2})
        ),
        "codes": hl.Table(pd.DataFrame({"kind|str": list(CODES), "code": list(CODES.values())})),
    }


@VALUES.entry(TableLookups, policies, assumptions=tables, proj_len=4)
def table_lookups(d: Columns, a: Any, n: int) -> Ledger:
    out = Ledger()
    ages, sexes = d["age"].tolist(), d["sex"].tolist()
    months = d["duration_mth"].tolist()
    weeks = [(1, 4, 13, 26, 52)[m % 5] for m in months]
    factors = np.array([PERIODS[w] for w in weeks])
    bands = np.array([_band(s) for s in d["sum_assured"].tolist()])
    edges = np.array([_band(s) for s in (np.round(d["sum_assured"], -5) + 1e5).tolist()])
    for t in range(n + 1):
        keys = zip(ages, months, sexes, strict=True)
        rates = np.array([mortality_rate(g, (m + t) // 2, s) for g, m, s in keys])
        out.at("mortality", (t,), total(rates))
        out.at("deferred", (t,), total(factors * d["premium"]))
        out.at("discount", (t,), total(bands * d["premium"]))
        out.at("band_edges", (t,), total(edges))
        out.at("whole_floats", (t,), total((d["age"] + t) ** 2))
        spot = (20 + t) ** 2 + mortality_rate(30, 5, "M")
        out.at("spot", (t,), near(spot))
        left = np.array([mortality_rate(g, t, "F") for g in ages]) * 1000
        rows = np.array([mortality_rate(25, t, s) for s in sexes])
        out.at("mixed", (t,), total(np.stack([left, -rows])))
        out.at("by_code", (t,), total(np.array([CODES[p] for p in d["product"].tolist()])))
    return out


def _band(value: float) -> float:
    """Take the factor of the lowest bound that is not below the value."""
    return BANDS[min(bound for bound in BANDS if value <= bound)]


class DeclaredPerPoint(hl.Model):
    """Opaque formulas that say that they work row by row."""

    @hl.per_point
    def vectorised(self, t):
        return np.vectorize(lambda age: float(age + t) if age > 40 else 0.5)(self.data["age"])

    @hl.per_point
    def by_pandas(self, t):
        series = pd.Series(np.asarray(self.data["premium"])) * (t + 1)
        return series.clip(lower=100.0).map(lambda x: round(x, 1)).to_numpy()

    @hl.per_point
    def by_loop(self, t):
        out = np.zeros(len(self.data))
        for i, (age, premium) in enumerate(
            zip(self.data["age"], self.data["premium"], strict=True)
        ):
            out[i] = premium * 2 if age + t > 50 else premium
        return out

    @hl.per_point
    def by_frame(self, t):
        frame = self.data.frame()
        frame["kept"] = frame["premium"].where(frame["sex"] == "M", 0.0)
        return frame["kept"].to_numpy() + t

    def downstream(self, t):
        return self.by_loop(t) - self.vectorised(t) * 0.5


@VALUES.entry(DeclaredPerPoint, policies, proj_len=2, rows=1_500, declared=True)
def declared_per_point(d: Columns, a: Any, n: int) -> Ledger:
    out = Ledger()
    x, age = d["premium"], d["age"]
    for t in range(n + 1):
        vectorised = np.where(age > 40, age + float(t), 0.5)
        looped = np.where(age + t > 50, x * 2, x)
        clipped = [round(v, 1) for v in np.maximum(x * (t + 1), 100.0).tolist()]
        out.at("vectorised", (t,), total(vectorised))
        out.at("by_pandas", (t,), total(np.array(clipped)))
        out.at("by_loop", (t,), total(looped))
        out.at("by_frame", (t,), total(np.where(d["sex"] == "M", x, 0.0) + t))
        out.at("downstream", (t,), total(np.stack([looped, -vectorised * 0.5])))
    return out


def columns_with_nan(rng: np.random.Generator, rows: int) -> Columns:
    """Policies, one tenth of the premiums NaN."""
    columns = policies(rng, rows)
    columns["premium"] = np.where(rng.random(rows) < 0.1, np.nan, columns["premium"])
    return columns


class NotANumber(hl.Model):
    """NaN is a value: it goes through, and can be met by the usual means."""

    def premium(self, t):
        return self.data["premium"] * (t + 1)

    def mended(self, t):
        return np.nan_to_num(self.data["premium"], nan=1.5)

    def missing(self, t):
        return np.isnan(self.data["premium"])

    def filled(self, t):
        return np.where(np.isnan(self.data["premium"]), self.data["age"], self.data["premium"])

    def known(self, t):
        return np.nansum(self.data["premium"])

    def known_mean(self, t):
        return np.nanmean(self.data["premium"])

    def known_most(self, t):
        return np.nanmax(self.data["premium"]) - np.nanmin(self.data["premium"])

    @hl.agg(np.max)
    def most(self, t):
        return self.data["premium"]


@VALUES.entry(NotANumber, columns_with_nan, proj_len=2)
def not_a_number(d: Columns, a: Any, n: int) -> Ledger:
    out = Ledger()
    x = d["premium"]
    missing = x != x
    known = x[~missing]
    for t in range(n + 1):
        out.at("premium", (t,), exact(float("nan")))
        out.at("most", (t,), exact(float("nan")))
        out.at("mended", (t,), total(np.where(missing, 1.5, x)))
        out.at("missing", (t,), exact(int(missing.sum())))
        out.at("filled", (t,), total(np.where(missing, d["age"], x)))
        out.at("known", (t,), total(known))
        out.at("known_mean", (t,), mean(known))
        out.at("known_most", (t,), exact(float(known.max() - known.min())))
    return out


def monthly(rate: Any) -> Any:
    """Convert a yearly rate; a module function that formulas call."""
    return 1 - np.power(1 - rate, 1 / 12)


class Shared(hl.Model):
    """Values that do not depend on the rows are reported as they are."""

    def BeforeRun(self):
        self.spot = 0.01 + 0.001 * np.arange(20)

    def discount(self, t):
        return (1 + self.spot[t]) ** -t

    def step(self, t):
        return t // 2

    def switched(self, t):
        return t % 2 == 0

    @hl.agg(hl.Sum(axis=0))
    def curve(self):
        return self.spot * 2

    def rate_mth(self, t):
        return monthly(0.02 + 0.001 * t)

    def pv(self, t):
        return self.data["premium"] * self.discount(t) * monthly(self.data["age"] / 1000)


@VALUES.entry(Shared, policies, proj_len=6)
def shared_values(d: Columns, a: Any, n: int) -> Ledger:
    out = Ledger()
    spot = 0.01 + 0.001 * np.arange(20)
    out.by_t("discount", [(1 + spot[t]) ** -t for t in range(n + 1)], near)
    out.by_t("step", [t // 2 for t in range(n + 1)], exact)
    out.by_t("switched", [t % 2 == 0 for t in range(n + 1)], exact)
    out.once("curve", near(spot * 2))
    out.by_t("rate_mth", [1 - (1 - (0.02 + 0.001 * t)) ** (1 / 12) for t in range(n + 1)], near)
    rate = 1 - (1 - d["age"] / 1000) ** (1 / 12)
    out.by_t("pv", [d["premium"] * (1 + spot[t]) ** -t * rate for t in range(n + 1)])
    return out
