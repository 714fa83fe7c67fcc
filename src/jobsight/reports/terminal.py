"""The report of a run as text: on a terminal, in a pipe, and as an SVG picture.

:func:`print_report` is the entry point; :func:`render_report` lists the blocks of the report in
their order. The functions at the end cut text to terminal cells and draw values as characters.

Text that a user can write (names, paths, commands) passes through :func:`readable_text` into
``Text`` objects and never through rich's markup, so brackets and control characters have no effect.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from jobsight.findings.reported import ReportedFinding, fits_text, help_address
from jobsight.reports.build import has_steps, total
from jobsight.reports.gpu import MANY, conspicuous_first, gpu_groups, gpu_remark, gpu_tone
from jobsight.reports.report import (
    ExecutableRow,
    GpuTotals,
    JobReport,
    SchedulerFacts,
    StepRow,
    tone_of,
)
from jobsight.store.read.memory import is_out_of_memory
from jobsight.text import readable_text
from jobsight.util.units import (
    UNKNOWN,
    format_bytes,
    format_cores,
    format_count,
    format_duration,
    format_energy,
    format_share,
    format_time,
)

#: Wider lines are harder to read.
MAX_WIDTH = 100
#: In a narrower window rich wraps the lines.
MIN_WIDTH = 64
_BAR_WIDTH = 24
_MAX_ROWS = 12
_MAX_NODES = 16
_GPU_BAR = 12
_MAX_REMARKS = 4
#: Findings of a report without --all, and cells of a line that are enough for a cut sentence.
_MAX_FINDINGS = 5
_LEAST_SENTENCE = 20
#: Names of software without --all.
_MAX_SOFTWARE = 3
#: Lines of what to change without --all.
_CHANGE_LINES = 3
SEVERITY_STYLES = {"critical": "red", "warning": "yellow", "info": "cyan"}
SEVERITY_MARKS = {"critical": "!", "warning": "*", "info": "-"}
_GPU_STYLES = {"bad": "red", "warn": "yellow"}

TONE_STYLES = {"good": "green", "busy": "cyan", "idle": "cyan", "warn": "yellow", "bad": "red"}
_MARKS = {"exact": "=", "estimate": "~", "failed": "!", "missing": "-"}
_MARK_STYLES = {"exact": "green", "estimate": "yellow", "failed": "yellow", "missing": "yellow"}


def print_report(
    report: JobReport, console: Console | None = None, *, all_rows: bool = False
) -> None:
    """Print a report; colours and block characters only where the console is a terminal."""
    console = console or Console(highlight=False)
    rendered = render_report(report, console, all_rows=all_rows)
    # The address of a help page may be longer than the line, and must not be cropped.
    if console.is_terminal:
        console.print(rendered, highlight=False, crop=False)
        return
    # Remove the spaces that fill the lines of a table.
    with console.capture() as captured:
        console.print(rendered, highlight=False, crop=False)
    for line in captured.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def render_report(report: JobReport, console: Console, *, all_rows: bool = False) -> RenderableType:
    """Lay out a report for the width and characters of a console."""
    width = max(min(console.width, MAX_WIDTH), MIN_WIDTH)
    blocks = console.is_terminal and not console.options.ascii_only
    parts: list[RenderableType] = [_title(report, width), Text(("─" if blocks else "-") * width)]
    parts.append(_facts(report, width))
    if report.findings:
        parts += [Text(), *_findings(report, width, all_rows)]
    # A pending job has nothing to measure.
    if not report.pending:
        parts += [Text(), *(_bar_line(gauge, width, blocks) for gauge in gauges(report))]
        parts += [Text(), *_figures(report, width), *_cost_and_advice(report, width, all_rows)]
    if report.scheduler is not None:
        parts += _scheduler_lines(report, report.scheduler, width)
    if report.gpu is not None and not report.pending:
        parts += [Text(), *_gpus(report, report.gpu, width, blocks, all_rows)]
    if report.executables:
        parts += [Text(), _executables(report, width, all_rows)]
    if report.software and all_rows:
        parts += [Text(), _software(report, width)]
    if has_steps(report.steps):
        parts += [Text(), _steps(report, width, all_rows)]
    elif report.scheduler is not None and report.scheduler.steps:
        parts += [Text(), _scheduler_steps(report.scheduler, width, all_rows)]
    if len(report.node_rows) > 1:
        parts += [Text(), _nodes(report, width, all_rows)]
    if report.coverage_notes:
        parts += [Text(), _coverage(report, width)]
    return Group(*parts)


def report_text(report: JobReport, width: int = 80, *, all_rows: bool = False) -> str:
    """The report as plain text, as in a pipe."""
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, force_terminal=False)
    print_report(report, console, all_rows=all_rows)
    return file.getvalue()


def report_svg(report: JobReport, title: str = "jobsight report", width: int = 88) -> str:
    """The report as an SVG picture without external resources."""
    console = Console(
        file=io.StringIO(), width=width, record=True, force_terminal=True, color_system="truecolor"
    )
    print_report(report, console)
    svg = console.export_svg(title=title, unique_id="jobsight")
    # rich links fonts of a CDN; use the viewer's own fixed-width font.
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code", "ui-monospace")


def _title(report: JobReport, width: int) -> RenderableType:
    state = report.state_text or report.state
    right = Text(readable_text(state), style=f"bold {TONE_STYLES[tone_of(report.state)]}")
    left = Text(f"Job {report.display_id}", style="bold")
    if report.display_id != str(report.job_id):
        left.append(f" ({report.job_id})", style="not bold dim")
    if report.name:
        # A long state gets a line of its own, so that the name has enough space.
        space = width - left.cell_len - right.cell_len - 4
        alone = space < 16
        left.append("  ")
        left.append(
            fit(readable_text(report.name), width - left.cell_len if alone else space),
            style="bold cyan",
        )
        if alone:
            return Group(left, right)
    return Text.assemble(left, " " * max(width - left.cell_len - right.cell_len, 2), right)


def _facts(report: JobReport, width: int) -> RenderableType:
    left = [("User", _joined(report.user, report.account and f"account {report.account}"))]
    partition = report.partition and f"partition {report.partition}"
    left.append(("Cluster", _joined(report.cluster, partition)))
    left.append(("Nodes" if len(report.nodes) > 1 else "Node", _node_list(report.nodes)))
    right = [
        ("Started", format_time(report.start, None)),
        ("Ended", "still running" if report.running else format_time(report.end, None)),
        ("Elapsed", format_duration(report.time.elapsed)),
    ]
    if report.pending:
        right[:2] = [
            ("Submitted", format_time(report.submit, None)),
            ("Limit", format_duration(report.time.requested)),
        ]
    half = width - 39
    grid = _grid()
    for _ in range(4):
        grid.add_column(no_wrap=True)
    for (name, value), (other, moment) in zip(left, right, strict=True):
        grid.add_row(
            Text(f"{name:<8}", style="dim"),
            Text(set_cell_size(fit(value, half - 9), half - 9)),
            Text(f"{other:<8}", style="dim"),
            Text(moment),
        )
    if not report.command:
        return grid
    command = fit(readable_text(report.command), width - 9)
    return Group(grid, Text.assemble((f"{'Command':<9}", "dim"), command))


def _joined(*words: str | None) -> str:
    return readable_text(", ".join(word for word in words if word)) or UNKNOWN


def _node_list(nodes: list[str]) -> str:
    if not nodes:
        return UNKNOWN
    shown = ", ".join(readable_text(node) for node in nodes[:2])
    return shown if len(nodes) <= 2 else f"{len(nodes)}: {shown}, ..."


def _findings(report: JobReport, width: int, all_rows: bool) -> Iterator[Text]:
    """What it is and what it cost, and the line to change with the figures if they fit next to it;
    a long change takes more lines, without them."""
    findings = report.findings
    shown = findings if all_rows else findings[:_MAX_FINDINGS]
    for finding in shown:
        replied = finding.state != "open"
        style = "dim" if replied else SEVERITY_STYLES[finding.severity]
        title = readable_text(finding.title) + (f" ({finding.state})" if replied else "")
        mark = SEVERITY_MARKS[finding.severity]
        yield finding_title(mark, title, finding.cost_text or "", width, style)
        yield from _finding_lines(finding, width, all_rows)
    if len(shown) < len(findings):
        more = len(findings) - len(shown)
        yield Text(f"  {more} more finding{'s' * (more > 1)} (--all shows them)", style="dim")
    yield from help_lines([(each.kind, help_address(each)) for each in shown], width)


def help_lines(kinds: Iterable[tuple[str, str]], width: int) -> Iterator[Text]:
    """Where kinds of findings are explained: their addresses, else the command that does it."""
    known = dict(kinds)
    for address in filter(None, known.values()):
        # Not cut: it is there to be opened.
        yield Text(f"  Help: {address}", style="dim", no_wrap=True, overflow="ignore")
    names = [readable_text(kind) for kind, address in known.items() if not address]
    if names:
        command = " ".join(["jobsight findings help", *names])
        lines = textwrap.wrap(
            f"Help: {command}", width - 2, break_on_hyphens=False, subsequent_indent="  "
        )
        yield from (Text(f"  {line}", style="dim") for line in lines)


def finding_title(mark: str, title: str, cost: str, width: int, style: str) -> Text:
    """The title of a finding with what it cost at the end of the line, or below it if both do not
    fit: neither is cut."""
    lines = textwrap.wrap(title, width - 2) or [""]
    last = lines[-1]
    if cost and cell_len(last) + 2 + cell_len(cost) > width - 2:
        lines.append("")
        last = ""
    text = Text.assemble((f"{mark} ", style), ("\n  ".join(lines), f"bold {style}"))
    if cost:
        text.append(" " * max(width - 2 - cell_len(last) - cell_len(cost), 0))
        text.append(cost, style)
    return text


def _finding_lines(finding: ReportedFinding, width: int, all_rows: bool) -> Iterator[Text]:
    change, text = readable_text(finding.change), readable_text(finding.text)
    if all_rows:
        if change:
            yield Text.assemble("  ", (change, "bold"))
        yield from (Text(f"  {line}") for line in textwrap.wrap(text, width - 2))
        return
    lines = textwrap.wrap(change, width - 2) or [""]
    for part in lines[: _CHANGE_LINES - 1][: len(lines) - 1]:
        yield Text.assemble("  ", (fit(part, width - 2), "bold"))
    last = " ".join(lines[min(_CHANGE_LINES, len(lines)) - 1 :])
    line = Text.assemble("  ", (fit(last, width - 2), "bold"), "  " if change else "")
    space = width - line.cell_len if len(lines) == 1 else 0
    # A few words of a sentence help nobody.
    if space >= _LEAST_SENTENCE or 0 < cell_len(text) <= space:
        line.append(fit(text, space))
    line.rstrip()
    yield line


def _bar_line(gauge: Gauge, width: int, blocks: bool) -> Text:
    line = Text.assemble((f"{gauge.name:<9}", "bold"))
    if gauge.share is not None:
        filled = round(min(max(gauge.share, 0.0), 1.0) * _BAR_WIDTH)
        if not filled and gauge.share > 0:
            filled = 1
        line.append(("█" if blocks else "#") * filled, style=gauge.style)
        line.append(("░" if blocks else ".") * (_BAR_WIDTH - filled), style="dim")
        line.append(f" {format_share(gauge.share):>8}  ", style=gauge.style)
    line.append(fit(gauge.text, width - line.cell_len))
    if gauge.verdict:
        line.append(fit(f"  {gauge.verdict}", width - line.cell_len), style=gauge.style)
    return line


def _figures(report: JobReport, width: int) -> Iterator[Text]:
    cpu, memory, io_use = report.cpu, report.memory, report.io
    parts = [f"{format_duration(cpu.time)}"]
    if cpu.user is not None and cpu.system is not None:
        parts.append(f"user {format_duration(cpu.user)}, system {format_duration(cpu.system)}")
    yield _line("CPU time", "; ".join(parts), width)
    if cpu.overhead_text:
        yield Text.assemble(" " * 9, (fit(cpu.overhead_text, width - 9), "dim"))
    peaks = []
    if memory.used_peak_bytes is not None:
        peaks.append(f"{format_bytes(memory.used_peak_bytes)} used at the peak")
    if memory.kernel_peak_bytes is not None:
        peaks.append(f"{format_bytes(memory.kernel_peak_bytes)} with page cache")
    if memory.swap_peak_bytes:
        peaks.append(f"{format_bytes(memory.swap_peak_bytes)} in swap")
    if memory.oom_kills:
        peaks.append(f"{format_count(memory.oom_kills)} killed")
    yield _line("Memory", ", ".join(peaks) or "not measured", width)
    yield _line(
        "Read", _traffic(io_use.syscall_read_bytes, io_use.storage_read_bytes, "from"), width
    )
    yield _line(
        "Written", _traffic(io_use.syscall_written_bytes, io_use.storage_written_bytes, "to"), width
    )


def _cost_and_advice(report: JobReport, width: int, all_rows: bool) -> Iterator[Text]:
    """What was held, the software, what would have fitted and what improved; in full on request."""
    if report.cost_text:
        yield _line("Held", report.cost_text, width)
    if all_rows and report.samples is not None:
        yield _line("Samples", format_count(report.samples), width)
    if report.software and not all_rows:
        named = [row for row in report.software if row.software][:_MAX_SOFTWARE]
        texts = (f"{readable_text(row.title)} {format_share(row.cpu_share)}" for row in named)
        yield Text.assemble((f"{'Software':<9}", "dim"), fit(", ".join(texts), width - 9))
    for item in _advice_items(report, all_rows):
        yield _line(item[0], readable_text(item[1]), width)


def _advice_items(report: JobReport, all_rows: bool) -> Iterator[tuple[str, str]]:
    others = [each for each in report.fitted if not each.fits]
    if others and not all_rows:
        yield "Fits", f"{' '.join(each.option for each in others)} (jobsight fit tells why)"
    elif others:
        yield from (("Fits" if not place else "", each.text) for place, each in enumerate(others))
    elif report.fitted and all_rows:
        yield "Fits", fits_text(report.fitted)
    better = report.improvements if all_rows else report.improvements[:1]
    for place, effect in enumerate(better):
        yield "" if place else "Improved", f"{effect.kind}: {effect.text}"


def _scheduler_lines(report: JobReport, facts: SchedulerFacts, width: int) -> Iterator[Text]:
    """What Slurm recorded: all there is of a job without an agent."""
    figures = []
    if facts.cpu_time is not None:
        figures.append(f"{format_duration(facts.cpu_time)} CPU time")
    if facts.cpu_user is not None and facts.cpu_system is not None:
        user, system = format_duration(facts.cpu_user), format_duration(facts.cpu_system)
        figures.append(f"user {user}, system {system}")
    if facts.memory_peak_bytes is not None:
        figures.append(f"{format_bytes(facts.memory_peak_bytes)} MaxRSS of a task")
    if figures:
        yield _line("Slurm", "; ".join(figures), width)
    if facts.reason:
        yield _line("Reason", readable_text(facts.reason), width)
    if facts.submit_line and facts.submit_line != report.command:
        line = fit(readable_text(facts.submit_line), width - 9)
        yield Text.assemble((f"{'Submit':<9}", "dim"), line)
    if facts.working_directory:
        path = fit_path(readable_text(facts.working_directory), width - 9)
        yield Text.assemble((f"{'WorkDir':<9}", "dim"), path)


def _scheduler_steps(facts: SchedulerFacts, width: int, all_rows: bool) -> Table:
    table = _Table("Step (Slurm)", "Tasks", "CPU time", "MaxRSS", "Elapsed")
    rows = facts.steps
    shown = rows if all_rows or len(rows) <= _MAX_ROWS + 1 else rows[:_MAX_ROWS]
    for row in shown:
        words = (row.step, row.name if row.name != row.step else None, (row.state or "").lower())
        table.add(
            partial(_node_name, readable_text(", ".join(word for word in words if word))),
            format_count(row.tasks),
            format_duration(row.cpu_time),
            format_bytes(row.memory_peak_bytes),
            format_duration(row.elapsed),
        )
    if len(shown) < len(rows):
        table.add(partial(_remark, f"{len(rows) - len(shown)} more (--all shows them)"))
    return table.render(width)


def _traffic(characters: int | None, stored: int | None, direction: str) -> str:
    parts = []
    if characters is not None:
        parts.append(f"{format_bytes(characters)} by calls")
    if stored is not None:
        parts.append(f"{format_bytes(stored)} {direction} storage")
    return ", ".join(parts) or "not measured"


def _line(name: str, text: str, width: int) -> Text:
    # Numbers are never truncated: what does not fit goes on the next line.
    first, *others = textwrap.wrap(text, width - 9) or [""]
    return Text.assemble((f"{name:<9}", "dim"), "\n".join([first, *(" " * 9 + o for o in others)]))


def _gpus(
    report: JobReport, totals: GpuTotals, width: int, blocks: bool, all_rows: bool
) -> Iterator[RenderableType]:
    """The GPUs, one line each; many of them by what they did, those that were never used first."""
    style = "bold red" if totals.unused_count else "bold"
    yield Text.assemble(("GPUs", "bold"), "     ", (fit(totals.text, width - 9), style))
    if all_rows and totals.held is not None:
        held, used = format_duration(totals.held), format_duration(totals.used)
        energy = format_energy(totals.energy_joules)
        yield _line("GPU time", f"{held} held, {used} used; energy {energy}", width)
    if report.gpus:
        yield _gpu_table(report, width, blocks, all_rows)
        remarks = [
            f"{row.node} GPU {row.gpu}: {text}" for row in report.gpus if (text := gpu_remark(row))
        ]
        shown = remarks if all_rows else remarks[:_MAX_REMARKS]
        for remark in shown:
            yield Text(fit(readable_text(remark), width), style="yellow")
        if len(shown) < len(remarks):
            yield Text(f"{len(remarks) - len(shown)} more remarks (--all shows them)", style="dim")
    for note in totals.notes:
        yield Text("\n".join(textwrap.wrap(readable_text(note), width)), style="dim")


def _gpu_table(report: JobReport, width: int, blocks: bool, all_rows: bool) -> Table:
    rows = report.gpus
    one_node = len({row.node for row in rows}) == 1
    if len(rows) <= MANY or all_rows:
        table = _Table("GPU", "Used", " " * _GPU_BAR, "Utilization", "Memory", "Energy")
        for row in conspicuous_first(rows):
            place = f"GPU {row.gpu}" if one_node else f"{row.node} {row.gpu}"
            table.add(
                partial(_node_name, readable_text(f"{place}  {row.model}".rstrip())),
                "never" if row.used is False else format_share(row.used_share),
                _gpu_bar(row.used_share, blocks),
                format_share(row.utilization_share),
                f"{format_bytes(row.memory_peak_bytes)} of {format_bytes(row.memory_total_bytes)}",
                format_energy(row.energy_joules),
                style=_GPU_STYLES.get(gpu_tone(row)),
            )
        return table.render(width)
    table = _Table("GPUs", "Used", " " * _GPU_BAR, "Memory", "Energy")
    for group in gpu_groups(rows):
        places = ", ".join(f"{row.node}:{row.gpu}" for row in group.rows[:3])
        more = ", ..." if len(group.rows) > 3 else ""
        table.add(
            partial(
                _node_name,
                readable_text(f"{len(group.rows)} {group.title}  {places}{more}"),
            ),
            format_share(group.used_share),
            _gpu_bar(group.used_share, blocks),
            format_bytes(group.memory_peak_bytes),
            format_energy(group.energy_joules),
            style=_GPU_STYLES.get(gpu_tone(group.rows[0])),
        )
    return table.render(width)


def _gpu_bar(share: float | None, blocks: bool) -> str:
    if share is None:
        return " " * _GPU_BAR
    filled = min(max(round(share * _GPU_BAR), int(share > 0)), _GPU_BAR)
    full, empty = ("█", "░") if blocks else ("#", ".")
    return full * filled + empty * (_GPU_BAR - filled)


def _executables(report: JobReport, width: int, all_rows: bool) -> Table:
    rows = report.executables
    named = [row for row in rows if row.kind != "remainder"]
    shown = named if all_rows or len(named) <= _MAX_ROWS + 1 else named[:_MAX_ROWS]
    on_gpus = any(row.gpu_time for row in rows)
    titles = ("GPU time",) if on_gpus else ()
    table = _Table("Executable", "Runs", "CPU time", "Share", *titles, "Peak memory")
    for row in shown:
        # Mark an estimate in its row as well as in the notes below.
        mark = "~" if row.cpu_estimated * 100 > row.cpu_time else ""
        table.add(
            partial(_executable_name, row),
            format_count(row.executions),
            f"{mark}{format_duration(row.cpu_time)}",
            format_share(row.cpu_share),
            *([format_duration(row.gpu_time)] if on_gpus else []),
            format_bytes(row.peak_memory_bytes),
        )
    rest = named[len(shown) :]
    if rest:
        table.add(
            partial(_remark, f"{sum(row.executables for row in rest)} more (--all shows them)"),
            format_count(sum(row.executions or 0 for row in rest)),
            format_duration(sum(row.cpu_time for row in rest)),
            format_share(sum(row.cpu_share or 0 for row in rest)),
            *([format_duration(total(row.gpu_time for row in rest))] if on_gpus else []),
            UNKNOWN,
        )
    for row in rows:
        if row.kind == "remainder":
            table.add(
                partial(_remark, row.path),
                UNKNOWN,
                format_duration(row.cpu_time),
                format_share(row.cpu_share),
                *([UNKNOWN] if on_gpus else []),
                UNKNOWN,
                style="yellow" if (row.cpu_share or 0) > 0.05 else "dim",
            )
    return table.render(width)


def _software(report: JobReport, width: int) -> Table:
    on_gpus = any(row.gpu_time for row in report.software)
    titles = ("GPU time",) if on_gpus else ()
    table = _Table("Software", "Runs", "CPU time", "Share", *titles)
    for row in report.software:
        table.add(
            partial(_node_name, readable_text(row.title)),
            format_count(row.executions),
            format_duration(row.cpu_time),
            format_share(row.cpu_share),
            *([format_duration(row.gpu_time)] if on_gpus else []),
        )
    return table.render(width)


def _executable_name(row: ExecutableRow, space: int) -> Text:
    suffix = " (path unknown)" if row.kind == "path unknown" else ""
    if row.own_namespace:
        suffix = " (own namespace)"
    if row.kind == "others":
        return _remark(row.path, space)
    path = Text(fit_path(row.path, space - len(suffix)))
    path.append(suffix, style="dim")
    return path


def _remark(text: str, space: int) -> Text:
    return Text(fit(text, space), style="italic")


def _steps(report: JobReport, width: int, all_rows: bool) -> Table:
    rows = report.steps
    on_gpus = any(row.gpu_time is not None for row in rows)
    titles = ("GPU time",) if on_gpus else ()
    table = _Table("Step", "Nodes", "Tasks", "CPU time", *titles, "Peak memory", "Elapsed")
    shown = rows if all_rows or len(rows) <= _MAX_ROWS + 1 else rows[:_MAX_ROWS]
    for row in shown:
        table.add(
            partial(_step_name, row),
            format_count(row.nodes),
            format_count(row.tasks),
            format_duration(row.cpu_time),
            *([format_duration(row.gpu_time)] if on_gpus else []),
            format_bytes(row.memory_kernel_peak_bytes),
            format_duration(row.elapsed),
        )
    rest = rows[len(shown) :]
    if rest:
        table.add(
            partial(_remark, f"{len(rest)} more (--all)"),
            UNKNOWN,
            format_count(total(row.tasks for row in rest)),
            format_duration(total(row.cpu_time for row in rest)),
            *([format_duration(total(row.gpu_time for row in rest))] if on_gpus else []),
        )
    return table.render(width)


def _step_name(row: StepRow, space: int) -> Text:
    remarks = [] if row.ended else ["not ended"]
    if row.oom_kills:
        remarks.append(f"{format_count(row.oom_kills)} killed for memory")
    name = Text(fit(readable_text(row.step) or UNKNOWN, space))
    if remarks:
        text = fit(f" ({', '.join(remarks)})", space - name.cell_len)
        name.append(text, style="red" if row.oom_kills else "dim")
    return name


def _nodes(report: JobReport, width: int, all_rows: bool) -> Table:
    table = _Table("Node", "CPU time", "Peak memory", "Read", "Written")
    rows = report.node_rows
    shown = rows if all_rows or len(rows) <= _MAX_NODES + 1 else rows[:_MAX_NODES]
    for row in shown:
        table.add(
            partial(_node_name, readable_text(row.node)),
            format_duration(row.cpu_time),
            format_bytes(row.memory_used_peak_bytes),
            format_bytes(row.syscall_read_bytes),
            format_bytes(row.syscall_written_bytes),
        )
    if len(shown) < len(rows):
        table.add(partial(_remark, f"{len(rows) - len(shown)} more (--all shows them)"))
    return table.render(width)


def _node_name(name: str, space: int) -> Text:
    return Text(fit(name, space))


def _coverage(report: JobReport, width: int) -> RenderableType:
    grid = _grid()
    grid.add_column(width=1)
    grid.add_column(width=width - 2)
    # The first notes are those of the groups in the order of the coverage; warnings follow.
    qualities = [report.coverage[group].quality for group in report.coverage]
    for number, note in enumerate(report.coverage_notes):
        quality = qualities[number] if number < len(qualities) else "estimate"
        mark = Text(_MARKS[quality] if qualities else "", style=_MARK_STYLES[quality])
        grid.add_row(mark, Text(readable_text(note)))
    title = Text("Coverage", style="bold")
    if not qualities:
        title = Text("Why it waits" if report.pending else "Coverage", style="bold")
        return Group(title, grid)
    legend = Text("   = exact  ~ estimate  - not measured  ! not readable", style="dim")
    return Group(Text.assemble(title, legend), grid)


def _grid() -> Table:
    return Table.grid(padding=(0, 1))


class _Table:
    """Names at the left and numbers at the right of them. The names get the space that the numbers
    leave. Numbers are never truncated: if the names have too little space, the last column of
    numbers is left out."""

    _MIN_NAME = 16

    def __init__(self, *titles: str) -> None:
        self._titles = titles
        self._rows: list[tuple[Callable[[int], Text], tuple[str, ...], str | None]] = []

    def add(self, name: Callable[[int], Text], *numbers: str, style: str | None = None) -> None:
        """Add a row; ``name`` makes the text of a number of terminal cells."""
        self._rows.append((name, numbers, style))

    def render(self, width: int) -> Table:
        widths = [
            max(cell_len(title), *(cell_len(n[i]) for _, n, _ in self._rows if i < len(n)), 0)
            for i, title in enumerate(self._titles[1:])
        ]
        while len(widths) > 1 and self._space(widths, width) < self._MIN_NAME:
            widths.pop()
        space = self._space(widths, width)
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
        table.add_column(self._titles[0], no_wrap=True, overflow="crop", width=space)
        for title, size in zip(self._titles[1:], widths, strict=False):
            table.add_column(title, justify="right", width=size, no_wrap=True)
        for name, numbers, style in self._rows:
            table.add_row(name(space), *numbers[: len(widths)], style=style)
        return table

    @staticmethod
    def _space(widths: Sequence[int], width: int) -> int:
        return width - sum(size + 2 for size in widths)


_CPU_LOW = 0.5
_GPU_LOW = 0.2
_MEMORY_NEAR = 0.9
_MEMORY_FULL = 0.98


class Gauge(NamedTuple):
    """One bar; no share if nothing was requested."""

    name: str
    share: float | None
    text: str
    #: The meaning of the colour as text.
    verdict: str
    style: str


def gauges(report: JobReport) -> list[Gauge]:
    """The bars of a report; time only if there is a limit."""
    bars = [_cpu(report), _memory(report)]
    if report.gpu is not None:
        bars.append(_gpu(report.gpu))
    if report.time.requested:
        elapsed = format_duration(report.time.elapsed)
        ended = report.state.upper() == "TIMEOUT"
        bars.append(
            Gauge(
                "Time",
                report.time.share,
                f"{elapsed} of {format_duration(report.time.requested)}",
                "limit reached" if ended else "",
                "red" if ended else "cyan",
            )
        )
    return bars


def _cpu(report: JobReport) -> Gauge:
    cpu = report.cpu
    if cpu.mean_cores is None:
        return Gauge("CPU", None, "unknown", "", "yellow")
    busy = format_cores(cpu.mean_cores)
    if not cpu.requested_cpus or cpu.share is None:
        return Gauge("CPU", None, f"{busy} CPUs busy on average; none requested", "", "green")
    noun = "CPU" if cpu.requested_cpus == 1 else "CPUs"
    text = f"{busy} of {format_count(cpu.requested_cpus)} {noun} busy"
    if cpu.share > 1.05:
        return Gauge("CPU", cpu.share, text, "more than requested", "yellow")
    if cpu.share < _CPU_LOW:
        return Gauge("CPU", cpu.share, text, "low", "yellow")
    return Gauge("CPU", cpu.share, text, "", "green")


def _gpu(totals: GpuTotals) -> Gauge:
    if totals.used_share is None:
        return Gauge("GPU", None, totals.text, "", "yellow")
    measure = {"multiprocessors": "multiprocessors busy", "utilization": "utilization"}
    noun = "GPU" if totals.count == 1 else "GPUs"
    text = f"of {format_count(totals.count)} {noun}, {measure.get(totals.measure or '', 'used')}"
    if totals.unused_count:
        verdict = f"{totals.unused_count} of {totals.count} never used"
        return Gauge("GPU", totals.used_share, text, verdict, "red")
    low = totals.used_share < _GPU_LOW
    return Gauge("GPU", totals.used_share, text, "low" if low else "", "yellow" if low else "green")


def _memory(report: JobReport) -> Gauge:
    memory = report.memory
    used = (
        memory.used_peak_bytes if memory.used_peak_bytes is not None else memory.kernel_peak_bytes
    )
    if used is None:
        return Gauge("Memory", None, "unknown", "", "yellow")
    verdict, style = "", "green"
    if memory.share is not None and memory.share >= _MEMORY_NEAR:
        verdict, style = "near the limit", "red" if memory.share >= _MEMORY_FULL else "yellow"
    if memory.oom_kills or is_out_of_memory(report.state):
        verdict, style = "out of memory", "red"
    if not memory.requested_bytes:
        return Gauge("Memory", None, f"{format_bytes(used)} at the peak; no limit", verdict, style)
    text = f"{format_bytes(used)} of {format_bytes(memory.requested_bytes)}"
    return Gauge("Memory", memory.share, text, verdict, style)


_GAP = "..."


def fit(text: str, width: int) -> str:
    """Truncate text at its end to a number of terminal cells."""
    if cell_len(text) <= width:
        return text
    if width <= len(_GAP):
        return _head(text, max(width, 0))
    return _head(text, width - len(_GAP)) + _GAP


def fit_path(path: str, width: int) -> str:
    """Truncate a path in its middle, so that the file name stays visible."""
    if cell_len(path) <= width:
        return path
    if width <= len(_GAP) + 2:
        return fit(path, width)
    space = width - len(_GAP)
    name = path[path.rfind("/") :]
    # The complete name if it fits; otherwise both ends of the path share the space.
    tail = min(max(cell_len(name), space * 2 // 3), space - 1)
    tail = tail if tail < space else space // 2
    end = _tail(path, tail)
    return _head(path, space - cell_len(end)) + _GAP + end


def _head(text: str, width: int) -> str:
    # A wide character on the edge becomes a space, which keeps columns aligned.
    return set_cell_size(text, width)


def _tail(text: str, width: int) -> str:
    end = len(text)
    start = end
    used = 0
    while start > 0:
        size = cell_len(text[start - 1])
        if used + size > width:
            break
        used += size
        start -= 1
    return text[start:end]


_LEVELS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def spark_line(values: Sequence[float], maximum: float | None = None) -> str:
    """One character per value, its height relative to the maximum; a space for 0."""
    highest = max(values, default=0) if maximum is None else maximum
    if highest <= 0:
        return " " * len(values)
    last = len(_LEVELS) - 1
    return "".join(
        _LEVELS[min(int(value / highest * last + 0.5), last)] if value > 0 else " "
        for value in values
    )


def bar(share: float, width: int) -> str:
    """A bar in eighths of characters; any share above 0 is visible."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)
