"""Row mixing by order and position: sorting, ranking, shifting, accumulating, choosing rows."""

from __future__ import annotations

import bisect
import collections
import functools
import itertools
import statistics

import numpy as np
import pandas as pd

import hl_dask as hl
from tests.reference import exact, mean, near, total
from tests.row_mixing_case import Register

ORDER = Register()
case = ORDER.case


# --- positions ---------------------------------------------------------------------------------


@case(lambda d, t: total(d["premium"] / d["premium"][0]))
def relative_to_first_row(self, t):
    x = self.data["premium"]
    return x / x[0]


@case(lambda d, t: total(d["age"] - d["age"][-1]))
def relative_to_last_row(self, t):
    return self.data["age"] - self.data["age"][-1]


@case(lambda d, t: near(d["premium"][3]))
def a_row_as_output(self, t):
    return self.data["premium"][3]


@case(lambda d, t: total(d["premium"][::-1] * d["age"]))
def reversed_rows(self, t):
    return self.data["premium"][::-1] * self.data["age"]


@case(lambda d, t: total(np.concatenate([d["premium"][-1:], d["premium"][:-1]]) * d["age"]))
def rolled(self, t):
    return np.roll(self.data["premium"], 1) * self.data["age"]


@case(lambda d, t: total(np.concatenate([d["premium"][-3:], d["premium"][:-3]]) * d["age"]))
def rolled_on_axis_0(self, t):
    return np.roll(self.data["premium"], 3, axis=0) * self.data["age"]


@case(lambda d, t: total(d["premium"][::-1] * d["age"]))
def flipped(self, t):
    return np.flip(self.data["premium"]) * self.data["age"]


@case(lambda d, t: total(d["premium"][::-1] * d["age"]))
def flipped_upside_down(self, t):
    return np.flipud(self.data["premium"]) * self.data["age"]


@case(lambda d, t: total(np.diff(d["premium"])))
def differences_by_slices(self, t):
    x = self.data["premium"]
    return (x[1:] - x[:-1]).sum()


@case(lambda d, t: total(d["premium"][:10]))
def first_ten(self, t):
    return self.data["premium"][:10].sum()


@case(lambda d, t: total(d["premium"][::2]))
def every_second(self, t):
    return self.data["premium"][::2].sum()


@case(lambda d, t: total(d["premium"][998:]))
def beyond_the_sample(self, t):
    return self.data["premium"][998:].sum()


@case(lambda d, t: total(d["premium"][d["age"]]))
def rows_chosen_by_a_column(self, t):
    return self.data["premium"][self.data["age"]]


@case(lambda d, t: total(d["premium"][d["age"]]))
def rows_taken_by_a_column(self, t):
    return np.take(self.data["premium"], self.data["age"])


@case(lambda d, t: total(d["premium"][[5, 6, 7]]))
def rows_by_a_list(self, t):
    return self.data["premium"][[5, 6, 7]].sum()


@case(lambda d, t: near(d["premium"][0]))
def item_zero(self, t):
    return self.data["premium"].item(0)


@case(lambda d, t: total(d["age"] * d["premium"].argmax()))
def argmax_times_column(self, t):
    return self.data["age"] * self.data["premium"].argmax()


@case(lambda d, t: exact(int(np.argmin(d["premium"]))))
def argmin_as_output(self, t):
    return np.argmin(self.data["premium"])


@case(lambda d, t: near(d["sum_assured"][d["premium"].argmax()]))
def value_at_argmax(self, t):
    return self.data["sum_assured"][self.data["premium"].argmax()]


# --- sorting and ranking -----------------------------------------------------------------------


@case(lambda d, t: total(np.array(sorted(d["premium"].tolist())) * d["age"]))
def sorted_by_numpy(self, t):
    return np.sort(self.data["premium"]) * self.data["age"]


@case(lambda d, t: total(np.array(sorted(d["premium"].tolist())) * d["age"]))
def sorted_in_place(self, t):
    x = self.data["premium"].copy()
    x.sort()
    return x * self.data["age"]


@case(lambda d, t: total(np.array(sorted(d["premium"].tolist())) * d["age"]))
def sorted_by_python(self, t):
    return np.array(sorted(self.data["premium"])) * self.data["age"]


@case(lambda d, t: total(np.argsort(d["premium"]) * d["age"]))
def argsorted(self, t):
    return np.argsort(self.data["premium"]) * self.data["age"]


