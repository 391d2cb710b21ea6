"""The expression graph: what a traced run did to the columns, as plain data.

A graph is a growing list of nodes. A node is an operation applied to earlier nodes, so ids are a
topological order. Nodes are *hash-consed*: asking for an operation that is already there returns
the id it has. That gives two things at once: equal sub-expressions are evaluated once, and a second
trace of the same model, on other rows, must find every one of its nodes already present. A node
that is not there is a proof that a formula depends on the rows in a way that the graph does not
show.

Nothing here evaluates anything; there is no NumPy, no pandas and no Dask below this line.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hl_dask.errors import RowMixingError

SHARED, POINT, PORTFOLIO = "shared", "per-point", "portfolio"


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of the node number ``index`` of a node's arguments within its static template."""

    index: int


@dataclass(frozen=True, slots=True)
class Frozen:
    """A mutable container (list, dict, slice) in a hashable form, kept in a node's template."""

    kind: str
    items: tuple[Any, ...]


class Op(NamedTuple):
    """What a node does, apart from its arguments.

    Attributes
    ----------
    name : str
        The family of the operation: ``ufunc``, ``call``, ``view``, ``reduce``, ``lookup`` ...
    static : hashable
        All that is not a node: the function's name, axes, dtypes, an index with :class:`Slot`
        holes.
    """

    name: str
    static: Hashable = None


class OfMember(NamedTuple):
    """What a leaf of one model of a portfolio is: its rows are not those of the other models."""

    member: str
    what: Hashable


def what_of(op: Op) -> Hashable:
    """The static part of an operation, whichever model of a portfolio it belongs to."""
    return op.static.what if type(op.static) is OfMember else op.static


class Meta(NamedTuple):
    """What is known of a node's value without evaluating it.

    Attributes
    ----------
    dtype : str
        NumPy's type string.
    shape : tuple of int
        The shape without the point axis.
    axis : int
        Position of the point axis within the full shape; -1 when the value has none.
    """

    dtype: str
    shape: tuple[int, ...]
    axis: int


@dataclass(slots=True)
class Graph:
    """Hash-consed nodes in topological order.

    The columns of the node table are parallel lists, because a long model has half a million nodes
    and an object for each would cost more than all the sample values together.
    """

    ops: list[Op] = field(default_factory=list)
    args: list[tuple[int, ...]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    phases: list[int] = field(default_factory=list)
    metas: list[Meta] = field(default_factory=list)
    owners: list[Any] = field(default_factory=list)
    values: dict[int, Any] = field(default_factory=dict)
    index: dict[tuple[int, ...], int] = field(default_factory=dict)
    op_ids: dict[Op, int] = field(default_factory=dict)
    partial_bytes: dict[int, tuple[int, int]] = field(default_factory=dict)
    temporary_bytes: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ops)

    def op_id(self, op: Op) -> int:
        """Number of an operation; numbers are hashed faster than what they stand for."""
        found = self.op_ids.get(op)
        return self.op_ids.setdefault(op, len(self.op_ids)) if found is None else found

    def find(self, op: Op, args: tuple[int, ...]) -> int | None:
        """Id of the node, or None when the graph does not hold it."""
        return self.index.get((self.op_id(op), *args))

    def add(self, op: Op, args: tuple[int, ...], kind: str | None, meta: Meta, owner: Any) -> int:
        """Append a node that is not there yet and return its id.

        The kind of a leaf is given; else it is per-point if an argument is, and portfolio if an
        argument is, or if the operation is a reduction. The phase is the number of reductions on
        the deepest path from a leaf to the node. ``owner`` stands for the formula call in which the
        operation was first met.
        """
        phases, kinds = self.phases, self.kinds
        phase = 0
        found = SHARED
        for arg in args:
            if phases[arg] > phase:
                phase = phases[arg]
            if found != POINT and kinds[arg] != SHARED:
                found = kinds[arg]
        if op.name in REDUCTIONS:
            phase, found = phase + 1, PORTFOLIO
        node = len(self.ops)
        self.ops.append(op)
        self.args.append(args)
        kinds.append(kind or found)
        phases.append(phase)
        self.metas.append(meta)
        self.owners.append(owner)
        self.index[(self.op_id(op), *args)] = node
        return node

    def members(self, nodes: Iterable[int]) -> dict[int, str | None]:
        """The model of a portfolio whose rows each per-point value or reduction is about.

        Parameters
        ----------
        nodes : iterable of int
            In topological order, with all that they need of the rows.

        Raises
        ------
        RowMixingError
            When an operation has the rows of two models.
        """
        found: dict[int, str | None] = {}
        for node in nodes:
            static = self.ops[node].static
            if type(static) is OfMember:
                found[node] = static.member
                continue
            members = {found[a] for a in self.args[node] if self.kinds[a] == POINT and a in found}
            if len(members) > 1:
                names = " and ".join(sorted(map(str, members)))
                msg = f"an operation has policies of {names} side by side, which are not the same"
                raise RowMixingError(
                    msg,
                    formula=str(getattr(self.owners[node], "text", "")) or None,
                    remedy="let only totals pass from model to model: self.portfolio.total(...)",
                )
            found[node] = members.pop() if members else None
        return found

    def ancestors(self, roots: Iterable[int]) -> list[int]:
        """All nodes that the roots need, themselves included, in topological order."""
        needed = bytearray(len(self.ops))
        for root in roots:
            needed[root] = 1
        # Arguments come before the nodes that have them, so one pass from the end meets them all.
        args = self.args
        for node in range(len(needed) - 1, -1, -1):
            if needed[node]:
                for arg in args[node]:
                    needed[arg] = 1
        return [node for node, is_needed in enumerate(needed) if is_needed]


REDUCTIONS = frozenset({"reduce", "aggregate"})
"""Operations that make a portfolio value out of per-point values."""
