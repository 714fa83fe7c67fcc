"""Samples of Slurm's profile plugin, received as datagrams and exposed by the exporter.

:class:`PluginSocket` keeps the last sample of each task. Its socket is accessible to root only,
the number of samples is bounded, and they expire when their step ends or sends nothing for a
while. The table ``_RULES`` maps the fields of Slurm to families in base units; a field that is
not in the table (of a newer Slurm, or of a sensor) keeps its name.
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
from jobsight.prometheus.exposition import labels_text, line
from jobsight.prometheus.names import JOB_LABELS, Family, Kind
from jobsight.util.decoding import decode_json

SOCKET: Final = "profile.sock"
#: Samples by task and group.
_MAX_SAMPLES: Final = 4096
#: Datagrams that are read before the loop continues.
_DATAGRAMS_PER_ROUND: Final = 64
#: Seconds without a sample after which a task expires, unless three of its intervals are longer.
_EXPIRY: Final = 300.0
_EXPIRY_INTERVAL: Final = 5.0
_GROUP: Final = re.compile(r"[a-z][a-z0-9_]*")
#: Labels of every series of the plugin, in addition to those of a job.
LABELS: Final = ("step", "group", "task")
_KIBIBYTE: Final = 2**10
_MEBIBYTE: Final = 2**20

#: Node, job and step.
Step = tuple[str, int, str]
_Text = Annotated[str, msgspec.Meta(max_length=256)]


class Datagram(msgspec.Struct):
    """A sample or, without values, the end of the step on this node."""

    job: Annotated[int, msgspec.Meta(ge=0)]
    step: _Text
    node: _Text
    dropped: int = 0
    failed: int = 0
    group: _Text = ""
    task: _Text = ""
    time: int = 0
    values: Annotated[dict[_Text, float | None], msgspec.Meta(max_length=64)] | None = None


_DECODER: Final = msgspec.json.Decoder(Datagram)


class _LastSample:
    """The rendered last sample of one task or group."""

    __slots__ = ("expires_at", "interval", "lines", "received_at")

    def __init__(self, now: float) -> None:
        self.lines: list[Lines] = []
        self.received_at = now
        self.interval = 0.0
        self.expires_at: float | None = None

    def update(self, lines: list[Lines], now: float) -> None:
        self.interval = max(self.interval, now - self.received_at)
        self.lines, self.received_at, self.expires_at = lines, now, None

    def is_expired(self, now: float) -> bool:
        if self.expires_at is not None:
            return now >= self.expires_at
        return now - self.received_at > max(_EXPIRY, 3 * self.interval)


class PluginSocket:
    """Driven by the collector's loop; a source of the exporter."""

    def __init__(
        self,
        directory: Path,
        collector: Collector,
        *,
        keep_ended: float = 30.0,
        max_samples: int = _MAX_SAMPLES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = directory / SOCKET
        self.refused = 0
        self._collector = collector
        self._keep_ended = keep_ended
        self._max_samples = max_samples
        self._clock = clock
        #: By step, then by group and task; ("", "") is the plugin itself.
        self._steps: dict[Step, dict[tuple[str, str], _LastSample]] = {}
        self._socket = _bind(self.path)
        collector.watch(self._socket.fileno(), self._read)
        collector.every(_EXPIRY_INTERVAL, self.remove_expired)

    def __call__(self) -> Iterable[Lines]:
        """The exposed series; from any thread."""
        now = self._clock()
        for samples in list(self._steps.values()):
            for sample in list(samples.values()):
                if not sample.is_expired(now):
                    yield from sample.lines
        # Also if it is 0: a counter that appears with its first count has not increased.
        own = {"cluster": self._collector.cluster, "node": self._collector.node}
        yield Lines(REFUSED, line(REFUSED.name, own, self.refused))

    def __len__(self) -> int:
        return sum(map(len, list(self._steps.values())))

    def _read(self) -> None:
        for _ in range(_DATAGRAMS_PER_ROUND):
            try:
                data = self._socket.recv(65536)
            except BlockingIOError:
                return
            except OSError as error:
                self._collector.report_error("the socket of the profile plugin", error)
                return
            self.handle(data)

    def handle(self, data: bytes) -> None:
        """Process one datagram."""
        try:
            datagram = decode_json(_DECODER, data)
        except msgspec.MsgspecError:
            self.refused += 1
            return
        step = (datagram.node, datagram.job, datagram.step)
        if datagram.values is None:
            # Expose the last values for one more scrape.
            for sample in self._steps.get(step, {}).values():
                sample.expires_at = self._clock() + self._keep_ended
        elif _GROUP.fullmatch(datagram.group):
            self._add(step, datagram, datagram.values)
        else:
            self.refused += 1

    def _add(self, step: Step, datagram: Datagram, values: Mapping[str, float | None]) -> None:
        samples = self._steps.get(step, {})
        key = (datagram.group, datagram.task)
        new = sum(other not in samples for other in (key, ("", "")))
        if new and len(self) + new > self._max_samples:
            self.refused += 1
            return
        now = self._clock()
        texts = (self._collector.cluster, datagram.node, str(datagram.job), datagram.step)
        labels = dict(zip((*JOB_LABELS, "step"), texts, strict=True))
        samples = self._steps.setdefault(step, samples)
        losses = _loss_lines(datagram, labels_text(labels))
        samples.setdefault(("", ""), _LastSample(now)).update(losses, now)
        labels["group"] = datagram.group
        if datagram.task:
            labels["task"] = datagram.task
        lines = _sample_lines(datagram, values, labels_text(labels))
        samples.setdefault(key, _LastSample(now)).update(lines, now)

    def remove_expired(self) -> None:
        now = self._clock()
        for step, samples in list(self._steps.items()):
            for key, sample in list(samples.items()):
                if sample.is_expired(now):
                    del samples[key]
            if not samples:
                del self._steps[step]

    def close(self) -> None:
        self._collector.unwatch(self._socket.fileno())
        self._socket.close()
        self.path.unlink(missing_ok=True)


def _sample_lines(
    datagram: Datagram, values: Mapping[str, float | None], labels: str
) -> list[Lines]:
    lines = [Lines(TIMESTAMP, f"{TIMESTAMP.name}{{{labels}}} {datagram.time}\n")]
    for field, value in values.items():
        rule = rule_of(datagram.group, field)
        if rule is not None and value is not None:
            text = f"{rule.family.name}{{{labels}}} {value * rule.scale!r}\n"
            lines.append(Lines(rule.family, text))
    return lines


def _loss_lines(datagram: Datagram, labels: str) -> list[Lines]:
    counts = ((DROPPED, datagram.dropped), (FAILED, datagram.failed))
    return [Lines(family, f"{family.name}{{{labels}}} {count}\n") for family, count in counts]


def _bind(path: Path) -> socket.socket:
    """Bind the socket. The agent's lock ensures that no other process listens there."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        path.unlink(missing_ok=True)
        # Before bind, so that the name never exists with wider permissions.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise JobsightError(f"the socket {path} cannot be opened: {error}") from None
    listener.setblocking(False)
    return listener


class Rule(NamedTuple):
    """The family of a field of Slurm, and its scale."""

    family: Family
    scale: float = 1.0


def _rule(name: str, kind: Kind, text: str, scale: float = 1.0) -> Rule:
    return Rule(Family(f"jobsight_profile_{name}", kind, text, LABELS), scale)


#: Group and field -> rule. None: not exposed, because there is a cumulative field of the same.
_RULES: Final[dict[tuple[str, str], Rule | None]] = {
    ("task", "CPUTime"): None,
    ("task", "ReadMB"): None,
    ("task", "WriteMB"): None,
    ("task", "jobsight_profile_cpu_seconds_total"): _rule(
        "cpu_seconds_total", "counter", "CPU time of the task, as sampled by Slurm"
    ),
    ("task", "jobsight_profile_read_bytes_total"): _rule(
        "read_bytes_total", "counter", "Bytes read by the task, as sampled by Slurm"
    ),
    ("task", "jobsight_profile_written_bytes_total"): _rule(
        "written_bytes_total", "counter", "Bytes written by the task, as sampled by Slurm"
    ),
    ("task", "CPUFrequency"): _rule("cpu_frequency", "gauge", "Slurm's CPUFrequency of the task"),
    ("task", "CPUUtilization"): _rule(
        "cpu_utilization_ratio", "gauge", "Cores used by the task since the previous sample", 0.01
    ),
    ("task", "RSS"): _rule("resident_bytes", "gauge", "Memory of the task", _KIBIBYTE),
    ("task", "VMSize"): _rule("virtual_bytes", "gauge", "Virtual memory of the task", _KIBIBYTE),
    ("task", "Pages"): _rule("page_faults", "gauge", "Major page faults of the task so far"),
    ("task", "GPUMemMB"): _rule("gpu_memory_bytes", "gauge", "GPU memory of the task", _MEBIBYTE),
    ("task", "GPUUtilization"): _rule(
        "gpu_utilization_ratio", "gauge", "GPUs used by the task", 0.01
    ),
    ("energy", "Power"): _rule("power_watts", "gauge", "Power of the entire node"),
    ("filesystem", "Reads"): _rule("filesystem_reads", "gauge", "Reads of the entire node so far"),
    ("filesystem", "Writes"): _rule(
        "filesystem_writes", "gauge", "Writes of the entire node so far"
    ),
    ("filesystem", "ReadMB"): _rule(
        "filesystem_read_bytes", "gauge", "Bytes read by the entire node so far", _MEBIBYTE
    ),
    ("filesystem", "WriteMB"): _rule(
        "filesystem_written_bytes",
        "gauge",
        "Bytes written by the entire node so far",
        _MEBIBYTE,
    ),
    ("network", "PacketsIn"): _rule(
        "network_received_packets", "gauge", "Packets to the entire node since the previous sample"
    ),
    ("network", "PacketsOut"): _rule(
        "network_sent_packets", "gauge", "Packets from the entire node since the previous sample"
    ),
    ("network", "InMB"): _rule(
        "network_received_bytes",
        "gauge",
        "Bytes to the entire node since the previous sample",
        _MEBIBYTE,
    ),
    ("network", "OutMB"): _rule(
        "network_sent_bytes",
        "gauge",
        "Bytes from the entire node since the previous sample",
        _MEBIBYTE,
    ),
}

TIMESTAMP: Final = Family(
    "jobsight_profile_sample_timestamp_seconds", "gauge", "Time of the sample", LABELS
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
    "Datagrams of the plugin that were invalid, or exceeded the limit",
)


def rule_of(group: str, field: str) -> Rule | None:
    """The rule of a field; None if it is not exposed."""
    try:
        return _RULES[group, field]
    except KeyError:
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", field).strip("_").lower()
        return _rule(f"{group}_{words}", "gauge", f"Slurm's {field} of the group {group}")
