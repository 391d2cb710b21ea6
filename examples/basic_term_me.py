"""The monthly term model of lifelib's BasicTerm_ME, as an ``hl.Model``.

The model points and the assumption tables are those that the PyPI package ``lifelib`` ships; the
formulas are written anew. Run as a script, it projects the 10,000 model points with several chunk
sizes and schedulers, and shows that the present value of net cash flows is 215,146,132.068 each
time, to the last bit::

    python examples/basic_term_me.py
"""

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd

import hl_dask as hl

COLUMNS = ["age_at_entry", "policy_term", "policy_count", "sum_assured", "duration_mth"]
BLOCK_ROWS = 1024  # small, so that 10,000 model points make ten blocks


class BasicTermME(hl.Model):
    """In-force and future new business of a monthly term assurance, without a reserve.

    ``duration_mth`` counts the months since issue and is negative for a policy that is not issued
    yet. Amounts are in the currency of the sums assured, rates are per year unless the name ends
    with ``_mth``, month ``t`` runs from time ``t`` to time ``t + 1``.

    Assumptions
    -----------
    mort_table : hl.Table
        Annual mortality rate by attained age and years since issue (select period of five years).
    premium_table : hl.Table
        Monthly premium per unit of sum assured by age at entry and policy term.
    zero_spot : array of shape (years,)
        Annual zero spot rates by year.
    """

    expense_acq = 300.0  # per new policy
    expense_maint = 60.0  # per policy and year
    inflation_rate = 0.01
    months = 277  # terms of 20 years, issued up to 36 months ahead, and the month of maturity

    # What is reported: the totals of each month, and the present value of each policy.

    @hl.rollup("first")
    def pols_if(self, t):
        return self.pols_if_at(t, "BEF_MAT")

    @hl.rollup("sum")
    def premiums(self, t):
        return self.premium_pp() * self.pols_if_at(t, "BEF_DECR")

    @hl.rollup("sum")
    def claims(self, t):
        return self.claim_pp(t) * self.pols_death(t)

    @hl.rollup("sum")
    def expenses(self, t):
        acquisition = self.expense_acq * self.pols_new_biz(t)
        maintenance = self.expense_maint / 12 * self.inflation_factor(t)
        return acquisition + maintenance * self.pols_if_at(t, "BEF_DECR")

    @hl.rollup("sum")
    def commissions(self, t):
        return (self.duration(t) == 0) * self.premiums(t)

    @hl.rollup("sum")
    def net_cf(self, t):
        return self.premiums(t) - self.claims(t) - self.expenses(t) - self.commissions(t)

    def pv_net_cf(self):
        return sum(self.net_cf(t) * self.disc_factor(t) for t in range(self.months))

    # Policies in force at the three points of a month, and what happens between them.

    @hl.agg(None)
    def pols_if_at(self, t, timing):
        if timing == "BEF_MAT":
            if t == 0:
                return self.pols_if_init()
            return (
                self.pols_if_at(t - 1, "BEF_DECR") - self.pols_lapse(t - 1) - self.pols_death(t - 1)
            )
        if timing == "BEF_NB":
            return self.pols_if_at(t, "BEF_MAT") - self.pols_maturity(t)
        if timing == "BEF_DECR":
            return self.pols_if_at(t, "BEF_NB") + self.pols_new_biz(t)
        raise ValueError(timing)

    @hl.agg(None)
    def pols_if_init(self):
        return np.where(self.duration_mth(0) > 0, self.data["policy_count"], 0)

    @hl.agg(None)
    def pols_maturity(self, t):
        return (self.duration_mth(t) == 12 * self.data["policy_term"]) * self.pols_if_at(
            t, "BEF_MAT"
        )

    @hl.agg(None)
    def pols_new_biz(self, t):
        return np.where(self.duration_mth(t) == 0, self.data["policy_count"], 0)

    @hl.agg(None)
    def pols_death(self, t):
        return self.pols_if_at(t, "BEF_DECR") * self.mort_rate_mth(t)

    @hl.agg(None)
    def pols_lapse(self, t):
        return (self.pols_if_at(t, "BEF_DECR") - self.pols_death(t)) * self.lapse_rate_mth(t)

    # The policy.

    @hl.agg(None)
    def duration_mth(self, t):
        return self.data["duration_mth"] + t

    @hl.agg(None)
    def duration(self, t):
        return self.duration_mth(t) // 12

    @hl.agg(None)
    def age(self, t):
        return self.data["age_at_entry"] + self.duration(t)

    @hl.agg(None)
    def claim_pp(self, t):
        return self.data["sum_assured"]

    @hl.agg(None)
    def premium_pp(self):
        rate = self.premium_table[self.data["age_at_entry"], self.data["policy_term"]]
        return np.round(self.data["sum_assured"] * rate, 2)

    # The assumptions.

    @hl.agg(None)
    def mort_rate(self, t):
        return self.mort_table[self.age(t), np.minimum(self.duration(t), 5)]

    @hl.agg(None)
    def mort_rate_mth(self, t):
        return 1 - (1 - self.mort_rate(t)) ** (1 / 12)

    @hl.agg(None)
    def lapse_rate(self, t):
        return np.maximum(0.1 - 0.02 * self.duration(t), 0.02)

    @hl.agg(None)
    def lapse_rate_mth(self, t):
        return 1 - (1 - self.lapse_rate(t)) ** (1 / 12)

    @hl.agg(None)
    def inflation_factor(self, t):
        return (1 + self.inflation_rate) ** (t / 12)

    @hl.agg(None)
    def disc_rate_mth(self, t):
        return (1 + self.zero_spot[t // 12]) ** (1 / 12) - 1

    @hl.agg(None)
    def disc_factor(self, t):
        return (1 + self.disc_rate_mth(t)) ** -t


def read_lifelib_table(name: str) -> pd.DataFrame:
    """One of the workbooks of BasicTerm_ME in the installed lifelib."""
    # find_spec, because importing lifelib itself is neither needed nor quick.
    spec = importlib.util.find_spec("lifelib")
    if spec is None or spec.origin is None:
        message = "the model points come with lifelib: pip install lifelib openpyxl"
        raise SystemExit(message)
    folder = Path(spec.origin).parent / "libraries" / "basiclife" / "BasicTerm_ME"
    return pd.read_excel(folder / f"{name}.xlsx")


def read_model_points() -> pd.DataFrame:
    """Lifelib's 10,000 model points: ages, terms and durations, policies and sums assured."""
    return read_lifelib_table("model_point_table")[COLUMNS]


def read_assumptions() -> dict[str, object]:
    """Lifelib's tables, as the keyword arguments of `BasicTermME`.

    The keys of the mortality table are bounded: a policy that is not issued yet is looked up at
    the edge of the table. Nobody is in force then, so the rate does not matter.
    """
    mort = read_lifelib_table("mort_table").melt("Age", var_name="duration", value_name="rate")
    mort = mort.astype({"duration": int})
    premium = read_lifelib_table("premium_table")
    premium["age_at_entry"] = premium["age_at_entry"].ffill().astype(int)  # merged cells
    return {
        "mort_table": hl.Table(
            mort.rename(columns={"Age": "age|int_bound", "duration": "duration|int_bound"})
        ),
        "premium_table": hl.Table(
            premium.rename(
                columns={"age_at_entry": "age_at_entry|int", "policy_term": "policy_term|int_cat"}
            )
        ),
        "zero_spot": read_lifelib_table("disc_rate_ann")["zero_spot"].to_numpy(),
    }


def main() -> None:
    """Project with chunks of one block, three blocks and all blocks, on both local schedulers."""
    model = BasicTermME(data=read_model_points(), **read_assumptions())
    blocks = -(-len(model.data) // BLOCK_ROWS)
    bits = set()
    for scheduler in ("synchronous", "threads"):
        for chunk_blocks in (1, 3, blocks):
            result = model.ExecuteActions(
                proj_len=model.months - 1,
                scheduler=scheduler,
                block_rows=BLOCK_ROWS,
                chunk_blocks=chunk_blocks,
            )
            pv = float(result.values["pv_net_cf"])
            bits.add((pv.hex(), result.df_agg.to_numpy(dtype=float).tobytes()))
            print(f"{scheduler:<12} {chunk_blocks:>2} of {blocks} blocks per chunk: {pv:,.3f}")
    print("the bits agree everywhere" if len(bits) == 1 else f"{len(bits)} different results")
    if len(bits) != 1:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
