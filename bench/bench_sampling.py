"""One sampling round over 1,000 processes, beside a plain C program that opens every file."""

from __future__ import annotations

import resource
import subprocess
import tempfile
import time
from pathlib import Path

from bench.processes import HERE, compile_program, sleepers
from jobsight.agent.images import ImageNames
from jobsight.agent.probe import STRANGERS_EVERY, CgroupProbe
from jobsight.agent.tracker import ProcessTracker

PROCESSES = 1000
ROUNDS = 15


def our_round(threads: int) -> tuple[int, int]:
    """CPU nanoseconds of our cheapest round and of the C program's."""
    with sleepers(PROCESSES, threads) as own, tempfile.TemporaryDirectory() as folder:
        probe = CgroupProbe(own.cgroup, ProcessTracker(ImageNames()), events=True)
        probe.sample()
        rounds = []
        for _ in range(ROUNDS):
            # A whole cycle of rounds, since some things are not done in every one.
            start = time.process_time_ns()
            for _ in range(STRANGERS_EVERY):
                row = probe.sample()
            rounds.append((time.process_time_ns() - start) // STRANGERS_EVERY)
        assert row["tasks.processes"] >= PROCESSES, row
        assert row["tasks.threads"] >= PROCESSES * threads, row
        source = (HERE / "peers" / "one_round.c").read_text()
        program = compile_program(source, "one_round", Path(folder))
        pids = "\n".join(map(str, own.cgroup.processes()))
        plain = subprocess.run(
            [program, str(ROUNDS)], input=pids, text=True, stdout=subprocess.PIPE, check=True
        )
        return min(rounds), int(plain.stdout)


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    single, plain = our_round(threads=1)
    print(
        f"| a round over {PROCESSES} processes "
        f"| C program: 1.00 ({plain / PROCESSES / 1000:.1f} us a process) "
        f"| {single / plain:.2f} ({single / PROCESSES / 1000:.1f} us) | 0.40 |"
    )
    many, _ = our_round(threads=16)
    print(f"| the same with 16 threads a process | one thread: 1.00 | {many / single:.2f} | 1.00 |")


if __name__ == "__main__":
    main()
