"""How reports of several runs are laid out: words left, figures right, a name once."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from jobsight.reports.document import Document, DocumentSection, DocumentTable
from jobsight.reports.html import render_html
from jobsight.reports.pdf import render_pdf
from jobsight.reports.subject_document import document_text
from jobsight.reports.subject_plots import duration_step
from tests.reports.pdf_text import pdf_text, squeezed

DOCUMENT = Document(
    title="Script 1", subtitle="sim", state="2 completed", tone="idle", facts=[], findings=[],
    no_findings="", gauges=[], figures=[], coverage=[], notes=[],
    sections=[
        DocumentSection(
            "What would have fitted", [("sim", "--mem=3G holds."), ("", "--time=1 holds.")]
        )
    ],
    tables=[
        DocumentTable(
            "Runs", ["Job", "State", "CPUs"],
            [["7", "failed", "1"], ["12 model", "completed", "128"]], words=[1],
        )
    ],
)  # fmt: skip


def test_words_are_on_the_left_and_figures_on_the_right() -> None:
    lines = document_text(DOCUMENT).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("Job"))
    assert lines[first : first + 3] == [
        "Job       State      CPUs",
        "7         failed        1",
        "12 model  completed   128",
    ]
    html = render_html(DOCUMENT)
    assert html.count('<td align="left"') == 4
    assert html.count('<td align="right"') == 2


def test_the_name_of_a_work_is_said_once(tmp_path: Path) -> None:
    text = document_text(DOCUMENT)
    assert "  sim\n    --mem=3G holds.\n    --time=1 holds.\n" in text
    pdf = squeezed(pdf_text(render_pdf(DOCUMENT), tmp_path))
    for sentence in ("--mem=3G holds.", "--time=1 holds."):
        assert pdf.count(squeezed(sentence)) == 1
    unnamed = msgspec.structs.replace(
        DOCUMENT, sections=[DocumentSection("What would have fitted", [("", "--time=1 holds.")])]
    )
    assert "<br>--time=1" not in render_html(unnamed)


@pytest.mark.parametrize(
    ("highest", "step"),
    [(0.0, 1), (4.0, 1), (17000.0, 3600), (18001.0, 7200), (86400 * 9.0, 2 * 86400), (1e12, None)],
)
def test_ticks_of_durations_are_whole(highest: float, step: float | None) -> None:
    found = duration_step(highest)
    assert found == step if step else found > 0
