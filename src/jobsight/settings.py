"""The settings of every part, with their defaults; :mod:`jobsight.config` reads them.

The comment above a field becomes its line in docs/settings.md.
"""

from __future__ import annotations

import socket
from typing import Annotated

import msgspec

from jobsight import places
from jobsight.archive.settings import ArchiveSettings
from jobsight.export.settings import ExportSettings
from jobsight.prometheus.settings import MetricsSettings, PushSettings, RemoteWriteSettings
from jobsight.scheduler.settings import SchedulerSettings
from jobsight.scheduler.sinks.settings import SinksSettings
from jobsight.server.settings import ServerSettings

Seconds = Annotated[float, msgspec.Meta(ge=0.01, le=86400)]
Days = Annotated[float, msgspec.Meta(ge=0, le=36500)]
#: An empty one would be the folder in which a command happens to be started.
Place = Annotated[str, msgspec.Meta(min_length=1)]


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
    location: Place = msgspec.field(default_factory=lambda: str(places.store_file()))
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
    spool: Place = msgspec.field(default_factory=lambda: str(places.spool_folder()))
    #: Bytes; what does not fit any more is dropped, counted and shown.
    spool_limit: Annotated[int, msgspec.Meta(ge=2**20)] = 256 * 2**20
    sampling: SamplingSettings = msgspec.field(default_factory=SamplingSettings)
    #: What need not survive a reboot: the socket of the agent and the births of running jobs.
    run_folder: Place = msgspec.field(default_factory=lambda: str(places.run_folder()))
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
