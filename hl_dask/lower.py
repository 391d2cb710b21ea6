"""Plan and chunks become a Dask graph: one task per chunk, one tree, one result.

::

    chunk 0 --+
    chunk 1 ---- merge 0 --+
    ...                      merge ... -- total
    chunk 8 ---- merge 1 --/
    ...

A chunk task reads the columns that the program reads, runs its blocks, and returns the nodes of the
fixed tree that its blocks make up. Merge tasks put nodes together; which chunks meet in which merge
does not matter for the numbers, because every addition belongs to a node of the tree over blocks.
Nothing but partials passes between tasks.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.task_spec import Task, TaskRef

from hl_dask.aggregate import Tree, merge_trees
from hl_dask.blocks import Blocks
from hl_dask.errors import HlDaskError
from hl_dask.kernel import Machine, unpack
from hl_dask.points import ModelPoints
from hl_dask.program import Program

MERGE = 8
"""Chunks (or merges) that one merge task takes in."""


@dataclass(slots=True)
class ChunkRunner:
    """Runs chunks; one machine for each thread that does.

    Attributes
    ----------
    errstate : dict
        How NumPy treats floating-point errors, as in :func:`numpy.errstate`.
    """

    program: Program
    points: ModelPoints | None
    blocks: Blocks
    errstate: dict[str, Any]
    machines: list[Machine]
    lock: Any

    @classmethod
    def make(
        cls, program: Program, points: ModelPoints | None, blocks: Blocks, errstate: dict[str, Any]
    ) -> ChunkRunner:
        """A runner without machines; threads make theirs when they first need one."""
        return cls(program, points, blocks, errstate, [], threading.Lock())

    def __call__(self, chunk: int) -> Tree:
        """Partials of a chunk, as nodes of the tree over blocks."""
        machine = self._take()
        try:
            with np.errstate(**self.errstate):
                return self._run(machine, chunk)
        finally:
            with self.lock:
                self.machines.append(machine)

    def _take(self) -> Machine:
        with self.lock:
            if self.machines:
                return self.machines.pop()
        return Machine(self.program, min(self.blocks.block_rows, self.blocks.rows))

    def _run(self, machine: Machine, chunk: int) -> Tree:
        start, stop = self.blocks.chunk(chunk)
        columns: dict[str, Any] = {}
        if self.points is not None and self.program.columns:
            columns = self.points.read(start, stop, self.program.columns)
        tree = Tree(self.blocks.n_blocks, self.program.combine)
        for block in self.blocks.blocks_of(chunk):
            first, last = self.blocks.block(block)
            part = {k: v[first - start : last - start] for k, v in columns.items()}
            try:
                tree.add(block, machine.run_block(part, last - first))
            except HlDaskError as error:
                # A row number in the message counts from the first row of the block.
                error.rows = f"{first:,} to {last - 1:,}, counted from the first of them"
                raise
        return tree


def merge(*trees: Tree) -> Tree:
    """A merge task."""
    return merge_trees(trees)


def finish(program: Program, tree: Tree) -> dict[int, Any]:
    """The last task: values of the reductions over all rows."""
    return unpack(program, tree.result())


def lower(runner: ChunkRunner, name: str) -> tuple[dict[Any, Task], str]:
    """The Dask graph of one pass over the rows.

    Parameters
    ----------
    runner : ChunkRunner
        Runs a chunk.
    name : str
        Prefix of the keys.

    Returns
    -------
    (dict, key)
        Tasks by key, and the key whose value is the dict of reductions by node.
    """
    graph: dict[Any, Task] = {}
    level: list[Any] = []
    for chunk in range(runner.blocks.n_chunks):
        key = (f"chunk-{name}", chunk)
        graph[key] = Task(key, runner, chunk)
        level.append(key)
    depth = 0
    while len(level) > 1:
        above: list[Any] = []
        for k in range(0, len(level), MERGE):
            merged = (f"merge-{name}", depth, k // MERGE)
            children = [TaskRef(child) for child in level[k : k + MERGE]]
            graph[merged] = Task(merged, merge, *children)
            above.append(merged)
        level, depth = above, depth + 1
    total = f"total-{name}"
    graph[total] = Task(total, finish, runner.program, TaskRef(level[0]))
    return graph, total
