"""Whether all renderings of a report have its figures and words: each value of its JSON as text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

from jobsight.findings.finding import Cost
from jobsight.findings.reported import Amount, format_cost
from jobsight.reports.report import describe_state
from jobsight.text import readable_text
from jobsight.util.units import (
    format_bytes,
    format_cores,
    format_count,
    format_duration,
    format_energy,
    format_hours,
    format_share,
    format_time,
)
from tests.reports.pdf_text import squeezed

#: A value and where it is in the JSON: ``cpu.user_seconds``, ``executables.path``.
Leaf = tuple[str, Any]

#: Values that only JSON and pages have: ids, details of details, and codes that other values say as
#: a sentence.
NOT_WRITTEN: Final = re.compile(
    r"job_id|kind|source|state|exit_(code|signal)|as_of|running|chain_job_id|subject"
    r"|cpu\.source|io\.(read|write)_calls|coverage\..*|scheduler\.steps\..*"
    r"|scheduler\.(expected_start|working_directory|submit_line)"
    r"|executables\.(kind|own_namespace|processes|executables|gpu_.*"
    r"|(cpu_user|cpu_system|cpu_estimated)_seconds|storage_(read|written)_bytes)"
    r"|node_rows\.(final|clock_skew_seconds|memory_kernel_peak_bytes)"
    r"|steps\.(overhead_seconds|ended|oom_kills|first_seen)"
    r"|findings\.(kind|severity|audience|state|runs|run|user|display_id|first|last|explains)"
    r"|findings\.(cost|evidence|figures|prices)\..*|(cost|prices|fitted)\..*"
    r"|software\.(user_provided|version|gpu_seconds|jobs|core_hours)|improvements\.(?!kind|text).*"
    r"|programs\.(kind|own_namespace|executions|gpu_hours)"
    r"|gpu\.(coverage|measure|text|notes).*|gpus\..*|(properties|links).*"
    # Of several runs. Points are drawn.
    r"|points\..*|trend\..*|usage\..*|unreported|runs|measured\.(ended|runs)"
    r"|scripts\.(key|user|runs|failed|core_hours_held|run|fitted\..*)"
    r"|outliers\.(run|figure|value|median)|totals\.prices\..*"
    r"|(largest|failures)\.(?!display_id|name|elapsed_seconds|requested_cpus|cpu_share"
    r"|memory_share|state_name).*"
)
#: What one rendering has and another has not.
NOT_IN: Final = {
    # Slurm's own words, and what is not measured of a job itself, are details of the terminal.
    "document": re.compile(
        r"cpu\.overhead_(seconds|text)|memory\.swap_peak_bytes|scheduler\.(user|system)_seconds"
        r"|scheduler\.reason"
    ),
    "terminal": re.compile(r"run|executables\.failures|submit"),
    # As on a terminal without --all, long sentences of findings are left out.
    "narrow terminal": re.compile(
        r"run|executables\.failures|submit|findings\.text|samples|software\..*|improvements\..*"
    ),
}
#: Counts that are written if there is something to tell.
_IF_ANY: Final = re.compile(r"memory\.(oom_kills|swap_peak_bytes)|cpu\.overhead_seconds")
_LONG: Final = 12
#: What stands next to a value on the terminal, and in a document.
LABELLED: Final = {
    "start": ("Started {}", "Started {}"),
    "end": ("Ended {}", "Ended {}"),
    "submit": ("", "Submitted {}"),
    "user": ("User {}", "User {}"),
    "account": ("account {}", "Account {}"),
    "cluster": ("Cluster {}", "Cluster {}"),
    "partition": ("partition {}", "Partition {}"),
    "cpu.requested_cpus": ("of {}", "CPUs {}"),
    "cpu.share": ("{} ", "CPU {}"),
    "cpu.cpu_seconds": ("CPU time {}", "CPU time {}"),
    "cpu.user_seconds": ("user {},", "user and system {},"),
    "cpu.system_seconds": ("system {}", "{}"),
    "memory.requested_bytes": ("of {}", "Memory {}"),
    "memory.used_peak_bytes": ("{} used at the peak", "Memory used {}"),
    "memory.kernel_peak_bytes": ("{} with page cache", "with page cache {}"),
    "memory.swap_peak_bytes": ("{} in swap", ""),
    "memory.oom_kills": ("{} killed", "Killed for memory {}"),
    "memory.share": ("{} ", "Memory {}"),
    "time.requested_seconds": ("of {}", "Time limit {}"),
    "time.elapsed_seconds": ("Elapsed {}", "Elapsed {}"),
    "io.syscall_read_bytes": ("Read {} by calls", "Read by calls {}"),
    "io.syscall_written_bytes": ("Written {} by calls", "Written by calls {}"),
    "io.storage_read_bytes": ("{} from storage", "Read from storage {}"),
    "io.storage_written_bytes": ("{} to storage", "Written to storage {}"),
    "scheduler.cpu_seconds": ("Slurm {} CPU time", "CPU time by Slurm {}"),
    "scheduler.memory_peak_bytes": ("{} MaxRSS of a task", "MaxRSS by Slurm {}"),
    "totals.core_hours_held": ("Core hours held {}", "Core hours held {}"),
    "totals.core_hours_used": ("Core hours used {}", "Core hours used {}"),
    "totals.memory_gib_hours_held": ("GiB hours held {}", "GiB hours held {}"),
}


class Told(NamedTuple):
    """A value as it has to be written."""

    path: str
    text: str


def leaves(value: Any, path: str = "") -> Iterator[Leaf]:
    """The values of a report; those of a list have the path of the list."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from leaves(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each, path)
    else:
        yield path, value


