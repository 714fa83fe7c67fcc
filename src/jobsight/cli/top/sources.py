"""Where ``jobsight top`` reads: the metrics of this node's agent, a store, or a running server."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote, urlsplit

import msgspec

from jobsight.cli.report import get_from_server
from jobsight.cli.top.readings import Reading
from jobsight.errors import JobsightError
from jobsight.prometheus.names import INFO, OF_METRIC, REQUESTED_CPUS, REQUESTED_MEMORY, START
from jobsight.reports.report import JobReport
from jobsight.transport.http import Peer, request
from jobsight.transport.running_server import RunningServer, read_token
from jobsight.util.units import format_share

if TYPE_CHECKING:
    from jobsight.store.store import Store

#: Jobs that are read: each costs a query or a request.
MAX_JOBS: Final = 200
_TIMEOUT: Final = 10.0
_MAX_REPLY: Final = 64 * 2**20
_SECOND: Final = 10**9
#: Share of the CPU time of a program in the details.
_LEAST_SHARE: Final = 0.001
#: A sample of the exposition format: name, labels, value.
_SAMPLE: Final = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES: Final = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


class Source(Protocol):
    """Reads the running jobs."""

    #: For the title.
    where: str

    def read(self) -> list[Reading]: ...

    def close(self) -> None: ...


# --- the agent of a node --------------------------------------------------------------------------

_CPU: Final = OF_METRIC["cpu.time"].name
_MEMORY: Final = OF_METRIC["memory.used"].name
_READ: Final = OF_METRIC["io.read_bytes"].name
_WRITTEN: Final = OF_METRIC["io.written_bytes"].name
_GPU: Final = OF_METRIC["gpu.*.utilization"].name
_WANTED: Final = {
    *(INFO.name, START.name, REQUESTED_CPUS.name, REQUESTED_MEMORY.name),
    *(_CPU, _MEMORY, _READ, _WRITTEN, _GPU),
}


def parse_metrics(text: str, now: int) -> list[Reading]:
    """The jobs in the metrics of an agent; what is not understood is left out."""
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    infos: dict[tuple[str, str], dict[str, str]] = {}
    for line in text.splitlines():
        name = line.partition("{")[0]
        if name not in _WANTED:
            continue
        match = _SAMPLE.fullmatch(line)
        if match is None:
            continue
        labels = {key: _unescaped(each) for key, each in _LABEL.findall(match["labels"] or "")}
        key = (labels.get("cluster", ""), labels.get("slurm_job", ""))
        try:
            value = float(match["value"])
        except ValueError:
            continue
        values.setdefault(key, {}).setdefault(name, []).append(value)
        if name == INFO.name:
            infos[key] = labels
    return [_reading(key, of_job, infos.get(key, {}), now) for key, of_job in values.items()]


def _unescaped(text: str) -> str:
    return re.sub(r"\\[n\"\\]", lambda match: _ESCAPES[match[0]], text)


def _reading(
    key: tuple[str, str], values: dict[str, list[float]], info: dict[str, str], now: int
) -> Reading:
    def first(name: str, scale: int = 1) -> int | None:
        found = values.get(name)
        return None if not found or found[0] != found[0] else round(found[0] * scale)

    start, gpus = first(START.name, _SECOND), values.get(_GPU, [])
    cluster, job = key
    return Reading(
        key=f"{cluster}:{job}",
        job=job,
        user=info.get("user", ""),
        name=info.get("name", ""),
        as_of=now,
        elapsed=None if start is None else max(now - start, 0),
        cpus=first(REQUESTED_CPUS.name),
        memory_requested=first(REQUESTED_MEMORY.name),
        cpu_time=first(_CPU, _SECOND),
        read=first(_READ),
        written=first(_WRITTEN),
        memory=first(_MEMORY),
        gpus=len(gpus) or None,
        gpus_busy=sum(value for value in gpus if value == value) if gpus else None,
        details=(f"account {info.get('account', '')}, partition {info.get('partition', '')}",),
    )


class NodeSource:
    """The metrics of an agent."""

    def __init__(self, url: str, clock: Callable[[], int] = time.time_ns) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port or 80
        except ValueError:
            port = 0
        if parts.scheme != "http" or not parts.hostname or not port:
            raise JobsightError(
                f"--node {url[:80]!r} is not the address of an agent; expected HOST:PORT, as "
                "agent.metrics.listen has it"
            )
        self.where = f"node {parts.hostname}:{port}"
        self._peer = Peer(parts.hostname, port, None)
        self._path = parts.path if parts.path not in ("", "/") else "/metrics"
        self._clock = clock

    def read(self) -> list[Reading]:
        try:
            reply = request(
                self._peer, "GET", self._path, {}, b"", timeout=_TIMEOUT, largest=_MAX_REPLY
            )
        except OSError as error:
            raise JobsightError(f"the agent of {self.where} does not answer: {error}") from None
        if reply.status != 200:
            raise JobsightError(f"the agent of {self.where} answered {reply.status}")
        return parse_metrics(reply.body.decode("utf-8", "replace"), self._clock())

    def close(self) -> None:
        pass


# --- reports of a store or a server ---------------------------------------------------------------


def reading_of(report: JobReport, memory: int | None, now: int) -> Reading:
    """The reading of a report; ``memory`` is what is used now."""
    gpu = report.gpu
    as_of = report.as_of or now
    held = None if report.start is None else max(as_of - report.start, 0)
    programs = [
        f"{row.path}  {format_share(row.cpu_share)} of the CPU time"
        for row in report.executables
        if row.kind == "executable" and (row.cpu_share or 0) >= _LEAST_SHARE
    ][:5]
    findings = [f"{each.severity}: {each.title}" for each in report.findings if each.holds]
    return Reading(
        key=report.run,
        job=report.display_id,
        user=report.user or "",
        name=report.name or "",
        as_of=as_of,
        elapsed=held,
        nodes=len(report.nodes) or None,
        cpus=report.cpu.requested_cpus,
        memory_requested=report.memory.requested_bytes,
        time_limit=report.time.requested,
        cpu_time=report.cpu.time,
        read=report.io.storage_read_bytes,
        written=report.io.storage_written_bytes,
        gpu_time=None if gpu is None else gpu.used,
        memory=report.memory.used_peak_bytes if memory is None else memory,
        memory_is_peak=memory is None,
        gpus=None if gpu is None else gpu.count,
        details=(
            f"run {report.run}, account {report.account or ''}, partition {report.partition or ''}",
            f"nodes {', '.join(report.nodes[:8])}{' ...' if len(report.nodes) > 8 else ''}",
            *programs,
            *findings,
        ),
    )


class StoreSource:
    """The running jobs of a store."""

    def __init__(
        self, store: Store, user: str | None = None, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self.where = f"store {store.database.where}"
        self._store = store
        self._user = user
        self._clock = clock

    def read(self) -> list[Reading]:
        from jobsight.reports.build import build_report

        now = self._clock()
        readings = []
        for stored in self._store.runs(limit=MAX_JOBS, state="RUNNING", user=self._user):
            report = build_report(self._store, stored, clock=self._clock, complete=False)
            readings.append(reading_of(report, self._memory(stored.id), now))
        return readings

    def _memory(self, run_id: int) -> int | None:
        """The last sample of each node."""
        last = [
            summary.last
            for summary in self._store.summaries(run_id)
            if summary.metric == "memory.used"
        ]
        return round(sum(last)) if last else None

    def close(self) -> None:
        self._store.close()


class _Listed(msgspec.Struct):
    run: str


class _List(msgspec.Struct):
    jobs: list[_Listed]


class ServerSource:
    """The running jobs of a server."""

    def __init__(
        self,
        record: RunningServer,
        user: str | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.where = f"server {record.url}"
        self._record = record
        self._token = read_token(Path(record.token_file), own=True)
        self._user = user
        self._clock = clock

    def read(self) -> list[Reading]:
        query = f"state=RUNNING&limit={MAX_JOBS}"
        if self._user is not None:
            query += f"&user={quote(self._user)}"
        listed = get_from_server(self._record, f"/api/v1/jobs?{query}", self._token, _List)
        now = self._clock()
        reports = (
            get_from_server(self._record, f"/api/v1/jobs/{quote(each.run)}", self._token, JobReport)
            for each in listed.jobs
        )
        return [reading_of(report, None, now) for report in reports]

    def close(self) -> None:
        pass
