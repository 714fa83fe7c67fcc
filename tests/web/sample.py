"""Fills a store with runs as real jobs leave them, for tests of the pages and for looking at them.

Run as a program it serves them: ``python -m tests.web.sample FOLDER [PORT]``.
"""

from __future__ import annotations

import math
import random
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobsight.model import (
    MISSING,
    SECOND,
    Batch,
    Coverage,
    ExecutableUse,
    JobInfo,
    JobPart,
    JobTotals,
    Series,
    Sighting,
    StepUse,
)

if TYPE_CHECKING:
    from jobsight.store.store import Store

NOW = 1_794_717_192 * SECOND
MIB = 2**20
GIB = 2**30

HOSTILE = "<script>alert(1)</script>\"'\n%s{{ 7 * 7 }}{% raw %}\u202e&amp;</td>"
HOSTILE_PATH = b"/home/<img src=x onerror=alert(2)>/\xff\n%d" + b"x" * 4050

EXACT = {group: Coverage(quality="exact") for group in ("cpu", "memory", "io", "executables")}

#: From the share of the run that has passed: cores busy, memory used, bytes read a second.
Shape = Callable[[float], tuple[float, float, float]]


def times_of(start: int, length: float) -> list[int]:
    """The moments at which an agent samples: often at first, then less and less often."""
    moments, at = [], 0.0
    while at < length:
        moments.append(start + round(at * SECOND))
        at += 1 if at < 60 else 10 if at < 3600 else 30
    return [*moments, start + round(length * SECOND)]


