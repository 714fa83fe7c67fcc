"""Processes followed by their events: made-up lives, told in every order that can happen."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from jobsight.agent.processes import tracker
from jobsight.agent.processes.netlink import ExitRecord, ProcessEvent
from jobsight.agent.processes.process import (
    ROW_SIZE,
    SEEN_INTERVAL,
    JobUsage,
    Process,
    Segment,
)
from jobsight.agent.processes.procfs import IoCounters
from jobsight.agent.processes.tracker import LEADER_EXIT_DELAY
from tests.agent.lives import MILLISECOND, Alive, Kernel, figures, record
from tests.examples import examples

SHELL, TRUE, OTHER = b"/bin/sh", b"/bin/true", b"/bin/other"
INODE = (65024, 77)


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def use_of(usage: JobUsage, path: bytes) -> Any:
    return next(row for row in usage.snapshot(polled_is_estimate=False) if row.path == path)


def test_fork_exec_exit(kernel: Kernel) -> None:
    usage = kernel.job()
    kernel.names.links[7] = TRUE
    kernel.tell(kernel.fork(100, 7), kernel.execute(7))
    assert usage.members.keys() == {100, 7}
    kernel.tell(kernel.exit(7), record(7, 5, read_bytes=3, written_bytes=4, peak_memory=9))
    assert figures(usage) == {SHELL: (0, 1, 0), TRUE: (1, 1, 5)}
    assert usage.members.keys() == {100}
    assert (usage.executions, usage.processes, usage.records_lost) == (1, 2, 0)
    row = use_of(usage, TRUE)
    assert (row.read_bytes, row.written_bytes, row.peak_memory) == (3, 4, 9)
    assert row.cpu_estimated == 0


def test_a_whole_life_in_one_drain_is_named_by_its_record(kernel: Kernel) -> None:
    usage = kernel.job()
    kernel.names.learn(INODE, TRUE, None)
    kernel.tell(kernel.fork(100, 7), kernel.execute(7), kernel.exit(7), record(7, executable=INODE))
    assert figures(usage)[TRUE] == (1, 1, 0)


def test_without_an_inode_the_command_is_the_name(kernel: Kernel) -> None:
    usage = kernel.job()
    kernel.tell(kernel.fork(100, 7), kernel.execute(7), kernel.exit(7), record(7, 5))
    row = use_of(usage, b"command")
    assert not row.path_known
    assert row.executions == 1


def test_a_later_look_names_those_that_came_before(kernel: Kernel) -> None:
    usage = kernel.job()
    kernel.tell(
        kernel.fork(100, 7),
        kernel.execute(7),
        kernel.exit(7),
        record(7, 5, executable=INODE, peak_memory=2),
    )
    kernel.names.links[8] = TRUE
    kernel.tell(kernel.fork(100, 8), kernel.execute(8))
    kernel.pass_time(10_000_000)
    kernel.tell(kernel.exit(8), record(8, 6, executable=INODE))
    assert figures(usage) == {SHELL: (0, 1, 0), TRUE: (2, 2, 11)}


def test_what_was_sent_without_a_name_is_taken_back(kernel: Kernel) -> None:
    usage = kernel.job()
    life = (kernel.fork(100, 7), kernel.execute(7), kernel.exit(7), record(7, 5, executable=INODE))
    kernel.tell(*life)
    assert figures(usage)[b"command"] == (1, 1, 5)
    kernel.names.learn(INODE, TRUE, None)
    kernel.tell()
    assert figures(usage) == {SHELL: (0, 1, 0), TRUE: (1, 1, 5), b"command": (0, 0, 0)}


def test_a_record_may_come_before_its_exec_event(kernel: Kernel) -> None:
    usage = kernel.job()
    kernel.tell(kernel.fork(100, 7), record(7, 5, executable=INODE))
    kernel.names.learn(INODE, TRUE, None)
    kernel.tell(kernel.execute(7))
    kernel.tell(kernel.exit(7))
    assert figures(usage)[TRUE] == (1, 1, 5)


def test_a_fork_without_exec_is_booked_on_its_parent_s_program(kernel: Kernel) -> None:
    usage = kernel.job()
    kernel.tell(kernel.fork(100, 7), kernel.exit(7), record(7, 5))
    assert figures(usage) == {SHELL: (0, 2, 5)}


@pytest.mark.parametrize("leader", [0, 1, 2])
def test_threads_are_summed_whoever_ends_last(kernel: Kernel, leader: int) -> None:
    usage = kernel.job()
    kernel.names.links[7] = TRUE
    kernel.tell(kernel.fork(100, 7), kernel.execute(7))
    order = [8, 9]
    order.insert(leader, 7)
    for index, thread in enumerate(order):
        last = index == 2
        kernel.tell(kernel.exit(thread, 7), record(thread, 10 + index, tgid=7, last_of_group=last))
        assert (7 in usage.members) is not last
    assert figures(usage)[TRUE] == (1, 1, 33)


@pytest.mark.parametrize("late", [7, 8])
@pytest.mark.parametrize("drains", [1, 2])
def test_a_thread_may_end_after_the_last_one(kernel: Kernel, late: int, drains: int) -> None:
    """The kernel marks the last thread before it writes its record; another is held up there."""
    usage = kernel.job()
    kernel.names.links[7] = TRUE
    kernel.tell(kernel.fork(100, 7), kernel.execute(7))
    last = 15 - late
    told = [
        kernel.exit(last, 7, status=256),
        record(last, 10, tgid=7, read_bytes=100),
        kernel.exit(late, 7),
        record(late, 300, tgid=7, last_of_group=False, read_bytes=20),
    ]
    paired = usage.process_cpu()
    for number in range(drains):
        size = len(told) // drains
        kernel.tell(*told[number * size : (number + 1) * size])
    assert 7 not in usage.members
    assert figures(usage)[TRUE] == (1, 1, 310)
    row = use_of(usage, TRUE)
    assert (row.failures, row.read_bytes, row.cpu_estimated) == (1, 120, 0)
    # A counter that was read in between contains the late thread.
    assert usage.process_cpu() == paired + 10
    assert usage.exited_cpu == 310


def test_a_thread_without_an_event_is_in_the_last_figures(kernel: Kernel) -> None:
    """The kernel sends the event of a thread after its process could be waited for."""
    usage = kernel.job()
    kernel.names.links[7] = TRUE
    kernel.tell(kernel.fork(100, 7), kernel.execute(7))
    kernel.tell(kernel.exit(7), record(7, 10, tgid=7))
    kernel.tell(record(8, 300, tgid=7, last_of_group=False), record(9, 5, tgid=50))
    kernel.tracker.settle()
    assert figures(usage)[TRUE] == (1, 1, 310)
    # The event changes nothing any more.
    kernel.tell(kernel.exit(8, 7))
    assert figures(usage)[TRUE] == (1, 1, 310)
    assert len(kernel.tracker._pending_records) == 1


def test_a_reused_pid_has_no_late_threads(kernel: Kernel) -> None:
    usage = kernel.job()
    kernel.tell(kernel.fork(100, 7), kernel.exit(7), record(7, 10))
    # A process of nobody's job.
    kernel.tell(kernel.fork(50, 7), kernel.exit(7), record(7, 500))
    assert figures(usage) == {SHELL: (0, 2, 10)}


def test_ended_processes_are_forgotten(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel.job()
    monkeypatch.setattr(tracker, "MAX_ENDED", 3)
    for pid in range(7, 17):
        kernel.tell(kernel.fork(100, pid), kernel.exit(pid), record(pid, 1))
    assert list(kernel.tracker._ended) == [14, 15, 16]
    monkeypatch.setattr(tracker, "LATE_THREAD_AGE", 0)
    kernel.tell()
    assert not kernel.tracker._ended


def test_threads_of_an_older_kernel_are_summed_even_after_the_first(kernel: Kernel) -> None:
    usage = kernel.job()
    kernel.names.links[7] = TRUE
    kernel.tell(kernel.fork(100, 7), kernel.execute(7))
    kernel.now = time.monotonic_ns()
    kernel.tell(kernel.exit(7, status=256), record(7, 10, tgid=0, last_of_group=False))
    kernel.tell(kernel.exit(8, 7), record(8, 11, tgid=0, last_of_group=False))
    kernel.tracker._finish_delayed(kernel.now)
    assert figures(usage)[TRUE] == (1, 1, 21)
    assert use_of(usage, TRUE).failures == 1


def test_a_process_of_an_older_kernel_ends_after_a_moment(kernel: Kernel) -> None:
    usage = kernel.job()
    kernel.tell(kernel.fork(100, 7), kernel.exit(7), record(7, 10, tgid=0, last_of_group=False))
    assert kernel.now < time.monotonic_ns() - LEADER_EXIT_DELAY
    assert 7 not in usage.members


def test_the_number_of_a_lingering_process_may_be_given_away(kernel: Kernel) -> None:
    usage = kernel.job()
    kernel.now = time.monotonic_ns()
    kernel.tell(kernel.fork(100, 7), kernel.exit(7), record(7, 10, tgid=0, last_of_group=False))
    kernel.tell(kernel.fork(100, 7), kernel.exit(7), record(7, 5, tgid=0, last_of_group=False))
    kernel.tracker.finish_lost(7)
    assert figures(usage) == {SHELL: (0, 3, 15)}
    assert usage.records_lost == 0


@pytest.mark.parametrize("tgid", [0, 7])
def test_an_exec_in_another_thread_ends_the_first_and_not_the_process(
    kernel: Kernel, tgid: int
) -> None:
    usage = kernel.job()
    kernel.now = time.monotonic_ns()
    kernel.tell(kernel.fork(100, 7))
    kernel.tell(kernel.exit(7, status=9), record(7, 4, tgid=tgid, last_of_group=False))
    kernel.names.links[7] = TRUE
    kernel.tell(kernel.execute(7))
    kernel.tell(kernel.exit(7), record(7, 5, tgid=tgid))
    kernel.tracker._finish_delayed(kernel.now)
    assert sum(cpu for _, _, cpu in figures(usage).values()) == 9
    assert [row.failures for row in usage.snapshot(polled_is_estimate=False)] == [0, 0]


def test_an_exec_chain_is_split_where_the_use_is_known(kernel: Kernel) -> None:
    usage = kernel.job()
    kernel.names.links[7] = TRUE
    kernel.tell(kernel.fork(100, 7), kernel.execute(7))
    process = usage.members[7]
    kernel.now = time.monotonic_ns()
    process.live = Alive(7, ran=60 * MILLISECOND)  # type: ignore[assignment]
    kernel.names.links[7] = OTHER
    event = kernel.execute(7, after=100)
    kernel.tell(event)
    kernel.tell(kernel.exit(7, after=50), record(7, 90 * MILLISECOND))
    found = figures(usage)
    assert found[TRUE][:2] == found[OTHER][:2] == (1, 1)
    assert found[TRUE][2] + found[OTHER][2] == 90 * MILLISECOND
    # The exec lies in the future of the look, so that nothing is taken off what was read.
    assert found[TRUE][2] == 60 * MILLISECOND
    assert use_of(usage, TRUE).cpu_estimated == 0


@pytest.mark.parametrize(("waited", "before"), [(0, 56), (160, 72)])
def test_a_late_look_takes_off_what_it_ran_since(waited: int, before: int) -> None:
    """24 ms after the exec: all of them, or a third where it had got no more before."""
    process = Process(7, JobUsage(), Segment(None, 0, executed=True))
    process.live = Alive(7, 80 * MILLISECOND, waited * MILLISECOND)  # type: ignore[assignment]
    second = Segment(None, 100 * MILLISECOND, executed=True)
    second.named_at = 124 * MILLISECOND
    process.measure_exec(second, b"/no/such/proc")
    assert second.cpu_before == before * MILLISECOND


def test_an_exec_chain_is_split_by_time_where_it_was_gone(kernel: Kernel) -> None:
    usage = kernel.job()
    kernel.names.links[7] = TRUE
    kernel.tell(kernel.fork(100, 7), kernel.execute(7, after=0))
    kernel.now = time.monotonic_ns()
    usage.members[7].segments[-1].start = kernel.now
    kernel.names.links[7] = OTHER
    kernel.tell(kernel.execute(7, after=30))
    kernel.tell(kernel.exit(7, after=10), record(7, 80))
    found = figures(usage)
    assert (found[TRUE], found[OTHER]) == ((1, 1, 60), (1, 1, 20))
    assert use_of(usage, TRUE).cpu_estimated == 60
    assert use_of(usage, OTHER).cpu_estimated == 20


def test_what_a_shell_did_right_before_an_exec_is_the_program_s(kernel: Kernel) -> None:
    usage = kernel.job()
    kernel.names.links[7] = TRUE
    kernel.tell(kernel.fork(100, 7), kernel.execute(7, after=9))
    kernel.tell(kernel.exit(7), record(7, 5))
    assert figures(usage) == {SHELL: (0, 1, 0), TRUE: (1, 1, 5)}


def test_a_fork_that_worked_before_its_exec_gets_its_part(kernel: Kernel) -> None:
    usage = kernel.job()
    kernel.names.links[7] = TRUE
    kernel.tell(kernel.fork(100, 7), kernel.execute(7, after=30))
    kernel.tell(kernel.exit(7, after=10), record(7, 80))
    assert figures(usage) == {SHELL: (0, 2, 60), TRUE: (1, 1, 20)}


def test_a_link_read_too_late_is_not_the_replaced_program_s_name(kernel: Kernel) -> None:
    usage = kernel.job()
    # Both execs were over before the first could be looked at: the link is the second's.
    kernel.names.links[7] = OTHER
    kernel.tell(kernel.fork(100, 7), kernel.execute(7), kernel.execute(7))
    kernel.tell(kernel.exit(7), record(7, 10))
    found = figures(usage)
    assert found[OTHER][:2] == (1, 1)
    assert found[b"replaced at once"][:2] == (1, 1)
    assert usage.executions == 2
    assert sum(cpu for _, _, cpu in found.values()) == 10


@pytest.mark.parametrize(("milliseconds", "expected"), [(20, (1, 1)), (100, (2, 2))])
def test_a_link_may_change_before_the_event_of_its_exec(
    kernel: Kernel, milliseconds: int, expected: tuple[int, int]
) -> None:
    usage = kernel.job()
    # The link that was read for the first exec is the second's, or its program executed itself.
    kernel.names.links[7] = OTHER
    kernel.tell(kernel.fork(100, 7), kernel.execute(7))
    kernel.now = time.monotonic_ns()
    kernel.tell(kernel.execute(7, after=milliseconds))
    kernel.tell(kernel.exit(7, after=100), record(7, 10))
    found = figures(usage)
    assert found[OTHER][:2] == expected
    assert usage.executions == 2


def test_a_link_read_after_the_end_belongs_to_somebody_else(kernel: Kernel) -> None:
    usage = kernel.job()
    kernel.names.learn(INODE, TRUE, None)
    kernel.names.links[7] = OTHER
    kernel.tell(kernel.fork(100, 7), kernel.execute(7))
    kernel.tell(kernel.exit(7), record(7, 5, executable=INODE))
    assert figures(usage) == {SHELL: (0, 1, 0), TRUE: (1, 1, 5)}


def test_the_newest_link_is_read_first_and_that_of_an_ended_process_never(kernel: Kernel) -> None:
    kernel.job()
    asked: list[int] = []

    def by_link(pid: int) -> None:
        asked.append(pid)

    kernel.names.by_link = by_link  # type: ignore[method-assign]
    lives = [event for pid in (7, 8, 9) for event in (kernel.fork(100, pid), kernel.execute(pid))]
    kernel.tell(*lives, kernel.exit(8), record(8), kernel.execute(4242))
    assert asked == [9, 7]


def test_a_number_given_twice_within_one_drain(kernel: Kernel) -> None:
    usage = kernel.job()
    one, two = (65024, 1), (65024, 2)
    kernel.names.learn(one, TRUE, None)
    kernel.names.learn(two, OTHER, None)
    kernel.tell(
        *(kernel.fork(100, 7), kernel.execute(7), kernel.exit(7), record(7, 5, executable=one)),
        *(kernel.fork(100, 7), kernel.execute(7), kernel.exit(7), record(7, 6, executable=two)),
    )
    assert figures(usage) == {SHELL: (0, 1, 0), TRUE: (1, 1, 5), OTHER: (1, 1, 6)}


def test_a_number_given_again_after_a_lost_exit(kernel: Kernel) -> None:
    usage = kernel.job()
    kernel.names.links[7] = TRUE
    kernel.tell(kernel.fork(100, 7), kernel.execute(7))
    usage.members[7].polled_cpu = 4
    kernel.names.links[7] = OTHER
    kernel.tell(kernel.fork(100, 7), kernel.execute(7))
    kernel.tell(kernel.exit(7), record(7, 6))
    assert figures(usage) == {SHELL: (0, 1, 0), TRUE: (1, 1, 4), OTHER: (1, 1, 6)}
    assert usage.records_lost == 1
    assert use_of(usage, TRUE).cpu_estimated == 4


def test_a_number_given_again_to_another_job_after_a_lost_exit(kernel: Kernel) -> None:
    first, second = kernel.job(100), kernel.job(200)
    kernel.tell(kernel.fork(100, 7))
    kernel.tell(kernel.fork(200, 7), kernel.exit(7), record(7, 6, parent=200))
    assert figures(first) == {SHELL: (0, 2, 0)}
    assert figures(second) == {SHELL: (0, 2, 6)}


def test_a_process_met_in_the_cgroup_before_its_fork_event(kernel: Kernel) -> None:
    usage = kernel.job()
    events = (kernel.fork(100, 7), kernel.execute(7))
    kernel.names.links[7] = TRUE
    kernel.tracker.adopt(Alive(7), usage, new=True)  # type: ignore[arg-type]
    kernel.tell(*events)
    assert (usage.processes, usage.executions) == (2, 1)
    kernel.tell(kernel.exit(7), record(7, 5))
    assert figures(usage) == {SHELL: (0, 1, 0), TRUE: (1, 1, 5)}


def test_a_lost_record_is_counted_and_the_last_look_is_booked(kernel: Kernel) -> None:
    usage = kernel.job()
    kernel.tell(kernel.fork(100, 7))
    process = usage.members[7]
    process.polled_cpu, process.polled_io = 40, IoCounters(1, 2, 3, 4, 5, 6)
    kernel.tell(kernel.exit(7, status=256))
    assert usage.records_lost == 1
    row = use_of(usage, SHELL)
    assert (row.cpu_time, row.cpu_estimated, row.read_bytes, row.failures) == (40, 40, 5, 1)


def test_what_a_process_used_before_the_agent_came_is_not_booked(kernel: Kernel) -> None:
    usage = kernel.job()
    process = usage.members[100]
    process.base_cpu, process.base_io = 30, IoCounters(1, 1, 1, 1, 100, 200)
    process.polled_cpu = 30
    process.polled_io = process.base_io
    assert figures(usage)[SHELL] == (0, 1, 0)
    kernel.tell(kernel.exit(100), record(100, 50, read_bytes=150, written_bytes=200))
    row = use_of(usage, SHELL)
    assert (row.cpu_time, row.read_bytes, row.written_bytes) == (20, 50, 0)


def test_the_launcher_s_own_part_before_the_command_is_not_booked(kernel: Kernel) -> None:
    usage = JobUsage()
    kernel.now = time.monotonic_ns()
    process = kernel.tracker.expect_exec(Alive(7, ran=30), usage)  # type: ignore[arg-type]
    kernel.names.links[7] = TRUE
    kernel.tell(kernel.execute(7, after=1000))
    assert not process.awaits_exec
    kernel.tell(kernel.exit(7), record(7, 50))
    assert figures(usage) == {TRUE: (1, 1, 20)}


def test_the_child_of_a_nameless_process_keeps_what_it_used_before_its_exec(
    kernel: Kernel,
) -> None:
    usage = kernel.job()
    kernel.tell(kernel.fork(100, 7), kernel.execute(7), kernel.fork(7, 8), kernel.execute(8))
    usage.members[8].live = Alive(8, ran=30)  # type: ignore[assignment]
    kernel.tell(kernel.exit(8), record(8, 50), kernel.exit(7), record(7, 5))
    assert sum(cpu for _, _, cpu in figures(usage).values()) == 55


@pytest.mark.parametrize("status", [256, 9, 11 | 128])
def test_failures_are_counted(kernel: Kernel, status: int) -> None:
    usage = kernel.job()
    kernel.names.links[7] = TRUE
    kernel.tell(kernel.fork(100, 7), kernel.execute(7))
    kernel.tell(kernel.exit(7, status=status), record(7))
    assert use_of(usage, TRUE).failures == 1
    assert use_of(usage, SHELL).failures == 0


def test_the_descriptors_of_an_ended_process_are_closed(kernel: Kernel) -> None:
    usage = kernel.job()
    kernel.tell(kernel.fork(100, 7))
    alive = Alive(7)
    usage.members[7].live = alive  # type: ignore[assignment]
    kernel.tell(kernel.exit(7), record(7))
    assert alive.closed


def test_processes_of_no_job_leave_nothing_behind(kernel: Kernel) -> None:
    kernel.tell(kernel.fork(1, 7), kernel.execute(7), kernel.exit(7), record(7))
    assert kernel.tracker.processes == {}
    assert len(kernel.tracker._pending_records) == 0


def test_records_whose_exit_was_lost_are_bounded(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobsight.agent.processes.tracker.MAX_PENDING_RECORDS", 100)
    for pid in range(1000):
        kernel.tell(record(pid + 1000))
    assert len(kernel.tracker._pending_records) <= 100


def test_programs_without_end_share_a_row(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    size = ROW_SIZE + len(b"/made/00")
    monkeypatch.setattr("jobsight.agent.processes.process.GUARANTEED_ROWS_SIZE", 0)
    monkeypatch.setattr("jobsight.agent.processes.process.MAX_JOB_ROWS_SIZE", 10 * size)
    usage = kernel.job()
    for number in range(50):
        kernel.names.links[7] = b"/made/%d" % number
        kernel.tell(kernel.fork(100, 7), kernel.execute(7))
        kernel.tell(kernel.exit(7), record(7, 5))
    assert len(usage.executables) == 11
    assert use_of(usage, b"other programs").cpu_time == 5 * 41
    assert sum(row.cpu_time for row in usage.snapshot(polled_is_estimate=False)) == 250


def test_more_processes_than_are_followed_are_stated(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobsight.agent.processes.tracker.MAX_PROCESSES", 10)
    monkeypatch.setattr("jobsight.agent.processes.tracker.GUARANTEED_PROCESSES", 3)
    usage = kernel.job()
    kernel.tell(*(kernel.fork(100, 1000 + number) for number in range(50)))
    assert len(kernel.tracker.processes) == 10
    assert usage.records_lost == 41
    # Another job has what is guaranteed to each.
    other = kernel.job(200)
    kernel.tell(*(kernel.fork(200, 2000 + number) for number in range(5)))
    assert (len(other.members), other.records_lost) == (3, 3)


# Any number of valid lives, told in any order that the kernel could tell them.


@some.composite
def histories(draw: some.DrawFn) -> tuple[list[Any], dict[int, tuple[int, int]], int]:
    """Interleaved lives of two jobs: items for the tracker, and per job its CPU time and execs."""
    kernel = Kernel()
    old = draw(some.booleans())
    alive: dict[int, dict[str, Any]] = {root: {"job": root, "threads": []} for root in (100, 200)}
    truth = {100: [0, 0], 200: [0, 0]}
    items: list[Any] = []
    numbers = iter(range(1000, 5000))
    for _ in range(draw(some.integers(1, 40))):
        pid = draw(some.sampled_from(sorted(alive)))
        life = alive[pid]
        step = draw(some.sampled_from(["fork", "exec", "thread", "exit", "drain"]))
        kernel.pass_time(draw(some.integers(0, 30)))
        if step == "fork":
            child = draw(some.sampled_from([50, 51, 52])) if draw(some.booleans()) else 0
            child = child if child and child not in alive else next(numbers)
            items.append(kernel.fork(pid, child, after=0.001))
            alive[child] = {"job": life["job"], "threads": []}
        elif step == "exec":
            items.append(kernel.execute(pid, after=0.001))
            truth[life["job"]][1] += 1
        elif step == "thread":
            life["threads"].append(next(numbers))
        elif step == "exit" and pid not in (100, 200):
            # On an older kernel nothing says which is the last, so its first thread is here.
            threads = life["threads"]
            order = [*threads, pid] if old else draw(some.permutations([*threads, pid]))
            for index, thread in enumerate(order):
                cpu = draw(some.integers(0, 10**9))
                truth[life["job"]][0] += cpu
                last = index == len(order) - 1
                items.append(
                    record(
                        thread,
                        cpu,
                        tgid=0 if old else pid,
                        last_of_group=last and not old,
                        executable=draw(some.sampled_from([None, INODE])),
                    )
                )
                items.append(kernel.exit(thread, pid, after=0.001))
            del alive[pid]
        elif step == "drain":
            items.append(None)
    return items, {job: (cpu, execs) for job, (cpu, execs) in truth.items()}, kernel.now


@given(histories(), some.randoms(use_true_random=False), some.sets(some.integers(50, 60)))
@settings(max_examples=examples(300), deadline=None)
def test_everything_is_booked_once_and_on_its_own_job(
    history: tuple[list[Any], dict[int, tuple[int, int]], int], chance: Any, linked: set[int]
) -> None:
    items, truth, _ = history
    kernel = Kernel()
    usages = {root: kernel.job(root) for root in (100, 200)}
    for process in kernel.tracker.processes.values():
        # The history was told on another clock; both jobs were there before it.
        process.segments[0].start = -(10**18)
    for pid in linked:
        kernel.names.links[pid] = OTHER
    events: list[ProcessEvent] = []
    records: list[ExitRecord] = []
    for item in items:
        if isinstance(item, ProcessEvent):
            events.append(item)
        elif item is not None:
            records.append(item)
            if chance.random() < 0.3:
                # The record is drained before the events that were sent before it.
                kernel.tell(*records)
                records = []
        else:
            kernel.tell(*events, *records)
            events, records = [], []
            for usage in usages.values():
                usage.snapshot(polled_is_estimate=False)
    kernel.tell(*events, *records)
    kernel.tracker._finish_delayed(time.monotonic_ns())
    for root, usage in usages.items():
        rows = usage.snapshot(polled_is_estimate=False)
        cpu, executions = truth[root]
        assert sum(row.cpu_time for row in rows) == cpu
        assert usage.executions == executions
        pending = sum(
            segment.executed and not segment.counted
            for process in usage.members.values()
            for segment in process.segments
        )
        assert sum(row.executions for row in rows) + pending == executions
        assert usage.records_lost == 0
    assert len(kernel.tracker._pending_records) == 0


# Fault 4: a process between slurmstepd's fork and its exec is not called slurmstepd.
@pytest.mark.parametrize("adopted", ["found", "by its fork", "polled"])
def test_a_child_of_slurmstepd_is_named_by_what_it_executes(adopted: str) -> None:
    kernel = Kernel()
    usage = JobUsage()
    kernel.names.links = {50: b"/usr/sbin/slurmstepd-wlm", 200: b"/usr/sbin/slurmstepd-wlm"}
    if adopted == "by its fork":
        kernel.tell(kernel.fork(50, 200))
    process = kernel.tracker.adopt(Alive(200), usage, new=True)  # type: ignore[arg-type]
    assert not figures(usage)
    kernel.pass_time(3600_000)
    kernel.names.links[200] = b"/bin/sh"
    if adopted == "polled":
        kernel.tracker.detect_exec(process, kernel.names.by_link(process.tgid))
        kernel.tracker.finish_lost(200)
    else:
        kernel.tell(kernel.execute(200))
        kernel.tell(kernel.exit(200), record(200, 5 * MILLISECOND))
    assert {path: counts[:2] for path, counts in figures(usage).items()} == {b"/bin/sh": (1, 1)}


def test_a_child_of_slurmstepd_that_executes_nothing_is_no_program_of_the_job() -> None:
    kernel = Kernel()
    usage = JobUsage()
    kernel.names.links[200] = b"/usr/sbin/slurmstepd"
    kernel.tracker.adopt(Alive(200), usage, new=True)  # type: ignore[arg-type]
    kernel.tell(kernel.exit(200), record(200, 5 * MILLISECOND, command=b"slurmstepd"))
    assert not figures(usage)
    assert not usage.members


def test_a_live_process_is_seen_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds a running job is known by the programs that are still alive."""
    kernel = Kernel()
    usage = JobUsage()
    kernel.names.links[200] = b"/usr/bin/sleep"
    kernel.tracker.adopt(Alive(200), usage, new=True)  # type: ignore[arg-type]
    (row,) = usage.snapshot(polled_is_estimate=False)
    later = (row.last_seen // SEEN_INTERVAL + 5) * SEEN_INTERVAL
    for passed in (0, SEEN_INTERVAL - 1):
        # Not at each sample: the row would be sent every time.
        monkeypatch.setattr(time, "time_ns", lambda passed=passed: later + passed)
        (row,) = usage.snapshot(polled_is_estimate=False)
        assert row.last_seen == later
