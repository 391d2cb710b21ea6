"""The one place that touches what dask and NumPy do not export with types, or not at all."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

import dask
import numpy as np
from dask._task_spec import convert_legacy_graph, cull
from dask.local import get_sync
from dask.threaded import get as get_threaded

VERSION: str = getattr(dask, "__version__", "unknown")


def run_threads(graph: Mapping[Any, Any], key: Any, workers: int) -> Any:
    """Value of a key of a graph, computed on threads of this process."""
    return get_threaded(graph, key, num_workers=workers)


def run_here(graph: Mapping[Any, Any], key: Any) -> Any:
    """Value of a key of a graph, computed in this thread."""
    return get_sync(graph, key)


def as_tasks(collection: Any) -> dict[Any, Any]:
    """The graph of a collection as tasks that know their dependencies."""
    tasks: dict[Any, Any] = convert_legacy_graph(dict(collection.__dask_graph__()))
    return tasks


def needed(tasks: dict[Any, Any], key: Any) -> dict[Any, Any]:
    """The tasks that one key depends on."""
    found: dict[Any, Any] = cull(tasks, {key})
    return found


def lengths_of(pieces: list[list[Any]]) -> list[list[int]]:
    """Lengths of delayed objects, several lists of them in one computation."""
    lengths = [[dask.delayed(len)(piece) for piece in each] for each in pieces]  # type: ignore[attr-defined]
    return [list(each) for each in dask.compute(*lengths)]  # type: ignore[attr-defined, no-untyped-call]


@contextlib.contextmanager
def partitions_stay() -> Iterator[None]:
    """Let dask optimise DataFrames without putting partitions together.

    When few columns are read it otherwise does so, and partition 3 is another one then. Shuffles
    are made of tasks, which can run anywhere.
    """
    with dask.config.set({"optimization.tune.active": False, "dataframe.shuffle.method": "tasks"}):
        yield


@contextlib.contextmanager
def progress_bar(out: TextIO) -> Iterator[None]:
    """Dask's progress bar while a graph is computed."""
    from dask.diagnostics.progress import ProgressBar  # noqa: PLC0415 - only when somebody watches

    with ProgressBar(out=out):  # type: ignore[no-untyped-call]
        yield


def visualize(collection: Any, filename: str, **options: Any) -> Any:
    """Draw the graph of a collection; needs graphviz."""
    return dask.visualize(collection, filename=filename, **options)  # type: ignore[attr-defined]


def keep_freed_memory() -> None:
    """Let the C library keep the arrays that a kernel frees for those that it makes next.

    The nanny of a worker tells the C library to give freed memory back at once, which is right
    for large results that come and go. A kernel makes and frees the same arrays of about a
    megabyte thousands of times a second, and getting their pages anew takes as long as filling
    them. Where the C library is not glibc this does nothing.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            mallopt(option, KEPT_BYTES)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 32 << 20


def cpu_features() -> str:
    """Processor features that NumPy has found and may dispatch on."""
    core = getattr(np, "_core", None)
    features = getattr(getattr(core, "_multiarray_umath", None), "__cpu_features__", {})
    return ",".join(sorted(name for name, found in features.items() if found))
