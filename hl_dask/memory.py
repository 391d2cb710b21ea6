"""Amounts of memory: parsing them, printing them, and what a run is projected to take."""

from __future__ import annotations

from dataclasses import dataclass

from hl_dask.errors import PlanError


@dataclass(frozen=True)
class MemoryEstimate:
    """Projected peak memory of a run: of this process, or of one worker of a cluster.

    Attributes
    ----------
    base_bytes : int
        Interpreter, libraries and data that are resident before the run.
    slack_bytes : int
        Thread stacks, reserves of allocators, modules imported on the way.
    read_bytes : int
        Reading the columns of all chunks that are read at once, decoded pages and conversions
        included.
    value_bytes : int
        Values of formulas that are alive, of all threads: the registers.
    temporary_bytes : int
        What single operations, and formulas evaluated as Python, allocate on the way, of all
        threads.
    step_bytes : int
        The operations as Python objects, of all threads.
    state_bytes : int
        Values that chunks hand from task to task; none where a task does all of a chunk.
    partial_bytes : int
        Partials of chunks that wait to be combined, and the results.
    task_bytes : int
        The Dask graph.
    threads : int
        Threads at work.
    """

    base_bytes: int = 0
    slack_bytes: int = 0
    read_bytes: int = 0
    value_bytes: int = 0
    temporary_bytes: int = 0
    step_bytes: int = 0
    state_bytes: int = 0
    partial_bytes: int = 0
    task_bytes: int = 0
    threads: int = 1

    @property
    def work_bytes(self) -> int:
        """What all threads work in."""
        return self.value_bytes + self.temporary_bytes + self.step_bytes

    @property
    def result_bytes(self) -> int:
        """Partials, results and tasks."""
        return self.partial_bytes + self.task_bytes

    @property
    def total_bytes(self) -> int:
        """The projected peak."""
        return sum(size for _, size in self.items())

    def items(self) -> list[tuple[str, int]]:
        """The parts of the projection, in words and bytes."""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return [
            ("interpreter, libraries and data in memory", self.base_bytes),
            ("thread stacks and allocators", self.slack_bytes),
            (f"reading, {threads}", self.read_bytes),
            (f"values alive, {threads}", self.value_bytes),
            (f"temporaries, {threads}", self.temporary_bytes),
            ("operations as Python objects", self.step_bytes),
            ("states of chunks between tasks or phases", self.state_bytes),
            ("partials and results", self.partial_bytes),
            ("tasks", self.task_bytes),
        ]


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
