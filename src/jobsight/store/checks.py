"""What a batch must be before any of it is stored."""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from jobsight.errors import JobsightError
from jobsight.model import (
    Batch,
    ExecutableUse,
    JobInfo,
    JobPart,
    JobTotals,
    Series,
    Sighting,
    StepUse,
)
from jobsight.wire import Layout, Table

#: Times outside 1990 to 2200 are a broken clock or a wrong unit.
EARLIEST = 631_152_000 * 10**9
LATEST = 7_258_118_400 * 10**9

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_MAX_PATH = 64 * 1024
_MAX_STEP = 64


class BatchError(JobsightError, ValueError):
    """A batch that cannot be stored; the text says what is wrong with it."""


def check(batch: Batch) -> None:
    """Raise :class:`BatchError` for the first thing that is wrong."""
    check_name("cluster", batch.cluster, 255)
    check_name("node", batch.node, 255)
    check_name("spool", batch.spool, 255)
    check_name("version of the agent", batch.agent, 255)
    _number("sequence", batch.sequence, least=0)
    _time("the batch was written at", batch.written)
    for info in batch.jobs:
        _check_info(info, batch)
    for part in batch.parts:
        _check_part(part, batch)


def _check_info(info: JobInfo, batch: Batch) -> None:
    _same_cluster(info.cluster, batch)
    _number("job id", info.job_id, least=0)
    where = f"of job {info.job_id}"
    for field in ("submit", "start", "end"):
        time = getattr(info, field)
        if time is not None:
            _time(f"the {field} {where} is", time)
    _numbers(info, where)
    for node in info.nodes or ():
        check_name(f"node {where}", node, 255)
    for resource, amount in (info.tres or {}).items():
        check_name(f"resource {where}", resource, 255)
        _number(f"amount of {resource} {where}", amount)


def _check_part(part: JobPart, batch: Batch) -> None:
    sighting: Sighting = part.sighting
    _same_cluster(sighting.cluster, batch)
    # Not necessarily the node of the batch: several slurmd may run on one machine.
    check_name("node", sighting.node, 255)
    _number("job id", sighting.job_id, least=0)
    where = f"of job {sighting.job_id} on {sighting.node}"
    check_name(f"boot id {where}", sighting.boot_id, 255)
    check_name(f"epoch {where}", part.epoch, 255)
    _time(f"the birth {where} is", sighting.birth)
    if sighting.sluid is not None:
        check_name(f"SLUID {where}", sighting.sluid, 255)
    if sighting.restart_count is not None:
        _number(f"restart count {where}", sighting.restart_count)
    if part.series is not None:
        _check_series(part.series, where)
    if part.totals is not None:
        _time(f"the time of the totals {where} is", part.totals.time)
        _numbers(part.totals, where)
    for group in part.coverage:
        check_name(f"group of a coverage {where}", group, 128)
    for use in part.executables:
        _check_use(use, where)
    for step in part.steps:
        _check_step(step, where)


def _check_step(use: StepUse, where: str) -> None:
    # A job that has no steps of its own may be one without a name.
    if use.step:
        check_name(f"step {where}", use.step, _MAX_STEP)
    for time in (use.first_seen, use.last_seen):
        if time:
            _time(f"a step {where} was seen at", time)
    _numbers(use, where)


def _check_series(series: Series, where: str) -> None:
    rows = len(series)
    if isinstance(series.columns, Table):
        # Types and lengths are what they are by its making.
        for name in _strange_names(series.columns.layout):
            check_name(f"metric {where}", name, 128)
    else:
        _check_columns(series, where)
    if rows:
        _time(f"a sample {where} was taken at", int(min(series.times)))
        _time(f"a sample {where} was taken at", int(max(series.times)))


def _check_columns(series: Series, where: str) -> None:
    _kind("the times", series.times, "q", where)
    for name, column in series.columns.items():
        check_name(f"metric {where}", name, 128)
        _kind(f"the metric {name}", column, "qd", where)
        if len(column) != len(series):
            raise BatchError(
                f"the metric {name} {where} has {len(column)} rows, its times have {len(series)}"
            )


@lru_cache(maxsize=256)
def _strange_names(layout: Layout) -> list[str]:
    return [name for name in layout.places if not _is_name(name, 128)]


def _kind(what: str, column: object, allowed: str, where: str) -> None:
    kind = column.format if isinstance(column, memoryview) else getattr(column, "typecode", None)
    if kind is None or kind not in allowed:
        raise BatchError(f"{what} {where} must be packed 64-bit numbers, not {kind!r}")


def _same_cluster(cluster: str, batch: Batch) -> None:
    if cluster != batch.cluster:
        raise BatchError(f"a batch of cluster {batch.cluster} speaks for cluster {cluster!r}")


# An agent sends the same names again and again.
@lru_cache(maxsize=8192)
def _is_name(text: str, longest: int) -> bool:
    return 0 < len(text) <= longest and not _CONTROL.search(text)


def check_name(what: str, text: str, longest: int) -> None:
    """Refuse a name that is empty, too long or has control characters."""
    if _is_name(text, longest):
        return
    if not 0 < len(text) <= longest:
        raise BatchError(f"the {what} has {len(text)} characters; 1 to {longest} are allowed")
    found = _CONTROL.search(text)
    if found:
        raise BatchError(f"the {what} has the control character {found[0]!r} in {text!r}")


def _numbers(record: ExecutableUse | JobInfo | JobTotals | StepUse, where: str) -> None:
    for place, value in enumerate(msgspec.structs.astuple(record)):
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            _number(f"{record.__struct_fields__[place]} {where}", value)


def _check_use(use: ExecutableUse, where: str) -> None:
    if not 0 < len(use.path) <= _MAX_PATH:
        raise BatchError(
            f"a path of an executable {where} has {len(use.path)} bytes; 1 to {_MAX_PATH} are "
            "allowed"
        )
    # The path comes first, the others are numbers: a batch may have thousands of these.
    figures = msgspec.structs.astuple(use)[1:]
    if min(figures) < -(2**63) or max(figures) >= 2**63:
        _numbers(use, where)


def _number(what: str, value: int, least: int = -(2**63)) -> None:
    if not least <= value < 2**63:
        raise BatchError(f"the {what} is {value}; {least} to {2**63 - 1} can be stored")


def _time(what: str, time: int) -> None:
    if not EARLIEST <= time < LATEST:
        raise BatchError(
            f"{what} {time}, which is not between 1990 and 2200; times are nanoseconds since 1970"
        )
