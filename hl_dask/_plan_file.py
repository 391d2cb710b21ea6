"""Checking what a plan file says, field by field: a file can be damaged, or made by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Check = Callable[[Any], bool]


def _whole(smallest: int) -> Check:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= smallest


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def _text_by_text(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _truth(value: Any) -> bool:
    return isinstance(value, bool)


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_whole(0), value))


PLAN: Mapping[str, Check] = {
    "model": _text,
    "proj_len": _whole(0),
    "outputs": lambda v: v is None or _texts(v),
    "block_rows": _whole(1),
    "columns": _texts,
    "opaque": _text_by_text,
    "whole": _text_by_text,
    "fingerprint": _text_by_text,
    "nodes": _whole(0),
    "row_nodes": _whole(0),
    "peak_live": _texts,
    "pinned": _texts,
    "live_row_bytes": _whole(0),
    "register_row_bytes": _whole(0),
    "column_row_bytes": _whole(0),
    "output_count": _whole(0),
    "guards": _texts,
    "sample_rows": _sizes,
    "record_s": _number,
    "rows": _whole(1),
    "uses_row_count": _truth,
}
CALL: Mapping[str, Check] = {
    "call": _text,
    "formula": _text,
    "kind": lambda v: v in ("shared", "per-point", "portfolio"),
    "phase": _whole(0),
    "reads": _texts,
    "row_bytes": _whole(0),
    "reported": _truth,
}


def check_state(state: Mapping[str, Any], call_fields: Sequence[str]) -> None:
    """Check the fields of a plan, and of its calls.

    Raises
    ------
    ValueError
        When a field is missing, unknown or of another type, or a call reads one that is not there.
    """
    calls = state.get("calls")
    if not isinstance(calls, list) or not all(isinstance(c, dict) for c in calls):
        msg = "calls is not a list of calls"
        raise ValueError(msg)
    _check(state, PLAN, "the plan", extra=("calls",))
    for call in calls:
        _check(call, {name: CALL[name] for name in call_fields}, f"call {call.get('call')!r}")
    known = {call["call"] for call in calls}
    for call in calls:
        missing = set(call["reads"]) - known
        if missing:
            msg = f"{call['call']} reads {', '.join(sorted(missing))}, which is not in the plan"
            raise ValueError(msg)


def _check(
    state: Mapping[str, Any], checks: Mapping[str, Check], what: str, extra: Sequence[str] = ()
) -> None:
    wrong = set(state) ^ (set(checks) | set(extra))
    if wrong:
        msg = f"{what} has missing or unknown fields: {', '.join(sorted(wrong))}"
        raise ValueError(msg)
    for name, check in checks.items():
        if not check(state[name]):
            msg = f"{name} of {what} is {str(state[name])[:60]!r}"
            raise ValueError(msg)
