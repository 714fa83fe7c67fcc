"""The executables of a report: the largest, and one row for all others, with exact sums."""

import pytest
from starlette.testclient import TestClient

from jobsight.reports.build import build_report
from jobsight.reports.report import JobReport
from jobsight.reports.terminal import report_text
from jobsight.server.app import create_app
from jobsight.store.read import queries
from jobsight.store.schema.statements import SUMMED_FIGURES
from jobsight.store.store import Store
from jobsight.util.outer import from_outer
from tests.server.conftest import TOKEN
from tests.store.sample import batch, find, info, part, sighting, totals, use, write_unbounded

SECOND = 10**9


def _fill(store: Store, names: int) -> None:
    """Two nodes with the same executables, and one that has a new name."""
    for node in ("n1", "n2"):
        uses = [
            use(
                b"/opt/%04d" % number,
                (number + 1) * SECOND,
                processes=2,
                peak_memory=number,
                gpu_time=number,
                own_namespace=number % 2 == 0,
            )
            for number in range(names)
        ]
        uses.append(use(b"renamed", 0))
        uses[-1].executions = 0
        seen = part(sighting(node=node), totals=totals(10, 10**6 * SECOND), executables=uses)
        store.write(batch(info(), seen, node=node))


def test_the_others_are_one_row(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-07: whatever a run has executed, its report has a bounded size."""
    monkeypatch.setattr(queries, "MAX_EXECUTABLES", 5)
    _fill(store, 20)
    run = find(store)
    sums = store.largest_executables(run.id)
    assert [each.path for each in sums.largest] == [b"/opt/%04d" % n for n in range(19, 14, -1)]
    assert (sums.executables, sums.own_namespace) == (20, 10)
    assert sums.largest[0].peak_memory == 19
    # Read completely, as from an archive, it is the same.
    stored = store.executables(run.id)
    every = queries.ExecutableSums.of(stored)
    assert every.others == sums.others
    assert [(use.path, use.cpu_time) for use in every.largest] == [
        (use.path, use.cpu_time) for use in sums.largest
    ]
    assert sums.others is not None
    for name in SUMMED_FIGURES:
        whole = sum(getattr(each.use, name) for each in stored)
        assert sum(getattr(each, name) for each in (*sums.largest, sums.others)) == whole
    report = build_report(store, run)
    assert [row.kind for row in report.executables] == ["executable"] * 5 + ["others", "remainder"]
    others = report.executables[5]
    assert (others.path, others.executables) == ("15 other executables", 15)
    assert (others.executions, others.cpu_time) == (30, 2 * 120 * SECOND)
    assert sum(row.cpu_time for row in report.executables) == report.cpu.time
    assert any("10 executables have paths" in note for note in report.coverage_notes)


def test_page_and_api_show_the_row_of_the_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MAX_EXECUTABLES", 5)
    _fill(store, 20)
    client = TestClient(create_app(store, TOKEN), base_url="http://127.0.0.1:8080")
    client.headers["Authorization"] = f"Bearer {TOKEN}"
    page = client.get("/jobs/7").text
    assert "15 other executables" in page
    assert "/opt/0015" in page.replace("<wbr>", "")
    assert "/opt/0014" not in page.replace("<wbr>", "")
    report = from_outer(client.get("/api/v1/jobs/7").json(), JobReport)
    assert len(report.executables) == 7
    assert "15 other executables" in report_text(report)


def test_the_paths_of_a_report_are_bounded_in_bytes(store: Store) -> None:
    uses = [use(b"/%04d/" % number + b"x" * 4000, SECOND) for number in range(100)]
    store.write(batch(info(), part(totals=totals(10, 100 * SECOND), executables=uses)))
    sums = store.largest_executables(find(store).id)
    assert sum(len(use.path) for use in sums.largest) <= queries.MAX_PATHS_SIZE
    assert sums.others is not None
    assert len(sums.largest) + sums.others.executions == 100


def test_figures_that_exceed_63_bits_are_summed(store: Store) -> None:
    for node in ("n1", "n2"):
        seen = part(sighting(node=node), executables=[use(b"/a", 2**62), use(b"/b", 2**62)])
        write_unbounded(store, batch(info(), seen, node=node))
    sums = store.largest_executables(find(store).id)
    assert [use.cpu_time for use in sums.largest] == [2**63, 2**63]


def test_a_run_without_executables(store: Store) -> None:
    store.write(batch(info()))
    assert store.largest_executables(find(store).id) == ([], None, 0, 0)
