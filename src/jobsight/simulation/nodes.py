"""Simulated nodes: what their agents would measure, as batches in spools of their own.

A :class:`Node` runs jobs that follow from its random numbers: long ones in its slots, storms of
jobs of some seconds, its part of jobs on many nodes, GPUs on some nodes, a clock that is ahead or
behind, and an agent that restarts. What it wrote is kept as :class:`Written`, one for each job, and
:mod:`jobsight.simulation.check` compares it with what a store has.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from jobsight import __version__
from jobsight.model import (
    SECOND,
    Batch,
    Coverage,
    ExecutableUse,
    GpuUse,
    JobInfo,
    JobPart,
    JobTotals,
    Series,
    Sighting,
)
from jobsight.transport.spool import Spool

CLUSTER: Final = "simulated"
#: Ids of jobs on one node: this, and a range for each node.
_FIRST_ID: Final = 1_000_000
_IDS_OF_NODE: Final = 100_000
#: More nodes have no ids of their own.
MAX_NODES: Final = 20_000
#: Ids of jobs on many nodes: after those of the last node.
FIRST_LARGE_ID: Final = _FIRST_ID + MAX_NODES * _IDS_OF_NODE
#: Every tenth node has GPUs.
_GPU_NODES: Final = 10
_GPUS: Final = 4
_CPUS: Final = 64
_PROGRAMS: Final = (
    b"/apps/gromacs/2024.1/bin/gmx",
    b"/apps/openfoam/v2312/bin/simpleFoam",
    b"/apps/python/3.12/bin/python3.12",
    b"/apps/lammps/2024/bin/lmp",
    b"/apps/vasp/6.4.2/bin/vasp_std",
)
_SHELL: Final = b"/usr/bin/bash"
_EXACT: Final = {
    group: Coverage(quality="exact") for group in ("cpu", "memory", "io", "executables")
}
_EXACT_GPU: Final = _EXACT | {"gpu": Coverage(quality="exact")}


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated."""

    nodes: int
    #: Jobs at a time on each node.
    jobs: int
    #: Seconds between two samples, and two batches, of a node.
    every: float
    #: Seconds.
    duration: float
    seed: int = 1
    #: Share of the batches after which an agent restarts.
    restarts: float = 0.002
    #: Share of the batches in which a storm of short jobs is.
    storms: float = 0.005
    storm_size: int = 30
    #: Jobs on many nodes, and how many nodes each has.
    large_jobs: int = 4
    large_nodes: int = 64
    #: Share of the nodes that cannot reach the server for some time.
    outages: float = 0.02
    #: Bytes of each spool.
    spool_limit: int = 16 * 2**20


class Written(msgspec.Struct, kw_only=True):
    """What the agent of a node has written of one job."""

    node: str
    job_id: int
    birth: int
    samples: int = 0
    cpu_time: int = 0
    executions: int = 0
    final: bool = False


class WrittenSpool(msgspec.Struct, kw_only=True):
    """The batches of a node: numbers ``first`` to ``last``, without those that the spool counts as
    lost."""

    node: str
    spool: str
    last: int
    first: int = 1
    dropped: int = 0
    refused: int = 0
    pending: int = 0


def node_name(index: int) -> str:
    return f"sim{index:05d}"


class _Job:
    """A job on one node, with counters that only grow."""

    def __init__(self, written: Written, numbers: random.Random, *, gpus: int) -> None:
        self.written = written
        self.cores = numbers.uniform(0.5, 4.0)
        self.memory = numbers.randrange(2**28, 2**34)
        self.program = numbers.choice(_PROGRAMS)
        self.gpus = gpus
        self.account = f"project{numbers.randrange(40):02d}"
        self.user = f"user{numbers.randrange(300):03d}"
        self.end = 0.0
        self.last = written.birth
        self.sent = False
        #: Of the present epoch of the agent.
        self.epoch_cpu = 0
        self.epoch_executions = 0


