"""A with-profits business of three funds, whose bonus depends each month on assets and guarantees.

Premiums go into the fund of the policy and earn what the fund earns. Each month a fund declares a
bonus, which is added to what is guaranteed: a share of what its assets are above its guaranteed
benefits. So every month needs totals over all policies, fund by fund, before any policy can go on::

    python examples/with_profits.py

Run as a script, it projects 100,000 random policies over 120 months with several chunk sizes, next
to straight NumPy on whole arrays, and the same with 20 economic scenarios.
"""

from typing import Any

import numpy as np

import hl_dask as hl

FUNDS = ("bonds", "mixed", "shares")
MONTHS = 120
SCENARIOS = 20
BONUS_SHARE, HIGHEST_BONUS = 0.01, 0.005  # of the surplus, and of the guaranteed benefit, a month


class WithProfits(hl.Model):
    """Three funds with a monthly bonus.

    Assumptions
    -----------
    returns : array of shape (months, funds) or (months, funds, scenarios)
        Monthly return of each fund.
    """

    @hl.rollup("last")
    def assets(self, t):
        if t == 0:
            return self._per_scenario(self.data["assets"]) * np.ones(self.returns.shape[2:])
        earned = self.assets(t - 1) * (1 + self._of_fund(self.returns[t - 1]))
        return (earned + self.paying(t - 1)) * self.in_force(t)

    @hl.rollup("last")
    def guaranteed(self, t):
        if t == 0:
            return self._per_scenario(self.data["guaranteed"]) * np.ones(self.returns.shape[2:])
        bonus = self._of_fund([self.bonus(fund, t - 1) for fund in FUNDS])
        return self.guaranteed(t - 1) * (1 + bonus) * self.in_force(t)

    @hl.agg(None)
    def bonus(self, fund, t):
        """Declared by a fund for month t, as a share of the guaranteed benefits."""
        assets = (self.assets(t) * self.member(fund)).sum(axis=0)
        guaranteed = (self.guaranteed(t) * self.member(fund)).sum(axis=0)
        surplus = (assets - guaranteed) / np.maximum(guaranteed, 1.0)
        return np.clip(BONUS_SHARE * surplus, 0.0, HIGHEST_BONUS)

    @hl.agg(None)
    def member(self, fund):
        return self._per_scenario((self.data["fund"] == fund) * 1.0)

    @hl.agg(None)
    def in_force(self, t):
        return self._per_scenario((self.data["term"] > t) * 1.0)

    @hl.agg(None)
    def paying(self, t):
        return self._per_scenario(self.data["premium"]) * self.in_force(t)

    # Not formulas: what they do is part of the formulas that call them.

    def _of_fund(self, values):
        """The value of a policy's fund, of one for each fund."""
        parts = [self.member(fund) * value for fund, value in zip(FUNDS, values, strict=True)]
        return parts[0] + parts[1] + parts[2]

    def _per_scenario(self, values):
        """Values of policies, with an axis for the scenarios where there are some."""
        return values[:, np.newaxis] if self.returns.ndim == 3 else values


def portfolio(rows: int, seed: int = 1) -> dict[str, Any]:
    """Return random policies."""
    rng = np.random.default_rng(seed)
    guaranteed = rng.uniform(1_000, 90_000, rows)
    return {
        "fund": rng.choice(FUNDS, rows),
        "guaranteed": guaranteed,
        "assets": guaranteed * rng.uniform(0.95, 1.25, rows),
        "premium": rng.uniform(20, 300, rows),
        "term": rng.integers(12, 240, rows),
    }


def market(scenarios: int | None = None, seed: int = 2) -> np.ndarray:
    """Return random monthly returns: (months, funds), or (months, funds, scenarios)."""
    rng = np.random.default_rng(seed)
    shape = (MONTHS, len(FUNDS), *(() if scenarios is None else (scenarios,)))
    spread = np.array([0.004, 0.012, 0.03]).reshape((1, -1, *[1] * (len(shape) - 2)))
    return np.asarray(0.003 + spread * rng.standard_normal(shape))


def whole_array(data: dict[str, Any], returns: np.ndarray) -> dict[str, np.ndarray]:
    """Return the totals by month, from straight NumPy on whole arrays; without scenarios."""
    member = [(data["fund"] == fund) * 1.0 for fund in FUNDS]
    assets, guaranteed = data["assets"] * 1.0, data["guaranteed"] * 1.0
    totals: dict[str, list[float]] = {"assets": [], "guaranteed": []}
    for t in range(MONTHS):
        totals["assets"].append(assets.sum())
        totals["guaranteed"].append(guaranteed.sum())
        bonus = np.zeros(len(assets))
        for each in member:
            surplus = (assets * each).sum() - (guaranteed * each).sum()
            rate = BONUS_SHARE * surplus / max((guaranteed * each).sum(), 1.0)
            bonus += each * np.clip(rate, 0.0, HIGHEST_BONUS)
        earned = sum(each * value for each, value in zip(member, returns[t], strict=True))
        paying = data["premium"] * (data["term"] > t)
        assets = (assets * (1 + earned) + paying) * (data["term"] > t + 1)
        guaranteed = guaranteed * (1 + bonus) * (data["term"] > t + 1)
    return {name: np.array(values) for name, values in totals.items()}


def main(rows: int = 100_000) -> None:
    """Project, compare with straight NumPy, and print totals by year."""
    data, returns = portfolio(rows), market()
    model = WithProfits(data=data, returns=returns)
    model.GenerateActions(MONTHS - 1)
    expected = whole_array(data, returns)
    bits = set()
    for block_rows, chunk_blocks in ((8_192, 1), (8_192, 5), (8_192, 1_000)):
        result = model.ExecuteActions(block_rows=block_rows, chunk_blocks=chunk_blocks)
        bits.add(result.df_agg.to_numpy().tobytes())
        for name, values in expected.items():
            assert np.allclose(result.df_agg[name], values, rtol=1e-12, atol=0)
    print(result.by_year().round(0).astype(int).to_string())
    print(f"{result.stats.phases} phases; the same bits for all chunk sizes: {len(bits) == 1}")
    model = WithProfits(
        data={name: column[:5_000] for name, column in data.items()}, returns=market(SCENARIOS)
    )
    last = model.ExecuteActions(MONTHS - 1).df_agg.iloc[-1]
    print(f"assets at the end in {SCENARIOS} scenarios: {last['assets']:,.0f} in all")


if __name__ == "__main__":
    main()
