"""Tokens of users for programs: on a login node, in a notebook, in a script.

They permit what the user may see, and changes only with the scope ``write``. Every token expires.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from jobsight.errors import JobsightError
from jobsight.model import SECOND
from jobsight.store.accounts.accounts import SQL, AccountError, UserAccount, account_of
from jobsight.store.database import Database
from jobsight.store.tokens import day_and_time, digest_of
from jobsight.store.write.validation import check_name

Scope: TypeAlias = Literal["read", "write"]

#: What a token of a user begins with; tokens of clusters have no prefix.
PREFIX: Final = "jobsight-user-"
#: Valid tokens of one user.
MAX_TOKENS: Final = 50
#: The longest time for which a token is valid.
MAX_LIFETIME: Final = 366 * 86400 * SECOND
#: Nanoseconds between two updates of the time of the last use.
_USED_INTERVAL: Final = 60 * SECOND
_MAX_LABEL: Final = 100
#: The class below has a method named list.
_Tokens: TypeAlias = list["UserToken"]


class UserToken(msgspec.Struct, kw_only=True, frozen=True):
    """The row of a token, without the token."""

    id: int
    user: str
    label: str
    scope: Scope
    created: int
    expires: int
    revoked: int | None
    #: To the minute.
    used: int | None

    def refusal(self, now: int) -> str | None:
        """Why it is not valid; None if it is."""
        if self.revoked is not None:
            return f"the token {self.name} was revoked on {day_and_time(self.revoked)}"
        if self.expires <= now:
            return f"the token {self.name} expired on {day_and_time(self.expires)}"
        return None

    @property
    def name(self) -> str:
        return f"{self.id} of user {self.user}" + (f" ({self.label})" if self.label else "")


class UserTokens:
    """The tokens of users in a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, user: str, scope: Scope, lifetime: int, label: str = "") -> tuple[UserToken, str]:
        """Create a token; returns its row and the token, which cannot be read again."""
        if not 0 < lifetime <= MAX_LIFETIME:
            raise AccountError(
                "the token of a user is valid for 366 days at most; expected --expires 90d"
            )
        if label:
            check_name("label", label, _MAX_LABEL)
        token, now = PREFIX + secrets.token_urlsafe(32), time.time_ns()
        digest = digest_of(token)
        with self._database.write() as transaction:
            if not transaction.mappings(SQL["get_account"], {"name": user}):
                raise AccountError(
                    f"there is no user account {user[:100]!r}; create it with `jobsight user add`"
                )
            key = {"user": user, "now": now}
            (valid,) = transaction.execute(SQL["count_valid_tokens"], key).fetchone()
            if valid >= MAX_TOKENS:
                raise AccountError(
                    f"{user} has {valid} valid tokens; revoke one of them before another is created"
                )
            values = key | {"digest": digest, "label": label, "scope": scope}
            transaction.execute(SQL["insert_token"], values | {"expires": now + lifetime})
            (row,) = transaction.mappings(SQL["find_token"], {"digest": digest})
        return _token(row), token

    def find(self, token: str) -> tuple[UserToken, UserAccount] | None:
        """The row of a token and the account of its owner. Read for each request, so that a
        revoked token and a disabled account are refused at once."""
        with self._database.query() as transaction:
            rows = transaction.mappings(SQL["find_token"], {"digest": digest_of(token)})
            if not rows:
                return None
            (account,) = transaction.mappings(SQL["get_account"], {"name": rows[0]["user"]})
        return _token(rows[0]), account_of(account)

    def record_use(self, token: UserToken) -> None:
        """Store the time of a request, once a minute."""
        now = time.time_ns()
        if token.used is not None and now - token.used < _USED_INTERVAL:
            return
        with self._database.write() as transaction:
            transaction.execute(SQL["set_token_used"], {"id": token.id, "now": now})

    def list(self, user: str | None = None) -> _Tokens:
        """All tokens, or those of one user, in the order of their creation."""
        with self._database.query() as transaction:
            return [_token(row) for row in transaction.mappings(SQL["list_tokens"], {"user": user})]

    def revoke(self, id: int, user: str | None = None) -> UserToken:
        """Revoke a token from now on; with ``user`` only one of that user."""
        with self._database.write() as transaction:
            rows = transaction.mappings(SQL["get_token"], {"id": id})
            if not rows or user not in (None, rows[0]["user"]):
                raise JobsightError(f"there is no token {id} of a user")
            transaction.execute(SQL["revoke_token"], {"id": id, "now": time.time_ns()})
            (row,) = transaction.mappings(SQL["get_token"], {"id": id})
        return _token(row)


def _token(row: Mapping[str, Any]) -> UserToken:
    return UserToken(**{name: row[name] for name in UserToken.__struct_fields__})
