"""Two products, each a model with policies of its own, that share three funds.

Endowments pay premiums into the funds and annuities are paid out of them. Each month a fund looks
at the assets and at the guarantees of both products, and declares one rate: the bonus of the
endowments, and the increase of the annuities. So no policy of either product can go on before the
totals of both are known::

    python examples/two_products.py

Run as a script, it projects 60,000 endowments and 40,000 annuities over ten years with several
chunk sizes, next to straight NumPy on whole arrays.
"""

from typing import Any

import numpy as np

import hl_dask as hl

FUNDS = ("bonds", "mixed", "shares")
MONTHS = 120
SHARE, HIGHEST = 0.01, 0.004  # of the surplus, and of the guarantees, a month


class Product(hl.Model):
    """What the products have in common.

    Assumptions
    -----------
    returns : array of shape (months, funds)
        Monthly return of each fund.
    """

    @hl.agg(None)
    def declared(self, t):
        """Rate that a policy's fund declares for month t, from the totals of both products."""
        assets = self.portfolio.total_by("fund", "assets", t)
        guaranteed = self.portfolio.total_by("fund", "guaranteed", t)
        return np.clip(SHARE * (assets / np.maximum(guaranteed, 1.0) - 1.0), 0.0, HIGHEST)

    @hl.agg(None)
    def earned(self, t):
        """Return of the fund of the policy in month t."""
        return sum(
            np.where(self.data["fund"] == fund, rate, 0.0)
            for fund, rate in zip(FUNDS, self.returns[t], strict=True)
        )


class Endowment(Product):
    """Premiums until the term, a sum with bonuses at the end."""

    @hl.rollup("last")
    def assets(self, t):
        if t == 0:
            return self.data["assets"] * 1.0
        paid = self.data["premium"] * self.in_force(t - 1)
        return (self.assets(t - 1) * (1 + self.earned(t - 1)) + paid) * self.in_force(t)

    @hl.rollup("last")
    def guaranteed(self, t):
        if t == 0:
            return self.data["sum_assured"] * 1.0
        return self.guaranteed(t - 1) * (1 + self.declared(t - 1)) * self.in_force(t)

    @hl.agg(None)
    def in_force(self, t):
        return (self.data["term"] > t) * 1.0


class Annuity(Product):
    """Payments each month while the annuitants live, which a fund increases."""

    @hl.rollup("last")
    def assets(self, t):
        if t == 0:
            return self.data["assets"] * 1.0
        return self.assets(t - 1) * (1 + self.earned(t - 1)) - self.payments(t - 1)

    @hl.rollup("sum")
    def payments(self, t):
        return self.annuity(t) * self.alive(t)

    @hl.agg(None)
    def annuity(self, t):
        if t == 0:
            return self.data["payment"] * 1.0
        return self.annuity(t - 1) * (1 + self.declared(t - 1))

    @hl.agg(None)
    def alive(self, t):
        if t == 0:
            return np.ones_like(self.data["payment"])
        return self.alive(t - 1) * (1 - 0.0004 * 1.1 ** (self.data["age"] + t // 12 - 60))

    @hl.rollup("last")
    def guaranteed(self, t):
        return self.payments(t) * 12 * (95 - self.data["age"])


def policies(endowments: int, annuities: int, seed: int = 1) -> tuple[Any, Any]:
    """Return random policies of both products."""
    rng = np.random.default_rng(seed)
    sums = rng.uniform(1_000, 90_000, endowments)
    one = {
        "fund": rng.choice(FUNDS, endowments),
        "sum_assured": sums,
        "assets": sums * rng.uniform(0.95, 1.25, endowments),
        "premium": rng.uniform(20, 300, endowments),
        "term": rng.integers(12, 240, endowments),
    }
    payment = rng.uniform(100, 900, annuities)
    age = rng.integers(60, 85, annuities)
    other = {
        "fund": rng.choice(FUNDS, annuities),
        "payment": payment,
        "age": age,
        "assets": payment * 12 * (95 - age) * rng.uniform(0.95, 1.25, annuities),
    }
    return one, other


def market(seed: int = 2) -> np.ndarray:
    """Return random monthly returns, shape (months, funds)."""
    rng = np.random.default_rng(seed)
    return np.asarray(0.003 + np.array([0.004, 0.012, 0.03]) * rng.standard_normal((MONTHS, 3)))


def whole_array(one: Any, other: Any, returns: np.ndarray) -> dict[str, np.ndarray]:
    """Return the assets of both products by month, from straight NumPy on whole arrays."""
    mine = [one["fund"] == fund for fund in FUNDS]
    theirs = [other["fund"] == fund for fund in FUNDS]
    assets, guaranteed = one["assets"] * 1.0, one["sum_assured"] * 1.0
    held, annuity, alive = other["assets"] * 1.0, other["payment"] * 1.0, np.ones(len(other["age"]))
    found: dict[str, list[float]] = {"endowment": [], "annuity": []}
    for t in range(MONTHS):
        found["endowment"].append(assets.sum())
        found["annuity"].append(held.sum())
        payments = annuity * alive
        reserved = payments * 12 * (95 - other["age"])
        earned, gained = np.zeros(len(assets)), np.zeros(len(held))
        declared, raised = np.zeros(len(assets)), np.zeros(len(held))
        for fund in range(3):
            a, b = mine[fund], theirs[fund]
            guarantees = guaranteed[a].sum() + reserved[b].sum()
            surplus = (assets[a].sum() + held[b].sum()) / max(guarantees, 1.0) - 1.0
            declared[a] = raised[b] = np.clip(SHARE * surplus, 0.0, HIGHEST)
            earned[a] = gained[b] = returns[t, fund]
        paid = one["premium"] * (one["term"] > t)
        assets = (assets * (1 + earned) + paid) * (one["term"] > t + 1)
        guaranteed = guaranteed * (1 + declared) * (one["term"] > t + 1)
        held = held * (1 + gained) - payments
        annuity = annuity * (1 + raised)
        alive = alive * (1 - 0.0004 * 1.1 ** (other["age"] + (t + 1) // 12 - 60))
    return {name: np.array(values) for name, values in found.items()}


def main(endowments: int = 60_000, annuities: int = 40_000) -> None:
    """Project, compare with straight NumPy, and print the assets by year."""
    one, other = policies(endowments, annuities)
    returns = market()
    book = hl.Portfolio(
        {
            "endowment": Endowment(data=one, returns=returns),
            "annuity": Annuity(data=other, returns=returns),
        }
    )
    expected = whole_array(one, other, returns)
    bits = set()
    for chunk_blocks in (1, 5, 1_000):
        result = book.ExecuteActions(MONTHS - 1, block_rows=8_192, chunk_blocks=chunk_blocks)
        bits.add(result.df_agg.to_numpy().tobytes())
        for name, values in expected.items():
            assert np.allclose(result[name].df_agg["assets"], values, rtol=1e-10, atol=0)
    years = {name: result[name].by_year()["assets"].round(0).astype(int) for name in result}
    print(" ".join(f"{name}: {list(values)}" for name, values in years.items()))
    print(f"{result.stats.phases} phases; the same bits for all chunk sizes: {len(bits) == 1}")


if __name__ == "__main__":
    main()
