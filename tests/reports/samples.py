"""Runs for the tests of reports, without a store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jobsight.model import (
    SECOND,
    Coverage,
    ExecutableUse,
    GpuUse,
    JobInfo,
    JobTotals,
    StepUse,
)
from jobsight.store.properties import JobKey
from jobsight.store.read.queries import ExecutableSums, SoftwareUse, StoredExecutable, StoredRun
from jobsight.store.write.gpus import GpuSums, sum_gpus

START = 1_794_717_192 * SECOND
GIB = 2**30


def job(**changes: Any) -> JobInfo:
    fields: dict[str, Any] = {
        "cluster": "alpha",
        "job_id": 12,
        "source": "jobsight run",
        "name": "multiply",
        "user": "alice",
        "account": "physics",
        "partition": "short",
        "command": "python3 multiply.py --size 4000",
        "nodes": ("n1",),
        "cpus": 4,
        "memory": 4 * GIB,
        "time_limit": 3600 * SECOND,
        "start": START,
        "end": START + 600 * SECOND,
        "state": "COMPLETED",
        "exit_code": 0,
    }
    return JobInfo(**(fields | changes))


def totals(**changes: Any) -> JobTotals:
    fields: dict[str, Any] = {
        "time": START + 600 * SECOND,
        "cpu_source": "cgroup v2",
        "cpu_time": 1800 * SECOND,
        "cpu_user": 1700 * SECOND,
        "cpu_system": 100 * SECOND,
        "memory_used_peak": 3 * GIB,
        "memory_peak": 3 * GIB + GIB // 2,
        "read_characters": 5 * GIB,
        "written_characters": 20 * 2**20,
        "read_bytes": GIB,
        "written_bytes": 10 * 2**20,
    }
    return JobTotals(**(fields | changes))


EXACT = Coverage(quality="exact")


def node(name: str = "n1", **changes: Any) -> SimpleNamespace:
    fields: dict[str, Any] = {
        "node": name,
        "totals": totals(),
        "coverage": {"cpu": EXACT, "memory": EXACT, "io": EXACT, "executables": EXACT},
        "first_sample": START,
        "last_sample": START + 600 * SECOND,
        "final": True,
        "clock_skew": 0,
    }
    return SimpleNamespace(**(fields | changes))


def use(path: bytes, seconds: float, executions: int = 1, **changes: Any) -> ExecutableUse:
    return ExecutableUse(
        path=path,
        executions=executions,
        processes=executions,
        cpu_time=round(seconds * SECOND),
        peak_memory=changes.pop("peak_memory", 100 * 2**20),
        **changes,
    )


def step(name: str, seconds: float | None = None, **changes: Any) -> StepUse:
    fields: dict[str, Any] = {
        "step": name,
        "cpu_time": None if seconds is None else round(seconds * SECOND),
        "first_seen": START,
        "last_seen": START + 60 * SECOND,
        "ended": True,
    }
    return StepUse(**(fields | changes))


USES = [("n1", use(b"/usr/bin/python3.11", 1790)), ("n1", use(b"/usr/bin/true", 4, 300))]


class FakeStore:
    """Answers what a report asks of a store."""

    def __init__(
        self,
        nodes: list[Any],
        uses: list[tuple[str, ExecutableUse]],
        steps: list[tuple[str, StepUse]],
        gpus: list[tuple[str, GpuUse]],
        software: list[SoftwareUse] | None = None,
        samples: int = 0,
    ) -> None:
        self._software = software or []
        self._samples = samples
        self._nodes = nodes
        self._gpus = [SimpleNamespace(node=name, use=use) for name, use in gpus]
        self._steps = [SimpleNamespace(node=name, use=use) for name, use in steps]
        self._uses = [StoredExecutable(name, use) for name, use in uses]

    def nodes(self, run_id: int) -> list[Any]:
        return self._nodes

    def largest_executables(self, run_id: int) -> ExecutableSums:
        return ExecutableSums.of(self._uses)

    def steps(self, run_id: int) -> list[Any]:
        return self._steps

    def gpus(self, run_id: int) -> list[Any]:
        return self._gpus

    def findings(self, run_id: int) -> list[Any]:
        return []

    def software_use_of(self, run_id: int, limit: int) -> list[Any]:
        return self._software

    def count_samples(self, run_id: int) -> int:
        return self._samples

    def figures_of(self, run_id: int) -> None:
        return None

    def properties(self, key: JobKey) -> dict[str, Any]:
        return {}

    def details(self, run_id: int, kind: type) -> None:
        return None


def stored(info: JobInfo) -> StoredRun:
    return StoredRun(
        id=1,
        info=info,
        provisional=False,
        cpu_time=None,
        memory_used_peak=None,
        memory_peak=None,
        node_count=1,
        first_seen=None,
        last_seen=None,
        start=info.start if info.start is not None else START,
        gpus=GpuSums(),
    )


def report(
    info: JobInfo | None = None,
    nodes: list[Any] | None = None,
    uses: list[tuple[str, ExecutableUse]] | None = None,
    now: int = START + 1000 * SECOND,
    steps: list[tuple[str, StepUse]] | None = None,
    gpus: list[tuple[str, GpuUse]] | None = None,
) -> Any:
    from jobsight.reports.build import build_report

    store: Any = FakeStore(
        [node()] if nodes is None else nodes,
        USES if uses is None else uses,
        steps or [],
        gpus or [],
    )
    run = stored(info or job())
    run.gpus = sum_gpus(gpus or [])
    return build_report(store, run, clock=lambda: now)
