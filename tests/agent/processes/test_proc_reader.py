"""Reads that the kernel holds back stop nobody but their own job."""

import threading
import time

import pytest

from jobsight.agent.processes import proc_reader as module
from jobsight.agent.processes.proc_reader import ProcessReader, _Worker
from tests.waiting import wait_until


@pytest.fixture
def reader() -> ProcessReader:
    return ProcessReader()


@pytest.fixture
def held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every thread that waits is held back by the kernel."""
    monkeypatch.setattr(_Worker, "_is_held_back", lambda worker: True)


def readers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "process reader"}


def test_results_are_in_the_order_of_the_items(reader: ProcessReader) -> None:
    assert reader.read("job", lambda number: number * 2, [3, 1, 2]) == [6, 2, 4]
    assert reader.read("job", len, []) == []
    assert reader.read_one("job", len, "abc") == 3
    assert reader.cpu_time > 0


def test_an_error_of_a_read_is_that_of_the_reader(reader: ProcessReader) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        reader.read("job", int, ["1", "x"])
    assert reader.read("job", int, ["1"]) == [1]


@pytest.mark.usefixtures("held_back")
def test_a_job_that_is_held_back_is_left_out_and_others_are_read(
    reader: ProcessReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    monkeypatch.setattr(module, "_LONG", 0.0)
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.0)

    def read(number: int) -> int:
        if number == 2:
            answer.wait()
        return number

    try:
        assert reader.read("mallory", read, [1, 2, 3]) == [1, None, None]
        assert reader.read("alice", read, [1, 3]) == [1, 3]
        # Nobody waits for it a second time.
        assert reader.read("mallory", read, [1]) == [None]
        assert reader.is_held_back("mallory")
        assert not reader.is_held_back("alice")
    finally:
        answer.set()
    wait_until(lambda: reader.read("mallory", read, [1, 2]) == [1, 2])
    assert not reader.is_held_back("mallory")


@pytest.mark.usefixtures("held_back")
def test_a_job_that_is_held_back_again_is_not_read_for_longer(
    reader: ProcessReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.01)
    pauses = []
    for _ in range(3):
        answer = threading.Event()
        wait_until(lambda: reader._may_read("mallory"))
        assert reader.read("mallory", lambda _, answer=answer: answer.wait(), [1]) == [None]
        pauses.append(reader._held_back["mallory"].pause)
        answer.set()
    assert pauses == [0.01, 0.02, 0.04]
    monkeypatch.setattr(module, "PAUSE", 0.0)
    # What is past is forgotten.
    wait_until(lambda: reader.read("mallory", len, ["a"]) == [1])
    assert not reader._held_back


@pytest.mark.usefixtures("held_back")
def test_the_threads_that_are_held_back_are_limited(
    reader: ProcessReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_HELD_BACK", 2)
    answer = threading.Event()
    before = readers()
    try:
        for job in range(4):
            assert reader.read(job, lambda _: answer.wait(), [1]) == [None]
        assert len(readers() - before) == 2
    finally:
        answer.set()
    wait_until(lambda: not readers() - before)


def test_a_slow_read_is_waited_for(reader: ProcessReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits for a CPU or a lock of Python is not held back by the kernel."""
    monkeypatch.setattr(module, "STALL_TIMEOUT", 0.0)
    started = time.monotonic()

    def read(number: int) -> int:
        while time.monotonic() < started + 0.3:
            time.sleep(0.01)
        return number

    assert reader.read("job", read, [1]) == [1]


def test_the_thread_ends_with_its_reader() -> None:
    before = readers()
    other = ProcessReader()
    other.read("job", len, ["a"])
    assert readers() - before
    del other
    wait_until(lambda: not readers() - before)
