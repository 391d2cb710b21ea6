"""A run that has been prepared and not started: a Dask collection of one value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.threaded
from dask.base import DaskMethodsMixin


class LazyResult(DaskMethodsMixin):  # type: ignore[misc]
    """What ``ExecuteActions(compute=False)`` gives: ``compute()`` gives the Result.

    Works with :func:`dask.compute`, :func:`dask.visualize` and the callbacks of ``dask.diagnostics``.
    The graph is one pass over the rows; a model that turns totals into Python values may need another one,
    which follows when the first has been computed.

    Parameters
    ----------
    run : object
        Has ``projection`` and ``execute()``; see the model.
    """

    __dask_optimize__ = None
    __dask_scheduler__ = staticmethod(dask.threaded.get)

    def __init__(self, run: Any) -> None:
        self._run = run
        projection = run.projection
        self._prepared = projection.prepare() if projection is not None else None

    def __dask_graph__(self) -> Any:
        return None if self._prepared is None else self._prepared[0]

    def __dask_keys__(self) -> list[Any]:
        return [] if self._prepared is None else [self._prepared[1]]

    def __dask_layers__(self) -> tuple[str, ...]:
        return tuple(str(key) for key in self.__dask_keys__())

    def __dask_tokenize__(self) -> Any:
        return ("hl_dask.LazyResult", *map(str, self.__dask_keys__()))

    def __dask_postcompute__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._finish, ()

    def _finish(self, values: Any) -> Any:
        (found,) = values
        self._run.projection.take_in(found)
        return self._run.execute()

    def compute(self, **kwargs: Any) -> Any:
        """Run; gives the Result."""
        if self._prepared is None:
            return self._run.execute()
        return super().compute(**kwargs)

    def __repr__(self) -> str:
        tasks = 0 if self._prepared is None else len(self._prepared[0])
        return f"<LazyResult: {tasks} tasks, not computed>"
