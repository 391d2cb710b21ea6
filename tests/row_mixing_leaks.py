"""Leaks of the sample: counts, totals made into Python numbers, state, random draws, branches."""

from __future__ import annotations

import copy
import decimal
import functools
import itertools
import json
import math
import os
import pickle
import random
import struct
import time
import uuid
import warnings
from typing import Any

import numpy as np
import pandas as pd

import hl_dask as hl
from tests.reference import Amount, exact, mean, near, total
from tests.row_mixing_case import Register

LEAKS = Register()
case = LEAKS.case


# --- row counts --------------------------------------------------------------------------------


@case(lambda d, t: total(d["premium"] * (1e6 / len(d["age"]))))
def scaled_by_row_count(self, t):
    return self.data["premium"] * (1e6 / len(self.data))


@case(lambda d, t: total(d["premium"] / len(d["age"])))
def scaled_by_length_of_column(self, t):
    return self.data["premium"] / len(self.data["premium"])


@case(lambda d, t: exact(len(d["age"])))
def row_count_as_output(self, t):
    return len(self.data)


@case(lambda d, t: mean(d["premium"]))
def mean_by_hand(self, t):
    return self.data["premium"].sum() / len(self.data)


@case(lambda d, t: mean(d["premium"]))
def mean_by_size(self, t):
    return np.sum(self.data["premium"]) / np.size(self.data["premium"])


@case(lambda d, t: total(d["premium"] * (2 if len(d["age"]) > 5000 else 1)))
def threshold_on_shape(self, t):
    x = self.data["premium"]
    return x * 2 if x.shape[0] > 5000 else x


@case(lambda d, t: total(d["premium"] * (2 if len(d["age"]) > 5000 else 1)))
def threshold_on_len(self, t):
    return self.data["premium"] * 2 if len(self.data) > 5000 else self.data["premium"]


@case(lambda d, t: total(d["premium"] * len(d["age"])))
def times_size(self, t):
    return self.data["premium"] * self.data["premium"].size


@case(lambda d, t: total(d["premium"] / (8 * len(d["age"]))))
def over_nbytes(self, t):
    return self.data["premium"] / self.data["premium"].nbytes


@case(lambda d, t: total(d["premium"] * math.sqrt(len(d["age"]))))
def root_of_row_count(self, t):
    return self.data["premium"] * math.sqrt(len(self.data))


@case(lambda d, t: total(d["premium"] * len(str(len(d["age"])))))
def digits_of_row_count(self, t):
    return self.data["premium"] * len(str(len(self.data)))


@case(lambda d, t: total(np.linspace(0.0, 1.0, len(d["age"])) * d["age"]))
def linspace_over_rows(self, t):
    return np.linspace(0.0, 1.0, len(self.data)) * self.data["age"]


@case(lambda d, t: total(d["premium"] * (len(d["age"]) % 2 + 1)))
def parity_of_row_count(self, t):
    return self.data["premium"] * (len(self.data) % 2 + 1)


@case(lambda d, t: total(d["premium"] * len(d["age"])))
def row_count_of_frame(self, t):
    return self.data["premium"] * len(self.data.frame())


@case(lambda d, t: total(d["premium"] * len(d["age"])))
def row_count_by_sum_of_ones(self, t):
    return self.data["premium"] * int(np.ones(len(self.data)).sum())


# --- totals as Python numbers ------------------------------------------------------------------


@case(lambda d, t: total(d["premium"] / d["premium"].sum()))
def share_of_total(self, t):
    return self.data["premium"] / self.data["premium"].sum()


@case(lambda d, t: total(d["premium"] / d["premium"].sum()))
def share_by_pandas(self, t):
    x = pd.Series(self.data["premium"])
    return (x / x.sum()).to_numpy()


@case(lambda d, t: total(d["premium"] / mean(d["premium"]).value))
def over_float_of_mean(self, t):
    x = self.data["premium"]
    return x / float(x.mean())


@case(lambda d, t: Amount(0.0, total(d["premium"]).size))
def minus_mean(self, t):
    return self.data["premium"] - self.data["premium"].mean()


@case(lambda d, t: total((d["premium"] - d["premium"].min()) / np.ptp(d["premium"])))
def scaled_to_range(self, t):
    x = self.data["premium"]
    return (x - x.min()) / (x.max() - x.min())


@case(lambda d, t: total((d["premium"] - mean(d["premium"]).value) ** 2))
def squared_deviation(self, t):
    x = self.data["premium"]
    return ((x - np.mean(x)) ** 2).sum()


@case(lambda d, t: total(d["premium"] * int(d["age"].max())))
def times_int_of_max(self, t):
    return self.data["premium"] * int(self.data["age"].max())


@case(lambda d, t: total(d["premium"] * len(f"{math.fsum(d['premium']):.0f}")))
def length_of_formatted_total(self, t):
    return self.data["premium"] * len(f"{self.data['premium'].sum():.0f}")


