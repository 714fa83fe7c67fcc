"""The settings of everything that has to do with Prometheus, for agent and server.

The settings of the server: where it listens, its papers, and what it takes from agents.

How each cluster's Slurm is asked.

Where the sinks are; one without an address is left out.

The settings of the archive, with their defaults.

Settings of the export.

The settings of every part, with their defaults; :mod:`jobsight.config.load` reads them.

The comment above a field becomes its line in docs/settings.md.
"""

from __future__ import annotations

import socket
from typing import Annotated, Literal

import msgspec

from jobsight.config import paths

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


class RestSettings(msgspec.Struct, kw_only=True):
    """Where slurmrestd is."""

    #: "unix:/run/slurmrestd.socket" or "http://host:6820".
    url: str | None = None
    #: The user whose token it is.
    user: str | None = None
    #: A file that holds a token; read anew for each question. Else $SLURM_JWT.
    token_file: str | None = None


class SshSettings(msgspec.Struct, kw_only=True):
    """Where Slurm's commands are run, if not on this machine."""

    #: The host on which the commands are run; without it they run here.
    host: str | None = None
    #: The user there; by default as ssh says.
    user: str | None = None
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 22
    #: The private key that is accepted there; by default as ssh says.
    key_file: str | None = None
    #: Where the host's key must stand; a host that is not known is refused.
    known_hosts: str | None = None


class SchedulerSettings(msgspec.Struct, kw_only=True):
    #: "auto" takes the best that answers.
    source: Literal["auto", "rest", "json", "text", "pyslurm", "onsite", "recorded"] = "auto"
    #: Seconds between two scrapes inside of `jobsight serve`; 0 is never.
    every: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 0.0
    #: Seconds within which Slurm must answer.
    timeout: Seconds = 60.0
    #: Seconds that each scrape looks back behind the last, for records that are booked late.
    overlap: Seconds = 900.0
    #: Seconds of accounting in one question while catching up.
    window: Seconds = 21600.0
    #: Days to look back where the store knows of no scrape before.
    history: Annotated[float, msgspec.Meta(ge=0, le=3660)] = 7.0
    #: Where slurmrestd is.
    rest: RestSettings = msgspec.field(default_factory=RestSettings)
    #: Where the commands are run, if not here.
    ssh: SshSettings = msgspec.field(default_factory=SshSettings)
    #: The Python that has PySlurm.
    pyslurm_python: str = "python3"
    #: The file that the on-site scraper writes; without it the scraper is run, over SSH if set.
    onsite_file: str | None = None
    #: Days for which replies are kept as they came, beside the store; 0 keeps none.
    keep_replies: Annotated[float, msgspec.Meta(ge=0, le=3660)] = 1.0
    #: Bytes that they may take; the oldest go first.
    keep_replies_limit: Annotated[int, msgspec.Meta(ge=0)] = 2**30
    #: A folder of replies that were recorded elsewhere, or kept.
    recorded: str | None = None


class MongoSettings(msgspec.Struct, kw_only=True):
    #: Where MongoDB is: "mongodb://user:password@host:27017". Without it nothing is sent there.
    url: str | None = None
    #: The database that holds the collections "jobs" and "nodes".
    database: str = "clockwork"


class OpenSearchSettings(msgspec.Struct, kw_only=True):
    #: Where OpenSearch or Elasticsearch is: "https://host:9200". Without it nothing is sent there.
    url: str | None = None
    #: What the names of its indices begin with.
    prefix: str = "jobsight"
    #: The user that may write there.
    user: str | None = None
    #: The file that holds the user's password.
    password_file: str | None = None
    #: The certificates to trust, where they are not those of the system.
    ca_file: str | None = None


class SinksSettings(msgspec.Struct, kw_only=True):
    #: Seconds between two looks for what is new.
    every: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 60.0
    mongodb: MongoSettings = msgspec.field(default_factory=MongoSettings)
    opensearch: OpenSearchSettings = msgspec.field(default_factory=OpenSearchSettings)


