"""``jobsight demo``: a server, four sample jobs, their reports and the address of their pages."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from jobsight.cli.report import find_report
from jobsight.cli.typed import ConfigOption, StoreOption, run_typed
from jobsight.config import Settings, load_settings
from jobsight.errors import JobsightError
from jobsight.reports.terminal import print_report
from jobsight.reports.units import format_bytes, format_cores
from jobsight.samples import Sample, samples
from jobsight.server.serve import BackgroundServer
from jobsight.store import Store


def demo(
    once: Annotated[bool, typer.Option("--once", help="End when the jobs have ended")] = False,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of the pages; 0 takes a free one"),
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Run four sample jobs of some ten seconds each and show what they really did."""
    settings = load_settings(config)
    if store is not None:
        settings.store.location = store
    if port is not None:
        settings.server.port = port
    console = Console(highlight=False)
    opened = _open(settings)
    try:
        with BackgroundServer(settings, opened) as server:
            console.print(f"Pages: {server.address}", soft_wrap=True)
            for number, sample in enumerate(samples(), start=1):
                _run(sample, number, settings, opened, console)
            console.print(f"\nPages: {server.address}", soft_wrap=True)
            if not once:
                _stay(console)
    finally:
        opened.close()


def _open(settings: Settings) -> Store:
    from jobsight import places

    if "://" not in settings.store.location:
        places.private_folder(places.folder_of_store(settings.store.location))
    return Store.open(settings.store.location)


def _run(sample: Sample, number: int, settings: Settings, store: Store, console: Console) -> None:
    """One sample through the real command, with a line that shows how far it is."""
    command = [
        sys.executable,
        "-m",
        "jobsight.cli.main",
        "run",
        "--quiet",
        *("--store", settings.store.location, "--name", sample.name, "--account", "samples"),
        *sample.options,
        "--",
        *sample.command,
    ]
    title = f"job {number} of 4, {sample.name}: {sample.shows}"
    with (
        Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TextColumn("{task.fields[now]}"),
            console=console,
            transient=True,
        ) as progress,
        subprocess.Popen(command, stdin=subprocess.DEVNULL) as process,
    ):
        task = progress.add_task(title, total=sample.seconds, now="")
        started = time.monotonic()
        while process.poll() is None:
            elapsed = min(time.monotonic() - started, sample.seconds)
            progress.update(task, completed=elapsed, now=_now(store, sample))
            time.sleep(0.25)
    if process.returncode:
        raise JobsightError(f"the sample job {sample.name} ended with {process.returncode}")
    latest = store.runs(limit=1, search=sample.name)
    console.print()
    print_report(find_report(settings.store.location, str(latest[0].run)), console)


def _now(store: Store, sample: Sample) -> str:
    """What the store already knows of the running job: it comes in while the job runs."""
    found = store.runs(limit=1, search=sample.name, state="RUNNING")
    if not found or found[0].cpu_time is None or found[0].last_seen is None:
        return ""
    run = found[0]
    elapsed = (run.last_seen or 0) - (run.info.start or 0)
    cores = run.cpu_time / elapsed if run.cpu_time is not None and elapsed > 0 else None
    return f"{format_cores(cores)} CPUs, {format_bytes(run.memory_used_peak)}"


def _stay(console: Console) -> None:
    console.print("Ctrl-C ends.")
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        console.print()


def main(arguments: Sequence[str]) -> int:
    return run_typed(demo, "demo", arguments)
