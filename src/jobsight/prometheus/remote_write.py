"""Remote write's message: protobuf written by hand, in a snappy block.

A block of literals alone is valid snappy and needs no library on a node. It is not smaller than
what it holds: 18 bytes a sample, some 5 kB a second on a node with 64 jobs.

A batch as series for remote write: the samples of its curves with their own times.

Where batches become remote writes: Prometheus, VictoriaMetrics, Mimir and their like.

Remote write beside an agent or a server: a bounded queue on disk, and who empties it.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

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

#: Prometheus's mark for "this series has ended here".
STALE: Final = struct.pack("<Q", 0x7FF0000000000002)
_pack: Final = struct.Struct("<d").pack
#: The longest literal that four bytes of length can announce.
_LONGEST: Final = 2**32 - 1

#: The bytes of one sample around its value.
Frame = tuple[bytes, bytes]


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; a negative one as its 64 bits."""
    number &= 2**64 - 1
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def field(number: int, data: bytes) -> bytes:
    """A field that is bytes, text or a message."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def label(name: str, value: str) -> bytes:
    """One label of a series. Those of a series must come in the order of their names."""
    text = value.encode("utf-8", "backslashreplace")
    return field(1, field(1, name.encode()) + field(2, text))


def frames(milliseconds: Iterable[int]) -> list[Frame]:
    """What stands around the values of samples: made once, for all series of the same times."""
    made = []
    for time in milliseconds:
        tail = b"\x10" + varint(time)
        # Field 2 of the series: a message of a double (field 1) and an integer (field 2).
        made.append((b"\x12" + varint(9 + len(tail)) + b"\x09", tail))
    return made


def sample(value: float, frame: Frame) -> bytes:
    return frame[0] + _pack(value) + frame[1]


def stale(frame: Frame) -> bytes:
    return frame[0] + STALE + frame[1]


def series(labels: bytes, samples: Sequence[bytes]) -> bytes:
    """One series as it stands in the message."""
    return field(1, labels + b"".join(samples))


def snappy(data: bytes) -> bytes:
    """A snappy block of literals: the length of all, then each literal after its own length."""
    parts = [varint(len(data))]
    for start in range(0, len(data), _LONGEST):
        piece = data[start : start + _LONGEST]
        parts += [b"\xfc", struct.pack("<I", len(piece) - 1), piece]
    return b"".join(parts)


_MILLISECOND: Final = 1_000_000
#: Jobs that are remembered for their names and for the end of their series; the oldest go first.
_MOST_JOBS: Final = 100_000

_SEED: Final = {family.metric: family for family in names.PETRICORE.values() if family.metric}


class Encoded(NamedTuple):
    """The message of a batch before it is packed, and how many samples it holds."""

    message: bytes
    samples: int


class _Job:
    """What is known of one job on one node from earlier batches."""

    def __init__(self, sighting: Sighting) -> None:
        job = str(sighting.job_id)
        self.own = (
            label("cluster", sighting.cluster),
            label("node", sighting.node) + label("slurm_job", job),
        )
        self.seed = (b"", label("instance", sighting.node) + label("slurm_job", job))
        #: Labels of every series that was sent, and has not ended yet.
        self.open: dict[bytes, None] = {}


class BatchSeries:
    """Turns batches into messages, one after the other; it remembers who the jobs are."""

    def __init__(self, *, petricore_names: bool = False) -> None:
        self._petricore_names = petricore_names
        self._jobs: dict[Sighting, _Job] = {}
        self._infos: dict[tuple[str, int], JobInfo] = {}
        self._names: dict[str, list[tuple[Family, bytes, bytes]]] = {}

    def encode(self, batch: Batch) -> Encoded:
        """The series of a batch; the same batch may come again as long as it is not settled."""
        for info in batch.jobs:
            _keep(self._infos, (info.cluster, info.job_id), info)
        found: list[bytes] = []
        count = 0
        for part in batch.parts:
            job = self._jobs.get(part.sighting)
            if job is None:
                job = _Job(part.sighting)
                _keep(self._jobs, part.sighting, job)
            made = self._part(part, job)
            found += [series(labels, samples) for labels, samples in made.items()]
            count += sum(map(len, made.values()))
        return Encoded(b"".join(found), count)

    def settle(self, batch: Batch) -> None:
        """The batch has arrived: what ended with it is forgotten."""
        for part in batch.parts:
            if part.final:
                self._jobs.pop(part.sighting, None)

    def _part(self, part: JobPart, job: _Job) -> dict[bytes, list[bytes]]:
        made: dict[bytes, list[bytes]] = {}
        last = 0
        if part.series is not None and len(part.series):
            times = [int(time) // _MILLISECOND for time in part.series.times]
            around = frames(times)
            last = times[-1]
            for metric, column in part.series.columns.items():
                self._curve(made, job, metric, column, around)
            self._describe(made, part.sighting, job, around[-1])
        if part.final:
            self._end(made, part, job, last)
        job.open.update(dict.fromkeys(made))
        return made

    def _curve(
        self,
        made: dict[bytes, list[bytes]],
        job: _Job,
        metric: str,
        column: Column,
        around: list[Frame],
    ) -> None:
        for family, name, thing in self._families(metric):
            before, behind = job.own if family.name in names.OWN else job.seed
            divisor = family.divisor
            samples = [
                sample(value / divisor, frame)
                for value, frame in zip(column, around, strict=True)
                if value != MISSING and not math.isnan(value)
            ]
            if samples:
                # In the order of the labels' names: cluster, the thing, node or instance.
                made[name + before + thing + behind] = samples

    def _families(self, metric: str) -> list[tuple[Family, bytes, bytes]]:
        found = self._names.get(metric)
        if found is None:
            found = self._names[metric] = []
            if len(self._names) > _MOST_JOBS:
                self._names.clear()
            own = names.family_of(metric)
            if own is not None:
                family, thing = own
                also = _SEED.get(family.metric or "") if self._petricore_names else None
                for one in (family, *([also] if also is not None else [])):
                    text = label(one.labels[0], thing) if thing is not None else b""
                    found.append((one, label("__name__", one.name), text))
        return found

    def _describe(
        self, made: dict[bytes, list[bytes]], sighting: Sighting, job: _Job, frame: Frame
    ) -> None:
        info = self._infos.get((sighting.cluster, sighting.job_id))
        if info is None:
            return
        words = {
            "account": info.account,
            "cluster": sighting.cluster,
            "name": info.name,
            "node": sighting.node,
            "partition": info.partition,
            "slurm_job": str(sighting.job_id),
            "user": info.user,
        }
        labels = b"".join(
            label(name, readable_text(value)[:200]) for name, value in words.items() if value
        )
        made[label("__name__", names.INFO.name) + labels] = [sample(1.0, frame)]
        asked = ((names.REQUESTED_CPUS, info.cpus), (names.REQUESTED_MEMORY, info.memory))
        for family, value in asked:
            if value is not None:
                made[label("__name__", family.name) + b"".join(job.own)] = [sample(value, frame)]

    def _end(self, made: dict[bytes, list[bytes]], part: JobPart, job: _Job, last: int) -> None:
        """The last counters, where they are newer than the last sample, and the end of all."""
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
                    before, behind = job.own if family.name in names.OWN else job.seed
                    made.setdefault(name + before + behind, []).append(
                        sample(value / family.divisor, frame)
                    )
            last = max(last, time)
        if last:
            (frame,) = frames([last + 1])
            for labels in {**job.open, **made}:
                made.setdefault(labels, []).append(stale(frame))


def _keep(table: dict, key: object, value: object) -> None:  # type: ignore[type-arg]
    table[key] = value
    if len(table) > _MOST_JOBS:
        del table[next(iter(table))]


logger = logging.getLogger("jobsight.remote_write")

_HEADERS: Final = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
#: Answers that a person can put right, or that pass: the samples wait. Other 4xx are for ever.
_LATER: Final = frozenset({401, 403, 404, 407, 408, 425, 429})


class RemoteWriteTarget:
    """Takes encoded batches, in their order. Samples keep the times at which they were taken."""

    def __init__(self, where: str, settings: RemoteWriteSettings) -> None:
        self._web = Web(where, settings)
        self._series = BatchSeries(petricore_names=settings.petricore_names)
        #: Samples that were taken, and those that were refused for good.
        self.samples = 0
        self.dropped = 0
        self._said = ""

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
            reply = self._web.send("POST", "", snappy(message), _HEADERS)
        except OSError as error:
            return self._later(f"{self._web.name} does not answer: {error}")
        if not 200 <= reply.status < 300:
            said = reply.body.decode(errors="replace").strip()[:300]
            reason = f"{self._web.name} answered {reply.status}: {said}"
            if reply.status >= 500 or reply.status < 400 or reply.status in _LATER:
                return self._later(reason, reply.retry_after)
            self.dropped += samples
            logger.error("%s; %d samples are dropped", reason, samples)
        else:
            self.samples += samples
            self._said = ""
        self._series.settle(batch)
        # Also what was refused for good is done with: a copy, which nobody would look at.
        return Answer(stored=True)

    def _later(self, reason: str, wait: float = 0.0) -> Answer:
        if reason != self._said:
            logger.warning("%s; samples wait", reason)
            self._said = reason
        return Answer(stored=False, reason=reason, wait=wait)


class RemoteWriting:
    """Takes copies of batches. Whoever gives them waits for nothing but the local disk."""

    def __init__(self, where: str, settings: RemoteWriteSettings, folder: Path) -> None:
        self.target = RemoteWriteTarget(where, settings)
        # Copies: the batches themselves are safe elsewhere.
        self.spool = Spool(folder, settings.limit, power_loss=False)
        self._delivery = Delivery(self.spool, self.target)
        self._thread = DeliveryThread(self._delivery)

    def start(self) -> None:
        self._thread.start()
        # What an earlier life left.
        self._thread.notify()

    def take(self, data: bytes) -> None:
        self.spool.keep(data)
        self._thread.notify()

    def text(self) -> str:
        """Figures for the server's /metrics."""
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
        """Send what can be sent now; the rest waits for the next life."""
        if self._thread.is_alive():
            self._thread.end()
            if not self._delivery.reason:
                self._delivery.deliver()
        self.spool.close()
