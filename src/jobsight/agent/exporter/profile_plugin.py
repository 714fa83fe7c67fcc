"""The datagrams of Slurm's profile plugin: the last sample of each task, offered by the exporter.

Only root can reach the socket. What comes is bounded, and goes when its step has ended or nobody
speaks of it any more.

The names of what Slurm's profile plugin sends to the agent, in base units.

The plugin sends Slurm's own fields by group; a field that is not in the table, of a newer Slurm or
of a sensor, gets its name as it is.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from jobsight.agent.collector import Collector
from jobsight.agent.exporter.exporter import Lines
from jobsight.errors import JobsightError
from jobsight.prometheus.exposition import labels_text
from jobsight.prometheus.names import JOB_LABELS, Family, Kind

SOCKET: Final = "profile.sock"
#: Samples of so many tasks and groups are kept.
_MOST: Final = 4096
#: Datagrams that are read before the loop goes on.
_AT_ONCE: Final = 64
#: Seconds after which a task that nobody speaks of is forgotten, or three of its intervals.
_SILENCE: Final = 300.0
_TICK: Final = 5.0

_Word = Annotated[str, msgspec.Meta(max_length=256)]
_GROUP: Final = re.compile(r"[a-z][a-z0-9_]*")


class Datagram(msgspec.Struct):
    """What the plugin says: a sample, or without values the end of the step on this node."""

    job: Annotated[int, msgspec.Meta(ge=0)]
    step: _Word
    node: _Word
    dropped: int = 0
    failed: int = 0
    group: _Word = ""
    task: _Word = ""
    time: int = 0
    values: Annotated[dict[_Word, float | None], msgspec.Meta(max_length=64)] | None = None


_DECODER: Final = msgspec.json.Decoder(Datagram)


class _Kept:
    """The last sample of one task or group, ready for a scrape."""

    __slots__ = ("gone_at", "interval", "lines", "seen_at")

    def __init__(self, now: float) -> None:
        self.lines: list[Lines] = []
        self.seen_at = now
        self.interval = 0.0
        self.gone_at: float | None = None

    def renew(self, lines: list[Lines], now: float) -> None:
        self.interval = max(self.interval, now - self.seen_at)
        self.lines, self.seen_at, self.gone_at = lines, now, None

    def over(self, now: float) -> bool:
        if self.gone_at is not None:
            return now >= self.gone_at
        return now - self.seen_at > max(_SILENCE, 3 * self.interval)


Step = tuple[str, int, str]


class PluginSocket:
    """Driven by the collector's loop; a source of the exporter."""

    def __init__(
        self,
        folder: Path,
        collector: Collector,
        *,
        keep_ended: float = 30.0,
        most: int = _MOST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = folder / SOCKET
        self.refused = 0
        self._collector = collector
        self._keep_ended = keep_ended
        self._most = most
        self._clock = clock
        #: By step, then by group and task; ("", "") is the plugin itself.
        self._steps: dict[Step, dict[tuple[str, str], _Kept]] = {}
        self._socket = _bound(self.path)
        collector.watch(self._socket.fileno(), self._read)
        collector.every(_TICK, self.tick)

    def __call__(self) -> Iterable[Lines]:
        """All that is offered now; from any thread."""
        now = self._clock()
        for kept in [one for step in list(self._steps.values()) for one in list(step.values())]:
            if not kept.over(now):
                yield from kept.lines
        if self.refused:
            name = REFUSED.name
            own = labels_text({"cluster": self._collector.cluster, "node": self._collector.node})
            yield Lines(REFUSED, f"{name}{{{own}}} {self.refused}\n")

    def __len__(self) -> int:
        return sum(map(len, list(self._steps.values())))

    def _read(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                data = self._socket.recv(65536)
            except BlockingIOError:
                return
            except OSError as error:
                self._collector.faults.note("the socket of Slurm's plugin", error)
                return
            self.take(data)

    def take(self, data: bytes) -> None:
        """Take one datagram."""
        try:
            datagram = _DECODER.decode(data)
        except msgspec.MsgspecError:
            self.refused += 1
            return
        step = (datagram.node, datagram.job, datagram.step)
        if datagram.values is None:
            self._end(step)
        elif _GROUP.fullmatch(datagram.group):
            self._keep(step, datagram, datagram.values)
        else:
            self.refused += 1

    def _keep(self, step: Step, datagram: Datagram, values: Mapping[str, float | None]) -> None:
        of_step = self._steps.get(step, {})
        key = (datagram.group, datagram.task)
        new = sum(one not in of_step for one in (key, ("", "")))
        if new and len(self) + new > self._most:
            self.refused += 1
            return
        now = self._clock()
        labels = (self._collector.cluster, datagram.node, str(datagram.job), datagram.step)
        own = dict(zip((*JOB_LABELS, "step"), labels, strict=True))
        of_step = self._steps.setdefault(step, of_step)
        of_step.setdefault(("", ""), _Kept(now)).renew(_losses(datagram, labels_text(own)), now)
        own["group"] = datagram.group
        if datagram.task:
            own["task"] = datagram.task
        of_step.setdefault(key, _Kept(now)).renew(_lines(datagram, values, labels_text(own)), now)

    def _end(self, step: Step) -> None:
        """The last values stay for a scrape."""
        for kept in self._steps.get(step, {}).values():
            kept.gone_at = self._clock() + self._keep_ended

    def tick(self) -> None:
        """Forget what is over."""
        now = self._clock()
        for step, of_step in list(self._steps.items()):
            for key, kept in list(of_step.items()):
                if kept.over(now):
                    del of_step[key]
            if not of_step:
                del self._steps[step]

    def close(self) -> None:
        self._collector.unwatch(self._socket.fileno())
        self._socket.close()
        self.path.unlink(missing_ok=True)


def _lines(datagram: Datagram, values: Mapping[str, float | None], labels: str) -> list[Lines]:
    stamp = TIMESTAMP
    lines = [Lines(stamp, f"{stamp.name}{{{labels}}} {datagram.time}\n")]
    for field, value in values.items():
        rule = rule_of(datagram.group, field)
        if rule is not None and value is not None:
            text = f"{rule.family.name}{{{labels}}} {value * rule.scale!r}\n"
            lines.append(Lines(rule.family, text))
    return lines


def _losses(datagram: Datagram, labels: str) -> list[Lines]:
    counts = ((DROPPED, datagram.dropped), (FAILED, datagram.failed))
    return [Lines(family, f"{family.name}{{{labels}}} {count}\n") for family, count in counts]


def _bound(path: Path) -> socket.socket:
    """The agent's lock on its folder says that nobody else listens there."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        path.unlink(missing_ok=True)
        # Before bind: the name then never exists with wider rights.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise JobsightError(f"{path} cannot be listened at: {error}") from None
    listener.setblocking(False)
    return listener


#: On every series of the plugin, besides the labels of a job.
LABELS: Final = ("step", "group", "task")
_KIBIBYTE: Final = 2**10
_MEBIBYTE: Final = 2**20


class Rule(NamedTuple):
    """How a field of Slurm's is offered."""

    family: Family
    scale: float = 1.0


def _rule(name: str, kind: Kind, text: str, scale: float = 1.0) -> Rule:
    return Rule(Family(f"jobsight_profile_{name}", kind, text, LABELS), scale)


#: Group and field -> rule. None: left out, because a sum of the same stands beside it.
_RULES: Final[dict[tuple[str, str], Rule | None]] = {
    ("task", "CPUTime"): None,
    ("task", "ReadMB"): None,
    ("task", "WriteMB"): None,
    ("task", "jobsight_profile_cpu_seconds_total"): _rule(
        "cpu_seconds_total", "counter", "CPU time of the task, as Slurm sampled it"
    ),
    ("task", "jobsight_profile_read_bytes_total"): _rule(
        "read_bytes_total", "counter", "Bytes that the task read, as Slurm sampled it"
    ),
    ("task", "jobsight_profile_written_bytes_total"): _rule(
        "written_bytes_total", "counter", "Bytes that the task wrote, as Slurm sampled it"
    ),
    ("task", "CPUFrequency"): _rule("cpu_frequency", "gauge", "Slurm's CPUFrequency of the task"),
    ("task", "CPUUtilization"): _rule(
        "cpu_utilization_ratio", "gauge", "Cores that the task used since the sample before", 0.01
    ),
    ("task", "RSS"): _rule("resident_bytes", "gauge", "Memory of the task", _KIBIBYTE),
    ("task", "VMSize"): _rule("virtual_bytes", "gauge", "Virtual memory of the task", _KIBIBYTE),
    ("task", "Pages"): _rule("page_faults", "gauge", "Major page faults of the task so far"),
    ("task", "GPUMemMB"): _rule("gpu_memory_bytes", "gauge", "GPU memory of the task", _MEBIBYTE),
    ("task", "GPUUtilization"): _rule(
        "gpu_utilization_ratio", "gauge", "GPUs that the task used", 0.01
    ),
    ("energy", "Power"): _rule("power_watts", "gauge", "Power of the whole node"),
    ("filesystem", "Reads"): _rule("filesystem_reads", "gauge", "Reads of the whole node so far"),
    ("filesystem", "Writes"): _rule(
        "filesystem_writes", "gauge", "Writes of the whole node so far"
    ),
    ("filesystem", "ReadMB"): _rule(
        "filesystem_read_bytes", "gauge", "Bytes that the whole node has read so far", _MEBIBYTE
    ),
    ("filesystem", "WriteMB"): _rule(
        "filesystem_written_bytes",
        "gauge",
        "Bytes that the whole node has written so far",
        _MEBIBYTE,
    ),
    ("network", "PacketsIn"): _rule(
        "network_received_packets", "gauge", "Packets to the whole node since the sample before"
    ),
    ("network", "PacketsOut"): _rule(
        "network_sent_packets", "gauge", "Packets from the whole node since the sample before"
    ),
    ("network", "InMB"): _rule(
        "network_received_bytes",
        "gauge",
        "Bytes to the whole node since the sample before",
        _MEBIBYTE,
    ),
    ("network", "OutMB"): _rule(
        "network_sent_bytes",
        "gauge",
        "Bytes from the whole node since the sample before",
        _MEBIBYTE,
    ),
}

TIMESTAMP: Final = Family(
    "jobsight_profile_sample_timestamp_seconds", "gauge", "When Slurm took the sample", LABELS
)
DROPPED: Final = Family(
    "jobsight_profile_dropped_samples_total",
    "counter",
    "Samples that the plugin could not deliver",
    LABELS[:1],
)
FAILED: Final = Family(
    "jobsight_profile_failed_sends_total", "counter", "Failed sends of the plugin", LABELS[:1]
)
REFUSED: Final = Family(
    "jobsight_profile_refused_datagrams_total",
    "counter",
    "Datagrams of the plugin that were no samples, or found no room",
)


def rule_of(group: str, field: str) -> Rule | None:
    """The rule of a field; None where it is not offered."""
    try:
        return _RULES[group, field]
    except KeyError:
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", field).strip("_").lower()
        return _rule(f"{group}_{words}", "gauge", f"Slurm's {field} of the group {group}")
