"""Running on dask.distributed: which client, whether its workers are alike, and their memory."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import dask

from hl_dask.budget import peak_bytes
from hl_dask.errors import SchedulerError
from hl_dask.lower import label_of
from hl_dask.parcel import check_alike, environment

DEFAULTS = (None, "distributed", "dask.distributed")
"""What dask's configuration says of the scheduler when nobody has asked for a local one."""
IDLE_WORKER_BYTES = 160 * 2**20
"""Resident memory of a worker that has imported hl_dask, where it is not known."""


class Workers(NamedTuple):
    """The workers of a cluster.

    Attributes
    ----------
    number : int
        Of workers.
    threads : int
        Threads of the worker that has most.
    base_bytes : int
        Largest resident memory before the run.
    limit_bytes : int or None
        Smallest memory limit; None without limits.
    """

    number: int
    threads: int
    base_bytes: int
    limit_bytes: int | None


def is_client(scheduler: Any) -> bool:
    """Whether a scheduler is a client of dask.distributed."""
    distributed = sys.modules.get("distributed")
    return distributed is not None and isinstance(scheduler, distributed.Client)


def is_address(scheduler: Any) -> bool:
    """Whether a scheduler is the address of one."""
    return isinstance(scheduler, str) and "://" in scheduler


def active_client() -> Any:
    """The client that dask would use by default; None when there is none.

    ``distributed`` is not imported for it: without it there is no client.
    """
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        client = distributed.default_client()
    except ValueError:
        return None
    return client if client.status == "running" and not client.asynchronous else None


@contextlib.contextmanager
def client_of(scheduler: Any) -> Iterator[Any]:
    """The client of a ``scheduler=``: itself, the active one, or one made for an address.

    Yields None when the run is to be local.

    Raises
    ------
    SchedulerError
        When there is no active client, or nobody answers at the address.
    """
    if is_client(scheduler):
        yield scheduler
        return
    if is_address(scheduler):
        with _connected(scheduler) as client:
            yield client
        return
    if scheduler not in (None, "distributed"):
        yield None
        return
    client = active_client()
    if client is None and scheduler == "distributed":
        msg = "scheduler='distributed', and there is no active dask Client in this process"
        raise SchedulerError(
            msg,
            remedy="make one before (from distributed import Client; Client()), or give its "
            "address: scheduler='tcp://host:8786'",
        )
    if client is None or (scheduler is None and dask.config.get("scheduler", None) not in DEFAULTS):
        yield None
        return
    yield client


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Any]:
    from distributed import Client  # noqa: PLC0415 - slow to import, and only needed here

    try:
        client = Client(  # type: ignore[no-untyped-call]
            address, timeout="10s", set_as_default=False
        )
    except (OSError, TimeoutError, ValueError) as error:
        msg = f"no dask scheduler answers at {address}: {error}"
        raise SchedulerError(msg, remedy="check the address, and that it runs") from error
    with client:
        yield client


def workers_of(client: Any) -> Workers:
    """The workers of a client, when they are like this process.

    Raises
    ------
    SchedulerError
        When there are none within ten seconds, or their NumPy, Python or processors differ.
    """
    with contextlib.suppress(TimeoutError):
        client.wait_for_workers(1, timeout=10)
    workers: Mapping[str, Any] = client.scheduler_info(n_workers=-1)["workers"]
    if not workers:
        msg = "the cluster of the client has no workers"
        raise SchedulerError(msg, remedy="start one (dask worker ADDRESS), or scale the cluster")
    there = {f"the worker at {place}": env for place, env in _environments(client).items()}
    check_alike(environment(), there)
    limits = [w["memory_limit"] for w in workers.values() if w.get("memory_limit")]
    resident = [int(w.get("metrics", {}).get("memory", 0)) for w in workers.values()]
    return Workers(
        number=len(workers),
        threads=max(w["nthreads"] for w in workers.values()),
        base_bytes=max([IDLE_WORKER_BYTES, *resident]),
        limit_bytes=min(limits, default=None),
    )


