"""Formulas that mix rows or leak the sample: right on other data, or refused; never different."""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hl_dask as hl
from tests.reference import Columns
from tests.row_mixing import CASES, DECLARED_CASES, UNDECLARED_CASES
from tests.row_mixing_case import BIG_ROWS, Case, big_columns, sample_columns

PROJ_LEN = 1
BLOCK_ROWS = 4_096
CHUNK_BLOCKS = 3

outcomes: dict[str, str] = {}


@functools.lru_cache(maxsize=3)
def big(rows: int) -> Columns:
    """Make the big data once."""
    return big_columns(rows)


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write the big data to three files and return their glob."""
    folder = tmp_path_factory.mktemp("policies")
    table = pa.table(big(BIG_ROWS))  # keeps NaN, where pandas would write nulls
    for number, start in enumerate((0, 33_000, 61_000)):
        part = table[start : (33_000, 61_000, BIG_ROWS)[number]]
        pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=7_000)
    return str(folder / "*.parquet")


def record_and_replay(case: Case, data: object, *, plain_run: bool) -> Any:
    """Record on the sample, replay on the big data; warnings are allowed.

    ``plain_run``: with a plain run before the recording, and one on the big data at the end.
    """
    if case.reset is not None:
        case.reset(case.model)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        model = case.model(data=sample_columns(), **case.assumptions())
        if plain_run:
            model.RunModel(PROJ_LEN)
        model.GenerateActions(proj_len=PROJ_LEN)
        model.data = data
        result = model.ExecuteActions(block_rows=BLOCK_ROWS, chunk_blocks=CHUNK_BLOCKS)
        if plain_run:
            model.RunModel(PROJ_LEN)
        return result, model.df_agg


def result_or_refusal(case: Case, data: object, *, plain_run: bool) -> Any:
    """Return the result, or the error that refused the case."""
    try:
        return record_and_replay(case, data, plain_run=plain_run)
    except hl.HlDaskError as error:
        return error


def formula_names(case: Case) -> list[str]:
    """Names of which a refusal has to give one: another formula than the case's may be at fault."""
    others = set(dir(case.model)) - set(dir(hl.Model))
    return [case.name, "BeforeRun", *(name for name in others if name[0].islower())]


def outcome_of(case: Case, data: object, *, plain_run: bool = False) -> str:
    """Return "right" or "refused"; fail on anything else."""
    result = result_or_refusal(case, data, plain_run=plain_run)
    if isinstance(result, hl.HlDaskError):
        assert any(name in str(result) for name in formula_names(case)), (
            f"the refusal names no formula: {result}"
        )
        assert result.remedy, f"the refusal has no remedy: {result}"
        return "refused"
    replayed, plain = (frame[case.name] for frame in (result[0].df_agg, result[1]))
    assert case.right is not None, f"{case.name} has no right answer, but got {list(replayed)}"
    columns = big(case.rows)
    for t in range(PROJ_LEN + 1):
        amount = case.right(columns, t)
        actual = replayed.loc[t]
        # Where a formula keeps something outside the model, a run before has changed what is right.
        present = replace(amount, value=plain.loc[t]) if plain_run else amount
        assert amount.matches(actual) or present.matches(actual), (
            f"silently different: {case.name}({t}) = {actual!r}, right is {amount.value!r}"
        )
    return "right"


def check(case: Case, data: object, *, plain_run: bool = False) -> str:
    """Compare the outcome with what the case expects."""
    outcome = outcome_of(case, data, plain_run=plain_run)
    if case.expect != "either":
        assert outcome == case.expect, f"{case.name} is {outcome}, has to be {case.expect}"
    return outcome


@pytest.mark.parametrize("name", CASES)
def test_right_or_refused_in_memory(name: str) -> None:
    case = CASES[name]
    outcomes[name] = check(case, big(case.rows))


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if not c.fresh_only])
def test_right_or_refused_after_a_plain_run(name: str) -> None:
    case = CASES[name]
    check(case, big(case.rows), plain_run=True)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.rows == BIG_ROWS][::2])
def test_right_or_refused_from_parquet(name: str, parquet: str) -> None:
    check(CASES[name], parquet)


def test_there_are_many_cases_and_every_one_is_right_or_refused() -> None:
    assert len(UNDECLARED_CASES) >= 70
    assert len(DECLARED_CASES) >= 10
    for name, case in CASES.items():
        if name not in outcomes:
            outcomes[name] = outcome_of(case, big(case.rows))
    assert Counter(outcomes.values()).total() >= 60
    assert set(outcomes.values()) <= {"right", "refused"}
