"""Rules of models: names, memo, recursion, errors, copies, threads, changed assumptions."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import subprocess
import sys
import textwrap
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pytest

import hl_dask as hl
from hl_dask import errors
from hl_dask.errors import (
    CycleError,
    DataError,
    FormulaError,
    HlDaskError,
    MissingColumnError,
    ModelError,
)
from tests.reference import Columns, policies, total

ROWS = 1_700


@pytest.fixture
def columns() -> Columns:
    return policies(np.random.default_rng(5), ROWS)


class Account(hl.Model):
    """A small model that most tests use."""

    def value(self, t):
        if t == 0:
            return self.data["premium"]
        return self.value(t - 1) * (1 + self.rate) + self.fee(t)

    @hl.agg(None)
    def fee(self, t, share=1.0):
        return self.data["policy_count"] * share

    def pv(self):
        return sum(self.value(t) for t in range(3))


def account_values(d: Columns, n: int, rate: float = 0.01) -> list[np.ndarray]:
    values = [d["premium"]]
    for _ in range(n):
        values.append(values[-1] * (1 + rate) + d["policy_count"])
    return values


def assert_account(frame: pd.DataFrame, d: Columns, n: int, rate: float = 0.01) -> None:
    for t, rows in enumerate(account_values(d, n, rate)):
        assert total(rows).matches(frame["value"].loc[t]), t


def message(info: pytest.ExceptionInfo[BaseException]) -> str:
    return str(info.value)


# --- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["data", "df", "df_agg", "cache", "cache_agg", "plan", "result"])
def test_reserved_names_are_refused_at_class_definition(name: str) -> None:
    with pytest.raises(ModelError) as info:
        type("Bad", (hl.Model,), {name: lambda self, t: t})
    assert name in message(info)
    assert info.value.remedy


@pytest.mark.parametrize("name", ["RunModel", "GenerateActions", "ExecuteActions", "Check"])
def test_keywords_that_name_the_framework_are_refused(name: str, columns: Columns) -> None:
    with pytest.raises(ModelError) as info:
        Account(data=columns, **{name: 3})
    assert name in message(info)


@pytest.mark.parametrize("name", ["value", "fee", "pv", "cache", "plan", "df_agg"])
def test_keywords_that_name_a_formula_or_property_are_refused(name: str, columns: Columns) -> None:
    with pytest.raises(ModelError) as info:
        Account(data=columns, rate=0.01, **{name: 3})
    assert name in message(info)
    assert info.value.remedy


def test_a_private_or_capitalised_method_is_no_formula(columns: Columns) -> None:
    class Model(hl.Model):
        def value(self, t):
            return self._twice(t) + self.Thrice(t)

        def _twice(self, t):
            return self.data["premium"] * 2

        def Thrice(self, t):
            return self.data["premium"] * 3

    model = Model(data=columns)
    model.RunModel(1)
    assert list(model.df_agg.columns) == ["value"]
    assert total(columns["premium"] * 5).matches(model.df_agg["value"].loc[0])


def test_static_methods_class_methods_and_properties_are_no_formulas(columns: Columns) -> None:
    class Model(hl.Model):
        @staticmethod
        def half(x):
            return x / 2

        @classmethod
        def label(cls):
            return cls.__name__

        @property
        def base(self):
            return self.data["premium"]

        def value(self, t):
            return self.half(self.base) * len(self.label())

    result = Model(data=columns).ExecuteActions(proj_len=1)
    assert list(result.df_agg.columns) == ["value"]
    assert total(columns["premium"] / 2 * 5).matches(result.df_agg["value"].loc[1])


def test_columns_come_in_the_order_of_definition(columns: Columns) -> None:
    class Base(hl.Model):
        def zebra(self, t):
            return self.data["premium"]

        def apple(self, t):
            return self.data["premium"]

    class Derived(Base):
        def mango(self, t):
            return self.zebra(t)

        def apple(self, t):
            return super().apple(t) * 2

    model = Derived(data=columns)
    model.RunModel(0)
    assert list(model.df_agg.columns) == ["zebra", "apple", "mango"]
    assert list(model.ExecuteActions().df_agg.columns) == ["zebra", "apple", "mango"]


# --- memo --------------------------------------------------------------------------------------


def test_arguments_are_canonical(columns: Columns) -> None:
    calls = []

    class Model(hl.Model):
        def f(self, t, kind="a", *, scale=1.0):
            calls.append((t, kind, scale))
            return self.data["premium"] * scale

    model = Model(data=columns)
    first = model.f(1)
    for value in (model.f(t=1), model.f(1, "a"), model.f(1, kind="a"), model.f(scale=1.0, t=1)):
        assert value is first
    model.f(1, "b")
    assert calls == [(1, "a", 1.0), (1, "b", 1.0)]
    assert set(model.cache["f"]) == {(1, "a", 1.0), (1, "b", 1.0)}


def test_numpy_integers_and_ints_are_one_entry(columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    assert model.value(np.int64(2)) is model.value(2)


def test_wrong_arguments_are_a_type_error(columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    with pytest.raises(TypeError, match="value"):
        model.value(1, 2, 3)
    with pytest.raises(TypeError, match="value"):
        model.value(unknown=1)
    with pytest.raises(TypeError, match="value"):
        model.value([1])
    assert_account_call(model, columns)


def assert_account_call(model: Any, columns: Columns, t: int = 2, rate: float = 0.01) -> None:
    expected = account_values(columns, t, rate)[t]
    np.testing.assert_allclose(np.asarray(model.value(t)), expected, rtol=1e-14)


def test_cache_and_df_describe_the_run(columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    model.RunModel(3)
    assert list(model.df_agg.index) == [0, 1, 2, 3]
    assert list(model.df_agg.columns) == ["value"]
    assert sorted(model.cache["value"]) == [(0,), (1,), (2,), (3,)]
    assert total(account_values(columns, 3)[3]).matches(model.cache_agg["value"][(3,)])
    pv = np.sum(account_values(columns, 2), axis=0)
    assert total(pv).matches(model.cache_agg["pv"][()])
    assert "fee" not in model.cache_agg
    frame = model.df
    np.testing.assert_array_equal(np.asarray(frame["value"].loc[2]), model.cache["value"][(2,)])
    assert len(model.value.df) == 4


def test_assigning_data_or_an_assumption_clears_the_run(columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    model.RunModel(2)
    model.rate = 0.02
    assert not model.cache.get("value")
    assert_account_call(model, columns, rate=0.02)
    fewer = {name: column[:50] for name, column in columns.items()}
    model.data = fewer
    assert_account_call(model, fewer, rate=0.02)
    model.RunModel(2)
    assert_account(model.df_agg, fewer, 2, rate=0.02)


def test_calls_before_a_run_do_not_enter_it(columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    model.value(9)
    model.RunModel(2)
    assert list(model.df_agg.index) == [0, 1, 2]
    result = model.ExecuteActions()
    assert list(result.df_agg.index) == [0, 1, 2]


def test_clear_forgets_values_only(columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    model.RunModel(2)
    model.Clear()
    assert not model.cache.get("value")
    model.RunModel(2)
    assert_account(model.df_agg, columns, 2)


def test_before_run_and_after_run_are_called(columns: Columns) -> None:
    order = []

    class Model(hl.Model):
        def BeforeRun(self):
            order.append("before")
            self.scale = 2.0

        def AfterRun(self):
            order.append("after")

        def f(self, t):
            return self.data["premium"] * self.scale

    model = Model(data=columns)
    model.RunModel(1)
    assert order == ["before", "after"]
    assert total(columns["premium"] * 2).matches(model.df_agg["f"].loc[1])
    assert model.scale == 2.0


# --- recursion ---------------------------------------------------------------------------------


class Cyclic(hl.Model):
    def first(self, t):
        return self.second(t) + 1

    def second(self, t):
        return self.third(t) * self.data["premium"]

    def third(self, t):
        return self.first(t) if t == 2 else 1.0

    def fine(self, t):
        return self.data["premium"]


@pytest.mark.parametrize("action", ["RunModel", "GenerateActions", "ExecuteActions"])
def test_a_cycle_is_named(action: str, columns: Columns) -> None:
    model = Cyclic(data=columns)
    with pytest.raises(CycleError) as info:
        getattr(model, action)(3)
    for name in ("first(2)", "second(2)", "third(2)"):
        assert name in message(info)
    assert info.value.remedy


def test_a_model_is_usable_after_a_cycle(columns: Columns) -> None:
    model = Cyclic(data=columns)
    with pytest.raises(CycleError):
        model.first(2)
    np.testing.assert_array_equal(np.asarray(model.first(1)), columns["premium"] + 1)
    with pytest.raises(CycleError):
        model.third(2)
    result = model.ExecuteActions(proj_len=1)
    assert total(columns["premium"] + 1).matches(result.df_agg["first"].loc[1])


class Endless(hl.Model):
    def down(self, t):
        return self.down(t - 1) * 1.01

    def up(self, t):
        return self.down(0) if t < 0 else self.data["premium"]


@pytest.mark.parametrize("action", ["RunModel", "GenerateActions"])
def test_an_endless_recursion_is_named(action: str, columns: Columns) -> None:
    model = Endless(data={name: column[:40] for name, column in columns.items()})
    with pytest.raises(CycleError) as info:
        getattr(model, action)(1)
    assert "down" in message(info)
    assert info.value.remedy
    np.testing.assert_array_equal(np.asarray(model.up(0)), columns["premium"][:40])


STEPS = 5_000


class Deep(hl.Model):
    def forward(self, t):
        if t == 0:
            return self.data["policy_count"]
        return self.forward(t - 1) * self.survival(t)

    def backward(self, t):
        if t == self.last:
            return self.data["policy_count"]
        return self.backward(t + 1) * self.survival(t)

    @hl.agg(None)
    def survival(self, t):
        return 0.9999


def deep_model() -> tuple[Any, np.ndarray]:
    count = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    return Deep(data={"policy_count": count}, last=STEPS), count


def test_deep_recursion_from_a_direct_call() -> None:
    model, count = deep_model()
    limit = sys.getrecursionlimit()
    np.testing.assert_allclose(np.asarray(model.forward(STEPS)), count * 0.9999**STEPS, rtol=1e-9)
    np.testing.assert_allclose(np.asarray(model.backward(0)), count * 0.9999**STEPS, rtol=1e-9)
    assert sys.getrecursionlimit() == limit


def test_deep_recursion_in_a_plain_run() -> None:
    model, count = deep_model()
    model.RunModel(STEPS)
    for name, t in (("forward", STEPS), ("backward", 0)):
        assert model.df_agg[name].loc[t] == pytest.approx(count.sum() * 0.9999**STEPS, rel=1e-9)
    assert list(model.df_agg.index) == list(range(STEPS + 1))


def test_deep_recursion_in_a_replay() -> None:
    model, count = deep_model()
    result = model.ExecuteActions(proj_len=STEPS)
    for name, t in (("forward", STEPS), ("backward", 0)):
        expected = count.sum() * 0.9999**STEPS
        assert result.df_agg[name].loc[t] == pytest.approx(expected, rel=1e-9)


def test_deep_recursion_in_a_thread() -> None:
    model, count = deep_model()
    with ThreadPoolExecutor(1) as pool:
        value = pool.submit(model.forward, STEPS).result()
    np.testing.assert_allclose(np.asarray(value), count * 0.9999**STEPS, rtol=1e-9)


# --- exceptions in formulas --------------------------------------------------------------------


class Failing(hl.Model):
    def good(self, t):
        return self.data["premium"]

    def bad(self, t):
        if t < self.fails_at:
            return self.good(t)
        return self.shifted(t, "left")

    @hl.agg(None)
    def shifted(self, t, side):
        if self.kind == "shape":
            return self.good(t) + np.ones(17)
        if self.kind == "zero":
            return self.good(t) * (1 // 0)
        if self.kind == "key":
            return self.good(t) * {"right": 1}[side]
        return self.good(t) * self.no_such_assumption


@pytest.mark.parametrize("action", ["RunModel", "GenerateActions", "ExecuteActions"])
@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("shape", ValueError),
        ("zero", ZeroDivisionError),
        ("key", KeyError),
        ("attribute", AttributeError),
    ],
)
def test_an_exception_names_formula_and_arguments(
    action: str, kind: str, cause: type[Exception], columns: Columns
) -> None:
    model = Failing(data=columns, kind=kind, fails_at=2)
    with pytest.raises(HlDaskError) as info:
        getattr(model, action)(3)
    text = message(info)
    assert "shifted(2, 'left')" in text
    if kind == "shape":
        assert "17" in text
    assert isinstance(info.value.__cause__, cause)
    model.kind, model.fails_at = "key", 99
    model.RunModel(3)
    assert total(columns["premium"]).matches(model.df_agg["bad"].loc[3])
    result = model.ExecuteActions()
    assert total(columns["premium"]).matches(result.df_agg["bad"].loc[3])


def test_an_exception_leaves_no_half_evaluated_calls(columns: Columns) -> None:
    model = Failing(data=columns, kind="zero", fails_at=0)
    with pytest.raises(FormulaError):
        model.bad(0)
    assert not model.cache.get("bad")
    assert not model.cache.get("shifted")
    model.fails_at = 5
    np.testing.assert_array_equal(np.asarray(model.bad(0)), columns["premium"])


def test_a_misspelt_assumption_names_the_near_match(columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.data["premium"] * self.laps_rate

    with pytest.raises(HlDaskError) as info:
        Model(data=columns, lapse_rate=0.1).RunModel(1)
    assert "laps_rate" in message(info)
    assert "f(0)" in message(info)


@pytest.mark.parametrize("action", ["RunModel", "GenerateActions", "ExecuteActions"])
@pytest.mark.parametrize("access", ["item", "attribute"])
def test_a_missing_column_names_the_near_match(action: str, access: str, columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.data["premum"] if access == "item" else self.data.premum

    with pytest.raises(HlDaskError) as info:
        getattr(Model(data=columns), action)(1)
    text = message(info)
    assert "premum" in text
    assert "premium" in text
    assert "f(0)" in text


def test_a_missing_column_has_its_own_class(columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.data["premum"]

    with pytest.raises(MissingColumnError) as info:
        Model(data=columns).RunModel(1)
    assert info.value.column == "premum"


def test_a_column_that_only_the_big_data_lack(columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    model.GenerateActions(2)
    model.data = {"premium": columns["premium"]}
    with pytest.raises(HlDaskError) as info:
        model.ExecuteActions()
    assert "policy_count" in message(info)


@pytest.mark.parametrize("action", ["RunModel", "GenerateActions", "ExecuteActions"])
def test_a_value_of_the_wrong_length_is_refused(action: str, columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.data["premium"]

        def g(self, t):
            return self.f(t)[1:] if t == 2 else self.f(t)

    with pytest.raises(HlDaskError) as info:
        getattr(Model(data=columns), action)(3)
    assert "g(2)" in message(info)


def test_a_value_of_the_wrong_length_gives_both_lengths(columns: Columns) -> None:
    class Model(hl.Model):
        @hl.per_point
        def g(self, t):
            return np.asarray(self.data["premium"])[:-3]

    with pytest.raises(HlDaskError) as info:
        Model(data=columns).RunModel(1)
    text = message(info).replace(",", "")
    assert "g(0)" in text
    assert str(ROWS) in text
    assert str(ROWS - 3) in text


@pytest.mark.parametrize("action", ["RunModel", "GenerateActions", "ExecuteActions"])
@pytest.mark.parametrize("form", ["new axis", "transposed", "stacked"])
def test_rows_have_to_be_the_first_axis(action: str, form: str, columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            x = self.data["premium"]
            if form == "new axis":
                return x[None, :]
            if form == "transposed":
                return (x[:, None] * np.array([1.0, 2.0])).T
            return np.stack([x, x])

    with pytest.raises(HlDaskError) as info:
        getattr(Model(data=columns), action)(1)
    assert "f(0)" in message(info)


@pytest.mark.parametrize("action", ["RunModel", "GenerateActions", "ExecuteActions"])
@pytest.mark.parametrize(
    "value", ["ragged", "type", "text", "none", "series", "tuple", "pair", "dict"]
)
def test_odd_values_are_reported_or_refused(action: str, value: str, columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            odd = {
                "ragged": [np.ones(2), np.ones(3)],
                "type": float,
                "text": "EUR",
                "none": None,
                "series": pd.Series([1.0, 2.0]),
                "tuple": (self.data["premium"], 2.0),
                "pair": [self.data["premium"], self.data["age"]],
                "dict": {"premium": self.data["premium"]},
            }
            return odd[value]

        def g(self, t):
            return self.data["premium"]

    model = Model(data=columns)
    try:
        getattr(model, action)(1)
    except HlDaskError as error:
        assert "f(0)" in str(error)  # noqa: PT017
        return
    if action != "GenerateActions":
        assert total(columns["premium"]).matches(model.df_agg["g"].loc[1])


def test_an_opaque_formula_may_give_a_tuple(columns: Columns) -> None:
    class Model(hl.Model):
        @hl.agg(None)
        def parts(self, t):
            return np.asarray(self.data["premium"]) * 2, 3.0

        def f(self, t):
            doubled, factor = self.parts(t)
            return doubled * factor

    model = Model(data=columns)
    model.RunModel(1)
    expected = total(columns["premium"] * 6)
    assert expected.matches(model.df_agg["f"].loc[1])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = model.ExecuteActions(block_rows=100)
    assert any("parts" in str(warning.message) for warning in seen)
    assert expected.matches(result.df_agg["f"].loc[1])


def test_columns_of_different_lengths_are_refused(columns: Columns) -> None:
    columns["age"] = columns["age"][:-1]
    with pytest.raises(DataError) as info:
        Account(data=columns, rate=0.1).RunModel(1)
    assert "age" in message(info)


# --- nothing is changed in place ---------------------------------------------------------------

IN_PLACE = {
    "augmented": lambda x: x.__iadd__(1.0),
    "item": lambda x: x.__setitem__(0, 1.0),
    "mask": lambda x: x.__setitem__(x > 100, 1.0),
    "slice": lambda x: x.__setitem__(slice(None), 1.0),
    "out": lambda x: np.add(x, 1.0, out=x),
    "sort": lambda x: x.sort(),
    "fill": lambda x: x.fill(0.0),
    "copyto": lambda x: np.copyto(x, 0.0),
    "view": lambda x: x[:].__setitem__(slice(None), 0.0),
    "at": lambda x: np.add.at(x, [0], 1.0),
}


@pytest.mark.parametrize("action", ["RunModel", "GenerateActions", "ExecuteActions"])
@pytest.mark.parametrize("target", ["column", "value"])
@pytest.mark.parametrize("change", IN_PLACE.values(), ids=list(IN_PLACE))
def test_columns_and_cached_values_are_read_only(
    action: str, target: str, change: Any, columns: Columns
) -> None:
    class Model(hl.Model):
        def source(self, t):
            return self.data["premium"] * 2

        def changer(self, t):
            x = self.data["premium"] if target == "column" else self.source(t)
            change(x)
            return x * 1.0

    before = columns["premium"].copy()
    if action == "RunModel" and change is IN_PLACE["at"]:
        # NumPy 2.4's np.add.at writes into arrays that are marked read-only; recordings refuse it.
        return
    with pytest.raises(HlDaskError) as info:
        getattr(Model(data=columns), action)(1)
    assert "changer(0)" in message(info)
    np.testing.assert_array_equal(columns["premium"], before)


def test_values_handed_out_are_read_only(columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    model.RunModel(2)
    value = np.asarray(model.value(2))
    with pytest.raises(ValueError, match="read-only"):
        value[0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(model.data["premium"])[0] = 1.0


def test_a_returned_column_stays_writeable_for_its_owner(columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    model.RunModel(1)
    columns["premium"][0] += 1.0  # the user's own array is the user's


@pytest.mark.parametrize("action", ["RunModel", "GenerateActions", "ExecuteActions"])
def test_formulas_may_not_write_attributes(action: str, columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            self.seen = t
            return self.data["premium"]

    model = Model(data=columns)
    with pytest.raises(HlDaskError) as info:
        getattr(model, action)(1)
    text = message(info)
    assert "seen" in text
    assert "f(0)" in text
    assert info.value.remedy
    model.seen = 3  # outside formulas it is an assumption like any other
    assert model.seen == 3


@pytest.mark.parametrize("action", ["RunModel", "GenerateActions"])
def test_formulas_may_not_delete_attributes_or_assign_data(action: str, columns: Columns) -> None:
    class Deleting(hl.Model):
        def f(self, t):
            del self.rate
            return self.data["premium"]

    class Assigning(hl.Model):
        def f(self, t):
            self.data = {"premium": np.ones(3)}
            return self.data["premium"]

    for model in (Deleting(data=columns, rate=1.0), Assigning(data=columns)):
        with pytest.raises(HlDaskError) as info:
            getattr(model, action)(1)
        assert "f(0)" in message(info)


def test_an_undeclared_array_as_long_as_the_data_is_refused(columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.data["premium"] * self.initial

    with pytest.raises(HlDaskError) as info:
        Model(data=columns, initial=np.linspace(0.0, 1.0, ROWS)).RunModel(1)
    text = message(info)
    assert "initial" in text
    assert 'model_points = ("initial",)' in text


def test_a_declared_array_of_another_length_is_refused(columns: Columns) -> None:
    class Model(hl.Model):
        model_points = ("initial",)

        def f(self, t):
            return self.data["premium"] * self.initial

    with pytest.raises(HlDaskError) as info:
        Model(data=columns, initial=np.linspace(0.0, 1.0, ROWS - 1)).RunModel(1)
    assert "initial" in message(info)


# --- copies ------------------------------------------------------------------------------------


def copies_of(model: Any) -> dict[str, Any]:
    return {
        "copy": copy.copy(model),
        "deepcopy": copy.deepcopy(model),
        "pickle": pickle.loads(pickle.dumps(model)),
        "cloudpickle": pickle.loads(cloudpickle.dumps(model)),
    }


@pytest.mark.parametrize("kind", ["copy", "deepcopy", "pickle", "cloudpickle"])
@pytest.mark.parametrize("state", ["fresh", "run", "recorded", "executed"])
def test_a_copy_runs_on_its_own(kind: str, state: str, columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    if state == "run":
        model.RunModel(2)
    elif state == "recorded":
        model.GenerateActions(2)
    elif state == "executed":
        model.ExecuteActions(2)
    clone = copies_of(model)[kind]
    fewer = {name: column[:300] for name, column in columns.items()}
    clone.data = fewer
    clone.rate = 0.05
    clone.RunModel(2)
    assert_account(clone.df_agg, fewer, 2, rate=0.05)
    assert_account(clone.ExecuteActions(2).df_agg, fewer, 2, rate=0.05)
    model.RunModel(2)
    assert_account(model.df_agg, columns, 2)
    assert_account(model.ExecuteActions(2).df_agg, columns, 2)


def test_a_local_class_goes_through_cloudpickle(columns: Columns) -> None:
    class Local(hl.Model):
        offset = lambda self, t: t * 2.0  # noqa: E731

        def f(self, t):
            return self.data["premium"] + self.offset(t)

    model = pickle.loads(cloudpickle.dumps(Local(data=columns)))
    result = model.ExecuteActions(proj_len=2)
    assert total(columns["premium"] + 4.0).matches(result.df_agg["f"].loc[2])


MAIN = """
    import copy, pickle
    import cloudpickle
    import numpy as np
    import hl_dask as hl

    class Main(hl.Model):
        def value(self, t):
            if t == 0:
                return self.data["premium"]
            return super_rate(self) * self.value(t - 1)

        double = lambda self, t: self.value(t) * 2

    class Derived(Main):
        def value(self, t):
            return super().value(t) + self.rate

    def super_rate(model):
        return 1 + model.rate

    if __name__ == "__main__":
        premium = np.linspace(1.0, 2.0, 5_000)
        model = Derived(data={"premium": premium}, rate=0.5)
        expected = [premium + 0.5]
        for t in range(2):
            expected.append(expected[-1] * 1.5 + 0.5)
        clones = [
            model,
            copy.copy(model),
            copy.deepcopy(model),
            pickle.loads(pickle.dumps(model)),
            pickle.loads(cloudpickle.dumps(model)),
        ]
        for clone in clones:
            clone.RunModel(2)
            result = clone.ExecuteActions(block_rows=512, chunk_blocks=2)
            for frame in (clone.df_agg, result.df_agg):
                for t, rows in enumerate(expected):
                    assert np.isclose(frame["value"].loc[t], rows.sum(), rtol=1e-12), t
                    assert np.isclose(frame["double"].loc[t], 2 * rows.sum(), rtol=1e-12), t
        print("all right")
