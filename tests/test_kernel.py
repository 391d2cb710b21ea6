"""Random programs of array operations, block by block, against NumPy on whole arrays."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hl_dask as hl
from hl_dask.aggregate import Aggregate, Tree
from hl_dask.blocks import Blocks
from hl_dask.errors import FormulaError, HlDaskError, LookupKeyError
from hl_dask.expr import Graph, Op
from hl_dask.kernel import Machine, evaluate_global, unpack
from hl_dask.program import compile_program
from hl_dask.traced import TracedArray, Tracer, is_traced, share

FEW = settings(max_examples=200, deadline=None)
MANY = settings(max_examples=1_500, deadline=None)
RATES = np.array([0.5, -1.25, 3.0, 0.0, 2.5, 7.0, -0.125])
KNOTS = np.array([-20.0, -3.0, 0.0, 0.5, 11.0])
WEIGHTS = np.array([2.0, -0.5, 1.0])
SHARED = np.arange(9.0).reshape(3, 3) - 4.0

Columns = dict[str, np.ndarray]


# ---- operations: kinds of operands, kind of the result, what is done -----------------------------
#
# f floats, i integers, b booleans, all (rows,); m floats (rows, 3); t floats (3, rows). Only
# operations that round each element on its own: a block has to give the bits of the whole array.


def _assigned(x: Any, value: Any) -> Any:
    y = x.copy()
    y[x > 1.0] = value
    return y


def _updated(x: Any, z: Any) -> Any:
    y = x.copy()
    y += z
    y *= 0.5
    return np.subtract(y, x, out=y)


def _columns_set(m: Any, x: Any) -> Any:
    y = m.copy()
    y[:, 1] = x
    y[:, 2] = 1.5
    return y


OPERATIONS: list[tuple[str, str, Callable[..., Any]]] = [
    ("ff", "f", np.add),
    ("ff", "f", np.subtract),
    ("ff", "f", np.multiply),
    ("ff", "f", np.true_divide),
    ("ff", "f", np.minimum),
    ("ff", "f", np.maximum),
    ("ff", "f", np.fmin),
    ("ff", "f", np.floor_divide),
    ("ff", "f", np.remainder),
    ("ff", "f", np.copysign),
    ("ff", "f", lambda x, y: divmod(x, y)[1]),
    ("ff", "f", lambda x, y: np.divmod(x, y)[0]),
    ("ff", "f", _updated),
    ("f", "f", lambda x: x - x[:, None][:, 0] * 0.5),
    ("f", "f", lambda x: x * x - x),
    ("f", "f", np.negative),
    ("f", "f", np.abs),
    ("f", "f", np.sign),
    ("f", "f", lambda x: np.sqrt(np.abs(x))),
    ("f", "f", lambda x: x**2),
    ("f", "f", lambda x: np.round(x, 1)),
    ("f", "f", lambda x: x.round()),
    ("f", "f", lambda x: np.clip(x, -3.0, 3.5)),
    ("f", "f", lambda x: x.clip(min=0)),
    ("f", "f", np.nan_to_num),
    ("f", "f", lambda x: 2 - x),
    ("f", "f", lambda x: 1 / x),
    ("f", "f", lambda x: x + np.float64(1.5)),
    ("f", "f", lambda x: np.modf(x)[0]),
    ("f", "f", lambda x: _assigned(x, 0.25)),
    ("f", "f", lambda x: (x.astype(np.float32) * np.float32(1.1)).astype(np.float64)),
    ("f", "f", lambda x: np.interp(x, KNOTS, KNOTS * 2)),
    ("f", "f", np.zeros_like),
    ("bff", "f", np.where),
    ("bf", "f", lambda b, x: np.where(b, x, 0)),
    ("bbff", "f", lambda b, c, x, y: np.select([b, c], [x, y], default=-1.0)),
    ("iff", "f", lambda i, x, y: np.choose(i % 2, [x, y])),
    ("ff", "b", np.less),
    ("ff", "b", np.equal),
    ("ff", "b", lambda x, y: x >= y),
    ("f", "b", np.isnan),
    ("f", "b", lambda x: np.isclose(x, 1.0)),
    ("f", "b", lambda x: (x > 0) & (x < 10)),
    ("bb", "b", np.logical_and),
    ("bb", "b", lambda b, c: b ^ c),
    ("b", "b", lambda b: ~b),
    ("i", "b", lambda i: np.isin(i, [0, 2, -5])),
    ("ii", "b", lambda i, j: i != j),
    ("f", "i", lambda x: np.searchsorted(KNOTS, x)),
    ("f", "i", lambda x: np.digitize(x, KNOTS)),
    ("f", "i", lambda x: (np.nan_to_num(x, posinf=3.0, neginf=0.0) % 7).astype(np.int64)),
    ("ii", "i", lambda i, j: (i + 2 * j) % 11),
    ("ii", "i", np.minimum),
    ("i", "i", lambda i: i // 3),
    ("i", "i", lambda i: -i % 5),
    ("i", "i", lambda i: (i % 100).astype(np.int8).astype(np.int64)),
    ("b", "i", lambda b: b.astype(np.int64)),
    ("bb", "i", lambda b, c: b * 1 + c),
    ("i", "f", lambda i: i / 4),
    ("i", "f", lambda i: hl.lookup(RATES, i % 7)),
    ("i", "f", lambda i: np.take(share(RATES), i % 7)),
    ("i", "f", lambda i: 1.0 * i),
    ("b", "f", lambda b: b * 2.5),
    ("f", "m", lambda x: x[:, None] * WEIGHTS),
    ("ff", "m", lambda x, y: np.stack([x, y, x], axis=1)),
    ("fff", "m", lambda *x: np.column_stack(x)),
    ("mf", "m", lambda m, x: m - x[:, None]),
    ("mm", "m", np.add),
    ("mm", "m", lambda m, n: np.where(m > n, m, n[:, ::-1])),
    ("m", "m", lambda m: m[:, ::-1]),
    ("m", "m", lambda m: m + m[:, ::-1]),
    ("m", "m", lambda m: m[:, ::-1] - m),
    ("m", "m", lambda m: m[:, [2, 0, 1]]),
    ("m", "m", lambda m: m.T.T * 0.5),
    ("m", "m", lambda m: m.reshape(-1, 3)),
    ("m", "m", lambda m: np.cumsum(m, axis=1)),
    ("m", "m", lambda m: np.sort(m, axis=1)),
    ("m", "m", lambda m: m - m[:, :1]),
    ("m", "m", lambda m: np.round(m[:, ::-1], 1)),
    ("m", "m", lambda m: np.clip(m[:, ::-1], -2.0, 2.0)),
    ("mf", "m", _columns_set),
    ("m", "f", lambda m: m[:, 0]),
    ("m", "f", lambda m: m[:, -1]),
    ("m", "f", lambda m: m.sum(axis=1)),
    ("m", "f", lambda m: m.max(axis=1)),
    ("m", "i", lambda m: np.argmin(m, axis=1)),
    ("m", "b", lambda m: (m > 0).any(axis=1)),
    ("m", "t", lambda m: m.T),
    ("t", "m", lambda t: t.T),
    ("tf", "t", lambda t, x: t * x),
    ("tt", "t", np.maximum),
    ("t", "t", lambda t: t + t[::-1]),
    ("t", "f", lambda t: t[1]),
    ("t", "f", lambda t: t.min(axis=0)),
]

TOTALS: dict[str, Callable[[Any], Any]] = {
    "sum": np.sum,
    "min": np.min,
    "max": np.max,
    "nanmax": np.nanmax,
    "any": np.any,
    "all": np.all,
    "count": np.count_nonzero,
    "mean": np.mean,
}

Instruction = tuple[int, tuple[int, ...]]


@st.composite
def programs(draw: Any, most: int = 18) -> list[Instruction]:
    """Operations by number, with the numbers of the values that they read; 4 columns come first."""
    kinds = ["f", "f", "i", "m"]
    out: list[Instruction] = []
    for _ in range(draw(st.integers(1, most))):
        able = [n for n, (takes, _, _) in enumerate(OPERATIONS) if set(takes) <= set(kinds)]
        number = draw(st.sampled_from(able))
        takes, gives, _ = OPERATIONS[number]
        # Recent values more often than old ones: long chains, and registers used again.
        choices = [[k for k, kind in enumerate(kinds) if kind == t][-4:] for t in takes]
        out.append((number, tuple(draw(st.sampled_from(c)) for c in choices)))
        kinds.append(gives)
    return out


def run_plainly(program: list[Instruction], columns: Columns) -> list[Any]:
    values: list[Any] = list(columns.values())
    with np.errstate(all="ignore"):
        for number, reads in program:
            values.append(OPERATIONS[number][2](*(values[r] for r in reads)))
    return values


def columns_of(rows: int, seed: int) -> Columns:
    rng = np.random.default_rng(seed)
    x = np.round(rng.normal(0, 8, rows), 2)
    x[rng.random(rows) < 0.1] = 0.0
    y = rng.normal(0, 3, rows)
    y[rng.random(rows) < 0.05] = np.nan
    m = np.round(rng.normal(0, 5, (rows, 3)), 1)
    return {"x": x, "y": y, "n": rng.integers(-9, 10, rows), "m": m}


class Traced:
    """Values traced on a few rows, and totals of them, run on other rows in blocks."""

    def __init__(self, sample: Columns) -> None:
        rows = len(sample["x"])
        self.graph = Graph()
        self.tracer = Tracer(self.graph, rows=rows, sample_rows=rows, frozen=False, assumed={})
        self.columns = [self.column(name, value) for name, value in sample.items()]

    def column(self, name: str, value: np.ndarray) -> Any:
        with np.errstate(all="ignore"):  # as in a recording
            node = self.tracer.node(Op("column", name), (), value, 0)
        return TracedArray(self.tracer, node, value, fresh=False)

    def run(self, program: list[Instruction]) -> list[Any]:
        values = run_plainly(program, dict(enumerate(self.columns)))
        assert not self.tracer.notes.escapes
        assert not self.tracer.notes.failures
        return values

    def collected(self, value: Any) -> int:
        """A portfolio node that holds all rows of a per-point value."""
        axis = value.axis
        gather = Aggregate(lambda x: x, lambda a, b: np.concatenate([a, b], axis=axis))
        op = Op("aggregate", id(gather))
        with np.errstate(all="ignore"):
            node = self.tracer.node(op, (value.node,), value.value, -1)
        self.graph.values[node] = gather
        return node

    def replay(self, roots: list[int], columns: Columns, block_rows: int, seed: int) -> list[Any]:
        graph = self.graph
        reductions = [
            n for n in graph.ancestors(roots) if graph.ops[n].name in ("reduce", "aggregate")
        ]
        program = compile_program(graph, reductions, str)
        rows = len(columns["x"])
        cut = Blocks(rows, block_rows)
        machine = Machine(program, min(block_rows, rows))
        tree = Tree(cut.n_blocks, program.combine)
        with np.errstate(all="ignore"):
            for block in np.random.default_rng(seed).permutation(cut.n_blocks).tolist():
                first, last = cut.block(block)
                part = {name: columns[name][first:last] for name in program.columns}
                tree.add(block, machine.run_block(part, last - first))
            known = unpack(program, tree.result())
            values = evaluate_global(graph, roots, known, str)
        return [values[root] for root in roots]


def assert_same_rows(found: Any, expected: Any) -> None:
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


cases = st.tuples(programs(), st.integers(1, 40), st.integers(1, 44), st.integers(0, 99))


def check_rows(case: tuple[list[Instruction], int, int, int]) -> None:
    program, rows, block_rows, seed = case
    traced = Traced(columns_of(13, seed + 1))
    columns = columns_of(rows, seed)
    expected = run_plainly(program, columns)
    values = traced.run(program)
    roots = [traced.collected(v) for v in values]
    for found, value in zip(traced.replay(roots, columns, block_rows, seed), expected, strict=True):
        assert_same_rows(found, value)


@FEW
@given(cases)
def test_every_value_of_a_program(case: Any) -> None:
    check_rows(case)


@FEW
@given(cases, st.data())
def test_some_values_of_a_program_with_registers_used_again(case: Any, data: Any) -> None:
    """Few outputs: most values die, and their registers are overwritten."""
    program, rows, block_rows, seed = case
    traced = Traced(columns_of(13, seed + 1))
    columns = columns_of(rows, seed)
    expected = run_plainly(program, columns)
    values = traced.run(program)
    picked = data.draw(st.sets(st.integers(4, len(values) - 1), min_size=1, max_size=3))
    roots = [traced.collected(values[k]) for k in sorted(picked)]
    found = traced.replay(roots, columns, block_rows, seed)
    for k, value in zip(sorted(picked), found, strict=True):
        assert_same_rows(value, expected[k])


@FEW
@given(cases, st.data())
def test_totals_of_a_program(case: Any, data: Any) -> None:
    program, rows, block_rows, seed = case
    traced = Traced(columns_of(13, seed + 1))
    columns = columns_of(rows, seed)
    expected = run_plainly(program, columns)
    values = traced.run(program)
    picked = data.draw(
        st.lists(
            st.tuples(st.integers(0, len(values) - 1), st.sampled_from(list(TOTALS))),
            min_size=1,
            max_size=4,
        )
    )
    with np.errstate(all="ignore"):
        totals = [TOTALS[name](values[k]) for k, name in picked]
    assert all(is_traced(total) and total.axis < 0 for total in totals)
    replayed = traced.replay([t.node for t in totals], columns, block_rows, seed)
    for (k, name), found in zip(picked, replayed, strict=True):
        assert_total(name, found, expected[k])


def assert_total(name: str, found: Any, value: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        if name == "nanmax" and np.isnan(value.astype(float)).all():
            assert np.isnan(found)
            return
        right = TOTALS[name](value)
        size = float(np.abs(value.astype(float)).sum())
    assert np.asarray(found).dtype.kind == np.asarray(right).dtype.kind
    if name in ("sum", "mean") and np.isfinite(right) and value.dtype.kind == "f":
        assert abs(found - right) <= 1e-12 * size / (1 if name == "sum" else value.size)
    else:
        np.testing.assert_array_equal(found, right)


@pytest.mark.slow
@MANY
@given(cases)
def test_every_value_of_many_programs(case: Any) -> None:
    check_rows(case)


# ---- every operation by itself, in blocks of every size ------------------------------------------


@pytest.mark.parametrize("number", range(len(OPERATIONS)))
@pytest.mark.parametrize("block_rows", [1, 2, 7, 23, 30])
def test_each_operation(number: int, block_rows: int) -> None:
    first = {"f": 0, "i": 2, "m": 3, "b": 4, "t": 5}
    less = next(n for n, (k, g, _) in enumerate(OPERATIONS) if (k, g) == ("ff", "b"))
    turn = next(n for n, (k, g, _) in enumerate(OPERATIONS) if (k, g) == ("m", "t"))
    takes = OPERATIONS[number][0]
    reads = tuple(
        1 if takes[:k].count("f") % 2 and kind == "f" else first[kind]
        for k, kind in enumerate(takes)
    )
    check_rows(
        ([(less, (0, 1)), (turn, (3,)), (number, reads), (number, reads)], 23, block_rows, 5)
    )


UFUNCS = sorted(
    name
    for name in dir(np)
    if isinstance(getattr(np, name), np.ufunc)
    and getattr(np, name).signature is None
    and getattr(np, name).nout == 1
)


@pytest.mark.parametrize("name", UFUNCS)
def test_each_ufunc_of_numpy(name: str) -> None:
    ufunc = getattr(np, name)
    for kinds in ("xx", "nn", "bb"):
        columns = columns_of(23, 3) | {"b": columns_of(23, 4)["x"] > 0}
        sample = {key: value[:9] for key, value in columns.items()}
        operands = [columns[k] for k in kinds[: ufunc.nin]]
        try:
            with np.errstate(all="ignore"):
                expected = ufunc(*operands)
        except (TypeError, ValueError):
            continue
        traced = Traced(sample)
        named = dict(zip(sample, traced.columns, strict=True))
        with np.errstate(all="ignore"):
            value = ufunc(*(named[k] for k in kinds[: ufunc.nin]))
        for block_rows in (1, 7, 23):
            (found,) = traced.replay([traced.collected(value)], columns, block_rows, 0)
            assert found.dtype == expected.dtype
            if expected.dtype.kind in "fc":
                # Vector units may round exp, pow ... in the last place by position.
                np.testing.assert_allclose(found, expected, rtol=1e-14, atol=0)
            else:
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("block_rows", [1, 4, 11, 40])
def test_products_with_a_shared_matrix(block_rows: int) -> None:
    columns = columns_of(40, 8)
    traced = Traced(columns_of(13, 9))
    m = traced.columns[3]
    values = [m @ SHARED, m @ WEIGHTS, np.matmul(m, SHARED), SHARED @ m.T, m.dot(SHARED)]
    n = columns["m"]
    expected = [n @ SHARED, n @ WEIGHTS, np.matmul(n, SHARED), SHARED @ n.T, n.dot(SHARED)]
    found = traced.replay([traced.collected(v) for v in values], columns, block_rows, 0)
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-13, atol=1e-13)


# ---- memory --------------------------------------------------------------------------------------


@FEW
@given(programs(), st.integers(1, 60))
def test_registers_do_not_overlap_and_stay_within_the_arena(
    program: list[Instruction], block_rows: int
) -> None:
    traced = Traced(columns_of(13, 1))
    roots = [traced.collected(v) for v in traced.run(program)[-3:]]
    compiled = compile_program(traced.graph, roots, str)
    machine = Machine(compiled, block_rows)
    base = machine.arena.ctypes.data
    for rows in {1, block_rows}:
        taken = []
        for array, kind in zip(machine._registers(rows), compiled.kinds, strict=True):
            assert array.dtype == np.dtype(kind.dtype)
            assert array.shape == (*kind.shape[: kind.axis], rows, *kind.shape[kind.axis :])
            taken.append((array.ctypes.data, array.ctypes.data + array.nbytes))
        taken.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(taken))
        assert all(base <= first and last <= base + machine.arena.nbytes for first, last in taken)
    assert len(compiled.kinds) <= len(compiled.order)


def test_a_chain_of_operations_takes_one_register() -> None:
    traced = Traced(columns_of(13, 1))
    x = traced.columns[0]
    for k in range(50):
        x = (x * 1.01 + k).clip(-5.0, 5.0)
    program = compile_program(traced.graph, [np.sum(x).node], str)
    assert len(program.kinds) == 1
    assert program.live_row_bytes == 16


# ---- errors --------------------------------------------------------------------------------------


class Fragile(hl.Model):
    def power(self, t):
        return self.base(t) ** self.data["n"]

    @hl.agg(None)
    def base(self, t):
        return self.data["n"] + 2

    def gathered(self, t):
        return hl.lookup(self.rates, self.data["n"] + t)

    def taken(self, t):
        return np.take(self.rates, self.data["n"] + t)

    @hl.per_point
    def opaque(self, t):
        return np.array([{0: 1.0, 1: 2.0, 2: 3.0}[n] for n in self.data["n"].tolist()])


@pytest.mark.parametrize(
    ("name", "kind", "cause"),
    [
        ("power", FormulaError, ValueError),
        ("taken", FormulaError, IndexError),
        ("opaque", FormulaError, KeyError),
        ("gathered", LookupKeyError, None),
    ],
)
@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
def test_an_error_on_a_block_names_the_formula(
    name: str, kind: Any, cause: Any, scheduler: str
) -> None:
    good = {"n": np.arange(600) % 3}
    model = Fragile(data=good, rates=RATES)
    model.GenerateActions(proj_len=1, outputs=[name])
    bad = good["n"].copy()
    bad[411] = -30
    model.data = {"n": bad}
    with pytest.raises(HlDaskError) as raised:
        model.ExecuteActions(block_rows=50, scheduler=scheduler)
    assert isinstance(raised.value, kind), repr(raised.value)
    assert raised.value.formula in (f"{name}(0)", f"{name}(1)")
    assert raised.value.formula in str(raised.value)
    if cause is not None:
        assert isinstance(raised.value.__cause__, cause) or "KeyError" in str(raised.value)
    model.data = good
    assert list(model.ExecuteActions().df_agg.columns) == [name]


def test_errors_of_numpy_that_the_user_wants_raised() -> None:
    class Ratio(hl.Model):
        def ratio(self, t):
            return self.data["x"] / self.data["y"]

    good = {"x": np.ones(100), "y": np.ones(100)}
    model = Ratio(data=good)
    model.GenerateActions(proj_len=0)
    model.data = {"x": np.ones(100), "y": np.arange(100.0)}
    with np.errstate(divide="raise"), pytest.raises(FormulaError, match="ratio\\(0\\)") as info:
        model.ExecuteActions(block_rows=10)
    assert "shapes: ratio(0) (10,)" in str(info.value)
    assert model.ExecuteActions(block_rows=10).df_agg["ratio"].tolist() == [np.inf]


# ---- what compares equal and is not the same -----------------------------------------------------

TWINS = {
    "signed zeros": (0.0, -0.0),
    "whole and float": (2, 2.0),
    "truth and one": (True, 1),
    "widths": (np.float32(0.1), np.float64(np.float32(0.1))),
    "small and large integers": (np.int8(100), np.int64(100)),
    "arrays of signed zeros": (np.array([0.0]), np.array([-0.0])),
    "arrays of units": (
        np.array(["2020-01-01"], "M8[D]"),
        np.array(["2020-01-01T00"], "M8[h]"),
    ),
    "units of time": (np.datetime64("2020-01-01", "D"), np.datetime64("2020-01-01T00", "h")),
    "units of spans": (np.timedelta64(1, "D"), np.timedelta64(24, "h")),
    "complex signed zeros": (complex(-1, 0.0), complex(-1, -0.0)),
}


@pytest.mark.parametrize("twins", TWINS.values(), ids=list(TWINS))
def test_constants_that_are_equal_and_not_the_same(twins: tuple[Any, Any]) -> None:
    columns = columns_of(20, 1)
    traced = Traced(columns_of(9, 2))
    n = traced.columns[2]
    with np.errstate(all="ignore"):
        values = [np.where(n > 0, twin, twin) for twin in twins]
        expected = [np.where(columns["n"] > 0, twin, twin) for twin in twins]
    roots = [traced.collected(v) for v in values]
    for found, right in zip(traced.replay(roots, columns, 7, 0), expected, strict=True):
        assert found.dtype == right.dtype
        assert found.tobytes() == right.tobytes()


def test_indices_that_are_equal_and_not_the_same() -> None:
    m = Traced(columns_of(9, 2)).columns[3]
    assert m[:, 1].shape == (9,)
    assert m[:, True].shape == (9, 1, 3)
    assert m[:, 1].node != m[:, True].node
