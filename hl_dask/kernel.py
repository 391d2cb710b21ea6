"""The kernel: a program, run on one block of rows after the other.

A :class:`Machine` is a program bound to memory: one arena that holds all registers, and a flat list
of ``(function, arguments)`` whose arguments are already arrays of the arena. Running a block is
running down that list, so that memory does not depend on the number of months, formulas or rows,
and the registers, some 128 KB each, stay near the processor::

    graph node        register    step
    pols_if(3)        r4          (subtract, (r4, r7, r4))       r4 is overwritten: its last use
    pols_if(3)[:, 0]  view of r4  none
    sum(pols_if(3))   none        (add.reduce, (r4, 0, None, partial[17]))

The kernel knows no Dask and no formulas beyond those that are opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import length_hint
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hl_dask.aggregate import UFUNCS, Partial
from hl_dask.errors import FormulaError, HlDaskError
from hl_dask.expr import PORTFOLIO, REDUCTIONS, SHARED, Graph, what_of
from hl_dask.opaque import BlockSession
from hl_dask.program import ALIGN, VIEWS, Program, register_bytes, row_bytes
from hl_dask.segments import Segment
from hl_dask.traced import fill, reduce_rows

Array = NDArray[Any]
Step = tuple[Callable[..., Any], tuple[Any, ...]]

WITH_OUT: frozenset[Callable[..., Any]] = frozenset({np.clip, np.round})
"""Functions that write their result where they are told to."""


# ---- what an operation does ------------------------------------------------------------------


def evaluate(graph: Graph, node: int, args: Sequence[Any]) -> Any:
    """Do the operation of one node on values of its arguments; the reference for all steps."""
    name = graph.ops[node].name
    static: Any = graph.ops[node].static
    if name == "constant":
        return graph.values[node]
    if name in ("ufunc", "rowwise"):
        return static(*args)
    if name == "call":
        func, template, options = static
        return func(*fill(template, args), **fill(options, args))
    if name == "item":
        inner, k = static
        return inner.static(*args)[k]
    if name == "index":
        return args[0][fill(static, args)]
    if name in VIEWS:
        return view(name, static, args[0])
    if name == "lookup":
        return graph.values[node](*args)
    msg = f"{name} is not an operation on values"
    raise ValueError(msg)


def view(name: str, static: Any, base: Any) -> Any:
    """A view of a value: basic indexing, or the same rows in another shape."""
    if name == "view":
        return base[fill(static, ())]
    if name == "reshape":
        return base.reshape((-1, *static))
    return base.transpose(static)


def run_opaque(call: Any, args: list[Any], out: Array, axis: int) -> None:
    """Evaluate an opaque formula on the rows of a block."""
    np.copyto(out, BlockSession(call, args, out.shape[axis]).evaluate(), casting="same_kind")


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
        self.globals: dict[int, Array] = {
            node: np.zeros(program.graph.metas[node].shape, program.graph.metas[node].dtype)
            for nodes in program.globals.values()
            for node in nodes
        }
        self.columns: dict[str, Array] = {}
        self._given = frozenset(program.given)
        self._bound: dict[int, tuple[list[Step], list[Array]]] = {}

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
        steps, _ = self._steps(rows)
        self._do(steps, columns, rows, len(steps))
        return self._partial()

    def run_segment(
        self,
        segment: Segment,
        columns: Mapping[str, Array],
        rows: int,
        values: Mapping[int, Array],
        partial: Partial | None,
    ) -> tuple[dict[int, Array], Partial]:
        """Run a part of the program on a block.

        Parameters
        ----------
        columns : mapping of str to ndarray, shape (rows, ...)
            The columns that the segment reads.
        values : mapping of int to ndarray
            Values that the segment uses, of the rows of the block.
        partial : dict or None
            What earlier segments have left; None for the first.

        Returns
        -------
        (dict of int to ndarray, dict)
            Values for the state, in memory that the next call overwrites; and the partials.
        """
        steps, registers = self._steps(rows)
        place = self.program.register
        for node, value in values.items():
            np.copyto(registers[place[node]], value)
        if partial is None:
            # Objects of another block would travel with the state.
            partial = {key: [None] for key in self.program.aggregates}
        for key, found in partial.items():
            self.partial[key][:] = found
        self._do(steps[segment.start : segment.stop], columns, rows, segment.stop)
        return {node: registers[place[node]] for node in segment.makes}, self._partial()

    def know(self, values: Mapping[int, Any]) -> None:
        """Take values over the whole portfolio, by node, that a phase reads."""
        for node, value in values.items():
            self.globals[node][...] = value

    def _partial(self) -> Partial:
        return {
            k: v.copy() if isinstance(v, np.ndarray) else list(v) for k, v in self.partial.items()
        }

    def _do(self, steps: list[Step], columns: Mapping[str, Array], rows: int, stop: int) -> None:
        """Do the steps before ``stop``."""
        nodes = self.program.order
        self.columns.update(columns)
        iterator = iter(steps)
        try:
            for function, arguments in iterator:
                function(*arguments)
        except HlDaskError as error:
            failed = nodes[stop - length_hint(iterator) - 1]
            error.formula = error.formula or self._owner(failed)
            raise
        except Exception as error:
            failed = nodes[stop - length_hint(iterator) - 1]
            msg = f"{type(error).__name__}: {error}\n  shapes: {self._shapes(failed, rows)}"
            raise FormulaError(
                msg,
                formula=self._owner(failed),
                remedy="see the exception above; the rows are those of one block of the data",
            ) from error
        finally:
            self.columns.clear()

    def _owner(self, node: int) -> str:
        return self.program.describe(self.program.graph.owners[node])

    def _shapes(self, node: int, rows: int) -> str:
        """Formula calls that an operation works on, with the shapes of its operands."""
        graph = self.program.graph
        found = []
        for arg in graph.args[node]:
            meta = graph.metas[arg]
            axis = meta.axis
            shape = meta.shape if axis < 0 else (*meta.shape[:axis], rows, *meta.shape[axis:])
            found.append(f"{self._owner(arg)} {shape}")
        return ", ".join(found)

    def _steps(self, rows: int) -> tuple[list[Step], list[Array]]:
        """The steps for blocks of so many rows, and the registers that they work on."""
        found = self._bound.get(rows)
        if found is None:
            if len(self._bound) > 1:
                self._bound.clear()
            found = self._bound[rows] = self._bind(rows)
        return found

    def _bind(self, rows: int) -> tuple[list[Step], list[Array]]:
        """The list of steps for this number of rows, and the registers."""
        program, graph = self.program, self.program.graph
        registers = self._registers(rows)
        arrays: dict[int, Any] = {}

        def array(node: int) -> Any:
            found = arrays.get(node)
            if found is None:
                found = arrays[node] = self._value(node, rows, registers, array)
            return found

        return [self._step(node, graph, array) for node in program.order], registers

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
        name = graph.ops[node].name
        static: Any = what_of(graph.ops[node])
        if node in program.register:
            return registers[program.register[node]]
        if graph.kinds[node] == PORTFOLIO:
            return self.globals[node]
        if name == "constant":
            value = graph.values[node]
            return value.view(np.ndarray) if isinstance(value, np.ndarray) else value
        if name == "full":
            row = graph.values[graph.args[node][0]]
            shape = (*row.shape[:static], rows, *row.shape[static + 1 :])
            return np.broadcast_to(row, shape)
        if graph.kinds[node] == SHARED:
            return evaluate(graph, node, [array(a) for a in graph.args[node]])
        return view(name, static, array(graph.args[node][0]))

    def _step(self, node: int, graph: Graph, array: Callable[[int], Any]) -> Step:
        """The step of a node that is no view: a function, and its arguments with the result."""
        op = graph.ops[node]
        if node in self._given:
            return _nothing, ()
        args = [array(a) for a in graph.args[node]]
        if op.name == "ufunc":
            return _ufunc_step(op.static, args, array(node))
        if op.name in REDUCTIONS:
            return self._partial_step(node, args[0])
        out = array(node)
        if op.name == "column":
            return self._load(str(what_of(op)), out)
        if op.name == "lookup":
            return partial(graph.values[node], out=out), tuple(args)
        if op.name == "opaque":
            return run_opaque, (graph.values[node], args, out, graph.metas[node].axis)
        if op.name == "call":
            return _call_step(op.static, args, out)
        if op.static is np.where and getattr(args[0], "dtype", None) == np.bool_:
            return _where_step(args, out)
        if op.name == "rowwise":
            function: Any = op.static
            return _copying(function, tuple(args), {}, out)
        return _copying(evaluate, (graph, node, args), {}, out)

    def _load(self, column: str, out: Array) -> Step:
        columns = self.columns
        return lambda: np.copyto(out, columns[column]), ()

    def _partial_step(self, node: int, value: Array) -> Step:
        slot = self.program.slots[node]
        vector = self.partial[slot.key]
        op = self.program.graph.ops[node]
        if op.name == "aggregate":
            aggregate = self.program.aggregates[slot.key]

            def step() -> None:
                vector[0] = aggregate.map(value.copy())

            return step, ()
        static: Any = op.static
        kind, axes, keepdims, dtype = static
        if kind.endswith("moments"):
            target = vector[:, slot.start : slot.stop].reshape((3, *slot.shape))
            return reduce_rows, (value, static, target)
        target = vector[slot.start : slot.stop].reshape(slot.shape)
        # Positional arguments: this is done once for each reported number and block.
        reduce = UFUNCS[kind].reduce
        return reduce, (value, axes if len(axes) > 1 else axes[0], dtype, target, keepdims)


def _nothing() -> None:
    """The step of a value that is there already."""


def _copying(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Array
) -> Step:
    """A step for a function that makes its own result."""
    if kwargs:
        return lambda: np.copyto(out, func(*args, **kwargs)), ()
    return lambda: np.copyto(out, func(*args)), ()


def _ufunc_step(ufunc: Any, args: list[Any], out: Array) -> Step:
    if ufunc in (np.maximum, np.minimum):
        # Their out argument must not be positional, lest it be taken for a third operand.
        return partial(ufunc, out=out), tuple(args)
    return ufunc, (*args, out)


def _where_step(args: list[Any], out: Array) -> Step:
    """``np.where`` into its register: without an array of its own, which has to be allocated."""
    condition, chosen, other = args

    def step() -> None:
        np.copyto(out, other, casting="unsafe")
        np.copyto(out, chosen, casting="unsafe", where=condition)

    return step, ()


def _call_step(static: Any, args: list[Any], out: Array) -> Step:
    func, template, options = static
    positional, keywords = fill(template, args), fill(options, args)
    if func in WITH_OUT:
        return partial(func, out=out, **keywords), positional
    return _copying(func, positional, keywords, out)


# ---- after the blocks ------------------------------------------------------------------------


def unpack(program: Program, partial: Partial) -> dict[int, Any]:
    """Values of the reductions from the partial of all blocks."""
    values: dict[int, Any] = {}
    for node, slot in program.slots.items():
        if slot.key not in partial:
            continue  # of another phase
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
