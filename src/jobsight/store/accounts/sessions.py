"""Sessions: browsers that are signed in.

The browser has a random value of 256 bits in a cookie; the store has its digest, so that no
session can be taken from a copy of the store.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, Final

import msgspec

from jobsight.model import SECOND
from jobsight.store.accounts.accounts import SQL, UserAccount, account_of
from jobsight.store.database import Database
from jobsight.store.tokens import digest_of

#: Sessions of one account at a time; the one that was not used for the longest time ends.
MAX_SESSIONS: Final = 50
#: Nanoseconds between two updates of the time of the last request.
SEEN_INTERVAL: Final = 60 * SECOND
_MAX_USER_AGENT: Final = 200


class Session(msgspec.Struct, kw_only=True, frozen=True):
    """A browser that is signed in."""

    digest: bytes
    #: None for the server's token.
    user: str | None
    server_token: bytes | None
    created: int
    last_seen: int
    expires: int
    peer_uid: int | None
    address: str
    user_agent: str

    @property
    def id(self) -> str:
        """Names the session on a page; nobody can sign in with it."""
        return self.digest.hex()[:16]

    def ends(self, idle: int) -> int:
        """When it ends without another request."""
        return min(self.expires, self.last_seen + idle)


class Sessions:
    """The sessions in a store. A session ends at ``expires``, or ``idle`` nanoseconds after its
    last request."""

    def __init__(self, database: Database, *, idle: int, lifetime: int) -> None:
        self._database = database
        self.idle = idle
        self.lifetime = lifetime

    def open(
        self,
        *,
        user: str | None = None,
        server_token: bytes | None = None,
        peer_uid: int | None = None,
        address: str = "",
        user_agent: str = "",
    ) -> str:
        """Start a session; returns the value of its cookie."""
        value, now = secrets.token_urlsafe(32), time.time_ns()
        values = {
            "digest": digest_of(value),
            "user": user,
            "server_token": server_token,
            "now": now,
            "expires": now + self.lifetime,
            "peer_uid": peer_uid,
            "address": address[:64],
            "user_agent": _printable(user_agent)[:_MAX_USER_AGENT],
        }
        with self._database.write() as transaction:
            ended = {"now": now, "idle": now - self.idle}
            transaction.execute(SQL["delete_ended_sessions"], ended)
            transaction.execute(SQL["insert_session"], values)
            surplus = "surplus_server_sessions" if user is None else "surplus_sessions"
            kept = {"kept": MAX_SESSIONS} | ({} if user is None else {"user": user})
            for (digest,) in transaction.execute(SQL[surplus], kept).fetchall():
                transaction.execute(SQL["delete_session"], {"digest": digest})
        return value

    def find(self, value: str) -> tuple[Session, UserAccount | None] | None:
        """The session of a cookie with its account; None if it has ended or never was.

        Read for each request, so that the end of a session and of an account take effect at once.
        """
        key = {"digest": digest_of(value)}
        with self._database.query() as transaction:
            rows = transaction.mappings(SQL["find_session"], key)
            if not rows:
                return None
            session = _session(rows[0])
            accounts: list[dict[str, Any]] = []
            if session.user is not None:
                accounts = transaction.mappings(SQL["get_account"], {"name": session.user})
        if session.ends(self.idle) <= time.time_ns():
            return None
        return session, account_of(accounts[0]) if accounts else None

    def record_use(self, session: Session) -> None:
        """Store the time of a request, once a minute."""
        now = time.time_ns()
        if now - session.last_seen < SEEN_INTERVAL:
            return
        with self._database.write() as transaction:
            transaction.execute(SQL["set_session_seen"], {"digest": session.digest, "now": now})

    def list(self, user: str) -> list[Session]:
        """The sessions of a user that have not ended, the last used first."""
        now = time.time_ns()
        with self._database.query() as transaction:
            found = transaction.mappings(SQL["list_sessions"], {"user": user})
        return [one for one in map(_session, found) if one.ends(self.idle) > now]

    def close(self, digest: bytes) -> None:
        """End a session."""
        with self._database.write() as transaction:
            transaction.execute(SQL["delete_session"], {"digest": digest})


def _session(row: dict[str, Any]) -> Session:
    values = {name: row[name] for name in Session.__struct_fields__}
    for name in ("digest", "server_token"):
        if values[name] is not None:
            values[name] = bytes(values[name])
    return Session(**values)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
