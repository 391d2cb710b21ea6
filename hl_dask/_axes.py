"""The axes of a look-up table: which row a key means, checked.

Every axis turns an array of keys into positions along the table, and raises when a key is not in
the table: a look-up never falls onto a neighbour. The quick path costs a minimum and a maximum of
the keys; which keys are wrong is worked out only when one is.
"""

from __future__ import annotations

import abc
import difflib
from typing import Any

import numpy as np
import pandas as pd

from hl_dask._columns import MAX_CATEGORIES, Array
from hl_dask._memory import MemoryColumn, memory_column
from hl_dask.errors import DataError, LookupKeyError

KINDS = ("int", "int_bound", "int_cat", "str", "band")

_INT64 = np.iinfo(np.int64)
# Keys below this are not shifted to start at 0: the whole table is shifted once instead.
_SMALL = 2**31


class Axis(abc.ABC):
    """One key of a table.

    ``index`` returns, for an array of keys, int64 numbers that are ``origin`` above the position.
    """

    kind = ""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.origin = 0

    @abc.abstractmethod
    def index(self, keys: Array, owner: str) -> Array:
        """Return the positions (plus ``origin``) of the keys, int64 of the same shape."""

    @abc.abstractmethod
    def wrong(self, keys: Array) -> Array:
        """Return a mask of the keys that the axis does not hold."""

    @abc.abstractmethod
    def labels(self) -> Array:
        """Return the keys in order of position."""

    def valid(self) -> str:
        """Return the valid keys in words."""
        return listed(self.labels().tolist())

    def remedy(self, keys: list[Any]) -> str:
        """Return what to do about these unknown keys."""
        del keys
        return "mend the keys or add rows to the table"

    def unknown(self, keys: Array, owner: str) -> LookupKeyError:
        """Build the error that names the keys which are not in the table."""
        mask = np.atleast_1d(self.wrong(keys))
        bad = np.atleast_1d(keys)[mask]
        some = bad[:1000].tolist()
        distinct = list(dict.fromkeys(value for value in some if value == value))
        missing = ["NaN (a missing value)"] if any(v != v for v in some) else []
        shown = ", ".join([*missing, *([listed(distinct)] if distinct else [])])
        count = (
            f"; {bad.size:,} of {mask.size:,} keys, first at {_place(mask)}" if keys.ndim else ""
        )
        return LookupKeyError(
            f"{owner} has no {self.name!r} = {shown}{count}; valid ({self.kind}): {self.valid()}",
            column=self.name,
            remedy=self.remedy(distinct),
        )

    def mistyped(self, keys: Array, owner: str, expected: str) -> LookupKeyError:
        """Build the error for keys of the wrong type."""
        some = listed(np.unique(keys.ravel()[:3]).tolist()) if keys.dtype.kind != "O" else ""
        return LookupKeyError(
            f"{owner}: key {self.name!r} ({self.kind}) takes {expected}, got {keys.dtype} {some}",
            column=self.name,
            remedy=f"convert the key before the look-up; valid: {self.valid()}",
        )


def listed(values: list[Any], most: int = 5) -> str:
    """Return a few values as text."""
    text = ", ".join(repr(value) for value in values[:most])
    return text + (f", ... ({len(values):,} values)" if len(values) > most else "")


def _place(mask: Array) -> str:
    at = [int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape)]
    return f"row {at[0]:,}" if len(at) == 1 else f"index {tuple(at)}"


