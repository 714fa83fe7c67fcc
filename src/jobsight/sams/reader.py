"""Reading of the records in an inbox: parsed, completed by sacct where needed, and grouped.

:class:`Reader` yields groups for the aggregator and moves their files once their outcome is known.
:class:`Fallback` finds the owner of a job with ``sacct`` where a record has none.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Final

import msgspec

from jobsight.errors import JobsightError
from jobsight.model import SECOND, JobInfo
from jobsight.sams.convert import Interval, check_complete, interval_of
from jobsight.sams.inbox import Inbox, RecordFile
from jobsight.sams.record import RecordError, SamsRecord, SlurmInfo, parse_record
from jobsight.sams.settings import LoaderSettings

if TYPE_CHECKING:
    from jobsight.scheduler.sources.commands import StreamRunner

logger = logging.getLogger(__name__)

#: Limits of one group: records, programs in them, and bytes held for sacct to complete.
MAX_RECORDS: Final = 1000
MAX_PROGRAMS: Final = 50_000
MAX_BYTES: Final = 64 * 2**20

#: How far a node's first process may lie outside the interval that Slurm recorded.
_CLOCK_TOLERANCE: Final = 60 * SECOND


class Entry(msgspec.Struct):
    """One record that can be stored."""

    #: Of the record's content.
    digest: bytes
    record: SamsRecord
    interval: Interval
    #: The run as sacct knows it, where it was queried.
    sacct_info: JobInfo | None = None


class Item(msgspec.Struct):
    """One file of a group and its entry."""

    file: RecordFile
    entry: Entry
    #: The file's content, where sacct has completed the record.
    data: bytes | None = None


class Group(msgspec.Struct):
    """Records that are stored together, and the progress of the pass."""

    items: list[Item]
    #: Files that could not be parsed.
    refused: int
    done: int
    total: int


class _Parsed(msgspec.Struct):
    file: RecordFile
    record: SamsRecord
    data: bytes
    sacct_info: JobInfo | None = None


class Reader:
    """One pass over an inbox."""

    def __init__(
        self,
        inbox: Inbox,
        cluster: str,
        *,
        fallback: Callable[[], Fallback] | None = None,
        zone: tzinfo | None = None,
        max_records: int = MAX_RECORDS,
    ) -> None:
        self._inbox = inbox
        self._cluster = cluster
        self._fallback = fallback
        self._zone = zone
        self._max_records = max_records
        self._refused = 0

    def groups(self) -> Iterator[Group]:
        """Groups in the order of the job ids, so that a run's nodes are stored together."""
        files = self._inbox.files()
        items: list[Item] = []
        #: Records without an owner, CPUs or start; one sacct command completes those of a group.
        incomplete: list[_Parsed] = []
        programs = size = 0
        for done, file in enumerate(files, 1):
            parsed = self._parse(file)
            if parsed is not None:
                programs += len(parsed.record.executables)
                if self._fallback is not None and not _is_complete(parsed.record.info):
                    incomplete.append(parsed)
                    size += len(parsed.data)
                else:
                    self._add(items, parsed)
            full = len(items) + len(incomplete) >= self._max_records or programs >= MAX_PROGRAMS
            if full or size >= MAX_BYTES or done == len(files):
                for completed in self._complete(incomplete):
                    self._add(items, completed)
                yield Group(items, self._refused, done, len(files))
                items, incomplete, programs, size, self._refused = [], [], 0, 0, 0

    def finish(self, group: Group, refused: Mapping[int, str]) -> None:
        """Move the files of a group; ``refused`` gives reasons by index."""
        for index, item in enumerate(group.items):
            if index in refused:
                self._inbox.refuse(item.file, refused[index])
            else:
                self._archive(item)

    def _parse(self, file: RecordFile) -> _Parsed | None:
        try:
            data = self._inbox.read(file)
            if data is None:
                logger.info("%s: no longer exists", file)
                return None
            record = parse_record(data, self._zone)
            if self._fallback is None or record.info is not None or not record.executables:
                check_complete(record)
        except RecordError as error:
            self._refuse(file, error)
            return None
        return _Parsed(file, record, data)

    def _add(self, items: list[Item], parsed: _Parsed) -> None:
        try:
            interval = interval_of(parsed.record)
        except RecordError as error:
            self._refuse(parsed.file, error)
            return
        digest = hashlib.blake2b(parsed.data, digest_size=16).digest()
        entry = Entry(digest, parsed.record, interval, parsed.sacct_info)
        items.append(Item(parsed.file, entry, parsed.data if parsed.sacct_info else None))

    def _refuse(self, file: RecordFile, error: Exception) -> None:
        self._inbox.refuse(file, str(error))
        self._refused += 1

    def _complete(self, incomplete: list[_Parsed]) -> Iterator[_Parsed]:
        """Add what is missing; a record without an owner that Slurm does not know is refused."""
        if not incomplete or self._fallback is None:
            return
        # Imported here: the module is large, and most sites never query sacct.
        from jobsight.store.write.bounds import limit_info
        from jobsight.store.write.validation import check_info

        replies = self._fallback().infos([parsed.record for parsed in incomplete])
        for parsed, reply in zip(incomplete, replies, strict=True):
            known = parsed.record.info
            try:
                if isinstance(reply, RecordError):
                    raise reply
                reply, _ = limit_info(reply)
                check_info(reply, self._cluster)
            except JobsightError as error:
                if known is None:
                    self._refuse(parsed.file, error)
                else:
                    logger.warning("%s: stored as it is: %s", parsed.file, error)
                    yield parsed
            else:
                parsed.sacct_info = reply
                parsed.record.info = _filled(known, slurm_info(reply))
                yield parsed

    def _archive(self, item: Item) -> None:
        entry = item.entry
        changed = None
        if entry.sacct_info is not None and item.data is not None:
            changed = completed_document(item.data, entry.sacct_info)
        try:
            self._inbox.archive(item.file, entry.interval.start, changed)
        except FileNotFoundError:
            logger.warning("%s: was stored, but no longer exists", item.file)


