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
Nothing but partials passes between chunks.

With a program that is cut into segments, a chunk is a chain of tasks, and what is still needed goes
along it, partials included, so that there is one tree all the same::

    chunk 0: segment 0 -- segment 1 -- ... -- segment n --+
    chunk 1: segment 0 -- segment 1 -- ... -- segment n ---- merge 0 ...

The program is one node of the graph, which all tasks read. Rows in memory are an argument of the
chunk task that works on them, so that each worker of a cluster is sent its own and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dask.task_spec import DataNode, Task, TaskRef

from hl_dask.aggregate import Tree, merge_trees
from hl_dask.chunks import ChunkRunner, run_chunk, run_phase, run_segment
from hl_dask.errors import PlanError
from hl_dask.kernel import unpack
from hl_dask.shelves import Shelf

MERGE = 8
"""Chunks (or merges) that one merge task takes in."""
MOST_TASKS = 50_000
"""Tasks of chunks that a graph may have."""


def merge(runner: ChunkRunner, *trees: Tree) -> Tree:
    """A merge task."""
    return merge_trees(trees, runner.program.combine)


def finish(runner: ChunkRunner, tree: Tree) -> dict[int, Any]:
    """The last task: values of the reductions over all rows."""
    return unpack(runner.program, tree.result())


class Share(NamedTuple):
    """What is done of a phase with the rows of one model.

    Attributes
    ----------
    runner : ChunkRunner
        Runs a chunk.
    number : int
        Of the segment that the phase is.
    shelf : Shelf
        Where the states of the chunks are.
    values : dict of int to object
        Values over the whole portfolio that the phase reads.
    """

    runner: ChunkRunner
    number: int
    shelf: Shelf
    values: dict[int, Any]


def lower(runners: Sequence[ChunkRunner], name: str) -> tuple[dict[Any, Any], str]:
    """The Dask graph of one pass over the rows.

    Parameters
    ----------
    runners : sequence of ChunkRunner
        Run the chunks of each model.
    name : str
        Prefix of the keys.

    Returns
    -------
    (dict, key)
        Tasks by key, and the key whose value is the dict of reductions by node.

    Raises
    ------
    PlanError
        When a chunk is cut into so many tasks that there are more than :data:`MOST_TASKS`.
    """
    _check_tasks(runners)
    graph: dict[Any, Any] = {}
    totals: list[str] = []
    for runner, own in zip(runners, names_of(len(runners), name), strict=True):
        model = f"model-{own}"
        graph[model] = DataNode(model, runner)
        add = _add_segments if runner.program.segments else _add_chunk
        level: list[Any] = [
            add(graph, runner, TaskRef(model), chunk, own)
            for chunk in range(runner.blocks.n_chunks)
        ]
        totals.append(add_merges(graph, level, model, own))
    return joined(graph, totals, name)


def lower_phase(shares: Sequence[Share], name: str) -> tuple[dict[Any, Any], str]:
    """The Dask graph of one phase; as :func:`lower`."""
    graph: dict[Any, Any] = {}
    totals: list[str] = []
    for (runner, number, shelf, values), own in zip(
        shares, names_of(len(shares), name), strict=True
    ):
        model, before = f"model-{own}", f"totals-{own}"
        graph[model] = DataNode(model, runner)
        graph[before] = DataNode(before, (shelf, values))
        segment = runner.program.segments[number]
        level: list[Any] = []
        for chunk in range(runner.blocks.n_chunks):
            key = (f"phase-{segment.phase}-{number}-{own}", chunk)
            rows = runner.rows_of(chunk, segment.columns)
            graph[key] = Task(key, _run_phase, TaskRef(model), TaskRef(before), chunk, number, rows)
            level.append(key)
        totals.append(add_merges(graph, level, model, own))
    return joined(graph, totals, name)


def names_of(count: int, name: str) -> list[str]:
    """A suffix for the keys of each model; the dashboard parts keys at dashes."""
    return [name] if count == 1 else [f"{name}_{k}" for k in range(count)]


def joined(graph: dict[Any, Any], totals: list[str], name: str) -> tuple[dict[Any, Any], str]:
    """Add a task that has the totals of all models, where there are several."""
    if len(totals) == 1:
        return graph, totals[0]
    key = f"total-{name}"
    graph[key] = Task(key, _together, *map(TaskRef, totals))
    return graph, key


def _together(*totals: dict[int, Any]) -> dict[int, Any]:
    return {node: value for found in totals for node, value in found.items()}


def _run_phase(
    runner: ChunkRunner, totals: tuple[Shelf, dict[int, Any]], chunk: int, number: int, rows: Any
) -> Tree:
    shelf, values = totals
    return run_phase(runner, chunk, number, shelf, values, rows)


def add_merges(graph: dict[Any, Any], level: list[Any], model: str, name: str) -> str:
    """Add the merges and the last task to a graph whose chunk tasks are there: its key."""
    total = f"total-{name}"
    (merged,) = merged_to(1, graph, level, model, name)
    graph[total] = Task(total, finish, TaskRef(model), TaskRef(merged))
    return total


def merged_to(
    most: int, graph: dict[Any, Any], level: list[Any], model: str, name: str
) -> list[Any]:
    """Add merges until so few trees are left: their keys."""
    depth = 0
    while len(level) > most:
        above: list[Any] = []
        for k in range(0, len(level), MERGE):
            merged = (f"merge-{name}", depth, k // MERGE)
            children = [TaskRef(child) for child in level[k : k + MERGE]]
            graph[merged] = Task(merged, merge, TaskRef(model), *children)
            above.append(merged)
        level, depth = above, depth + 1
    return level


def _check_tasks(runners: Sequence[ChunkRunner]) -> None:
    counts = [(len(r.program.segments), r.blocks.n_chunks) for r in runners]
    tasks = sum(segments * chunks for segments, chunks in counts)
    if tasks > MOST_TASKS:
        each = " and ".join(
            f"{segments:,} tasks for each of {n:,} chunks" for segments, n in counts
        )
        msg = (
            f"{each} are {tasks:,}, and more than {MOST_TASKS:,} would keep the scheduler busier "
            "than the workers"
        )
        raise PlanError(
            msg,
            remedy="leave granularity= out, take 'step' instead of 'formula', fewer and larger "
            "chunks (chunk_blocks=), or less data",
        )


def _add_chunk(
    graph: dict[Any, Any], runner: ChunkRunner, model: TaskRef, chunk: int, name: str
) -> Any:
    key = (f"chunk-{name}", chunk)
    graph[key] = Task(key, run_chunk, model, chunk, runner.rows_of(chunk))
    return key


def _add_segments(
    graph: dict[Any, Any], runner: ChunkRunner, model: TaskRef, chunk: int, name: str
) -> Any:
    state: TaskRef | None = None
    for number, segment in enumerate(runner.program.segments):
        # Dask groups tasks by what comes before the first dash: by formula.
        key = (f"{segment.label.group}-{segment.label.text}-{number}-{name}", chunk)
        rows = runner.rows_of(chunk, segment.columns)
        graph[key] = Task(key, run_segment, model, chunk, number, state, rows)
        state = TaskRef(key)
    return key


def label_of(key: Any) -> str:
    """What a task does, for a drawing: ``pols_if(3)``, ``t = 3``, ``chunk``."""
    prefix = key[0] if isinstance(key, tuple) else key
    group, _, rest = prefix.partition("-")
    text = rest.rsplit("-", 2)[0] if rest.count("-") > 1 else group
    return f"{text}\nchunk {key[1]}" if group not in ("merge", "total", "model") else group
