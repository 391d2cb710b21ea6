"""Recording: how many rows it looks at, when it starts again, and what must not come of that."""

from __future__ import annotations

import functools
import queue
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy import errstate as quiet

import hl_dask as hl
import hl_dask.record
from hl_dask.errors import HlDaskError, RowMixingError
from hl_dask.record import PROBE_ROWS, SAMPLE_ROWS
from hl_dask.traced import SampleUsedError
from tests.reference import Columns, Entry, policies
from tests.zoo import ZOO

KEPT: dict[str, Any] = {}


class Holder:
    """An object of the user's own, into which nobody can look for changes."""

    kept: Any = None


HOLDER = Holder()


@pytest.fixture
def columns() -> Columns:
    KEPT.clear()
    HOLDER.kept = None
    return policies(np.random.default_rng(3), 20_000)


def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which every trace will add what it was, and whether it was given up."""
    log: list[str] = []
    trace = hl_dask.record._trace

    def noted(subjects: Any, proj_len: int, sessions: Any, *rest: Any) -> None:
        (session,) = sessions
        name = "blind" if session.tracer.blind else "second" if session.tracer.frozen else "first"
        try:
            trace(subjects, proj_len, sessions, *rest)
        except SampleUsedError:
            log.append(f"{name} of {len(session.positions)}, given up")
            raise
        log.append(f"{name} of {len(session.positions)}")

    monkeypatch.setattr(hl_dask.record, "_trace", noted)
    return log


class Plain(hl.Model):
    """Nothing of the rows leaves the trace."""

    def value(self, t):
        return self.data["sum_assured"] * 1.01**t


class Concrete(hl.Model):
    """A total decides how far the projection goes."""

    def value(self, t):
        return self.data["sum_assured"] * (t < int(self.data["age"].max()))


class Declared(hl.Model):
    """A formula that tracing cannot see into."""

    @hl.per_point
    def value(self, t):
        return np.array([float(x) for x in self.data["sum_assured"]]) * t


FEW = f"first of {PROBE_ROWS[0]}"
ALL = f"first of {SAMPLE_ROWS[0]}"


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Plain, [FEW, f"blind of {PROBE_ROWS[1]}"]),
        (Concrete, [f"{FEW}, given up", ALL, f"blind of {SAMPLE_ROWS[1]}"]),
        (
            Declared,
            [
                f"{FEW}, given up",
                ALL,
                f"blind of {SAMPLE_ROWS[1]}, given up",
                f"second of {SAMPLE_ROWS[1]}",
            ],
        ),
    ],
)
def test_rows_are_looked_at_where_they_matter(
    model: type[hl.Model],
    expected: list[str],
    columns: Columns,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = traces(monkeypatch)
    plan = model(data=columns).GenerateActions(proj_len=2)
    assert log == expected
    assert plan.sample_rows == (PROBE_ROWS if model is Plain else SAMPLE_ROWS)


@pytest.mark.parametrize("entry", ZOO.values(), ids=list(ZOO))
def test_a_blind_trace_finds_what_one_with_values_finds(
    entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = traces(monkeypatch)
    entry.build(entry.columns()).GenerateActions(proj_len=entry.proj_len)
    blind, rest = [t for t in log if "blind" in t], [t for t in log if "second" in t]
    # Only an opaque formula has to be evaluated on the second sample as well.
    assert len(blind) == 1
    assert bool(rest) == (entry is ZOO["declared_per_point"])


def total(columns: Columns) -> float:
    return float(np.sum(columns["sum_assured"]))


def result_or_refusal(model: hl.Model) -> Any:
    """Return the result of an execution, or the error that refuses it."""
    try:
        return model.ExecuteActions(proj_len=3)
    except HlDaskError as error:
        return error


def keep_in_module(model: Any, t: int) -> Any:
    if "mean" not in KEPT:
        KEPT["mean"] = float(model.data["sum_assured"].mean())
    return model.data["sum_assured"] / KEPT["mean"]


def keep_in_object(model: Any, t: int) -> Any:
    if HOLDER.kept is None:
        HOLDER.kept = float(model.data["sum_assured"].mean())
    return model.data["sum_assured"] / HOLDER.kept


def keep_an_escape(model: Any, t: int) -> Any:
    if "largest" not in KEPT:
        KEPT["largest"] = max(np.asarray(model.data["sum_assured"]).tolist())
    return model.data["sum_assured"] / KEPT["largest"]


def keep_an_escape_in_object(model: Any, t: int) -> Any:
    if HOLDER.kept is None:
        HOLDER.kept = max(np.asarray(model.data["sum_assured"]).tolist())
    return model.data["sum_assured"] / HOLDER.kept


def keep_the_row_count(model: Any, t: int) -> Any:
    KEPT.setdefault("rows", len(model.data))
    return model.data["sum_assured"] * (float(model.data["age"].max()) > 0) / KEPT["rows"]


@pytest.mark.filterwarnings("ignore:replaying in one piece")
@pytest.mark.parametrize(
    "formula",
    [
        keep_in_module,
        keep_in_object,
        keep_an_escape,
        keep_an_escape_in_object,
        keep_the_row_count,
    ],
)
@pytest.mark.parametrize("held_bytes", [None, 6_000], ids=["", "sample-too-large"])
def test_what_a_trace_that_was_given_up_kept_is_no_constant(
    formula: Callable[..., Any],
    held_bytes: int | None,
    columns: Columns,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if held_bytes:
        monkeypatch.setattr(hl_dask.record, "SAMPLE_BYTES", held_bytes)
        monkeypatch.setattr(hl_dask.record, "sample_sizes", lambda calls: SAMPLE_ROWS)
    model_class = type("Keeping", (hl.Model,), {"value": lambda self, t: formula(self, t)})
    before = dict(KEPT), HOLDER.kept
    model_class(data=columns).GenerateActions(proj_len=3)
    assert (KEPT, HOLDER.kept) == before  # a recording leaves everything as it was
    result = result_or_refusal(model_class(data=columns))
    if isinstance(result, HlDaskError):
        assert "value" in str(result)
        assert result.remedy
        return
    divisors = {
        "keep_in_module": np.mean(columns["sum_assured"]),
        "keep_in_object": np.mean(columns["sum_assured"]),
        "keep_the_row_count": len(columns["age"]),
    }
    divisor = divisors.get(formula.__name__, np.max(columns["sum_assured"]))
    np.testing.assert_allclose(result.df_agg["value"], total(columns) / divisor, rtol=1e-12)


class ReadsConcrete(hl.Model):
    """A formula declared per point that reads a total as a Python value."""

    @hl.agg(None)
    def mean(self):
        return float(self.data["premium"].mean())

    @hl.per_point
    def share(self, t):
        return np.array([x / self.mean() for x in self.data["premium"].tolist()])


def test_an_opaque_formula_reads_the_real_total(columns: Columns) -> None:
    result = ReadsConcrete(data=columns).ExecuteActions(proj_len=1)
    np.testing.assert_allclose(result.df_agg["share"], len(columns["premium"]), rtol=1e-12)


class KeepsBefore(hl.Model):
    """A formula declared per point that reads what BeforeRun has made of a total."""

    def BeforeRun(self):
        self.mean = float(self.data["premium"].mean())
        self.inside = {"mean": self.mean}

    @hl.per_point
    def share(self, t):
        return np.array([x / self.mean for x in self.data["premium"].tolist()])

    @hl.per_point
    def share_inside(self, t):
        return np.array([x / self.inside["mean"] for x in self.data["premium"].tolist()])


def test_an_opaque_formula_reads_what_before_run_made_of_the_real_total(columns: Columns) -> None:
    frame = KeepsBefore(data=columns).ExecuteActions(proj_len=1).df_agg
    for name in ("share", "share_inside"):
        np.testing.assert_allclose(frame[name], len(columns["premium"]), rtol=1e-12)


class WarningsAsErrors(hl.Model):
    """A warning of NumPy that the formula turns into an error."""

    def value(self, t):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                return self.data["premium"] / np.where(self.data["sum_assured"] > 899_900, 0.0, 1.0)
            except RuntimeWarning:
                return self.data["premium"] * 0


def test_warnings_that_become_errors_are_noticed(columns: Columns) -> None:
    model = WarningsAsErrors(data=columns)
    model.RunModel(1)
    plain = model.df_agg["value"].to_numpy()
    with pytest.warns(UserWarning, match="filter of warnings"):
        result = model.ExecuteActions(proj_len=1)
    np.testing.assert_array_equal(result.df_agg["value"], plain)
    assert np.all(plain == 0)


class NewTexts(hl.Model):
    """A table of texts of NumPy's newer kind."""

    def value(self, t):
        return (self.names[(self.data["age"] > 40).astype(int)] == "a") * 1.0


