"""Opaque formulas: evaluated as Python on the rows at hand, and checked where they declare it.

An opaque formula is one node of the graph. On a block, :class:`BlockSession` hands it what it read
in the recording. On the sample, :class:`SampleSession` does, for the comparison of traced with
plain values and for :func:`check_per_point`, which tries a declaration ``@hl.per_point`` on other
rows.
"""

from __future__ import annotations

import contextlib
import math
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from hl_dask.dataview import DataView
from hl_dask.errors import HlDaskError, OpaqueFormulaError
from hl_dask.formula import BoundFormula, Formula, bind_key, call_text
from hl_dask.values import from_template, same_value

# ---- on a block ------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpaqueCall:
    """How an opaque formula call is evaluated on the rows of a block.

    Attributes
    ----------
    reads : tuple of (formula, key, template)
        Values of other formulas that it reads; a template has a slot for each argument of the node.
    columns : tuple of (name, template)
        Columns that it reads.
    attributes : tuple of (name, template)
        Per-point attributes of the model.
    instance : Model
        The model whose attributes the formula sees.
    shape : tuple of int
        Shape of a row's value.
    dtype : str
        Type of the values, as found on the sample.
    """

    formula: Formula
    key: tuple[Any, ...]
    reads: tuple[tuple[Formula, tuple[Any, ...], Any], ...]
    columns: tuple[tuple[str, Any], ...]
    attributes: tuple[tuple[str, Any], ...]
    instance: Any
    shape: tuple[int, ...]
    dtype: str

    @property
    def text(self) -> str:
        """The call as it would be written."""
        return call_text(self.formula.name, self.key)


