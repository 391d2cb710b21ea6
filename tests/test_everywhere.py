"""The same bits from every scheduler, every granularity and every source, side by side."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hl_dask as hl
from examples import basic_term_me
from examples.basic_term_me import BasicTermME
from tests.reference import Entry
from tests.test_cluster import MARKS, QUIET, free_port, started
from tests.test_sources import FRAME, RATES, SOURCES, Cover
from tests.test_zoo import bits, recorded
from tests.zoo import ZOO

distributed = pytest.importorskip("distributed")
pytestmark = MARKS
GRANULARITIES = ("chunk", "step", "formula")
CLUSTERS = ("one worker", "two workers", "by hand")


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, Any]]:
    """Clients of one and two worker processes, and of processes started by hand."""
    address = f"tcp://127.0.0.1:{(port := free_port())}"
    worker = ("worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny")
    scheduler = ("scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
    with ExitStack() as stack:
        found: dict[str, Any] = {}
        for name, workers, threads in (("one worker", 1, 2), ("two workers", 2, 1)):
            cluster = stack.enter_context(
                distributed.LocalCluster(n_workers=workers, threads_per_worker=threads, **QUIET)
            )
            client = distributed.Client(cluster, set_as_default=False)
            found[name] = stack.enter_context(client)
        for arguments in (scheduler, worker, worker):
            stack.enter_context(started(*arguments))
        client = distributed.Client(address, timeout="30s", set_as_default=False)
        found["by hand"] = stack.enter_context(client)
        client.wait_for_workers(2, timeout=60)
        yield found


@pytest.mark.parametrize("entry", ZOO.values(), ids=list(ZOO))
def test_the_zoo(entry: Entry, clients: dict[str, Any]) -> None:
    model = recorded(entry, entry.columns())
    expected = bits(model.ExecuteActions(block_rows=200, scheduler="synchronous"))
    for scheduler in ("threads", *clients.values()):
        for granularity in GRANULARITIES:
            result = model.ExecuteActions(
                block_rows=200, chunk_blocks=4, scheduler=scheduler, granularity=granularity
            )
            assert bits(result) == expected, (scheduler, granularity)


def basic_term(granularity: str) -> hl.Model:
    """BasicTerm_ME; of fewer months where each of its formula calls is a task."""
    months = 40 if granularity == "formula" else 277
    points = basic_term_me.read_model_points()
    model = BasicTermME(data=points, **basic_term_me.read_assumptions(), months=months)
    model.GenerateActions(proj_len=months - 1)
    return model


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_basic_term_me(granularity: str, clients: dict[str, Any]) -> None:
    model = basic_term(granularity)
    expected = model.ExecuteActions(block_rows=1_024, scheduler="synchronous")
    if granularity != "formula":
        assert round(float(expected.values["pv_net_cf"]), 3) == 215_146_132.068
    for scheduler in ("synchronous", "threads", *clients.values()):
        result = model.ExecuteActions(
            block_rows=1_024, chunk_blocks=4, granularity=granularity, scheduler=scheduler
        )
        assert bits(result) == bits(expected), scheduler


@pytest.mark.parametrize("make", SOURCES.values(), ids=list(SOURCES))
def test_every_source(make: Callable[[Path], Any], tmp_path: Path, clients: dict[str, Any]) -> None:
    model = Cover(data=FRAME, rates=RATES)
    options: dict[str, Any] = {"proj_len": 3, "block_rows": 256}
    expected = bits(model.ExecuteActions(scheduler="synchronous", **options))
    model.data = hl.ModelPoints(make(tmp_path))
    for name, granularity in zip(CLUSTERS, GRANULARITIES, strict=True):
        result = model.ExecuteActions(
            scheduler=clients[name], granularity=granularity, chunk_blocks=3, **options
        )
        assert bits(result) == expected, (name, granularity)
    for granularity in GRANULARITIES:
        for scheduler in ("synchronous", "threads"):
            result = model.ExecuteActions(scheduler=scheduler, granularity=granularity, **options)
            assert bits(result) == expected, (scheduler, granularity)


# ---- workers that come and go ------------------------------------------------------------------


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_adaptive_scaling_changes_nothing(granularity: str) -> None:
    model = basic_term(granularity)
    options: dict[str, Any] = {"block_rows": 512, "chunk_blocks": 4}
    expected = bits(model.ExecuteActions(scheduler="threads", **options))
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, **QUIET) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        cluster.adapt(minimum=1, maximum=3, interval="100ms", wait_count=1, target_duration="1s")
        for _ in range(2):
            result = model.ExecuteActions(scheduler=client, granularity=granularity, **options)
            assert bits(result) == expected


@pytest.mark.parametrize("granularity", ["step", "formula"])
def test_a_worker_that_is_killed_between_segments(granularity: str) -> None:
    model = basic_term(granularity)
    options: dict[str, Any] = {"block_rows": 1_024, "chunk_blocks": 5}
    expected = bits(model.ExecuteActions(scheduler="threads", **options))
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, **QUIET) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        (victim, _) = (worker.pid for worker in cluster.workers.values())

        def meanwhile() -> None:
            time.sleep(1.0)
            os.kill(victim, signal.SIGKILL)

        thread = threading.Thread(target=meanwhile)
        thread.start()
        result = model.ExecuteActions(scheduler=client, granularity=granularity, **options)
        thread.join()
        assert bits(result) == expected


# ---- runs that are prepared and not started ----------------------------------------------------


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_a_lazy_run_under_an_active_client(granularity: str, clients: dict[str, Any]) -> None:
    model = Cover(data=FRAME, rates=RATES)
    expected = bits(model.ExecuteActions(proj_len=3, block_rows=256))
    client = clients["two workers"]
    with client.as_current():
        lazy = model.ExecuteActions(
            proj_len=3, block_rows=256, granularity=granularity, compute=False
        )
        assert bits(lazy.compute()) == expected
        assert bits(lazy.persist().compute()) == expected
        (computed,) = client.compute([lazy], sync=True)
        assert bits(computed) == expected
        assert bits(lazy.compute(scheduler="synchronous")) == expected


class Decides(hl.Model):
    """A total decides what comes next, and is another one on the sample."""

    def total(self, t):
        return self.data["x"].sum()

    def value(self, t):
        return self.data["x"] * 2 if self.total(t) > 50_000_000 else self.data["x"]


def test_a_lazy_run_that_has_to_be_traced_again(clients: dict[str, Any]) -> None:
    model = Decides(data={"x": np.arange(20_000.0)})
    expected = model.ExecuteActions(proj_len=2, block_rows=1_000)
    assert expected.df_agg["value"].tolist() == [2.0 * 199_990_000] * 3
    with clients["two workers"].as_current():
        for scheduler in (None, "threads"):
            lazy = model.ExecuteActions(
                proj_len=2, block_rows=1_000, compute=False, scheduler=scheduler
            )
            for _ in range(2):
                result = lazy.compute()
                assert bits(result) == bits(expected)
                assert model.result is result
        fresh = Decides(data={"x": np.arange(20_000.0)})
        lazy = fresh.ExecuteActions(proj_len=2, block_rows=1_000, compute=False)
        with pytest.raises(hl.HlDaskError, match="only where it was made"):
            clients["two workers"].compute(lazy, sync=True)


def test_progress_on_a_cluster(clients: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    model = Cover(data=FRAME, rates=RATES)
    model.ExecuteActions(
        proj_len=3, block_rows=256, scheduler=clients["two workers"], progress=True
    )
    shown = capsys.readouterr()
    assert "100%" in shown.out + shown.err or "Completed" in shown.out + shown.err
