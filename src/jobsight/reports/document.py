"""A report as a document: titles, facts, bars and tables as texts, for paper and mail.

:func:`build_document` writes every figure once, with the same functions as the terminal. PDF and
mail only lay it out, so that all renderings have the same words. Texts are plain text; each
rendering escapes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from jobsight.findings.reported import FittedRequest, fits_text, help_address
from jobsight.reports.build import has_steps
from jobsight.reports.report import JobReport, StepRow, group_title, quality_text, tone_of
from jobsight.reports.terminal import gauges
from jobsight.text import readable_text
from jobsight.util.units import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_duration,
    format_energy,
    format_share,
    format_time,
)

#: Rows of a table; what is left out is one row more.
MAX_ROWS: Final = 25
#: Characters of a text that a user or program chose.
MAX_TEXT: Final = 200

_TONES: Final = {"green": "good", "cyan": "busy", "yellow": "warn", "red": "bad"}


class DocumentGauge(msgspec.Struct, frozen=True):
    """One bar: used of requested."""

    name: str
    share: float | None
    percent: str
    text: str
    verdict: str
    #: "good", "busy", "warn" or "bad".
    tone: str


class DocumentTable(msgspec.Struct, frozen=True):
    """A table: the first column is a name, the others are figures, or words on the left."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    #: The other columns of words.
    words: list[int] = []


class DocumentFinding(msgspec.Struct, frozen=True):
    """One finding as it is shown."""

    kind: str
    severity: str
    title: str
    text: str
    change: str
    cost: str
    #: The address of the page that explains it; empty if it is not known.
    help: str = ""


class DocumentSection(msgspec.Struct, frozen=True):
    """Sentences under a title, each with what it is about; empty where that is as before."""

    title: str
    items: list[tuple[str, str]]


