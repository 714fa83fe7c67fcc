"""The loop over all jobs: what was told in the middle of a round is not forgotten."""

from __future__ import annotations

from typing import Any

from jobsight.agent.collector import Collector
from jobsight.agent.processes.netlink import ExitRecord, ProcessEvent
from tests.agent.lives import Kernel


class Source:
    """A socket with what waits in it."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def fileno(self) -> int:
        return 0

    def drain(self) -> list[ProcessEvent] | list[ExitRecord]:
        found, self.waiting = self.waiting, []
        return found


class Sources:
    overruns = 0

    def __init__(self) -> None:
        self.connector = Source()
        self.taskstats = Source()

    def close(self) -> None:
        pass


class Job:
    """A job in whose round another process ends."""

    def __init__(self, collector: Collector, sources: Sources, kernel: Kernel) -> None:
        self.probe = self
        self.final_reads = 0
        self.next_sample = 0
        self._collector, self._sources, self._kernel = collector, sources, kernel

    def read_final_counters(self) -> None:
        self.final_reads += 1

    def sample(self, now: int, monotonic: int) -> None:
        self.final_reads = 0
        self._sources.connector.waiting = [self._kernel.exit(7)]
        self._collector.tracker.catch_up()


def test_an_exit_during_a_round_lets_the_jobs_read_their_final_counters() -> None:
    collector = Collector(None, cluster="c", node="n")
    sources: Any = Sources()
    collector.events = sources
    job: Any = Job(collector, sources, Kernel())
    collector.jobs = [job]
    collector.sample(job)
    assert job.final_reads == 1
    # Nothing was told: nobody is queried.
    job.sample = lambda now, monotonic: setattr(job, "final_reads", 0)
    collector.sample(job)
    assert job.final_reads == 0
    collector.events = None
    collector.close()


def test_events_of_untracked_processes_are_forgotten_with_the_sockets() -> None:
    """While the sockets are closed, PIDs are reused unnoticed."""
    collector = Collector(None, cluster="c", node="n")
    kernel = Kernel()
    collector.tracker.apply([kernel.fork(1, 7)], [])
    assert collector.tracker.untracked.fork_of(7) is not None
    sources: Any = Sources()
    collector.events = sources
    collector._poll.register(sources.connector.fileno())
    collector.close_events()
    assert collector.tracker.untracked.fork_of(7) is None
    collector.close()
