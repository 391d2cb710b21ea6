"""The fixed tree: the same bits in every order, equal to its definition by recursion."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hl_dask as hl
from hl_dask.aggregate import COMBINE, Aggregate, Sum, Tree, combine_moments, merge_trees
from hl_dask.blocks import Blocks
from hl_dask.traced import reduce_rows
from hl_dask.traced.functions import moments

quick = settings(max_examples=100, deadline=None)
floats = st.floats(-1e12, 1e12, allow_nan=False)
wild = st.floats(allow_nan=True, allow_infinity=True, width=64)
counts = st.integers(1, 33)


def parts_of(values: list[float]) -> list[dict[str, Any]]:
    """One partial for each block, in all ways of combining that work on vectors."""
    return [
        {
            "sum": np.array([value, 1.0]),
            "prod": np.array([1.0 + value * 1e-13]),
            "min": np.array([value]),
            "fmax": np.array([value, -value]),
            "any": np.array([value > 0, value < 0]),
            "moments": np.array([[1.0], [value], [0.0]]),
        }
        for value in values
    ]


def by_recursion(parts: list[Any], combine: Callable[[Any, Any], Any]) -> Any:
    """The tree as its definition says it: pairs of pairs, a missing right side is left out."""
    width = 1
    while width < len(parts):
        width *= 2

    def node(first: int, width: int) -> Any:
        if first >= len(parts):
            return None
        if width == 1:
            return parts[first]
        left, right = node(first, width // 2), node(first + width // 2, width // 2)
        return left if right is None else combine(left, right)

    return node(0, width)


def combined(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    return {kind: COMBINE[kind](left[kind], right[kind]) for kind in left}


def bits(partial: dict[str, Any]) -> dict[str, bytes]:
    return {kind: np.asarray(value).tobytes() for kind, value in partial.items()}


@quick
@given(st.data(), counts)
@np.errstate(all="ignore")
def test_any_order_of_blocks_gives_the_bits_of_the_definition(data: Any, n: int) -> None:
    parts = parts_of(data.draw(st.lists(floats | wild, min_size=n, max_size=n)))
    tree = Tree(n)
    for block in data.draw(st.permutations(range(n))):
        tree.add(block, parts[block])
    assert bits(tree.result()) == bits(by_recursion(parts, combined))


@quick
@given(st.data(), counts)
@np.errstate(all="ignore")
def test_any_chunks_and_any_order_of_merging_give_the_same_bits(data: Any, n: int) -> None:
    parts = parts_of(data.draw(st.lists(floats, min_size=n, max_size=n)))
    owner = data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    trees = [Tree(n) for _ in range(5)]
    for block in data.draw(st.permutations(range(n))):
        trees[owner[block]].add(block, parts[block])
    while len(trees) > 1:
        taken = data.draw(st.integers(2, len(trees)))
        trees = [merge_trees(trees[:taken]), *trees[taken:]]
        trees = data.draw(st.permutations(trees))
    assert bits(trees[0].result()) == bits(by_recursion(parts, combined))


@quick
@given(st.data(), st.integers(1, 200), st.integers(1, 9))
def test_contiguous_chunks_hold_few_nodes_and_give_the_same_bits(
    data: Any, rows: int, chunk_blocks: int
) -> None:
    values = data.draw(st.lists(floats, min_size=rows, max_size=rows))
    cut = Blocks(rows, 3, chunk_blocks)
    parts = parts_of([float(np.sum(values[slice(*cut.block(k))])) for k in range(cut.n_blocks)])
    trees = []
    for blocks in cut:
        tree = Tree(cut.n_blocks)
        for block in blocks:
            tree.add(block, parts[block])
            # A range of b blocks is made of at most about two nodes for each level.
            assert len(tree.nodes) <= 2 * max(1, chunk_blocks.bit_length())
        trees.append(tree)
    assert bits(merge_trees(trees).result()) == bits(by_recursion(parts, combined))


@quick
@given(st.integers(1, 3000))
def test_blocks_in_sequence_keep_about_two_log_two_partials(n: int) -> None:
    tree = Tree(n)
    for block in range(n):
        tree.add(block, {"sum": np.ones(1)})
        assert len(tree.nodes) <= 2 * max(1, n.bit_length())
    assert tree.result()["sum"].tolist() == [n]


@quick
@given(st.data(), st.integers(1, 20))
def test_objects_are_combined_left_to_right(data: Any, n: int) -> None:
    combine = {"aggregate|0": lambda a, b: f"({a}{b})", "aggregate|1": lambda a, b: a + b}
    parts = [{"aggregate|0": [str(k)], "aggregate|1": [(k,)]} for k in range(n)]
    tree = Tree(n, combine)
    for block in data.draw(st.permutations(range(n))):
        tree.add(block, parts[block])
    (shown,), (order,) = tree.result()["aggregate|0"], tree.result()["aggregate|1"]
    assert order == tuple(range(n))
    assert shown == by_recursion([p["aggregate|0"][0] for p in parts], combine["aggregate|0"])


# ---- what is missing or there twice --------------------------------------------------------------


@quick
@given(st.data(), counts)
def test_missing_blocks_raise(data: Any, n: int) -> None:
    present = data.draw(st.sets(st.integers(0, n - 1), max_size=n - 1))
    tree = Tree(n)
    for block in sorted(present):
        tree.add(block, {"sum": np.ones(1)})
    with pytest.raises(ValueError, match=f"not complete: .* over {n} blocks"):
        tree.result()


@quick
@given(st.data(), counts)
def test_blocks_that_come_twice_or_are_none_raise(data: Any, n: int) -> None:
    order = data.draw(st.permutations(range(n)))
    extra = data.draw(st.integers(-2, n + 3))
    place = data.draw(st.integers(0, n))
    order = [*order[:place], extra, *order[place:]]

    def combine_all() -> Any:
        tree = Tree(n)
        for block in order:
            tree.add(block, {"sum": np.ones(1)})
        return tree.result()

    with pytest.raises(ValueError, match=r"not complete|added twice"):
        combine_all()


@quick
@given(st.data(), counts)
def test_trees_that_overlap_raise(data: Any, n: int) -> None:
    shared = data.draw(st.integers(0, n - 1))
    owner = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    trees = Tree(n), Tree(n)
    for block in range(n):
        for number, tree in enumerate(trees):
            if owner[block] == number or block == shared:
                tree.add(block, {"sum": np.ones(1)})

    with pytest.raises(ValueError, match=r"not complete|added twice"):
        merge_trees(trees).result()


def test_merging_leaves_the_inputs_as_they_are() -> None:
    trees = [Tree(5) for _ in range(5)]
    for block, tree in enumerate(trees):
        tree.add(block, {"sum": np.array([2.0**block])})
    before = copy.deepcopy([tree.nodes for tree in trees])
    assert merge_trees(trees).result()["sum"].tolist() == [31.0]
    assert merge_trees(iter(trees)).result()["sum"].tolist() == [31.0]
    assert [tree.nodes for tree in trees] == before


# ---- moments -------------------------------------------------------------------------------------

samples = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80)


@quick
@given(samples, st.integers(1, 9), st.floats(-1e8, 1e8))
def test_moments_in_blocks_are_numpys(values: list[float], block_rows: int, shift: float) -> None:
    x = np.array(values) + shift
    cut = Blocks(len(x), block_rows)
    tree = Tree(cut.n_blocks)
    for k in range(cut.n_blocks):
        part = moments(x[slice(*cut.block(k))], (0,), keepdims=False, skip_nan=False)
        tree.add(k, {"moments": part.reshape(3, 1)})
    count, mean, m2 = tree.result()["moments"][:, 0]
    assert count == len(x)
    size = float(np.abs(x).max())
    assert abs(mean - x.mean()) <= 1e-13 * size
    # The variance is as good as differences from the mean can be.
    assert abs(m2 / count - x.var()) <= 1e-12 * x.var() + (1e-13 * size) ** 2 * len(x)


@quick
@given(st.lists(st.floats(-1e6, 1e6) | st.just(np.nan), min_size=1, max_size=60), st.integers(1, 9))
def test_moments_without_nan(values: list[float], block_rows: int) -> None:
    x = np.array(values)
    cut = Blocks(len(x), block_rows)
    tree = Tree(cut.n_blocks)
    for k in range(cut.n_blocks):
        part = moments(x[slice(*cut.block(k))], (0,), keepdims=False, skip_nan=True)
        tree.add(k, {"nanmoments": part.reshape(3, 1)})
    count, mean, m2 = tree.result()["nanmoments"][:, 0]
    valid = x[~np.isnan(x)]
    assert count == len(valid)
    if len(valid):
        size = float(np.abs(valid).max())
        assert abs(mean - valid.mean()) <= 1e-13 * size
        assert abs(m2 / count - valid.var()) <= 1e-12 * valid.var() + (1e-13 * size) ** 2 * len(x)
    else:
        assert (mean, m2) == (0.0, 0.0)


def test_moments_of_nothing_change_nothing() -> None:
    some = np.array([[4.0], [-2.5], [3.0]])
    nothing = np.zeros((3, 1))
    assert combine_moments(some, nothing).tolist() == some.tolist()
    assert combine_moments(nothing, some).tolist() == some.tolist()
    assert combine_moments(nothing, nothing).tolist() == nothing.tolist()


@quick
@given(st.lists(floats, min_size=2, max_size=24), st.sampled_from(["sum", "prod", "min", "max"]))
def test_reductions_of_blocks_meet_numpy(values: list[float], kind: str) -> None:
    x = np.array(values) * 1e-12
    cut = Blocks(len(x), 5)
    tree = Tree(cut.n_blocks)
    for k in range(cut.n_blocks):
        part = reduce_rows(x[slice(*cut.block(k))], (kind, (0,), False, None))
        tree.add(k, {kind: np.atleast_1d(part)})
    expected = getattr(np, kind)(x)
    assert tree.result()[kind][0] == pytest.approx(expected, rel=1e-13, abs=1e-13)


# ---- what users hold in their hands --------------------------------------------------------------


def test_sum_over_the_axes_named() -> None:
    x = np.arange(12.0).reshape(4, 3)
    assert Sum()(x) == 66.0
    assert Sum(axis=0)(x).tolist() == [18.0, 22.0, 26.0]
    assert hl.Sum(axis=0) == Sum(0)


@quick
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=50), st.integers(1, 7))
def test_an_aggregate_in_parts_is_the_aggregate_of_all(values: list[float], block: int) -> None:
    longest = Aggregate(
        map=lambda x: (len(x), float(x.max()), tuple(x)),
        combine=lambda a, b: (a[0] + b[0], max(a[1], b[1]), a[2] + b[2]),
        finalise=lambda p: (p[0], p[1], p[2][-1]),
    )
    x = np.array(values)
    cut = Blocks(len(x), block)
    tree = Tree(cut.n_blocks, {"aggregate|0": longest.combine})
    for k in reversed(range(cut.n_blocks)):
        tree.add(k, {"aggregate|0": [longest.map(x[slice(*cut.block(k))])]})
    assert longest.finish(tree.result()["aggregate|0"][0]) == longest(x)


def test_an_aggregate_without_a_finish_gives_its_partial() -> None:
    assert Aggregate(map=np.sum, combine=np.add)(np.array([1.0, 2.0])) == 3.0
