"""Row filters: what ``where=`` means, which rows pass, and how they are remembered.

A filter is evaluated on Arrow arrays, the same way for every source: integers and floats as
formulas see them, text as text. A null passes no comparison.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from hl_dask._columns import Array
from hl_dask._kinds import arrow_is_text, arrow_values, decoded, plain
from hl_dask.errors import DataError

_COMPARE: dict[str, tuple[Any, Any]] = {
    "==": (pc.equal, operator.eq),
    "!=": (pc.not_equal, operator.ne),
    "<": (pc.less, operator.lt),
    "<=": (pc.less_equal, operator.le),
    ">": (pc.greater, operator.gt),
    ">=": (pc.greater_equal, operator.ge),
}
_OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "in", "not in", "is", "is not")
_FORM = (
    "give (column, operator, value), a list of these (all must hold), a list of such lists (one of "
    f"them must hold), or a pyarrow.compute expression; operators: {', '.join(_OPERATORS)}"
)
_REMEDY = {
    "number": "compare numbers with numbers",
    "text": "compare text with text, e.g. ('product', '==', 'term')",
    "date": "compare dates with dates, e.g. ('issued', '>=', '2020-01-01')",
    "bool": "compare truth values with True or False",
}
_NUMBERS = (int, float, decimal.Decimal, np.integer, np.floating)
_DATES = (str, datetime.date, np.datetime64)  # a datetime and a Timestamp are dates
_UNKNOWN = re.compile(r"No match for FieldRef\.(\w+)\((.*?)\) in ", re.DOTALL)

Types = Mapping[str, pa.DataType]


class Condition:
    """One comparison of a column with a value."""

    def __init__(self, column: str, operation: str, value: Any) -> None:
        self.column = column
        self.operation = {"=": "=="}.get(operation, operation)
        self.value = value
        if self.operation not in _OPERATORS:
            msg = f"the filter has the operator {operation!r}"
            raise DataError(msg, column=column, remedy=_FORM)
        many = self.operation in ("in", "not in")
        if many and (isinstance(value, str) or not hasattr(value, "__iter__")):
            msg = f"the filter has {value!r} where {operation!r} takes a list of values"
            raise DataError(msg, column=column, remedy=f"({column!r}, {operation!r}, [...])")
        if self.operation.startswith("is") and value is not None:
            msg = f"the filter has ({column!r}, {operation!r}, {value!r})"
            raise DataError(
                msg, column=column, remedy="'is' and 'is not' take None; compare with == and !="
            )

    def __str__(self) -> str:
        return f"{self.column} {self.operation} {self.value!r}"

    def mask(self, values: pa.Array) -> pa.Array:
        """Which values fulfil the condition; null where one is null."""
        if self.operation.startswith("is"):
            return pc.is_null(values) if self.operation == "is" else pc.is_valid(values)
        if pa.types.is_null(values.type):
            return pa.nulls(len(values), pa.bool_())
        if self.operation in _COMPARE and pa.types.is_integer(values.type):
            found = self._of_integers(values.type)
            if isinstance(found, bool):
                return pc.and_(found, pc.is_valid(values))
            return _COMPARE[found[0]][0](values, found[1])
        wanted = self._wanted(values.type)
        if self.operation in _COMPARE:
            return _COMPARE[self.operation][0](values, wanted)
        if pa.types.is_floating(values.type):
            # 0.0 and -0.0 are equal, and are told apart by what looks values up.
            values, wanted = pc.add(values, 0.0), pc.add(wanted, 0.0)
        found = pc.is_in(values, value_set=wanted)
        return pc.and_(found if self.operation == "in" else pc.invert(found), pc.is_valid(values))

    def pruning(self, kind: pa.DataType) -> Any:
        """An expression that is true wherever the condition is, for the statistics of a file.

        Statistics of floats know nothing of NaN, which differs from every number.
        """
        if self.operation.startswith("is") or pa.types.is_decimal(kind) or pa.types.is_null(kind):
            return None
        if pa.types.is_floating(kind) and not self._excludes_nan():
            return None
        field = ds.field(self.column)
        if pa.types.is_floating(kind) and self.operation == "in":
            # Statistics have -0.0 for the smallest zero, which a list of values takes for another.
            wanted = [float(value) for value in self.value]
            if not wanted:
                return ds.scalar(False)
            return (field >= min(wanted)) & (field <= max(wanted))
        if self.operation in _COMPARE and pa.types.is_integer(kind):
            found = self._of_integers(kind)
            return None if isinstance(found, bool) else _COMPARE[found[0]][1](field, found[1])
        wanted = self._wanted(kind)
        if self.operation in _COMPARE:
            return _COMPARE[self.operation][1](field, wanted)
        return field.isin(wanted) if self.operation == "in" else ~field.isin(wanted)

    def _of_integers(self, kind: pa.DataType) -> bool | tuple[str, pa.Scalar]:
        """The comparison as one with an integer of the type, exact where floats are not.

        Where the value is beyond the type, or no integer, the answer may be the same for all rows.
        """
        value = self._checked(self.value, "number", kind)
        if value != value:  # NaN
            return self.operation == "!="
        operation = self.operation
        if value in (math.inf, -math.inf):
            return bool(_COMPARE[operation][1](0, value))
        whole = math.floor(value)
        if whole != value:
            if operation in ("==", "!="):
                return operation == "!="
            operation = "<=" if operation in ("<", "<=") else ">"
        signed = pa.types.is_signed_integer(kind)
        low = -(2 ** (kind.bit_width - 1)) if signed else 0
        high = 2 ** (kind.bit_width - signed) - 1
        if not low <= whole <= high:
            return bool(_COMPARE[operation][1](0 if whole > 0 else high, whole))
        return operation, pa.scalar(whole, type=kind)

    def _excludes_nan(self) -> bool:
        if self.operation in ("!=", "not in"):
            return False
        return self.operation != "in" or not any(value != value for value in self.value)

    def _wanted(self, kind: pa.DataType) -> Any:
        """The value, or values, as Arrow compares them with a column of this type."""
        category = _category(kind)
        if category is None:
            msg = f"column {self.column!r} is of type {kind}, which a filter cannot compare"
            raise DataError(msg, column=self.column, remedy="filter by another column")
        if self.operation not in ("in", "not in"):
            value = self._checked(self.value, category, kind)
            return pa.scalar(value.to_datetime64() if category == "date" else value)
        found = [_as_kind(self._checked(value, category, kind), kind) for value in self.value]
        return pa.array([each for each in found if each is not None], type=kind)

    def _checked(self, value: Any, category: str, kind: pa.DataType) -> Any:
        if category == "number":
            fits = isinstance(value, _NUMBERS) and not isinstance(value, bool | np.bool_)
            if fits:
                whole = isinstance(value, int | np.integer) and pa.types.is_integer(kind)
                return int(value) if whole else float(value)
        elif category == "date":
            fits = isinstance(value, _DATES)
            if fits:
                return self._date(value, kind)
        elif category == "bool":
            fits = isinstance(value, bool | np.bool_)
        else:
            fits = isinstance(value, str)
        if not fits:
            raise self._wrong(value, kind, category)
        return bool(value) if category == "bool" else str(value)

    def _date(self, value: Any, kind: pa.DataType) -> Any:
        try:
            stamp = pd.Timestamp(value)
        except ValueError as error:
            raise self._wrong(value, kind, "date") from error
        if str(stamp) == "NaT":
            raise self._wrong(value, kind, "date")
        if (stamp.tzinfo is None) != (getattr(kind, "tz", None) is None):
            raise self._wrong(value, kind, "date")
        return stamp

    def _wrong(self, value: Any, kind: pa.DataType, category: str) -> DataError:
        msg = f"the filter compares column {self.column!r}, which is of type {kind}, with {value!r}"
        return DataError(msg, column=self.column, remedy=_REMEDY[category])


def _category(kind: pa.DataType) -> str | None:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "number"
    if arrow_is_text(kind):
        return "text"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "date"
    return "bool" if pa.types.is_boolean(kind) else None


def _as_kind(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """A value of a list in the type of the column; None where no value of that type equals it."""
    if isinstance(value, float) and pa.types.is_integer(kind) and not value.is_integer():
        return None
    try:
        if isinstance(value, pd.Timestamp):
            # A date is compared as the moment that it begins with.
            unit: Any = getattr(kind, "unit", "s")
            value = value.as_unit(unit, round_ok=False)
            if pa.types.is_date(kind) and value != value.normalize():
                return None
        return pa.scalar(value, type=kind)
    except (pa.ArrowException, OverflowError, ValueError):
        return None


class Where:
    """A row filter.

    Parameters
    ----------
    condition : tuple, list of tuples, list of lists of tuples, or pyarrow.compute.Expression
        See :class:`hl_dask.ModelPoints`.
    check : callable
        Raises for the name of a column that is not there.

    Raises
    ------
    DataError
        When it is none of these.
    """

    def __init__(self, condition: Any, check: Callable[[str], object]) -> None:
        self._check = check
        self._expression = condition if isinstance(condition, pc.Expression) else None
        self._any_of: list[list[Condition]] = []
        if self._expression is None:
            self._any_of = _parsed(condition)

    def __str__(self) -> str:
        if self._expression is not None:
            return str(self._expression)
        parts = [" and ".join(map(str, all_of)) for all_of in self._any_of]
        return parts[0] if len(parts) == 1 else " or ".join(f"({part})" for part in parts)

    def names(self, kind_of: Callable[[str], pa.DataType]) -> tuple[str, ...]:
        """Names of the columns that the filter reads.

        Parameters
        ----------
        kind_of : callable
            Arrow type of a column.
        """
        if self._expression is None:
            found = [each.column for all_of in self._any_of for each in all_of]
            for name in found:
                self._check(name)
                kind_of(name)
            return tuple(dict.fromkeys(found))
        fields: dict[str, pa.DataType] = {}
        while True:
            # An expression does not say what it reads, but complains of what is not there.
            try:
                self._evaluated(pa.schema(list(fields.items())).empty_table())
            except pa.ArrowException as error:
                unknown = _UNKNOWN.search(str(error))
                if unknown is None or unknown[1] != "Name" or unknown[2] in fields:
                    raise self._fails(error) from error
                self._check(unknown[2])
                fields[unknown[2]] = comparable_type(kind_of(unknown[2]))
            else:
                return tuple(fields)

    def mask(self, batch: pa.RecordBatch) -> Array:
        """Which rows of a batch pass.

        Returns
        -------
        numpy.ndarray
            Of bool; False also where the filter is null.
        """
        values = {name: comparable(batch.column(name)) for name in batch.schema.names}
        try:
            found = (
                self._evaluated(pa.table(values))
                if self._expression is not None
                else _combined(
                    [[each.mask(values[each.column]) for each in all_of] for all_of in self._any_of]
                )
            )
        except (pa.ArrowException, OverflowError) as error:
            raise self._fails(error) from error
        passed: Array = pc.fill_null(found, False).to_numpy(zero_copy_only=False)
        return passed

    def _evaluated(self, table: pa.Table) -> pa.Array:
        scanned = ds.dataset(table).scanner(columns={"": self._expression}, use_threads=False)
        column = scanned.to_table().column(0)
        if not pa.types.is_boolean(column.type):
            msg = f"the filter gives values of type {column.type}, not true and false: {self}"
            raise DataError(msg, remedy="compare: pyarrow.compute.field('age') > 40")
        return column.combine_chunks()

    def _fails(self, error: Exception) -> DataError:
        msg = f"the filter cannot be evaluated: {' '.join(str(error).split())[:300]}; it is {self}"
        return DataError(msg, remedy="check the types of its columns, or " + _FORM)

    def pruning(self, types: Types) -> Any:
        """An expression to leave out row groups by, true wherever the filter is; None if none.

        Parameters
        ----------
        types : mapping of str to DataType
            Types of the columns that the filter reads.
        """
        if self._expression is not None:
            # Statistics know nothing of NaN, and what the expression makes of it is unknown.
            exact = not any(pa.types.is_floating(plain(kind)) for kind in types.values())
            return self._expression if exact else None
        parts = []
        for all_of in self._any_of:
            # Some files have a narrower type than others, into which not every value fits.
            usable = [each.pruning(pruning_type(types[each.column])) for each in all_of]
            usable = [each for each in usable if each is not None]
            if not usable:
                return None
            parts.append(functools.reduce(operator.and_, usable))
        return functools.reduce(operator.or_, parts)


def _parsed(condition: Any) -> list[list[Condition]]:
    if isinstance(condition, tuple) and len(condition) == 3 and isinstance(condition[0], str):
        return [[Condition(*condition)]]
    if isinstance(condition, list) and condition:
        if all(isinstance(each, tuple) for each in condition):
            return [[each for one in condition for each in _parsed(one)[0]]]
        if all(isinstance(each, list) and each for each in condition):
            return [_parsed(all_of)[0] for all_of in condition]
    msg = f"the filter is {condition!r}"
    raise DataError(msg, remedy=_FORM)


def _combined(any_of: list[list[pa.Array]]) -> pa.Array:
    return functools.reduce(
        pc.or_kleene, [functools.reduce(pc.and_kleene, all_of) for all_of in any_of]
    )


def comparable_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column as a filter sees it; see :func:`comparable`."""
    kind = plain(kind)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_integer(kind):
        return pa.uint64() if pa.types.is_uint64(kind) else pa.int64()
    if arrow_is_text(kind):
        return pa.large_string() if pa.types.is_large_string(kind) else pa.string()
    return pa.timestamp("s") if pa.types.is_date32(kind) else kind


def pruning_type(kind: pa.DataType) -> pa.DataType:
    """The type as which the statistics of a column are looked at: wide enough for all files."""
    kind = plain(kind)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return comparable_type(kind)
    return kind


def comparable(values: pa.Array) -> pa.Array:
    """A column as a filter sees it: widened, without dictionaries; nulls stay."""
    values = decoded(values)
    kind = comparable_type(values.type)
    if values.type == kind:
        return values
    if pa.types.is_decimal(values.type):
        missing = values.is_null().to_numpy(zero_copy_only=False)
        zero = pa.scalar(decimal.Decimal(0)).cast(values.type)
        return pa.array(arrow_values(values.fill_null(zero)), mask=missing, from_pandas=False)
    return values.cast(kind)
