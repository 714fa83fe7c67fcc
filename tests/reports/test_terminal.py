"""The terminal report: compared with texts that a person has read and found good.

``JOBSIGHT_GOLDEN=write pytest tests/reports`` writes them again; read the difference.
"""

import io
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from jobsight.findings.finding import Cost, Evidence
from jobsight.findings.reported import Amount, ReportedFinding, add_address
from jobsight.model import Coverage
from jobsight.reports.terminal import (
    MIN_WIDTH,
    fit,
    fit_path,
    print_report,
    report_svg,
    report_text,
)
from tests.reports.samples import EXACT, GIB, USES, job, node, report, step, totals, use

GOLDEN = Path(__file__).with_name("golden")


def _polled() -> Any:
    coverage = {
        "cpu": EXACT,
        "memory": Coverage(quality="estimate", time_share=0.98, reason="sampled"),
        "io": Coverage(quality="failed", reason="/proc/PID/io may not be read"),
        "executables": Coverage(
            quality="estimate", reason="by polling; needs root: see jobsight doctor"
        ),
    }
    figures = totals(cpu_source="rusage", memory_peak=None, read_characters=None, read_bytes=None)
    uses = [("n1", use(b"/usr/bin/python3.11", 1400, cpu_estimated=1400 * 10**9))]
    return report(
        job(cpus=None, memory=None, time_limit=None, account=None, partition=None),
        [node(totals=figures, coverage=coverage)],
        uses,
    )


def _many() -> Any:
    path = b"/opt/software/2026/very/deep/tree/of/modules/bin/solver-\xff[bold]"
    uses = [*USES, ("n2", use(path, 120)), ("n2", use(b"sh", 1, 7, path_known=False))]
    uses += [("n2", use(b"/opt/tools/step-%02d" % number, 0.5)) for number in range(16)]
    nodes = [node(), node("n2", totals=totals(oom_kills=2, memory_used_peak=4 * GIB))]
    info = job(
        name="[red]big[/red] \x1b[31m", state="OUT_OF_MEMORY", exit_code=1, nodes=("n1", "n2")
    )
    return report(msgspec.structs.replace(info, memory=8 * GIB, cpus=32), nodes, uses)


def _steps() -> Any:
    steps = [
        ("n1", step("extern", 0.01, tasks=1)),
        ("n1", step("batch", 3, tasks=1, memory_peak=200 * 2**20, ended=False)),
        ("n1", step("0", 1700, tasks=4, memory_peak=3 * GIB, oom_kills=2)),
        ("n2", step("0", 1700, tasks=4, memory_peak=3 * GIB, oom_kills=0)),
        *(("n2", step(str(number), 1, tasks=1)) for number in range(1, 20)),
    ]
    nodes = [node(), node("n2", totals=totals(cpu_overhead=754 * 10**9))]
    info = job(job_id=65, array_job_id=62, array_task_id=3, nodes=("n1", "n2"))
    return report(info, nodes, steps=steps)


def _findings() -> Any:
    """Seven findings, one of them with a reply and one with hostile text."""
    severities = ("critical", "critical", "warning", "warning", "warning", "info", "info")
    made = report()
    made.findings = [
        reported(
            kind=f"kind-{number}",
            severity=severity,
            title=f"Finding {number} [bold]\x1b[31m" if number == 2 else f"Finding {number}",
            change="" if number == 1 else f"#SBATCH --mem={number}G",
            cost=Cost(core_hours=1000.0 / number, gpu_hours=2.0 if number == 1 else None),
            prices=[Amount(4.2, "EUR")] if number == 1 else [],
            state="acknowledged" if number == 4 else "open",
        )
        for number, severity in enumerate(severities, 1)
    ]
    return made


def reported(**changes: Any) -> ReportedFinding:
    fields: dict[str, Any] = {
        "kind": "kind", "severity": "warning", "audience": "user", "state": "open",
        "title": "A title", "text": "4 GiB of 64 GiB was used (6.3 %), which is a long sentence "
        "that does not fit into a line of eighty characters.",
        "change": "", "cost": Cost(), "prices": [], "evidence": Evidence(), "figures": {},
        "explains": (), "first": 0, "last": 0, "reply_user": None, "reply_time": None,
    }  # fmt: skip
    return ReportedFinding(**(fields | changes))


@pytest.fixture
def in_utc() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_utc")
@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("plain", report()),
        ("polled", _polled()),
        ("many", _many()),
        ("steps", _steps()),
        ("findings", _findings()),
    ],
)
def test_golden(name: str, made: Any) -> None:
    text = report_text(made)
    assert max(map(cell_len, text.splitlines())) <= 80
    assert text.isascii()
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("JOBSIGHT_GOLDEN") == "write":
        file.write_text(text)
    assert text == file.read_text()


