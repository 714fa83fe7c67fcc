"""Converters of single values, from any form in which Slurm writes them to jobsight's units.

A converter takes the value as it stands in a reply, JSON or text, and returns the converted value,
None if the value is not set, or raises ValueError. The tables in
:mod:`jobsight.scheduler.adapters.tables` assign converters to fields; :class:`RecordReader` applies
them and collects what could not be converted. Sections: numbers and text, times, trackable
resources, exit codes, states, and the reader.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from functools import cache
from typing import Any, NamedTuple, TypeVar

from jobsight.model import SECOND, real_signal
from jobsight.scheduler.hostlist import expand_hosts
from jobsight.scheduler.records import Problem

MIB = 2**20

#: NO_VAL and INFINITE in 32 and 64 bits, unsigned and signed. Not those of 16 bits: 65534 is also
#: a valid job id and user id.
_NO_VALUES = frozenset({2**32 - 2, 2**64 - 2, 2**32 - 1, 2**64 - 1, -1, -2})
_NO_NUMBER = frozenset({"", "n/a", "none", "(null)", "unlimited", "infinite", "unknown"})


_INTEGER = re.compile(r"[+-]?[0-9]{1,100}", re.ASCII)


def number(value: Any) -> int | float | None:
    """A number, plain, as text or wrapped in an object; None if it is not set or unlimited."""
    if value is None or isinstance(value, bool):
        return None if value is None else int(value)
    if isinstance(value, dict):
        if "number" not in value:
            raise ValueError(f"{value!r:.60} is not a number")
        if value.get("infinite") or value.get("set") is False:
            return None
        return number(value["number"])
    if isinstance(value, int):
        return value
    converted: int | float
    if isinstance(value, float):
        converted = value
    elif isinstance(value, str):
        text = value.strip()
        if text.lower() in _NO_NUMBER:
            return None
        try:
            converted = int(text) if _INTEGER.fullmatch(text) else float(text)
        except ValueError:
            raise ValueError(f"{text[:40]!r} is not a number") from None
    else:
        raise ValueError(f"{_KINDS.get(type(value), 'this')} is not a number")
    if isinstance(converted, float) and not math.isfinite(converted):
        raise ValueError(f"{converted} is not a number")
    return converted


def real(value: Any) -> float | None:
    converted = number(value)
    return None if converted is None else float(converted)


def integer(value: Any) -> int | None:
    """An integer; a fraction is an error and not rounded."""
    converted = number(value)
    if isinstance(converted, float):
        if converted != int(converted):
            raise ValueError(f"{converted} is not an integer")
        return int(converted)
    return converted


def amount(value: Any) -> int | None:
    """An integer; NO_VAL and INFINITE are None."""
    converted = integer(value)
    if converted in _NO_VALUES:
        return None
    if converted is not None and converted < 0:
        raise ValueError(f"{converted} is negative")
    return converted


def positive(value: Any) -> int | None:
    """An integer for which 0 means "none", such as the id of the array or heterogeneous job."""
    return amount(value) or None


def text_or_none(value: Any) -> str | None:
    """Text; empty text and ``(null)`` are None."""
    if value is None:
        return None
    if isinstance(value, str):
        return None if value in ("", "(null)") else value
    raise ValueError(f"{type(value).__name__} is not text")


def text_only(value: Any) -> str | None:
    """Text; None for any other type, which some releases write instead of a name."""
    return text_or_none(value) if isinstance(value, str) else None


def words(value: Any) -> tuple[str, ...]:
    """A list of words, or text separated by commas."""
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(word for word in value.split(",") if word and word != "(null)")
    if isinstance(value, Sequence) and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise ValueError(f"{value!r:.60} is not a list of words")


def flags(value: Any) -> tuple[str, ...] | None:
    """The same, with None for an empty list so that another path is tried."""
    return words(value) or None


def hosts(value: Any) -> tuple[str, ...] | None:
    """Node names, from a host list expression or a list."""
    if isinstance(value, str):
        return expand_hosts(value) or None
    return words(value) or None


# --- times -------------------------------------------------------------------------------------

_NOT_SET = frozenset({"", "unknown", "none", "n/a", "not_set", "(null)", "invalid"})
_UNLIMITED = frozenset({"unlimited", "infinite", "partition_limit"})
_DURATION = re.compile(
    r"(?:(?P<days>\d{1,9})-)?(?P<parts>\d{1,12}(?::\d{1,2}){0,2})(?:\.(?P<fraction>\d{1,9}))?",
    re.ASCII,
)


def time(value: Any) -> int | None:
    """A time as a number or as text."""
    if isinstance(value, str):
        return parse_time(value)
    converted = amount(value)
    return None if converted is None else from_epoch(converted)


def parse_time(text: str, zone: tzinfo = UTC) -> int | None:
    """Seconds since 1970, or an ISO time in the zone of the cluster."""
    text = text.strip()
    if text.lower() in _NOT_SET:
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


def from_epoch(seconds: int) -> int | None:
    """Seconds since 1970; 0, NO_VAL and INFINITE are None."""
    if seconds == 0 or seconds in _NO_VALUES:
        return None
    if seconds < 0 or seconds > 2**32:
        raise ValueError(f"{seconds:.6g} is not a time in seconds since 1970")
    return seconds * SECOND


def seconds(value: Any) -> int | None:
    converted = amount(value)
    return None if converted is None else converted * SECOND


def minutes(value: Any) -> int | None:
    """A time limit; 0 means that none has been set yet."""
    converted = amount(value)
    return converted * 60 * SECOND if converted else None


def minutes_or_duration(text: str) -> int | None:
    """A time limit of sacct: minutes, ``UNLIMITED`` or ``Partition_Limit``."""
    if text.isascii() and text.isdigit():
        return int(text) * 60 * SECOND
    return parse_duration(text)


def parse_duration(text: str) -> int | None:
    """``1-02:03:04``, ``02:03:04``, ``03:04.567`` or ``04``; None if unlimited or not set."""
    text = text.strip()
    if text.lower() in _NOT_SET or text.lower() in _UNLIMITED:
        return None
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a duration")
    parts = [int(part) for part in match["parts"].split(":")]
    if match["days"] is not None:
        # After days the first number is hours: administrators write 1-2 and 1-02:03.
        hours, minutes, seconds = [*parts, 0, 0][:3]
    else:
        hours, minutes, seconds = [0, 0, 0, *parts][-3:]
    total = int(match["days"] or 0) * 86400 + hours * 3600 + minutes * 60 + seconds
    fraction = int((match["fraction"] or "0").ljust(9, "0"))
    return total * SECOND + fraction


def cpu_time(value: Any) -> int | None:
    """CPU time as an object of seconds and microseconds, or in seconds."""
    if not isinstance(value, dict):
        return seconds(value)
    whole, micro = amount(value.get("seconds")), amount(value.get("microseconds"))
    if whole is None and micro is None:
        return None
    return (whole or 0) * SECOND + (micro or 0) * 1000


# --- trackable resources -----------------------------------------------------------------------

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_AMOUNT = re.compile(r"(\d{1,20}(?:\.\d{1,9})?)([KMGTPE]?)", re.ASCII)
_GRES = re.compile(
    r"(?P<name>[^:(),=]+)(?::(?P<type>[^:(),=]+))?(?:[:=](?P<count>\d{1,12}[KMG]?))?"
    r"(?P<notes>(?:\([^()]*\))*)"
)
#: Resources of the accounting by number; those from 1001 on are defined by the site.
NUMBERED = "tres/"
_TRES_NAMES = {1: "cpu", 2: "mem", 3: "energy", 4: "node", 5: "billing", 6: "fs/disk", 7: "vmem",
               8: "pages"}  # fmt: skip


def mebibytes(value: Any) -> int | None:
    converted = amount(value)
    return None if converted is None else converted * MIB


def parse_amount(text: str, *, memory: bool = False) -> int:
    """A number with a binary unit; memory without a unit is in MiB."""
    match = _AMOUNT.fullmatch(text.strip().upper())
    if match is None:
        raise ValueError(f"{text[:40]!r} is not an amount")
    unit = match[2] or ("M" if memory else "")
    return round(float(match[1]) * 1024 ** _POWERS[unit]) if unit else round(float(match[1]))


def parse_size(text: str) -> int | None:
    """Memory as sacct writes it: ``512M``, ``0``, ``4Gn``, ``2Gc`` (the suffix is ignored)."""
    text = text.strip().rstrip("cn")
    if not text or text in ("?", "N/A"):
        return None
    return parse_amount(text, memory=True)


def read_tres(value: Any) -> dict[str, int]:
    """Resources as text or as a list. Memory is in bytes, everything else is a count."""
    if value is None:
        return {}
    if isinstance(value, str):
        return parse_tres(value)
    if isinstance(value, list):
        return _tres_from_list(value)
    raise ValueError(f"{type(value).__name__} is not a form of resources")


def parse_tres(text: str) -> dict[str, int]:
    """``cpu=4,mem=16G,gres/gpu:a100=2``."""
    tres: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        kind, equals, count = part.rpartition("=")
        if not equals or not kind:
            raise ValueError(f"{part[:40]!r} is not a resource with its amount")
        kind = kind.strip()
        tres[kind] = tres.get(kind, 0) + parse_amount(count, memory=kind == "mem")
    return tres


def _tres_from_list(entries: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Entries of type, name and count; memory is counted in MiB."""
    tres: dict[str, int] = {}
    for entry in entries:
        kind = text_or_none(entry.get("type"))
        if kind is None:
            raise ValueError(f"a resource has no type: {dict(entry)!r:.60}")
        name = text_or_none(entry.get("name"))
        count = amount(entry.get("count"))
        if count is not None:
            key = f"{kind}/{name}" if name else kind
            tres[key] = tres.get(key, 0) + (count * MIB if kind == "mem" else count)
    return tres


