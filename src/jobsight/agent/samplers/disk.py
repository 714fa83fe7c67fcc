"""sams.sampler.IOStats: what the job's block devices did, from the kernel's own counters.

/proc/diskstats of every kernel: what block devices did.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.samplers import readings
from jobsight.agent.samplers.base import JobSampler, item, texts
from jobsight.agent.samplers.node import Node, Reading
from jobsight.agent.samplers.readings import growth
from jobsight.model import SECOND, Coverage
from jobsight.text import readable_text

#: Devices of a job come and go; looking for them anew costs more than reading them.
_FIND_AGAIN: Final = 10 * SECOND


class _Device:
    """One device since the job's first look at it."""

    def __init__(self, kernel_name: str, time: int, counters: DiskCounters) -> None:
        self.kernel_name = kernel_name
        self.total = DiskCounters(*[0] * len(DiskCounters._fields))
        self.begun = self.time = self.told = time
        self.counters = counters
        self.told_total = self.total

    def update(self, time: int, counters: DiskCounters) -> None:
        done = growth_between(self.counters, counters)
        self.total = DiskCounters(*map(sum, zip(self.total, done, strict=True)))
        self.counters, self.time = counters, time


class IOStats(JobSampler):
    """Counters of each device for the curves; the columns of iostat for the documents."""

    name = "sams.sampler.IOStats"

    def __init__(
        self,
        *,
        iostat_devs: Sequence[str] | None = None,
        iostat_command: str | None = None,
        sampler_interval: float = 60.0,
        node: Node | None = None,
    ) -> None:
        super().__init__(sampler_interval=sampler_interval, node=node)
        # ``iostat_command`` stands in the files of sites; no command is run here.
        del iostat_command
        self._patterns = texts(self.name, "iostat_devs", iostat_devs, needed=True)
        readings.check(self.name, "iostat_devs", self._patterns)
        #: The name from the settings -> the kernel's name.
        self._names: dict[str, str] = {}
        self._found_at: int | None = None
        self._devices: dict[str, _Device] = {}

    def _look(self, view: JobView) -> dict[str, _Device]:
        """Bring every device up to date; those that are there now come back."""
        try:
            reading = read_diskstats(self.node)
        except (OSError, ValueError) as error:
            self.errors.note("diskstats", error)
            return {}
        if self._found_at is None or reading.time - self._found_at >= _FIND_AGAIN:
            self._found_at = reading.time
            self._names = self._find(view, reading.value)
        return {
            name: self._update(name, reading) for name in self._names if self._there(name, reading)
        }

    def _there(self, name: str, reading: Reading[dict[str, DiskCounters]]) -> bool:
        return self._names[name] in reading.value

    def _update(self, name: str, reading: Reading[dict[str, DiskCounters]]) -> _Device:
        kernel_name = self._names[name]
        counters = reading.value[kernel_name]
        device = self._devices.get(name)
        if device is None or device.kernel_name != kernel_name:
            device = self._devices[name] = _Device(kernel_name, reading.time, counters)
        elif reading.time > device.time:
            device.update(reading.time, counters)
        return device

    def _find(self, view: JobView, present: Iterable[str]) -> dict[str, str]:
        """Devices by the name that the settings give them.

        A path leads over its links to the kernel's name (/dev/mapper/x to dm-3); a bare name may
        be the kernel's or the device mapper's.
        """
        found: dict[str, str] = {}
        known = set(present)
        for pattern in self._patterns:
            if "/" in pattern:
                for path in readings.expand([pattern], view):
                    kernel_name = os.path.basename(os.path.realpath(path))
                    if kernel_name in known:
                        found[path] = kernel_name
                continue
            wanted = readings.fill(pattern, view)
            found |= {name: name for name in sorted(known) if fnmatch.fnmatchcase(name, wanted)}
            found |= {
                name: kernel_name
                for name, kernel_name in sorted(self._mapped(known).items())
                if fnmatch.fnmatchcase(name, wanted)
            }
        return dict(list(found.items())[: readings.LIMIT])

    def _mapped(self, known: Iterable[str]) -> dict[str, str]:
        """The device mapper's names."""
        found: dict[str, str] = {}
        for kernel_name in known:
            if not kernel_name.startswith("dm-"):
                continue
            try:
                path = self.node.sys / "block" / kernel_name / "dm" / "name"
                found[path.read_text(errors="surrogateescape").strip()] = kernel_name
            except OSError as error:
                self.errors.note("device mapper", error)
        return found

    def columns(self, view: JobView) -> Row:
        row: Row = {}
        for device in self._look(view).values():
            name = item(device.kernel_name)
            if name is None:
                continue
            total = device.total
            row[f"device.{name}.read_bytes"] = total.sectors_read * SECTOR
            row[f"device.{name}.written_bytes"] = total.sectors_written * SECTOR
            row[f"device.{name}.reads"] = total.reads
            row[f"device.{name}.writes"] = total.writes
            row[f"device.{name}.busy"] = total.busy_ticks * 1_000_000
        return row

    def document(self, view: JobView) -> Document | None:
        found: Document = {}
        for name, device in self._look(view).items():
            if device.time > device.told:
                done = growth_between(device.told_total, device.total)
                found[readable_text(name)] = _printed(rates(done, device.time - device.told))
                device.told, device.told_total = device.time, device.total
        return found or None

    def final(self, view: JobView) -> Document:
        """The same columns over the whole time of the job."""
        self._look(view)
        return {
            readable_text(name): _printed(rates(device.total, device.time - device.begun))
            for name, device in self._devices.items()
            if device.time > device.begun
        }

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        for cause, text in self.errors.causes.items():
            return {"device": Coverage(quality="failed", reason=f"{cause}: {text}")}
        if not self._devices:
            return {}
        reason = "counters of the devices: other users of a device count too"
        return {"device": Coverage(quality="exact", reason=reason)}


