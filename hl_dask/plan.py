"""The action list: what is evaluated, in which order, and when each value is released.

An :class:`ActionPlan` is a description, plain data that can be printed, compared and saved. A run
takes from it what is asked for (outputs, projection length, block size) and reads the assumptions
and formulas as they are then, so that an old plan costs time and never a wrong result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, overload

from hl_dask._explain import explain_memory, notes, summary
from hl_dask._plan_file import check_state
from hl_dask.blocks import CHUNK_BLOCKS, Blocks
from hl_dask.errors import PlanError
from hl_dask.memory import parse_bytes

VERSION = 1
COMPUTE, STORE, RELEASE = "compute", "store", "release"


@dataclass(frozen=True, slots=True)
class Action:
    """One step of the list.

    Attributes
    ----------
    kind : str
        ``compute`` a formula call, ``store`` its aggregate, ``release`` its value.
    call : str
        The formula call, as it would be written.
    """

    kind: str
    call: str

    def __str__(self) -> str:
        return f"{self.kind:<8}{self.call}"


@dataclass(frozen=True, slots=True)
class CallInfo:
    """What is known of a formula call.

    Attributes
    ----------
    call : str
        The call, as it would be written.
    formula : str
        The formula's name.
    kind : str
        ``shared``, ``per-point`` or ``portfolio``.
    phase : int
        Reductions on the deepest path to the value.
    reads : tuple of str
        Calls that it reads.
    row_bytes : int
        Bytes of the value for each policy.
    reported : bool
        Whether its aggregate is an output.
    """

    call: str
    formula: str
    kind: str
    phase: int
    reads: tuple[str, ...]
    row_bytes: int
    reported: bool


class Calls(Sequence[CallInfo]):
    """Formula calls of a plan, described when somebody first looks at them.

    Parameters
    ----------
    describe : callable
        Gives the descriptions.
    """

    def __init__(self, describe: Callable[[], Iterable[CallInfo]]) -> None:
        self._describe: Callable[[], Iterable[CallInfo]] | None = describe
        self._known: tuple[CallInfo, ...] = ()

    def _all(self) -> tuple[CallInfo, ...]:
        if self._describe is not None:
            self._known, self._describe = tuple(self._describe()), None
        return self._known

    @overload
    def __getitem__(self, index: int) -> CallInfo: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[CallInfo, ...]: ...
    def __getitem__(self, index: int | slice) -> CallInfo | tuple[CallInfo, ...]:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[CallInfo]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(self._all())

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self._all(),)

    def __repr__(self) -> str:
        return f"<{len(self)} formula calls>"


@dataclass(frozen=True)
class ActionPlan:
    """A recorded action list with what it costs.

    Attributes
    ----------
    model : str
        Name of the model class.
    proj_len : int
        The last time step.
    outputs : tuple of str or None
        Formulas asked for; None for all that are reported.
    block_rows : int
        Rows of a block, the unit of summation: a constant of the plan.
    calls : sequence of CallInfo
        Formula calls in the order in which their evaluations finish.
    columns : tuple of str
        Columns that the run reads.
    opaque : dict of str to str
        Formulas evaluated as Python on each block, with the reason.
    whole : dict of str to str
        Formulas that force a replay in one piece, with the reason; empty if the plan can be cut.
    fingerprint : dict of str to str
        Digest of the source of each formula.
    nodes : int
        Elementary array operations of the graph; ``row_nodes`` of them are done on every block.
    peak_live : tuple of str
        Formula calls whose values (or parts of them) are alive at the point of the highest memory.
    pinned : tuple of str
        Long histories that are kept, what they wait for, and how to do without.
    live_row_bytes, register_row_bytes, column_row_bytes : int
        Bytes for each row of a block: of all values alive at once, of the registers that hold them,
        and of the columns read.
    guards : tuple of str
        Formulas that turn a portfolio value into a Python value.
    """

    model: str
    proj_len: int
    outputs: tuple[str, ...] | None
    block_rows: int
    calls: Sequence[CallInfo]
    columns: tuple[str, ...]
    opaque: dict[str, str]
    whole: dict[str, str]
    fingerprint: dict[str, str]
    nodes: int
    row_nodes: int
    peak_live: tuple[str, ...]
    pinned: tuple[str, ...]
    live_row_bytes: int
    register_row_bytes: int
    column_row_bytes: int
    output_count: int
    guards: tuple[str, ...]
    sample_rows: tuple[int, int]
    record_s: float
    rows: int
    uses_row_count: bool = False
    _actions: list[Action] = field(default_factory=list, repr=False, compare=False)

    # ---- the list ----------------------------------------------------------------------------

    @property
    def actions(self) -> list[Action]:
        """Compute, store and release actions over formula calls, in order.

        A value is released right after the last call, in order of completion, that reads it.
        """
        if not self._actions:
            self._actions.extend(self._build())
        return self._actions

    def _build(self) -> Iterator[Action]:
        last: dict[str, int] = {}
        for position, info in enumerate(self.calls):
            last[info.call] = position
            for read in info.reads:
                last[read] = position
        dying: dict[int, list[str]] = {}
        for call, position in last.items():
            dying.setdefault(position, []).append(call)
        for position, info in enumerate(self.calls):
            yield Action(COMPUTE, info.call)
            if info.reported:
                yield Action(STORE, info.call)
            for call in dying.get(position, ()):
                yield Action(RELEASE, call)

    @property
    def peak_calls(self) -> int:
        """Most formula values alive at once."""
        alive = peak = 0
        for action in self.actions:
            alive += {COMPUTE: 1, RELEASE: -1}.get(action.kind, 0)
            peak = max(peak, alive)
        return peak

    @property
    def unoptimised_row_bytes(self) -> int:
        """Bytes for each policy when every formula value is kept, as a plain run does."""
        return sum(info.row_bytes for info in self.calls)

    # ---- evaluating it -----------------------------------------------------------------------

    def bound(
        self, evaluator: Callable[[ActionPlan], Any], projector: Callable[..., Any] | None = None
    ) -> ActionPlan:
        """The same plan with a model behind it.

        Parameters
        ----------
        evaluator : callable
            ``evaluator(plan)`` gives what evaluates it.
        projector : callable, optional
            ``projector(plan, rows, memory)`` projects the memory of a run: blocks, threads, a
            :class:`~hl_dask.memory.MemoryEstimate` and the bytes allowed; None where the replay is
            in one piece.
        """
        if self.__dict__.get("_evaluator") == evaluator:
            return self
        plan = replace(self)
        plan.__dict__.update(_evaluator=evaluator, _projector=projector)
        return plan

    @property
    def evaluate(self) -> Any:
        """Evaluates formulas for each policy of a DataFrame, with the model as it is now.

        ``plan.evaluate(frame, outputs=None, t=None, flat=False)`` gives a frame with the same
        index; see :class:`hl_dask.evaluate.Evaluator`. What it evaluates is settled when it is
        taken from the plan, and it can be sent to other processes:
        ``ddf.map_partitions(plan.evaluate, meta=plan.meta(ddf))``.

        Raises
        ------
        PlanError
            When the plan has no model, because it was loaded from a file, copied or pickled.
        OpaqueFormulaError, UnsupportedError
            When values of a policy may depend on other policies.
        """
        evaluator = self.__dict__.get("_evaluator")
        if evaluator is None:
            msg = "the plan is a description without a model, so that there is nothing to evaluate"
            raise PlanError(
                msg, remedy="assign it to a model, model.plan = plan, and use model.plan.evaluate"
            )
        return evaluator(self)

    def meta(
        self,
        like: Any = None,
        outputs: str | Sequence[str] | None = None,
        t: Any = None,
        *,
        flat: bool = False,
    ) -> Any:
        """The empty DataFrame that describes what :attr:`evaluate` gives, for Dask's ``meta=``.

        Parameters
        ----------
        like : DataFrame or Dask DataFrame, optional
            Gives the index.
        outputs, t, flat
            As for :attr:`evaluate`.
        """
        return self.evaluate.meta(like, outputs, t, flat=flat)

    # ---- looking at it -----------------------------------------------------------------------

    def to_frame(self) -> Any:
        """The formula calls as a pandas DataFrame, in order of completion.

        Columns: call, formula, kind, phase, reads, row_bytes, reported, released (position of the
        last use).
        """
        import pandas as pd  # noqa: PLC0415 - plans are made and saved without pandas

        last: dict[str, int] = {}
        for position, info in enumerate(self.calls):
            last[info.call] = position
            for read in info.reads:
                last[read] = position
        rows = [
            {**asdict(i), "reads": ", ".join(i.reads), "released": last[i.call]} for i in self.calls
        ]
        names = ["call", "formula", "kind", "phase", "reads", "row_bytes", "reported", "released"]
        return pd.DataFrame(rows, columns=names)

    def blocks(self, rows: int, chunk_blocks: int = CHUNK_BLOCKS) -> Blocks:
        """How rows are cut into blocks and chunks."""
        return Blocks(rows, self.block_rows, chunk_blocks)

    def explain(self, rows: int | None = None, memory: int | str | None = None) -> str:
        """What a run does and costs, as text.

        Parameters
        ----------
        rows : int, optional
            Number of policies; those of the recording by default.
        memory : int or str, optional
            Total resident memory allowed, in bytes or as ``"1GB"``; by default what a run would
            take it to be.

        Returns
        -------
        str
            Ends with the projected peak, item by item, where the plan has its model behind it, as
            ``model.plan`` has; a plan from a file says what a thread works in.
        """
        if memory is not None:
            parse_bytes(memory)
        rows = self.rows if rows is None else rows
        if rows < 1:
            msg = f"rows is a number of policies of at least 1; got {rows!r}"
            raise PlanError(msg, remedy="give explain(rows=...) a positive whole number")
        cut = self.blocks(rows)
        of_memory = explain_memory(self, memory, cut, self.__dict__.get("_projector"))
        return "\n".join([*summary(self, cut), *of_memory, *notes(self)])

    def thread_bytes(self, chunk_rows: int) -> int:
        """Bytes that one thread works in: registers, temporaries and the columns of a chunk."""
        return self.register_row_bytes * self.block_rows + self.column_row_bytes * chunk_rows

    @property
    def phases(self) -> int:
        """Passes over the rows that depend on each other."""
        # A value of each policy that rests on totals comes after them, a total is part of its pass.
        return max((i.phase + (i.kind == "per-point") for i in self.calls), default=0) or 1

    def __repr__(self) -> str:
        return f"<ActionPlan {self._text()}>"

    def _text(self) -> str:
        # Without the projection of memory, which looks at the files.
        return "\n".join([*summary(self, self.blocks(self.rows)), *notes(self)])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{_escape(i.call)}</td><td>{i.kind}</td><td>{i.phase}</td><td>{i.row_bytes}</td></tr>"
            for i in self.calls[:50]
        )
        return (
            f"<pre>{_escape(self._text())}</pre><table><thead><tr><th>call</th><th>kind</th>"
            f"<th>phase</th><th>bytes/row</th></tr></thead><tbody>{rows}</tbody></table>"
        )

    # ---- keeping it --------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON; nothing in it is code."""
        state = asdict(replace(self, calls=tuple(self.calls)))
        del state["_actions"]
        text = json.dumps({"hl_dask_plan": VERSION, **state}, indent=1)
        target = Path(path)
        partial = target.with_name(target.name + ".partial")
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(target)
        except OSError as error:
            partial.unlink(missing_ok=True)
            msg = f"the plan cannot be written: {error}"
            raise PlanError(
                msg, file=str(target), remedy="give a file in a folder that exists"
            ) from error

    @classmethod
    def load(cls, path: str | Path) -> ActionPlan:
        """Read a plan that :meth:`save` wrote.

        Raises
        ------
        PlanError
            When the file is not a plan of this version.
        """
        remedy = "record the plan again (model.GenerateActions()) and save it"
        try:
            state = json.loads(Path(path).read_text(encoding="utf-8"))
            version = state.pop("hl_dask_plan")
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            msg = f"not a plan file: {error}"
            raise PlanError(msg, file=str(path), remedy=remedy) from error
        if version != VERSION:
            msg = f"the plan has version {version}, this hl_dask reads {VERSION}"
            raise PlanError(
                msg,
                file=str(path),
                remedy=remedy,
            )
        try:
            check_state(state, [f.name for f in fields(CallInfo)])
            calls = tuple(CallInfo(**{**c, "reads": tuple(c["reads"])}) for c in state.pop("calls"))
            tuples = {k: tuple(v) for k, v in state.items() if isinstance(v, list)}
            return cls(calls=calls, **{**state, **tuples})
        except (TypeError, KeyError, ValueError) as error:
            msg = f"the plan file is damaged: {error}"
            raise PlanError(msg, file=str(path), remedy=remedy) from error

    def with_blocks(self, block_rows: int) -> ActionPlan:
        """The same plan with another block size."""
        plan = replace(self, block_rows=block_rows, _actions=[])
        evaluator = self.__dict__.get("_evaluator")
        projector = self.__dict__.get("_projector")
        return plan if evaluator is None else plan.bound(evaluator, projector)

    def __getstate__(self) -> dict[str, Any]:
        # The model stays where it is: a copy is a description, as a plan from a file is.
        return {k: v for k, v in self.__dict__.items() if k not in ("_evaluator", "_projector")}


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
