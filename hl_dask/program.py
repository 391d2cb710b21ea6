"""The program: what of an expression graph is done on each block, in which order, and where.

Operations are put in an order in which values die early, and each value gets a register. Views of a
value (basic indexing, other shapes) live in its register, constants live nowhere, and totals leave
a partial in a flat vector, one vector for each way of combining and dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from hl_dask._columns import TEXT_BYTES
from hl_dask.aggregate import COMBINE, Aggregate
from hl_dask.errors import UnsupportedError
from hl_dask.expr import POINT, PORTFOLIO, REDUCTIONS, Graph, Meta
from hl_dask.liveness import alive_at, allocate, last_use, peak_live, regroup, schedule
from hl_dask.segments import Label, Segment, cut

STATIC = frozenset({"constant", "full"})
"""Values that no block changes."""
VIEWS = frozenset({"view", "reshape", "transpose"})
SAFE_IN_PLACE = frozenset({"ufunc", "rowwise", "call", "index", "item", "opaque"})
"""Operations whose result may overwrite an operand: they are elementwise, or make a result
first."""
ALIGN = 64
STAGGER = 576
"""Bytes between registers: registers of a power of two would fall on the same cache sets."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where the partial of a reduction lies: its vector, and the entries of it."""

    key: str
    start: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        """The entry after the last."""
        return self.start + math.prod(self.shape)


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
    live_row_bytes : int
        Bytes for each row of a block of all values alive at once, at most.
    live_at_peak : list of int
        The nodes that are alive there.
    segments : list of Segment
        Where the order is cut into tasks; none when a task does all of it.
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
    live_at_peak: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    @property
    def state_row_bytes(self) -> int:
        """Bytes for each row of what passes a cut between segments, at most."""
        return max((self._row_bytes((*s.keeps, *s.makes)) for s in self.segments), default=0)

    def _row_bytes(self, nodes: Iterable[int]) -> int:
        kinds = [self.kinds[self.register[node]] for node in nodes]
        return sum(value_bytes(kind) for kind in kinds)

    def arena_bytes(self, rows: int) -> int:
        """Bytes of all registers for blocks of that many rows."""
        return sum(register_bytes(kind, rows) for kind in self.kinds)

    def temporary_bytes(self, rows: int) -> int:
        """Bytes that NumPy may allocate beside the registers while one operation runs."""
        widest = max((row_bytes(kind) for kind in self.kinds), default=8)
        # A look-up makes an index and a mask, np.where and gathers a result that is copied.
        own = [self.graph.temporary_bytes.get(node, (0, 0)) for node in self.order]
        # What a formula allocates is measured on few rows, and lies in pages.
        largest = max((fixed + each * rows for fixed, each in own), default=0) * 5 // 4
        return max(4 * max(widest, 8) * rows, largest)

    def partial_bytes(self, rows: int) -> int:
        """Bytes of the partials of one set of blocks with so many rows.

        Of aggregates of the user's own, as they were on the sample.
        """
        sizes = [
            self.graph.partial_bytes.get(node, (0, 0))
            for node, slot in self.slots.items()
            if slot.key in self.aggregates
        ]
        own = sum(fixed + each * rows for fixed, each in sizes)
        return own + sum(np.dtype(d).itemsize * n for d, n in self.vectors.values())

    @property
    def combine(self) -> dict[str, Callable[[Any, Any], Any]]:
        """How partials are combined, for the tree."""
        found = {key: COMBINE[key.split("|")[0]] for key in self.vectors}
        return found | {key: a.combine for key, a in self.aggregates.items()}


@cache
def row_bytes(kind: Meta) -> int:
    """Bytes of one row of a register."""
    dtype, shape, _ = kind
    return np.dtype(dtype).itemsize * math.prod(shape)


def value_bytes(kind: Meta) -> int:
    """Bytes of one row of a value that is kept, the text of objects included."""
    dtype, shape, _ = kind
    each = TEXT_BYTES if np.dtype(dtype).hasobject else np.dtype(dtype).itemsize
    return each * math.prod(shape)