@case(lambda d, t: total(d["premium"] * len(str(int(d["age"].sum())))))
def length_of_str_of_total(self, t):
    return self.data["premium"] * len(str(self.data["age"].sum()))


@case(lambda d, t: total(d["premium"] * round(float(d["age"].mean()))))
def rounded_mean(self, t):
    return self.data["premium"] * round(float(self.data["age"].mean()))


@case(lambda d, t: total(d["premium"] * math.floor(d["premium"].max())))
def floor_of_max(self, t):
    return self.data["premium"] * math.floor(self.data["premium"].max())


@case(lambda d, t: total(d["premium"] * int(d["age"].max())))
def item_of_max(self, t):
    return self.data["premium"] * self.data["age"].max().item()


@case(lambda d, t: total(d["premium"] * float(decimal.Decimal(int(d["age"].max())) / 8)))
def decimal_of_max(self, t):
    return self.data["premium"] * float(decimal.Decimal(int(self.data["age"].max())) / 8)


@case(lambda d, t: total(d["premium"] * (int(d["age"].sum()) % 7)))
def integer_total_modulo(self, t):
    return self.data["premium"] * (int(self.data["age"].sum()) % 7)


@case(lambda d, t: total(d["premium"] * float(np.linalg.norm(d["age"]))))
def norm_of_rows(self, t):
    return self.data["premium"] * np.linalg.norm(self.data["age"])


@case(lambda d, t: total(d["age"] * float(np.average(d["fx"], weights=d["age"]))))
def weighted_average(self, t):
    return self.data["age"] * np.average(self.data["fx"], weights=self.data["age"])


class MeanPremium(hl.Model):
    @hl.agg(None)
    def mean_premium(self):
        return float(self.data["premium"].mean())


@case(lambda d, t: total(d["premium"] / mean(d["premium"]).value), base=MeanPremium)
def mean_by_another_formula(self, t):
    return self.data["premium"] / self.mean_premium()


class WithArgument(hl.Model):
    @hl.agg(None)
    def capped(self, t, cap):
        return np.minimum(self.data["age"], cap)


@case(lambda d, t: total(np.minimum(d["age"], int(d["age"].max()) - 20)), base=WithArgument)
def maximum_as_argument(self, t):
    return self.capped(t, int(self.data["age"].max()) - 20)


class WithTotal(hl.Model):
    @hl.agg(None)
    def balance(self, t):
        return (self.data["premium"] * (3 - t)).sum()


def _steps_until_negative(d, t):
    count = 0
    while (d["premium"].sum() - 1_000_000.0 * count) > 0:
        count += 1
    return count


@case(lambda d, t: exact(_steps_until_negative(d, t)), base=WithTotal)
def loop_until_total_is_negative(self, t):
    count = 0
    while self.data["premium"].sum() - 1_000_000.0 * count > 0:
        count += 1
    return count


@case(lambda d, t: total(d["premium"] * (np.arange(int(d["age"].max()) + 1) ** 2.0)[-1]))
def array_as_long_as_max(self, t):
    return self.data["premium"] * (np.arange(int(self.data["age"].max()) + 1) ** 2.0)[-1]


@case(lambda d, t: exact({97: 1.5}.get(int(d["age"].max()), 0.5)))
def dict_keyed_by_max(self, t):
    return {97: 1.5}.get(int(self.data["age"].max()), 0.5)


@case(lambda d, t: exact(1 if int(d["age"].sum()) % 2 else 0))
def match_on_total(self, t):
    match int(self.data["age"].sum()) % 2:
        case 0:
            return 0
        case _:
            return 1


@case(lambda d, t: total(d["premium"] * (int(d["age"].sum()) % 97)))
def hash_of_total(self, t):
    return self.data["premium"] * (hash(int(self.data["age"].sum())) % 97)


# --- state -------------------------------------------------------------------------------------

_STATE: dict[Any, Any] = {}
_LOG: list[Any] = []
_SEEN: list[float] = []
_PEAK = 0.0


def _clear(model: type) -> None:
    global _PEAK
    _STATE.clear()
    _LOG.clear()
    _SEEN.clear()
    _PEAK = 0.0
    _first_maximum.cache_clear()


@functools.cache
def _first_maximum(label: str) -> float:
    """Cached on the first model that asks: the sample's."""
    return float(_SEEN[0])


def _over_max(d, t):
    return total(d["premium"] / d["premium"].max())


@case(_over_max, reset=_clear)
def state_in_module_dict(self, t):
    x = self.data["premium"]
    if "peak" not in _STATE:
        _STATE["peak"] = x.max()
    return x / _STATE["peak"]


@case(_over_max, reset=_clear)
def state_in_module_dict_as_float(self, t):
    x = self.data["premium"]
    if "peak" not in _STATE:
        _STATE["peak"] = float(x.max())
    return x / _STATE["peak"]