def _ranks(x: np.ndarray) -> np.ndarray:
    order = np.argsort(x, kind="stable")
    ranks = np.empty(len(x))
    ranks[order] = np.arange(len(x)) + 1.0
    return ranks


@case(lambda d, t: total(_ranks(d["premium"]) * d["age"]))
def ranked_by_pandas(self, t):
    return pd.Series(self.data["premium"]).rank().to_numpy() * self.data["age"]


@case(lambda d, t: total(_ranks(d["premium"]) * d["age"]))
def ranked_by_double_argsort(self, t):
    return (self.data["premium"].argsort().argsort() + 1.0) * self.data["age"]


@case(lambda d, t: total(np.argsort(d["premium"], kind="stable") * d["age"]))
def lexsorted(self, t):
    return np.lexsort((self.data["premium"],)) * self.data["age"]


@case(lambda d, t: total(np.sort(d["premium"])[:50]))
def partitioned(self, t):
    return np.partition(self.data["premium"], 50)[:50].sum()


@case(lambda d, t: total(np.sort(d["premium"])[-3:]))
def three_largest(self, t):
    order = np.argpartition(self.data["premium"], -3)
    return self.data["premium"][order[-3:]].sum()


@case(lambda d, t: near(float(np.median(d["premium"]))))
def median(self, t):
    return np.median(self.data["premium"])


@case(lambda d, t: total(np.minimum(d["premium"], np.median(d["premium"]))))
def capped_at_median(self, t):
    return np.minimum(self.data["premium"], np.nanmedian(self.data["premium"]))


@case(lambda d, t: near(float(np.percentile(d["premium"], 99.5))))
def percentile(self, t):
    return np.percentile(self.data["premium"], 99.5)


@case(lambda d, t: total(np.digitize(d["premium"], np.quantile(d["premium"], [0.25, 0.5, 0.75]))))
def quantile_bands(self, t):
    x = self.data["premium"]
    return np.digitize(x, np.quantile(x, [0.25, 0.5, 0.75]))


@case(lambda d, t: total(pd.qcut(d["premium"], 4, labels=False)))
def quantile_bands_by_pandas(self, t):
    return pd.qcut(self.data["premium"], 4, labels=False)


@case(lambda d, t: total(pd.cut(d["premium"], 5, labels=False)))
def equal_width_bands_by_pandas(self, t):
    return pd.cut(self.data["premium"], 5, labels=False)


# --- accumulating ------------------------------------------------------------------------------


@case(lambda d, t: total(np.add.accumulate(d["age"])))
def cumulative_sum(self, t):
    return self.data["age"].cumsum()


@case(lambda d, t: total(np.cumsum(d["age"])))
def cumulative_sum_by_function(self, t):
    return np.cumsum(self.data["age"])


@case(lambda d, t: total(np.cumprod(1 + 1e-5 * d["fx"])))
def cumulative_product(self, t):
    return np.cumprod(1 + 1e-5 * self.data["fx"])


@case(lambda d, t: total(np.array(list(itertools.accumulate(d["premium"].tolist(), max)))))
def running_maximum(self, t):
    return np.maximum.accumulate(self.data["premium"])


@case(lambda d, t: total(np.array(list(itertools.accumulate(d["age"].tolist())))))
def accumulated_by_ufunc(self, t):
    return np.add.accumulate(self.data["age"])


@case(lambda d, t: total(np.array([d["age"][:100].sum(), d["age"][100:].sum()]) * [2, 3]))
def reduced_at_places(self, t):
    parts = np.add.reduceat(self.data["age"], [0, 100])
    return parts[0] * 2 + parts[1] * 3


@case(lambda d, t: total(np.diff(d["premium"], prepend=0.0) * d["age"]))
def differences(self, t):
    return np.diff(self.data["premium"], prepend=0.0) * self.data["age"]


@case(lambda d, t: total(np.diff(d["premium"])))
def differences_ediff1d(self, t):
    return np.ediff1d(self.data["premium"]).sum()


@case(lambda d, t: total(np.gradient(d["premium"]) * d["age"]))
def gradient(self, t):
    return np.gradient(self.data["premium"]) * self.data["age"]


@case(lambda d, t: total(np.convolve(d["premium"], [0.25, 0.5, 0.25], mode="same")))
def convolved(self, t):
    return np.convolve(self.data["premium"], [0.25, 0.5, 0.25], mode="same")


