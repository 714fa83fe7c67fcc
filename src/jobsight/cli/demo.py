"""``jobsight demo``: a server, four sample jobs, their reports and the address of their pages."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from jobsight.cli.arguments import CommandParser, add_config_option, bounded_int
from jobsight.cli.output import shown_progress
from jobsight.cli.report import find_report
from jobsight.config import paths
from jobsight.config.load import load_settings
from jobsight.config.settings import Settings
from jobsight.errors import JobsightError
from jobsight.reports.terminal import print_report
from jobsight.samples import Sample, samples
from jobsight.server.serve import BackgroundServer
from jobsight.store.read.queries import StoredRun
from jobsight.store.store import Store
from jobsight.transport.running_server import read_running_server
from jobsight.util.units import format_bytes, format_cores
from jobsight.util.urls import without_credentials

ACCOUNT = "samples"
#: How long a sample job gets to end when the demo is ended.
_END_LIMIT = 10.0


def demo(
    *, once: bool, site: bool, runs: int, port: int | None, store: str | None, config: str | None
) -> int:
    """Run four sample jobs of about ten seconds each and show their reports and pages.

    With --site no job is run: a made-up site is served, with a year of runs of its users, their
    findings, its nodes and its queue.
    """
    settings = load_settings(config)
    name = "site" if site else "demo"
    settings.store.location = store or str(paths.data_directory() / name / "store.db")
    if port is not None:
        settings.server.port = port
    console = Console(highlight=False)
    _refuse_a_second(settings.store.location)
    try:
        with _ended_by_signals(), _opened(settings.store.location) as opened:
            if site:
                _show_site(settings, opened, console, runs, once=once)
            else:
                _show(settings, opened, console, once=once)
    except KeyboardInterrupt:
        # Without --once this is how it ends.
        message = f"\nEnded. The store stays: {without_credentials(settings.store.location)}"
        console.print(message, markup=False, soft_wrap=True)
        return 130 if once else 0
    return 0


def _show(settings: Settings, opened: Store, console: Console, *, once: bool) -> None:
    jobs = samples()
    with BackgroundServer(settings, opened) as server:
        console.print(
            f"{len(jobs)} sample jobs of some ten seconds each, and what they really did."
        )
        _show_pages(console, server)
        console.print(
            f"Store  {without_credentials(settings.store.location)}", soft_wrap=True, markup=False
        )
        for number, sample in enumerate(jobs, start=1):
            console.print(
                f"\n[bold]Sample {number} of {len(jobs)}, {sample.name}:[/] {sample.shows}"
            )
            _run(sample, settings, opened, console)
        console.print()
        if not once:
            _stay(console, server, settings.store.location)


def _show_site(
    settings: Settings, opened: Store, console: Console, runs: int, *, once: bool
) -> None:
    """A made-up site whose year ends now; a store that has runs is served as it is."""
    from jobsight.findings.engine import RuleSet
    from jobsight.findings.service import RuleJudge
    from jobsight.findings.worker import update_all
    from jobsight.model import SECOND
    from jobsight.simulation.fill import fill
    from jobsight.simulation.year import Year

    if not opened.info().runs:
        year = Year(runs, end=int(time.time()))
        with shown_progress() as progress:
            fill(opened, year, progress=progress)
            judge = RuleJudge(opened, RuleSet.of_settings(settings.findings))
            update_all(
                opened,
                judge,
                progress=lambda done, total: progress("findings", done, total),
                clock=lambda: year.end * SECOND,
            )
    with BackgroundServer(settings, opened) as server:
        info = opened.info()
        console.print(f"A made-up site with {info.runs:,} runs; nothing of it is real.")
        _show_pages(console, server)
        location = without_credentials(settings.store.location)
        console.print(f"Store  {location}", soft_wrap=True, markup=False)
        console.print("Ctrl-C ends; the store stays.")
        while not once:
            time.sleep(3600)


def _show_pages(console: Console, server: BackgroundServer) -> None:
    """The address of the pages. One that signs in goes to a terminal only, not into a log."""
    if console.is_terminal:
        console.print(f"Pages  {server.sign_in_url()}", soft_wrap=True, markup=False)
        console.print("       (signs one browser in, within ten minutes)")
    else:
        console.print(f"Pages  {server.url}/", soft_wrap=True, markup=False)
    console.print(f"Token  {server.token_file}", soft_wrap=True, markup=False)


def _stay(console: Console, server: BackgroundServer, location: str) -> None:
    name, option = _own_name(), f"--store {shlex.quote(location)}"
    console.print("[bold]Now your own[/], in another terminal:")
    console.print(f"  {name} run {option} -- COMMAND", soft_wrap=True, markup=False)
    console.print(f"  {name} report {option}\n", soft_wrap=True, markup=False)
    _show_pages(console, server)
    console.print("Ctrl-C ends; the store stays.")
    while True:
        time.sleep(3600)


def _own_name() -> str:
    """How the command was called, so that the lines above can be copied as they are."""
    given = sys.argv[0]
    if os.path.basename(given) != "jobsight" or shutil.which("jobsight") == os.path.abspath(given):
        return "jobsight"
    return given


def _refuse_a_second(location: str) -> None:
    other = read_running_server(paths.server_file(location))
    if other is not None:
        raise JobsightError(
            f"an earlier demo still runs: {other.url} (process {other.pid}); end it with Ctrl-C in "
            "its terminal, or give this one a store and a port of its own "
            "(--store PATH --port 0; make run STORE=PATH PORT=0)"
        )


@contextmanager
def _opened(location: str) -> Iterator[Store]:
    if "://" not in location:
        paths.private_directory(
            paths.store_directory(location), "the directory of the store", own=False
        )
    store = Store.open(location)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A closed terminal and a kill end the demo like Ctrl-C: its job, its server, its record."""

    def end(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(sample: Sample, settings: Settings, store: Store, console: Console) -> None:
    """One sample through the real command, with a line that shows how far it is."""
    command = [
        sys.executable,
        "-m",
        "jobsight.cli.main",
        "run",
        "--quiet",
        *("--store", settings.store.location, "--name", sample.name, "--account", ACCOUNT),
        *sample.options,
        "--",
        *sample.command,
    ]
    with tempfile.TemporaryFile() as output:
        # A group of its own: Ctrl-C is for us, and the job is then ended without its complaints.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0
        )
        try:
            _watch(process, sample, store, console)
        except KeyboardInterrupt:
            _end(process)
            raise
        if process.returncode:
            output.seek(0)
            console.file.write(output.read().decode("utf-8", "replace"))
            raise JobsightError(f"the sample job {sample.name} ended with {process.returncode}")
    found = _latest(store, sample)
    if found is None:
        raise JobsightError(f"the sample job {sample.name} left nothing in the store")
    console.print()
    print_report(find_report(settings.store.location, str(found.run)), console)


