"""Reads what waits in an inbox, checks it, and moves it when it is known what became of it.

Whose a job was, from ``sacct``, where a record does not say.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from jobsight.errors import JobsightError
from jobsight.model import SECOND, JobInfo
from jobsight.sams.booking import check_bookable, interval_of
from jobsight.sams.inbox import Inbox, RecordFile
from jobsight.sams.record import RecordError, SamsRecord, SlurmInfo, parse_record
from jobsight.sams.settings import LoaderSettings

if TYPE_CHECKING:
    from jobsight.scheduler.sources.commands import StreamRunner


logger = logging.getLogger("jobsight.sams")

#: Records, programs in them, and bytes of files that are booked in one transaction.
MOST_RECORDS: Final = 1000
MOST_PROGRAMS: Final = 50_000
MOST_BYTES: Final = 64 * 2**20
#: Records of the first group, for which the store waits.
FIRST_RECORDS: Final = 200


class Entry(msgspec.Struct, array_like=True):
    """One record that can be booked, in a form that can be sent to another process."""

    digest: bytes
    record: SamsRecord
    #: What sacct said, where it was asked.
    said: JobInfo | None = None


class Group(msgspec.Struct, array_like=True):
    """Records that are booked together, and how far the pass is with them."""

    entries: list[Entry]
    done: int
    whole: int
    refused: int


#: Why an entry of a group could not be booked, by its place.
Refusals = dict[int, str]


class Groups(Protocol):
    """Gives groups, and wants to hear what became of each, in their order."""

    def groups(self) -> Iterator[Group]: ...

    def settle(self, refused: Refusals) -> None: ...


class _Item(msgspec.Struct):
    """One file on its way into the store."""

    file: RecordFile
    record: SamsRecord
    digest: bytes
    #: Kept only where sacct has to complete it.
    data: bytes | None = None
    #: What sacct said.
    said: JobInfo | None = None
    start: int = 0


class Reader:
    """One pass over an inbox."""

    def __init__(
        self,
        inbox: Inbox,
        cluster: str,
        *,
        fallback: Callable[[], Fallback] | None = None,
        zone: tzinfo | None = None,
        most_records: int = MOST_RECORDS,
    ) -> None:
        self._inbox = inbox
        self._cluster = cluster
        self._fallback = fallback
        self._zone = zone
        self._most_records = most_records
        self._refused = 0
        self._waiting: list[list[_Item]] = []

    def groups(self) -> Iterator[Group]:
        files = self._inbox.files()
        items: list[_Item] = []
        programs = size = 0
        most = min(FIRST_RECORDS, self._most_records)
        for done, file in enumerate(files, 1):
            item = self._item(file)
            if item is not None:
                items.append(item)
                programs += len(item.record.executables)
                size += len(item.data or b"")
            full = len(items) >= most or programs >= MOST_PROGRAMS
            if full or size >= MOST_BYTES or done == len(files):
                yield self._group(items, done, len(files))
                items, programs, size = [], 0, 0
                # Towards the end they become smaller: nobody writes while the last is moved.
                most = min(self._most_records, max(FIRST_RECORDS, (len(files) - done) // 2))

    def settle(self, refused: Refusals) -> None:
        """Move the files of the oldest group that is out."""
        for place, item in enumerate(self._waiting.pop(0)):
            if place in refused:
                self._inbox.refuse(item.file, refused[place])
            else:
                self._archive(item)

    def _item(self, file: RecordFile) -> _Item | None:
        try:
            data = self._inbox.read(file)
            if data is None:
                logger.info("%s: is gone", file)
                return None
            record = parse_record(data, self._zone)
            asks = record.info is None and self._fallback is not None and bool(record.executables)
            if not asks:
                check_bookable(record)
        except RecordError as error:
            self._refuse(file, error)
            return None
        digest = hashlib.blake2b(data, digest_size=16).digest()
        return _Item(file, record, digest, data if asks else None)

    def _refuse(self, file: RecordFile, error: Exception) -> None:
        self._inbox.refuse(file, str(error))
        self._refused += 1

    def _group(self, items: list[_Item], done: int, whole: int) -> Group:
        if self._fallback is not None:
            items = self._completed(items)
        entries, kept = [], []
        for item in items:
            try:
                item.start = interval_of(item.record).start
            except RecordError as error:
                self._refuse(item.file, error)
            else:
                entries.append(Entry(item.digest, item.record, item.said))
                kept.append(item)
        self._waiting.append(kept)
        refused, self._refused = self._refused, 0
        return Group(entries, done, whole, refused)

    def _completed(self, items: list[_Item]) -> list[_Item]:
        """The same items, each with its owner; those that Slurm does not know are refused."""
        bare = [item for item in items if item.data is not None]
        if not bare or self._fallback is None:
            return items
        refused: set[RecordFile] = set()
        answers = self._fallback().infos([item.record for item in bare])
        for item, answer in zip(bare, answers, strict=True):
            try:
                item.said = self._storable(answer)
                item.record.info = slurm_info(item.said)
            except JobsightError as error:
                self._refuse(item.file, error)
                refused.add(item.file)
        return [item for item in items if item.file not in refused]

    def _storable(self, answer: JobInfo | RecordError) -> JobInfo:
        """What sacct said, unless that is nothing, or what no store would take."""
        from jobsight.store.write.validation import check_info

        if isinstance(answer, RecordError):
            raise answer
        check_info(answer, self._cluster)
        return answer

    def _archive(self, item: _Item) -> None:
        changed = None
        if item.said is not None and item.data is not None:
            changed = completed_document(item.data, item.said)
        try:
            self._inbox.archive(item.file, item.start, changed)
        except FileNotFoundError:
            logger.warning("%s: was booked and is gone", item.file)


#: Prologs and clocks: how far a node's first process may lie outside of what Slurm booked.
_SLACK = 60 * SECOND


class Fallback:
    """Asks for many jobs at once; SAMS starts a command for each."""

    def __init__(self, ask: Callable[[Sequence[int]], Iterable[JobInfo]]) -> None:
        self._ask = ask

    @classmethod
    def by_sacct(cls, settings: LoaderSettings, cluster: str) -> Fallback:
        """The real command, by fixed columns, under the path and environment of the settings."""
        # Only where it is asked: what reads Slurm is large.
        from jobsight.scheduler.sources.text import TextSource

        assert settings.sacct is not None
        source = TextSource(
            cluster,
            timeout=settings.timeout,
            run=_runner(settings.sacct, settings.environment),
        )
        return cls(lambda ids: [record.info for record in source.accounting_of(ids).records])

    def infos(self, records: Sequence[SamsRecord]) -> list[JobInfo | RecordError]:
        """For each record its run, or why there is none."""
        wanted = sorted({record.job_id for record in records})
        runs: dict[int, list[JobInfo]] = {}
        for info in self._ask(wanted) if wanted else ():
            runs.setdefault(info.job_id, []).append(info)
        return [_choose(record, runs.get(record.job_id, [])) for record in records]


def _runner(sacct: str, environment: dict[str, str]) -> StreamRunner:
    from jobsight.scheduler.sources.commands import stream_command

    def run(command: Sequence[str], timeout: float, *, given: bytes = b"") -> Iterable[bytes]:
        variables = {**os.environ, **environment}
        return stream_command([sacct, *command[1:]], timeout, variables, given)

    return run


def _choose(record: SamsRecord, runs: list[JobInfo]) -> JobInfo | RecordError:
    """The run within which the node saw the job; a requeued job has several."""
    started = [run for run in runs if run.start is not None]
    if not started:
        return RecordError(
            f"the record of job {record.job_id} on {record.node} does not say whose it is, and "
            "sacct knows no run of that job"
        )
    if record.first is None or len(started) == 1:
        return max(started, key=lambda run: run.start or 0)
    first = record.first
    fitting = [run for run in started if _contains(run, first)]
    # A requeued job runs again within seconds: of those that had begun by then, the last one.
    begun = [run for run in fitting if (run.start or 0) <= first + SECOND]
    if begun:
        return max(begun, key=lambda run: run.start or 0)
    return min(fitting or started, key=lambda run: abs((run.start or 0) - first))


def _contains(run: JobInfo, time: int) -> bool:
    assert run.start is not None
    return run.start - _SLACK <= time and (run.end is None or time <= run.end + _SLACK)


def slurm_info(info: JobInfo) -> SlurmInfo:
    """The part of a run's record that a SAMS record carries."""
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
    """The record with what sacct said, as SAMS keeps it in its archive."""
    document = json.loads(data)
    values = {
        "account": info.account,
        "username": info.user,
        "uid": info.uid,
        "nodes": None if info.nodes is None else len(info.nodes),
        "cpus": info.cpus,
        "partition": info.partition,
    }
    said: dict[str, object] = {
        key: str(value) for key, value in values.items() if value is not None
    }
    if info.start is not None:
        moment = datetime.fromtimestamp(info.start / SECOND, UTC).astimezone()
        said["starttime"] = moment.strftime("%Y-%m-%dT%H:%M:%S")
        said["starttimestamp"] = info.start / SECOND
    document["sams.sampler.SlurmInfo"] = said
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
