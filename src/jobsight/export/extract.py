"""Writes the records of all runs that have something new to say, each exactly once.

A file is written under a hidden name, then the store notes that it was said, then the file gets
its name. Whoever is killed before the note leaves a hidden file that nobody has seen and that is
written again; whoever is killed after it leaves one that only has to be named, which comes first
next time.

What an export has said, in the store: which runs come next, and how far it came.

An export is named by the cluster it is of. Its mark holds the number of its last file, and beside
it the last revision that was looked at and the file that may still wait to be given its name.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
from sqlalchemy import Row, text

from jobsight.config.settings import ExportSettings
from jobsight.errors import ConfigError, JobsightError, StoreError
from jobsight.export.records import ReportedRun, Reporting, UsageRecord, to_xml
from jobsight.software.preview import software_names
from jobsight.store.checkpoints import Checkpoint, read_checkpoint, set_checkpoint
from jobsight.store.database import Database
from jobsight.store.rollups.rollups import decode_contribution
from jobsight.store.store import Store
from jobsight.util.durable import sync_directory, temporary_name, write_temporary

#: Runs that are looked at before the position is noted, where none of them has news.
_AT_ONCE = 10_000


class ExportError(JobsightError):
    """A file of the export cannot be written."""


class Extracted(msgspec.Struct):
    """What an export did."""

    files: list[Path] = msgspec.field(default_factory=list)
    records: int = 0
    #: Runs that were reported once and have no named use any more: no record can say so.
    emptied: int = 0


class Extractor:
    """One export of one store."""

    def __init__(self, store: Store, settings: ExportSettings) -> None:
        self._store = store
        self._settings = settings
        self._state = ExportState(store.database, settings.cluster)
        if not re.fullmatch(r"[\w.-]+", self._state.name):
            raise ConfigError(f"the cluster {self._state.name!r} cannot stand in a file's name")
        self._folder = Path(settings.output_path).expanduser()

    def run(
        self,
        progress: Callable[[int], None] = lambda records: None,
        clock: Callable[[], float] = time.time,
        *,
        write: bool = True,
    ) -> Extracted:
        """Write what is new since the last time; or only note that it was said elsewhere."""
        self._folder.mkdir(parents=True, exist_ok=True)
        done = Extracted()
        reporting = self._reporting()
        position = self._finish()
        last = self._state.last_revision()
        while True:
            said: dict[int, bytes | None] = {}
            # Asked anew for each file, so that what was just said is known.
            changed = self._state.changed(position.revision)
            candidates = itertools.chain(self._state.waiting(), changed)
            records, revision = self._take(candidates, reporting, said, done)
            if revision is None:
                break
            after = Position(position.sequence, revision or position.revision)
            if records and write:
                after = self._write(records, after, clock())
            self._state.advance(position, after, said)
            position = after
            if position.unpublished:
                done.files.append(Path(position.unpublished))
                publish_file(done.files[-1])
            done.records += len(records)
            progress(done.records)
        # The last file has its name, and revisions of other clusters need not be met again.
        end = Position(position.sequence, max(last, position.revision))
        if end != position:
            self._state.advance(position, end, {})
        return done

    def _finish(self) -> Position:
        """Name the file that a process which was killed could not name any more."""
        position = self._state.position()
        if position.unpublished:
            publish_file(Path(position.unpublished))
        temporary_name(self._file(position.sequence + 1)).unlink(missing_ok=True)
        return position

    def _file(self, sequence: int) -> Path:
        return self._folder / f"{self._state.name}-{sequence:08d}.xml"

    def _take(
        self,
        candidates: Iterator[Candidate],
        reporting: Reporting,
        said: dict[int, bytes | None],
        done: Extracted,
    ) -> tuple[list[UsageRecord], int | None]:
        """The records of one file, and the last revision met; None where nothing was left."""
        records: list[UsageRecord] = []
        revision: int | None = None
        for candidate in itertools.islice(candidates, _AT_ONCE):
            revision = candidate.revision or revision or 0
            before = said.get(candidate.run_id, candidate.said)
            if candidate.open:
                if before is None:
                    said[candidate.run_id] = None
                continue
            record = reporting.record(candidate.run)
            if record.digest() == before:
                continue
            said[candidate.run_id] = record.digest()
            if record.software:
                records.append(record)
            else:
                done.emptied += before is not None
            if len(records) == self._settings.jobs_per_file:
                break
        return records, revision

    def _write(self, records: list[UsageRecord], after: Position, now: float) -> Position:
        file = self._file(after.sequence + 1)
        prepare_file(file, to_xml(records, now))
        return Position(after.sequence + 1, after.revision, str(file))

    def _reporting(self) -> Reporting:
        settings = self._settings
        return Reporting(
            names=software_names(self._store.database),
            remove_less_then=settings.remove_less_then,
            record_name=settings.record_name,
            zone=_zone(settings.timezone),
            undetermined=settings.undetermined,
        )


def _zone(name: str | None) -> ZoneInfo | None:
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        raise ConfigError(
            f"timezone: there is no zone {name!r}; right: UTC or Europe/Stockholm"
        ) from None


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
_LAST_REVISION = "SELECT value FROM checkpoints WHERE name = 'contributions'"
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


def prepare_file(file: Path, data: bytes) -> None:
    """Write a file durably under its temporary name."""
    if file.exists():
        raise ExportError(
            f"{file} exists and does not belong to this store; expected another output_path"
        )
    try:
        write_temporary(temporary_name(file), data, mode=0o666)
        sync_directory(file.parent)
    except OSError as error:
        raise ExportError(f"{file} cannot be written: {error.strerror}") from None


def publish_file(file: Path) -> None:
    """Give a prepared file its name, unless an earlier process did so."""
    try:
        temporary_name(file).rename(file)
        sync_directory(file.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ExportError(f"{file} cannot be written: {error.strerror}") from None