class CoverageRow(msgspec.Struct, frozen=True):
    """How a group of figures was measured."""

    group: str
    quality: str
    note: str


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A report of any subject, ready to be laid out."""

    title: str
    subtitle: str
    state: str
    tone: str
    facts: list[tuple[str, str]]
    findings: list[DocumentFinding]
    #: Shown in place of findings: why there are none.
    no_findings: str
    gauges: list[DocumentGauge]
    figures: list[tuple[str, str]]
    tables: list[DocumentTable]
    coverage: list[CoverageRow]
    notes: list[str]
    #: After the findings: what would have fitted, and what became better.
    sections: list[DocumentSection] = msgspec.field(default_factory=list)
    made: str = ""


def shown(text: str | None) -> str:
    """A text that a user chose: printable, on one line, of bounded length."""
    if not text:
        return UNKNOWN
    line = " ".join(readable_text(text[: 4 * MAX_TEXT]).split())
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 3]}..."


def shown_text(text: str) -> str:
    """A sentence with names that users chose: printable, of bounded length."""
    line = " ".join(readable_text(text[: 16 * MAX_TEXT]).split())
    return line if len(line) <= 8 * MAX_TEXT else f"{line[: 8 * MAX_TEXT - 3]}..."


def build_document(report: JobReport, *, now: int | None = None) -> Document:
    """The document of one run."""
    return Document(
        title=f"Job {report.display_id}",
        subtitle=shown(report.name),
        state=shown(report.state_text or report.state),
        tone=tone_of(report.state),
        facts=_facts(report),
        findings=[
            DocumentFinding(
                kind=each.kind,
                severity=each.severity,
                title=shown(each.title),
                text=shown_text(each.text),
                change=shown_text(each.change) if each.change else "",
                cost=each.cost_text,
                help=help_address(each),
            )
            for each in report.findings
            if each.holds
        ],
        no_findings="",
        gauges=[
            DocumentGauge(
                name=gauge.name,
                share=None if gauge.share is None else min(max(gauge.share, 0.0), 1.0),
                percent=format_share(gauge.share),
                text=shown(gauge.text),
                verdict=gauge.verdict,
                tone=_TONES[gauge.style],
            )
            for gauge in ([] if report.pending else gauges(report))
        ],
        figures=[] if report.pending else _figures(report),
        tables=_tables(report),
        coverage=_coverage(report),
        notes=[shown(note) for note in report.coverage_notes[len(report.coverage) :]],
        sections=_sections(report),
        made=format_time(now) if now is not None else "",
    )


def _sections(report: JobReport) -> list[DocumentSection]:
    better = [(each.kind, each.text) for each in report.improvements]
    listed = [
        ("What would have fitted", fitted_items("", report.fitted)),
        ("What improved after advice", [(shown(kind), shown_text(text)) for kind, text in better]),
    ]
    return [DocumentSection(title, items) for title, items in listed if items]


def fitted_items(name: str, fitted: Sequence[FittedRequest]) -> list[tuple[str, str]]:
    """The options that differ from the request of a work; one line if all of them fit."""
    if not fitted:
        return []
    others = [each for each in fitted if not each.fits]
    if not others:
        return [(name, fits_text(fitted))]
    names = [name, *[""] * (len(others) - 1)]
    return list(zip(names, (shown_text(each.text) for each in others), strict=True))


def _facts(report: JobReport) -> list[tuple[str, str]]:
    nodes = report.nodes
    listed = ", ".join(shown(node) for node in nodes[:4]) + (", ..." if len(nodes) > 4 else "")
    facts = [
        ("User", shown(report.user)),
        ("Account", shown(report.account)),
        ("Cluster", shown(report.cluster)),
        ("Partition", shown(report.partition)),
        ("Nodes", f"{format_count(len(nodes))}: {listed}" if nodes else UNKNOWN),
        ("CPUs", format_count(report.cpu.requested_cpus)),
        ("Memory", format_bytes(report.memory.requested_bytes)),
        ("GPUs", format_count(report.gpu.count) if report.gpu is not None else "none"),
        ("Submitted", format_time(report.submit)),
        ("Started", format_time(report.start)),
        ("Ended", "still running" if report.running else format_time(report.end)),
        ("Elapsed", format_duration(report.time.elapsed)),
        ("Time limit", format_duration(report.time.requested)),
        ("Run", shown(report.run)),
    ]
    if report.command:
        facts.append(("Command", shown(report.command)))
    return facts


def _figures(report: JobReport) -> list[tuple[str, str]]:
    cpu, memory, io_use = report.cpu, report.memory, report.io
    figures = [
        ("CPU time", format_duration(cpu.time)),
        ("user and system", f"{format_duration(cpu.user)}, {format_duration(cpu.system)}"),
        ("Memory used", format_bytes(memory.used_peak_bytes)),
        ("with page cache", format_bytes(memory.kernel_peak_bytes)),
        ("Read by calls", format_bytes(io_use.syscall_read_bytes)),
        ("Read from storage", format_bytes(io_use.storage_read_bytes)),
        ("Written by calls", format_bytes(io_use.syscall_written_bytes)),
        ("Written to storage", format_bytes(io_use.storage_written_bytes)),
    ]
    if cpu.overhead:
        figures.append(("by slurmstepd", format_duration(cpu.overhead)))
    if memory.swap_peak_bytes:
        figures.append(("In swap", format_bytes(memory.swap_peak_bytes)))
    if memory.oom_kills:
        figures.append(("Killed for memory", format_count(memory.oom_kills)))
    if report.gpu is not None:
        figures += [
            ("GPU time held", format_duration(report.gpu.held)),
            ("GPU time used", format_duration(report.gpu.used)),
            ("GPU energy", format_energy(report.gpu.energy_joules)),
        ]
    facts = report.scheduler
    if facts is not None and (facts.cpu_time is not None or facts.memory_peak_bytes is not None):
        figures += [
            ("CPU time by Slurm", format_duration(facts.cpu_time)),
            ("MaxRSS by Slurm", format_bytes(facts.memory_peak_bytes)),
        ]
    if report.cost_text:
        figures.append(("Held", report.cost_text))
    if report.samples is not None:
        figures.append(("Samples", format_count(report.samples)))
    return figures


def _tables(report: JobReport) -> list[DocumentTable]:
    tables = []
    if report.executables:
        tables.append(_programs(report))
    if report.software:
        tables.append(_software(report))
    if report.gpus:
        tables.append(_gpus(report))
    if has_steps(report.steps):
        tables.append(_steps(report.steps))
    if len(report.node_rows) > 1:
        tables.append(_nodes(report))
    return tables


def _more(left_out: int) -> str:
    return f"{format_count(left_out)} more are not shown." if left_out > 0 else ""


def _programs(report: JobReport) -> DocumentTable:
    rows = report.executables
    on_gpus = any(row.gpu_time for row in rows)
    kept = [row for row in rows if row.kind != "remainder"][:MAX_ROWS]
    kept += [row for row in rows if row.kind == "remainder"]
    table = []
    for row in kept:
        mark = "~" if row.cpu_estimated * 100 > row.cpu_time else ""
        suffix = " (path unknown)" if row.kind == "path unknown" else ""
        table.append(
            [
                f"{shown_path(row.path)}{' (own namespace)' if row.own_namespace else suffix}",
                format_count(row.executions),
                format_count(row.failures),
                f"{mark}{format_duration(row.cpu_time)}",
                format_share(row.cpu_share),
                *([format_duration(row.gpu_time)] if on_gpus else []),
                format_bytes(row.peak_memory_bytes),
            ]
        )
    gpu_column = ["GPU time"] if on_gpus else []
    return DocumentTable(
        title="Programs",
        columns=["Program", "Runs", "Failed", "CPU time", "Share", *gpu_column, "Peak memory"],
        rows=table,
        note=_more(len(rows) - len(kept)),
    )


def _software(report: JobReport) -> DocumentTable:
    on_gpus = any(row.gpu_time for row in report.software)
    return DocumentTable(
        title="Software",
        columns=["Software", "Runs", "CPU time", "Share", *(["GPU time"] if on_gpus else [])],
        rows=[
            [
                shown(row.title),
                format_count(row.executions),
                format_duration(row.cpu_time),
                format_share(row.cpu_share),
                *([format_duration(row.gpu_time)] if on_gpus else []),
            ]
            for row in report.software
        ],
    )


def shown_path(path: str) -> str:
    """A path with its file name visible."""
    text = readable_text(path[-4 * MAX_TEXT :])
    return text if len(text) <= MAX_TEXT else f"...{text[3 - MAX_TEXT :]}"


def _gpus(report: JobReport) -> DocumentTable:
    rows = sorted(report.gpus, key=lambda row: row.used is not False)
    return DocumentTable(
        title="GPUs",
        columns=["GPU", "Used", "Utilization", "Multiprocessors", "Memory", "Energy"],
        rows=[
            [
                f"{shown(row.node)} {shown(row.gpu)}  {shown(row.model)}",
                "never" if row.used is False else format_share(row.used_share),
                format_share(row.utilization_share),
                format_share(row.multiprocessor_share),
                f"{format_bytes(row.memory_peak_bytes)} of {format_bytes(row.memory_total_bytes)}",
                format_energy(row.energy_joules),
            ]
            for row in rows[:MAX_ROWS]
        ],
        note=_more(len(rows) - MAX_ROWS),
    )


def _steps(steps: list[StepRow]) -> DocumentTable:
    return DocumentTable(
        title="Steps",
        columns=["Step", "Nodes", "Tasks", "CPU time", "Peak memory", "Elapsed"],
        rows=[
            [
                shown(row.step),
                format_count(row.nodes),
                format_count(row.tasks),
                format_duration(row.cpu_time),
                format_bytes(row.memory_kernel_peak_bytes),
                format_duration(row.elapsed),
            ]
            for row in steps[:MAX_ROWS]
        ],
        note=_more(len(steps) - MAX_ROWS),
    )


def _nodes(report: JobReport) -> DocumentTable:
    rows = report.node_rows
    return DocumentTable(
        title="Nodes",
        columns=["Node", "CPU time", "Memory used", "Read", "Written"],
        rows=[
            [
                shown(row.node),
                format_duration(row.cpu_time),
                format_bytes(row.memory_used_peak_bytes),
                format_bytes(row.syscall_read_bytes),
                format_bytes(row.syscall_written_bytes),
            ]
            for row in rows[:MAX_ROWS]
        ],
        note=_more(len(rows) - MAX_ROWS),
    )


def _coverage(report: JobReport) -> list[CoverageRow]:
    return [
        CoverageRow(
            group=group_title(group), quality=quality_text(coverage.quality), note=shown(note)
        )
        for (group, coverage), note in zip(
            report.coverage.items(), report.coverage_notes, strict=False
        )
    ]