class Node:
    """One node with its agent."""

    def __init__(self, index: int, load: Load, directory: Path) -> None:
        self.index = index
        self.name = node_name(index)
        self._load = load
        self._directory = directory / self.name
        self._random = random.Random(f"{load.seed} {index}")
        self._boot_id = f"{self._random.getrandbits(128):032x}"
        self._gpus = _GPUS if index % _GPU_NODES == 0 else 0
        # Most clocks are right; some are minutes off.
        spread = 120.0 if self._random.random() < 0.01 else 0.05
        self._skew = int(self._random.gauss(0.0, spread) * SECOND)
        self._epoch = 0
        self._count = 0
        self.spool = self._open()
        self._first = self.spool.next_sequence
        self._slots: list[_Job] = []
        self.lost_pending = 0

    def _open(self) -> Spool:
        # One disk holds what thousands have: nothing is forced to it.
        return Spool(self._directory, self._load.spool_limit, sync=False)

    def start(self, now: int, large: Iterable[int]) -> None:
        """Fill the slots; ``large`` are the numbers of the jobs on many nodes that run here."""
        self._slots = [self._new_job(now, first=True) for _ in range(self._load.jobs)]
        for number in large:
            job = self._job(FIRST_LARGE_ID + number, now, gpus=0)
            job.user, job.account = f"user{number % 300:03d}", f"project{number % 40:02d}"
            job.end = float("inf")
            self._slots.append(job)

    def _job(self, job_id: int, now: int, *, gpus: int) -> _Job:
        written = Written(node=self.name, job_id=job_id, birth=now + self._skew)
        return _Job(written, self._random, gpus=gpus)

    def _new_job(self, now: int, *, first: bool = False) -> _Job:
        self._count += 1
        job_id = _FIRST_ID + self.index * _IDS_OF_NODE + self._count % _IDS_OF_NODE
        gpus = 1 if self._gpus and self._random.random() < 0.5 else 0
        job = self._job(job_id, now, gpus=gpus)
        # Most jobs are short, and most of the time is that of long ones.
        seconds = self._random.lognormvariate(5.5, 1.4) * (2 if first else 1)
        job.end = now / SECOND + max(seconds, self._load.every)
        return job

    def maybe_restart(self) -> bool:
        """Restart the agent now and then; nothing may use the spool meanwhile."""
        if self._random.random() >= self._load.restarts:
            return False
        self.spool.close()
        self.reopen()
        return True

    def reopen(self) -> None:
        """Start the agent again on its closed spool."""
        before = self.spool.uuid
        self.spool = self._open()
        if self.spool.uuid != before:
            # Its state was lost: a new numbering, which continues after the pending batches.
            self._first = self.spool.next_sequence
        self._epoch += 1
        for job in self._slots:
            job.epoch_cpu = job.epoch_executions = 0

    def step_clock(self, seconds: float) -> None:
        """Let the clock of the node jump."""
        self._skew += int(seconds * SECOND)

    def tick(self, now: int) -> list[Written]:
        """Write a batch; returns what was written of the jobs that ended."""
        batch = Batch(
            cluster=CLUSTER,
            node=self.name,
            spool="",
            sequence=0,
            written=now + self._skew,
            monotonic=now,
            agent=__version__,
        )
        ended: list[Written] = []
        for place, job in enumerate(self._slots):
            final = job.end <= now / SECOND
            self._add(batch, job, now, final=final)
            if final:
                ended.append(job.written)
                self._slots[place] = self._new_job(now)
        if self._random.random() < self._load.storms:
            for _ in range(self._load.storm_size):
                job = self._new_job(now - int(self._load.every / 2) * SECOND)
                self._add(batch, job, now, final=True)
                ended.append(job.written)
        if not self.spool.put(batch):
            # Counted by the spool: the batch exists nowhere.
            self.lost_pending += 1
        return ended

    def _add(self, batch: Batch, job: _Job, now: int, *, final: bool) -> None:
        clock = now + self._skew
        spent = max(int((clock - job.last) * job.cores), 1)
        job.last = clock
        written = job.written
        executions = self._random.randrange(3) if job.sent else 2
        written.cpu_time += spent
        written.executions += executions
        written.samples += 1
        written.final = final
        job.epoch_cpu += spent
        job.epoch_executions += executions
        sighting = Sighting(CLUSTER, written.job_id, self.name, self._boot_id, written.birth)
        if not job.sent:
            batch.jobs.append(self._info(job))
            job.sent = True
        batch.parts.append(
            JobPart(
                sighting=sighting,
                epoch=f"{self._boot_id} {self._epoch}",
                series=self._series(job, clock),
                totals=JobTotals(
                    time=clock,
                    cpu_source="cgroup v2",
                    cpu_time=written.cpu_time,
                    memory_used_peak=job.memory,
                    memory_peak=job.memory + 2**26,
                    executions=written.executions,
                ),
                executables=list(_executables(job, clock)),
                gpus=list(_gpus(job, clock)),
                coverage=_EXACT_GPU if job.gpus else _EXACT,
                final=final,
            )
        )

    def _info(self, job: _Job) -> JobInfo:
        return JobInfo(
            cluster=CLUSTER,
            job_id=job.written.job_id,
            source="prolog",
            name=f"run-{job.written.job_id % 50}",
            user=job.user,
            account=job.account,
            partition="gpu" if job.gpus else "normal",
            cpus=4,
        )

    def _series(self, job: _Job, clock: int) -> Series:
        used = job.written.cpu_time
        moved = used // 7
        values = {
            "cpu.time": used,
            "cpu.user": used * 9 // 10,
            "cpu.system": used - used * 9 // 10,
            "memory.used": job.memory - self._random.randrange(2**24),
            "memory.current": job.memory + 2**25,
            "memory.anonymous": job.memory * 9 // 10,
            "memory.file": 2**25,
            "memory.shared": 2**20,
            "io.read_characters": moved,
            "io.written_characters": moved // 3,
            "io.read_bytes": moved // 2,
            "io.written_bytes": moved // 4,
            "io.read_calls": moved // 65536,
            "io.write_calls": moved // 200_000,
            "tasks.processes": 4,
            "tasks.threads": 12,
            "files.open": 30,
        }
        if job.gpus:
            values |= {"gpu.held": 1, "gpu.idle": 0, "gpu.0.utilization": 80, "gpu.0.energy": used}
        columns = {name: array("q", (value,)) for name, value in values.items()}
        return Series(array("q", (clock,)), columns)

    def running(self) -> Iterator[Written]:
        for job in self._slots:
            yield job.written

    def written_spool(self) -> WrittenSpool:
        """What was written into the spool."""
        spool = self.spool
        return WrittenSpool(
            node=self.name,
            spool=spool.uuid,
            first=self._first,
            last=spool.next_sequence - 1,
            dropped=spool.dropped,
            refused=spool.refused,
            pending=len(spool),
        )

    def close(self) -> WrittenSpool:
        """Close the spool; what was written into it."""
        result = self.written_spool()
        self.spool.close()
        return result


