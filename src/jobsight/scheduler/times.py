"""Times and durations as Slurm's tools write them, into nanoseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo

from jobsight.model import SECOND

#: Words for "there is none" and "not yet".
NOT_SET = frozenset({"", "unknown", "none", "n/a", "not_set", "(null)", "invalid"})
UNLIMITED = frozenset({"unlimited", "infinite", "partition_limit"})

_DURATION = re.compile(
    r"(?:(?P<days>\d{1,9})-)?(?P<parts>\d{1,12}(?::\d{1,2}){0,2})(?:\.(?P<fraction>\d{1,9}))?",
    re.ASCII,
)
_LATEST = 7_258_118_400


def from_epoch(seconds: int) -> int | None:
    """A time in seconds since 1970; 0 and Slurm's marks for "none" are None."""
    if seconds <= 0 or seconds >= 2**32 - 2:
        return None
    return seconds * SECOND


def parse_time(text: str, zone: tzinfo = UTC) -> int | None:
    """Read seconds since 1970, or ISO time as the tools print it in the zone of the cluster."""
    text = text.strip()
    if text.lower() in NOT_SET:
        return None
    if text.isascii() and text.isdigit():
        return from_epoch(int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
    return from_epoch(int(moment.timestamp()))


def parse_duration(text: str) -> int | None:
    """Read ``1-02:03:04``, ``02:03:04``, ``03:04.567`` or ``04``; unlimited and unset are None."""
    text = text.strip()
    if text.lower() in NOT_SET or text.lower() in UNLIMITED:
        return None
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a duration")
    parts = [int(part) for part in match["parts"].split(":")]
    if match["days"] is not None:
        # Behind days the first number is hours: 1-2 and 1-02:03 are written by hand.
        hours, minutes, seconds = [*parts, 0, 0][:3]
    else:
        hours, minutes, seconds = [0, 0, 0, *parts][-3:]
    whole = int(match["days"] or 0) * 86400 + hours * 3600 + minutes * 60 + seconds
    fraction = int((match["fraction"] or "0").ljust(9, "0"))
    return whole * SECOND + fraction


def from_minutes(minutes: int) -> int:
    """A time limit: Slurm counts these in minutes."""
    return minutes * 60 * SECOND
