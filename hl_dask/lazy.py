"""A run that has been prepared and not started: a Dask collection of one value."""

from __future__ import annotations

import copy
import importlib.util
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import dask
from dask.base import DaskMethodsMixin
from dask.local import get_sync
from dask.task_spec import Task
from dask.threaded import get as get_threaded

from hl_dask import _dask_compat
from hl_dask.budget import processors
from hl_dask.errors import UnsupportedError
from hl_dask.lower import label_of
from hl_dask.run import Projection
from hl_dask.settings import SYNCHRONOUS, Settings


class LazyResult(DaskMethodsMixin):
    """What ``ExecuteActions(compute=False)`` gives: ``compute()`` gives the Result.

    Works with :func:`dask.compute`, :func:`dask.visualize` and the callbacks of
    ``dask.diagnostics``. The graph is one pass over the rows; a model that turns totals into Python
    values may need another one, which follows when the first has been computed. A model that is
    replayed in one piece is a graph of one task.

    Parameters
    ----------
    title : str
        What is run, for people.
    projection : Projection or None
        The passes over the rows, not started; None when the model is replayed in one piece.
    settings : Settings
        Memory, scheduler, threads.
    execute : callable
        ``execute(projection)`` goes on with what has been computed and gives the Result.

    Raises
    ------
    MemoryBudgetError
        When the projected peak of the pass is above what is allowed.

    Notes
    -----
    The memory allowed holds for as many threads as were chosen for it, which is what ``compute()``
    takes by default; ``num_workers=`` and ``scheduler=`` of a later ``compute`` override it.
    """

    __dask_optimize__ = None

    def __init__(
        self,
        title: str,
        projection: Projection | None,
        settings: Settings,
        execute: Callable[[Projection | None], Any],
    ) -> None:
        self._title = title
        self._is_here = True
        self._projection = projection
        self._execute = execute
        prepared = projection.prepare() if projection is not None else None
        # Without a pass there is still something to compute.
        self._direct = prepared is None
        if prepared is None:
            key = f"run-{uuid.uuid4().hex[:12]}"
            prepared = {key: Task(key, execute, projection)}, key
        self._graph: Mapping[Any, Any] = prepared[0]
        self._key = prepared[1]
        self.__dask_scheduler__ = self._scheduler(settings)

    def _scheduler(self, settings: Settings) -> Callable[..., Any]:
        if settings.scheduler in SYNCHRONOUS:
            return get_sync
        workers = self._projection.stats.workers if self._projection is not None else 1
        if self._direct or workers == processors():
            # The plain function, because Dask computes collections together only if theirs is one.
            return get_threaded
        return partial(get_threaded, num_workers=workers)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_is_here": False}

    def compute(self, **kwargs: Any) -> Any:
        """The Result; see :meth:`dask.base.DaskMethodsMixin.compute`.

        The graph is computed wherever dask is told to; what is made of it, and another pass if one
        is needed, is up to this process, which has the model.
        """
        if self._direct:
            return self._execute(self._projection)
        values = copy.copy(self)
        values.__dask_postcompute__ = lambda: (_only, ())  # type: ignore[method-assign]
        (found,) = dask.compute(values, **kwargs)  # type: ignore[attr-defined, no-untyped-call]
        return self._finish([found])

    def __dask_graph__(self) -> Mapping[Any, Any]:
        return self._graph

    def __dask_keys__(self) -> list[Any]:
        return [self._key]

    def __dask_layers__(self) -> tuple[str, ...]:
        return (self._key,)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return ("hl_dask.LazyResult", self._key)

    def __dask_postcompute__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._finish, ()

    def __dask_postpersist__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._rebuild, ()

    def _finish(self, values: Any) -> Any:
        (found,) = values
        if self._direct or self._projection is None:
            return found
        if not self._is_here:
            self._projection.rerecord = _refused
        self._projection.take_in(found)
        return self._execute(self._projection)

    def _rebuild(
        self, graph: Mapping[Any, Any], *, rename: Mapping[str, str] | None = None
    ) -> LazyResult:
        other = copy.copy(self)
        other._graph = graph
        other._key = (rename or {}).get(self._key, self._key)
        return other

    def visualize(self, filename: Any = "hl_dask.svg", **options: Any) -> Any:  # type: ignore[override]
        """Draw the graph, with formula calls or time steps by name; see :func:`dask.visualize`.

        Raises
        ------
        UnsupportedError
            When graphviz is not installed.
        """
        if importlib.util.find_spec("graphviz") is None:
            msg = "drawing a graph needs the Python package graphviz, which is not installed"
            raise UnsupportedError(
                msg,
                remedy="install it (pip install 'hl-dask[plot]') and the program dot of Graphviz",
            )
        for kind in ("function_attributes", "data_attributes"):
            shown = {key: {"label": label_of(key)} for key in self._graph}
            options[kind] = shown | options.get(kind, {})
        return _dask_compat.visualize(self, filename=str(filename), **options)

    def __repr__(self) -> str:
        return f"<LazyResult of {self._title}: {len(self._graph):,} tasks, not computed>"


def _only(values: Any) -> Any:
    (found,) = values
    return found


def _refused(*_: Any) -> Any:
    msg = (
        "a total that a formula turned into a Python value is another one than on the sample, and "
        "the model can be traced again only where it was made"
    )
    raise UnsupportedError(msg, remedy="compute the run by itself: lazy.compute()")
