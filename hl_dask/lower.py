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

The program is one node of the graph, which all tasks read. Rows in memory are an argument of the
chunk task that works on them, so that each worker of a cluster is sent its own and no others.
"""

from __future__ import annotations

from typing import Any

from dask.task_spec import DataNode, Task, TaskRef

from hl_dask.aggregate import Tree, merge_trees
from hl_dask.chunks import ChunkRunner, run_chunk
from hl_dask.kernel import unpack

MERGE = 8
"""Chunks (or merges) that one merge task takes in."""


def merge(runner: ChunkRunner, *trees: Tree) -> Tree:
    """A merge task."""
    return merge_trees(trees, runner.program.combine)


def finish(runner: ChunkRunner, tree: Tree) -> dict[int, Any]:
    """The last task: values of the reductions over all rows."""
    return unpack(runner.program, tree.result())


def lower(runner: ChunkRunner, name: str) -> tuple[dict[Any, Any], str]:
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
    model = f"model-{name}"
    graph: dict[Any, Any] = {model: DataNode(model, runner)}
    level: list[Any] = []
    for chunk in range(runner.blocks.n_chunks):
        key = (f"chunk-{name}", chunk)
        graph[key] = Task(key, run_chunk, TaskRef(model), chunk, runner.rows_of(chunk))
        level.append(key)
    depth = 0
    while len(level) > 1:
        above: list[Any] = []
        for k in range(0, len(level), MERGE):
            merged = (f"merge-{name}", depth, k // MERGE)
            children = [TaskRef(child) for child in level[k : k + MERGE]]
            graph[merged] = Task(merged, merge, TaskRef(model), *children)
            above.append(merged)
        level, depth = above, depth + 1
    total = f"total-{name}"
    graph[total] = Task(total, finish, TaskRef(model), TaskRef(level[0]))
    return graph, total
