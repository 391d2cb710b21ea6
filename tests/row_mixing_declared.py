"""Formulas that mix rows and declare, wrongly, that they work row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from tests.reference import total
from tests.row_mixing_case import Register
from tests.row_mixing_order import _ranks

DECLARED = Register(declared=True)
case = DECLARED.case


@case(lambda d, t: total(d["premium"] / d["premium"].sum()))
def declared_share(self, t):
    x = pd.Series(np.asarray(self.data["premium"]))
    return (x / x.sum()).to_numpy()


@case(lambda d, t: total(_ranks(d["premium"])))
def declared_rank(self, t):
    return pd.Series(np.asarray(self.data["premium"])).rank().to_numpy()


@case(lambda d, t: total(np.cumsum(d["age"])))
def declared_cumsum(self, t):
    return np.asarray(self.data["age"]).cumsum()


@case(lambda d, t: total(np.sort(d["premium"]) * d["age"]))
def declared_sort(self, t):
    return np.array(sorted(np.asarray(self.data["premium"]).tolist())) * self.data["age"]


@case(lambda d, t: total(d["premium"][::-1] * d["age"]))
def declared_reversal(self, t):
    return np.asarray(self.data["premium"])[::-1] * self.data["age"]


@case(lambda d, t: total(d["premium"] - d["premium"][0]))
def declared_first_row(self, t):
    x = np.asarray(self.data["premium"])
    return x - x[0]


@case(lambda d, t: total(d["premium"] / len(d["age"])))
def declared_row_count(self, t):
    return np.asarray(self.data["premium"]) / len(self.data)


@case(lambda d, t: total(d["premium"] / d["premium"].max()))
def declared_over_max(self, t):
    x = np.asarray(self.data["premium"])
    return x / x.max()


@case(lambda d, t: total(np.searchsorted(np.unique(d["age"]), d["age"])))
def declared_codes(self, t):
    return np.unique(np.asarray(self.data["age"]), return_inverse=True)[1]


@case(lambda d, t: total(pd.qcut(d["premium"], 4, labels=False)))
def declared_quantile_bands(self, t):
    return pd.qcut(np.asarray(self.data["premium"]), 4, labels=False, duplicates="drop")


@case(lambda d, t: total(np.concatenate([[0.0], np.diff(d["premium"])]) * d["age"]))
def declared_differences(self, t):
    return (
        np.diff(self.data["premium"], prepend=np.asarray(self.data["premium"])[:1])
        * (self.data["age"])
    )


@case(lambda d, t: total(np.concatenate([[0.0], d["premium"][:-1]]) * d["age"]))
def declared_shift(self, t):
    x = pd.Series(np.asarray(self.data["premium"])).shift(1, fill_value=0.0)
    return x.to_numpy() * self.data["age"]


def _group_means(d):
    sums = np.bincount(d["group"], d["premium"])
    return (sums / np.maximum(np.bincount(d["group"]), 1))[d["group"]]


@case(lambda d, t: total(_group_means(d) * d["age"]))
def declared_group_mean(self, t):
    frame = pd.DataFrame({"g": self.data["group"], "x": np.asarray(self.data["premium"])})
    return frame.groupby("g")["x"].transform("mean").to_numpy() * self.data["age"]


@case(None)
def declared_random(self, t):
    return np.asarray(self.data["premium"]) * np.random.default_rng().uniform(size=len(self.data))


@case(lambda d, t: total(d["premium"] * np.random.default_rng(5).uniform(size=len(d["age"]))))
def declared_seeded_random(self, t):
    draws = np.random.default_rng(5).uniform(size=len(self.data))
    return np.asarray(self.data["premium"]) * draws


@case(lambda d, t: total(np.where(np.isnan(d["lapse"]), np.nanmean(d["lapse"]), d["lapse"])))
def declared_fill_with_mean(self, t):
    x = pd.Series(np.asarray(self.data["lapse"]))
    return x.fillna(x.mean()).to_numpy()


@case(lambda d, t: total(pd.Series(d["age"]).duplicated().to_numpy()))
def declared_duplicated(self, t):
    return pd.Series(np.asarray(self.data["age"])).duplicated().to_numpy()


@case(lambda d, t: total(np.arange(len(d["age"])) * d["age"]))
def declared_row_numbers(self, t):
    return np.array([i * age for i, age in enumerate(np.asarray(self.data["age"]).tolist())])


_COUNT: list[int] = []


@case(None, reset=lambda model: _COUNT.clear())
def declared_call_counter(self, t):
    _COUNT.append(t)
    return np.asarray(self.data["premium"]) * len(_COUNT)


def _loop(x: Any) -> Any:
    out = np.zeros(len(x))
    account = 0.0
    for i, value in enumerate(np.asarray(x).tolist()):
        account = 0.5 * account + value
        out[i] = account
    return out


@case(lambda d, t: total(_loop(d["premium"])))
def declared_running_loop(self, t):
    return _loop(self.data["premium"])


@case(lambda d, t: total(np.median(d["premium"]) * d["age"]))
def declared_median(self, t):
    return float(np.median(np.asarray(self.data["premium"]))) * np.asarray(self.data["age"])


# Right by rows: a declaration that is true has to be accepted.


@case(lambda d, t: total(np.where(d["age"] > 45, d["premium"], 0.0)), "right")
def declared_truly(self, t):
    rows = zip(self.data["age"], self.data["premium"], strict=True)
    return np.array([premium if age > 45 else 0.0 for age, premium in rows])


@case(lambda d, t: total(np.where(d["product"] == "RARE", 9.0, 1.0)), "right")
def declared_truly_on_text(self, t):
    return np.array([9.0 if p == "RARE" else 1.0 for p in self.data["product"]])
