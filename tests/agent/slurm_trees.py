"""Jobs as Slurm makes them on cgroup v1, with real processes and a daemon that acts as Slurm's."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from jobsight.agent.agent import Agent
from jobsight.agent.jobs.cgroup_watcher import CgroupWatcher
from jobsight.model import Batch, ExecutableUse, JobPart
from tests.waiting import wait_until

MOUNT = Path("/sys/fs/cgroup")
#: slurmstepd stays out of cpuacct, as with jobacct_gather/cgroup.
DAEMON_IN = ("freezer", "memory")
TASKS_IN = ("memory", "cpuacct")
HERE = Path(__file__).parent

_SPINNER = r"""
#include <stdlib.h>
#include <time.h>
static long long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}
int main(int count, char **words)
{
	long long end = now() + (count > 1 ? atoll(words[1]) * 1000LL : 0);
	while (now() < end)
		;
	return 0;
}
"""
#: Runs a program so and so often, one after the other, some at a time: a storm.
_STORM = r"""
#define _GNU_SOURCE
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
extern char **environ;
int main(int count, char **words)
{
	int runs = atoi(words[1]), width = atoi(words[2]), alive = 0;
	for (int run = 0; run < runs; run++) {
		pid_t child;
		if (alive == width && wait(0) > 0)
			alive--;
		if (posix_spawn(&child, words[3], 0, 0, words + 3, environ))
			return 1;
		alive++;
	}
	while (wait(0) > 0)
		;
	return 0;
}
"""


def available() -> bool:
    """Whether this machine has the hierarchies and lets us make directories in them."""
    names = ("cpuacct", "memory", "freezer")
    return os.geteuid() == 0 and all((MOUNT / name / "tasks").exists() for name in names)


def go_first(thread: int = 0) -> None:
    """On a busy machine a program of 3 ms gets a CPU for 1 of them and is another program."""
    os.setpriority(os.PRIO_PROCESS, thread, -20)


@functools.cache
def built(kind: str) -> Path:
    """A C program of the tests: "daemon", "storm", "wall" or "processor" (spinners)."""
    folder = Path(_programs().name)
    program = folder / {"daemon": "slurmstepd"}.get(kind, kind)
    options = []
    if kind == "daemon":
        source = HERE / "slurmstepd.c"
    else:
        source = folder / f"{kind}.c"
        source.write_text(_STORM if kind == "storm" else _SPINNER)
        clock = "CLOCK_PROCESS_CPUTIME_ID" if kind == "processor" else "CLOCK_MONOTONIC"
        options = [f"-DCLOCK={clock}"]
    subprocess.run(["cc", "-O2", *options, "-o", program, source], check=True)
    return program


@functools.cache
def _programs() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="programs-")


class SlurmNode:
    """A root of its own in each hierarchy, as where several slurmd share a machine."""

    _number = 0

    def __init__(self) -> None:
        SlurmNode._number += 1
        self.name = f"t{os.getpid()}x{SlurmNode._number}"
        self.jobs: list[SlurmJob] = []

    @property
    def root(self) -> str:
        return f"slurm_{self.name}"

    def finder(self) -> CgroupWatcher:
        """One that sees this root alone: other tests have theirs on the same machine."""
        return CgroupWatcher(v1_roots=[rf"slurm_(?P<node>{re.escape(self.name)})"])

    def job(self, job_id: int, uid: int = 0) -> SlurmJob:
        job = SlurmJob(self, job_id, uid)
        self.jobs.append(job)
        return job

    def close(self) -> None:
        for job in self.jobs:
            job.end()
        for controller in {*DAEMON_IN, *TASKS_IN, "pids", "cpuset"}:
            remove_tree(MOUNT / controller / self.root)


class SlurmJob:
    """One job: its steps are started by a daemon of their own."""

    def __init__(self, node: SlurmNode, job_id: int, uid: int) -> None:
        self.node = node
        self.job_id = job_id
        self.uid = uid
        self.daemons: list[subprocess.Popen[bytes]] = []

    def directory(self, controller: str, *below: str) -> Path:
        path = MOUNT / controller / self.node.root / f"uid_{self.uid}" / f"job_{self.job_id}"
        return path.joinpath(*below)

    def step(
        self,
        *command: str | bytes | Path,
        step: str = "0",
        tasks: int = 1,
        keep: bool = True,
        **named: Any,
    ) -> subprocess.Popen[bytes]:
        """Start a step; its directories stay behind where ``keep`` says so."""
        entered = ":".join(str(self.directory(name, f"step_{step}")) for name in DAEMON_IN)
        inside = ":".join(str(self.directory(name, f"step_{step}")) for name in TASKS_IN)
        daemon = subprocess.Popen(
            [
                f"slurmstepd: [{self.job_id}.{step}]",
                entered,
                inside,
                str(tasks),
                str(int(keep)),
                *command,
            ],
            executable=built("daemon"),
            **named,
        )
        self.daemons.append(daemon)
        return daemon

    def cpu_time(self) -> int:
        """The kernel's counter of the job, in nanoseconds."""
        return int((self.directory("cpuacct") / "cpuacct.usage").read_text())

    def used(self) -> int:
        """The same for a job that is about to begin."""
        try:
            return self.cpu_time()
        except FileNotFoundError:
            return 0

    def signal(self, step: str, number: signal.Signals) -> list[int]:
        """Send a signal to the tasks of a step; gives those that got it."""
        files = self.directory("cpuacct", f"step_{step}").glob("task_*/cgroup.procs")
        pids = [int(pid) for file in files for pid in file.read_text().split()]
        for pid in pids:
            os.kill(pid, number)
        return pids

    def processes(self) -> list[int]:
        found: list[int] = []
        for path, _, _ in os.walk(self.directory("memory")):
            try:
                found += map(int, Path(path, "cgroup.procs").read_text().split())
            except OSError:
                continue
        return found

    def end(self) -> None:
        """End what runs and remove the directories."""
        deadline = time.monotonic() + 60
        while (left := self.processes()) and time.monotonic() < deadline:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            for daemon in self.daemons:
                daemon.poll()
        for daemon in self.daemons:
            if daemon.poll() is None:
                daemon.kill()
            daemon.wait()
            for pipe in (daemon.stdin, daemon.stdout, daemon.stderr):
                if pipe is not None:
                    pipe.close()
        for controller in {*DAEMON_IN, *TASKS_IN, "pids", "cpuset"}:
            remove_tree(self.directory(controller))


