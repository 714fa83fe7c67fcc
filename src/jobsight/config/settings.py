"""All settings with their types, bounds and defaults, one struct for each table of the file.

:mod:`jobsight.config.load` reads them. The ``#:`` line above a field is its description in
docs/settings.md: exactly one line for each field, with the unit.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Annotated, Literal

import msgspec

from jobsight.config import paths
from jobsight.errors import ConfigError
from jobsight.util.urls import without_credentials

Seconds = Annotated[float, msgspec.Meta(ge=0.01, le=86400)]
#: False is the same as 0.
SecondsOrOff = Annotated[float, msgspec.Meta(ge=0, le=3600)] | bool
Days = Annotated[float, msgspec.Meta(ge=0, le=36500)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]
#: An empty path would be the working directory of the command.
NonEmptyPath = Annotated[str, msgspec.Meta(min_length=1)]


def short_host_name() -> str:
    return socket.gethostname().partition(".")[0] or "localhost"


class LogSettings(msgspec.Struct, kw_only=True):
    """What the commands log, and how."""

    #: Least severe level that services log: agent, server and `scrape --every`.
    level: LogLevel = "info"
    #: Least severe level that commands which end by themselves show.
    commands: LogLevel = "warning"
    #: Format of a line: journald adds syslog priorities, json writes one object per line.
    format: Literal["auto", "text", "journald", "json"] = "auto"


class MetricsSettings(msgspec.Struct, kw_only=True):
    """The agent's own /metrics."""

    #: Address and port of /metrics (ADDRESS:PORT); empty disables it.
    listen: str = "127.0.0.1:9306"
    #: Allow listening on a non-loopback address without a password.
    allow_network: bool = False
    #: Also expose the metric names of petricore's jobs_exporter.
    petricore_names: bool = True
    #: Also expose the metric names of nvidia_smi_exporter, where that exporter does not run.
    nvidia_smi_names: bool = False
    #: Seconds for which a job's last values stay exposed after its end; use one scrape interval.
    keep_ended: Seconds = 30.0
    #: Maximum number of job series; series beyond it are omitted and counted.
    max_series: Annotated[int, msgspec.Meta(ge=1)] = 20_000
    #: Scratch directories, for jobs_uses_scratch; %(jobid)s is replaced by the job id.
    scratch: list[str] = msgspec.field(default_factory=lambda: ["/scratch", "/localscratch"])
    #: Certificate (PEM file) of /metrics; with tls_key it enables TLS.
    tls_certificate: str | None = None
    #: Private key (PEM file) of tls_certificate.
    tls_key: str | None = None
    #: User name that may read /metrics (basic authentication).
    user: str | None = None
    #: Hash of that user's password, as printed by `jobs_exporter --hash-password`.
    password_hash: str | None = None


class WebSettings(msgspec.Struct, kw_only=True):
    """An HTTP server that the agent or the server sends requests to."""

    #: URL of the server; without it the server is not used.
    url: str | None = None
    #: User name for basic authentication.
    user: str | None = None
    #: File with the password of that user.
    password_file: str | None = None
    #: File with a bearer token, read again for each request.
    token_file: str | None = None
    #: Certificate authorities (PEM file) of the server; by default those of the system.
    ca: str | None = None
    #: Additional request headers, such as X-Scope-OrgID.
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    #: Timeout of one request in seconds.
    timeout: Seconds = 10.0


class PushSettings(WebSettings, kw_only=True):
    """A Prometheus Pushgateway."""

    #: Seconds between two pushes.
    interval: Seconds = 15.0
    #: Value of the label "job" of the groups.
    job: str = "jobs_exporter"


class RemoteWriteSettings(WebSettings, kw_only=True):
    """A store that accepts Prometheus remote write; the URL includes the path."""

    #: Also send petricore's metric names for the time series that have one.
    petricore_names: bool = False
    #: Bytes of batches that wait while the server is unreachable; the oldest are dropped first.
    limit: Annotated[int, msgspec.Meta(ge=2**20)] = 256 * 2**20


class PromqlSettings(WebSettings, kw_only=True):
    """A server with the Prometheus HTTP API, from which time series are read back."""

    #: Metric names to query: those of jobsight or those of petricore.
    names: Literal["own", "petricore"] = "own"
    #: Shortest step in seconds of a query for a long run; use the scrape interval.
    step: Seconds = 15.0


