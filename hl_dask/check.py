"""Comparing a replay with a plain run on a sample, value by value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from hl_dask.aggregate import Aggregate
from hl_dask.declared import all_columns, rebuild
from hl_dask.expr import POINT, Op
from hl_dask.formula import Formula
from hl_dask.kernel import Machine
from hl_dask.points import ModelPoints
from hl_dask.program import compile_program
from hl_dask.record import SAMPLE_ROWS, Recording, Subject, record
from hl_dask.replay import ReportingSession, plain_view, run_before
from hl_dask.report import run_formulas
from hl_dask.run import Projection
from hl_dask.settings import Settings

COLUMNS = ["call", "plain", "replay", "difference"]


def compare(subject: Subject, proj_len: int) -> pd.DataFrame:
    """Values of every formula call by the kernel and by a plain run, on a sample of the rows.

    Parameters
    ----------
    subject : Subject
        The model.
    proj_len : int
        The last time step.

    Returns
    -------
    DataFrame
        Calls whose values differ: the values of the first row that differs, and the largest
        difference. A model without data has none.
    """
    if subject.points is None:
        return pd.DataFrame(columns=COLUMNS)
    positions = subject.points.sample_positions(sum(SAMPLE_ROWS))
    sample = _sample(subject.points, positions)
    recording = _verified(replace(subject, points=sample), proj_len, sample)
    memo = _plain_values(subject, sample, proj_len)
    rows = []
    for number, replayed in _replayed_values(recording, sample).items():
        call = recording.calls[number]
        plain = memo.get(call.formula, {}).get(call.key)
        found = None if plain is None else _difference(np.asarray(plain), replayed)
        if found is not None:
            rows.append((call.text, *found))
    return pd.DataFrame(rows, columns=COLUMNS)


def _verified(subject: Subject, proj_len: int, sample: ModelPoints) -> Recording:
    """A recording of the sample as if it were all there is, with the totals of all of it."""

    def again(recordings: list[Recording], assumed: dict[int, Any]) -> list[Recording]:
        return [record(subject, proj_len, assumed=assumed, graph=recordings[0].graph)]

    settings = Settings(scheduler="synchronous", progress=False)
    first = record(subject, proj_len)
    projection = Projection([first], again, [sample], sample.rows, settings)
    if not first.opaque:
        projection.run()
    return projection.recording


def _sample(points: ModelPoints, positions: Any) -> ModelPoints:
    """The rows of the sample as model points of their own."""
    columns: dict[str, Any] = {}
    for name in all_columns(points):
        spec = points.schema(name)
        array: Any = points.take(name, positions)
        if spec.categories is not None:
            dtype = pd.CategoricalDtype(pd.Index(spec.categories))
            array = pd.Categorical.from_codes(array, dtype=dtype)
        columns[name] = array
    return ModelPoints(columns)


def _plain_values(
    subject: Subject, sample: ModelPoints, proj_len: int
) -> dict[Formula, dict[tuple[Any, ...], Any]]:
    session = ReportingSession(plain_view(sample), sample.rows, subject.wanted, proj_len)
    instance = subject.clone(session)
    for name, value in subject.declared.items():
        instance.__dict__[name] = rebuild(name, value, sample.values)
    run_before(session, instance)
    run_formulas(subject.wanted, instance, proj_len)
    return session.memo


def _replayed_values(recording: Recording, sample: ModelPoints) -> dict[int, Any]:
    """Per-policy values that need no total, by the number of their call."""
    graph = recording.graph
    watched: dict[int, int] = {}
    for number, nodes in enumerate(recording.nodes):
        if len(nodes) == 1 and graph.kinds[nodes[0]] == POINT and graph.phases[nodes[0]] == 0:
            # An aggregate that keeps the values brings them out of the kernel as they are.
            keep = Aggregate(map=lambda v: v, combine=lambda a, b: np.concatenate([a, b]))
            op = Op("aggregate", id(keep))
            node = graph.add(op, (nodes[0],), "portfolio", graph.metas[nodes[0]], None)
            graph.values[node] = keep
            watched[node] = number
    program = compile_program(graph, watched, recording.describe)
    columns = sample.read(0, sample.rows, program.columns)
    partial = Machine(program, sample.rows).run_block(columns, sample.rows)
    return {watched[node]: partial[slot.key][0] for node, slot in program.slots.items()}


def _difference(plain: Any, replayed: Any) -> tuple[Any, Any, float] | None:
    if plain.shape != replayed.shape:
        return plain.shape, replayed.shape, float("inf")
    equal = plain == replayed
    if plain.dtype.kind == "f":
        equal |= np.isnan(plain) & np.isnan(replayed)
    if np.all(equal):
        return None
    where = tuple(np.argwhere(~equal)[0])
    gap: Any = np.inf
    if plain.dtype.kind in "biuf":
        gap = np.abs(plain.astype(float) - replayed.astype(float))
    return plain[where], replayed[where], float(np.nanmax(gap))
