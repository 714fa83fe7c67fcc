"""The node as a whole, whatever runs on it: load, CPU time, memory, network, disks, energy.

:class:`WholeNode` is not a sampler of a job. The collector calls :meth:`WholeNode.sample` at an
interval of its own, and sends what :meth:`WholeNode.take` returns with its batches. A sample reads
some files of /proc and /sys that stay open, into columns that exist already. What cannot be read is
missing in this row.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from jobsight.agent.processes.procfs import TICK
from jobsight.agent.samplers.disk import SECTOR, read_diskstats
from jobsight.agent.samplers.energy import METERS, NodeEnergy
from jobsight.agent.samplers.network import infiniband_files
from jobsight.agent.samplers.node import Node, this_node
from jobsight.agent.samplers.pressure import parse_pressure
from jobsight.agent.samplers.readings import growth
from jobsight.model import MISSING, SECOND, Column, Series

#: Samples that are sent together: a batch and a chunk cost more than a row of them.
ROWS: Final = 5
#: Devices are listed again after this time.
_LIST_INTERVAL: Final = 600 * SECOND
_KIBIBYTE: Final = 1024
#: The type of a network interface over InfiniBand, whose port counts the same bytes.
_IP_OVER_INFINIBAND: Final = b"32"

_LOADS: Final = ("node.load.1m", "node.load.5m", "node.load.15m")
_CPU: Final = (
    *("node.cpu.user", "node.cpu.system", "node.cpu.idle", "node.cpu.iowait"),
    "node.cpu.stolen",
)
_MEMORY: Final = (
    *("node.memory.total", "node.memory.available", "node.memory.used", "node.memory.cache"),
    *("node.swap.total", "node.swap.used"),
)
#: Of both kinds of links, in the order of their counters.
_NETWORK: Final = ("received_bytes", "received_packets", "sent_bytes", "sent_packets")
#: The columns of /proc/net/dev with them, after the name.
_NETWORK_COLUMNS: Final = (0, 1, 8, 9)
_DISK: Final = ("read_bytes", "written_bytes")
_ENERGY: Final = ("cpu", "node")
#: Metric -> resource and line.
_PRESSURE: Final = {
    "node.pressure.cpu": ("cpu", "some"),
    "node.pressure.memory": ("memory", "some"),
    "node.pressure.memory_full": ("memory", "full"),
    "node.pressure.io": ("io", "some"),
    "node.pressure.io_full": ("io", "full"),
}
_INTEGERS: Final = (
    *_CPU,
    *_MEMORY,
    *(f"node.network.{name}" for name in _NETWORK),
    *(f"node.disk.{name}" for name in _DISK),
    *(f"node.energy.{name}" for name in _ENERGY),
    *_PRESSURE,
)


class _Sum:
    """The growth of the counters of several devices since the first reading of each.

    A device that is not read, or is no longer there, adds nothing; the sum does not fall.
    """

    def __init__(self, figures: int) -> None:
        self.totals = [0] * figures
        self._last: dict[str, Sequence[int]] = {}

    def update(self, readings: Iterable[tuple[str, Sequence[int]]]) -> bool:
        """Add a reading of each device; False if there is none."""
        found = False
        for device, counters in readings:
            found = True
            last = self._last.get(device)
            if last is not None:
                for index, value in enumerate(counters):
                    self.totals[index] += growth(last[index], value)
            self._last[device] = counters
        return found

    def keep_only(self, devices: Iterable[str]) -> None:
        """Forget devices that were removed; one that returns begins at zero."""
        self._last = {name: self._last[name] for name in devices if name in self._last}


class WholeNode:
    """Rows of the node's own time series, until they are taken."""

    def __init__(self, node: Node | None = None, *, meters: Sequence[str] = METERS) -> None:
        self.node = node or this_node()
        self._read = self.node.files.read
        self._rows = 0
        self._times = array("q", [0]) * ROWS
        self._integers = {name: array("q", [MISSING]) * ROWS for name in _INTEGERS}
        self._loads = {name: array("d", [math.nan]) * ROWS for name in _LOADS}
        self._interfaces: list[bytes] = []
        self._ports: dict[str, list[tuple[str, int]]] = {}
        self._devices: list[str] = []
        self._listed: int | None = None
        self._network, self._disk = _Sum(len(_NETWORK)), _Sum(len(_DISK))
        chips = tuple(meters)
        self._meters = chips
        self._energy = self.node.shared(("energy", chips), lambda: NodeEnergy(self.node, chips))

    @property
    def full(self) -> bool:
        """Whether the rows should be taken; a further sample then drops the oldest."""
        return self._rows == ROWS

    def sample(self, wall: int) -> None:
        """Add a row of this time."""
        if self.full:
            self._drop_oldest()
        row = self._rows
        self._rows += 1
        self._times[row] = wall
        self._clear(row)
        now = self.node.clock()
        if self._listed is None or not 0 <= now - self._listed < _LIST_INTERVAL:
            self._list(now)
        self._try("load", self._read_load, row)
        self._try("CPU time", self._read_cpu, row)
        self._try("memory", self._read_memory, row)
        self._try("network", self._read_network, row)
        self._try("disks", self._read_disks, row)
        self._try("energy", self._read_energy, row)
        self._read_pressure(row)

    def take(self) -> Series | None:
        """The rows so far, without columns that have no value; None if there are none."""
        rows, self._rows = self._rows, 0
        if not rows:
            return None
        columns: dict[str, Column] = {
            name: column[:rows]
            for name, column in self._loads.items()
            if not all(map(math.isnan, column[:rows]))
        }
        columns |= {
            name: column[:rows]
            for name, column in self._integers.items()
            if any(column[row] != MISSING for row in range(rows))
        }
        return Series(self._times[:rows], columns)

    def _drop_oldest(self) -> None:
        for column in (self._times, *self._integers.values()):
            column.append(column.pop(0))
        for loads in self._loads.values():
            loads.append(loads.pop(0))
        self._rows -= 1

    def _clear(self, row: int) -> None:
        for column in self._integers.values():
            column[row] = MISSING
        for loads in self._loads.values():
            loads[row] = math.nan

    def _try(self, what: str, read: Callable[[int], None], row: int) -> None:
        try:
            read(row)
        except (OSError, ValueError, IndexError) as error:
            self.node.errors.add(f"node {what}", error)

    def _read_load(self, row: int) -> None:
        words = self._read(self.node.proc / "loadavg").split(None, 3)
        for name, word in zip(_LOADS, words, strict=False):
            self._loads[name][row] = float(word)

    def _read_cpu(self, row: int) -> None:
        times = parse_cpu_times(self._read(self.node.proc / "stat"))
        for name, ticks in zip(_CPU, times, strict=True):
            self._integers[name][row] = ticks * TICK

    def _read_memory(self, row: int) -> None:
        found = parse_memory(self._read(self.node.proc / "meminfo"))
        for name, value in found.items():
            self._integers[name][row] = value

    def _read_network(self, row: int) -> None:
        readings = [*self._read_interfaces(), *self._read_ports()]
        if self._network.update(readings):
            for name, total in zip(_NETWORK, self._network.totals, strict=True):
                self._integers[f"node.network.{name}"][row] = total

    def _read_interfaces(self) -> Iterable[tuple[str, list[int]]]:
        if not self._interfaces:
            return
        lines = self._read(self.node.proc / "net" / "dev")
        for line in lines.splitlines()[2:]:
            name, _, figures = line.partition(b":")
            if name.strip() in self._interfaces:
                words = figures.split()
                yield os.fsdecode(name.strip()), [int(words[at]) for at in _NETWORK_COLUMNS]

    def _read_ports(self) -> Iterable[tuple[str, list[int]]]:
        for port, files in self._ports.items():
            try:
                yield port, [int(self._read(path)) * unit for path, unit in files]
            except (OSError, ValueError) as error:
                self.node.errors.add(f"node network {port}", error)

    def _read_disks(self, row: int) -> None:
        if not self._devices:
            return
        counters = read_diskstats(self.node).value
        readings = [
            (name, (counters[name].sectors_read * SECTOR, counters[name].sectors_written * SECTOR))
            for name in self._devices
            if name in counters
        ]
        if self._disk.update(readings):
            for name, total in zip(_DISK, self._disk.totals, strict=True):
                self._integers[f"node.disk.{name}"][row] = total

    def _read_energy(self, row: int) -> None:
        if self._energy.available:
            use = self.node.reading(("energy", self._meters), self._energy.read).value
            for name in _ENERGY:
                if name in use.energy:
                    self._integers[f"node.energy.{name}"][row] = use.energy[name]

    def _read_pressure(self, row: int) -> None:
        directory = self.node.proc / "pressure"
        for resource in ("cpu", "memory", "io"):
            try:
                stalls = parse_pressure(self._read(directory / resource))
            except (OSError, ValueError):
                # Most kernels do not measure it unless they are told to at boot.
                continue
            for metric, (wanted, line) in _PRESSURE.items():
                if wanted == resource and line in stalls:
                    self._integers[metric][row] = stalls[line].total * 1000

    def _list(self, now: int) -> None:
        """Find the physical devices; a virtual one counts what a physical one counts as well."""
        self._listed = now
        classes = self.node.sys / "class"
        self._ports = infiniband_files(self.node.sys, _NETWORK)
        self._interfaces = [
            os.fsencode(name)
            for name in _names(classes / "net")
            if os.path.exists(classes / "net" / name / "device")
            and not (self._ports and _is_ip_over_infiniband(classes / "net" / name))
        ]
        blocks = self.node.sys / "block"
        self._devices = [
            name for name in _names(blocks) if os.path.exists(blocks / name / "device")
        ]
        self._network.keep_only([*map(os.fsdecode, self._interfaces), *self._ports])
        self._disk.keep_only(self._devices)


