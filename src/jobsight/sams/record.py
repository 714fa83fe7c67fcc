"""A SAMS record: the document of one job on one node, written by a collector.

Records arrive over a network and contain names that users choose, so each value is validated. A
record with one invalid value is refused completely, with one sentence as the reason.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, tzinfo
from functools import lru_cache
from typing import Final, NoReturn, TypeVar

import msgspec

from jobsight.errors import JobsightError
from jobsight.model import MAX_JOB_ID, SECOND
from jobsight.text import path_bytes

#: Bytes of one record; enough for some 400,000 different programs.
MAX_SIZE: Final = 64 * 2**20
#: Seconds since 1970. Outside 1990 to 2200 a clock or a unit is wrong.
EARLIEST: Final = 631_152_000
LATEST: Final = 7_258_118_400

_MAX_CPU: Final = 2**62
_MAX_SECONDS: Final = _MAX_CPU / SECOND
_MAX_PATH: Final = 64 * 1024
#: Longer paths are not cached: thousands of them would need much memory.
_MAX_CACHED_PATH: Final = 256
#: Text that a user chooses (a job's name) is cut, so that it cannot make a record invalid.
_MAX_TEXT: Final = 1024
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class RecordError(JobsightError, ValueError):
    """The bytes are not a valid record; the text says why."""


class _Core(msgspec.Struct):
    jobid: int | str
    node: str


class _Use(msgspec.Struct):
    user: float
    system: float


class _Counter(msgspec.Struct):
    total_user: float | None = None
    total_system: float | None = None


class _Software(msgspec.Struct):
    execs: dict[str, _Use] = {}
    start_time: float | None = None
    end_time: float | None = None
    #: Only in the final document of jobsight's own collector.
    current: _Counter | None = None


_Text = str | int | float | None


class _Info(msgspec.Struct):
    account: _Text = None
    username: _Text = None
    uid: _Text = None
    cpus: _Text = None
    partition: _Text = None
    jobname: _Text = None
    starttime: _Text = None
    starttimestamp: _Text = None


class _CoreDocument(msgspec.Struct):
    core: _Core = msgspec.field(name="sams.sampler.Core")


class _Document(msgspec.Struct):
    core: _Core = msgspec.field(name="sams.sampler.Core")
    software: _Software | None = msgspec.field(name="sams.sampler.Software", default=None)
    info: _Info | None = msgspec.field(name="sams.sampler.SlurmInfo", default=None)


class SlurmInfo(msgspec.Struct, array_like=True):
    """The owner and resources of a job as reported by Slurm; times in nanoseconds."""

    user: str | None = None
    uid: int | None = None
    account: str | None = None
    partition: str | None = None
    name: str | None = None
    cpus: int | None = None
    start: int | None = None


class SamsRecord(msgspec.Struct, array_like=True):
    """A valid record; times and CPU times in nanoseconds."""

    job_id: int
    node: str
    #: None if it is absent or empty: a failing scontrol leaves it empty.
    info: SlurmInfo | None
    #: User and system time by path.
    executables: dict[bytes, tuple[int, int]]
    #: The first process and the last sample, by the node's clock.
    first: int | None
    last: int | None
    #: User and system time of the job's cgroup, if jobsight's collector wrote the record.
    counter: tuple[int, int] | None = None

    def cpu(self) -> tuple[int, int]:
        """Total user and system time."""
        if self.counter is not None:
            return self.counter
        uses = self.executables.values()
        return sum([user for user, _ in uses]), sum([system for _, system in uses])


_CORE_DECODER: Final = msgspec.json.Decoder(_CoreDocument)
_DECODER: Final = msgspec.json.Decoder(_Document)
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def parse_job_id(data: bytes) -> int:
    """The job id of a JSON document, of which nothing else is validated."""
    return _job_id(_decode(data, _CORE_DECODER).core.jobid)


def parse_record(data: bytes, zone: tzinfo | None = None) -> SamsRecord:
    """Parse a record; ``zone`` is that of its ``starttime``, by default this machine's."""
    document = _decode(data, _DECODER)
    job_id = _job_id(document.core.jobid)
    node = document.core.node
    if not 0 < len(node) <= 255 or _CONTROL.search(node):
        raise RecordError(f"the record's node {node[:80]!r} is not a name")
    software = document.software or _Software()
    return SamsRecord(
        job_id=job_id,
        node=node,
        info=None if document.info is None else _info(document.info, zone),
        executables=_executables(software),
        first=_moment(software.start_time),
        last=_moment(software.end_time),
        counter=_counter(software.current),
    )