def curves(shape: Shape, start: int, length: float, seed: int, gap: bool = False) -> Series:
    """Time series of the given shape with the unrest of real ones."""
    chance = random.Random(seed)
    times = times_of(start, length)
    columns: dict[str, array[int]] = {
        name: array("q")
        for name in (
            "cpu.time", "cpu.user", "cpu.system", "memory.used", "memory.current", "memory.file",
            "io.read_characters", "io.written_characters", "io.read_bytes", "io.written_bytes",
            "tasks.processes", "tasks.threads",
        )
    }  # fmt: skip
    counted = dict.fromkeys(columns, 0)
    before = start
    for moment in times:
        share, passed = (moment - start) / SECOND / length, (moment - before) / SECOND
        before = moment
        cores, memory, rate = shape(share)
        cores *= chance.uniform(0.94, 1.0)
        rate *= chance.uniform(0.5, 1.4)
        counted["cpu.time"] += round(cores * passed * SECOND)
        counted["cpu.system"] += round(cores * passed * SECOND * 0.06)
        counted["cpu.user"] = counted["cpu.time"] - counted["cpu.system"]
        counted["io.read_characters"] += round(rate * passed)
        counted["io.read_bytes"] += round(rate * passed * 0.6)
        counted["io.written_characters"] += round(rate * passed * 0.3 * chance.random())
        counted["io.written_bytes"] = counted["io.written_characters"]
        counted["memory.used"] = round(memory * chance.uniform(0.985, 1.0))
        counted["memory.file"] = min(counted["io.read_characters"] // 4, GIB // 3)
        counted["memory.current"] = counted["memory.used"] + counted["memory.file"]
        counted["tasks.processes"] = 1 + math.ceil(cores)
        counted["tasks.threads"] = 1 + math.ceil(cores) * 2
        lost = gap and 0.4 < share < 0.5
        for name, column in columns.items():
            column.append(MISSING if lost else counted[name])
    return Series(times=array("q", times), columns=columns)


def totals_of(series: Series, **changes: Any) -> JobTotals:
    """The counters as they stand at the end of the time series."""
    last = {name: column[-1] for name, column in series.columns.items()}
    fields: dict[str, Any] = {
        "time": series.times[-1],
        "cpu_source": "cgroup v2",
        "cpu_time": last["cpu.time"],
        "cpu_user": last["cpu.user"],
        "cpu_system": last["cpu.system"],
        "memory_used_peak": max(series.columns["memory.used"]),
        "memory_peak": max(series.columns["memory.current"]) + 4 * MIB,
        "swap_peak": 0,
        "oom_kills": 0,
        "read_characters": last["io.read_characters"],
        "written_characters": last["io.written_characters"],
        "read_bytes": last["io.read_bytes"],
        "written_bytes": last["io.written_bytes"],
        "read_calls": last["io.read_characters"] // 65536,
        "write_calls": last["io.written_characters"] // 4096,
        "executions": 3,
        "processes": 3,
    }
    return JobTotals(**(fields | changes))


def use(path: bytes, cpu: float, executions: int = 1, **changes: Any) -> ExecutableUse:
    """One executable with plausible companions of its CPU time."""
    spent = round(cpu)
    fields: dict[str, Any] = {
        "path": path,
        "executions": executions,
        "processes": executions,
        "cpu_time": spent,
        "cpu_user": round(spent * 0.94),
        "cpu_system": spent - round(spent * 0.94),
        "peak_memory": 34 * MIB,
        "read_bytes": 3 * MIB,
        "written_bytes": 40960,
    }
    return ExecutableUse(**(fields | changes))


def steps_of(index: int, spent: int) -> list[StepUse]:
    """A script on the first node, and its steps on all of them."""
    seen: dict[str, Any] = {"first_seen": NOW - 30000 * SECOND, "last_seen": NOW, "ended": True}
    steps = [
        StepUse(step="extern", cpu_time=2 * 10**6, cpu_overhead=10**7, memory_peak=MIB, **seen),
        StepUse(step="0", tasks=8, cpu_time=spent, cpu_overhead=10**7, memory_peak=3 * GIB, **seen),
    ]
    if index == 0:
        steps.append(StepUse(step="batch", tasks=1, cpu_time=4 * SECOND, oom_kills=0, **seen))
    return steps


class Maker:
    """Makes the batches of one job after another, as one agent per node would send them."""

    def __init__(self, cluster: str = "local") -> None:
        self.cluster = cluster
        self.sequence = 0
        self.job_id = 0

    def job(  # noqa: PLR0913 -- each test names the few that differ from the usual job
        self,
        shape: Shape,
        *,
        length: float,
        ago: float,
        nodes: tuple[str, ...] = ("node01",),
        running: bool = False,
        coverage: dict[str, Coverage] | None = None,
        executables: Callable[[int], list[ExecutableUse]] | None = None,
        totals: dict[str, Any] | None = None,
        steps: Callable[[int, int], list[StepUse]] | None = None,
        **info: Any,
    ) -> Iterator[Batch]:
        self.job_id += 1
        start = NOW - round(ago * SECOND)
        fields: dict[str, Any] = {
            "cluster": self.cluster, "job_id": self.job_id, "source": "jobsight run",
            "user": "ada", "account": "physics", "nodes": nodes, "cpus": 4, "memory": 2 * GIB,
            "start": start, "end": None if running else start + round(length * SECOND),
            "state": "RUNNING" if running else "COMPLETED",
            "exit_code": None if running else 0,
        }  # fmt: skip
        job = JobInfo(**(fields | info))
        for index, node in enumerate(nodes):
            # The last of several nodes is slower and looks it; one of them was silent for a while.
            slow = 0.55 if index and index == len(nodes) - 1 else 1 - 0.01 * index
            series = curves(
                lambda share, slow=slow: _slowed(shape(share), slow),
                start, length, seed=self.job_id * 100 + index, gap=index == 2,
            )  # fmt: skip
            counters = totals_of(series, **(totals or {}))
            spent = counters.cpu_time or 0
            default = [use(b"/usr/bin/python3.11", spent * 0.995, peak_memory=120 * MIB)]
            self.sequence += 1
            yield Batch(
                cluster=self.cluster,
                node=node,
                spool=f"spool-of-{node}",
                sequence=self.sequence,
                written=counters.time,
                monotonic=counters.time,
                agent="sample",
                jobs=[job] if index == 0 else [],
                parts=[
                    JobPart(
                        sighting=Sighting(
                            cluster=self.cluster, job_id=self.job_id, node=node,
                            boot_id="00000000-0000-0000-0000-000000000000", birth=start,
                        ),
                        epoch="one",
                        series=series,
                        totals=counters,
                        executables=executables(spent) if executables else default,
                        steps=steps(index, spent) if steps else [],
                        coverage=coverage or EXACT,
                        final=not running,
                    )
                ],
            )  # fmt: skip


def _slowed(values: tuple[float, float, float], factor: float) -> tuple[float, float, float]:
    return values[0] * factor, values[1] * (0.7 + 0.3 * factor), values[2] * factor


def batches(extra: int = 0) -> Iterator[Batch]:
    """Every kind of run that the pages must show well, and more plain ones for paging."""
    make = Maker()
    for number in range(extra):
        yield from make.job(
            lambda share: (2.0, 300 * MIB, 0.0), length=8, ago=90000 - number * 60,
            name=f"sweep-{number:03d}", command=f"./sweep --point {number}",
        )  # fmt: skip
    yield from make.job(
        lambda share: (3.0 if share < 0.93 else 1.1, 92 * MIB, 2e4), length=18, ago=7300,
        name="pi-parallel", command="python3 -m samples.pi --workers 3",
    )  # fmt: skip
    yield from make.job(
        lambda share: (1.0, (0.06 + 0.9 * share**1.4) * 2 * GIB, 1e5), length=16, ago=7250,
        name="grow", command="python3 -m samples.grow --to 1.9G", cpus=1,
    )  # fmt: skip
    yield from make.job(
        lambda share: (0.5 + 0.3 * math.sin(share * 9), 40 * MIB, 8e8 * (share % 0.25 < 0.17)),
        length=15, ago=7200, name="files", cpus=2, memory=512 * MIB,
        command="sh -c 'dd if=/dev/urandom of=data bs=1M count=2048 && cp data copy && sync'",
        executables=lambda spent: [
            use(b"/usr/bin/dd", spent * 0.71, read_bytes=2 * GIB, written_bytes=2 * GIB),
            use(b"/usr/bin/cp", spent * 0.24, 1, read_bytes=2 * GIB, written_bytes=2 * GIB),
            use(b"/usr/bin/sync", spent * 0.02), use(b"/usr/bin/dash", spent * 0.01),
        ],
    )  # fmt: skip
    yield from make.job(
        lambda share: (1.6, 12 * MIB, 4e6), length=14, ago=7150, name="storm", cpus=2,
        command="sh -c 'i=0; while [ $i -lt 3000 ]; do /bin/true; i=$((i+1)); done'",
        executables=lambda spent: [
            use(b"/usr/bin/true", spent * 0.78, 3000, peak_memory=MIB),
            use(b"/usr/bin/dash", spent * 0.1),
            use(b"/opt/site/software/2026a/GCCcore-14.2.0/Python/3.13.1/lib/python3.13/"
                b"site-packages/numpy/core/include/bin/very-long-tool-name", spent * 0.01, 12,
                failures=2),
            use(b"worker", spent * 0.008, 40, path_known=False, cpu_estimated=round(spent * 0.005)),
        ],
    )  # fmt: skip
    yield from make.job(
        lambda share: (3.7, min(share * 1.3, 1) * 16 * GIB, 5e5), length=5400, ago=80000,
        name="assemble-genome", command="spades.py --threads 8 -o out -1 r1.fq -2 r2.fq", cpus=8,
        memory=16 * GIB, user="grace", account="biology", state="OUT_OF_MEMORY", exit_signal=9,
        exit_code=None, time_limit=4 * 3600 * SECOND, totals={"oom_kills": 1},
        source="slurm", partition="standard", array_job_id=62, array_task_id=3,
    )  # fmt: skip
    yield from make.job(
        lambda share: (7.6 if share > 0.02 else 1, (3 + share) * GIB, 2e7 * (share % 0.1 < 0.01)),
        length=6 * 3600, ago=30000, name="lammps-melt", command="srun lmp -in melt.in", cpus=64,
        memory=8 * 16 * GIB, nodes=tuple(f"node{number:02d}" for number in range(1, 9)),
        time_limit=12 * 3600 * SECOND, source="slurm", partition="standard", user="emmy",
        executables=lambda spent: [use(b"/opt/lammps/bin/lmp", spent * 0.997, 8,
                                       peak_memory=500 * MIB)],
        steps=steps_of, totals={"cpu_overhead": 31 * 10**6},
    )  # fmt: skip
    polled = {
        "cpu": Coverage(quality="exact", reason="rusage of the waited-for processes"),
        "memory": Coverage(quality="estimate", time_share=0.94, reason="sum of the processes"),
        "io": Coverage(quality="failed", reason="/proc/PID/io: permission denied"),
        "executables": Coverage(quality="estimate", cpu_share=0.82, time_share=0.97,
                                reason="polled, no process events without privileges"),
    }  # fmt: skip
    no_reading: dict[str, Any] = {
        "cpu_source": "rusage", "memory_peak": None, "read_characters": None, "read_calls": None,
        "written_characters": None, "read_bytes": None, "written_bytes": None, "write_calls": None,
        "oom_kills": None, "swap_peak": None,
    }  # fmt: skip
    yield from make.job(
        lambda share: (0.8, 200 * MIB, 0.0), length=33, ago=3000, name="unit-tests", cpus=None,
        memory=None, state="FAILED", exit_code=7, command="make check", account=None,
        coverage=polled, totals=no_reading,
        executables=lambda spent: [
            use(b"/usr/bin/gcc", spent * 0.82, 31, cpu_estimated=round(spent * 0.82)),
        ],
    )  # fmt: skip
    yield from make.job(
        lambda share: (1.0, 10 * MIB, 0.0), length=3, ago=2000, name=HOSTILE, user="<b>mallory</b>",
        command=HOSTILE + "\n" + "y" * 4096, account="%s{}", state="CANCELLED", exit_signal=15,
        exit_code=None,
        executables=lambda spent: [use(HOSTILE_PATH, spent * 0.9), use(b"</table>", spent * 0.05)],
    )  # fmt: skip
    yield from make.job(
        lambda share: (3.4 - 2 * (share % 0.3 < 0.05), (0.3 + share) * GIB, 3e7), length=95, ago=95,
        name="train-model", command="python3 train.py --epochs 40", running=True,
        time_limit=600 * SECOND,
    )  # fmt: skip


def fill(store: Store, extra: int = 0) -> None:
    """Write the sample runs into a store."""
    for batch in batches(extra):
        store.write(batch, received=batch.written)


if __name__ == "__main__":
    import uvicorn

    from jobsight.server.app import create_app
    from jobsight.store.store import Store

    folder = Path(sys.argv[1])
    with Store.open(folder / "store.db") as opened:
        fill(opened, extra=60)
        uvicorn.run(
            create_app(opened, token="sample"),
            host="127.0.0.1",
            port=int(sys.argv[2]) if len(sys.argv) > 2 else 8090,
        )
