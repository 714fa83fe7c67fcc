"""Which run a record of the scheduler or a sighting on a node belongs to: decisions only.

A node knows when a job's cgroup was born, the scheduler when the run started. They are brought
together by the restart count or the SLUID where both sides know it, else by time.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobsight.model import SECOND, JobInfo, Sighting

#: How far a birth may lie outside the interval that the scheduler booked: prologs and clocks.
SLACK = 60 * SECOND
#: The same where the restart count agrees: only ids that wrap around must be told apart.
WIDE_SLACK = 24 * 3600 * SECOND


class RunRow(msgspec.Struct):
    """One run of a job as it is stored."""

    id: int
    start: int
    provisional: bool
    info: JobInfo


def run_of_sighting(rows: Sequence[RunRow], sighting: Sighting) -> RunRow | None:
    """The run that the scheduler's records give to a sighting."""
    fitting = rows
    if sighting.sluid is None and sighting.restart_count is None:
        # Nearly all jobs run once.
        if len(rows) == 1:
            return rows[0] if _in_time(rows[0], sighting) else None
    else:
        fitting = [row for row in rows if not _contradict(row.info, sighting)]
        for test in (_same_sluid, _same_restart):
            found = [row for row in fitting if test(row, sighting)]
            if found:
                return _latest(found)
    found = [row for row in fitting if _begun(row, sighting)]
    if found:
        return _latest(found)
    # Clocks differ: a run that is booked a moment after the birth, the nearest one.
    near = [row for row in fitting if _in_time(row, sighting)]
    return min(near, key=lambda row: abs(row.start - sighting.birth), default=None)


def _latest(rows: Sequence[RunRow]) -> RunRow:
    """The last run to start, one that is booked before one that is not."""
    return max(rows, key=lambda row: (not row.provisional, row.start))


def provisional_of_sighting(rows: Sequence[RunRow], sighting: Sighting) -> RunRow | None:
    """The provisional run of other nodes that saw the same job at about the same time."""
    near = [
        row
        for row in rows
        if row.provisional
        and abs(row.start - sighting.birth) <= SLACK
        and not _contradict(row.info, sighting)
    ]
    return min(near, key=lambda row: abs(row.start - sighting.birth), default=None)


def run_of_info(rows: Sequence[RunRow], info: JobInfo) -> RunRow | None:
    """The stored run that a record of the scheduler speaks of."""
    fitting = [row for row in rows if not _contradict(row.info, info)]
    booked = [row for row in fitting if not row.provisional]
    for row in booked:
        # Schedulers book whole seconds, launchers are finer.
        if info.start is not None and row.start // SECOND == info.start // SECOND:
            return row
    for row in (*booked, *fitting):
        if info.sluid is not None and row.info.sluid == info.sluid:
            return row
    if info.start is None:
        return _run_without_start(fitting, info)
    for row in booked:
        same_restart = info.restart_count is not None
        same_restart &= row.info.restart_count == info.restart_count
        if same_restart and info.submit is not None and row.info.submit == info.submit:
            return row
    return None


def _run_without_start(fitting: Sequence[RunRow], info: JobInfo) -> RunRow | None:
    """A record without a start speaks of a job that waits, or adds to what is known."""
    latest = max(fitting, key=lambda row: row.start, default=None)
    if latest is None:
        return None
    waits = info.state == "PENDING" and info.end is None
    # After the end of a run, a job that waits is one that was requeued.
    return None if waits and latest.info.end is not None else latest


def is_waiting_run(row: RunRow, info: JobInfo) -> bool:
    """Whether a provisional run that no node has seen is the one that ``info`` has started."""
    return row.provisional and row.info.end is None and not _contradict(row.info, info)


def merge(stored: JobInfo, arriving: JobInfo) -> JobInfo:
    """What is known after a record arrives: only known values overwrite."""
    late = stored.end is not None and arriving.end is None
    changes = {}
    for name in JobInfo.__struct_fields__:
        value = getattr(arriving, name)
        if value is None:
            continue
        # A late record of a run that has ended may add to it, but not make it run again.
        if late and getattr(stored, name) is not None:
            continue
        changes[name] = value
    return msgspec.structs.replace(stored, **changes)


def _contradict(info: JobInfo, other: JobInfo | Sighting) -> bool:
    return _differ(info.sluid, other.sluid) or _differ(info.restart_count, other.restart_count)


def _differ(one: object, other: object) -> bool:
    return one is not None and other is not None and one != other


def _same_sluid(row: RunRow, sighting: Sighting) -> bool:
    return sighting.sluid is not None and row.info.sluid == sighting.sluid


def _same_restart(row: RunRow, sighting: Sighting) -> bool:
    known = sighting.restart_count is not None and not row.provisional
    same = known and row.info.restart_count == sighting.restart_count
    return same and _contains(row, sighting.birth, WIDE_SLACK)


def _begun(row: RunRow, sighting: Sighting) -> bool:
    """Whether the run had begun when the cgroup was born; of several, the last one had made it.

    A requeued job runs again within seconds, so no slack is given to the start here.
    """
    return row.start <= sighting.birth + SECOND and _in_time(row, sighting)


def _in_time(row: RunRow, sighting: Sighting) -> bool:
    return not row.provisional and _contains(row, sighting.birth, SLACK)


def _contains(row: RunRow, time: int, slack: int) -> bool:
    end = row.info.end
    return row.start - slack <= time and (end is None or time <= end + slack)
