"""Figures about the agent itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobsight.agent.collector import Collector
    from jobsight.agent.identity import Identity
    from jobsight.agent.sampling import SampledJob


def status_of(
    collector: Collector, jobs: Iterable[SampledJob], identity: Identity | None
) -> dict[str, object]:
    """What ``status`` on the node's socket answers."""
    followed = list(jobs)
    errors: Counter[str] = Counter()
    for job in followed:
        errors.update(job.errors)
    rounds = max(1, collector.rounds)
    spool = collector.spool
    return {
        "cluster": collector.cluster,
        "node": collector.node,
        "epoch": collector.epoch,
        "jobs": len(followed),
        "processes": len(collector.tracker.processes),
        "rounds": collector.rounds,
        "round_cpu_nanoseconds": collector.rounds_cpu // rounds,
        "cpu_nanoseconds": time.process_time_ns(),
        "events": collector.events is not None,
        "events_reason": collector.events_reason,
        "event_overruns": collector.overruns,
        "spool_batches": len(spool) if spool is not None else 0,
        "spool_bytes": spool.size if spool is not None else 0,
        "spool_dropped": spool.dropped if spool is not None else 0,
        "spool_refused": spool.refused if spool is not None else 0,
        "sampler_errors": dict(errors),
        "faults": dict(collector.faults.counts),
        "scheduler_failures": identity.failures if identity is not None else 0,
    }
