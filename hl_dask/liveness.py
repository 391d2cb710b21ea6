"""When a value is needed last, in which order to evaluate, and where values live.

Three small algorithms over a list of operations. They know nothing of arrays: an operation is a
number, it reads operations, and its value has a size.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from heapq import heappop, heappush


def last_use(order: Sequence[int], reads: Callable[[int], Iterable[int]]) -> dict[int, int]:
    """Position in ``order`` of the last operation that reads a value (or makes it, if none does).

    Parameters
    ----------
    order : sequence of int
        Operations in the order in which they *finish*; each reads only earlier ones.
    reads : callable
        ``reads(op)`` gives the operations whose values it needs.
    """
    last: dict[int, int] = {}
    for position, op in enumerate(order):
        last[op] = position
        for read in reads(op):
            last[read] = position
    return last


def schedule(
    order: Sequence[int], reads: Mapping[int, Sequence[int]], size: Callable[[int], int]
) -> list[int]:
    """An order of evaluation that lets values die early.

    Operations keep their order, except that one is brought forward, to right after the operation
    that makes it possible, when that does not raise the memory in use: when the values that it is
    the last to read are at least as large as its own. So a long sum ``((f(0) + f(1)) + f(2)) ...``
    is added up as its terms appear, and totals are taken while the value is in cache. The order in
    which numbers are added is not changed: an operation is what it was, only sooner.

    Parameters
    ----------
    order : sequence of int
        A topological order.
    reads : mapping of int to sequence of int
        For each operation, the operations of ``order`` that it reads.
    size : callable
        ``size(op)``: bytes (or any unit) that the value of an operation takes.

    Returns
    -------
    list of int
        The same operations, topologically ordered.
    """
    plan = _Schedule(order, reads, size)
    missing = plan.missing
    for op in order:
        if missing[op] != DONE:
            plan.do(op)
    return plan.out


def regroup(
    order: Sequence[int], reads: Mapping[int, Sequence[int]], label: Callable[[int], Hashable]
) -> list[int]:
    """An order in which operations of one label stand together, as far as their reads allow.

    Operations of the current label go on for as long as one of them can be done; then comes the
    first operation that is left, with its label.

    Parameters
    ----------
    order : sequence of int
        A topological order.
    reads : mapping of int to sequence of int
        For each operation, the operations of ``order`` that it reads.
    label : callable
        ``label(op)``: operations with equal labels belong together.

    Returns
    -------
    list of int
        The same operations, topologically ordered.
    """
    position = {op: k for k, op in enumerate(order)}
    missing = {op: len(set(reads[op])) for op in order}
    users: dict[int, list[int]] = {}
    for op in order:
        for read in set(reads[op]):
            users.setdefault(read, []).append(op)
    ready: dict[Hashable, list[int]] = {}
    for op in order:
        if not missing[op]:
            ready.setdefault(label(op), []).append(position[op])
    out: list[int] = []
    done = bytearray(len(order))
    for first in order:
        if done[position[first]]:
            continue
        waiting = ready[label(first)]
        while waiting:
            op = order[heappop(waiting)]
            done[position[op]] = 1
            out.append(op)
            for user in users.get(op, ()):
                missing[user] -= 1
                if not missing[user]:
                    heappush(ready.setdefault(label(user), []), position[user])
    return out


NO_USERS: list[int] = []
DONE = -1
"""In place of the number of missing reads, of an operation that has its place."""


class _Schedule:
    """The state of :func:`schedule`.

    ``missing`` counts the reads of an operation that are not done, ``waiting`` the readers of a
    value that are not done.
    """

    def __init__(
        self, order: Sequence[int], reads: Mapping[int, Sequence[int]], size: Callable[[int], int]
    ) -> None:
        # Lists with a place for each number: dicts of half a million operations take 200 MB.
        count = max(order, default=-1) + 1
        self.needs: list[Sequence[int]] = [()] * count
        self.users: list[list[int]] = [NO_USERS] * count
        self.missing = [0] * count
        self.waiting = [0] * count
        self.sizes = [0] * count
        self.out: list[int] = []
        users, waiting = self.users, self.waiting
        for op in order:
            needs = reads[op]
            if len(needs) > 2 or (len(needs) == 2 and needs[0] == needs[1]):
                needs = tuple(dict.fromkeys(needs))
            self.needs[op] = needs
            self.missing[op] = len(needs)
            self.sizes[op] = size(op)
            for read in needs:
                if waiting[read]:
                    users[read].append(op)
                else:
                    users[read] = [op]
                waiting[read] += 1

    def do(self, op: int) -> None:
        """Do an operation, and all that has become worth doing by it.

        Worth doing is what can be done and frees at least as much as it takes.
        """
        missing, waiting, sizes, needs = self.missing, self.waiting, self.sizes, self.needs
        stack = self._emit(op)
        while stack:
            candidate = stack.pop()
            if missing[candidate]:
                continue
            freed = 0
            for read in needs[candidate]:
                if waiting[read] == 1:
                    freed += sizes[read]
            if freed >= sizes[candidate]:
                stack += self._emit(candidate)

    def _emit(self, op: int) -> list[int]:
        """Put an operation next; what may have become worth doing, the first one last."""
        waiting, missing = self.waiting, self.missing
        self.out.append(op)
        missing[op] = DONE
        candidates = []
        for read in self.needs[op]:
            left = waiting[read] - 1
            waiting[read] = left
            if left == 1:
                # The only reader that is left frees the value when it is done.
                for last in self.users[read]:
                    if missing[last] != DONE:
                        if not missing[last]:
                            candidates.append(last)
                        break
        for user in self.users[op]:
            missing[user] -= 1
            if not missing[user]:
                candidates.append(user)
        candidates.reverse()
        return candidates


def allocate(
    order: Sequence[int],
    reads: Callable[[int], Iterable[int]],
    kind: Callable[[int], Hashable],
    reuse: Callable[[int], bool],
    last: Mapping[int, int] | None = None,
) -> tuple[dict[int, int], list[Hashable]]:
    """Give each value a register, so that values which live at the same time never share one.

    Parameters
    ----------
    order : sequence of int
        Operations that need a register, in the order of evaluation.
    reads : callable
        ``reads(op)``: the operations of ``order`` whose registers are read.
    kind : callable
        ``kind(op)``: registers of equal kind are interchangeable; None for no register.
    reuse : callable
        ``reuse(op)``: whether the result may overwrite a value that dies here.
    last : mapping of int to int, optional
        What :func:`last_use` gives, where it is known already.

    Returns
    -------
    (dict of int to int, list)
        Register of each operation, and the kind of each register.
    """
    last = last_use(order, reads) if last is None else last
    pool = _Registers(order, last)
    for position, op in enumerate(order):
        overwrite = reuse(op)
        if overwrite:
            pool.release(position, op)
        wanted = kind(op)
        if wanted is not None:
            pool.take(op, wanted)
        if not overwrite:
            pool.release(position, op)
        if last[op] == position:
            pool.give_back(op)
    return pool.register, pool.kinds


class _Registers:
    """The state of :func:`allocate`: registers in use and free ones, the latest freed first."""

    def __init__(self, order: Sequence[int], last: Mapping[int, int]) -> None:
        self.register: dict[int, int] = {}
        self.kinds: list[Hashable] = []
        self.free: dict[Hashable, list[int]] = {}
        self.dying: dict[int, list[int]] = {}
        for op in order:
            self.dying.setdefault(last[op], []).append(op)

    def take(self, op: int, kind: Hashable) -> None:
        """A register for the value of an operation."""
        free = self.free.get(kind)
        if free:
            self.register[op] = free.pop()
        else:
            self.register[op] = len(self.kinds)
            self.kinds.append(kind)

    def give_back(self, op: int) -> None:
        """The value of an operation is not needed any more."""
        if op in self.register:
            number = self.register[op]
            self.free.setdefault(self.kinds[number], []).append(number)

    def release(self, position: int, but: int) -> None:
        """The values whose last use is at a position, but for the one that is made there."""
        for op in self.dying.get(position, ()):
            if op != but:
                self.give_back(op)


def peak_live(
    order: Sequence[int],
    reads: Callable[[int], Iterable[int]],
    size: Callable[[int], int],
    last: Mapping[int, int] | None = None,
) -> tuple[int, int]:
    """Largest total size of values alive at once, and the position where that is.

    A value is alive from its evaluation up to and including its last use.
    """
    last = last_use(order, reads) if last is None else last
    change = [0] * (len(order) + 1)
    for position, op in enumerate(order):
        change[position] += size(op)
        change[last[op] + 1] -= size(op)
    best, where, total = 0, 0, 0
    for position, delta in enumerate(change[:-1]):
        total += delta
        if total > best:
            best, where = total, position
    return best, where


def alive_at(order: Sequence[int], last: Mapping[int, int], where: int) -> list[int]:
    """Operations whose values are alive at a position, in order."""
    return [op for op in order[: where + 1] if last[op] >= where]
