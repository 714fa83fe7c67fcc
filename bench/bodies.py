"""The same values as requests: batches as our agents send them, and Prometheus's remote write."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np

from bench.workload import START, Job
from jobsight.model import (
    SECOND,
    Batch,
    Coverage,
    ExecutableUse,
    JobInfo,
    JobPart,
    JobTotals,
    Series,
    Sighting,
)
from jobsight.prometheus.remote_write import field, label, snappy_literals
from jobsight.transport import wire

CLUSTER = "bench"
_COVERAGE = {group: Coverage(quality="exact") for group in ("cpu", "memory", "io", "executables")}
_PATHS = (b"/usr/bin/bash", b"/sw/gromacs/2024.2/bin/gmx", b"/usr/bin/srun")


def by_node(jobs: Iterable[Job]) -> list[list[Job]]:
    return [list(group) for _, group in groupby(jobs, key=lambda job: job.node)]


def native(jobs: list[Job], rows: int) -> Iterator[bytes]:
    """The batches of one node, each with so many samples of every job, and all its totals.

    The first one says who the jobs are, the last one that they have ended.
    """
    whole = len(jobs[0].times)
    for sequence, first in enumerate(range(0, whole, rows)):
        batch = Batch(
            cluster=CLUSTER,
            node=jobs[0].node,
            spool=f"spool of {jobs[0].node}",
            sequence=sequence,
            written=int(jobs[0].times[min(first + rows, whole) - 1]) + SECOND,
            monotonic=first,
            agent="jobsight bench",
            jobs=[] if first else [_info(job) for job in jobs],
            parts=[_part(job, first, first + rows) for job in jobs],
        )
        yield wire.encode(batch)


def _info(job: Job) -> JobInfo:
    user = f"u{job.job_id % 400:03d}"
    return JobInfo(
        cluster=CLUSTER, job_id=job.job_id, source="squeue", user=user, account="p1",
        partition="batch", name="run", cpus=8, start=START, nodes=(job.node,), state="RUNNING",
    )  # fmt: skip


def _part(job: Job, first: int, end: int) -> JobPart:
    last = min(end, len(job.times)) - 1
    time = int(job.times[last])
    figures = {name: int(column[last]) for name, column in job.columns.items()}
    cpu = figures["cpu.time"]
    return JobPart(
        sighting=Sighting(CLUSTER, job.job_id, job.node, "boot", START),
        epoch="epoch",
        series=Series(
            array("q", job.times[first:end].tobytes()),
            {name: array("q", column[first:end].tobytes()) for name, column in job.columns.items()},
        ),
        totals=JobTotals(
            time=time,
            cpu_source="cgroup v2",
            cpu_time=cpu,
            cpu_user=figures["cpu.user"],
            cpu_system=figures["cpu.system"],
            memory_peak=figures["memory.peak"],
            memory_used_peak=figures["memory.used"],
        ),
        executables=[
            ExecutableUse(
                path=path, executions=1, processes=1, cpu_time=cpu // 3, cpu_user=cpu // 3,
                first_seen=START, last_seen=time,
            )
            for path in _PATHS
        ],
        coverage=_COVERAGE,
        final=end >= len(job.times),
    )  # fmt: skip


def remote_write(jobs: list[Job], rows: int) -> Iterator[bytes]:
    """The requests of one node: the same samples, one series for each job and metric."""
    names = [_labels(job, name) for job in jobs for name in job.columns]
    values = np.stack([column for job in jobs for column in job.columns.values()])
    times = np.repeat(
        np.stack([job.times // 1_000_000 for job in jobs]), len(jobs[0].columns), axis=0
    )
    for first in range(0, values.shape[1], rows):
        samples = _samples(times[:, first : first + rows], values[:, first : first + rows])
        message = b"".join(
            field(1, name + some.tobytes()) for name, some in zip(names, samples, strict=True)
        )
        # Not compressed: what a server need not unpack cannot make it look slow.
        yield snappy_literals(message)


def _samples(times: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sample messages of protobuf: a double, and a time of six bytes as every one of our age."""
    packed = np.zeros((*values.shape, 18), np.uint8)
    packed[..., :3] = (0x12, 16, 0x09)
    packed[..., 3:11] = values.astype("<f8")[..., None].view(np.uint8)
    packed[..., 11] = 0x10
    for place in range(6):
        packed[..., 12 + place] = (times >> 7 * place) & 0x7F | (0x80 if place < 5 else 0)
    return packed.reshape(len(values), -1)


def _labels(job: Job, metric: str) -> bytes:
    labels = {
        "__name__": "job_" + metric.replace(".", "_"),
        "cluster": CLUSTER,
        "instance": job.node,
        "jobid": str(job.job_id),
    }
    return b"".join(label(name, value) for name, value in labels.items())