def told_values(report: dict[str, Any], rendering: str) -> list[Told]:
    """What a rendering of :data:`NOT_IN` has to say of a report of one or more runs."""
    found = []
    special = ("distributions", "states", "measured")
    for path, value in leaves({name: each for name, each in report.items() if name not in special}):
        if value is None or value == "" or isinstance(value, bool):
            continue
        if NOT_WRITTEN.fullmatch(path) or NOT_IN[rendering].fullmatch(path):
            continue
        if _IF_ANY.fullmatch(path) and not value:
            continue
        text = written(path, value)
        labels = LABELLED.get(path) if "kind" not in report or path.startswith("totals") else None
        label = "{}" if labels is None else labels[rendering == "document"]
        found.append(Told(path, label.format(text)))
    return [*found, *_sums(report, rendering)]


def written(path: str, value: Any) -> str:
    """A value as text, by its unit."""
    name = path.rpartition(".")[2]
    if name in ("start", "end", "submit", "since", "until"):
        moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
        text = format_time(int(moment.timestamp()) * 10**9)
        # Several runs are of some days.
        return text[:10] if name in ("since", "until") else text
    if name.endswith("_seconds"):
        return format_duration(round(value * 10**9))
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("share"):
        return format_share(value)
    if name.endswith("_joules"):
        return format_energy(value)
    if "_hours" in name:
        return format_hours(value)
    if path == "findings.help" and "://" not in value:
        # Only the path of the page is known.
        return f"jobsight findings help {value.rpartition('/')[2]}"
    if name == "mean_cores":
        return format_cores(value)
    if isinstance(value, (int, float)):
        return format_count(value)
    return readable_text(value)


_DISTRIBUTED: Final = {
    "elapsed_seconds": ("Elapsed", lambda value: format_duration(round(value * 10**9))),
    "cpu_share": ("CPU used of held", format_share),
    "memory_share": ("Memory used of requested", format_share),
    "memory_bytes": ("Memory used", format_bytes),
    "gpu_share": ("GPU used of held", format_share),
    "wait_seconds": ("Waiting time", lambda value: format_duration(round(value * 10**9))),
}


def _scripts(report: dict[str, Any]) -> list[dict[str, Any]]:
    return report.get("scripts", [])  # type: ignore[no-any-return]