@case(lambda d, t: total((d["premium"][1:] + d["premium"][:-1]) / 2))
def trapezoid(self, t):
    return np.trapezoid(self.data["premium"])


@case(
    lambda d, t: total(np.array([sum(d["age"][: i + 1]) / (i + 1) for i in range(2_000)])),
    rows=2_000,
)
def expanding_mean(self, t):
    return pd.Series(self.data["age"]).expanding().mean().to_numpy()


@case(lambda d, t: total(np.concatenate([[0.0], d["premium"][:-1]]) * d["age"]))
def shifted_by_pandas(self, t):
    return pd.Series(self.data["premium"]).shift(1, fill_value=0.0).to_numpy() * self.data["age"]


@case(lambda d, t: total(pd.Series(d["age"]).rolling(3, min_periods=1).max().to_numpy()))
def rolling_by_pandas(self, t):
    return pd.Series(self.data["age"]).rolling(3, min_periods=1).max().to_numpy()


# --- python over rows --------------------------------------------------------------------------


@case(lambda d, t: total(d["age"]))
def python_sum(self, t):
    return sum(self.data["age"])


@case(lambda d, t: exact(d["premium"].max()))
def python_max(self, t):
    return max(self.data["premium"])


@case(lambda d, t: exact(d["premium"].min()))
def python_min(self, t):
    return min(self.data["premium"])


@case(lambda d, t: total(d["premium"] * (2 if (d["premium"] < 0).any() else 1)))
def python_any(self, t):
    x = self.data["premium"]
    return x * 2 if any(x < 0) else x


@case(lambda d, t: total(d["premium"] * (2 if (d["premium"] > 0).all() else 1)))
def python_all(self, t):
    x = self.data["premium"]
    return x * 2 if all(x > 0) else x


@case(lambda d, t: total(d["age"] * (5 if 97 in d["age"].tolist() else 1)))
def python_in(self, t):
    return self.data["age"] * (5 if 97 in self.data["age"] else 1)


@case(lambda d, t: total(np.arange(len(d["age"])) * d["age"]))
def enumerated(self, t):
    return np.array([i * age for i, age in enumerate(self.data["age"])])


@case(lambda d, t: total(d["age"] * 2.0 - 1.0))
def list_comprehension(self, t):
    return np.array([age * 2.0 - 1.0 for age in self.data["age"]])


@case(lambda d, t: total(d["age"] * 2.0))
def from_iterator(self, t):
    return np.fromiter((age * 2.0 for age in self.data["age"]), dtype=float)


@case(lambda d, t: total(d["age"] * len(set(d["age"].tolist()))))
def python_set(self, t):
    return self.data["age"] * len(set(self.data["age"]))


@case(lambda d, t: total(d["age"] * int(d["age"].max())))
def through_a_list(self, t):
    ages = self.data["age"].tolist()
    return np.array(ages) * max(ages)


@case(lambda d, t: total(d["age"] * d["age"][0]))
def next_of_iterator(self, t):
    return self.data["age"] * next(iter(self.data["age"]))


@case(lambda d, t: total(d["premium"][::-1] * d["age"]))
def python_reversed(self, t):
    return np.array(list(reversed(self.data["premium"]))) * self.data["age"]


@case(lambda d, t: total(np.sort(d["age"]) * 1.0 - d["age"]))
def bisected(self, t):
    return np.array(sorted(self.data["age"].tolist())) * 1.0 - self.data["age"]


@case(lambda d, t: exact(bisect.bisect(np.sort(d["age"]).tolist(), 40)))
def bisect_of_rows(self, t):
    return bisect.bisect(np.sort(self.data["age"]), 40)


@case(lambda d, t: total(d["age"]))
def functools_reduce(self, t):
    return functools.reduce(lambda a, b: a + b, self.data["age"])


@case(lambda d, t: mean(d["age"]))
def statistics_mean(self, t):
    return float(statistics.fmean(self.data["age"]))


@case(lambda d, t: exact(max(collections.Counter(d["age"].tolist()).values())))
def counter(self, t):
    return max(collections.Counter(self.data["age"].tolist()).values())


@case(lambda d, t: total(d["age"] * 3))
def by_nditer(self, t):
    return np.array([int(age) * 3 for age in np.nditer(self.data["age"])])


