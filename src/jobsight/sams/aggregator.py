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
from jobsight.store.write.intake import Intake, KnownEnds
from jobsight.store.write.validation import BatchError


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
            refused = self.book(group.entries, checked=True)
            reader.settle(refused)
            summary.booked += len(group.entries) - len(refused)
            summary.refused += group.refused + len(refused)
            progress(group.done, group.whole)
        return summary

    def book(self, entries: Sequence[Entry], *, checked: bool = False) -> Refusals:
        """Store entries; gives the reasons for those that the store does not take.

        What a reader gives is ``checked``: the store takes each record that was understood.
        """
        refused: Refusals = {}
        if entries:
            ids = {entry.record.job_id for entry in entries}
            known = self._store.known_ends(self._cluster, ids)
            self._write(list(enumerate(entries)), known, refused, checked)
        return refused

    def _write(
        self,
        entries: list[tuple[int, Entry]],
        known: KnownEnds,
        refused: Refusals,
        checked: bool,
    ) -> None:
        parts = [part_of(entry.record, self._cluster) for _, entry in entries]
        jobs = _jobs([entry for _, entry in entries], parts, known)
        digests = [entry.digest for _, entry in entries]
        try:
            batch = batch_of(self._cluster, jobs, parts, digests)
            self._store.write(batch, checked=checked)
        except BatchError as error:
            # One of them is not what the store takes; the others must not suffer from it.
            if len(entries) == 1:
                refused[entries[0][0]] = str(error)
                return
            middle = len(entries) // 2
            self._write(entries[:middle], known, refused, checked)
            self._write(entries[middle:], known, refused, checked)


def _jobs(entries: Sequence[Entry], parts: Sequence[JobPart], known: KnownEnds) -> list[JobInfo]:
    """One record for each run, however many nodes it had."""
    found: dict[tuple[int, int | None], JobInfo] = {}
    for entry, part in zip(entries, parts, strict=True):
        assert part.totals is not None
        record, said = entry.record, entry.said or entry.record.info
        end = part.totals.time if entry.said is None else entry.said.end
        key = record.job_id, None if said is None else said.start
        before = found.get(key)
        if before is None:
            found[key] = entry.said or info_of(record, part.sighting.cluster, end)
        elif before.end is not None and end is not None:
            before.end = max(before.end, end)
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
