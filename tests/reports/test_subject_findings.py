"""Reports of several runs begin with findings, what would have fitted and what improved; all
renderings have the same figures and words."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from jobsight.cli.main import main
from jobsight.config.settings import FindingsSettings, PriceSettings
from jobsight.errors import StoreError
from jobsight.findings.engine import RuleSet
from jobsight.findings.finding import Cost, Finding
from jobsight.findings.service import RuleJudge
from jobsight.findings.stored import to_row
from jobsight.findings.worker import Evaluation
from jobsight.model import SECOND, JobInfo
from jobsight.reports.html import render_html
from jobsight.reports.pdf import render_pdf
from jobsight.reports.subject import (
    SubjectReport,
    array_report,
    find_works,
    period_report,
    script_report,
)
from jobsight.reports.subject_document import document_text, subject_document
from jobsight.reports.subject_plots import draw_subject
from jobsight.simulation.fill import fill
from jobsight.simulation.year import Year
from jobsight.software.rules import RuleSet as SoftwareRules
from jobsight.software.worker import update
from jobsight.store.findings.due import unjudged_runs
from jobsight.store.findings.shown import Shown, record_shown
from jobsight.store.findings.works import find_or_add_work
from jobsight.store.findings.write import store_judged
from jobsight.store.history import find_work, work_of_run
from jobsight.store.store import Store
from jobsight.util.outer import encode_json
from tests.reports.pdf_text import pdf_text, squeezed
from tests.store.findings.sample import judged, work
from tests.web.sample import NOW

RUNS = 160
PRICES = {"EUR": PriceSettings(core_hour=0.01, gpu_hour=0.5)}
DAY = 86400 * SECOND
HOSTILE = "#eval(1) <script>alert(1)</script> {{7*7}} \x1b[31m\nBcc: a@b \u202e"


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A made-up site of which the runs have been judged."""
    path = tmp_path_factory.mktemp("site") / "store.db"
    year = Year(RUNS, days=60, running=0)
    now = year.end * SECOND
    with Store.open(path) as store:
        fill(store, year)
        judge = RuleJudge(store, RuleSet.of_settings(FindingsSettings()))
        evaluation = Evaluation(store, judge, clock=lambda: now)
        ended = sorted(unjudged_runs(store.database, RUNS), key=lambda run: (run.start, run.id))
        assert evaluation.runs(ended).failed == 0
        update(store, SoftwareRules.load([]))
    return str(path)


@pytest.fixture(scope="module")
def reports(location: str) -> list[SubjectReport]:
    """One of each kind, with findings where the site has them."""
    with Store.open(location) as store:
        runs = store.runs(limit=RUNS)
        arrays = Counter(run.info.array_job_id for run in runs if run.info.array_job_id)
        ids = Counter(work_of_run(store.database, run.id) for run in runs)
        by_user = [
            period_report(store, "user", name, since=None, prices=PRICES)
            for name in sorted({run.info.user or "" for run in runs})
        ]
        user = max(by_user, key=lambda report: len(report.findings))
        script = find_work(store.database, ids.most_common(1)[0][0] or 0)
        assert script is not None
        return [
            user,
            script_report(store, [script], prices=PRICES),
            array_report(store, arrays.most_common(1)[0][0], prices=PRICES),
            period_report(store, "cluster", runs[0].info.cluster, since=None, prices=PRICES),
            period_report(store, "account", runs[0].info.account or "", since=None, prices=PRICES),
        ]


def test_the_reports_of_a_site_are_complete(reports: list[SubjectReport]) -> None:
    user, script, array, cluster, account = reports
    assert user.findings
    assert cluster.findings
    assert len({group.kind for group in cluster.findings}) == len(cluster.findings)
    assert all(report.scripts and report.scripts[0].fitted for report in (user, script, array))
    assert script.trend
    assert sum(row.runs for row in script.trend) == script.runs
    for report in reports:
        assert 0 < report.measured.runs <= report.measured.ended <= report.runs
        assert report.measured.samples > report.measured.runs
        assert any(row.figure == "wait_seconds" for row in report.distributions)
        assert report.totals.prices
    assert account.kind == "account"


