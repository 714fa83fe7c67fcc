"""Measures one job of Slurm: its steps come and go, and slurmstepd's share is kept apart."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from jobsight.agent.probe import CgroupProbe
from jobsight.agent.slurm_cgroup import SlurmCounters
from jobsight.agent.tracker import ProcessTracker
from jobsight.agent.usage import JobUsage
from jobsight.model import JobTotals, StepUse


class SlurmProbe(CgroupProbe):
    """A job whose cgroups Slurm made."""

    def __init__(
        self,
        counters: SlurmCounters,
        tracker: ProcessTracker,
        *,
        events: bool,
        reason: str = "",
        proc: bytes = b"/proc",
    ) -> None:
        super().__init__(counters, tracker, events=events, reason=reason, proc=proc)
        self.counters = counters
        #: Slurm's own processes. What they fork is the user's, from the fork on.
        self.daemon_usage = JobUsage(children=self.usage)

    def refresh(self) -> None:
        """Folders have come or gone: look for steps, and for processes in them."""
        # A step that has just gone is still in the job's own counters; so are processes of a step
        # that has just come, of whom nobody has told yet.
        self.read_counters(all_known=False)
        self.counters.refresh()
        self._adopt_strangers()

    def _listed(self) -> Iterable[tuple[str, list[int]]]:
        now = time.monotonic_ns()
        daemons, processes = self.counters.daemons(), self.counters.processes_by_step()
        self.tracker.catch_up()
        for step, pid in daemons:
            if pid not in self.tracker.processes:
                self._adopt(pid, step, self.daemon_usage, now)
        return processes

    def steps(self) -> list[StepUse]:
        found = [msgspec.structs.replace(step) for step in self.counters.steps()]
        for step in found:
            # A step that went before its last reading is completed from its exit records.
            booked = self.usage.step_cpu[step.step]
            if step.ended:
                step.cpu_time = max(step.cpu_time or 0, booked)
        return found

    def totals(self) -> JobTotals:
        totals = super().totals()
        totals.cpu_overhead = self.counters.overhead
        return totals

    def close(self) -> None:
        for process in list(self.daemon_usage.members.values()):
            self.tracker.lose(process.tgid)
        super().close()
