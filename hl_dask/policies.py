"""What a recording knows of single policies: formula calls whose values are by row.

A run adds values up; whoever wants the values themselves needs to know which nodes of the graph
they are, what they are made of, and whether they depend on the policy alone. A frame is a piece of
a portfolio: what depends on all policies (totals, their number, a Python value taken from a total)
is refused.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from hl_dask.blocks import Blocks
from hl_dask.errors import OpaqueFormulaError, SchedulerError, UnsupportedError
from hl_dask.expr import PORTFOLIO, SHARED, Graph
from hl_dask.formula import call_text
from hl_dask.kernel import evaluate_global
from hl_dask.parcel import Job, Parcel, own_modules_by_value, pack, unpack
from hl_dask.partition import Kind
from hl_dask.program import Program
from hl_dask.record import Recording, Subject, record

OTHER_ROWS = (1_009, 1_013)
"""Numbers of policies that formulas are told, to see whether it matters to them."""


# ---- what a recording knows of its calls -----------------------------------------------------


class Row(NamedTuple):
    """A formula call: its arguments, and what its value is made of.

    Attributes
    ----------
    nodes : tuple of int
        Nodes of the graph that the value consists of.
    template : object
        How it consists of them; None for a value that is one node. See
        :func:`~hl_dask.values.template_of`.
    whole : bool
        Whether the value is one over the whole portfolio, or depends on one.
    """

    key: tuple[Any, ...]
    nodes: tuple[int, ...]
    template: Any
    whole: bool


@dataclass
class Known:
    """What evaluating needs of a recording, in a form that can be sent.

    Attributes
    ----------
    params : dict of str to tuple of str
        Parameters of each formula, in the order of definition.
    calls : dict of str to list of Row
        Calls by formula.
    reported : tuple of str
        Formulas that the plan reports.
    kinds : dict
        What the columns were in the recording.
    """

    model: str
    proj_len: int
    block_rows: int
    params: dict[str, tuple[str, ...]]
    calls: dict[str, list[Row]]
    reported: tuple[str, ...]
    kinds: dict[str, Kind]
    graph: Graph
    describe: Callable[[Any], str]

    def at(self, name: str, key: tuple[Any, ...]) -> int | None:
        """The t of a call, None when its formula has none."""
        params = self.params[name]
        return int(key[params.index("t")]) if "t" in params else None

    def has(self, name: str, months: Iterable[int]) -> bool:
        """Whether a formula of t alone, or of nothing, was called for all that is asked."""
        keys = {row.key for row in self.calls.get(name, ())}
        if self.params[name] == ("t",):
            return all((t,) in keys for t in months)
        return bool(keys)


def known_of(recording: Recording, subject: Subject, model: str, block_rows: int) -> Known:
    """What evaluating needs of a recording.

    Raises
    ------
    OpaqueFormulaError, UnsupportedError
        When values of a policy may depend on other policies.
    """
    _check_rows_apart(recording, subject)
    formulas = {f: f.name for f in subject.formulas}
    graph = recording.graph
    calls: dict[str, list[Row]] = {}
    for number, call in enumerate(recording.calls):
        # An overridden formula, reached through super(), is none of the model's.
        if call.formula in formulas:
            nodes = recording.nodes[number]
            whole = any(graph.kinds[n] == PORTFOLIO or graph.phases[n] for n in nodes)
            row = Row(call.key, nodes, recording.templates.get(number), whole)
            calls.setdefault(call.formula.name, []).append(row)
    copied = Graph(
        list(graph.ops),
        list(graph.args),
        list(graph.kinds),
        list(graph.phases),
        list(graph.metas),
        list(graph.owners),
        dict(graph.values),
    )
    reported = {o.formula.name for o in recording.outputs}
    return Known(
        model,
        recording.proj_len,
        block_rows,
        {f.name: f.params for f in subject.formulas},
        calls,
        tuple(name for name in formulas.values() if name in reported),
        dict(recording.schemas),
        copied,
        recording.describe,
    )


def _check_rows_apart(recording: Recording, subject: Subject) -> None:
    """Refuse a recording in which values of a policy may depend on other policies."""
    if recording.opaque:
        reasons = "; ".join(f"{name}: {why}" for name, why in recording.opaque.items())
        msg = f"hl_dask cannot see what these formulas do to the rows: {reasons}"
        raise OpaqueFormulaError(
            msg,
            formula=", ".join(recording.opaque),
            remedy="if each row's value depends on that row alone, add @hl.per_point above the "
            "formula; else write it with array operations",
        )
    if recording.guards:
        owners = dict.fromkeys(recording.describe(owner) for _, owner in recording.guards)
        msg = (
            "the formula turns a value over the whole portfolio into a Python value, on which all "
            "others may depend, and a frame is only a part of the portfolio"
        )
        raise UnsupportedError(
            msg,
            formula=", ".join(list(owners)[:5]),
            remedy="pass the value in as an assumption, or record a plan that does not need it: "
            "GenerateActions(outputs=[...])",
        )
    if recording.asked_rows:
        _check_row_count(recording, subject)


def _check_row_count(recording: Recording, subject: Subject) -> None:
    """Refuse formulas whose values depend on the number of policies.

    Most ask for it to make an array of that length. So the model is traced once more, and told
    another number: the nodes must be the same.
    """
    other = OTHER_ROWS[recording.rows == OTHER_ROWS[0]]
    told = replace(subject, rows=other)
    again = record(told, recording.proj_len, graph=recording.graph)
    for k, call in enumerate(recording.calls):
        mine = call.formula, call.key, recording.nodes[k]
        theirs = again.calls[k] if k < len(again.calls) else None
        if theirs is None or mine != (theirs.formula, theirs.key, again.nodes[k]):
            msg = (
                "the value depends on the number of policies, and a frame is only a part of the "
                "portfolio"
            )
            raise UnsupportedError(
                msg,
                formula=call.text,
                remedy="pass the number in as an assumption, or record a plan that does not need "
                "it: GenerateActions(outputs=[...])",
            )


# ---- columns ---------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of the frame that comes out.

    Attributes
    ----------
    label : tuple
        Formula, t, other arguments, entries of a value with further axes.
    node : int or None
        The node whose values it has; None when it has the same value in all rows.
    entry : tuple of int
        Which of the values that a row has.
    content : object
        The value that is the same in all rows; or a template of text.
    """

    label: tuple[Any, ...]
    node: int | None
    entry: tuple[int, ...] = ()
    content: Any = None


