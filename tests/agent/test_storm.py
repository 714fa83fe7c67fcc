"""Storms of short programs in jobs shaped like Slurm's, on the real kernel."""

import os
import resource
import subprocess
import time
from pathlib import Path

import pytest

from jobsight.agent.launch.cgroup import find_hierarchies
from jobsight.agent.processes.procfs import Descriptors
from tests.agent.slurm_trees import (
    SlurmNode,
    available,
    built,
    following,
    row,
)
from tests.waiting import wait_until

LONG = pytest.mark.long
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not available(), reason="needs root and the hierarchies of cgroup v1"),
]


@pytest.mark.parametrize(
    ("kind", "programs", "length"),
    [
        ("wall", 500, 3_000),
        ("processor", 500, 3_000),
        ("processor", 60, 50_000),
        pytest.param("wall", 2_000, 3_000, marks=LONG),
        pytest.param("processor", 500, 50_000, marks=LONG),
    ],
)
def test_every_program_is_counted_and_named(
    node: SlurmNode, kind: str, programs: int, length: int
) -> None:
    """How much of the CPU time is attributed is a figure of bench/bench_attribution.py."""
    program = built(kind)
    with following(node.finder()) as running:
        running.listen(node)
        job = node.job(1)
        storm = (built("storm"), str(programs), "2", program, str(length))
        job.step(*storm).wait()
        part = running.last(job)
        use = row(part, program)
        assert (use.executions, use.processes, use.path_known) == (programs, programs, True)
        assert row(part, built("storm")).executions == 1
        assert part.totals.executions == programs + 1
        assert part.coverage["executables"].events_lost == 0
        assert use.cpu_time > 0


def test_jobs_of_a_few_moments_are_told_whole(node: SlurmNode) -> None:
    """The directories are made, used and removed within some 40 ms, by Slurm's own order."""
    with following(node.finder()) as running:
        # From the second job on the sockets are open.
        for number in range(1, 21):
            job = node.job(number)
            job.step(built("storm"), "10", "2", built("wall"), "3000", keep=False).wait()
            (part,) = wait_until(lambda number=number: running.kept.finals(number))
            if number == 1:
                continue
            assert part.totals.executions == 11, part.executables
            # Of ten programs of 3 ms, a busy machine may leave no time to read the path of one: all
            # are counted, each with its path or marked as without, and bench_attribution measures
            # how many are named.
            assert sum(use.executions for use in part.executables) == 11
            executed = [use for use in part.executables if use.executions]
            named = {use.path for use in executed if use.path_known}
            assert named <= {os.fsencode(built("storm")), os.fsencode(built("wall"))}
            # The name of the command stands for a path, and is none.
            assert not [use for use in executed if not use.path_known and b"/" in use.path]
            assert not [use for use in part.executables if b"slurmstepd" in use.path]
            assert part.totals.cpu_time


def test_two_jobs_are_kept_apart(node: SlurmNode) -> None:
    with following(node.finder()) as running:
        running.listen(node)
        one, other = node.job(1), node.job(2)
        steps = [
            one.step(built("storm"), "200", "2", built("wall"), "1000"),
            other.step(built("storm"), "100", "2", built("processor"), "1000"),
        ]
        for step in steps:
            step.wait()
        first, second = running.last(one), running.last(other)
        assert row(first, built("wall")).executions == 200
        assert row(second, built("processor")).executions == 100
        paths = {use.path for use in first.executables} & {use.path for use in second.executables}
        assert paths == {os.fsencode(built("storm"))}


def test_steps_are_kept_apart_and_summed(node: SlurmNode) -> None:
    with following(node.finder()) as running:
        running.listen(node)
        job = node.job(1)
        for step, length in (("batch", 100_000), ("0", 200_000), ("1", 300_000)):
            job.step(built("processor"), str(length), step=step, tasks=2).wait()
        part = running.last(job)
        used = {step.step: (step.tasks, step.cpu_time or 0) for step in part.steps}
        assert {name: tasks for name, (tasks, _) in used.items()} == {"batch": 2, "0": 2, "1": 2}
        # The counters of the steps: not less than their programs spun, and together the job's.
        for name, length in (("batch", 0.2e9), ("0", 0.4e9), ("1", 0.6e9)):
            assert used[name][1] >= length
        assert sum(cpu for _, cpu in used.values()) <= job.cpu_time()