def remove_tree(folder: Path) -> None:
    for path, _, _ in os.walk(folder, topdown=False):
        for _ in range(3000):
            try:
                os.rmdir(path)
            except FileNotFoundError:
                break
            except OSError:
                # The last process has been waited for but not yet left.
                time.sleep(0.01)
            else:
                break


class Kept:
    """Stands for the spool: what the agent says stays here."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    size = dropped = refused = lost = 0

    def put(self, batch: Batch) -> None:
        self.batches.append(batch)

    def __len__(self) -> int:
        return len(self.batches)

    def parts(self, job_id: int) -> list[JobPart]:
        return [
            part
            for batch in list(self.batches)
            for part in batch.parts
            if part.sighting.job_id == job_id
        ]

    def last(self, job_id: int) -> JobPart:
        return self.parts(job_id)[-1]

    def finals(self, job_id: int) -> list[JobPart]:
        return [part for part in self.parts(job_id) if part.final]


class RunningAgent:
    """A node's agent in a thread."""

    def __init__(self, finder: CgroupWatcher, **named: Any) -> None:
        self.kept = Kept()
        self.error: BaseException | None = None
        options: dict[str, Any] = {
            "flush_interval": 0.2,
            "intervals": ((None, 0.2),),
            "spool": self.kept,
        }
        self.agent = Agent(cluster="test", node="n1", watcher=finder, **(options | named))
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        # Where jobs go first, whoever looks at them does so, too.
        go_first(threading.get_native_id())
        try:
            self.agent.run()
        except BaseException as error:
            self.error = error

    def last(self, job: SlurmJob) -> JobPart:
        """What the agent says once it has read the counter of a job that rests."""
        counter = job.cpu_time()

        def complete() -> JobPart | None:
            parts = self.kept.parts(job.job_id)
            return parts[-1] if parts and (parts[-1].totals.cpu_time or 0) >= counter else None

        part: JobPart = wait_until(complete)
        # The counter only grows: what the agent read lies between the two readings here.
        assert (part.totals.cpu_time or 0) <= job.cpu_time()
        # Whatever the records claim, no more is attributed than the counter has.
        assert sum(use.cpu_time for use in part.executables) <= (part.totals.cpu_time or 0)
        return part

    def listen(self, node: SlurmNode) -> None:
        """Have the sockets open: of a node's first job the first moments may pass unheard."""
        node.job(1000).step("sleep", "60")
        wait_until(lambda: self.agent.collector.events is not None and self.agent.jobs)

    def stop(self) -> None:
        self.agent.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error


@contextmanager
def following(finder: CgroupWatcher, **named: Any) -> Iterator[RunningAgent]:
    running = RunningAgent(finder, **named)
    running.thread.start()
    try:
        yield running
    finally:
        running.stop()


def with_all_rows(parts: Sequence[JobPart]) -> JobPart:
    """The last part with the rows of all, as a store keeps them: a part in a spool has those that
    changed."""
    last = parts[-1]
    rows = {
        (use.path, use.path_known): use
        for part in parts
        if (part.sighting, part.epoch) == (last.sighting, last.epoch)
        for use in part.executables
    }
    return msgspec.structs.replace(last, executables=list(rows.values()))


def row(part: JobPart, path: str | bytes | Path) -> ExecutableUse:
    """The row of one executable, by its path."""
    wanted = os.fsencode(path)
    found = [use for use in part.executables if use.path == wanted]
    assert len(found) == 1, [(use.path, use.executions, use.cpu_time) for use in part.executables]
    return found[0]


def attributed(part: JobPart) -> float:
    """The share of the counter's CPU time that stands on executables."""
    assert part.totals.cpu_time
    return sum(use.cpu_time for use in part.executables) / part.totals.cpu_time
