"""Values of replies: a number may be plain, wrapped, or one of Slurm's marks for "none".

Times and durations as Slurm's tools write them, into nanoseconds.

Trackable resources: ``cpu=4,mem=16G,gres/gpu:a100=2`` and the lists of newer replies.

Sizes are bytes where the kind is one of memory; everything else is a count.

How a job ended: exit code and signal, in each of the forms that Slurm gives them.

States of jobs and nodes: one word, and the flags beside it.

Reads one record of a reply field by field; what is not understood is kept and reported.

How single fields of JSON replies are read; one function for each kind of value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from functools import cache
from typing import Any, NamedTuple, TypeVar

from jobsight.model import SECOND
from jobsight.scheduler.hostlist import expand_hosts
from jobsight.scheduler.records import Problem

#: NO_VAL and INFINITE in 32 and 64 bits, unsigned and signed. Not those of 16 bits: 65534 is a
#: job id and a user id as well.
_MARKS = frozenset({2**32 - 2, 2**64 - 2, 2**32 - 1, 2**64 - 1, -1, -2})


def number(value: Any) -> int | float | None:
    """A number, plain or wrapped; None where it is not set or unlimited."""
    if value is None or isinstance(value, bool):
        return None if value is None else int(value)
    if isinstance(value, dict):
        if "number" not in value:
            raise ValueError(f"{value!r:.60} is not a number")
        if value.get("infinite") or value.get("set") is False:
            return None
        return number(value["number"])
    if isinstance(value, int | float):
        return value
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in ("", "n/a", "none", "(null)", "unlimited", "infinite", "unknown"):
            return None
        try:
            return int(text)
        except ValueError:
            return float(text)
    raise ValueError(f"{type(value).__name__} is not a number")


def integer(value: Any) -> int | None:
    """A whole number; fractions are an error, not rounded away."""
    found = number(value)
    if found is None:
        return None
    if isinstance(found, float):
        if found != int(found):
            raise ValueError(f"{found} is not a whole number")
        return int(found)
    return found


def amount(value: Any) -> int | None:
    """A whole number that is none of Slurm's marks for "none" and "unlimited"."""
    found = integer(value)
    return None if found is None or found in _MARKS else found


def identity(value: Any) -> int | None:
    """The id of an array or het job, where 0 means that it is none."""
    found = amount(value)
    return found or None


def text_or_none(value: Any) -> str | None:
    """Text; empty text and Slurm's ``(null)`` are None."""
    if value is None:
        return None
    if isinstance(value, str):
        return None if value in ("", "(null)") else value
    raise ValueError(f"{type(value).__name__} is not text")


def words(value: Any) -> tuple[str, ...]:
    """A list of words: a real list, or text with commas."""
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(word for word in value.split(",") if word and word != "(null)")
    if isinstance(value, Sequence) and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise ValueError(f"{value!r:.60} is not a list of words")


#: Words for "there is none" and "not yet".
NOT_SET = frozenset({"", "unknown", "none", "n/a", "not_set", "(null)", "invalid"})
UNLIMITED = frozenset({"unlimited", "infinite", "partition_limit"})

_DURATION = re.compile(
    r"(?:(?P<days>\d{1,9})-)?(?P<parts>\d{1,12}(?::\d{1,2}){0,2})(?:\.(?P<fraction>\d{1,9}))?",
    re.ASCII,
)
_LATEST = 7_258_118_400


def from_epoch(seconds: int) -> int | None:
    """A time in seconds since 1970; 0 and Slurm's marks for "none" are None."""
    if seconds <= 0 or seconds >= 2**32 - 2:
        return None
    return seconds * SECOND


