"""Running one chunk: get its columns, run its blocks, return its part of the tree.

A :class:`ChunkRunner` is the one node of a graph that knows the program. It travels as bytes with
their digest, and nobody unpacks them but the process that runs the first chunk: the scheduler hands
them on, and the threads of a worker, or two workers in one process, share what was unpacked. Each
thread has its own :class:`~hl_dask.kernel.Machine`.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hl_dask._dask_compat import keep_freed_memory
from hl_dask.aggregate import Partial, Tree
from hl_dask.blocks import Blocks
from hl_dask.declared import JoinedPoints
from hl_dask.errors import HlDaskError
from hl_dask.expr import Meta
from hl_dask.kernel import Machine
from hl_dask.parcel import Job, Parcel, pack, unpack
from hl_dask.points import ModelPoints
from hl_dask.program import Program
from hl_dask.segments import Segment
from hl_dask.shelves import FileShelf, Shelf
from hl_dask.states import Handed, State


@dataclass(slots=True)
class ChunkRows:
    """The rows of a chunk that are in memory: a view here, a copy of these rows elsewhere.

    Attributes
    ----------
    points : ModelPoints or dict of str to ndarray
        Where the rows are, or the rows themselves after a journey.
    """

    points: Any
    start: int
    stop: int
    names: tuple[str, ...]

    @property
    def columns(self) -> dict[str, Any]:
        """The columns, shape (stop - start, ...)."""
        if isinstance(self.points, dict):
            return self.points
        return self.points.read(self.start, self.stop, self.names)  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:
        return ChunkRows, (self.columns, self.start, self.stop, self.names)


@dataclass(slots=True, weakref_slot=True)
class _Bench:
    """What the threads of a process share that run chunks of one job.

    Attributes
    ----------
    places : context manager
        One for each chunk that may be worked on at once.
    """

    job: Job
    machines: list[Machine] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)
    places: Any = field(default_factory=contextlib.nullcontext)

    def __post_init__(self) -> None:
        if self.job.at_once is not None:
            self.places = threading.BoundedSemaphore(self.job.at_once)

    @contextlib.contextmanager
    def machine(self) -> Iterator[Machine]:
        """A machine that no other thread has, as soon as there is a place."""
        with self.places:
            machine = self._take()
            try:
                yield machine
            finally:
                with self.lock:
                    self.machines.append(machine)

    def _take(self) -> Machine:
        with self.lock:
            if self.machines:
                return self.machines.pop()
        blocks = self.job.blocks
        return Machine(self.job.program, min(blocks.block_rows, blocks.rows))


_BENCHES: weakref.WeakValueDictionary[str, _Bench] = weakref.WeakValueDictionary()
_LOADING = threading.Lock()


def load(parcel: Parcel) -> _Bench:
    """What a parcel holds, unpacked once in each process for as long as somebody works with it.

    Raises
    ------
    SchedulerError
        When this process is not like the one that packed it.
    """
    with _LOADING:
        bench = _BENCHES.get(parcel.digest)
        if bench is None:
            if "distributed.nanny" in sys.modules or "distributed.worker" in sys.modules:
                keep_freed_memory()
            bench = _BENCHES[parcel.digest] = _Bench(unpack(parcel))
        return bench


class ChunkRunner:
    """Runs chunks.

    Parameters
    ----------
    bench : object, optional
        The job with its machines, in the process that made it.
    parcel : Parcel, optional
        The job as bytes, in all others.
    """

    __slots__ = ("_bench", "_held", "_parcel", "_points")

    def __init__(self, bench: _Bench | None, parcel: Parcel | None = None) -> None:
        self._bench = bench
        self._parcel = parcel
        self._points: ModelPoints | None = None
        self._held: tuple[str, ...] = ()

    @classmethod
    def make(
        cls,
        program: Program,
        points: ModelPoints | None,
        blocks: Blocks,
        errstate: dict[str, Any],
        at_once: int | None = None,
    ) -> ChunkRunner:
        """A runner without machines; threads make theirs when they first need one.

        Parameters
        ----------
        errstate : dict
            How NumPy treats floating-point errors, as in :func:`numpy.errstate`.
        at_once : int, optional
            Chunks that a process may work on at once; as many as it has threads by default.
        """
        held, elsewhere = split_held(points, program.columns)
        runner = cls(_Bench(Job(program, elsewhere, blocks, errstate, at_once)))
        runner._points, runner._held = points, held
        return runner

    @property
    def _work(self) -> _Bench:
        if self._bench is None:
            assert self._parcel is not None
            self._bench = load(self._parcel)
        return self._bench

    @property
    def program(self) -> Program:
        """What is run on each block."""
        return self._work.job.program

    @property
    def blocks(self) -> Blocks:
        """How the rows are cut."""
        return self._work.job.blocks

    @property
    def parcel(self) -> Parcel:
        """The job as bytes, packed once."""
        if self._parcel is None:
            self._parcel = pack(self._work.job)
        return self._parcel

    def rows_of(self, chunk: int, names: Sequence[str] | None = None) -> ChunkRows | None:
        """The rows of a chunk for its task; None when a worker reads them from files.

        Parameters
        ----------
        names : sequence of str, optional
            The columns that the task reads; by default all that the program reads.
        """
        held = tuple(name for name in self._held if names is None or name in names)
        if self._points is None or not held:
            return None
        start, stop = self.blocks.chunk(chunk)
        return ChunkRows(self._points, start, stop, held)

    def read(
        self, chunk: int, rows: ChunkRows | None = None, names: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """The columns of a chunk that its task reads, those in memory from ``rows``."""
        job = self._work.job
        columns = dict(rows.columns) if rows is not None else {}
        wanted = job.program.columns if names is None else names
        rest = [name for name in wanted if name not in columns]
        if rest:
            assert job.points is not None, f"rows of chunk {chunk} are missing: {rest}"
            columns |= job.points.read(*job.blocks.chunk(chunk), rest)
        return columns

    def __call__(self, chunk: int, rows: ChunkRows | None = None) -> Tree:
        """Partials of a chunk, as nodes of the tree over blocks."""
        work = self._work
        with work.machine() as machine, np.errstate(**work.job.errstate):
            return self._run(machine, chunk, rows)

    def _run(self, machine: Machine, chunk: int, rows: ChunkRows | None) -> Tree:
        tree = self._tree()
        for block, part, n_rows in self._blocks(chunk, self.read(chunk, rows)):
            with self._rows_told(block):
                tree.add(block, machine.run_block(part, n_rows))
        return tree

    def _tree(self) -> Tree:
        return Tree(self.blocks.n_blocks, self.program.combine)

    def _blocks(
        self, chunk: int, columns: Mapping[str, Any]
    ) -> Iterator[tuple[int, dict[str, Any], int]]:
        """Yield (block, its part of the columns, its rows) of a chunk."""
        start, _ = self.blocks.chunk(chunk)
        for block in self.blocks.blocks_of(chunk):
            first, last = self.blocks.block(block)
            part = {name: v[first - start : last - start] for name, v in columns.items()}
            yield block, part, last - first

    @contextlib.contextmanager
    def _rows_told(self, block: int) -> Iterator[None]:
        """Say of errors which rows they are of: a message counts from the first row of a block."""
        try:
            yield
        except HlDaskError as error:
            first, last = self.blocks.block(block)
            error.rows = f"{first:,} to {last - 1:,}, counted from the first of them"
            raise

    def segment(
        self, chunk: int, number: int, state: State | None, rows: ChunkRows | None = None
    ) -> State | Tree:
        """Run one segment of a chunk: the state for the next one, or in the end the partials."""
        work = self._work
        with work.machine() as machine, np.errstate(**work.job.errstate):
            return self._segment(machine, chunk, number, state, rows)

    def _segment(
        self,
        machine: Machine,
        chunk: int,
        number: int,
        state: State | None,
        rows: ChunkRows | None,
    ) -> State | Tree:
        segment = self.program.segments[number]
        before = state.values if state is not None else {}

        def value(node: int, first: int, last: int) -> Any:
            return self._slice(node, before[node], first, last)

        left = state.partials if state is not None else None
        made, partials = self._through(machine, chunk, segment, value, rows, left)
        if number < len(self.program.segments) - 1:
            kept = {node: before[node] for node in segment.keeps}
            return State(kept | made, tuple(partials))
        tree = self._tree()
        for block, partial in zip(self.blocks.blocks_of(chunk), partials, strict=True):
            tree.add(block, partial)
        return tree

    def _through(
        self,
        machine: Machine,
        chunk: int,
        segment: Segment,
        value: Callable[[int, int, int], Any],
        rows: ChunkRows | None,
        left: Sequence[Partial] | None = None,
    ) -> tuple[dict[int, Any], list[Partial]]:
        """Run a segment on all blocks of a chunk.

        Parameters
        ----------
        value : callable
            ``value(node, first, last)``: rows first:last of the chunk, of a value that is used.
        left : sequence of dict, optional
            For each block, what earlier segments have left of partials.

        Returns
        -------
        (dict of int to ndarray, list of dict)
            What was made for the state, of all rows; and partials, by block.
        """
        start, end = self.blocks.chunk(chunk)
        columns = self.read(chunk, rows, segment.columns)
        made = {node: self._empty(node, end - start) for node in segment.makes}
        partials: list[Partial] = []
        for block, part, n_rows in self._blocks(chunk, columns):
            first = self.blocks.block(block)[0] - start
            here = {node: value(node, first, first + n_rows) for node in segment.uses}
            here |= {node: part[self.program.column_of(node)] for node in segment.loads}
            before = left[len(partials)] if left is not None else None
            with self._rows_told(block):
                found, partial = machine.run_segment(segment, part, n_rows, here, before)
            partials.append(partial)
            for node, values in found.items():
                self._slice(node, made[node], first, first + n_rows)[...] = values
        return made, partials

    def phase(
        self,
        chunk: int,
        number: int,
        shelf: Shelf,
        values: Mapping[int, Any],
        rows: ChunkRows | None = None,
    ) -> Tree:
        """Run a phase of a chunk.

        Parameters
        ----------
        number : int
            Of the segment that the phase is.
        shelf : Shelf
            Where the states are.
        values : mapping of int to object
            Values over the whole portfolio that the phase reads, by node.

        Returns
        -------
        Tree
            Partials of the reductions of the phase.
        """
        kinds = self._kinds_of(number)

        def value(node: int, first: int, last: int) -> Any:
            return shelf.rows(chunk, node, kinds[node], first, last, self._rows_in(chunk))

        made, tree = self._phase(chunk, number, value, values, rows)
        shelf.put(chunk, made, kinds)
        return tree

    def relay(
        self,
        chunk: int,
        number: int,
        before: Handed | FileShelf | None,
        values: Mapping[int, Any],
        rows: ChunkRows | None = None,
    ) -> Handed:
        """Run a phase of a chunk whose state goes from task to task.

        Parameters
        ----------
        before : Handed, FileShelf or None
            What the phase before has handed on, or where it has been stored; None for the first.
        number, values, rows
            As in :meth:`phase`.
        """
        kinds = self._kinds_of(number)

        def value(node: int, first: int, last: int) -> Any:
            if isinstance(before, FileShelf):
                return before.rows(chunk, node, kinds[node], first, last, self._rows_in(chunk))
            assert before is not None, f"node {node} of chunk {chunk} has not been handed on"
            return self._slice(node, before.values[node], first, last)

        made, tree = self._phase(chunk, number, value, values, rows)
        keeps = self.program.segments[number].keeps
        if isinstance(before, Handed):
            kept = {node: before.values[node] for node in keeps}
        else:
            kept = {node: value(node, 0, self._rows_in(chunk)) for node in keeps}
        return Handed(kept | made, tree)

    def _rows_in(self, chunk: int) -> int:
        start, end = self.blocks.chunk(chunk)
        return end - start

    def _kinds_of(self, number: int) -> dict[int, Meta]:
        """Kinds of the values of the state that a segment has to do with."""
        program = self.program
        segment = program.segments[number]
        nodes = (*segment.uses, *segment.makes, *segment.keeps)
        return {node: program.kind_of(node) for node in nodes}

    def _phase(
        self,
        chunk: int,
        number: int,
        value: Callable[[int, int, int], Any],
        values: Mapping[int, Any],
        rows: ChunkRows | None,
    ) -> tuple[dict[int, Any], Tree]:
        """What a phase makes of a chunk for those after it, and partials of its reductions."""
        segment, work = self.program.segments[number], self._work
        with work.machine() as machine, np.errstate(**work.job.errstate):
            machine.know(values)
            made, partials = self._through(machine, chunk, segment, value, rows)
        tree, keys = self._tree(), self.program.keys_of(segment.phase)
        for block, partial in zip(self.blocks.blocks_of(chunk), partials, strict=True):
            tree.add(block, {key: partial[key] for key in keys})
        return made, tree

    def _empty(self, node: int, rows: int) -> Any:
        dtype, shape, axis = self.program.kind_of(node)
        return np.empty((*shape[:axis], rows, *shape[axis:]), dtype=dtype)

    def _slice(self, node: int, value: Any, first: int, last: int) -> Any:
        """Rows of a value, which are not always along its first axis."""
        axis = self.program.kind_of(node).axis
        return value[(*[slice(None)] * axis, slice(first, last))]

    def __reduce__(self) -> tuple[Any, ...]:
        return ChunkRunner, (None, self.parcel)


def split_held(
    points: ModelPoints | None, columns: list[str]
) -> tuple[tuple[str, ...], ModelPoints | None]:
    """Which of some columns are in memory, and where to read the others."""
    if points is None or not columns:
        return (), None
    if isinstance(points, JoinedPoints):
        held, others = points.split_held(columns)
    else:
        held, others = (tuple(columns) if points.in_memory else ()), points
    return held, None if len(held) == len(columns) else others


@contextlib.contextmanager
def sendable_errors() -> Iterator[None]:
    """Let errors of the library travel: without the user's exception where that cannot."""
    try:
        yield
    except HlDaskError as error:
        try:
            pickle.dumps(error.__cause__)
        except Exception:  # whatever an exception of the user's raises when it is pickled
            # Its type and text are in the message.
            error.__cause__ = error.__context__ = None
        raise


def run_chunk(runner: ChunkRunner, chunk: int, rows: ChunkRows | None = None) -> Tree:
    """A chunk task."""
    with sendable_errors():
        return runner(chunk, rows)


def run_segment(
    runner: ChunkRunner,
    chunk: int,
    number: int,
    state: State | None = None,
    rows: ChunkRows | None = None,
) -> State | Tree:
    """A task of one segment of a chunk."""
    with sendable_errors():
        return runner.segment(chunk, number, state, rows)


def run_phase(
    runner: ChunkRunner,
    chunk: int,
    number: int,
    shelf: Shelf,
    values: Mapping[int, Any],
    rows: ChunkRows | None = None,
) -> Tree:
    """A task of one phase of a chunk."""
    with sendable_errors():
        return runner.phase(chunk, number, shelf, values, rows)
