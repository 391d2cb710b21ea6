"""The zoo: a plain run and a replay give the right answers, and the same bits everywhere."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.reference import Columns, Entry, mismatches
from tests.zoo import ZOO

ALL_BLOCKS = 10**6

entries = pytest.mark.parametrize("entry", ZOO.values(), ids=list(ZOO))


def in_a_file(entry: Entry) -> bool:
    """Say whether the entry's data can come from a file."""
    return entry.attributes is None


def plain_values(model: Any) -> dict[str, Any]:
    """Return the values of the formulas without arguments after a plain run."""
    return {name: calls[()] for name, calls in model.cache_agg.items() if () in calls}


def bits(result: Any) -> tuple[Any, ...]:
    """Return everything that a result reports as bytes, with types and labels."""
    frame = result.df_agg
    columns = tuple(
        (label, column.dtype.str, tuple(np.asarray(cell).tobytes() for cell in column))
        for label, column in frame.items()
    )
    values = tuple(
        (name, np.asarray(value).dtype.str, np.asarray(value).tobytes())
        for name, value in sorted(result.values.items())
    )
    return tuple(frame.index), columns, values


def recorded(entry: Entry, columns: Columns) -> Any:
    """Return a model with a plan, and with the entry's change of assumptions applied after it."""
    model = entry.build(columns)
    model.GenerateActions(proj_len=entry.proj_len)
    if entry.change is not None:
        entry.change(model)
    return model


@entries
def test_a_plain_run_is_right(entry: Entry) -> None:
    columns = entry.columns()
    model = entry.build(columns)
    model.RunModel(entry.proj_len)
    expected = entry.expected(columns)
    assert mismatches(model.df_agg, plain_values(model), expected) == []


@entries
def test_what_is_reported_is_what_the_reference_lists(entry: Entry) -> None:
    model = entry.build(entry.columns())
    model.RunModel(entry.proj_len)
    expected = entry.expected(entry.columns())
    names = {label[0] if isinstance(label, tuple) else label for label in model.df_agg.columns}
    assert names == {name for name, calls in expected.items() if () not in calls}
    assert set(plain_values(model)) == {n for n, calls in expected.items() if () in calls}


@entries
@pytest.mark.parametrize("block_rows", [64, 100, 1_000])
def test_a_replay_is_right_with_the_same_bits_everywhere(entry: Entry, block_rows: int) -> None:
    columns = entry.columns()
    model = recorded(entry, columns)
    first = model.ExecuteActions(block_rows=block_rows, chunk_blocks=1, scheduler="synchronous")
    assert mismatches(first.df_agg, first.values, entry.expected(columns, changed=True)) == []
    reference_bits = bits(first)
    for chunk_blocks, scheduler in [
        (3, "synchronous"),
        (ALL_BLOCKS, "synchronous"),
        (1, "threads"),
        (3, "threads"),
        (ALL_BLOCKS, "threads"),
    ]:
        result = model.ExecuteActions(
            block_rows=block_rows, chunk_blocks=chunk_blocks, scheduler=scheduler
        )
        assert bits(result) == reference_bits, (chunk_blocks, scheduler)


@entries
@pytest.mark.parametrize("block_rows", [1, 7])
def test_tiny_blocks(entry: Entry, block_rows: int) -> None:
    columns = {name: column[:130] for name, column in entry.columns().items()}
    model = recorded(entry, columns)
    result = model.ExecuteActions(block_rows=block_rows, chunk_blocks=5, scheduler="synchronous")
    assert mismatches(result.df_agg, result.values, entry.expected(columns, changed=True)) == []


@entries
def test_a_replay_reports_in_the_form_of_a_plain_run(entry: Entry) -> None:
    columns = entry.columns()
    model = entry.build(columns)
    model.RunModel(entry.proj_len)
    plain, values = model.df_agg, plain_values(model)
    replayed = model.ExecuteActions(block_rows=500, scheduler="synchronous")
    assert list(replayed.df_agg.columns) == list(plain.columns)
    assert list(replayed.df_agg.index) == list(plain.index)
    assert list(replayed.df_agg.dtypes) == list(plain.dtypes)
    assert {name: type(value) for name, value in replayed.values.items()} == {
        name: type(value) for name, value in values.items()
    }


