"""The energy of the node, divided among its jobs in proportion to their CPU time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Unpack

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.processes.procfs import TICK
from jobsight.agent.samplers.base import JobSampler, SamplerOptions, text_list
from jobsight.agent.samplers.node import Node
from jobsight.agent.samplers.readings import Counter, Gauge
from jobsight.model import MISSING, Coverage

#: Zones that add up to processors and memory; those of cores and graphics are parts of a package.
_ZONES: Final = ("package", "dram")
#: Sensors that measure the entire machine; others would count a component twice.
METERS: Final = ("power_meter",)
_MICRO: Final = 1_000_000


class NodeUse(NamedTuple):
    """Microjoules by source, and busy CPU time, since the first reading of the node."""

    energy: dict[str, int]
    busy: int


class Energy(JobSampler):
    """The job's share of the energy between two samples is its share of the busy CPU time."""

    name = "jobsight.energy"

    def __init__(
        self,
        *,
        meters: Sequence[str] = METERS,
        **common: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(**common)
        chips = text_list(self.name, "meters", meters)
        self._source = self.node.shared(("energy", chips), lambda: NodeEnergy(self.node, chips))
        self._chips = chips
        self._last: NodeUse | None = None
        self._last_cpu: int | None = None
        self._row: Row | None = None
        self._first_time = self._last_time = 0
        #: Microjoules of the job and of the node, by source.
        self._shares: dict[str, float] = {}
        self._node_energy: dict[str, int] = {}

    def _update(self, view: JobView, cpu: int | None = None) -> bool:
        """Add the job's share since its last sample; False if the reading failed."""
        if not self._source.available:
            return False
        if cpu is None:
            if view.row is self._row:
                # The job's CPU time is not known between two samples; the next one includes it.
                return self._last is not None
            self._row = view.row
            cpu = view.row.get("cpu.time", MISSING)
        if cpu == MISSING:
            return False
        try:
            reading = self.node.reading(("energy", self._chips), self._source.read)
        except (OSError, ValueError) as error:
            self.errors.add("energy", error)
            return False
        now, last = reading.value, self._last
        if last is not None and self._last_cpu is not None:
            if now.busy <= last.busy:
                return True
            share = min(1.0, max(0, cpu - self._last_cpu) / (now.busy - last.busy))
            for name, total in now.energy.items():
                used = total - last.energy.get(name, total)
                self._shares[name] = self._shares.get(name, 0.0) + used * share
                self._node_energy[name] = self._node_energy.get(name, 0) + used
        else:
            self._first_time = reading.time
            self._shares = dict.fromkeys(now.energy, 0.0)
        # A source that could not be read now continues from its last good reading.
        energy = (last.energy if last is not None else {}) | now.energy
        self._last, self._last_cpu = NodeUse(energy, now.busy), cpu
        self._last_time = reading.time
        return True

    def columns(self, view: JobView) -> Row:
        updated = self._update(view)
        return {
            f"energy.{name}": round(value) if updated else MISSING
            for name, value in self._shares.items()
        }

    def document(self, view: JobView) -> Document | None:
        self._update(view)
        return self._document() or None

    def final(self, view: JobView) -> Document:
        # The job's last counter is newer than its last sample.
        self._update(view, view.probe.totals().cpu_time)
        return self._document()

    def _document(self) -> Document:
        """Joules of the job and of the node in the same time, and the job's average power."""
        document: Document = {}
        time = (self._last_time - self._first_time) / 1e9
        for name, share in self._shares.items():
            document[name] = {
                "energy": share / _MICRO,
                "node_energy": self._node_energy.get(name, 0) / _MICRO,
            }
            if time > 0:
                document[name]["power_average"] = share / _MICRO / time
        return document

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        if not self._source.available:
            reason = "the node has no readable energy counters"
            return {"energy": Coverage(quality="missing", reason=reason)}
        if self._shares:
            reason = "the node's energy, divided among its jobs by CPU time"
            return {"energy": Coverage(quality="estimate", reason=reason)}
        causes = {**self.node.errors.causes, **self.errors.causes}
        reason = next((f"{c}: {t}" for c, t in causes.items() if c.startswith("energy")), "")
        return {"energy": Coverage(quality="failed", reason=reason or "not read yet")}


class NodeEnergy:
    """RAPL zones and power meters of the node, read once per round for all its jobs."""

    def __init__(self, node: Node, meters: Sequence[str] = METERS) -> None:
        self._node = node
        self._zones = _find_zones(node)
        self._meters = _find_meters(node, meters)
        self._counters = {path: Counter(modulus) for path, modulus in self._zones}
        self._gauges = {path: Gauge() for path in self._meters}
        self._busy = Counter()

    @property
    def available(self) -> bool:
        return bool(self._zones or self._meters)

    def read(self) -> NodeUse:
        energy: dict[str, int] = {}
        if self._zones:
            self._add(energy, "cpu", self._read_zones)
        if self._meters:
            self._add(energy, "node", self._read_meters)
        busy = self._busy.update(parse_busy(self._node.files.read(self._node.proc / "stat")))
        return NodeUse(energy, busy)

    def _add(self, energy: dict[str, int], name: str, read: Callable[[], int]) -> None:
        try:
            energy[name] = read()
        except (OSError, ValueError) as error:
            self._node.errors.add(f"energy {name}", error)

    def _read_zones(self) -> int:
        files = self._node.files
        return sum(self._counters[path].update(int(files.read(path))) for path, _ in self._zones)

    def _read_meters(self) -> int:
        """Power, integrated over time."""
        now = self._node.clock()
        for path, gauge in self._gauges.items():
            gauge.add(now, int(self._node.files.read(path)))
        return round(sum(gauge.integral for gauge in self._gauges.values()))


def _find_zones(node: Node) -> list[tuple[str, int | None]]:
    """The energy files and the value at which each wraps; MMIO duplicates of zones are skipped."""
    zones: list[tuple[str, int | None]] = []
    for zone in _directories(node.sys / "class" / "powercap"):
        kind = _text(zone / "name")
        if not kind.startswith(_ZONES) or "mmio" in zone.name or ":" not in zone.name:
            continue
        maximum = _text(zone / "max_energy_range_uj")
        modulus = int(maximum) + 1 if maximum.isdigit() else None
        zones.append((str(zone / "energy_uj"), modulus))
    return zones


def _find_meters(node: Node, chips: Sequence[str]) -> list[str]:
    meters: list[str] = []
    for chip in _directories(node.sys / "class" / "hwmon"):
        if _text(chip / "name") not in chips:
            continue
        for number in range(1, 17):
            # Prefer the average over the chip's interval to an instantaneous value.
            for kind in ("average", "input"):
                path = chip / f"power{number}_{kind}"
                if os.path.exists(path):
                    meters.append(str(path))
                    break
    return meters


def _directories(root: Path) -> list[Path]:
    try:
        return [root / name for name in sorted(os.listdir(root))]
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def parse_busy(data: bytes) -> int:
    """Busy time of all CPUs in nanoseconds, from /proc/stat; user time includes guest time."""
    words = data.split(b"\n", 1)[0].split()
    if not words or words[0] != b"cpu" or len(words) < 5:
        raise ValueError('/proc/stat does not begin with the line "cpu"')
    user, nice, system, _idle, *rest = map(int, words[1:])
    # After idle: I/O wait, hard and soft interrupts, steal. Only interrupts are busy time.
    return (user + nice + system + sum(rest[1:3])) * TICK
