"""The one error family of hl_dask.

Every message says what was seen, what was expected, what to do, and where. The parts are kept as
attributes as well, so that a program can act on them, and every error survives pickling, because an
error raised on a worker has to reach the user whole.
"""

from __future__ import annotations

from typing import Any

MOST_CALLERS = 5
"""Callers of the failing formula that an error names."""


class HlDaskError(Exception):
    """Root of all errors that hl_dask raises on purpose.

    Parameters
    ----------
    message : str
        What was seen and what was expected.
    formula : str, optional
        The formula concerned, with its arguments: ``pols_if(3)``.
    column : str, optional
        The column of the model points concerned.
    file : str, optional
        The file (and row group) concerned.
    remedy : str, optional
        What the user can do about it.
    """

    def __init__(
        self,
        message: str,
        *,
        formula: str | None = None,
        column: str | None = None,
        file: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.formula = formula
        self.column = column
        self.file = file
        self.remedy = remedy
        self.callers: list[str] = []
        self.rows: str | None = None

    def called_by(self, call: str) -> None:
        """Note a formula call through which the error passed on its way out."""
        if call != self.formula and len(self.callers) < MOST_CALLERS:
            self.callers.append(call)

    def __str__(self) -> str:
        where = [
            f"{label} {value}"
            for label, value in (
                ("formula", self.formula),
                ("column", self.column),
                ("file", self.file),
                ("rows", self.rows),
            )
            if value is not None
        ]
        text = self.message
        if where:
            text += f"\n  where: {', '.join(where)}"
        if self.callers:
            text += f"\n  called by: {' <- '.join(self.callers)}"
        if self.remedy:
            text += f"\n  what to do: {self.remedy}"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only arguments do not survive the default reduction of exceptions.
        return _rebuild, (type(self), self.message, self.__dict__.copy())


def _rebuild(cls: type[HlDaskError], message: str, state: dict[str, Any]) -> HlDaskError:
    error = cls(message)
    error.__dict__.update(state)
    return error


class ModelError(HlDaskError, TypeError):
    """A model class, its constructor or a call of the framework is not well formed."""


class DataError(HlDaskError, ValueError):
    """The model points cannot be used as they are."""


class MissingColumnError(DataError, KeyError):
    """A formula asked for a column that the model points do not have."""


class LookupKeyError(HlDaskError, KeyError):
    """A table was asked for a key that it does not hold."""


class FormulaError(HlDaskError):
    """A formula raised an exception; the exception is the ``__cause__``."""


class ReadOnlyError(HlDaskError, ValueError):
    """A formula tried to change a column, a cached value or an attribute."""


class CycleError(HlDaskError, RecursionError):
    """A formula needs its own value, or a recursion does not end."""


class RowMixingError(HlDaskError):
    """An operation combines rows in a way that cannot be cut into blocks, or leaks the sample."""


class OpaqueFormulaError(HlDaskError):
    """A formula's use of the rows cannot be seen, and it does not declare what it does."""


class UnsupportedError(HlDaskError, NotImplementedError):
    """A well-formed model that this version cannot replay."""


class PlanError(HlDaskError):
    """A plan is missing, malformed, or does not belong to this model."""


class MemoryBudgetError(HlDaskError, MemoryError):
    """The projected peak memory is above the budget; nothing was run."""


class StorageError(HlDaskError, OSError):
    """A file cannot be written."""


class SchedulerError(HlDaskError, ValueError):
    """The scheduler asked for is unknown or cannot keep the contract."""
