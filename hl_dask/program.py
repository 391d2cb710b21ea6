"""The program: what of an expression graph is done on each block, in which order, and where.

Operations are put in an order in which values die early, and each value gets a register. Views of a
value (basic indexing, other shapes) live in its register, constants live nowhere, and totals leave
a partial in a flat vector, one vector for each way of combining and dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from hl_dask._columns import TEXT_BYTES
from hl_dask.aggregate import COMBINE, Aggregate
from hl_dask.expr import POINT, PORTFOLIO, REDUCTIONS, Graph, Meta, what_of
from hl_dask.liveness import alive_at, allocate, last_use, peak_live, regroup, schedule
from hl_dask.phases import phases_of
from hl_dask.segments import Label, Segment, cut

STATIC = frozenset({"constant", "full"})
"""Values that no block changes."""
NOT_BY_ROW = STATIC | REDUCTIONS
NOTHING: frozenset[int] = frozenset()
BEFORE = -1
"""The phase of values that are there already."""
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
    live_at_peak : dict of int to int
        The nodes that are alive there, and the operation that reads each for the last time.
    segments : list of Segment
        Where the order is cut into tasks; none when a task does all of it.
    phases : int
        How many times all rows have to be gone through; see :mod:`hl_dask.phases`.
    globals : dict of int to tuple of int
        Values over the whole portfolio that each phase reads.
    given : tuple of int
        Values that are there already, at the front of the order.
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
    live_at_peak: dict[int, int] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)
    phases: int = 1
    globals: dict[int, tuple[int, ...]] = field(default_factory=dict)
    given: tuple[int, ...] = ()

    @property
    def is_phased(self) -> bool:
        """Whether it needs values over the whole portfolio, or states that are there already."""
        return self.phases > 1 or bool(self.globals or self.given)

    def kind_of(self, node: int) -> Meta:
        """Dtype, shape of a row and point axis of a value."""
        return Meta(*self.kinds[self.register[node]])

    def column_of(self, node: int) -> str:
        """The column that an operation loads."""
        return str(what_of(self.graph.ops[node]))

    def keys_of(self, phase: int) -> list[str]:
        """Vectors and aggregates whose partials a phase leaves."""
        return [k for k in (*self.vectors, *self.aggregates) if int(k.split("|")[1]) == phase]

    @property
    def state_row_bytes(self) -> int:
        """Bytes for each row of what passes a cut between segments, at most."""
        return max((self._row_bytes((*s.keeps, *s.makes)) for s in self.segments), default=0)

    @property
    def made_row_bytes(self) -> int:
        """Bytes for each row of what one segment makes for those after it, at most."""
        return max((self._row_bytes(s.makes) for s in self.segments), default=0)

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


def compile_program(graph: Graph, *what: Any, **how: Any) -> Program:
    """The program of a model that stands alone; see :func:`compile_programs`."""
    (program,) = compile_programs(graph, *what, **how)
    return program


def compile_programs(
    graph: Graph,
    reductions: Iterable[int],
    describe: Callable[[Any], str],
    labels: Callable[..., Mapping[int, Label]] | None = None,
    known: Collection[int] = (),
    given: Collection[int] = (),
    guards: Sequence[int] = (),
    members: Sequence[str | None] = (None,),
    again: Sequence[Collection[str]] = (),
) -> list[Program]:
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
    known : collection of int
        Reductions whose values are known.
    given : collection of int
        Per-point values that are there already.
    guards : sequence of int
        Portfolio values for which everything waits that was traced after them.
    members : sequence of str
        Names of the models that share the graph; None for one that stands alone.
    again : sequence of collection of str
        For each model, columns that each phase loads again, instead of keeping them.

    Returns
    -------
    list of Program
        One for each model, of its own rows; phases are counted for all of them together.
    """
    ops, args = graph.ops, graph.args
    needed, waits = _needed(graph, {*reductions}, known, given, guards)
    names = {n: ops[n].name for n in needed}
    moving = [n for n in needed if names[n] not in STATIC]
    real = [n for n in moving if names[n] not in VIEWS]
    root = _roots(graph, moving)
    # Values of the rows at hand; totals over all rows come from another phase.
    rows = {n: base for n, base in root.items() if ops[base].name not in NOT_BY_ROW}
    table = {n: [] if n in given else [rows[a] for a in args[n] if a in rows] for n in real}
    metas: dict[int, Meta | None] = {
        n: None if names[n] in REDUCTIONS else graph.metas[n] for n in real
    }
    sizes = {n: 0 if meta is None else row_bytes(meta) for n, meta in metas.items()}
    reads_totals = any(graph.kinds[a] == PORTFOLIO for n in real for a in args[n])
    order: list[int] = []
    phase: dict[int, int] = {}
    label: Mapping[int, Label] = {}
    is_phased = bool(waits or given or reads_totals)
    if is_phased:
        order, phase, label = _by_phase(real, table, waits, given, sizes.__getitem__)
    work = _Work(graph, describe, table, metas, sizes, {n: names[n] for n in moving}, given)
    if members == (None,):
        member: Mapping[int, str | None] = dict.fromkeys(real)
    else:
        member = graph.members(graph.ancestors(real))
    programs = []
    for number, name in enumerate(members):
        if is_phased:
            mine = [n for n in order if member[n] == name]
        else:
            own = [n for n in real if member[n] == name]
            mine, phase, label = _arranged(own, table, sizes.__getitem__, labels)
        programs.append(work.program(mine, phase, label, again[number] if again else ()))
    return programs


