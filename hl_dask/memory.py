"""Amounts of memory: parsing them, printing them, and what a run is projected to take."""

from __future__ import annotations

from dataclasses import dataclass

from hl_dask.errors import PlanError


@dataclass(frozen=True)
class MemoryEstimate:
    """Projected peak memory of a run.

    Attributes
    ----------
    base_bytes : int
        Interpreter, libraries and data that are resident before the run.
    read_bytes : int
        Columns of the chunks that are read at once.
    work_bytes : int
        Registers and temporaries of all threads.
    result_bytes : int
        Partials of chunks and the results.
    """

    base_bytes: int
    read_bytes: int
    work_bytes: int
    result_bytes: int

    @property
    def total_bytes(self) -> int:
        """The projected peak."""
        return self.base_bytes + self.read_bytes + self.work_bytes + self.result_bytes


_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def parse_bytes(value: float | str) -> int:
    """A number of bytes from ``"1GB"``, ``"512 MiB"`` or a number.

    Raises
    ------
    PlanError
        When it is not a positive amount.
    """
    if isinstance(value, str):
        text = value.strip().upper()
        digits = text.rstrip("KMGTIB ")
        unit = text[len(digits) :].strip()
        try:
            amount = float(digits) * _UNITS[unit]
        except (ValueError, KeyError):
            amount = -1.0
    else:
        try:
            amount = float(value)
        except (TypeError, ValueError, OverflowError):
            amount = -1.0
    if not 1 <= amount < float("inf"):
        msg = f"{value!r} is not an amount of memory"
        raise PlanError(
            msg,
            remedy='give bytes, or a text such as "1GB" or "512MiB"',
        )
    return int(amount)


def size_text(n_bytes: float) -> str:
    """An amount of memory for people: ``1.2 GB``."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:,.0f} {unit}" if unit == "bytes" else f"{n_bytes:,.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.1f} TB"
