"""What the user asks of a run, and what a run took."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hl_dask.cluster import is_address, is_client
from hl_dask.errors import PlanError, SchedulerError
from hl_dask.memory import MemoryEstimate
from hl_dask.planning import CHUNK, GRANULARITIES

SYNCHRONOUS = ("synchronous", "sync", "single-threaded")
THREADS = (None, "threads", "threading")


@dataclass(frozen=True)
class Settings:
    """What the user asked of a run.

    Attributes
    ----------
    memory : int or str or None
        Total resident memory that the run may reach; by default what is resident now and half of
        what machine or cgroup has free.
    scheduler : str, Client or None
        ``threads``, ``synchronous``, ``distributed``, a client or the address of a scheduler; by
        default the active client, or else threads.
    workers : int or None
        Threads; by default one for each processor.
    chunk_blocks : int or None
        Blocks of a chunk; chosen to fit by default.
    progress : bool or None
        Show a progress bar; by default when standard error is a terminal.
    granularity : str
        What one task does: ``chunk``, ``step`` or ``formula``.
    scratch : str, Path or None
        Directory for the states between phases that memory has no room for; that for temporary
        files by default.
    """

    memory: int | str | None = None
    scheduler: Any = None
    workers: int | None = None
    chunk_blocks: int | None = None
    progress: bool | None = None
    granularity: str = CHUNK
    scratch: str | Path | None = None


@dataclass
class RunStats:
    """What a run took.

    Attributes
    ----------
    elapsed_s, record_s, plan_s, replay_s : float
        Seconds in all, for recording, for planning, and for the passes over the rows.
    passes, phases : int
        Passes over the rows; and the phases in them, where totals had to be waited for.
    projected_bytes, measured_bytes, allowed_bytes : int
        Projected and measured peak of resident memory of the process, and what was allowed; on a
        cluster of the worker with the highest peak.
    states : str
        Where chunks kept what they needed between phases: ``memory``, ``files``, ``workers`` or
        ``workers, spilled``; empty when there was nothing to keep.
    worker_peaks : dict of str to int
        On a cluster, the highest resident memory of each worker by address.
    """

    rows: int = 0
    months: int = 0
    elapsed_s: float = 0.0
    record_s: float = 0.0
    plan_s: float = 0.0
    replay_s: float = 0.0
    measured_bytes: int = 0
    passes: int = 0
    phases: int = 0
    workers: int = 1
    chunk_rows: int = 0
    n_blocks: int = 0
    n_chunks: int = 0
    projected_bytes: int = 0
    allowed_bytes: int = 0
    estimate: MemoryEstimate | None = None
    environment: dict[str, str] = field(default_factory=dict)
    states: str = ""
    worker_peaks: dict[str, int] = field(default_factory=dict)


def check_scheduler(scheduler: Any) -> None:
    """Refuse a scheduler that is unknown or that cannot keep the contract.

    Raises
    ------
    SchedulerError
    """
    if is_client(scheduler) or is_address(scheduler):
        return
    if scheduler in (*SYNCHRONOUS, *THREADS, "distributed"):
        return
    if scheduler in ("processes", "multiprocessing"):
        msg = (
            "scheduler='processes' moves every intermediate result through this process and copies "
            "the data to each worker, which neither keeps memory bounded nor runs faster"
        )
        raise SchedulerError(
            msg,
            remedy="use scheduler='threads' (NumPy runs in parallel on threads)",
        )
    msg = f"scheduler={scheduler!r} is not known"
    raise SchedulerError(
        msg,
        remedy="use 'threads', 'synchronous', 'distributed', a dask Client or the address of a "
        "scheduler",
    )


def check_granularity(granularity: Any) -> None:
    """Refuse a granularity that is unknown.

    Raises
    ------
    PlanError
    """
    if granularity not in GRANULARITIES:
        msg = f"granularity={granularity!r} is not known"
        raise PlanError(msg, remedy=f"use one of {', '.join(map(repr, GRANULARITIES))}")


def floating_errors() -> dict[str, Any]:
    """NumPy's error state for the threads of a run.

    What the user wants raised is raised there, too. Warnings are given in the recording only,
    because ``np.errstate`` within a formula is not part of the graph.
    """
    return {k: v if v == "raise" else "ignore" for k, v in np.geterr().items()}