class Fallback:
    """Finds the runs of many jobs with one query; SAMS starts a command for each job."""

    def __init__(self, query: Callable[[Sequence[int]], Iterable[JobInfo]]) -> None:
        self._query = query

    @classmethod
    def by_sacct(cls, settings: LoaderSettings, cluster: str) -> Fallback:
        """Query with fixed columns, with the command and the environment of the settings."""
        # Imported only where it is used: the code that reads Slurm is large.
        from jobsight.scheduler.sources.text import TextSource

        assert settings.sacct is not None
        source = TextSource(
            cluster,
            timeout=settings.timeout,
            run=_runner(settings.sacct, settings.environment),
        )
        return cls(lambda ids: [record.info for record in source.accounting_of(ids).records])

    def infos(self, records: Sequence[SamsRecord]) -> list[JobInfo | RecordError]:
        """The run of each record, or the reason why there is none."""
        job_ids = sorted({record.job_id for record in records})
        runs: dict[int, list[JobInfo]] = {}
        for info in self._query(job_ids) if job_ids else ():
            runs.setdefault(info.job_id, []).append(info)
        logger.debug("sacct knows %d of %d jobs", len(runs), len(job_ids))
        return [_matching_run(record, runs.get(record.job_id, [])) for record in records]


def _runner(sacct: str, environment: dict[str, str]) -> StreamRunner:
    from jobsight.scheduler.sources.commands import stream_command

    def run(command: Sequence[str], timeout: float, *, given: bytes = b"") -> Iterable[bytes]:
        variables = {**os.environ, **environment}
        return stream_command([sacct, *command[1:]], timeout, variables, given)

    return run


def _matching_run(record: SamsRecord, runs: list[JobInfo]) -> JobInfo | RecordError:
    """The run during which the node saw the job; a requeued job has several."""
    starts = {run.start: run for run in runs if run.start is not None}
    if not starts:
        return RecordError(
            f"the record of job {record.job_id} on {record.node} has no owner, and sacct knows no "
            "run of that job"
        )
    # The start that Slurm gave is exact; the first process is later and by the node's clock.
    first = record.info.start if record.info is not None and record.info.start else record.first
    if first is None or len(starts) == 1:
        return starts[max(starts)]
    fitting = [start for start, run in starts.items() if _contains(run, start, first)]
    # A requeued job starts again within seconds: the last run that had started by then.
    started = [start for start in fitting if start <= first + SECOND]
    if started:
        return starts[max(started)]
    return starts[min(fitting or starts, key=lambda start: abs(start - first))]


def _contains(run: JobInfo, start: int, time: int) -> bool:
    in_time = run.end is None or time <= run.end + _CLOCK_TOLERANCE
    return start - _CLOCK_TOLERANCE <= time and in_time


def _is_complete(info: SlurmInfo | None) -> bool:
    """Whether nothing is missing that the accounting needs."""
    return info is not None and None not in (info.user, info.account, info.cpus, info.start)


def _filled(known: SlurmInfo | None, other: SlurmInfo) -> SlurmInfo:
    """The record's own fields, completed by those of sacct."""
    if known is None:
        return other
    missing = {
        name: getattr(other, name)
        for name in SlurmInfo.__struct_fields__
        if getattr(known, name) is None
    }
    return msgspec.structs.replace(known, **missing)


def slurm_info(info: JobInfo) -> SlurmInfo:
    """The fields of a run that a SAMS record carries."""
    return SlurmInfo(
        user=info.user,
        uid=info.uid,
        account=info.account,
        partition=info.partition,
        name=info.name,
        cpus=info.cpus,
        start=info.start,
    )


def completed_document(data: bytes, info: JobInfo) -> bytes:
    """The record with the reply of sacct, as SAMS writes it to its archive."""
    document = json.loads(data)
    fields = {
        "account": info.account,
        "username": info.user,
        "uid": info.uid,
        "nodes": None if info.nodes is None else len(info.nodes),
        "cpus": info.cpus,
        "partition": info.partition,
    }
    section: dict[str, object] = {
        key: str(value) for key, value in fields.items() if value is not None
    }
    if info.start is not None:
        moment = datetime.fromtimestamp(info.start / SECOND, UTC).astimezone()
        section["starttime"] = moment.strftime("%Y-%m-%dT%H:%M:%S")
        section["starttimestamp"] = info.start / SECOND
    given = document.get("sams.sampler.SlurmInfo") or {}
    own = {key: value for key, value in given.items() if value not in (None, "", "Unknown")}
    document["sams.sampler.SlurmInfo"] = section | own
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