@case(lambda d, t: total(d["premium"] * d["premium"][7]))
def by_memoryview(self, t):
    return self.data["premium"] * memoryview(self.data["premium"])[7]


@case(lambda d, t: total(d["premium"] * d["premium"][2]))
def by_flat_iterator(self, t):
    return self.data["premium"] * self.data["premium"].flat[2]


@case(lambda d, t: total(np.arange(len(d["age"])) % 7 * d["age"]))
def row_numbers(self, t):
    return np.arange(len(self.data)) % 7 * self.data["age"]


@case(lambda d, t: total(np.arange(len(d["age"])) % 7 * d["age"]))
def row_numbers_by_range(self, t):
    return np.array([i % 7 for i in range(len(self.data["age"]))]) * self.data["age"]


@case(lambda d, t: total(np.arange(len(d["age"])) * d["age"]))
def row_numbers_by_cumsum(self, t):
    return (np.ones_like(self.data["age"]).cumsum() - 1) * self.data["age"]


# --- choosing rows -----------------------------------------------------------------------------


@case(lambda d, t: total(d["premium"][d["premium"] > 150]))
def sum_of_selected(self, t):
    x = self.data["premium"]
    return x[x > 150].sum()


@case(lambda d, t: exact(int((d["age"] > 45).sum())))
def length_of_selected(self, t):
    return len(self.data["age"][self.data["age"] > 45])


@case(lambda d, t: total(d["premium"] / (d["age"] > 45).sum()))
def divided_by_length_of_selected(self, t):
    age = self.data["age"]
    return self.data["premium"] / age[age > 45].shape[0]


@case(lambda d, t: exact(d["premium"][d["age"] > 45].max()))
def max_of_selected(self, t):
    return self.data["premium"][self.data["age"] > 45].max()


@case(lambda d, t: exact(int((d["age"] > 45).sum())))
def nonzero(self, t):
    return len(np.nonzero(self.data["age"] > 45)[0])


@case(lambda d, t: total(np.flatnonzero(d["age"] > 45)))
def where_with_one_argument(self, t):
    return np.where(self.data["age"] > 45)[0].sum()


@case(lambda d, t: exact(int(np.flatnonzero(d["age"] > 45)[0])))
def first_nonzero(self, t):
    return np.flatnonzero(self.data["age"] > 45)[0]


@case(lambda d, t: total(d["premium"][d["age"] > 45]))
def extracted(self, t):
    return np.extract(self.data["age"] > 45, self.data["premium"]).sum()


@case(lambda d, t: total(d["premium"][d["age"] > 45]))
def compressed(self, t):
    return self.data["premium"].compress(self.data["age"] > 45).sum()


@case(lambda d, t: total(np.where(d["age"] > 45, d["premium"], 0.0)))
def assigned_from_selected(self, t):
    old = self.data["age"] > 45
    x = np.zeros_like(self.data["premium"])
    x[old] = self.data["premium"][old]
    return x


@case(lambda d, t: total(np.delete(d["premium"], 0)))
def row_deleted(self, t):
    return np.delete(self.data["premium"], 0).sum()


@case(lambda d, t: total(d["premium"]) + near(1.0))
def row_appended(self, t):
    return np.append(self.data["premium"], 1.0).sum()


@case(lambda d, t: total(np.where(np.arange(len(d["age"])) == 0, 0.0, d["premium"])))
def first_row_changed(self, t):
    x = self.data["premium"].copy()
    x[0] = 0.0
    return x


@case(lambda d, t: total(np.where(np.arange(len(d["age"])) < 10, 0.0, d["premium"])))
def first_rows_changed(self, t):
    x = self.data["premium"].copy()
    x[:10] = 0.0
    return x


# --- groups and distinct values ----------------------------------------------------------------


@case(lambda d, t: total(d["premium"] * len(set(d["age"].tolist()))))
def number_of_distinct(self, t):
    return self.data["premium"] * len(np.unique(self.data["age"]))


@case(lambda d, t: total(np.searchsorted(np.unique(d["age"]), d["age"])))
def inverse_of_unique(self, t):
    return np.unique(self.data["age"], return_inverse=True)[1]


@case(lambda d, t: total(pd.factorize(d["age"])[0]))
def factorised(self, t):
    return pd.factorize(self.data["age"])[0]


def _group_sums(d):
    return np.bincount(d["group"], d["premium"])