class IngestSettings(msgspec.Struct, kw_only=True):
    """Limits on what one agent may send and what the server holds in memory."""

    #: Requests per second of one agent, averaged over 10 s; more get status 429. 0 is unlimited.
    requests_per_second: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 100.0
    #: The same for bytes, as sent or as decompressed, whichever is more.
    bytes_per_second: Annotated[int, msgspec.Meta(ge=0)] = 32 * 2**20
    #: Maximum size of a compressed batch in bytes.
    body_limit: Annotated[int, msgspec.Meta(ge=4096)] = 16 * 2**20
    #: Seconds within which a complete batch must arrive.
    body_timeout: Annotated[float, msgspec.Meta(ge=0.01, le=3600)] = 30.0
    #: Seconds without data after which an incomplete batch is refused.
    stall_timeout: Annotated[float, msgspec.Meta(ge=0.01, le=3600)] = 10.0
    #: Memory budget in bytes of all batches that are decoded concurrently.
    memory: Annotated[int, msgspec.Meta(ge=16 * 2**20)] = 512 * 2**20
    #: Seconds that a batch waits for memory and the store before the agent gets status 503.
    queue_timeout: Annotated[float, msgspec.Meta(ge=0.01, le=3600)] = 8.0


class ConnectionSettings(msgspec.Struct, kw_only=True):
    """Limits on the connections of the server, from agents and browsers."""

    #: Open connections; beyond it the oldest one without an authenticated request is closed.
    max: Annotated[int, msgspec.Meta(ge=16, le=1_000_000)] = 4096
    #: The same for one address (IPv6: one /64 network); not for server.trusted_proxies.
    max_per_address: Annotated[int, msgspec.Meta(ge=4, le=1_000_000)] = 256
    #: Seconds within which the TLS handshake and the header of a request must arrive.
    header_timeout: Annotated[float, msgspec.Meta(ge=0.01, le=3600)] = 15.0
    #: Seconds after which a client that does not continue to read its response is disconnected.
    response_timeout: Annotated[float, msgspec.Meta(ge=0.01, le=3600)] = 60.0


class SlurmDatabaseSettings(msgspec.Struct, kw_only=True):
    """The view on Slurm's accounting database that `jobsight slurmdb setup` creates."""

    #: Socket or HOST:PORT of MariaDB or MySQL; without it the view is not read.
    address: str | None = None
    #: Slurm's ClusterName.
    cluster: str = "cluster"
    #: Slurm's database, StorageLoc of slurmdbd.conf.
    database: str = "slurm_acct_db"
    #: Name of the view.
    view: str = "user_job_view"
    #: Restricted user.
    user: str = "jobsight"
    #: File with the password of the restricted user, with mode 0600.
    password_file: str | None = None
    #: Connect with TLS; file with the certificate authority.
    tls_ca: str | None = None


class ServerSettings(msgspec.Struct, kw_only=True):
    """The server of the pages, the API and the ingest endpoint."""

    #: Address to listen on.
    host: str = "127.0.0.1"
    #: Port to listen on; 0 selects a free port.
    port: Port = 8080
    #: File with the token: on the server its own, on a node that of its cluster.
    token_file: str | None = None
    #: Host names other than those of loopback that are accepted in the Host header.
    allowed_hosts: list[str] = msgspec.field(default_factory=list)
    #: Allow listening on a non-loopback address without TLS.
    allow_network: bool = False
    #: Certificate chain (PEM file); with tls_key it enables TLS. Reloaded when it changes.
    tls_certificate: str | None = None
    #: Private key (PEM file) of tls_certificate. Reloaded when it changes.
    tls_key: str | None = None
    #: Certificate authorities (PEM file) of the agents; with it, batches need a certificate.
    tls_client_ca: str | None = None
    #: Revocation list (PEM file) of tls_client_ca. Reloaded when it changes.
    tls_client_crl: str | None = None
    #: Proxies (addresses or CIDR ranges) whose X-Forwarded-For header is trusted.
    trusted_proxies: list[str] = msgspec.field(default_factory=list)
    #: Nodes (such as "n[1-64]") that service discovery offers besides those of the scheduler.
    discovery_nodes: list[str] = msgspec.field(default_factory=list)
    #: URL of the server for agents; by default the server that runs on this machine.
    url: str | None = None
    #: Also answer petricore's routes, such as /mail/12 and /api/v1/users/alice.
    petricore_routes: bool = False
    #: JSON file with projects and numbers of files by user, for /api/v1/users of petricore.
    petricore_usage: str | None = None
    petricore_database: SlurmDatabaseSettings = msgspec.field(default_factory=SlurmDatabaseSettings)
    #: Also answer Clockwork's REST routes below /api/v1/clusters, with tokens as API keys.
    clockwork_routes: bool = False
    connections: ConnectionSettings = msgspec.field(default_factory=ConnectionSettings)
    ingest: IngestSettings = msgspec.field(default_factory=IngestSettings)
    remote_write: RemoteWriteSettings = msgspec.field(default_factory=RemoteWriteSettings)
    #: Where pages and reports read time series: the store, or the server of server.promql.
    series: Literal["store", "promql"] = "store"
    promql: PromqlSettings = msgspec.field(default_factory=PromqlSettings)


