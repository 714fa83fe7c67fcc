"""The cluster as the scheduler sees it, kept in the store: nodes, partitions, jobs that wait."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec
import zstandard

from jobsight.errors import StoreError
from jobsight.model import Run
from jobsight.scheduler.records import JobRecord
from jobsight.store.store import Store
from jobsight.store.write.scheduler import keep_records, list_clusters, list_records, record_details

_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_compress = zstandard.ZstdCompressor(level=3).compress
#: No record of one job or node is larger once it is unpacked.
_LARGEST = 16 * 2**20

Record = TypeVar("Record", bound=msgspec.Struct)


class Snapshot:
    """Writes what changed of one cluster, and nothing else."""

    def __init__(self, store: Store, cluster: str, clock: Callable[[], int] = time.time_ns) -> None:
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._digests: dict[str, dict[str, bytes]] = {}

    def keep(self, kind: str, records: Iterable[tuple[str, msgspec.Struct]]) -> int:
        """Take these for all there are of a kind; how many are new, changed or gone."""
        known = self._known(kind)
        now = self._clock()
        seen: dict[str, bytes] = {}
        changed: dict[str, bytes] = {}
        for name, record in records:
            data = pack(record)
            seen[name] = _digest(data)
            if known.get(name) != seen[name]:
                changed[name] = data
        gone = known.keys() - seen.keys()
        keep_records(self._store.database, self._cluster, kind, changed, gone, now)
        self._digests[kind] = seen
        return len(changed) + len(gone)

    def keep_details(self, records: Iterable[JobRecord]) -> None:
        """All that is known of runs which the store has as such."""
        details = (
            (Run(info.cluster, info.job_id, info.start), pack(_lasting(record)))
            for record in records
            if (info := record.info).start is not None
        )
        record_details(self._store.database, details, self._clock())

    def _known(self, kind: str) -> Mapping[str, bytes]:
        if kind not in self._digests:
            with self._store.database.read() as connection:
                found = list_records(connection, self._cluster, kind)
            self._digests[kind] = {document.name: _digest(document.data) for document in found}
        return self._digests[kind]


def read_snapshot(store: Store, cluster: str, kind: str, form: type[Record]) -> list[Record]:
    """The records of a kind as they were last seen, by name."""
    with store.database.read() as connection:
        found = list_records(connection, cluster, kind)
    return [unpack(document.data, form) for document in found]


def snapshot_clusters(store: Store) -> list[str]:
    """The clusters that were ever scraped into the store."""
    with store.database.read() as connection:
        return list_clusters(connection)


def pack(record: msgspec.Struct) -> bytes:
    """A record as it lies in the store."""
    return _compress(_encode(record))


def unpack(data: bytes, form: type[Record]) -> Record:
    """A record out of the store; one of another version that cannot be read is an error."""
    try:
        text = zstandard.ZstdDecompressor().decompress(data, max_output_size=_LARGEST)
        return msgspec.msgpack.decode(text, type=form)
    except (zstandard.ZstdError, msgspec.DecodeError) as error:
        raise StoreError(f"a record of the scheduler cannot be read: {error}") from None


def _lasting(record: JobRecord) -> JobRecord:
    """Without what is another value in each reply while the job runs."""
    return record if record.info.end is not None else msgspec.structs.replace(record, elapsed=None)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()
