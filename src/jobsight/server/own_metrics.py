"""The server's own families at /metrics: process, ingest, workers, sinks, agents, disk and
certificate.

:meth:`OwnMetrics.text` renders them. None has a label for a job or a user, and agents are counted
by cluster, so that the number of series does not grow with the site.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import jobsight
from jobsight.mail.queue import MailCounts
from jobsight.model import SECOND
from jobsight.prometheus.exposition import document, line
from jobsight.prometheus.names import SERVER
from jobsight.scheduler.records import NodeInfo
from jobsight.scheduler.sinks.feeder import read_reasons
from jobsight.server.ingest import IngestCounts
from jobsight.store.maintenance.inventory import disk_free, list_agents
from jobsight.store.snapshot import read_snapshot
from jobsight.store.store import Store
from jobsight.transport.tls import certificate_end
from jobsight.util.workers import WorkerState, worker_states

#: An agent that measures a job sends at least every ten seconds; a node that Slurm has given jobs
#: and that has sent nothing for so long is silent.
SILENT_AFTER: Final = 15 * 60 * SECOND
#: An agent counts as one of the site for some days after its last batch.
_KNOWN_FOR: Final = 7 * 86400 * SECOND
#: How long figures are kept that are read from the store, however often /metrics is scraped.
_KEPT: Final = 15 * SECOND
_STATES_WITH_JOBS: Final = frozenset({"ALLOCATED", "MIXED"})

Values = list[tuple[Mapping[str, str], float]]


class OwnMetrics:
    """The families of one server."""

    def __init__(
        self,
        store: Store,
        ingest: IngestCounts,
        *,
        certificate: Path | None = None,
        mails: MailCounts | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """``mails`` are counted by a server that sends mails."""
        self._store = store
        self._ingest = ingest
        self._mails = mails
        self._certificate = certificate
        self._clock = clock
        self._started = clock()
        self._lock = threading.Lock()
        self._agents: tuple[int, dict[str, Values]] | None = None

    def text(self) -> str:
        """The families in Prometheus's text format."""
        families: dict[str, Values] = {
            **self._process(),
            **self._batches(),
            **self._mail_values(),
            **worker_values(worker_states(), self._clock()),
            **self._agent_values(),
            "sink_healthy": [
                ({"sink": sink}, int(not reason))
                for sink, reason in read_reasons(self._store).items()
            ],
        }
        if not self._store.database.postgresql:
            families["disk_free_bytes"] = [({}, disk_free(self._store.database))]
        if self._certificate is not None:
            end = certificate_end(self._certificate)
            if end is not None:
                families["certificate_end_time_seconds"] = [({}, end)]
        return document(
            SERVER.values(),
            {
                f"jobsight_server_{name}": [
                    line(f"jobsight_server_{name}", labels, value) for labels, value in values
                ]
                for name, values in families.items()
            },
        )

    def _process(self) -> dict[str, Values]:
        times = os.times()
        return {
            "info": [({"version": jobsight.__version__}, 1)],
            "start_time_seconds": [({}, self._started / SECOND)],
            "cpu_seconds_total": [({}, times.user + times.system)],
            "resident_memory_bytes": [({}, resident_memory())],
        }

    def _batches(self) -> dict[str, Values]:
        counts = self._ingest
        last = self._started if counts.stored is None else counts.stored
        return {
            "batches_total": [({"status": name}, n) for name, n in counts.batches.items()],
            "values_left_out_total": [({}, counts.left_out)],
            "batch_age_seconds": [({}, max(0, self._clock() - last) / SECOND)],
        }

    def _mail_values(self) -> dict[str, Values]:
        mails = self._mails
        if mails is None:
            return {}
        return {
            "mails_total": [
                ({"status": "sent"}, mails.sent),
                ({"status": "rejected"}, mails.rejected),
            ],
            "mail_queue": [({}, mails.queued)],
        }

    def _agent_values(self) -> dict[str, Values]:
        with self._lock:
            now = self._clock()
            if self._agents is None or not 0 <= now - self._agents[0] < _KEPT:
                self._agents = now, count_agents(self._store, now)
            return self._agents[1]


def worker_values(states: Iterable[WorkerState], now: int) -> dict[str, Values]:
    """The families of the workers."""
    families: dict[str, Values] = {}
    for state in states:
        # Before the first success: since the start, so that a worker that never succeeds ages.
        since = state.started if state.succeeded is None else state.succeeded
        labels = {"worker": state.name}
        values: dict[str, float | None] = {
            "healthy": int(state.healthy),
            "success_age_seconds": None if since is None else max(0, now - since) / SECOND,
            "calls_total": state.calls,
            "failures_total": state.failures,
        }
        for name, value in values.items():
            if value is not None:
                families.setdefault(f"worker_{name}", []).append((labels, value))
    return families


def count_agents(store: Store, now: int) -> dict[str, Values]:
    """Agents by cluster: all, those that are silent though their node has jobs, and the largest
    difference of a clock.

    A node counts as silent only if Slurm reports jobs on it, because an agent without jobs sends
    nothing. Without a scrape of Slurm this is not known, and there is no series.
    """
    heard: dict[str, dict[str, int]] = {}
    skews: dict[str, float] = {}
    for agent in list_agents(store.database):
        heard.setdefault(agent.cluster, {})[agent.node] = agent.received
        if now - agent.received < _KNOWN_FOR:
            skew = abs(agent.clock_skew) / SECOND
            skews[agent.cluster] = max(skew, skews.get(agent.cluster, 0.0))
    found: dict[str, Values] = {"agents": [], "agents_silent": [], "agents_clock_skew_seconds": []}
    for cluster, nodes in sorted(heard.items()):
        labels = {"cluster": cluster}
        known = sum(now - received < _KNOWN_FOR for received in nodes.values())
        found["agents"].append((labels, known))
        if cluster in skews:
            found["agents_clock_skew_seconds"].append((labels, skews[cluster]))
        reported = read_snapshot(store.database, cluster, "node", NodeInfo)
        if reported:
            silent = sum(
                node.state in _STATES_WITH_JOBS and now - nodes.get(node.name, 0) > SILENT_AFTER
                for node in reported
            )
            found["agents_silent"].append((labels, silent))
    return found


def resident_memory() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
