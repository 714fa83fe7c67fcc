"""SAMS databases into the store, as often as one likes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import tzinfo
from pathlib import Path

import msgspec

from jobsight.sams.aggregator import Aggregator
from jobsight.sams.databases import Found, SamsDatabase
from jobsight.sams.reader import MOST_PROGRAMS, MOST_RECORDS, Entry
from jobsight.sams.record import SamsRecord
from jobsight.store.store import Store


class Imported(msgspec.Struct):
    """What a database gave."""

    #: Rows of SAMS: one for each job, node and program.
    rows: int = 0
    jobs: int = 0
    records: int = 0
    #: Nanoseconds.
    cpu_time: int = 0
    problems: dict[str, int] = msgspec.field(default_factory=dict)

    def add(self, other: Imported) -> None:
        self.rows += other.rows
        self.jobs += other.jobs
        self.records += other.records
        self.cpu_time += other.cpu_time
        for reason, count in other.problems.items():
            self.problems[reason] = self.problems.get(reason, 0) + count


def import_database(
    file: Path,
    store: Store | None,
    *,
    cluster: str | None,
    default_cluster: str,
    zone: tzinfo | None = None,
    progress: Callable[[int, int], None] = lambda done, whole: None,
) -> Imported:
    """Book everything a database holds; without a store it is only read and counted."""
    result = Imported()
    with closing(SamsDatabase(file, zone)) as database:
        whole = database.count()
        jobs: set[tuple[str, int]] = set()
        found = _named(database.records(), cluster, default_cluster)
        for name, group in _groups(found):
            if store is not None:
                entries = [_entry(record) for record in group]
                for reason in Aggregator(store, name).book(entries).values():
                    result.problems[reason] = result.problems.get(reason, 0) + 1
            result.records += len(group)
            jobs |= {(name, record.job_id) for record in group}
            result.cpu_time += sum(sum(record.cpu()) for record in group)
            progress(database.rows, whole)
        result.rows, result.jobs = database.rows, len(jobs)
        for reason, count in database.problems.items():
            result.problems[reason] = result.problems.get(reason, 0) + count
        progress(whole, whole)
    return result


def _named(
    found: Iterable[Found], cluster: str | None, default: str
) -> Iterator[tuple[str, SamsRecord]]:
    for one in found:
        yield cluster or one.cluster or default, one.record


def _groups(records: Iterable[tuple[str, SamsRecord]]) -> Iterator[tuple[str, list[SamsRecord]]]:
    """Records of one cluster that are booked together."""
    name = ""
    group: list[SamsRecord] = []
    programs = 0
    for cluster, record in records:
        full = len(group) >= MOST_RECORDS or programs >= MOST_PROGRAMS
        if group and (full or cluster != name):
            yield name, group
            group, programs = [], 0
        name = cluster
        group.append(record)
        programs += len(record.executables)
    if group:
        yield name, group


_encode = msgspec.msgpack.Encoder().encode


def _entry(record: SamsRecord) -> Entry:
    return Entry(hashlib.blake2b(_encode(record), digest_size=16).digest(), record)
