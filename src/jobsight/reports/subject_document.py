"""The document of a report of several runs, and any document as text for a terminal or a mail."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from jobsight.findings.reported import format_amount, help_address
from jobsight.reports.build import JobRow
from jobsight.reports.document import (
    Document,
    DocumentFinding,
    DocumentGauge,
    DocumentSection,
    DocumentTable,
    fitted_items,
    shown,
    shown_path,
    shown_text,
)
from jobsight.reports.report import describe_state
from jobsight.reports.subject import Distribution, Kind, SubjectReport
from jobsight.reports.subject_findings import FindingGroup
from jobsight.reports.terminal import (
    MAX_WIDTH,
    MIN_WIDTH,
    SEVERITY_MARKS,
    SEVERITY_STYLES,
    TONE_STYLES,
    finding_title,
    fit,
    help_lines,
)
from jobsight.util.units import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_duration,
    format_energy,
    format_hours,
    format_share,
    format_time,
)

#: Below these shares of what was held the use is called low, as in the report of a run.
_CPU_LOW: Final = 0.5
_GPU_LOW: Final = 0.2
_BAR_WIDTH: Final = 24

_TITLES: Final[dict[Kind, str]] = {
    "array": "Array",
    "het": "Heterogeneous job",
    "script": "Script",
    "user": "User",
    "account": "Account",
    "cluster": "Cluster",
}
_FIGURES: Final[dict[str, tuple[str, Callable[[float], str]]]] = {
    "elapsed_seconds": ("Elapsed", lambda value: format_duration(round(value * 10**9))),
    "cpu_share": ("CPU used of held", format_share),
    "memory_share": ("Memory used of requested", format_share),
    "memory_bytes": ("Memory used", format_bytes),
    "gpu_share": ("GPU used of held", format_share),
    "wait_seconds": ("Waiting time", lambda value: format_duration(round(value * 10**9))),
}
#: Characters of the key of a script in a title.
_KEY: Final = 16


def subject_document(report: SubjectReport, *, now: int | None = None) -> Document:
    """The document of several runs."""
    of_work = report.kind in ("array", "het", "script")
    period = f"{_day(report.since)} to {_day(report.until)}"
    subject = report.subject[:_KEY] if report.kind == "script" else report.subject
    return Document(
        title=f"{_TITLES[report.kind]} {shown(subject)}",
        subtitle=shown(report.name) if of_work else period,
        state=_states(report),
        tone=_tone(report),
        facts=_facts(report),
        findings=[_finding(each, report) for each in report.findings],
        no_findings=_no_findings(report),
        sections=_sections(report),
        gauges=_gauges(report),
        figures=_figures(report),
        tables=_tables(report),
        coverage=[],
        notes=list(report.notes),
        made=format_time(now) if now is not None else "",
    )


def _runs_text(count: int) -> str:
    return "1 run" if count == 1 else f"{format_count(count)} runs"


def _finding(group: FindingGroup, report: SubjectReport) -> DocumentFinding:
    whose = f" of {shown(group.user)}" if report.user is None and report.kind != "user" else ""
    which = "Job" if group.runs == 1 else "The most costly is job"
    where = f"{which} {group.display_id}{whose}: " if group.display_id else ""
    return DocumentFinding(
        kind=group.kind,
        severity=group.severity,
        title=shown(group.title),
        text=f"{where}{shown_text(group.text)}",
        change=shown_text(group.change) if group.change else "",
        cost=", ".join(filter(None, (_runs_text(group.runs), group.cost_text))),
        help=help_address(group),
    )


def _no_findings(report: SubjectReport) -> str:
    if report.findings or not report.scripts or not report.measured.runs:
        return ""
    return "No findings: nothing has to be changed."


def _sections(report: SubjectReport) -> list[DocumentSection]:
    sections = []
    fitted = [
        item
        for script in report.scripts
        for item in fitted_items(shown(script.name), script.fitted)
    ]
    if fitted:
        sections.append(DocumentSection("What would have fitted", fitted))
    if report.improvements:
        better = [
            (f"{shown(each.work)}, {each.kind}", shown_text(each.text))
            for each in report.improvements
        ]
        sections.append(DocumentSection("What improved after advice", better))
    return sections


def _day(moment: int | None) -> str:
    return "the first run" if moment is None else format_time(moment)[:10]


def _state_name(state: str) -> str:
    return shown(describe_state(state, None, None))


def _states(report: SubjectReport) -> str:
    if not report.states:
        return "no runs"
    counted = (f"{format_count(count)} {_state_name(s)}" for s, count in report.states.items())
    return ", ".join(counted)


def _tone(report: SubjectReport) -> str:
    if report.kind not in ("array", "het"):
        return "idle"
    states = {*report.states}
    if states == {"COMPLETED"}:
        return "good"
    return "busy" if states <= {"COMPLETED", "RUNNING", "PENDING"} else "warn"


def _facts(report: SubjectReport) -> list[tuple[str, str]]:
    if report.kind in ("user", "account", "cluster"):
        return [("Runs started", format_count(report.runs))]
    if report.kind == "script":
        return [
            ("User", shown(report.user)),
            ("Account", shown(report.account)),
            ("Cluster", shown(report.cluster)),
            ("Runs", format_count(report.runs)),
            ("First start", format_time(report.since)),
            ("Last end", format_time(report.until)),
            ("Key", shown(report.subject)),
        ]
    return [
        ("User", shown(report.user)),
        ("Account", shown(report.account)),
        ("Cluster", shown(report.cluster)),
        ("Tasks" if report.kind == "array" else "Components", format_count(report.states_of)),
        ("First start", format_time(report.since)),
        ("Last end", UNKNOWN if report.until is None else format_time(report.until)),
    ]


def _gauges(report: SubjectReport) -> list[DocumentGauge]:
    totals = report.totals
    gauges = []
    if totals.core_share is not None:
        text = (
            f"{format_hours(totals.core_hours_used)} of "
            f"{format_hours(totals.core_hours_held)} core h"
        )
        gauges.append(_gauge("CPU", totals.core_share, text, _CPU_LOW))
    if totals.gpu_share is not None:
        text = (
            f"{format_hours(totals.gpu_hours_used)} of "
            f"{format_hours(totals.gpu_hours_measured)} GPU h measured"
        )
        gauges.append(_gauge("GPU", totals.gpu_share, text, _GPU_LOW))
    return gauges


def _gauge(name: str, share: float, text: str, low: float) -> DocumentGauge:
    return DocumentGauge(
        name=name,
        share=min(max(share, 0.0), 1.0),
        percent=format_share(share),
        text=text,
        verdict="low" if share < low else "",
        tone="warn" if share < low else "good",
    )


def _figures(report: SubjectReport) -> list[tuple[str, str]]:
    totals = report.totals
    figures = [
        ("Core hours held", format_hours(totals.core_hours_held)),
        ("Core hours used", format_hours(totals.core_hours_used)),
        ("GiB hours held", format_hours(totals.memory_gib_hours_held)),
    ]
    if totals.gpu_hours_held is not None:
        figures += [
            ("GPU hours held", format_hours(totals.gpu_hours_held)),
            ("GPU hours used", format_hours(totals.gpu_hours_used)),
            ("GPU energy", format_energy(totals.gpu_energy_joules)),
        ]
    if totals.prices:
        cost = ", ".join(f"{format_amount(each.amount)} {each.unit}" for each in totals.prices)
        figures.append(("Price of what was held", shown(cost)))
    wait = next((row for row in report.distributions if row.figure == "wait_seconds"), None)
    if wait is not None:
        show = _FIGURES["wait_seconds"][1]
        figures.append(
            ("Waiting time", f"median {show(wait.median)}, at most {show(wait.maximum)}")
        )
    return [*figures, *_measured(report)]


def _measured(report: SubjectReport) -> list[tuple[str, str]]:
    measured = report.measured
    if not measured.ended:
        return []
    text = f"{format_count(measured.runs)} of {_runs_text(measured.ended)} that ended"
    if measured.core_share is not None:
        text += f", {format_share(measured.core_share)} of their core hours"
    return [("Measured", f"{text}; {format_count(measured.samples)} samples")]


def _tables(report: SubjectReport) -> list[DocumentTable]:
    tables = []
    if report.trend:
        tables.append(_trend(report))
    if report.kind in ("user", "account", "cluster") and report.scripts:
        tables.append(_scripts(report))
    if report.distributions:
        columns = ["Figure", "Runs", "Least", "25 %", "Median", "75 %", "Most"]
        rows = [_quartiles(row) for row in report.distributions]
        tables.append(DocumentTable("Distribution over ended runs", columns, rows))
    if report.outliers:
        what = "Task" if report.kind == "array" else "Run"
        outliers = [[shown(row.task), row.text] for row in report.outliers]
        tables.append(DocumentTable("Outliers", [what, "What differs"], outliers, words=[1]))
    if report.failures:
        tables.append(_runs("Not completed", report.failures))
    if report.software:
        tables.append(_software(report))
    if report.programs:
        tables.append(_programs(report))
    if report.largest:
        tables.append(_runs("Runs that held most", report.largest))
    return tables


def _software(report: SubjectReport) -> DocumentTable:
    # Only the rollups divide what was held.
    divided = any(row.core_hours is not None for row in report.software)
    return DocumentTable(
        title="Software",
        columns=["Software", "Jobs", *(["Core hours"] if divided else []), "CPU hours"],
        rows=[
            [
                shown(row.name),
                format_count(row.jobs),
                *([format_hours(row.core_hours)] if divided else []),
                format_hours(row.cpu_hours),
            ]
            for row in report.software
        ],
    )


def _programs(report: SubjectReport) -> DocumentTable:
    on_gpus = any(row.gpu_hours is not None for row in report.programs)
    rows = []
    for row in report.programs:
        remark = " (path unknown)" if row.kind == "path unknown" else ""
        rows.append(
            [
                f"{shown_path(row.path)}{' (own namespace)' if row.own_namespace else remark}",
                format_count(row.runs),
                format_count(row.failures),
                format_hours(row.cpu_hours),
                format_share(row.cpu_share),
                *([format_hours(row.gpu_hours)] if on_gpus else []),
                format_bytes(row.peak_memory_bytes),
            ]
        )
    gpu_column = ["GPU h"] if on_gpus else []
    return DocumentTable(
        title="Programs",
        columns=["Program", "Jobs", "Failed", "CPU h", "Share", *gpu_column, "Memory"],
        rows=rows,
    )


def _trend(report: SubjectReport) -> DocumentTable:
    elapsed = _FIGURES["elapsed_seconds"][1]
    return DocumentTable(
        title="Over time",
        columns=["From", "Runs", "Failed", "Elapsed", "CPU", "Memory", "Requested", "Waited"],
        rows=[
            [
                _day(row.since),
                format_count(row.runs),
                format_count(row.failed),
                UNKNOWN if row.elapsed_seconds is None else elapsed(row.elapsed_seconds),
                format_share(row.cpu_share),
                format_bytes(_whole(row.memory_used_bytes)),
                format_bytes(_whole(row.memory_requested_bytes)),
                UNKNOWN if row.wait_seconds is None else elapsed(row.wait_seconds),
            ]
            for row in report.trend
        ],
        note="Medians of the ended runs.",
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _scripts(report: SubjectReport) -> DocumentTable:
    named = report.kind != "user"
    return DocumentTable(
        title="Scripts that held most",
        columns=[
            "Script",
            *(["User"] if named else []),
            "Runs",
            "Failed",
            "Core hours",
            "Last run",
        ],
        rows=[
            [
                shown(row.name),
                *([shown(row.user)] if named else []),
                format_count(row.runs),
                format_count(row.failed),
                format_hours(row.core_hours_held),
                shown(row.run.rpartition(":")[0]),
            ]
            for row in report.scripts
        ],
        note="`jobsight report --script RUN` shows all runs of one of them.",
        words=[1] if named else [],
    )


def _quartiles(row: Distribution) -> list[str]:
    title, format = _FIGURES[row.figure]
    values = (row.minimum, row.quartile, row.median, row.upper_quartile, row.maximum)
    return [title, format_count(row.count), *(format(value) for value in values)]


def _runs(title: str, rows: Sequence[JobRow]) -> DocumentTable:
    return DocumentTable(
        title=title,
        columns=["Job", "State", "Elapsed", "CPUs", "CPU", "Memory"],
        rows=[
            [
                f"{row.display_id} {shown(row.name) if row.name else ''}".rstrip(),
                _state_name(row.state),
                format_duration(row.elapsed),
                format_count(row.requested_cpus),
                format_share(row.cpu_share),
                format_share(row.memory_share),
            ]
            for row in rows
        ],
        words=[1],
    )


def print_document(document: Document, console: Console | None = None) -> None:
    """Print a document; colours and block characters only where the console is a terminal."""
    console = console or Console(highlight=False)
    width = max(min(console.width, MAX_WIDTH), MIN_WIDTH)
    blocks = console.is_terminal and not console.options.ascii_only
    for line in _lines(document, width, blocks):
        if console.is_terminal:
            console.print(line, highlight=False)
        else:
            console.file.write(f"{line.plain.rstrip()}\n")


def document_text(document: Document, width: int = 80) -> str:
    """The document as plain text, as in a pipe."""
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, force_terminal=False)
    print_document(document, console)
    return file.getvalue()


def _lines(document: Document, width: int, blocks: bool) -> Iterator[Text]:
    title = Text.assemble((document.title, "bold"), "  ", (document.subtitle, "bold cyan"))
    title.truncate(width)
    yield title
    yield Text("\n".join(_wrapped(document.state, width)), style=TONE_STYLES[document.tone])
    yield Text(("─" if blocks else "-") * width)
    for finding in document.findings:
        yield from _finding_lines(finding, width)
    yield from help_lines([(each.kind, each.help) for each in document.findings], width)
    if document.no_findings:
        yield Text(document.no_findings, style="green")
    for section in document.sections:
        yield Text(section.title, style="bold")
        for name, text in section.items:
            if name:
                yield Text(f"  {fit(name, width - 2)}", style="cyan")
            yield Text("\n".join(f"    {line}" for line in _wrapped(text, width - 4)))
    if document.findings or document.sections or document.no_findings:
        yield Text()
    pairs = [*document.facts, *document.figures]
    longest = max((len(name) for name, _ in pairs), default=0)
    for gauge in document.gauges:
        yield _bar(gauge, width, max(len(each.name) for each in document.gauges), blocks)
    for name, value in pairs:
        first, *others = _wrapped(value, width - longest - 2)
        indent = " " * (longest + 2)
        text = "\n".join([first, *(f"{indent}{other}" for other in others)])
        yield Text.assemble((f"{name:<{longest}}  ", "dim"), text)
    for table in document.tables:
        yield Text()
        yield Text(table.title, style="bold")
        yield from _table(table, width)
    for note in document.notes:
        yield Text()
        yield Text("\n".join(_wrapped(note, width)), style="dim")


def _finding_lines(finding: DocumentFinding, width: int) -> Iterator[Text]:
    """What it is and what it cost, the line to change, and the sentence."""
    style = SEVERITY_STYLES[finding.severity]
    mark = SEVERITY_MARKS[finding.severity]
    yield finding_title(mark, finding.title, finding.cost or "", width, style)
    if finding.change:
        change = (f"  {line}" for line in _wrapped(finding.change, width - 2))
        yield Text("\n".join(change), style="bold")
    yield Text("\n".join(f"  {line}" for line in _wrapped(finding.text, width - 2)))


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width) or [""]


def _bar(gauge: DocumentGauge, width: int, longest: int, blocks: bool) -> Text:
    line = Text.assemble((f"{gauge.name:<{longest}}  ", "bold"))
    style = TONE_STYLES[gauge.tone]
    if gauge.share is not None:
        filled = max(round(gauge.share * _BAR_WIDTH), 1 if gauge.share > 0 else 0)
        line.append(("█" if blocks else "#") * filled, style=style)
        line.append(("░" if blocks else ".") * (_BAR_WIDTH - filled), style="dim")
        line.append(f" {gauge.percent:>8}  ", style=style)
    verdict = f"  {gauge.verdict}" if gauge.verdict else ""
    line.append(fit(gauge.text, width - line.cell_len - cell_len(verdict)))
    line.append(verdict, style=style)
    return line


def _table(table: DocumentTable, width: int) -> Iterator[Text]:
    """The first column gets the width that the others leave; it is cut, figures are not."""
    rows = [table.columns, *table.rows]
    others = [
        max(cell_len(row[place]) for row in rows if place < len(row))
        for place in range(1, len(table.columns))
    ]
    widest = max(cell_len(row[0]) for row in rows)
    space = max(min(widest, width - sum(others) - 2 * len(others)), 8)
    for number, row in enumerate(rows):
        name = fit(row[0], space)
        line = name + " " * max(space - cell_len(name), 0)
        for place, (cell, size) in enumerate(zip(row[1:], others, strict=False), 1):
            fill = " " * (size - cell_len(cell))
            line += f"  {cell}{fill}" if place in table.words else f"  {fill}{cell}"
        yield Text(line, style="dim" if number == 0 else "")
    if table.note:
        yield Text(table.note, style="dim")
