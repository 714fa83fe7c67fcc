"""Runs with known figures, written into a store as agents and the scheduler would send them.

A test states what a job did (busy CPUs and memory as functions of the time, programs, steps, GPUs)
and compares the figures with that.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobsight.findings.data import RunData, read_run
from jobsight.findings.figures import compute_figures
from jobsight.findings.vocabulary import FigureSet
from jobsight.model import (
    SECOND,
    Batch,
    Coverage,
    ExecutableUse,
    GpuUse,
    JobInfo,
    JobPart,
    JobTotals,
    RunReference,
    Series,
    Sighting,
    StepUse,
)
from jobsight.scheduler.records import JobDetails, NodeInfo
from jobsight.store.read.queries import StoredRun
from jobsight.store.snapshot import Snapshot
from jobsight.store.store import Store

START = 1_790_000_000 * SECOND
GIB = 2**30
HOUR = 3600.0
EXACT = {group: Coverage(quality="exact") for group in ("cpu", "memory", "io", "executables")}

#: A value as a function of the seconds since the start.
Shape = Callable[[float], float]

_sequence = itertools.count(1)


def at(seconds: float) -> int:
    """A time of a run."""
    return START + round(seconds * SECOND)


def program(
    path: str, cpu: float, first: float | None = 0.0, last: float | None = 0.0, **more: Any
) -> ExecutableUse:
    """An executable with so many CPU seconds between two times."""
    fields: dict[str, Any] = {
        "path": path.encode(),
        "executions": 1,
        "processes": 1,
        "cpu_time": round(cpu * SECOND),
        "cpu_user": round(cpu * SECOND),
        "first_seen": 0 if first is None else at(first),
        "last_seen": 0 if last is None else at(last),
    }
    return ExecutableUse(**(fields | more))


def step(name: str, cpu: float | None, first: float, last: float, **more: Any) -> StepUse:
    cpu_time = None if cpu is None else round(cpu * SECOND)
    seen = {"first_seen": at(first), "last_seen": at(last), "ended": True}
    return StepUse(step=name, cpu_time=cpu_time, **(seen | more))


def gpu(key: str, held: float, active: float | None, **more: Any) -> GpuUse:
    """A GPU that was active for so many of the seconds that it was held."""
    fields: dict[str, Any] = {
        "uuid": f"GPU-{key}",
        "name": "NVIDIA H200",
        "first_seen": START,
        "last_seen": at(held),
        "held_time": round(held * SECOND),
        "used": None if active is None else active > 0,
        "active_time": None if active is None else round(active * SECOND),
        "throttled_time": {},
        "faults": [],
    }
    return GpuUse(key=key, **(fields | more))


def sampled(
    length: float, interval: float, cores: Shape | None, columns: Mapping[str, Shape]
) -> Series:
    """Time series: ``cores`` is integrated to the CPU counter, other columns are as given."""
    moments = [place * interval for place in range(int(length / interval) + 1)]
    if length > moments[-1]:
        moments.append(length)
    values: dict[str, array[int]] = {
        name: array("q", [round(shape(moment)) for moment in moments])
        for name, shape in columns.items()
    }
    if cores is not None:
        counter, spent, before = array("q"), 0.0, 0.0
        for moment in moments:
            # Ten parts of the interval, so that a change within it counts.
            part = (moment - before) / 10
            spent += sum(cores(before + part * (place + 0.5)) for place in range(10)) * part
            counter.append(round(spent * SECOND))
            before = moment
        values["cpu.time"] = counter
    return Series(array("q", [at(moment) for moment in moments]), values)


def write_run(
    store: Store,
    *,
    length: float = HOUR,
    cpus: int | None = 4,
    cores: Shape | None = lambda moment: 4.0,
    programs: Sequence[ExecutableUse] | Mapping[str, Sequence[ExecutableUse]] = (),
    nodes: Sequence[str] = ("n1",),
    cores_of: Mapping[str, Shape] | None = None,
    columns: Mapping[str, Shape] | None = None,
    columns_of: Mapping[str, Mapping[str, Shape]] | None = None,
    steps: Sequence[StepUse] = (),
    gpus: Sequence[GpuUse] = (),
    coverage: Mapping[str, Coverage] | None = None,
    totals: Mapping[str, Any] | None = None,
    details: JobDetails | None = None,
    running: bool = False,
    series: bool = True,
    interval: float = 30.0,
    job_id: int = 7,
    **info: Any,
) -> StoredRun:
    """Write a run; on each of its nodes it did the same unless ``cores_of`` says otherwise."""
    fields: dict[str, Any] = {
        "source": "slurm",
        "name": "job",
        "user": "ada",
        "account": "physics",
        "partition": "short",
        "nodes": tuple(nodes),
        "cpus": cpus,
        "memory": 16 * GIB,
        "gpus": len(gpus) or None,
        "start": START,
        "end": None if running else at(length),
        "state": "RUNNING" if running else "COMPLETED",
        "exit_code": None if running else 0,
    }
    record = JobInfo(cluster="c1", job_id=job_id, **(fields | info))
    if details is not None:
        store.record_jobs([record], [details], now=at(length))
    for index, node in enumerate(nodes):
        shape = (cores_of or {}).get(node, cores)
        own = {**(columns or {}), **(columns_of or {}).get(node, {})}
        curves = sampled(length, interval, shape, own)
        spent = curves.columns["cpu.time"][-1] if shape is not None else None
        counters: dict[str, Any] = {
            "cpu_time": spent,
            "cpu_user": spent,
            "cpu_system": None if spent is None else 0,
            "memory_used_peak": max(curves.columns.get("memory.used", [GIB])),
            "memory_peak": max(curves.columns.get("memory.used", [GIB])),
            "oom_kills": 0,
        }
        ran = programs.get(node, ()) if isinstance(programs, Mapping) else programs
        part = JobPart(
            sighting=Sighting("c1", job_id, node, f"boot of {node}", START),
            epoch="one",
            series=curves if series else None,
            totals=JobTotals(
                time=at(length), cpu_source="cgroup v2", **(counters | dict(totals or {}))
            ),
            executables=list(ran),
            steps=list(steps) if index == 0 else [],
            gpus=list(gpus) if index == 0 else [],
            coverage=dict(coverage or EXACT),
            final=not running,
        )
        batch = Batch(
            cluster="c1", node=node, spool=f"spool of {node}", sequence=next(_sequence),
            written=at(length), monotonic=1, agent="0.1",
            jobs=[record] if index == 0 and details is None else [], parts=[part],
        )  # fmt: skip
        assert store.write(batch, received=at(length))
    return store.find(RunReference(job_id, "c1"))


def write_nodes(store: Store, *nodes: NodeInfo) -> None:
    """What the scheduler knows of the nodes."""
    Snapshot(store.database, "c1").replace("node", [(node.name, node) for node in nodes])


def node_info(name: str, cpus: int, memory: int, **more: Any) -> NodeInfo:
    return NodeInfo(cluster="c1", name=name, cpus=cpus, memory=memory, **more)


def read(store: Store, stored: StoredRun, length: float = HOUR) -> RunData:
    return read_run(store, stored, at(length))


def figures_of(store: Store, **run: Any) -> FigureSet:
    """The figures of a run of :func:`write_run`."""
    stored = write_run(store, **run)
    return compute_figures(read(store, stored, run.get("length", HOUR)))


def until(moment: float, cores: float, then: float = 0.0) -> Shape:
    """So many CPUs up to a time, and others after it."""
    return lambda second: cores if second < moment else then