def numbered_tres(text: str) -> dict[str, int]:
    """``1=4,2=100,1001=2``: numbers of the accounting instead of names; memory is in MiB."""
    tres: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d{1,9})=(\d{1,20})", part)
        if match is None:
            return parse_tres(text)
        count = amount(int(match[2]))
        if count is not None:
            name = _TRES_NAMES.get(int(match[1]), f"{NUMBERED}{match[1]}")
            tres[name] = count * MIB if name == "mem" else count
    return tres


def read_gres(value: Any) -> dict[str, int]:
    """Generic resources by name and type, from text or a list of texts."""
    return parse_gres(value if isinstance(value, str) else ",".join(words(value)))


def parse_gres(text: str) -> dict[str, int]:
    """``gpu:a100:4(S:0-1),gpu:1g.5gb:7,shard:8`` is ``gpu:a100`` 4 and so on."""
    gres: dict[str, int] = {}
    if text.strip() in ("", "(null)", "N/A"):
        return gres
    for part in split_outside(text):
        part = part.strip().removeprefix("gres/").removeprefix("gres:")
        match = _GRES.fullmatch(part)
        if match is None:
            raise ValueError(f"{part[:40]!r} is not a generic resource")
        kind, count = match["type"], match["count"]
        if kind is not None and count is None and re.fullmatch(r"\d{1,12}[KMG]?", kind, re.ASCII):
            kind, count = None, kind
        key = f"{match['name']}:{kind}" if kind else match["name"]
        gres[key] = gres.get(key, 0) + (parse_amount(count) if count else 1)
    return gres


