"""What a report of a run says beyond its own figures: cost, software, number of samples, what would
have fitted, and what improved since a finding was shown."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from jobsight.config.settings import PriceSettings
from jobsight.findings.finding import Cost, Finding
from jobsight.findings.packed import encode_figures
from jobsight.findings.reported import Amount
from jobsight.findings.stored import to_row
from jobsight.findings.vocabulary import FigureSet
from jobsight.model import SECOND, RunReference
from jobsight.reports.build import build_report
from jobsight.reports.document import build_document
from jobsight.reports.html import render_html
from jobsight.reports.pending import find_report
from jobsight.reports.report import JobReport
from jobsight.reports.subject import array_report, period_report
from jobsight.reports.subject_document import document_text, subject_document
from jobsight.reports.terminal import report_text
from jobsight.software.naming import name_all_new
from jobsight.store.findings.shown import Shown, record_shown
from jobsight.store.findings.works import find_or_add_work
from jobsight.store.findings.write import Judged, store_judged
from jobsight.store.read import programs
from jobsight.store.read.programs import use_of_runs
from jobsight.store.store import Store
from jobsight.util.outer import encode_json
from tests.software.rule_sets import rule_set
from tests.store.findings.sample import KIND, owner, work
from tests.store.sample import START, batch, find, info, part, series, sighting, totals, use

HOUR = 3600 * SECOND
GIB = 2**30
PRICES = {"EUR": PriceSettings(core_hour=0.5, memory_gb_hour=0.01, energy_kwh=0.3)}
RULES = rule_set(
    "^/opt/tool/ tool 1 ignore",
    "^/home/ own-of-%%(user)s - user",
    "^/opt/(?P<s>[^/]+)/(?P<v>[^/]+)/bin %(s)s %(v)s local=one",
    "^/opt/(?P<s>[^/]+)/(?P<v>[^/]+)/ %(s)s %(v)s local=two",
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


def run(store: Store, job: int, *, memory: int, wasted: float = 0.0, **more: object) -> None:
    """A judged run of one work that started so many hours after START and used 10 GiB."""
    start = START + job * HOUR
    facts = {"end": start + HOUR, "state": "COMPLETED", "user": "anna", "cpus": 4} | more
    facts |= {"time_limit": 2 * HOUR, "name": "train"}
    store.record_jobs([info(job, start, memory=memory, **facts)])
    used = totals(job * 3600 + 3600, HOUR, memory_used_peak=10 * GIB)
    store.write(batch(part(sighting(job, birth=start), totals=used, final=True)))
    figures = FigureSet()
    figures.set("memory.used", 10.0 * GIB)
    figures.set("memory.requested", float(memory))
    found = find(store, str(job))
    finding = Finding(
        kind=KIND, severity="warning", title="T", text="X", cost=Cost(core_hours=wasted)
    )
    judged = Judged(
        found.id,
        -1,
        owner(found),
        find_or_add_work(store.database, work()),
        (to_row(finding),) if wasted else (),
        figures=encode_figures(figures),
    )
    store_judged(store.database, [judged], START)


def show(store: Store, job: int, after: int) -> None:
    key = Shown(find(store, str(job)).id, KIND, "anna", "report")
    record_shown(store.database, {key: 1}, START + after * HOUR)


def report_of(store: Store, job: int, **more: object) -> JobReport:
    return build_report(store, find(store, str(job)), prices=PRICES, clock=lambda: START, **more)


def all_of(report: JobReport) -> str:
    """The text of a terminal with --all, on few lines."""
    return " ".join(report_text(report, 100, all_rows=True).split())


def page_of(report: JobReport) -> str:
    page = render_html(build_document(report))
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def test_a_run_has_the_cost_of_what_it_held(store: Store) -> None:
    run(store, 1, memory=10 * 10**9)
    report = report_of(store, 1)
    assert report.cost == Cost(core_hours=4.0, memory_gb_hours=10.0)
    assert report.prices == [Amount(2.1, "EUR")]
    encoded = msgspec.json.decode(encode_json(report))
    assert encoded["cost"] == {
        "core_hours": 4.0, "gpu_hours": None, "memory_gb_hours": 10.0, "energy_kwh": None,
    }  # fmt: skip
    for text in (report_text(report), all_of(report), page_of(report)):
        assert "4 core h, 10 GB h (2.1 EUR)" in text


def test_what_is_not_known_costs_nothing_that_is_known(store: Store) -> None:
    store.record_jobs([info(1, end=START + HOUR, state="COMPLETED", gpus=2)])
    report = report_of(store, 1)
    # GPUs that only the scheduler knows of are those that were requested.
    assert report.cost == Cost(gpu_hours=2.0)
    assert report.prices == []
    assert (report.samples, report.software, report.fitted) == (None, [], [])
    assert "Samples" not in all_of(report)


def test_the_energy_is_that_of_the_nodes_where_they_measured_it(store: Store) -> None:
    run(store, 1, memory=10 * 10**9)
    figures = FigureSet()
    figures.set("energy.total", 7.2e6)
    found = find(store, "1")
    judged = Judged(found.id, -1, owner(found), None, (), figures=encode_figures(figures))
    store_judged(store.database, [judged], START)
    assert report_of(store, 1).cost.energy_kwh == 2.0


def test_software_is_summed_by_name_and_version(store: Store) -> None:
    uses = [
        use(b"/opt/tool/x", 100 * SECOND),
        use(b"/opt/gromacs/2024/bin/gmx", 200 * SECOND),
        use(b"/opt/gromacs/2024/lib/helper", 100 * SECOND),
        use(b"/home/anna/a.out", 50 * SECOND),
        use(b"/usr/bin/true", 40 * SECOND),
    ]
    ended = info(1, end=START + HOUR, state="COMPLETED", user="anna", cpus=1)
    measured = part(
        sighting(1), series=series([0, 1, 2]), totals=totals(1, 500 * SECOND), executables=uses,
        final=True,
    )  # fmt: skip
    store.write(batch(ended, measured))
    assert report_of(store, 1).software == []
    name_all_new(store.database, RULES)
    report = report_of(store, 1)
    assert [(row.title, row.cpu_time // SECOND, row.cpu_share) for row in report.software] == [
        ("gromacs 2024", 300, 0.6),
        ("own-of-anna -", 50, 0.1),
        ("undetermined", 40, 0.08),
    ]
    assert report.samples == 3
    assert "Software gromacs 2024 60 %, own-of-anna - 10 %" in report_text(report)
    for text in (all_of(report), page_of(report)):
        for part_of_it in ("gromacs 2024 2 00:05:00 60 %", "undetermined 1 40.0 s 8 %"):
            assert part_of_it in text
        assert "Samples 3" in text
    row = msgspec.json.decode(encode_json(report))["software"][0]
    assert (row["software"], row["cpu_seconds"], row["executions"]) == ("gromacs", 300.0, 2)


def test_a_run_says_what_would_have_fitted(store: Store) -> None:
    for job in range(1, 5):
        run(store, job, memory=64 * GIB)
    report = report_of(store, 4)
    by_resource = {each.resource: each for each in report.fitted}
    memory = by_resource["memory"]
    assert (memory.option, memory.fits, memory.runs, memory.passed) == ("--mem=14080M", False, 4, 4)
    assert memory.saved_gb_hours
    short = " ".join(report_text(report).split())
    assert "Fits --mem=14080M" in short
    assert memory.text not in short
    for text in (all_of(report), page_of(report)):
        assert memory.text in text
    for job in range(5, 9):
        run(store, job, memory=11 * GIB)
    fits = {each.resource: each.fits for each in report_of(store, 8).fitted}
    assert fits["memory"]


def test_runs_that_are_not_judged_or_go_on_have_no_advice(store: Store) -> None:
    for job in range(1, 5):
        run(store, job, memory=64 * GIB)
    run(store, 5, memory=64 * GIB, end=None, state="RUNNING")
    store.record_jobs([info(6, START + 6 * HOUR, end=START + 7 * HOUR, state="COMPLETED")])
    for job in (5, 6):
        report = report_of(store, job)
        assert (report.fitted, report.improvements) == ([], [])


def test_a_run_says_what_improved_since_a_finding_was_shown(store: Store) -> None:
    for job in (1, 2):
        run(store, job, memory=64 * GIB, wasted=100.0)
    show(store, 2, 4)
    run(store, 5, memory=14 * GIB)
    run(store, 6, memory=14 * GIB, wasted=5.0)
    run(store, 7, memory=14 * GIB)
    (first,) = report_of(store, 5).improvements
    assert (first.runs_before, first.runs_after, first.runs_without) == (2, 1, 1)
    # The finding is back in this run, and was not shown before that one.
    assert report_of(store, 6).improvements == []
    assert report_of(store, 2).improvements == []
    report = report_of(store, 7)
    (last,) = report.improvements
    assert (last.runs_after, last.runs_without, last.saved.core_hours) == (3, 2, 295.0)
    told = f"{KIND}: {last.text}"
    assert told in " ".join(report_text(report, 200).split())
    assert told in all_of(report)
    assert last.text in page_of(report)
    assert "14.0 GiB of memory" in last.text


def test_a_part_of_a_report_reads_no_other_runs(store: Store) -> None:
    for job in range(1, 5):
        run(store, job, memory=64 * GIB)
    report = find_report(store, RunReference(job_id=4), complete=False)
    assert (report.cost, report.prices, report.samples) == (Cost(), [], None)
    assert (report.software, report.fitted, report.improvements) == ([], [], [])


def write_array(store: Store, tasks: int) -> None:
    for task in range(tasks):
        start = START + task * SECOND
        ended = info(
            100 + task, start, end=start + HOUR, state="COMPLETED", user="anna", cpus=1,
            array_job_id=100, array_task_id=task,
        )  # fmt: skip
        uses = [
            use(b"/opt/gromacs/2024/bin/gmx", HOUR, peak_memory=task + 1),
            *([use(b"/usr/bin/true", HOUR // 2, failures=1)] if task else []),
        ]
        measured = part(sighting(100 + task, birth=start), executables=uses, final=True)
        store.write(batch(ended, measured))
    name_all_new(store.database, RULES)


def test_several_runs_have_programs_and_software(store: Store) -> None:
    write_array(store, 3)
    report = array_report(store, 100, clock=lambda: START + 10 * HOUR)
    first, second = report.programs
    assert (first.path, first.runs, first.executions, first.failures) == (
        "/opt/gromacs/2024/bin/gmx", 3, 3, 0,
    )  # fmt: skip
    assert (first.cpu_hours, first.cpu_share, first.peak_memory_bytes) == (3.0, 0.75, 3)
    assert (second.runs, second.failures, second.cpu_hours) == (2, 2, 1.0)
    assert [(row.name, row.jobs, row.cpu_hours) for row in report.software] == [
        ("gromacs", 3, 3.0),
        ("undetermined", 2, 1.0),
    ]
    document = subject_document(report)
    for text in (document_text(document, 64), document_text(document, 100)):
        words = " ".join(text.split())
        assert "Program Jobs Failed CPU h Share Memory" in words
        assert "3 0 3 75 % 3 B" in words
        assert "gromacs 3 3" in words
    page = render_html(document)
    assert "/opt/gromacs/2024/bin/gmx" in page
    user = period_report(store, "user", "anna", since=None, clock=lambda: START + 10 * HOUR)
    assert user.programs == report.programs


def test_programs_are_read_of_as_many_runs_as_the_bound_permits(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_array(store, 5)
    ids = [each.id for each in store.runs(limit=10)]
    monkeypatch.setattr(programs, "_FIRST_RUNS", 2)
    found = use_of_runs(store.database, ids, 10)
    assert found.runs == 5
    assert sum(each.executions for each in found.programs) == 9
    monkeypatch.setattr(programs, "MAX_SUMMED_USES", 7)
    assert use_of_runs(store.database, ids, 10).runs == 3
    report = array_report(store, 100, clock=lambda: START + 10 * HOUR)
    assert "Programs are of the 3 newest runs." in report.notes
    assert use_of_runs(store.database, [], 10).programs == []