@case(_over_max, reset=_clear)
def state_by_setdefault(self, t):
    x = self.data["premium"]
    return x / _STATE.setdefault("peak", float(x.max()))


@case(_over_max, reset=_clear)
def state_in_module_list(self, t):
    x = self.data["premium"]
    _LOG.append(x.max())
    return x / _LOG[0]


@case(_over_max, reset=_clear)
def state_in_global(self, t):
    global _PEAK
    x = self.data["premium"]
    _PEAK = max(_PEAK, float(x.max()))
    return x / _PEAK


@case(_over_max, reset=_clear)
def state_in_lru_cache(self, t):
    x = self.data["premium"]
    _SEEN.append(float(x.max()))
    return x / _first_maximum("premium")


@case(None, reset=_clear)
def state_counts_calls(self, t):
    _LOG.append(t)
    return self.data["premium"] * len(_LOG)


@case(None, reset=_clear)
def state_counts_calls_by_iterator(self, t):
    counter = _STATE.setdefault("counter", itertools.count())
    return self.data["premium"] * next(counter)


def _closure() -> Any:
    first: list[Any] = []

    def closure_keeps_first_value(self, t):
        if not first:
            first.append(self.data["premium"].max())
        return self.data["premium"] / first[0]

    return closure_keeps_first_value, first


_kept, _first = _closure()
case(_over_max, reset=lambda model: _first.clear())(_kept)


def _over_first(x: Any, seen: list[float] = []) -> Any:  # noqa: B006
    if not seen:
        seen.append(float(x.max()))
    return x / seen[0]


@case(_over_max, reset=lambda model: _over_first.__defaults__[0].clear())
def state_in_default_argument(self, t):
    return _over_first(self.data["premium"])


def _peak_of(x: Any) -> Any:
    if not hasattr(_peak_of, "peak"):
        _peak_of.peak = float(x.max())
    return _peak_of.peak


@case(_over_max, reset=lambda model: vars(_peak_of).clear())
def state_on_function(self, t):
    return self.data["premium"] / _peak_of(self.data["premium"])


@case(_over_max)
def state_on_self(self, t):
    if not hasattr(self, "peak"):
        self.peak = self.data["premium"].max()
    return self.data["premium"] / self.peak


@case(_over_max)
def state_on_self_by_setattr(self, t):
    if getattr(self, "peak", None) is None:
        object.__setattr__(self, "peak", float(self.data["premium"].max()))
    return self.data["premium"] / self.peak


@case(_over_max)
def state_in_instance_dict(self, t):
    peak = vars(self).setdefault("peak", float(self.data["premium"].max()))
    return self.data["premium"] / peak


def _forget_peak(model: type) -> None:
    if "peak" in vars(model):
        del model.peak


@case(_over_max, reset=_forget_peak)
def state_on_class(self, t):
    if "peak" not in vars(type(self)):
        type(self).peak = float(self.data["premium"].max())
    return self.data["premium"] / type(self).peak


@case(_over_max, assumptions=lambda: {"notes": {}})
def state_in_assumption_dict(self, t):
    if "peak" not in self.notes:
        self.notes["peak"] = float(self.data["premium"].max())
    return self.data["premium"] / self.notes["peak"]


@case(None, assumptions=lambda: {"notes": []})
def state_in_assumption_list(self, t):
    self.notes.append(t)
    return self.data["premium"] * len(self.notes)


@case(None, assumptions=lambda: {"factors": np.ones(4)})
def state_in_assumption_array(self, t):
    self.factors[0] += 1.0
    return self.data["premium"] * self.factors[0]


@case(_over_max, reset=_clear)
def array_kept_in_module(self, t):
    x = self.data["premium"]
    _STATE.setdefault("array", x)
    return x / _STATE["array"].max()


# --- random draws and the clock ----------------------------------------------------------------


@case(None)
def random_rows(self, t):
    return self.data["premium"] * np.random.default_rng().uniform(size=len(self.data))


@case(None)
def random_rows_legacy(self, t):
    return self.data["premium"] * np.random.rand(len(self.data))  # noqa: NPY002


@case(lambda d, t: total(d["premium"] * np.random.default_rng(5).uniform(size=len(d["age"]))))
def seeded_random_rows(self, t):
    return self.data["premium"] * np.random.default_rng(5).uniform(size=len(self.data))


@case(None)
def random_scalar(self, t):
    return self.data["premium"] * np.random.default_rng().uniform()


@case(None)
def random_scalar_of_python(self, t):
    return self.data["premium"] * random.random()


@case(lambda d, t: total(d["premium"] * np.random.default_rng(5 + t).uniform()))
def seeded_random_scalar(self, t):
    return self.data["premium"] * np.random.default_rng(5 + t).uniform()


class SeededRun(hl.Model):
    def BeforeRun(self):
        np.random.seed(12)  # noqa: NPY002


