"""The kernel: an expression graph, run on one block of rows after the other.

A :class:`Program` is the part of a graph that has to be done on the rows, in an order in which values
die early, with a register for every value. A :class:`Machine` is a program bound to memory: one arena
that holds all registers, and a flat list of ``(function, arguments)`` whose arguments are already
arrays of the arena. Running a block is running down that list, so that memory does not depend on the
number of months, formulas or rows, and the registers, some 128 KB each, stay near the processor::

    graph node        register    step
    pols_if(3)        r4          (subtract, (r4, r7, r4))       r4 is overwritten: its last use
    pols_if(3)[:, 0]  view of r4  none
    sum(pols_if(3))   none        (add.reduce, (r4, 0, None, partial[17]))

The kernel knows no Dask and no formulas beyond those that are opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hl_dask.aggregate import COMBINE, Aggregate, Partial
from hl_dask.errors import FormulaError, HlDaskError, UnsupportedError
from hl_dask.expr import POINT, PORTFOLIO, REDUCTIONS, Graph, Meta
from hl_dask.liveness import allocate, peak_live, schedule
from hl_dask.trace import BlockSession
from hl_dask.traced import fill, reduce_rows

Array = NDArray[Any]
Step = tuple[Callable[..., Any], tuple[Any, ...]]

STATIC = frozenset({"constant", "full"})
VIEWS = frozenset({"view", "reshape", "transpose"})
SAFE_IN_PLACE = frozenset({"ufunc", "rowwise", "call", "index", "item", "opaque"})
WITH_OUT: frozenset[Callable[..., Any]] = frozenset({np.clip, np.round})
ALIGN = 64
STAGGER = 576
"""Bytes between registers: registers of a power of two would fall on the same cache sets."""


# ---- what an operation does ------------------------------------------------------------------


def evaluate(graph: Graph, node: int, args: Sequence[Any]) -> Any:
    """Do the operation of one node on values of its arguments; the reference for all steps."""
    op = graph.ops[node]
    name, static = op.name, op.static
    if name == "constant":
        return graph.values[node]
    if name in ("ufunc", "rowwise"):
        return static(*args)  # type: ignore[operator]
    if name == "call":
        func, template, options = static  # type: ignore[misc]
        return func(*fill(template, args), **fill(options, args))
    if name == "item":
        inner, k = static  # type: ignore[misc]
        return inner.static(*args)[k]
    if name == "index":
        return args[0][fill(static, args)]
    if name in VIEWS:
        return view(name, static, args[0])
    if name == "lookup":
        return graph.values[node](*args)
    msg = f"{name} is not an operation on values"
    raise ValueError(msg)


def view(name: str, static: Any, base: Array) -> Array:
    """A view of a value: basic indexing, or the same rows in another shape."""
    if name == "view":
        return base[fill(static, ())]
    if name == "reshape":
        return base.reshape((-1, *static))
    return base.transpose(static)


def run_opaque(call: Any, args: list[Any], out: Array, axis: int) -> None:
    """Evaluate an opaque formula on the rows of a block."""
    np.copyto(out, BlockSession(call, args, out.shape[axis]).evaluate(), casting="same_kind")


# ---- the program -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slot:
    """Where the partial of a reduction lies: its vector, and the entries of it."""

    key: str
    start: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        """The entry after the last."""
        return self.start + int(np.prod(self.shape, dtype=np.int64))


@dataclass(slots=True)
class Program:
    """What has to be done on each block of rows.

    Attributes
    ----------
    order : list of int
        Nodes that need evaluation, views included, in the order of evaluation.
    register, kinds
        Register of each node that has one; kind (dtype, shape, axis) of each register.
    slots : dict of int to Slot
        Place of the partial of each reduction.
    vectors : dict of str to (dtype, length)
        Vectors of partials, one for each way of combining and dtype.
    columns : list of str
        Columns of the model points that are read.
    """

    graph: Graph
    order: list[int]
    register: dict[int, int]
    kinds: list[Any]
    slots: dict[int, Slot]
    vectors: dict[str, tuple[str, int]]
    aggregates: dict[str, Aggregate]
    columns: list[str]
    describe: Callable[[Any], str]
    live_row_bytes: int = 0
    peak_node: int = -1
    live_at_peak: list[int] = field(default_factory=list)
    dtype_row_bytes: int = 0

    def arena_bytes(self, rows: int) -> int:
        """Bytes of all registers for blocks of that many rows."""
        return sum(register_bytes(kind, rows) for kind in self.kinds)

    def temporary_bytes(self, rows: int) -> int:
        """Bytes that NumPy may allocate beside the registers while one operation runs."""
        widest = max((row_bytes(kind) for kind in self.kinds), default=8)
        # A look-up makes an index and a mask, np.where and gathers a result that is copied.
        return 4 * max(widest, 8) * rows

    @property
    def partial_bytes(self) -> int:
        """Bytes of the partials of one block (or of any set of blocks)."""
        return sum(np.dtype(d).itemsize * n for d, n in self.vectors.values())

    @property
    def combine(self) -> dict[str, Callable[[Any, Any], Any]]:
        """How partials are combined, for the tree."""
        found = {key: COMBINE[key.split("|")[0]] for key in self.vectors}
        return found | {key: a.combine for key, a in self.aggregates.items()}


@cache
def row_bytes(kind: Meta) -> int:
    """Bytes of one row of a register."""
    dtype, shape, _ = kind
    return int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64))


def register_bytes(kind: Meta, rows: int) -> int:
    """Bytes that a register takes in the arena."""
    return -(-row_bytes(kind) * rows // ALIGN) * ALIGN + STAGGER


def compile_program(
    graph: Graph, reductions: Iterable[int], describe: Callable[[Any], str]
) -> Program:
    """Choose an order and registers for everything that some reductions need.

    Parameters
    ----------
    reductions : iterable of int
        Nodes that reduce over the rows.
    describe : callable
        Text of a formula call, for error messages.

    Raises
    ------
    UnsupportedError
        When a per-point value needs a portfolio value.
    """
    wanted = sorted(set(reductions))
    targets = set(wanted)
    needed = [n for n in graph.ancestors(wanted) if graph.kinds[n] == POINT or n in targets]
    check_single_phase(graph, needed, describe)
    moving = [n for n in needed if graph.ops[n].name not in STATIC]
    real = [n for n in moving if graph.ops[n].name not in VIEWS]
    root = _roots(graph, moving)

    static = {n for n in root.values() if graph.ops[n].name in STATIC}
    table = {
        n: [root[a] for a in graph.args[n] if a in root and root[a] not in static] for n in real
    }
    reads = table.__getitem__
    sizes = {n: 0 if graph.ops[n].name in REDUCTIONS else row_bytes(graph.metas[n]) for n in real}
    size = sizes.__getitem__
    order = schedule(real, table, size)
    register, kinds = allocate(
        order,
        reads,
        lambda n: None if graph.ops[n].name in REDUCTIONS else graph.metas[n],
        lambda n: graph.ops[n].name in SAFE_IN_PLACE,
    )
    peak, where = peak_live(order, reads, size)
    slots, vectors, aggregates = _slots(graph, wanted)
    columns = sorted({graph.ops[n].static for n in moving if graph.ops[n].name == "column"})  # type: ignore[type-var]
    program = Program(
        graph,
        order,
        register,
        kinds,
        slots,
        vectors,
        aggregates,
        columns,  # type: ignore[arg-type]
        describe,
        live_row_bytes=peak,
        peak_node=order[where] if order else -1,
        live_at_peak=_live_at(order, reads, where),
    )
    return program


def check_single_phase(graph: Graph, nodes: Iterable[int], describe: Callable[[Any], str]) -> None:
    """Refuse per-point values that need a total: they belong to a later phase."""
    for node in nodes:
        if graph.kinds[node] != POINT:
            continue
        for arg in graph.args[node]:
            if graph.kinds[arg] == PORTFOLIO:
                user, source = describe(graph.owners[node]), describe(graph.owners[arg])
                msg = (
                    f"{user} uses the total of {source}, a value over the whole portfolio, for a value by "
                    "policy; this is not supported yet"
                )
                raise UnsupportedError(
                    msg,
                    formula=user,
                    remedy=f"report totals with formulas of their own, run {source} first and pass its value "
                    "in as an assumption, or use RunModel on data that fit in memory",
                )


def _roots(graph: Graph, nodes: Iterable[int]) -> dict[int, int]:
    """The node whose register a node's value lies in: itself, or what it is a view of."""
    root: dict[int, int] = {}
    for node in nodes:
        base = graph.args[node][0] if graph.ops[node].name in VIEWS else node
        root[node] = root.get(base, base)
    return root