class RestSettings(msgspec.Struct, kw_only=True):
    """The REST daemon of Slurm."""

    #: URL of slurmrestd: "unix:/run/slurmrestd.socket" or "http://host:6820".
    url: str | None = None
    #: User name that the token belongs to.
    user: str | None = None
    #: File with the token, read again for each request; by default $SLURM_JWT.
    token_file: str | None = None


class SshSettings(msgspec.Struct, kw_only=True):
    """The host that runs Slurm's commands, if it is another machine."""

    #: Host that runs Slurm's commands; by default this machine.
    host: str | None = None
    #: User name on that host; by default that of the SSH configuration.
    user: str | None = None
    #: Port of the SSH server.
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 22
    #: Private key file; by default that of the SSH configuration.
    key_file: str | None = None
    #: File with the host key; an unknown host is refused.
    known_hosts: str | None = None


class SchedulerSettings(msgspec.Struct, kw_only=True):
    """How Slurm is queried."""

    #: Source of jobs and nodes; "auto" selects the best one that answers.
    source: Literal["auto", "rest", "json", "text", "pyslurm", "onsite", "recorded"] = "auto"
    #: Seconds between two scrapes in `jobsight serve`; 0 disables them.
    interval: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 0.0
    #: Seconds within which Slurm must answer.
    timeout: Seconds = 60.0
    #: Seconds that each scrape overlaps the previous one, for records that arrive late.
    overlap: Seconds = 900.0
    #: Seconds of accounting data in one query while catching up.
    window: Seconds = 21600.0
    #: Days of accounting data that the first scrape of a store reads.
    history: Annotated[float, msgspec.Meta(ge=0, le=3660)] = 7.0
    rest: RestSettings = msgspec.field(default_factory=RestSettings)
    ssh: SshSettings = msgspec.field(default_factory=SshSettings)
    #: Directory of Slurm's commands, such as /opt/slurm/bin; by default they are found in PATH.
    slurm_directory: str | None = None
    #: Python interpreter that has PySlurm.
    pyslurm_python: str = "python3"
    #: File that the on-site script writes; without it the script is run, over SSH if configured.
    onsite_file: str | None = None
    #: Days for which unmodified replies are kept next to the store; 0 keeps none.
    keep_replies: Annotated[float, msgspec.Meta(ge=0, le=3660)] = 1.0
    #: Maximum size of the kept replies in bytes; the oldest are deleted first.
    keep_replies_limit: Annotated[int, msgspec.Meta(ge=0)] = 2**30
    #: Directory of recorded replies, for the source "recorded".
    recorded: str | None = None
    #: Store the batch scripts of jobs, by which runs of the same work are found; may hold secrets.
    scripts: bool = False

    def is_used(self) -> bool:
        """Whether a scheduler is configured, not only found by chance."""
        return bool(self.interval) or self.source != "auto" or bool(self.places())

    def places(self) -> list[str]:
        """Where Slurm is queried, if not by the commands of this machine."""
        places = {
            "rest": self.rest.url and without_credentials(self.rest.url),
            "ssh": self.ssh.host and f"{self.ssh.host}:{self.ssh.port}",
            "onsite": self.onsite_file,
            "recorded": self.recorded,
        }
        return [f"{name} {place}" for name, place in places.items() if place]


class MongoSettings(msgspec.Struct, kw_only=True):
    """MongoDB, with the documents of Clockwork."""

    #: URL of MongoDB: "mongodb://user:password@host:27017"; without it nothing is sent.
    url: str | None = None
    #: Database with the collections "jobs" and "nodes".
    database: str = "clockwork"


