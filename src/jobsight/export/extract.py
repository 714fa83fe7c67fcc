"""Export of usage records to XML files: every change of a run is reported exactly once.

A file is written under a temporary name, then its content is recorded in the store, then the file
gets its name. A process killed before the commit leaves a temporary file that the next call writes
again; a process killed after it leaves a file that the next call renames first.
"""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from jobsight.config.settings import ExportSettings
from jobsight.errors import ConfigError, JobsightError
from jobsight.export.usage_records import RecordBuilder, UsageRecord, to_xml
from jobsight.software.naming import software_names
from jobsight.store.store import Store
from jobsight.store.write.exports import Candidate, ExportedRun, ExportState, Position
from jobsight.util.durable import sync_directory, temporary_name, write_temporary

logger = logging.getLogger(__name__)

#: Runs processed before the position is stored, if none of them has changed.
_BATCH_SIZE: Final = 10_000


class ExportError(JobsightError):
    """A file of the export cannot be written."""


class Extracted(msgspec.Struct):
    """The result of an export."""

    files: list[Path] = msgspec.field(default_factory=list)
    records: int = 0
    #: Runs that were reported once and have no named software any more: no record can express it.
    emptied: int = 0
    #: Runs that another program should have reported and did not; the next call exports them.
    left: int = 0


class Extractor:
    """One export of one store."""

    def __init__(self, store: Store, settings: ExportSettings) -> None:
        self._store = store
        self._settings = settings
        self._state = ExportState(store.database, settings.cluster)
        if not re.fullmatch(r"[\w.-]+", self._state.name):
            raise ConfigError(f"the cluster {self._state.name!r} cannot be part of a file name")
        self._directory = Path(settings.output_path).expanduser()

    def run(
        self,
        progress: Callable[[int], None] = lambda records: None,
        clock: Callable[[], float] = time.time,
        *,
        write: bool = True,
        unreported: Callable[[ExportedRun], bool] = lambda run: False,
    ) -> Extracted:
        """Export all changes since the last call; without ``write`` they are only recorded as
        reported elsewhere, except the ``unreported`` runs, which the next call exports."""
        self._directory.mkdir(parents=True, exist_ok=True)
        done = Extracted()
        builder = self._builder()
        position = self._finish_last_call()
        last_revision = self._state.last_revision()
        while True:
            reported: dict[int, bytes | None] = {}
            # Queried again for each file, so that the runs just reported are known.
            changed = self._state.changed(position.revision)
            candidates: Iterator[Candidate] = itertools.chain(self._state.deferred(), changed)
            if not write:
                candidates = self._defer(unreported, candidates, reported, done)
            records, revision = self._select(candidates, builder, reported, done)
            if revision is None:
                break
            after = Position(position.sequence, revision or position.revision)
            if records and write:
                after = self._write(records, after, clock())
            self._state.advance(position, after, reported)
            position = after
            if position.unpublished:
                done.files.append(Path(position.unpublished))
                publish_file(done.files[-1])
                logger.info("%s: %d records", done.files[-1], len(records))
            done.records += len(records)
            progress(done.records)
        # The last file has its name; revisions of other clusters need not be read again.
        end = Position(position.sequence, max(last_revision, position.revision))
        if end != position:
            self._state.advance(position, end, {})
        return done

    @staticmethod
    def _defer(
        unreported: Callable[[ExportedRun], bool],
        candidates: Iterable[Candidate],
        reported: dict[int, bytes | None],
        done: Extracted,
    ) -> Iterator[Candidate]:
        """Defer these runs: they are processed as if they were still open."""
        for candidate in candidates:
            if candidate.digest is not None or candidate.open or not unreported(candidate.run):
                yield candidate
            elif candidate.revision is not None:
                done.left += candidate.run_id not in reported
                yield candidate._replace(open=True)

    def _finish_last_call(self) -> Position:
        """Rename the file that a killed process could not rename."""
        position = self._state.position()
        if position.unpublished:
            publish_file(Path(position.unpublished))
        temporary_name(self._file(position.sequence + 1)).unlink(missing_ok=True)
        return position

    def _file(self, sequence: int) -> Path:
        return self._directory / f"{self._state.name}-{sequence:08d}.xml"

    def _select(
        self,
        candidates: Iterator[Candidate],
        builder: RecordBuilder,
        reported: dict[int, bytes | None],
        done: Extracted,
    ) -> tuple[list[UsageRecord], int | None]:
        """The records of one file and the last revision; None if there are no candidates."""
        records: list[UsageRecord] = []
        revision: int | None = None
        for candidate in itertools.islice(candidates, _BATCH_SIZE):
            revision = candidate.revision or revision or 0
            before = reported.get(candidate.run_id, candidate.digest)
            if candidate.open:
                if before is None:
                    reported[candidate.run_id] = None
                continue
            record = builder.build(candidate.run)
            digest = record.digest()
            if digest == before:
                continue
            reported[candidate.run_id] = digest
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

    def _builder(self) -> RecordBuilder:
        settings = self._settings
        return RecordBuilder(
            names=software_names(self._store.database),
            remove_less_then=settings.remove_less_then,
            record_name=settings.record_name,
            zone=_zone(settings.timezone),
            undetermined=settings.undetermined,
        )


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


def _zone(name: str | None) -> ZoneInfo | None:
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        raise ConfigError(
            f"timezone: there is no time zone {name!r}; expected e.g. UTC or Europe/Stockholm"
        ) from None