"""


def test_classes_defined_in_main_copy_and_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(MAIN), encoding="utf-8")
    root = Path(hl.__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**_environment(), "PYTHONPATH": str(root)},
    )
    assert done.returncode == 0, done.stderr
    assert "all right" in done.stdout


def test_classes_without_source_run() -> None:
    # A notebook cell or exec: there is no file that holds the source.
    scope: dict[str, Any] = {}
    source = textwrap.dedent(
        """
        import hl_dask as hl

        class Typed(hl.Model):
            def f(self, t):
                return self.data["premium"] * (t + 1)

            def g(self, t):
                return self.f(t) * 2
        """
    )
    exec(source, scope)
    premium = np.linspace(1.0, 2.0, 2_000)
    model = scope["Typed"](data={"premium": premium})
    model.GenerateActions(2)
    assert total(premium * 6).matches(model.ExecuteActions().df_agg["g"].loc[2])


def _environment() -> dict[str, str]:
    import os

    return dict(os.environ)


# --- threads -----------------------------------------------------------------------------------


def test_two_replays_of_one_model_in_two_threads(columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    model.GenerateActions(12)
    barrier = threading.Barrier(2)

    def run(block_rows: int) -> pd.DataFrame:
        barrier.wait()
        return model.ExecuteActions(block_rows=block_rows, scheduler="threads").df_agg

    for _ in range(5):
        with ThreadPoolExecutor(2) as pool:
            for frame in pool.map(run, (64, 100)):
                assert_account(frame, columns, 12)


def test_two_runs_and_calls_of_one_model_in_threads(columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    barrier = threading.Barrier(4)

    def plain() -> None:
        barrier.wait()
        model.RunModel(40)

    def call() -> None:
        barrier.wait()
        assert_account_call(model, columns, t=30)

    def replay() -> None:
        barrier.wait()
        assert_account(model.ExecuteActions(proj_len=25, block_rows=200).df_agg, columns, 25)

    for _ in range(3):
        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(job) for job in (plain, call, replay, plain)]
            for job in jobs:
                job.result()


def test_two_recordings_in_two_threads(columns: Columns) -> None:
    models = [Account(data=columns, rate=rate) for rate in (0.01, 0.02)]
    barrier = threading.Barrier(2)

    def record(model: Any) -> pd.DataFrame:
        barrier.wait()
        return model.ExecuteActions(proj_len=20, block_rows=300).df_agg

    with ThreadPoolExecutor(2) as pool:
        frames = list(pool.map(record, models))
    for frame, rate in zip(frames, (0.01, 0.02), strict=True):
        assert_account(frame, columns, 20, rate)


# --- plans and runs ----------------------------------------------------------------------------


def test_a_changed_assumption_is_used(columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    model.GenerateActions(4)
    model.rate = 0.07
    assert_account(model.ExecuteActions().df_agg, columns, 4, rate=0.07)


def test_an_assumption_that_becomes_an_array_is_used(columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.data["premium"] * self.rates[t]

    model = Model(data=columns, rates=[1.0, 2.0, 3.0])
    model.GenerateActions(2)
    model.rates = np.array([4.0, 5.0, 6.0])
    frame = model.ExecuteActions().df_agg
    assert total(columns["premium"] * 6.0).matches(frame["f"].loc[2])
    model.rates = {0: 7.0, 1: 8.0, 2: 9.0}
    frame = model.ExecuteActions().df_agg
    assert total(columns["premium"] * 9.0).matches(frame["f"].loc[2])


def test_a_changed_assumption_that_takes_another_branch(columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.special(t) if self.stress else self.data["premium"]

        @hl.agg(None)
        def special(self, t):
            return self.data["sum_assured"] * t

    model = Model(data=columns, stress=False)
    model.GenerateActions(2)
    model.stress = True
    frame = model.ExecuteActions().df_agg
    assert total(columns["sum_assured"] * 2).matches(frame["f"].loc[2])


def test_a_changed_formula_is_used(columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.data["premium"]

    model = Model(data=columns)
    model.GenerateActions(1)

    class Other(Model):
        def f(self, t):
            return self.data["premium"] * 3

    model.__class__ = Other
    frame = model.ExecuteActions().df_agg
    assert total(columns["premium"] * 3).matches(frame["f"].loc[1])


def test_an_assumption_that_becomes_another_known_object_is_used(columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.data["premium"] * self.used[t]

    base, stress = np.array([1.0, 2.0]), np.array([5.0, 6.0])
    model = Model(data=columns, base=base, stress=stress, used=base)
    model.GenerateActions(1)
    for used in (stress, base, stress):
        model.used = used
        frame = model.ExecuteActions().df_agg
        assert total(columns["premium"] * used[1]).matches(frame["f"].loc[1])


def test_tables_that_are_swapped_are_used(columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.chosen[0][self.data["term"]] * 1.0

    def table(factor: float) -> Any:
        frame = pd.DataFrame({"term|int_cat": [10, 15, 20], "value": [factor, 2.0, 3.0]})
        return hl.Table(frame)

    first, second = table(1.0), table(50.0)
    model = Model(data=columns, first=first, second=second, chosen=[first])
    model.GenerateActions(0)
    model.chosen[0] = second
    frame = model.ExecuteActions().df_agg
    expected = np.select([columns["term"] == 10, columns["term"] == 15], [50.0, 2.0], 3.0)
    assert total(expected).matches(frame["f"].loc[0])


def test_a_changed_private_attribute_is_used(columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.data["premium"] * self._rate

    model = Model(data=columns)
    model._rate = 2.0
    model.GenerateActions(1)
    model._rate = 5.0
    frame = model.ExecuteActions().df_agg
    assert total(columns["premium"] * 5.0).matches(frame["f"].loc[1])
    model.RunModel(1)
    assert total(columns["premium"] * 5.0).matches(model.df_agg["f"].loc[1])


class Bunch(dict[str, Any]):
    """A dictionary that has attributes of its own."""


class Number(float):
    """A number that has attributes of its own."""


@pytest.mark.parametrize("kind", [Bunch, Number])
def test_a_changed_attribute_of_an_extended_builtin_is_used(kind: Any, columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.data["premium"] * self.basis.rate

    basis = kind()
    basis.rate = 2.0
    model = Model(data=columns, basis=basis)
    model.GenerateActions(1)
    basis.rate = 5.0
    frame = model.ExecuteActions().df_agg
    assert total(columns["premium"] * 5.0).matches(frame["f"].loc[1])


class Basis:
    """An assumption class whose subclass is used."""

    rate = 2.0


class Derived(Basis):
    """Takes its rate from its base."""


def helper() -> float:
    """Return a rate that is kept on the function."""
    return float(helper.rate)  # type: ignore[attr-defined]


def scaled(x: Any, factors: dict[str, float] = {"rate": 2.0}) -> Any:  # noqa: B006
    """Scale by a default argument that somebody may change."""
    return x * factors["rate"]


@pytest.mark.parametrize("way", ["instance", "class", "function", "default", "method"])
def test_what_is_reached_by_detours_is_read_at_execution(
    way: str, columns: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper, "rate", 2.0, raising=False)
    store = Derived()

    class Model(hl.Model):
        def f(self, t):
            x = self.data["premium"]
            if way == "instance":
                return x * self.basis.rate
            if way == "class":
                return x * Derived.rate
            if way == "function":
                return x * helper()
            if way == "default":
                return scaled(x)
            return x * self.getter("rate")

    getter = store.__getattribute__ if way == "method" else None
    model = Model(data=columns, basis=Derived(), getter=getter)
    model.GenerateActions(1)
    monkeypatch.setattr(Basis, "rate", 5.0)
    monkeypatch.setattr(helper, "rate", 5.0)
    monkeypatch.setitem(scaled.__defaults__[0], "rate", 5.0)  # type: ignore[index]
    frame = model.ExecuteActions().df_agg
    assert total(columns["premium"] * 5.0).matches(frame["f"].loc[1])


class ReadsBefore(hl.Model):
    def BeforeRun(self):
        self.rate = float(np.loadtxt(self.path))

    def f(self, t):
        return self.data["premium"] * self.rate


class ReadsInFormula(hl.Model):
    @hl.agg(None)
    def rate(self):
        return pd.read_csv(self.path, header=None).iloc[0, 0]

    def f(self, t):
        return self.data["premium"] * self.rate()


class OpensInFormula(hl.Model):
    @hl.agg(None)
    def rate(self):
        with open(self.path, encoding="utf-8") as file:
            return float(file.read())

    def f(self, t):
        return self.data["premium"] * self.rate()


@pytest.mark.parametrize("cls", [ReadsBefore, ReadsInFormula, OpensInFormula])
def test_a_rate_read_from_a_file_is_read_at_execution(
    cls: type[hl.Model], columns: Columns, tmp_path: Path
) -> None:
    path = tmp_path / "rate.txt"
    path.write_text("2.0", encoding="utf-8")
    model = cls(data=columns, path=str(path))
    model.GenerateActions(1)
    path.write_text("5.0", encoding="utf-8")
    frame = model.ExecuteActions().df_agg
    assert total(columns["premium"] * 5.0).matches(frame["f"].loc[1])


def test_changed_attrs_of_a_frame_are_used(columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.data["premium"] * self.frame.attrs["rate"]

    frame = pd.DataFrame({"x": [1.0]})
    frame.attrs["rate"] = 2.0
    model = Model(data=columns, frame=frame)
    model.GenerateActions(1)
    frame.attrs["rate"] = 5.0
    result = model.ExecuteActions().df_agg
    assert total(columns["premium"] * 5.0).matches(result["f"].loc[1])


def test_attributes_made_before_the_run_do_not_stand_in_the_way(columns: Columns) -> None:
    class Model(hl.Model):
        def BeforeRun(self):
            self.ratio = self.data["premium"] / self.data["sum_assured"]
            self.peak = self.data["premium"].max()

        def f(self, t):
            return self.ratio * (t + 1)

        def g(self, t):
            return self.peak

    model = Model(data=columns)
    model.RunModel(1)
    model.GenerateActions()
    fewer = {name: column[:300] for name, column in columns.items()}
    fewer["premium"] = fewer["premium"] * 3
    model.data = fewer
    for _ in range(2):
        frame = model.ExecuteActions(block_rows=64).df_agg
        assert total(fewer["premium"] / fewer["sum_assured"] * 2).matches(frame["f"].loc[1])
        assert frame["g"].loc[0] == fewer["premium"].max()
        model.RunModel(1)
        assert total(fewer["premium"] / fewer["sum_assured"] * 2).matches(model.df_agg["f"].loc[1])
        assert model.df_agg["g"].loc[0] == fewer["premium"].max()


RATE = 2.0


def test_a_changed_module_global_is_used(columns: Columns, monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.data["premium"] * RATE

    model = Model(data=columns)
    model.GenerateActions(1)
    monkeypatch.setitem(globals(), "RATE", 5.0)
    frame = model.ExecuteActions().df_agg
    assert total(columns["premium"] * 5.0).matches(frame["f"].loc[1])


def test_a_changed_class_attribute_is_used(columns: Columns) -> None:
    class Model(hl.Model):
        rate = 2.0

        def f(self, t):
            return self.data["premium"] * self.rate

    model = Model(data=columns)
    model.GenerateActions(1)
    Model.rate = 5.0
    frame = model.ExecuteActions().df_agg
    assert total(columns["premium"] * 5.0).matches(frame["f"].loc[1])


def test_a_changed_closure_is_used(columns: Columns) -> None:
    rate = 2.0

    class Model(hl.Model):
        def f(self, t):
            return self.data["premium"] * rate

    model = Model(data=columns)
    model.GenerateActions(1)
    rate = 5.0
    frame = model.ExecuteActions().df_agg
    assert total(columns["premium"] * 5.0).matches(frame["f"].loc[1])


def test_data_changed_in_place_by_their_owner(columns: Columns) -> None:
    columns["policy_count"] = columns["policy_count"].astype(np.float32)
    model = Account(data=columns, rate=0.01)
    model.GenerateActions(2)
    columns["premium"] *= 2.0
    columns["policy_count"] *= 3.0
    replayed = model.ExecuteActions(block_rows=256).df_agg
    model.RunModel(2)
    for t in range(3):
        assert replayed["value"].loc[t] == pytest.approx(model.df_agg["value"].loc[t], rel=1e-12)


def test_one_plan_for_many_data_sets(columns: Columns) -> None:
    class Model(hl.Model):
        def profit(self, t):
            return self.data["premium"] * (1 + t) - 100.0

        def rebate(self, t):
            if self.profit(t).sum() > 0:
                return self.profit(t) * 0.5
            return self.data["policy_count"] * 0.0

    model = Model(data=columns)
    model.GenerateActions(3)
    rng = np.random.default_rng(2)
    for scale in (1.0, 0.1, 0.3, 1.0, 0.01, 2.0):
        premium = rng.uniform(0.0, 200.0, ROWS) * scale
        count = np.ones(ROWS)
        model.data = {"premium": premium, "policy_count": count}
        frame = model.ExecuteActions(block_rows=256).df_agg
        for t in range(4):
            profit = premium * (1 + t) - 100.0
            assert total(profit).matches(frame["profit"].loc[t])
            expected = total(profit * 0.5) if profit.sum() > 0 else total(count * 0.0)
            assert expected.matches(frame["rebate"].loc[t])


def test_one_plan_for_data_of_other_types_and_texts() -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.data["units"] // 2 * (self.data["kind"] == "x")

        def g(self, t):
            return np.where(self.data["kind"] == "y", self.data["units"], -1)

    rows = 1_200
    rng = np.random.default_rng(4)
    sets = [
        {"units": rng.integers(0, 9, rows), "kind": rng.choice(["x", "y"], rows)},
        {"units": rng.uniform(0, 9, rows), "kind": rng.choice(["y", "z"], rows)},
        {"units": rng.random(rows) < 0.5, "kind": rng.choice(["w", "x", "y"], rows)},
        {"units": rng.integers(0, 9, rows).astype(np.int8), "kind": np.full(rows, "x")},
        {"units": rng.integers(0, 9, rows), "kind": np.array([f"x{i}" for i in range(rows)])},
    ]
    model = Model(data=sets[0])
    model.GenerateActions(1)
    for data in sets:
        model.data = data
        units = data["units"] if data["units"].dtype != np.int8 else data["units"].astype(int)
        if units.dtype == bool:
            continue
        frame = model.ExecuteActions(block_rows=128).df_agg
        assert total(units // 2 * (data["kind"] == "x")).matches(frame["f"].loc[1])
        assert total(np.where(data["kind"] == "y", units, -1)).matches(frame["g"].loc[0])


def test_a_released_value_asked_again_is_right(columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    model.ExecuteActions(proj_len=30)
    assert_account_call(model, columns, t=3)
    assert_account_call(model, columns, t=30)


def test_results_describe_the_last_run(columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    result = model.ExecuteActions(proj_len=3)
    assert model.result is result
    assert_account(model.df_agg, columns, 3)
    model.RunModel(2)
    assert list(model.df_agg.index) == [0, 1, 2]


def test_execution_without_a_projection_length_says_so(columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    with pytest.raises(HlDaskError) as info:
        model.ExecuteActions()
    assert "proj_len" in message(info)


@pytest.mark.parametrize("bad", [-1, 2.5, "3", None])
def test_a_projection_length_has_to_be_a_whole_number(bad: Any, columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    with pytest.raises((HlDaskError, TypeError)):
        model.RunModel(bad)


def test_unknown_outputs_name_the_near_match(columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    with pytest.raises(HlDaskError) as info:
        model.ExecuteActions(proj_len=1, outputs=["valu"])
    assert "valu" in message(info)
    assert "value" in message(info)


@pytest.mark.parametrize(
    "options",
    [
        {"scheduler": "processes"},
        {"scheduler": "no such"},
        {"block_rows": 0},
        {"block_rows": -5},
        {"chunk_blocks": 0},
        {"workers": 0},
        {"memory": "no size"},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    with pytest.raises(HlDaskError) as info:
        model.ExecuteActions(proj_len=1, **options)
    assert next(iter(options)) in message(info)


def test_a_model_without_data_says_so() -> None:
    with pytest.raises(HlDaskError) as info:
        Account(rate=0.01).RunModel(1)
    assert "data" in message(info)


def test_an_empty_data_set_is_refused(columns: Columns) -> None:
    empty = {name: column[:0] for name, column in columns.items()}
    with pytest.raises(HlDaskError) as info:
        Account(data=empty, rate=0.01).ExecuteActions(proj_len=1)
    assert "row" in message(info)


def test_two_lambda_formulas_do_not_collide(columns: Columns) -> None:
    class Model(hl.Model):
        one = lambda self, t: self.data["premium"] * 1.0  # noqa: E731
        two = lambda self, t: self.data["premium"] * 2.0  # noqa: E731

    model = Model(data=columns)
    model.RunModel(1)
    result = model.ExecuteActions()
    for frame in (model.df_agg, result.df_agg):
        assert total(columns["premium"]).matches(frame["one"].loc[1])
        assert total(columns["premium"] * 2).matches(frame["two"].loc[1])


def test_one_function_under_two_names_is_two_formulas(columns: Columns) -> None:
    def scaled(self, t):
        return self.data["premium"] * (t + 1)

    class Model(hl.Model):
        a = scaled
        b = scaled

        def c(self, t):
            return self.a(t) + self.b(t)

    frame = Model(data=columns).ExecuteActions(proj_len=1).df_agg
    assert total(np.stack([columns["premium"] * 2] * 2)).matches(frame["c"].loc[1])
    assert list(frame.columns) == ["a", "b", "c"]


def test_a_dict_of_scalars_is_a_single_policy(columns: Columns) -> None:
    class Single(hl.Model):
        def in_force(self, t):
            if t == 0:
                return self.data["count"]
            return self.in_force(t - 1) * (1 - 0.01 * self.data["age"] / 40)

        def kind(self, t):
            return 1 if self.data["sex"] == "M" else 0

        def pv(self):
            return sum(self.in_force(t) for t in range(3))

    model = Single(data={"count": 1.0, "age": 40, "sex": "M"})
    model.RunModel(3)
    assert model.data["age"] == 40
    assert model.df_agg["in_force"].tolist() == pytest.approx([1.0, 0.99, 0.99**2, 0.99**3])
    assert model.df_agg["kind"].tolist() == [1, 1, 1, 1]
    assert model.cache_agg["pv"][()] == pytest.approx(1 + 0.99 + 0.99**2)
    assert isinstance(model.in_force(2), float)


@pytest.mark.parametrize("form", ["dict", "frame", "arrow", "list"])
def test_data_come_in_several_forms(form: str, columns: Columns) -> None:
    data: Any = columns
    if form == "frame":
        data = pd.DataFrame(columns, index=np.arange(ROWS) * 7)
    elif form == "arrow":
        data = pd.DataFrame(columns).convert_dtypes(dtype_backend="pyarrow")
    elif form == "list":
        data = {name: column.tolist() for name, column in columns.items()}
    model = Account(data=data, rate=0.01)
    model.RunModel(2)
    assert_account(model.df_agg, columns, 2)
    assert_account(model.ExecuteActions(block_rows=256).df_agg, columns, 2)


def test_a_path_is_loaded_by_a_plain_run(tmp_path: Path, columns: Columns) -> None:
    pd.DataFrame(columns).to_parquet(tmp_path / "policies.parquet")
    model = Account(data=tmp_path / "policies.parquet", rate=0.01)
    model.RunModel(2)
    assert_account(model.df_agg, columns, 2)


def test_check_finds_no_difference(columns: Columns) -> None:
    model = Account(data=columns, rate=0.01)
    model.GenerateActions(3)
    assert not len(model.Check())


# --- errors ------------------------------------------------------------------------------------

ERRORS = [
    cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, HlDaskError)
]


@pytest.mark.parametrize("cls", ERRORS)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_survives_pickling(cls: type[HlDaskError], protocol: int) -> None:
    error = cls(
        "seen and expected",
        formula="value(3)",
        column="age",
        file="part-0.parquet",
        remedy="do this",
    )
    error.__cause__ = ValueError("inner")
    for again in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(again) is cls
        assert str(again) == str(error)
        for name in ("message", "formula", "column", "file", "remedy"):
            assert getattr(again, name) == getattr(error, name)


@pytest.mark.parametrize("cls", ERRORS)
def test_every_error_says_what_where_and_what_to_do(cls: type[HlDaskError]) -> None:
    text = str(cls("too long", formula="value(3)", column="age", file="x", remedy="cut it"))
    for part in ("too long", "value(3)", "age", "x", "cut it"):
        assert part in text


def test_errors_raised_by_models_survive_pickling(columns: Columns) -> None:
    model = Failing(data=columns, kind="zero", fails_at=0)
    with pytest.raises(HlDaskError) as info:
        model.RunModel(1)
    again = pickle.loads(pickle.dumps(info.value))
    assert str(again) == str(info.value)


# --- LightModel --------------------------------------------------------------------------------


class Light(hl.LightModel):
    """In heavylight's style: attributes are set in the constructor."""

    def __init__(self, premium: np.ndarray, **options: Any) -> None:
        super().__init__(**options)
        self.data = {"premium": premium}
        self.rate = 0.01

    def value(self, t):
        if t == 0:
            return self.data["premium"]
        return self.value(t - 1) * (1 + self.rate)

    def doubled(self, t):
        return self.value(t) * 2

    @hl.agg(np.max)
    def largest(self, t):
        return self.value(t)


