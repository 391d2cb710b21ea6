"""Digests of what a recording rests on: the source of formulas, and the assumptions.

A recording may be used again only when nothing has changed that its graph has taken in. What is
known to be told by its content is digested: numbers, texts, arrays, tables, frames, plain
containers and functions of them. Anything else (an object of the user's own class, a module, a
file) makes the digest None, and the model is recorded again at each execution: that costs time, and
never a number.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import itertools
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from hl_dask.aggregate import Aggregate, Sum
from hl_dask.formula import DEFAULT, OWN_STATE, BoundFormula, Formula
from hl_dask.traced import SharedArray

INSTALLED: dict[str, bool] = {}
SIMPLE = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice)


# fmt: off
PURE = frozenset((
    "abc", "builtins", "collections", "dataclasses", "enum", "functools", "hl_dask", "itertools",
    "math", "numbers", "numpy", "operator", "types", "typing",
))
"""Packages whose functions give the same for the same arguments, with the exceptions below."""
IMPURE = frozenset((
    "open", "input", "eval", "exec", "compile", "globals", "__import__", "breakpoint", "random",
    "load", "loadtxt", "genfromtxt", "fromfile", "memmap", "open_memmap", "DataSource",
    "vars", "locals", "getattr", "setattr", "delattr", "now", "today", "__annotations__",
))
"""Names that a formula may not mention if its recording is to be used again: they read the
world."""
# fmt: on
CONTAINERS = ("collections", "queue", "array", "weakref", "_contextvars", "_thread")
"""Modules of Python whose objects hold what is put into them."""
FRAMEWORK = ("hl_dask.model", "hl_dask.instance")
"""Modules of the base classes of all models, which do not change."""
CLASS_NAMES = frozenset(
    (
        "_abc_impl",
        "__module__",
        "__dict__",
        "__weakref__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__abstractmethods__",
        "__firstlineno__",
        "__static_attributes__",
        "__parameters__",
        "__orig_bases__",
        "__qualname__",
    )
)
"""What Python itself keeps in a class."""
BY_TEXT = ("datetime", "decimal", "fractions")
"""Modules of immutable values that their repr tells in full."""
FRAMES = ("DataFrame", "Series", "Index", "RangeIndex", "MultiIndex", "Categorical")
_IMPORT = dis.opmap["IMPORT_NAME"]


class UndigestibleError(Exception):
    """Something whose content cannot be told, or changes without notice."""


def source_digest(formula: Formula) -> str:
    """Digest of the source of a formula, or of its code where the source is not to be had."""
    try:
        text = inspect.getsource(formula.function)
    except (OSError, TypeError):
        code = getattr(formula.function, "__code__", None)
        text = repr(_code_parts(code)) if code is not None else repr(formula.function)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _code_parts(code: types.CodeType) -> tuple[Any, ...]:
    consts = tuple(
        _code_parts(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts
    )
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return code.co_code, consts, names, counts, code.co_exceptiontable


class Reached(NamedTuple):
    """What a formula, or an attribute, can reach.

    Attributes
    ----------
    content : str
        Digest of the content.
    known : bool
        Whether the digest tells the content in full.
    """

    content: str
    known: bool


class Globals(NamedTuple):
    """Names that a function reads in its module."""

    namespace: dict[str, Any]
    names: tuple[str, ...]


class Reachable(NamedTuple):
    """What formulas can reach outside their arguments.

    Attributes
    ----------
    digests : dict of str to Reached
        By name of the formula or the attribute.
    names : set of str or None
        Names that all code within reach mentions; None when there is something that cannot be told
        by its content.
    things : list of object
        Everything that was met on the way.
    """

    digests: dict[str, Reached]
    names: set[str] | None
    things: list[Any]


def reachable(instance: Any, formulas: Iterable[Formula]) -> Reachable:
    """What each formula can reach outside its arguments, and what each attribute holds.

    Objects of unknown kinds are looked into as far as they go, to see whether they change. The
    caches of functions (``functools.cache``) are left out of the digests.
    """
    met: list[Any] = []
    things: dict[str, Any] = {f.name: f for f in formulas}
    for cls in type(instance).__mro__:
        if not installed(cls.__module__):
            met.append(cls)
            skip = CLASS_NAMES.union(things)
            things.update({k: v for k, v in vars(cls).items() if k[:2] != "__" and k not in skip})
    things.update({k: v for k, v in instance.__dict__.items() if k not in OWN_STATE})
    found = {}
    names: set[str] | None = set()
    for name, thing in things.items():
        if isinstance(thing, BoundFormula):
            continue
        sha = hashlib.sha256()
        walker = _Walker(sha, loose=True)
        walker.met = met
        try:
            walker.add(thing)
        except Exception:  # whatever an object of the user's raises when it is looked at
            names = None
            continue
        found[name] = Reached(sha.hexdigest(), not walker.unknown)
        if walker.unknown:
            names = None
        elif names is not None:
            names |= walker.names
    return Reachable(found, names, met)


def state_digest(cls: type, attributes: Mapping[str, Any], skip: AbstractSet[str]) -> str | None:
    """Digest of the assumptions, formulas and globals that a recording of a model reads.

    Parameters
    ----------
    cls : type
        The model class, with its formulas.
    attributes : mapping of str to object
        Attributes of the model.
    skip : set of str
        Attributes that are data or belong to the framework, not assumptions.

    Returns
    -------
    str or None
        None when something cannot be digested.
    """
    sha = hashlib.sha256()
    walker = _Walker(sha)
    try:
        for name, value in sorted(attributes.items()):
            if name in skip or isinstance(value, BoundFormula):
                continue
            walker.add((name, "="))
            walker.add(value)
        if type(cls).__module__ not in FRAMEWORK:
            return None
        walker.seen.update({id(base): (-1, base) for base in cls.__mro__})
        for base in cls.__mro__:
            if base is object or base.__module__ in FRAMEWORK:
                continue
            for name, value in sorted(vars(base).items()):
                if name in CLASS_NAMES:
                    continue
                walker.add((base.__qualname__, base.__name__, name))
                walker.add(value)
    except Exception:  # also whatever an object of the user's raises when it is looked at
        return None
    return sha.hexdigest()


class _Walker:
    """Feeds objects into a digest, each object once.

    Parameters
    ----------
    loose : bool
        Digest what can be seen of things that are not known by their content, and note that there
        are such, instead of raising an error.
    """

    def __init__(self, sha: Any, *, loose: bool = False) -> None:
        self.sha = sha
        self.seen: dict[int, Any] = {}
        self.names: set[str] = set()
        self.met: list[Any] = []
        self.loose = loose
        self.unknown = False

    def refuse(self, what: Any) -> None:
        """Something is not known by its content."""
        if not self.loose:
            raise UndigestibleError(what)
        self.unknown = True

    def add(self, value: Any) -> None:
        """Digest one object."""
        if type(value) in SIMPLE or isinstance(value, (np.generic, np.dtype)):
            self.sha.update(f"{type(value).__name__}:{value!r};".encode())
            return
        if id(value) in self.seen:
            self.sha.update(f"again {self.seen[id(value)][0]};".encode())
            return
        self.seen[id(value)] = (len(self.seen), value)
        self.met.append(value)
        self.sha.update(f"{type(value).__module__}.{type(value).__qualname__}(".encode())
        self._content(value)
        self.sha.update(b")")

    def _content(self, value: Any) -> None:
        kind = type(value)
        if kind.__module__.startswith("hl_dask.traced.") and kind.__name__ != "SharedArray":
            # First of all, because a traced array claims to be an array.
            self.sha.update(b"a value of a recording;")
            return
        add = _BY_TYPE.get(kind)
        if add is not None:
            add(self, value)
        elif hasattr(value, "cache_info") and hasattr(value, "__wrapped__"):
            if not self.loose:  # what a cache holds follows from arguments, and is no change
                self.add(tuple(value.cache_info()))
            self.add(value.__wrapped__)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, Enum):
            self._class(kind)
            self.add(value.name)
        elif kind.__module__.startswith("hl_dask.") and hasattr(kind, "digest"):
            self.sha.update(value.digest().encode())
        elif kind.__module__.split(".")[0] == "pandas" and kind.__name__ in FRAMES:
            self._pandas(value)
        elif kind.__module__ in BY_TEXT:
            self._counter(value)
        else:
            self.refuse(kind.__qualname__)
            self._insides(value)

    def _insides(self, value: Any) -> None:
        """What an object of the user's own keeps."""
        if isinstance(value, weakref.ref):
            self.add(value())
        home = type(value).__module__
        if installed(home) and home not in CONTAINERS:
            return
        self.add(dict(getattr(value, "__dict__", {})))
        for name in slot_names(type(value)):
            self.add((name, getattr(value, name, None)))
        for kind, add in ((dict, self._dict), ((list, tuple), self._sequence), (set, self._set)):
            if isinstance(value, kind):
                add(value)

    def _sequence(self, value: Any) -> None:
        for item in value:
            self.add(item)

    def _dict(self, value: Any) -> None:
        for key, item in value.items():
            self.add(key)
            self.add(item)

    def _set(self, value: Any) -> None:
        for item in sorted(value, key=repr):
            self.add(item)

    def _class(self, value: type) -> None:
        """A class of an installed package by its name, an enumeration by its members."""
        self.names.add(value.__name__)  # whatever it is called where it is used
        module = value.__module__
        self.sha.update(f"{module}:{value.__qualname__}".encode())
        if issubclass(value, Enum):
            plain = {k for k in vars(value) if k[:1] != "_"} == set(value.__members__)
            bases = all(b.__module__ in ("enum", "builtins") for b in value.__mro__[1:])
            members = [set(vars(m)) <= MEMBER for m in value.__members__.values()]
            own = {k for k in vars(value) if k[:1] == "_"} - set(vars(_Plain))
            if not (plain and bases and all(members)) or own - CLASS_NAMES:
                self.refuse(value.__qualname__)
            self.add({k: v.value for k, v in value.__members__.items()})
        elif not _is_pure(module) or vars(sys.modules[module]).get(value.__name__) is not value:
            self.refuse(value.__qualname__)
            if not installed(module):
                self.add({k: v for k, v in vars(value).items() if k[:2] != "__"})

    def _wrapper(self, value: Any) -> None:
        """A property, static method or class method: the functions behind it."""
        for name in ("fget", "fset", "fdel", "__func__"):
            self.add(getattr(value, name, None))

    def _partial(self, value: functools.partial[Any]) -> None:
        self.add((value.func, value.args, value.keywords))

    def _formula(self, value: Formula) -> None:
        self.add((value.name, value.per_point))
        self._function(value.function)
        self.add("default" if value.agg is DEFAULT else value.agg)

    def _method(self, value: types.MethodType) -> None:
        self._function(value.__func__)
        self.add(value.__self__)

    def _counter(self, value: Any) -> None:
        self.sha.update(repr(value).encode())

    def _vars(self, value: Any) -> None:
        self.add(dict(vars(value)))

    def _array(self, value: Any) -> None:
        self.sha.update(f"{value.dtype!r}{value.shape}{value.strides}".encode())
        if value.dtype.hasobject:
            if value.dtype.names:
                self.refuse(value.dtype)
                return
            for item in value.ravel().tolist():
                self.add(item)
        else:
            self.sha.update(np.ascontiguousarray(value).data.cast("B") if value.size else b"")

    def _function(self, function: Any) -> None:
        code = getattr(function, "__code__", None)
        # Not __module__, which functools.wraps copies from what it wraps.
        home = getattr(function, "__globals__", {}).get("__name__", function.__module__)
        if code is None or (installed(home) and home != "builtins"):
            self._named(function)
            return
        names = _names(code)
        self.names |= names
        if names & IMPURE or _reads_the_world(code):
            self.refuse(function.__qualname__)
        self.add({k: v for k, v in vars(function).items() if not k.startswith("_hl_")})
        self.sha.update(repr(_code_parts(code)).encode())
        for part in (function.__defaults__, function.__kwdefaults__):
            self.add(part)
        for cell in function.__closure__ or ():
            self.met.append(cell)
            try:
                self.add(cell.cell_contents)
            except ValueError:
                self.sha.update(b"empty cell;")
        self.met.append(Globals(function.__globals__, tuple(names)))
        for name in sorted(names):
            if name in function.__globals__:
                self.sha.update(name.encode())
                self.add(function.__globals__[name])

    def _named(self, value: Any) -> None:
        """Modules and functions of installed packages are known by their names."""
        if isinstance(value, np.ufunc):
            self.sha.update(f"ufunc {value.__name__}".encode())
            if getattr(np, value.__name__, None) is not value:
                self.refuse(value.__name__)
            return
        name = getattr(value, "__qualname__", None) or value.__name__
        self.names.add(name)  # whatever it is called where it is used
        module = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
        self.sha.update(f"{module}:{name}".encode())
        owner = getattr(value, "__self__", None)
        if not _is_pure(module or "builtins"):
            self.refuse(name)
            return
        if owner is not None and not isinstance(owner, types.ModuleType):
            self.add(owner)

    def _pandas(self, value: Any) -> None:
        if getattr(value, "attrs", None):
            self.add(dict(value.attrs))
        if hasattr(value, "columns"):
            self.add(tuple(value.columns.names))
            for number, label in enumerate(value.columns):
                self.add(label)
                self._values(value.iloc[:, number])
            self._labels(value.index)
        elif hasattr(value, "index"):
            self.add(value.name)
            self._values(value)
            self._labels(value.index)
        elif hasattr(value, "names"):
            self._labels(value)
        else:
            self._values(value)

    def _labels(self, index: Any) -> None:
        self.add(tuple(index.names))
        if index.nlevels > 1:
            for level, codes in zip(index.levels, index.codes, strict=True):
                self._values(level)
                self.add(np.asarray(codes))
        else:
            self._values(index)

    def _values(self, values: Any) -> None:
        dtype = values.dtype
        self.sha.update(str(dtype).encode())
        if hasattr(dtype, "categories"):
            self.add((np.asarray(dtype.categories), bool(dtype.ordered)))
        self.add(np.asarray(values))


