"""dask.distributed: the same bits, wherever the chunks are run."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest

import hl_dask as hl
from hl_dask import cluster, demo
from hl_dask.chunks import ChunkRunner
from hl_dask.errors import FormulaError, MemoryBudgetError, SchedulerError
from tests.reference import Columns, Entry, policies
from tests.test_zoo import bits
from tests.zoo import ZOO

distributed = pytest.importorskip("distributed")
MARKS = [
    pytest.mark.cluster,
    # What distributed leaves open when a cluster is closed is its own affair.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Port"),
    pytest.mark.filterwarnings("ignore:unclosed"),
]
pytestmark = MARKS
QUIET = {"dashboard_address": ":0", "silence_logs": "CRITICAL"}


@pytest.fixture(scope="module")
def local() -> Iterator[Any]:
    """A client of one worker with two threads in this process."""
    with distributed.Client(
        processes=False, n_workers=1, threads_per_worker=2, set_as_default=False, **QUIET
    ) as client:
        yield client


@pytest.fixture(scope="module")
def processes() -> Iterator[Any]:
    """A client of two worker processes."""
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit="1GB", **QUIET
        ) as two,
        distributed.Client(two, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policies")
    demo.write_portfolio(path, 40_000)
    return path


def term(folder: Path) -> hl.Model:
    return demo.TermAssurance(data=f"{folder}/*.parquet", **demo.assumptions())


OPTIONS = {"proj_len": 24, "block_rows": 1_000}


# ---- the same bits -----------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ZOO.values(), ids=list(ZOO))
def test_the_zoo_gives_the_same_bits_in_this_process(entry: Entry, local: Any) -> None:
    model = entry.build(entry.columns())
    options = {"proj_len": entry.proj_len, "block_rows": 64, "chunk_blocks": 3}
    expected = bits(model.ExecuteActions(scheduler="synchronous", **options))
    assert bits(model.ExecuteActions(scheduler=local, **options)) == expected


@pytest.mark.parametrize(
    "name", ["text_columns", "scenarios", "declared_per_point", "longest_term", "table_kinds"]
)
def test_models_of_every_kind_give_the_same_bits_in_processes(name: str, processes: Any) -> None:
    entry = ZOO.get(name) or next(iter(ZOO.values()))
    model = entry.build(entry.columns())
    options = {"proj_len": entry.proj_len, "block_rows": 100}
    expected = bits(model.ExecuteActions(scheduler="synchronous", **options))
    assert bits(model.ExecuteActions(scheduler=processes, **options)) == expected


@pytest.mark.parametrize("chunk_blocks", [1, 7, 40])
def test_parquet_is_read_by_the_workers(folder: Path, chunk_blocks: int, processes: Any) -> None:
    model = term(folder)
    expected = bits(model.ExecuteActions(scheduler="synchronous", **OPTIONS))
    result = model.ExecuteActions(scheduler=processes, chunk_blocks=chunk_blocks, **OPTIONS)
    assert bits(result) == expected
    assert len(result.stats.worker_peaks) == 2
    assert 0 < result.stats.measured_bytes <= result.stats.projected_bytes


def test_the_active_client_is_used(folder: Path, processes: Any) -> None:
    model = term(folder)
    expected = bits(model.ExecuteActions(**OPTIONS))
    assert not model.result.stats.worker_peaks
    with processes.as_current():
        assert bits(model.ExecuteActions(**OPTIONS)) == expected
        assert model.result.stats.worker_peaks
        assert bits(model.ExecuteActions(scheduler="threads", **OPTIONS)) == expected
        assert not model.result.stats.worker_peaks
        model.ExecuteActions(scheduler="distributed", **OPTIONS)
        assert model.result.stats.worker_peaks
        with dask.config.set(scheduler="synchronous"):
            assert bits(model.ExecuteActions(**OPTIONS)) == expected
            assert not model.result.stats.worker_peaks


def test_a_class_that_the_workers_do_not_have(processes: Any, tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text(
        "import numpy as np\nimport hl_dask as hl\n"
        "def loading(x):\n    return np.array([float(v) * 1.5 for v in x])\n"
        "class Own(hl.Model):\n"
        "    @hl.per_point\n"
        "    def value(self, t):\n        return loading(self.data['premium']) * self.factor\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        own = __import__("only_here").Own
    finally:
        sys.path.remove(str(tmp_path))
    columns = policies(np.random.default_rng(1), 3_000)
    result = own(data=columns, factor=2.0).ExecuteActions(
        proj_len=0, block_rows=500, scheduler=processes
    )
    np.testing.assert_allclose(result.df_agg.loc[0, "value"], np.sum(columns["premium"]) * 3.0)


def test_a_script_of_its_own_with_a_cluster_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np\nimport hl_dask as hl\n"
        "class Here(hl.Model):\n"
        "    def value(self, t):\n        return self.data['x'] * t\n"
        "    @hl.per_point\n"
        "    def opaque(self, t):\n        return np.array([float(v) for v in self.data['x']])\n"
        "if __name__ == '__main__':\n"
        "    from distributed import Client, LocalCluster\n"
        "    with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=':0') as c:\n"
        "        with Client(c):\n"
        "            result = Here(data={'x': np.arange(10_000.0)}).ExecuteActions(3)\n"
        "            print(result.df_agg.loc[3].tolist(), len(result.stats.worker_peaks))\n"
    )
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    total = float(np.arange(10_000.0).sum())
    assert done.stdout.strip() == f"{[3 * total, total]} 1", done.stderr


# ---- hand-started processes, and workers that come and go ----------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    root = Path(__file__).resolve().parent.parent
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(root)},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_processes_started_by_hand_one_killed_and_one_late(folder: Path) -> None:
    model = term(folder)
    options = {**OPTIONS, "block_rows": 250}
    expected = bits(model.ExecuteActions(scheduler="synchronous", **options))
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    worker = ("worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny")
    with (
        started("scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"),
        started(*worker) as victim,
        started(*worker),
        distributed.Client(address, timeout="30s", set_as_default=False) as client,
        contextlib.ExitStack() as late,
    ):
        client.wait_for_workers(2, timeout=60)
        assert bits(model.ExecuteActions(scheduler=address, **options)) == expected

        def meanwhile() -> None:
            time.sleep(0.5)
            late.enter_context(started(*worker))
            os.killpg(victim.pid, signal.SIGKILL)

        thread = threading.Thread(target=meanwhile)
        thread.start()
        assert bits(model.ExecuteActions(scheduler=client, **options)) == expected
        thread.join()
        assert bits(model.ExecuteActions(scheduler=client, **options)) == expected


# ---- how many chunks are live ----------------------------------------------------------------


class Live:
    """Counts chunks that are being run, and trees that nobody has merged yet."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running = self.most = 0


