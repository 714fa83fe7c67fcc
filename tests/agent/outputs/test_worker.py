"""The thread of an output: order, patience, bounds and what it says."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from jobsight.agent.job import Document, JobView
from jobsight.agent.outputs.file import FileOptions, FileOutput
from jobsight.agent.outputs.worker import (
    OutputHandle,
    OutputPlan,
    OutputWorker,
    RecordRefused,
    stop_all,
)
from jobsight.cli.compat.collector import view_of


class Noting:
    """Writes down what is queried of it; the errors come first."""

    name = "noting"

    def __init__(self, errors: list[BaseException] | None = None) -> None:
        self.calls: list[str] = []
        self.errors = errors or []

    def store(self, view: JobView, sampler: str, document: Document) -> None:
        self.calls.append(f"store {sampler}")

    def write(self, view: JobView, documents: dict[str, Document]) -> None:
        self.calls.append(f"write {sorted(documents)}")
        if self.errors:
            raise self.errors.pop(0)

    def close(self) -> None:
        self.calls.append("close")


class Stuck(Noting):
    """Hangs until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.stuck = threading.Event()

    def store(self, view: JobView, sampler: str, document: Document) -> None:
        self.stuck.set()
        self.go.wait(100)
        super().store(view, sampler, document)


def worker(output: Noting, **more: object) -> OutputWorker:
    plan = OutputPlan("noting", lambda view: output, 3, 0.01)
    return OutputWorker(plan, **more)  # type: ignore[arg-type]


def test_all_samples_are_stored_before_the_record(view: JobView) -> None:
    output = Noting()
    one = worker(output)
    job = one.job(view)
    for number in range(50):
        job.store(view, str(number), {})
    job.write(view, {"a": {}})
    assert one.stop(60)
    assert output.calls == [*(f"store {n}" for n in range(50)), "write ['a']", "close"]
    assert (one.counts.stored, one.counts.written) == (50, 1)


def test_write_is_tried_again_until_it_works(view: JobView) -> None:
    output = Noting([OSError("no"), SystemExit(1)])
    one = worker(output)
    one.job(view).write(view, {})
    assert one.stop(60)
    assert output.calls == ["write []"] * 3 + ["close"]
    assert one.counts.written == 1


def test_what_is_refused_is_not_tried_again(view: JobView) -> None:
    output = Noting([RecordRefused("never")])
    one = worker(output)
    one.job(view).write(view, {})
    assert one.stop(60)
    assert output.calls == ["write []", "close"]
    assert one.counts.refused == 1


def test_the_last_failure_is_counted_and_said(
    view: JobView, caplog: pytest.LogCaptureFixture
) -> None:
    one = worker(Noting([OSError("no\nway")] * 9))
    one.job(view).write(view, {})
    assert not one.stop(60)
    assert one.counts.lost == 1
    assert [record.message for record in caplog.records] == [
        "noting: no\\x0away",
        "noting: job 1234: the record is lost after 3 attempts",
    ]


def test_a_cause_is_said_once(view: JobView, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Noting):
        def store(self, view: JobView, sampler: str, document: Document) -> None:
            raise ConnectionError("nobody there")

    one = worker(Failing())
    job = one.job(view)
    for _ in range(20):
        job.store(view, "s", {})
    one.stop(60)
    assert one.counts.failed == 20
    assert len(caplog.records) == 1


def test_a_stuck_output_delays_nobody(view: JobView) -> None:
    stuck, fine = Stuck(), Noting()
    one, two = worker(stuck, limit=10), worker(fine)
    first, second = one.job(view), two.job(view)
    for number in range(500):
        first.store(view, str(number), {})
        second.store(view, str(number), {})
    second.write(view, {})
    assert two.stop(60)
    assert stuck.calls == []
    assert two.counts.stored == 500
    # One is in its hands, ten wait, the rest had to go, the oldest first.
    assert stuck.stuck.wait(60)
    assert one.counts.dropped in (489, 490)
    first.write(view, {})
    stuck.go.set()
    assert one.stop(60)
    assert stuck.calls[-3:] == ["store 499", "write []", "close"]


def test_the_end_is_bounded_and_saves_what_a_disk_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread hangs with one job; the record of another is put on the node's disk."""
    stuck = Stuck()
    options = FileOptions(base_path=str(tmp_path / "data"), spool=str(tmp_path / "spool"))
    views = [view_of(1, "n1"), view_of(2, "n1")]
    outputs: dict[int, Callable[[], object]] = {1: lambda: stuck}

    def factory(view: JobView) -> object:
        return outputs.get(view.sighting.job_id, lambda: FileOutput(options, view))()

    one = OutputWorker(OutputPlan("mixed", factory))  # type: ignore[arg-type]
    one.job(views[0]).store(views[0], "s", {})
    assert stuck.stuck.wait(60)
    one.job(views[1]).write(views[1], {"a": {"b": 1}})
    assert not stop_all([one], 0.2)
    assert stuck.calls == []
    assert one.counts.saved == 1
    (kept,) = (tmp_path / "spool").glob("*.kept")
    assert kept.read_bytes().endswith(b'\n{"a":{"b":1}}')
    stuck.go.set()


def test_an_output_that_cannot_be_made_is_no_crash(
    view: JobView, caplog: pytest.LogCaptureFixture
) -> None:
    def factory(view: JobView) -> Noting:
        raise OSError("no socket")

    one = OutputWorker(OutputPlan("broken", factory, 2, 0.01))
    one.job(view).store(view, "s", {})
    one.job(view).write(view, {})
    assert not one.stop(60)
    assert (one.counts.failed, one.counts.lost) == (1, 1)
    assert caplog.records[0].levelno == logging.ERROR


def test_the_engine_gets_a_thread_for_any_output(view: JobView) -> None:
    output = Noting()
    thread = OutputHandle(output, view)
    thread.store("s", {})
    thread.finish({"s": {}})
    assert thread.stop(60)
    assert output.calls == ["store s", "write ['s']", "close"]
    shared = worker(Noting())
    behind = OutputHandle(shared.job(view), view)
    behind.finish({})
    assert behind.worker is None
    assert shared.stop(60)