@case(lambda d, t: total(d["premium"] * np.random.RandomState(12).rand(t + 1)[t]), base=SeededRun)
def random_scalar_of_a_seeded_run(self, t):
    return self.data["premium"] * np.random.rand()  # noqa: NPY002


@case(
    lambda d, t: total(d["premium"] * np.random.RandomState(3).rand(len(d["age"]))),
)
def random_rows_after_seed(self, t):
    np.random.seed(3)  # noqa: NPY002
    return self.data["premium"] * np.random.rand(len(self.data))  # noqa: NPY002


@case(lambda d, t: total(np.random.default_rng(1).permutation(d["premium"]) * d["age"]))
def permuted_rows(self, t):
    return np.random.default_rng(1).permutation(self.data["premium"]) * self.data["age"]


@case(lambda d, t: total(np.random.default_rng(2).choice(d["premium"], 10)))
def chosen_rows(self, t):
    return np.random.default_rng(2).choice(self.data["premium"], 10).sum()


@case(None)
def clock(self, t):
    return self.data["premium"] * (time.time() % 100.0)


@case(None)
def nanosecond_parity(self, t):
    return self.data["premium"] * (time.perf_counter_ns() % 1_000_003)


@case(None)
def unique_id(self, t):
    return self.data["premium"] * (uuid.uuid4().int % 1_000)


@case(None)
def bytes_of_the_system(self, t):
    return self.data["premium"] * struct.unpack("<I", os.urandom(4))[0]


# --- BeforeRun ---------------------------------------------------------------------------------


class MaximumBefore(hl.Model):
    def BeforeRun(self):
        self.peak = self.data["premium"].max()


class MaximumBeforeByPandas(hl.Model):
    def BeforeRun(self):
        self.peak = self.data.frame()["premium"].max()


class FloatBefore(hl.Model):
    def BeforeRun(self):
        self.peak = float(np.max(self.data["premium"]))


class CountBefore(hl.Model):
    def BeforeRun(self):
        self.scale = 1e6 / len(self.data)


class GroupsBefore(hl.Model):
    def BeforeRun(self):
        frame = self.data.frame()
        self.group_totals = frame.groupby("group")["premium"].sum().to_dict()


class RatioBefore(hl.Model):
    def BeforeRun(self):
        self.ratio = self.data["premium"] / self.data["sum_assured"]


class OldestBefore(hl.Model):
    def BeforeRun(self):
        self.oldest = int(self.data["age"].max())
        self.curve = np.linspace(0.0, 1.0, self.oldest + 1)


class QuantileBefore(hl.Model):
    def BeforeRun(self):
        self.limit = np.quantile(np.asarray(self.data["premium"]), 0.9)


class OnceBefore(hl.Model):
    def BeforeRun(self):
        if not hasattr(self, "peak"):
            self.peak = float(self.data["premium"].max())


@case(_over_max, base=MaximumBefore)
def maximum_before_run(self, t):
    return self.data["premium"] / self.peak


@case(_over_max, base=MaximumBeforeByPandas)
def maximum_before_run_by_pandas(self, t):
    return self.data["premium"] / self.peak


@case(_over_max, base=FloatBefore)
def float_maximum_before_run(self, t):
    return self.data["premium"] / self.peak


@case(lambda d, t: total(d["premium"] * (1e6 / len(d["age"]))), base=CountBefore)
def row_count_before_run(self, t):
    return self.data["premium"] * self.scale


@case(lambda d, t: total(np.bincount(d["group"], d["premium"])[:3]), base=GroupsBefore)
def group_totals_before_run(self, t):
    return self.group_totals[0] + self.group_totals[1] + self.group_totals[2]


@case(lambda d, t: total(d["premium"] / d["sum_assured"] * d["age"]), base=RatioBefore)
def column_made_before_run(self, t):
    return self.ratio * self.data["age"]


@case(lambda d, t: total(np.linspace(0.0, 1.0, d["age"].max() + 1)[d["age"]]), base=OldestBefore)
def table_sized_before_run(self, t):
    return hl.lookup(self.curve, self.data["age"])


@case(
    lambda d, t: total(np.minimum(d["premium"], np.quantile(d["premium"], 0.9))),
    base=QuantileBefore,
)
def quantile_before_run(self, t):
    return np.minimum(self.data["premium"], self.limit)


@case(_over_max, base=OnceBefore, fresh_only=True)
def maximum_before_first_run_only(self, t):
    return self.data["premium"] / self.peak


# --- branches ----------------------------------------------------------------------------------


@case(lambda d, t: total(d["premium"] * (2 if (d["premium"] < 0).any() else 1)))
def branch_on_any(self, t):
    x = self.data["premium"]
    if (x < 0).any():
        return x * 2
    return x


@case(lambda d, t: total(d["premium"] * (1 if d["flag"].all() else 3)))
def branch_on_all(self, t):
    if self.data["flag"].all():
        return self.data["premium"]
    return self.data["premium"] * 3


