"""Books groups of records: stored in one transaction each, then moved.

A file leaves the folder of incoming records only after the store has it for good. Whoever ends the
program at any point loses nothing and doubles nothing: what was stored but not yet moved is booked
again, which changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from jobsight.model import SECOND, JobInfo, JobPart
from jobsight.sams.booking import SOURCE, batch_of, info_of, part_of
from jobsight.sams.reader import Entry, Groups, Refusals
from jobsight.store.checks import BatchError
from jobsight.store.intake import Intake, KnownEnds


class Summary(msgspec.Struct):
    """What became of the files."""

    booked: int = 0
    refused: int = 0


class Aggregator:
    """Brings groups of records into a store."""

    def __init__(self, store: Intake, cluster: str) -> None:
        self._store = store
        self._cluster = cluster

    def run(
        self, reader: Groups, progress: Callable[[int, int], None] = lambda done, whole: None
    ) -> Summary:
        """Book everything that a reader gives; errors leave the rest where it is."""
        summary = Summary()
        for group in reader.groups():
            refused = self.book(group.entries)
            reader.settle(refused)
            summary.booked += len(group.entries) - len(refused)
            summary.refused += group.refused + len(refused)
            progress(group.done, group.whole)
        return summary

    def book(self, entries: Sequence[Entry]) -> Refusals:
        """Store entries; gives the reasons for those that the store does not take."""
        refused: Refusals = {}
        if entries:
            ids = {entry.record.job_id for entry in entries}
            known = self._store.known_ends(self._cluster, ids)
            self._write(list(enumerate(entries)), known, refused)
        return refused

    def _write(self, entries: list[tuple[int, Entry]], known: KnownEnds, refused: Refusals) -> None:
        parts = [part_of(entry.record, self._cluster) for _, entry in entries]
        infos = [_info(entry, part) for (_, entry), part in zip(entries, parts, strict=True)]
        digests = [entry.digest for _, entry in entries]
        try:
            self._store.write(batch_of(self._cluster, _jobs(infos, known), parts, digests))
        except BatchError as error:
            # One of them is not what the store takes; the others must not suffer from it.
            if len(entries) == 1:
                refused[entries[0][0]] = str(error)
                return
            middle = len(entries) // 2
            self._write(entries[:middle], known, refused)
            self._write(entries[middle:], known, refused)


def _info(entry: Entry, part: JobPart) -> JobInfo:
    if entry.said is not None:
        return entry.said
    assert part.totals is not None
    return info_of(entry.record, part.sighting.cluster, part.totals.time)


def _jobs(infos: Sequence[JobInfo], known: KnownEnds) -> list[JobInfo]:
    """One record for each run, however many nodes it had."""
    found: dict[tuple[int, int | None], JobInfo] = {}
    for info in infos:
        before = found.setdefault((info.job_id, info.start), info)
        if before is not info and before.end is not None and info.end is not None:
            before.end = max(before.end, info.end)
    for info in found.values():
        if info.source == SOURCE:
            _respect(info, known)
    return list(found.values())


def _respect(info: JobInfo, known: KnownEnds) -> None:
    """A run that Slurm has closed keeps its end; one that we closed gets the later one."""
    if info.start is None or info.end is None:
        return
    stored = known.get((info.job_id, info.start // SECOND))
    if stored is not None and stored.end is not None:
        info.end = max(info.end, stored.end) if stored.source == SOURCE else None
