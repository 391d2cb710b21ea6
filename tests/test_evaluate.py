"""Values by policy: a plan as a function of a frame, alone and in the partitions of Dask."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import hl_dask as hl
from hl_dask import _columns, execution, policies
from hl_dask.declared import all_columns
from hl_dask.errors import (
    DataError,
    HlDaskError,
    LookupKeyError,
    MissingColumnError,
    ModelError,
    OpaqueFormulaError,
    PlanError,
    UnsupportedError,
)
from tests.reference import Entry
from tests.zoo import ZOO

MONTHS = 24
ROWS = 1_500
RNG = np.random.default_rng(3)
FRAME = pd.DataFrame(
    {
        "count": RNG.integers(1, 5, ROWS),
        "age": RNG.integers(20, 60, ROWS),
        "premium": np.round(RNG.uniform(5, 90, ROWS), 2),
        "sex": RNG.choice(["F", "M"], ROWS),
        "product": RNG.choice(["A", "B", "C"], ROWS, p=[0.5, 0.48, 0.02]),
    },
    index=pd.Index(np.arange(ROWS) * 2 + 100, name="policy"),
)
LOADS = pd.DataFrame({"product|str": ["A", "B", "C"], "load": [1.0, 1.1, 1.25]})


class Cover(hl.Model):
    """Flows, a rate that is not reported, text, and present values."""

    @hl.agg(None)
    def rate(self, t):
        return self.lapse + 0.0001 * (self.data["age"] + t // 12)

    def pols_if(self, t):
        if t == 0:
            return self.data["count"]
        return self.pols_if(t - 1) * (1 - self.rate(t - 1))

    def premiums(self, t):
        load = self.loads[self.product_at(t)] * np.where(self.data["sex"] == "F", 0.9, 1.0)
        return self.pols_if(t) * self.data["premium"] * load

    def claims(self, t, cause):
        return self.pols_if(t) * (3.0 if cause == "death" else 1.0)

    @hl.agg(None)
    def disc(self, t):
        return 1.002**-t

    @hl.agg(None)
    def product_at(self, t):
        return self.data["product"]

    def paid(self, t):
        return self.claims(t, "death") + self.claims(t, "lapse")

    def pv_premiums(self):
        return sum(self.premiums(t) * self.disc(t) for t in range(MONTHS))

    @hl.agg(None)
    def unneeded(self, t):
        return self.data["age"] * t


TOTALS = ("total_by_scenario", "ordered_totals", "weighted_totals", "products")
"""Formulas of the zoo whose totals are arrays."""


class WithTotals(Cover):
    """The same with a ratio of totals."""

    def loss_ratio(self):
        return self.paid(0).sum() / self.premiums(0).sum()


def made(cls: type[hl.Model] = Cover, **changed: Any) -> Any:
    options: dict[str, Any] = {"data": FRAME, "lapse": 0.01, "loads": hl.Table(LOADS)} | changed
    return cls(**options)


def recorded(cls: type[hl.Model] = Cover, **changed: Any) -> Any:
    model = made(cls, **changed)
    model.GenerateActions(proj_len=MONTHS)
    return model


def loop(frame: pd.DataFrame = FRAME, lapse: float = 0.01) -> dict[str, Any]:
    """Values of the model by NumPy."""
    load = frame["product"].astype(str).map({"A": 1.0, "B": 1.1, "C": 1.25}).to_numpy()
    load = load * np.where(frame["sex"] == "F", 0.9, 1.0)
    in_force = frame["count"].to_numpy().astype(float)
    pols_if, premiums, pv = [], [], np.zeros(len(frame))
    for t in range(MONTHS + 1):
        pols_if.append(in_force)
        premiums.append(in_force * frame["premium"].to_numpy() * load)
        if t < MONTHS:
            pv = pv + premiums[t] * 1.002**-t
        in_force = in_force * (1 - (lapse + 0.0001 * (frame["age"].to_numpy() + t // 12)))
    return {"pols_if": pols_if, "premiums": premiums, "pv_premiums": pv}


# ---- the right values --------------------------------------------------------------------------


def same_bits(found: pd.Series, plain: Any) -> bool:
    """Whether a column has these values, to the last bit where they are numbers."""
    if isinstance(plain, pd.Categorical) or plain.dtype.kind in "OU":
        return list(found) == list(plain)
    array = found.to_numpy()
    return array.dtype == plain.dtype and array.tobytes() == np.ascontiguousarray(plain).tobytes()


def compared(found: pd.DataFrame, plain: dict[Any, Any], formula: Any, rows: Any, n: int) -> int:
    """Compare the calls of a formula with those of a plain run on all rows; how many there were."""
    compared = 0
    where = formula.params.index("t") if "t" in formula.params else None
    for key, value in plain.items():
        shared = np.ndim(value) == 0 or len(value) != n
        array = np.broadcast_to(value, (n, *np.shape(value))) if shared else value
        others = tuple(k for p, k in enumerate(key) if p != where)
        label = (formula.name, "" if where is None else key[where], *others)
        for entry in np.ndindex(array.shape[1:]):
            full = (*label, *entry)
            column: Any = (*full, *[""] * (found.columns.nlevels - len(full)))
            column = formula.name if found.columns.nlevels == 1 else column
            if column in found:
                assert same_bits(found[column], array[(rows, *entry)]), (column, key)
                compared += 1
    return compared


def evaluated(plan: Any, frame: pd.DataFrame, name: str, plain: dict[Any, Any]) -> Any:
    """The values of a formula by policy; None if it is refused, and in a plain run has none."""
    by_policy = any(isinstance(v, pd.Categorical) or np.ndim(v) for v in plain.values())
    by_policy &= not any(isinstance(v, (tuple, dict, list)) for v in plain.values())
    try:
        return plan.evaluate(frame, outputs=name, t="all")
    except HlDaskError:
        if by_policy and name not in TOTALS:
            raise
        return None


@pytest.mark.parametrize("entry", ZOO.values(), ids=list(ZOO))
def test_values_of_a_piece_are_those_of_a_plain_run_on_all(entry: Entry) -> None:
    model, plain = entry.build(entry.columns()), entry.build(entry.columns())
    model.GenerateActions(proj_len=entry.proj_len)
    for changing in (model, plain):
        if entry.change is not None:
            entry.change(changing)
    plain.RunModel(entry.proj_len)
    points = model._row_points()
    frame = points.frame(columns=all_columns(points))
    rows = slice(100, 731, 3)
    if model.plan.guards:
        with pytest.raises(UnsupportedError, match="Python value"):
            _ = model.plan.evaluate
        return
    by_policy = 0
    for formula in model._formulas():
        values = plain.cache.get(formula.name, {})
        found = evaluated(model.plan, frame.iloc[rows], formula.name, values)
        if found is not None:
            assert found.index.equals(frame.index[rows])
            count = compared(found, values, formula, rows, len(frame))
            assert count == len(found.columns)
            by_policy += count
    assert by_policy or all(kind != "per-point" for kind in model.plan.to_frame()["kind"])


def test_values_are_those_of_a_loop_and_add_up_to_the_result() -> None:
    model = recorded()
    result = model.ExecuteActions()
    found = model.plan.evaluate(FRAME, t="all")
    expected = loop()
    for name in ("pols_if", "premiums"):
        for t in range(MONTHS + 1):
            by_policy = found[(name, t, "")]
            np.testing.assert_allclose(by_policy, expected[name][t], rtol=1e-13)
            assert by_policy.sum() == pytest.approx(result.df_agg.loc[t, (name, "")], rel=1e-12)
    pv = found[("pv_premiums", "", "")]
    np.testing.assert_allclose(pv, expected["pv_premiums"], rtol=1e-13)
    assert pv.sum() == pytest.approx(result.values["pv_premiums"], rel=1e-12)
    assert found[("claims", 3, "death")].sum() == pytest.approx(
        result.df_agg.loc[3, ("claims", "death")], rel=1e-12
    )


@pytest.mark.parametrize("block_rows", [1, 7, 64, 1_499, 10_000])
def test_blocks_do_not_change_a_bit(block_rows: int) -> None:
    model = made()
    model.GenerateActions(proj_len=MONTHS, block_rows=block_rows)
    pieces = [FRAME.iloc[:1], FRAME.iloc[1:900], FRAME.iloc[900:]]
    found = pd.concat([model.plan.evaluate(piece, t=[0, 5]) for piece in pieces])
    pd.testing.assert_frame_equal(found, recorded().plan.evaluate(FRAME, t=[0, 5]))


def test_one_policy_by_month() -> None:
    model = recorded()
    one = model.plan.evaluate(FRAME.iloc[[17]], ["rate", "pols_if", "unneeded"], t="all")
    table = one.iloc[0].unstack("formula")  # noqa: PD010
    assert table.index.tolist() == list(range(MONTHS + 1))
    expected = [values[17] for values in loop()["pols_if"]]
    np.testing.assert_allclose(table["pols_if"].astype(float), expected, rtol=1e-13)
    assert table["unneeded"].tolist() == [FRAME["age"].iloc[17] * t for t in range(MONTHS + 1)]


# ---- what is asked for -------------------------------------------------------------------------


def test_present_values_by_default_and_others_when_asked_for() -> None:
    evaluate = recorded().plan.evaluate
    assert evaluate(FRAME).columns.tolist() == ["pv_premiums"]
    assert evaluate(FRAME, "pv_premiums").columns.tolist() == ["pv_premiums"]
    by_t = evaluate(FRAME, ["premiums", "rate", "premiums"], t=[12, 0])
    assert by_t.columns.tolist() == [
        ("premiums", 0),
        ("premiums", 12),
        ("rate", 0),
        ("rate", 12),
    ]
    assert by_t.columns.names == ["formula", "t"]
    assert evaluate(FRAME, "rate").shape[1] == MONTHS + 1
    assert evaluate(FRAME, "rate", t=np.int64(3)).columns.tolist() == [("rate", 3)]
    mixed = evaluate(FRAME, ["pv_premiums", "claims"], t=range(0, 3, 2))
    assert mixed.columns.tolist() == [
        ("pv_premiums", "", ""),
        ("claims", 0, "death"),
        ("claims", 0, "lapse"),
        ("claims", 2, "death"),
        ("claims", 2, "lapse"),
    ]
    flat = evaluate(FRAME, ["pv_premiums", "claims"], t=0, flat=True)
    assert flat.columns.tolist() == ["pv_premiums", "claims[0, death]", "claims[0, lapse]"]


def test_what_is_the_same_for_all_is_repeated_and_text_is_text() -> None:
    found = recorded().plan.evaluate(FRAME.iloc[:3], ["disc", "product_at"], t=5)
    assert found[("disc", 5)].tolist() == [1.002**-5] * 3
    text = found[("product_at", 5)]
    assert text.tolist() == FRAME["product"].iloc[:3].tolist()
    assert text.dtype.categories.tolist() == ["A", "B", "C"]


@pytest.mark.parametrize(
    ("outputs", "t", "message"),
    [
        ("premium", None, "no formula of the model: premium"),
        ([], None, "outputs is empty"),
        (None, MONTHS + 1, f"t is a time step from 0 to {MONTHS}"),
        (None, [0, -1], "got -1"),
        (None, 1.5, "got 1.5"),
        (None, True, "got True"),
        (None, "some", "got 'some'"),
        (None, [0, "1"], "got '1'"),
    ],
)
def test_slips_are_told(outputs: Any, t: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        recorded().plan.evaluate(FRAME, outputs, t)


def test_a_plan_of_flows_alone_asks_for_t() -> None:
    model = made()
    model.GenerateActions(proj_len=3, outputs=["premiums"])
    with pytest.raises(ModelError, match="no formula without t"):
        model.plan.evaluate(FRAME)
    assert model.plan.evaluate(FRAME, t=2).columns.tolist() == [("premiums", 2)]


def test_a_formula_with_arguments_that_nobody_calls() -> None:
    class More(Cover):
        def other(self, t, k):
            return self.pols_if(t) * k

    with pytest.raises(ModelError, match="does not call the formula") as caught:
        recorded(More).plan.evaluate(FRAME, "other", t=1)
    assert caught.value.formula == "other(t, k)"


# ---- the frame ---------------------------------------------------------------------------------


def test_the_index_is_kept_whatever_it_is() -> None:
    evaluate = recorded().plan.evaluate
    for index in (
        pd.Index(["x"] * 4),
        pd.MultiIndex.from_product([["a", "b"], [1, 2]], names=["k", None]),
        pd.date_range("2026-01-01", periods=4, name="day"),
    ):
        assert evaluate(FRAME.iloc[:4].set_axis(index)).index.equals(index)


@pytest.mark.parametrize("options", [{}, {"t": [0, 3]}, {"t": 1, "flat": True}])
def test_an_empty_frame_gives_an_empty_frame_of_the_same_kind(options: dict[str, Any]) -> None:
    plan = recorded().plan
    full = plan.evaluate(FRAME, **options)
    empty = plan.evaluate(FRAME.iloc[:0], **options)
    pd.testing.assert_frame_equal(empty, full.iloc[:0])
    pd.testing.assert_frame_equal(plan.meta(FRAME, **options), empty)
    pd.testing.assert_frame_equal(
        plan.meta(**options).reset_index(drop=True), empty.reset_index(drop=True)
    )
    with pytest.raises(MissingColumnError, match="no column 'premium'"):
        plan.evaluate(FRAME.iloc[:0].drop(columns="premium"), **options)


def test_empty_frames_have_the_types_of_text_and_whole_numbers() -> None:
    plan = recorded().plan
    outputs = ["product_at", "unneeded", "disc"]
    full = plan.evaluate(FRAME, outputs, t=1)
    assert [dtype.kind for dtype in full.dtypes] == ["O", "i", "f"]
    pd.testing.assert_frame_equal(plan.evaluate(FRAME.iloc[:0], outputs, t=1), full.iloc[:0])


def test_a_missing_column_is_told_with_the_nearest() -> None:
    with pytest.raises(MissingColumnError, match="did you mean 'premiun'") as caught:
        recorded().plan.evaluate(FRAME.rename(columns={"premium": "premiun"}))
    assert caught.value.column == "premium"


def test_only_columns_that_are_read_matter() -> None:
    odd = FRAME.assign(note=[[1]] * ROWS, nothing=None)
    odd[7] = 1.0
    evaluate = recorded().plan.evaluate
    pd.testing.assert_frame_equal(evaluate(odd), evaluate(FRAME))
    named = evaluate(FRAME[["count", "age"]], "pols_if", t=1)
    assert named.shape == (ROWS, 1)


@pytest.mark.parametrize("frame", [FRAME.to_dict("list"), FRAME["age"], "policies.parquet"])
def test_only_frames_are_frames(frame: Any) -> None:
    with pytest.raises(DataError, match="takes a pandas DataFrame"):
        recorded().plan.evaluate(frame)


def test_nulls_are_refused() -> None:
    with pytest.raises(DataError, match="has a null, first in row 2") as caught:
        recorded().plan.evaluate(
            FRAME.assign(count=FRAME["count"].astype("Int64").mask(FRAME.index == 104))
        )
    assert caught.value.column == "count"


def test_columns_of_another_kind_than_in_the_recording() -> None:
    evaluate = recorded().plan.evaluate
    narrow = FRAME.astype({"count": "int8", "age": "Int32", "premium": "float64"})
    pd.testing.assert_frame_equal(evaluate(narrow, t=3), evaluate(FRAME, t=3))
    whole = FRAME.assign(premium=FRAME["premium"].astype(int))
    pd.testing.assert_frame_equal(
        evaluate(whole, t=3), evaluate(whole.astype({"premium": float}), t=3)
    )
    for column, values, seen in (
        ("age", FRAME["age"] + 0.5, "is float64 in the frame, and int64"),
        ("age", FRAME["age"].astype(float), "is float64 in the frame"),
        ("age", FRAME["age"] > 30, "is bool in the frame"),
        ("premium", FRAME["premium"] > 30, "is bool in the frame, and float64"),
        ("premium", FRAME["premium"].astype(str), "is text in the frame"),
        ("premium", pd.Series(2**53 + 1, FRAME.index), "is int64 in the frame, and float64"),
        ("sex", FRAME["age"], "is int64 in the frame, and text"),
    ):
        with pytest.raises(DataError, match=seen) as caught:
            evaluate(FRAME.assign(**{column: values}))
        assert caught.value.column == column
        assert "GenerateActions(sample=...)" in str(caught.value.remedy)


def test_dates_of_other_units() -> None:
    class Dated(hl.Model):
        def days(self):
            return (self.data["until"] - np.datetime64("2026-01-01")) / np.timedelta64(1, "D")

    days = pd.DataFrame({"until": pd.date_range("2026-01-01", periods=50).as_unit("s")})
    model = Dated(data=days)
    model.GenerateActions(proj_len=0)
    assert model.plan.evaluate(days.astype("datetime64[ns]"))["days"].tolist() == list(range(50))
    finer = days + pd.Timedelta("1ms")
    with pytest.raises(DataError, match=r"is datetime64\[.s\] in the frame, and datetime64\[s\]"):
        model.plan.evaluate(finer)


def test_several_values_a_row() -> None:
    class Fund(hl.Model):
        def fund(self, t):
            return self.data["paths"] * (1 + t)

    paths = np.arange(60.0).reshape(20, 3)
    model = Fund(data={"paths": paths})
    model.GenerateActions(proj_len=2)
    found = model.plan.evaluate(model.data.frame(), t=1)
    assert found.columns.tolist() == [("fund", 1, k) for k in range(3)]
    np.testing.assert_array_equal(found.to_numpy(), paths * 2)
    with pytest.raises(MissingColumnError, match=r"no column 'paths\[1\]'"):
        model.plan.evaluate(model.data.frame().drop(columns="paths[1]"), t=1)


def test_declared_attributes_are_columns_of_the_frame() -> None:
    class Declared(hl.Model):
        model_points = ("start",)

        def fund(self, t):
            return self.start * (1 + t)

    start = np.arange(40.0)
    model = Declared(data={"x": np.ones(40)}, start=start)
    model.GenerateActions(proj_len=1)
    found = model.plan.evaluate(pd.DataFrame({"start": start[3:5]}), t=1)
    assert found[("fund", 1)].tolist() == [6.0, 8.0]
    with pytest.raises(MissingColumnError, match="declares in model_points"):
        model.plan.evaluate(pd.DataFrame({"x": [1.0]}), t=1)


# ---- text in pieces ----------------------------------------------------------------------------


class Coded(Cover):
    """Takes the codes of text, which are those of the whole portfolio."""

    def code(self):
        return self.data["product"].codes * 10


@pytest.mark.parametrize("kind", ["object", "category", "string", "string[pyarrow]"])
def test_a_piece_without_some_texts_has_the_codes_of_the_whole(kind: str) -> None:
    evaluate = recorded(Coded).plan.evaluate
    whole = evaluate(FRAME)
    assert whole["code"].tolist() == [10 * "ABC".index(p) for p in FRAME["product"]]
    for text in ("B", "C"):
        piece = FRAME[FRAME["product"] == text].astype({"product": kind, "sex": kind})
        found = evaluate(piece)
        pd.testing.assert_frame_equal(found, whole.loc[piece.index])
    reordered = FRAME.assign(product=pd.Categorical(FRAME["product"], categories=list("ZCBA")))
    pd.testing.assert_frame_equal(evaluate(reordered), whole)


def test_a_text_that_the_recording_does_not_know_is_refused() -> None:
    model = recorded(data=FRAME[FRAME["product"] != "C"])
    with pytest.raises(DataError, match="do not have: 'C'") as caught:
        model.plan.evaluate(FRAME)
    assert caught.value.column == "product"
    model.data = FRAME
    assert len(model.plan.evaluate(FRAME)) == ROWS


def test_more_texts_than_there_are_codes_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hl_dask._memory.MAX_CATEGORIES", 2)
    assert _columns.MAX_CATEGORIES > 2

    class Named(hl.Model):
        def is_c(self):
            return self.data["product"] == "C"

    model = Named(data=FRAME)
    model.GenerateActions(proj_len=0)
    piece = FRAME[FRAME["product"] != "A"]
    assert model.plan.evaluate(piece)["is_c"].tolist() == (piece["product"] == "C").tolist()
    assert model.plan.evaluate(FRAME)["is_c"].sum() == (FRAME["product"] == "C").sum()


# ---- the portfolio as a whole ------------------------------------------------------------------


def test_a_ratio_of_totals_is_refused_by_name() -> None:
    model = recorded(WithTotals)
    for outputs in (None, "loss_ratio", ["pv_premiums", "loss_ratio"]):
        with pytest.raises(UnsupportedError, match="over the whole portfolio") as caught:
            model.plan.evaluate(FRAME, outputs)
        assert caught.value.formula == "loss_ratio()"
    found = model.plan.evaluate(FRAME, "pv_premiums")
    pd.testing.assert_frame_equal(found, recorded().plan.evaluate(FRAME))


def test_a_total_turned_into_a_python_value_is_refused() -> None:
    class Until(Cover):
        def pv_short(self):
            return sum(self.premiums(t) for t in range(int(self.data["count"].max())))

    model = recorded(Until)
    with pytest.raises(UnsupportedError, match="into a Python value") as caught:
        _ = model.plan.evaluate
    assert caught.value.formula == "pv_short()"
    model.GenerateActions(outputs=["pv_premiums"])
    assert model.plan.evaluate(FRAME).columns.tolist() == ["pv_premiums"]


def test_the_number_of_policies_may_be_asked_for_and_must_not_matter() -> None:
    class Zeros(Cover):
        def extra(self):
            return np.zeros(len(self.data)) + self.data["premium"]

    class Share(Cover):
        def share(self):
            return self.data["premium"] / len(self.data)

    model = recorded(Zeros)
    pd.testing.assert_series_equal(
        model.plan.evaluate(FRAME.iloc[5:9])["extra"],
        FRAME["premium"].iloc[5:9],
        check_names=False,
    )
    with pytest.raises(UnsupportedError, match="depends on the number of policies") as caught:
        _ = recorded(Share).plan.evaluate
    assert caught.value.formula == "share()"


def test_an_opaque_formula_must_be_declared() -> None:
    class Hidden(Cover):
        def banded(self):
            return np.asarray(pd.cut(np.asarray(self.data["age"]), [0, 40, 99], labels=False))

    class Told(Cover):
        banded = hl.per_point(lambda self: np.searchsorted([40], np.asarray(self.data["age"])))

    with pytest.raises(OpaqueFormulaError, match="cannot see") as caught:
        _ = recorded(Hidden).plan.evaluate
    assert caught.value.formula == "banded"
    for evaluate in (recorded(Told).plan.evaluate, arrived(recorded(Told).plan.evaluate)):
        found = evaluate(FRAME.iloc[::7])["banded"]
        assert found.tolist() == (FRAME["age"].iloc[::7] > 40).astype(int).tolist()


def test_values_that_are_no_columns() -> None:
    class Pair(Cover):
        @hl.agg(None)
        def pair(self, t):
            return self.pols_if(t), self.premiums(t)

        @hl.agg(None)
        def turned(self, t):
            return np.stack([self.pols_if(t), self.premiums(t)])

        def used(self, t):
            return self.pair(t)[0] + self.turned(t)[1]

    evaluate = recorded(Pair).plan.evaluate
    with pytest.raises(UnsupportedError, match="gives a tuple"):
        evaluate(FRAME, "pair", t=0)
    with pytest.raises(UnsupportedError, match="along axis 1"):
        evaluate(FRAME, "turned", t=0)


# ---- the model behind the plan -----------------------------------------------------------------


def test_the_model_as_it_is_now_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    model = recorded()
    before = model.plan.evaluate
    assert model.plan.evaluate is before
    model.lapse = 0.05
    np.testing.assert_allclose(
        model.plan.evaluate(FRAME)["pv_premiums"], loop(lapse=0.05)["pv_premiums"], rtol=1e-13
    )
    np.testing.assert_allclose(
        before(FRAME)["pv_premiums"], loop(lapse=0.01)["pv_premiums"], rtol=1e-13
    )
    monkeypatch.setattr(
        execution, "record_together", None
    )  # nothing is recorded again without need
    assert model.plan.evaluate is model.plan.evaluate
    assert model.ExecuteActions().plan.evaluate is model.plan.evaluate


def test_a_plan_alone_has_nothing_to_evaluate(tmp_path: Path) -> None:
    model = recorded()
    model.plan.save(tmp_path / "plan.json")
    loaded = hl.ActionPlan.load(tmp_path / "plan.json")
    for plan in (loaded, pickle.loads(pickle.dumps(model.plan)), copy.deepcopy(model.plan)):
        assert plan == model.plan
        with pytest.raises(PlanError, match="without a model") as caught:
            plan.evaluate(FRAME)
        assert "model.plan = plan" in str(caught.value.remedy)
        with pytest.raises(PlanError):
            plan.meta()
    other = made(lapse=0.03)
    other.plan = loaded
    found = other.plan.evaluate(FRAME)["pv_premiums"]
    np.testing.assert_allclose(found, loop(lapse=0.03)["pv_premiums"], rtol=1e-13)
    assert other.plan == loaded


def test_a_copied_model_evaluates_its_own_plan() -> None:
    model = recorded()
    for other in (copy.copy(model), copy.deepcopy(model)):
        other.lapse = 0.03
        found = other.plan.evaluate(FRAME)["pv_premiums"]
        np.testing.assert_allclose(found, loop(lapse=0.03)["pv_premiums"], rtol=1e-13)
    third = made(lapse=0.04)
    third.plan = model.plan
    found = third.plan.evaluate(FRAME)["pv_premiums"]
    np.testing.assert_allclose(found, loop(lapse=0.04)["pv_premiums"], rtol=1e-13)
    found = model.plan.evaluate(FRAME)["pv_premiums"]
    np.testing.assert_allclose(found, loop()["pv_premiums"], rtol=1e-13)


def test_every_plan_keeps_its_own_outputs() -> None:
    model = recorded()
    first = model.plan
    second = model.GenerateActions(proj_len=2, outputs=["premiums"])
    assert second.evaluate(FRAME, t=2).columns.tolist() == [("premiums", 2)]
    assert first.evaluate(FRAME).columns.tolist() == ["pv_premiums"]
    assert model.plan is second


def test_a_model_without_data_of_its_own() -> None:
    model = made(data=None)
    model.GenerateActions(proj_len=MONTHS, sample=FRAME)
    found = model.plan.evaluate(FRAME.iloc[:9])["pv_premiums"]
    np.testing.assert_allclose(found, loop()["pv_premiums"][:9], rtol=1e-13)
    with pytest.raises(PlanError, match="no data to record on") as caught:
        model.plan.evaluate(FRAME, "unneeded", t=1)
    assert caught.value.formula == "unneeded"
    model.data = FRAME
    found = model.plan.evaluate(FRAME, "unneeded", t=1)
    assert found[("unneeded", 1)].tolist() == FRAME["age"].tolist()
    model.data = None
    model.lapse = 0.02
    with pytest.raises(HlDaskError, match=r"no data"):
        _ = model.plan.evaluate


def test_an_error_in_a_block_says_which_rows() -> None:
    class Narrow(hl.Model):
        def looked_up(self):
            return self.rates[self.data["age"]]

    ages = np.arange(20, 60)
    rates = hl.Table(pd.DataFrame({"age|int": ages, "qx": ages / 1e4}))
    model = Narrow(data=FRAME, rates=rates)
    model.GenerateActions(proj_len=0, block_rows=100)
    odd = FRAME.assign(age=np.where(FRAME.index == 100 + 2 * 250, 60, FRAME["age"]))
    with pytest.raises(LookupKeyError) as caught:
        model.plan.evaluate(odd)
    assert caught.value.formula == "looked_up()"
    assert caught.value.rows == "200 to 299 of the frame, counted from the first"


def test_threads_share_an_evaluator() -> None:
    model = recorded()
    evaluate, expected = model.plan.evaluate, model.plan.evaluate(FRAME, t=[0, 9])
    found: dict[int, pd.DataFrame] = {}

    def work(k: int) -> None:
        found[k] = evaluate(FRAME.iloc[k::7], t=[0, 9])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(7):
        pd.testing.assert_frame_equal(found[k], expected.iloc[k::7])


# ---- on the way --------------------------------------------------------------------------------


def arrived(evaluate: Any) -> Any:
    """What another process gets."""
    packed = pickle.loads(pickle.dumps(evaluate.__reduce__()[1]))
    return type(evaluate)(policies.unpacked(packed[0]), packed[0])


def test_an_evaluator_that_was_sent_gives_the_same_bits() -> None:
    model = recorded(WithTotals)
    here = model.plan.evaluate
    there = arrived(here)
    for outputs, t in (("pv_premiums", None), (["premiums", "claims", "product_at"], [0, 7])):
        pd.testing.assert_frame_equal(there(FRAME, outputs, t), here(FRAME, outputs, t))
    with pytest.raises(UnsupportedError, match="over the whole portfolio"):
        there(FRAME)
    with pytest.raises(PlanError, match="not part of the plan") as caught:
        there(FRAME, "unneeded", t=3)
    assert caught.value.formula == "unneeded"
    assert "model.plan.meta" in str(caught.value.remedy)
    model.plan.meta(FRAME, "unneeded", t=3)
    found = arrived(here)(FRAME, "unneeded", t=3)
    assert found[("unneeded", 3)].tolist() == (FRAME["age"] * 3).tolist()


def test_an_evaluator_is_unpacked_once_in_a_process() -> None:
    content = pickle.dumps(recorded().plan.evaluate)
    first, second = pickle.loads(content), pickle.loads(content)
    assert first is second
    assert pickle.loads(pickle.dumps(first)) is first


class Unsendable:
    """Cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_what_cannot_be_sent_is_told() -> None:
    class Holding(Cover):
        @hl.per_point
        def held(self):
            return np.asarray(self.data["age"]) + (1 if self.holder.lock else 0)

    evaluate = recorded(Holding, holder=Unsendable()).plan.evaluate
    assert evaluate(FRAME.iloc[:2])["held"].tolist() == (FRAME["age"].iloc[:2] + 1).tolist()
    with pytest.raises(HlDaskError, match="cannot be sent to workers"):
        pickle.dumps(evaluate)