def split_outside(text: str) -> list[str]:
    """The parts between commas that are not in parentheses."""
    return [part for part in re.split(r",(?![^()]*\))", text) if part]


def gpus_of(tres: Mapping[str, int]) -> dict[str, int]:
    """GPUs by type; those without a type as ``gpu``. The untyped entry is the total of both."""
    typed = {
        key.removeprefix("gres/gpu:"): count
        for key, count in tres.items()
        if key.startswith("gres/gpu:")
    }
    untyped = tres.get("gres/gpu", 0) - sum(typed.values())
    return typed | ({"gpu": untyped} if untyped > 0 else {})


def count_gpus(tres: Mapping[str, int]) -> int | None:
    """All GPUs of an allocation; None if the allocation is not known, or if it has resources by
    number, one of which may be a GPU."""
    gpus = sum(gpus_of(tres).values())
    by_number = any(name.startswith(NUMBERED) for name in tres)
    return gpus if gpus or (tres and not by_number) else None


# --- exit codes --------------------------------------------------------------------------------

_PAIR = re.compile(r"(\d{1,10}):(\d{1,5})(?:\s.*)?", re.ASCII)


class Exit(NamedTuple):
    """None is "not known"; a job killed by a signal has no exit code."""

    code: int | None = None
    signal: int | None = None


def read_exit(value: Any) -> Exit:
    """A wait status, or the object of newer replies."""
    if not isinstance(value, dict) or "number" in value:
        status = amount(value)
        return Exit() if status is None else from_wait_status(status)
    signal_value = value.get("signal")
    if isinstance(signal_value, dict):
        # "signal_id" up to 22.05, "id" since.
        signal_value = signal_value.get("id", signal_value.get("signal_id"))
    signal = amount(signal_value) or 0
    code = amount(value.get("return_code"))
    if code is None and not signal:
        return Exit()
    return exit_of(code or 0, signal)


def from_wait_status(status: int) -> Exit:
    """The status of wait(2), as the controller keeps it."""
    return exit_of(status >> 8 & 0xFFFFFF, status & 0x7F)