@entries
def test_a_plan_of_a_small_sample_is_right_on_other_rows(entry: Entry) -> None:
    small = {name: column[:700] for name, column in entry.columns(seed=1).items()}
    columns = entry.columns(seed=2)
    model = recorded(entry, small)
    if entry.attributes is None:
        model.data = columns
    else:
        model.data, attributes = entry.attributes(columns)
        for name, value in attributes.items():
            setattr(model, name, value)
    result = model.ExecuteActions(block_rows=256, chunk_blocks=2, scheduler="threads")
    assert mismatches(result.df_agg, result.values, entry.expected(columns, changed=True)) == []


@pytest.mark.parametrize(
    "entry", [pytest.param(e, id=name) for name, e in ZOO.items() if in_a_file(e)]
)
def test_parquet_gives_the_bits_of_memory(entry: Entry, tmp_path: Path) -> None:
    columns = entry.columns()
    table = pa.table(columns)  # keeps NaN, where pandas would write nulls
    for number, part in enumerate((table[:900], table[900:900], table[900:])):
        pq.write_table(part, tmp_path / f"part-{number}.parquet", row_group_size=333)
    model = recorded(entry, columns)
    in_memory = model.ExecuteActions(block_rows=128, chunk_blocks=2, scheduler="synchronous")
    model.data = str(tmp_path / "*.parquet")
    from_files = model.ExecuteActions(block_rows=128, chunk_blocks=5, scheduler="threads")
    assert bits(from_files) == bits(in_memory)


@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 129])
def test_few_rows_after_recording_on_many(rows: int) -> None:
    entry = ZOO["decrements"]
    model = recorded(entry, entry.columns())
    columns = {name: column[:rows] for name, column in entry.columns(seed=3).items()}
    model.data = columns
    result = model.ExecuteActions(block_rows=64, chunk_blocks=1)
    assert mismatches(result.df_agg, result.values, entry.expected(columns)) == []


@pytest.mark.parametrize("rows", [2, 5, 17, 1_499])
def test_recording_on_few_rows(rows: int) -> None:
    entry = ZOO["timing"]
    columns = {name: column[:rows] for name, column in entry.columns(seed=4).items()}
    model = entry.build(columns)
    result = model.ExecuteActions(proj_len=entry.proj_len, block_rows=4)
    assert mismatches(result.df_agg, result.values, entry.expected(columns)) == []


@pytest.mark.parametrize("name", ["decrements", "two_steps_back", "crossed_directions", "lambdas"])
def test_a_longer_or_shorter_horizon_than_recorded(name: str) -> None:
    entry = ZOO[name]
    columns = entry.columns()
    model = recorded(entry, columns)
    assumptions = copy.copy(entry)
    for proj_len in (entry.proj_len + 3, entry.proj_len - 5):
        result = model.ExecuteActions(proj_len=proj_len, block_rows=300)
        expected = assumptions.reference(columns, _namespace(entry), proj_len)
        assert mismatches(result.df_agg, result.values, expected) == []
        assert list(result.df_agg.index) == list(range(proj_len + 1))


def _namespace(entry: Entry) -> Any:
    return type("Assumptions", (), entry.assumptions())


@pytest.mark.parametrize("name", ["decrements", "timing", "loss_ratio", "every_aggregate"])
def test_outputs_narrow_the_report(name: str) -> None:
    entry = ZOO[name]
    columns = entry.columns()
    expected = entry.expected(columns)
    wanted = [n for n, calls in expected.items() if () not in calls][-1]
    model = entry.build(columns)
    result = model.ExecuteActions(
        proj_len=entry.proj_len, outputs=[wanted], block_rows=200, chunk_blocks=2
    )
    assert list(result.df_agg.columns) == [wanted]
    assert mismatches(result.df_agg, result.values, {wanted: expected[wanted]}) == []


def test_outputs_evaluate_only_what_they_need() -> None:
    import hl_dask as hl

    seen = []

    class Two(hl.Model):
        def wanted(self, t):
            return self.data["premium"] * t

        def unwanted(self, t):
            seen.append(t)
            raise ValueError(t)

    model = Two(data={"premium": np.linspace(1.0, 2.0, 1_600)})
    result = model.ExecuteActions(proj_len=3, outputs=["wanted"], block_rows=100)
    assert list(result.df_agg.columns) == ["wanted"]
    assert seen == []


def test_the_zoo_is_large_enough() -> None:
    assert len(ZOO) >= 20
