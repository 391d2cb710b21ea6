"""Runs within limits that the operating system, or a nanny, enforces: they are not killed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hl_dask import _machine, demo

MB = 1_000_000
LIMIT_MB = 400
RUN = """
import json, os, resource, sys
from pathlib import Path
folder, limit, group = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if group:
    Path(group, "cgroup.procs").write_text(str(os.getpid()))
from hl_dask import demo
from hl_dask.budget import peak_bytes, resident_bytes
if not group:
    # Addresses are reserved beyond what is used: 64 MB an allocator and 8 MB a stack of a thread.
    status = Path("/proc/self/status").read_text()
    reserved = 1024 * int(status.split("VmSize:")[1].split()[0])
    most = reserved + limit - resident_bytes() + 4 * 72_000_000
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
model = demo.TermAssurance(data=f"{folder}/*.parquet", **demo.assumptions())
result = model.ExecuteActions(proj_len=60, memory=limit, workers=2)
print(json.dumps({"peak": peak_bytes(), "projected": result.stats.projected_bytes,
                  "allowed": result.stats.allowed_bytes, "pv": result.values["pv_net_cf"]}))
"""
HOG = """
import os, sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
data = bytearray(700_000_000)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policies")
    demo.write_portfolio(path, 1_000_000)
    return path


@contextlib.contextmanager
def control_group(limit: int) -> Iterator[Path | None]:
    """A control group with a limit; None where we may not make one."""
    places = (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    )
    for mount, name in places:
        group = mount / f"hl_dask_test_{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / name).write_text(str(limit))
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            with contextlib.suppress(OSError):
                group.rmdir()
        return
    yield None


def limited(folder: Path, group: Path | None) -> dict[str, Any]:
    arguments = [str(folder), str(LIMIT_MB * MB), str(group or "")]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2_000:]}"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_a_limit_on_the_addresses_of_the_process(folder: Path) -> None:
    found = limited(folder, None)
    assert found["peak"] <= found["projected"] <= found["allowed"] == LIMIT_MB * MB


@pytest.mark.slow
def test_a_control_group(folder: Path) -> None:
    """Where we may not make one, the limit on addresses above has to do."""
    with control_group(LIMIT_MB * MB) as group:
        if group is None:
            assert limited(folder, None)["peak"] <= LIMIT_MB * MB
            return
        hog = subprocess.run([sys.executable, "-c", HOG, str(group)], check=False)
        assert hog.returncode == -9  # the limit is real
        found = limited(folder, group)
    assert found["peak"] <= found["projected"] <= LIMIT_MB * MB


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_nanny(folder: Path) -> None:
    distributed = pytest.importorskip("distributed")
    model = demo.TermAssurance(data=f"{folder}/*.parquet", **demo.assumptions())
    expected = model.ExecuteActions(proj_len=60, scheduler="threads").df_agg
    with (
        distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            memory_limit=f"{LIMIT_MB}MB",
            dashboard_address=":0",
            silence_logs="CRITICAL",
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        before = set(client.scheduler_info(n_workers=-1)["workers"])
        result = model.ExecuteActions(proj_len=60, scheduler=client)
        assert set(client.scheduler_info(n_workers=-1)["workers"]) == before  # none was killed
    assert result.df_agg.equals(expected)
    assert result.stats.measured_bytes <= result.stats.projected_bytes <= LIMIT_MB * MB


# ---- what is free ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_control_groups_say_what_is_free(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = tmp_path / "mount"
    root = mount / "memory" if version == 1 else mount
    names = _machine._VERSION_1 if version == 1 else _machine._VERSION_2
    member = tmp_path / "cgroup"
    line = "5:memory:/jobs/mine" if version == 1 else "0::/jobs/mine"
    member.write_text(f"3:cpu:/elsewhere\n{line}\n")
    monkeypatch.setattr(_machine, "_MOUNT", mount)
    monkeypatch.setattr(_machine, "_MEMBERSHIP", member)
    unlimited = _machine.free_bytes()
    assert unlimited > 100 * MB
    for group, limit, used in (("jobs/mine", 90 * MB, 30 * MB), ("jobs", 80 * MB, 50 * MB)):
        place = root / group
        place.mkdir(parents=True, exist_ok=True)
        (place / names[0]).write_text(f"{limit}\n")
        (place / names[1]).write_text(f"{used}\n")
        (place / "memory.stat").write_text(f"cache 1\n{names[2]} {10 * MB}\nrss 3\n")
    assert _machine.free_bytes() == 40 * MB  # of the group above: 80 - (50 - 10)
    (root / "jobs" / names[0]).write_text("max\n")
    assert _machine.free_bytes() == 70 * MB
    member.unlink()
    assert abs(_machine.free_bytes() - unlimited) < 1_000 * MB
