"""The machinery of a checked look-up, behind :mod:`hl_dask.table`.

A look-up adds up ``position * stride`` over the axes, and takes from the flat values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from hl_dask._axes import Axis, TextAxis
from hl_dask._columns import Array
from hl_dask._memory import memory_column
from hl_dask.errors import DataError, LookupKeyError, ModelError

_HOOK = "__hl_lookup__"


class BoundTable:
    """A look-up prepared for the form in which its keys arrive; picklable.

    Parameters
    ----------
    table : Table or ArrayTable
        Where to look up.
    categories : tuple of (numpy.ndarray or None)
        For each key, the strings that its integer codes point to, or None for plain keys.
    """

    def __init__(self, table: Lookup, categories: tuple[Array | None, ...]) -> None:
        self.table = table
        self.categories = categories
        axes, shape = table._leading(len(categories))
        self._axes = axes
        self._maps = tuple(
            None if strings is None else table.encode_text(at, strings)
            for at, strings in enumerate(categories)
        )
        sizes = [axis.size for axis in axes]
        self._strides = tuple(
            int(np.prod(sizes[at + 1 :], dtype=np.int64)) for at in range(len(sizes))
        )
        self._base = -sum(
            axis.origin * stride for axis, stride in zip(axes, self._strides, strict=True)
        )
        self._values = table._values.reshape(shape)

    def __reduce__(self) -> tuple[Any, ...]:
        # Rebuilt on the other side: the values travel once, with the table.
        return BoundTable, (self.table, self.categories)

    def __call__(self, *keys: Any, out: Array | None = None) -> Any:
        """Look up arrays of keys (or codes), broadcast as NumPy does.

        Parameters
        ----------
        *keys : array_like
            One per key of the table.
        out : numpy.ndarray, optional
            Where to write the values: of the table's dtype and of the shape of the result.

        Returns
        -------
        numpy.ndarray or scalar
            The values, a scalar for scalar keys.

        Raises
        ------
        LookupKeyError
            If the table does not hold a key.
        """
        self.table._check_count(len(keys), exact=len(self.categories))
        flat: Any = None
        for at, key in enumerate(keys):
            part = self._positions(at, np.asarray(key))
            stride = self._strides[at]
            if stride != 1:
                part = part * stride
            if flat is None:
                flat = part
            else:
                # Into the new array where it is ours and large enough, else into one more.
                ours = stride != 1 and np.shape(part) == np.broadcast_shapes(part.shape, flat.shape)
                flat = np.add(flat, part, out=part) if ours and part.ndim else flat + part
        if self._base:
            flat = flat + self._base
        return np.take(self._values, flat, axis=0, out=out, mode="clip")

    def _positions(self, at: int, key: Array) -> Array:
        axis, mapping, strings = self._axes[at], self._maps[at], self.categories[at]
        if mapping is None or strings is None:
            return axis.index(key, self.table.owner)
        assert isinstance(axis, TextAxis)
        return axis.index_codes(key, mapping, strings, self.table.owner)

    def __repr__(self) -> str:
        coded = [
            name
            for name, s in zip(self.table.key_names, self.categories, strict=False)
            if s is not None
        ]
        return f"<BoundTable of {self.table!r}, codes for {coded}>"


class Lookup:
    """What tables and plain arrays share: axes, flat values, ``get`` and ``bind``."""

    owner: str
    _axes: tuple[Axis, ...]
    _values: Array
    _plain: dict[int, BoundTable]  # the look-ups of plain keys, by their number
    # Not for arrays: the cycle would keep a large array alive until the next collection.
    _keeps_bound = False

    def __init__(self, owner: str, axes: Sequence[Axis], values: Array) -> None:
        view = values.view()
        view.setflags(write=False)
        self.__dict__.update(owner=owner, _axes=tuple(axes), _values=view, _plain={})

    def __setattr__(self, name: str, value: Any) -> None:
        msg = f"{self.owner} cannot be changed: attribute {name!r} was assigned"
        raise ModelError(
            msg,
            remedy="build another table",
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plain": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._values.setflags(write=False)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    @property
    def key_names(self) -> tuple[str, ...]:
        """Names of the keys, without suffix."""
        return tuple(axis.name for axis in self._axes)

    @property
    def key_kinds(self) -> tuple[str, ...]:
        """Kinds of the keys: int, int_bound, int_cat, str or band."""
        return tuple(axis.kind for axis in self._axes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values: int64, float64, bool, or object for text."""
        return self._values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return int(self._values.nbytes)

    def _leading(self, count: int) -> tuple[tuple[Axis, ...], tuple[int, ...]]:
        """Return the axes of ``count`` keys, and the shape that makes them one axis."""
        self._check_count(count)
        sizes = [axis.size for axis in self._axes]
        flat = int(np.prod(sizes[:count], dtype=np.int64))
        return self._axes[:count], (flat, *sizes[count:])

    def _check_count(self, count: int, exact: int | None = None) -> None:
        expected = len(self._axes) if exact is None else exact
        if count != expected:
            msg = (
                f"{self.owner} was asked with {count} keys; expected {expected}: "
                f"{', '.join(self.key_names[:expected])}"
            )
            raise ModelError(msg)

    def get(self, *keys: Any) -> Any:
        """Look up values, broadcasting scalars and arrays of keys as NumPy does.

        Parameters
        ----------
        *keys : scalar, array_like, pandas.Series or pandas.Categorical
            One for each key of the table, in its order.

        Returns
        -------
        numpy.ndarray or scalar
            Values of the broadcast shape; a scalar if all keys are scalars.

        Raises
        ------
        LookupKeyError
            If the table does not hold a key, or a key is of the wrong type or missing.
        ModelError
            If the number of keys is wrong.
        """
        for key in keys:
            hook = getattr(type(key), _HOOK, None)
            if hook is not None:
                return hook(key, self, keys)
        self._check_count(len(keys))
        axes = self._axes[: len(keys)]
        plain, categories = zip(*map(self._plain_key, axes, keys), strict=True)
        if not self._keeps_bound or any(strings is not None for strings in categories):
            return BoundTable(self, categories)(*plain)
        bound = self._plain.get(len(keys))
        if bound is None:
            bound = self._plain[len(keys)] = BoundTable(self, categories)
        return bound(*plain)

    def __getitem__(self, keys: Any) -> Any:
        """Look up values: ``table[age, sex]``; see :meth:`get`."""
        return self.get(*keys) if isinstance(keys, tuple) else self.get(keys)

    def _plain_key(self, axis: Axis, key: Any) -> tuple[Array, Array | None]:
        """Return a key as an array, or as codes with their strings."""
        if np.ndim(key) == 0:
            return self._scalar_key(axis, key), None
        if isinstance(key, np.ndarray) and key.dtype.kind not in "OUT":
            return np.asarray(key), None
        try:
            column = memory_column(axis.name, key)
        except DataError as error:
            msg = f"{self.owner}: key {axis.name!r}: {error.message}"
            raise LookupKeyError(msg, column=axis.name, remedy=error.remedy) from error
        categories = column.spec.categories
        if categories is not None and not isinstance(axis, TextAxis):
            return categories[column.base], None  # the axis says what is wrong with it
        return column.base, categories

    def _scalar_key(self, axis: Axis, key: Any) -> Array:
        value = key[()] if isinstance(key, np.ndarray) else key
        if isinstance(value, str):
            return np.asarray(str(value), dtype=object)
        if isinstance(value, int | float | np.generic):
            array = np.asarray(value)
            if array.dtype.kind != "O":
                return array
        msg = f"{self.owner}: key {axis.name!r} ({axis.kind}) is {value!r}"
        raise LookupKeyError(
            msg, column=axis.name, remedy=f"give a value of the table; valid: {axis.valid()}"
        )

    def encode_text(self, position: int, categories: Array) -> Array:
        """Return the position in a ``|str`` key's axis of each string, -1 where it lacks it.

        Raises
        ------
        LookupKeyError
            If that key is not text.
        """
        axis = self._axes[position]
        if not isinstance(axis, TextAxis):
            raise axis.mistyped(
                np.asarray(categories, dtype=object), self.owner, "numbers, not text"
            )
        return axis.encode(np.asarray(categories, dtype=object))

    def bind(self, categories: tuple[Array | None, ...]) -> BoundTable:
        """Prepare look-ups whose i-th key arrives as codes into ``categories[i]``, if not None."""
        return BoundTable(self, tuple(categories))

    def digest(self) -> str:
        """Return the SHA-256 of names, kinds, keys and values."""
        sha = hashlib.sha256()
        for axis in self._axes:
            sha.update(repr((axis.name, axis.kind, axis.size)).encode())
            _hash_array(sha, axis.labels())
        _hash_array(sha, self._values)
        return sha.hexdigest()

    def __dask_tokenize__(self) -> tuple[str, str, str]:
        return ("hl_dask.table", self.owner, self.digest())


def _hash_array(sha: Any, array: Array) -> None:
    sha.update(repr((str(array.dtype), array.shape)).encode())
    if array.dtype == np.dtype(object):
        sha.update(repr(array.tolist()).encode())
    else:
        sha.update(np.ascontiguousarray(array).tobytes())
