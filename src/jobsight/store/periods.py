"""Days, weeks and months of the sums, as numbers of days since 1970 in UTC and as names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final, Literal, TypeAlias

from sqlalchemy import ColumnElement, Integer, case, literal_column

from jobsight.model import SECOND

Period: TypeAlias = Literal["day", "week", "month"]
PERIODS: Final = ("day", "week", "month")

_EPOCH: Final = date(1970, 1, 1)


def day_of(moment: int) -> int:
    """The day that a time in nanoseconds lies in."""
    return moment // (86400 * SECOND)


def date_of(day: int) -> date:
    return _EPOCH + timedelta(days=day)


def number_of(when: date) -> int:
    return (when - _EPOCH).days


def today() -> int:
    return number_of(datetime.now(UTC).date())


def starts(period: Period, first: int, last: int) -> list[int]:
    """The first days of the periods that the days from ``first`` to ``last`` lie in."""
    result = [_start(period, date_of(first))]
    while (following := _next(period, result[-1])) <= date_of(last):
        result.append(following)
    return [number_of(start) for start in result]


def period_name(period: Period, day: int) -> str:
    """2026-11-15, 2026-W46 or 2026-11."""
    when = date_of(day)
    if period == "week":
        year, week, _ = when.isocalendar()
        return f"{year}-W{week:02d}"
    return when.strftime("%Y-%m") if period == "month" else when.isoformat()


def grouped(column: ColumnElement[int], bounds: Sequence[int]) -> ColumnElement[int]:
    """The first day of the period of each row, as SQL; both engines lack a calendar of days."""
    first: ColumnElement[int] = literal_column(str(bounds[0]), Integer)
    later = [(column >= bound, literal_column(str(bound), Integer)) for bound in bounds[:0:-1]]
    return case(*later, else_=first) if later else first


def _start(period: Period, day: date) -> date:
    if period == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if period == "month" else day


def _next(period: Period, start: date) -> date:
    if period == "month":
        return (start + timedelta(days=32)).replace(day=1)
    return start + timedelta(days=7 if period == "week" else 1)
