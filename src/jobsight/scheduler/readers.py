"""How single fields of JSON replies are read; one function for each kind of value."""

from __future__ import annotations

from typing import Any

from jobsight.model import SECOND
from jobsight.scheduler.hostlist import expand_hosts
from jobsight.scheduler.states import JobState, join_job_states, parse_job_state
from jobsight.scheduler.times import from_epoch, from_minutes, parse_time
from jobsight.scheduler.tres import MIB
from jobsight.scheduler.values import amount, number, text_or_none, words


def time(value: Any) -> int | None:
    if isinstance(value, str):
        return parse_time(value)
    found = amount(value)
    return None if found is None else from_epoch(found)


def seconds(value: Any) -> int | None:
    found = amount(value)
    return None if found is None else found * SECOND


def minutes(value: Any) -> int | None:
    """A time limit; 0 is what a job has before it gets one."""
    found = amount(value)
    return from_minutes(found) if found else None


def mebibytes(value: Any) -> int | None:
    found = amount(value)
    return None if found is None else found * MIB


def cpu_time(value: Any) -> int | None:
    """Seconds and microseconds."""
    if not isinstance(value, dict):
        return seconds(value)
    whole, rest = amount(value.get("seconds")), amount(value.get("microseconds"))
    if whole is None and rest is None:
        return None
    return (whole or 0) * SECOND + (rest or 0) * 1000


def load(value: Any) -> float | None:
    """The load average: hundredths as a whole number."""
    found = number(value)
    return None if found is None or found >= 2**32 - 2 or found < 0 else found / 100


def job_state(value: Any) -> JobState:
    if isinstance(value, list):
        return join_job_states(value)
    return parse_job_state(value)


def hosts(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return expand_hosts(value) or None
    return words(value) or None


def name(value: Any) -> str | None:
    """A name; 21.08 to 22.05 write 0 for a reservation that has none."""
    return None if value == 0 else text_or_none(value)


def flags(value: Any) -> tuple[str, ...] | None:
    return words(value) or None
