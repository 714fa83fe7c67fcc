"""What every source can be asked.

Which source to ask: the one that the settings name, or the best that answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from jobsight.config import paths
from jobsight.config.settings import Settings
from jobsight.errors import ConfigError
from jobsight.scheduler.adapters.policy import Policy
from jobsight.scheduler.records import Jobs, Nodes, Partitions, SchedulerError, SourceError
from jobsight.scheduler.sources.commands import SshRunner, StreamRunner, stream_command
from jobsight.scheduler.sources.json import JsonSource
from jobsight.scheduler.sources.onsite import OnsiteSource, from_command, from_file
from jobsight.scheduler.sources.pyslurm import PySlurmSource
from jobsight.scheduler.sources.recorded import RecordedSource
from jobsight.scheduler.sources.replies import Replies
from jobsight.scheduler.sources.rest import RestSource
from jobsight.scheduler.sources.text import TextSource


class Source(Protocol):
    """One way to ask one cluster. Each method raises :class:`SourceError` where no answer comes
    and :class:`AdaptError` where it is not understood."""

    #: "json", "text", "rest", "recorded".
    name: str
    #: Its accounting costs the same however long the time that is asked for, so it is asked once.
    whole: bool

    def probe(self) -> str:
        """Ask the least there is; the words say what answered."""
        ...

    def queue(self) -> Jobs:
        """The controller's jobs: those that wait, run, or ended within some minutes."""
        ...

    def accounting(self, since: int, until: int) -> Jobs:
        """The accounting's jobs that were alive or ended between two times, each run by itself."""
        ...

    def accounting_of(self, job_ids: Sequence[int]) -> Jobs:
        """The accounting's runs of these jobs, however old."""
        ...

    def nodes(self) -> Nodes: ...

    def partitions(self) -> Partitions: ...

    def policy(self) -> Policy:
        """Reservations, QOS and associations; empty where a source cannot tell them."""
        ...


class Choice(NamedTuple):
    """The source, and why this one."""

    source: Source
    reason: str


def open_source(settings: Settings, run: StreamRunner | None = None) -> Choice:
    """The source that the settings name, without asking it; with "auto" the first that answers."""
    if run is None:
        ssh = settings.scheduler.ssh
        run = SshRunner(ssh) if ssh.host else stream_command
    wanted = settings.scheduler.source
    if wanted != "auto":
        return Choice(_MAKERS[wanted](settings, run), f"{wanted}: set by scheduler.source")
    if settings.scheduler.recorded:
        return Choice(_recorded(settings, run), "recorded: scheduler.recorded names a folder")
    refused: list[str] = []
    for name in ("rest", "json", "text", "pyslurm"):
        try:
            source = _MAKERS[name](settings, run)
            said = source.probe()
            if isinstance(source, JsonSource):
                source.check_exit_codes()
        except (SchedulerError, ConfigError) as error:
            refused.append(f"{name}: {error}")
            continue
        why = f"{name}: {said}"
        return Choice(source, f"{why} ({'; '.join(refused)})" if refused else why)
    raise SourceError(f"no source of Slurm answers: {'; '.join(refused)}")


def _replies(settings: Settings) -> Replies | None:
    scheduler = settings.scheduler
    if not scheduler.keep_replies:
        return None
    folder = paths.store_directory(settings.store.location) / "replies"
    return Replies(folder, settings.cluster, scheduler.keep_replies, scheduler.keep_replies_limit)


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
        raise ConfigError("scheduler.recorded is not set; it names the folder of the replies")
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


_MAKERS: dict[str, Callable[[Settings, StreamRunner], Source]] = {
    "rest": _rest,
    "json": _json,
    "text": _text,
    "pyslurm": _pyslurm,
    "onsite": _onsite,
    "recorded": _recorded,
}
