"""When a value is needed last, in which order to evaluate, and where values live.

Three small algorithms over a list of operations. They know nothing of arrays: an operation is a
number, it reads operations, and its value has a size.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence


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

    Operations keep their order, except that one is brought forward, to right after the operation that
    makes it possible, when that does not raise the memory in use: when the values that it is the last
    to read are at least as large as its own. So a long sum ``((f(0) + f(1)) + f(2)) ...`` is added up
    as its terms appear, and totals are taken while the value is in cache. The order in which numbers
    are added is not changed: an operation is what it was, only sooner.

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
    distinct = {op: tuple(dict.fromkeys(reads[op])) for op in order}
    users: dict[int, list[int]] = {op: [] for op in order}
    for op in order:
        for read in distinct[op]:
            users[read].append(op)
    missing = {op: len(distinct[op]) for op in order}
    waiting = {op: len(users[op]) for op in order}
    done: set[int] = set()
    out: list[int] = []

    def frees(op: int) -> bool:
        freed = sum(size(read) for read in distinct[op] if waiting[read] == 1)
        return freed >= size(op)

    def emit(op: int) -> list[int]:
        """Do an operation; those that may have become worth doing now."""
        out.append(op)
        done.add(op)
        candidates = []
        for read in distinct[op]:
            waiting[read] -= 1
            if waiting[read] == 1:
                candidates += [u for u in users[read] if u not in done and missing[u] == 0][:1]
        for user in users[op]:
            missing[user] -= 1
            if missing[user] == 0:
                candidates.append(user)
        return candidates

    for op in order:
        if op in done:
            continue
        stack = emit(op)[::-1]
        while stack:
            candidate = stack.pop()
            if candidate not in done and missing[candidate] == 0 and frees(candidate):
                stack.extend(emit(candidate)[::-1])
    return out


def allocate(
    order: Sequence[int],
    reads: Callable[[int], Iterable[int]],
    kind: Callable[[int], Hashable],
    reuse: Callable[[int], bool],
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

    Returns
    -------
    (dict of int to int, list)
        Register of each operation, and the kind of each register.
    """
    last = last_use(order, reads)
    dying: dict[int, list[int]] = {}
    for op, position in last.items():
        dying.setdefault(position, []).append(op)
    register: dict[int, int] = {}
    kinds: list[Hashable] = []
    free: dict[Hashable, list[int]] = {}

    def release(position: int, but: int) -> None:
        for op in dying.get(position, ()):
            if op != but and op in register:
                free.setdefault(kinds[register[op]], []).append(register[op])

    for position, op in enumerate(order):
        if reuse(op):
            release(position, op)
        wanted = kind(op)
        if wanted is not None:
            pool = free.get(wanted)
            if pool:
                register[op] = pool.pop()
            else:
                register[op] = len(kinds)
                kinds.append(wanted)
        if not reuse(op):
            release(position, op)
        if last[op] == position and op in register:
            free.setdefault(kinds[register[op]], []).append(register[op])
    return register, kinds


def live_ranges(
    order: Sequence[int], reads: Callable[[int], Iterable[int]]
) -> list[tuple[int, int]]:
    """For each operation of ``order``, the positions of its evaluation and of its last use."""
    last = last_use(order, reads)
    return [(position, last[op]) for position, op in enumerate(order)]


def peak_live(
    order: Sequence[int], reads: Callable[[int], Iterable[int]], size: Callable[[int], int]
) -> tuple[int, int]:
    """Largest total size of values alive at once, and the position where that is.

    A value is alive from its evaluation up to and including its last use.
    """
    change = [0] * (len(order) + 1)
    for op, (first, last) in zip(order, live_ranges(order, reads), strict=True):
        change[first] += size(op)
        change[last + 1] -= size(op)
    best, where, total = 0, 0, 0
    for position, delta in enumerate(change[:-1]):
        total += delta
        if total > best:
            best, where = total, position
    return best, where
