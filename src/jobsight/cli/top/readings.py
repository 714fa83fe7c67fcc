"""What is known of running jobs at one time, and what they use between two such times.

A rate is that between two samples which differ. Until there are two, it is the mean since the start
of the job, which is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from jobsight.text import readable_text
from jobsight.util.units import (
    UNKNOWN,
    format_byte_rate,
    format_bytes,
    format_count,
    format_duration,
    format_share,
)

_SECOND: Final = 10**9


class Reading(NamedTuple):
    """A running job at one time. None is not known. Times are nanoseconds, sizes are bytes."""

    #: Identifies the job from one reading to the next.
    key: str
    #: 12, 62_3 or 88+1.
    job: str
    user: str
    name: str
    #: When the counters were read, and how long the job had run then.
    as_of: int
    elapsed: int | None
    nodes: int | None = None
    cpus: int | None = None
    memory_requested: int | None = None
    time_limit: int | None = None
    #: Counters since the start.
    cpu_time: int | None = None
    read: int | None = None
    written: int | None = None
    #: The time of all GPUs of the job in which they were used.
    gpu_time: int | None = None
    #: Gauges.
    memory: int | None = None
    #: The gauge is the highest value so far.
    memory_is_peak: bool = False
    gpus: int | None = None
    #: GPUs in use now, where a gauge is known.
    gpus_busy: float | None = None
    #: Lines for the details.
    details: tuple[str, ...] = ()


class Rate(NamedTuple):
    """A use per second, and whether it is only the mean since the start."""

    value: float | None
    is_mean: bool = False


class Row(NamedTuple):
    """A job with what it uses now."""

    reading: Reading
    cores: Rate
    read: Rate
    written: Rate
    gpus: Rate

    @property
    def core_share(self) -> float | None:
        cpus = self.reading.cpus
        return None if self.cores.value is None or not cpus else self.cores.value / cpus

    @property
    def memory_share(self) -> float | None:
        used, requested = self.reading.memory, self.reading.memory_requested
        return None if used is None or not requested else used / requested


class RateTable:
    """Computes rates from one reading of all jobs to the next."""

    def __init__(self) -> None:
        #: The last two readings of each job that differ.
        self._known: dict[str, tuple[Reading | None, Reading]] = {}

    def update(self, readings: Iterable[Reading]) -> list[Row]:
        """The rows of the jobs that run now; those that are gone are forgotten."""
        known: dict[str, tuple[Reading | None, Reading]] = {}
        rows = []
        for reading in readings:
            before, last = self._known.get(reading.key, (None, None))
            if last is not None and _is_same_sample(last, reading):
                # The same sample again: what it said still holds.
                pair = (before, last)
            else:
                pair = (last, reading)
            known[reading.key] = pair
            rows.append(_row(reading, *pair))
        self._known = known
        return rows


def _is_same_sample(last: Reading, reading: Reading) -> bool:
    if reading.as_of <= last.as_of:
        return True
    counters = ("cpu_time", "read", "written", "gpu_time")
    return all(getattr(last, name) == getattr(reading, name) for name in counters)


def _row(reading: Reading, before: Reading | None, last: Reading) -> Row:
    gpus = _rate(before, last, "gpu_time")
    if reading.gpus_busy is not None:
        gpus = Rate(reading.gpus_busy)
    return Row(
        reading=reading,
        cores=_rate(before, last, "cpu_time"),
        read=_rate(before, last, "read", _SECOND),
        written=_rate(before, last, "written", _SECOND),
        gpus=gpus,
    )


def _rate(before: Reading | None, last: Reading, name: str, scale: int = 1) -> Rate:
    now: int | None = getattr(last, name)
    if now is None:
        return Rate(None)
    if before is not None:
        then: int | None = getattr(before, name)
        passed = last.as_of - before.as_of
        # A counter that fell belongs to another run of the job.
        if then is not None and passed > 0 and now >= then:
            return Rate((now - then) * scale / passed)
    if not last.elapsed:
        return Rate(None)
    return Rate(now * scale / last.elapsed, is_mean=True)


# --- columns --------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """A text, and whether it is dimmed."""

    text: str
    dim: bool = False


class Column(NamedTuple):
    """A column: its cell, and what it sorts by, the largest first."""

    name: str
    cell: Callable[[Row], Cell]
    key: Callable[[Row], float | str]
    right: bool = True


def _number(value: float | None) -> float:
    return -1.0 if value is None else value


def _rate_cell(rate: Rate) -> Cell:
    text = UNKNOWN if rate.value is None else format_byte_rate(rate.value)
    return Cell(text, rate.is_mean)


def _cores(row: Row) -> Cell:
    value = row.cores.value
    return Cell(UNKNOWN if value is None else f"{value:.2f}", row.cores.is_mean)


def _gpus(row: Row) -> Cell:
    if not row.reading.gpus:
        return Cell("")
    busy = row.gpus.value
    used = UNKNOWN if busy is None else f"{busy:.2f}"
    return Cell(f"{used} of {row.reading.gpus}", row.gpus.is_mean)


def _memory(row: Row) -> Cell:
    # The highest value so far is not what is used now.
    return Cell(format_bytes(row.reading.memory), row.reading.memory_is_peak)


COLUMNS: Final = (
    Column("job", lambda row: Cell(row.reading.job), lambda row: row.reading.job, right=False),
    Column(
        "user",
        lambda row: Cell(readable_text(row.reading.user)[:16]),
        lambda row: row.reading.user,
        right=False,
    ),
    Column(
        "name",
        lambda row: Cell(readable_text(row.reading.name)[:24]),
        lambda row: row.reading.name,
        right=False,
    ),
    Column(
        "nodes",
        lambda row: Cell(format_count(row.reading.nodes)),
        lambda row: _number(row.reading.nodes),
    ),
    Column(
        "CPUs",
        lambda row: Cell(format_count(row.reading.cpus)),
        lambda row: _number(row.reading.cpus),
    ),
    Column("cores", _cores, lambda row: _number(row.cores.value)),
    Column(
        "CPU",
        lambda row: Cell(format_share(row.core_share), row.cores.is_mean),
        lambda row: _number(row.core_share),
    ),
    Column("memory", _memory, lambda row: _number(row.reading.memory)),
    Column(
        "share",
        lambda row: Cell(format_share(row.memory_share), row.reading.memory_is_peak),
        lambda row: _number(row.memory_share),
    ),
    Column("read", lambda row: _rate_cell(row.read), lambda row: _number(row.read.value)),
    Column("written", lambda row: _rate_cell(row.written), lambda row: _number(row.written.value)),
    Column("GPUs", _gpus, lambda row: _number(row.gpus.value if row.reading.gpus else None)),
    Column(
        "elapsed",
        lambda row: Cell(format_duration(row.reading.elapsed)),
        lambda row: _number(row.reading.elapsed),
    ),
)
BY_NAME: Final = {column.name.lower(): column for column in COLUMNS}


def select(rows: Iterable[Row], *, text: str, sort: str, reverse: bool) -> list[Row]:
    """The rows that contain a text in job, user or name, sorted by a column."""
    wanted = text.casefold()
    found = [
        row
        for row in rows
        if wanted in f"{row.reading.job}\n{row.reading.user}\n{row.reading.name}".casefold()
    ]
    column = BY_NAME[sort]
    # Numbers begin with the largest, texts with the first.
    return sorted(found, key=column.key, reverse=column.right != reverse)


def summary(rows: list[Row]) -> str:
    """All jobs in one line."""
    cores = sum(row.cores.value or 0.0 for row in rows)
    cpus = sum(row.reading.cpus or 0 for row in rows)
    memory = sum(row.reading.memory or 0 for row in rows)
    jobs = "1 job" if len(rows) == 1 else f"{format_count(len(rows))} jobs"
    parts = [jobs, f"{cores:,.1f} of {format_count(cpus)} CPUs busy", format_bytes(memory)]
    gpus = sum(row.reading.gpus or 0 for row in rows)
    if gpus:
        busy = sum(row.gpus.value or 0.0 for row in rows if row.reading.gpus)
        parts.append(f"{busy:,.1f} of {format_count(gpus)} GPUs busy")
    return ", ".join(parts)