@case(lambda d, t: total(np.maximum(d["premium"], 0.0)))
def branch_on_min(self, t):
    x = self.data["premium"]
    if x.min() < 0:
        x = np.maximum(x, 0.0)
    return x


@case(lambda d, t: total(d["premium"] * (2 if d["premium"].sum() > 1e6 else 1)))
def branch_on_total(self, t):
    x = self.data["premium"]
    return x * 2 if x.sum() > 1e6 else x


@case(lambda d, t: total(d["premium"] * (1 if d["premium"].sum() > 1e6 else -1)))
def branch_by_and_or(self, t):
    x = self.data["premium"]
    return x * (((x.sum() > 1e6) and 1) or -1)


@case(lambda d, t: total(d["premium"] * (2 if d["premium"].max() > 500 else 1)))
def where_on_a_total(self, t):
    x = self.data["premium"]
    return np.where(x.max() > 500, x * 2, x)


@case(lambda d, t: total(-d["premium"]))
def branch_on_assertion(self, t):
    x = self.data["premium"]
    try:
        assert (x > 0).all()
    except AssertionError:
        return -x
    return x


@case(lambda d, t: total((d["product"] == "RARE") * d["premium"]), "right")
def rare_product(self, t):
    return (self.data["product"] == "RARE") * self.data["premium"]


@case(lambda d, t: total((d["product"] == "RARE") * d["premium"]), "right")
def rare_product_by_isin(self, t):
    return np.isin(self.data["product"], ["RARE", "NONE"]) * self.data["premium"]


@case(lambda d, t: total((d["product"] == "RARE") * d["premium"]), "right")
def rare_product_by_method(self, t):
    return self.data["product"].isin(["RARE"]) * self.data["premium"]


@case(lambda d, t: total(np.where(d["product"] == "RARE", 1e6, 1.0)), "right")
def rare_product_by_where(self, t):
    return np.where(self.data["product"] == "RARE", 1e6, 1.0)


@case(lambda d, t: total(np.where(d["age"] == 97, 1e6, d["age"])), "right")
def rare_age(self, t):
    return np.where(self.data["age"] == 97, 1e6, self.data["age"])


@case(lambda d, t: total(d["premium"] * (7 if (d["product"] == "RARE").any() else 1)))
def branch_on_rare_product(self, t):
    if (self.data["product"] == "RARE").any():
        return self.data["premium"] * 7
    return self.data["premium"]


@case(lambda d, t: total(d["premium"] * (7 if "RARE" in d["product"].tolist() else 1)))
def rare_product_by_python_in(self, t):
    return self.data["premium"] * (7 if "RARE" in self.data["product"] else 1)


@case(lambda d, t: total(d["premium"] * (7 if "RARE" in d["product"].tolist() else 1)))
def rare_product_in_categories(self, t):
    return self.data["premium"] * (7 if "RARE" in self.data["product"].categories else 1)


@case(lambda d, t: total((d["policy_id"] == "P000007") * d["premium"]), "right")
def text_with_many_values(self, t):
    return (self.data["policy_id"] == "P000007") * self.data["premium"]


@case(lambda d, t: total(np.isin(d["policy_id"], ["P000007", "P099999"]) * d["premium"]))
def text_with_many_values_isin(self, t):
    return self.data["policy_id"].isin(["P000007", "P099999"]) * self.data["premium"]


