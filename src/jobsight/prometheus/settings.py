"""The settings of everything that has to do with Prometheus, for agent and server."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Seconds = Annotated[float, msgspec.Meta(ge=0.01, le=86400)]


class MetricsSettings(msgspec.Struct, kw_only=True):
    """The agent's own /metrics."""

    #: Where the agent answers /metrics, ADDRESS:PORT; empty is nowhere.
    listen: str = "127.0.0.1:9306"
    #: Offer the names of petricore's jobs_exporter beside our own.
    seed_names: bool = True
    #: Offer the names of nvidia_smi_exporter, too, which petricore's pages read (utilization_gpu,
    #: memory_used ...): for a site where that exporter does not run.
    gpu_seed_names: bool = False
    #: Seconds for which the last values of a job stay after its end: one scrape interval.
    keep_ended: Seconds = 30.0
    #: Series of jobs that are offered at most; what goes beyond is left out and counted.
    max_series: Annotated[int, msgspec.Meta(ge=1)] = 20_000
    #: Folders that are scratch, for jobs_uses_scratch; %(jobid)s stands for the job.
    scratch: list[str] = msgspec.field(default_factory=lambda: ["/scratch", "/localscratch"])
    #: Certificate and key (PEM): then /metrics speaks TLS.
    tls_certificate: str | None = None
    tls_key: str | None = None
    #: Who may read /metrics (basic authentication), and the hash that `jobs_exporter
    #: --hash-password` prints.
    user: str | None = None
    password_hash: str | None = None


class WebSettings(msgspec.Struct, kw_only=True):
    """A server that is asked or told something over HTTP."""

    #: Its address; without one it is not used.
    url: str | None = None
    #: The user for basic authentication, and the file that holds the password.
    user: str | None = None
    password_file: str | None = None
    #: A file that holds a token (Authorization: Bearer), read anew for each request.
    token_file: str | None = None
    #: Authorities (PEM) that its certificate may come from; by default the system's.
    ca: str | None = None
    #: More headers, such as X-Scope-OrgID.
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    #: Seconds for one exchange.
    timeout: Seconds = 10.0


class PushSettings(WebSettings, kw_only=True):
    """A Pushgateway, for sites that are built on one."""

    #: Seconds between two pushes.
    every: Seconds = 15.0
    #: The label "job" of the groups.
    job: str = "jobs_exporter"


class RemoteWriteSettings(WebSettings, kw_only=True):
    """A store that takes Prometheus's remote write. The address is that of its write path."""

    #: Send petricore's names, too, where a curve has one.
    seed_names: bool = False
    #: Bytes of batches that may wait while it is away; the oldest go first, and are counted.
    limit: Annotated[int, msgspec.Meta(ge=2**20)] = 256 * 2**20


class PromqlSettings(WebSettings, kw_only=True):
    """Where curves are read back from: anything that answers PromQL's HTTP API."""

    #: Whose names are asked for: ours, or petricore's.
    names: Literal["own", "petricore"] = "own"
    #: Seconds between two points at least; about the scrape interval.
    step: Seconds = 15.0