def test_the_plots_of_several_runs(reports: list[SubjectReport]) -> None:
    user, script, array, cluster, account = reports
    names = {report.kind: [plot.name for plot in draw_subject(report)] for report in reports}
    assert names["script"] == names["array"] == ["elapsed", "memory-points"]
    assert names["user"] == names["cluster"] == names["account"] == ["usage"]
    for report in (user, cluster, account):
        held = sum(each.core_hours_held or 0 for each in report.usage)
        assert held == pytest.approx(report.totals.core_hours_held, rel=1e-6)
        assert [each.since for each in report.usage] == sorted(each.since for each in report.usage)
    assert script.points is not None
    assert len(script.points.start_seconds) == script.runs
    assert array.points is not None
    assert None not in array.points.task
    pictures = [plot for report in reports for plot in draw_subject(report, "png")]
    assert all(plot.data.startswith(b"\x89PNG") for plot in pictures)


def _words(text: str) -> str:
    return " ".join(text.split())


def test_all_renderings_have_the_same_figures_and_words(
    reports: list[SubjectReport], tmp_path: Path
) -> None:
    for report in reports:
        document = subject_document(report, now=NOW)
        text = _words(document_text(document))
        page = _words(html.unescape(re.sub(r"<[^>]*>", " ", render_html(document))))
        paper = squeezed(pdf_text(render_pdf(document), tmp_path))
        told = [
            *(value for _, value in [*document.facts, *document.figures]),
            *(part for each in document.findings for part in (each.title, each.cost)),
            *(each.change for each in document.findings),
            *(title for title in (section.title for section in document.sections)),
            *(text for section in document.sections for _, text in section.items),
        ]
        assert told
        for value in map(_words, told):
            assert value in text
            assert value in page
            assert squeezed(value) in paper
        # JSON has the figures of which the others have the words.
        outer = msgspec.json.decode(encode_json(report))
        for group, shown in zip(outer["findings"], document.findings, strict=True):
            assert group["kind"] == shown.kind
            assert f"{group['runs']:,} run" in shown.cost
            assert group["text"] in shown.text
        assert outer["runs"] == report.runs


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


def _finding(kind: str, gb_hours: float, title: str = "Memory is not used") -> Finding:
    return Finding(
        kind=kind,
        severity="warning",
        title=title,
        text="4 GiB of 64 GiB was used.",
        change="#SBATCH --mem=5G",
        cost=Cost(memory_gb_hours=gb_hours),
    )


def _fill_script(store: Store, name: str = "train", user: str = "ada") -> int:
    """Twelve runs: six with a finding that is then shown, six with a smaller request after it."""
    store.record_jobs(
        [
            JobInfo(
                cluster="c1", source="slurm", job_id=100 + number, user=user, account="lab",
                name=name, submit=NOW + number * DAY - 60 * SECOND, start=NOW + number * DAY,
                end=NOW + number * DAY + 3600 * SECOND, state="COMPLETED", exit_code=0, cpus=2,
                memory=(64 if number < 6 else 8) * 2**30,
            )
            for number in range(12)
        ]
    )  # fmt: skip
    work_id = find_or_add_work(store.database, work(name, user))
    runs = sorted(store.runs(limit=100, user=user), key=lambda run: run.start)
    for number, run in enumerate(runs):
        found = [to_row(_finding("memory-request-unused", 50.0 + number, name))]
        if number == 3:
            found.append(to_row(_finding("out-of-memory", 10.0, name)))
        store_judged(
            store.database,
            [judged(run, *(found if number < 6 else []), work_id=work_id)],
            run.start,
        )
    shown = {Shown(runs[5].id, "memory-request-unused", user, "mail"): 1}
    record_shown(store.database, shown, runs[5].start + 7200 * SECOND)
    return work_id


