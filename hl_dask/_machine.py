"""What the machine has free, as this process may use it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

_MEMBERSHIP = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
# Limit, use, and the entry of memory.stat with pages of files that can be dropped at once.
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")


def free_bytes() -> int:
    """Memory that the machine, and the control groups of this process, have free."""
    free = int(psutil.virtual_memory().available)
    for folder, (limit, used, droppable) in _groups():
        with contextlib.suppress(OSError, ValueError):
            taken = int((folder / used).read_text()) - _stat(folder, droppable)
            free = min(free, int((folder / limit).read_text()) - taken)
    return max(free, 0)


def _groups() -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Folders of the control groups that limit this process, from its own up to the root."""
    try:
        lines = _MEMBERSHIP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, own = line.split(":", 2)
        if number == "0" and not controllers:
            mount, names = _MOUNT, _VERSION_2
        elif "memory" in controllers.split(","):
            mount, names = _MOUNT / "memory", _VERSION_1
        else:
            continue
        # In a container the root of the mount is often the group of the container itself.
        path = PurePosixPath(own)
        for group in (path, *path.parents):
            yield mount / str(group).lstrip("/"), names


def _stat(folder: Path, name: str) -> int:
    for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
