"""Load of many simulated nodes on a real server: latency, memory, CPU time, and what is lost.

Starts PostgreSQL or uses SQLite, starts `jobsight serve`, and lets simulated agents send to it by
the real client. Memory and CPU time of server, database and simulation are sampled every few
seconds. At the end all spools are delivered, and both ends are compared: what the agents wrote
with what is stored. All share the machine: the CPU time of each is what carries over.

With --ramp each number of nodes is run with a new store, until pending batches grow.
"""

from __future__ import annotations

import argparse
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.figures import Figures
from bench.peer_venv import PROJECT
from bench.stores import free_port
from jobsight.simulation.agents import Counts, Result, Where, simulate
from jobsight.simulation.check import Checked, check
from jobsight.simulation.nodes import Load
from jobsight.store.store import Store
from jobsight.util.units import format_bytes
from tests.store import postgresql

#: Seconds between two samples of the processes.
_INTERVAL = 5.0
#: Seconds for the start of a server, and for the delivery of what is pending.
_START, _DRAIN = 60.0, 300.0
#: Rows of the table of memory.
_ROWS = 12
#: Share of the nodes whose batches pending at the end of a run are more than at its beginning, from
#: which on the load is too much.
_GROWTH = 0.05
#: A part that uses this share of what it can use is saturated.
_SATURATED = 0.9
_TICKS = os.sysconf("SC_CLK_TCK")


class Reading(NamedTuple):
    """Processes of one part: proportional resident bytes, and CPU seconds since their start."""

    memory: int
    cpu: float


class Sample(NamedTuple):
    elapsed: float
    parts: dict[str, Reading]
    pending: int


class Run(NamedTuple):
    """What one load has shown."""

    load: Load
    result: Result
    checked: Checked
    samples: list[Sample]
    #: Seconds after which each number of pending batches was reported.
    pending: list[tuple[float, int]]

    def cpu(self, part: str) -> float:
        """The CPU seconds of a part during the run."""
        if part == "simulation":
            # Its processes say so themselves, when they end.
            return self.result.cpu_s
        readings = [sample.parts[part].cpu for sample in self.samples if part in sample.parts]
        return readings[-1] - readings[0] if readings else 0.0

    @property
    def parts(self) -> list[str]:
        return list(dict.fromkeys(name for sample in self.samples for name in sample.parts))