def parse_time(text: str, zone: tzinfo = UTC) -> int | None:
    """Read seconds since 1970, or ISO time as the tools print it in the zone of the cluster."""
    text = text.strip()
    if text.lower() in NOT_SET:
        return None
    if text.isascii() and text.isdigit():
        return from_epoch(int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
    return from_epoch(int(moment.timestamp()))


def parse_duration(text: str) -> int | None:
    """Read ``1-02:03:04``, ``02:03:04``, ``03:04.567`` or ``04``; unlimited and unset are None."""
    text = text.strip()
    if text.lower() in NOT_SET or text.lower() in UNLIMITED:
        return None
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a duration")
    parts = [int(part) for part in match["parts"].split(":")]
    if match["days"] is not None:
        # Behind days the first number is hours: 1-2 and 1-02:03 are written by hand.
        hours, minutes, seconds = [*parts, 0, 0][:3]
    else:
        hours, minutes, seconds = [0, 0, 0, *parts][-3:]
    whole = int(match["days"] or 0) * 86400 + hours * 3600 + minutes * 60 + seconds
    fraction = int((match["fraction"] or "0").ljust(9, "0"))
    return whole * SECOND + fraction


def from_minutes(minutes: int) -> int:
    """A time limit: Slurm counts these in minutes."""
    return minutes * 60 * SECOND


_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_AMOUNT = re.compile(r"(\d{1,20}(?:\.\d{1,9})?)([KMGTPE]?)", re.ASCII)
#: Slurm counts these in MiB; in text they carry their unit, bare numbers are MiB again.
_MEMORY = frozenset({"mem"})
_SIZES = frozenset({"vmem"})
#: "There is no value" inside lists and sums.
_NOTHING = frozenset({-1, -2, 2**64 - 1, 2**64 - 2, 2**32 - 1, 2**32 - 2})
MIB = 2**20


def parse_tres(text: str) -> dict[str, int]:
    """Read a string of resources; ValueError for what is none."""
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        kind, equals, amount = part.rpartition("=")
        if not equals or not kind:
            raise ValueError(f"{part[:40]!r} is not a resource with its amount")
        kind = kind.strip()
        found[kind] = found.get(kind, 0) + parse_amount(amount, memory=kind in _MEMORY)
    return found


def parse_amount(text: str, *, memory: bool = False) -> int:
    """A number with a unit of 1024; a bare number of memory is MiB."""
    match = _AMOUNT.fullmatch(text.strip().upper())
    if match is None:
        raise ValueError(f"{text[:40]!r} is not an amount")
    unit = match[2] or ("M" if memory else "")
    return round(float(match[1]) * 1024 ** _POWERS[unit]) if unit else round(float(match[1]))


def parse_size(text: str) -> int | None:
    """A size of memory as sacct writes it: ``512M``, ``0``, ``4Gn``, ``2Gc`` (without its end)."""
    text = text.strip().rstrip("cn")
    if not text or text in ("?", "N/A"):
        return None
    return parse_amount(text, memory=True)


def tres_from_list(entries: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Read the list form: type, name, count."""
    found: dict[str, int] = {}
    for entry in entries:
        kind = text_or_none(entry.get("type"))
        if kind is None:
            raise ValueError(f"a resource has no type: {dict(entry)!r:.60}")
        name = text_or_none(entry.get("name"))
        count = integer(entry.get("count"))
        if count is None or count in _NOTHING:
            continue
        key = f"{kind}/{name}" if name else kind
        found[key] = found.get(key, 0) + (count * MIB if kind in _MEMORY else count)
    return found


def read_tres(value: Any) -> dict[str, int]:
    """Resources in either form, told apart by their content."""
    if value is None:
        return {}
    if isinstance(value, str):
        return parse_tres(value)
    if isinstance(value, list):
        return tres_from_list(value)
    raise ValueError(f"{type(value).__name__} is no form of resources")


_GRES = re.compile(
    r"(?P<name>[^:(),=]+)(?::(?P<type>[^:(),=]+))?(?:[:=](?P<count>\d{1,12}[KMG]?))?"
    r"(?P<notes>(?:\([^()]*\))*)"
)


def parse_gres(text: str) -> dict[str, int]:
    """Read ``gpu:a100:4(S:0-1),gpu:1g.5gb:7,shard:8`` into ``gpu:a100`` 4 and so on."""
    found: dict[str, int] = {}
    if text.strip() in ("", "(null)", "N/A"):
        return found
    for part in split_outside(text):
        part = part.strip().removeprefix("gres/").removeprefix("gres:")
        match = _GRES.fullmatch(part)
        if match is None:
            raise ValueError(f"{part[:40]!r} is not a generic resource")
        kind, count = match["type"], match["count"]
        if kind is not None and count is None and re.fullmatch(r"\d{1,12}[KMG]?", kind, re.ASCII):
            kind, count = None, kind
        key = f"{match['name']}:{kind}" if kind else match["name"]
        found[key] = found.get(key, 0) + (parse_amount(count) if count else 1)
    return found


def split_outside(text: str) -> list[str]:
    """The parts between commas outside of parentheses."""
    return [part for part in re.split(r",(?![^()]*\))", text) if part]


def gpus_of(tres: Mapping[str, int]) -> dict[str, int]:
    """GPUs by type; those without a type under ``gpu``. The untyped sum stands in both forms."""
    typed = {
        key.removeprefix("gres/gpu:"): count
        for key, count in tres.items()
        if key.startswith("gres/gpu:")
    }
    whole = tres.get("gres/gpu", 0)
    rest = whole - sum(typed.values())
    return typed | ({"gpu": rest} if rest > 0 else {})


def count_gpus(tres: Mapping[str, int]) -> int | None:
    """All GPUs of an allocation; None where nothing is known of it."""
    return sum(gpus_of(tres).values()) if tres else None


_PAIR = re.compile(r"(\d{1,10}):(\d{1,5})(?:\s.*)?", re.ASCII)


class Exit(NamedTuple):
    """None is "not known"; a job killed by a signal has no exit code."""

    code: int | None = None
    signal: int | None = None


def parse_exit(text: str) -> Exit:
    """Read sacct's ``code:signal``."""
    match = _PAIR.fullmatch(text.strip())
    if match is None:
        if text.strip() == "":
            return Exit()
        raise ValueError(f"{text[:40]!r} is not an exit code")
    return _pair(int(match[1]), int(match[2]))


def from_wait_status(status: int) -> Exit:
    """Read the number that wait(2) gives, as the controller passes it on."""
    return _pair(status >> 8 & 0xFFFFFF, status & 0x7F)


def read_exit(value: Any) -> Exit:
    """Read a plain wait status or the object of newer replies."""
    if not isinstance(value, dict) or "number" in value:
        status = amount(value)
        return Exit() if status is None else from_wait_status(status)
    signal_value = value.get("signal")
    if isinstance(signal_value, dict):
        # "signal_id" to 22.05, "id" since.
        signal_value = signal_value.get("id", signal_value.get("signal_id"))
    signal = amount(signal_value) or 0
    code = amount(value.get("return_code"))
    if code is None and not signal:
        return Exit()
    return _pair(code or 0, signal)


def _pair(code: int, signal: int) -> Exit:
    if signal:
        return Exit(code or None, signal)
    return Exit(code, None)


def is_plausible(found: Exit, state: str) -> bool:
    """Whether an exit fits the state: 22.05's JSON says 0 for every job that failed by its code."""
    return not (state == "FAILED" and found.code == 0 and not found.signal)


#: States of a job that has not ended.
WAITING = frozenset({"PENDING"})
ACTIVE = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "SIGNALING",
                    "STAGE_OUT", "RESIZING", "POWER_UP_NODE"})  # fmt: skip
