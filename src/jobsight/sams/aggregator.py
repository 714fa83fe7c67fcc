"""Storing of SAMS records: one transaction per group, then the files are moved.

A file leaves the incoming directory only after its record is committed. An aggregation killed at
any point loses nothing and doubles nothing: a record that was stored but not moved is stored again,
which changes nothing.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec

from jobsight.model import JobInfo
from jobsight.sams.convert import info_of, part_of
from jobsight.sams.reader import Entry, Reader
from jobsight.store.write.bounds import limit_info
from jobsight.store.write.intake import Intake
from jobsight.store.write.validation import BatchError

logger = logging.getLogger(__name__)

#: Why an entry could not be stored, by its index.
Refusals = dict[int, str]


class Summary(msgspec.Struct):
    """The number of files by their outcome."""

    stored: int = 0
    refused: int = 0


class Aggregator:
    """Stores the records of one cluster."""

    def __init__(self, store: Intake, cluster: str) -> None:
        self._store = store
        self._cluster = cluster

    def run(
        self, reader: Reader, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Summary:
        """Store all groups of a reader; an error leaves the remaining files where they are."""
        summary = Summary()
        for group in reader.groups():
            refused = self.store([item.entry for item in group.items], validated=True)
            reader.finish(group, refused)
            summary.stored += len(group.items) - len(refused)
            summary.refused += group.refused + len(refused)
            progress(group.done, group.total)
        return summary

    def store(self, entries: Sequence[Entry], *, validated: bool = False) -> Refusals:
        """Store entries; returns why some were refused. A reader's entries are ``validated``."""
        refused: Refusals = {}
        if entries:
            self._store_some(list(enumerate(entries)), refused, validated)
        return refused

    def _store_some(
        self, entries: list[tuple[int, Entry]], refused: Refusals, validated: bool
    ) -> None:
        digests = b"".join(sorted(entry.digest for _, entry in entries))
        key = f"sams-{hashlib.blake2b(digests, digest_size=16).hexdigest()}"
        parts = [part_of(entry.record, entry.interval, self._cluster) for _, entry in entries]
        infos = [_info(entry, self._cluster) for _, entry in entries]
        # Without a start, the interval of the record's own processes finds the run.
        completions = [
            (part.sighting, info)
            for part, info in zip(parts, infos, strict=True)
            if info.start is None
        ]
        try:
            new = self._store.record_finished(
                self._cluster,
                _jobs(info for info in infos if info.start is not None),
                parts,
                key,
                completions=completions,
                validated=validated,
            )
        except BatchError as error:
            # Isolate the invalid entry: it must not keep the others out.
            if len(entries) == 1:
                refused[entries[0][0]] = str(error)
                return
            middle = len(entries) // 2
            self._store_some(entries[:middle], refused, validated)
            self._store_some(entries[middle:], refused, validated)
        else:
            state = "stored" if new else "had been stored before"
            logger.debug("%d records %s as %s", len(entries), state, key)


def _info(entry: Entry, cluster: str) -> JobInfo:
    if entry.sacct_info is not None:
        return entry.sacct_info
    info, excesses = limit_info(info_of(entry.record, cluster, entry.interval.end))
    for excess in excesses:
        logger.warning("job %d: stored without its %s, which %s", info.job_id, *excess)
    return info


def _jobs(infos: Iterable[JobInfo]) -> list[JobInfo]:
    """One record per run; its end is that of its last node."""
    jobs: dict[tuple[int, int | None], JobInfo] = {}
    for info in infos:
        earlier = jobs.setdefault((info.job_id, info.start), info)
        if earlier.end is not None and info.end is not None:
            earlier.end = max(earlier.end, info.end)
    return list(jobs.values())
