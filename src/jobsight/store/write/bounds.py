"""The bounds of what nodes and schedulers report of a run: every text, list and number.

Users choose names and commands, so a value out of its bounds does not refuse the record or the
batch that holds it: :func:`limit_info` and :func:`limit_part` leave out the value alone, and return
a sentence for each. Readers rely on the bounds: a row of a list has a bounded size, and the row of
an index fits a page of PostgreSQL (2,704 bytes).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import astuple

from jobsight.metrics import NODE_METRICS
from jobsight.model import (
    MAX_JOB_ID,
    MISSING,
    SECOND,
    Column,
    Coverage,
    ExecutableUse,
    GpuFault,
    GpuUse,
    JobInfo,
    JobPart,
    JobTotals,
    StepUse,
    format_of,
)

_DAY: Final = 86400 * SECOND
#: How far any time of a batch may lie from the time at which it was written. No site lets a job
#: run for longer, and a clock that is wrong by more makes the times useless.
MAX_AGE: Final = 400 * _DAY

#: Bytes of a name that is part of a key; three of them fit into a row of an index.
MAX_NAME: Final = 255
MAX_TEXT: Final = 256
#: The name and the command of a job: 4,096 characters of any script. No index contains them.
MAX_LONG_TEXT: Final = 4 * 4096
MAX_NODES: Final = 16_384
#: Characters of their names together: a list of runs reads the nodes of every row.
MAX_NODES_SIZE: Final = 2**18
MAX_RESOURCES: Final = 256
_MAX_RESOURCES_SIZE: Final = MAX_RESOURCES * 255
#: An interpreter and its script, each as long as a path of the kernel.
MAX_PATH: Final = 2 * 4096 + 2
MAX_STEP: Final = 64
#: Entries of a list of a scheduler's details, such as the steps of a job, and bytes of all of them.
MAX_DETAIL_ITEMS: Final = 4096
MAX_DETAIL_SIZE: Final = 2**20
MAX_METRIC: Final = 128
#: Groups of figures with a coverage of their own, and the reason of one in characters.
MAX_GROUPS: Final = 64
MAX_GROUP: Final = 128
MAX_REASON: Final = 1024
#: GPUs and MIG instances of one run on one node, and the bytes of the names of one.
MAX_PART_GPUS: Final = 256
MAX_GPU_KEY: Final = 64
MAX_GPU_NAME: Final = 128
#: Kinds of faults of one GPU, reasons of reduced clocks, and groups of its coverage.
MAX_GPU_ROWS: Final = 32

#: What is stored of a run over all its batches: sightings of the run, and of one of its nodes (a
#: cgroup that is created again, as each step does without the extern step); values of the time
#: series of a sighting (a year of 60 metrics every 30 seconds), and its rows of executables and
#: steps. What a batch adds beyond is left out, and what is stored already is kept.
MAX_SIGHTINGS: Final = 2**15
MAX_SIGHTINGS_OF_NODE: Final = 2**10
MAX_SERIES_VALUES: Final = 2**26
MAX_ROWS: Final = 2**17

#: Time series of a node as a whole: rows of a batch, days that they are of, and values of one day
#: over all batches (a sample every second). Its metrics are those that this version knows.
MAX_NODE_ROWS: Final = 4096
MAX_NODE_DAYS: Final = 8
MAX_NODE_DAY_VALUES: Final = 2**22

#: Largest machine: 2**24 CPUs, 2**20 GPUs, an exbibyte.
MAX_CPUS: Final = 2**24
MAX_GPUS: Final = 2**20
MAX_MEMORY: Final = 2**60
#: Executions and processes: a million runs with this many add up to less than 2**63.
MAX_COUNT: Final = 2**43
_MAX_ID: Final = 2**32 - 1
_MAX_INTEGER: Final = 2**63 - 1


_encode: Final = msgspec.msgpack.Encoder().encode


class Excess(NamedTuple):
    """A value that was left out."""

    field: str
    reason: str


class _Text(NamedTuple):
    longest: int

    def reason(self, value: str) -> str | None:
        size = _stored_size(value)
        if size <= self.longest:
            return None
        return f"has {size:,} bytes; at most {self.longest:,} are stored"


class _Number(NamedTuple):
    most: int
    least: int = 0

    def reason(self, value: int) -> str | None:
        if self.least <= value <= self.most:
            return None
        return f"is {_shown(value)}; {self.least} to {self.most} are possible"


class _Items(NamedTuple):
    most: int
    size: int

    def reason(self, value: Collection[str]) -> str | None:
        if len(value) > self.most:
            return f"has {len(value):,} entries; at most {self.most:,} are stored"
        size = sum(map(len, value))
        if size > self.size:
            return f"has names of {size:,} characters; at most {self.size:,} are stored"
        return None


_TEXT: Final = _Text(MAX_TEXT)
_LONG_TEXT: Final = _Text(MAX_LONG_TEXT)
_ID: Final = _Number(_MAX_ID)
#: Every field of a job record but its key and its times, which are checked by validation.
_INFO: Final[dict[str, _Text | _Number | _Items]] = {
    "sluid": _TEXT,
    "restart_count": _ID,
    "array_job_id": _Number(MAX_JOB_ID),
    "array_task_id": _ID,
    "het_job_id": _Number(MAX_JOB_ID),
    "het_offset": _ID,
    "name": _Text(MAX_LONG_TEXT),
    "user": _TEXT,
    "uid": _ID,
    "account": _TEXT,
    "partition": _TEXT,
    "qos": _TEXT,
    "command": _Text(MAX_LONG_TEXT),
    "nodes": _Items(MAX_NODES, MAX_NODES_SIZE),
    "cpus": _Number(MAX_CPUS),
    "memory": _Number(MAX_MEMORY),
    "gpus": _Number(MAX_GPUS),
    "tres": _Items(MAX_RESOURCES, _MAX_RESOURCES_SIZE),
    "time_limit": _Number(_MAX_INTEGER),
    "state": _TEXT,
    "exit_code": _Number(_MAX_ID, -(2**31)),
    "exit_signal": _Number(2**16),
}
_info_values: Callable[[JobInfo], tuple[Any, ...]] = attrgetter(*_INFO)
_INFO_BOUNDS: Final = tuple(_INFO.items())
#: The time and the source come before the figures.
_TOTALS_START: Final = JobTotals.__struct_fields__.index("cpu_time")


#: A text of so many characters is within MAX_TEXT, whatever they are: a lone surrogate is stored as
#: six bytes.
_SHORT: Final = MAX_TEXT // 6
_SHORT_LONG: Final = MAX_LONG_TEXT // 6
_short_texts: Callable[[JobInfo], tuple[str | None, ...]] = attrgetter(
    *(name for name, bound in _INFO_BOUNDS if bound == _TEXT)
)
#: Most of these are None: zeros and None need no check.
_ids: Callable[[JobInfo], tuple[int | None, ...]] = attrgetter(
    *(name for name, bound in _INFO_BOUNDS if bound in (_ID, _INFO["array_job_id"])),
    "exit_code",
)


def _is_usual(info: JobInfo) -> bool:
    """Whether all values are well within their bounds, as in nearly every record. Others are
    compared with each bound."""
    name, command, nodes, tres = info.name, info.command, info.nodes, info.tres
    return (
        (name is None or len(name) <= _SHORT_LONG)
        and (command is None or len(command) <= _SHORT_LONG)
        and max(map(len, filter(None, _short_texts(info))), default=0) <= _SHORT
        and min(ids := (0, *filter(None, _ids(info)))) >= 0
        and max(ids) <= _MAX_ID
        and 0 <= (info.exit_signal or 0) <= 2**16
        and 0 <= (info.cpus or 0) <= MAX_CPUS
        and 0 <= (info.gpus or 0) <= MAX_GPUS
        and 0 <= (info.memory or 0) <= MAX_MEMORY
        and 0 <= (info.time_limit or 0) <= _MAX_INTEGER
        and (nodes is None or (len(nodes) <= 64 and len("".join(nodes)) <= MAX_NODES_SIZE))
        and (tres is None or (len(tres) <= 64 and len("".join(tres)) <= _MAX_RESOURCES_SIZE))
    )


def limit_info(info: JobInfo) -> tuple[JobInfo, list[Excess]]:
    """The record without the values that are out of their bounds, and those."""
    if _is_usual(info):
        return info, []
    excesses = [
        Excess(name, reason)
        for (name, bound), value in zip(_INFO_BOUNDS, _info_values(info), strict=True)
        if value is not None and (reason := bound.reason(value)) is not None
    ]
    if excesses:
        info = msgspec.structs.replace(info, **{excess.field: None for excess in excesses})
    return info, excesses


def limit_details(details: msgspec.Struct, names: Iterable[str]) -> list[Excess]:
    """Leave out of these fields of a record what a scheduler reports without a bound, such as the
    submit line and comments, and return that. Of a list the first entries are kept."""
    excesses = []
    for name in names:
        value = getattr(details, name)
        if not value or not isinstance(value, str | tuple | list | dict):
            continue
        if isinstance(value, str):
            reason = _LONG_TEXT.reason(value)
            kept: object = None
        else:
            kept, reason = _limited_items(value)
        if reason is not None:
            setattr(details, name, kept)
            excesses.append(Excess(name, reason))
    return excesses


def _limited_items(value: Any) -> tuple[Any, str | None]:
    reason = None
    if len(value) > MAX_DETAIL_ITEMS:
        reason = f"has {len(value):,} entries; {MAX_DETAIL_ITEMS:,} are stored"
        some = itertools.islice(
            value.items() if isinstance(value, dict) else value, MAX_DETAIL_ITEMS
        )
        value = type(value)(some)
    try:
        size = len(_encode(value))
    except (ValueError, OverflowError, RecursionError, TypeError):
        # The store refuses it.
        return value, reason
    if size > MAX_DETAIL_SIZE:
        return type(value)(), f"has {size:,} bytes; at most {MAX_DETAIL_SIZE:,} are stored"
    return value, reason


def has_usual_figures(part: JobPart, usual: dict[str, Coverage] | None = None) -> bool:
    """Whether all figures of a part are within their bounds: nothing has to be refused or left out.

    One pass by functions of C, because every part of every batch comes here. GPUs are few, and are
    left to :func:`limit_part`. ``usual`` is a coverage that is known to be within its bounds:
    parts share one.
    """
    if part.gpus:
        return False
    figures: list[Any] = [0]
    if part.totals is not None:
        figures += filter(None, astuple(part.totals)[_TOTALS_START:])
    for use in part.executables:
        if max(_counts_of_use(use)) > MAX_COUNT:
            return False
        # The path comes first, the others are numbers.
        figures += astuple(use)[1:]
    for step in part.steps:
        if step.tasks > MAX_COUNT:
            return False
        figures += filter(None, astuple(step)[1:])
    if min(figures) < 0 or max(figures) > _MAX_INTEGER:
        return False
    return part.coverage is usual or all(map(_is_coverage, part.coverage.values()))


def limit_part(part: JobPart) -> list[Excess]:
    """Leave out of a part what is out of its bounds, and return that.

    Cumulative figures that are wrong are left out by row. A coverage whose share is no share is
    left out as a whole: the group is then shown as not measured.
    """
    excesses: list[Excess] = []
    if part.totals is not None and min(_figures(part.totals), default=0) < 0:
        part.totals = _limit_totals(part.totals, excesses)
    if part.coverage and not all(map(_is_coverage, part.coverage.values())):
        part.coverage = _limit_coverage(part.coverage, excesses)
    if part.executables and not _are_uses(part.executables):
        part.executables = list(_limited(part.executables, _is_use, "executables", excesses))
    if part.steps and not all(map(_is_step, part.steps)):
        part.steps = list(_limited(part.steps, _is_step, "steps", excesses))
    if part.gpus:
        part.gpus = _limit_gpus(part.gpus, excesses)
    return excesses


def limit_node_columns(
    columns: Mapping[str, Column],
) -> tuple[dict[str, Column], list[Excess]]:
    """The columns of a node that a day of it can hold, and the others.

    A counter is integers: it is summed, and neither infinity nor a float has a sum that the store
    could take. Nothing of a node is negative.
    """
    kept: dict[str, Column] = {}
    excesses = []
    for name, column in columns.items():
        reason = _reason_of_column(name, column)
        if reason is None:
            kept[name] = column
        else:
            excesses.append(Excess(name, reason))
    return kept, excesses


def _reason_of_column(name: str, column: Column) -> str | None:
    metric = NODE_METRICS.get(name)
    if metric is None:
        return "is not known to this version"
    if format_of(column) == "q":
        # Most columns have no missing value.
        if min(column, default=0) >= 0 or all(value >= 0 or value == MISSING for value in column):
            return None
    elif metric.kind == "counter":
        return "is a counter and must be integers"
    # NaN is a reading that failed.
    elif all(value != value or 0 <= value <= _MAX_INTEGER for value in column):
        return None
    return "has values that are not between 0 and 2^63"


def _limit_totals(totals: JobTotals, excesses: list[Excess]) -> JobTotals:
    changes: dict[str, None] = {}
    for name in totals.__struct_fields__:
        value = getattr(totals, name)
        if type(value) is int and value < 0:
            changes[name] = None
            excesses.append(Excess(name, f"is {value}, which is negative"))
    return msgspec.structs.replace(totals, **changes)


def _limit_coverage(coverage: dict[str, Coverage], excesses: list[Excess]) -> dict[str, Coverage]:
    kept = {}
    for group, own in coverage.items():
        if not _is_share(own.time_share) or not _is_share(own.cpu_share):
            shares = f"{own.time_share} and {own.cpu_share}"
            excesses.append(Excess(f"coverage {group}", f"has the shares {shares}, not 0 to 1"))
        elif not 0 <= own.events_lost <= _MAX_INTEGER:
            lost = _shown(own.events_lost)
            excesses.append(Excess(f"coverage {group}", f"has {lost} events lost"))
        elif len(own.reason) > MAX_REASON:
            excesses.append(Excess(f"reason of the coverage {group}", "was shortened"))
            kept[group] = msgspec.structs.replace(own, reason=own.reason[:MAX_REASON])
        else:
            kept[group] = own
    return kept


def _limited(
    rows: Iterable[Any], is_valid: Callable[[Any], bool], name: str, excesses: list[Excess]
) -> Iterable[Any]:
    left_out = 0
    for row in rows:
        if is_valid(row):
            yield row
        else:
            left_out += 1
    excesses.append(Excess(name, f"have {left_out:,} rows with impossible figures"))


def _limit_gpus(gpus: list[GpuUse], excesses: list[Excess]) -> list[GpuUse]:
    """The GPUs whose figures are possible, each once."""
    if len(gpus) > MAX_PART_GPUS:
        reason = f"have {len(gpus):,} rows; at most {MAX_PART_GPUS} are stored"
        excesses.append(Excess("gpus", reason))
        gpus = gpus[:MAX_PART_GPUS]
    kept: dict[str, GpuUse] = {}
    for use in gpus:
        if use.key not in kept and _is_gpu(use):
            kept[use.key] = use
    if len(kept) < len(gpus):
        left_out = len(gpus) - len(kept)
        excesses.append(Excess("gpus", f"have {left_out:,} rows with impossible figures"))
    for use in kept.values():
        if not all(map(_is_coverage, use.coverage.values())):
            own: list[Excess] = []
            use.coverage = _limit_coverage(use.coverage, own)
            excesses += [Excess(f"GPU {use.key}: {one.field}", one.reason) for one in own]
    return list(kept.values())


def _is_gpu(use: GpuUse) -> bool:
    figures = _figures(use)
    return (
        min(figures) >= 0
        and max(figures) <= _MAX_INTEGER
        and _is_printable(use.key, MAX_GPU_KEY)
        and (use.parent is None or _is_printable(use.parent, MAX_GPU_KEY))
        and _is_printable(use.name, MAX_GPU_NAME, least=0)
        and _is_printable(use.uuid, MAX_GPU_NAME, least=0)
        and _are_rows(use.throttled_time or {})
        and all(0 <= time <= _MAX_INTEGER for time in (use.throttled_time or {}).values())
        and len(use.faults or ()) <= MAX_GPU_ROWS
        and all(map(_is_fault, use.faults or ()))
        and _are_rows(use.coverage)
    )


def _are_rows(table: Collection[str]) -> bool:
    return len(table) <= MAX_GPU_ROWS and all(_is_printable(name, MAX_GPU_KEY) for name in table)


def _is_fault(fault: GpuFault) -> bool:
    return (
        _is_printable(fault.kind, MAX_GPU_KEY)
        and 0 <= fault.count <= MAX_COUNT
        and 0 <= fault.last <= _MAX_INTEGER
        and (fault.code is None or 0 <= fault.code <= _MAX_ID)
    )


def _is_printable(text: str, longest: int, least: int = 1) -> bool:
    return least <= len(text) <= longest and text.isprintable() and _stored_size(text) <= longest


def _is_share(share: float | None) -> bool:
    # NaN compares false with everything.
    return share is None or 0 <= share <= 1


def _is_coverage(own: Coverage) -> bool:
    # Without a call for each share: every part of every batch comes here.
    time_share, cpu_share = own.time_share, own.cpu_share
    return (
        (time_share is None or 0 <= time_share <= 1)
        and (cpu_share is None or 0 <= cpu_share <= 1)
        and 0 <= own.events_lost <= _MAX_INTEGER
        and len(own.reason) <= MAX_REASON
    )


#: The figures of an executable by whether sums over runs are bounded by their own bound.
_COUNTS: Final = ("executions", "processes", "failures")
_counts_of_use: Callable[[ExecutableUse], tuple[int, ...]] = attrgetter(*_COUNTS)
_amounts_of_use: Callable[[ExecutableUse], tuple[int, ...]] = attrgetter(
    *(
        name
        for name in ExecutableUse.__struct_fields__
        if name not in ("path", "path_known", *_COUNTS)
    )
)


def _are_uses(uses: Sequence[ExecutableUse]) -> bool:
    counts = list(map(_counts_of_use, uses))
    return (
        min(map(min, counts)) >= 0
        and max(map(max, counts)) <= MAX_COUNT
        and min(map(min, map(_amounts_of_use, uses))) >= 0
    )


def _is_use(use: ExecutableUse) -> bool:
    return _are_uses([use])


def _is_step(use: StepUse) -> bool:
    return use.tasks <= MAX_COUNT and min(_figures(use), default=0) >= 0


def _figures(record: JobTotals | StepUse | GpuUse) -> list[int]:
    return [value for value in astuple(record) if type(value) is int]


def _stored_size(text: str) -> int:
    """Bytes of a text as it is stored: in UTF-8, NUL and lone surrogates escaped."""
    if text.isascii() and "\0" not in text:
        return len(text)
    return len(text.encode("utf-8", "backslashreplace")) + 3 * text.count("\0")


def _shown(number: int) -> str:
    # str() of a number with thousands of digits fails.
    return str(number) if abs(number) < 2**128 else f"{'-' if number < 0 else ''}2^128 or more"
