"""What an export has said, in the store: which runs come next, and how far it came.

An export is named by the cluster it is of. Its mark holds the number of its last file, and beside
it the last revision that was looked at and the file that may still wait to be given its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Row, text

from jobsight.errors import StoreError
from jobsight.export.records import ReportedRun
from jobsight.store.database import Database
from jobsight.store.rollups.rollups import decode_contribution
from jobsight.store.write.scheduler import Checkpoint, read_checkpoint, set_checkpoint

#: Runs that are read at once.
PAGE = 1000

_COLUMNS = """
    contributions.run_id, contributions.revision, contributions.data, runs.cluster, runs.job_id,
    runs.start, runs.provisional, runs."end" IS NULL AS is_open, runs."user", runs.account,
    exported.digest
"""
_CHANGED = f"""
    SELECT {_COLUMNS} FROM contributions JOIN runs ON runs.id = contributions.run_id
    LEFT JOIN exported ON exported.name = :name AND exported.run_id = contributions.run_id
    WHERE contributions.revision > :after AND NOT contributions.dropped
        AND (CAST(:cluster AS TEXT) = '' OR runs.cluster = :cluster)
    ORDER BY contributions.revision LIMIT :limit
"""
_WAITING = f"""
    SELECT {_COLUMNS} FROM exported JOIN runs ON runs.id = exported.run_id
    JOIN contributions ON contributions.run_id = exported.run_id
    WHERE exported.name = :name AND exported.digest IS NULL AND exported.run_id > :after
        AND runs."end" IS NOT NULL AND NOT contributions.dropped
    ORDER BY exported.run_id LIMIT :limit
"""
_SAID = """
    INSERT INTO exported (name, run_id, digest) VALUES (:name, :run_id, :digest)
    ON CONFLICT (name, run_id) DO UPDATE SET digest = excluded.digest
"""
_LAST_REVISION = "SELECT value FROM marks WHERE name = 'contributions'"
_PATHS_AGAIN = """
    UPDATE exported SET digest = NULL WHERE digest IS NOT NULL AND run_id IN (
        SELECT run_nodes.run_id FROM run_nodes
        JOIN executables ON executables.run_node_id = run_nodes.id
        WHERE executables.path_id = :path_id)
"""


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far an export came."""

    sequence: int = 0
    revision: int = 0
    #: The file of that number, under the name it has until it is complete.
    unpublished: str | None = None


class Candidate(NamedTuple):
    """A run whose share has changed, or that waited."""

    run_id: int
    #: None of one that waited: the position does not move with it.
    revision: int | None
    open: bool
    run: ReportedRun
    #: Of what was said of it last.
    said: bytes | None


class ExportState:
    """One export's part of the store."""

    def __init__(self, database: Database, cluster: str | None) -> None:
        self._database = database
        self._cluster = cluster or ""
        self.name = cluster or "all"
        self._mark = f"export: {self.name}"

    def position(self) -> Position:
        with self._database.write() as transaction:
            mark = read_checkpoint(transaction, self._mark)
        return _position(mark)

    def last_revision(self) -> int:
        with self._database.read() as connection:
            return connection.scalar(text(_LAST_REVISION)) or 0

    def waiting(self) -> Iterator[Candidate]:
        """Runs that waited and have ended by now."""
        after = 0
        while page := self._page(_WAITING, after):
            for candidate in page:
                yield candidate._replace(revision=None)
            after = page[-1].run_id

    def changed(self, after: int) -> Iterator[Candidate]:
        """Runs whose share has changed since a revision, the oldest change first."""
        while page := self._page(_CHANGED, after):
            yield from page
            after = page[-1].revision or 0

    def _page(self, sql: str, after: int) -> list[Candidate]:
        parameters = {"name": self.name, "cluster": self._cluster, "after": after, "limit": PAGE}
        with self._database.read() as connection:
            return [_candidate(row) for row in connection.execute(text(sql), parameters)]

    def advance(self, before: Position, after: Position, said: dict[int, bytes | None]) -> None:
        """Note what was said and how far that is, if nobody else did since ``before``."""
        with self._database.write() as transaction:
            transaction.lock("sums", ["sums"])
            if _position(read_checkpoint(transaction, self._mark)) != before:
                raise StoreError(
                    f"the export of {self.name} was written by another process meanwhile; "
                    "its files are complete, and what is left comes with the next call"
                )
            transaction.execute_many(
                _SAID,
                [
                    {"name": self.name, "run_id": run_id, "digest": digest}
                    for run_id, digest in sorted(said.items())
                ],
            )
            rest = msgspec.json.encode((after.revision, after.unpublished)).decode()
            set_checkpoint(transaction, self._mark, after.sequence, rest)


def say_again(database: Database, path_ids: list[int]) -> None:
    """Let the runs of some paths come again with the next export, whatever was said of them."""
    with database.write() as transaction:
        transaction.lock("sums", ["sums"])
        transaction.execute_many(_PATHS_AGAIN, [{"path_id": path_id} for path_id in path_ids])


def _position(mark: Checkpoint | None) -> Position:
    if mark is None or mark.text is None:
        return Position()
    revision, unpublished = msgspec.json.decode(mark.text, type=tuple[int, str | None])
    return Position(mark.value, revision, unpublished)


def _candidate(row: Row[Any]) -> Candidate:
    shares = decode_contribution(bytes(row.data)).software().values()
    run = ReportedRun(
        row.cluster,
        row.job_id,
        None if row.provisional else row.start,
        row.user,
        row.account,
        {share.software_id: share.cpu_time for share in shares},
    )
    said = None if row.digest is None else bytes(row.digest)
    return Candidate(row.run_id, row.revision, bool(row.is_open), run, said)