class OpenSearchSettings(msgspec.Struct, kw_only=True):
    """OpenSearch or Elasticsearch."""

    #: URL of OpenSearch or Elasticsearch: "https://host:9200"; without it nothing is sent.
    url: str | None = None
    #: Prefix of the index names.
    prefix: str = "jobsight"
    #: User name with write access to these indices.
    user: str | None = None
    #: File with the password of that user.
    password_file: str | None = None
    #: Certificate authorities (PEM file); by default those of the system.
    ca_file: str | None = None


class SinksSettings(msgspec.Struct, kw_only=True):
    """Targets that receive copies of runs and nodes."""

    #: Seconds between two transfers of changed runs and nodes.
    interval: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 60.0
    mongodb: MongoSettings = msgspec.field(default_factory=MongoSettings)
    opensearch: OpenSearchSettings = msgspec.field(default_factory=OpenSearchSettings)


class S3Settings(msgspec.Struct, kw_only=True):
    """The service of an s3:// archive."""

    #: URL of the service, such as https://minio.example:9000; by default Amazon S3.
    endpoint: str | None = None
    #: Region; by default $AWS_REGION.
    region: str | None = None
    #: Access key ID; by default $AWS_ACCESS_KEY_ID or the AWS configuration.
    access_key: str | None = None
    #: File with the secret access key; by default $AWS_SECRET_ACCESS_KEY.
    secret_key_file: str | None = None


class ArchiveSettings(msgspec.Struct, kw_only=True):
    """Finished runs as Parquet files."""

    #: Directory, or URL such as s3://bucket/prefix.
    location: str | None = None
    #: Days after the end of a run at which it is archived.
    older_than: Annotated[float, msgspec.Meta(ge=0, le=36600)] = 7.0
    #: Seconds between two archive runs in `jobsight serve`; 0 disables them.
    interval: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)] = 0.0
    s3: S3Settings = msgspec.field(default_factory=S3Settings)


class ExportSettings(msgspec.Struct, kw_only=True):
    """Usage records (XML)."""

    #: Directory of the record files, from which they are sent.
    output_path: str = "/var/spool/softwareaccounting/records"
    #: Software with less than this percentage of a run's CPU time is omitted from its record.
    remove_less_then: Annotated[float, msgspec.Meta(ge=0, le=100)] = 1.0
    #: Records in one file.
    jobs_per_file: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1000
    #: Export only runs of this cluster; by default those of all clusters.
    cluster: str | None = None
    #: Prefix of the record ids; by default the cluster's name.
    record_name: str | None = None
    #: Time zone of the start times in record ids; by default that of this machine.
    timezone: str | None = None
    #: Report usage that no rule names as the software "undetermined"; SAMS omits it.
    undetermined: bool = False


class RetentionSettings(msgspec.Struct, kw_only=True):
    """How long the data of a run is kept after its end, and that of a node after the day."""

    #: Days after the end of a run until its time series are downsampled; 0 is never.
    series: Days = 365.0
    #: Days after the end of a run until its time series are deleted; 0 is never.
    downsampled: Days = 0.0
    #: Days after the end of a run until its executables and steps are deleted; 0 is never.
    executables: Days = 0.0
    #: Days after the end of a run until it is deleted; 0 is never. Daily rollups are kept.
    runs: Days = 0.0
    #: Days for which it is recorded who viewed whose pages; 0 is for ever.
    audit_log: Days = 400.0
    #: Longest step of a downsampled time series in seconds; short runs keep shorter steps.
    resolution: Seconds = 300.0
    #: Delete and downsample only runs that are in the archive, which has no series of nodes.
    only_archived: bool = False
    #: Apply the retention once a day in `jobsight serve`; otherwise run `jobsight store prune`.
    daily: bool = True


class StoreSettings(msgspec.Struct, kw_only=True):
    """The store."""

    #: SQLite file, or URL of a PostgreSQL database.
    location: NonEmptyPath = msgspec.field(default_factory=lambda: str(paths.store_file()))
    retention: RetentionSettings = msgspec.field(default_factory=RetentionSettings)


class SamplingSettings(msgspec.Struct, kw_only=True):
    """The sampling interval of a job, by its age."""

    #: Seconds between two samples in the first minute of a job.
    first_minute: Seconds = 1.0
    #: Seconds between two samples in the rest of the first hour of a job.
    first_hour: Seconds = 10.0
    #: Seconds between two samples after the first hour of a job.
    later: Seconds = 30.0


