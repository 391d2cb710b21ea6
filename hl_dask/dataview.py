"""``self.data``: what a formula sees of the model points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hl_dask.errors import ReadOnlyError


class DataView:
    """Columns over the rows at hand, the same face in a plain run, a recording and a replay.

    ``data["age"]`` and ``data.age`` are one array with an entry for each row: int64, float64, bool
    or dates, or a pandas Categorical of texts. ``len(data)`` is the number of rows.

    Parameters
    ----------
    columns : tuple of str
        Names of the columns.
    column : callable
        ``column(name)`` gives the values; raises MissingColumnError.
    rows : callable
        ``rows()`` gives the number of rows.
    frame : callable
        ``frame()`` gives the rows as a pandas DataFrame.
    """

    __slots__ = ("_cache", "_column", "_columns", "_frame", "_rows")

    def __init__(
        self,
        columns: tuple[str, ...],
        column: Callable[[str], Any],
        rows: Callable[[], int],
        frame: Callable[[], Any],
    ) -> None:
        object.__setattr__(self, "_columns", columns)
        object.__setattr__(self, "_column", column)
        object.__setattr__(self, "_rows", rows)
        object.__setattr__(self, "_frame", frame)
        object.__setattr__(self, "_cache", {})

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        columns: tuple[str, ...] = self._columns
        return columns

    def __getitem__(self, name: str) -> Any:
        found = self._cache.get(name)
        if found is None:
            found = self._cache.setdefault(name, self._column(name))
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        msg = f"the model points are read-only, {name!r} cannot be assigned"
        raise ReadOnlyError(
            msg,
            column=name,
            remedy="add the column before the run, or compute it in a formula",
        )

    def __setitem__(self, name: str, value: Any) -> None:
        self.__setattr__(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return int(self._rows())

    def keys(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self.columns

    def frame(self) -> Any:
        """The rows as a pandas DataFrame."""
        return self._frame()

    def __repr__(self) -> str:
        return f"<model points with columns {', '.join(self._columns)}>"