def _live_at(order: list[int], reads: Callable[[int], Iterable[int]], where: int) -> list[int]:
    last: dict[int, int] = {}
    for position, op in enumerate(order):
        last[op] = position
        for read in reads(op):
            last[read] = position
    return [op for position, op in enumerate(order[: where + 1]) if last[op] >= where]


def _slots(
    graph: Graph, reductions: Sequence[int]
) -> tuple[dict[int, Slot], dict[str, Any], dict[str, Aggregate]]:
    slots: dict[int, Slot] = {}
    lengths: dict[str, int] = {}
    aggregates: dict[str, Aggregate] = {}
    for node in reductions:
        op, meta = graph.ops[node], graph.metas[node]
        if op.name == "aggregate":
            key = f"aggregate|{len(aggregates)}"
            aggregates[key] = graph.values[node]
            slots[node] = Slot(key, 0, ())
            continue
        kind = op.static[0]  # type: ignore[index]
        key = f"{kind}|{meta.dtype}"
        shape = meta.shape
        start = lengths.get(key, 0)
        if kind.endswith("moments"):
            # One vector holds counts, means and squares of all its reductions, three rows.
            shape = shape[1:]
        slots[node] = Slot(key, start, shape)
        lengths[key] = slots[node].stop
    vectors = {}
    for key, length in lengths.items():
        dtype = key.split("|", 1)[1]
        vectors[key] = (dtype, 3 * length if "moments" in key else length)
    return slots, vectors, aggregates


