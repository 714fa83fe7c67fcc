"""Conversion of a SAMS record to the store's model: a finished run, observed on one node.

The start given by Slurm identifies the run, so a requeued job is another run. The figures of a
record are cumulative: storing a record again changes nothing, so an interrupted aggregation can be
repeated.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from jobsight.model import (
    SAMS_SOURCE,
    SECOND,
    Coverage,
    ExecutableUse,
    JobInfo,
    JobPart,
    JobTotals,
    Sighting,
)
from jobsight.sams.record import LATEST, RecordError, SamsRecord

_EPOCH: Final = "sams"

#: How far the first process may lie before and after the start given by Slurm. Beyond that the
#: node's clock is wrong: no collector waits half a year for the first process.
_MAX_EARLY: Final = 3600 * SECOND
_MAX_LATE: Final = 180 * 86400 * SECOND

_POLLED: Final = "a SAMS record: processes are polled, short ones are missing"
_COUNTED: Final = "a SAMS record with the counter of the job's cgroup"
_COVERAGE_POLLED: Final = {
    group: Coverage(quality="estimate", reason=_POLLED) for group in ("cpu", "executables")
}
_COVERAGE_COUNTED: Final = {
    group: Coverage(quality="exact", reason=_COUNTED) for group in ("cpu", "executables")
}


class Interval(NamedTuple):
    """Start and end of a record's run in nanoseconds, and the correction of the node's clock."""

    start: int
    end: int
    clock_correction: int


def interval_of(record: SamsRecord) -> Interval:
    """The start comes from Slurm where it is known, the duration from the node."""
    start = record.info.start if record.info is not None else None
    first = record.first if record.first is not None else record.last
    if first is None:
        if start is None:
            raise RecordError("the record has neither a start of the job nor of its programs")
        return Interval(start, start, 0)
    last = first if record.last is None else max(first, record.last)
    if start is None:
        return Interval(first, last, 0)
    correction = 0
    if not -_MAX_EARLY <= first - start <= _MAX_LATE:
        correction = start - first
    end = max(start, last + correction)
    if end >= LATEST * SECOND:
        raise RecordError(
            f"the record of job {record.job_id} on {record.node} describes programs over "
            f"{(last - first) // (365 * 86400 * SECOND)} years, to beyond the year 2200"
        )
    return Interval(start, end, correction)


def check_complete(record: SamsRecord) -> None:
    """Raise :class:`RecordError` for a record without programs or owner, like SAMS."""
    where = f"of job {record.job_id} on {record.node}"
    if not record.executables:
        raise RecordError(f"the record {where} contains no programs (sams.sampler.Software)")
    if record.info is None:
        raise RecordError(
            f"the record {where} has no owner (sams.sampler.SlurmInfo); the loader "
            "sams.loader.FileSlurmInfoFallback queries sacct for it"
        )


def part_of(record: SamsRecord, interval: Interval, cluster: str) -> JobPart:
    """The figures of the job on the record's node."""
    first = 0 if record.first is None else record.first + interval.clock_correction
    executables = [
        ExecutableUse(
            path=path,
            cpu_time=user + system,
            cpu_user=user,
            cpu_system=system,
            cpu_estimated=0 if record.counter else user + system,
            first_seen=first,
            last_seen=interval.end,
        )
        for path, (user, system) in record.executables.items()
    ]
    cpu_user, cpu_system = record.cpu()
    return JobPart(
        sighting=Sighting(
            cluster=cluster,
            job_id=record.job_id,
            node=record.node,
            # A collector restarted within a run writes a second record, which adds up.
            boot_id=f"sams-{(record.first or 0) // SECOND}",
            birth=interval.start,
        ),
        epoch=_EPOCH,
        totals=JobTotals(
            time=interval.end,
            cpu_source=SAMS_SOURCE,
            cpu_time=cpu_user + cpu_system,
            cpu_user=cpu_user,
            cpu_system=cpu_system,
        ),
        executables=executables,
        coverage=_coverage(record, interval.clock_correction),
        final=True,
    )


def _coverage(record: SamsRecord, clock_correction: int) -> dict[str, Coverage]:
    shared = _COVERAGE_POLLED if record.counter is None else _COVERAGE_COUNTED
    if not clock_correction:
        return shared
    days = abs(clock_correction) / (86400 * SECOND)
    direction = "slow" if clock_correction > 0 else "fast"
    return {
        group: msgspec.structs.replace(
            coverage, reason=f"{coverage.reason}; the node's clock was {days:.0f} days {direction}"
        )
        for group, coverage in shared.items()
    }


def info_of(record: SamsRecord, cluster: str, end: int | None) -> JobInfo:
    """The owner and the resources of the run."""
    info = record.info
    assert info is not None
    return JobInfo(
        cluster=cluster,
        job_id=record.job_id,
        source=SAMS_SOURCE,
        name=info.name,
        user=info.user,
        uid=info.uid,
        account=info.account,
        partition=info.partition,
        cpus=info.cpus,
        start=info.start,
        end=end,
    )