def test_light_model_runs_as_heavylight_does(columns: Columns) -> None:
    model = Light(columns["premium"])
    model.RunModel(4)
    assert list(model.df_agg.index) == [0, 1, 2, 3, 4]
    assert model.df_agg["value"].loc[4] == pytest.approx(columns["premium"].sum() * 1.01**4)
    assert model.df_agg["largest"].loc[0] == columns["premium"].max()
    plain = model.df_agg.copy()
    model.RunOptimized()
    pd.testing.assert_frame_equal(model.df_agg, plain, check_exact=False, rtol=1e-12)
    model.ClearOptimize()
    model.RunModel(2)
    assert list(model.df_agg.index) == [0, 1, 2]
    model.Clear()
    assert not model.cache.get("value")


def test_light_model_takes_the_aggregate_first(columns: Columns) -> None:
    class Positional(hl.LightModel):
        def __init__(self, agg_function: Any) -> None:
            super().__init__(agg_function)
            self.data = {"premium": columns["premium"]}

        def value(self, t):
            return self.data["premium"] * (t + 1)

        @hl.agg(np.sum)
        def summed(self, t):
            return self.value(t)

    model = Positional(np.max)
    model.RunModel(1)
    assert model.df_agg["value"].loc[1] == columns["premium"].max() * 2
    assert total(columns["premium"]).matches(model.df_agg["summed"].loc[0])
    silent = Positional(None)
    silent.RunModel(1)
    assert list(silent.df_agg.columns) == ["summed"]
    keyword = Light(columns["premium"], agg_function=np.min)
    keyword.RunModel(0)
    assert keyword.df_agg["value"].loc[0] == columns["premium"].min()