# ---- the machine -----------------------------------------------------------------------------


class Machine:
    """A program bound to memory, for one thread.

    Parameters
    ----------
    program : Program
        What to run.
    block_rows : int
        Rows of a full block.
    """

    def __init__(self, program: Program, block_rows: int) -> None:
        self.program = program
        self.block_rows = block_rows
        self.arena = np.zeros(program.arena_bytes(block_rows) + ALIGN, dtype=np.uint8)
        self.objects: dict[int, Array] = {}
        self.partial: dict[str, Any] = {
            key: np.zeros((3, n // 3) if "moments" in key else n, dtype=dtype)
            for key, (dtype, n) in program.vectors.items()
        }
        self.partial |= {key: [None] for key in program.aggregates}
        self.columns: dict[str, Array] = {}
        self._bound: dict[int, tuple[list[Step], list[int]]] = {}

    def run_block(self, columns: Mapping[str, Array], rows: int) -> Partial:
        """Run the program on a block.

        Parameters
        ----------
        columns : mapping of str to ndarray, shape (rows, ...)
            The columns that the program reads.
        rows : int
            Rows of the block, at most ``block_rows``.

        Returns
        -------
        dict
            Partials of the block; see :mod:`hl_dask.aggregate`.
        """
        steps, nodes = self._steps(rows)
        self.columns.update(columns)
        iterator = iter(steps)
        try:
            for function, arguments in iterator:
                function(*arguments)
        except HlDaskError as error:
            error.formula = error.formula or self._where(nodes, iterator)
            raise
        except Exception as error:
            msg = f"{type(error).__name__}: {error}"
            raise FormulaError(
                msg,
                formula=self._where(nodes, iterator),
                remedy="see the exception above; the rows are those of one block of the data",
            ) from error
        finally:
            self.columns.clear()
        return {
            k: v.copy() if isinstance(v, np.ndarray) else list(v) for k, v in self.partial.items()
        }

    def _where(self, nodes: list[int], iterator: Any) -> str:
        done = len(nodes) - iterator.__length_hint__() - 1
        return self.program.describe(self.program.graph.owners[nodes[done]])

    def _steps(self, rows: int) -> tuple[list[Step], list[int]]:
        found = self._bound.get(rows)
        if found is None:
            if len(self._bound) > 1:
                self._bound.clear()
            found = self._bound[rows] = self._bind(rows)
        return found

    def _bind(self, rows: int) -> tuple[list[Step], list[int]]:
        """Arrays for all nodes at this number of rows, and the list of steps."""
        program, graph = self.program, self.program.graph
        registers = self._registers(rows)
        arrays: dict[int, Any] = {}

        def array(node: int) -> Any:
            found = arrays.get(node)
            if found is None:
                found = arrays[node] = self._value(node, rows, registers, array)
            return found

        steps: list[Step] = []
        nodes: list[int] = []
        for node in program.order:
            steps.append(self._step(node, graph, array))
            nodes.append(node)
        return steps, nodes

    def _registers(self, rows: int) -> list[Array]:
        out: list[Array] = []
        offset = -self.arena.ctypes.data % ALIGN
        for index, kind in enumerate(self.program.kinds):
            dtype, shape, axis = kind
            full = (*shape[:axis], rows, *shape[axis:])
            if np.dtype(dtype).hasobject:
                out.append(self.objects.setdefault(index, np.empty(full, dtype=object)))
                if out[-1].shape != full:
                    out[-1] = self.objects[index] = np.empty(full, dtype=object)
                continue
            size = row_bytes(kind) * rows
            out.append(self.arena[offset : offset + size].view(dtype).reshape(full))
            offset += register_bytes(kind, self.block_rows)
        return out

    def _value(
        self, node: int, rows: int, registers: list[Array], array: Callable[[int], Any]
    ) -> Any:
        program, graph = self.program, self.program.graph
        name, static = graph.ops[node].name, graph.ops[node].static
        if node in program.register:
            return registers[program.register[node]]
        if name == "constant":
            value = graph.values[node]
            return value.view(np.ndarray) if isinstance(value, np.ndarray) else value
        if name == "full":
            row = graph.values[graph.args[node][0]]
            shape = (*row.shape[:static], rows, *row.shape[static + 1 :])  # type: ignore[misc, operator]
            return np.broadcast_to(row, shape)
        return view(name, static, array(graph.args[node][0]))

    def _step(self, node: int, graph: Graph, array: Callable[[int], Any]) -> Step:
        op = graph.ops[node]
        name, static = op.name, op.static
        args = [array(a) for a in graph.args[node]]
        if name == "reduce":
            return self._reduce_step(node, static, args[0])
        if name == "aggregate":
            return self._aggregate_step(node, args[0])
        out = array(node)
        if name == "ufunc":
            if static in (np.maximum, np.minimum):
                # Their out argument must not be positional, lest it be taken for a third operand.
                return partial(static, out=out), tuple(args)  # type: ignore[arg-type]
            return static, (*args, out)  # type: ignore[return-value]
        if name == "column":
            return self._load(str(static), out)
        if name == "lookup":
            bound = graph.values[node]
            return lambda: bound(*args, out=out), ()
        if name == "opaque":
            return run_opaque, (graph.values[node], args, out, graph.metas[node].axis)
        if name == "call" and static[0] in WITH_OUT:  # type: ignore[index]
            func, template, options = static  # type: ignore[misc]
            positional, keywords = fill(template, args), fill(options, args)
            return lambda: func(*positional, out=out, **keywords), ()
        if name == "call":
            func, template, options = static  # type: ignore[misc]
            return _copying(func, fill(template, args), fill(options, args), out)
        if name == "rowwise":
            return _copying(static, tuple(args), {}, out)  # type: ignore[arg-type]
        return _copying(evaluate, (graph, node, args), {}, out)

    def _load(self, column: str, out: Array) -> Step:
        columns = self.columns
        return lambda: np.copyto(out, columns[column]), ()

    def _reduce_step(self, node: int, static: Any, value: Array) -> Step:
        slot = self.program.slots[node]
        vector = self.partial[slot.key]
        kind, axes, keepdims, dtype = static
        if kind.endswith("moments"):
            target = vector[:, slot.start : slot.stop].reshape((3, *slot.shape))
            return reduce_rows, (value, static, target)
        target = vector[slot.start : slot.stop].reshape(slot.shape)
        ufunc = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}.get(kind)
        ufunc = (
            ufunc
            or {"fmin": np.fmin, "fmax": np.fmax, "any": np.logical_or, "all": np.logical_and}[kind]
        )
        return ufunc.reduce, (value, axes if len(axes) > 1 else axes[0], dtype, target, keepdims)

    def _aggregate_step(self, node: int, value: Array) -> Step:
        slot = self.program.slots[node]
        aggregate, cell = self.program.aggregates[slot.key], self.partial[slot.key]

        def step() -> None:
            cell[0] = aggregate.map(value.copy())

        return step, ()


def _copying(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Array
) -> Step:
    """A step for a function that makes its own result."""
    if kwargs:
        return lambda: np.copyto(out, func(*args, **kwargs)), ()
    return lambda: np.copyto(out, func(*args)), ()


# ---- after the blocks ------------------------------------------------------------------------


def unpack(program: Program, partial: Partial) -> dict[int, Any]:
    """Values of the reductions from the partial of all blocks."""
    values: dict[int, Any] = {}
    for node, slot in program.slots.items():
        vector = partial[slot.key]
        if slot.key.startswith("aggregate"):
            values[node] = program.aggregates[slot.key].finish(vector[0])
        elif "moments" in slot.key:
            values[node] = vector[:, slot.start : slot.stop].reshape((3, *slot.shape)).copy()
        else:
            values[node] = vector[slot.start : slot.stop].reshape(slot.shape).copy()[()]
    return values


def evaluate_global(
    graph: Graph, roots: Iterable[int], known: Mapping[int, Any], describe: Callable[[Any], str]
) -> dict[int, Any]:
    """Values of portfolio nodes, given those of the reductions that they rest on.

    Parameters
    ----------
    known : mapping of int to object
        Values of reductions.
    """
    values: dict[int, Any] = dict(known)
    for node in portfolio_ancestors(graph, roots):
        if node in values:
            continue
        if graph.ops[node].name in REDUCTIONS:
            msg = f"the reduction {node} has no value yet"
            raise ValueError(msg)
        try:
            values[node] = evaluate(graph, node, [values[a] for a in graph.args[node]])
        except HlDaskError as error:
            error.formula = error.formula or describe(graph.owners[node])
            raise
        except Exception as error:
            msg_0 = f"{type(error).__name__}: {error}"
            raise FormulaError(msg_0, formula=describe(graph.owners[node])) from error
    return values


def portfolio_ancestors(graph: Graph, roots: Iterable[int]) -> list[int]:
    """Nodes that some portfolio values need above and including the reductions, in order."""
    needed: set[int] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in needed:
            continue
        needed.add(node)
        if graph.ops[node].name not in REDUCTIONS:
            stack.extend(graph.args[node])
    return sorted(needed)
