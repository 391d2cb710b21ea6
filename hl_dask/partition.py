"""A pandas DataFrame as rows that a recording knows: a piece of a portfolio, or some policies.

The columns of a piece may look otherwise than those of the whole: a text that none of its rows has
is not among its categories, and a float column may hold whole numbers only. They are brought into
the form that they had in the recording, where that can be done without changing a value; anything
else is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hl_dask.errors import DataError, MissingColumnError
from hl_dask.points import ModelPoints

Kind = tuple[Any, tuple[int, ...], Any]
"""Dtype, trailing shape and categories of a column in a recording."""
RECORD_AGAIN = (
    "record the plan on data that have all that the frames have: assign model.data = ..., or call "
    "GenerateActions(sample=...)"
)


def check_frame(frame: Any) -> None:
    """Refuse what is no DataFrame.

    Raises
    ------
    DataError
    """
    if not isinstance(frame, pd.DataFrame):
        kind = f"{type(frame).__module__}.{type(frame).__qualname__}"
        msg = f"evaluate takes a pandas DataFrame with a row for each policy; got {kind}"
        raise DataError(
            msg,
            remedy="give a DataFrame: model.data.frame() has the policies of the model, and "
            "map_partitions hands over those of a Dask DataFrame",
        )


def recorded_columns(
    frame: pd.DataFrame, names: Sequence[str], kinds: Mapping[str, Kind]
) -> dict[str, Any]:
    """Columns of a frame as the kernel takes them.

    Parameters
    ----------
    frame : DataFrame
        The rows.
    names : sequence of str
        The columns that are read.
    kinds : mapping of str to (dtype, shape, categories)
        What they were in the recording.

    Returns
    -------
    dict of str to ndarray
        Arrays of shape ``(len(frame), *shape)``; codes of the recording's categories for text.

    Raises
    ------
    MissingColumnError
        When a column is not there.
    DataError
        When a column has nulls, or cannot be what it was in the recording.
    """
    places = {name: _found(frame, name, kinds[name]) for name in names}
    if not names or not len(frame):
        return {name: np.empty((0, *kinds[name][1]), kinds[name][0]) for name in names}
    points = ModelPoints(frame[[place for found in places.values() for place in found]])
    columns = {}
    for name, found in places.items():
        parts = [_as_recorded(points, place, kinds[name]) for place in found]
        columns[name] = parts[0] if found == [name] else np.stack(parts, axis=1)
    return columns


def places_of(name: str, kind: Kind) -> list[str]:
    """The column of a frame, or columns ``name[0]``, ``name[1]`` ... for several values a row."""
    shape = kind[1]
    return [f"{name}[{k}]" for k in range(shape[0])] if shape else [name]


def _found(frame: pd.DataFrame, name: str, kind: Kind) -> list[str]:
    found = places_of(name, kind)
    missing = [place for place in found if place not in frame.columns]
    if not missing:
        return found
    known = [str(column) for column in frame.columns]
    near = difflib.get_close_matches(missing[0], known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
    msg = f"the frame has no column {missing[0]!r}, which the plan reads"
    raise MissingColumnError(
        msg,
        column=missing[0],
        remedy=f"{hint}The columns are: {shown}. An attribute that the class declares in "
        "model_points is taken from a column of that name",
    )


def _as_recorded(points: ModelPoints, name: str, kind: Kind) -> Any:
    dtype, _, categories = kind
    spec = points.schema(name)
    array = points.read(0, points.rows, [name])[name]
    if categories is not None or dtype.hasobject:
        if not spec.is_text:
            raise _of_other_kind(name, spec.dtype, "text")
        return _text(name, array, spec.categories, categories)
    if spec.is_text:
        raise _of_other_kind(name, "text", dtype)
    if spec.dtype == dtype:
        return array
    if (spec.dtype.kind, dtype.kind) in (("i", "f"), ("M", "M"), ("m", "m")):
        with np.errstate(all="ignore"):
            converted = array.astype(dtype)
        if np.array_equal(converted.astype(spec.dtype), array):
            return converted
    raise _of_other_kind(name, spec.dtype, dtype)


def _of_other_kind(name: str, seen: Any, expected: Any) -> DataError:
    msg = f"column {name!r} is {seen} in the frame, and {expected} in the data of the recording"
    return DataError(
        msg,
        column=name,
        remedy=f"convert it, frame.astype({{{name!r}: ...}}), or " + RECORD_AGAIN,
    )


def _text(name: str, array: Any, mine: Any, recorded: Any) -> Any:
    """Codes of the recording's categories, or texts where it has too many of them for codes."""
    if recorded is None:
        return array if mine is None else mine[array]
    texts, where = (mine, array) if mine is not None else np.unique(array, return_inverse=True)
    codes = np.searchsorted(recorded, texts)
    known = recorded[np.minimum(codes, len(recorded) - 1)] == texts
    if not np.all(known):
        new = [repr(str(text)) for text in texts[~known]]
        shown = ", ".join(new[:5]) + (f" and {len(new) - 5} more" if len(new) > 5 else "")
        msg = f"column {name!r} has texts that the data of the recording do not have: {shown}"
        raise DataError(msg, column=name, remedy=RECORD_AGAIN)
    return codes.astype(np.int32)[where]
