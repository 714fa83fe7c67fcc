"""``jobsight agent``: measures all jobs of this node in one process, or one with ``--jobid``."""

from __future__ import annotations

import argparse
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jobsight import __version__
from jobsight.agent.registry import load_part
from jobsight.cli.arguments import CommandParser, add_config_option, log_level
from jobsight.cli.log import start_logging
from jobsight.config import paths
from jobsight.config.load import load_settings
from jobsight.config.settings import Settings
from jobsight.errors import ConfigError, JobsightError
from jobsight.util.locks import LockFile
from jobsight.util.service import (
    Background,
    go_to_background,
    make_absolute,
    stopping_on_signals,
)
from jobsight.util.systemd import notify, watchdog_interval

if TYPE_CHECKING:
    from jobsight.agent.collector import Collector
    from jobsight.agent.jobs.cgroup_watcher import CgroupWatcher
    from jobsight.agent.sampling import SamplerPlan
    from jobsight.model import JobInfo
    from jobsight.sams.node.settings import SamsSettings
    from jobsight.transport.spool import Spool

logger = logging.getLogger("jobsight.agent")


def main(arguments: Sequence[str]) -> int:
    """Measure the jobs of this node until stopped.

    One process measures all jobs and sends batches to the server of the settings. With --jobid it
    measures one job as sams-collector does, with a settings file of SAMS.
    """
    parser = CommandParser("agent", main.__doc__)
    add_config_option(parser)
    parser.add_argument("--jobid", metavar="N", help="Measure only this job (raw job id)")
    parser.add_argument("--node", metavar="NAME", help="Name of the node (default: the host name)")
    parser.add_argument("--daemon", action="store_true", help="Run in the background")
    parser.add_argument("--pidfile", metavar="FILE", help="Write the PID to this file and lock it")
    parser.add_argument("--logfile", metavar="FILE", help="Log to this file")
    parser.add_argument(
        "--loglevel",
        dest="log_level",
        type=log_level,
        metavar="LEVEL",
        help="Same as --log-level",
    )
    parser.add_argument(
        "--test-output", metavar="FILE", help="Pass this JSON document to every output and exit"
    )
    parser.add_argument(
        "--version", action="version", version=f"jobsight {__version__}", help="Show the version"
    )
    return parser.run(
        lambda **options: _main(argparse.Namespace(**options)),
        arguments,
        # In the background, where no file stays open, and with the settings of SAMS.
        log=lambda options: "own",
    )


def _main(options: argparse.Namespace) -> int:
    if options.jobid is not None:
        from jobsight.cli.compat.collector import collect

        return collect(options)
    if options.test_output:
        raise ConfigError("--test-output: needs --jobid, the id that the outputs get")
    make_absolute(options)
    background = go_to_background() if options.daemon else None
    try:
        return _run(options, background)
    except JobsightError as error:
        if background is None:
            raise
        logger.error("%s", error)
        background.report(error.exit_code, f"jobsight: {error}\n")
        return error.exit_code
    except Exception:
        logger.exception("ended by a fault")
        if background is not None:
            background.report(1, "jobsight: ended by a fault before it was ready\n")
        raise


def _run(options: argparse.Namespace, background: Background | None) -> int:
    """With a settings file of SAMS, run its samplers and outputs for every job; otherwise send
    batches to the server."""
    with ExitStack() as stack:
        file = Path(options.config) if options.config else None
        if file and file.suffix in (".yaml", ".yml"):
            # Imported only here: the memory of the agent counts on every node.
            from jobsight.sams.node.settings import is_sams_tree, settings_of
            from jobsight.sams.settings import read_tree

            tree = read_tree(file)
            if is_sams_tree(tree):
                return _follow_as_sams(options, settings_of(tree, str(file)), stack, background)
        settings = load_settings(file)
        start_logging(
            options.log_level,
            options.config,
            service=True,
            file=options.logfile,
            stream="none" if background else "stderr",
        )
        _take_pidfile(options, stack)
        return _serve(options, settings, background)


def _follow_as_sams(
    options: argparse.Namespace,
    sams: SamsSettings,
    stack: ExitStack,
    background: Background | None,
) -> int:
    from jobsight.cli.compat.collector import follow, prepare_log

    node = options.node or load_settings().agent.node
    prepare_log(options, sams, job_id="agent", node=node, background=background)
    _take_pidfile(options, stack)
    return follow(sams, None, node, background)


def _take_pidfile(options: argparse.Namespace, stack: ExitStack) -> None:
    if options.pidfile:
        stack.callback(LockFile(Path(options.pidfile), "an agent with this pid file").close)