@pytest.mark.filterwarnings("ignore:replaying in one piece")
def test_texts_of_variable_length(columns: Columns) -> None:
    names = np.array(["a", "bb"], dtype=np.dtypes.StringDType())
    frame = NewTexts(data=columns, names=names).ExecuteActions(proj_len=0).df_agg
    assert frame.loc[0, "value"] == np.sum(columns["age"] <= 40)


class Quiet(hl.Model):
    """np.errstate under another name."""

    def value(self, t):
        try:
            with quiet(divide="raise"):
                return self.data["premium"] / np.where(self.data["sum_assured"] > 899_900, 0.0, 1.0)
        except FloatingPointError:
            return self.data["premium"] * 0


def test_error_states_are_noticed_under_any_name(columns: Columns) -> None:
    model = Quiet(data=columns)
    model.RunModel(1)
    plain = model.df_agg["value"].to_numpy()
    with pytest.warns(UserWarning, match="errstate"):
        result = model.ExecuteActions(proj_len=1)
    np.testing.assert_array_equal(result.df_agg["value"], plain)


def test_a_value_kept_from_a_blind_trace_is_refused_outside_of_it(columns: Columns) -> None:
    kept = queue.SimpleQueue[Any]()  # which nobody can look into, or put back as it was

    class Keeping(hl.Model):
        def value(self, t):
            kept.put(self.data["sum_assured"] * 2.0)
            return self.data["sum_assured"]

    Keeping(data=columns).GenerateActions(proj_len=0)
    values = [kept.get() for _ in range(kept.qsize())]
    with pytest.raises(RowMixingError, match="kept from an earlier run"):
        values[-1].sum() + np.exp(values[-1])