_BY_TYPE: dict[type, Callable[[_Walker, Any], None]] = {
    np.ndarray: _Walker._array,
    SharedArray: _Walker._array,
    np.memmap: _Walker._array,
    list: _Walker._sequence,
    tuple: _Walker._sequence,
    deque: _Walker._sequence,
    dict: _Walker._dict,
    OrderedDict: _Walker._dict,
    types.MappingProxyType: _Walker._dict,
    set: _Walker._set,
    frozenset: _Walker._set,
    types.SimpleNamespace: _Walker._vars,
    Formula: _Walker._formula,
    types.FunctionType: _Walker._function,
    types.MethodType: _Walker._method,
    types.ModuleType: _Walker._named,
    types.BuiltinFunctionType: _Walker._named,
    np.ufunc: _Walker._named,
    type(np.sum): _Walker._function,
    type(np.where): _Walker._named,
    property: _Walker._wrapper,
    staticmethod: _Walker._wrapper,
    classmethod: _Walker._wrapper,
    functools.partial: _Walker._partial,
    itertools.count: _Walker._counter,
    Aggregate: _Walker._vars,
    Sum: _Walker._vars,
}
"""How objects are digested, by their very type: a subclass may hold or do more."""


class _Plain(Enum):
    """An enumeration with nothing of its own, to compare others with."""

    MEMBER = 1