@dataclass(frozen=True)
class _Work:
    """What is known of the operations before they are put in order."""

    graph: Graph
    describe: Callable[[Any], str]
    table: dict[int, list[int]]
    metas: dict[int, Meta | None]
    sizes: dict[int, int]
    names: dict[int, str]
    given: Collection[int]

    def program(
        self,
        order: list[int],
        phase: Mapping[int, int],
        label: Mapping[int, Label],
        again: Collection[str],
    ) -> Program:
        """The program that does some operations in an order."""
        graph, names, reads = self.graph, self.names, self.table.__getitem__
        ops, size = graph.ops, self.sizes.__getitem__
        last = last_use(order, reads)
        register, kinds = allocate(
            order,
            reads,
            self.metas.__getitem__,
            # np.where is done in two steps, the first of which would destroy an operand.
            lambda n: names[n] in SAFE_IN_PLACE and ops[n].static is not np.where,
            last,
        )
        peak, where = peak_live(order, reads, size, last)
        wanted = sorted(n for n in order if names[n] in REDUCTIONS)
        slots, vectors, aggregates = _slots(graph, wanted, phase)
        loads = {n: str(what_of(ops[n])) for n in order if names[n] == "column"}
        segments: list[Segment] = []
        if label:
            segments = cut(
                order,
                reads,
                last,
                label.__getitem__,
                loads.get,
                phase.__getitem__,
                lambda n: loads.get(n) in again,
            )
        return Program(
            graph,
            order,
            register,
            kinds,
            slots,
            vectors,
            aggregates,
            columns=sorted(set(loads.values())),
            describe=self.describe,
            live_row_bytes=peak,
            live_at_peak={n: order[last[n]] for n in alive_at(order, last, where)},
            segments=segments,
            phases=1 + max(phase.values(), default=0),
            globals=_globals(graph, order, phase),
            given=tuple(n for n in order if n in self.given),
        )


def _needed(
    graph: Graph,
    reductions: set[int],
    known: Collection[int],
    given: Collection[int],
    guards: Sequence[int],
) -> tuple[list[int], dict[int, list[int]]]:
    """Per-point values and reductions that have to be done, and those that wait for totals.

    Returns
    -------
    (list of int, dict of int to list of int)
        Nodes in topological order; and the reductions that a node needs the value of, by node.
    """
    ops, args, kinds = graph.ops, graph.args, graph.kinds
    marked = _marked(graph, reductions, {*known, *given})
    rests_on: dict[int, frozenset[int]] = {}
    for node in _marked_list(_marked(graph, {*reductions, *guards}, {*known, *given})):
        if ops[node].name in REDUCTIONS:
            rests_on[node] = NOTHING if node in known else frozenset({node})
        elif kinds[node] == PORTFOLIO:
            rests_on[node] = NOTHING.union(*(rests_on.get(a, NOTHING) for a in args[node]))
    # Totals of guards are wanted in any case, as guards are roots of the recording.
    barriers = [(g, rests_on.get(g, NOTHING)) for g in sorted(guards)]
    waits: dict[int, list[int]] = {}
    needed: list[int] = []
    passed: frozenset[int] = NOTHING
    at = 0
    for node in _marked_list(marked):
        if node in known or (kinds[node] != POINT and ops[node].name not in REDUCTIONS):
            continue
        needed.append(node)
        while at < len(barriers) and barriers[at][0] < node:
            totals = barriers[at][1]
            if totals:
                # Totals that were traced after the barrier before wait for it themselves.
                is_next = not at or min(totals) > barriers[at - 1][0]
                passed = totals if is_next else passed | totals
            at += 1
        totals = passed.union(*(rests_on.get(a, NOTHING) for a in args[node] if a in rests_on))
        if totals and node not in given:
            waits[node] = sorted(totals - {node})
    return needed, waits