def parse_exit(text: str) -> Exit:
    """sacct's ``code:signal``."""
    match = _PAIR.fullmatch(text.strip())
    if match is None:
        if text.strip() == "":
            return Exit()
        raise ValueError(f"{text[:40]!r} is not an exit code")
    return exit_of(int(match[1]), int(match[2]))


def exit_of(code: int, signal: int) -> Exit:
    """The outcome by Slurm's code and signal."""
    # What a signal ended has no exit code. Slurm's 0:125 is no signal, so its code counts.
    return Exit(code or None if real_signal(signal) else code, signal or None)


def is_plausible(exit: Exit, state: str) -> bool:
    """False for success of a failed job: 22.05's JSON has code 0 for every job that failed."""
    return not (state == "FAILED" and exit.code == 0 and not exit.signal)


# --- states ------------------------------------------------------------------------------------

#: States in which a run ends; REQUEUED is the end of that run.
ENDED = frozenset({"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL",
                   "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT", "REQUEUED", "REVOKED"})  # fmt: skip
_FINAL_STATES = ENDED - {"REQUEUED", "REVOKED"}
_BASE_STATES = _FINAL_STATES | {"PENDING", "RUNNING", "SUSPENDED"}
#: A job in these has been requeued and waits; Slurm also shows the start that it expects.
_HELD = frozenset({"REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
#: All that Slurm up to 25.11 writes besides the base states.
_STATE_FLAGS = _HELD | {"COMPLETING", "CONFIGURING", "EXPEDITING", "LAUNCH_FAILED",
                        "POWER_UP_NODE", "RECONFIG_FAIL", "REQUEUED", "RESIZING", "REVOKED",
                        "SIGNALING", "STAGE_OUT", "STOPPED", "UPDATE_DB"}  # fmt: skip
_STATE = re.compile(r"[A-Z][A-Z0-9_]*", re.ASCII)
#: Names in compact output and in older releases.
_STATE_ALIASES = {
    "CANCELED": "CANCELLED",
    "NODE FAIL": "NODE_FAIL",
    "OUT OF MEMORY": "OUT_OF_MEMORY",
    "REQUEUE": "REQUEUED",
}
_NODE_SUFFIXES = {"*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP",
                  "!": "POWERING_DOWN", "%": "POWERING_DOWN", "$": "MAINTENANCE",
                  "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "-": "PLANNED"}  # fmt: skip
_NODE_ALIASES = {"ALLOC": "ALLOCATED", "MIX": "MIXED", "MAINT": "MAINTENANCE", "COMP": "COMPLETING",
                 "RESV": "RESERVED", "UNK": "UNKNOWN", "DRAINED": "IDLE+DRAIN",
                 "DRAINING": "ALLOCATED+DRAIN", "DRNG": "ALLOCATED+DRAIN"}  # fmt: skip


class JobState(NamedTuple):
    """The base state, and flags such as COMPLETING or REQUEUED."""

    state: str
    flags: tuple[str, ...] = ()

    @property
    def pending(self) -> bool:
        return self.state == "PENDING"

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def unknown(self) -> tuple[str, ...]:
        """Words that no known release of Slurm writes."""
        return tuple(
            word
            for word in (self.state, *self.flags)
            if word not in _BASE_STATES and word not in _STATE_FLAGS
        )

    @property
    def start_is_of_next_run(self) -> bool:
        """Whether the controller's start may be that of the next run: of a job that is being
        requeued, it changes the start before the nodes are free."""
        if self.state == "REQUEUED":
            return True
        others = set(self.flags)
        return self.state == "COMPLETING" and (
            not others & _FINAL_STATES or bool(others & ({"REQUEUED"} | _HELD))
        )


def job_state(value: Any) -> JobState:
    """A state, or the list of newer replies."""
    return _join_job_states(value) if isinstance(value, list) else parse_job_state(value)


def parse_job_state(text: str) -> JobState:
    """``RUNNING``, ``CANCELLED by 1000``, ``CANCELLED+``, ``failed``."""
    if not isinstance(text, str):
        raise ValueError(f"{_KINDS.get(type(text), 'this')} is not a job state")
    # sacct appends who cancelled the job.
    word = text.strip().upper().removesuffix("+").partition(" BY ")[0].strip()
    word = _STATE_ALIASES.get(word, word)
    if not _STATE.fullmatch(word):
        raise ValueError(f"{text[:40]!r} is not a job state")
    return JobState("PENDING", (word,)) if word in _HELD else JobState(word)


def _join_job_states(words: Sequence[str]) -> JobState:
    if not words:
        raise ValueError("a job has an empty list of states")
    # Each word once; a hold implies PENDING.
    parsed = (parse_job_state(word) for word in words)
    states = list(dict.fromkeys(word for state in parsed for word in (state.state, *state.flags)))
    flags = tuple(state for state in states if state not in _BASE_STATES)
    base = next((state for state in states if state in _BASE_STATES), states[0])
    if "COMPLETING" in flags:
        # The resources are still allocated, and the end is not recorded yet.
        return JobState("COMPLETING", tuple(state for state in states if state != "COMPLETING"))
    return JobState(base, tuple(state for state in states if state != base))


def node_state(value: Any) -> tuple[str, tuple[str, ...]]:
    """The state of a node and its flags: ``mixed*+drain`` is MIXED with NOT_RESPONDING, DRAIN."""
    states: list[str] = []
    for part in "+".join(words(value)).strip().upper().split("+"):
        part = part.strip()
        name = part.rstrip("*~#!%$@^-")
        states += _NODE_ALIASES.get(name, name).split("+")
        states += [_NODE_SUFFIXES[suffix] for suffix in part[len(name) :]]
    if not all(_STATE.fullmatch(state) for state in states):
        raise ValueError(f"{value!r:.40} is not a node state")
    return states[0], tuple(dict.fromkeys(states[1:]))


# --- the reader --------------------------------------------------------------------------------

Value = TypeVar("Value")

#: What a converter raises for a value that it does not understand.
CONVERSION_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
#: Levels of a value that was not understood and is kept.
_MAX_DEPTH = 8


def explain(error: Exception, value: Any) -> str:
    """Why a value was not understood, without the words of Python's own exceptions."""
    if type(error) is ValueError and error.args:
        return str(error)
    kind = _KINDS.get(type(value), type(value).__name__)
    return f"{kind} is not understood here"


_KINDS = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number",
          bool: "a truth value", type(None): "null"}  # fmt: skip


def storable(value: Any) -> Any:
    """A converted value as it can be stored: lone surrogates in text become ``\\udNNN``.

    Raises ValueError for an integer of more than 64 bits.
    """
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _without_surrogates(value)
    if kind is int:
        if not -(2**63) <= value < 2**63:
            raise ValueError("is a number of more than 64 bits")
    elif kind is tuple or kind is list:
        return kind([storable(entry) for entry in value])
    elif kind is dict:
        return {storable(key): storable(entry) for key, entry in value.items()}
    return value


def _without_surrogates(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _kept(value: Any, depth: int = 0) -> Any:
    """A value that was not understood, in a form that can be stored."""
    if isinstance(value, dict | list) and depth >= _MAX_DEPTH:
        return "..."
    if isinstance(value, dict):
        return {_without_surrogates(str(k)): _kept(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_kept(entry, depth + 1) for entry in value]
    if isinstance(value, str):
        return _without_surrogates(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return f"{value:.6e}" if abs(value) < 10**300 else "a number of more than 300 digits"
    return value if value is None or isinstance(value, int | float) else str(value)


@cache
def path_names(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


class RecordReader:
    """Reads the fields of one record, and keeps those that could not be converted.

    A field may have several paths ("time.start"), because releases moved it. The first path with
    a value counts.
    """

    def __init__(self, document: Mapping[str, Any], label: str) -> None:
        self.document = document
        self.label = _without_surrogates(label[:200])
        self.raw: dict[str, Any] = {}
        self.problems: list[Problem] = []

    def read(self, convert: Callable[[Any], Value | None], *paths: str) -> Value | None:
        """The converted value of the first path that has one."""
        for path in paths:
            value = self.value(path)
            if value is None:
                continue
            try:
                converted: Value | None = storable(convert(value))
            except CONVERSION_ERRORS as error:
                self.report(path, value, explain(error, value))
                continue
            if converted is not None:
                return converted
        return None

    def value(self, path: str) -> Any:
        """The value of a path as received, or None."""
        value: Any = self.document
        for name in path_names(path):
            if not isinstance(value, dict):
                return None
            value = value.get(name)
        return value

    def report(self, path: str, value: Any, reason: str) -> None:
        """Keep a value that was not understood; several fields may be read from one path."""
        if path not in self.raw:
            self.raw[path] = _kept(value)
            label, reason = map(_without_surrogates, (self.label[:200], reason))
            self.problems.append(Problem(label, path, reason))