MEMBER = frozenset(vars(_Plain.MEMBER))
"""What every member of an enumeration holds."""


def _is_pure(module: str) -> bool:
    """Whether a module belongs to a package whose functions depend on their arguments only."""
    return installed(module) and module.split(".", maxsplit=1)[0] in PURE


def _reads_the_world(code: types.CodeType) -> bool:
    """Whether code imports, or asks NumPy for the time: ``np.datetime64("now")``."""
    if _IMPORT in code.co_code[::2]:
        return True
    return any(
        _reads_the_world(c) if isinstance(c, types.CodeType) else c in ("now", "today")
        for c in code.co_consts
        if isinstance(c, (types.CodeType, str))
    )


def mentions(formula: Formula, name: str) -> bool:
    """Whether the source of a formula mentions a name."""
    code = getattr(formula.function, "__code__", None)
    return code is not None and name in _names(code)


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= _names(const)
    return names


def slot_names(cls: type) -> list[str]:
    """Names of the slots of a class and its bases."""
    names: list[str] = []
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else slots
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def installed(module: str | None) -> bool:
    """Whether a module comes with Python or from an installed package, and is not the user's."""
    top = (module or "").split(".")[0]
    if top in sys.stdlib_module_names and top != "__main__":
        return True
    if top in INSTALLED:
        return INSTALLED[top]
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    found = "site-packages" in file or "dist-packages" in file or top == "hl_dask"
    return INSTALLED.setdefault(top, found)