def whole_numbers(keys: Array, axis: Axis, owner: str) -> Array:
    """Return integer keys as int64; floats only if they are whole numbers."""
    kind = keys.dtype.kind
    if kind == "f":
        with np.errstate(invalid="ignore"):
            whole = keys.astype(np.int64)
        fractional = whole != keys
        if fractional.any():
            some = list(
                dict.fromkeys(np.atleast_1d(keys)[np.atleast_1d(fractional)][:100].tolist())
            )
            words = "a missing value (NaN)" if any(v != v for v in some) else "no whole number"
            msg = f"{owner}: key {axis.name!r} ({axis.kind}) is {words}: {listed(some)}"
            raise LookupKeyError(
                msg,
                column=axis.name,
                remedy=f"round or fill the key before the look-up; valid: {axis.valid()}",
            )
        return whole
    if kind not in "iu":
        raise axis.mistyped(keys, owner, "integers")
    if keys.dtype == np.uint64 and keys.size and int(keys.max()) > _INT64.max:
        if axis.kind != "int_bound":
            raise axis.unknown(keys, owner)
        keys = np.minimum(keys, np.uint64(_INT64.max))
    return keys.astype(np.int64, copy=False)


class IntAxis(Axis):
    """Consecutive integers; ``bound`` clips keys to the lowest and highest."""

    def __init__(self, name: str, low: int, high: int, *, bound: bool = False) -> None:
        super().__init__(name, high - low + 1)
        self.kind = "int_bound" if bound else "int"
        self.low, self.high = low, high
        self.origin = low if -_SMALL < low < _SMALL else 0

    def index(self, keys: Array, owner: str) -> Array:
        """See :class:`Axis`."""
        whole = whole_numbers(keys, self, owner)
        if whole.size and (whole.min() < self.low or whole.max() > self.high):
            if self.kind == "int":
                raise self.unknown(keys, owner)
            whole = np.clip(whole, self.low, self.high)
        return whole if self.origin == self.low else whole - self.low

    def wrong(self, keys: Array) -> Array:
        """See :class:`Axis`."""
        return (keys < self.low) | (keys > self.high)

    def labels(self) -> Array:
        """See :class:`Axis`."""
        return np.arange(self.low, self.high + 1)

    def valid(self) -> str:
        """See :class:`Axis`."""
        return f"{self.low} to {self.high}"

    def remedy(self, keys: list[Any]) -> str:
        """See :class:`Axis`."""
        del keys
        return (
            f"add rows to the table, or name its column '{self.name}|int_bound' to hold the values "
            "of the lowest and highest key beyond them"
        )


class PositionAxis(IntAxis):
    """An axis of a plain array: positions from 0, given as integers."""

    def __init__(self, number: int, size: int) -> None:
        super().__init__(f"axis {number}", 0, size - 1)

    def index(self, keys: Array, owner: str) -> Array:
        """See :class:`Axis`."""
        if keys.dtype.kind not in "iu":
            raise self.mistyped(keys, owner, "integers")
        return super().index(keys, owner)

    def valid(self) -> str:
        """See :class:`Axis`."""
        return f"0 to {self.high}, size {self.size}" if self.size else "none, size 0"

    def remedy(self, keys: list[Any]) -> str:
        """See :class:`Axis`."""
        del keys
        return "clip the index where that is meant, e.g. np.clip(index, 0, size - 1)"


class IntCatAxis(Axis):
    """Integers with gaps."""

    kind = "int_cat"

    def __init__(self, name: str, categories: Array) -> None:
        super().__init__(name, len(categories))
        self._categories = categories.astype(np.int64)
        self._low, self._high = int(categories[0]), int(categories[-1])
        self._map: Array | None = None
        if self._high - self._low < MAX_CATEGORIES + 4 * len(categories):
            self._map = np.full(self._high - self._low + 1, -1, dtype=np.int64)
            self._map[self._categories - self._low] = np.arange(len(categories))

    def index(self, keys: Array, owner: str) -> Array:
        """See :class:`Axis`."""
        whole = whole_numbers(keys, self, owner)
        if not whole.size:
            return whole
        if whole.min() < self._low or whole.max() > self._high:
            raise self.unknown(keys, owner)
        if self._map is not None:
            found: Array = np.take(self._map, whole - self._low, mode="clip")
            missing = bool(found.min() < 0)
        else:
            found = np.asarray(np.searchsorted(self._categories, whole))
            missing = bool((self._categories[found] != whole).any())
        if missing:
            raise self.unknown(keys, owner)
        return found

    def wrong(self, keys: Array) -> Array:
        """See :class:`Axis`."""
        return ~np.isin(keys, self._categories)

    def labels(self) -> Array:
        """See :class:`Axis`."""
        return self._categories


