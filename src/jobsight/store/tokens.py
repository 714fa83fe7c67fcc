"""The tokens of clusters, which their agents show: digests only, no token can be read back."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
from sqlalchemy import RowMapping, select

from jobsight.errors import JobsightError
from jobsight.model import SECOND
from jobsight.store.database import Database, Transaction
from jobsight.store.schema.tables import tokens
from jobsight.store.write.validation import check_name

_INSERT = """
    INSERT INTO tokens (cluster, digest, label, created, expires)
    VALUES (:cluster, :digest, :label, :created, :expires)
"""
#: A second word on a token never gives it a longer life than the first.
_SHORTEN = """
    UPDATE tokens SET expires = :expires
    WHERE id = :id AND (expires IS NULL OR expires > :expires)
"""
_REVOKE = "UPDATE tokens SET revoked = :now WHERE id = :id AND revoked IS NULL"
_USED = "UPDATE tokens SET used = :used WHERE id = :id AND (used IS NULL OR used < :used)"


class ClusterToken(msgspec.Struct, kw_only=True, frozen=True):
    """What is kept of a token: whose it is and how long it is good, not the token."""

    id: int
    cluster: str
    label: str
    created: int
    expires: int | None
    revoked: int | None
    #: When a batch last came with it, to the minute.
    used: int | None

    def refusal(self, now: int) -> str | None:
        """Why it is not good any more; None while it is."""
        if self.revoked is not None:
            return f"the token {self.name} was revoked on {day_and_time(self.revoked)}"
        if self.expires is not None and self.expires <= now:
            return f"the token {self.name} expired on {day_and_time(self.expires)}"
        return None

    @property
    def name(self) -> str:
        return f"{self.id} of cluster {self.cluster}" + (f" ({self.label})" if self.label else "")


def day_and_time(moment: int) -> str:
    """A moment as it stands in messages and tables."""
    return f"{datetime.fromtimestamp(moment // SECOND, UTC):%Y-%m-%d %H:%M} UTC"


def digest_of(token: str) -> bytes:
    """What stands in the store for a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


class Tokens:
    """The tokens in a store: made, listed, replaced, revoked."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, cluster: str, label: str = "", expires: int | None = None) -> tuple[int, str]:
        """Make a token; gives its id, and the token itself for this one time."""
        check_name("name of the cluster", cluster, 255)
        if label:
            check_name("label", label, 255)
        with self._database.write() as transaction:
            return _insert(transaction, cluster, label, expires)

    def rotate(
        self, id: int, grace: int, expires: int | None = None
    ) -> tuple[ClusterToken, int, str]:
        """Make a token in place of another, which stays good for the grace time: no gap."""
        old = self._good(id)
        with self._database.write() as transaction:
            transaction.execute(_SHORTEN, {"id": id, "expires": time.time_ns() + grace})
            new, token = _insert(transaction, old.cluster, old.label, expires)
        return old, new, token

    def revoke(self, id: int) -> ClusterToken:
        """Make a token worthless."""
        self._good(id)
        with self._database.write() as transaction:
            transaction.execute(_REVOKE, {"id": id, "now": time.time_ns()})
        return self._get(id)

    def list(self, cluster: str | None = None) -> list[ClusterToken]:
        """All tokens, or those of one cluster, in the order in which they were made."""
        question = select(tokens).order_by(tokens.c.id)
        if cluster is not None:
            question = question.where(tokens.c.cluster == cluster)
        with self._database.read() as connection:
            return [_record(row) for row in connection.execute(question).mappings()]

    def by_digest(self) -> dict[bytes, ClusterToken]:
        """All tokens by what stands in the store for them."""
        with self._database.read() as connection:
            rows = connection.execute(select(tokens)).mappings()
            return {bytes(row["digest"]): _record(row) for row in rows}

    def find(self, digest: bytes) -> ClusterToken | None:
        """The token with this digest."""
        with self._database.read() as connection:
            question = select(tokens).where(tokens.c.digest == digest)
            row = connection.execute(question).mappings().first()
        return None if row is None else _record(row)

    def note_used(self, moments: Mapping[int, int]) -> None:
        """Keep when tokens were used, by their ids."""
        with self._database.write() as transaction:
            rows = [{"id": id, "used": used} for id, used in sorted(moments.items())]
            transaction.execute_many(_USED, rows)

    def _get(self, id: int) -> ClusterToken:
        with self._database.read() as connection:
            row = connection.execute(select(tokens).where(tokens.c.id == id)).mappings().first()
        if row is None:
            raise JobsightError(f"there is no token {id}; `jobsight token list` shows them")
        return _record(row)

    def _good(self, id: int) -> ClusterToken:
        found = self._get(id)
        refusal = found.refusal(time.time_ns())
        if refusal is not None:
            raise JobsightError(f"{refusal}; make a new one with `jobsight token add`")
        return found


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
    transaction.execute(_INSERT, values)
    found = transaction.execute("SELECT id FROM tokens WHERE digest = :digest", values)
    return int(found.fetchone()[0]), token


def _record(row: RowMapping) -> ClusterToken:
    return ClusterToken(**{name: row[name] for name in ClusterToken.__struct_fields__})
