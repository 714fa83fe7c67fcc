"""Working days: digests and alerts are sent on them only."""

from __future__ import annotations

from datetime import date, timedelta

from jobsight.config.settings import MailSettings
from jobsight.errors import ConfigError

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def holidays(settings: MailSettings) -> frozenset[date]:
    """The holidays of the settings."""
    found = set()
    for text in settings.holidays:
        try:
            found.add(date.fromisoformat(text))
        except ValueError:
            raise ConfigError(
                f"mail.holidays: {text[:40]!r} is not a date; expected one as 2026-12-25"
            ) from None
    return frozenset(found)


def is_working_day(settings: MailSettings, day: date) -> bool:
    return _DAYS[day.weekday()] in settings.working_days and day not in holidays(settings)


def next_working_day(settings: MailSettings, day: date) -> date | None:
    """The day itself or the next working day within a year; None if there is none."""
    for _ in range(366):
        if is_working_day(settings, day):
            return day
        day += timedelta(days=1)
    return None
