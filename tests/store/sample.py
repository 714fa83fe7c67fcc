"""Batches as an agent would send them."""

import itertools
from array import array
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from jobsight.model import (
    SECOND,
    Batch,
    Coverage,
    ExecutableUse,
    JobInfo,
    JobPart,
    JobTotals,
    RunReference,
    Series,
    Sighting,
    StepUse,
)
from jobsight.store.read.queries import StoredRun
from jobsight.store.store import Store
from jobsight.store.write.bounds import MAX_AGE
from jobsight.store.write.validation import EARLIEST

#: A moment at which jobs start: 2026-09-21 14:13:20 UTC.
START = 1_790_000_000 * SECOND

_sequence = itertools.count(1)


def sighting(job_id: int = 7, node: str = "n1", birth: int = START, **more: Any) -> Sighting:
    return Sighting("c1", job_id, node, f"boot of {node}", birth, **more)


def series(seconds: Sequence[int], values: Sequence[int] | None = None) -> Series:
    """One counter and one gauge, sampled so many seconds after the start."""
    times = array("q", [START + second * SECOND for second in seconds])
    counter = array("q", values if values is not None else [second * 1000 for second in seconds])
    return Series(times, {"cpu.time": counter, "load": array("d", [0.5] * len(times))})


def part(seen: Sighting | None = None, epoch: str = "life 1", **more: Any) -> JobPart:
    return JobPart(sighting=seen or sighting(), epoch=epoch, **more)


def info(job_id: int = 7, start: int | None = START, **more: Any) -> JobInfo:
    return JobInfo(cluster="c1", job_id=job_id, source="slurm", start=start, **more)


def totals(second: int, cpu_time: int | None, **more: Any) -> JobTotals:
    return JobTotals(
        time=START + second * SECOND, cpu_source="cgroup v2", cpu_time=cpu_time, **more
    )


def use(path: bytes, cpu_time: int, **more: Any) -> ExecutableUse:
    return ExecutableUse(path=path, cpu_time=cpu_time, executions=1, **more)


def step(name: str, cpu_time: int | None = None, second: int = 0, **more: Any) -> StepUse:
    """A step as it was read so many seconds after the start."""
    values = {"first_seen": START, "last_seen": START + second * SECOND} | more
    return StepUse(step=name, cpu_time=cpu_time, **values)


def _written(content: Sequence[JobPart | JobInfo]) -> int:
    """START, or the last start of the content if that lies out of the bounds around START."""
    starts = [item.start if isinstance(item, JobInfo) else item.sighting.birth for item in content]
    latest = max((start for start in starts if start is not None), default=START)
    near = abs(latest - START) < MAX_AGE // 2
    return START if near or latest < EARLIEST else latest


def batch(*content: JobPart | JobInfo, sequence: int | None = None, **more: Any) -> Batch:
    values: dict[str, Any] = {
        "cluster": "c1",
        "node": "n1",
        "spool": "spool 1",
        "sequence": next(_sequence) if sequence is None else sequence,
        "written": _written(content),
        "monotonic": 1,
        "agent": "0.1",
        "jobs": [item for item in content if isinstance(item, JobInfo)],
        "parts": [item for item in content if isinstance(item, JobPart)],
    }
    return Batch(**(values | more))


def write_unbounded(store: Store, sent: Batch) -> None:
    """Store a batch as before its values were bounded: a store may hold such values."""
    with patch("jobsight.store.write.batch.check", lambda sent: []):
        assert store.write(sent)


def find(store: Store, text: str = "7") -> StoredRun:
    return store.find(RunReference.parse(text))


def seconds(store: Store, run_id: int) -> list[int]:
    """The times of a run's samples on its first node, in seconds after the start."""
    found = store.series(run_id)
    return [] if not found else ((found[0].times - START) // SECOND).tolist()


EXACT = {"cpu": Coverage(quality="exact")}
