"""``jobsight run``: runs any command as a job on this machine, without a scheduler.

The batches go to the server if one is configured or running, else directly to the store.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jobsight.agent.collector import Collector
from jobsight.agent.launch.launcher import Launcher, Outcome, RunRequest
from jobsight.cli.arguments import CommandParser, add_store_options, bounded_int
from jobsight.config import paths
from jobsight.config.load import load_settings
from jobsight.config.settings import Settings
from jobsight.errors import CommandError, JobsightError
from jobsight.model import SECOND
from jobsight.text import parse_size
from jobsight.transport.delivery import (
    Delivery,
    DeliveryThread,
    Target,
    server_target,
)
from jobsight.transport.spool import Spool, SpoolError

#: A job that somebody watches on its page is sent more often than one of a node's many.
_SEND_INTERVAL = 2.0


def run(  # noqa: PLR0913 -- a command's parameters are its options
    *,
    command: list[str],
    name: str | None,
    cpus: int | None,
    memory: str | None,
    gpus: int | None,
    account: str | None,
    quiet: bool,
    store: str | None,
    config: str | None,
) -> int:
    """Run a command as a job and report what it used.

    The command's output and exit code are unchanged; the report is written to standard error.
    Put -- before the command: jobsight run --cpus 2 -- make -j2
    """
    if command[:1] == ["--"]:
        command = command[1:]
    if not command or not command[0]:
        raise CommandError("no command was given; expected: jobsight run -- COMMAND ARGUMENT...", 2)
    settings = load_settings(config)
    location = store or settings.store.location
    asked = parse_size(memory, "--memory") if memory else None
    with open_target(settings, location) as target:
        directory = paths.private_directory(
            paths.store_directory(location), "the directory of the store", own=False
        )
        spools = directory / "spool"
        deliver_left_overs(spools, target)
        request = RunRequest(
            arguments=command,
            job_id=next_job_id(directory),
            name=name,
            cpus=cpus,
            memory=asked,
            gpus=gpus,
            account=account,
        )
        spool = Spool(spools / f"run-{request.job_id}", settings.agent.spool_limit)
        try:
            outcome = _launch(request, settings, Delivery(spool, target))
        finally:
            waiting = _close(spool)
    if outcome.leftovers:
        _say(
            "1 process outlived the command and was ended with the job"
            if outcome.leftovers == 1
            else f"{outcome.leftovers} processes outlived the command and were ended with the job"
        )
    for gpu in outcome.unused_gpus:
        _say(f"GPU {gpu} was reserved and never used")
    if not quiet and not waiting:
        try:
            _print_report(location, str(outcome.run), settings)
        except (JobsightError, OSError, ModuleNotFoundError) as error:
            # The exit code is that of the command, with or without a report.
            _say(f"the report cannot be shown: {error}")
    return outcome.status


def _print_report(location: str, run: str, settings: Settings) -> None:
    # A compute node has only the agent's packages; the job itself needs no others.
    from rich.console import Console

    from jobsight.cli.report import find_report
    from jobsight.reports.terminal import print_report

    built = find_report(location, run)
    # Rules are not worth their time for a short command: they would be withheld.
    long = (built.time.elapsed or 0) >= settings.findings.minimum_elapsed * SECOND
    if (long or built.memory.oom_kills) and os.access(location, os.R_OK | os.W_OK):
        _judge(location, settings)
        built = find_report(location, run, settings)
    print_report(built, Console(stderr=True))


def _judge(location: str, settings: Settings) -> None:
    """Find findings at once, where no server does it."""
    from jobsight.findings.service import FindingsService
    from jobsight.store.store import Store

    opened = Store.open(location)
    try:
        FindingsService(opened, settings.findings).judge_once()
    finally:
        opened.close()


def _close(spool: Spool) -> int:
    """Close the spool and report the batches that remain; returns their number."""
    waiting = len(spool)
    if waiting:
        _say(
            f"{waiting} batches are kept in {spool.directory}; the next jobsight run delivers them"
        )
    if spool.dropped:
        _say(f"{spool.dropped} batches were dropped: {spool.problem}")
    spool.remove()
    return waiting


def _launch(request: RunRequest, settings: Settings, delivery: Delivery) -> Outcome:
    thread = DeliveryThread(delivery)
    collector = Collector(
        delivery.spool,
        cluster=settings.own_cluster(),
        node=settings.agent.node,
        flush_interval=min(settings.agent.send_interval, _SEND_INTERVAL),
        after_flush=thread.notify,
    )
    collector.tracker.names.include_scripts = settings.agent.name_scripts
    thread.start()
    try:
        return Launcher(request, collector).run()
    finally:
        collector.close()
        thread.end()
        if not delivery.deliver() and delivery.reason:
            _say(delivery.reason)
        if delivery.refusal:
            refused = delivery.spool.directory / "refused"
            _say(f"a batch was refused and moved to {refused}: {delivery.refusal}")


def _say(sentence: str) -> None:
    print(f"jobsight: {sentence}", file=sys.stderr)


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("run", run.__doc__)
    parser.usage = "jobsight run [OPTIONS] -- COMMAND [ARGUMENT ...]"
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="Command and its arguments, after --",
    )
    parser.add_argument(
        "--name", metavar="NAME", help="Name of the job; by default that of the command"
    )
    parser.add_argument(
        "--cpus",
        type=bounded_int(1),
        metavar="N",
        help="CPUs to request; the job is restricted to them",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="Memory to request, e.g. 512M or 2G; enforced where a cgroup can be created",
    )
    parser.add_argument(
        "--gpus",
        type=bounded_int(1),
        metavar="N",
        help="GPUs to reserve; free ones are picked and the job sees only these. Without the "
        "option, the GPUs that the command uses are measured",
    )
    parser.add_argument("--account", metavar="NAME", help="Account that the job is charged to")
    parser.add_argument("--quiet", "-q", action="store_true", help="Print no report at the end")
    add_store_options(parser)
    return parser.run(run, arguments)


@contextmanager
def open_target(settings: Settings, location: str) -> Iterator[Target]:
    """The receiver to use; opening it before the job starts shows what is wrong in time."""
    target = server_target(settings, location)
    if target is not None:
        yield target
        return
    # Imported only where there is no server: a compute node has none of their packages.
    from jobsight.server.receiver import EmbeddedTarget, Receiver
    from jobsight.store.store import Store

    if "://" not in location:
        paths.private_directory(
            paths.store_directory(location), "the directory of the store", own=False
        )
    store = Store.open(location)
    try:
        yield EmbeddedTarget(Receiver(store))
    finally:
        store.close()


def next_job_id(directory: Path) -> int:
    """The next job id of this directory; several commands may start at once."""
    file = directory / "last-job-id"
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JobsightError(f"the counter {file} cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "r+") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        text = opened.read().strip()
        number = (int(text) if text.isdigit() else 0) + 1
        opened.seek(0)
        opened.truncate()
        opened.write(f"{number}\n")
    return number


def deliver_left_overs(directory: Path, target: Target) -> int:
    """Deliver what earlier jobs could not; spools in use by a running job are left alone."""
    delivered = 0
    for spool_directory in sorted(directory.glob("run-*")):
        try:
            spool = Spool(spool_directory)
        except SpoolError:
            continue
        waiting = len(spool)
        delivered = Delivery(spool, target).deliver()
        delivered += waiting - len(spool)
        spool.remove()
        if not delivered:
            # Each further attempt would keep the job that is about to start waiting.
            break
    return delivered
