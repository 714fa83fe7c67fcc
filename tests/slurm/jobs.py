"""Jobs of all kinds, which tell at their end what their own cgroups say of them."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

ALICE, BOB = "jobsight-alice", "jobsight-bob"
HOSTILE_NAME = 'x Account=victim UserId=root(0) %(user)s "\n'

#: Prints the job's own counters on the node where it is called: CPU nanoseconds, peak bytes.
TRUTH = r"""
truth() {
    place=slurm_$SLURMD_NODENAME/uid_$(id -u)/job_$SLURM_JOB_ID
    echo "truth $SLURMD_NODENAME $(cat /sys/fs/cgroup/cpuacct/$place/cpuacct.usage)" \
         "$(cat /sys/fs/cgroup/memory/$place/memory.max_usage_in_bytes)"
}
"""


def script(*lines: str) -> str:
    return "\n".join(["#!/bin/bash", TRUTH, *lines, ""])


def burn(seconds: float) -> str:
    # To read the clock of a process takes a system call.
    return f"python3 -c 'import time\nwhile time.process_time() < {seconds}: sum(range(10000))'"


def told_step(seconds: float) -> str:
    """The same for a step, which then says what its own cgroup says of it."""
    place = "slurm_$SLURMD_NODENAME/uid_$(id -u)/job_$SLURM_JOB_ID/step_$SLURM_STEP_ID"
    told = f"echo step $SLURM_STEP_ID $(cat /sys/fs/cgroup/cpuacct/{place}/cpuacct.usage)"
    return f"sh -c {shlex.quote(f'{burn(seconds)}; {told}')}"


def eat(megabytes: int) -> str:
    return (
        f"python3 -c 'b = bytearray({megabytes} << 20)\nfor i in range(0, len(b), 4096): b[i] = 1'"
    )


def storm(count: int) -> str:
    return f"i=0; while [ $i -lt {count} ]; do /bin/true; i=$((i+1)); done"


def is_exact(report: Mapping[str, Any]) -> bool:
    """A busy machine may remove a cgroup before the agent has read it for the last time."""
    return bool(report["coverage"]["cpu"]["quality"] == "exact")


def agrees(report: Mapping[str, Any], measured: float, known: float) -> bool:
    """Whether a CPU time of a report, in seconds, is what the job itself has read or spun for.

    Nothing of it is missing in an exact figure: 50 ms are for Slurm's extern step, which a job's
    counter has and the figure has not. What the end of a job costs depends on the machine; the
    bound is there to see what counts twice.
    """
    allowance = 0.05
    complete = known <= measured + allowance or not is_exact(report)
    return complete and measured < 1.5 * known + allowance


class Gate:
    """Where a job waits, without using anything, until a test lets it go on."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"gate-{secrets.token_hex(4)}"
        os.mkfifo(self.path)
        self.path.chmod(0o666)
        self._writer: int | None = None

    @property
    def line(self) -> str:
        """For the job's script: to open a pipe takes until there is a writer."""
        return f": < {self.path}"

    def open(self) -> None:
        """Let all go on, those who come later as well."""
        if self._writer is None:
            self._writer = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        """A job that a test has left behind ends, too."""
        self.open()
        assert self._writer is not None
        os.close(self._writer)


class Kind(NamedTuple):
    """One job to submit and what is known of it beforehand."""

    user: str
    script: str
    options: tuple[str | bytes, ...] = ()
    #: Slurm's own CPU time can be believed: the job ended by itself, and not in programs shorter
    #: than a tick of the clock, of which rusage counts each as none or as a whole one.
    slurm_is_right: bool = True
    #: Executions that must be counted, by the end of the path.
    executions: Mapping[str, int] = MappingProxyType({})

    @property
    def tells(self) -> bool:
        """Its output says what its own cgroup said at its end."""
        return "truth" in self.script.splitlines()


KINDS: dict[str, Kind] = {
    "cpu": Kind(ALICE, script(burn(3), "truth"), ("--mem=100",)),
    # The peak is read every second at first. What it became within the last one is lost where Slurm
    # removes the cgroup before the agent has looked again.
    "memory": Kind(BOB, script(eat(120), "sleep 3", "truth"), ("--mem=300",)),
    "short": Kind(ALICE, script("sleep 0.2"), ("--mem=50",)),
    "storm": Kind(
        BOB,
        script(storm(2000), "truth"),
        ("--mem=100",),
        slurm_is_right=False,
        executions={"/true": 2000},
    ),
    "steps": Kind(
        ALICE,
        script(f"srun {told_step(1)}", f"srun {told_step(0.5)}", "truth"),
        ("--mem=100",),
    ),
    "three nodes": Kind(
        BOB,
        # The other nodes have nothing but the step, which tells at its end what there was.
        script(
            "export -f truth",
            f"srun --ntasks=3 --ntasks-per-node=1 bash -c {shlex.quote(f'{burn(1)}; truth')}",
            "truth",
        ),
        ("--nodes=3", "--mem=100"),
    ),
    "failed": Kind(ALICE, script(burn(0.5), "truth", "exit 42"), ("--mem=100",)),
    "out of memory": Kind(BOB, script(eat(300)), ("--mem=80",), slurm_is_right=False),
    "hostile name": Kind(ALICE, script(burn(0.3)), (f"--job-name={HOSTILE_NAME}", "--mem=50")),
    "hostile path": Kind(
        BOB,
        script(
            "folder=$(mktemp -d)",
            "file=$folder/$(printf 'a\\377b %%s \"{x}')",
            'cp /bin/sleep "$file"; "$file" 0.2; "$file" 0.2; rm -r "$folder"',
        ),
        ("--mem=50",),
        executions={'/a\\xffb %s "{x}': 2},
    ),
}
