"""Batches of one job, and their delivery by remote write."""

from __future__ import annotations

import time
from array import array
from pathlib import Path

from jobsight.config.settings import RemoteWriteSettings
from jobsight.model import MISSING, SECOND, Batch, JobInfo, JobPart, JobTotals, Series, Sighting
from jobsight.prometheus.remote_write import RemoteWriteTarget
from jobsight.transport.delivery import Delivery
from jobsight.transport.spool import Spool
from jobsight.transport.wire import encode

NOW = time.time_ns() // SECOND * SECOND


def batch(number: int = 1, *, final: bool = False, job: int = 42, rows: int = 3) -> Batch:
    """Some seconds of a job, each batch behind the one before."""
    begin = NOW + number * rows * SECOND
    times = array("q", [begin + place * SECOND for place in range(rows)])
    columns = {
        "cpu.time": array("q", [(number * rows + place) * SECOND for place in range(rows)]),
        "memory.used": array("q", [MISSING, *([2**20] * (rows - 1))]),
        "gpu.1.power": array("q", [250_000_000] * rows),
        "site.own": array("q", [1] * rows),
    }
    last = begin + (rows - 1) * SECOND
    totals = JobTotals(time=last + SECOND // 2, cpu_source="test", cpu_time=99 * SECOND)
    return Batch(
        cluster="c", node="n1", spool="5" * 32, sequence=number, written=begin, monotonic=1,
        agent="test",
        jobs=[JobInfo(cluster="c", job_id=job, source="prolog", user="ann\n", cpus=4)],
        parts=[
            JobPart(
                sighting=Sighting("c", job, "n1", "boot", NOW),
                epoch="e",
                series=None if final else Series(times, columns),
                totals=totals,
                final=final,
            )
        ],
    )  # fmt: skip


def deliver(folder: Path, url: str, batches: list[Batch], **settings: object) -> Delivery:
    spool = Spool(folder / "spool", sync=False)
    for one in batches:
        spool.put_encoded(encode(one))
    made = RemoteWriteSettings(url=url, **settings)  # type: ignore[arg-type]
    return Delivery(spool, RemoteWriteTarget("agent.remote_write", made))
