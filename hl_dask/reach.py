"""What formulas can reach outside their arguments, and putting it back as it was.

A formula that keeps something (in a module, a class, a container, an object of the user's own) must
not find there what a trace on a few rows has left. So the state within reach is noted before a
recording and put back after each trace: every trace, and the replay, start from what the user had.
What cannot be put back is at least noticed.
"""

from __future__ import annotations

import types
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np

from hl_dask.fingerprint import (
    CLASS_NAMES,
    CONTAINERS,
    Globals,
    Reached,
    installed,
    reachable,
    slot_names,
)
from hl_dask.formula import BoundFormula, Formula

MOST_BYTES = 2**20
"""Arrays up to this size are put back when they have been written to."""
ABSENT: Any = object()


class Reach:
    """What the formulas of models can reach, as it was when this was made.

    Parameters
    ----------
    models : iterable of (clone, formulas)
        For each model, what gives a copy of it that shares its attributes, and its formulas.

    Attributes
    ----------
    before : list of dict of str to Reached
        Digests by name, of each model.
    names : set of str or None
        Names that the code within reach mentions; None when there is something that cannot be
        told by its content.
    """

    def __init__(self, models: Iterable[tuple[Callable[[], Any], Sequence[Formula]]]) -> None:
        self.models = list(models)
        found = [reachable(clone(), formulas) for clone, formulas in self.models]
        self.before = [each.digests for each in found]
        names = [each.names for each in found if each.names is not None]
        self.names = {*()}.union(*names) if len(names) == len(found) else None
        self.things = [thing for each in found for thing in each.things]
        self.restorers = self.snapshot()

    def snapshot(self) -> list[Callable[[], None]]:
        """What puts everything back as it is now, one call for each thing that may change."""
        mentioned = {n for t in self.things if isinstance(t, Globals) for n in t.names}
        makers = (_restorer(thing, mentioned) for thing in self.things)
        return [restore for restore in makers if restore is not None]

    def restore(self) -> None:
        """Put everything back as it was before the recording."""
        put_back(self.restorers)

    def changed(self, *, unknown: bool = False) -> list[str]:
        """Names of what has changed and stayed so.

        Parameters
        ----------
        unknown : bool
            Whether objects of unknown kinds count, which may well keep what they have worked out.
        """
        found = []
        for before, (clone, formulas) in zip(self.before, self.models, strict=True):
            after: dict[str, Reached] = reachable(clone(), formulas).digests
            for name, was in before.items():
                now = after.get(name, was)
                if now.content != was.content and (unknown or (was.known and now.known)):
                    found.append(name)
        return found

    def untouched(self) -> bool:
        """Whether everything is known to be as it was, once it is put back.

        It is put back only then: a trace that goes on must find what it has kept.
        """
        if self.names is None:
            return False
        now = self.snapshot()
        self.restore()
        if not self.changed():
            return True
        put_back(now)
        return False


def put_back(restorers: Iterable[Callable[[], None]]) -> None:
    """Call what :meth:`Reach.snapshot` gave."""
    for restore in restorers:
        restore()


def _restorer(thing: Any, mentioned: set[str]) -> Callable[[], None] | None:
    """What puts a thing back as it is now; None for what does not change, or not within itself.

    Of modules only the names that some code within reach mentions: the rest is nobody's business.
    """
    if isinstance(thing, Globals):
        return partial(_put_names, thing.namespace, _present(thing.namespace, thing.names))
    if callable(getattr(thing, "cache_clear", None)) and hasattr(thing, "cache_info"):
        return partial(_put_cache, thing, thing.cache_info())
    if isinstance(thing, types.ModuleType):
        own = not installed(thing.__name__)
        return partial(_put_names, vars(thing), _present(vars(thing), mentioned)) if own else None
    for kinds, maker in _MAKERS:
        if isinstance(thing, kinds):
            return maker(thing)
    return None


def _present(namespace: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: namespace.get(name, ABSENT) for name in names}


def _put_names(namespace: dict[str, Any], was: dict[str, Any]) -> None:
    for name, value in was.items():
        if namespace.get(name, ABSENT) is value:
            continue
        if value is ABSENT:
            del namespace[name]
        else:
            namespace[name] = value


