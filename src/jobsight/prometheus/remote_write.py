"""Remote write: batches as Prometheus remote-write 1.0 requests, delivered from a spool.

Read from the top: :class:`RemoteWriter` queues batches on disk, :class:`RemoteWriteTarget` sends
them, :class:`BatchSeries` converts a batch to series, and the functions at the end encode series
as protobuf and compress them with snappy.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from jobsight.config.settings import RemoteWriteSettings
from jobsight.model import MISSING, Batch, Column, JobInfo, JobPart, Sighting
from jobsight.prometheus import names
from jobsight.prometheus.exposition import document, line
from jobsight.prometheus.names import SERVER, Family
from jobsight.text import readable_text
from jobsight.transport.delivery import Answer, Delivery, DeliveryThread
from jobsight.transport.http import Web
from jobsight.transport.spool import Spool
from jobsight.transport.wire import WireError, decode
from jobsight.util.log_once import LogOnce
from jobsight.util.workers import WorkerState, add_to_health, remove_from_health

logger = logging.getLogger(__name__)

_HEADERS: Final = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
#: Client errors that are temporary or can be fixed by an administrator: the samples are kept.
#: Any other 4xx is permanent.
_RETRY_STATUS: Final = frozenset({401, 403, 404, 407, 408, 425, 429})
_MILLISECOND: Final = 1_000_000
#: Jobs whose info and open series are remembered; the oldest are forgotten first.
_MAX_JOBS: Final = 100_000
#: The value that marks the end of a series (Prometheus's staleness marker).
STALE: Final = struct.pack("<Q", 0x7FF0000000000002)
_pack: Final = struct.Struct("<d").pack
#: The longest literal whose length fits in four bytes.
_MAX_LITERAL: Final = 2**32 - 1
_PETRICORE: Final = {family.metric: family for family in names.PETRICORE.values() if family.metric}

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
Compress = Callable[[bytes], bytes]
#: The bytes of one sample before and after its value.
Frame = tuple[bytes, bytes]
#: Encoded samples by the encoded labels of their series.
_Samples = dict[bytes, list[bytes]]


class RemoteWriter:
    """Sends copies of batches in a thread. The caller waits for the local disk only."""

    def __init__(
        self,
        where: str,
        settings: RemoteWriteSettings,
        directory: Path,
        *,
        compress: Compress | None = None,
    ) -> None:
        self.target = RemoteWriteTarget(where, settings, compress=compress)
        # No fsync: these are copies of batches that are safe elsewhere.
        self.spool = Spool(directory, settings.limit, sync=False)
        self._delivery = Delivery(self.spool, self.target)
        self._thread = DeliveryThread(self._delivery)
        self.name = where

    def status(self) -> WorkerState:
        """Batches are sent as they come, so that no next run is planned."""
        return self._thread.status(self.name)

    def start(self) -> None:
        self._thread.start()
        add_to_health(self)
        # Send what the previous process left.
        self._thread.notify()

    def put(self, data: bytes) -> None:
        """Queue an encoded batch."""
        self.spool.put_encoded(data)
        self._thread.notify()

    def text(self) -> str:
        """The counters for the server's /metrics."""
        counts = {
            **self.target.counts(),
            "remote_write_batches": len(self.spool),
            "remote_write_lost_total": self.spool.dropped,
        }
        lines = {
            f"jobsight_server_{name}": [line(f"jobsight_server_{name}", {}, value)]
            for name, value in counts.items()
        }
        return document(SERVER.values(), lines)

    def close(self) -> None:
        """Send what can be sent now; the rest stays in the spool for the next start."""
        remove_from_health(self)
        if self._thread.is_alive():
            self._thread.end()
            if not self._delivery.reason:
                self._delivery.deliver()
        self.spool.close()


