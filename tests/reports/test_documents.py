"""Reports as PDF, HTML and plots: the same words as the terminal, and text stays text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest

from jobsight.cli.main import main
from jobsight.findings.finding import Cost, Evidence
from jobsight.findings.reported import (
    Amount,
    FittedRequest,
    ReportedFinding,
    WorkEffect,
    add_address,
    format_amount,
)
from jobsight.model import RunReference
from jobsight.reports import report as reports
from jobsight.reports.build import build_report
from jobsight.reports.document import MAX_ROWS, build_document, shown
from jobsight.reports.html import render_html
from jobsight.reports.pdf import render_pdf
from jobsight.reports.plots import (
    BAD,
    HALF,
    WIDTH,
    _ByteLocator,
    _value,
    dates,
    draw_all,
    finish,
    map_rows,
    metrics_to_read,
    new_figure,
)
from jobsight.reports.report import JobReport, SoftwareRow
from jobsight.reports.series import MetricSeries, NodeSeriesReply, SeriesReply, reply
from jobsight.reports.terminal import report_text
from jobsight.reports.with_plots import maps_that_matter, pdf_of
from jobsight.store.store import Store
from jobsight.util.units import (
    format_bytes,
    format_cores,
    format_count,
    format_duration,
    format_energy,
    format_share,
    format_time,
)
from tests.reports.pdf_text import pdf_text, squeezed
from tests.web import gpu_jobs, sample

HOSTILE = (
    "#eval(1) $x^2$ *b* <script>alert(1)</script> {{7*7}} \x1b[31m\nBcc: a@b \u202e`@ref` "
    + "x" * 5000
)


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("documents") / "store.db"
    store = Store.open(path)
    gpu_jobs.fill(store)
    sample.fill(store)
    store.close()
    return str(path)


@pytest.fixture
def store(location: str) -> Iterator[Store]:
    opened = Store.open(location)
    yield opened
    opened.close()


def report_of(store: Store, reference: str) -> JobReport:
    return build_report(store, store.find(RunReference.parse(reference)))


def series_of(store: Store, reference: str) -> SeriesReply:
    stored = store.find(RunReference.parse(reference))
    names = metrics_to_read(sorted({row.metric for row in store.summaries(stored.id)}))
    return reply(str(stored.run), store.series(stored.id, metrics=names), [], 300)


def finding_of(title: str, text: str, change: str) -> ReportedFinding:
    return ReportedFinding(
        kind="gpu-not-used",
        severity="critical",
        audience="user",
        state="open",
        title=title,
        text=text,
        change=change,
        cost=Cost(gpu_hours=3.0),
        prices=[],
        evidence=Evidence(),
        figures={},
        explains=(),
        first=0,
        last=0,
        reply_user=None,
        reply_time=None,
    )


#: Figures of the JSON and of the page that terminal and paper leave out, by struct and field: parts
#: of a figure that they have, details of one program, GPU or step, and times of the rule engine.
NOT_ON_PAPER = frozenset({
    *(f"ExecutableRow.{name}" for name in (
        "cpu_user", "cpu_system", "gpu_share", "gpu_memory_peak_bytes", "storage_read_bytes",
        "storage_written_bytes",
    )),
    *(f"GpuRow.{name}" for name in (
        "bandwidth_share", "fp16_share", "fp32_share", "memory_mean_bytes", "nvlink_received_bytes",
        "nvlink_sent_bytes", "occupancy_share", "pcie_received_bytes", "pcie_sent_bytes",
        "tensor_share",
    )),
    "GpuTotals.measured", "GpuTotals.memory_mean_bytes", "GpuTotals.utilization_share",
    "GpuFaultRow.last", "IoUse.read_calls", "IoUse.write_calls", "JobReport.as_of",
    # Shown if it is not zero.
    "MemoryUse.swap_peak_bytes",
    "NodeRow.memory_kernel_peak_bytes", "ReportedFinding.first", "ReportedFinding.last",
    "StepRow.cpu_overhead", "StepRow.first_seen", "StepRow.gpu_memory_peak_bytes",
    "WorkEffect.shown",
})  # fmt: skip


def numbers(value: object) -> Iterator[tuple[str, str]]:
    """Every number of the JSON of a report as renderings write it, with its struct and field."""
    if isinstance(value, msgspec.Struct):
        for each in msgspec.structs.fields(value):
            name = f"{type(value).__name__}.{each.name}"
            found = getattr(value, each.name)
            if isinstance(found, bool) or found is None or isinstance(found, str):
                continue
            if isinstance(found, int | float):
                yield name, written(found, each.encode_name)
            else:
                yield from numbers(found)
    elif isinstance(value, dict):
        yield from numbers(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value[:MAX_ROWS]:
            yield from numbers(part)


def written(value: float, name: str) -> str:
    """A number with the unit that its name in the JSON says."""
    if name in ("submit", "start", "end", "as_of", "first", "last", "shown", "changed"):
        return format_time(int(value), None)
    if name.endswith("_seconds"):
        return format_duration(int(value))
    if name.endswith("_bytes"):
        return format_bytes(int(value))
    if name.endswith("share"):
        return format_share(value)
    if name.endswith("_joules"):
        return format_energy(value)
    if name == "mean_cores":
        return format_cores(value)
    if isinstance(value, float):
        return format_amount(value)
    return str(value) if name.endswith("_id") else format_count(value)


def complete(report: JobReport) -> JobReport:
    """The report with a finding, and with what only judged runs have."""
    # Paper has the first rows of each table, GPUs that were never used before the others.
    report.gpus.sort(key=lambda row: row.used is not False)
    finding = finding_of("Idle <b>GPUs</b>", "They were #held $x$.", "#SBATCH --gpus=1")
    finding.prices = [Amount(4321.5, "EUR")]
    report.findings = [finding]
    report.cost = Cost(core_hours=1001.0, gpu_hours=32.1, memory_gb_hours=2002.0, energy_kwh=0.77)
    report.prices = [Amount(3003.0, "EUR"), Amount(17.2, "kg CO2")]
    report.samples = 71234
    report.software = [
        SoftwareRow(
            software="GROMACS", version="2024.1", user_provided=False, executions=517,
            cpu_time=123456 * 10**9, cpu_share=0.6543, gpu_time=4321 * 10**9,
        ),
        SoftwareRow(
            software=None, version=None, user_provided=None, executions=19,
            cpu_time=17 * 10**9, cpu_share=0.0321, gpu_time=0,
        ),
    ]  # fmt: skip
    report.fitted = [
        FittedRequest(
            resource="memory", option="--mem=14G", value=15.0, requested=64.0, runs=40, passed=38,
            saved_gb_hours=612.0, fits=False,
            text="--mem=14G would have held 38 of 40 runs (up to 15 GiB), not 64G: 612 GB h saved.",
        )
    ]  # fmt: skip
    report.improvements = [
        WorkEffect(
            kind="cpu-idle", work="w", cluster="c", user="u", account="a", shown=0, times_shown=1,
            runs_before=3, runs_after=5, changed=None, request_before=None, request_after=None,
            runs_without=4, failures_before=0, failures_after=0, saved=Cost(core_hours=888.0),
            prices=[], text="4 of 5 runs without the finding, 888 core h saved, no failure.",
        )
    ]  # fmt: skip
    return report


REFERENCES = ["gpus:1", "gpus:2", "local:1", "local:6", "local:9"]


@pytest.mark.parametrize("reference", REFERENCES)
def test_all_renderings_have_the_figures_of_the_terminal(store: Store, reference: str) -> None:
    report = complete(report_of(store, reference))
    terminal = " ".join(report_text(report, width=200).split())
    document = build_document(report)
    page = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", render_html(document))).split())
    for gauge in document.gauges:
        for text in (gauge.text, gauge.verdict, gauge.percent if gauge.share is not None else ""):
            assert text in terminal
            assert text in page
    for row in document.tables[0].rows[:5]:
        for figure in row[1:2] + row[3:]:
            assert figure in terminal
            assert figure in page
    in_full = " ".join(report_text(report, width=100, all_rows=True).split())
    told = [(name, text) for name, text in numbers(report) if name not in NOT_ON_PAPER]
    assert len(told) > 40
    assert [each for each in told if each[1] not in in_full] == []
    assert [each for each in told if each[1] not in page] == []


def test_the_figures_that_paper_leaves_out_are_figures_of_the_report() -> None:
    kinds = {name.partition(".")[0] for name in NOT_ON_PAPER}
    known = {
        f"{kind}.{each.name}"
        for kind in kinds
        for each in msgspec.structs.fields(getattr(reports, kind))
    }
    assert known >= NOT_ON_PAPER


def test_a_pdf_has_the_findings_first(store: Store) -> None:
    report = report_of(store, "gpus:2")
    report.findings = [finding_of("A title", "A text", "#SBATCH -G1")]
    document = build_document(report)
    pdf = render_pdf(document, draw_all(series_of(store, "gpus:2")))
    assert pdf.startswith(b"%PDF-")
    page = render_html(document)
    assert page.index("A title") < page.index("never used") < page.index("Cluster")


def test_findings_link_to_their_pages(store: Store, tmp_path: Path) -> None:
    report = report_of(store, "gpus:2")
    report.findings = [finding_of("A title", "A text", "#SBATCH -G1")]
    command = "jobsight findings help gpu-not-used"
    assert command in render_html(build_document(report))
    assert squeezed(command) in squeezed(pdf_text(render_pdf(build_document(report)), tmp_path))
    add_address(report.findings, "https://jobs.example.org")
    document = build_document(report)
    address = "https://jobs.example.org/findings/gpu-not-used"
    assert f'<a href="{address}"' in render_html(document)
    assert command not in render_html(document)
    pdf = render_pdf(document)
    assert squeezed("What gpu-not-used means") in squeezed(pdf_text(pdf, tmp_path))
    assert f"/URI({address})".encode() in pdf


def test_hostile_text_stays_text(store: Store, tmp_path: Path) -> None:
    report = report_of(store, "local:1")
    report.name = report.user = report.command = report.account = HOSTILE
    report.nodes = [HOSTILE]
    report.findings = [finding_of(HOSTILE, HOSTILE, HOSTILE)]
    document = build_document(report)
    assert "\n" not in document.subtitle
    assert "\x1b" not in document.subtitle
    assert len(document.subtitle) <= 200
    page = render_html(document)
    assert "<script" not in page
    assert "{{7*7}}" in page
    # All of it is on the paper, as text, and nothing leaves the page.
    paper = squeezed(pdf_text(render_pdf(document), tmp_path, "-raw"))
    (finding,) = document.findings
    told = [document.subtitle, finding.title, finding.text, finding.change]
    told += [value for _, value in document.facts]
    for text in told:
        assert squeezed(text) in paper, text
    assert squeezed(r"#eval(1) $x^2$ *b* <script>alert(1)</script> {{7*7}} \x1b[31m\x0a") in paper


def test_names_of_nodes_are_no_markup_of_plots() -> None:
    part = MetricSeries("cores", [1.0, 2.0, None], [1.0, 2.0, None], [1.0, 2.0, None])
    nodes = [
        NodeSeriesReply(name, [0.0, 10.0, 20.0], {"cpu.time": part, "unknown.metric": part})
        for name in (r"$\frac{", "<b>&", HOSTILE)
    ]
    for plot in draw_all(SeriesReply("x", [], nodes), limits={"cpu": 4}, marks=[(5.0, 9.0)]):
        ElementTree.fromstring(plot.data)
    for plot in draw_all(SeriesReply("x", [], nodes), format="png"):
        assert plot.data.startswith(b"\x89PNG")


def test_plots_are_the_same_for_the_same_data(store: Store) -> None:
    first, second = (draw_all(series_of(store, "local:6")) for _ in range(2))
    assert [plot.data for plot in first] == [plot.data for plot in second]
    assert {plot.name for plot in first} >= {"cpu", "memory", "cpu-map"}


# The style was set and reset by each drawing, and so also by that of another thread.
def test_threads_that_draw_at_the_same_time_have_the_same_style() -> None:
    part = MetricSeries("cores", [1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    nodes = [
        NodeSeriesReply(name, [0.0, 10.0, 20.0], {"cpu.time": part}) for name in (r"$\frac{", "b")
    ]
    series = SeriesReply("x", [], nodes)
    alone = draw_all(series)
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda _: draw_all(series), range(8)))
    assert all(plots == alone for plots in together)


def test_a_run_without_series_has_no_plots(store: Store) -> None:
    assert draw_all(SeriesReply("x", [], [])) == []
    report = report_of(store, "local:1")
    assert render_pdf(build_document(report)).startswith(b"%PDF-")


def test_the_command_writes_the_files(location: str, tmp_path: Path) -> None:
    options = ["--pdf", str(tmp_path / "a.pdf"), "--html", str(tmp_path / "a.html")]
    options += ["--plots", str(tmp_path / "plots")]
    assert main(["report", "gpus:2", "--store", location, *options]) == 0
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF-")
    assert "finetune" in (tmp_path / "a.html").read_text()
    assert (tmp_path / "plots" / "gpu.svg").exists()
    assert (tmp_path / "plots" / "gpu.png").exists()


def test_a_file_that_cannot_be_written_is_named(
    location: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = str(tmp_path / "missing" / "a.html")
    assert main(["report", "gpus:2", "--store", location, "--html", wanted]) != 0
    assert wanted in capsys.readouterr().err


def test_a_missing_text_is_shown_as_unknown() -> None:
    assert shown(None) == "-"
    assert shown("a\tb  c") != ""


def test_heat_maps_are_those_of_the_findings(store: Store) -> None:
    report = report_of(store, "gpus:2")
    report.findings = []
    assert maps_that_matter(report) == ["cpu-map", "gpu-map"]
    named = [("io.read_bytes",), ("gpu.*.memory_used",), ("pressure.memory", "memory.used"), ("x",)]
    for series in named:
        found = finding_of("a", "b", "c")
        found.evidence = Evidence(series=series)
        report.findings.append(found)
    assert maps_that_matter(report) == ["storage-map", "gpu-memory-map", "memory-map"]
    report.findings[0].state = "gone"
    assert maps_that_matter(report) == ["gpu-memory-map", "memory-map"]


def test_a_heat_map_has_a_row_for_each_node_and_marks_those_of_a_finding() -> None:
    times = [float(second) for second in range(0, 600, 10)]
    nodes = [
        NodeSeriesReply(
            f"n{number}",
            times,
            {
                name: MetricSeries("bytes per second", [1e6 * number] * 60, [0.0] * 60, [0.0] * 60)
                for name in ("io.read_bytes", "io.written_bytes")
            },
        )
        for number in range(3)
    ]
    series = SeriesReply("x", [], nodes)
    rows = map_rows(series, "storage")
    assert [row.name for row in rows] == ["n0", "n1", "n2"]
    # Read and written are added.
    assert [float(row.values[0]) for row in rows] == [0.0, 2e6, 4e6]
    (plot,) = draw_all(series, names={"storage-map"}, marked={"n1"})
    assert (plot.name, plot.title) == ("storage-map", "Storage, bytes per second by node")
    assert BAD in plot.data.decode()
    (plain,) = draw_all(series, names={"storage-map"})
    assert BAD not in plain.data.decode()


@pytest.mark.parametrize("width", [WIDTH, HALF])
def test_runs_of_any_length_have_some_ticks(width: float) -> None:
    """matplotlib warns if it finds no interval, and a warning is an error here."""
    lengths = [0.3, 0.8, *(1.17**power for power in range(124))]
    assert lengths[-1] > 5 * 365 * 86400
    for length in lengths:
        _, axes = new_figure(width, 2.0)
        start = 1_790_000_000.0
        axes.plot(dates(np.array([start, start + length])), [0.0, 1.0])
        finish(axes, "cpu", "CPUs")
        shown_ticks = axes.xaxis.get_major_locator()()
        low, high = axes.get_xlim()
        inside = [tick for tick in shown_ticks if low <= tick <= high]
        assert 1 <= len(inside) <= 9, (length, len(inside))


def test_ticks_of_small_shares_differ() -> None:
    """They are not all below 0.01 %."""
    ticks = [0.0, 0.00002, 0.00004, 0.01, 0.02, 0.3]
    texts = [_value("waiting", tick) for tick in ticks]
    assert texts == ["0 %", "0.002 %", "0.004 %", "1 %", "2 %", "30 %"]


@pytest.mark.parametrize("hours", [0.02, 0.9, 1.9, 2.9, 4.9, 14.0, 47.0, 70.0, 800.0, 17000.0])
@pytest.mark.parametrize(("width", "most"), [(HALF, 5), (WIDTH, 8)])
def test_the_times_of_a_chart_do_not_overlap(hours: float, width: float, most: int) -> None:
    """Five hours had a label every half hour, and a warning on the terminal."""
    _, axes = new_figure(width, 1.9)
    axes.plot(dates(np.array([0.0, hours * 3600]) + 1_781_526_153), [1.0, 2.0])
    finish(axes, "cpu", "x")
    low, high = axes.get_xlim()
    assert 1 <= sum(low <= tick <= high for tick in axes.get_xticks()) <= most


def test_ticks_of_sizes_are_round() -> None:
    ticks = [round(value / 2**30, 6) for value in _ByteLocator(4).tick_values(0, 500 * 2**30)]
    assert set(ticks) <= {0, 100, 150, 200, 250, 300, 400, 450, 500, 600}


@pytest.mark.parametrize("reference", ["gpus:2", "local:6"])
def test_the_pdf_of_a_run_has_the_words_of_the_others(
    store: Store, reference: str, tmp_path: Path
) -> None:
    report = complete(report_of(store, reference))
    paper = squeezed(pdf_text(pdf_of(report, series_of(store, reference), sample.NOW), tmp_path))
    document = build_document(report)
    (finding,) = document.findings
    told = [
        *(document.title, document.state, finding.title, finding.text, finding.change),
        finding.cost,
        *(value for _, value in [*document.facts, *document.figures]),
        *(gauge.text for gauge in document.gauges),
        *(cell for table in document.tables for row in table.rows for cell in row[1:]),
        *(row.note for row in document.coverage),
        *(text for section in document.sections for item in section.items for text in item),
        *(text for name, text in numbers(report) if name not in NOT_ON_PAPER),
    ]
    for text in told:
        assert squeezed(text) in paper, text