class S3Settings(msgspec.Struct, kw_only=True):
    #: The service's address, such as https://minio.example:9000; by default Amazon's own.
    endpoint: str | None = None
    #: The region; by default $AWS_REGION.
    region: str | None = None
    #: The name of the access key; by default $AWS_ACCESS_KEY_ID and what else AWS's tools read.
    access_key: str | None = None
    #: A file that holds the secret key; by default $AWS_SECRET_ACCESS_KEY.
    secret_key_file: str | None = None


class ArchiveSettings(msgspec.Struct, kw_only=True):
    #: A folder, or an address such as s3://bucket/prefix.
    location: str | None = None
    #: Days after its end at which a run is archived.
    older_than: Annotated[float, msgspec.Meta(ge=0, le=36600)] = 7.0
    #: Seconds between two rounds inside of `jobsight serve`; 0 is never.
    every: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)] = 0.0
    #: The service of an s3:// address.
    s3: S3Settings = msgspec.field(default_factory=S3Settings)


class ExportSettings(msgspec.Struct, kw_only=True):
    #: The folder that gets the files, and from which they are sent.
    output_path: str = "/var/spool/softwareaccounting/records"
    #: Percent of a run's CPU time; software with less is left out of its record.
    remove_less_then: Annotated[float, msgspec.Meta(ge=0, le=100)] = 1.0
    #: Records in one file.
    jobs_per_file: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1000
    #: Only runs of this cluster; by default those of all.
    cluster: str | None = None
    #: What the ids of records begin with, where it is not the cluster's name.
    record_name: str | None = None
    #: The zone of the starts in the ids of records; by default this machine's.
    timezone: str | None = None
    #: Report use that no rule names as a software called "undetermined". SAMS leaves it out, so
    #: that the others look larger than they are.
    undetermined: bool = False


Days = Annotated[float, msgspec.Meta(ge=0, le=36500)]
#: An empty one would be the folder in which a command happens to be started.
AbsolutePath = Annotated[str, msgspec.Meta(min_length=1)]


def short_host_name() -> str:
    return socket.gethostname().partition(".")[0] or "localhost"


class KeepSettings(msgspec.Struct, kw_only=True):
    """How long what a run left is kept: days after its end, 0 is for ever."""

    #: Days after the end of a run until its curves are thinned; 0 is never.
    series: Days = 365.0
    #: Days until its curves are removed, thinned or not; 0 is never.
    thinned: Days = 0.0
    #: Days until its executables and steps are removed; 0 is never.
    executables: Days = 0.0
    #: Days until the run is removed with all that belongs to it; 0 is never. Sums by day stay.
    runs: Days = 0.0
    #: Seconds between two points of a thinned curve, at most; short runs keep more.
    resolution: Seconds = 300.0
    #: Leave runs alone that are not in the archive.
    only_archived: bool = False
    #: Whether `jobsight serve` does it once a day; else `jobsight store prune` does.
    daily: bool = True


class StoreSettings(msgspec.Struct, kw_only=True):
    #: A file, or the address of a database.
    location: AbsolutePath = msgspec.field(default_factory=lambda: str(paths.store_file()))
    keep: KeepSettings = msgspec.field(default_factory=KeepSettings)


class SamplingSettings(msgspec.Struct, kw_only=True):
    """Seconds between two samples, by the age of a job."""

    #: Seconds between two samples of a job in its first minute.
    first_minute: Seconds = 1.0
    #: The same, up to its first hour.
    first_hour: Seconds = 10.0
    #: The same, after its first hour.
    later: Seconds = 30.0


