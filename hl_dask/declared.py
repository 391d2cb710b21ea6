"""Per-policy inputs that are attributes of the model instead of columns of its data.

heavylight models often keep arrays, or one object that holds arrays, as attributes. Declared in
``model_points = ("initial_pols_if", "mp")`` they are cut by rows like columns. A declared array
``mp`` becomes the column ``mp``, the arrays of a declared object become ``mp.age``, ``mp.term`` ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hl_dask.errors import DataError, ModelError
from hl_dask.points import ColumnSpec, ModelPoints


class Record:
    """Stands in for a declared object: the same fields, by attribute or by key.

    Parameters
    ----------
    fields : dict
        Values by name: arrays over the rows at hand, and whatever else the object held.
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        object.__setattr__(self, "_fields", fields)

    def fields(self) -> list[tuple[str, Any]]:
        """Names and values."""
        return list(self._fields.items())

    def mapped(self, function: Callable[[Any], Any]) -> Record:
        """A record with a function applied to each value."""
        return Record({k: function(v) for k, v in self._fields.items()})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._fields[name]
        except KeyError:
            # Not an AttributeError: hasattr, and getattr with a default, would go on without it.
            known = ", ".join(self._fields)
            msg = f"the declared object has no {name!r} that is data; it has {known}"
            raise ModelError(
                msg,
                remedy="let the object hold arrays and numbers as attributes; its methods and "
                "properties are not taken along",
            ) from None

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __setattr__(self, name: str, value: Any) -> None:
        msg = f"declared model points are read-only, {name!r} cannot be assigned"
        raise AttributeError(msg)

    def __len__(self) -> int:
        return max((len(v) for v in self._fields.values() if np.ndim(v)), default=0)


def is_row_array(value: Any) -> bool:
    """Whether a value is an array, Series or Categorical with at least one axis."""
    shape = getattr(value, "shape", None)
    return isinstance(shape, tuple) and len(shape) >= 1 and hasattr(value, "dtype")


def fields_of(value: Any) -> dict[str, Any]:
    """The named values of a declared object: a mapping, a DataFrame, or any with attributes."""
    if isinstance(value, Mapping):
        return {str(k): v for k, v in value.items()}
    if hasattr(value, "columns") and hasattr(value, "__getitem__"):
        return {str(k): value[k] for k in value.columns}
    slots = [s for c in type(value).__mro__ for s in getattr(c, "__slots__", ())]
    fields = {
        k: v
        for c in reversed(type(value).__mro__)
        for k, v in vars(c).items()
        if k[:1] != "_" and not callable(v) and not hasattr(v, "__get__")
    }
    fields |= {s: getattr(value, s) for s in slots if hasattr(value, s)}
    return fields | {
        k: v for k, v in getattr(value, "__dict__", {}).items() if not k.startswith("_")
    }


def shared_fields(value: Any) -> dict[str, Any]:
    """What a declared object holds besides arrays: shared by all policies."""
    if is_row_array(value) and not hasattr(value, "columns"):
        return {}
    return {k: v for k, v in fields_of(value).items() if not is_row_array(v)}