class AgentSettings(msgspec.Struct, kw_only=True):
    """The agent of a compute node."""

    #: Name of the node; by default the short host name.
    node: str = msgspec.field(default_factory=short_host_name)
    #: Directory in which batches wait for delivery.
    spool: NonEmptyPath = msgspec.field(default_factory=lambda: str(paths.spool_directory()))
    #: Maximum size of the spool in bytes; the oldest batches are dropped and counted.
    spool_limit: Annotated[int, msgspec.Meta(ge=2**20)] = 256 * 2**20
    sampling: SamplingSettings = msgspec.field(default_factory=SamplingSettings)
    #: Directory of the control socket and of state that need not survive a reboot.
    run_directory: NonEmptyPath = msgspec.field(default_factory=lambda: str(paths.run_directory()))
    #: Regular expressions of Slurm's cgroup v1 directories if not "slurm" or "slurm_NODE".
    cgroup_roots: list[str] = msgspec.field(default_factory=list)
    #: Regular expressions of Slurm's cgroup v2 scopes if not "slurmstepd.scope" (group "node").
    cgroup_scopes: list[str] = msgspec.field(default_factory=list)
    #: Measure only jobs of the node of that name, where several slurmd share a machine.
    only_this_node: bool = False
    #: Query Slurm for the owners of jobs that no prolog announced.
    query_slurm: bool = True
    #: Seconds between two samples of the node as a whole; 0 or false turns them off.
    node_interval: SecondsOrOff = 60.0
    #: Names of additional samplers.
    samplers: list[str] = msgspec.field(default_factory=lambda: ["pressure", "gpu"])
    #: Seconds between two batches.
    send_interval: Seconds = 10.0
    #: Certificate authorities (PEM file) of the server; by default those of the system.
    tls_ca: str | None = None
    #: Certificate (PEM file) of the node, where the server requires one. Reloaded on change.
    tls_certificate: str | None = None
    #: Private key (PEM file) of tls_certificate. Reloaded on change.
    tls_key: str | None = None
    #: Also record the scripts of interpreters, read from command lines; see docs/security.md.
    name_scripts: bool = False
    #: User ids whose jobs are not measured.
    ignore_uids: list[Annotated[int, msgspec.Meta(ge=0)]] = msgspec.field(default_factory=list)
    metrics: MetricsSettings = msgspec.field(default_factory=MetricsSettings)
    push: PushSettings = msgspec.field(default_factory=PushSettings)
    remote_write: RemoteWriteSettings = msgspec.field(default_factory=RemoteWriteSettings)

    def __post_init__(self) -> None:
        if self.node_interval is True or 0 < self.node_interval < 1:
            raise ConfigError(
                f"node_interval: is {str(self.node_interval).lower()}; expected 1 to 3600 seconds, "
                "or 0 or false for none"
            )


class SoftwareSettings(msgspec.Struct, kw_only=True):
    """Software names of executables."""

    #: Rule files in the order in which they apply; rule files of SAMS are accepted.
    rules: list[str] = msgspec.field(default_factory=list)
    #: Apply the built-in rules after them.
    ready_rules: bool = True
    #: Seconds between two updates of names and rollups in `jobsight serve`; 0 disables them.
    interval: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 60.0


Price = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class PriceSettings(msgspec.Struct, kw_only=True):
    """What resources cost in one currency: money, credits, grams of CO2."""

    #: Price of a core hour.
    core_hour: Price = 0.0
    #: Price of a GPU hour.
    gpu_hour: Price = 0.0
    #: Price of 10^9 bytes of memory for an hour.
    memory_gb_hour: Price = 0.0
    #: Price of a kilowatt hour.
    energy_kwh: Price = 0.0


class FindingsSettings(msgspec.Struct, kw_only=True):
    """Findings about runs, by rules."""

    #: Rule files of the site; see docs/findings-rules.md.
    rules: list[str] = msgspec.field(default_factory=list)
    #: Apply the shipped rules.
    shipped_rules: bool = True
    #: Seconds that a run must last so that rules decide, unless a rule has its own minimum.
    minimum_elapsed: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)] = 600.0
    #: Share of a run that its figures must stand for, 0 to 1, unless a rule has its own minimum.
    minimum_coverage: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.8
    #: Seconds between two rounds over ended and changed runs in `jobsight serve`; 0 disables them.
    interval: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 20.0
    #: Seconds between two rounds over running jobs in `jobsight serve`; 0 disables them.
    running_interval: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 300.0
    #: Prices by currency, such as [findings.prices.EUR]; costs are shown in each of them.
    prices: dict[str, PriceSettings] = msgspec.field(default_factory=dict)


