"""One sampling round over 1,000 processes, next to a plain C program that opens every file, SAMS's
sampler and psutil over the same processes; the whole agent that does a round every second; and a
sample of the node as a whole next to psutil."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.figures import Figures
from bench.peer_venv import peers
from bench.processes import HERE, Sleepers, compile_program, sleepers, sleepers_program
from bench.real_agent import running
from jobsight.agent.probes.cgroup import ROUNDS_PER_LISTING, CgroupProbe
from jobsight.agent.processes.executables import ExecutableNames
from jobsight.agent.processes.tracker import ProcessTracker
from jobsight.agent.samplers.node import Node
from jobsight.agent.samplers.whole_node import WholeNode
from tests.waiting import wait_until

PROCESSES = 1000
ROUNDS = 15
PEER_ROUNDS = 5
#: Every process does something before every round, which takes its time.
BUSY_ROUNDS = 3
PLAIN_RUNS = 15
NODE_SAMPLES = 200
GOAL = 0.40
#: In the first minute of a job the agent samples it every second.
AGENT_SECONDS = 20


class Round(NamedTuple):
    """CPU nanoseconds of the cheapest round of each."""

    ours: int
    #: When every process has changed since the round before.
    changed: int
    plain: int
    #: The C program when every process has changed since its round before.
    plain_changed: int
    sams: int
    psutil: int


def our_rounds(probe: CgroupProbe, processes: Sleepers | None, rounds: int) -> int:
    """Our cheapest round; with ``processes`` each of them works before every round."""
    costs = []
    for _ in range(rounds):
        # A whole cycle of rounds, since some things are not done in every one.
        used = 0
        for _ in range(ROUNDS_PER_LISTING):
            if processes is not None:
                processes.work()
            start = time.process_time_ns()
            probe.sample()
            used += time.process_time_ns() - start
        costs.append(used // ROUNDS_PER_LISTING)
    return min(costs)


def measure(threads: int, folder: Path) -> Round:
    with sleepers(PROCESSES, threads) as processes:
        pids = "\n".join(map(str, processes.cgroup.processes()))
        python = peers() / "python"
        program = compile_program((HERE / "peers" / "one_round.c").read_text(), "round", folder)

        def peer(*command: str | Path) -> int:
            done = subprocess.run(
                command, input=pids, text=True, stdout=subprocess.PIPE, check=True
            )
            return int(done.stdout)

        probe = CgroupProbe(processes.cgroup, ProcessTracker(ExecutableNames()), events=True)
        probe.sample()
        ours = our_rounds(probe, None, ROUNDS)
        row = probe.sample()
        assert row["tasks.processes"] >= PROCESSES, row
        assert row["tasks.threads"] >= PROCESSES * threads, row
        before = row["io.read_characters"]
        changed = our_rounds(probe, processes, BUSY_ROUNDS)
        plain_changed = []
        for _ in range(PLAIN_RUNS):
            processes.work()
            plain_changed.append(peer(program, "1"))
        probe.sample()
        assert probe.sample()["io.read_characters"] > before
        return Round(
            ours,
            changed,
            peer(program, str(ROUNDS)),
            min(plain_changed),
            peer(python, HERE / "peers" / "sams_round.py", str(PEER_ROUNDS)),
            peer(python, HERE / "peers" / "psutil_round.py", str(PEER_ROUNDS)),
        )


def node_samples() -> tuple[int, int]:
    """CPU nanoseconds of the cheapest sample of the node as a whole, and of psutil's readings."""
    node = WholeNode(Node(freshness=0))
    costs = []
    for _ in range(NODE_SAMPLES):
        start = time.process_time_ns()
        node.sample(time.time_ns())
        costs.append(time.process_time_ns() - start)
    assert node.take() is not None
    node.node.close()
    command = (peers() / "python", HERE / "peers" / "psutil_node.py", str(NODE_SAMPLES))
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True)
    return min(costs), int(done.stdout)


class Whole(NamedTuple):
    """CPU nanoseconds a second at one round a second."""

    agent: float
    plain: float


def whole_agent(folder: Path) -> Whole:
    """A whole agent (rounds, events, batches, spool, exporter) over one job, and alongside it the
    C program over the same processes. Both find the caches as cold as a second leaves them."""
    program = compile_program((HERE / "peers" / "one_round.c").read_text(), "round", folder)
    sleeper = sleepers_program(folder)
    with running() as (agent, node):
        job = node.job(1)
        job.step(sleeper, str(PROCESSES), "1", step="batch", stdin=subprocess.PIPE)
        wait_until(lambda: agent.follows(1, PROCESSES), 60)
        files = job.directory("cpuacct", "step_batch").glob("task_*/cgroup.procs")
        pids = "".join(file.read_text() for file in files)
        # The processes have just started; their links and first readings are not the rule.
        time.sleep(5)
        plain = 0
        before, start = agent.cpu_time(), time.monotonic()
        for second in range(1, AGENT_SECONDS + 1):
            time.sleep(max(0.0, start + second - time.monotonic()))
            done = subprocess.run(
                [program, "1"], input=pids, text=True, stdout=subprocess.PIPE, check=True
            )
            plain += int(done.stdout)
        seconds = time.monotonic() - start
        return Whole((agent.cpu_time() - before) / seconds, plain / seconds)


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder:
        single = measure(1, Path(folder))
        many = measure(16, Path(folder))
        whole = whole_agent(Path(folder))

    def each(value: int) -> str:
        return f"{value / PROCESSES / 1000:.1f} us a process"

    for what, plain, ours in (
        (f"CPU of a round over {PROCESSES} processes", single.plain, single.ours),
        ("the same when every one has changed since", single.plain_changed, single.changed),
    ):
        figures.row(
            what,
            f"C program: 1.00 ({each(plain)}); SAMS, CPU time alone: {single.sams / plain:.1f}; "
            f"psutil: {single.psutil / plain:.1f}",
            f"{ours / plain:.2f} ({each(ours)})",
            f"{GOAL:.2f}",
            reached=ours / plain <= GOAL,
        )
    figures.row(
        f"CPU of the whole agent at one round a second over {PROCESSES} processes",
        f"C program, its round alone: 1.00 ({whole.plain / 10**6:.1f} ms a second)",
        f"{whole.agent / whole.plain:.2f} ({whole.agent / 10**6:.1f} ms a second)",
        f"{GOAL:.2f}",
        reached=whole.agent / whole.plain <= GOAL,
    )
    for what, ours, one in (
        ("a round with 16 threads a process", many.ours, single.ours),
        ("the same when every one has changed since", many.changed, single.changed),
    ):
        figures.row(
            what,
            f"one thread: 1.00; SAMS: {many.sams / single.sams:.1f} x its own; "
            f"psutil: {many.psutil / single.psutil:.1f} x its own",
            f"{ours / one:.2f}",
            "1.00",
            # Two measurements of the same thing differ by some hundredths.
            reached=round(ours / one, 1) <= 1.0,
        )
    sample, psutil = node_samples()
    figures.row(
        "a sample of the node as a whole, once a minute",
        f"psutil, without energy and pressure: 1.00 ({psutil / 1000:.0f} us)",
        f"{sample / psutil:.2f} ({sample / 1000:.0f} us)",
        "1.00",
        reached=sample <= psutil,
    )
    figures.end()


if __name__ == "__main__":
    sys.exit(main())