def columns_of(known: Known, name: str, row: Row) -> list[Column]:
    """The columns that a formula call gives.

    Raises
    ------
    UnsupportedError
        When its value is none by policy.
    """
    t = known.at(name, row.key)
    others = tuple(k for p, k in zip(known.params[name], row.key, strict=True) if p != "t")
    label = (name, *(() if t is None and not others else ("" if t is None else t, *others)))
    text, graph = call_text(name, row.key), known.graph
    kind = "arg" if row.template is None else row.template[0]
    if kind == "is":
        return _constant(label, row.template[1], text)
    if row.whole:
        msg = (
            "the value is one over the whole portfolio, or depends on one, and a frame is only a "
            "part of the portfolio"
        )
        raise _not_by_policy(msg, text)
    if kind not in ("arg", "text"):
        msg = f"the formula gives a {kind}; a column has one value for each policy"
        raise _not_by_policy(msg, text)
    node = row.nodes[0]
    if graph.kinds[node] == SHARED:
        value = evaluate_global(graph, [node], {}, known.describe)[node]
        return _constant(label, value, text)
    meta = graph.metas[node]
    if meta.axis:
        msg = f"the policies are not along the first axis of the value, but along axis {meta.axis}"
        raise _not_by_policy(msg, text)
    content = row.template if kind == "text" else None
    return [Column((*label, *_entry(label, e)), node, e, content) for e in np.ndindex(meta.shape)]


def _constant(label: tuple[Any, ...], value: Any, text: str) -> list[Column]:
    array = np.asarray(value)
    if array.dtype.kind not in "biufcmMU":
        msg = f"the formula gives {type(value).__name__}; a column has one value for each policy"
        raise _not_by_policy(msg, text)
    entries = np.ndenumerate(array)
    return [Column((*label, *_entry(label, e)), None, e, v) for e, v in entries]


def _entry(label: tuple[Any, ...], entry: tuple[int, ...]) -> tuple[Any, ...]:
    # The second level is that of t, whether there is one or not.
    return ("", *entry) if entry and len(label) == 1 else entry


def _not_by_policy(message: str, text: str) -> UnsupportedError:
    return UnsupportedError(
        message,
        formula=text,
        remedy="leave the formula out: name those that you want, outputs=[...]",
    )


# ---- journeys --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packed:
    """What is known of a recording as bytes: the graph as for a run, and the calls."""

    graph: Parcel
    calls: bytes

    @property
    def digest(self) -> str:
        """Of the content."""
        return hashlib.sha256(self.graph.digest.encode() + self.calls).hexdigest()


def packed(known: Known) -> Packed:
    """What is known of a recording as bytes.

    Raises
    ------
    SchedulerError
        When something that formulas use cannot be sent to another process.
    """
    rows = [row for rows in known.calls.values() for row in rows if not row.whole]
    nodes = sorted({node for row in rows for node in row.nodes})
    carrier = Program(known.graph, nodes, {}, [], {}, {}, {}, [], known.describe)
    parcel = pack(Job(carrier, None, Blocks(1), {}))
    try:
        with own_modules_by_value():
            calls = cloudpickle.dumps(replace(known, graph=Graph(), describe=str))
    except Exception as error:
        msg = f"the calls of the plan cannot be sent to workers: {type(error).__name__}: {error}"
        raise SchedulerError(
            msg, remedy="call formulas with texts or numbers as arguments, or use threads"
        ) from error
    return Packed(parcel, calls)


def unpacked(content: Packed) -> Known:
    """What was packed; see :func:`packed`."""
    job = unpack(content.graph)
    known: Known = pickle.loads(content.calls)
    return replace(known, graph=job.program.graph)
