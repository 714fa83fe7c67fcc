"""The settings of every part, with their defaults; :mod:`jobsight.config` reads them.

The comment above a field becomes its line in docs/settings.md.
"""

from __future__ import annotations

import socket
from typing import Annotated, Literal

import msgspec

from jobsight import places
from jobsight.archive.settings import ArchiveSettings
from jobsight.export.settings import ExportSettings
from jobsight.prometheus.settings import MetricsSettings
from jobsight.server.settings import ServerSettings

Seconds = Annotated[float, msgspec.Meta(ge=0.01, le=86400)]
Days = Annotated[float, msgspec.Meta(ge=0, le=36500)]


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
    location: str = msgspec.field(default_factory=lambda: str(places.store_file()))
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
    spool: str = msgspec.field(default_factory=lambda: str(places.spool_folder()))
    #: Bytes; what does not fit any more is dropped, counted and shown.
    spool_limit: Annotated[int, msgspec.Meta(ge=2**20)] = 256 * 2**20
    sampling: SamplingSettings = msgspec.field(default_factory=SamplingSettings)
    #: What need not survive a reboot: the socket of the agent and the births of running jobs.
    run_folder: str = msgspec.field(default_factory=lambda: str(places.run_folder()))
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
    #: Users whose jobs are left alone.
    ignore_uids: list[Annotated[int, msgspec.Meta(ge=0)]] = msgspec.field(default_factory=list)
    metrics: MetricsSettings = msgspec.field(default_factory=MetricsSettings)


class RestSettings(msgspec.Struct, kw_only=True):
    """Where slurmrestd is."""

    #: "unix:/run/slurmrestd.socket" or "http://host:6820".
    url: str | None = None
    #: The user whose token it is.
    user: str | None = None
    #: A file that holds a token; read anew for each question. Else $SLURM_JWT.
    token_file: str | None = None


class SchedulerSettings(msgspec.Struct, kw_only=True):
    #: "auto" takes the best that answers.
    source: Literal["auto", "rest", "json", "text", "recorded"] = "auto"
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
    #: A folder of replies that were recorded elsewhere.
    recorded: str | None = None


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
    software: SoftwareSettings = msgspec.field(default_factory=SoftwareSettings)
    export: ExportSettings = msgspec.field(default_factory=ExportSettings)
    archive: ArchiveSettings = msgspec.field(default_factory=ArchiveSettings)
