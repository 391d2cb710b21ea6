"""Comparing a replay with a plain run on a sample, value by value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from hl_dask.aggregate import Aggregate
from hl_dask.expr import POINT, Op
from hl_dask.kernel import Machine
from hl_dask.points import ModelPoints
from hl_dask.program import compile_program
from hl_dask.record import record
from hl_dask.replay import ReportingSession, plain_view, run_before
from hl_dask.report import run_formulas


def compare(model: Any, proj_len: int) -> pd.DataFrame:
    """Values of every formula call by the kernel and by a plain run, on a sample of the rows.

    Returns
    -------
    DataFrame
        Calls whose values differ, with the first differing row's values and the largest difference.
    """
    points = model._row_points()
    if points is None:
        return pd.DataFrame(columns=["call", "plain", "replay", "difference"])
    subject = model._subject(points, None)
    recording = record(subject, proj_len)
    sample = _sample(points, recording.sample)
    session = ReportingSession(plain_view(sample), sample.rows, subject.wanted, proj_len)
    instance = model._clone(session)
    run_before(session, instance)
    for name in subject.declared:
        instance.__dict__[name] = _plain_declared(sample, name, subject.declared[name])
    run_formulas(subject.wanted, instance, proj_len)
    graph = recording.graph
    captured: dict[int, Any] = {}
    watched: dict[int, int] = {}
    for number, nodes in enumerate(recording.nodes):
        if len(nodes) == 1 and graph.kinds[nodes[0]] == POINT and graph.phases[nodes[0]] == 0:
            keep = Aggregate(map=lambda v: v, combine=lambda a, b: np.concatenate([a, b]))
            node = graph.add(
                Op("aggregate", id(keep)), (nodes[0],), "portfolio", graph.metas[nodes[0]], None
            )
            graph.values[node] = keep
            watched[node] = number
    program = compile_program(graph, watched, recording.describe)
    machine = Machine(program, sample.rows)
    partial = machine.run_block(sample.read(0, sample.rows, program.columns), sample.rows)
    for node, slot in program.slots.items():
        captured[watched[node]] = partial[slot.key][0]
    rows = []
    for number, replayed in captured.items():
        call = recording.calls[number]
        plain = session.memo.get(call.formula, {}).get(call.key)
        if plain is None:
            continue
        found = _difference(np.asarray(plain), replayed)
        if found is not None:
            rows.append((call.text, *found))
    return pd.DataFrame(rows, columns=["call", "plain", "replay", "difference"])


def _sample(points: Any, positions: Any) -> ModelPoints:
    names = [*points.columns, *getattr(getattr(points, "_declared", None), "columns", ())]
    usable = {}
    for name in names:
        spec = points.schema(name)
        array = points.take(name, positions)
        if spec.categories is not None:
            dtype = pd.CategoricalDtype(pd.Index(spec.categories))
            array = pd.Categorical.from_codes(array, dtype=dtype)
        usable[name] = array
    return ModelPoints(usable)


def _plain_declared(sample: ModelPoints, name: str, value: Any) -> Any:
    from hl_dask.declared import rebuild  # noqa: PLC0415

    return rebuild(name, value, sample.values)


def _difference(plain: Any, replayed: Any) -> tuple[Any, Any, float] | None:
    if plain.shape != replayed.shape:
        return plain.shape, replayed.shape, float("inf")
    equal = plain == replayed
    if plain.dtype.kind == "f":
        equal |= np.isnan(plain) & np.isnan(replayed)
    if np.all(equal):
        return None
    where = tuple(np.argwhere(~equal)[0])
    gap = (
        np.abs(plain.astype(float) - replayed.astype(float))
        if plain.dtype.kind in "biuf"
        else np.inf
    )
    return plain[where], replayed[where], float(np.nanmax(gap))
