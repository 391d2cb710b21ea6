"""Last use, schedule, registers and peaks against brute force on random operations."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hl_dask.liveness import alive_at, allocate, last_use, peak_live, schedule

quick = settings(max_examples=100, deadline=None)


@dataclass
class Dag:
    """Operations 0..n-1 in a topological order; each reads earlier ones, perhaps one twice."""

    reads: dict[int, list[int]]
    sizes: list[int]

    @property
    def order(self) -> list[int]:
        return list(self.reads)

    def size(self, op: int) -> int:
        return self.sizes[op]


@st.composite
def dags(draw: Any, most: int = 24) -> Dag:
    n = draw(st.integers(0, most))
    near = draw(st.booleans())
    reads = {}
    for op in range(n):
        first = max(0, op - 4) if near else 0
        earlier = st.integers(first, op - 1)
        reads[op] = draw(st.lists(earlier, max_size=3)) if op else []
    sizes = draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))
    return Dag(reads, sizes)


def readers(dag: Dag, op: int) -> list[int]:
    return [other for other in dag.order if op in dag.reads[other]]


def alive_during(dag: Dag, order: list[int], position: int) -> set[int]:
    """Values made up to here that this operation or a later one reads, and the one being made."""
    later = set(order[position:])
    made = order[: position + 1]
    return {op for op in made if op == order[position] or later & set(readers(dag, op))}


def resting_after(dag: Dag, done: set[int]) -> int:
    """Size of the values that are made and still have to be read when these are done."""
    return sum(dag.size(op) for op in done if set(readers(dag, op)) - done)


def peak(dag: Dag, order: list[int]) -> int:
    alive = [alive_during(dag, order, k) for k in range(len(order))]
    return max((sum(map(dag.size, ops)) for ops in alive), default=0)


# ---- when a value is needed last -----------------------------------------------------------------


@quick
@given(dags())
def test_last_use_is_the_last_reader_or_the_maker(dag: Dag) -> None:
    last = last_use(dag.order, dag.reads.__getitem__)
    assert last == {op: max(readers(dag, op), default=op) for op in dag.order}


@quick
@given(dags(), st.data())
def test_last_use_follows_the_order_given(dag: Dag, data: Any) -> None:
    order = shuffled(dag, data)
    position = {op: k for k, op in enumerate(order)}
    last = last_use(order, dag.reads.__getitem__)
    for op in order:
        assert last[op] == max([position[op], *(position[r] for r in readers(dag, op))])


@quick
@given(dags())
def test_a_value_is_alive_from_its_evaluation_to_its_last_use(dag: Dag) -> None:
    last = last_use(dag.order, dag.reads.__getitem__)
    for where in range(len(dag.order)):
        alive = alive_at(dag.order, last, where)
        assert alive == [
            op for op in dag.order[: where + 1] if max([op, *readers(dag, op)]) >= where
        ]


@quick
@given(dags(), st.data())
def test_peak_live_is_the_largest_sum_of_values_alive(dag: Dag, data: Any) -> None:
    order = shuffled(dag, data)
    found, where = peak_live(order, dag.reads.__getitem__, dag.size)
    assert found == peak(dag, order)
    if order:
        assert sum(map(dag.size, alive_during(dag, order, where))) == found


def shuffled(dag: Dag, data: Any) -> list[int]:
    """Draw any topological order."""
    out: list[int] = []
    while len(out) < len(dag.order):
        ready = [op for op in dag.order if op not in out and set(dag.reads[op]) <= set(out)]
        out.append(data.draw(st.sampled_from(ready)))
    return out


# ---- in which order ------------------------------------------------------------------------------


@quick
@given(dags(), st.data())
def test_a_schedule_is_a_topological_permutation(dag: Dag, data: Any) -> None:
    order = shuffled(dag, data)
    found = schedule(order, dag.reads, dag.size)
    assert sorted(found) == sorted(order)
    position = {op: k for k, op in enumerate(found)}
    assert all(position[read] < position[op] for op in found for read in dag.reads[op])


@quick
@given(dags(), st.data())
def test_nothing_brought_forward_raises_the_memory_in_use(dag: Dag, data: Any) -> None:
    order = shuffled(dag, data)
    found = schedule(order, dag.reads, dag.size)
    kept, moved = split_moved(order, found)
    done: set[int] = set()
    before = 0
    for op in found:
        done.add(op)
        after = resting_after(dag, done)
        if op in moved:
            # What it is the last to read is at least as large as what it makes.
            freed = {r for r in dag.reads[op] if all(u in done for u in readers(dag, r))}
            assert sum(map(dag.size, freed)) >= dag.size(op)
            assert after <= before
        else:
            # Operations that kept their place find no more in memory than in the order given.
            given_done = set(order[: order.index(op) + 1])
            assert after <= resting_after(dag, given_done)
            assert before <= resting_after(dag, given_done - {op})
        before = after
    assert kept == [op for op in order if op not in moved]


def split_moved(order: list[int], found: list[int]) -> tuple[list[int], set[int]]:
    """Operations in the order given, and those that came sooner than all before them were done."""
    kept: list[int] = []
    moved: set[int] = set()
    done: set[int] = set()
    for op in found:
        waiting = [o for o in order[: order.index(op)] if o not in done]
        if waiting:
            moved.add(op)
        else:
            kept.append(op)
        done.add(op)
    return kept, moved


@quick
@given(dags(), st.data())
def test_a_schedule_at_most_adds_what_a_moved_operation_makes(dag: Dag, data: Any) -> None:
    order = shuffled(dag, data)
    found = schedule(order, dag.reads, dag.size)
    moved = split_moved(order, found)[1]
    largest = max((dag.size(op) for op in moved), default=0)
    assert peak(dag, found) <= peak(dag, order) + largest


@quick
@given(dags())
def test_what_frees_nothing_stays_where_it_is(dag: Dag) -> None:
    # Every value is read once more at the very end, so that no operation is the last reader.
    end = len(dag.order)
    reads = {**dag.reads, end: dag.order}
    assert schedule([*dag.order, end], reads, lambda op: 1) == [*dag.order, end]


@pytest.mark.parametrize("n", [2, 3, 50, 3_000])
def test_a_long_sum_is_added_up_as_its_terms_appear(n: int) -> None:
    terms = list(range(n))
    sums = list(range(n, 2 * n - 1))
    reads: dict[int, list[int]] = {term: [] for term in terms}
    for k, op in enumerate(sums):
        reads[op] = [0 if k == 0 else sums[k - 1], terms[k + 1]]
    assert peak_live(terms + sums, reads.__getitem__, lambda op: 1)[0] == n + 1 - (n == 1)
    found = schedule(terms + sums, reads, lambda op: 1)
    assert peak_live(found, reads.__getitem__, lambda op: 1)[0] == 3
    # The additions keep their order, and so do the terms.
    assert [op for op in found if op >= n] == sums
    assert [op for op in found if op < n] == terms


def test_totals_are_taken_while_the_value_is_there() -> None:
    values = list(range(10))
    totals = list(range(10, 20))
    reads = {v: [v - 1] if v else [] for v in values} | {t: [t - 10] for t in totals}
    found = schedule(values + totals, reads, lambda op: 8 if op < 10 else 0)
    position = {op: k for k, op in enumerate(found)}
    for value in values:
        assert position[value + 10] - position[value] <= 2
    assert peak_live(found, reads.__getitem__, lambda op: 8 if op < 10 else 0)[0] == 16


# ---- where values live ---------------------------------------------------------------------------


@dataclass
class Registers:
    """What :func:`allocate` is asked for."""

    kinds: list[Hashable]
    reuse: list[bool]


@st.composite
def wishes(draw: Any, n: int) -> Registers:
    kind = st.sampled_from(["f8", "f8", "i8", ("f8", (3,)), None])
    return Registers(
        draw(st.lists(kind, min_size=n, max_size=n)),
        draw(st.lists(st.booleans(), min_size=n, max_size=n)),
    )


@quick
@given(dags(), st.data())
def test_registers_hold_what_is_read_until_it_is_read(dag: Dag, data: Any) -> None:
    order = shuffled(dag, data)
    wish = data.draw(wishes(len(order)))
    register, kinds = allocate(
        order, dag.reads.__getitem__, wish.kinds.__getitem__, wish.reuse.__getitem__
    )
    assert set(register) == {op for op in order if wish.kinds[op] is not None}
    assert sorted(set(register.values())) == list(range(len(kinds)))
    assert all(kinds[register[op]] == wish.kinds[op] for op in register)
    holds: dict[int, int] = {}
    for op in order:
        for read in dag.reads[op]:
            if read in register:
                assert holds[register[read]] == read, "the value was overwritten before it was read"
        if op in register:
            holds[register[op]] = op


@quick
@given(dags(), st.data())
def test_values_alive_at_once_share_a_register_only_where_one_may_overwrite(
    dag: Dag, data: Any
) -> None:
    order = shuffled(dag, data)
    wish = data.draw(wishes(len(order)))
    register, _ = allocate(
        order, dag.reads.__getitem__, wish.kinds.__getitem__, wish.reuse.__getitem__
    )
    last = last_use(order, dag.reads.__getitem__)
    for position, op in enumerate(order):
        alive = alive_during(dag, order, position) & set(register)
        sharing = {a for a in alive - {op} if op in register and register[a] == register[op]}
        assert len({register[a] for a in alive - {op}}) == len(alive - {op})
        if sharing:
            (dying,) = sharing
            assert wish.reuse[op]
            assert last[dying] == position
            assert dying in dag.reads[op]


@quick
@given(dags(), st.data())
def test_no_more_registers_than_values_alive(dag: Dag, data: Any) -> None:
    order = shuffled(dag, data)
    reuse = data.draw(st.booleans())
    _, kinds = allocate(order, dag.reads.__getitem__, lambda op: "f8", lambda op: reuse)
    last = last_use(order, dag.reads.__getitem__)
    most = 0
    for position, op in enumerate(order):
        alive = alive_during(dag, order, position)
        if reuse:
            alive -= {a for a in alive if last[a] == position and a != op}
        most = max(most, len(alive))
    assert len(kinds) == most


def test_an_operation_may_overwrite_its_operand_and_no_other_may() -> None:
    reads = {0: [], 1: [0], 2: [1]}
    in_place, _ = allocate([0, 1, 2], reads.__getitem__, lambda op: "f8", lambda op: True)
    assert in_place == {0: 0, 1: 0, 2: 0}
    apart, kinds = allocate([0, 1, 2], reads.__getitem__, lambda op: "f8", lambda op: False)
    assert apart == {0: 0, 1: 1, 2: 0}
    assert kinds == ["f8", "f8"]
