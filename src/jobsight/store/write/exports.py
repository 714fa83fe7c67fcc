"""State of the exports in the store: the position of each export, and what it has reported.

An export is named after its cluster. Its checkpoint holds the sequence number of its last file, the
last revision it has processed, and the file that may still have its temporary name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import Row, text

from jobsight.errors import StoreError
from jobsight.store.checkpoints import Checkpoint, read_checkpoint, set_checkpoint
from jobsight.store.database import Database
from jobsight.store.rollups.rollups import decode_contribution

#: Runs read with one query.
PAGE_SIZE: Final = 1000

_COLUMNS: Final = """
    contributions.run_id, contributions.revision, contributions.data, runs.cluster, runs.job_id,
    runs.start, runs.provisional, runs."end" IS NULL AS is_open, runs."user", runs.account,
    exported.digest
"""
_CHANGED: Final = f"""
    SELECT {_COLUMNS} FROM contributions JOIN runs ON runs.id = contributions.run_id
    LEFT JOIN exported ON exported.name = :name AND exported.run_id = contributions.run_id
    WHERE contributions.revision > :after AND NOT contributions.dropped
        AND (CAST(:cluster AS TEXT) = '' OR runs.cluster = :cluster)
    ORDER BY contributions.revision LIMIT :limit
"""
_DEFERRED: Final = f"""
    SELECT {_COLUMNS} FROM exported JOIN runs ON runs.id = exported.run_id
    JOIN contributions ON contributions.run_id = exported.run_id
    WHERE exported.name = :name AND exported.digest IS NULL AND exported.run_id > :after
        AND runs."end" IS NOT NULL AND NOT contributions.dropped
    ORDER BY exported.run_id LIMIT :limit
"""
_SET_REPORTED: Final = """
    INSERT INTO exported (name, run_id, digest) VALUES (:name, :run_id, :digest)
    ON CONFLICT (name, run_id) DO UPDATE SET digest = excluded.digest
"""
_LAST_REVISION: Final = "SELECT value FROM checkpoints WHERE name = 'contributions'"
_REPORT_AGAIN: Final = """
    UPDATE exported SET digest = NULL WHERE digest IS NOT NULL AND run_id IN (
        SELECT run_nodes.run_id FROM run_nodes
        JOIN executables ON executables.run_node_id = run_nodes.id
        WHERE executables.path_id = :path_id)
"""


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The progress of an export."""

    sequence: int = 0
    revision: int = 0
    #: The file of that sequence number, which may still have its temporary name.
    unpublished: str | None = None


class ExportedRun(NamedTuple):
    """A run and the CPU microseconds of each software in it."""

    cluster: str
    job_id: int
    #: None if no record of the scheduler has a start.
    start: int | None
    user: str | None
    account: str | None
    cpu_time: Mapping[int, int]


class Candidate(NamedTuple):
    """A run that has changed since it was reported, or was deferred."""

    run_id: int
    #: None for a deferred run: it does not move the position.
    revision: int | None
    open: bool
    run: ExportedRun
    #: Of the last report.
    digest: bytes | None


class ExportState:
    """The state of one export."""

    def __init__(self, database: Database, cluster: str | None) -> None:
        self._database = database
        self._cluster = cluster or ""
        self.name = cluster or "all"
        self._checkpoint = f"export: {self.name}"

    def position(self) -> Position:
        with self._database.write() as transaction:
            return _position(read_checkpoint(transaction, self._checkpoint))

    def last_revision(self) -> int:
        with self._database.read() as connection:
            return connection.scalar(text(_LAST_REVISION)) or 0

    def deferred(self) -> Iterator[Candidate]:
        """Runs that were open when they were processed, and have ended since."""
        after = 0
        while page := self._page(_DEFERRED, after):
            for candidate in page:
                yield candidate._replace(revision=None)
            after = page[-1].run_id

    def changed(self, after: int) -> Iterator[Candidate]:
        """Runs whose use has changed since a revision, the oldest change first."""
        while page := self._page(_CHANGED, after):
            yield from page
            after = page[-1].revision or 0

    def advance(
        self, before: Position, after: Position, reported: Mapping[int, bytes | None]
    ) -> None:
        """Store digests by run id and the new position, unless another process has moved it.

        A digest of None defers the run.
        """
        with self._database.write() as transaction:
            transaction.lock("sums", ["sums"])
            if _position(read_checkpoint(transaction, self._checkpoint)) != before:
                raise StoreError(
                    f"another process has written the export of {self.name}; its files are "
                    "complete, and the next call exports the rest"
                )
            transaction.execute_many(
                _SET_REPORTED,
                [
                    {"name": self.name, "run_id": run_id, "digest": digest}
                    for run_id, digest in sorted(reported.items())
                ],
            )
            rest = msgspec.json.encode((after.revision, after.unpublished)).decode()
            set_checkpoint(transaction, self._checkpoint, after.sequence, rest)

    def _page(self, sql: str, after: int) -> list[Candidate]:
        values = {"name": self.name, "cluster": self._cluster, "after": after, "limit": PAGE_SIZE}
        with self._database.read() as connection:
            return [_candidate(row) for row in connection.execute(text(sql), values)]


def report_again(database: Database, path_ids: list[int]) -> None:
    """Let the next export report all runs of some paths again."""
    with database.write() as transaction:
        transaction.lock("sums", ["sums"])
        transaction.execute_many(_REPORT_AGAIN, [{"path_id": path_id} for path_id in path_ids])


def _position(checkpoint: Checkpoint | None) -> Position:
    if checkpoint is None or checkpoint.text is None:
        return Position()
    revision, unpublished = msgspec.json.decode(checkpoint.text, type=tuple[int, str | None])
    return Position(checkpoint.value, revision, unpublished)


def _candidate(row: Row[Any]) -> Candidate:
    shares = decode_contribution(bytes(row.data)).software().values()
    run = ExportedRun(
        row.cluster,
        row.job_id,
        None if row.provisional else row.start,
        row.user,
        row.account,
        {share.software_id: share.cpu_time for share in shares},
    )
    digest = None if row.digest is None else bytes(row.digest)
    return Candidate(row.run_id, row.revision, bool(row.is_open), run, digest)