def test_only_about_as_many_chunks_as_threads_are_live(
    folder: Path, local: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, run = Live(), ChunkRunner.__call__

    def counted(self: Any, *arguments: Any) -> Any:
        with live.lock:
            live.running += 1
            live.most = max(live.most, live.running)
        try:
            return run(self, *arguments)
        finally:
            with live.lock:
                live.running -= 1

    monkeypatch.setattr(ChunkRunner, "__call__", counted)
    result = term(folder).ExecuteActions(scheduler=local, chunk_blocks=1, **OPTIONS)
    assert result.stats.n_chunks == 40
    assert live.most <= 2


# ---- errors ------------------------------------------------------------------------------------


class Fails(hl.Model):
    """A key that is not in the table, in one of the last rows."""

    def value(self, t):
        return self.rates[self.data["age"]]


def test_an_error_on_a_worker_is_the_same_error(processes: Any) -> None:
    columns: Columns = policies(np.random.default_rng(1), 20_000)
    columns["age"] = np.asarray(columns["age"]).copy()
    columns["age"][-3] = 111
    ages = np.arange(20, 60)
    rates = hl.Table(pd.DataFrame({"age|int": ages, "rate": ages * 1.0}))
    model = Fails(data=columns, rates=rates)
    texts = []
    for scheduler in ("threads", processes):
        with pytest.raises(hl.HlDaskError, match="111") as caught:
            model.ExecuteActions(proj_len=0, block_rows=1_000, scheduler=scheduler)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert not isinstance(caught.value, FormulaError) or "value" in texts[0]


class UnpicklableError(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(first)
        self.lock = threading.Lock()


class Bad(hl.Model):
    """Fails in a late block, in one way or another."""

    @hl.per_point
    def value(self, t):
        x = np.asarray(self.data["x"])
        if t == 2 and len(x) == 500 and x[-1] == 5_999:  # the last block, and no sample
            if self.kills:
                os._exit(3)
            raise UnpicklableError(1, 2)
        return x * t


@pytest.mark.parametrize("granularity", ["chunk", "step"])
def test_an_exception_that_cannot_be_sent(granularity: str, processes: Any) -> None:
    model = Bad(data={"x": np.arange(5_000.0)}, kills=False)
    model.GenerateActions(3)
    model.data = {"x": np.arange(6_000.0)}
    options = {"block_rows": 500, "granularity": granularity}
    texts = []
    for scheduler in ("threads", processes):
        with pytest.raises(FormulaError, match="UnpicklableError: 1") as caught:
            model.ExecuteActions(scheduler=scheduler, **options)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert "value(2)" in texts[0]
    assert "5,500 to 5,999" in texts[0]


def test_a_formula_that_kills_its_workers() -> None:
    model = Bad(data={"x": np.arange(5_000.0)}, kills=True)
    model.GenerateActions(3)
    model.data = {"x": np.arange(6_000.0)}
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, **QUIET) as one,
        distributed.Client(one, set_as_default=False) as client,
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
    ):
        with pytest.raises(
            SchedulerError, match=r"every worker that ran 'chunk, chunk 1[01]' died"
        ):
            model.ExecuteActions(scheduler=client, block_rows=500)
        model.data = {"x": np.arange(5_000.0)}
        assert model.ExecuteActions(scheduler=client, block_rows=500).df_agg["value"][1] > 0


