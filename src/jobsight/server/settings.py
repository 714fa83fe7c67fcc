"""The settings of the server: where it listens, its papers, and what it takes from agents."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from jobsight.prometheus.settings import PromqlSettings, RemoteWriteSettings

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class IngestSettings(msgspec.Struct, kw_only=True):
    """What one agent may send, and what all of them may have the server hold at once."""

    #: Requests a second of one agent (a token and an address) over ten seconds; more is answered
    #: with 429. 0 sets no bound.
    requests_per_second: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 100.0
    #: Bytes a second of one agent, in the same way.
    bytes_per_second: Annotated[int, msgspec.Meta(ge=0)] = 32 * 2**20
    #: The largest batch, in bytes as it is sent.
    body_limit: Annotated[int, msgspec.Meta(ge=4096)] = 16 * 2**20
    #: Seconds within which a batch must have come whole.
    body_time: Annotated[float, msgspec.Meta(ge=0.01, le=3600)] = 30.0
    #: Bytes of memory for the batches that are unpacked at once; others wait, then get 503.
    memory: Annotated[int, msgspec.Meta(ge=16 * 2**20)] = 512 * 2**20
    #: Seconds after which an agent gets 503 while the store is busy.
    patience: Annotated[float, msgspec.Meta(ge=0.01, le=3600)] = 8.0


class ServerSettings(msgspec.Struct, kw_only=True):
    #: Where the pages and the API listen.
    host: str = "127.0.0.1"
    #: 0 takes a free one.
    port: Port = 8080
    #: The file that holds the token: on the server its own, on a node that of its cluster.
    token_file: str | None = None
    #: Names besides those of loopback under which the server may be asked.
    allowed_hosts: list[str] = msgspec.field(default_factory=list)
    #: Plain HTTP on a network is a decision of its own; with TLS it need not be taken.
    allow_network: bool = False
    #: Certificate (with those between it and the authority) and key, as PEM: then the server
    #: speaks TLS. They are read anew when they change.
    tls_certificate: str | None = None
    tls_key: str | None = None
    #: Authorities (PEM) of the agents' certificates: then batches need one.
    tls_client_ca: str | None = None
    #: Proxies (addresses or networks) whose word on the client's address is taken.
    trusted_proxies: list[str] = msgspec.field(default_factory=list)
    #: Where agents find the server; by default the one that runs on this machine.
    url: str | None = None
    ingest: IngestSettings = msgspec.field(default_factory=IngestSettings)
    remote_write: RemoteWriteSettings = msgspec.field(default_factory=RemoteWriteSettings)
    #: Where the curves of pages and reports come from: our own store, or server.promql.
    series: Literal["store", "promql"] = "store"
    promql: PromqlSettings = msgspec.field(default_factory=PromqlSettings)
