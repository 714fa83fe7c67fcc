"""The audit log: who viewed the pages and runs of whom, and when.

:class:`AuditLog` collects views in memory and writes them together; repeated views of one subject
on one day are one row with a count, so that a page that reloads itself does not fill the store.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final, NamedTuple

import msgspec

from jobsight.errors import StoreError
from jobsight.model import SECOND
from jobsight.store.accounts.accounts import SQL
from jobsight.store.database import Database
from jobsight.text import readable_text

_DAY: Final = 86400 * SECOND
#: Views in memory at most; what exceeds it is written at once.
_MAX_WAITING: Final = 1000
#: Seconds between two writes.
_WRITE_INTERVAL: Final = 5.0
_MAX_SUBJECT: Final = 300


class PageView(msgspec.Struct, kw_only=True, frozen=True):
    """Views by one viewer of one subject on one day."""

    user: str
    #: Empty for the server's token.
    viewer: str
    subject: str
    first: int
    last: int
    count: int


class _Key(NamedTuple):
    user: str
    day: int
    viewer: str
    subject: str


#: What was viewed, if it is no run and no script.
USER_PAGE: Final = "the page of the user"
LIST: Final = "an entry of a list"
LISTS_OF_MANY: Final = "a list of many users"
#: The user of a view of lists that have so many users that no one is named.
MANY_USERS: Final = ""


class AuditLog:
    """Records and reads the views of the pages of users."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._mutex = threading.Lock()
        self._waiting: dict[_Key, PageView] = {}
        self._written = time.monotonic()

    def record(self, *, user: str, viewer: str, subject: str) -> None:
        """Record a view. It is in the store some seconds later, or when the log is read."""
        now = time.time_ns()
        subject = readable_text(subject[:_MAX_SUBJECT])
        key = _Key(user[:255], now // _DAY, viewer, subject)
        with self._mutex:
            known = self._waiting.get(key)
            self._waiting[key] = PageView(
                user=key.user,
                viewer=viewer,
                subject=subject,
                first=known.first if known else now,
                last=now,
                count=known.count + 1 if known else 1,
            )
            due = time.monotonic() - self._written >= _WRITE_INTERVAL
            if not due and len(self._waiting) < _MAX_WAITING:
                return
        self.write()

    def write(self) -> None:
        """Write what waits; if the store is not available, the next call writes it."""
        with self._mutex:
            waiting, self._waiting = self._waiting, {}
            self._written = time.monotonic()
        if not waiting:
            return
        rows = [msgspec.structs.asdict(view) | {"day": key.day} for key, view in waiting.items()]
        try:
            with self._database.write() as transaction:
                transaction.execute_many(SQL["record_view"], rows)
        except StoreError:
            with self._mutex:
                for key, view in waiting.items():
                    self._waiting.setdefault(key, view)

    def views_of(self, user: str, limit: int) -> list[PageView]:
        """The last views of a user's data, and of lists of so many users that no one is named."""
        self.write()
        return self._read("views_of", {"user": user, "many": MANY_USERS, "limit": limit})

    def latest(self, limit: int) -> list[PageView]:
        """The last views of pages and runs of all users."""
        self.write()
        return self._read("all_views", {"limit": limit})

    def _read(self, query: str, values: dict[str, Any]) -> list[PageView]:
        with self._database.query() as transaction:
            rows = transaction.mappings(SQL[query], values)
        return [
            PageView(**{name: row[name] for name in PageView.__struct_fields__}) for row in rows
        ]