#: States in which a job may end for good; REQUEUED is the end of that run.
ENDED = frozenset({"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL",
                   "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT", "REQUEUED", "REVOKED"})  # fmt: skip
_BASE = frozenset({"PENDING", "RUNNING", "SUSPENDED"}) | (ENDED - {"REQUEUED", "REVOKED"})
_WORD = re.compile(r"[A-Z][A-Z0-9_]*", re.ASCII)
#: What the compact and the older tools write.
_OTHER_NAMES = {
    "CANCELED": "CANCELLED",
    "NODE FAIL": "NODE_FAIL",
    "OUT OF MEMORY": "OUT_OF_MEMORY",
    "REQUEUE": "REQUEUED",
}


class JobState(NamedTuple):
    """The state that counts, and whatever else was said beside it."""

    state: str
    flags: tuple[str, ...] = ()

    @property
    def waiting(self) -> bool:
        return self.state in WAITING

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def parse_job_state(text: str) -> JobState:
    """Read one state: ``RUNNING``, ``CANCELLED by 1000``, ``CANCELLED+``, ``failed``."""
    word = text.strip().upper().removesuffix("+")
    # sacct adds who did it. Only what stands before it is a state.
    word = word.partition(" BY ")[0].strip()
    word = _OTHER_NAMES.get(word, word)
    if not _WORD.fullmatch(word):
        raise ValueError(f"{text[:40]!r} is not a state of a job")
    return JobState(word)


