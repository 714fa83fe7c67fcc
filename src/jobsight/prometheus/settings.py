"""The settings of everything that has to do with Prometheus, for agent and server."""

from __future__ import annotations

from typing import Annotated

import msgspec

Seconds = Annotated[float, msgspec.Meta(ge=0.01, le=86400)]


class MetricsSettings(msgspec.Struct, kw_only=True):
    """The agent's own /metrics."""

    #: Where the agent answers /metrics, ADDRESS:PORT; empty is nowhere.
    listen: str = "127.0.0.1:9306"
    #: Offer the names of petricore's jobs_exporter beside our own.
    seed_names: bool = True
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