class WebhookSettings(msgspec.Struct, kw_only=True):
    """Alerts for staff: new findings about the system, as signed JSON."""

    #: Address that alerts are posted to; none by default.
    url: str | None = None
    #: File with the secret that signs alerts.
    secret_file: str | None = None
    #: Count the alerts that would be sent, and send none.
    dry_run: bool = True
    #: Lowest severity of the findings that are sent.
    severity: Literal["info", "warning", "critical"] = "warning"
    #: Seconds between two rounds.
    interval: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 300.0


class MailSettings(msgspec.Struct, kw_only=True):
    """Mails about jobs: Slurm's MailProg, and what the server sends."""

    #: Directory in which `jobsight mail` leaves requests; the server sends them.
    queue: str = "/var/spool/jobsight/mail"
    #: Seconds between two rounds in `jobsight serve`; 0 sends nothing.
    interval: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 0.0
    #: Host of the mail server.
    host: str = "127.0.0.1"
    #: Port of the mail server.
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 25
    #: How the connection is encrypted.
    tls: Literal["none", "starttls", "tls"] = "none"
    #: File with the certificates of accepted authorities; the system's by default.
    certificates: str | None = None
    #: User for the mail server.
    user: str | None = None
    #: File with the password for the mail server.
    password_file: str | None = None
    #: Seconds for each answer of the mail server; for that to the content of a mail it is 600.
    timeout: Annotated[float, msgspec.Meta(gt=0, le=600)] = 30.0
    #: Address of the sender.
    sender: str = "jobsight@localhost"
    #: Address that gets mails back, for `jobsight mail bounce`; the sender by default.
    bounces: str | None = None
    #: Domain of a recipient that is a user name; without it the name alone is used.
    domain: str | None = None
    #: Address of the pages, for links.
    url: str | None = None
    #: Seconds to wait for the last figures of an ended run, and for its findings.
    wait: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 120.0
    #: Seconds for which the mail about tasks of an array waits for the end of its other tasks.
    array_wait: Annotated[float, msgspec.Meta(ge=0, le=604_800)] = 3600.0
    #: Mails to each user about their runs of the last complete week or month.
    digest: Literal["off", "weekly", "monthly"] = "off"
    #: Mails to the coordinators of each account about its runs of the last week or month.
    account_digest: Literal["off", "weekly", "monthly"] = "off"
    #: Who gets the digests of an account in addition to its coordinators: user names or addresses.
    account_recipients: dict[str, list[str]] = msgspec.field(default_factory=dict)
    #: Record which digests would be sent, and send none.
    digest_dry_run: bool = True
    #: Days on which digests and alerts are sent, in UTC.
    working_days: list[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]] = msgspec.field(
        default_factory=lambda: ["mon", "tue", "wed", "thu", "fri"]
    )
    #: Dates on which they are not sent, such as 2026-12-25.
    holidays: list[str] = msgspec.field(default_factory=list)
    #: File with the key that signs links to unsubscribe; created in mail.queue by default.
    key_file: str | None = None
    webhook: WebhookSettings = msgspec.field(default_factory=WebhookSettings)


#: The roles of user accounts; jobsight.access.viewer says what each of them sees.
RoleName = Literal["user", "coordinator", "mentor", "staff", "auditor"]


def _check_no_credentials(name: str, address: str) -> None:
    """Refuse a password in an address that messages name."""
    if "@" in address:
        raise ConfigError(f"{name}: expected a URL without user name and password")


