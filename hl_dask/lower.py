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

from typing import Any

from dask.task_spec import Task, TaskRef

from hl_dask.aggregate import Tree, merge_trees
from hl_dask.chunks import ChunkRunner
from hl_dask.kernel import unpack
from hl_dask.program import Program

MERGE = 8
"""Chunks (or merges) that one merge task takes in."""


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