# ---- Dask DataFrames ---------------------------------------------------------------------------


def partitions() -> Any:
    """Partitions of uneven sizes, one of them empty, and one of them without text C."""
    ordered = FRAME.sort_values("product")
    edges = [0, 700, 700, 701, ROWS]
    return dd.from_map(
        lambda k: ordered.iloc[edges[k] : edges[k + 1]], range(4), meta=ordered.iloc[:0]
    )


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
@pytest.mark.parametrize("options", [{}, {"t": [0, 5]}, {"t": [0, 5], "flat": True}])
def test_a_plan_works_inside_map_partitions(scheduler: str, options: dict[str, Any]) -> None:
    model = recorded()
    frame = partitions()
    lazy = frame.map_partitions(
        model.plan.evaluate, meta=model.plan.meta(frame, **options), **options
    )
    expected = model.plan.evaluate(FRAME, **options)
    with dask.config.set(scheduler=scheduler):
        found = lazy.compute()
        total = lazy.sum().compute()
    pd.testing.assert_frame_equal(found.loc[FRAME.index], expected)
    np.testing.assert_allclose(total.loc[expected.columns], expected.sum(), rtol=1e-12)


def test_what_was_prepared_is_of_the_model_as_it_was() -> None:
    model = recorded()
    frame = partitions()
    lazy = frame.map_partitions(model.plan.evaluate, meta=model.plan.meta(frame))
    model.lapse = 0.09
    later = frame.map_partitions(model.plan.evaluate, meta=model.plan.meta(frame))
    found, after = (part.compute().loc[FRAME.index, "pv_premiums"] for part in (lazy, later))
    np.testing.assert_allclose(found, loop()["pv_premiums"], rtol=1e-13)
    np.testing.assert_allclose(after, loop(lapse=0.09)["pv_premiums"], rtol=1e-13)


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_plan_works_inside_map_partitions_on_a_cluster() -> None:
    from distributed import Client, LocalCluster

    class Here(Coded):
        """A class that workers do not have."""

        @hl.per_point
        def rounded(self):
            return np.asarray(self.data["premium"]).round()

    model = recorded(Here)
    frame = partitions()
    options = {"outputs": ["rounded", "code", "unneeded", "premiums"], "t": [0, 5]}
    expected = model.plan.evaluate(FRAME, **options)
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs="CRITICAL"
        ) as cluster,
        Client(cluster),
    ):
        meta = model.plan.meta(frame, **options)
        found = frame.map_partitions(model.plan.evaluate, meta=meta, **options).compute()
    pd.testing.assert_frame_equal(found.loc[FRAME.index], expected)
