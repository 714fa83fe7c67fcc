"""The node's agent on the real kernel: starts, kills, restarts, faults at every read."""

import errno
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from jobsight.model import JobInfo, JobPart
from jobsight.transport.spool import Spool
from jobsight.transport.wire import decode
from tests.agent.slurm_trees import (
    RunningAgent,
    SlurmJob,
    SlurmNode,
    available,
    built,
    following,
    remove_tree,
    row,
    with_all_rows,
)
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not available(), reason="needs root and the hierarchies of cgroup v1"),
]


def test_a_new_job_is_noticed_by_its_folder_and_without_listing_proc(
    node: SlurmNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    real_list, real_scan = os.listdir, os.scandir

    def note(real: Callable[..., object]) -> Callable[..., object]:
        def look(path: object = ".") -> object:
            listed.append(os.fsdecode(path) if isinstance(path, (str, bytes)) else str(path))
            return real(path)

        return look

    monkeypatch.setattr(os, "listdir", note(real_list))
    monkeypatch.setattr(os, "scandir", note(real_scan))
    with following(node.finder()) as running:
        # Nobody looks by the clock where the kernel reports new directories.
        wait_until(lambda: running.agent.collector.rounds or listed)
        assert not running.agent.watcher.blind
        node.job(5).step("sleep", "60")
        wait_until(lambda: running.agent.jobs)
        wait_until(lambda: running.agent.jobs[0].view.usage.members)
    assert listed
    assert not [path for path in listed if path.rstrip("/") == "/proc"]


def test_an_agent_that_comes_in_the_middle_of_a_job(node: SlurmNode) -> None:
    job = node.job(1)
    step = job.step(built("processor"), "1500000")
    wait_until(lambda: job.used() > 0.5e9)
    with following(node.finder()) as running:
        step.wait()
        part = running.last(job)
    # What it used before the agent came is included.
    assert row(part, built("processor")).cpu_time >= 1.4e9
    assert part.sighting.birth <= time.time_ns() - 0.5e9


_AGENT = """
import sys
from pathlib import Path
from jobsight.agent.agent import Agent
from jobsight.agent.jobs.cgroup_watcher import CgroupWatcher
from jobsight.transport.spool import Spool
agent = Agent(cluster="test", node="n1", spool=Spool(Path(sys.argv[1])),
    watcher=CgroupWatcher(v1_roots=[sys.argv[3]]), run_directory=Path(sys.argv[2]),
    intervals=((None, 0.1),), flush_interval=0.1)
agent.run()
"""


def resting_counter(job: SlurmJob) -> int:
    """The counter of a job whose processes were stopped, once the last of them has left its CPU."""
    readings = [-1, job.cpu_time()]
    while readings[-1] != readings[-2]:
        time.sleep(0.1)
        readings.append(job.cpu_time())
    return readings[-1]


def test_a_killed_agent_and_the_next_one_give_right_totals(node: SlurmNode, tmp_path: Path) -> None:
    job = node.job(1)
    spools = [tmp_path / "spool-1", tmp_path / "spool-2"]

    def start(spool: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", _AGENT, str(spool), str(tmp_path / "run"), node.root]
        return subprocess.Popen(command)

    def parts(spool: Path) -> list[JobPart]:
        batches = [decode(file.read_bytes()) for file in sorted(spool.glob("*.batch"))]
        return [part for batch in batches for part in batch.parts]

    agents = [start(spools[0])]
    try:
        long = job.step(built("processor"), "1500000", step="0")
        # It rests whenever an agent takes its time to come.
        wait_until(lambda: job.signal("0", signal.SIGSTOP))
        wait_until(lambda: parts(spools[0]))
        job.signal("0", signal.SIGCONT)
        job.step(built("storm"), "20", "1", built("wall"), "5000", step="1").wait()

        def seen() -> bool:
            told = parts(spools[0])
            return any(use.executions == 20 for part in told for use in part.executables)

        wait_until(seen)
        job.signal("0", signal.SIGSTOP)
        # The job rests, and the agent has read all that it used so far.
        rested = resting_counter(job)
        wait_until(lambda: (parts(spools[0])[-1].totals.cpu_time or 0) >= rested)
        agents[0].send_signal(signal.SIGKILL)
        agents[0].wait()
        job.step(built("storm"), "10", "1", built("wall"), "5000", step="2").wait()
        agents.append(start(spools[1]))
        wait_until(lambda: parts(spools[1]))
        job.signal("0", signal.SIGCONT)
        job.step(built("storm"), "15", "1", built("wall"), "5000", step="3").wait()
        long.wait()
        counter = job.cpu_time()
        wait_until(lambda: (parts(spools[1])[-1].totals.cpu_time or 0) >= counter)
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    first, second = (with_all_rows(parts(spool)) for spool in spools)
    assert first.sighting == second.sighting
    assert first.epoch != second.epoch
    assert (second.totals.cpu_time or 0) <= job.cpu_time()
    # The ten in between were nobody's; they are in the counter and in no row.
    assert row(first, built("wall")).executions == 20
    assert row(second, built("wall")).executions == 15
    burned = sum(row(part, built("processor")).cpu_time for part in (first, second))
    assert burned >= 1.4e9
    assert row(second, built("processor")).executions == 0
    booked = sum(use.cpu_time for part in (first, second) for use in part.executables)
    assert booked <= counter


def test_stopping_takes_a_last_sample(node: SlurmNode) -> None:
    job = node.job(1)
    with following(node.finder(), intervals=((None, 60.0),), flush_interval=60.0) as running:
        job.step(built("processor"), "300000").wait()
        counter = job.cpu_time()
    part = running.kept.last(1)
    assert part.totals.cpu_time == counter
    assert row(part, built("processor")).executions == 1
    # The job goes on: its end is for the next agent to tell.
    assert not part.final


def test_a_job_of_the_same_name_made_anew_is_another(node: SlurmNode) -> None:
    counters = []
    with following(node.finder()) as running:
        for times in (1, 2):
            job = node.job(3)
            job.step(built("processor"), "100000").wait()
            counter = job.cpu_time()
            counters.append(counter)

            def is_read(times: int = times, counter: int = counter) -> bool:
                parts = running.kept.parts(3)
                births = {part.sighting.birth for part in parts}
                return len(births) == times and (parts[-1].totals.cpu_time or 0) >= counter

            wait_until(is_read)
            job.end()
            wait_until(lambda: not running.agent.jobs)
            # It is sent with the next batch.
            wait_until(lambda times=times: len(running.kept.finals(3)) >= times)
        assert len(running.kept.finals(3)) == 2
        assert len({final.sighting.birth for final in running.kept.finals(3)}) == 2
        for final, counter in zip(running.kept.finals(3), counters, strict=True):
            assert row(final, built("processor")).executions == 1
            assert counter <= (final.totals.cpu_time or 0) < sum(counters)


def test_a_job_that_leaves_one_hierarchy_before_the_others_is_one_job(node: SlurmNode) -> None:
    with following(node.finder(), intervals=((None, 0.01),)) as running:
        job = node.job(4)
        job.step(built("processor"), "200000").wait()
        seen = running.last(job).totals.cpu_time
        for controller in ("memory", "freezer", "cpuacct"):
            # The kernel counts the end of a process after its parent has waited for it.
            counter = job.cpu_time()
            remove_tree(job.directory(controller))
            time.sleep(0.1)
        (final,) = wait_until(lambda: running.kept.finals(4))
        time.sleep(0.3)
        assert len(running.kept.finals(4)) == 1
        assert len({part.sighting for part in running.kept.parts(4)}) == 1
        assert (seen or 0) <= (final.totals.cpu_time or 0) <= counter
        assert row(final, built("processor")).executions == 1


def test_users_on_the_list_are_left_alone(node: SlurmNode) -> None:
    with following(node.finder(), ignore_uids=[1234]) as running:
        node.job(1, uid=1234).step("sleep", "60")
        node.job(2, uid=4321).step("sleep", "60")
        wait_until(lambda: running.agent.jobs)
        time.sleep(0.5)
        assert [job.view.sighting.job_id for job in running.agent.jobs] == [2]
        assert running.kept.parts(1) == []


def test_one_job_alone_and_its_grace_period(node: SlurmNode) -> None:
    node.job(1).step("sleep", "60")
    job = node.job(2)
    job.step("sleep", "600")
    running = RunningAgent(node.finder(), job_id=2, grace_period=1.0)
    running.thread.start()
    wait_until(lambda: running.agent.jobs)
    # A job that runs is followed for longer than the grace period.
    time.sleep(2)
    assert running.thread.is_alive()
    assert [one.view.sighting.job_id for one in running.agent.jobs] == [2]
    job.signal("0", signal.SIGKILL)
    running.thread.join(60)
    assert not running.thread.is_alive()
    running.stop()
    assert running.kept.parts(1) == []
    assert 0 < (running.kept.last(2).totals.cpu_time or 0) <= job.cpu_time()


def test_an_agent_that_begins_looks_a_second_time(
    node: SlurmNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cgroups may exist at the first listing while the first process enters just after it."""
    finder = node.finder()
    looks: list[object] = []
    real = finder.jobs
    monkeypatch.setattr(finder, "jobs", lambda: looks.append(None) or real())
    with following(finder):
        wait_until(lambda: len(looks) >= 2)


def test_sockets_are_closed_without_jobs(node: SlurmNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobsight.agent.agent.IDLE_TIMEOUT", 100_000_000)
    with following(node.finder()) as running:
        collector = running.agent.collector
        assert collector.events is None
        job = node.job(1)
        job.step("sleep", "60")
        wait_until(lambda: collector.events is not None)
        job.end()
        wait_until(lambda: collector.events is None)


def test_a_prolog_opens_the_sockets_before_the_job_comes(
    node: SlurmNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobsight.agent.agent.ANNOUNCEMENT_TIMEOUT", 500_000_000)
    with following(node.finder()) as running:
        agent, told = running.agent, threading.Event()

        def tell(source: str) -> None:
            agent.announce(JobInfo(cluster="c", job_id=7, source=source))
            told.set()

        agent.collector.at(0, partial(tell, "epilog"))
        agent.collector.wake()
        assert told.wait(60)
        assert agent.collector.events is None
        agent.collector.at(0, partial(tell, "prolog"))
        agent.collector.wake()
        wait_until(lambda: agent.collector.events is not None)
        assert not agent.jobs
        # The job was cancelled, or went to other nodes.
        wait_until(lambda: agent.collector.events is None)


class Fault:
    """The n-th call of a kind fails; calls are counted over all threads of the agent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, mark: bytes) -> None:
        self.at = self.calls = self.number = 0
        self._mark = mark
        for name in ("open", "pread", "scandir", "stat"):
            monkeypatch.setattr(os, name, self._wrapped(getattr(os, name)))

    def _wrapped(self, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            what = arguments[0]
            concerned = isinstance(what, int) or self._mark in os.fsencode(
                what if isinstance(what, (str, bytes)) else str(what)
            )
            if concerned and self.at:
                self.calls += 1
                if self.calls == self.at:
                    raise OSError(self.number, os.strerror(self.number), what)
            return real(*arguments, **named)

        return call


@pytest.mark.parametrize(
    "number", [errno.ENODEV, errno.ENOENT, errno.ESRCH, errno.EACCES], ids=errno.errorcode.get
)
def test_a_job_whose_every_read_fails_once(
    node: SlurmNode,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    """Whatever read fails, the agent lives on and the other job's records stay right."""
    caplog.set_level(logging.ERROR)
    other = node.job(2)
    fault = Fault(monkeypatch, b"job_1")
    fault.number = number
    job = node.job(1)
    with following(node.finder(), intervals=((None, 0.01),)) as running:
        other.step("sleep", "60")
        job.step("sleep", "60")
        wait_until(lambda: len(running.agent.jobs) == 2)
        for position in range(1, 40):
            fault.calls, fault.at = 0, position
            wait_until(lambda position=position: fault.calls >= position)
            fault.at = 0
            assert running.thread.is_alive(), running.error
        other.step(built("processor"), "100000", step="1").wait()
        part = running.last(other)
        assert row(part, built("processor")).executions == 1
        for told in running.kept.parts(1):
            assert not [use for use in told.executables if b"processor" in use.path]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(set(messages)), messages


def test_a_spool_that_is_full_does_not_stop_the_measuring(node: SlurmNode, tmp_path: Path) -> None:
    job = node.job(1)
    spool = Spool(tmp_path / "spool", limit=1)
    running = RunningAgent(node.finder(), spool=spool)
    try:
        running.thread.start()
        job.step(built("processor"), "300000").wait()
        wait_until(lambda: running.agent.jobs)
        wait_until(lambda: spool.dropped > 0)
        assert running.thread.is_alive()
    finally:
        running.stop()
        spool.close()


def test_books_never_exceed_the_counter_while_a_job_runs(node: SlurmNode) -> None:
    with following(node.finder(), flush_interval=0.05, intervals=((None, 0.05),)) as running:
        job = node.job(1)
        job.step(built("storm"), "300", "2", built("wall"), "2000").wait()
        running.last(job)
        parts = [part for part in running.kept.parts(1) if part.totals.cpu_time]
    assert parts
    for part in parts:
        assert sum(use.cpu_time for use in part.executables) <= part.totals.cpu_time
    assert row(parts[-1], built("wall")).executions == 300


# Fault 1: figures that were not fully watched were called exact.
def test_an_agent_killed_in_a_storm_leaves_a_gap_in_the_coverage(
    node: SlurmNode, tmp_path: Path
) -> None:
    job = node.job(1)
    spools = [tmp_path / f"spool-{number}" for number in range(3)]

    def start(spool: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", _AGENT, str(spool), str(tmp_path / "run"), node.root]
        return subprocess.Popen(command)

    def parts(spool: Path) -> list[JobPart]:
        batches = [decode(file.read_bytes()) for file in sorted(spool.glob("*.batch"))]
        return [part for batch in batches for part in batch.parts]

    script = f"while :; do {built('wall')} 5000; done"
    job.step("/bin/sh", "-c", script)
    gaps = 0
    for spool in spools:
        agent = start(spool)
        try:
            wait_until(lambda spool=spool: len(parts(spool)) > 3 and row_of(parts(spool)[-1]))
        finally:
            agent.kill()
            agent.wait()
        # The storm goes on unobserved.
        used = job.cpu_time()
        wait_until(lambda used=used: job.cpu_time() > used + 50_000_000)
        coverage = parts(spool)[-1].coverage
        for group in ("executables", "io"):
            assert coverage[group].quality == "estimate"
            assert "not observed" in coverage[group].reason
            assert coverage[group].time_share is not None
            assert 0 <= coverage[group].time_share < 1
        assert coverage["cpu"].quality == "exact"
        # The second agent knows the time without the first one, the third both.
        said = coverage["executables"].reason
        assert said.startswith("processes ")
        assert " UTC " in said
        gaps = max(gaps, said.count(" to ") + said.count("before"))
    assert gaps >= 1


def row_of(part: JobPart) -> bool:
    return any(use.path == bytes(built("wall")) and use.executions for use in part.executables)


# Fault 1: an agent that noticed the job late.
def test_an_agent_that_comes_late_says_since_when_it_has_observed_the_job(node: SlurmNode) -> None:
    job = node.job(1)
    step = job.step("/bin/sh", "-c", f"{built('wall')} 1000; read line", stdin=subprocess.PIPE)
    wait_until(lambda: job.used() > 0)
    with following(node.finder()) as running:
        part = wait_until(lambda: running.kept.parts(1) and running.kept.last(1))
        assert step.stdin is not None
        step.stdin.close()
        step.wait()
    coverage = part.coverage["executables"]
    assert coverage.quality == "estimate"
    assert re.fullmatch(r"processes before \d\d:\d\d:\d\d UTC were not observed", coverage.reason)
    assert part.coverage["cpu"].quality == "exact"


# Fault 1: a step that was created and removed before its processes could be listed.
def test_a_step_that_was_never_listed_is_not_exact(
    node: SlurmNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with following(node.finder()) as running:
        job = node.job(1)
        job.step("sleep", "60", step="0")
        (followed,) = wait_until(lambda: running.agent.jobs)
        agent = running.agent
        created = agent.watcher.pop_created_steps
        monkeypatch.setattr(
            agent.watcher,
            "pop_created_steps",
            lambda: [*created(), (followed.cgroup.directories["memory"], "7")],
        )
        job.step("true", step="1").wait()
        part = wait_until(
            lambda: [
                part
                for part in running.kept.parts(1)
                # On a busy machine step 1 may pass unseen, too.
                if re.search(r"short steps? \((1, )?7\)", part.coverage["executables"].reason)
            ]
        )
    assert part[0].coverage["executables"].quality == "estimate"


def test_a_step_that_came_and_went_with_its_job_is_not_exact(node: SlurmNode) -> None:
    """A job of one moment had no programs and was exact: the events of its step and of its removal
    were read together."""
    running = RunningAgent(node.finder())
    agent = running.agent
    job = node.job(1)
    job.step("sleep", "60", step="extern")
    wait_until(lambda: job.used() > 0)
    agent._scan()
    (followed,) = agent.jobs
    job.step("true", step="batch", keep=False).wait()
    job.end()
    agent._cgroups_changed()
    assert followed not in agent.jobs
    running.thread.start()
    running.stop()
    (part,) = running.kept.finals(1)
    assert part.coverage["executables"].quality == "estimate"
    assert "short step (batch)" in part.coverage["executables"].reason


# Fault 1: a step came and went after the cgroups were last listed, and before the batch.
def test_a_batch_names_the_steps_that_came_and_went_before_it(node: SlurmNode) -> None:
    running = RunningAgent(node.finder())
    agent = running.agent
    job = node.job(1)
    job.step("sleep", "60", step="0")
    # All its cgroups exist when they are listed.
    wait_until(lambda: job.used() > 0)
    agent._scan()
    job.step("true", step="1", keep=False).wait()
    agent.collector.flush()
    part = wait_until(lambda: running.kept.parts(1))[-1]
    running.thread.start()
    running.stop()
    assert part.coverage["executables"].quality == "estimate"
    assert "short step (1)" in part.coverage["executables"].reason
