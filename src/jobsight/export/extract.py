"""Writes the records of all runs that have something new to say, each exactly once.

A file is written under a hidden name, then the store notes that it was said, then the file gets
its name. Whoever is killed before the note leaves a hidden file that nobody has seen and that is
written again; whoever is killed after it leaves one that only has to be named, which comes first
next time.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec

from jobsight.config.settings import ExportSettings
from jobsight.errors import ConfigError
from jobsight.export.records import Reporting, UsageRecord
from jobsight.export.state import Candidate, ExportState, Position
from jobsight.export.xml import to_xml
from jobsight.software.preview import software_names
from jobsight.store.store import Store
from jobsight.util import durable

#: Runs that are looked at before the position is noted, where none of them has news.
_AT_ONCE = 10_000


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
                durable.publish(done.files[-1])
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
            durable.publish(Path(position.unpublished))
        durable.hidden(self._file(position.sequence + 1)).unlink(missing_ok=True)
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
        durable.prepare(file, to_xml(records, now))
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