def test_schedulers_that_are_not_there() -> None:
    model = Fails(data={"age": np.array([30, 40])}, rates=np.arange(99.0))
    with pytest.raises(SchedulerError, match="no active dask Client"):
        model.ExecuteActions(proj_len=0, scheduler="distributed")
    with pytest.raises(SchedulerError, match="no dask scheduler answers"):
        model.ExecuteActions(proj_len=0, scheduler=f"tcp://127.0.0.1:{free_port()}")
    with pytest.raises(SchedulerError, match="processes"):
        model.ExecuteActions(proj_len=0, scheduler="processes")


def test_workers_that_would_round_differently_are_refused(
    local: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {**cluster.environment(), "numpy": "1.0.0", "cpu": "SSE"}
    monkeypatch.setattr(local, "run", lambda function, **options: {"tcp://far:1": other})
    model = Fails(data={"age": np.array([30, 40])}, rates=np.arange(99.0))
    with pytest.raises(SchedulerError, match=r"worker at tcp://far:1 has NumPy 1\.0\.0"):
        model.ExecuteActions(proj_len=0, scheduler=local)


def test_memory_is_that_of_all_workers_together(folder: Path, processes: Any) -> None:
    model = term(folder)
    with pytest.raises(MemoryBudgetError, match=r"50\.0 MB are allowed"):
        model.ExecuteActions(scheduler=processes, memory="100MB", **OPTIONS)
    result = model.ExecuteActions(scheduler=processes, memory="2GB", **OPTIONS)
    assert result.stats.allowed_bytes == 10**9


class Client:
    """A client some of whose workers fail when they are asked."""

    def __init__(self, *there: str) -> None:
        self.there = there

    def run(self, function: Any, on_error: str) -> dict[str, Any]:
        assert on_error == "return"
        return {"here": function(), "leaving": OSError("the connection is closed")}

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        return {"workers": dict.fromkeys(self.there)}


def test_a_worker_that_leaves_while_it_is_asked_is_no_error() -> None:
    assert list(cluster._environments(Client("here"))) == ["here"]
    with pytest.raises(SchedulerError, match="cannot run hl_dask: OSError: the connection"):
        cluster._environments(Client("here", "leaving"))
