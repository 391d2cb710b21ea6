"""BasicTerm_ME reconciles with the published figure, and with a loop in plain NumPy."""

import numpy as np
import pytest

from examples import basic_term_me
from examples.basic_term_me import BasicTermME

PV_NET_CF = 215_146_132.06825688  # modelx, heavylight and the loop below agree on it
OUTPUTS = ("pols_if", "premiums", "claims", "expenses", "commissions", "net_cf")


@pytest.fixture(scope="module")
def points():
    return basic_term_me.read_model_points()


@pytest.fixture(scope="module")
def model(points):
    return BasicTermME(data=points, **basic_term_me.read_assumptions())


def plain_projection(points):
    """Totals by month and the present value: one loop over months, whole arrays, no model."""
    age, term, count, assured, start = (points[c].to_numpy() for c in basic_term_me.COLUMNS)
    read = basic_term_me.read_lifelib_table
    mort = read("mort_table").set_index("Age")
    premium = read("premium_table")["premium_rate"].to_numpy().reshape(40, 3)
    spot = read("disc_rate_ann")["zero_spot"].to_numpy()
    premium_pp = np.round(assured * premium[age - 20, (term - 10) // 5], 2)

    totals = {name: np.zeros(277) for name in OUTPUTS}
    pols = np.where(start > 0, count, 0).astype(float)
    present_value = 0.0
    for t in range(277):
        months = start + t
        years = months // 12
        issued = years >= 0
        q = np.zeros(len(points))
        table = mort.loc[age[issued] + years[issued]].to_numpy()
        q[issued] = table[np.arange(len(table)), np.minimum(years[issued], 5)]
        totals["pols_if"][t] = pols.sum()
        new = np.where(months == 0, count, 0)
        pols = np.where(months == 12 * term, 0, pols) + new
        death = pols * (1 - (1 - q) ** (1 / 12))
        lapse = (pols - death) * (1 - (1 - np.maximum(0.1 - 0.02 * years, 0.02)) ** (1 / 12))
        premiums = premium_pp * pols
        expenses = 300 * new + 5 * pols * 1.01 ** (t / 12)
        commissions = np.where(years == 0, premiums, 0)
        net = premiums - assured * death - expenses - commissions
        for name, value in zip(
            OUTPUTS[1:], (premiums, assured * death, expenses, commissions, net), strict=True
        ):
            totals[name][t] = value.sum()
        present_value += net.sum() * (1 + spot[t // 12]) ** (-t / 12)
        pols = pols - death - lapse
    return totals, present_value


def bits(result):
    return (
        float(result.values["pv_net_cf"]).hex(),
        result.df_agg[list(OUTPUTS)].to_numpy(dtype=float).tobytes(),
    )


def test_the_present_value_is_the_published_one(model):
    result = model.ExecuteActions(proj_len=276)
    assert result.values["pv_net_cf"] == pytest.approx(PV_NET_CF, rel=1e-11)
    assert f"{result.values['pv_net_cf']:,.3f}" == "215,146,132.068"


def test_every_month_equals_a_plain_loop(model, points):
    totals, present_value = plain_projection(points)
    result = model.ExecuteActions(proj_len=276)
    assert result.values["pv_net_cf"] == pytest.approx(present_value, rel=1e-11)
    for name in OUTPUTS:
        scale = np.abs(totals[name]).max()
        np.testing.assert_allclose(
            result.df_agg[name], totals[name], rtol=0, atol=1e-12 * scale, err_msg=name
        )


def test_only_the_reported_formulas_are_reported(model):
    result = model.ExecuteActions(proj_len=276)
    assert list(result.df_agg.columns) == list(OUTPUTS)
    assert list(result.df_agg.index) == list(range(277))
    assert list(result.values) == ["pv_net_cf"]


@pytest.mark.parametrize("block_rows", [1024, 4096])
def test_chunks_and_schedulers_give_the_same_bits(model, block_rows):
    seen = {
        bits(
            model.ExecuteActions(
                proj_len=276,
                scheduler=scheduler,
                block_rows=block_rows,
                chunk_blocks=chunk_blocks,
            )
        )
        for scheduler in ("synchronous", "threads")
        for chunk_blocks in (1, 3, -(-10_000 // block_rows))
    }
    assert len(seen) == 1


def test_the_replay_equals_the_plain_run(points):
    few = points.iloc[:300]
    model = BasicTermME(data=few, **basic_term_me.read_assumptions())
    model.RunModel(276)
    plain = model.df_agg
    replayed = model.ExecuteActions(proj_len=276, block_rows=64).df_agg
    for name in OUTPUTS:
        scale = np.abs(plain[name]).max()
        np.testing.assert_allclose(replayed[name], plain[name], rtol=0, atol=1e-12 * scale)


def test_years_add_up_to_all_months(model):
    result = model.ExecuteActions(proj_len=276)
    yearly = result.by_year()
    assert len(yearly) == 24
    for name in OUTPUTS[1:]:
        assert yearly[name].sum() == pytest.approx(result.df_agg[name].sum(), rel=1e-12)
    assert yearly["pols_if"].tolist() == result.df_agg["pols_if"].iloc[::12].tolist()


def test_present_values_by_policy_add_up_to_the_published_one(model, points):
    model.GenerateActions(proj_len=276)
    by_policy = model.plan.evaluate(points)["pv_net_cf"]
    assert by_policy.sum() == pytest.approx(PV_NET_CF, rel=1e-11)
    few = points.sample(50, random_state=1)
    plain = BasicTermME(data=few, **basic_term_me.read_assumptions())
    plain.RunModel(276)
    np.testing.assert_array_equal(model.plan.evaluate(few)["pv_net_cf"], plain.pv_net_cf())
    np.testing.assert_array_equal(by_policy.loc[few.index], plain.pv_net_cf())


def test_an_unknown_timing_is_refused(points):
    model = BasicTermME(data=points.iloc[:10], **basic_term_me.read_assumptions())
    with pytest.raises(Exception, match="BEF_LUNCH"):
        model.pols_if_at(0, "BEF_LUNCH")


def test_the_script_says_that_the_bits_agree(capsys):
    basic_term_me.main()
    printed = capsys.readouterr().out
    assert printed.count("215,146,132.068") == 6
    assert "the bits agree everywhere" in printed