class BandAxis(Axis):
    """Bands given by their upper bounds: a key belongs to the first bound not below it."""

    kind = "band"

    def __init__(self, name: str, bounds: Array) -> None:
        super().__init__(name, len(bounds))
        self._bounds = bounds.astype(np.float64)

    def index(self, keys: Array, owner: str) -> Array:
        """See :class:`Axis`."""
        if keys.dtype.kind not in "iuf":
            raise self.mistyped(keys, owner, "numbers")
        found: Array = np.asarray(np.searchsorted(self._bounds, keys, side="left"))
        # NaN sorts behind every bound, like a key above the top band.
        if found.size and found.max() == self.size:
            raise self.unknown(keys, owner)
        return found

    def wrong(self, keys: Array) -> Array:
        """See :class:`Axis`."""
        inside: Array = keys <= self._bounds[-1]
        return ~inside

    def labels(self) -> Array:
        """See :class:`Axis`."""
        return self._bounds

    def valid(self) -> str:
        """See :class:`Axis`."""
        return f"up to {self._bounds[-1]:g}; upper bounds {listed(self._bounds.tolist())}"

    def remedy(self, keys: list[Any]) -> str:
        """See :class:`Axis`."""
        del keys
        return "add a top band, whose upper bound may be inf, and fill missing keys"


class TextAxis(Axis):
    """Strings."""

    kind = "str"

    def __init__(self, name: str, categories: Array) -> None:
        super().__init__(name, len(categories))
        self._categories = categories
        self._position = {text: at for at, text in enumerate(categories.tolist())}

    def encode(self, categories: Array) -> Array:
        """Return the position of each string, -1 where the axis lacks it."""
        position = self._position
        return np.array([position.get(text, -1) for text in categories.tolist()], dtype=np.int64)

    def index(self, keys: Array, owner: str) -> Array:
        """See :class:`Axis`."""
        if keys.dtype.kind not in "OUT":
            raise self.mistyped(keys, owner, "text")
        codes, distinct = pd.factorize(keys.astype(object).ravel(), use_na_sentinel=False)
        found = self.encode(np.asarray(distinct, dtype=object))[codes].reshape(keys.shape)
        if found.size and found.min() < 0:
            raise self.unknown(keys.astype(object), owner)
        return found

    def index_codes(self, codes: Array, mapping: Array, categories: Array, owner: str) -> Array:
        """Return positions for codes into categories; ``mapping`` is ``encode(categories)``."""
        found: Array = np.take(mapping, codes, mode="clip")
        if found.size and found.min() < 0:
            raise self.unknown(categories[codes], owner)
        return found

    def wrong(self, keys: Array) -> Array:
        """See :class:`Axis`."""
        position = self._position
        flat = [text not in position for text in np.asarray(keys, dtype=object).ravel().tolist()]
        return np.array(flat, dtype=np.bool_).reshape(np.shape(keys))

    def labels(self) -> Array:
        """See :class:`Axis`."""
        return self._categories

    def remedy(self, keys: list[Any]) -> str:
        """See :class:`Axis`."""
        near = [
            match
            for key in keys[:5]
            for match in difflib.get_close_matches(str(key), self._categories.tolist(), n=2)
        ]
        hint = f"near matches: {listed(list(dict.fromkeys(near)))}; " if near else ""
        return f"{hint}mend the keys or add rows to the table"


# --- from the columns of a DataFrame -------------------------------------------------------------