def _watch(
    process: subprocess.Popen[bytes], sample: Sample, store: Store, console: Console
) -> None:
    with Progress(
        TextColumn("running"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}"),
        console=console,
        transient=True,
        # In a pipe or a log a line that moves would be many lines.
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("", total=sample.seconds, now="")
        started = time.monotonic()
        while process.poll() is None:
            elapsed = min(time.monotonic() - started, sample.seconds)
            progress.update(task, completed=elapsed, now=_now(store, sample))
            time.sleep(0.25)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _latest(store: Store, sample: Sample, state: str | None = None) -> StoredRun | None:
    """The latest run of a sample; the user may already run other jobs in the same store."""
    found = store.runs(limit=10, search=sample.name, account=ACCOUNT, state=state)
    return next((run for run in found if run.info.name == sample.name), None)


def _now(store: Store, sample: Sample) -> str:
    """The figures of the running job that are in the store already."""
    run = _latest(store, sample, "RUNNING")
    if run is None or run.cpu_time is None or run.last_seen is None:
        return ""
    elapsed = run.last_seen - (run.info.start or 0)
    cores = run.cpu_time / elapsed if elapsed > 0 else None
    return f"{format_cores(cores)} CPUs busy, {format_bytes(run.memory_used_peak)}"


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("demo", demo.__doc__)
    parser.add_argument("--once", action="store_true", help="Exit when the jobs have ended")
    parser.add_argument(
        "--site", action="store_true", help="Serve a made-up site to look around, and run no job"
    )
    parser.add_argument(
        "--runs",
        type=bounded_int(1, 1_000_000),
        default=5000,
        metavar="N",
        help="Runs of the made-up site (default: 5000, which take about half a minute)",
    )
    parser.add_argument(
        "--port",
        type=bounded_int(0, 65535),
        metavar="N",
        help="Port of the pages; 0 selects a free port",
    )
    parser.add_argument(
        "--store",
        metavar="PATH",
        help="Store file (default: a store of the demo, never that of the site)",
    )
    add_config_option(parser)
    return parser.run(demo, arguments)
