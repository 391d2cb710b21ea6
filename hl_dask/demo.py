# mypy: allow-untyped-defs, allow-untyped-calls, allow-subclassing-any
"""The demonstration: a term assurance model, invented assumptions and a random portfolio.

The model is written as a user would write it, without annotations; ``examples/term_assurance``
explains it formula by formula. It lives here because ``hl-dask demo`` has to work from a wheel.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import hl_dask as hl

MONTHS = 277
ROW_GROUP_ROWS = 65_536
FILE_ROWS = 16 * ROW_GROUP_ROWS

_SEXES = ("F", "M")
_TERMS = (10, 15, 20, 25)  # years
_SCHEMA = pa.schema(
    [
        ("age_at_entry", pa.int32()),
        ("sex", pa.string()),
        ("policy_term", pa.int32()),
        ("duration_mth", pa.int32()),
        ("sum_assured", pa.float64()),
        ("premium_mth", pa.float64()),
    ]
)


class TermAssurance(hl.Model):
    """Monthly projection of term assurances in force; one row is one policy.

    Month ``t`` runs from time ``t`` to time ``t + 1``. Amounts are in one currency, rates are per
    year unless the name ends with ``_mth``.
    """

    mort_table: hl.Table  # by sex and attained age
    lapse_table: hl.Table  # by complete years since issue
    claim_expense = 250.0  # per death
    maintenance_expense = 60.0  # per policy and year, at time 0
    inflation_rate = 0.02
    commission_rate = 0.03  # of premiums
    interest_rate = 0.025
    months = MONTHS

    # Policies.

    @hl.rollup("first")
    def pols_if(self, t):
        """Policies in force at the start of month t."""
        if t == 0:
            left = 1.0
        else:
            left = self.pols_if(t - 1) - self.pols_death(t - 1) - self.pols_lapse(t - 1)
        return np.where(self.in_term(t), left, 0.0)

    @hl.rollup("sum")
    def pols_death(self, t):
        """Policies that end by death in month t."""
        return self.pols_if(t) * self.mort_rate_mth(t)

    @hl.rollup("sum")
    def pols_lapse(self, t):
        """Policies that lapse in month t, among those alive at its end."""
        return (self.pols_if(t) - self.pols_death(t)) * self.lapse_rate_mth(t)

    # Cash flows.

    @hl.rollup("sum")
    def premiums(self, t):
        """Premiums, paid at the start of month t."""
        return self.pols_if(t) * self.data["premium_mth"]

    @hl.rollup("sum")
    def claims(self, t):
        """Sums assured of the deaths of month t."""
        return self.pols_death(t) * self.data["sum_assured"]

    @hl.rollup("sum")
    def expenses(self, t):
        """Maintenance of the policies in force and settlement of claims, with inflation."""
        maintenance = self.pols_if(t) * (self.maintenance_expense / 12)
        return (maintenance + self.pols_death(t) * self.claim_expense) * self.inflation(t)

    @hl.rollup("sum")
    def commissions(self, t):
        """Commission on the premiums of month t."""
        return self.commission_rate * self.premiums(t)

    @hl.rollup("sum")
    def net_cf(self, t):
        """Net cash flow of month t."""
        return self.premiums(t) - self.claims(t) - self.expenses(t) - self.commissions(t)

    def pv_net_cf(self):
        """Present value at time 0 of the net cash flows of each policy."""
        return sum(self.net_cf(t) * self.disc_factor(t) for t in range(self.months))

    # What each policy is at time t.

    @hl.agg(None)
    def duration_mth(self, t):
        """Months since issue."""
        return self.data["duration_mth"] + t

    @hl.agg(None)
    def duration(self, t):
        """Complete years since issue."""
        return self.duration_mth(t) // 12

    @hl.agg(None)
    def age(self, t):
        """Attained age."""
        return self.data["age_at_entry"] + self.duration(t)

    @hl.agg(None)
    def in_term(self, t):
        """Whether the term has not ended yet."""
        return self.duration_mth(t) < 12 * self.data["policy_term"]

    # Assumptions.

    @hl.agg(None)
    def mort_rate_mth(self, t):
        """Monthly rate of mortality."""
        return 1 - (1 - self.mort_table[self.data["sex"], self.age(t)]) ** (1 / 12)

    @hl.agg(None)
    def lapse_rate_mth(self, t):
        """Monthly rate of lapse."""
        return 1 - (1 - self.lapse_table[self.duration(t)]) ** (1 / 12)

    @hl.agg(None)
    def inflation(self, t):
        """Increase of expenses since time 0."""
        return (1 + self.inflation_rate) ** (t / 12)

    @hl.agg(None)
    def disc_factor(self, t):
        """Discount factor from time t to time 0."""
        return (1 + self.interest_rate) ** (-t / 12)


def _annual_mortality(age: Any) -> Any:
    # Makeham's shape with invented parameters: a constant hazard and one that grows with age.
    return 0.0003 + 0.00004 * 1.1 ** (age - 20.0)


def assumptions() -> dict[str, Any]:
    """Tables for `TermAssurance`, as keyword arguments: annual rates of mortality and lapse."""
    ages = np.arange(20, 121)
    mort = pd.concat(
        pd.DataFrame({"sex|str": sex, "age|int": ages, "rate": factor * _annual_mortality(ages)})
        for sex, factor in zip(_SEXES, (0.8, 1.0), strict=True)
    )
    lapse = pd.DataFrame({"year|int_bound": range(6), "rate": [0.10, 0.08, 0.06, 0.05, 0.04, 0.03]})
    return {"mort_table": hl.Table(mort), "lapse_table": hl.Table(lapse)}


def portfolio(rows: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Random policies, as columns of one row group (65,536 rows) at a time.

    No policy has more than 276 months to run, so that 277 months see the last one out.
    """
    rng = np.random.default_rng(seed)
    for start in range(0, rows, ROW_GROUP_ROWS):
        count = min(ROW_GROUP_ROWS, rows - start)
        age = rng.integers(20, 60, count)
        term = rng.choice(_TERMS, count)
        sum_assured = np.round(rng.uniform(20_000, 500_000, count), -2)
        mortality = _annual_mortality(age + 0.6 * term)
        yield {
            "age_at_entry": age,
            "sex": rng.choice(_SEXES, count),
            "policy_term": term,
            "duration_mth": rng.integers(np.maximum(12 * term - (MONTHS - 1), 0), 12 * term),
            "sum_assured": sum_assured,
            "premium_mth": np.round(6 + sum_assured * (0.0005 + mortality) / 12, 2),
        }


def write_portfolio(folder: Path, rows: int, seed: int = 1) -> int:
    """Write a random portfolio as Parquet files of a million rows each, and return their bytes.

    One row group is in memory at a time.
    """
    groups = portfolio(rows, seed)
    written_bytes = 0
    for number in range(-(-rows // FILE_ROWS)):
        path = folder / f"policies-{number:04d}.parquet"
        with pq.ParquetWriter(path, _SCHEMA) as writer:
            for columns in islice(groups, FILE_ROWS // ROW_GROUP_ROWS):
                writer.write_table(pa.table(columns, schema=_SCHEMA), row_group_size=ROW_GROUP_ROWS)
        written_bytes += path.stat().st_size
    return written_bytes