def test_a_terminal_gets_colour_and_blocks_and_no_color_takes_the_colour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shown() -> str:
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        console = Console(file=out, force_terminal=True, width=80, color_system="truecolor")
        print_report(report(), console)
        out.flush()
        return out.buffer.getvalue().decode()  # type: ignore[attr-defined,no-any-return]

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "█" in shown()
    assert "\x1b[32m" in shown()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in shown()


def test_markup_and_controls_are_only_characters() -> None:
    text = report_text(_many())
    assert r"[red]big[/red] \x1b[31m" in text
    assert r"\xff[bold]" in text


def test_all_findings_are_shown_in_full_on_request() -> None:
    file = io.StringIO()
    print_report(_findings(), Console(file=file, width=80, color_system=None), all_rows=True)
    text = file.getvalue()
    assert "Finding 7" in text
    assert "more finding" not in text
    assert "eighty characters." in text


def test_the_pages_of_findings_are_named_below_them() -> None:
    made = _findings()
    assert "Help: jobsight findings help kind-1 kind-2 kind-3" in report_text(made)
    assert "kind-7" not in report_text(made)
    add_address(made.findings, "https://jobs.example.org/a-directory-with-a-rather-long-name/")
    text = report_text(made)
    # An address that is cut or folded cannot be opened.
    address = "https://jobs.example.org/a-directory-with-a-rather-long-name/findings/kind-5"
    assert f"  Help: {address}" in text.splitlines()
    assert "jobsight findings help" not in text


@given(st.text(max_size=200))
def test_no_text_of_a_finding_breaks_it(text: str) -> None:
    made = report()
    made.findings = [reported(title=text, text=text, change=text)]
    shown = report_text(made, 80)
    assert shown.replace("\n", "").isprintable()
    assert max(map(cell_len, shown.splitlines())) <= 80


@given(st.text(max_size=200), st.binary(min_size=1, max_size=300), st.integers(20, 120))
def test_no_name_and_no_path_breaks_it(name: str, path: bytes, width: int) -> None:
    made = report(job(name=name, command=name, user=name), uses=[("n1", use(path, 5))])
    text = report_text(made, width)
    assert text.replace("\n", "").isprintable()
    assert max(map(cell_len, text.splitlines())) <= max(width, MIN_WIDTH)


@given(st.text(max_size=80), st.integers(0, 60))
def test_shortened_text_fits(text: str, width: int) -> None:
    assert cell_len(fit(text, width)) <= width
    assert cell_len(fit_path(text, width)) <= width


def test_steps_are_shown_where_there_are_any() -> None:
    one = report(steps=[("n1", step("", 5))])
    assert one.steps[0].step == ""
    assert "Step" not in report_text(one)
    two = report(steps=[("n1", step("", 5)), ("n1", step("[red]\u202e", 5))])
    assert "[red]\\xe2" in report_text(two)


def test_the_file_name_survives() -> None:
    assert fit_path("/opt/software/2026/bin/solver", 20).endswith("/solver")


def test_picture_fetches_nothing() -> None:
    svg = report_svg(report())
    assert "@font-face" not in svg
    assert "url(http" not in svg
    assert "multiply" in svg


# Fault 5: the row "N more" dropped a digit (488,889 as 488,88), as did long times.
@pytest.mark.parametrize("width", [MIN_WIDTH, 80, 100])
def test_numbers_are_never_truncated(width: int) -> None:
    uses = [
        ("n1", use(b"/opt/tools/step-%02d" % number, 86400 * 1000, 111_111)) for number in range(20)
    ]
    day = 86400 * 10**9
    figures = totals(cpu_time=40_000 * day, cpu_user=30_000 * day, cpu_system=10_000 * day)
    nodes = [node(totals=figures), node("n2", totals=figures)]
    steps = [("n1", step(str(number), 86400 * 1000, tasks=123_456)) for number in range(20)]
    text = report_text(report(job(nodes=("n1", "n2")), nodes, uses, steps=steps), width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert "888,888" in text
    for row in text.splitlines():
        if row.startswith("/opt/tools"):
            assert re.search(r"111,111 +1000 d 00:00:00", row), row
        if row.startswith("8 more (--all s"):
            assert re.search(r"888,888 +8000 d 00:00:00", row), row
        if re.match(r"\d+ .*123,456", row):
            assert "1000 d 00:00:00" in row
    words = " ".join(text.split())
    assert "user 60000 d 00:00:00, system 20000 d 00:00:00" in words