def split_header(header: Any) -> tuple[str, str]:
    """Split ``age|int`` into the name and the kind of a key column."""
    name, mark, kind = str(header).rpartition("|")
    kind = kind.strip()
    if not mark or kind not in KINDS:
        msg = f"key column {header!r} of the table has no known suffix"
        raise DataError(
            msg,
            column=str(header),
            remedy=f"end its name in one of {', '.join('|' + kind for kind in KINDS)}; "
            "the last column holds the values",
        )
    return name.strip(), kind


def build_axis(header: Any, data: Any, *, gaps: bool) -> tuple[Axis, Array]:
    """Build the axis for a key column, and return its keys as arrays that ``index`` takes.

    ``gaps`` lets ``|int`` keys have gaps, for tables that are filled up.
    """
    name, kind = split_header(header)
    column = memory_column(str(header), data)
    if kind == "str":
        return _text_axis(name, header, column)
    if column.spec.is_text:
        expected = "upper bounds as numbers" if kind == "band" else "integers"
        msg = f"key column {str(header)!r} holds text; expected {expected}"
        raise DataError(
            msg, column=str(header), remedy="convert it to numbers, or give it the suffix |str"
        )
    keys = column.read(0, len(column.base))
    if kind == "band":
        return _band_axis(name, header, keys)
    whole = _whole_column(header, keys)
    distinct = np.unique(whole)
    if kind == "int_cat":
        return IntCatAxis(name, distinct), whole
    low, high = int(distinct[0]), int(distinct[-1])
    if high - low + 1 != len(distinct) and not gaps:
        at = int(np.argmax(np.diff(distinct) > 1))
        msg = (
            f"key column {str(header)!r} has a gap: {int(distinct[at]) + 1} is missing "
            f"between {distinct[at]} and {distinct[at + 1]}"
        )
        raise DataError(
            msg,
            column=str(header),
            remedy=f"name the column '{name}|int_cat' if only the listed integers occur, or fill "
            "the gap, e.g. by Table.rectify(df, fill=...)",
        )
    return IntAxis(name, low, high, bound=kind == "int_bound"), whole


def _text_axis(name: str, header: Any, column: MemoryColumn) -> tuple[Axis, Array]:
    spec = column.spec
    if not spec.is_text:
        msg = f"key column {str(header)!r} holds {column.base.dtype}; expected text"
        raise DataError(
            msg,
            column=str(header),
            remedy=f"convert it, e.g. df[{header!r}] = df[{header!r}].astype(str)",
        )
    if spec.categories is None:
        distinct = np.array(sorted(set(column.base.tolist())), dtype=object)
        return TextAxis(name, distinct), column.base
    return TextAxis(name, spec.categories), spec.categories[column.base]


def _band_axis(name: str, header: Any, keys: Array) -> tuple[Axis, Array]:
    if keys.dtype.kind not in "if":
        msg = f"key column {str(header)!r} holds {keys.dtype}; expected upper bounds as numbers"
        raise DataError(
            msg,
            column=str(header),
        )
    numbers = keys.astype(np.float64)
    if np.isnan(numbers).any():
        msg = (
            f"key column {str(header)!r} has a missing value, first in row "
            f"{int(np.argmax(np.isnan(numbers)))}"
        )
        raise DataError(
            msg,
            column=str(header),
            remedy="the top band may have the upper bound inf",
        )
    return BandAxis(name, np.unique(numbers)), numbers


def _whole_column(header: Any, keys: Array) -> Array:
    if keys.dtype.kind not in "if":
        msg = f"key column {str(header)!r} holds {keys.dtype}; expected integers"
        raise DataError(
            msg,
            column=str(header),
            remedy="convert it to integers, or give it the suffix |str or |band",
        )
    with np.errstate(invalid="ignore"):
        whole = keys.astype(np.int64)
    if (whole != keys).any():
        at = int(np.argmax(whole != keys))
        msg = f"key column {str(header)!r} holds {keys[at]} in row {at}; expected integers"
        raise DataError(
            msg,
            column=str(header),
            remedy="round or fill the column, or give it the suffix |band",
        )
    return whole