class Curve:
    """An assumption that remembers what it has worked out."""

    def __init__(self) -> None:
        self.known: dict[int, float] = {}

    def factor(self, t: int) -> float:
        if t not in self.known:
            self.known[t] = 1.02**-t
        return self.known[t]


@functools.lru_cache
def loading(age: int) -> float:
    return 1.0 + age / 100


class WithCaches(hl.Model):
    """Objects and functions with caches of what follows from their arguments."""

    def value(self, t):
        if t > int(self.data["term"].max()):
            return np.zeros_like(self.data["premium"])
        return self.data["premium"] * self.curve.factor(t)

    @hl.per_point
    def loaded(self, t):
        return np.array([loading(int(age)) for age in self.data["age"]]) * self.curve.factor(t)


def test_caches_that_hold_nothing_of_the_sample_are_fine(columns: Columns) -> None:
    loading.cache_clear()
    result = WithCaches(data=columns, curve=Curve()).ExecuteActions(proj_len=25)
    t = np.arange(26)
    premiums = np.where(t <= np.max(columns["term"]), np.sum(columns["premium"]) * 1.02**-t, 0.0)
    np.testing.assert_allclose(result.df_agg["value"], premiums, rtol=1e-12)
    loaded = np.sum(1.0 + columns["age"] / 100) * 1.02**-t
    np.testing.assert_allclose(result.df_agg["loaded"], loaded, rtol=1e-12)