class OidcSettings(msgspec.Struct, kw_only=True):
    """Sign-in by OpenID Connect: authorization code with PKCE."""

    #: URL of the issuer, such as "https://login.example.org/realms/hpc"; without it OIDC is off.
    issuer: str | None = None
    #: Name of this client at the issuer.
    client_id: str | None = None
    #: File with the secret of this client; a public client has none.
    client_secret_file: str | None = None
    #: Public URL of these pages; the issuer returns browsers to it with /sign-in/oidc/return.
    url: str | None = None
    #: Requested scopes.
    scopes: list[str] = msgspec.field(default_factory=lambda: ["openid", "profile"])
    #: Claim that has the user name of the cluster.
    user_claim: str = "preferred_username"
    #: Claim that has the groups or roles, by which access.oidc.roles decides.
    groups_claim: str = "groups"
    #: Role by group, such as {hpc-staff = "staff"}; empty leaves roles to `jobsight user role`.
    roles: dict[str, RoleName] = msgspec.field(default_factory=dict)
    #: Refuse users who are in none of the groups of access.oidc.roles.
    only_groups: bool = False
    #: Text of the link on the sign-in page.
    title: str = "Single sign-on"
    #: Certificate authorities (PEM file) of the issuer; by default those of the system.
    ca: str | None = None
    #: Timeout of one request to the issuer in seconds.
    timeout: Annotated[float, msgspec.Meta(gt=0, le=60)] = 10.0

    def __post_init__(self) -> None:
        if self.issuer is None:
            return
        for name in ("client_id", "url"):
            if not getattr(self, name):
                raise ConfigError(f"{name}: is required with access.oidc.issuer")
        for name in ("issuer", "url"):
            if not str(getattr(self, name)).startswith(("https://", "http://")):
                raise ConfigError(f"{name}: expected a URL such as https://login.example.org")
            _check_no_credentials(name, str(getattr(self, name)))
        if "openid" not in self.scopes:
            raise ConfigError('scopes: expected a list that contains "openid"')
        _check_groups(self.roles, only_groups=self.only_groups)


class LdapSettings(msgspec.Struct, kw_only=True):
    """Sign-in with the password of a directory: LDAP bind."""

    #: URL of the directory, "ldaps://HOST" or "ldap://HOST"; without it LDAP is off.
    url: str | None = None
    #: Encrypt an ldap:// connection by StartTLS; without it passwords travel in clear text.
    starttls: bool = True
    #: Certificate authorities (PEM file) of the directory; by default those of the system.
    ca: str | None = None
    #: DN of a user, such as "uid={user},ou=people,dc=example,dc=org"; or use search_base.
    bind_template: str | None = None
    #: DN below which the entry of a user is searched.
    search_base: str | None = None
    #: Filter that finds the entry of a user.
    search_filter: str = "(uid={user})"
    #: DN that searches; without it the search is anonymous.
    bind_dn: str | None = None
    #: File with the password of bind_dn.
    bind_password_file: str | None = None
    #: DN below which the groups of a user are searched; without it there are no groups.
    group_base: str | None = None
    #: Filter that finds the groups of a user; {dn} is the DN of the user.
    group_filter: str = "(|(memberUid={user})(member={dn}))"
    #: Attribute with the name of a group.
    group_attribute: str = "cn"
    #: Role by group, such as {hpc-staff = "staff"}; empty leaves roles to `jobsight user role`.
    roles: dict[str, RoleName] = msgspec.field(default_factory=dict)
    #: Refuse users who are in none of the groups of access.ldap.roles.
    only_groups: bool = False
    #: Timeout of one request to the directory in seconds.
    timeout: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5.0

    def __post_init__(self) -> None:
        if self.url is None:
            return
        if not self.url.startswith(("ldap://", "ldaps://")):
            raise ConfigError("url: expected ldaps://HOST or ldap://HOST")
        _check_no_credentials("url", self.url)
        if (self.bind_template is None) == (self.search_base is None):
            raise ConfigError("bind_template: expected either bind_template or search_base")
        if self.bind_template is not None and "{user}" not in self.bind_template:
            raise ConfigError("bind_template: expected a DN with {user}")
        if "{user}" not in self.search_filter:
            raise ConfigError("search_filter: expected a filter with {user}")
        if self.bind_dn is not None and self.bind_password_file is None:
            raise ConfigError("bind_password_file: is required with bind_dn")
        if self.roles and self.group_base is None:
            raise ConfigError("roles: need group_base, below which groups are searched")
        _check_groups(self.roles, only_groups=self.only_groups)


