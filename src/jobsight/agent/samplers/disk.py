"""sams.sampler.IOStats: I/O of block devices, from /proc/diskstats."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Unpack

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.samplers.base import JobSampler, SamplerOptions, item_name, text_list
from jobsight.agent.samplers.node import Node, Reading
from jobsight.agent.samplers.readings import (
    MAX_PATHS,
    check_patterns,
    expand_patterns,
    fill_pattern,
    growth,
)
from jobsight.model import SECOND, Coverage
from jobsight.text import readable_text

SECTOR: Final = 512
#: Devices of a job come and go, but listing them costs more than reading their counters.
_LIST_INTERVAL: Final = 10 * SECOND
#: Times are milliseconds in 32 bits.
_TICKS_MODULUS: Final = 2**32


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


class _Device:
    """One device since the job's first reading of it."""

    def __init__(self, kernel_name: str, time: int, counters: DiskCounters) -> None:
        self.kernel_name = kernel_name
        self.total = DiskCounters(*[0] * len(DiskCounters._fields))
        self.first_time = self.time = self.reported_time = time
        self.counters = counters
        self.reported_total = self.total

    def update(self, time: int, counters: DiskCounters) -> None:
        grown = growth_between(self.counters, counters)
        self.total = DiskCounters(*map(sum, zip(self.total, grown, strict=True)))
        self.counters, self.time = counters, time


