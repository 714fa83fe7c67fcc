"""Runs of ten years ago: measured, never measured, and without a recorded end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from jobsight.model import SECOND, JobInfo, RunReference
from jobsight.reports.build import build_report
from jobsight.reports.document import build_document
from jobsight.reports.report import JobReport
from jobsight.reports.terminal import report_text
from jobsight.reports.with_plots import pdf_of, read_series
from jobsight.store.store import Store
from jobsight.util.units import format_time
from tests.findings.measured import GIB, HOUR, START, write_run
from tests.reports.pdf_text import pdf_text, squeezed

YEARS = 10 * 365 * 86400 * SECOND
RUN = JobInfo(
    cluster="c1", source="slurm", job_id=7, user="ada", account="lab", name="old", start=START,
    time_limit=round(HOUR) * SECOND, cpus=4, memory=GIB, state="RUNNING",
)  # fmt: skip
OVERDUE = "its end was not recorded (sacctmgr show runawayjobs)"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as store:
        yield store


def ten_years_later(store: Store) -> JobReport:
    return build_report(store, store.find(RunReference(7, "c1")), clock=lambda: START + YEARS)


def test_a_run_without_a_recorded_end_is_doubted(store: Store) -> None:
    store.record_jobs([RUN])
    made = ten_years_later(store)
    assert made.running
    text = report_text(made)
    assert OVERDUE in " ".join(text.split())
    assert OVERDUE in msgspec.json.encode(build_document(made, now=0)).decode()
    # One that is within its limit, or in the minutes that Slurm takes to end it, is not.
    stored = store.find(RunReference(7, "c1"))
    for seconds in (60, 3660):
        soon = build_report(store, stored, clock=lambda s=seconds: START + s * SECOND)  # type: ignore[misc]
        assert OVERDUE not in " ".join(soon.coverage_notes)


def test_a_run_that_no_node_has_reported_is_not_measured(store: Store) -> None:
    ended = msgspec.structs.replace(RUN, state="COMPLETED", end=START + 60 * SECOND, exit_code=0)
    store.record_jobs([ended])
    text = report_text(ten_years_later(store))
    assert "00:01:00" in text
    assert "CPU time: not measured, nothing was reported." in text
    assert OVERDUE not in " ".join(text.split())


def test_the_pdf_of_an_old_run_has_its_figures(store: Store, tmp_path: Path) -> None:
    run = write_run(store, length=HOUR, cpus=4)
    made = ten_years_later(store)
    pdf = pdf_of(made, read_series(store, made), START + YEARS)
    paper = squeezed(pdf_text(pdf, tmp_path))
    document = build_document(made)
    for text in (document.title, *(value for _, value in [*document.facts, *document.figures])):
        assert squeezed(text) in paper, text
    assert squeezed(format_time(run.start)) in paper
    assert squeezed(f"{made.display_id} · {format_time(START + YEARS)}") in paper
    assert "Charts" in paper


def test_the_pdf_of_an_old_run_without_an_end_doubts_it(store: Store, tmp_path: Path) -> None:
    store.record_jobs([RUN])
    made = ten_years_later(store)
    paper = squeezed(pdf_text(pdf_of(made, read_series(store, made), START + YEARS), tmp_path))
    assert squeezed(OVERDUE) in paper
    assert squeezed("CPU time: not measured, nothing was reported.") in paper


def test_a_measured_run_is_as_on_its_first_day(store: Store) -> None:
    run = write_run(store, length=HOUR, cpus=4)
    now = build_report(store, run, clock=lambda: START + 2 * round(HOUR) * SECOND)
    assert report_text(now) == report_text(ten_years_later(store))