class AgentSettings(msgspec.Struct, kw_only=True):
    #: The node's name; by default the short name of the host.
    node: str = msgspec.field(default_factory=short_host_name)
    #: The folder where batches wait for the server.
    spool: AbsolutePath = msgspec.field(default_factory=lambda: str(paths.spool_directory()))
    #: Bytes; what does not fit any more is dropped, counted and shown.
    spool_limit: Annotated[int, msgspec.Meta(ge=2**20)] = 256 * 2**20
    sampling: SamplingSettings = msgspec.field(default_factory=SamplingSettings)
    #: What need not survive a reboot: the socket of the agent and the births of running jobs.
    run_folder: AbsolutePath = msgspec.field(default_factory=lambda: str(paths.run_directory()))
    #: Slurm's own folders where they are not called as usual, as regular expressions: those of
    #: cgroup v1 (usual: "slurm" and "slurm_NODE") and the scopes of v2 ("slurmstepd.scope" and
    #: "NODE_slurmstepd.scope"). A group named "node" gives the node's name.
    cgroup_roots: list[str] = msgspec.field(default_factory=list)
    cgroup_scopes: list[str] = msgspec.field(default_factory=list)
    #: Follow only jobs of the node of that name, where several slurmd share a machine.
    only_this_node: bool = False
    #: Ask Slurm who the jobs are; prologs tell it, too.
    ask_slurm: bool = True
    #: Samplers besides the engine's own, by their short names.
    samplers: list[str] = msgspec.field(default_factory=lambda: ["pressure", "gpu"])
    #: Seconds after which a batch is sent, full or not.
    send_every: Seconds = 10.0
    #: Authorities (PEM) that the server's certificate must come from; by default the system's.
    tls_ca: str | None = None
    #: The node's own certificate and key (PEM), where the server or its proxy asks for one. They
    #: are read anew when they change.
    tls_certificate: str | None = None
    tls_key: str | None = None
    #: Name the script, module or archive that python, perl, R, julia, java and matlab run, too. It
    #: is read from command lines, which belong to the users; see docs/security.md.
    name_scripts: bool = False
    #: Users whose jobs are left alone.
    ignore_uids: list[Annotated[int, msgspec.Meta(ge=0)]] = msgspec.field(default_factory=list)
    metrics: MetricsSettings = msgspec.field(default_factory=MetricsSettings)
    push: PushSettings = msgspec.field(default_factory=PushSettings)
    remote_write: RemoteWriteSettings = msgspec.field(default_factory=RemoteWriteSettings)


class SoftwareSettings(msgspec.Struct, kw_only=True):
    #: Files of rules that name executables, in their order. SAMS's own files can be named here.
    rules: list[str] = msgspec.field(default_factory=list)
    #: Ask the ready rules after them.
    ready_rules: bool = True
    #: Seconds between two rounds of naming and summing up inside of `jobsight serve`; 0 is never.
    every: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 60.0


class Settings(msgspec.Struct, kw_only=True):
    #: The cluster's name, a part of every run's key.
    cluster: str = msgspec.field(default_factory=short_host_name)
    store: StoreSettings = msgspec.field(default_factory=StoreSettings)
    server: ServerSettings = msgspec.field(default_factory=ServerSettings)
    agent: AgentSettings = msgspec.field(default_factory=AgentSettings)
    scheduler: SchedulerSettings = msgspec.field(default_factory=SchedulerSettings)
    #: Where several clusters are scraped by one process: the name of each, and what is different
    #: there from `scheduler`.
    clusters: dict[str, SchedulerSettings] = msgspec.field(default_factory=dict)
    sinks: SinksSettings = msgspec.field(default_factory=SinksSettings)

    def scrapes(self) -> bool:
        """Whether the server has anything to do with a scheduler or a sink."""
        asked = any(each.scheduler.every for each in self.each_cluster())
        return asked or bool(self.sinks.mongodb.url or self.sinks.opensearch.url)

    def each_cluster(self) -> list[Settings]:
        """The settings of every cluster that is scraped, each with its own name."""
        if not self.clusters:
            return [self]
        return [
            msgspec.structs.replace(self, cluster=name, scheduler=scheduler, clusters={})
            for name, scheduler in self.clusters.items()
        ]

    software: SoftwareSettings = msgspec.field(default_factory=SoftwareSettings)
    export: ExportSettings = msgspec.field(default_factory=ExportSettings)
    archive: ArchiveSettings = msgspec.field(default_factory=ArchiveSettings)