def test_light_model_optimises_only_after_a_run(columns: Columns) -> None:
    with pytest.raises((HlDaskError, ValueError)) as info:
        Light(columns["premium"]).RunOptimized()
    assert "RunModel" in message(info)


def test_light_model_records_and_replays(columns: Columns) -> None:
    model = Light(columns["premium"])
    model.RunModel(3)
    model.GenerateActions()
    model.data = {"premium": columns["premium"] * 10}
    result = model.ExecuteActions(block_rows=128)
    assert total(columns["premium"] * 10).matches(result.df_agg["value"].loc[0])
    assert result.df_agg["largest"].loc[3] == pytest.approx(columns["premium"].max() * 10 * 1.01**3)


def test_light_model_with_declared_points_only(columns: Columns) -> None:
    class Policies(hl.LightModel):
        model_points = ("mp",)

        def __init__(self, mp: Any) -> None:
            super().__init__()
            self.mp = mp

        def value(self, t):
            return self.mp.premium * (t + self.mp.age)

    points = SimpleNamespace(premium=columns["premium"], age=columns["age"])
    model = Policies(points)
    model.RunModel(2)
    expected = total(columns["premium"] * (2 + columns["age"]))
    assert expected.matches(model.df_agg["value"].loc[2])
    assert expected.matches(model.ExecuteActions(block_rows=200).df_agg["value"].loc[2])


