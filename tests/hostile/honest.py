"""Honest data under attack, with a planted truth that is compared with the store at the end.

:class:`HonestCluster` is a cluster of agents that know what they have sent. :class:`HonestJobs` are
real jobs on the node of a hostile user: programs whose number is known, in a cgroup whose CPU time
the kernel counts.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from jobsight.errors import JobsightError
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
)
from jobsight.store.store import Store
from jobsight.transport.delivery import Delivery, DeliveryThread, HttpTarget
from jobsight.transport.spool import Spool
from tests.agent.slurm_trees import SlurmJob, SlurmNode, built

EXACT = Coverage(quality="exact")
#: Mutated batches of hostile nodes claim small job ids; nothing tells two nodes of one cluster
#: apart, so the honest jobs have others.
FIRST_JOB = 5_000
_UNOBSERVED = re.compile(r"the processes of (?:a short step|\d+ short steps) \(([^)]+)\)")


@dataclass
class Truth:
    """What is known of one run."""

    job_id: int
    cpu_time: int = 0
    samples: int = 0
    executions: dict[bytes, int] = field(default_factory=dict)
    #: Those of each step of a real job, by the name of the step.
    steps: dict[str, dict[bytes, int]] = field(default_factory=dict)
    ended: bool = False


class HonestAgent:
    """One node of the honest cluster: a spool, a delivery, and one job after the other."""

    def __init__(
        self, cluster: str, number: int, directory: Path, target: HttpTarget, seed: int
    ) -> None:
        self.cluster = cluster
        self.node = f"n{number}"
        self.truths: list[Truth] = []
        self.spool = Spool(directory / self.node, sync=False)
        self._random = Random(f"{seed} {self.node}")
        self._first = FIRST_JOB + number * 100_000
        self._delivery = Delivery(self.spool, target)
        self._thread = DeliveryThread(self._delivery, max_delay=2)
        self._thread.start()
        self._boot = str(uuid.UUID(int=self._random.getrandbits(128)))
        self._start = 0
        self._rounds = 0

    def work(self) -> None:
        """Send one batch: the next ten samples of the job, or its end."""
        if not self.truths or self.truths[-1].ended:
            self.truths.append(Truth(self._first + len(self.truths)))
            self._start, self._rounds = time.time_ns(), self._random.randint(5, 30)
        truth = self.truths[-1]
        self._rounds -= 1
        self._send(truth, final=self._rounds == 0)

    def finish(self) -> None:
        """End the job that runs."""
        if self.truths and not self.truths[-1].ended:
            self._send(self.truths[-1], final=True)

    def _send(self, truth: Truth, *, final: bool) -> None:
        now = time.time_ns()
        values = []
        for _ in range(10):
            truth.cpu_time += self._random.randrange(SECOND)
            values.append(truth.cpu_time)
        truth.samples += 10
        for path in (b"/usr/bin/python3.11", b"/opt/gromacs/2024.1/bin/gmx"):
            truth.executions[path] = truth.executions.get(path, 0) + self._random.randrange(50)
        truth.ended = final
        uses = [
            ExecutableUse(path=path, executions=count, cpu_time=truth.cpu_time // 2)
            for path, count in truth.executions.items()
        ]
        part = JobPart(
            sighting=Sighting(self.cluster, truth.job_id, self.node, self._boot, self._start),
            epoch="one",
            series=Series(
                array("q", [now - (10 - row) * 1_000_000 for row in range(10)]),
                {"cpu.time": array("q", values)},
            ),
            totals=JobTotals(
                time=now,
                cpu_source="cgroup v2",
                cpu_time=truth.cpu_time,
                executions=sum(truth.executions.values()),
            ),
            executables=uses,
            coverage={"cpu": EXACT, "executables": EXACT},
            final=final,
        )
        info = JobInfo(
            cluster=self.cluster,
            job_id=truth.job_id,
            source="prolog",
            name="honest",
            user="alice",
            account="physics",
            nodes=(self.node,),
            cpus=4,
            start=self._start,
            end=now if final else None,
            state="COMPLETED" if final else "RUNNING",
        )
        batch = Batch(
            cluster=self.cluster,
            node=self.node,
            spool="",
            sequence=0,
            written=now,
            monotonic=time.monotonic_ns(),
            agent="honest",
            jobs=[info],
            parts=[part],
        )
        if not self.spool.put(batch):
            raise AssertionError(f"the spool of {self.node} dropped a batch: {self.spool.problem}")
        self._thread.notify()

    def notify(self) -> None:
        self._thread.notify()

    @property
    def refusal(self) -> str:
        return self._delivery.refusal

    def close(self) -> None:
        self._thread.end()
        self.spool.close()


class HonestCluster:
    """The agents of one cluster."""

    def __init__(
        self, cluster: str, nodes: int, directory: Path, target: HttpTarget, seed: int
    ) -> None:
        self.cluster = cluster
        self.agents = [
            HonestAgent(cluster, number, directory, target, seed) for number in range(nodes)
        ]

    def work(self) -> None:
        for agent in self.agents:
            agent.work()

    def finish(self) -> None:
        for agent in self.agents:
            agent.finish()

    def pending(self) -> int:
        """Batches that the server has not stored yet."""
        for agent in self.agents:
            agent.notify()
        return sum(len(agent.spool) for agent in self.agents)

    def truths(self) -> Iterator[Truth]:
        for agent in self.agents:
            yield from agent.truths

    def refusals(self) -> list[str]:
        return [
            f"{agent.node}: {agent.spool.refused} batches refused, {agent.spool.dropped} dropped: "
            f"{agent.refusal}"
            for agent in self.agents
            if agent.spool.refused or agent.spool.dropped
        ]

    def close(self) -> None:
        for agent in self.agents:
            agent.close()


class _Step(NamedTuple):
    """A step of a real job, and what it executes."""

    command: tuple[str, ...]
    executions: dict[bytes, int]

    @classmethod
    def of(cls, program: str, argument: str, times: int, *, parallel: int) -> _Step:
        storm = str(built("storm"))
        command = (storm, str(times), str(parallel), program, argument)
        return cls(command, {os.fsencode(storm): 1, os.fsencode(program): times})


class HonestJobs:
    """Real jobs on a node, one after the other; :meth:`advance` never waits."""

    def __init__(self, node: SlurmNode, seed: int) -> None:
        self._node = node
        self._random = Random(seed)
        self._job: SlurmJob | None = None
        self._steps: list[_Step] = []
        self._number = 0
        self.truths: list[Truth] = []
        # Of a node's first job the first moments may pass unseen, because the agent listens to the
        # kernel only while there are jobs. This one stays.
        node.job(FIRST_JOB - 1, uid=7777).step("sleep", "1000000")

    def advance(self, stored: dict[int, int]) -> None:
        """Start the next step or job; ``stored`` is the CPU time that the server has of each."""
        if self._job is None:
            self._begin()
        assert self._job is not None
        if self._job.daemons and self._job.daemons[-1].poll() is None:
            return
        if self._steps:
            step = self._steps.pop()
            self._number += 1
            self.truths[-1].steps[str(self._number)] = step.executions
            self._job.step(*step.command, step=str(self._number))
            return
        # The counter rests; the job ends when the server has this figure.
        truth = self.truths[-1]
        truth.cpu_time = self._job.cpu_time()
        if stored.get(truth.job_id, 0) >= truth.cpu_time:
            truth.ended = True
            self._job.end()
            self._job = None

    def _begin(self) -> None:
        truth = Truth(FIRST_JOB + len(self.truths))
        self.truths.append(truth)
        self._job = self._node.job(truth.job_id, uid=7777)
        processor, wall = self._random.randint(50, 300), self._random.randint(20, 100)
        self._steps = [
            _Step.of(str(built("processor")), "3000", processor, parallel=2),
            _Step.of("/usr/bin/sleep", "0.02", wall, parallel=4),
        ]
        planted: Counter[bytes] = Counter()
        for step in self._steps:
            planted.update(step.executions)
        truth.executions = dict(planted)

    @property
    def idle(self) -> bool:
        return self._job is None


class Differences(NamedTuple):
    """In what a stored run differs from the truth."""

    faults: list[str]
    #: What was not observed, where the coverage says so.
    incomplete: list[str]


def differences(store: Store, cluster: str, truth: Truth) -> Differences:
    name = f"{cluster}:{truth.job_id}"
    try:
        stored = store.find(RunReference(truth.job_id, cluster))
    except JobsightError as error:
        return Differences([f"{name} is not stored: {error}"], [])
    found = Differences([], [])
    if stored.cpu_time != truth.cpu_time:
        found.faults.append(f"{name}: CPU time {stored.cpu_time}, in truth {truth.cpu_time}")
    nodes = store.nodes(stored.id)
    if not all(node.final for node in nodes):
        found.faults.append(f"{name}: has no end")
    if truth.samples:
        samples = sum(len(series.times) for series in store.series(stored.id))
        if samples != truth.samples:
            found.faults.append(f"{name}: {samples} samples, in truth {truth.samples}")
    executions: Counter[bytes] = Counter()
    for row in store.executables(stored.id):
        if row.use.path_known and row.use.executions:
            executions[row.use.path] += row.use.executions
    planted = Counter(truth.executions)
    if +executions == +planted:
        return found
    coverages = [node.coverage.get("executables") for node in nodes]
    sentence = f"{name}: executions {dict(executions)}, in truth {truth.executions}: {coverages}"
    # A short step can pass unseen on a busy machine, and the coverage then names it. Never may the
    # figures be called exact then, lack anything else, or have another program or more executions
    # than there were.
    named = [_named_steps(one) for one in coverages]
    allowed: Counter[bytes] = Counter()
    for step in set().union(*map(set, named)):
        allowed.update(truth.steps.get(step, {}))
    honest = bool(named) and all(named) and executions <= planted
    is_allowed = honest and planted - executions <= allowed
    (found.incomplete if is_allowed else found.faults).append(sentence)
    return found


def _named_steps(coverage: Coverage | None) -> list[str]:
    """The steps that a coverage says were not observed."""
    if coverage is None or coverage.quality != "estimate":
        return []
    found = _UNOBSERVED.search(coverage.reason)
    return found[1].split(", ") if found else []