def _environments(client: Any) -> dict[str, dict[str, str]]:
    """Environments of the workers that are there; one may leave while it is asked."""
    try:
        found = client.run(environment, on_error="return")
    except Exception as error:
        raise _cannot_run(error) from error
    failed = {place: value for place, value in found.items() if isinstance(value, BaseException)}
    for place, reason in failed.items():
        if place in client.scheduler_info(n_workers=-1)["workers"]:
            raise _cannot_run(reason) from reason
    return {place: value for place, value in found.items() if place not in failed}


def _cannot_run(error: BaseException) -> SchedulerError:
    msg = f"the workers cannot run hl_dask: {type(error).__name__}: {error}"
    return SchedulerError(
        msg, remedy="install hl_dask, of this version, where workers and scheduler run"
    )


def run_on(client: Any, graph: Mapping[Any, Any], key: Any, *, progress: bool) -> Any:
    """Value of a key of a graph, computed by the workers of a client."""
    return run_keeping(client, graph, key, (), progress=progress)[0]


def run_keeping(
    client: Any,
    graph: Mapping[Any, Any],
    key: Any,
    kept: Iterable[Any],
    *,
    progress: bool,
    wait: bool = False,
) -> tuple[Any, dict[Any, Any]]:
    """Value of a key of a graph, and futures of others that stay with the workers.

    The graph may refer to keys of futures that are held, without having them.

    Parameters
    ----------
    wait : bool
        Whether the others have to be done as well.
    """
    kept = list(kept)
    with warnings.catch_warnings():
        # Rows that are in memory have to travel, and they are cut up for it.
        warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
        future, *others = client.get(dict(graph), [key, *kept], sync=False)
    is_done = False
    try:
        if progress:
            from distributed import progress as bar  # noqa: PLC0415 - only when somebody watches

            with client.as_current():  # the bar asks for the scheduler of the default client
                bar(future, notebook=False)  # type: ignore[no-untyped-call]
        found = future.result()
        if wait:
            client.gather(others)
        is_done = True
        return found, dict(zip(kept, others, strict=True))
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "distributed":
            raise
        raise _lost(error) from error
    finally:
        # After an error or Ctrl-C nobody waits for the rest.
        future.cancel()
        if not is_done:
            client.cancel(others)


def _lost(error: Exception) -> SchedulerError:
    """What distributed raises of its own: a task kills its workers, or the scheduler is gone."""
    task = getattr(error, "task", None)
    if task is None:
        msg = f"the run was lost on the cluster: {type(error).__name__}: {error}"
        return SchedulerError(
            msg, remedy="look at the logs of scheduler and workers, and run again"
        )
    label = label_of(task).replace("\n", ", ")
    msg = (
        f"every worker that ran {label!r} died: it ran out of memory, or a formula ended "
        "the process"
    )
    return SchedulerError(
        msg,
        remedy="look at the logs of the workers; with more memory for each of them, or a smaller "
        "block_rows, there is more room; scheduler='synchronous' shows what ends the process",
    )


def share_folder(client: Any, folder: str) -> bool:
    """Whether all workers see a directory of this machine, and may write into it.

    Raises
    ------
    OSError
        When this process may not.
    """
    with tempfile.TemporaryDirectory(prefix="hl-dask-seen-", dir=folder) as seen:
        found: dict[str, Any] = client.run(_can_write, seen, on_error="return")
        return bool(found) and all(answer is True for answer in found.values())


def _can_write(folder: str) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def worker_peaks(client: Any) -> dict[str, int]:
    """Highest resident memory of each worker so far."""
    with contextlib.suppress(Exception):  # a worker may just be gone
        found: dict[str, int] = client.run(peak_bytes, on_error="ignore")
        return found
    return {}