def test_findings_come_by_cost_with_the_worst_run(store: Store) -> None:
    work_id = _fill_script(store)
    found = find_work(store.database, work_id)
    assert found is not None
    for report in (
        script_report(store, [found], clock=lambda: NOW + 20 * DAY),
        period_report(store, "user", "ada", since=None, clock=lambda: NOW + 20 * DAY),
        period_report(store, "account", "lab", since=None, clock=lambda: NOW + 20 * DAY),
    ):
        first, second = report.findings
        assert (first.kind, first.runs, first.display_id) == ("memory-request-unused", 6, "105")
        assert first.cost.memory_gb_hours == pytest.approx(6 * 50 + 15, rel=1e-6)
        assert (second.kind, second.runs, second.display_id) == ("out-of-memory", 1, "103")
        (improved,) = report.improvements
        assert (improved.runs_before, improved.runs_after, improved.runs_without) == (6, 6, 6)
        assert "from 64.0 GiB to 8.00 GiB of memory" in improved.text
        text = document_text(subject_document(report))
        assert text.index("#SBATCH --mem=5G") < text.index("Core hours held")
        assert "What improved after advice" in text
        assert "Waiting time" in text
        assert "median 00:01:00" in text


def test_findings_before_the_period_are_not_in_it(store: Store) -> None:
    _fill_script(store)
    later = period_report(
        store, "user", "ada", since=(NOW + 7 * DAY) // DAY, clock=lambda: NOW + 20 * DAY
    )
    assert later.findings == []
    assert later.runs == 5


def test_a_script_is_named_by_key_or_run(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work_id = _fill_script(store, "lamps")
    key = b"lamps".hex()
    assert [each.id for each in find_works(store, "103")] == [work_id]
    assert [each.id for each in find_works(store, key)] == [work_id]
    assert [each.id for each in find_works(store, key[:9])] == [work_id]
    other = find_or_add_work(store.database, work("lampshade", "bob"))
    assert other != work_id
    with pytest.raises(StoreError, match="2 scripts begin with"):
        find_works(store, key)
    options = ["--store", str(tmp_path / "store.db")]
    assert main(["report", "--script", "105", *options]) == 0
    out = capsys.readouterr().out
    assert "Script 6c616d7073" in out
    assert "12 completed" in out
    assert main(["report", "--script", "105", "--since", "2000-01-01", "--json", *options]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["kind"] == "script"


@pytest.mark.parametrize(
    ("wanted", "code", "text"),
    [
        ("nothing like it", 2, "expected a run"),
        ("0123456789abcdef", 1, "no script"),
        ("77", 1, "no run of job 77"),
    ],
)
def test_an_unknown_script_is_one_sentence(
    store: Store,
    tmp_path: Path,
    wanted: str,
    code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _fill_script(store)
    assert main(["report", "--script", wanted, "--store", str(tmp_path / "store.db")]) == code
    error = capsys.readouterr().err
    assert text in error
    assert "Traceback" not in error


def test_an_unjudged_run_has_no_script_yet(store: Store) -> None:
    store.record_jobs([JobInfo(cluster="c1", source="slurm", job_id=5, start=NOW, end=NOW + 1)])
    with pytest.raises(StoreError, match="not known yet"):
        find_works(store, "5")


def test_hostile_names_come_out_as_text(store: Store, tmp_path: Path) -> None:
    work_id = _fill_script(store, HOSTILE + "x" * 4096, "eve")
    found = find_work(store.database, work_id)
    assert found is not None
    document = subject_document(script_report(store, [found], clock=lambda: NOW + 20 * DAY))
    text, page = document_text(document), render_html(document)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\nBcc" not in text
    assert "<script>" not in page
    assert "{{7*7}}" in page
    paper = squeezed(pdf_text(render_pdf(document), tmp_path, "-raw"))
    told = [document.subtitle, document.findings[0].text, document.findings[0].change]
    told += [value for _, value in document.facts]
    told += [text for section in document.sections for item in section.items for text in item]
    told += [row[0] for table in document.tables for row in table.rows]
    for name in told:
        assert squeezed(name) in paper, name
    assert squeezed(r"#eval(1) <script>alert(1)</script> {{7*7}} \x1b[31m\x0aBcc") in paper
