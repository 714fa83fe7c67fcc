"""A SAMS record in the words of the store: a run of a job, seen on one node.

The start that Slurm gave names the run, so a requeued job is another one. Figures of a record are
cumulative: booking it again changes nothing, which is what makes a killed aggregation repeatable.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from jobsight import __version__
from jobsight.model import (
    SECOND,
    Batch,
    Coverage,
    ExecutableUse,
    JobInfo,
    JobPart,
    JobTotals,
    Sighting,
)
from jobsight.sams.record import LATEST, RecordError, SamsRecord

#: Where a run's record came from; the scheduler's own records know better.
SOURCE: Final = "SAMS record"
_NODE: Final = "sams-aggregator"
_EPOCH: Final = "sams"

#: A node's clock that is further before the start than this is wrong, and so is one further after
#: it: no collector waits half a year for the first process.
_BEFORE: Final = 3600 * SECOND
_AFTER: Final = 180 * 86400 * SECOND

_POLLED: Final = "a SAMS record: processes looked at from time to time, short ones are missing"
_COUNTED: Final = "a SAMS record with the counter of the job's cgroup"


class Interval(msgspec.Struct):
    """When a record's run was, in nanoseconds, and by how much the node's clock was put right."""

    start: int
    end: int
    shift: int


def interval_of(record: SamsRecord) -> Interval:
    """The start is Slurm's where it is known, the length is the node's."""
    start = record.info.start if record.info is not None else None
    first = record.first if record.first is not None else record.last
    if first is None:
        if start is None:
            raise RecordError("the record has neither a start of the job nor of its programs")
        return Interval(start, start, 0)
    last = first if record.last is None else max(first, record.last)
    if start is None:
        return Interval(first, last, 0)
    shift = 0
    if not -_BEFORE <= first - start <= _AFTER:
        shift = start - first
    end = max(start, last + shift)
    if end >= LATEST * SECOND:
        raise RecordError(
            f"the record of job {record.job_id} on {record.node} speaks of programs over "
            f"{(last - first) // (365 * 86400 * SECOND)} years, to beyond the year 2200"
        )
    return Interval(start, end, shift)


def check_bookable(record: SamsRecord) -> None:
    """What SAMS's aggregator refuses, too: a record that says nothing of programs or owners."""
    where = f"of job {record.job_id} on {record.node}"
    if not record.executables:
        raise RecordError(f"the record {where} names no program that ran (sams.sampler.Software)")
    if record.info is None:
        raise RecordError(
            f"the record {where} does not say whose it is (sams.sampler.SlurmInfo); the loader "
            "sams.loader.FileSlurmInfoFallback asks sacct in such cases"
        )
    interval_of(record)


def part_of(record: SamsRecord, cluster: str) -> JobPart:
    """What the record says of the job on its node."""
    interval = interval_of(record)
    shift = interval.shift
    first = 0 if record.first is None else record.first + shift
    last = interval.end
    # In one go: a night's records are thousands of these.
    uses = [
        ExecutableUse(
            path=path,
            cpu_time=user + system,
            cpu_user=user,
            cpu_system=system,
            cpu_estimated=0 if record.counter else user + system,
            first_seen=first,
            last_seen=last,
        )
        for path, (user, system) in record.executables.items()
    ]
    cpu_user, cpu_system = record.cpu()
    return JobPart(
        sighting=Sighting(
            cluster=cluster,
            job_id=record.job_id,
            node=record.node,
            # A collector that was started anew within a run begins a second record, which adds up.
            boot_id=f"sams-{(record.first or 0) // SECOND}",
            birth=interval.start,
        ),
        epoch=_EPOCH,
        totals=JobTotals(
            time=last,
            cpu_source=SOURCE,
            cpu_time=cpu_user + cpu_system,
            cpu_user=cpu_user,
            cpu_system=cpu_system,
        ),
        executables=uses,
        coverage=_coverage(record, shift),
        final=True,
    )


_COVERAGE_POLLED: Final = {
    group: Coverage(quality="estimate", reason=_POLLED) for group in ("cpu", "executables")
}
_COVERAGE_COUNTED: Final = {
    "cpu": Coverage(quality="exact", reason=_COUNTED),
    "executables": Coverage(quality="exact", reason=_COUNTED),
}


def _coverage(record: SamsRecord, shift: int) -> dict[str, Coverage]:
    coverage = _COVERAGE_POLLED if record.counter is None else _COVERAGE_COUNTED
    if not shift:
        return coverage
    days = abs(shift) / (86400 * SECOND)
    note = f"; the node's clock was {days:.0f} days {'late' if shift > 0 else 'early'}"
    return {
        group: msgspec.structs.replace(one, reason=one.reason + note)
        for group, one in coverage.items()
    }


def info_of(record: SamsRecord, cluster: str, end: int | None) -> JobInfo:
    """Who the run belongs to."""
    info = record.info
    assert info is not None
    return JobInfo(
        cluster=cluster,
        job_id=record.job_id,
        source=SOURCE,
        name=info.name,
        user=info.user,
        uid=info.uid,
        account=info.account,
        partition=info.partition,
        cpus=info.cpus,
        start=info.start,
        end=end,
    )


def batch_of(
    cluster: str, jobs: Iterable[JobInfo], parts: Iterable[JobPart], digests: Sequence[bytes]
) -> Batch:
    """One batch, named by what is in it: the same records are the same batch."""
    name = hashlib.blake2b(b"".join(sorted(digests)), digest_size=16).hexdigest()
    return Batch(
        cluster=cluster,
        node=_NODE,
        spool=f"sams-{name}",
        sequence=0,
        written=time.time_ns(),
        monotonic=time.monotonic_ns(),
        agent=f"jobsight {__version__}",
        jobs=list(jobs),
        parts=list(parts),
    )