class ProxySettings(msgspec.Struct, kw_only=True):
    """Sign-in by a proxy that has authenticated the user: Open OnDemand, Shibboleth."""

    #: Addresses or CIDR ranges of the proxies whose header is trusted; empty disables it.
    addresses: list[str] = msgspec.field(default_factory=list)
    #: Header with the user name. The proxy must set or remove it in every request.
    header: str = "X-Remote-User"
    #: Header with the groups, separated by commas or semicolons; empty if there is none.
    groups_header: str = ""
    #: Role by group, such as {hpc-staff = "staff"}; empty leaves roles to `jobsight user role`.
    roles: dict[str, RoleName] = msgspec.field(default_factory=dict)
    #: Refuse users who are in none of the groups of access.proxy.roles.
    only_groups: bool = False

    def __post_init__(self) -> None:
        for address in self.addresses:
            try:
                network = ipaddress.ip_network(address, strict=False)
            except ValueError:
                raise ConfigError(
                    f"addresses: {address!r} is not an address or CIDR range"
                ) from None
            if network.prefixlen == 0:
                raise ConfigError(f"addresses: {address!r} would trust the header of everybody")
        for name in ("header", "groups_header"):
            if not re.fullmatch(r"[A-Za-z0-9-]*", getattr(self, name)) or not self.header:
                raise ConfigError(f"{name}: expected the name of a header, such as X-Remote-User")
        if self.roles and not self.groups_header:
            raise ConfigError("roles: need groups_header")
        _check_groups(self.roles, only_groups=self.only_groups)


def _check_groups(roles: dict[str, RoleName], *, only_groups: bool) -> None:
    if only_groups and not roles:
        raise ConfigError("only_groups: needs roles, whose groups may sign in")


class AccessSettings(msgspec.Struct, kw_only=True):
    """Who may sign in, and for how long."""

    #: Accept passwords of accounts that `jobsight user add` created.
    local: bool = True
    #: Hours after the last request until a session ends.
    session_idle: Annotated[float, msgspec.Meta(gt=0, le=8784)] = 12.0
    #: Hours after the sign-in until a session ends in any case.
    session_lifetime: Annotated[float, msgspec.Meta(gt=0, le=8784)] = 168.0
    #: Failed sign-ins of one account from one address within 15 minutes; more get status 429.
    max_failures: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 5
    #: Coordinators of Slurm's accounts see the runs of those accounts.
    slurm_coordinators: bool = True
    oidc: OidcSettings = msgspec.field(default_factory=OidcSettings)
    ldap: LdapSettings = msgspec.field(default_factory=LdapSettings)
    proxy: ProxySettings = msgspec.field(default_factory=ProxySettings)


class Settings(msgspec.Struct, kw_only=True):
    """All settings."""

    #: Name of the cluster, a part of every run's key.
    cluster: str = ""
    log: LogSettings = msgspec.field(default_factory=LogSettings)
    store: StoreSettings = msgspec.field(default_factory=StoreSettings)
    server: ServerSettings = msgspec.field(default_factory=ServerSettings)
    access: AccessSettings = msgspec.field(default_factory=AccessSettings)
    agent: AgentSettings = msgspec.field(default_factory=AgentSettings)
    scheduler: SchedulerSettings = msgspec.field(default_factory=SchedulerSettings)
    #: Clusters that one process scrapes: for each name the settings that differ from scheduler.
    clusters: dict[str, SchedulerSettings] = msgspec.field(default_factory=dict)
    sinks: SinksSettings = msgspec.field(default_factory=SinksSettings)
    software: SoftwareSettings = msgspec.field(default_factory=SoftwareSettings)
    findings: FindingsSettings = msgspec.field(default_factory=FindingsSettings)
    export: ExportSettings = msgspec.field(default_factory=ExportSettings)
    archive: ArchiveSettings = msgspec.field(default_factory=ArchiveSettings)
    mail: MailSettings = msgspec.field(default_factory=MailSettings)

    def scrapes(self) -> bool:
        """Whether the server scrapes a scheduler or feeds a sink."""
        scraped = any(each.scheduler.interval for each in self.each_cluster())
        return scraped or bool(self.sinks.mongodb.url or self.sinks.opensearch.url)

    def own_cluster(self) -> str:
        """The cluster of this machine; without Slurm the machine is a cluster by itself."""
        return self.cluster or short_host_name()

    def each_cluster(self) -> list[Settings]:
        """The settings of every scraped cluster, each with its own name.

        Without ``clusters`` the name may be empty: Slurm reports it
        (:mod:`jobsight.scheduler.cluster_name`).
        """
        if not self.clusters:
            return [self]
        return [
            msgspec.structs.replace(self, cluster=name, scheduler=scheduler, clusters={})
            for name, scheduler in self.clusters.items()
        ]