class BlockSession:
    """Hands the values of one block to an opaque formula.

    Parameters
    ----------
    call : OpaqueCall
        The formula call and what it reads.
    args : list of ndarray
        The values, in the order of the node's arguments.
    rows : int
        Rows of the block.
    """

    setting_up = False

    def __init__(self, call: OpaqueCall, args: list[Any], rows: int) -> None:
        self.opaque = call
        self.rows = rows
        self.values = {(f, k): from_template(t, args) for f, k, t in call.reads}
        self.columns = {name: from_template(t, args) for name, t in call.columns}
        self.attributes = {name: from_template(t, args) for name, t in call.attributes}
        self.data = DataView(tuple(self.columns), self.column, lambda: rows, self.frame)

    def refuses_writes(self) -> bool:
        """Whether attributes must not change: a formula is running."""
        return True

    def call(
        self, formula: Formula, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Value of a formula that was read in the recording."""
        key = args if not kwargs and len(args) == formula.arity else bind_key(formula, args, kwargs)
        try:
            return self.values[formula, key]
        except KeyError:
            raise self._unseen(call_text(formula.name, key)) from None

    def values_of(self, formula: Formula) -> dict[tuple[Any, ...], Any]:
        """Values of a formula that are at hand."""
        return {k: v for (f, k), v in self.values.items() if f is formula}

    def column(self, name: str) -> Any:
        """A column that was read in the recording."""
        try:
            return self.columns[name]
        except KeyError:
            msg = f"column {name!r}"
            raise self._unseen(msg) from None

    def frame(self) -> pd.DataFrame:
        """The columns as a pandas DataFrame."""
        return _frame(self.columns.items())

    def _unseen(self, what: str) -> OpaqueFormulaError:
        return OpaqueFormulaError(
            f"the formula read {what}, which it did not read on the sample",
            formula=self.opaque.text,
            remedy=f"read {what} at the start of the formula, whatever the rows, so that the plan "
            "knows of it",
        )

    def evaluate(self) -> Any:
        """The value of the formula, an array with an entry for each row of the block.

        Raises
        ------
        OpaqueFormulaError
            When shape or dtype are not those found on the sample.
        """
        call = self.opaque
        instance = object.__new__(type(call.instance))
        state = {k: v for k, v in call.instance.__dict__.items() if not isinstance(v, BoundFormula)}
        instance.__dict__.update(state)
        instance.__dict__.update(self.attributes)
        instance.__dict__["_session"] = self
        array = _array(call.formula.evaluate(instance, call.key))
        if array.shape != (self.rows, *call.shape):
            msg = f"the formula gave shape {array.shape} for {self.rows} rows"
            remedy = f"return an array of shape (rows{''.join(f', {s}' for s in call.shape)})"
            raise OpaqueFormulaError(msg, formula=call.text, remedy=remedy)
        if not np.can_cast(array.dtype, call.dtype, "same_kind"):
            expected = np.dtype(call.dtype)
            msg = f"the formula gave dtype {array.dtype}, on the sample it gave {expected}"
            remedy = "return one dtype whatever the rows: x.astype(float)"
            raise OpaqueFormulaError(msg, formula=call.text, remedy=remedy)
        return array


def _array(value: Any) -> Any:
    return value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)


def _frame(columns: Iterable[tuple[str, Any]]) -> pd.DataFrame:
    """Columns as a DataFrame; one with an entry for each row and month gives several."""
    flat: dict[str, Any] = {}
    for name, value in columns:
        if value.ndim == 1:
            flat[name] = value
        else:
            flat.update({f"{name}[{k}]": value[:, k] for k in range(value.shape[1])})
    return pd.DataFrame(flat)


# ---- on the sample ---------------------------------------------------------------------------


class SampleSession:
    """Hands plain sample values to a formula that runs outside the trace.

    Parameters
    ----------
    columns : tuple of str
        Names of the columns.
    column : callable
        ``column(name)`` gives a column as it is in a plain run, and notes that it was read.
    value : callable
        ``value(formula, args, kwargs)`` gives a formula's value, and notes that it was read.
    values : callable
        ``values(formula)`` gives a formula's values so far, by arguments.
    rows : int
        Rows at hand.
    """

    setting_up = False

    def __init__(
        self,
        columns: tuple[str, ...],
        column: Callable[[str], Any],
        value: Callable[[Formula, tuple[Any, ...], dict[str, Any]], Any],
        values: Callable[[Formula], Mapping[tuple[Any, ...], Any]],
        rows: int,
    ) -> None:
        self._value = value
        self._values = values
        self.data = DataView(columns, column, lambda: rows, self.frame)

    def refuses_writes(self) -> bool:
        """Whether attributes must not change: a formula is running."""
        return True

    def call(
        self, formula: Formula, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Value of a formula as plain arrays."""
        return self._value(formula, args, kwargs)

    def values_of(self, formula: Formula) -> dict[tuple[Any, ...], Any]:
        """Values of a formula so far, plain."""
        return dict(self._values(formula))

    def frame(self) -> pd.DataFrame:
        """All columns as a pandas DataFrame."""
        return _frame((name, self.data[name]) for name in self.data.columns)


@dataclass(frozen=True)
class Rows:
    """Rows of the sample for a trial, with values changed where there is noise.

    Attributes
    ----------
    index : ndarray of int64
        Positions within the sample.
    noise : ndarray of int8, optional
        For each of these rows, what happens to its floats: 0 nothing, 1 NaN, 2 zero, 3 sign,
        4 large.
    """

    index: Any
    noise: Any = None

    def of(self, array: Any, axis: int) -> Any:
        """The rows of an array."""
        part = array.take(self.index, axis=axis)
        if self.noise is None or part.dtype.kind != "f":
            return part
        noise = self.noise.reshape((-1, *[1] * (part.ndim - 1 - axis)))
        return np.select(
            [noise == 0, noise == 1, noise == 2, noise == 3], [part, np.nan, 0.0, -part], part * 1e4
        )


def has_rows(value: Any, rows: int) -> bool:
    """Whether a value is an array with an entry for each row."""
    if isinstance(value, (tuple, list, dict)):
        return False
    return np.ndim(value) > 0 and np.shape(value)[0] == rows


def as_rows(value: Any, rows: int, text: str, reason: str) -> Any:
    """The value of an opaque formula as a read-only array with an entry for each row.

    Raises
    ------
    OpaqueFormulaError
        When it has no entry for each row.
    """
    array = _array(value) if not isinstance(value, (tuple, list, dict)) else None
    if array is None or array.ndim == 0 or array.shape[0] != rows:
        seen = f"a {type(value).__name__}" if array is None else f"a value of shape {array.shape}"
        msg = f"the formula gave {seen} for {rows} rows of the sample ({reason})"
        remedy = "a formula declared @hl.per_point returns one entry for each row"
        raise OpaqueFormulaError(msg, formula=text, remedy=remedy)
    array = np.ascontiguousarray(array)
    array.setflags(write=False)
    return array


MEASURED_TIMES = 16
"""Times the rows of the sample on which the memory of an opaque formula is measured."""


class Temporaries:
    """What evaluating a formula allocates, measured on several numbers of rows.

    NumPy and Python tell ``tracemalloc`` of their memory; Arrow, numba and other libraries with
    allocators of their own do not.
    """

    def __init__(self) -> None:
        self._peaks: dict[int, int] = {}

    @contextlib.contextmanager
    def measured(self, rows: int) -> Iterator[None]:
        """Measure what is allocated meanwhile, on so many rows."""
        starts = not tracemalloc.is_tracing()
        if starts:
            tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        try:
            yield
        finally:
            _, peak = tracemalloc.get_traced_memory()
            if starts:
                tracemalloc.stop()
            self._peaks[rows] = max(self._peaks.get(rows, 0), peak - before)

    def law(self) -> tuple[int, int]:
        """Bytes whatever the rows, and bytes for each row."""
        found = sorted(self._peaks.items())
        # On few rows, what does not grow with them hides what does: the two largest numbers tell.
        slopes = [(q - p) / (m - n) for (n, p), (m, q) in pairwise(found[-2:])]
        each = max(0, math.ceil(max(slopes, default=0)))
        return max(0, *(peak - each * rows for rows, peak in found)), each


def check_per_point(evaluate: Callable[[Rows], Any], plain: Any, text: str) -> None:
    """Check on the sample that a formula declared per-point gives each row its own value.

    Parameters
    ----------
    evaluate : callable
        Evaluates the formula on chosen rows of the sample.
    plain : ndarray
        Its value on the sample, an entry for each row.
    text : str
        The formula call, for messages.

    Raises
    ------
    OpaqueFormulaError
        With the trial that the formula failed.
    """
    n = len(plain)
    rng = np.random.default_rng(n)
    trials = [
        ("asked twice", np.arange(n)),
        ("on a third of the rows", np.sort(rng.choice(n, max(1, n // 3), replace=False))),
        ("on one row alone", np.array([0])),
        ("on one row alone", np.array([n - 1])),
        ("on rows in another order", rng.permutation(n)),
        ("on duplicated rows", np.repeat(np.arange(0, n, 2), 3)),
    ]
    for what, rows in trials:
        part = _trial(evaluate, rows, what, text)
        if not same_value(plain[rows], part.astype(plain.dtype)):
            raise _not_per_point(text, f"gives other values {what}")
    what, rows = "with half of the other rows replaced", _replaced(rng, n)
    part, stayed = _trial(evaluate, rows, what, text), rows == np.arange(n)
    if not same_value(plain[stayed], part.astype(plain.dtype)[stayed]):
        raise _not_per_point(text, f"gives other values {what}")
    _check_altered(evaluate, n, rng, text)


def _trial(evaluate: Callable[[Rows], Any], rows: Any, what: str, text: str) -> Any:
    try:
        part = np.asarray(evaluate(Rows(rows)))
    except HlDaskError:
        raise
    except Exception as error:
        raise _not_per_point(text, f"fails {what}: {error}") from error
    if part.shape[:1] != (len(rows),):
        raise _not_per_point(text, f"gives shape {part.shape} for {len(rows)} rows, {what}")
    return part


def _check_altered(
    evaluate: Callable[[Rows], Any], n: int, rng: np.random.Generator, text: str
) -> None:
    """Let some rows have unusual values (NaN, zero, negative, large): others' results must stay.

    A formula that cannot take such values at all tells nothing here.
    """
    keep = rng.random(n) < 0.5
    others = np.where(keep, np.arange(n), rng.integers(0, n, n))
    first = Rows(np.arange(n), noise=_noise(rng, n))
    second = Rows(others, noise=np.where(keep, first.noise, _noise(rng, n)))
    try:
        mine, other = np.asarray(evaluate(first)), np.asarray(evaluate(second))
    except Exception:  # a formula of the user's may raise anything for a NaN or a negative age
        return
    if mine.shape != other.shape or not same_value(mine[keep], other[keep].astype(mine.dtype)):
        what = "gives a row another value when other rows have NaN, zero or large values"
        raise _not_per_point(text, what)


def _noise(rng: np.random.Generator, n: int) -> Any:
    return rng.choice(5, n, p=[0.4, 0.15, 0.15, 0.15, 0.15])


def _replaced(rng: np.random.Generator, n: int) -> Any:
    rows = np.arange(n)
    change = rng.random(n) < 0.5
    rows[change] = rng.integers(0, n, int(change.sum()))
    return rows


def _not_per_point(text: str, what: str) -> OpaqueFormulaError:
    return OpaqueFormulaError(
        f"the formula is declared @hl.per_point, but on the sample it {what}",
        formula=text,
        remedy="let each row's value depend on that row alone, or write the part that looks across "
        "rows as a formula with totals (x.sum(), x.mean(), x.max())",
    )
