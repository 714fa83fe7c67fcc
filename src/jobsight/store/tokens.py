"""Tokens with which the agents of a cluster authenticate.

:class:`Tokens` creates, rotates and revokes them. The store has their digests only, so that no
token can be read from it.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import msgspec

from jobsight.errors import JobsightError
from jobsight.model import SECOND
from jobsight.store.database import Database, Transaction
from jobsight.store.sql.load import load_statements
from jobsight.store.write.validation import check_name

_SQL: Final = load_statements("tokens")
#: The class below has a method named list.
_Rows: TypeAlias = list[dict[str, Any]]


class ClusterToken(msgspec.Struct, kw_only=True, frozen=True):
    """The row of a token: its cluster and validity, without the token."""

    id: int
    cluster: str
    label: str
    created: int
    expires: int | None
    revoked: int | None
    #: The time of the last batch with it, to the minute.
    used: int | None

    def refusal(self, now: int) -> str | None:
        """Why it is not valid; None if it is."""
        if self.revoked is not None:
            return f"the token {self.name} was revoked on {day_and_time(self.revoked)}"
        if self.expires is not None and self.expires <= now:
            return f"the token {self.name} expired on {day_and_time(self.expires)}"
        return None

    @property
    def name(self) -> str:
        return f"{self.id} of cluster {self.cluster}" + (f" ({self.label})" if self.label else "")


def day_and_time(moment: int) -> str:
    """A time in the form for messages and tables."""
    return f"{datetime.fromtimestamp(moment // SECOND, UTC):%Y-%m-%d %H:%M} UTC"


def digest_of(token: str) -> bytes:
    """The digest of a token, which the store has in its place."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


class Tokens:
    """The tokens in a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, cluster: str, label: str = "", expires: int | None = None) -> tuple[int, str]:
        """Create a token; returns its id and the token, which cannot be read again."""
        check_name("name of the cluster", cluster, 255)
        if label:
            check_name("label", label, 255)
        with self._database.write() as transaction:
            return _insert(transaction, cluster, label, expires)

    def rotate(
        self, id: int, grace: int, expires: int | None = None
    ) -> tuple[ClusterToken, int, str]:
        """Replace a token by a new one; the old one stays valid for the grace time."""
        old = self._get_valid(id)
        with self._database.write() as transaction:
            transaction.execute(_SQL["shorten"], {"id": id, "expires": time.time_ns() + grace})
            new, token = _insert(transaction, old.cluster, old.label, expires)
        return old, new, token

    def revoke(self, id: int) -> ClusterToken:
        """Revoke a token from now on."""
        self._get_valid(id)
        with self._database.write() as transaction:
            transaction.execute(_SQL["revoke"], {"id": id, "now": time.time_ns()})
        return self._get(id)

    def list(self, cluster: str | None = None) -> list[ClusterToken]:
        """All tokens, or those of one cluster, in the order of their creation."""
        tokens = self.by_digest().values()
        return [token for token in tokens if cluster is None or token.cluster == cluster]

    def by_digest(self) -> dict[bytes, ClusterToken]:
        """All tokens by their digests, in the order of their creation."""
        return {bytes(row["digest"]): _record(row) for row in self._rows("list")}

    def find(self, digest: bytes) -> ClusterToken | None:
        """The token with this digest."""
        rows = self._rows("find", digest=digest)
        return _record(rows[0]) if rows else None

    def record_use(self, times: Mapping[int, int]) -> None:
        """Store the times at which tokens were used, by their ids."""
        with self._database.write() as transaction:
            rows = [{"id": id, "used": used} for id, used in sorted(times.items())]
            transaction.execute_many(_SQL["set_used"], rows)

    def _rows(self, query: str, **values: object) -> _Rows:
        with self._database.query() as transaction:
            return transaction.mappings(_SQL[query], values)

    def _get(self, id: int) -> ClusterToken:
        rows = self._rows("get", id=id)
        if not rows:
            raise JobsightError(f"there is no token {id}; `jobsight token list` shows them")
        return _record(rows[0])

    def _get_valid(self, id: int) -> ClusterToken:
        token = self._get(id)
        refusal = token.refusal(time.time_ns())
        if refusal is not None:
            raise JobsightError(f"{refusal}; create a new one with `jobsight token add`")
        return token


def _insert(
    transaction: Transaction, cluster: str, label: str, expires: int | None
) -> tuple[int, str]:
    token = secrets.token_urlsafe(32)
    values = {
        "cluster": cluster,
        "digest": digest_of(token),
        "label": label,
        "created": time.time_ns(),
        "expires": expires,
    }
    transaction.execute(_SQL["insert"], values)
    (id,) = transaction.execute(_SQL["find_id"], values).fetchone()
    return int(id), token


def _record(row: Mapping[str, Any]) -> ClusterToken:
    return ClusterToken(**{name: row[name] for name in ClusterToken.__struct_fields__})
