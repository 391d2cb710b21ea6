"""The expression graph: equal operations are one node, kinds and phases follow the operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hl_dask.expr import (
    POINT,
    PORTFOLIO,
    REDUCTIONS,
    SHARED,
    Frozen,
    Graph,
    Meta,
    Op,
    Slot,
)

quick = settings(max_examples=120, deadline=None)
FLOAT = Meta("<f8", (), 0)
LEAVES = {"column": POINT, "constant": SHARED}


@dataclass
class Term:
    """An expression as a tree of its own, without sharing: the definition to compare with."""

    op: Op
    args: tuple[Term, ...] = ()
    text: str = field(init=False)

    def __post_init__(self) -> None:
        self.text = f"{self.op}({', '.join(a.text for a in self.args)})"

    def kind(self) -> str:
        if self.op.name in LEAVES:
            return LEAVES[self.op.name]
        if self.op.name in REDUCTIONS:
            return PORTFOLIO
        kinds = [a.kind() for a in self.args]
        # One per-point operand makes the result per-point; else one total makes it a total.
        return POINT if POINT in kinds else PORTFOLIO if PORTFOLIO in kinds else SHARED

    def phase(self) -> int:
        below = max((a.phase() for a in self.args), default=0)
        return below + (self.op.name in REDUCTIONS)

    def parts(self) -> set[str]:
        return {self.text}.union(*(a.parts() for a in self.args))

    def put(self, graph: Graph) -> int:
        args = tuple(a.put(graph) for a in self.args)
        found = graph.find(self.op, args)
        if found is not None:
            return found
        return graph.add(self.op, args, LEAVES.get(self.op.name), FLOAT, -1)


leaves = st.one_of(
    st.builds(lambda n: Term(Op("column", n)), st.sampled_from("abc")),
    st.builds(lambda v: Term(Op("constant", v)), st.integers(0, 2)),
)


def grow(inner: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    one = st.tuples(inner)
    two = st.tuples(inner, inner)
    return st.one_of(
        st.builds(lambda f, a: Term(Op("ufunc", f), a), st.sampled_from(["neg", "exp"]), one),
        st.builds(lambda f, a: Term(Op("ufunc", f), a), st.sampled_from(["add", "sub"]), two),
        st.builds(lambda f, a: Term(Op("reduce", f), a), st.sampled_from(["sum", "max"]), one),
        st.builds(lambda a: Term(Op("aggregate", 7), a), one),
    )


terms = st.recursive(leaves, grow, max_leaves=12)
several = st.lists(terms, min_size=1, max_size=6)


@quick
@given(several)
def test_a_node_for_each_distinct_expression(found: list[Term]) -> None:
    graph = Graph()
    nodes = [term.put(graph) for term in found]
    assert len(graph) == len(set().union(*(term.parts() for term in found)))
    for left, node in zip(found, nodes, strict=True):
        for right, other in zip(found, nodes, strict=True):
            assert (node == other) == (left.text == right.text)


@quick
@given(several)
def test_a_second_trace_finds_everything(found: list[Term]) -> None:
    graph = Graph()
    nodes = [term.put(graph) for term in found]
    size = len(graph)
    assert [term.put(graph) for term in found] == nodes
    assert len(graph) == size


@quick
@given(several)
def test_ids_are_a_topological_order_and_the_tables_are_parallel(found: list[Term]) -> None:
    graph = Graph()
    for term in found:
        term.put(graph)
    assert all(arg < node for node, args in enumerate(graph.args) for arg in args)
    tables = (graph.ops, graph.args, graph.kinds, graph.phases, graph.metas, graph.owners)
    assert {len(table) for table in tables} == {len(graph)} == {len(graph.index)}
    for node, (op, args) in enumerate(zip(graph.ops, graph.args, strict=True)):
        assert graph.find(op, args) == node


@quick
@given(several)
def test_kinds_and_phases_are_those_of_the_definition(found: list[Term]) -> None:
    graph = Graph()
    for term in found:
        node = term.put(graph)
        assert graph.kinds[node] == term.kind()
        assert graph.phases[node] == term.phase()


@quick
@given(several, st.data())
def test_ancestors_are_the_nodes_of_the_sub_expressions(found: list[Term], data: Any) -> None:
    graph = Graph()
    nodes = {term.text: term.put(graph) for term in found}
    roots = data.draw(st.lists(st.sampled_from(found), max_size=3))
    needed = graph.ancestors(nodes[term.text] for term in roots)
    expected = Graph()
    for term in roots:
        term.put(expected)
    assert needed == sorted(set(needed))
    assert len(needed) == len(expected)
    assert {nodes[term.text] for term in roots} <= set(needed)
    assert all(arg in needed for node in needed for arg in graph.args[node])


def test_ancestors_of_a_long_chain_need_no_recursion() -> None:
    graph = Graph()
    node = graph.add(Op("column", "a"), (), POINT, FLOAT, -1)
    for k in range(20_000):
        node = graph.add(Op("ufunc", k), (node,), POINT, FLOAT, k)
    assert graph.ancestors([node]) == list(range(20_001))


def test_what_find_takes_for_different() -> None:
    graph = Graph()
    a, b = (graph.add(Op("column", name), (), POINT, FLOAT, 0) for name in "ab")
    minus = graph.add(Op("ufunc", "subtract"), (a, b), POINT, FLOAT, 0)
    assert graph.find(Op("ufunc", "subtract"), (a, b)) == minus
    for op, args in [
        (Op("ufunc", "subtract"), (b, a)),
        (Op("ufunc", "subtract"), (a,)),
        (Op("ufunc", "subtract"), (a, b, b)),
        (Op("call", "subtract"), (a, b)),
        (Op("ufunc"), (a, b)),
        (Op("ufunc", ("subtract",)), (a, b)),
    ]:
        assert graph.find(op, args) is None
    size = len(graph)
    assert graph.find(Op("ufunc", "subtract"), (a, b)) == minus
    assert len(graph) == size, "asking adds nothing"


def test_templates_are_hashable_and_tell_containers_apart() -> None:
    templates = [
        (Slot(0), Slot(1)),
        (Slot(1), Slot(0)),
        Frozen("list", (Slot(0), Slot(1))),
        Frozen("slice", (None, 1, None)),
        Frozen("slice", (1, None, None)),
        (Frozen("slice", (None, None, None)), 1),
        (Frozen("slice", (None, None, None)), None),
    ]
    assert len(set(templates)) == len(templates)
    assert len({Op("view", t) for t in templates}) == len(templates)


def test_the_kind_of_a_reduction_is_portfolio_whatever_it_reduces() -> None:
    graph = Graph()
    leaf = {
        kind: graph.add(Op("leaf", kind), (), kind, FLOAT, -1)
        for kind in (SHARED, POINT, PORTFOLIO)
    }

    def kind_of(name: str, *kinds: str) -> str:
        args = tuple(leaf[kind] for kind in kinds)
        return graph.kinds[graph.add(Op(name, kinds), args, None, FLOAT, -1)]

    for name in REDUCTIONS:
        for kinds in ((), (SHARED,), (POINT,), (PORTFOLIO,), (POINT, SHARED)):
            assert kind_of(name, *kinds) == PORTFOLIO
    assert kind_of("ufunc") == SHARED
    for kinds in permutations((SHARED, PORTFOLIO, POINT)):
        assert kind_of("ufunc", *kinds) == POINT
    for kinds in permutations((SHARED, PORTFOLIO)):
        assert kind_of("ufunc", *kinds) == PORTFOLIO