def _decode(data: bytes, decoder: msgspec.json.Decoder[_Struct]) -> _Struct:
    try:
        try:
            return decoder.decode(data)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError as error:
            # SAMS writes bytes that are not UTF-8 as lone surrogates, which only Python's own
            # parser accepts.
            if "surrogate" not in str(error):
                raise
            return msgspec.convert(json.loads(data, parse_constant=_refuse_constant), decoder.type)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RecordError(f"the data is not a SAMS record: {_reason(error)}") from None


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    return re.sub(r" - at `\$\.?(.*)`$", r" (at \1)", str(error))


def _job_id(given: int | str) -> int:
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 20:
        given = int(given)
    if not isinstance(given, int) or not 0 < given <= MAX_JOB_ID:
        raise RecordError(
            f"the record's jobid {str(given)[:40]!r} is not a job id; expected a number"
        )
    return given


def _executables(software: _Software) -> dict[bytes, tuple[int, int]]:
    executables: dict[bytes, tuple[int, int]] = {}
    total = 0
    own_collector = software.current is not None
    for text, use in software.execs.items():
        # NaN fails the comparison as well.
        if not (0 <= use.user < _MAX_SECONDS and 0 <= use.system < _MAX_SECONDS):
            seconds = use.system if 0 <= use.user < _MAX_SECONDS else use.user
            raise RecordError(
                f"the CPU time of {text[:80]!r} is {seconds!r}, which is out of range"
            )
        user, system = round(use.user * SECOND), round(use.system * SECOND)
        total += user + system
        path = _path(text, own_collector)
        if path in executables:
            earlier = executables[path]
            user, system = user + earlier[0], system + earlier[1]
        executables[path] = user, system
    if total > _MAX_CPU:
        raise RecordError("the sum of the record's CPU times is out of range")
    return executables


def _path(text: str, own_collector: bool) -> bytes:
    """A path's bytes, cached: the next record is likely to contain the same paths."""
    return (
        _cached_path_of(text, own_collector)
        if len(text) <= _MAX_CACHED_PATH
        else _path_of(text, own_collector)
    )


def _path_of(text: str, own_collector: bool) -> bytes:
    """A path's bytes. jobsight's own collector escapes what is not text as ``\\xNN``."""
    try:
        path = (
            path_bytes(text)
            if own_collector and "\\" in text
            else text.encode("utf-8", "surrogateescape")
        )
    except UnicodeEncodeError:
        path = text.encode("utf-8", "surrogatepass")
    if not 0 < len(path) <= _MAX_PATH:
        raise RecordError(f"the path of a program has {len(path)} bytes; expected 1 to {_MAX_PATH}")
    return path


_cached_path_of = lru_cache(maxsize=8192)(_path_of)


def _moment(seconds: float | None) -> int | None:
    """A node's time; SAMS writes 0 if it has seen no process."""
    if seconds is None or not EARLIEST <= seconds < LATEST:
        return None
    return int(seconds) * SECOND


def _counter(current: _Counter | None) -> tuple[int, int] | None:
    if current is None or current.total_user is None or current.total_system is None:
        return None
    user, system = current.total_user, current.total_system
    if not (0 <= user < _MAX_SECONDS / 2 and 0 <= system < _MAX_SECONDS / 2):
        return None
    return round(user * SECOND), round(system * SECOND)


def _info(info: _Info, zone: tzinfo | None) -> SlurmInfo | None:
    parsed = SlurmInfo(
        user=_text(info.username),
        uid=_number(info.uid),
        account=_text(info.account),
        partition=_text(info.partition),
        name=_text(info.jobname),
        cpus=_number(info.cpus),
        start=_start(info, zone),
    )
    return parsed if parsed != SlurmInfo() else None


def _text(value: _Text) -> str | None:
    return None if value is None or value == "" else str(value)[:_MAX_TEXT]


def _number(value: _Text) -> int | None:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _start(info: _Info, zone: tzinfo | None) -> int | None:
    try:
        stamp = float(info.starttimestamp or 0)
    except (ValueError, OverflowError):
        stamp = 0.0
    # NaN fails the comparison.
    if EARLIEST <= stamp < LATEST:
        return round(stamp * 1000) * (SECOND // 1000)
    if isinstance(info.starttime, str):
        try:
            moment = datetime.fromisoformat(info.starttime)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=zone)
            return _moment(moment.timestamp())
        except (ValueError, OverflowError, OSError):
            # Slurm writes "Unknown" for a job that has not started.
            return None
    return None
