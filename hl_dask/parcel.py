"""A job packed for a journey: what a process needs to run chunks, as bytes with their digest.

The graph of a recording knows much that a run does not need: formula calls as objects, the hash
table, nodes of other passes. A parcel holds what the kernel looks at. Formulas that are evaluated
as Python travel with the class that they belong to, by value where the class is the user's own: a
worker need not have the notebook or the file that it was written in.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import sys
import sysconfig
import threading
import types
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from hl_dask._dask_compat import VERSION, cpu_features
from hl_dask.blocks import Blocks
from hl_dask.errors import SchedulerError
from hl_dask.expr import Graph
from hl_dask.formula import OWN_STATE, BoundFormula, Formula
from hl_dask.opaque import OpaqueCall
from hl_dask.points import ModelPoints
from hl_dask.program import Program

COMPARED = {
    "python": "Python",
    "numpy": "NumPy",
    "cpu": "processor features",
    "hl_dask": "hl_dask",
}
"""What has to be the same wherever a run works: the last bit of a result may depend on it."""
LEVEL = 1
"""Of compression: programs repeat themselves, and higher levels find little more."""


@dataclass(frozen=True)
class Job:
    """What chunks are run with.

    Attributes
    ----------
    points : ModelPoints or None
        Where columns are read that do not come with the task.
    errstate : dict
        How NumPy treats floating-point errors, as in :func:`numpy.errstate`.
    at_once : int or None
        Chunks that a process may work on at once.
    """

    program: Program
    points: ModelPoints | None
    blocks: Blocks
    errstate: dict[str, Any]
    at_once: int | None = None


@dataclass(frozen=True)
class Parcel:
    """A job as bytes.

    Attributes
    ----------
    digest : str
        Of the content.
    content : bytes
        The job, pickled and compressed.
    environment : dict of str to str
        Of the process that packed it; see :func:`environment`.
    """

    digest: str
    content: bytes
    environment: dict[str, str]


# ---- environments ----------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """Versions and processor features that the last bit of a result may depend on."""
    return {
        "python": f"{sys.version.split()[0]} ({sys.implementation.name})",
        "numpy": np.__version__,
        "cpu": cpu_features(),
        "dask": VERSION,
        "hl_dask": _version(),
    }


def _version() -> str:
    try:
        return metadata.version("hl-dask")
    except metadata.PackageNotFoundError:  # run from its sources
        return "unknown"


def check_alike(home: dict[str, str], others: dict[str, dict[str, str]]) -> None:
    """Refuse to compute in places that may round differently.

    Parameters
    ----------
    home : dict of str to str
        Environment of the process that asks for the run.
    others : dict of str to dict
        Environments by place, such as ``"the worker at tcp://10.0.0.5:4711"``.

    Raises
    ------
    SchedulerError
        Naming the places and what differs.
    """
    found = [
        f"{place} has {'; '.join(texts)}"
        for place, there in others.items()
        if (texts := _differences(home, there))
    ]
    if found:
        shown = "\n    ".join(found[:5]) + (f"\n    and {len(found) - 5} more" * (len(found) > 5))
        msg = f"the last bits of a result would depend on where a chunk is run:\n    {shown}"
        raise SchedulerError(
            msg,
            remedy="start workers and client from one environment, on processors of one kind; "
            "NPY_DISABLE_CPU_FEATURES, set for all of them, levels processors out",
        )


def _differences(home: dict[str, str], there: dict[str, str]) -> list[str]:
    texts = []
    for key, name in COMPARED.items():
        mine, other = home.get(key, "unknown"), there.get(key, "unknown")
        if mine == other:
            continue
        if key == "cpu":
            here, away = set(mine.split(",")), set(other.split(","))
            sides = ((here, away), (away, here))
            mine, other = (",".join(sorted(a - b)) or "no more" for a, b in sides)
        texts.append(f"{name} {other}, here {mine}")
    return texts


# ---- packing ---------------------------------------------------------------------------------


def pack(job: Job) -> Parcel:
    """A job as bytes.

    Raises
    ------
    SchedulerError
        When something that formulas use cannot be sent to another process.
    """
    program = job.program
    state = (
        _packed_graph(program),
        replace(program, graph=Graph(), describe=str),
        replace(job, program=None),  # type: ignore[arg-type]
    )
    content = zlib.compress(_dumps(state), LEVEL)
    return Parcel(hashlib.sha256(content).hexdigest(), content, environment())


def unpack(parcel: Parcel) -> Job:
    """The job that a parcel holds.

    Raises
    ------
    SchedulerError
        When this process is not like the one that packed it, or lacks a module.
    """
    here = _here()
    check_alike(parcel.environment, {here: environment()})
    try:
        graph, program, job = pickle.loads(zlib.decompress(parcel.content))
    except Exception as error:
        msg = f"{here} cannot unpack the model: {type(error).__name__}: {error}"
        raise SchedulerError(
            msg,
            remedy="install on the workers what the model imports, or send your own modules with "
            "client.upload_file",
        ) from error
    found: Job = replace(job, program=replace(program, graph=_unpacked_graph(graph)))
    return found


def _here() -> str:
    """How messages name this process."""
    distributed = sys.modules.get("distributed")
    if distributed is not None:
        with contextlib.suppress(ValueError):
            return f"the worker at {distributed.get_worker().address}"
    return "this process"


def _packed_graph(program: Program) -> tuple[Any, ...]:
    """What the kernel looks at of a graph, with the same numbers of nodes."""
    graph = program.graph
    nodes = graph.ancestors(program.order)
    describe = program.describe
    owners = {id(graph.owners[n]): graph.owners[n] for n in nodes}
    texts = {key: describe(owner) for key, owner in owners.items()}
    calls = _Calls()
    return (
        len(graph),
        nodes,
        _indexed([graph.ops[n] for n in nodes]),
        [graph.args[n] for n in nodes],
        _indexed([graph.kinds[n] for n in nodes]),
        _indexed([graph.phases[n] for n in nodes]),
        _indexed([graph.metas[n] for n in nodes]),
        _indexed([texts[id(graph.owners[n])] for n in nodes]),
        {n: calls.packed(graph.values[n]) for n in nodes if n in graph.values},
        {n: graph.partial_bytes[n] for n in nodes if n in graph.partial_bytes},
    )


def _unpacked_graph(state: tuple[Any, ...]) -> Graph:
    size, nodes, ops, args, kinds, phases, metas, owners, values, partial_bytes = state

    def spread(items: Any) -> Any:
        full: list[Any] = [None] * size
        for node, item in zip(nodes, items, strict=True):
            full[node] = item
        return full

    def chosen(table: Any) -> Any:
        distinct, index = table
        return spread(distinct[k] for k in index)

    return Graph(
        ops=chosen(ops),
        args=spread(args),
        kinds=chosen(kinds),
        phases=chosen(phases),
        metas=chosen(metas),
        owners=chosen(owners),
        values=values,
        partial_bytes=partial_bytes,
    )


def _indexed(items: list[Any]) -> tuple[list[Any], list[int]]:
    """The distinct items, and for each item its number among them."""
    numbers: dict[Any, int] = {}
    index = [numbers.setdefault(item, len(numbers)) for item in items]
    return list(numbers), index


# ---- formulas that are evaluated as Python ----------------------------------------------------


@dataclass(frozen=True)
class _FormulaName:
    """A formula by the class in whose body it stands.

    A class that is made anew on a worker has formulas of its own, and those are the ones that its
    instances call.
    """

    cls: type
    name: str

    def __reduce__(self) -> tuple[Any, ...]:
        return _find_formula, (self.cls, self.name)


def _find_formula(cls: type, name: str) -> Any:
    return vars(cls)[name]


@dataclass(frozen=True)
class _PackedCall:
    """An :class:`~hl_dask.opaque.OpaqueCall` without the data and results of its model."""

    cls: type
    state: dict[str, Any]
    fields: dict[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return _opaque_call, (self.cls, self.state, self.fields)


def _opaque_call(cls: type, state: dict[str, Any], fields: dict[str, Any]) -> OpaqueCall:
    instance: Any = object.__new__(cls)
    instance.__dict__.update(state)
    return OpaqueCall(instance=instance, **fields)


class _Calls:
    """Packs opaque calls; those of one model share its state."""

    def __init__(self) -> None:
        self.states: dict[int, dict[str, Any]] = {}

    def packed(self, value: Any) -> Any:
        """A value of the graph, fit for pickling."""
        if isinstance(value, np.ndarray):
            return value.view(np.ndarray)
        if not isinstance(value, OpaqueCall):
            return value
        cls, instance = type(value.instance), value.instance
        state = self.states.get(id(instance))
        if state is None:
            # Attributes with an entry for each policy are handed to the formula by block.
            drop = OWN_STATE | {name for name, _ in value.attributes}
            state = self.states[id(instance)] = {
                k: v
                for k, v in instance.__dict__.items()
                if k not in drop and not isinstance(v, BoundFormula)
            }
        fields = {
            "formula": _named(value.formula, cls),
            "key": value.key,
            "reads": tuple((_named(f, cls), key, t) for f, key, t in value.reads),
            "columns": value.columns,
            "attributes": value.attributes,
            "shape": value.shape,
            "dtype": value.dtype,
        }
        return _PackedCall(cls, state, fields)


def _named(formula: Formula, cls: type) -> Any:
    for base in cls.__mro__:
        if vars(base).get(formula.name) is formula:
            return _FormulaName(base, formula.name)
    return formula


# ---- pickling --------------------------------------------------------------------------------

_REGISTERING = threading.Lock()
_INSTALLED = ("site-packages", "dist-packages")
_EVERYWHERE = frozenset({"hl_dask", "dask", "distributed"})
"""Packages that a worker has, wherever they are installed."""


def _dumps(state: Any) -> bytes:
    try:
        with own_modules_by_value():
            return cloudpickle.dumps(state)  # type: ignore[no-any-return]
    except Exception:  # whatever an object of the user's raises when it is pickled
        # A module that cannot be taken apart may be there on the workers.
        try:
            return cloudpickle.dumps(state)  # type: ignore[no-any-return]
        except Exception as error:
            msg = f"the model cannot be sent to workers: {type(error).__name__}: {error}"
            raise SchedulerError(
                msg,
                remedy="let formulas and their assumptions hold numbers, arrays, tables and plain "
                "functions, no open files, locks or connections; or use scheduler='threads'",
            ) from error


@contextlib.contextmanager
def own_modules_by_value() -> Iterator[None]:
    """Pickle functions and classes of the user's modules by value for a while."""
    with _REGISTERING:
        known = set(cloudpickle.list_registry_pickle_by_value())
        mine = [module for module in own_modules() if module.__name__ not in known]
        for module in mine:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in mine:
                cloudpickle.unregister_pickle_by_value(module)


def own_modules() -> list[types.ModuleType]:
    """Imported modules in Python that are not installed: the user's own."""
    library = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
    return [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in _EVERYWHERE and _is_own(module, name, library)
    ]


def _is_own(module: Any, name: str, library: tuple[str, ...]) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(module, types.ModuleType) or module.__name__ != name or not file:
        return False
    path = Path(file)
    installed = any(part in _INSTALLED for part in path.parts)
    return path.suffix == ".py" and not installed and not file.startswith(library)
