"""Reports of several runs: arrays, and users, accounts and clusters over a period."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from jobsight.cli.main import main
from jobsight.errors import StoreError
from jobsight.model import SECOND, JobInfo
from jobsight.reports.html import render_html
from jobsight.reports.pdf import render_pdf
from jobsight.reports.subject import array_report, period_report
from jobsight.reports.subject_document import document_text, subject_document
from jobsight.software.rules import RuleSet
from jobsight.software.worker import update
from jobsight.store.rollups.usage import day_of
from jobsight.store.store import Store
from tests.reports.pdf_text import pdf_text, squeezed
from tests.web import gpu_jobs, sample

NOW = sample.NOW
HOSTILE = "#eval(1) <script>alert(1)</script> {{7*7}} \x1b[31m\nBcc: a@b \u202e" + "x" * 500


def clock() -> int:
    return NOW


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("subjects") / "store.db"
    with Store.open(path) as store:
        gpu_jobs.fill(store)
        sample.fill(store)
        store.record_jobs([task(number) for number in range(40)])
        # A task that was requeued, and an array of another year with the same id.
        store.record_jobs([task(5, start=NOW - 9000 * SECOND, state="NODE_FAIL")])
        store.record_jobs([task(1, start=NOW - 10**17, user="old")])
        store.record_jobs(
            [
                JobInfo(
                    cluster="c", source="slurm", job_id=900 + part, het_job_id=900, het_offset=part,
                    user="hedy", name=HOSTILE, start=NOW - 60 * SECOND, end=NOW,
                    state="COMPLETED", cpus=2 * part + 1,
                )
                for part in range(2)
            ]
        )  # fmt: skip
        update(store, RuleSet.load([]))
    return str(path)


def task(
    number: int, *, start: int = NOW - 5000 * SECOND, state: str = "", user: str = "ada"
) -> JobInfo:
    seconds = 4000 if number == 17 else 600 + number
    return JobInfo(
        cluster="c",
        source="slurm",
        job_id=5000 + number,
        array_job_id=5000,
        array_task_id=number,
        user=user,
        account="physics",
        name="sweep",
        start=start,
        end=start + seconds * SECOND,
        state=state or ("FAILED" if number in (3, 4) else "COMPLETED"),
        exit_code=0,
        cpus=4,
        memory=2**30,
    )


@pytest.fixture
def store(location: str) -> Iterator[Store]:
    with Store.open(location) as opened:
        yield opened


def test_an_array_is_one_report(store: Store) -> None:
    report = array_report(store, 5000, clock=clock)
    assert report.states == {"COMPLETED": 38, "FAILED": 2}
    assert (report.runs, report.user, report.name) == (40, "ada", "sweep")
    assert not report.is_open
    assert report.unreported == 40
    assert report.totals.core_hours_held == pytest.approx(
        4 * (sum(600 + number for number in range(40)) - 617 + 4000) / 3600
    )
    (outlier,) = report.outliers
    assert (outlier.task, outlier.text) == ("5000_17", "elapsed 01:06:40, median 00:10:21")
    assert {row.display_id for row in report.failures} == {"5000_3", "5000_4"}
    assert any("requeued" in note for note in report.notes)
    assert report.distributions[0].median == pytest.approx(620.0, abs=1)


def test_a_heterogeneous_job_is_one_report(store: Store) -> None:
    report = array_report(store, 900, clock=clock)
    assert (report.kind, report.states, report.outliers) == ("het", {"COMPLETED": 2}, [])
    text = document_text(subject_document(report))
    assert "Heterogeneous job 900" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_an_id_means_the_newest_array_or_heterogeneous_job_with_it(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        for year, (user, kind) in enumerate((("old", "array"), ("new", "het"))):
            more = ("array_task_id" if kind == "array" else "het_offset", f"{kind}_job_id")
            store.record_jobs(
                [
                    JobInfo(
                        cluster="c", source="slurm", job_id=700 + part, user=user,
                        start=NOW + (10**16 if year else 0), end=NOW + 10**16 + SECOND,
                        state="COMPLETED", **dict(zip(more, (part, 700), strict=True)),
                    )
                    for part in range(2 + year)
                ]
            )  # fmt: skip
            report = array_report(store, 700, clock=clock)
            assert (report.kind, report.user, report.runs) == (kind, user, 2 + year)


def test_an_unknown_array_is_said(store: Store) -> None:
    with pytest.raises(StoreError, match="no array and no heterogeneous job 77"):
        array_report(store, 77)


def test_a_user_has_the_hours_of_the_rollups(store: Store) -> None:
    report = period_report(store, "user", "emmy", since=None, clock=clock)
    assert report.states == {"COMPLETED": 2}
    # 64 CPUs for 6 hours, and for 2.
    assert report.totals.core_hours_held == pytest.approx(512, rel=0.01)
    assert report.totals.gpu_hours_held == pytest.approx(64, rel=0.01)
    assert [row.name for row in report.largest] == ["lammps-melt", "pretrain-7b"]
    assert sum(row.core_hours or 0 for row in report.software) == pytest.approx(512, rel=0.01)
    later = period_report(store, "user", "emmy", since=day_of(NOW) + 5, clock=clock)
    assert (later.runs, later.states, later.largest) == (0, {}, [])


def test_an_account_and_a_cluster_count_their_runs(store: Store) -> None:
    account = period_report(store, "account", "biology", since=None, clock=clock)
    assert account.states == {"OUT_OF_MEMORY": 1}
    cluster = period_report(store, "cluster", "c", since=day_of(NOW) - 1, clock=clock)
    # Both runs of the requeued task.
    assert cluster.states == {"COMPLETED": 40, "FAILED": 2, "NODE_FAIL": 1}
    assert cluster.runs == 43
    assert cluster.totals.core_hours_held
    # Nothing of them was measured.
    assert cluster.totals.core_hours_used is None


def test_lists_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobsight.reports.subject.MAX_COUNTED", 5)
    monkeypatch.setattr("jobsight.reports.subject.MAX_DISTRIBUTED", 3)
    monkeypatch.setattr("jobsight.reports.subject.MAX_TASKS", 7)
    report = period_report(store, "user", "ada", since=None, clock=clock)
    assert report.states_of == 5
    assert report.runs > 40
    assert all(row.count <= 3 for row in report.distributions)
    assert len(report.notes) == 2
    assert array_report(store, 5000, clock=clock).runs <= 7


@pytest.mark.parametrize("width", [64, 78, 100])
def test_all_renderings_have_the_same_figures(store: Store, tmp_path: Path, width: int) -> None:
    for report in (
        array_report(store, 5000, clock=clock),
        array_report(store, 900, clock=clock),
        period_report(store, "user", "emmy", since=None, clock=clock),
    ):
        document = subject_document(report, now=NOW)
        raw = document_text(document, width)
        assert max(map(len, raw.splitlines())) <= width
        text = " ".join(raw.split())
        page = render_html(document)
        assert "<script>" not in page
        words = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())
        for _, value in [*document.facts, *document.figures]:
            assert " ".join(value.split()) in text
            assert value in words
        for table in document.tables:
            for row in table.rows:
                for cell in row[1:]:
                    assert cell in text
                    assert cell in words
        paper = squeezed(pdf_text(render_pdf(document), tmp_path))
        assert squeezed(document.title) in paper
        for _, value in [*document.facts, *document.figures]:
            assert squeezed(value) in paper
        for table in document.tables:
            assert squeezed(table.title) in paper
            for row in table.rows:
                assert all(squeezed(cell) in paper for cell in row[1:])


def test_the_command(location: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ["--store", location]
    assert main(["report", "--array", "5000", *store]) == 0
    assert "38 completed, 2 failed" in capsys.readouterr().out
    assert main(["report", "--array", "c:5000", "--json", *store]) == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert found["states"] == {"COMPLETED": 38, "FAILED": 2}
    assert found["since"].endswith("Z")
    assert main(["report", "--user", "emmy", "--since", "all", *store]) == 0
    assert "User emmy" in capsys.readouterr().out
    page, paper = tmp_path / "a.html", tmp_path / "a.pdf"
    files = ["--html", str(page), "--pdf", str(paper)]
    assert main(["report", "--cluster", "c", "--since", "all", *files, *store]) == 0
    assert "Cluster c" in page.read_text()
    assert paper.read_bytes()[:5] == b"%PDF-"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--array", "x"], 2, "expected the id of an array"),
        (["--array", "77"], 1, "no array"),
        (["--user", "a", "--account", "b"], 2, "expected one of"),
        (["12", "--user", "a"], 2, "expected one of"),
        (["--user", "a", "--plots", "x"], 2, "--plots"),
        (["--user", "nobody\x1b"], 1, "no run of user"),
        (["--user", "ada", "--since", "never"], 2, "never"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    location: str,
    arguments: list[str],
    code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["report", *arguments, "--store", location]) == code
    error = capsys.readouterr().err
    assert text in error
    assert "Traceback" not in error
    assert "\x1b" not in error
