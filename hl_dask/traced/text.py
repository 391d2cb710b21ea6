"""Text columns: integer codes into one set of categories for the whole portfolio."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from hl_dask.traced.lookups import apply_lookup
from hl_dask.traced.tracer import Tracer

ABSENT = -2
"""Code of a text that no row has: equal to no code, and different from pandas' -1 for missing."""


class TracedText:
    """The traced form of a text column; stands in for a pandas Categorical.

    Comparisons with texts become comparisons of codes, so that they cost what integers cost.

    Parameters
    ----------
    numbers : TracedArray of int32
        The category of each row.
    categories : ndarray of str
        All texts of the whole portfolio, sorted.
    """

    __slots__ = ("categories", "numbers", "tracer")
    __hash__ = None  # type: ignore[assignment]
    __hl_text__ = True

    def __init__(self, tracer: Tracer, numbers: Any, categories: np.ndarray[Any, Any]) -> None:
        self.tracer = tracer
        self.numbers = numbers
        self.categories = categories

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return pd.Categorical

    @property
    def dtype(self) -> Any:
        """The pandas dtype."""
        return pd.CategoricalDtype(pd.Index(self.categories))

    @property
    def codes(self) -> Any:
        """The category of each row, of the integer type that pandas uses for so many categories."""
        return self.numbers.astype(self.plain(np.zeros(1, dtype=np.int8)).codes.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape over all rows."""
        shape: tuple[int, ...] = self.numbers.shape
        return shape

    @property
    def size(self) -> int:
        """The number of rows."""
        return self.shape[0]

    ndim = 1

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Any:
        return iter(self.numbers)

    def _code(self, text: Any) -> int:
        where = (
            int(np.searchsorted(self.categories, text))
            if isinstance(text, str)
            else len(self.categories)
        )
        found = where < len(self.categories) and self.categories[where] == text
        return where if found else ABSENT

    def _compare(self, other: Any, ufunc: np.ufunc) -> Any:
        if isinstance(other, TracedText):
            if other.categories is not self.categories and list(other.categories) != list(
                self.categories
            ):
                mine = np.array([other._code(text) for text in self.categories], dtype=np.int64)
                return ufunc(np.take(mine, self.numbers), other.numbers)
            return ufunc(self.numbers, other.numbers)
        if isinstance(other, str):
            return ufunc(self.numbers, np.int32(self._code(other)))
        if isinstance(other, (np.ndarray, list, tuple)):
            msg = "a text column can be compared with a text or another text column only"
            raise TypeError(msg)
        return ufunc(self.numbers, np.int32(ABSENT))

    def __eq__(self, other: object) -> Any:
        return self._compare(other, np.equal)

    def __ne__(self, other: object) -> Any:
        return self._compare(other, np.not_equal)

    def isin(self, values: Any) -> Any:
        """Whether each row's text is one of ``values``."""
        codes = sorted({self._code(text) for text in values})
        return np.isin(self.numbers, np.array(codes, dtype=np.int32))

    def isna(self) -> Any:
        """Whether each row's text is missing (never: missing texts are refused when read)."""
        return np.zeros_like(self.numbers, dtype=bool)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.tracer.escape("a text column was taken as a plain array")
        return self.plain(self.numbers.value).__array__(dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if ufunc in (np.equal, np.not_equal) and method == "__call__" and not kwargs:
            left, right = inputs
            return self._compare(right if left is self else left, ufunc)
        return NotImplemented

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.isin and args and args[0] is self and len(args) == 2 and not kwargs:
            return self.isin(np.asarray(args[1]).tolist())
        if func in (np.shape, np.size, np.ndim):
            return func(self.numbers)
        self.tracer.escape(f"np.{func.__name__} of a text column")
        msg = f"np.{func.__name__} of a text column is not followed by hl_dask"
        raise TypeError(msg)

    def __hl_lookup__(self, table: Any, keys: tuple[Any, ...]) -> Any:
        return apply_lookup(self.tracer, table, keys)

    def plain(self, codes: Any) -> pd.Categorical:
        """The column as it is in a plain run, with these codes."""
        return pd.Categorical.from_codes(codes, dtype=self.dtype, validate=False)