def children_of_all() -> dict[int, list[int]]:
    """The children of each process."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    return children


def descendants(roots: Sequence[int]) -> Iterator[int]:
    """The processes themselves and all processes below them that still exist."""
    children = children_of_all()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, [])


def read_processes(roots: Sequence[int]) -> Reading:
    """Shared pages count in part for each process, so that the buffers of a database count once."""
    memory, ticks = 0, 0
    for pid in descendants(roots):
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        memory += next(
            int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:")
        )
        # Its own and those of children that have ended.
        ticks += sum(map(int, fields[11:15]))
    return Reading(memory, ticks / _TICKS)


class Sampler(threading.Thread):
    """Reads all parts every few seconds until it is stopped."""

    def __init__(self, parts: dict[str, Callable[[], Sequence[int]]]) -> None:
        super().__init__(daemon=True)
        self._parts = parts
        self._stopped = threading.Event()
        self._begun = time.monotonic()
        self.samples: list[Sample] = []
        self.pending = 0

    def run(self) -> None:
        while True:
            self._read()
            if self._stopped.wait(_INTERVAL):
                return

    def _read(self) -> None:
        parts = {name: read_processes(pids) for name, of in self._parts.items() if (pids := of())}
        self.samples.append(Sample(time.monotonic() - self._begun, parts, self.pending))

    def stop(self) -> None:
        self._stopped.set()
        self.join()
        self._read()


@contextmanager
def database(kind: str, directory: Path) -> Iterator[tuple[str, list[int]]]:
    """The location of a new store, and the process of its server."""
    if kind == "sqlite":
        yield str(directory / "store.db"), []
        return
    # Tests turn these off, and need fewer buffers.
    durable = "-c fsync=on -c full_page_writes=on -c shared_buffers=256MB"
    with postgresql.running(directory.parent, durable) as server:
        url = server.new_database()
        file = Path(url.partition("host=")[2].partition("&")[0])
        (lock,) = file.rglob("postmaster.pid")
        yield url, [int(lock.read_text().splitlines()[0])]


#: Root has one directory for the record of a running server; this one is not the machine's own.
_SERVE = (
    "import sys; from pathlib import Path; from jobsight.config import paths\n"
    "paths.data_directory = lambda: Path(sys.argv[1])\n"
    "from jobsight.cli.main import main; sys.exit(main(sys.argv[2:]))"
)


@contextmanager
def serving(location: str, directory: Path) -> Iterator[tuple[int, Where]]:
    """A server with the settings of an operator who has set none; its PID, and where it is."""
    config, token, port = directory / "settings.toml", directory / "token", free_port()
    config.write_text('cluster = "simulated"\n')
    words = ["serve", "--store", location, "--port", str(port), "--token-file", str(token)]
    command = [sys.executable, "-c", _SERVE, str(directory), *words, "--config", str(config)]
    with open(directory / "server.log", "wb") as log:
        process = subprocess.Popen(command, cwd=PROJECT, stdout=log, stderr=log)
    try:
        _wait_for(process, port, directory / "server.log")
        url = f"http://127.0.0.1:{port}"
        spools = directory / "agents"
        yield process.pid, Where(url=url, token_file=str(token), directory=str(spools))
    finally:
        process.terminate()
        process.wait(60)


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + _START
    while time.monotonic() < end and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            return
        except OSError:
            time.sleep(0.1)
        finally:
            connection.close()
    raise SystemExit(f"the server did not start: {log.read_text()[-2000:]}")


def run_load(load: Load, kind: str) -> Run:
    """One load on a new store."""
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(
                    prefix="jobsight-load", dir=postgresql.memory_directory()
                )
            )
        )
        # The store is on a disk, as an operator's; the spools of all nodes are in memory.
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jobsight-load")))
        location, database_pids = stack.enter_context(database(kind, disk))
        server, where = stack.enter_context(serving(location, directory))
        own = os.getpid()
        sampler = Sampler(
            {
                "server": lambda: [server],
                "database": lambda: database_pids,
                "simulation": lambda: _fleet(own, server, database_pids),
            }
        )
        pending: list[tuple[float, int]] = []

        def progress(elapsed: float, counts: Counts) -> None:
            pending.append((elapsed, counts.pending))
            sampler.pending = counts.pending

        sampler.start()
        try:
            result = simulate(load, where, drain=_DRAIN, progress=progress)
        finally:
            sampler.stop()
        with Store.open(location) as store:
            checked = check(Path(where.directory), store)
        return Run(load, result, checked, sampler.samples, pending)


def _fleet(own: int, server: int, others: Sequence[int]) -> list[int]:
    """The processes that play the nodes: children of this one that are no servers."""
    return [pid for pid in children_of_all().get(own, []) if pid != server and pid not in others]


def grows(run: Run) -> bool:
    """Whether more batches were pending at the end of the time than in its first part."""
    within = [count for elapsed, count in run.pending if elapsed <= run.load.duration]
    if len(within) < 6:
        return False
    third = len(within) // 3
    more = statistics.median(within[-third:]) - statistics.median(within[:third])
    return more > max(run.load.nodes * _GROWTH, 5)


def saturated(run: Run) -> str:
    """What has reached its limit during a run: the CPUs, one process, or neither."""
    elapsed, cores = run.result.elapsed_s, len(os.sched_getaffinity(0))
    used = {name: run.cpu(name) / elapsed for name in run.parts}
    shares = ", ".join(f"{name} {share:.2f}" for name, share in used.items())
    with open("/proc/loadavg") as file:
        waiting = float(file.read().split()[0])
    if sum(used.values()) >= _SATURATED * cores:
        most = max(used, key=lambda name: used[name])
        return f"the {cores} CPUs, most of them by the {most} (CPUs used: {shares})"
    if used.get("server", 0.0) >= _SATURATED:
        return f"the server, one process of Python (CPUs used: {shares})"
    if waiting > cores:
        return f"the CPUs, shared with other work of a load of {waiting:.1f} ({shares} used here)"
    return f"no CPU: the disk or locks of the database (CPUs used: {shares})"


def print_run(run: Run) -> None:
    """The tables of one run, for a person."""
    result, load = run.result, run.load
    print(f"{load.nodes} nodes x {load.jobs} jobs, every {load.every:g} s, {load.duration:.0f} s")
    print(
        "latency (queue and send): "
        + ", ".join(
            f"{name} {_milliseconds(value)}"
            for name, value in (
                ("50 %", result.median_s), ("99 %", result.p99_s), ("maximum", result.max_s)
            )
        )
    )  # fmt: skip
    print(f"{'elapsed':>9}{'pending':>9}" + "".join(f"{name:>14}" for name in run.parts))
    step = max(len(run.samples) // _ROWS, 1)
    for sample in [*run.samples[:-1:step], run.samples[-1]]:
        cells = [
            format_bytes(sample.parts[name].memory) if name in sample.parts else "-"
            for name in run.parts
        ]
        shown = "".join(f"{cell:>14}" for cell in cells)
        print(f"{sample.elapsed:>7.0f} s{sample.pending:>9}{shown}")
    for name in run.parts:
        each = run.cpu(name) / max(result.counts.accepted, 1)
        print(f"CPU time of the {name}: {run.cpu(name):.1f} s, {each * 1000:.1f} ms a batch")
    for sentence in run.checked.listed:
        print(sentence)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f} ms"


def differences(run: Run, kind: str) -> int:
    """How many are lost or doubled, by the comparison of both ends."""
    return sum(count for name, count in run.checked.differences.items() if name.endswith(kind))


def report(figures: Figures, run: Run, kind: str) -> None:
    print_run(run)
    result, load = run.result, run.load
    what = f"{load.nodes} nodes x {load.jobs} jobs, every {load.every:g} s, {kind}"
    figures.row(
        f"latency of a batch, {what}",
        "-",
        f"{_milliseconds(result.median_s)} median, {_milliseconds(result.p99_s)} at 99 %, "
        f"{_milliseconds(result.max_s)} at most",
        "-",
    )
    accepted = max(result.counts.accepted, 1)
    shares = [f"{name} {run.cpu(name) / accepted * 1000:.1f} ms" for name in run.parts]
    figures.row(f"CPU time of a batch, {what}", "-", ", ".join(shares), "-")
    highest = [
        f"{name} {format_bytes(max(s.parts[name].memory for s in run.samples if name in s.parts))}"
        for name in run.parts
    ]
    figures.row(f"memory at most, {what}", "-", ", ".join(highest), "-")
    lost, doubled = differences(run, "lost"), differences(run, "doubled")
    figures.row(
        f"batches of agents, {what}",
        "-",
        f"{result.counts.written:,} written, {result.counts.accepted:,} accepted, "
        f"{result.counts.pending:,} pending, {lost:,} lost, {doubled:,} doubled",
        "nothing lost, doubled or pending",
        reached=not run.checked.differences and result.counts.pending == 0,
    )


def load_of(options: argparse.Namespace, nodes: int, *, ramp: bool = False) -> Load:
    return Load(
        nodes=nodes,
        jobs=options.jobs,
        every=options.every,
        duration=options.minutes * 60,
        # A node that is cut off has pending batches for another reason.
        outages=0.0 if ramp else 0.02,
    )


def ramp(options: argparse.Namespace, figures: Figures) -> None:
    """Run more and more nodes until batches stay pending, and name what is saturated."""
    for nodes in options.ramp:
        run = run_load(load_of(options, nodes, ramp=True), options.store)
        report(figures, run, options.store)
        if grows(run):
            print(f"{nodes} nodes are too many: pending batches grow")
            print(f"saturated: {saturated(run)}")
            return
        print(f"{nodes} nodes are carried; {saturated(run)} would be next")


def main() -> None:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description="Load of simulated nodes on a real server.")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two batches")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--store", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument(
        "--ramp", type=numbers, metavar="N,N,...", help="find the number of nodes that is too large"
    )
    options = parser.parse_args()
    figures = Figures()
    if options.ramp:
        ramp(options, figures)
    else:
        report(figures, run_load(load_of(options, options.nodes), options.store), options.store)
    figures.end()


if __name__ == "__main__":
    main()