def parse_cpu_times(data: bytes) -> tuple[int, int, int, int, int]:
    """Ticks of all CPUs in programs, in the kernel, idle, idle during I/O, and taken by the host,
    from /proc/stat. User time includes guest time."""
    words = data[: data.find(b"\n")].split()
    if not words or words[0] != b"cpu" or len(words) < 9:
        raise ValueError('/proc/stat does not begin with the line "cpu"')
    user, nice, system, idle, iowait, hard, soft, stolen = map(int, words[1:9])
    return user + nice, system + hard + soft, idle, iowait, stolen


def parse_memory(data: bytes) -> dict[str, int]:
    """The metrics of memory, in bytes, from /proc/meminfo."""
    found: dict[bytes, int] = {}
    for line in data.splitlines():
        name, _, value = line.partition(b":")
        if name in _MEMORY_FIELDS:
            found[name] = int(value.split()[0]) * _KIBIBYTE
    figures: dict[str, int] = {}
    total, available = found.get(b"MemTotal"), found.get(b"MemAvailable")
    if total is not None:
        figures["node.memory.total"] = total
        if available is not None:
            figures["node.memory.available"] = available
            figures["node.memory.used"] = max(total - available, 0)
    cache = [found.get(name) for name in (b"Cached", b"Buffers", b"SReclaimable")]
    if cache[0] is not None:
        # Shared memory is in the cache, but cannot be given back.
        shared = found.get(b"Shmem", 0)
        figures["node.memory.cache"] = max(sum(part or 0 for part in cache) - shared, 0)
    swap, free = found.get(b"SwapTotal"), found.get(b"SwapFree")
    if swap is not None and free is not None:
        figures["node.swap.total"] = swap
        figures["node.swap.used"] = max(swap - free, 0)
    return figures


_MEMORY_FIELDS: Final = frozenset(
    (
        *(b"MemTotal", b"MemAvailable", b"Cached", b"Buffers", b"SReclaimable", b"Shmem"),
        *(b"SwapTotal", b"SwapFree"),
    )
)


def _is_ip_over_infiniband(interface: Path) -> bool:
    try:
        return (interface / "type").read_bytes().strip() == _IP_OVER_INFINIBAND
    except OSError:
        return False


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
