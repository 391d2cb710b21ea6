"""Phases against brute force: nothing before what it needs, and no more phases than chains."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hl_dask.phases import phases_of
from tests.test_liveness import quick


@st.composite
def waiting_dags(draw: Any) -> tuple[list[int], dict[int, list[int]], dict[int, list[int]]]:
    n = draw(st.integers(0, 30))
    totals = [op for op in range(n) if draw(st.integers(0, 3)) == 0]
    reads, waits = {}, {}
    for op in range(n):
        values = [other for other in range(op) if other not in totals]
        before = [total for total in totals if total < op]
        reads[op] = draw(st.lists(st.sampled_from(values), max_size=3)) if values else []
        if op not in totals and before and draw(st.booleans()):
            waits[op] = draw(st.lists(st.sampled_from(before), min_size=1, max_size=2))
    return list(range(n)), reads, waits


@quick
@given(waiting_dags())
def test_nothing_comes_before_what_it_needs(dag: Any) -> None:
    order, reads, waits = dag
    phases = phases_of(order, reads, waits)
    assert set(phases) == set(order)
    for op in order:
        assert all(phases[read] <= phases[op] for read in reads[op])
        assert all(phases[total] < phases[op] for total in waits.get(op, ()))


@quick
@given(waiting_dags())
def test_there_are_as_many_phases_as_the_longest_chain(dag: Any) -> None:
    order, reads, waits = dag
    longest: dict[int, int] = {}
    for op in order:
        lengths = [longest[read] for read in reads[op]]
        longest[op] = max([0, *lengths, *(longest[total] + 1 for total in waits.get(op, ()))])
    phases = phases_of(order, reads, waits)
    assert max(phases.values(), default=0) == max(longest.values(), default=0)


def test_what_is_needed_late_is_done_late() -> None:
    """A month: a rate, which depends on nothing; the assets; their total; and the next month."""
    order, reads, waits = [], {}, {}
    months = 6
    for t in range(months):
        rate, assets, total = 3 * t, 3 * t + 1, 3 * t + 2
        order += [rate, assets, total]
        reads[rate] = []
        reads[assets] = [rate] if t == 0 else [rate, assets - 3]
        reads[total] = [assets]
        if t:
            waits[assets] = [total - 3]
    phases = phases_of(order, reads, waits)
    assert [phases[3 * t] for t in range(1, months)] == list(range(1, months))
    assert [phases[3 * t + 2] for t in range(months)] == list(range(months))
