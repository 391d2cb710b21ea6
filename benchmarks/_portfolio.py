"""Random policies for the basic_term benchmark, on disk as one ``.npy`` file per column."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLUMNS = ("age_at_entry", "policy_term", "policy_count", "sum_assured", "duration_mth")
TABLES = ("mort_rates", "premium_rates", "zero_spot")


def random_policies(rows: int, seed: int = 1) -> dict[str, NDArray[Any]]:
    """Draw random policies, no two of them the same.

    Ages at entry are 20 to 59, terms 10, 15 or 20 years, durations from 36 months before issue to
    the month before maturity. Sums assured are drawn one from each of ``rows`` equal strata.
    """
    rng = np.random.default_rng(seed)
    term = rng.choice([10, 15, 20], rows)
    columns = (
        rng.integers(20, 60, rows),
        term,
        rng.integers(1, 101, rows),
        10_000 + 990_000 * (rng.permutation(rows) + rng.random(rows)) / rows,
        rng.integers(-36, 12 * term),
    )
    return dict(zip(COLUMNS, columns, strict=True))


def write(folder: Path, rows: int) -> None:
    """Write random policies, and lifelib's tables as plain arrays, to a folder."""
    for name, values in {**random_policies(rows), **_plain_tables()}.items():
        np.save(folder / f"{name}.npy", values)


def read(folder: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Read whole columns or tables into memory."""
    return {name: np.load(folder / f"{name}.npy") for name in names}


def read_rows(folder: Path, start: int, stop: int) -> dict[str, NDArray[Any]]:
    """Read rows ``start`` to ``stop`` of all columns."""
    # The map is closed again at once: pages of it would count as memory of the process.
    return {
        name: np.array(np.load(folder / f"{name}.npy", mmap_mode="r")[start:stop])
        for name in COLUMNS
    }


def _plain_tables() -> dict[str, NDArray[Any]]:
    from examples.basic_term_me import read_lifelib_table

    mort = read_lifelib_table("mort_table").drop(columns="Age").to_numpy()
    # Age 17 is asked for by policies that are issued at 20 in three years' time.
    mort = np.vstack([np.zeros(mort.shape[1]), mort])
    premium = read_lifelib_table("premium_table")["premium_rate"].to_numpy().reshape(40, 3)
    spot = read_lifelib_table("disc_rate_ann")["zero_spot"].to_numpy()
    return dict(zip(TABLES, (mort, premium, spot), strict=True))
