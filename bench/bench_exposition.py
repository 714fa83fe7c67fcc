"""Text for Prometheus: one sample of the series of many jobs, alongside prometheus_client."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from bench.figures import Figures
from jobsight.agent.exporter.exporter import Exporter
from jobsight.agent.job import JobView, Sampler
from jobsight.agent.samplers.cpu import CoreTimes
from jobsight.model import SECOND
from tests.agent.samplers.jobs import Job

JOBS = 64
CORES = 8
#: The best of so many: other work of the machine only ever adds.
TURNS = 20
GOAL = 1.0


class Still(CoreTimes):
    """Says what it was told: here only the text is measured."""

    def columns(self, view: JobView) -> dict[str, int]:
        self._times = {core: 123_456_789_012 + core for core in range(CORES)}
        self.in_use = 3.25
        return {f"cores.{core}.time": time for core, time in self._times.items()}


_NAMES = (
    *("cpu.time", "cpu.user", "cpu.system"),
    *("memory.used", "memory.current", "memory.anonymous"),
    *("memory.file", "memory.shared", "memory.swap"),
    *("io.read_characters", "io.written_characters", "io.read_bytes", "io.written_bytes"),
    *("io.read_calls", "io.write_calls", "tasks.processes", "tasks.threads"),
)
ROW = {name: 123_456_789_012 + place for place, name in enumerate(_NAMES)}


def ours(job: Job) -> tuple[Callable[[], bytes], int]:
    """One round of all jobs and the text of a scrape, and how many samples that is."""
    exporter = Exporter(clock=lambda: job.clock.now / SECOND)
    jobs: list[tuple[JobView, Sampler]] = []
    for number in range(JOBS):
        view = job.another(number + 1)
        there = Still(node=job.node)
        exporter._configured.append((view, there))
        jobs.append((view, exporter.plans([])[-1].make(view)))
        there.columns(view)

    def work() -> bytes:
        for view, sampler in jobs:
            view.row = {**ROW, **{f"cores.{core}.time": core + 7 for core in range(CORES)}}
            sampler.columns(view)
        return exporter.text()

    work()
    return work, exporter.series


def theirs(samples: int) -> Callable[[], bytes]:
    """As many samples in as many families; setting their values is not even counted."""
    registry = CollectorRegistry()
    families = samples // JOBS
    for family in range(families):
        labels = ("cluster", "node", "slurm_job")
        gauge = Gauge(
            f"jobsight_job_figure_{family}", "One of the figures", labels, registry=registry
        )
        for job in range(JOBS):
            gauge.labels("c", "n1", str(job)).set(123_456_789.012 + family)
    return lambda: generate_latest(registry)


def best(work: Callable[[], bytes]) -> float:
    durations = []
    for _ in range(TURNS):
        begun = time.process_time()
        work()
        durations.append(time.process_time() - begun)
    return min(durations)


def main() -> None:
    figures = Figures()
    with TemporaryDirectory() as folder:
        job = Job(Path(folder))
        work, samples = ours(job)
        mine = best(work) / samples * 1e6
        peer = best(theirs(samples)) / (samples // JOBS * JOBS) * 1e6
        figures.row(
            f"text of /metrics, {JOBS} jobs, {samples} samples, each sampled again",
            f"prometheus_client, text alone: {peer:.2f} us a sample",
            f"{mine:.2f} us a sample, {mine / peer:.2f} of it",
            f"{GOAL:.0f} us a sample",
            reached=mine <= GOAL,
        )
    figures.end()


if __name__ == "__main__":
    main()