# --- the face ----------------------------------------------------------------------------------


def test_import_is_quick_and_quiet() -> None:
    code = (
        "import sys, hl_dask; "
        "assert 'distributed' not in sys.modules, 'distributed is imported'; "
        "assert 'openpyxl' not in sys.modules; "
        "assert set(hl_dask.__all__) <= set(dir(hl_dask))"
    )
    root = Path(hl.__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**_environment(), "PYTHONPATH": str(root)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


# --- what a recording rests on, found by reading the world -------------------------------------


class RateHolder:
    """An assumption object of a class of the user's."""

    rate = 1.0

    def __call__(self, x: Any) -> Any:
        return x * GLOBAL_RATE["rate"]


GLOBAL_RATE = {"rate": 1.0}


class FloatRate(float):
    """A number of a class of the user's."""


def test_shared_fields_of_a_declared_object_are_read_at_execution(columns: Columns) -> None:
    class Model(hl.Model):
        model_points = ("mp",)

        def f(self, t):
            return self.mp.premium * self.mp.loading

    def points(loading: float) -> Any:
        return SimpleNamespace(premium=columns["premium"], loading=loading)

    model = Model(mp=points(1.0))
    model.ExecuteActions(1)
    model.mp = points(2.0)
    frame = model.ExecuteActions(1).df_agg
    assert total(columns["premium"] * 2.0).matches(frame["f"].loc[1])


def test_the_order_of_columns_matters_to_a_formula_that_asks_for_it(columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.data[self.data.columns[0]] * 1.0

    model = Model(data={"age": columns["age"], "term": columns["term"]})
    model.ExecuteActions(0)
    model.data = {"term": columns["term"], "age": columns["age"]}
    frame = model.ExecuteActions(0).df_agg
    assert total(columns["term"] * 1.0).matches(frame["f"].loc[0])


@pytest.mark.parametrize("way", ["call", "float", "base"])
def test_objects_of_the_users_own_classes_are_read_at_execution(
    way: str, columns: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Model(hl.Model):
        def f(self, t):
            x = self.data["premium"]
            if way == "call":
                return self.holder(x)
            return x * (self.number if way == "float" else self.holder.rate)

    model = Model(data=columns, holder=RateHolder(), number=FloatRate(1.0))
    model.ExecuteActions(0)
    monkeypatch.setitem(GLOBAL_RATE, "rate", 3.0)
    monkeypatch.setattr(RateHolder, "rate", 3.0)
    model.number = FloatRate(3.0)
    frame = model.ExecuteActions(0).df_agg
    assert total(columns["premium"] * 3.0).matches(frame["f"].loc[0])


def test_a_formula_assigned_to_the_class_is_a_formula(columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.data["premium"]

    model = Model(data=columns)
    model.ExecuteActions(1)
    Model.f = lambda self, t: self.data["premium"] * (t + 2.0)
    frame = model.ExecuteActions(1).df_agg
    assert total(columns["premium"] * 3.0).matches(frame["f"].loc[1])
    model.RunModel(1)
    assert total(columns["premium"] * 3.0).matches(model.df_agg["f"].loc[1])


def test_a_round_trip_through_cloudpickle_leaves_the_model_as_it_was(columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.data["premium"] * (t + 1.0)

    model = Model(data=columns)
    model.GenerateActions(1)
    copied = cloudpickle.loads(cloudpickle.dumps(model))
    for one in (model, copied):
        frame = one.ExecuteActions(1).df_agg
        assert total(columns["premium"] * 2.0).matches(frame["f"].loc[1])


@pytest.mark.parametrize("aggregate", [np.max, np.any, hl.Sum(axis=0)], ids=["max", "any", "Sum"])
def test_texts_can_be_counted_and_not_aggregated(aggregate: Any, columns: Columns) -> None:
    class Model(hl.Model):
        @hl.agg(len)
        def count(self, t):
            return self.data["sex"]

    class Wrong(hl.Model):
        @hl.agg(aggregate)
        def f(self, t):
            return self.data["sex"]

    assert Model(data=columns).ExecuteActions(0).df_agg["count"].loc[0] == ROWS
    with pytest.raises(HlDaskError, match="f\\(0\\)"):
        Wrong(data=columns).ExecuteActions(0)


def test_the_number_of_rows_is_not_told_where_it_cannot_be_used(columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return np.full(len(self.data), 1.5) * self.data["premium"]

    many = {"premium": np.broadcast_to(np.float64(1.0), (40_000_000,))}
    with pytest.raises(HlDaskError, match="number of rows") as info:
        Model(data=many).ExecuteActions(0, memory="600MB")
    assert "zeros_like" in message(info)


def test_partials_of_own_aggregates_count_in_the_projection(columns: Columns) -> None:
    class Model(hl.Model):
        @hl.agg(hl.Aggregate(map=lambda x: np.full(10**6, x.sum()), combine=np.add))
        def f(self, t):
            return self.data["premium"]

    class Small(hl.Model):
        def f(self, t):
            return self.data["premium"]

    big, small = (
        kind(data=columns).ExecuteActions(1, block_rows=100).stats.estimate.result_bytes
        for kind in (Model, Small)
    )
    assert big > small + 2 * 8 * 10**6 * 4


def test_a_lazy_run_keeps_the_assumptions_of_its_preparation(columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.data["premium"] * self.rates[t]

        def g(self, t):
            return self.rates[self.data["term"] % 3] * 1.0

    rates = np.array([1.0, 2.0, 3.0])
    lazy = Model(data=columns, rates=rates).ExecuteActions(1, compute=False)
    rates[:] = 50.0
    frame = lazy.compute().df_agg
    assert total(columns["premium"] * 2.0).matches(frame["f"].loc[1])
    assert total(np.array([1.0, 2.0, 3.0])[columns["term"] % 3]).matches(frame["g"].loc[1])


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m.RunModel(1),
        lambda m: m.ExecuteActions(1),
        lambda m: m.GenerateActions(1),
        lambda m: m.df_agg,
        lambda m: m.df,
        lambda m: m.cache,
        lambda m: m.cache_agg,
    ],
    ids=["RunModel", "ExecuteActions", "GenerateActions", "df_agg", "df", "cache", "cache_agg"],
)
@pytest.mark.parametrize("action", ["RunModel", "ExecuteActions"])
def test_a_formula_cannot_run_the_model_or_read_its_results(
    use: Any, action: str, columns: Columns
) -> None:
    class Model(hl.Model):
        def f(self, t):
            use(self)
            return self.data["premium"]

    with pytest.raises(HlDaskError, match="a formula r") as info:
        getattr(Model(data=columns), action)(1)
    assert "f(0)" in message(info)


def test_codes_of_a_text_column_are_those_of_pandas(columns: Columns) -> None:
    class Model(hl.Model):
        def f(self, t):
            return self.data["product"].codes

        def g(self, t):
            return self.data["product"].codes * 2.5 + t

    model = Model(data=columns)
    model.RunModel(1)
    plain = model.df_agg
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = model.ExecuteActions(block_rows=100).df_agg
    codes = np.unique(columns["product"], return_inverse=True)[1]
    assert frame["f"].loc[0] == plain["f"].loc[0] == codes.sum()
    assert total(codes * 2.5 + 1.0).matches(frame["g"].loc[1])


def test_a_list_by_policy_is_refused_in_every_mode(columns: Columns) -> None:
    class Model(hl.Model):
        @hl.per_point
        def f(self, t):
            return [float(x) for x in np.asarray(self.data["premium"])]

    for action in ("RunModel", "ExecuteActions"):
        with pytest.raises(HlDaskError, match="a list") as info:
            getattr(Model(data=columns), action)(0)
        assert "f(0)" in message(info)


def first_minus_second(a: float, b: float) -> float:
    """Subtract; replaced by another function of the same code in a test."""
    return a - b


def second_first(b: float, a: float) -> float:
    """Subtract the other way round, when called by keyword."""
    return b - a


LEVEL = {"now": 2.0}


@functools.wraps(np.exp)
def dressed_up(x: Any) -> Any:
    """Claim to be a function of NumPy."""
    return np.exp(x * 0.0) * x * LEVEL["now"]


def scaled_sum(values: Any) -> Any:
    """An aggregate that reads a global."""
    return np.sum(values) * LEVEL["now"]


@pytest.mark.parametrize("way", ["wraps", "names", "categories", "label", "default", "getattr"])
def test_what_hides_well_is_read_at_execution(
    way: str, columns: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Model(hl.LightModel):
        def f(self, t):
            x = self.data["premium"]
            if way == "wraps":
                return dressed_up(x)
            if way == "names":
                return x * first_minus_second(a=1.0, b=3.0)
            if way == "categories":
                return x * float(self.series.cat.codes.iloc[0] + 1)
            if way == "label":
                return x * (1.0 if 1 in self.series.index else 3.0)
            return x * (self.level if way == "getattr" else 1.0)

        def __getattr__(self, name):
            if name == "level":
                return LEVEL["now"]
            raise AttributeError(name)

    def series(categories: list[str], label: Any) -> pd.Series:
        return pd.Series(pd.Categorical(["a", "b"], categories=categories), index=[label, "x"])

    aggregate = scaled_sum if way == "default" else np.sum
    model = Model(aggregate, data=columns, series=series(["a", "b"], 1))
    model.ExecuteActions(0)
    monkeypatch.setitem(LEVEL, "now", 7.0)
    monkeypatch.setitem(globals(), "first_minus_second", second_first)
    model.series = series(["b", "a"], "1")
    frame = model.ExecuteActions(0).df_agg
    factor = {"wraps": 7.0, "names": 2.0, "categories": 2.0, "label": 3.0}.get(way, 7.0)
    assert total(columns["premium"] * factor).matches(frame["f"].loc[0])


def test_a_declared_object_is_not_asked_in_vain(columns: Columns) -> None:
    class Points:
        fee = 9.0

        def __init__(self) -> None:
            self.premium = columns["premium"]

    class Model(hl.Model):
        model_points = ("mp",)

        def f(self, t):
            return self.mp.premium * self.mp.fee

        @hl.agg(None)
        def g(self, t):
            return self.mp.premium * getattr(self.mp, "loading", 1.0)

    model = Model(mp=Points())
    frame = model.ExecuteActions(0).df_agg
    assert total(columns["premium"] * 9.0).matches(frame["f"].loc[0])
    with pytest.raises(HlDaskError, match="loading"):
        model.ExecuteActions(0, outputs=["g"])


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2"])
@pytest.mark.parametrize("way", ["@", "vdot", "einsum", "tensordot"])
def test_products_over_rows_in_narrow_types_are_not_widened(
    dtype: str, way: str, columns: Columns
) -> None:
    class Model(hl.Model):
        def f(self, t):
            x = self.data["age"].astype(dtype)
            products = {
                "@": lambda: x @ x,
                "vdot": lambda: np.vdot(x, x),
                "einsum": lambda: np.einsum("i,i->", x, x),
                "tensordot": lambda: np.tensordot(x, x, 1),
            }
            return self.data["premium"] * (2.0 if products[way]() > 50 else 1.0)

    with pytest.raises(HlDaskError, match="f\\(0\\)") as info:
        Model(data=columns).ExecuteActions(0)
    assert "astype" in message(info)