def _serve(options: argparse.Namespace, settings: Settings, background: Background | None) -> int:
    from jobsight.agent.agent import Agent
    from jobsight.agent.exporter.service import ExporterService
    from jobsight.agent.samplers.whole_node import WholeNode
    from jobsight.transport.spool import Spool
    from jobsight.util.memory import return_free_memory

    trim = return_free_memory()
    spool = Spool(Path(settings.agent.spool), settings.agent.spool_limit)
    sampling = settings.agent.sampling
    node = options.node or settings.agent.node
    exporter = ExporterService(settings.agent)
    try:
        with _delivered(spool, settings) as after_flush:
            agent = Agent(
                cluster=settings.own_cluster(),
                node=node,
                spool=spool,
                samplers=exporter.plans(sampler_plans(settings.agent.samplers)),
                only_this_node=settings.agent.only_this_node,
                watcher=watcher_of(settings),
                ignore_uids=settings.agent.ignore_uids,
                intervals=(
                    (60, sampling.first_minute),
                    (3600, sampling.first_hour),
                    (None, sampling.later),
                ),
                flush_interval=settings.agent.send_interval,
                run_directory=paths.private_directory(Path(settings.agent.run_directory)),
                after_flush=_both(trim, after_flush),
                query_jobs=job_query(settings, node),
                listen=True,
            )
            agent.collector.tracker.names.include_scripts = settings.agent.name_scripts
            if settings.agent.node_interval:
                agent.collector.watch_node(WholeNode(), settings.agent.node_interval)
            with stopping_on_signals(agent.stop):
                exporter.start(agent)
                exporter.listen_to_plugin(agent, Path(settings.agent.run_directory))
                if background is not None:
                    background.report(0)
                _report_to_systemd(agent.collector)
                agent.run()
                notify("STOPPING=1")
    finally:
        exporter.close()
        spool.close()
    return 0


def _report_to_systemd(collector: Collector) -> None:
    """Ready with the first pass of the loop, after the first scan; alive as long as it runs."""

    def report(state: str) -> None:
        notify(state)

    collector.at(0, partial(report, "READY=1"))
    interval = watchdog_interval()
    if interval is not None:
        collector.every(interval, partial(report, "WATCHDOG=1"))


def _both(first: Callable[[], None], second: Callable[[], None] | None) -> Callable[[], None]:
    def call() -> None:
        first()
        if second is not None:
            second()

    return call


def watcher_of(settings: Settings) -> CgroupWatcher:
    from jobsight.agent.jobs.cgroup_watcher import DEFAULT_SCOPES, DEFAULT_V1_ROOTS, CgroupWatcher

    roots, scopes = settings.agent.cgroup_roots, settings.agent.cgroup_scopes
    try:
        return CgroupWatcher(v1_roots=roots or DEFAULT_V1_ROOTS, scopes=scopes or DEFAULT_SCOPES)
    except re.error as error:
        raise ConfigError(
            f"agent.cgroup_roots, agent.cgroup_scopes: {error.pattern!r} is no regular "
            f"expression: {error}"
        ) from None


def sampler_plans(names: list[str]) -> list[SamplerPlan]:
    """The samplers of the settings; a name that does not exist is an error before any job."""
    from jobsight.agent.sampling import SamplerPlan

    def plan(name: str) -> SamplerPlan:
        kind = load_part("sampler", name)
        return SamplerPlan(name, lambda view: kind(), float("inf"))

    return [plan(name) for name in names]


def job_query(settings: Settings, node: str) -> Callable[[], list[JobInfo]] | None:
    """The query for the jobs of this node; None if it is disabled or Slurm is not installed."""
    if not settings.agent.query_slurm:
        return None
    from jobsight.scheduler.adapters.squeue import jobs_of_node
    from jobsight.scheduler.sources.commands import path_environment, run_command

    environment = path_environment(settings.scheduler.slurm_directory)
    if shutil.which("squeue", path=(environment or os.environ).get("PATH")) is None:
        return None
    run = partial(run_command, environment=environment)

    def query() -> list[JobInfo]:
        answer = jobs_of_node(node, cluster=settings.own_cluster(), run=run)
        if not answer.known:
            raise JobsightError(answer.reason)
        return list(answer.jobs)

    return query


@contextmanager
def _delivered(spool: Spool, settings: Settings) -> Iterator[Callable[[], None] | None]:
    """Deliver in the background, and once more at the end. Without a server the spool fills up to
    its limit; dropped batches are counted."""
    from jobsight.transport.delivery import Delivery, DeliveryThread, server_target

    target = server_target(settings, settings.store.location)
    if target is None:
        logger.warning("no server is known (server.url): batches are kept in %s", spool.directory)
        yield None
        return
    delivery = Delivery(spool, target, logger.warning)
    thread = DeliveryThread(delivery)
    thread.start()
    try:
        yield thread.notify
    finally:
        thread.end()
        delivery.deliver()
