"""List and report decide the state of a run in the same way, from the same facts."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jobsight.model import SECOND, Batch, JobTotals
from jobsight.reports.build import JobRow, build_report, job_row
from jobsight.reports.report import JobReport
from jobsight.store.store import Store
from tests.store.sample import START, batch, info, part, sighting

LATER = START + 36_000 * SECOND


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as store:
        yield store


@dataclass
class Shown:
    report: JobReport
    row: JobRow

    def same(self) -> dict[str, Any]:
        """The values that both have; they must not differ."""
        report, row = self.report, self.row
        in_report = {
            "state": report.state,
            "text": report.state_text,
            "running": report.running,
            "start": report.start,
            "elapsed": report.time.elapsed,
            "memory": report.memory.share,
            "cpu": report.cpu.share,
        }
        in_row = {
            "state": row.state,
            "text": row.state_text,
            "running": row.running,
            "start": row.start,
            "elapsed": row.elapsed,
            "memory": row.memory_share,
            "cpu": row.cpu_share,
        }
        assert in_report == in_row
        return in_report


def shown(store: Store, sent: Batch) -> Shown:
    assert store.write(sent)
    (run,) = store.runs()
    return Shown(build_report(store, run, clock=lambda: LATER), job_row(run, LATER))


def totals(seconds: int = 50, **changes: Any) -> JobTotals:
    fields: dict[str, Any] = {"cpu_time": 20 * SECOND, "memory_used_peak": 300}
    return JobTotals(time=START + seconds * SECOND, cpu_source="cgroup v2", **(fields | changes))


def test_a_final_part_without_a_record_of_the_scheduler_is_an_ended_run(store: Store) -> None:
    found = shown(store, batch(part(sighting(), totals=totals(), final=True))).same()
    assert (found["state"], found["running"]) == ("UNKNOWN", False)
    assert found["elapsed"] == 50 * SECOND


def test_it_is_running_until_every_node_has_reported_the_end(store: Store) -> None:
    ended = part(sighting(node="n1"), totals=totals(), final=True)
    running = part(sighting(node="n2"), totals=totals(40))
    found = shown(store, batch(ended, running)).same()
    assert (found["state"], found["running"]) == ("RUNNING", True)
    assert found["elapsed"] == LATER - START


def test_the_limit_of_the_cgroup_replaces_a_missing_request(store: Store) -> None:
    measured = part(sighting(), totals=totals(memory_limit=1000), final=True)
    assert shown(store, batch(measured)).same()["memory"] == pytest.approx(0.3)


def test_limits_of_some_nodes_are_not_a_limit(store: Store) -> None:
    one = part(sighting(node="n1"), totals=totals(memory_limit=1000), final=True)
    other = part(sighting(node="n2"), totals=totals(), final=True)
    assert shown(store, batch(one, other)).same()["memory"] is None


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "RUNNING", "end": None},
        {"state": "COMPLETED", "end": START + 60 * SECOND, "cpus": 4, "memory": 600},
        {"state": "SUSPENDED", "end": None, "cpus": 2},
        {"state": None, "end": None},
        {"state": None, "end": START + 60 * SECOND},
        {"state": "COMPLETED", "end": None},
        {"state": "FAILED", "memory": None},
        {"state": "OUT_OF_MEMORY", "memory": 600, "exit_signal": 125},
    ],
)
def test_whatever_the_scheduler_recorded(store: Store, changes: dict[str, Any]) -> None:
    record = info(**changes)
    shown(store, batch(record, part(sighting(), totals=totals(memory_limit=900)))).same()
