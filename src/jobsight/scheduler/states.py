"""States of jobs and nodes: one word, and the flags beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

#: States of a job that has not ended.
WAITING = frozenset({"PENDING"})
ACTIVE = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "SIGNALING",
                    "STAGE_OUT", "RESIZING", "POWER_UP_NODE"})  # fmt: skip
#: States in which a job may end for good; REQUEUED is the end of that run.
ENDED = frozenset({"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL",
                   "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT", "REQUEUED", "REVOKED"})  # fmt: skip
_BASE = frozenset({"PENDING", "RUNNING", "SUSPENDED"}) | (ENDED - {"REQUEUED", "REVOKED"})
_WORD = re.compile(r"[A-Z][A-Z0-9_]*", re.ASCII)
#: What the compact and the older tools write.
_OTHER_NAMES = {
    "CANCELED": "CANCELLED",
    "NODE FAIL": "NODE_FAIL",
    "OUT OF MEMORY": "OUT_OF_MEMORY",
    "REQUEUE": "REQUEUED",
}


class JobState(NamedTuple):
    """The state that counts, and whatever else was said beside it."""

    state: str
    flags: tuple[str, ...] = ()

    @property
    def waiting(self) -> bool:
        return self.state in WAITING

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def parse_job_state(text: str) -> JobState:
    """Read one state: ``RUNNING``, ``CANCELLED by 1000``, ``CANCELLED+``, ``failed``."""
    word = text.strip().upper().removesuffix("+")
    # sacct adds who did it. Only what stands before it is a state.
    word = word.partition(" BY ")[0].strip()
    word = _OTHER_NAMES.get(word, word)
    if not _WORD.fullmatch(word):
        raise ValueError(f"{text[:40]!r} is not a state of a job")
    return JobState(word)


def join_job_states(words: Sequence[str]) -> JobState:
    """Read a list as it stands in newer replies: the base state, then flags such as COMPLETING."""
    if not words:
        raise ValueError("a job has an empty list of states")
    states = [parse_job_state(word).state for word in words]
    flags = tuple(state for state in states if state not in _BASE)
    base = next((state for state in states if state in _BASE), states[0])
    if "COMPLETING" in flags:
        # Its resources are not free yet and its end is not booked.
        return JobState("COMPLETING", tuple(state for state in states if state != "COMPLETING"))
    return JobState(base, tuple(state for state in states if state != base))


_NODE_MARKS = {"*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP",
               "!": "POWERING_DOWN", "%": "POWERING_DOWN", "$": "MAINTENANCE",
               "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "-": "PLANNED"}  # fmt: skip
_NODE_NAMES = {"ALLOC": "ALLOCATED", "MIX": "MIXED", "MAINT": "MAINTENANCE", "COMP": "COMPLETING",
               "RESV": "RESERVED", "UNK": "UNKNOWN", "DRAINED": "IDLE+DRAIN",
               "DRAINING": "ALLOCATED+DRAIN", "DRNG": "ALLOCATED+DRAIN"}  # fmt: skip


def parse_node_state(words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The state of a node in capitals, and its flags: ``mixed*+drain`` is MIXED, with two."""
    pieces: list[str] = []
    for word in words:
        for piece in word.strip().upper().split("+"):
            name = piece.rstrip("*~#!%$@^-")
            pieces += _NODE_NAMES.get(name, name).split("+")
            pieces += [_NODE_MARKS[mark] for mark in piece[len(name) :]]
    if not pieces or not all(_WORD.fullmatch(piece) for piece in pieces):
        raise ValueError(f"{'+'.join(words)[:40]!r} is not a state of a node")
    return pieces[0], tuple(dict.fromkeys(pieces[1:]))
