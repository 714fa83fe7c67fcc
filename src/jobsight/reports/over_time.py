"""Use by day, week or month: what was held and what was used of it, from the rollups."""

from __future__ import annotations

from typing import Final

import msgspec

from jobsight.store.rollups.usage import Period, Question, period_name, starts, usage
from jobsight.store.store import Store

#: Days that are shown by day, and by week; a longer interval is shown by month.
_MAX_DAYS: Final = 92
_MAX_WEEK_DAYS: Final = 400


class UsePoint(msgspec.Struct, kw_only=True):
    """The use in one day, week or month."""

    #: 2026-11-15, 2026-W46 or 2026-11.
    period: str
    jobs: int = 0
    users: int = 0
    core_hours: float = 0.0
    cpu_hours: float = 0.0
    gpu_hours: float = 0.0
    gpu_used_hours: float = 0.0
    gpu_measured_hours: float = 0.0
    gpu_energy_joules: float = 0.0


class UseOverTime(msgspec.Struct, kw_only=True):
    """The use in an interval of days, in steps without a gap, and its sum."""

    step: Period
    points: list[UsePoint]
    total: UsePoint

    @property
    def cpu_share(self) -> float | None:
        total = self.total
        return total.cpu_hours / total.core_hours if total.core_hours else None

    @property
    def gpu_share(self) -> float | None:
        total = self.total
        return total.gpu_used_hours / total.gpu_measured_hours if total.gpu_measured_hours else None


def step_of(since: int, until: int) -> Period:
    """The step in which an interval of days is shown."""
    days = until - since
    return "day" if days <= _MAX_DAYS else "week" if days <= _MAX_WEEK_DAYS else "month"


def use_over_time(store: Store, question: Question) -> UseOverTime:
    """The use of a question, whose first day and day after the last are given."""
    assert question.since is not None
    assert question.until is not None
    step = step_of(question.since, question.until)
    with store.database.read() as connection:
        rows = usage(connection, msgspec.structs.replace(question, by=(step,)))
        sums = usage(connection, msgspec.structs.replace(question, by=()))
    days = starts(step, question.since, question.until - 1)
    points = {name: UsePoint(period=name) for name in (period_name(step, first) for first in days)}
    for row in rows:
        # A point of a period that begins before the interval has the days in it.
        point = points.get(row.period or "")
        if point is not None:
            _add(point, row)
    total = UsePoint(period="")
    for row in sums:
        _add(total, row)
    return UseOverTime(step=step, points=list(points.values()), total=total)


def _add(point: UsePoint, row: msgspec.Struct) -> None:
    for name in UsePoint.__struct_fields__[1:]:
        setattr(point, name, getattr(point, name) + (getattr(row, name) or 0))
