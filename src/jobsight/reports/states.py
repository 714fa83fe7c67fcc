"""The state of a run in words."""

from __future__ import annotations

import signal

_WORDS = {
    "BOOT_FAIL": "failed: a node did not boot",
    "CANCELLED": "cancelled",
    "COMPLETED": "completed",
    "COMPLETING": "completing",
    "CONFIGURING": "being set up",
    "DEADLINE": "ended at its deadline",
    "FAILED": "failed",
    "NODE_FAIL": "failed: a node went down",
    "OUT_OF_MEMORY": "ended: out of memory",
    "PENDING": "waiting",
    "PREEMPTED": "preempted",
    "REQUEUED": "put back into the queue",
    "RUNNING": "running",
    "SUSPENDED": "suspended",
    "TIMEOUT": "ended: time limit reached",
    "UNKNOWN": "state not known",
}

#: What a state means for its reader, and so its colour; any other is "idle".
_TONES = {
    "COMPLETED": "good",
    "RUNNING": "busy",
    "COMPLETING": "busy",
    "CONFIGURING": "busy",
    "FAILED": "bad",
    "OUT_OF_MEMORY": "bad",
    "NODE_FAIL": "bad",
    "BOOT_FAIL": "bad",
    "TIMEOUT": "warn",
    "DEADLINE": "warn",
    "PREEMPTED": "warn",
    "CANCELLED": "warn",
}

#: States in which a job still holds its resources.
ACTIVE = frozenset({"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED"})


def describe_state(state: str, exit_code: int | None, exit_signal: int | None) -> str:
    """Say how a run stands or ended: "failed with exit code 7"."""
    words = _WORDS.get(state.upper(), state.lower().replace("_", " "))
    if state.upper() in ACTIVE or state.upper() == "PENDING":
        return words
    if exit_signal:
        return f"{words}, killed by signal {signal_name(exit_signal)}"
    if exit_code:
        joint = " with" if state.upper() == "FAILED" else ","
        return f"{words}{joint} exit code {exit_code}"
    return words


def tone_of(state: str) -> str:
    """Say whether a state is "good", "busy", "warn", "bad" or "idle"."""
    return _TONES.get(state.upper(), "idle")


def signal_name(number: int) -> str:
    """Name a signal: "9 (SIGKILL)"."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)