def _printed(values: dict[str, float]) -> Document:
    """Texts with two digits, as iostat prints them."""
    return {name: f"{value:.2f}" for name, value in values.items()}


SECTOR: Final = 512
#: Times are milliseconds in 32 bits.
_TICKS: Final = 2**32
_FIELDS: Final = 11


class DiskCounters(NamedTuple):
    reads: int
    reads_merged: int
    sectors_read: int
    read_ticks: int
    writes: int
    writes_merged: int
    sectors_written: int
    write_ticks: int
    in_flight: int
    busy_ticks: int
    queue_ticks: int


def parse_diskstats(data: bytes) -> dict[str, DiskCounters]:
    """Counters by the kernel's name; short lines (partitions of old kernels) are left out."""
    found: dict[str, DiskCounters] = {}
    for line in data.decode("utf-8", "surrogateescape").splitlines():
        words = line.split()
        if len(words) < 3 + _FIELDS or not all(w.isdigit() for w in words[3 : 3 + _FIELDS]):
            continue
        found[words[2]] = DiskCounters(*map(int, words[3 : 3 + _FIELDS]))
    return found


def read_diskstats(node: Node) -> Reading[dict[str, DiskCounters]]:
    """One reading for all jobs of the round."""
    return node.reading(
        "diskstats", lambda: parse_diskstats(node.files.read(node.proc / "diskstats"))
    )


def growth_between(before: DiskCounters, now: DiskCounters) -> DiskCounters:
    """What the device did between two readings."""
    ticks = {3, 7, 9, 10}
    return DiskCounters(
        *(
            0 if index == 8 else growth(one, other, _TICKS if index in ticks else None)
            for index, (one, other) in enumerate(zip(before, now, strict=True))
        )
    )


def rates(done: DiskCounters, nanoseconds: int) -> dict[str, float]:
    """The columns that ``iostat -x`` prints, under the seed's spelling."""
    time = nanoseconds / SECOND
    milliseconds = nanoseconds / 1_000_000
    calls = done.reads + done.writes
    sectors = done.sectors_read + done.sectors_written
    ticks = done.read_ticks + done.write_ticks
    return {
        "rrqm_s": done.reads_merged / time,
        "wrqm_s": done.writes_merged / time,
        "r_s": done.reads / time,
        "w_s": done.writes / time,
        "rkB_s": done.sectors_read * SECTOR / 1024 / time,
        "wkB_s": done.sectors_written * SECTOR / 1024 / time,
        "avgrq-sz": sectors / calls if calls else 0.0,
        "avgqu-sz": done.queue_ticks / milliseconds,
        "await": ticks / calls if calls else 0.0,
        "r_await": done.read_ticks / done.reads if done.reads else 0.0,
        "w_await": done.write_ticks / done.writes if done.writes else 0.0,
        "svctm": done.busy_ticks / calls if calls else 0.0,
        # The kernel counts in ticks, so a busy device can come out a little above the whole.
        "util": min(100.0, done.busy_ticks / milliseconds * 100),
    }
