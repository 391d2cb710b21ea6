"""What the machine has free, as this process may use it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil


def free_bytes() -> int:
    """Memory that the machine, or the control group of this process, has free."""
    free = psutil.virtual_memory().available
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        with contextlib.suppress(OSError, ValueError):
            free = min(free, int(Path(limit).read_text()) - int(Path(used).read_text()))
    return max(int(free), 0)
