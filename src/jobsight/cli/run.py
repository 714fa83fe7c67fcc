"""``jobsight run``: any command as a job on this machine, without a scheduler."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from jobsight.agent.collector import Collector
from jobsight.agent.launch.launcher import Launcher, Outcome, RunRequest
from jobsight.cli.destination import deliver_left_overs, next_job_id, open_target
from jobsight.cli.report import find_report
from jobsight.cli.typed import ConfigOption, StoreOption, run_typed
from jobsight.config import paths
from jobsight.config.load import load_settings
from jobsight.config.settings import Settings
from jobsight.errors import CommandError, JobsightError
from jobsight.reports.terminal import print_report
from jobsight.text import parse_size
from jobsight.transport.delivery import Delivery, DeliveryThread
from jobsight.transport.spool import Spool

#: A job that somebody watches on its page is sent more often than one of a node's many.
_SEND_EVERY = 2.0


def run(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND ARGUMENT",
            help="What to run, as a shell would",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the job; else the command's", show_default=False
        ),
    ] = None,
    cpus: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="CPUs asked for; the job is kept to them", show_default=False
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory asked for, such as 512M or 2G; a limit where a cgroup can be made",
            show_default=False,
        ),
    ] = None,
    account: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Account to book the job on", show_default=False),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No report at the end")] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> int:
    """Run a command as a job and report what it did.

    The command's output and exit code stay as they are; the report goes to standard error.
    Put -- before the command: jobsight run --cpus 2 -- make -j2
    """
    if not command or not command[0]:
        raise CommandError("no command was given; right: jobsight run -- COMMAND ARGUMENT...", 2)
    settings = load_settings(config)
    location = store or settings.store.location
    asked = parse_size(memory, "--memory") if memory else None
    with open_target(settings, location) as target:
        folder = paths.private_directory(paths.store_directory(location))
        spools = folder / "spool"
        deliver_left_overs(spools, target)
        request = RunRequest(
            arguments=command,
            job_id=next_job_id(folder),
            name=name,
            cpus=cpus,
            memory=asked,
            account=account,
        )
        spool = Spool(spools / f"run-{request.job_id}", settings.agent.spool_limit)
        try:
            outcome = _launch(request, settings, Delivery(spool, target))
        finally:
            waiting = _close(spool)
    if outcome.left_overs:
        _say(
            "1 process outlived the command and was ended with the job"
            if outcome.left_overs == 1
            else f"{outcome.left_overs} processes outlived the command and were ended with the job"
        )
    if not quiet and not waiting:
        try:
            print_report(find_report(location, str(outcome.run)), Console(stderr=True))
        except (JobsightError, OSError) as error:
            # The command has ended as it has, whatever becomes of the report.
            _say(f"the report cannot be shown: {error}")
    return outcome.status


def _close(spool: Spool) -> int:
    """Close the spool and say what stays in it; gives the number of batches that wait."""
    waiting = len(spool)
    if waiting:
        _say(f"{waiting} batches are kept in {spool.folder}; the next jobsight run delivers them")
    if spool.dropped:
        _say(f"{spool.dropped} batches were dropped: {spool.problem}")
    spool.remove()
    return waiting


def _launch(request: RunRequest, settings: Settings, delivery: Delivery) -> Outcome:
    thread = DeliveryThread(delivery)
    collector = Collector(
        delivery.spool,
        cluster=settings.cluster,
        node=settings.agent.node,
        flush_interval=min(settings.agent.send_every, _SEND_EVERY),
        after_flush=thread.notify,
    )
    collector.tracker.names.scripts = settings.agent.name_scripts
    thread.start()
    try:
        return Launcher(request, collector).run()
    finally:
        collector.close()
        thread.end()
        if not delivery.deliver() and delivery.reason:
            _say(delivery.reason)
        if delivery.refusal:
            refused = delivery.spool.folder / "refused"
            _say(f"a batch was refused and put aside in {refused}: {delivery.refusal}")


def _say(sentence: str) -> None:
    print(f"jobsight: {sentence}", file=sys.stderr)


def main(arguments: Sequence[str]) -> int:
    return run_typed(run, "run", arguments, takes_command=True)
