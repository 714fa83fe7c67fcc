"""What process events cost an agent at 100 execs a second, and that a node without jobs is free
of them. A plain loop in Python takes in the same events alongside it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.figures import Figures
from bench.processes import HERE, compile_program
from bench.real_agent import cpu_time, running
from tests.waiting import wait_until

RATE = 100
#: In the first minute of a job it is sampled every second, and that is not the events' cost.
IDLE = 10
MEASURED = 20
GOAL = 0.01
NOISE = 0.0005

_PACER = r"""
#define _GNU_SOURCE
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
extern char **environ;
int main(int count, char **words)
{
	long step = 1000000000L / atol(words[1]);
	struct timespec next;
	clock_gettime(CLOCK_MONOTONIC, &next);
	for (;;) {
		pid_t child;
		char *command[] = {"/bin/true", 0};
		posix_spawn(&child, command[0], 0, 0, command, environ);
		waitpid(child, 0, 0);
		next.tv_nsec += step;
		if (next.tv_nsec >= 1000000000L) {
			next.tv_nsec -= 1000000000L;
			next.tv_sec++;
		}
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, 0);
	}
}
"""


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def share(pid: int, seconds: float, other: int = 0) -> tuple[float, float]:
    """What processes take of a core in a time to come."""
    pids = [pid, other] if other else [pid]
    before, start = [cpu_time(one) for one in pids], time.monotonic_ns()
    time.sleep(seconds)
    took = time.monotonic_ns() - start
    shares = [(cpu_time(one) - was) / took for one, was in zip(pids, before, strict=True)]
    return shares[0], shares[-1]


def main() -> None:
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder, running() as (agent, node):
        pacer = compile_program(_PACER, "pacer", Path(folder))
        pid = agent.process.pid
        with ended(subprocess.Popen([pacer, str(RATE)])):
            time.sleep(1)
            empty, _ = share(pid, IDLE)
        job = node.job(1)
        job.step("sleep", "600", step="batch")
        wait_until(lambda: agent.follows(1, 1))
        time.sleep(2)
        idle, _ = share(pid, IDLE)
        job.step(pacer, str(RATE), step="0")
        with ended(subprocess.Popen([sys.executable, HERE / "peers" / "plain_events.py"])) as plain:
            time.sleep(2)
            busy, loop = share(pid, MEASURED, plain.pid)
    figures.row(
        f"process events at {RATE} execs a second",
        f"plain loop: {loop:.2%} of a core",
        f"{busy - idle:.2%} of a core (besides {idle:.2%} for sampling every second)",
        f"under {GOAL:.0%}",
        reached=busy - idle < GOAL,
    )
    figures.row(
        "the same on a node without jobs",
        "-",
        f"{empty:.3%} of a core",
        f"0 (under {NOISE:.2%})",
        reached=empty < NOISE,
    )
    figures.end()


if __name__ == "__main__":
    main()
