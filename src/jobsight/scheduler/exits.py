"""How a job ended: exit code and signal, in each of the forms that Slurm gives them."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from jobsight.scheduler.values import amount

_PAIR = re.compile(r"(\d{1,10}):(\d{1,5})(?:\s.*)?", re.ASCII)


class Exit(NamedTuple):
    """None is "not known"; a job killed by a signal has no exit code."""

    code: int | None = None
    signal: int | None = None


def parse_exit(text: str) -> Exit:
    """Read sacct's ``code:signal``."""
    match = _PAIR.fullmatch(text.strip())
    if match is None:
        if text.strip() == "":
            return Exit()
        raise ValueError(f"{text[:40]!r} is not an exit code")
    return _pair(int(match[1]), int(match[2]))


def from_wait_status(status: int) -> Exit:
    """Read the number that wait(2) gives, as the controller passes it on."""
    return _pair(status >> 8 & 0xFFFFFF, status & 0x7F)


def read_exit(value: Any) -> Exit:
    """Read a plain wait status or the object of newer replies."""
    if not isinstance(value, dict) or "number" in value:
        status = amount(value)
        return Exit() if status is None else from_wait_status(status)
    signal_value = value.get("signal")
    if isinstance(signal_value, dict):
        # "signal_id" to 22.05, "id" since.
        signal_value = signal_value.get("id", signal_value.get("signal_id"))
    signal = amount(signal_value) or 0
    code = amount(value.get("return_code"))
    if code is None and not signal:
        return Exit()
    return _pair(code or 0, signal)


def _pair(code: int, signal: int) -> Exit:
    if signal:
        return Exit(code or None, signal)
    return Exit(code, None)


def believable(found: Exit, state: str) -> bool:
    """Whether an exit fits the state: 22.05's JSON says 0 for every job that failed by its code."""
    return not (state == "FAILED" and found.code == 0 and not found.signal)