def _marked(graph: Graph, roots: set[int], ends: set[int]) -> bytearray:
    """A mark for each node that some nodes need, not going on where values are there already."""
    marked = bytearray(len(graph))
    for node in roots:
        marked[node] = 1
    for node in range(len(marked) - 1, -1, -1):
        if marked[node] and node not in ends:
            for arg in graph.args[node]:
                marked[arg] = 1
    return marked


def _marked_list(marked: bytearray) -> list[int]:
    return [node for node, is_marked in enumerate(marked) if is_marked]


def _arranged(
    real: Sequence[int],
    reads: Mapping[int, Sequence[int]],
    size: Callable[[int], int],
    labels: Callable[..., Mapping[int, Label]] | None,
) -> tuple[list[int], dict[int, int], Mapping[int, Label]]:
    """The order of evaluation, and the phase and the label of each operation."""
    order = schedule(real, reads, size)
    label = labels(order, reads) if labels is not None else {}
    if label:
        order = regroup(order, reads, label.__getitem__)
    return order, dict.fromkeys(order, 0), label


def _by_phase(
    real: Sequence[int],
    reads: Mapping[int, Sequence[int]],
    waits: Mapping[int, Sequence[int]],
    given: Collection[int],
    size: Callable[[int], int],
) -> tuple[list[int], dict[int, int], Mapping[int, Label]]:
    """The same where totals are waited for: phase after phase, and the label is that of the phase.

    Within a phase the order is that in which values die early.
    """
    # A view of a value has no place in the order, and waits for nothing.
    both = {n: [*reads[n], *waits.get(n, ())] for n in real}
    order = schedule(real, both, size)
    phase = phases_of(order, reads, waits)
    front = [n for n in order if n in given]
    phase |= dict.fromkeys(front, BEFORE)
    order = sorted(order, key=phase.__getitem__)
    text = {p: Label("phase", f"phase {p}") for p in {*phase.values()}}
    return order, phase, {n: text[p] for n, p in phase.items()}


def _globals(
    graph: Graph, order: Sequence[int], phase: Mapping[int, int]
) -> dict[int, tuple[int, ...]]:
    found: dict[int, dict[int, None]] = {}
    for node in order:
        if phase[node] == BEFORE:
            continue
        for arg in graph.args[node]:
            if graph.kinds[arg] == PORTFOLIO:
                found.setdefault(phase[node], {})[arg] = None
    return {p: tuple(nodes) for p, nodes in found.items()}


def _roots(graph: Graph, nodes: Iterable[int]) -> dict[int, int]:
    """The node whose register a node's value lies in: itself, or what it is a view of."""
    root: dict[int, int] = {}
    for node in nodes:
        base = graph.args[node][0] if graph.ops[node].name in VIEWS else node
        root[node] = root.get(base, base)
    return root


def _slots(
    graph: Graph, reductions: Sequence[int], phase: Mapping[int, int]
) -> tuple[dict[int, Slot], dict[str, Any], dict[str, Aggregate]]:
    slots: dict[int, Slot] = {}
    lengths: dict[str, int] = {}
    aggregates: dict[str, Aggregate] = {}
    for node in reductions:
        op, meta = graph.ops[node], graph.metas[node]
        if op.name == "aggregate":
            key = f"aggregate|{phase[node]}|{len(aggregates)}"
            aggregates[key] = graph.values[node]
            slots[node] = Slot(key, 0, ())
            continue
        kind = op.static[0]  # type: ignore[index]
        key = f"{kind}|{phase[node]}|{meta.dtype}"
        shape = meta.shape
        start = lengths.get(key, 0)
        if kind.endswith("moments"):
            # One vector holds counts, means and squares of all its reductions, three rows.
            shape = shape[1:]
        slots[node] = Slot(key, start, shape)
        lengths[key] = slots[node].stop
    vectors = {}
    for key, length in lengths.items():
        dtype = key.split("|", 2)[2]
        vectors[key] = (dtype, 3 * length if "moments" in key else length)
    return slots, vectors, aggregates
