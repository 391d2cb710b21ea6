"""The example with three funds: the totals of straight NumPy, and what it prints."""

from __future__ import annotations

import numpy as np
import pytest

from examples import with_profits
from examples.with_profits import MONTHS, WithProfits


@pytest.mark.parametrize("rows", [1, 7, 3_001])
def test_the_totals_of_straight_numpy(rows: int) -> None:
    data, returns = with_profits.portfolio(rows), with_profits.market()
    expected = with_profits.whole_array(data, returns)
    model = WithProfits(data=data, returns=returns)
    bits = set()
    for chunk_blocks, scheduler in ((1, "threads"), (3, "synchronous"), (100, "threads")):
        result = model.ExecuteActions(
            MONTHS - 1, block_rows=500, chunk_blocks=chunk_blocks, scheduler=scheduler
        )
        for name, values in expected.items():
            np.testing.assert_allclose(result.df_agg[name], values, rtol=1e-12)
        bits.add(result.df_agg.to_numpy().tobytes())
    assert len(bits) == 1


def test_scenarios_are_runs_of_their_own() -> None:
    data, returns = with_profits.portfolio(800), with_profits.market(3)
    model = WithProfits(data=data, returns=returns)
    together = model.ExecuteActions(MONTHS - 1, block_rows=300)
    alone = [with_profits.whole_array(data, returns[:, :, k]) for k in range(3)]
    for name in ("assets", "guaranteed"):
        expected = np.sum([each[name] for each in alone], axis=0)
        np.testing.assert_allclose(together.df_agg[name], expected, rtol=1e-12)


def test_the_script_prints_its_totals(capsys: pytest.CaptureFixture[str]) -> None:
    with_profits.main(rows=20_000)
    shown = capsys.readouterr().out
    assert "120 phases; the same bits for all chunk sizes: True" in shown
    assert "in 20 scenarios" in shown
