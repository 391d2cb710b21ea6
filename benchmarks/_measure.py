"""Peak memory, fresh processes, and the form in which all benchmarks report."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Self

MB = 1e6
ROOT = Path(__file__).resolve().parent.parent
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Row:
    """One engine at one size; the keys of the JSON form, in the order of the printed table.

    Times are wall-clock seconds, medians over the repeats; ``None`` is "not measured".
    """

    engine: str
    rows: int
    months: int
    record_s: float | None
    plan_s: float | None
    replay_s: float | None
    seconds: float
    ns_per_policy_month: float | None
    peak_mb: float
    result: float | None
    ratio: float | None
    projected_mb: float | None = None  # only where a budget was given

    def as_json(self) -> dict[str, Any]:
        """The row as a JSON object; ``projected_mb`` only where there is one."""
        fields = asdict(self)
        if self.projected_mb is None:
            del fields["projected_mb"]
        return fields


def row_of(
    engine: str, size: int, months: int, answers: Sequence[dict[str, Any]], base: float
) -> Row:
    """The row of an engine from its answers; ``base`` are the seconds that it is compared with."""
    seconds = median(answer["seconds"] for answer in answers)
    return Row(
        engine=engine,
        rows=size,
        months=months,
        record_s=None,
        plan_s=None,
        replay_s=seconds,
        seconds=seconds,
        ns_per_policy_month=seconds * 1e9 / (size * months),
        peak_mb=median(answer["peak_mb"] for answer in answers),
        result=answers[0]["result"],
        ratio=base / seconds,
    )


def report(rows: Sequence[Row], json_file: str | None) -> None:
    """Print the rows as a table, and write them as a JSON list of objects when a file is named."""
    import pandas as pd

    frame = pd.DataFrame([row.as_json() for row in rows])
    formats: dict[str, Any] = dict.fromkeys(
        ("record_s", "plan_s", "replay_s", "seconds", "ratio"), _number("{:.3f}")
    )
    formats |= {
        name: _number("{:,.1f}") for name in ("ns_per_policy_month", "peak_mb", "projected_mb")
    }
    formats["rows"] = _number("{:,.0f}")
    formats["result"] = _number("{:,.3f}")
    formats = {name: form for name, form in formats.items() if name in frame}
    print(frame.to_string(index=False, formatters=formats))
    if json_file is not None:
        text = json.dumps([row.as_json() for row in rows], indent=2)
        Path(json_file).write_text(text + "\n", encoding="utf-8")


def _number(form: str) -> Any:
    return lambda value: "-" if value is None or value != value else form.format(value)


def fresh_process(module: str, *arguments: object) -> dict[str, Any]:
    """Run ``python -m module arguments`` and return the JSON object on its last line of output."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        message = f"{' '.join(command[1:])} failed with exit code {done.returncode}"
        raise SystemExit(message)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


class PeakMemory:
    """The highest resident size of this process within a ``with`` block, in bytes.

    On Linux the kernel's own high-water mark is reset at the start, which misses nothing;
    elsewhere a thread samples the resident size every five milliseconds.

    Attributes
    ----------
    before, peak : int
        Resident bytes at the start, and the highest since.
    """

    def __enter__(self) -> Self:
        self.before = self.peak = resident_bytes()
        self._stop = threading.Event()
        self._sampler = None
        if not _reset_high_water():
            self._sampler = threading.Thread(target=self._sample, daemon=True)
            self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._sampler is None:
            self.peak = max(self.peak, _status_bytes("VmHWM"))
        else:
            self._stop.set()
            self._sampler.join()

    def _sample(self) -> None:
        while not self._stop.wait(0.005):
            self.peak = max(self.peak, resident_bytes())

    @property
    def above_mb(self) -> float:
        """Megabytes by which the peak exceeds the resident size at the start."""
        return (self.peak - self.before) / MB


def resident_bytes() -> int:
    """Resident size of this process now."""
    if _STATUS.exists():
        return _status_bytes("VmRSS")
    import psutil

    return int(psutil.Process(os.getpid()).memory_info().rss)


def high_water_bytes() -> int:
    """Highest resident size of this process since it started.

    ``ru_maxrss`` is only the second choice: on Linux a child process starts with its parent's.
    """
    if _STATUS.exists():
        return _status_bytes("VmHWM")
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status_bytes(field: str) -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    message = f"{_STATUS} has no {field}"
    raise RuntimeError(message)


def _reset_high_water() -> bool:
    try:
        _CLEAR_REFS.write_text("5", encoding="ascii")
    except OSError:
        return False
    return True
