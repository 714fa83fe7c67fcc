"""What a batch must be before any of it is stored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from jobsight.errors import JobsightError
from jobsight.model import (
    MAX_JOB_ID,
    Batch,
    ExecutableUse,
    JobInfo,
    JobPart,
    JobTotals,
    Series,
    Sighting,
    StepUse,
)
from jobsight.transport.wire import Layout, Table

#: Times outside 1990 to 2200 are a broken clock or a wrong unit.
EARLIEST = 631_152_000 * 10**9
LATEST = 7_258_118_400 * 10**9

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_MAX_PATH = 64 * 1024
_MAX_STEP = 64
_LEAST, _MOST = -(2**63), 2**63 - 1


class BatchError(JobsightError, ValueError):
    """A batch that cannot be stored; the text says what is wrong with it."""


def check(batch: Batch) -> None:
    """Raise :class:`BatchError` for the first thing that is wrong."""
    check_name("node", batch.node, 255)
    check_name("spool", batch.spool, 255)
    check_name("version of the agent", batch.agent, 255)
    # There must be room for the number that follows it.
    _number("sequence", batch.sequence, least=0, most=_MOST - 1)
    _time("the time of the batch", batch.written)
    check_jobs(batch.cluster, batch.jobs, batch.parts)


def check_jobs(cluster: str, jobs: Iterable[JobInfo], parts: Iterable[JobPart]) -> None:
    """Raise :class:`BatchError` for the first job record or part that cannot be stored."""
    check_name("cluster", cluster, 255)
    for info in jobs:
        check_info(info, cluster)
    for part in parts:
        _check_part(part, cluster)


def check_info(info: JobInfo, cluster: str) -> None:
    """The same for what a batch of this cluster says of a run."""
    _same_cluster(info.cluster, cluster)
    _number("job id", info.job_id, least=0, most=MAX_JOB_ID)
    for field in ("submit", "start", "end"):
        time = getattr(info, field)
        if time is not None:
            _time(f"the {field}", time, info)
    _numbers(info, info)
    for node in info.nodes or ():
        check_name("node", node, 255, info)
    for resource, amount in (info.tres or {}).items():
        check_name("resource", resource, 255, info)
        _number("amount of a resource", amount, of=info)


def _check_part(part: JobPart, cluster: str) -> None:
    sighting: Sighting = part.sighting
    _same_cluster(sighting.cluster, cluster)
    # Not necessarily the node of the batch: several slurmd may run on one machine.
    check_name("node", sighting.node, 255)
    _number("job id", sighting.job_id, least=0, most=MAX_JOB_ID)
    check_name("boot id", sighting.boot_id, 255, sighting)
    check_name("epoch", part.epoch, 255, sighting)
    _time("the creation time", sighting.birth, sighting)
    if sighting.sluid is not None:
        check_name("SLUID", sighting.sluid, 255, sighting)
    if sighting.restart_count is not None:
        _number("restart count", sighting.restart_count, of=sighting)
    if part.series is not None:
        _check_series(part.series, sighting)
    if part.totals is not None:
        _time("the time of the totals", part.totals.time, sighting)
        _numbers(part.totals, sighting)
    for group in part.coverage:
        check_name("group of a coverage", group, 128, sighting)
    if part.executables:
        _check_uses(part.executables, sighting)
    for step in part.steps:
        _check_step(step, sighting)


def _check_step(use: StepUse, of: Sighting) -> None:
    # A job that has no steps of its own may be one without a name.
    if use.step:
        check_name("step", use.step, _MAX_STEP, of)
    for time in (use.first_seen, use.last_seen):
        if time:
            _time("the time of a step", time, of)
    _numbers(use, of)


def _check_series(series: Series, of: Sighting) -> None:
    if isinstance(series.columns, Table):
        # Types and lengths are what they are by its making.
        for name in _strange_names(series.columns.layout):
            check_name("metric", name, 128, of)
    else:
        _check_columns(series, of)
    if len(series):
        _time("the time of a sample", int(min(series.times)), of)
        _time("the time of a sample", int(max(series.times)), of)


def _check_columns(series: Series, of: Sighting) -> None:
    _kind("the times", series.times, "q", of)
    for name, column in series.columns.items():
        check_name("metric", name, 128, of)
        _kind(f"the metric {name}", column, "qd", of)
        if len(column) != len(series):
            raise BatchError(
                f"the metric {name}{_of(of)} has {len(column)} rows, its times have {len(series)}"
            )


@lru_cache(maxsize=256)
def _strange_names(layout: Layout) -> list[str]:
    return [name for name in layout.indexes if not _is_name(name, 128)]


def _kind(what: str, column: object, allowed: str, of: Sighting) -> None:
    kind = column.format if isinstance(column, memoryview) else getattr(column, "typecode", None)
    if kind is None or kind not in allowed:
        raise BatchError(f"{what}{_of(of)} must be packed 64-bit numbers, not {kind!r}")


def _same_cluster(cluster: str, sender: str) -> None:
    if cluster != sender:
        raise BatchError(f"a batch of cluster {sender} speaks for cluster {cluster!r}")


# An agent sends the same names again and again.
@lru_cache(maxsize=8192)
def _is_name(text: str, longest: int) -> bool:
    return 0 < len(text) <= longest and not _CONTROL.search(text)


def check_name(what: str, text: str, longest: int, of: JobInfo | Sighting | None = None) -> None:
    """Refuse a name that is empty, too long or has control characters."""
    if _is_name(text, longest):
        return
    if not 0 < len(text) <= longest:
        raise BatchError(
            f"the {what}{_of(of)} has {len(text)} characters; 1 to {longest} are allowed"
        )
    found = _CONTROL.search(text)
    if found:
        raise BatchError(f"the {what}{_of(of)} has the control character {found[0]!r} in {text!r}")


def _numbers(record: ExecutableUse | JobInfo | JobTotals | StepUse, of: JobInfo | Sighting) -> None:
    figures = [value for value in msgspec.structs.astuple(record) if type(value) is int]
    if figures and (min(figures) < _LEAST or max(figures) > _MOST):
        for name in record.__struct_fields__:
            value = getattr(record, name)
            if isinstance(value, int):
                _number(name, value, of=of)


def _check_uses(uses: Sequence[ExecutableUse], of: Sighting) -> None:
    for use in uses:
        if not 0 < len(use.path) <= _MAX_PATH:
            raise BatchError(
                f"a path of an executable{_of(of)} has {len(use.path)} bytes; 1 to {_MAX_PATH} are "
                "allowed"
            )
    # All at once: a batch may have thousands. The path comes first, the others are numbers.
    figures = [msgspec.structs.astuple(use)[1:] for use in uses]
    if min(map(min, figures)) < _LEAST or max(map(max, figures)) > _MOST:
        for use in uses:
            _numbers(use, of)


def _number(
    what: str,
    value: int,
    least: int = _LEAST,
    most: int = _MOST,
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


def _of(record: JobInfo | Sighting | None) -> str:
    """Whose it is; written only where something is wrong."""
    if record is None:
        return ""
    where = f" on {record.node}" if isinstance(record, Sighting) else ""
    return f" of job {record.job_id}{where}"