def join_job_states(words: Sequence[str]) -> JobState:
    """Read a list as it stands in newer replies: the base state, then flags such as COMPLETING."""
    if not words:
        raise ValueError("a job has an empty list of states")
    states = [parse_job_state(word).state for word in words]
    flags = tuple(state for state in states if state not in _BASE)
    base = next((state for state in states if state in _BASE), states[0])
    if "COMPLETING" in flags:
        # Its resources are not free yet and its end is not booked.
        return JobState("COMPLETING", tuple(state for state in states if state != "COMPLETING"))
    return JobState(base, tuple(state for state in states if state != base))


_NODE_MARKS = {"*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP",
               "!": "POWERING_DOWN", "%": "POWERING_DOWN", "$": "MAINTENANCE",
               "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "-": "PLANNED"}  # fmt: skip
_NODE_NAMES = {"ALLOC": "ALLOCATED", "MIX": "MIXED", "MAINT": "MAINTENANCE", "COMP": "COMPLETING",
               "RESV": "RESERVED", "UNK": "UNKNOWN", "DRAINED": "IDLE+DRAIN",
               "DRAINING": "ALLOCATED+DRAIN", "DRNG": "ALLOCATED+DRAIN"}  # fmt: skip


def parse_node_state(words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The state of a node in capitals, and its flags: ``mixed*+drain`` is MIXED, with two."""
    pieces: list[str] = []
    for word in words:
        for piece in word.strip().upper().split("+"):
            name = piece.rstrip("*~#!%$@^-")
            pieces += _NODE_NAMES.get(name, name).split("+")
            pieces += [_NODE_MARKS[mark] for mark in piece[len(name) :]]
    if not pieces or not all(_WORD.fullmatch(piece) for piece in pieces):
        raise ValueError(f"{'+'.join(words)[:40]!r} is not a state of a node")
    return pieces[0], tuple(dict.fromkeys(pieces[1:]))


Value = TypeVar("Value")


@cache
def _names(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


class RecordReader:
    """One record, and the fields of it that could not be read.

    A field may stand under several paths ("time.start"): releases moved them. The first path
    that holds something counts.
    """

    def __init__(self, document: Mapping[str, Any], label: str) -> None:
        self.document = document
        self.label = label
        self.raw: dict[str, Any] = {}
        self.problems: list[Problem] = []

    def read(self, reader: Callable[[Any], Value | None], *paths: str) -> Value | None:
        """The value under the first path that has one."""
        for path in paths:
            value = self.value(path)
            if value is None:
                continue
            try:
                found = reader(value)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
                self.report(path, value, str(error))
                continue
            if found is not None:
                return found
        return None

    def value(self, path: str) -> Any:
        """What stands under a path as it came; None where nothing does."""
        found: Any = self.document
        for name in _names(path):
            if not isinstance(found, dict):
                return None
            found = found.get(name)
        return found

    def report(self, path: str, value: Any, reason: str) -> None:
        """Keep a value that was not understood."""
        self.raw[path] = value
        self.problems.append(Problem(self.label, path, reason))


def time(value: Any) -> int | None:
    if isinstance(value, str):
        return parse_time(value)
    found = amount(value)
    return None if found is None else from_epoch(found)


def seconds(value: Any) -> int | None:
    found = amount(value)
    return None if found is None else found * SECOND


def minutes(value: Any) -> int | None:
    """A time limit; 0 is what a job has before it gets one."""
    found = amount(value)
    return from_minutes(found) if found else None


def mebibytes(value: Any) -> int | None:
    found = amount(value)
    return None if found is None else found * MIB


def cpu_time(value: Any) -> int | None:
    """Seconds and microseconds."""
    if not isinstance(value, dict):
        return seconds(value)
    whole, rest = amount(value.get("seconds")), amount(value.get("microseconds"))
    if whole is None and rest is None:
        return None
    return (whole or 0) * SECOND + (rest or 0) * 1000


def load(value: Any) -> float | None:
    """The load average: hundredths as a whole number."""
    found = number(value)
    return None if found is None or found >= 2**32 - 2 or found < 0 else found / 100


def job_state(value: Any) -> JobState:
    if isinstance(value, list):
        return join_job_states(value)
    return parse_job_state(value)


def hosts(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return expand_hosts(value) or None
    return words(value) or None


def name(value: Any) -> str | None:
    """A name; 21.08 to 22.05 write 0 for a reservation that has none."""
    return None if value == 0 else text_or_none(value)


def flags(value: Any) -> tuple[str, ...] | None:
    return words(value) or None