class RemoteWriteTarget:
    """Sends encoded batches in order. Samples keep the times at which they were measured."""

    def __init__(
        self, where: str, settings: RemoteWriteSettings, *, compress: Compress | None = None
    ) -> None:
        self._web = Web(where, settings)
        self._compress = compress or snappy_literals
        self._series = BatchSeries(petricore_names=settings.petricore_names)
        #: Samples that were accepted, and those that were refused permanently.
        self.samples = 0
        self.dropped = 0
        self._log = LogOnce(logger)

    def counts(self) -> Mapping[str, int]:
        return {
            "remote_write_samples_total": self.samples,
            "remote_write_dropped_total": self.dropped,
        }

    def send(self, data: bytes) -> Answer:
        try:
            batch = decode(data)
        except WireError as error:
            return Answer(stored=False, refused=True, reason=str(error))
        message, samples = self._series.encode(batch)
        if not samples:
            return Answer(stored=True)
        try:
            reply = self._web.send("POST", "", self._compress(message), _HEADERS)
        except OSError as error:
            return self._retry(f"{self._web.name} does not answer: {error}")
        if not 200 <= reply.status < 300:
            body = readable_text(reply.body.decode(errors="replace").strip())[:300]
            reason = f"{self._web.name} answered {reply.status}: {body}"
            if reply.status >= 500 or reply.status < 400 or reply.status in _RETRY_STATUS:
                return self._retry(reason, reply.retry_after)
            self.dropped += samples
            logger.error("%s; %d samples are dropped", reason, samples)
        else:
            self.samples += samples
            self._log.resolve("send", f"{self._web.name} accepts samples again")
        self._series.acknowledge(batch)
        # A batch that was refused permanently is done with as well: it is only a copy.
        return Answer(stored=True)

    def _retry(self, reason: str, wait: float = 0.0) -> Answer:
        self._log.report("send", f"{reason}; samples are kept")
        return Answer(stored=False, reason=reason, wait=wait)


class EncodedBatch(NamedTuple):
    """The uncompressed message of a batch, and its number of samples."""

    message: bytes
    samples: int


class _Job:
    """What is known of one job on one node from earlier batches."""

    def __init__(self, sighting: Sighting) -> None:
        job = str(sighting.job_id)
        #: Encoded labels before and after the label of an item, in the order of their names.
        self.own = (
            label("cluster", sighting.cluster),
            label("node", sighting.node) + label("slurm_job", job),
        )
        self.petricore = (b"", label("instance", sighting.node) + label("slurm_job", job))
        #: Labels of every series that was sent and has not ended.
        self.open: dict[bytes, None] = {}

    def labels(self, family: Family) -> tuple[bytes, bytes]:
        return self.own if family.name in names.OWN else self.petricore


