"""The name of a cluster that the settings do not name: Slurm is queried for it.

The agents take the name from the slurm.conf of their node. A server that queries Slurm over SSH or
REST may have no such file, and must store the scheduler's records under the same name. The source
that is scraped is queried once in each process, and the store remembers the answer for a start at
which Slurm does not answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from jobsight.config.settings import Settings
from jobsight.errors import ConfigError
from jobsight.scheduler.records import SchedulerError
from jobsight.scheduler.sources.base import Choice, open_source
from jobsight.scheduler.state import read_cluster_name, write_cluster_name
from jobsight.store.database import Database
from jobsight.store.write.validation import BatchError, check_name

logger = logging.getLogger(__name__)

_HINT = (
    "set `cluster` to the ClusterName that `scontrol show config` prints on a machine of the "
    "cluster, in lower case"
)

Choose = Callable[[Settings], Choice]


class ClusterNameError(SchedulerError):
    """Neither the settings nor Slurm nor the store have the name of the cluster."""


def with_cluster_name(
    settings: Settings, database: Database, choose: Choose = open_source
) -> Settings:
    """The settings of one cluster with its name: as set, as Slurm reports it, or as remembered."""
    if settings.cluster:
        return settings
    remembered = read_cluster_name(database, settings)
    try:
        name = _ask(settings, choose)
    except (SchedulerError, ConfigError) as error:
        if remembered is None:
            raise ClusterNameError(
                f"the name of the cluster is not known: {error}; {_HINT}"
            ) from None
        name = remembered
    if name != remembered:
        if remembered is not None:
            logger.warning("the cluster %s is named %s now", remembered, name)
        write_cluster_name(database, settings, name)
    return msgspec.structs.replace(settings, cluster=name)


def cluster_of_agents(settings: Settings, database: Database, choose: Choose = open_source) -> str:
    """The name under which the agents of this server send, for a command that needs it now.

    A server that queries no Slurm is a cluster by itself, with the name of the host.
    """
    if settings.cluster:
        return settings.cluster
    if settings.clusters:
        if len(settings.clusters) > 1:
            raise ConfigError(
                f"the settings have several clusters; expected --cluster with one of "
                f"{', '.join(sorted(settings.clusters))}"
            )
        return next(iter(settings.clusters))
    name = read_cluster_name(database, settings)
    if name is None and settings.scheduler.is_used():
        name = with_cluster_name(settings, database, choose).cluster
    return name or settings.own_cluster()


def _ask(settings: Settings, choose: Choose) -> str:
    source = choose(settings).source
    # In lower case, as the accounting and the agents have it.
    name = (source.cluster_name() or "").strip().lower()
    if not name:
        raise SchedulerError(f"Slurm does not report it to the source {source.name}")
    try:
        check_name("cluster's name", name)
    except BatchError as error:
        raise SchedulerError(str(error)) from None
    return name
