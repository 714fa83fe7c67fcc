"""The Python client of the API: jobs, time series, findings, nodes, usage, and properties of jobs.

:class:`Client` is the entry point; it is synchronous and needs nothing but the standard library and
msgspec. Lists fetch their pages while they are iterated. From inside a job, a method without a job
means the job in which the program runs. `docs/client.md` has examples.

Structs have the names and units of the API: seconds, bytes, shares between 0 and 1. A field that a
later server adds is ignored; one that an earlier server does not have keeps its default.
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import random
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Generic, TypeAlias, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from jobsight import __version__
from jobsight.config import paths
from jobsight.errors import JobsightError
from jobsight.transport.login import read_login
from jobsight.transport.running_server import RunningServer, read_running_server, read_token
from jobsight.util.decoding import decode_json_as

__all__ = [
    "Client",
    "ClientError",
    "Finding",
    "Job",
    "Node",
    "NodeSeries",
    "NotFound",
    "Program",
    "Rows",
    "own_job",
]

#: Requests that are sent again, and the seconds before: doubled each time, or what the server asks.
MAX_TRIES: Final = 5
_FIRST_DELAY, _MAX_DELAY = 0.5, 60.0
_RETRIED: Final = frozenset({429, 502, 503, 504})
#: Bytes of a reply.
_MAX_REPLY: Final = 256 * 2**20
_JOB_IN_CGROUP: Final = re.compile(r"/job_(\d+)(?:/|$)")

_SEVERITIES: Final = ("info", "warning", "critical")

#: A JSON object.
Record: TypeAlias = dict[str, Any]


class ClientError(JobsightError):
    """A request failed. ``status`` is that of the reply; None without one."""

    def __init__(self, sentence: str, status: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status


class NotFound(ClientError):
    """There is no such job, node or user, or the token does not permit to see it."""


class Job(msgspec.Struct, kw_only=True):
    """A run, or a job that waits: a row of the list."""

    run: str
    cluster: str = ""
    job_id: int = 0
    #: As Slurm writes it: 12, 62_3, 88+1.
    display_id: str = ""
    name: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    state: str = ""
    state_text: str = ""
    running: bool = False
    exit_code: int | None = None
    exit_signal: int | None = None
    start: datetime | None = None
    end: datetime | None = None
    elapsed_seconds: float | None = None
    node_count: int = 0
    requested_cpus: int | None = None
    cpu_seconds: float | None = None
    #: Used of what was requested.
    cpu_share: float | None = None
    memory_requested_bytes: int | None = None
    memory_used_peak_bytes: int | None = None
    memory_share: float | None = None
    requested_gpus: int | None = None
    gpu_count: int | None = None
    gpu_unused_count: int | None = None
    gpu_share: float | None = None
    gpu_memory_peak_bytes: int | None = None
    gpu_energy_joules: float | None = None
    #: Findings that hold, and the highest severity of them.
    findings: int = 0
    severity: str | None = None
    #: The chain of jobs that depend on each other, by the id of one of them.
    chain_job_id: int | None = None
    submit: str | None = None
    time_requested_seconds: float | None = None
    #: When Slurm expects a job that waits to start.
    expected_start: str | None = None


class Program(msgspec.Struct, kw_only=True):
    """What the processes of one executable used in a run."""

    kind: str
    path: str
    executions: int | None = None
    cpu_seconds: float = 0.0
    cpu_share: float | None = None
    gpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    storage_read_bytes: int | None = None
    storage_written_bytes: int | None = None
    failures: int | None = None


class Finding(msgspec.Struct, kw_only=True):
    """What went wrong in a run, and the line to change."""

    kind: str
    severity: str
    state: str = ""
    title: str = ""
    text: str = ""
    change: str | None = None
    cost: Record = msgspec.field(default_factory=dict)


class Node(msgspec.Struct, kw_only=True):
    """A node at the time of the last scrape."""

    cluster: str
    name: str
    state: str = ""
    usable: bool = False
    reason: str | None = None
    partitions: list[str] = msgspec.field(default_factory=list)
    features: list[str] = msgspec.field(default_factory=list)
    cpus: int | None = None
    cpus_allocated: int | None = None
    memory_bytes: int | None = None
    memory_allocated_bytes: int | None = None
    gpus: list[Record] = msgspec.field(default_factory=list)


class Metric(msgspec.Struct, kw_only=True):
    """One time series; a value is None where nothing was measured."""

    unit: str
    mean: list[float | None]
    minimum: list[float | None] = msgspec.field(default_factory=list)
    maximum: list[float | None] = msgspec.field(default_factory=list)


class NodeSeries(msgspec.Struct, kw_only=True):
    """The time series of a run on one node."""

    node: str
    #: Seconds since 1970.
    times_seconds: list[float]
    metrics: dict[str, Metric]


_Row = TypeVar("_Row")
_Reply = TypeVar("_Reply")


class Rows(Generic[_Row]):
    """The rows of a list. Iterating fetches page after page; each iteration starts again."""

    def __init__(
        self,
        fetch: Callable[[Record], tuple[list[Any], str | None]],
        parameters: Record,
        form: type[_Row],
        limit: int | None,
    ) -> None:
        self._fetch = fetch
        self._parameters = parameters
        self._form = form
        self._limit = limit

    def __iter__(self) -> Iterator[_Row]:
        for row in self._records():
            yield msgspec.convert(row, self._form, strict=False)

    def records(self) -> list[Record]:
        """All rows as JSON objects, with every field that the server sends."""
        return list(self._records())

    def dataframe(self) -> Any:
        """All rows as a DataFrame of pandas, or else of polars."""
        if importlib.util.find_spec("pandas") is not None:
            return self.to_pandas()
        if importlib.util.find_spec("polars") is not None:
            return self.to_polars()
        raise ClientError("a DataFrame needs pandas or polars; install one of them")

    def to_pandas(self) -> Any:
        import pandas

        frame = pandas.DataFrame(self.records())
        for name in ("start", "end"):
            if name in frame:
                frame[name] = pandas.to_datetime(frame[name], utc=True)
        return frame

    def to_polars(self) -> Any:
        import polars

        frame = polars.DataFrame(self.records(), infer_schema_length=None)
        times = [name for name in ("start", "end") if name in frame.columns]
        if not times:
            return frame
        # polars has nanoseconds, which the API sends.
        parsed = polars.col(*times).str.to_datetime(time_unit="ns", time_zone="UTC")
        return frame.with_columns(parsed)

    def _records(self) -> Iterator[Record]:
        left = self._limit
        cursor: str | None = None
        while left is None or left > 0:
            size = 1000 if left is None else min(left, 1000)
            page = {"limit": size} | ({"cursor": cursor} if cursor else {})
            rows, cursor = self._fetch({**self._parameters, **page})
            yield from rows
            left = None if left is None else left - len(rows)
            if cursor is None:
                return


class Client:
    """A connection to a server. It may be used by one thread at a time."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        token_file: str | Path | None = None,
        ca_file: str | Path | None = None,
        timeout: float = 30.0,
        tries: int = MAX_TRIES,
    ) -> None:
        """By default the server of ``JOBSIGHT_URL`` with the token of ``JOBSIGHT_TOKEN``, or of the
        file that ``JOBSIGHT_TOKEN_FILE`` names; without these, the server of `jobsight login`, or
        the one that this user runs on this machine. ``ca_file`` has the certificates to trust in
        place of the system's."""
        found = None
        url = url or os.environ.get("JOBSIGHT_URL") or None
        login = read_login() if url is None else None
        if login is not None:
            url, token, ca_file = login.url, token or login.token, ca_file or login.ca
        if url is None:
            found = _local_server()
            url = found.url
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ClientError(f"{url!r} is no address of a server; expected https://HOST")
        self._parts = parts
        self._token = token or _token(token_file, found)
        certificate = ca_file or (found.certificate if found else None)
        self._tls = _tls(certificate, own=found is not None) if parts.scheme == "https" else None
        self._timeout = timeout
        self._tries = max(tries, 1)
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # In notebooks nobody closes a client.
        if getattr(self, "_connection", None) is not None:
            self.close()

    def close(self) -> None:
        """Close the connection; a later request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def jobs(self, *, limit: int | None = None, **filters: Any) -> Rows[Job]:
        """Jobs, the latest first. The filters are the parameters of `GET /api/v1/jobs`, such as
        ``user``, ``state``, ``since``, ``search``, ``finding`` and ``fields``."""
        return self._rows("jobs", Job, limit, filters)

    def job(self, run: str | int | None = None) -> Job:
        """One job: its row of the list, made of its report. Without a run, the own job."""
        report = self.report(run)
        return _job_of_report(report)

    def report(self, run: str | int | None = None) -> Record:
        """The complete report of a job, as `jobsight report --json` prints it."""
        return self._get(_job_path(run), Record)

    def programs(self, run: str | int | None = None) -> list[Program]:
        """The programs of a job, those with the most CPU time first."""
        return self._part(run, "programs", list[Program])

    def findings(self, run: str | int | None = None) -> list[Finding]:
        """The findings of a job, the worst first."""
        return self._part(run, "findings", list[Finding])

    def software(self, run: str | int | None = None) -> list[Record]:
        """What the programs of a job used by software, the most CPU time first."""
        return self._part(run, "software", list[Record])

    def steps(self, run: str | int | None = None) -> list[Record]:
        """The steps of a job."""
        return self._part(run, "steps", list[Record])

    def gpus(self, run: str | int | None = None) -> list[Record]:
        """The GPUs of a job."""
        return self._part(run, "gpus", list[Record])

    def series(
        self, run: str | int | None = None, *metrics: str, points: int = 600
    ) -> list[NodeSeries]:
        """The time series of a job by node, downsampled; counters as rates."""
        parameters: Record = {"points": points}
        if metrics:
            parameters["metrics"] = ",".join(metrics)
        reply = self._get(f"{_job_path(run)}/series", Record, parameters)
        return msgspec.convert(reply["nodes"], list[NodeSeries])

    def properties(self, run: str | int | None = None) -> Record:
        """The properties of a job."""
        return self._part(run, "properties", Record)

    def set_properties(self, run: str | int | None = None, /, **properties: Any) -> Record:
        """Add and replace properties of an own job, and return all; None removes one."""
        path = f"{_job_path(run)}/properties"
        reply = self.request("PATCH", path, content=msgspec.json.encode(properties))
        return msgspec.convert(reply["properties"], Record)

    def nodes(self, *, limit: int | None = None, **filters: Any) -> Rows[Node]:
        """Nodes by cluster and name; filters such as ``cluster``, ``partition``, ``state``."""
        return self._rows("nodes", Node, limit, filters)

    def clusters(self) -> list[Record]:
        """The clusters with their resources and their queue."""
        return msgspec.convert(self._get("clusters", Record)["clusters"], list[Record])

    def usage(self, **parameters: Any) -> list[Record]:
        """Usage in hours; the parameters of `GET /api/v1/usage`, such as ``by="user"``."""
        return msgspec.convert(self._get("usage", Record, parameters)["rows"], list[Record])

    def page_url(self, run: str | int | None = None) -> str:
        """The address of the page of a job."""
        return f"{self.url}/jobs/{_quoted(run)}"

    def request(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, Any] | None = None,
        content: bytes | None = None,
    ) -> Any:
        """Send a request to a route below `/api/v1`, and return the decoded reply.

        A reply that asks to come again is waited for: 429 and 503, as long as its Retry-After says.
        """
        query = urlencode({name: _text(value) for name, value in (parameters or {}).items()})
        target = f"{self._parts.path}/api/v1/{path}" + (f"?{query}" if query else "")
        for tries_left in reversed(range(self._tries)):
            try:
                status, headers, body = self._send(method, target, content)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if not tries_left or isinstance(error, ssl.SSLCertVerificationError):
                    raise ClientError(f"{self.url} does not answer: {error}") from None
                status, headers = 503, {}
            else:
                if status < 300:
                    return _decoded(body, self.url)
                if status not in _RETRIED or not tries_left:
                    raise _error(status, body, self.url)
            time.sleep(_delay(self._tries - tries_left, headers.get("retry-after")))
        raise AssertionError("the last try returns or raises")

    def _send(
        self, method: str, target: str, content: bytes | None
    ) -> tuple[int, dict[str, str], bytes]:
        if self._connection is None:
            host, port = self._parts.hostname or "", self._parts.port
            if self._tls is not None:
                self._connection = http.client.HTTPSConnection(
                    host, port, timeout=self._timeout, context=self._tls
                )
            else:
                self._connection = http.client.HTTPConnection(host, port, timeout=self._timeout)
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Accept": "application/json, application/problem+json",
            "User-Agent": f"jobsight-client/{__version__}",
        }
        if content is not None:
            headers["Content-Type"] = "application/json"
        self._connection.request(method, target, content, headers)
        reply = self._connection.getresponse()
        body = reply.read(_MAX_REPLY + 1)
        if len(body) > _MAX_REPLY:
            self.close()
            raise ClientError(f"the reply is larger than {_MAX_REPLY} bytes; select fewer rows")
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, body

    def _get(self, path: str, form: type[_Reply], parameters: Record | None = None) -> _Reply:
        return msgspec.convert(self.request("GET", path, parameters), form)

    def _part(self, run: str | int | None, name: str, form: type[_Reply]) -> _Reply:
        return msgspec.convert(self._get(f"{_job_path(run)}/{name}", Record)[name], form)

    def _rows(self, path: str, form: type[_Row], limit: int | None, filters: Record) -> Rows[_Row]:
        def fetch(parameters: Record) -> tuple[list[Any], str | None]:
            reply = self._get(path, Record, parameters)
            return reply[path], reply.get("next")

        given = {name: value for name, value in filters.items() if value is not None}
        return Rows(fetch, given, form, limit)


def own_job(
    environment: Mapping[str, str] | None = None, cgroup: Path = Path("/proc/self/cgroup")
) -> str | None:
    """The job in which this program runs, as a run is named; None outside of a job.

    The variables of Slurm say which one, or the cgroup of the process if they were removed.
    """
    given = os.environ if environment is None else environment
    own = given.get("JOBSIGHT_JOB")
    if own:
        return own
    cluster = given.get("SLURM_CLUSTER_NAME")
    prefix = f"{cluster}:" if cluster else ""
    array, task = given.get("SLURM_ARRAY_JOB_ID"), given.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{prefix}{array}_{task}"
    job = given.get("SLURM_JOB_ID") or given.get("SLURM_JOBID")
    if not job:
        try:
            match = _JOB_IN_CGROUP.search(cgroup.read_text(errors="replace"))
        except OSError:
            match = None
        job = match[1] if match else None
    return f"{prefix}{job}" if job else None


def _quoted(run: str | int | None) -> str:
    wanted = own_job() if run is None else str(run)
    if not wanted:
        raise ClientError("this program does not run in a job; name one, such as 12")
    return quote(wanted, safe=":+")


def _job_path(run: str | int | None) -> str:
    return f"jobs/{_quoted(run)}"


def _job_of_report(report: Record) -> Job:
    names = set(Job.__struct_fields__)
    row = {name: value for name, value in report.items() if name in names}
    cpu, memory, gpu = report["cpu"], report["memory"], report.get("gpu") or {}
    findings = [each for each in report.get("findings", ()) if each.get("state") == "open"]
    severities = [each["severity"] for each in findings]
    row |= {
        "elapsed_seconds": report["time"]["elapsed_seconds"],
        "node_count": len(report.get("nodes", ())),
        "requested_cpus": cpu["requested_cpus"],
        "cpu_seconds": cpu["cpu_seconds"],
        "cpu_share": cpu["share"],
        "memory_requested_bytes": memory["requested_bytes"],
        "memory_used_peak_bytes": memory["used_peak_bytes"],
        "memory_share": memory["share"],
        "requested_gpus": gpu.get("requested_gpus"),
        "gpu_count": gpu.get("count"),
        "gpu_unused_count": gpu.get("unused_count"),
        "gpu_share": gpu.get("used_share"),
        "gpu_memory_peak_bytes": gpu.get("memory_peak_bytes"),
        "gpu_energy_joules": gpu.get("energy_joules"),
        "findings": len(findings),
        "severity": max(
            (each["severity"] for each in findings), key=severities.index, default=None
        ),
    }
    return msgspec.convert(row, Job, strict=False)


def _local_server() -> RunningServer:
    """The server that this user runs on this machine."""
    found = read_running_server(paths.server_file(str(paths.store_file())))
    if found is None:
        raise ClientError(
            "no server is known; run `jobsight login URL`, set JOBSIGHT_URL, or start "
            "`jobsight serve`"
        )
    return found


def _token(file: str | Path | None, server: RunningServer | None) -> str:
    if file is None:
        token = os.environ.get("JOBSIGHT_TOKEN")
        if token:
            return token
        file = os.environ.get("JOBSIGHT_TOKEN_FILE") or (server.token_file if server else None)
    if file is None:
        raise ClientError(
            "no token is known; set JOBSIGHT_TOKEN, or JOBSIGHT_TOKEN_FILE to the name of a file"
        )
    return read_token(Path(file))


def _tls(certificate: str | Path | None, *, own: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=certificate)
    except (OSError, ValueError) as error:
        raise ClientError(f"{certificate}: expected certificates (PEM): {error}") from None
    # The certificate of the own server is trusted as it is, whatever name it has.
    context.check_hostname = not own
    return context


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return str(value.timestamp())
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)


def _delay(tries: int, retry_after: str | None) -> float:
    if retry_after is not None and retry_after.isdecimal():
        return min(float(retry_after), _MAX_DELAY)
    # Not all clients of a server that was restarted come again at the same moment.
    return min(_FIRST_DELAY * 2.0 ** (tries - 1), _MAX_DELAY) * random.uniform(0.5, 1.0)


def _decoded(body: bytes, url: str) -> Any:
    try:
        return decode_json_as(object, body)
    except msgspec.DecodeError:
        raise ClientError(f"{url} is no server of jobsight: its reply is not JSON") from None


def _error(status: int, body: bytes, url: str) -> ClientError:
    try:
        sentence = str(decode_json_as(dict[str, Any], body)["detail"])
    except (msgspec.MsgspecError, KeyError):
        sentence = f"{url} answered {status}"
    return NotFound(sentence, status) if status == 404 else ClientError(sentence, status)
