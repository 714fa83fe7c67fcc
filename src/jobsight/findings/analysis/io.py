"""Input and output: bytes, calls, open files."""

from __future__ import annotations

from jobsight.findings.analysis.arithmetic import ratio, total
from jobsight.findings.data import RunData
from jobsight.findings.vocabulary import FigureSet


def add(data: RunData, figures: FigureSet) -> None:
    totals = data.totals
    read = total(part.read_characters for part in totals)
    written = total(part.written_characters for part in totals)
    moved = total((read, written))
    calls = total(total((part.read_calls, part.write_calls)) for part in totals)
    figures.set("io.read", read)
    figures.set("io.written", written)
    figures.set("io.storage_read", total(part.read_bytes for part in totals))
    figures.set("io.storage_written", total(part.written_bytes for part in totals))
    figures.set("io.calls", calls)
    figures.set("io.calls_rate", ratio(calls, data.span))
    figures.set("io.bytes_per_call", ratio(moved, calls), "there was no call" if calls == 0 else "")
    top = max(data.programs, key=lambda program: program.read + program.written, default=None)
    if top is not None and top.read + top.written:
        figures.set("io.top_program", top.shown)
    elif data.programs:
        figures.set("io.top_program", None, "no program used storage")
    timeline = data.timeline
    not_counted = "the open files were not counted"
    opened = None if timeline is None else timeline.mean("files.open")
    figures.set("files.open_mean", opened, not_counted)
    reason = not_counted if opened is None else "there was no open file"
    figures.set("files.bytes_per_file", ratio(moved, opened), reason)
    scratch = None if timeline is None else timeline.get("files.scratch")
    if timeline is None or scratch is None:
        figures.set("files.scratch_peak", None, not_counted)
    elif len(timeline.nodes) == 1:
        figures.set("files.scratch_peak", timeline.highest["files.scratch"])
    else:
        figures.set("files.scratch_peak", float(scratch.max()))
