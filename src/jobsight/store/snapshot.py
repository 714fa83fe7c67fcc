"""The snapshot of a cluster: its nodes, partitions, pending jobs and so on, as last scraped.

:class:`Snapshot` writes what changed since the last scrape; :func:`read_snapshot` reads the
records of one kind. A record is any msgspec struct, stored as compressed MessagePack under
cluster, kind and name.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
import zstandard

from jobsight.errors import StoreError
from jobsight.store.database import Database
from jobsight.store.read import pseudonyms
from jobsight.store.sql.load import load_statements
from jobsight.util.batching import batched

_SQL: Final = load_statements("scheduler")
#: Records in one transaction: the batches of agents wait no longer than these take.
_BATCH_SIZE = 1000
#: Bytes of one decompressed record.
_MAX_RECORD_SIZE = 16 * 2**20

_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_compress = zstandard.ZstdCompressor(level=3).compress

Record = TypeVar("Record", bound=msgspec.Struct)


class Snapshot:
    """Writes the changed records of one cluster."""

    def __init__(
        self, database: Database, cluster: str, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._database = database
        self._cluster = cluster
        self._clock = clock
        #: Digests of the stored records by kind and name.
        self._digests: dict[str, dict[str, bytes]] = {}

    def replace(self, kind: str, records: Iterable[tuple[str, msgspec.Struct]]) -> int:
        """Make these all records of a kind; returns how many are new, changed or removed."""
        known = self._known(kind)
        seen: dict[str, bytes] = {}
        changed: dict[str, bytes] = {}
        for name, record in records:
            data = pack(record)
            seen[name] = _digest(data)
            if known.get(name) != seen[name]:
                changed[name] = data
        removed = known.keys() - seen.keys()
        key = {"cluster": self._cluster, "kind": kind, "now": self._clock()}
        for statement, rows in (
            (_SQL["set_record"], (key | {"name": n, "data": data} for n, data in changed.items())),
            (_SQL["remove_record"], (key | {"name": name} for name in removed)),
        ):
            for batch in batched(rows, _BATCH_SIZE):
                with self._database.write() as transaction:
                    transaction.execute_many(statement, batch)
        self._digests[kind] = seen
        return len(changed) + len(removed)

    def count(self, kind: str) -> int:
        """How many records of a kind are stored."""
        return len(self._known(kind))

    def _known(self, kind: str) -> Mapping[str, bytes]:
        if kind not in self._digests:
            stored = _stored(self._database, self._cluster, kind)
            self._digests[kind] = {name: _digest(data) for name, data in stored}
        return self._digests[kind]


def read_snapshot(database: Database, cluster: str, kind: str, form: type[Record]) -> list[Record]:
    """The records of a kind as last scraped, by name."""
    return [unpack(data, form) for _, data in _stored(database, cluster, kind)]


def snapshot_clusters(database: Database) -> list[str]:
    """The clusters that were ever scraped."""
    with database.query() as transaction:
        return [cluster for (cluster,) in transaction.execute(_SQL["clusters"]).fetchall()]


def pack(record: msgspec.Struct) -> bytes:
    """The stored form of a record; equal records have equal forms."""
    return _compress(_encode(record))


def unpack(data: bytes, form: type[Record]) -> Record:
    """A stored record; raises :class:`StoreError` if it cannot be read."""
    record: Record = _unpack(data, form)
    return pseudonyms.record(record)


def unpack_fields(data: bytes) -> dict[str, Any]:
    """The fields of a stored record by name; those with their default value are missing."""
    fields: dict[str, Any] = _unpack(data, dict[str, Any])
    return fields


def complete(known: bytes, other: bytes) -> bytes:
    """The stored record ``known`` with the fields that only ``other`` has."""
    fields = unpack_fields(known)
    merged = unpack_fields(other) | fields
    return known if merged == fields else _compress(_encode(merged))


def _unpack(data: bytes, form: Any) -> Any:
    try:
        encoded = zstandard.ZstdDecompressor().decompress(data, max_output_size=_MAX_RECORD_SIZE)
        return msgspec.msgpack.decode(encoded, type=form)
    except (zstandard.ZstdError, msgspec.DecodeError) as error:
        raise StoreError(f"a record of the scheduler cannot be read: {error}") from None


def _stored(database: Database, cluster: str, kind: str) -> list[tuple[str, bytes]]:
    with database.query() as transaction:
        key = {"cluster": cluster, "kind": kind}
        return list(transaction.execute(_SQL["records_of_cluster"], key).fetchall())


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()