def _put_cache(function: Any, was: Any) -> None:
    if function.cache_info() != was:
        # What it held before is worked out again when it is asked for.
        function.cache_clear()


def _cell(cell: types.CellType) -> Callable[[], None]:
    try:
        was = cell.cell_contents
    except ValueError:
        return lambda: None

    def restore() -> None:
        cell.cell_contents = was

    return restore


def _mapping(mapping: dict[Any, Any]) -> Callable[[], None]:
    was = dict(mapping)

    def restore() -> None:
        if len(mapping) != len(was) or any(mapping.get(k, ABSENT) is not was[k] for k in was):
            mapping.clear()
            mapping.update(was)

    return restore


def _items(collection: Any) -> Callable[[], None]:
    """For lists, bytearrays, sets and deques."""
    was = list(collection)

    def restore() -> None:
        now = list(collection)
        if len(now) != len(was) or any(a is not b for a, b in zip(now, was, strict=True)):
            collection.clear()
            add = collection.update if isinstance(collection, set) else collection.extend
            add(was)

    return restore


def _slice(numbers: array[Any]) -> Callable[[], None]:
    was = numbers[:]

    def restore() -> None:
        numbers[:] = was

    return restore


def _ndarray(values: Any) -> Callable[[], None] | None:
    if not values.flags.writeable or values.nbytes > MOST_BYTES:
        return None
    was = values.copy()

    def restore() -> None:
        if values.tobytes() != was.tobytes():
            values[...] = was

    return restore


def _class(cls: type) -> Callable[[], None]:
    was = dict(vars(cls))

    def restore() -> None:
        now = dict(vars(cls))
        for name in now.keys() - was.keys():
            type.__delattr__(cls, name)
        for name, value in was.items():
            if now.get(name, ABSENT) is not value and name not in CLASS_NAMES:
                type.__setattr__(cls, name, value)

    return restore


def _object(thing: Any) -> Callable[[], None] | None:
    """An object of the user's own, or a function with attributes."""
    parts = []
    if isinstance(getattr(thing, "__dict__", None), dict):
        parts.append(_mapping(thing.__dict__))
    names = slot_names(type(thing))
    if names:
        was = {name: getattr(thing, name, ABSENT) for name in names}
        parts.append(partial(_put_slots, thing, was))
    return partial(put_back, parts) if parts else None


def _put_slots(thing: Any, was: dict[str, Any]) -> None:
    for name, value in was.items():
        if getattr(thing, name, ABSENT) is value:
            continue
        if value is ABSENT:
            object.__delattr__(thing, name)
        else:
            object.__setattr__(thing, name, value)


def _variable(variable: ContextVar[Any]) -> Callable[[], None]:
    was = variable.get(ABSENT)

    def restore() -> None:
        if variable.get(ABSENT) is not was:
            # One that had no value gets its default, or none that anybody would take for a value.
            variable.set(None if was is ABSENT else was)

    return restore


def _random(generator: np.random.Generator) -> Callable[[], None]:
    was = generator.bit_generator.state

    def restore() -> None:
        generator.bit_generator.state = was

    return restore


def _own(thing: Any) -> Callable[[], None] | None:
    """Things that are neither the user's own nor functions or plain containers stay alone."""
    home = getattr(thing, "__module__", None) if isinstance(thing, type) else type(thing).__module__
    if isinstance(thing, types.FunctionType):
        return _object(thing)
    if installed(home) and home not in CONTAINERS:
        return None
    return _class(thing) if isinstance(thing, type) else _object(thing)


_MAKERS: tuple[tuple[Any, Callable[[Any], Callable[[], None] | None]], ...] = (
    ((Formula, BoundFormula), lambda thing: None),
    (types.CellType, _cell),
    (dict, _mapping),
    ((list, bytearray, set, deque), _items),
    (array, _slice),
    (np.ndarray, _ndarray),
    (ContextVar, _variable),
    (np.random.Generator, _random),
    (object, _own),
)
