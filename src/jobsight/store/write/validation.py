"""What a batch must be before any of it is stored.

A batch that is broken or forged is refused as a whole: no agent sends one. A value that is out of
the bounds of :mod:`jobsight.store.write.bounds` is left out alone, because users choose names, and
one of them must not suppress the figures of all jobs of a node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec

from jobsight.errors import JobsightError
from jobsight.model import (
    MAX_JOB_ID,
    SECOND,
    Batch,
    Coverage,
    ExecutableUse,
    JobInfo,
    JobPart,
    JobTotals,
    Series,
    Sighting,
    StepUse,
)
from jobsight.store.write.bounds import (
    MAX_AGE,
    MAX_GROUP,
    MAX_GROUPS,
    MAX_METRIC,
    MAX_NAME,
    MAX_NODE_DAYS,
    MAX_NODE_ROWS,
    MAX_PATH,
    MAX_STEP,
    Excess,
    has_usual_figures,
    limit_info,
    limit_node_columns,
    limit_part,
)
from jobsight.transport.wire import Layout, Table

#: Times outside 1990 to 2200 are a broken clock or a wrong unit.
EARLIEST = 631_152_000 * 10**9
LATEST = 7_258_118_400 * 10**9

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_DAY: Final = 86400 * SECOND
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**63 - 1

#: The first and the last time that are allowed, both between 1990 and 2200.
Window: TypeAlias = tuple[int, int]
EVER: Final[Window] = (EARLIEST, LATEST - 1)


class BatchError(JobsightError, ValueError):
    """A batch that cannot be stored; the text says what is wrong with it."""


def check(batch: Batch) -> list[str]:
    """Raise :class:`BatchError` for a batch that is refused; else leave out of it what is out of
    bounds, and return a sentence for each value that was left out."""
    check_name("node", batch.node)
    check_name("spool", batch.spool)
    check_name("version of the agent", batch.agent)
    # There must be room for the number that follows it.
    _number("sequence", batch.sequence, least=0, most=_MAX_INTEGER - 1)
    _time("the time of the batch", batch.written)
    check_name("cluster", batch.cluster)
    window = max(batch.written - MAX_AGE, EARLIEST), min(batch.written + MAX_AGE, LATEST - 1)
    left_out: list[str] = []
    for index, info in enumerate(batch.jobs):
        limited, excesses = limit_info(info)
        _check_info(limited, batch.cluster, window)
        batch.jobs[index] = limited
        left_out += _sentences(excesses, limited)
    usual: dict[str, Coverage] | None = None
    for part in batch.parts:
        _check_part(part, batch.cluster, window)
        if has_usual_figures(part, usual):
            usual = part.coverage
        else:
            _check_figures(part)
            left_out += _sentences(limit_part(part), part.sighting)
    if batch.node_series is not None:
        batch.node_series, excesses = _limit_node_series(batch.node_series, window)
        left_out += [
            f"metric {excess.field[:MAX_METRIC]!r} of the node {excess.reason}"
            for excess in excesses
        ]
    return left_out


def _limit_node_series(series: Series, window: Window) -> tuple[Series | None, list[Excess]]:
    """The series of a node without metrics that are not known or out of bounds, and those."""
    if len(series) > MAX_NODE_ROWS:
        raise BatchError(
            f"the series of the node have {len(series):,} rows; at most {MAX_NODE_ROWS:,} are "
            "allowed"
        )
    _check_series(series, None, window)
    days = {time // _DAY for time in series.times}
    if len(days) > MAX_NODE_DAYS:
        raise BatchError(
            f"the series of the node are of {len(days):,} days; at most {MAX_NODE_DAYS} are allowed"
        )
    columns, excesses = limit_node_columns(series.columns)
    if excesses:
        series = Series(series.times, columns)
    return (series if len(series) and series.columns else None), excesses


def check_jobs(cluster: str, jobs: Iterable[JobInfo], parts: Iterable[JobPart]) -> None:
    """Raise :class:`BatchError` for the first job record or part that cannot be stored."""
    check_name("cluster", cluster)
    for info in jobs:
        check_info(info, cluster)
    for part in parts:
        _check_part(part, cluster)
        if not has_usual_figures(part):
            _check_figures(part)
            _refuse(limit_part(part), part.sighting)


def check_info(info: JobInfo, cluster: str) -> None:
    """The same for what a record of this cluster says of a run."""
    _refuse(limit_info(info)[1], info)
    _check_info(info, cluster)


def _check_info(info: JobInfo, cluster: str, window: Window = EVER) -> None:
    _same_cluster(info.cluster, cluster)
    _number("job id", info.job_id, least=0, most=MAX_JOB_ID)
    check_name("source", info.source, of=info)
    for field in ("submit", "start", "end"):
        time = getattr(info, field)
        if time is not None:
            _time(f"the {field}", time, info)
    if info.start is not None:
        _near("the start", info.start, window, info)
        if info.end is not None and window is not EVER:
            _near("the end", info.end, (EARLIEST, info.start + MAX_AGE), info)
    nodes, tres = info.nodes or (), info.tres or {}
    if not _have_passed((*nodes, *tres), MAX_NAME):
        for node in nodes:
            check_name("node", node, of=info)
        for resource in tres:
            check_name("resource", resource, of=info)
    for amount in tres.values():
        _number("amount of a resource", amount, of=info)


def _sentences(excesses: Iterable[Excess], of: JobInfo | Sighting) -> list[str]:
    return [f"{excess.field}{_of(of)} {excess.reason}" for excess in excesses]


def _refuse(excesses: Iterable[Excess], of: JobInfo | Sighting) -> None:
    for sentence in _sentences(excesses, of):
        raise BatchError(f"the {sentence}")


def _check_part(part: JobPart, cluster: str, window: Window = EVER) -> None:
    # Compared here before a function is called: every part of every batch comes here.
    sighting: Sighting = part.sighting
    totals = part.totals
    if sighting.cluster != cluster:
        _same_cluster(sighting.cluster, cluster)
    if not 0 <= sighting.job_id <= MAX_JOB_ID:
        _number("job id", sighting.job_id, least=0, most=MAX_JOB_ID)
    cpu_source = "none" if totals is None else totals.cpu_source
    if not _have_passed((sighting.node, sighting.boot_id, part.epoch, cpu_source), MAX_NAME):
        # Not necessarily the node of the batch: several slurmd may run on one machine.
        check_name("node", sighting.node)
        check_name("boot id", sighting.boot_id, of=sighting)
        check_name("epoch", part.epoch, of=sighting)
        check_name("source of the CPU time", cpu_source, of=sighting)
    if not window[0] <= sighting.birth <= window[1]:
        _time("the creation time", sighting.birth, sighting)
        _near("the creation time", sighting.birth, window, sighting)
    if sighting.sluid is not None:
        check_name("SLUID", sighting.sluid, of=sighting)
    if sighting.restart_count is not None:
        _number("restart count", sighting.restart_count, of=sighting)
    if part.series is not None:
        _check_series(part.series, sighting, window)
    if totals is not None and not EARLIEST <= totals.time < LATEST:
        _time("the time of the totals", totals.time, sighting)
    if len(part.coverage) > MAX_GROUPS:
        raise BatchError(
            f"the coverage{_of(sighting)} has {len(part.coverage)} groups; {MAX_GROUPS} are allowed"
        )
    if not _have_passed(tuple(part.coverage), MAX_GROUP):
        for group in part.coverage:
            check_name("group of a coverage", group, MAX_GROUP, sighting)
    for use in part.executables:
        if not 0 < len(use.path) <= MAX_PATH:
            raise BatchError(
                f"a path of an executable{_of(sighting)} has {len(use.path)} bytes; 1 to "
                f"{MAX_PATH} are allowed"
            )
    for step in part.steps:
        _check_step(step, sighting)


def _check_figures(part: JobPart) -> None:
    """Refuse numbers that no table can hold."""
    if part.totals is not None:
        _numbers(part.totals, part.sighting)
    for use in part.executables:
        _numbers(use, part.sighting)
    for step in part.steps:
        _numbers(step, part.sighting)


def _check_step(use: StepUse, of: Sighting) -> None:
    # A job that has no steps of its own may be one without a name.
    if use.step:
        check_name("step", use.step, MAX_STEP, of)
    for time in (use.first_seen, use.last_seen):
        if time:
            _time("the time of a step", time, of)


def _check_series(series: Series, of: Sighting | None, window: Window) -> None:
    if isinstance(series.columns, Table):
        # Types and lengths are what they are by its making.
        for name in _strange_names(series.columns.layout):
            check_name("metric", name, MAX_METRIC, of)
    else:
        _check_columns(series, of)
    if len(series):
        for time in (min(series.times), max(series.times)):
            if not window[0] <= time <= window[1]:
                _time("the time of a sample", int(time), of)
                _near("the time of a sample", int(time), window, of)


def _check_columns(series: Series, of: Sighting | None) -> None:
    _kind("the times", series.times, "q", of)
    for name, column in series.columns.items():
        check_name("metric", name, MAX_METRIC, of)
        _kind(f"the metric {name}", column, "qd", of)
        if len(column) != len(series):
            raise BatchError(
                f"the metric {name}{_of(of)} has {len(column)} rows, its times have {len(series)}"
            )


@lru_cache(maxsize=256)
def _strange_names(layout: Layout) -> list[str]:
    return [name for name in layout.indexes if not _is_name(name, MAX_METRIC)]


def _kind(what: str, column: object, allowed: str, of: Sighting | None) -> None:
    kind = column.format if isinstance(column, memoryview) else getattr(column, "typecode", None)
    if kind is None or kind not in allowed:
        raise BatchError(f"{what}{_of(of)} must be packed 64-bit numbers, not {kind!r}")


def _same_cluster(cluster: str, sender: str) -> None:
    if cluster != sender:
        raise BatchError(f"a batch of cluster {sender} speaks for cluster {cluster!r}")


# An agent sends the same names again and again.
@lru_cache(maxsize=8192)
def _is_name(text: str, longest: int) -> bool:
    return 0 < len(text) <= longest and not _CONTROL.search(text) and _size(text) <= longest


def _have_passed(names: tuple[str, ...], longest: int) -> bool:
    """Whether names are short and valid; others are to be checked one by one.

    One look-up for all: the names of a part are the same in every batch.
    """
    return len("".join(names)) <= longest and _are_names(names, longest)


@lru_cache(maxsize=8192)
def _are_names(names: tuple[str, ...], longest: int) -> bool:
    return all(_is_name(name, longest) for name in names)


def check_name(
    what: str, text: str, longest: int = MAX_NAME, of: JobInfo | Sighting | None = None
) -> None:
    """Refuse a name that is empty, too long in UTF-8 or has control characters."""
    # A long text is not hashed, and not kept by the cache.
    if len(text) <= longest and _is_name(text, longest):
        return
    found = _CONTROL.search(text[:longest])
    if found:
        raise BatchError(
            f"the {what}{_of(of)} has the control character {found[0]!r} in {text[:longest]!r}"
        )
    raise BatchError(f"the {what}{_of(of)} has {_size(text)} bytes; 1 to {longest} are allowed")


def _size(text: str) -> int:
    return len(text.encode("utf-8", "backslashreplace"))


def _numbers(record: ExecutableUse | JobTotals | StepUse, of: Sighting) -> None:
    figures = [value for value in msgspec.structs.astuple(record) if type(value) is int]
    if figures and (min(figures) < _MIN_INTEGER or max(figures) > _MAX_INTEGER):
        for name in record.__struct_fields__:
            value = getattr(record, name)
            if isinstance(value, int):
                _number(name, value, of=of)


def _number(
    what: str,
    value: int,
    least: int = _MIN_INTEGER,
    most: int = _MAX_INTEGER,
    of: JobInfo | Sighting | None = None,
) -> None:
    if not least <= value <= most:
        raise BatchError(f"the {what}{_of(of)} is {value}; {least} to {most} can be stored")


def _time(what: str, time: int, of: JobInfo | Sighting | None = None) -> None:
    if not EARLIEST <= time < LATEST:
        raise BatchError(
            f"{what}{_of(of)} is {time}, which is not between 1990 and 2200; times are nanoseconds "
            "since 1970"
        )


def _near(what: str, time: int, window: Window, of: JobInfo | Sighting | None) -> None:
    if not window[0] <= time <= window[1]:
        raise BatchError(
            f"{what}{_of(of)} is more than {MAX_AGE // (86400 * SECOND)} days from the time at "
            "which the batch was written, or from the start of the run"
        )


def _of(record: JobInfo | Sighting | None) -> str:
    """Whose it is; written only where something is wrong."""
    if record is None:
        return ""
    where = f" on {record.node}" if isinstance(record, Sighting) else ""
    return f" of job {record.job_id}{where}"