class BatchSeries:
    """Converts batches to messages. It remembers the info and the open series of jobs."""

    def __init__(self, *, petricore_names: bool = False) -> None:
        self._petricore_names = petricore_names
        self._jobs: dict[Sighting, _Job] = {}
        self._infos: dict[tuple[str, int], JobInfo] = {}
        self._families_of: dict[str, list[tuple[Family, bytes, bytes]]] = {}

    def encode(self, batch: Batch) -> EncodedBatch:
        """The series of a batch. A batch may be encoded again until it is acknowledged."""
        for info in batch.jobs:
            _remember(self._infos, (info.cluster, info.job_id), info)
        messages: list[bytes] = []
        count = 0
        for part in batch.parts:
            job = self._jobs.get(part.sighting)
            if job is None:
                job = _Job(part.sighting)
                _remember(self._jobs, part.sighting, job)
            samples = self._encode_part(part, job)
            messages += [series(labels, values) for labels, values in samples.items()]
            count += sum(map(len, samples.values()))
        return EncodedBatch(b"".join(messages), count)

    def acknowledge(self, batch: Batch) -> None:
        """The batch was accepted: forget the jobs that ended with it."""
        for part in batch.parts:
            if part.final:
                self._jobs.pop(part.sighting, None)

    def _encode_part(self, part: JobPart, job: _Job) -> _Samples:
        samples: _Samples = {}
        last = 0
        if part.series is not None and len(part.series):
            times = [int(time) // _MILLISECOND for time in part.series.times]
            sample_frames = frames(times)
            last = times[-1]
            for metric, column in part.series.columns.items():
                self._add_column(samples, job, metric, column, sample_frames)
            self._add_info(samples, part.sighting, job, sample_frames[-1])
        if part.final:
            self._end_series(samples, part, job, last)
        job.open.update(dict.fromkeys(samples))
        return samples

    def _add_column(
        self,
        samples: _Samples,
        job: _Job,
        metric: str,
        column: Column,
        sample_frames: list[Frame],
    ) -> None:
        for family, name, item in self._families(metric):
            before, after = job.labels(family)
            divisor = family.divisor
            values = [
                sample(value / divisor, frame)
                for value, frame in zip(column, sample_frames, strict=True)
                if value != MISSING and not math.isnan(value)
            ]
            if values:
                samples[name + before + item + after] = values

    def _families(self, metric: str) -> list[tuple[Family, bytes, bytes]]:
        """The families of a metric, each with its encoded name and the label of its item."""
        families = self._families_of.get(metric)
        if families is None:
            families = []
            own = names.family_of(metric)
            if own is not None:
                family, item = own
                candidates = [family]
                if self._petricore_names and family.metric in _PETRICORE:
                    candidates.append(_PETRICORE[family.metric])
                for each in candidates:
                    text = label(each.labels[0], item) if item is not None else b""
                    families.append((each, label("__name__", each.name), text))
            _remember(self._families_of, metric, families)
        return families

    def _add_info(self, samples: _Samples, sighting: Sighting, job: _Job, frame: Frame) -> None:
        info = self._infos.get((sighting.cluster, sighting.job_id))
        if info is None:
            return
        texts = {
            "account": info.account,
            "cluster": sighting.cluster,
            "name": info.name,
            "node": sighting.node,
            "partition": info.partition,
            "slurm_job": str(sighting.job_id),
            "user": info.user,
        }
        labels = b"".join(
            label(name, readable_text(value)[:200]) for name, value in texts.items() if value
        )
        samples[label("__name__", names.INFO.name) + labels] = [sample(1.0, frame)]
        requested = ((names.REQUESTED_CPUS, info.cpus), (names.REQUESTED_MEMORY, info.memory))
        for family, value in requested:
            if value is not None:
                key = label("__name__", family.name) + b"".join(job.own)
                samples[key] = [sample(value, frame)]

    def _end_series(self, samples: _Samples, part: JobPart, job: _Job, last: int) -> None:
        """Add the final counters, if they are newer than the last sample, and end all series."""
        if part.totals is not None:
            time = part.totals.time // _MILLISECOND
            (frame,) = frames([time])
            totals = {
                "cpu.time": part.totals.cpu_time,
                "cpu.user": part.totals.cpu_user,
                "cpu.system": part.totals.cpu_system,
            }
            for metric, value in totals.items():
                if value is None or time <= last:
                    continue
                for family, name, _ in self._families(metric):
                    key = name + b"".join(job.labels(family))
                    samples.setdefault(key, []).append(sample(value / family.divisor, frame))
            last = max(last, time)
        if last:
            (frame,) = frames([last + 1])
            for labels in {**job.open, **samples}:
                samples.setdefault(labels, []).append(stale(frame))


def _remember(table: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    table[key] = value
    if len(table) > _MAX_JOBS:
        del table[next(iter(table))]


def series(labels: bytes, samples: Sequence[bytes]) -> bytes:
    """One series as a field of the message."""
    return field(1, labels + b"".join(samples))


def label(name: str, value: str) -> bytes:
    """One label of a series. The labels of a series must be in the order of their names."""
    text = value.encode("utf-8", "backslashreplace")
    return field(1, field(1, name.encode()) + field(2, text))


def frames(milliseconds: Iterable[int]) -> list[Frame]:
    """The bytes around the values of samples, encoded once for all series of the same times."""
    encoded = []
    for time in milliseconds:
        tail = b"\x10" + varint(time)
        # Field 2 of the series: a message of a double (field 1) and an integer (field 2).
        encoded.append((b"\x12" + varint(9 + len(tail)) + b"\x09", tail))
    return encoded


def sample(value: float, frame: Frame) -> bytes:
    return frame[0] + _pack(value) + frame[1]


def stale(frame: Frame) -> bytes:
    return frame[0] + STALE + frame[1]


def field(number: int, data: bytes) -> bytes:
    """A protobuf field of bytes, text or a message."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(number: int) -> bytes:
    """Seven bits per byte, the lowest first; a negative number as its 64 bits."""
    number &= 2**64 - 1
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def best_snappy() -> Compress:
    """The compression for a server: cramjam if it is installed, else :func:`snappy_literals`."""
    try:
        from cramjam import snappy
    except ImportError:
        return snappy_literals
    return lambda data: bytes(snappy.compress_raw(data))


def snappy_literals(data: bytes) -> bytes:
    """A snappy block of literals: the total length, then each literal after its length.

    The block is valid but not compressed. It needs no library on a node, where 18 bytes per
    sample are some 5 kB per second with 64 jobs.
    """
    parts = [varint(len(data))]
    for start in range(0, len(data), _MAX_LITERAL):
        piece = data[start : start + _MAX_LITERAL]
        parts += [b"\xfc", struct.pack("<I", len(piece) - 1), piece]
    return b"".join(parts)
