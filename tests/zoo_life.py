"""Zoo, first hall: projections as actuaries write them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

import hl_dask as hl
from tests.reference import Amount, Columns, Ledger, Zoo, exact, near, policies, total

LIFE = Zoo()


class Decrements(hl.Model):
    """Monthly decrements: the recursion t - 1."""

    def pols_if(self, t):
        if t == 0:
            return self.data["policy_count"]
        return self.pols_if(t - 1) - self.pols_lapse(t - 1) - self.pols_death(t - 1)

    def pols_lapse(self, t):
        return (self.pols_if(t) - self.pols_death(t)) * self.lapse

    def pols_death(self, t):
        return self.pols_if(t) * self.mort_rate_mth(t)

    @hl.agg(None)
    def mort_rate_mth(self, t):
        return 1 - (1 - self.mort_rate(t)) ** (1 / 12)

    @hl.agg(None)
    def mort_rate(self, t):
        return np.minimum(0.0004 * 1.09 ** (self.attained_age(t) - 20), 1.0)

    @hl.agg(None)
    def attained_age(self, t):
        return self.data["age"] + t // 12

    def claims(self, t):
        return self.pols_death(t) * self.data["sum_assured"]


def decrement_rows(d: Columns, n: int, lapse: float) -> tuple[list[Any], list[Any], list[Any]]:
    """Policies in force, lapses and deaths, one array per t."""
    in_force, lapses, deaths = [], [], []
    for t in range(n + 1):
        now = d["policy_count"] if t == 0 else in_force[-1] - lapses[-1] - deaths[-1]
        rate = np.minimum(0.0004 * 1.09 ** (d["age"] + t // 12 - 20), 1.0)
        dying = now * (1 - (1 - rate) ** (1 / 12))
        in_force.append(now)
        deaths.append(dying)
        lapses.append((now - dying) * lapse)
    return in_force, lapses, deaths


@LIFE.entry(Decrements, policies, assumptions=lambda: {"lapse": 0.01}, proj_len=30)
def decrements(d: Columns, a: Any, n: int) -> Ledger:
    in_force, lapses, deaths = decrement_rows(d, n, a.lapse)
    out = Ledger()
    out.by_t("pols_if", in_force)
    out.by_t("pols_lapse", lapses)
    out.by_t("pols_death", deaths)
    out.by_t("claims", [x * d["sum_assured"] for x in deaths])
    return out


class Timing(hl.Model):
    """Decrements by timing: several arguments, some by keyword, one by default."""

    def pols_if(self, t):
        return self.pols_if_at(t, "BEF_MAT")

    def pols_if_at(self, t, timing="BEF_MAT"):
        if timing == "BEF_MAT":
            if t == 0:
                return self.data["policy_count"]
            return (
                self.pols_if_at(t - 1, timing="BEF_DECR")
                - self.pols_death(t - 1)
                - self.pols_lapse(t - 1)
            )
        if timing == "BEF_NB":
            return self.pols_if_at(t) - self.pols_maturity(t)
        if timing == "BEF_DECR":
            return self.pols_if_at(timing="BEF_NB", t=t) + self.pols_new(t)
        raise ValueError(timing)

    def pols_maturity(self, t):
        matures = self.data["duration_mth"] + t == 12 * self.data["term"] - 200
        return matures * self.pols_if_at(t, "BEF_MAT")

    def pols_new(self, t):
        return np.where(self.data["duration_mth"] == t, 1.0, 0.0)

    def pols_death(self, t):
        return self.pols_if_at(t, "BEF_DECR") * 0.002

    def pols_lapse(self, t):
        return (self.pols_if_at(t, "BEF_DECR") - self.pols_death(t)) * 0.01


@LIFE.entry(Timing, policies, proj_len=40)
def timing(d: Columns, a: Any, n: int) -> Ledger:
    out = Ledger()
    columns: dict[str, list[Any]] = {"pols_if": [], "pols_maturity": [], "pols_new": []}
    columns |= {"pols_death": [], "pols_lapse": []}
    now = d["policy_count"]
    for t in range(n + 1):
        maturity = (d["duration_mth"] + t == 12 * d["term"] - 200) * now
        new = np.where(d["duration_mth"] == t, 1.0, 0.0)
        before_decrements = now - maturity + new
        death = before_decrements * 0.002
        lapse = (before_decrements - death) * 0.01
        for name, rows in zip(columns, (now, maturity, new, death, lapse), strict=True):
            columns[name].append(rows)
        out.at("pols_if_at", (t, "BEF_MAT"), total(now))
        out.at("pols_if_at", (t, "BEF_NB"), total(now - maturity))
        out.at("pols_if_at", (t, "BEF_DECR"), total(before_decrements))
        now = before_decrements - death - lapse
    for name, rows in columns.items():
        out.by_t(name, rows)
    return out


class TwoStepsBack(hl.Model):
    """A recursion that reads t - 1 and t - 2."""

    def trend(self, t):
        if t == 0:
            return self.data["premium"]
        if t == 1:
            return self.data["premium"] * 1.01
        return 1.4 * self.trend(t - 1) - 0.5 * self.trend(t - 2)

    def change(self, t):
        return self.trend(t) - self.trend(t - 2) if t >= 2 else np.zeros(len(self.data))


@LIFE.entry(TwoStepsBack, policies, proj_len=20)
def two_steps_back(d: Columns, a: Any, n: int) -> Ledger:
    trend = [d["premium"], d["premium"] * 1.01]
    for t in range(2, n + 1):
        trend.append(1.4 * trend[t - 1] - 0.5 * trend[t - 2])
    out = Ledger()
    out.by_t("trend", trend)
    zeros = np.zeros(len(d["premium"]))
    out.by_t("change", [zeros, zeros] + [trend[t] - trend[t - 2] for t in range(2, n + 1)])
    return out


class Reserve(hl.Model):
    """Backward recursion: reserve(t) from reserve(t + 1), then forward on the reserves."""

    def reserve(self, t):
        if t == self.last:
            return self.maturity_benefit()
        return (self.reserve(t + 1) + self.claims(t + 1)) / (1 + self.rate) - self.premium(t)

    @hl.agg(None)
    def maturity_benefit(self):
        return self.data["sum_assured"] * (self.data["product"] == "ENDOW")

    def premium(self, t):
        return self.data["premium"] * 1.001**t

    def claims(self, t):
        return self.data["sum_assured"] * 0.0003 * (1 + 0.01 * t)

    def strain(self, t):
        if t == 0:
            return self.reserve(0)
        return self.reserve(t) - self.reserve(t - 1) * (1 + self.rate)

    def surplus(self, t):
        if t == 0:
            return -self.strain(0)
        return self.surplus(t - 1) * (1 + self.rate) - self.strain(t)


@LIFE.entry(Reserve, policies, assumptions=lambda: {"last": 24, "rate": 0.002}, proj_len=24)
def backward_reserve(d: Columns, a: Any, n: int) -> Ledger:
    premium = [d["premium"] * 1.001**t for t in range(n + 1)]
    claims = [d["sum_assured"] * 0.0003 * (1 + 0.01 * t) for t in range(n + 1)]
    reserve = [d["sum_assured"] * (d["product"] == "ENDOW")] * (n + 1)
    for t in range(n - 1, -1, -1):
        reserve[t] = (reserve[t + 1] + claims[t + 1]) / (1 + a.rate) - premium[t]
    strain = [reserve[0]]
    surplus = [-reserve[0]]
    for t in range(1, n + 1):
        strain.append(reserve[t] - reserve[t - 1] * (1 + a.rate))
        surplus.append(surplus[-1] * (1 + a.rate) - strain[t])
    out = Ledger()
    for name, rows in (("reserve", reserve), ("premium", premium), ("claims", claims)):
        out.by_t(name, rows)
    out.by_t("strain", strain)
    out.by_t("surplus", surplus)
    return out


class PresentValues(hl.Model):
    """Formulas without arguments, running totals, backward and forward present values."""

    def BeforeRun(self):
        self.discount = (1 + self.rate) ** -np.arange(self.months + 1)

    def net_cf(self, t):
        return self.data["premium"] * 0.99**t - self.data["sum_assured"] * 0.0004

    def pv_forward(self):
        return sum(self.net_cf(t) * self.discount[t] for t in range(self.months + 1))

    def pv_backward(self):
        return self.pv_from(0)

    @hl.agg(None)
    def pv_from(self, t):
        if t > self.months:
            return np.zeros(len(self.data))
        return self.net_cf(t) + self.pv_from(t + 1) / (1 + self.rate)

    def cumulative(self, t):
        return sum(self.net_cf(s) for s in range(t + 1))

    def still_to_come(self, t):
        return sum((self.net_cf(s) for s in range(t, self.months + 1)), start=0.0)

    def months_run(self):
        return self.months

    def annuity_factor(self):
        return float(self.discount.sum())


@LIFE.entry(PresentValues, policies, assumptions=lambda: {"rate": 0.004, "months": 18}, proj_len=18)
def present_values(d: Columns, a: Any, n: int) -> Ledger:
    cash = [d["premium"] * 0.99**t - d["sum_assured"] * 0.0004 for t in range(n + 1)]
    discount = (1 + a.rate) ** -np.arange(n + 1)
    out = Ledger()
    out.by_t("net_cf", cash)
    forward = np.stack([x * v for x, v in zip(cash, discount, strict=True)])
    size = float(np.abs(forward).sum())
    out.once("pv_forward", Amount(total(forward).value, size))
    backward = np.zeros(len(d["premium"]))
    for t in range(n, -1, -1):
        backward = cash[t] + backward / (1 + a.rate)
    out.once("pv_backward", Amount(total(backward).value, size))
    stacked = np.stack(cash)
    out.by_t("cumulative", [stacked[: t + 1] for t in range(n + 1)])
    out.by_t("still_to_come", [stacked[t:] for t in range(n + 1)])
    out.once("months_run", exact(a.months))
    out.once("annuity_factor", near(float(discount.sum())))
    return out


class LongestTerm(hl.Model):
    """The longest term of the portfolio is an output and controls a loop."""

    @hl.agg(None)
    def proj_len(self):
        return 2 * self.data["term"] - self.data["duration_mth"] // 4

    def longest(self):
        return self.proj_len().max()

    def shortest(self):
        return np.min(self.proj_len())

    def premium(self, t):
        return np.where(t < self.proj_len(), self.data["premium"], 0.0)

    def pv_premium(self):
        months = range(int(self.proj_len().max()))
        return sum(self.premium(t) * 1.003**-t for t in months)

    def annuity_months(self):
        return sum(1.003**-t for t in range(np.max(self.proj_len())))

    def last_rate(self):
        return self.rates[self.proj_len().max() - 1]


@LIFE.entry(
    LongestTerm, policies, assumptions=lambda: {"rates": np.linspace(0.0, 1.0, 50)}, proj_len=6
)
def longest_term(d: Columns, a: Any, n: int) -> Ledger:
    proj_len = 2 * d["term"] - d["duration_mth"] // 4
    premium = [np.where(t < proj_len, d["premium"], 0.0) for t in range(proj_len.max())]
    out = Ledger()
    out.once("longest", exact(int(proj_len.max())))
    out.once("shortest", exact(int(proj_len.min())))
    out.once("annuity_months", near(sum(1.003**-t for t in range(int(proj_len.max())))))
    out.once("last_rate", near(a.rates[proj_len.max() - 1]))
    out.by_t("premium", premium[: n + 1])
    out.once("pv_premium", total(np.stack([p * 1.003**-t for t, p in enumerate(premium)])))
    return out


class Dividend(hl.Model):
    """``max(0, total)`` in Python, in NumPy, and as an if."""

    @hl.agg(None)
    def profit(self, t):
        return self.data["premium"] * (1 + t) - self.data["sum_assured"] * 0.0013

    def total(self, t):
        return self.profit(t).sum()

    def dividend(self, t):
        return max(0, self.total(t))

    def dividend_np(self, t):
        return np.maximum(self.total(t), 0.0)

    def call_on_capital(self, t):
        if self.total(t) < 0:
            return -self.total(t)
        return 0.0

    def worst_so_far(self, t):
        if t == 0:
            return self.total(0)
        return min(self.worst_so_far(t - 1), self.total(t))

    def rounded(self, t):
        return round(float(self.total(t)), -2)

    def distance(self, t):
        return abs(self.total(t)) ** 1.0 + (-self.total(t))

    def rebate(self, t):
        if self.total(t) > 0 and t > 0:
            return self.data["premium"] * 0.1
        return self.data["premium"] * 0.0


@LIFE.entry(Dividend, policies, proj_len=5)
def dividend(d: Columns, a: Any, n: int) -> Ledger:
    profit = [d["premium"] * (1 + t) - d["sum_assured"] * 0.0013 for t in range(n + 1)]
    sums = [total(x) for x in profit]
    out = Ledger()
    out["total"] = {(t,): s for t, s in enumerate(sums)}
    floored = {(t,): Amount(max(0.0, s.value), s.size) for t, s in enumerate(sums)}
    out["dividend"] = floored
    out["dividend_np"] = floored
    out["call_on_capital"] = {(t,): Amount(max(0.0, -s.value), s.size) for t, s in enumerate(sums)}
    for t in range(n + 1):
        worst = min(sums[: t + 1], key=lambda s: s.value)
        out.at("worst_so_far", (t,), worst)
        out.at("rounded", (t,), near(round(sums[t].value, -2)))
        gap = abs(sums[t].value) - sums[t].value
        out.at("distance", (t,), Amount(gap, 2 * sums[t].size))
    shares = [0.1 if s.value > 0 and t > 0 else 0.0 for t, s in enumerate(sums)]
    out.by_t("rebate", [d["premium"] * share for share in shares])
    return out


class LossRatio(hl.Model):
    """Ratios and differences of portfolio totals; shares of a portfolio total."""

    def claims(self, t):
        return self.data["sum_assured"] * 0.0003 * 1.02**t

    def premium(self, t):
        return self.data["premium"] * 0.98**t

    def loss_ratio(self, t):
        return self.claims(t).sum() / self.premium(t).sum()

    def margin(self, t):
        return np.sum(self.premium(t)) - np.sum(self.claims(t), axis=0)

    def share_of_first(self, t):
        return self.premium(t).sum() / self.premium(0).sum()

    def share_of_smokers(self, t):
        premium = self.premium(t)
        return (premium * self.data["smoker"]).sum() / premium.sum()

    def ratio_of_present_values(self):
        claims = sum(self.claims(t).sum() * 1.01**-t for t in range(4))
        premium = sum(self.premium(t).sum() * 1.01**-t for t in range(4))
        return claims / premium


@LIFE.entry(LossRatio, policies, proj_len=8)
def loss_ratio(d: Columns, a: Any, n: int) -> Ledger:
    claims = [d["sum_assured"] * 0.0003 * 1.02**t for t in range(n + 1)]
    premium = [d["premium"] * 0.98**t for t in range(n + 1)]
    out = Ledger()
    out.by_t("claims", claims)
    out.by_t("premium", premium)
    for t in range(n + 1):
        income = total(premium[t])
        out.at("loss_ratio", (t,), total(claims[t]) / income)
        out.at("margin", (t,), income - total(claims[t]))
        out.at("share_of_first", (t,), income / total(premium[0]))
        out.at("share_of_smokers", (t,), total(premium[t] * d["smoker"]) / income)
    pv_claims = total(np.stack([claims[t] * 1.01**-t for t in range(4)]))
    pv_premium = total(np.stack([premium[t] * 1.01**-t for t in range(4)]))
    out.once("ratio_of_present_values", pv_claims / pv_premium)
    return out


class Product(hl.Model):
    """Base of a small family."""

    def in_force(self, t):
        if t == 0:
            return self.data["policy_count"]
        return self.in_force(t - 1) * self.persistency(t)

    def persistency(self, t):
        return 0.99

    def benefit(self, t):
        return self.in_force(t) * self.data["sum_assured"] * 0.001

    @hl.agg(None)
    def expense(self, t):
        return self.in_force(t) * 5.0

    def outgo(self, t):
        return self.benefit(t) + self.expense(t)


class Indexation:
    """Mixin that is no model itself, with a formula and a plain attribute."""

    index_rate = 0.02

    def index(self, t):
        return (1 + self.index_rate) ** t


class IndexedProduct(Indexation, Product):
    """Overrides with ``super()``, changes an aggregate, takes a formula from the mixin."""

    def persistency(self, t):
        return 0.98 - 0.1 * self.data["smoker"] * super().persistency(t)

    def benefit(self, t):
        return super().benefit(t) * self.index(t)

    @hl.agg(np.mean)
    def expense(self, t):
        return super().expense(t) + 1.0


@LIFE.entry(IndexedProduct, policies)
def inheritance(d: Columns, a: Any, n: int) -> Ledger:
    persistency = 0.98 - 0.1 * d["smoker"] * 0.99
    in_force = [d["policy_count"]]
    for _ in range(n):
        in_force.append(in_force[-1] * persistency)
    benefit = [x * d["sum_assured"] * 0.001 * 1.02**t for t, x in enumerate(in_force)]
    expense = [x * 5.0 + 1.0 for x in in_force]
    out = Ledger()
    out.by_t("in_force", in_force)
    out.by_t("persistency", [persistency] * (n + 1))
    out.by_t("benefit", benefit)
    out.by_t("expense", expense, lambda x: total(x) * (1.0 / len(x)))
    out.by_t("index", [1.02**t for t in range(n + 1)], near)
    out.by_t("outgo", [b + e for b, e in zip(benefit, expense, strict=True)])
    return out


class Lambdas(hl.Model):
    """Two formulas that share the name ``<lambda>``."""

    income = lambda self, t: self.data["premium"] * (t + 1)  # noqa: E731
    outgo = lambda self, t: self.data["sum_assured"] * 0.001 * self.trend(t)  # noqa: E731
    trend = lambda self, t: 1.0 if t == 0 else self.trend(t - 1) * 1.05  # noqa: E731

    def surplus(self, t):
        return self.income(t) - self.outgo(t)


@LIFE.entry(Lambdas, policies)
def lambdas(d: Columns, a: Any, n: int) -> Ledger:
    trend = [1.0]
    for _ in range(n):
        trend.append(trend[-1] * 1.05)
    income = [d["premium"] * (t + 1) for t in range(n + 1)]
    outgo = [d["sum_assured"] * 0.001 * trend[t] for t in range(n + 1)]
    out = Ledger()
    out.by_t("trend", trend, near)
    out.by_t("income", income)
    out.by_t("outgo", outgo)
    out.by_t("surplus", [i - o for i, o in zip(income, outgo, strict=True)])
    return out


class Keywords(hl.Model):
    """Defaults, keyword-only arguments, calls spelt in different ways."""

    @hl.agg(None)
    def factor(self, t, rate=0.03, *, scale=1.0):
        return scale * (1 + rate) ** -t

    def claims(self, t):
        return self.data["sum_assured"] * 0.001 * self.factor(t)

    def claims_stressed(self, t):
        return self.data["sum_assured"] * 0.001 * self.factor(t=t, scale=1.2, rate=0.01)

    def claims_defaulted(self, t):
        return self.data["sum_assured"] * 0.001 * self.factor(t, 0.03, scale=1.0)

    def claims_by_cause(self, t, cause, share=0.5):
        return self.claims(t) * (share if cause == "accident" else 1 - share)

    def accident_claims(self, t):
        return self.claims_by_cause(t, cause="accident", share=0.25)

    def illness_claims(self, t):
        return self.claims_by_cause(t, "illness")


@LIFE.entry(Keywords, policies, proj_len=7)
def keyword_arguments(d: Columns, a: Any, n: int) -> Ledger:
    sums = d["sum_assured"] * 0.001
    out = Ledger()
    plain = [sums * 1.03**-t for t in range(n + 1)]
    out.by_t("claims", plain)
    out.by_t("claims_defaulted", plain)
    out.by_t("claims_stressed", [sums * (1.2 * 1.01**-t) for t in range(n + 1)])
    out.by_t("accident_claims", [x * 0.25 for x in plain])
    out.by_t("illness_claims", [x * 0.5 for x in plain])
    for t in range(n + 1):
        out.at("claims_by_cause", (t, "accident", 0.25), total(plain[t] * 0.25))
        out.at("claims_by_cause", (t, "illness", 0.5), total(plain[t] * 0.5))
    return out


class Points:
    """An object of arrays, as heavylight models keep them."""

    def __init__(self, age: np.ndarray, benefit: np.ndarray) -> None:
        self.age = age
        self.benefit = benefit
        self.currency = "EUR"


class DeclaredAttributes(hl.Model):
    """Per-policy inputs that are attributes: an array and an object of arrays."""

    model_points = ("initial_pols_if", "mp")

    def pols_if(self, t):
        if t == 0:
            return self.initial_pols_if
        return self.pols_if(t - 1) * (1 - 0.0005 * 1.1 ** (self.mp.age - 20))

    def benefit(self, t):
        rate = 1.0 if self.mp.currency == "EUR" else 1.1
        return self.pols_if(t) * self.mp.benefit * self.data["smoker"] * rate


def as_attributes(d: Columns) -> tuple[Columns, dict[str, Any]]:
    """Move three columns from the data to attributes."""
    points = Points(d["age"], d["sum_assured"])
    return {"smoker": d["smoker"]}, {"initial_pols_if": d["policy_count"], "mp": points}


@LIFE.entry(DeclaredAttributes, policies, attributes=as_attributes)
def declared_attributes(d: Columns, a: Any, n: int) -> Ledger:
    pols = [d["policy_count"]]
    for _ in range(n):
        pols.append(pols[-1] * (1 - 0.0005 * 1.1 ** (d["age"] - 20)))
    out = Ledger()
    out.by_t("pols_if", pols)
    out.by_t("benefit", [x * d["sum_assured"] * d["smoker"] for x in pols])
    return out


class Assumptions(hl.Model):
    """Rates in every form that an assumption takes, read at execution."""

    def pols_if(self, t):
        if t == 0:
            return self.data["policy_count"]
        decrement = self.lapse + self.mortality[self.data["age"] - 20]
        if self.shock and t > 3:
            decrement = decrement * 2
        return self.pols_if(t - 1) * (1 - decrement)

    def claims(self, t):
        return self.pols_if(t) * self.data["sum_assured"] * self.settings["claim_rate"]

    def fee(self, t):
        return self.pols_if(t) * self.fees[t % 3]

    def loading(self, t):
        return self.pols_if(t) * self.table[self.data["sex"]]

    def bonus(self, t):
        return self.pols_if(t) * self.basis.bonus * self.frame.loc[t, "rate"]

    def charge(self, t):
        return self.pols_if(t) * self.extra if hasattr(self, "extra") else self.pols_if(t)


def assumptions_at_recording() -> dict[str, Any]:
    """Return fresh objects at each call: the change below works in place."""
    return {
        "lapse": 0.01,
        "mortality": np.linspace(0.0005, 0.02, 40),
        "shock": False,
        "settings": {"claim_rate": 0.002},
        "fees": [1.0, 2.0, 3.0],
        "basis": SimpleNamespace(bonus=0.1),
        "frame": pd.DataFrame({"rate": np.linspace(0.0, 1.0, 9)}),
        "table": hl.Table(pd.DataFrame({"sex|str": ["F", "M"], "load": [0.5, 0.75]})),
    }


def change_assumptions(owner: Any) -> None:
    """Assign some, change others in place."""
    owner.lapse = 0.025
    owner.mortality[5] = 0.3
    owner.shock = True
    owner.settings["claim_rate"] = 0.004
    owner.fees[1] = 20.0
    owner.basis.bonus = 0.7
    owner.frame.loc[2:6, "rate"] = 5.0
    owner.extra = 3.0
    owner.table = hl.Table(pd.DataFrame({"sex|str": ["F", "M"], "load": [5.0, 7.5]}))


@LIFE.entry(
    Assumptions,
    policies,
    assumptions=assumptions_at_recording,
    change=change_assumptions,
    proj_len=8,
)
def changed_assumptions(d: Columns, a: Any, n: int) -> Ledger:
    pols = [d["policy_count"]]
    for t in range(1, n + 1):
        decrement = a.lapse + a.mortality[d["age"] - 20]
        pols.append(pols[-1] * (1 - (decrement * 2 if a.shock and t > 3 else decrement)))
    loads = (0.5, 0.75) if a.lapse == 0.01 else (5.0, 7.5)
    loading = np.where(d["sex"] == "F", *loads)
    out = Ledger()
    out.by_t("pols_if", pols)
    out.by_t("claims", [x * d["sum_assured"] * a.settings["claim_rate"] for x in pols])
    out.by_t("fee", [x * a.fees[t % 3] for t, x in enumerate(pols)])
    out.by_t("loading", [x * loading for x in pols])
    rates = a.frame["rate"].to_numpy()
    out.by_t("bonus", [x * a.basis.bonus * rates[t] for t, x in enumerate(pols)])
    out.by_t("charge", [x * getattr(a, "extra", 1.0) for x in pols])
    return out


class FunctionalUpdate(hl.Model):
    """Copies that are changed in place: the NumPy idiom for exceptions."""

    @hl.agg(None)
    def old(self, t):
        return self.data["age"] + t > 50

    def account(self, t):
        if t == 0:
            return self.data["premium"]
        value = self.account(t - 1).copy()
        value[self.old(t)] = 0
        value += self.data["premium"]
        value *= 1.01
        return value

    def capped(self, t):
        value = np.copy(self.account(t))
        value[value > 800.0] = 800.0
        return value

    def built_up(self, t):
        result = 0
        for s in range(t):
            result += self.account(s)
        result = result + self.account(t)
        result -= self.capped(t)
        return result

    def flagged(self, t):
        result = np.zeros_like(self.data["premium"])
        result[self.data["smoker"] & self.old(t)] = 2.5
        return result

    def untouched(self, t):
        return self.account(t)


@LIFE.entry(FunctionalUpdate, policies, proj_len=6)
def functional_update(d: Columns, a: Any, n: int) -> Ledger:
    account = [d["premium"]]
    for t in range(1, n + 1):
        kept = np.where(d["age"] + t > 50, 0.0, account[-1])
        account.append((kept + d["premium"]) * 1.01)
    capped = [np.where(x > 800.0, 800.0, x) for x in account]
    out = Ledger()
    out.by_t("account", account)
    out.by_t("untouched", account)
    out.by_t("capped", capped)
    for t in range(n + 1):
        terms = np.stack([*account[: t + 1], -capped[t]])
        out.at("built_up", (t,), total(terms))
        flags = d["smoker"] & (d["age"] + t > 50)
        out.at("flagged", (t,), total(flags * 2.5))
    return out


class CrossedDirections(hl.Model):
    """Forward and backward recursions that need each other at different times."""

    def fund(self, t):
        if t == 0:
            return self.data["premium"]
        return self.fund(t - 1) * 1.02 - self.charge(t - 1)

    def charge(self, t):
        return self.fund(t) * 0.01 + self.cost(t + 1)

    def cost(self, t):
        if t > 14:
            return self.data["policy_count"] * 0.5
        return self.cost(t + 1) * 0.97 + self.data["premium"] * 0.001

    def guarantee(self, t):
        return np.maximum(self.cost(t) * 100 - self.fund(t), 0)


@LIFE.entry(CrossedDirections, policies, proj_len=10)
def crossed_directions(d: Columns, a: Any, n: int) -> Ledger:
    cost = {15: d["policy_count"] * 0.5}
    for t in range(14, -1, -1):
        cost[t] = cost[t + 1] * 0.97 + d["premium"] * 0.001
    fund, charge = [d["premium"]], []
    for t in range(n + 1):
        charge.append(fund[t] * 0.01 + cost[t + 1])
        fund.append(fund[t] * 1.02 - charge[t])
    out = Ledger()
    out.by_t("fund", fund[: n + 1])
    out.by_t("charge", charge)
    out.by_t("cost", [cost[t] for t in range(n + 1)])
    out.by_t("guarantee", [np.maximum(cost[t] * 100 - fund[t], 0) for t in range(n + 1)])
    return out


class CallableAggregates(hl.Model):
    """Aggregates that are ordinary functions, traced like a formula."""

    @hl.agg(lambda x: x.max() - x.min())
    def spread(self, t):
        return self.data["premium"] * (t + 1)

    @hl.agg(lambda x: (x > 100.0).sum())
    def many(self, t):
        return self.data["premium"] * 1.1**t

    @hl.agg(lambda x: np.sqrt((x * x).sum()))
    def length(self, t):
        return self.data["premium"] - t


@LIFE.entry(CallableAggregates, policies, proj_len=4)
def callable_aggregates(d: Columns, a: Any, n: int) -> Ledger:
    out = Ledger()
    for t in range(n + 1):
        scaled = d["premium"] * (t + 1)
        out.at("spread", (t,), exact(float(scaled.max() - scaled.min())))
        out.at("many", (t,), exact(int((d["premium"] * 1.1**t > 100.0).sum())))
        squares = total((d["premium"] - t) ** 2)
        out.at("length", (t,), near(float(np.sqrt(squares.value))))
    return out


class ChainedBranches(hl.Model):
    """Each step branches on the total that the branches before it made."""

    def account(self, t):
        if t == 0:
            return self.data["premium"]
        if self.account(t - 1).sum() > 500_000.0:
            return self.account(t - 1) * 0.8
        return self.account(t - 1) * 1.1 + t

    def direction(self, t):
        return 1 if t > 0 and self.account(t).sum() > self.account(t - 1).sum() else 0


@LIFE.entry(ChainedBranches, policies, proj_len=10)
def chained_branches(d: Columns, a: Any, n: int) -> Ledger:
    account = [d["premium"]]
    for t in range(1, n + 1):
        before = account[-1]
        account.append(before * 0.8 if before.sum() > 500_000.0 else before * 1.1 + t)
    out = Ledger()
    out.by_t("account", account)
    sums = [x.sum() for x in account]
    out.by_t("direction", [int(t > 0 and sums[t] > sums[t - 1]) for t in range(n + 1)], exact)
    return out


class Several(hl.Model):
    """Formulas that give several arrays at once: tuples, lists and dictionaries."""

    @hl.agg(None)
    def movements(self, t):
        in_force = self.in_force(t)
        deaths = in_force * 0.01
        return deaths, (in_force - deaths) * 0.05

    @hl.agg(None)
    def by_cause(self, t):
        deaths, _ = self.movements(t)
        return {"accident": deaths * 0.2, "illness": deaths * 0.8, "share": 0.2}

    def in_force(self, t):
        if t == 0:
            return self.data["policy_count"]
        deaths, lapses = self.movements(t - 1)
        return self.in_force(t - 1) - deaths - lapses

    def accidents(self, t):
        return self.by_cause(t)["accident"] * self.data["sum_assured"] * self.by_cause(t)["share"]

    def exits(self, t):
        return sum(self.movements(t))


@LIFE.entry(Several, policies, proj_len=6)
def several_values(d: Columns, a: Any, n: int) -> Ledger:
    in_force, accidents, exits = [d["policy_count"]], [], []
    for t in range(n + 1):
        deaths = in_force[t] * 0.01
        lapses = (in_force[t] - deaths) * 0.05
        accidents.append(deaths * 0.2 * d["sum_assured"] * 0.2)
        exits.append(deaths + lapses)
        in_force.append(in_force[t] - deaths - lapses)
    out = Ledger()
    out.by_t("in_force", in_force[: n + 1])
    out.by_t("accidents", accidents)
    out.by_t("exits", exits)
    return out