@case(lambda d, t: total(d["units"] // 2 + d["units"] * t))
def column_of_another_type(self, t):
    return self.data["units"] // 2 + self.data["units"] * t


@case(lambda d, t: total(d["units"] * 1.0))
def branch_on_dtype(self, t):
    x = self.data["units"]
    return x * 1.0 if x.dtype == np.float64 else x * 100


@case(lambda d, t: total(d["premium"] * d["fx"]), "right")
def constant_column_of_the_sample(self, t):
    return self.data["premium"] * self.data["fx"]


@case(lambda d, t: total(d["premium"] * float(d["fx"][0])))
def constant_column_made_a_number(self, t):
    fx = np.unique(self.data["fx"])
    return self.data["premium"] * (fx[0] if len(fx) == 1 else self.data["fx"][0])


@case(lambda d, t: total(d["premium"] * d["fx"]))
def shortcut_for_constant_columns(self, t):
    fx = self.data["fx"]
    if (fx == 1.0).all():
        return self.data["premium"]
    return self.data["premium"] * fx


@case(lambda d, t: total(d["premium"] * d["fx"]))
def shortcut_by_ptp(self, t):
    fx = self.data["fx"]
    if np.ptp(fx) == 0:
        return self.data["premium"] * fx.max()
    return self.data["premium"] * fx


# --- missing values ----------------------------------------------------------------------------


def _filled(d):
    return np.where(np.isnan(d["lapse"]), np.nanmean(d["lapse"]), d["lapse"])


@case(lambda d, t: total(_filled(d) * d["premium"]))
def filled_with_mean_by_pandas(self, t):
    x = pd.Series(self.data["lapse"])
    return x.fillna(x.mean()).to_numpy() * self.data["premium"]


@case(lambda d, t: total(_filled(d) * d["premium"]))
def filled_with_mean(self, t):
    x = self.data["lapse"]
    return np.where(np.isnan(x), np.nanmean(x), x) * self.data["premium"]


@case(lambda d, t: total(_filled(d) * d["premium"]))
def filled_with_mean_if_any(self, t):
    x = self.data["lapse"]
    if np.isnan(x).any():
        x = np.where(np.isnan(x), float(np.nanmean(x)), x)
    return x * self.data["premium"]


@case(lambda d, t: total(pd.Series(d["lapse"]).ffill().fillna(0.0).to_numpy()))
def filled_forward(self, t):
    return pd.Series(self.data["lapse"]).ffill().fillna(0.0).to_numpy()


@case(lambda d, t: total(pd.Series(d["lapse"]).interpolate().fillna(0.0).to_numpy()))
def filled_by_interpolation(self, t):
    return pd.Series(self.data["lapse"]).interpolate().fillna(0.0).to_numpy()


@case(lambda d, t: exact(int(np.isnan(d["lapse"]).sum())), "right")
def missing_counted(self, t):
    return np.isnan(self.data["lapse"])


@case(lambda d, t: exact(float("nan")))
def largest_is_missing(self, t):
    return self.data["lapse"].max()


# --- try and except, isinstance, the object itself ---------------------------------------------


def _points() -> dict[str, Any]:
    frame = pd.DataFrame({"age|int": np.arange(25, 60), "value": np.arange(25, 60) * 1.0})
    return {"points": hl.Table(frame)}


@case(lambda d, t: exact(0.0), assumptions=_points)
def table_error_swallowed(self, t):
    try:
        return self.points[self.data["age"]]
    except KeyError:
        return np.zeros(len(self.data))


@case(None, assumptions=_points)
def table_key_out_of_range(self, t):
    return self.points[self.data["age"]]


@case(lambda d, t: total(np.cumsum(d["premium"]) * d["age"]))
def refusal_swallowed(self, t):
    try:
        y = np.cumsum(self.data["premium"])
    except Exception:  # what the case is about: a refusal that the formula swallows
        y = self.data["premium"]
    return y * self.data["age"]


@case(lambda d, t: total(np.sort(d["premium"]) * d["age"]))
def refusal_swallowed_bare(self, t):
    y = self.data["premium"]
    try:  # noqa: SIM105
        y = np.sort(y)
    except:  # noqa: E722
        pass
    return y * self.data["age"]


@case(lambda d, t: total(d["premium"] - d["premium"][0]))
def refusal_swallowed_by_caller(self, t):
    def first() -> Any:
        try:
            return self.data["premium"][0]
        except hl.HlDaskError:
            return 0.0

    return self.data["premium"] - first()


class Median(hl.Model):
    @hl.agg(None)
    def middle(self, t):
        return np.median(self.data["premium"])


@case(lambda d, t: total(d["premium"] - np.median(d["premium"])), base=Median)
def refusal_of_another_formula_swallowed(self, t):
    try:
        return self.data["premium"] - self.middle(t)
    except Exception:  # the same for the refusal of another formula
        return self.data["premium"]


@case(lambda d, t: total(d["premium"]))
def branch_on_isinstance(self, t):
    x = self.data["premium"]
    return x if isinstance(x, np.ndarray) else x * 2


@case(lambda d, t: total(d["premium"]))
def branch_on_type(self, t):
    x = self.data["premium"]
    return x if type(x) is np.ndarray else x * 2


@case(lambda d, t: total(d["premium"]))
def branch_on_type_name(self, t):
    x = self.data["premium"]
    return x if type(x).__name__ == "ndarray" else x * 2


@case(lambda d, t: total(d["premium"]))
def branch_on_attribute(self, t):
    x = self.data["premium"]
    return x if hasattr(x, "ctypes") else x * 2


@case(lambda d, t: total(d["premium"] * (len(d["age"]) * 8)))
def array_interface(self, t):
    x = self.data["premium"]
    return x * (x.__array_interface__["shape"][0] * 8)


@case(lambda d, t: total(d["premium"] * len(str(d["premium"]))))
def execution_of_text(self, t):
    scope: dict[str, Any] = {}
    exec(f"factor = {len(str(self.data['premium']))}", scope)
    return self.data["premium"] * scope["factor"]


@case(lambda d, t: total(d["premium"] * len(repr(d["premium"]))))
def length_of_repr(self, t):
    return self.data["premium"] * len(repr(self.data["premium"]))


@case(lambda d, t: total(d["premium"] * (hash(d["premium"].tobytes()) % 97)))
def hash_of_bytes(self, t):
    return self.data["premium"] * (hash(self.data["premium"].tobytes()) % 97)


@case(lambda d, t: total(d["age"] * max(json.loads(json.dumps(d["age"].tolist())))))
def through_json(self, t):
    return self.data["age"] * max(json.loads(json.dumps(self.data["age"].tolist())))


@case(lambda d, t: total(d["age"] / d["age"].max()))
def through_pickle(self, t):
    x = pickle.loads(pickle.dumps(self.data["age"]))
    return x / x.max()


@case(lambda d, t: total(d["age"] * 2))
def through_deepcopy(self, t):
    return copy.deepcopy(self.data["age"]) * 2


@case(lambda d, t: total(d["premium"] * (8 * len(d["age"]))))
def length_of_buffer(self, t):
    return self.data["premium"] * len(self.data["premium"].tobytes())


@case(lambda d, t: total(d["premium"] * len(d["age"])))
def strides_of_two_axes(self, t):
    both = np.stack([self.data["premium"], self.data["premium"]])
    return self.data["premium"] * (both.strides[0] // 8)


# --- what a recording might not look at --------------------------------------------------------


@case(lambda d, t: total(d["premium"] * (len(d["age"]) * 0.0 + 1.0)))
def branch_on_type_beside_row_count(self, t):
    x = self.data["premium"]
    scale = len(self.data) * 0.0 + 1.0
    return x * scale if type(x) is np.ndarray else x * scale * 2


@case(lambda d, t: total(d["premium"]))
def branch_on_type_beside_total(self, t):
    x = self.data["premium"]
    if x.sum() < -1e9:
        return x * 0
    return x if type(x) is np.ndarray else x * 2


class AsksRowCount(hl.Model):
    @hl.agg(None)
    def rows(self):
        return len(self.data)


@case(lambda d, t: total(d["premium"] * len(d["age"])), base=AsksRowCount)
def branch_on_type_after_row_count(self, t):
    x = self.data["premium"] * self.rows()
    return x if type(x) is np.ndarray else x * 2


@case(lambda d, t: total(d["premium"] + 1.0))
def written_through_a_view(self, t):
    x = self.data["premium"].copy()
    view = x[:]
    view += 1.0
    return x


@case(lambda d, t: total(d["premium"] + 1.0 + d["fx"]))
def written_through_a_column_of_two_axes(self, t):
    both = np.stack([self.data["premium"], self.data["fx"]], axis=1)
    first = both[:, 0]
    first += 1.0
    return both.sum(axis=1)


@case(lambda d, t: total(np.where(d["age"] > 45, 0.0, d["premium"]) * len(d["age"])))
def written_through_a_view_beside_row_count(self, t):
    x = self.data["premium"].copy()
    x[:][self.data["age"] > 45] = 0.0
    return x * len(self.data)


@case(lambda d, t: total((d["premium"] + 1.0) * 2))
def two_names_of_one_array(self, t):
    x = self.data["premium"].copy()
    y = x
    y += 1.0
    return x + y


@case(lambda d, t: total(-d["premium"]))
def floating_point_error_caught(self, t):
    x = self.data["premium"]
    try:
        with np.errstate(invalid="raise"):
            return np.sqrt(x)
    except FloatingPointError:
        return -x


@case(lambda d, t: total(-d["premium"]))
def warning_noticed(self, t):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with np.errstate(invalid="warn"):
            y = np.sqrt(self.data["premium"])
    return -self.data["premium"] if seen else y


@case(None)
def raised_on_total(self, t):
    if self.data["premium"].min() < 0:
        msg = "a negative premium"
        raise ValueError(msg)
    return self.data["premium"]


@case(lambda d, t: total(np.stack([d["premium"], d["extra"]])))
def column_only_in_the_big_data(self, t):
    if "extra" in self.data:
        return self.data["premium"] + self.data["extra"]
    return self.data["premium"]


@case(lambda d, t: total(np.stack([d["premium"], d["extra"]])))
def missing_column_caught(self, t):
    try:
        extra = self.data["extra"]
    except KeyError:
        extra = 0.0
    return self.data["premium"] + extra


class InPlaceBefore(hl.Model):
    def BeforeRun(self):
        self.rates *= 1.5


@case(
    lambda d, t: total(d["premium"] * 3.0),
    base=InPlaceBefore,
    assumptions=lambda: {"rates": np.full(3, 2.0)},
)
def array_changed_before_run(self, t):
    return self.data["premium"] * self.rates[t]


@case(lambda d, t: total(d["premium"] * np.linspace(0.0, 1.0, 12)[d["group"].max()]))
def lookup_at_maximum(self, t):
    return self.data["premium"] * np.linspace(0.0, 1.0, 12)[self.data["group"].max()]


@case(lambda d, t: total(np.arange(d["age"].max())))
def range_up_to_maximum(self, t):
    return np.arange(self.data["age"].max()).sum()


@case(lambda d, t: total(d["premium"] * np.linspace(0.0, d["age"].max(), 5)[3]))
def linspace_up_to_maximum(self, t):
    return self.data["premium"] * np.linspace(0.0, self.data["age"].max(), 5)[3]


def _tail(d):
    sums = np.array([math.fsum((d["premium"] * k).tolist()) for k in (1.0, 3.0, 2.0, 5.0)])
    return sums[sums > np.median(sums)].mean()


@case(lambda d, t: near(_tail(d)))
def tail_of_totals(self, t):
    sums = (self.data["premium"][:, None] * np.array([1.0, 3.0, 2.0, 5.0])).sum(axis=0)
    return sums[sums > np.median(sums)].mean()


@case(lambda d, t: total(d["premium"] * (2 if np.allclose(d["fx"], 1.0) else 1)))
def all_close(self, t):
    return self.data["premium"] * (2 if np.allclose(self.data["fx"], 1.0) else 1)


@case(lambda d, t: total(d["premium"] * (2 if (d["flag"] == (d["age"] > 0)).all() else 1)))
def array_equal(self, t):
    same = np.array_equal(self.data["flag"], self.data["age"] > 0)
    return self.data["premium"] * (2 if same else 1)


@case(lambda d, t: total(d["premium"] * (d["product"] == "RARE").sum()))
def value_counts_of_text(self, t):
    counts = pd.Series(np.asarray(self.data["product"])).value_counts()
    return self.data["premium"] * counts.get("RARE", 1)


_FACTORS = {"TERM": 1.0, "WHOLE": 2.0, "ENDOW": 3.0, "GROUP": 4.0, "RARE": 5.0}


@case(lambda d, t: total(np.array([_FACTORS[p] for p in d["product"].tolist()])))
def text_mapped_by_pandas(self, t):
    return np.asarray(self.data["product"].map(_FACTORS), dtype=float)


@case(lambda d, t: total(np.array([len(p) for p in d["product"].tolist()])))
def length_of_text(self, t):
    return np.array([len(p) for p in self.data["product"]])


@case(lambda d, t: total((d["product"] == "GROUP") & (d["sex"] == "M")))
def two_texts_compared(self, t):
    both = np.where(self.data["sex"] == "M", "GROUP", "none")
    return both == np.asarray(self.data["product"])


@case(lambda d, t: total(d["premium"]) + total(d["premium"]), reset=_clear)
def values_kept_from_the_step_before(self, t):
    # Only the calls of one run may be seen here: t = 0 leaves a value for t = 1.
    _STATE[t] = self.data["premium"]
    other = _STATE.get(1 - t)
    return self.data["premium"] * 2 if other is None else self.data["premium"] + other


@case(lambda d, t: total(d["age"] * (d["age"].max() - d["age"].min())))
def ptp_of_rows(self, t):
    return self.data["age"] * np.ptp(self.data["age"])


@case(lambda d, t: total(d["premium"] * (int(d["age"].max()) // 10 * 10)))
def rounded_maximum_by_divmod(self, t):
    whole, _ = divmod(int(self.data["age"].max()), 10)
    return self.data["premium"] * (whole * 10)


@case(lambda d, t: total(d["premium"] * math.exp(-d["age"].max() / 100)))
def exponential_of_maximum(self, t):
    return self.data["premium"] * math.exp(-self.data["age"].max() / 100)


@case(lambda d, t: total(d["premium"] * sorted([int(d["age"].max()), 60])[1]))
def python_max_of_two_numbers(self, t):
    return self.data["premium"] * max(60, self.data["age"].max())


@case(lambda d, t: total(np.stack([d["extra"], d["fx"]])))
def columns_by_name(self, t):
    # The sample has one column less that is asked for here.
    return sum(self.data[name] for name in sorted(self.data.columns) if name in ("extra", "fx"))


@case(lambda d, t: total(d["premium"] * len(d)))
def number_of_columns(self, t):
    return self.data["premium"] * len(self.data.columns)


@case(lambda d, t: total(d["premium"] * (2 if len(d["age"]) > 5000 else 1)))
def threshold_on_np_shape(self, t):
    x = self.data["premium"]
    return x * 2 if np.shape(x)[0] > 5000 else x


@case(lambda d, t: total(d["premium"] * (2 if len(d["age"]) > 5000 else 1)))
def threshold_on_np_size(self, t):
    x = self.data["premium"]
    return x * 2 if np.size(x, 0) > 5000 else x


@case(lambda d, t: total(d["premium"] * (2 if len(d["age"]) > 5000 else 1)))
def threshold_on_np_ones(self, t):
    return self.data["premium"] * (2 if np.ones_like(self.data["age"]).sum() > 5000 else 1)


@case(lambda d, t: total(d["premium"] * np.zeros((len(d["age"]), 2)).size))
def size_of_another_array(self, t):
    return self.data["premium"] * np.zeros((len(self.data), 2)).size
