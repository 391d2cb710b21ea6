"""The peer's model: BasicTerm_ME for heavylight's ``LightModel``, as its users would write it.

It has the formulas of ``examples/basic_term_me.py``, one for one, so that both engines do the same
work on each policy and month. Look-ups are plain NumPy indexing, which is the fastest that
heavylight offers (its own tables check every key). The present value is taken from the monthly
totals after the run: summing ``net_cf(t)`` over the months in a formula would keep all of them in
heavylight's cache.
"""

from typing import Any

import heavylight
import numpy as np
from heavylight import agg
from numpy.typing import NDArray


class BasicTermLight(heavylight.LightModel):
    """Monthly term assurance; see ``examples/basic_term_me.py`` for the units."""

    expense_acq = 300.0
    expense_maint = 60.0
    inflation_rate = 0.01

    data: dict[str, NDArray[Any]]

    def __init__(self, assumptions: dict[str, NDArray[Any]]):
        super().__init__()
        self.mort_rates = assumptions["mort_rates"]  # (ages from 17, durations 0 to 5)
        self.premium_rates = assumptions["premium_rates"]  # (ages from 20, terms 10, 15, 20)
        self.zero_spot = assumptions["zero_spot"]

    def pols_if(self, t):
        return self.pols_if_at(t, "BEF_MAT")

    def premiums(self, t):
        return self.premium_pp() * self.pols_if_at(t, "BEF_DECR")

    def claims(self, t):
        return self.claim_pp(t) * self.pols_death(t)

    def expenses(self, t):
        acquisition = self.expense_acq * self.pols_new_biz(t)
        maintenance = self.expense_maint / 12 * self.inflation_factor(t)
        return acquisition + maintenance * self.pols_if_at(t, "BEF_DECR")

    def commissions(self, t):
        return (self.duration(t) == 0) * self.premiums(t)

    def net_cf(self, t):
        return self.premiums(t) - self.claims(t) - self.expenses(t) - self.commissions(t)

    @agg(None)
    def pols_if_at(self, t, timing):
        if timing == "BEF_MAT":
            if t == 0:
                return self.pols_if_init()
            return (
                self.pols_if_at(t - 1, "BEF_DECR") - self.pols_lapse(t - 1) - self.pols_death(t - 1)
            )
        if timing == "BEF_NB":
            return self.pols_if_at(t, "BEF_MAT") - self.pols_maturity(t)
        return self.pols_if_at(t, "BEF_NB") + self.pols_new_biz(t)

    @agg(None)
    def pols_if_init(self):
        return np.where(self.duration_mth(0) > 0, self.data["policy_count"], 0)

    @agg(None)
    def pols_maturity(self, t):
        return (self.duration_mth(t) == 12 * self.data["policy_term"]) * self.pols_if_at(
            t, "BEF_MAT"
        )

    @agg(None)
    def pols_new_biz(self, t):
        return np.where(self.duration_mth(t) == 0, self.data["policy_count"], 0)

    @agg(None)
    def pols_death(self, t):
        return self.pols_if_at(t, "BEF_DECR") * self.mort_rate_mth(t)

    @agg(None)
    def pols_lapse(self, t):
        return (self.pols_if_at(t, "BEF_DECR") - self.pols_death(t)) * self.lapse_rate_mth(t)

    @agg(None)
    def duration_mth(self, t):
        return self.data["duration_mth"] + t

    @agg(None)
    def duration(self, t):
        return self.duration_mth(t) // 12

    @agg(None)
    def age(self, t):
        return self.data["age_at_entry"] + self.duration(t)

    @agg(None)
    def claim_pp(self, t):
        return self.data["sum_assured"]

    @agg(None)
    def premium_pp(self):
        rate = self.premium_rates[self.data["age_at_entry"] - 20, self.data["policy_term"] // 5 - 2]
        return np.round(self.data["sum_assured"] * rate, 2)

    @agg(None)
    def mort_rate(self, t):
        # A negative duration wraps to some other column; nobody is in force then.
        return self.mort_rates[self.age(t) - 17, np.minimum(self.duration(t), 5)]

    @agg(None)
    def mort_rate_mth(self, t):
        return 1 - (1 - self.mort_rate(t)) ** (1 / 12)

    @agg(None)
    def lapse_rate(self, t):
        return np.maximum(0.1 - 0.02 * self.duration(t), 0.02)

    @agg(None)
    def lapse_rate_mth(self, t):
        return 1 - (1 - self.lapse_rate(t)) ** (1 / 12)

    @agg(None)
    def inflation_factor(self, t):
        return (1 + self.inflation_rate) ** (t / 12)

    @agg(None)
    def disc_rate_mth(self, t):
        return (1 + self.zero_spot[t // 12]) ** (1 / 12) - 1

    def disc_factor(self, t):
        return (1 + self.disc_rate_mth(t)) ** -t