class IOStats(JobSampler):
    """Counters of each device for the time series; the columns of iostat for the documents."""

    name = "sams.sampler.IOStats"

    def __init__(
        self,
        *,
        iostat_devs: Sequence[str] | None = None,
        iostat_command: str | None = None,
        **common: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(**common)
        # Accepted because files of SAMS have it; no command is run.
        del iostat_command
        self._patterns = text_list(self.name, "iostat_devs", iostat_devs, required=True)
        check_patterns(self.name, "iostat_devs", self._patterns)
        #: The name in the settings -> the kernel's name.
        self._names: dict[str, str] = {}
        self._listed_at: int | None = None
        self._devices: dict[str, _Device] = {}

    def _update(self, view: JobView) -> dict[str, _Device]:
        """Update every device and return those that exist now."""
        try:
            reading = read_diskstats(self.node)
        except (OSError, ValueError) as error:
            self.errors.add("diskstats", error)
            return {}
        if self._listed_at is None or reading.time - self._listed_at >= _LIST_INTERVAL:
            self._listed_at = reading.time
            self._names = self._list(view, set(reading.value))
        devices: dict[str, _Device] = {}
        for name, kernel_name in self._names.items():
            counters = reading.value.get(kernel_name)
            if counters is None:
                continue
            device = self._devices.get(name)
            if device is None or device.kernel_name != kernel_name:
                device = self._devices[name] = _Device(kernel_name, reading.time, counters)
            elif reading.time > device.time:
                device.update(reading.time, counters)
            devices[name] = device
        return devices

    def _list(self, view: JobView, present: set[str]) -> dict[str, str]:
        """The kernel's names of devices by their names in the settings.

        Links of a path are followed to the kernel's name (/dev/mapper/x to dm-3). A bare name may
        be the kernel's or the device mapper's.
        """
        names: dict[str, str] = {}
        for pattern in self._patterns:
            if "/" in pattern:
                for path in expand_patterns([pattern], view):
                    kernel_name = os.path.basename(os.path.realpath(path))
                    if kernel_name in present:
                        names[path] = kernel_name
                continue
            wanted = fill_pattern(pattern, view)
            names |= {name: name for name in sorted(present) if fnmatch.fnmatchcase(name, wanted)}
            names |= {
                name: kernel_name
                for name, kernel_name in sorted(self._device_mapper_names(present).items())
                if fnmatch.fnmatchcase(name, wanted)
            }
        return dict(list(names.items())[:MAX_PATHS])

    def _device_mapper_names(self, present: Iterable[str]) -> dict[str, str]:
        names: dict[str, str] = {}
        for kernel_name in present:
            if not kernel_name.startswith("dm-"):
                continue
            try:
                path = self.node.sys / "block" / kernel_name / "dm" / "name"
                names[path.read_text(errors="surrogateescape").strip()] = kernel_name
            except OSError as error:
                self.errors.add("device mapper", error)
        return names

    def columns(self, view: JobView) -> Row:
        row: Row = {}
        for device in self._update(view).values():
            name = item_name(device.kernel_name)
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
        document: Document = {}
        for name, device in self._update(view).items():
            if device.time > device.reported_time:
                grown = growth_between(device.reported_total, device.total)
                elapsed = device.time - device.reported_time
                document[readable_text(name)] = _format(rates(grown, elapsed))
                device.reported_time, device.reported_total = device.time, device.total
        return document or None

    def final(self, view: JobView) -> Document:
        """The same columns over the total time of the job."""
        self._update(view)
        return {
            readable_text(name): _format(rates(device.total, device.time - device.first_time))
            for name, device in self._devices.items()
            if device.time > device.first_time
        }

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        for cause, text in self.errors.causes.items():
            return {"device": Coverage(quality="failed", reason=f"{cause}: {text}")}
        if not self._devices:
            return {}
        reason = "counters of the devices, which include other users of a device"
        return {"device": Coverage(quality="exact", reason=reason)}


def _format(values: dict[str, float]) -> Document:
    """Strings with two decimals, as iostat prints them."""
    return {name: f"{value:.2f}" for name, value in values.items()}


def read_diskstats(node: Node) -> Reading[dict[str, DiskCounters]]:
    return node.reading(
        "diskstats", lambda: parse_diskstats(node.files.read(node.proc / "diskstats"))
    )


def parse_diskstats(data: bytes) -> dict[str, DiskCounters]:
    """Counters by the kernel's name; short lines (partitions of old kernels) are skipped."""
    devices: dict[str, DiskCounters] = {}
    for line in data.decode("utf-8", "surrogateescape").splitlines():
        words = line.split()
        fields = words[3 : 3 + len(DiskCounters._fields)]
        if len(fields) == len(DiskCounters._fields) and all(word.isdigit() for word in fields):
            devices[words[2]] = DiskCounters(*map(int, fields))
    return devices


def growth_between(before: DiskCounters, now: DiskCounters) -> DiskCounters:
    """The work of a device between two readings."""
    return DiskCounters(
        *(
            0
            if field == "in_flight"
            else growth(old, new, _TICKS_MODULUS if field.endswith("_ticks") else None)
            for field, old, new in zip(DiskCounters._fields, before, now, strict=True)
        )
    )


def rates(grown: DiskCounters, nanoseconds: int) -> dict[str, float]:
    """The columns that ``iostat -x`` prints, as SAMS spells them."""
    time = nanoseconds / SECOND
    milliseconds = nanoseconds / 1_000_000
    calls = grown.reads + grown.writes
    sectors = grown.sectors_read + grown.sectors_written
    ticks = grown.read_ticks + grown.write_ticks
    return {
        "rrqm_s": grown.reads_merged / time,
        "wrqm_s": grown.writes_merged / time,
        "r_s": grown.reads / time,
        "w_s": grown.writes / time,
        "rkB_s": grown.sectors_read * SECTOR / 1024 / time,
        "wkB_s": grown.sectors_written * SECTOR / 1024 / time,
        "avgrq-sz": sectors / calls if calls else 0.0,
        "avgqu-sz": grown.queue_ticks / milliseconds,
        "await": ticks / calls if calls else 0.0,
        "r_await": grown.read_ticks / grown.reads if grown.reads else 0.0,
        "w_await": grown.write_ticks / grown.writes if grown.writes else 0.0,
        "svctm": grown.busy_ticks / calls if calls else 0.0,
        # The kernel counts in ticks, so a busy device can exceed 100 % slightly.
        "util": min(100.0, grown.busy_ticks / milliseconds * 100),
    }
