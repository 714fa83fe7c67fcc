"""The interval of days that a page shows."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from fastapi import Query

from jobsight.model import SECOND

DAY: Final = 86400 * SECOND
#: The choices of a page, in days.
CHOICES: Final = ((7, "7 days"), (30, "30 days"), (90, "90 days"), (365, "a year"))

Days = Annotated[int, Query(ge=1, le=3660, description="Days up to today")]


class Interval(NamedTuple):
    """Some days up to today; numbers since 1970 in UTC."""

    days: int
    since: int
    #: The day after the last.
    until: int

    @classmethod
    def of(cls, days: int, now: int) -> Interval:
        today = now // DAY
        return cls(days, today + 1 - days, today + 1)
