"""Row mixing by shape: folding, outer products, joins, searches in columns; escapes."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pandas as pd

import hl_dask as hl
from tests.reference import exact, near, total
from tests.row_mixing_case import Register

SHAPES = Register()
case = SHAPES.case

FEW = 2_000
"""Rows of the big data where the whole-array answer needs rows x rows."""


# --- products of rows with rows ----------------------------------------------------------------


@case(lambda d, t: total(np.outer(d["premium"], d["premium"])), rows=FEW)
def outer_by_broadcasting(self, t):
    x = self.data["premium"]
    return (x[:, None] * x[None, :]).sum()


@case(lambda d, t: total(d["premium"] * np.outer(d["fx"], d["fx"]).sum(axis=0)), rows=FEW)
def outer_summed_on_axis_0(self, t):
    fx = self.data["fx"]
    return (fx[:, None] * fx).sum(axis=0) * self.data["premium"]


@case(lambda d, t: total(np.multiply.outer(d["fx"], d["fx"])), rows=FEW)
def outer_by_ufunc(self, t):
    return np.multiply.outer(self.data["fx"], self.data["fx"]).sum()


@case(lambda d, t: total(np.outer(d["fx"], d["fx"])[:, 0]), rows=FEW)
def outer_by_function(self, t):
    return np.outer(self.data["fx"], self.data["fx"])[:, 0]


@case(lambda d, t: total(np.outer(d["fx"], d["fx"]) @ d["age"]), rows=FEW)
def gram_matrix(self, t):
    x = self.data["fx"][:, None]
    return (x @ x.T) @ self.data["age"]


@case(lambda d, t: total((d["premium"][:, None] > d["premium"]).sum(axis=1)), rows=FEW)
def ranked_by_comparison(self, t):
    x = self.data["premium"]
    return (x[:, None] > x[None, :]).sum(axis=1)


@case(lambda d, t: total(np.outer(d["fx"], d["age"])), rows=FEW)
def outer_by_einsum(self, t):
    return np.einsum("i,j->ij", self.data["fx"], self.data["age"]).sum()


@case(lambda d, t: total(d["premium"] * d["fx"]))
def dot_by_einsum(self, t):
    return np.einsum("i,i->", self.data["premium"], self.data["fx"])


@case(lambda d, t: total(d["premium"] * d["fx"]))
def inner_product(self, t):
    return np.inner(self.data["premium"], self.data["fx"])


@case(lambda d, t: total(d["premium"] * d["fx"]))
def tensor_product(self, t):
    return np.tensordot(self.data["premium"], self.data["fx"], axes=1)


@case(lambda d, t: total(np.kron(d["fx"][:5], d["fx"])[: 5 * FEW]), rows=FEW)
def kronecker(self, t):
    return np.kron(self.data["fx"][:5], self.data["fx"]).sum()


@case(lambda d, t: total(d["age"] * np.corrcoef(d["age"], d["premium"])[0, 1]))
def correlation(self, t):
    return self.data["age"] * np.corrcoef(self.data["age"], self.data["premium"])[0, 1]


@case(lambda d, t: total(d["age"] * np.cov(d["age"], d["fx"])[0, 0]))
def covariance(self, t):
    return self.data["age"] * np.cov(self.data["age"], self.data["fx"])[0, 0]


@case(lambda d, t: total(d["age"] * np.polyfit(d["age"], d["fx"], 1)[1]))
def regression(self, t):
    return self.data["age"] * np.polyfit(self.data["age"], self.data["fx"], 1)[1]


@case(lambda d, t: total(np.abs(np.fft.rfft(d["premium"]))[:5]))
def fourier(self, t):
    return np.abs(np.fft.rfft(self.data["premium"]))[:5].sum()


@case(lambda d, t: total(d["premium"] * math.prod((1 + 1e-6 * d["age"]).tolist())))
def product_of_rows(self, t):
    return self.data["premium"] * np.prod(1 + 1e-6 * self.data["age"])


@case(lambda d, t: near(float(np.log(np.sum(np.exp(d["fx"]))))))
def log_sum_exp(self, t):
    return np.logaddexp.reduce(self.data["fx"])


@case(lambda d, t: exact(int(np.bitwise_xor.reduce(d["age"]))))
def xor_of_rows(self, t):
    return np.bitwise_xor.reduce(self.data["age"])


@case(lambda d, t: total(d["premium"]))
def sum_by_reduce(self, t):
    return np.add.reduce(self.data["premium"])


@case(lambda d, t: total(d["premium"][d["age"] > 45]))
def sum_with_where(self, t):
    return np.sum(self.data["premium"], where=self.data["age"] > 45)


@case(lambda d, t: total(d["premium"]) + near(100.0))
def sum_with_initial(self, t):
    return self.data["premium"].sum(initial=100.0)


# --- folding and joining rows ------------------------------------------------------------------


@case(lambda d, t: total(d["premium"][0::2] * d["premium"][1::2]))
def folded_in_pairs(self, t):
    pairs = self.data["premium"].reshape(-1, 2)
    return (pairs[:, 0] * pairs[:, 1]).sum()


@case(lambda d, t: total(np.maximum(d["premium"][:50_000], d["premium"][50_000:])))
def folded_in_halves(self, t):
    return self.data["premium"].reshape(2, -1).max(axis=0).sum()


@case(lambda d, t: total(d["premium"] * d["age"]))
def reshaped_to_a_column(self, t):
    return (self.data["premium"].reshape(-1, 1) * self.data["age"].reshape(-1, 1))[:, 0]


@case(lambda d, t: total(d["premium"] * 3))
def reshaped_by_row_count(self, t):
    both = self.data["premium"].reshape(len(self.data), 1) * np.ones((1, 3))
    return both.sum(axis=1)


@case(lambda d, t: total(np.sort(d["premium"])[:7] * np.arange(7)))
def split_and_sorted(self, t):
    return (np.sort(self.data["premium"])[:7] * np.arange(7)).sum()


@case(lambda d, t: total(np.array([2 * d["premium"][:50_000], 3 * d["premium"][50_000:]])))
def split_in_two(self, t):
    first, second = np.split(self.data["premium"], 2)
    return 2 * first.sum() + 3 * second.sum()


@case(lambda d, t: total(np.stack([d["premium"], d["premium"]])))
def joined_to_itself(self, t):
    x = self.data["premium"]
    return np.concatenate([x, x]).sum()


@case(lambda d, t: total(np.stack([d["premium"]] * 3)))
def tiled(self, t):
    return np.tile(self.data["premium"], 3).sum()


@case(lambda d, t: total(np.repeat(d["premium"], d["group"])))
def repeated_by_a_column(self, t):
    return np.repeat(self.data["premium"], self.data["group"]).sum()


@case(lambda d, t: total(np.repeat(d["premium"], 2)[: len(d["age"])] * d["age"]))
def repeated_and_cut(self, t):
    return np.repeat(self.data["premium"], 2)[: len(self.data)] * self.data["age"]


@case(lambda d, t: total(d["premium"][:1_000]))
def resized(self, t):
    return np.resize(self.data["premium"], 1_000).sum()


@case(lambda d, t: total(d["premium"]))
def padded(self, t):
    return np.pad(self.data["premium"], 2).sum()


@case(lambda d, t: total(d["premium"] * d["age"]))
def stacked_on_axis_0(self, t):
    both = np.stack([self.data["premium"], self.data["age"]])
    return both[0] * both[1]


@case(lambda d, t: total(np.maximum(d["premium"], d["age"])))
def maximum_of_a_stack(self, t):
    return np.stack([self.data["premium"], self.data["age"]]).max(axis=0)


@case(lambda d, t: total(np.maximum(d["premium"], d["age"])))
def maximum_of_a_list(self, t):
    return np.max([self.data["premium"], self.data["age"]], axis=0)


@case(lambda d, t: total(np.maximum(d["premium"], d["age"])))
def maximum_by_reduce(self, t):
    return np.maximum.reduce([self.data["premium"], self.data["age"]])


@case(lambda d, t: total(np.maximum(d["premium"], d["age"])))
def maximum_of_an_array(self, t):
    return np.array([self.data["premium"], self.data["age"]]).max(axis=0)


@case(lambda d, t: total(d["premium"] + d["age"]))
def column_stack(self, t):
    return np.column_stack([self.data["premium"], self.data["age"]]).sum(axis=1)


@case(lambda d, t: total(d["premium"] * np.array([0.5, 2.0])[:, None]))
def transposed(self, t):
    both = self.data["premium"][:, None] * np.array([0.5, 2.0])
    return both.T[0] + both.T[1]


@case(lambda d, t: total(np.stack([d["premium"] * 0.5, d["premium"] * 2.0], axis=1).ravel()[:5]))
def ravelled(self, t):
    both = self.data["premium"][:, None] * np.array([0.5, 2.0])
    return both.ravel()[:5].sum()


@case(lambda d, t: total(d["premium"] * 3))
def new_axis_in_front(self, t):
    x = self.data["premium"][None, :]
    return (x * np.array([[1.0], [2.0]])).sum(axis=0)


@case(lambda d, t: total(np.stack([d["premium"]] * 3)))
def broadcast_to_new_axis(self, t):
    return np.broadcast_to(self.data["premium"], (3, len(self.data))).sum()


@case(lambda d, t: total(d["premium"] * 2 + d["age"]))
def swapped_axes(self, t):
    both = np.stack([self.data["premium"] * 2, self.data["age"] * 1.0], axis=1)
    return both.swapaxes(0, 1).sum(axis=0)


@case(lambda d, t: total(d["premium"] * (1.0 + 3.0 + 6.0)))
def cumulative_over_scenarios(self, t):
    both = self.data["premium"][:, None] * np.array([1.0, 2.0, 3.0])
    return both.cumsum(axis=1).sum(axis=1)


@case(lambda d, t: total(d["premium"] * 2.0))
def median_over_scenarios(self, t):
    both = self.data["premium"][:, None] * np.array([1.0, 2.0, 3.0])
    return np.median(both, axis=1)


@case(lambda d, t: total(np.where(d["premium"] > 0, 1.0, 3.0) * d["premium"]))
def sorted_over_scenarios(self, t):
    both = self.data["premium"][:, None] * np.array([3.0, 1.0, 2.0])
    return np.sort(both, axis=1)[:, 0]


@case(lambda d, t: total(np.cumsum(d["age"]) * 3))
def cumulative_over_rows_of_two_axes(self, t):
    both = self.data["age"][:, None] * np.array([1, 2])
    return both.cumsum(axis=0).sum(axis=1)


@case(lambda d, t: total(np.sort(d["premium"]) * d["age"]))
def sorted_over_rows_of_two_axes(self, t):
    both = np.stack([self.data["premium"], self.data["fx"]], axis=1)
    return np.sort(both, axis=0)[:, 0] * self.data["age"]


@case(lambda d, t: near(float(np.median(d["premium"]))))
def median_over_rows_of_two_axes(self, t):
    both = np.stack([self.data["premium"], self.data["fx"]], axis=1)
    return np.median(both, axis=0)[0]


# --- searches in columns -----------------------------------------------------------------------


@case(lambda d, t: total(np.searchsorted(np.sort(d["age"]), d["group"] * 8)))
def searched_in_sorted_column(self, t):
    return np.searchsorted(np.sort(self.data["age"]), self.data["group"] * 8)


@case(lambda d, t: total(d["group"]))
def searched_in_row_numbers(self, t):
    return np.searchsorted(np.arange(len(self.data)), self.data["group"])


def _searched_unsorted(d):
    return np.searchsorted(np.maximum.accumulate(d["age"]), d["group"] * 8)


@case(lambda d, t: total(_searched_unsorted(d)))
def searched_in_running_maximum(self, t):
    return np.searchsorted(np.maximum.accumulate(self.data["age"]), self.data["group"] * 8)


@case(lambda d, t: total(np.interp(d["age"], np.cumsum(d["fx"]), d["premium"])))
def interpolated_in_columns(self, t):
    return np.interp(self.data["age"], np.cumsum(self.data["fx"]), self.data["premium"])


@case(lambda d, t: total(np.interp(35.0, np.arange(FEW), d["premium"]) * d["age"]), rows=FEW)
def interpolated_in_values_of_rows(self, t):
    places = np.arange(len(self.data))
    return np.interp(35.0, places, self.data["premium"]) * self.data["age"]


@case(lambda d, t: total(np.digitize(d["age"], np.unique(d["term"]))))
def digitised_in_columns(self, t):
    return np.digitize(self.data["age"], np.unique(self.data["term"]))


@case(lambda d, t: total(np.where(d["age"] > 45, d["premium"], 0.0)))
def put_with_mask(self, t):
    out = np.zeros(len(self.data))
    old = self.data["age"] > 45
    out[old] = self.data["premium"][old]
    return out


@case(lambda d, t: total(np.where(d["age"] > 45, 2.5, 0.0)))
def set_with_mask(self, t):
    out = np.zeros(len(self.data))
    out[self.data["age"] > 45] = 2.5
    return out


@case(lambda d, t: total(d["premium"] * 2))
def set_by_slice(self, t):
    out = np.empty(len(self.data))
    out[:] = self.data["premium"] * 2
    return out


@case(lambda d, t: total(d["premium"] + 1.0))
def written_by_out(self, t):
    return np.add(self.data["premium"], 1.0, out=np.empty(len(self.data)))


@case(lambda d, t: total(np.where(d["age"] > 45, d["premium"], 7.0)))
def copied_by_copyto(self, t):
    out = np.full(len(self.data), 7.0)
    np.copyto(out, self.data["premium"], where=self.data["age"] > 45)
    return out


@case(lambda d, t: total(np.where(d["age"] > 45, 1.0, d["premium"])))
def put_by_putmask(self, t):
    out = self.data["premium"].copy()
    np.putmask(out, self.data["age"] > 45, 1.0)
    return out


@case(lambda d, t: total(np.where(d["age"] > 45, 0.0, d["premium"]) / (d["age"] <= 45).sum()))
def masked_array_mean(self, t):
    return np.ma.masked_array(self.data["premium"], mask=self.data["age"] > 45).mean()


@case(lambda d, t: total(np.where(d["premium"] < 0, -1.0, np.sqrt(np.abs(d["premium"])))))
def piecewise(self, t):
    return np.piecewise(
        self.data["premium"],
        [self.data["premium"] < 0],
        [lambda x: -1.0, lambda x: np.sqrt(np.abs(x))],
    )


# --- escapes that are right by rows ------------------------------------------------------------


@case(lambda d, t: total(np.where(d["age"] > 45, 2.0, d["age"])))
def vectorised_undeclared(self, t):
    return np.vectorize(lambda age: 2.0 if age > 45 else float(age))(self.data["age"])


@case(lambda d, t: total(d["age"] * 2))
def from_pyfunc(self, t):
    return np.frompyfunc(lambda age: int(age) * 2, 1, 1)(self.data["age"]).astype(np.int64)


@case(lambda d, t: total(np.maximum(d["premium"], 0.0)))
def clipped_by_pandas(self, t):
    return pd.Series(self.data["premium"]).clip(lower=0.0).to_numpy()


@case(lambda d, t: total(d["premium"] * 2))
def series_returned(self, t):
    return pd.Series(self.data["premium"]) * 2


@case(lambda d, t: total(d["premium"] * 2))
def asarray_first(self, t):
    return np.asarray(self.data["premium"]) * 2


@case(lambda d, t: total(d["premium"] / d["premium"].max()))
def asarray_then_max(self, t):
    x = np.asarray(self.data["premium"])
    return x / x.max()


@case(lambda d, t: total(d["premium"] / d["premium"].max()))
def array_copy_then_max(self, t):
    x = np.array(self.data["premium"], dtype=float)
    return x / x.max()


@case(lambda d, t: total(d["premium"] / d["premium"].max()))
def frame_then_max(self, t):
    frame = self.data.frame()
    return (frame["premium"] / frame["premium"].max()).to_numpy()


@case(lambda d, t: total(d["age"] * (d["premium"] - d["premium"][0])))
def asarray_then_first_row(self, t):
    x = np.asarray(self.data["premium"])
    return self.data["age"] * (x - x[0])


@case(lambda d, t: total(d["premium"] * 1.0 + d["age"]))
def applied_by_frame(self, t):
    return self.data.frame()[["premium", "age"]].sum(axis=1).to_numpy()


@case(lambda d, t: total(d["premium"] * np.where(d["sex"] == "M", 2.0, 3.0)))
def mapped_by_pandas(self, t):
    factors = pd.Series(np.asarray(self.data["sex"])).map({"M": 2.0, "F": 3.0}).to_numpy()
    return factors * self.data["premium"]


@case(lambda d, t: total((d["product"] == "GROUP") * d["premium"]))
def text_starts_with(self, t):
    return (
        np.char.startswith(np.asarray(self.data["product"], dtype=str), "GR")
        * (self.data["premium"])
    )


@case(
    lambda d, t: total(np.linspace(0, 1, 98)[d["age"]]),
    assumptions=lambda: {"settings": {"curve": np.linspace(0, 1, 98)}},
)
def gather_in_a_nested_array(self, t):
    return self.settings["curve"][self.data["age"]]


@case(lambda d, t: total(np.linspace(0, 1, 98)[d["age"]]))
def gather_in_a_local_array(self, t):
    return np.linspace(0, 1, 98)[self.data["age"]]


@case(lambda d, t: total(np.linspace(0, 1, 98)[d["age"]]))
def gather_by_take_of_an_array(self, t):
    return np.linspace(0, 1, 98).take(self.data["age"])


@case(lambda d, t: total(np.searchsorted([20, 30, 40], d["age"])))
def search_by_method_of_an_array(self, t):
    return np.array([20, 30, 40]).searchsorted(self.data["age"])


@case(lambda d, t: total(np.array([1.5, 2.5, 3.5])[d["age"] % 3]))
def gather_in_a_list(self, t):
    return np.array([[1.5, 2.5, 3.5][age % 3] for age in self.data["age"].tolist()])


@case(lambda d, t: total(np.full(len(d["age"]), 1.5) * d["age"]))
def plain_list_as_long_as_rows(self, t):
    return np.array([1.5] * len(self.data)) * self.data["age"]


@case(lambda d, t: total(np.where(np.arange(len(d["age"])) == 0, 5.0, 1.0) * d["age"]))
def one_special_row(self, t):
    weights = np.ones(len(self.data))
    weights[0] = 5.0
    return weights * self.data["age"]


@case(lambda d, t: total(np.where(np.arange(len(d["age"])) == 70_000, 5.0, 1.0) * d["age"]))
def one_special_row_beyond_the_sample(self, t):
    weights = np.ones(len(self.data))
    if len(weights) > 70_000:
        weights[70_000] = 5.0
    return weights * self.data["age"]


@case(lambda d, t: total(np.loadtxt(io.StringIO("\n".join(map(str, d["age"].tolist()))))))
def through_text(self, t):
    text = io.StringIO("\n".join(map(str, self.data["age"].tolist())))
    return np.loadtxt(text)


def _scaled(x: Any) -> Any:
    return x / x.max()


@case(lambda d, t: total(d["premium"] / d["premium"].max()))
def applied_along_the_rows(self, t):
    return np.apply_along_axis(_scaled, 0, self.data["premium"])


@case(lambda d, t: total(np.abs(d["premium"]).view(np.int64) >> 52))
def exponent_bits(self, t):
    return np.abs(self.data["premium"]).view(np.int64) >> 52


class Standardised(hl.Model):
    @hl.agg(None)
    def centre(self, t):
        return np.asarray(self.data["premium"]).mean()

    @hl.agg(None)
    def order(self, t):
        return np.argsort(np.asarray(self.data["premium"]), kind="stable")


@case(lambda d, t: total(np.maximum(d["premium"], d["premium"].mean())), base=Standardised)
def escape_in_another_formula(self, t):
    return np.maximum(self.data["premium"], self.centre(t))


@case(lambda d, t: total(np.argsort(d["premium"], kind="stable") * d["age"]), base=Standardised)
def order_in_another_formula(self, t):
    return self.order(t) * self.data["age"]