def _sums(report: dict[str, Any], rendering: str) -> Iterator[Told]:
    for finding in report["findings"]:
        prices = [Amount(**each) for each in finding["prices"]]
        cost = format_cost(Cost(**finding["cost"]), prices)
        if cost:
            yield Told("findings.cost", cost)
    if "cost" in report:
        held = format_cost(Cost(**report["cost"]), [Amount(**each) for each in report["prices"]])
        if held:
            yield Told("cost", f"Held {held}")
    for path, subject in [("fitted", report), *(("scripts.fitted", x) for x in _scripts(report))]:
        fitted = subject.get("fitted", [])
        others = [each for each in fitted if not each["fits"]]
        if rendering == "narrow terminal" and "kind" not in report:
            # The options without their reasons.
            for each in others:
                yield Told(path, each["option"])
            continue
        # What differs from the request, or that all of it fits.
        for text in [each["text"] for each in others] or ["The request fits: "] * bool(fitted):
            yield Told(f"{path}.text", text)
    for state, count in report.get("states", {}).items():
        yield Told(f"states.{state}", f"{count} {describe_state(state, None, None)}")
    for row in report.get("distributions", []):
        title, write = _DISTRIBUTED[row["figure"]]
        names = ("minimum", "quartile", "median", "upper_quartile", "maximum")
        cells = [title, format_count(row["count"]), *(write(row[name]) for name in names)]
        yield Told(f"distributions.{row['figure']}", " ".join(cells))
    measured = report.get("measured")
    if measured is not None and measured["ended"]:
        runs = "1 run" if measured["ended"] == 1 else f"{format_count(measured['ended'])} runs"
        yield Told("measured", f"{format_count(measured['runs'])} of {runs} that ended")
        yield Told("measured.samples", f"{format_count(measured['samples'])} samples")


_OF_RUN: Final = ("display_id", "elapsed_seconds", "requested_cpus", "cpu_share", "memory_share")


def row_patterns(report: dict[str, Any]) -> Iterator[re.Pattern[str]]:
    """The rows of tables: their figures belong to their names."""
    tables = {
        "executables": ("path", "executions", "cpu_seconds", "cpu_share", "peak_memory_bytes"),
        "steps": (
            "step", "nodes", "tasks", "cpu_seconds", "memory_kernel_peak_bytes", "elapsed_seconds",
        ),
        "node_rows": (
            "node", "cpu_seconds", "memory_used_peak_bytes", "syscall_read_bytes",
            "syscall_written_bytes",
        ),
        "largest": _OF_RUN,
        "failures": _OF_RUN,
        "outliers": ("task", "text"),
    }  # fmt: skip
    for table, columns in tables.items():
        rows = report.get(table, [])
        if table == "node_rows" and len(rows) < 2:
            continue
        for row in rows:
            cells = ["-" if row[name] is None else written(name, row[name]) for name in columns]
            # The name and the state of a run, the mark of an estimate, a further column.
            gap = (
                r"(?: [^|]{0,80}?)? ~?"
                if table in ("largest", "failures")
                else r" (?:\([^)]*\) )?(?:\S+ )?~?"
            )
            joined = gap.join(re.escape(" ".join(cell.split())) for cell in cells)
            yield re.compile(rf"(?<!\S){joined}(?!\S)")


def words_of_page(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def _is_cut(wanted: str, text: str) -> bool:
    """Whether the beginning of a command is there: narrow or bounded, a report has no more."""
    cuts = re.findall(r"Command (.{20,}?)\.\.\.(?!\S)", text)
    return any(squeezed(wanted).startswith(squeezed(cut)) for cut in cuts)


def _is_cut_row(wanted: str, text: str) -> bool:
    """Whether the figures of a row are there behind the beginning of its name."""
    figures = re.search(r" \d.*", wanted)
    assert figures is not None
    cut = re.search(rf"([A-Z][\w ]{{5,}})\.\.\.{re.escape(figures[0])}(?!\w|\.\d)", text)
    return cut is not None and wanted.startswith(cut[1])


def missing(report: dict[str, Any], rendering: str, text: str) -> list[str]:
    """What is not in a text, a rendering of a report."""
    text = " ".join(text.split())
    close = squeezed(text)
    found = []
    for told in told_values(report, rendering):
        wanted = " ".join(told.text.split())
        if re.search(rf"(?<![\w.]){re.escape(wanted)}(?!\w|\.\d)", text):
            continue
        if told.path == "command" and _is_cut(wanted, text):
            continue
        if told.path.startswith("distributions") and _is_cut_row(wanted, text):
            continue
        # A line may end anywhere in a long text, also within a word.
        if len(wanted) > _LONG and squeezed(wanted) in close:
            continue
        found.append(f"{told.path}: {wanted}")
    found += [
        f"row: {pattern.pattern}" for pattern in row_patterns(report) if not pattern.search(text)
    ]
    return found