def _executables(job: _Job, clock: int) -> Iterator[ExecutableUse]:
    """The program and its shell, whose CPU time adds up to that of the job in this epoch."""
    shell = job.epoch_cpu // 100
    yield ExecutableUse(
        path=job.program,
        executions=job.epoch_executions,
        processes=job.epoch_executions,
        cpu_time=job.epoch_cpu - shell,
        peak_memory=job.memory // 2,
        first_seen=job.written.birth,
        last_seen=clock,
    )
    yield ExecutableUse(
        path=_SHELL, processes=1, cpu_time=shell, first_seen=job.written.birth, last_seen=clock
    )


def _gpus(job: _Job, clock: int) -> Iterator[GpuUse]:
    held = clock - job.written.birth
    for key in range(job.gpus):
        yield GpuUse(
            key=str(key),
            name="NVIDIA H200",
            held_time=held,
            used=True,
            active_time=held * 8 // 10,
            memory_total=141 * 2**30,
            memory_peak=60 * 2**30,
            first_seen=job.written.birth,
            last_seen=clock,
        )


def large_jobs_of(load: Load) -> dict[int, list[int]]:
    """The numbers of the jobs on many nodes, by the index of the node."""
    found: dict[int, list[int]] = {}
    width = min(load.large_nodes, load.nodes)
    for number in range(load.large_jobs):
        first = number * max(load.nodes // max(load.large_jobs, 1), 1)
        for step in range(width):
            found.setdefault((first + step) % load.nodes, []).append(number)
    return found
