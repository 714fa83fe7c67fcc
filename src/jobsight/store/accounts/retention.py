"""Retention of what accounts leave behind: views, ended sessions, tokens that are not valid, and
failed sign-ins."""

from __future__ import annotations

from typing import Final

from jobsight.model import SECOND
from jobsight.store.accounts.accounts import SQL
from jobsight.store.database import Database

_DAY: Final = 86400 * SECOND
#: Nanoseconds for which a revoked or expired token is still listed.
_LISTED_TOKEN: Final = 90 * _DAY


def remove_expired(database: Database, now: int, audit_log: float) -> None:
    """Remove what is no longer kept. ``audit_log`` is in days; 0 keeps all views."""
    with database.write() as transaction:
        # Sessions that have only been idle are removed when the next one is opened.
        transaction.execute(SQL["delete_ended_sessions"], {"now": now, "idle": 0})
        transaction.execute(SQL["delete_ended_failures"], {"now": now})
        transaction.execute(SQL["delete_old_tokens"], {"before": now - _LISTED_TOKEN})
        if audit_log:
            day = (now - int(audit_log * _DAY)) // _DAY
            transaction.execute(SQL["delete_views_before"], {"day": day})
