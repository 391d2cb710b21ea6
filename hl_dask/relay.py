"""Several phases in one graph on a cluster: states are handed on from task to task by the workers.

::

    phase 3, chunk 0 ---- phase 4, chunk 0 ---- phase 5, chunk 0 ---- store, chunk 0
        | part             |  | part             |  | part
        total 3 -----------'  total 4 -----------'  total 5

What a chunk keeps stays on the worker that made it, where it is spilled when memory gets short. A
worker that is lost takes its states with it, and what led to them is done again; so every few
phases they are stored in files, if there is a directory that all workers see, and the next graph
starts from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from dask.task_spec import DataNode, Task, TaskRef

from hl_dask.aggregate import Tree, merge_trees
from hl_dask.chunks import ChunkRunner, sendable_errors
from hl_dask.cluster import run_keeping
from hl_dask.expr import Meta
from hl_dask.kernel import evaluate_global, portfolio_ancestors, unpack
from hl_dask.lower import MERGE, MOST_TASKS, merged_to, names_of
from hl_dask.shelves import FileShelf
from hl_dask.states import Handed

STORED_EVERY = 8
"""Phases after which states are stored: what a lost worker costs at most."""
Values = dict[int, Any]


class Relay:
    """The states of all chunks on the workers of a cluster.

    Parameters
    ----------
    client : Client
        Of the cluster.
    shelves : list of FileShelf
        Where states are stored now and then, for each model; none where workers share no directory.
    progress : bool
        Whether to show a progress bar.
    """

    def __init__(self, client: Any, shelves: list[FileShelf], *, progress: bool) -> None:
        self.client = client
        self.shelves = shelves
        self.progress = progress
        self._futures: dict[tuple[int, int], Any] = {}
        self._nodes: dict[int, tuple[int, ...]] = {}
        self._in_files: set[int] = set()
        self._since = 0

    @property
    def nodes(self) -> set[int]:
        """Nodes of the values that are there."""
        return {node for nodes in self._nodes.values() for node in nodes}

    def batch(self, runners: Mapping[int, ChunkRunner], *, one_by_one: bool) -> int:
        """How many phases go into the next graph."""
        if one_by_one:
            return 1
        tasks = sum(3 * runner.blocks.n_chunks for runner in runners.values())
        most = STORED_EVERY - self._since if self.shelves else STORED_EVERY
        return max(1, min(most, MOST_TASKS // tasks))

    def run(
        self,
        runners: Mapping[int, ChunkRunner],
        phases: Sequence[int],
        known: Values,
        name: str,
        *,
        is_last: bool,
    ) -> Values:
        """Run some phases as one graph.

        Parameters
        ----------
        runners : mapping of int to ChunkRunner
            By number of the model.
        phases : sequence of int
            Consecutive phases.
        known : dict
            Values of reductions so far, by node.
        name : str
            Prefix of the keys.
        is_last : bool
            Whether nothing comes after them, so that no state is wanted.

        Returns
        -------
        dict of int to object
            Values of the reductions of these phases.
        """
        self._since += len(phases)
        graph, total, held = self._lowered(runners, phases, known, name)
        fresh = {w: key for w, key in held.items() if key in graph and not isinstance(key, str)}
        # What these phases have not touched is there still, if only a later recording wants it.
        left = {w: future for w, future in self._futures.items() if w not in fresh}
        kept = {} if is_last else fresh
        is_stored = bool(self.shelves) and self._since >= STORED_EVERY and not is_last
        if is_stored:
            metas = next(iter(runners.values())).program.graph.metas
            kept = self._stored(graph, metas, {w: f.key for w, f in left.items()} | kept)
        found, futures = run_keeping(
            self.client,
            graph,
            total,
            kept.values(),
            progress=self.progress,
            wait=is_stored,
        )
        self._in_files -= {k for k, _ in fresh}
        if is_stored:
            self._since, self._futures = 0, {}
            for k in {k for k, _ in kept}:
                self.shelves[k].finish()
                self._in_files.add(k)
        else:
            self._futures = left | {w: futures[key] for w, key in kept.items()}
        values: Values = found.found
        return values

    def _lowered(
        self, runners: Mapping[int, ChunkRunner], phases: Sequence[int], known: Values, name: str
    ) -> tuple[dict[Any, Any], str, dict[tuple[int, int], Any]]:
        """The graph, the key of the totals, and of the last state of each chunk."""
        graph: dict[Any, Any] = {}
        held: dict[tuple[int, int], Any] = {w: f.key for w, f in self._futures.items()}
        owns = dict(zip(runners, names_of(len(runners), name), strict=True))
        for k, runner in runners.items():
            graph[f"model-{owns[k]}"] = DataNode(f"model-{owns[k]}", runner)
            if k in self._in_files:
                stored = f"stored-{owns[k]}"
                graph[stored] = DataNode(stored, self.shelves[k])
                held |= {(k, chunk): stored for chunk in range(runner.blocks.n_chunks)}
        totals = f"known-{name}"
        graph[totals] = DataNode(totals, Totals({}, _values(runners, phases[0], known)))
        for number, phase in enumerate(phases):
            trees: dict[int, list[Any]] = {}
            for k, runner in runners.items():
                segment = _segment_of(runner, phase)
                if segment is None:
                    continue
                own, model = f"{phase}-{owns[k]}", f"model-{owns[k]}"
                for chunk in range(runner.blocks.n_chunks):
                    key, part = (f"phase-{own}", chunk), (f"part-{own}", chunk)
                    before = held.get((k, chunk))
                    graph[key] = Task(
                        key,
                        _run,
                        TaskRef(model),
                        k,
                        chunk,
                        segment,
                        None if before is None else TaskRef(before),
                        TaskRef(totals),
                        runner.rows_of(chunk, runner.program.segments[segment].columns),
                    )
                    graph[part] = Task(part, _tree, TaskRef(key))
                    held[k, chunk] = key
                    trees.setdefault(k, []).append(part)
                trees[k] = merged_to(MERGE, graph, trees[k], model, own)
                self._nodes[k] = _state_of(runner, segment)
            follows = phases[number + 1] if number + 1 < len(phases) else None
            total = f"total-{phase}-{name}"
            graph[total] = Task(
                total,
                _complete,
                TaskRef(totals),
                _needed(runners, follows, known),
                follows,
                [(k, len(found)) for k, found in trees.items()],
                tuple(runners),
                *(TaskRef(f"model-{own}") for own in owns.values()),
                *(TaskRef(tree) for found in trees.values() for tree in found),
            )
            totals = total
        return graph, totals, held

    def _stored(
        self, graph: dict[Any, Any], metas: Sequence[Meta], kept: dict[tuple[int, int], Any]
    ) -> dict[tuple[int, int], Any]:
        """Add tasks that store the states, to have these instead."""
        shelves: dict[int, tuple[str, dict[int, Meta]]] = {}
        stored: dict[tuple[int, int], Any] = {}
        for (k, chunk), key in kept.items():
            if k not in shelves:
                shelves[k] = f"shelf-{k}-{key[0]}", {n: metas[n] for n in self._nodes[k]}
                self.shelves[k].begin(self._nodes[k], (), shelves[k][1])
                graph[shelves[k][0]] = DataNode(shelves[k][0], self.shelves[k])
            shelf, kinds = shelves[k]
            task = (f"store-{k}-{key[0]}", chunk)
            graph[task] = Task(task, _store, TaskRef(shelf), chunk, TaskRef(key), kinds)
            stored[k, chunk] = task
        return stored

    def close(self) -> None:
        """Let go of everything."""
        self._futures.clear()
        self._nodes.clear()
        for shelf in self.shelves:
            shelf.close()


class Totals(NamedTuple):
    """What is known after a phase.

    Attributes
    ----------
    found : dict of int to object
        Values of the reductions of all phases of a graph so far.
    values : dict of int to dict
        For each model, the values over the whole portfolio that the next phase reads.
    """

    found: Values
    values: dict[int, Values]


def _segment_of(runner: ChunkRunner, phase: int) -> int | None:
    """The number of the segment that a phase is."""
    segments = enumerate(runner.program.segments)
    return next((number for number, s in segments if s.phase == phase), None)


def _state_of(runner: ChunkRunner, number: int) -> tuple[int, ...]:
    segment = runner.program.segments[number]
    return *segment.keeps, *segment.makes


def _needed(runners: Mapping[int, ChunkRunner], phase: int | None, known: Values) -> Values:
    """What is known of the reductions that the values of a phase rest on."""
    found: Values = {}
    for runner in runners.values():
        program = runner.program
        wanted = program.globals.get(phase, ()) if phase is not None else ()
        rests_on = portfolio_ancestors(program.graph, wanted)
        found |= {node: known[node] for node in rests_on if node in known}
    return found


def _values(runners: Mapping[int, ChunkRunner], phase: int, known: Values) -> dict[int, Values]:
    """For each model, the values over the whole portfolio that a phase reads."""
    out: dict[int, Values] = {}
    for k, runner in runners.items():
        program = runner.program
        wanted = program.globals.get(phase, ())
        values = evaluate_global(program.graph, wanted, known, program.describe)
        out[k] = {node: values[node] for node in wanted}
    return out


# ---- tasks -----------------------------------------------------------------------------------


def _run(
    runner: ChunkRunner,
    k: int,
    chunk: int,
    number: int,
    before: Handed | FileShelf | None,
    totals: Totals,
    rows: Any,
) -> Handed:
    """A phase of a chunk."""
    with sendable_errors():
        return runner.relay(chunk, number, before, totals.values[k], rows)


def _tree(handed: Handed) -> Tree:
    """The partials, so that they go to another worker without the state."""
    return handed.tree


def _complete(
    before: Totals,
    known: Values,
    phase: int | None,
    counts: Sequence[tuple[int, int]],
    numbers: Sequence[int],
    *models_and_trees: Any,
) -> Totals:
    """The totals of a phase, and what the next one reads.

    Parameters
    ----------
    counts : sequence of (int, int)
        How many trees there are of each model that took part.
    numbers : sequence of int
        Of the models, which come before the trees.
    """
    runners: dict[int, ChunkRunner] = dict(zip(numbers, models_and_trees, strict=False))
    trees = iter(models_and_trees[len(numbers) :])
    found = dict(before.found)
    with sendable_errors():
        for k, count in counts:
            program = runners[k].program
            tree = merge_trees(list(islice(trees, count)), program.combine)
            found |= unpack(program, tree.result())
        values = {} if phase is None else _values(runners, phase, known | found)
    return Totals(found, values)


def _store(shelf: FileShelf, chunk: int, handed: Handed, kinds: dict[int, Meta]) -> None:
    """The state of a chunk into a file."""
    with sendable_errors():
        shelf.put(chunk, handed.values, kinds)
