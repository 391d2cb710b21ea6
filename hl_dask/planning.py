"""From a recording to an action plan: what there is to say about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from hl_dask.expr import PORTFOLIO, REDUCTIONS, SHARED, Graph
from hl_dask.kernel import portfolio_ancestors
from hl_dask.plan import ActionPlan, CallInfo, Calls
from hl_dask.points import ModelPoints
from hl_dask.program import VIEWS, Program, compile_programs, row_bytes
from hl_dask.record import Recording, no_collection
from hl_dask.segments import Label

LONG_HISTORY = 8
"""Values of a formula, of as many time steps, that are worth a word when they are alive at once."""
CHUNK, STEP, FORMULA = "chunk", "step", "formula"
GRANULARITIES = (CHUNK, STEP, FORMULA)
"""What one task does: all of a chunk, a time step of it, or a formula call."""


def roots_of(recordings: Sequence[Recording]) -> list[int]:
    """Portfolio nodes that recordings of one graph want: outputs and guards."""
    outputs = [o.node for recording in recordings for o in recording.outputs if o.node is not None]
    return outputs + [node for node, _ in recordings[0].guards]


def reductions_of(recordings: Sequence[Recording]) -> list[int]:
    """Reductions that the outputs and guards of recordings of one graph need."""
    graph = recordings[0].graph
    needed = portfolio_ancestors(graph, roots_of(recordings))
    return [n for n in needed if graph.ops[n].name in REDUCTIONS]


def programs_of(
    recordings: Sequence[Recording],
    reductions: Sequence[int] | None = None,
    granularity: str = CHUNK,
    known: Collection[int] = (),
    given: Collection[int] = (),
    *,
    barrier: bool = False,
    again: Sequence[frozenset[str]] = (),
) -> list[Program]:
    """The programs of some reductions (all that are needed by default), compiled once.

    Parameters
    ----------
    recordings : sequence of Recording
        Of the models that share a graph; there is a program for each.
    known : collection of int
        Reductions whose values are known.
    given : collection of int
        Per-point values that are there already.
    barrier : bool
        Whether what was traced after a total became a Python value waits for that total.
    again : sequence of frozenset of str
        For each model, columns that each phase loads again; see :class:`~hl_dask.ways.Way`.
    """
    recording = recordings[0]
    wanted = tuple(reductions_of(recordings) if reductions is None else reductions)
    key = (wanted, granularity, frozenset(known), frozenset(given), barrier, tuple(again))
    programs: list[Program] | None = recording.programs.get(key)
    if programs is None:
        labels = None
        if granularity != CHUNK:
            labels = partial(labels_of, recordings, by_t=granularity == STEP)
        with no_collection():
            programs = compile_programs(
                recording.graph,
                wanted,
                recording.describe,
                labels,
                key[2],
                key[3],
                [node for node, _ in recording.guards] if barrier else (),
                [each.member for each in recordings],
                again,
            )
        recording.programs = {key: programs}
    return programs


def labels_of(
    recordings: Sequence[Recording],
    order: Sequence[int],
    reads: Mapping[int, Sequence[int]],
    *,
    by_t: bool,
) -> dict[int, Label]:
    """The label of each operation: its formula call, or the time step of that.

    Operations that two formulas have in common count for the one that needs them first. What a
    formula without t does belongs to the step of what it reads: the terms of a present value are
    added up step by step.
    """
    owners = _owners(recordings, order, reads)
    texts: dict[int, Label] = {}
    labels: dict[int, Label] = {}
    steps: dict[int, int | None] = {}
    for op in order:
        owner = owners[op]
        if by_t:
            known = [s for read in reads[op] if (s := steps[read]) is not None]
            step = steps[op] = _step(owner, max(known, default=None))
            labels[op] = Label("step", "before t" if step is None else f"t = {step}")
            continue
        if id(owner) not in texts:
            text = recordings[0].describe(owner)
            texts[id(owner)] = Label(text if owner is None else owner.formula.name, text)
        labels[op] = texts[id(owner)]
    return labels


def _owners(
    recordings: Sequence[Recording], order: Sequence[int], reads: Mapping[int, Sequence[int]]
) -> dict[int, Any]:
    """The formula call that each operation is done for."""
    graph = recordings[0].graph
    values = {
        (id(call), graph.args[n][0] if graph.ops[n].name in VIEWS else n)
        for recording in recordings
        for call, nodes in zip(recording.calls, recording.nodes, strict=True)
        for n in nodes
    }
    owners: dict[int, Any] = {}
    first_user: dict[int, int] = {}
    for op in reversed(order):
        owner = graph.owners[op]
        if op in first_user and (id(owner), op) not in values:
            owner = owners[first_user[op]]
        owners[op] = owner
        for read in reads[op]:
            first_user[read] = op
    return owners


def _step(owner: Any, latest: int | None) -> int | None:
    params = () if owner is None else owner.formula.params
    return int(owner.key[params.index("t")]) if "t" in params else latest


def build_plan(
    recording: Recording,
    model: str,
    outputs: tuple[str, ...] | None,
    block_rows: int,
    fingerprint: dict[str, str],
    points: ModelPoints | None,
    program: Callable[[], Program] | None = None,
) -> ActionPlan:
    """The action plan of a recording.

    Parameters
    ----------
    program : callable, optional
        Gives the program of the recording where it is one of several models that share a graph.
    """
    common: dict[str, Any] = {
        "model": model,
        "proj_len": recording.proj_len,
        "outputs": outputs,
        "block_rows": block_rows,
        "calls": Calls(lambda: _infos(recording)),
        "opaque": {k: v for k, v in recording.declared_opaque.items() if k not in recording.opaque},
        "whole": recording.opaque,
        "fingerprint": fingerprint,
        "nodes": len(recording.graph),
        "output_count": len(recording.outputs),
        "guards": tuple(dict.fromkeys(recording.describe(owner) for _, owner in recording.guards)),
        "sample_rows": recording.sample_rows,
        "record_s": recording.elapsed_s,
        "rows": recording.rows,
        "uses_row_count": recording.asked_rows,
    }
    if recording.opaque:
        return ActionPlan(
            columns=(),
            row_nodes=0,
            peak_live=(),
            pinned=(),
            live_row_bytes=0,
            register_row_bytes=0,
            column_row_bytes=0,
            **common,
        )
    found = programs_of([recording])[0] if program is None else program()
    owners = [recording.describe(recording.graph.owners[n]) for n in found.live_at_peak]
    return ActionPlan(
        columns=tuple(found.columns),
        row_nodes=len(found.order),
        peak_live=tuple(dict.fromkeys(owners)),
        pinned=tuple(_pinned(recording, found)),
        live_row_bytes=found.live_row_bytes,
        register_row_bytes=sum(row_bytes(k) for k in found.kinds),
        column_row_bytes=points.nbytes_per_row(found.columns) if points is not None else 0,
        **common,
    )


def _pinned(recording: Recording, program: Program) -> Iterator[str]:
    """Long histories among the values alive at once: what they wait for, and how not to."""
    graph = recording.graph
    waiting: dict[Any, dict[Any, Any]] = {}
    within: Counter[str] = Counter()
    for node, reader in program.live_at_peak.items():
        owner = graph.owners[node]
        if owner is not None and "t" in owner.formula.params:
            step = owner.key[owner.formula.params.index("t")]
            waiting.setdefault(owner.formula, {})[step] = graph.owners[reader]
        elif owner is not None:
            within[recording.describe(owner)] += 1
    for call, count in within.items():
        if count >= LONG_HISTORY:
            yield (
                f"{count:,} values that {call} makes, at once; as a formula of t that goes on from "
                "its value before, one is enough"
            )
    for formula, readers in waiting.items():
        if len(readers) < LONG_HISTORY:
            continue
        last = {recording.describe(reader): reader for reader in readers.values()}
        text = f"{len(readers):,} values of {formula.name} at once: "
        if len(last) > len(readers) // 2:
            yield f"{text}they are read again many steps later, as by {next(iter(last))}"
            continue
        yield (
            f"{text}{next(reversed(last))} reads them together; as a recursion in t, or as "
            f'hl.RunningTotal("{formula.name}") if they are added up, one is enough'
        )


def _infos(recording: Recording) -> Iterator[CallInfo]:
    """All formula calls in the order of completion."""
    reported = {(o.formula, o.key) for o in recording.outputs}
    texts = unique_texts(recording)
    return (_info(recording, number, reported, texts) for number in recording.finished)


def unique_texts(recording: Recording) -> list[str]:
    """The text of each call; in full and with the class where shorter texts are the same.

    Long arguments are cut in messages, and a formula and the one that it overrides have one name.
    """
    texts = [call.text for call in recording.calls]
    shared = {text for text, count in Counter(texts).items() if count > 1}
    for number, call in enumerate(recording.calls):
        if texts[number] in shared:
            arguments = ", ".join(map(repr, call.key))
            texts[number] = f"{call.formula.owner}.{call.formula.name}({arguments})"
    seen: Counter[str] = Counter()
    for number, text in enumerate(texts):
        seen[text] += 1
        if seen[text] > 1:
            texts[number] = f"{text} #{seen[text]}"
    return texts


def _info(recording: Recording, number: int, reported: set[Any], texts: list[str]) -> CallInfo:
    graph, call = recording.graph, recording.calls[number]
    nodes = recording.nodes[number]
    kinds = {graph.kinds[n] for n in nodes}
    kind = SHARED
    if kinds:
        kind = PORTFOLIO if kinds <= {PORTFOLIO, SHARED} else "per-point"
    return CallInfo(
        call=texts[number],
        formula=call.formula.name,
        kind=kind,
        phase=max((graph.phases[n] for n in nodes), default=0),
        reads=tuple(texts[r] for r in call.reads),
        row_bytes=sum(_node_bytes(graph, n) for n in nodes),
        reported=(call.formula, call.key) in reported,
    )


def _node_bytes(graph: Graph, node: int) -> int:
    meta = graph.metas[node]
    return row_bytes(meta) if meta.axis >= 0 else 0