def declared_columns(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Columns that declared attributes bring: name (or ``name.field``) to array."""
    columns: dict[str, Any] = {}
    for name, value in attributes.items():
        if is_row_array(value) and not hasattr(value, "columns"):
            columns[name] = value
            continue
        arrays = {f"{name}.{k}": v for k, v in fields_of(value).items() if is_row_array(v)}
        if not arrays:
            kind = type(value).__name__
            msg = f"model_points declares {name!r}, which holds no array: it is a {kind}"
            raise ModelError(
                msg,
                remedy=f"assign an array or an object of arrays to {name}, or take it out of "
                "model_points",
            )
        columns |= arrays
    return columns


def rebuild(name: str, value: Any, column: Callable[[str], Any]) -> Any:
    """A declared attribute with its arrays taken from columns instead."""
    if is_row_array(value) and not hasattr(value, "columns"):
        return column(name)
    return Record(
        {k: column(f"{name}.{k}") if is_row_array(v) else v for k, v in fields_of(value).items()}
    )


class JoinedPoints(ModelPoints):
    """Model points with declared attributes beside the columns of the data.

    Parameters
    ----------
    data : ModelPoints
        The data.
    declared : ModelPoints
        The declared attributes, in memory; as many rows.
    """

    __slots__ = ("_data", "_declared")

    def __init__(self, data: ModelPoints, declared: ModelPoints) -> None:
        if data.rows != declared.rows:
            msg = (
                f"the declared attributes {', '.join(declared.columns)} have {declared.rows:,} "
                f"entries and the data {data.rows:,} rows"
            )
            raise DataError(
                msg,
                remedy="assign the attributes that belong to this data, or make them columns of it",
            )
        super().__init__(data)
        self._data = data
        self._declared = declared

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedPoints, (self._data, self._declared)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of the data; declared attributes are reached by their own names."""
        return self._data.columns

    def loaded(self, columns: Sequence[str] | None = None) -> ModelPoints:
        """See :class:`~hl_dask.ModelPoints`."""
        return JoinedPoints(self._data.loaded(columns), self._declared)

    def _split(self, columns: Sequence[str]) -> tuple[list[str], list[str]]:
        own = [c for c in columns if c not in self._declared.columns]
        return own, [c for c in columns if c in self._declared.columns]

    def split_held(self, columns: Sequence[str]) -> tuple[tuple[str, ...], ModelPoints]:
        """Which of some columns are in memory, and where the others are."""
        own, extra = self._split(columns)
        return tuple([*extra, *own] if self._data.in_memory else extra), self._data

    def schema(self, column: str) -> ColumnSpec:
        """See :class:`~hl_dask.ModelPoints`."""
        source = self._declared if column in self._declared.columns else self._data
        return source.schema(column)

    def nbytes_per_row(self, columns: Sequence[str]) -> int:
        """See :class:`~hl_dask.ModelPoints`."""
        own, extra = self._split(columns)
        return self._data.nbytes_per_row(own) + self._declared.nbytes_per_row(extra)

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Any]:
        """See :class:`~hl_dask.ModelPoints`."""
        own, extra = self._split(columns)
        return self._data.read(start, stop, own) | self._declared.read(start, stop, extra)

    def take(self, column: str, positions: Any) -> Any:
        """See :class:`~hl_dask.ModelPoints`."""
        source = self._declared if column in self._declared.columns else self._data
        return source.take(column, positions)

    def read_bytes(self, columns: Sequence[str], chunk_rows: int) -> int:
        """See :class:`~hl_dask.ModelPoints`."""
        own, extra = self._split(columns)
        return self._data.read_bytes(own, chunk_rows) + self._declared.read_bytes(extra, chunk_rows)


def all_columns(points: ModelPoints) -> tuple[str, ...]:
    """Names of the columns, those of declared attributes included."""
    extra = points._declared.columns if isinstance(points, JoinedPoints) else ()
    return (*points.columns, *extra)


def join_points(data: ModelPoints | None, attributes: Mapping[str, Any]) -> ModelPoints | None:
    """The model points that a model works on: its data with its declared attributes."""
    if not attributes:
        return data
    declared = ModelPoints(declared_columns(attributes))
    return JoinedPoints(data, declared) if data is not None else declared


def _is_as_long(value: Any, rows: int) -> bool:
    """Whether a value is an array, a frame or a mapping of arrays with so many rows."""
    if is_row_array(value) or (type(value).__module__.startswith("pandas") and len(value.shape)):
        return bool(value.shape[0] == rows)
    if type(value) is dict:
        return any(is_row_array(v) and v.shape[0] == rows for v in value.values())
    return False


def check_undeclared(
    model: str,
    attributes: Mapping[str, Any],
    declared: tuple[str, ...],
    shared: tuple[str, ...],
    rows: int,
) -> None:
    """Refuse an array attribute as long as the data that nobody has declared.

    Parameters
    ----------
    model : str
        Name of the model class.
    attributes : mapping of str to object
        Attributes of the model.
    declared, shared : tuple of str
        What the class declares as ``model_points`` and as ``assumptions``.
    rows : int
        Rows of the data.

    Raises
    ------
    ModelError
        With the line to add to the class.
    """
    for name, value in attributes.items():
        if name in declared or name in shared or rows == 1:
            continue
        if _is_as_long(value, rows):
            mine = _line("model_points", declared, name)
            other = _line("assumptions", shared, name)
            msg = (
                f"the attribute {name!r} has an array with {rows:,} entries, as many as there are "
                "policies, and hl_dask does not know whether they belong to the policies"
            )
            raise ModelError(
                msg,
                remedy=f"if they do, add to class {model}: {mine}; if it is shared by all "
                f"policies: {other}",
            )


def _line(variable: str, names: tuple[str, ...], name: str) -> str:
    """The class attribute that declares one more name, as it is written in source."""
    entries = ", ".join(f'"{n}"' for n in (*names, name))
    return f"{variable} = ({entries}{',' if not names else ''})"
