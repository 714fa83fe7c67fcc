"""How sure the figures of a run are: the nodes' coverage joined, and said in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jobsight.model import Coverage
from jobsight.reports.units import format_count, format_share

#: The groups of figures in the order in which people read them, and what a sentence calls them.
GROUPS = {
    "cpu": "CPU time",
    "memory": "Memory",
    "io": "I/O",
    "executables": "Split by executable",
}

_WORST_FIRST = ("failed", "missing", "estimate", "exact")

_SOURCES = {
    "cgroup v1": "from the cgroup's counter (cgroup v1)",
    "cgroup v2": "from the cgroup's counter (cgroup v2)",
    "rusage": "from the kernel's count for the waited-for processes (rusage)",
    "process tree": "from the process tree",
}


class RunCoverage(Coverage, kw_only=True, omit_defaults=False):
    """The coverage of a run. Nodes leave out what says nothing; who reads a report may count on
    every field."""


def merge_coverage(parts: Sequence[tuple[Coverage, int]]) -> RunCoverage:
    """Join what several nodes say of one group; the weight is a node's CPU time.

    A group that failed on some nodes and not on others is an estimate: what is shown stands for
    the others only.
    """
    qualities = {coverage.quality for coverage, _ in parts}
    if len(qualities) == 1:
        (quality,) = qualities
    elif qualities & {"exact", "estimate"}:
        quality = "estimate"
    else:
        quality = min(qualities, key=_WORST_FIRST.index)
    reasons = dict.fromkeys(coverage.reason for coverage, _ in parts if coverage.reason)
    return RunCoverage(
        quality=quality,
        time_share=_mean((coverage.time_share, 1) for coverage, _ in parts),
        cpu_share=_mean((coverage.cpu_share, max(weight, 1)) for coverage, weight in parts),
        events_lost=sum(coverage.events_lost for coverage, _ in parts),
        reason="; ".join(reasons),
    )


def _mean(values: Iterable[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in values if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def merge_nodes(nodes: Iterable[tuple[Mapping[str, Coverage], int]]) -> dict[str, RunCoverage]:
    """Join the coverage of all nodes, group by group; groups of later releases are kept."""
    gathered: dict[str, list[tuple[Coverage, int]]] = {group: [] for group in GROUPS}
    count = 0
    for coverage, weight in nodes:
        count += 1
        for group, part in coverage.items():
            gathered.setdefault(group, []).append((part, weight))
    return {group: _with_silent(parts, count) for group, parts in gathered.items()}


def _with_silent(parts: list[tuple[Coverage, int]], count: int) -> RunCoverage:
    silent = count - len(parts)
    if parts and not silent:
        return merge_coverage(parts)
    reason = f"{silent} of {count} nodes reported nothing" if parts else "nothing was reported"
    return merge_coverage([*parts, (Coverage(quality="missing", reason=reason), 0)])


def cpu_note(coverage: Coverage, source: str | None) -> str:
    """Say where the CPU time comes from."""
    if coverage.quality == "exact":
        return _sentence(GROUPS["cpu"], "exact", _SOURCES.get(source or "", source or ""))
    return group_note("cpu", coverage)


def executables_note(
    coverage: Coverage, executions: int, estimated_share: float | None, cpu_time: int | None
) -> str:
    """Say how much of the CPU time the rows of the executables account for, and by what means."""
    if coverage.quality in ("failed", "missing"):
        return group_note("executables", coverage)
    of_the_time = (
        f"{format_share(coverage.cpu_share)} of the CPU time"
        if coverage.cpu_share is not None and cpu_time
        else "the CPU time of the processes seen"
    )
    if coverage.quality == "exact":
        estimated = (
            f" ({format_share(estimated_share)} of it divided between programs by estimate)"
            if estimated_share is not None and estimated_share >= 0.001
            else ""
        )
        text = (
            f"Executables: exit records account for {of_the_time}{estimated}; "
            f"{format_count(executions)} execution{'' if executions == 1 else 's'} counted; "
            f"{format_count(coverage.events_lost)} events lost"
        )
    else:
        text = f"{GROUPS['executables']}: estimate, {of_the_time} seen"
        if coverage.events_lost:
            text += f"; {format_count(coverage.events_lost)} events lost"
    return _close(f"{text}; {coverage.reason}" if coverage.reason else text)


def group_note(group: str, coverage: Coverage) -> str:
    """Say in one plain sentence how sure the figures of a group are."""
    quality: str = "not measured" if coverage.quality == "missing" else coverage.quality
    if coverage.quality == "estimate" and coverage.time_share is not None:
        quality += f" that stands for {format_share(coverage.time_share)} of the time"
    if coverage.events_lost:
        quality += f", {format_count(coverage.events_lost)} readings lost"
    return _sentence(GROUPS.get(group, group.capitalize()), quality, coverage.reason)


def _sentence(title: str, quality: str, reason: str) -> str:
    return _close(f"{title}: {quality}, {reason}" if reason else f"{title}: {quality}")


def _close(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