def test_a_chain_of_execs_is_split(node: SlurmNode, tmp_path: Path) -> None:
    """One process burns 0.5 s as one program and 1 s as another one."""
    python = Path("/usr/bin/python3").resolve()
    other = tmp_path / "other"
    other.write_bytes(python.read_bytes())
    other.chmod(0o755)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    # The second program begins when the agent has seen it: until then it uses next to nothing, so
    # the split does not depend on how soon a busy machine lets the agent read the event.
    second_part = (
        f"import time; open({str(gate)!r}).read(); end = time.process_time() + 1\n"
        "while time.process_time() < end: pass\n"
    )
    chain = (
        "import os, time\nwhile time.process_time() < 0.5: pass\n"
        f"os.execv({str(other)!r}, ['other', '-S', '-c', {second_part!r}])\n"
    )
    with following(node.finder()) as running:
        running.listen(node)
        job = node.job(1)
        step = job.step(python, "-c", chain)

        def is_seen() -> bool:
            parts = running.kept.parts(1)
            paths = [use.path for use in parts[-1].executables] if parts else []
            return os.fsencode(other) in paths

        wait_until(is_seen)
        gate.write_text("")
        step.wait()
        part = running.last(job)
        first, second = row(part, python), row(part, other)
        assert (first.executions, second.executions) == (1, 1)
        # Whatever Python's start costs: nearer to these than to any other split.
        assert 0.4e9 <= first.cpu_time < 0.9e9 <= second.cpu_time


def test_a_reused_pid_is_not_mixed_up_between_jobs(node: SlurmNode) -> None:
    last_pid = Path("/proc/sys/kernel/ns_last_pid")
    if not os.access(last_pid, os.W_OK):
        pytest.skip("the kernel does not let the next pid be set")
    first = built("wall")
    second = built("processor")
    script = (
        "import os, subprocess, sys\n"
        "for _ in range(200):\n"
        "    open('/proc/sys/kernel/ns_last_pid', 'w').write(str(int(sys.argv[1]) - 1))\n"
        "    child = subprocess.Popen([sys.argv[2], '60000'])\n"
        "    child.wait()\n"
        "    if child.pid == int(sys.argv[1]):\n"
        "        print(child.pid, flush=True)\n"
        "        break\n"
    )
    python = "/usr/bin/python3"
    with following(node.finder()) as running:
        running.listen(node)
        spare = subprocess.Popen(["true"])
        spare.wait()
        jobs = [node.job(1), node.job(2)]
        runs = []
        for job, program in zip(jobs, (first, second), strict=True):
            step = job.step(python, "-c", script, str(spare.pid), program, stdout=subprocess.PIPE)
            said, _ = step.communicate(timeout=60)
            runs.append(said.split())
        if runs != [[str(spare.pid).encode()]] * 2:
            pytest.skip("other processes took the pid")
        one, two = (running.last(job) for job in jobs)
        assert not [use for use in one.executables if use.path == os.fsencode(second)]
        assert not [use for use in two.executables if use.path == os.fsencode(first)]
        assert row(two, second).cpu_time >= 0.05e9


def test_a_fork_bomb_is_survived(node: SlurmNode) -> None:
    """Three thousand processes, bounded by a pids cgroup, with few descriptors to look at them."""
    pids = find_hierarchies().v1.get("pids")
    if pids is None:
        pytest.skip("needs the pids hierarchy")
    directory = pids / f"jobsight-bomb-{os.getpid()}"
    directory.mkdir()
    (directory / "pids.max").write_text("3000")
    bomb = (
        "import os, sys, time\n"
        "open(sys.argv[1] + '/cgroup.procs', 'w').write('0')\n"
        "forks = 0\n"
        "while forks < 3000:\n"
        "    try:\n"
        "        if os.fork() == 0:\n"
        "            time.sleep(0.5); os._exit(0)\n"
        "        forks += 1\n"
        "    except OSError:\n"
        "        time.sleep(0.01)\n"
        "    try:\n"
        "        while os.waitpid(-1, os.WNOHANG)[0]: pass\n"
        "    except ChildProcessError:\n"
        "        pass\n"
        "while True:\n"
        "    try: os.wait()\n"
        "    except ChildProcessError: break\n"
    )
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with following(node.finder()) as running:
            # As with a hard limit of that size, which could not be taken back here.
            room = descriptors() + 200
            resource.setrlimit(resource.RLIMIT_NOFILE, (room, before[1]))
            Descriptors.limit = 128
            job = node.job(1)
            quiet = node.job(2)
            quiet.step(built("processor"), "500000").wait()
            step = job.step("/usr/bin/python3", "-c", bomb, str(directory))
            most = 0
            while step.poll() is None:
                most = max(most, descriptors())
                time.sleep(0.1)
            assert running.error is None
            part = running.last(job)
            assert most <= room
            assert part.totals.processes is not None
            assert part.totals.processes > 1000
            wait_until(lambda: len(running.agent.collector.tracker.processes) < 10)
            calm = running.last(quiet)
            assert row(calm, built("processor")).executions == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        Descriptors.limit = 1 << 30
        wait_until(lambda: _removed(directory))


def descriptors() -> int:
    """How many are open; counted without one."""
    return sum(os.path.lexists(f"/proc/self/fd/{number}") for number in range(2000))


def _removed(directory: Path) -> bool:
    try:
        directory.rmdir()
    except OSError:
        return False
    return True
