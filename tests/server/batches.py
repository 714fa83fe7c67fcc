"""Batches for the tests of the server, as an agent would send them."""

from __future__ import annotations

import uuid
from array import array

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

START = 1_794_717_192 * SECOND
EXACT = Coverage(quality="exact")


def batch(
    job_id: int = 12,
    *,
    agent_cluster: str = "alpha",
    sequence: int = 1,
    spool: str | None = None,
    rows: int = 11,
    **info: object,
) -> Batch:
    """One ended job of ten seconds on one node of the cluster ``agent_cluster``; ``info`` replaces
    what is said of the job."""
    times = [START + number * SECOND for number in range(rows)]
    fields = {
        "cluster": agent_cluster,
        "job_id": job_id,
        "source": "jobsight run",
        "name": "multiply",
        "user": "alice",
        "account": "physics",
        "nodes": ("n1",),
        "cpus": 2,
        "memory": 2**30,
        "start": START,
        "end": START + 10 * SECOND,
        "state": "COMPLETED",
        "exit_code": 0,
    }
    part = JobPart(
        sighting=Sighting(agent_cluster, job_id, "n1", "boot", START),
        epoch="one",
        series=Series(
            array("q", times),
            {
                "cpu.time": array("q", [number * SECOND for number in range(rows)]),
                "memory.used": array("q", [2**20 * number for number in range(rows)]),
            },
        ),
        totals=JobTotals(
            time=times[-1],
            cpu_source="cgroup v1",
            cpu_time=10 * SECOND,
            cpu_user=9 * SECOND,
            cpu_system=SECOND,
            memory_used_peak=10 * 2**20,
            memory_peak=20 * 2**20,
        ),
        executables=[ExecutableUse(path=b"/usr/bin/\xff<b>", executions=3, cpu_time=9 * SECOND)],
        coverage={"cpu": EXACT, "memory": EXACT, "io": EXACT, "executables": EXACT},
        final=True,
    )
    return Batch(
        cluster=agent_cluster,
        node="n1",
        spool=spool or str(uuid.uuid4()),
        sequence=sequence,
        written=times[-1],
        monotonic=1,
        agent="test",
        jobs=[JobInfo(**(fields | info))],  # type: ignore[arg-type]
        parts=[part],
    )
