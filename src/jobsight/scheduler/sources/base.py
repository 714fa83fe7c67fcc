"""The contract of sources, and the choice of one: as configured, or the first that answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from jobsight.config import paths
from jobsight.config.settings import Settings
from jobsight.errors import ConfigError
from jobsight.scheduler.adapters.policy import Policy
from jobsight.scheduler.records import Jobs, Nodes, Partitions, SchedulerError, SourceError
from jobsight.scheduler.sources.commands import SshRunner, StreamRunner, local_runner
from jobsight.scheduler.sources.json import JsonSource
from jobsight.scheduler.sources.onsite import OnsiteSource, from_command, from_file
from jobsight.scheduler.sources.pyslurm import PySlurmSource
from jobsight.scheduler.sources.recorded import RecordedSource
from jobsight.scheduler.sources.replies import Replies
from jobsight.scheduler.sources.rest import RestSource
from jobsight.scheduler.sources.scripts import ScriptReader
from jobsight.scheduler.sources.text import TextSource

logger = logging.getLogger(__name__)


class Source(Protocol):
    """A way to query one cluster. Each method raises :class:`SourceError` if there is no reply
    and :class:`AdaptError` if the reply is not understood."""

    #: "rest", "json", "text", "pyslurm", "onsite", "recorded".
    name: str
    #: Whether one query returns all of the accounting at the same cost as a part of it.
    whole: bool

    def probe(self) -> str:
        """The cheapest query; returns what answered."""
        ...

    def cluster_name(self) -> str | None:
        """ClusterName as Slurm reports it; None if the reply has no name, or several."""
        ...

    def queue(self) -> Jobs:
        """The controller's jobs: pending, running, or ended a few minutes ago."""
        ...

    def accounting(self, since: int, until: int) -> Jobs:
        """The accounting's runs that were active or ended between two times."""
        ...

    def accounting_of(self, job_ids: Sequence[int]) -> Jobs:
        """The accounting's runs of these jobs, however old."""
        ...

    def nodes(self) -> Nodes: ...

    def partitions(self) -> Partitions: ...

    def policy(self) -> Policy:
        """Reservations, QOS and associations; empty if the source cannot report them."""
        ...


class Choice(NamedTuple):
    """A source, and why it was chosen."""

    source: Source
    reason: str
    #: Reads the batch script of a job, if the site has enabled that.
    read_script: ScriptReader | None = None


def open_source(settings: Settings, run: StreamRunner | None = None) -> Choice:
    """The configured source, without a query; with "auto" the first that answers."""
    if run is None:
        ssh, directory = settings.scheduler.ssh, settings.scheduler.slurm_directory
        run = SshRunner(ssh, directory) if ssh.host else local_runner(directory)
    choice = _choose(settings, run)
    logger.debug("cluster %s: source chosen: %s", settings.cluster, choice.reason)
    if not settings.scheduler.scripts:
        return choice
    return choice._replace(read_script=ScriptReader(run, settings.scheduler.timeout))


def _choose(settings: Settings, run: StreamRunner) -> Choice:
    wanted = settings.scheduler.source
    if wanted != "auto":
        return Choice(_FACTORIES[wanted](settings, run), f"{wanted}: set by scheduler.source")
    if settings.scheduler.recorded:
        return Choice(_recorded(settings, run), "recorded: scheduler.recorded names a directory")
    refused: list[str] = []
    for name in ("rest", "json", "text", "pyslurm"):
        try:
            source = _FACTORIES[name](settings, run)
            answer = source.probe()
            if isinstance(source, JsonSource | RestSource):
                source.check_exit_codes()
        except (SchedulerError, ConfigError) as error:
            refused.append(f"{name}: {error}")
            logger.debug("cluster %s: source %s is not used: %s", settings.cluster, name, error)
            continue
        why = f"{name}: {answer}"
        return Choice(source, f"{why} ({'; '.join(refused)})" if refused else why)
    raise SourceError(f"no source answers for Slurm: {'; '.join(refused)}")


def _replies(settings: Settings) -> Replies | None:
    scheduler = settings.scheduler
    if not scheduler.keep_replies:
        return None
    directory = paths.store_directory(settings.store.location) / "replies"
    return Replies(
        directory, settings.cluster, scheduler.keep_replies, scheduler.keep_replies_limit
    )


def _rest(settings: Settings, run: StreamRunner) -> Source:
    rest = settings.scheduler.rest
    if not rest.url:
        raise ConfigError("scheduler.rest.url is not set")
    return RestSource(
        settings.cluster,
        rest.url,
        user=rest.user,
        token_file=rest.token_file,
        timeout=settings.scheduler.timeout,
        replies=_replies(settings),
    )


def _json(settings: Settings, run: StreamRunner) -> Source:
    return JsonSource(
        settings.cluster,
        timeout=settings.scheduler.timeout,
        run=run,
        replies=_replies(settings),
    )


def _text(settings: Settings, run: StreamRunner) -> Source:
    return TextSource(
        settings.cluster,
        timeout=settings.scheduler.timeout,
        run=run,
        replies=_replies(settings),
    )


def _recorded(settings: Settings, run: StreamRunner) -> Source:
    if not settings.scheduler.recorded:
        raise ConfigError("scheduler.recorded is not set; expected the directory of the replies")
    return RecordedSource(settings.cluster, settings.scheduler.recorded)


def _pyslurm(settings: Settings, run: StreamRunner) -> Source:
    scheduler = settings.scheduler
    return PySlurmSource(
        settings.cluster,
        timeout=scheduler.timeout,
        run=run,
        python=scheduler.pyslurm_python,
        clock=time.time_ns,
    )


def _onsite(settings: Settings, run: StreamRunner) -> Source:
    scheduler = settings.scheduler
    if scheduler.onsite_file:
        return OnsiteSource(settings.cluster, from_file(Path(scheduler.onsite_file)))
    return OnsiteSource(settings.cluster, from_command(run, scheduler.timeout, scheduler.history))


_FACTORIES: dict[str, Callable[[Settings, StreamRunner], Source]] = {
    "rest": _rest,
    "json": _json,
    "text": _text,
    "pyslurm": _pyslurm,
    "onsite": _onsite,
    "recorded": _recorded,
}