def register_bytes(kind: Meta, rows: int) -> int:
    """Bytes that a register takes in the arena."""
    return -(-row_bytes(kind) * rows // ALIGN) * ALIGN + STAGGER


def compile_program(
    graph: Graph,
    reductions: Iterable[int],
    describe: Callable[[Any], str],
    labels: Callable[..., Mapping[int, Label]] | None = None,
) -> Program:
    """Choose an order and registers for everything that some reductions need.

    Parameters
    ----------
    reductions : iterable of int
        Nodes that reduce over the rows.
    describe : callable
        Text of a formula call, for error messages.
    labels : callable, optional
        ``labels(order, reads)`` gives the label of each node: those of one label are done by one
        task where that is possible. By default one task does all.

    Raises
    ------
    UnsupportedError
        When a per-point value needs a portfolio value.
    """
    wanted = sorted(set(reductions))
    targets = set(wanted)
    ops, args, kinds_of = graph.ops, graph.args, graph.kinds
    needed = [n for n in graph.ancestors(wanted) if kinds_of[n] == POINT or n in targets]
    check_single_phase(graph, needed, describe)
    names = {n: ops[n].name for n in needed}
    moving = [n for n in needed if names[n] not in STATIC]
    real = [n for n in moving if names[n] not in VIEWS]
    root = _roots(graph, moving)
    static = {n for n in root.values() if ops[n].name in STATIC}
    table = {n: [root[a] for a in args[n] if a in root and root[a] not in static] for n in real}
    reads = table.__getitem__
    metas: dict[int, Meta | None] = {
        n: None if names[n] in REDUCTIONS else graph.metas[n] for n in real
    }
    sizes = {n: 0 if meta is None else row_bytes(meta) for n, meta in metas.items()}
    size = sizes.__getitem__
    order = schedule(real, table, size)
    label = labels(order, table) if labels is not None else {}
    if label:
        order = regroup(order, table, label.__getitem__)
    last = last_use(order, reads)
    register, kinds = allocate(
        order,
        reads,
        metas.__getitem__,
        # np.where is done in two steps, the first of which would destroy an operand.
        lambda n: names[n] in SAFE_IN_PLACE and ops[n].static is not np.where,
        last,
    )
    peak, where = peak_live(order, reads, size, last)
    slots, vectors, aggregates = _slots(graph, wanted)
    loads = {n: str(ops[n].static) for n in moving if names[n] == "column"}
    return Program(
        graph,
        order,
        register,
        kinds,
        slots,
        vectors,
        aggregates,
        columns=sorted(set(loads.values())),
        describe=describe,
        live_row_bytes=peak,
        live_at_peak=alive_at(order, last, where),
        segments=cut(order, reads, last, label.__getitem__, loads.get) if label else [],
    )


def check_single_phase(graph: Graph, nodes: Iterable[int], describe: Callable[[Any], str]) -> None:
    """Refuse per-point values that need a total: they belong to a later phase."""
    for node in nodes:
        if graph.kinds[node] != POINT:
            continue
        for arg in graph.args[node]:
            if graph.kinds[arg] == PORTFOLIO:
                user, source = describe(graph.owners[node]), describe(graph.owners[arg])
                msg = (
                    f"{user} uses the total of {source}, a value over the whole portfolio, for a "
                    "value by policy; this is not supported yet"
                )
                raise UnsupportedError(
                    msg,
                    formula=user,
                    remedy=f"report totals with formulas of their own, run {source} first and "
                    "pass its value in as an assumption, or use RunModel on data in memory",
                )


def _roots(graph: Graph, nodes: Iterable[int]) -> dict[int, int]:
    """The node whose register a node's value lies in: itself, or what it is a view of."""
    root: dict[int, int] = {}
    for node in nodes:
        base = graph.args[node][0] if graph.ops[node].name in VIEWS else node
        root[node] = root.get(base, base)
    return root


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