@case(lambda d, t: total(d["premium"] / _group_sums(d)[d["group"]]))
def share_of_group_by_pandas(self, t):
    frame = pd.DataFrame({"g": self.data["group"], "x": self.data["premium"]})
    return (frame["x"] / frame.groupby("g")["x"].transform("sum")).to_numpy()


@case(lambda d, t: total(np.bincount(d["group"])[d["group"]] * d["premium"]))
def group_size_by_bincount(self, t):
    return np.bincount(self.data["group"])[self.data["group"]] * self.data["premium"]


@case(lambda d, t: total(_group_sums(d)[:3]))
def group_sums_by_add_at(self, t):
    sums = np.zeros(20)
    np.add.at(sums, self.data["group"], self.data["premium"])
    return sums[:3].sum()


@case(lambda d, t: total(_group_sums(d)[1]))
def group_sum_by_mask(self, t):
    return self.data["premium"][self.data["group"] == 1].sum()


@case(lambda d, t: exact(int(np.histogram(d["premium"], bins=10)[0].max())))
def histogram(self, t):
    return np.histogram(self.data["premium"], bins=10)[0].max()


@case(lambda d, t: exact(int(((d["age"] >= 30) & (d["age"] < 40)).sum())))
def histogram_with_fixed_bins(self, t):
    return np.histogram(self.data["age"], bins=[30, 40, 200])[0][0]


@case(lambda d, t: total(pd.Series(d["age"]).duplicated().to_numpy()))
def duplicated(self, t):
    return pd.Series(self.data["age"]).duplicated().to_numpy()


@case(lambda d, t: total(d["premium"] * (d["age"] == np.bincount(d["age"]).argmax())))
def most_frequent(self, t):
    mode = pd.Series(self.data["age"]).mode()[0]
    return self.data["premium"] * (np.asarray(self.data["age"]) == mode)


@case(lambda d, t: total(np.isin(d["age"], d["group"] * 9)))
def member_of_a_column(self, t):
    return np.isin(self.data["age"], self.data["group"] * 9)


@case(lambda d, t: exact(len(set(d["age"].tolist()) & set(d["term"].tolist()))))
def intersection(self, t):
    return len(np.intersect1d(self.data["age"], self.data["term"]))


@case(lambda d, t: total(np.unique(d["product"], return_inverse=True)[1]))
def codes_of_text(self, t):
    return self.data["product"].codes.astype(np.int64)


@case(lambda d, t: exact(len(set(d["product"].tolist()))))
def number_of_categories(self, t):
    return len(self.data["product"].categories)


@case(lambda d, t: total((d["product"] == min(d["product"].tolist())) * d["premium"]))
def first_category(self, t):
    return (self.data["product"] == self.data["product"].categories[0]) * self.data["premium"]


@case(lambda d, t: total((d["product"] == min(d["product"].tolist())) * d["premium"]))
def first_of_unique_text(self, t):
    return (self.data["product"] == np.unique(self.data["product"])[0]) * self.data["premium"]


# --- aggregates that cannot be combined --------------------------------------------------------


@case(lambda d, t: near(float(np.median(d["premium"]))), agg=np.median)
def aggregate_is_median(self, t):
    return self.data["premium"]


@case(lambda d, t: near(d["premium"][0]), agg=lambda x: x[0])
def aggregate_is_first(self, t):
    return self.data["premium"]


@case(lambda d, t: near(sorted(d["premium"].tolist())[10]), agg=lambda x: np.sort(x)[10])
def aggregate_sorts(self, t):
    return self.data["premium"]


@case(lambda d, t: mean(d["premium"]), agg=lambda x: x.sum() / len(x))
def aggregate_uses_len(self, t):
    return self.data["premium"]


@case(lambda d, t: total(d["premium"]), agg=lambda x: sum(x))
def aggregate_is_python_sum(self, t):
    return self.data["premium"]


@case(lambda d, t: near(float(np.quantile(d["premium"], 0.9))), agg=lambda x: np.quantile(x, 0.9))
def aggregate_is_quantile(self, t):
    return self.data["premium"]


def _last(x):
    return x[-1]


def _right_one(left, right):
    return right


# Associative, hence a proper aggregate: the last row of the portfolio.
@case(
    lambda d, t: near(d["premium"][-1]),
    agg=hl.Aggregate(map=_last, combine=_right_one, finalise=float),
)
def aggregate_keeps_the_last(self, t):
    return self.data["premium"]
