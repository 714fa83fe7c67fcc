"""The energy of the node, shared over its jobs by the CPU time they used."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.processes.procfs import TICK
from jobsight.agent.samplers.base import JobSampler, texts
from jobsight.agent.samplers.node import Node
from jobsight.agent.samplers.readings import Counter, Gauge
from jobsight.model import MISSING, Coverage

#: Zones whose sum is processors and memory; those of cores and graphics lie inside a package.
_ZONES: Final = ("package", "dram")
#: Sensors that measure the whole machine; others would count a part a second time.
METERS: Final = ("power_meter",)
_MICRO: Final = 1_000_000


class NodeUse(NamedTuple):
    """Cumulative since the node's first reading: microjoules by source, and busy CPU time."""

    energy: dict[str, int]
    busy: int


def parse_busy(data: bytes) -> int:
    """Nanoseconds that all CPUs worked, from /proc/stat; time of guests is inside that of users."""
    words = data.split(b"\n", 1)[0].split()
    if not words or words[0] != b"cpu" or len(words) < 5:
        raise ValueError("/proc/stat does not begin with the line of all CPUs")
    user, nice, system, _idle, *rest = map(int, words[1:])
    # Behind idle: waiting for I/O, then interrupts of two kinds; stolen time is nobody's here.
    return (user + nice + system + sum(rest[1:3])) * TICK


class NodeEnergy:
    """RAPL zones and power meters of the node, read once for all its jobs."""

    def __init__(self, node: Node, meters: Sequence[str] = METERS) -> None:
        self._node = node
        self._zones = _find_zones(node)
        self._meters = _find_meters(node, meters)
        self._counters = {path: Counter(modulus) for path, modulus in self._zones}
        self._gauges = {path: Gauge() for path in self._meters}
        self._busy = Counter()

    @property
    def there(self) -> bool:
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
            self._node.errors.note(f"energy {name}", error)

    def _read_zones(self) -> int:
        files = self._node.files
        return sum(self._counters[path].update(int(files.read(path))) for path, _ in self._zones)

    def _read_meters(self) -> int:
        """Power drawn, integrated over time."""
        now = self._node.clock()
        for path, gauge in self._gauges.items():
            gauge.add(now, int(self._node.files.read(path)))
        return round(sum(gauge.integral for gauge in self._gauges.values()))


def _find_zones(node: Node) -> list[tuple[str, int | None]]:
    """The files of energy and where each wraps. A second interface to a zone is left out."""
    found: list[tuple[str, int | None]] = []
    root = node.sys / "class" / "powercap"
    for zone in _folders(root):
        kind = _text(zone / "name")
        if not kind.startswith(_ZONES) or "mmio" in zone.name or ":" not in zone.name:
            continue
        top = _text(zone / "max_energy_range_uj")
        found.append((str(zone / "energy_uj"), int(top) + 1 if top.isdigit() else None))
    return found


def _find_meters(node: Node, chips: Sequence[str]) -> list[str]:
    found: list[str] = []
    for chip in _folders(node.sys / "class" / "hwmon"):
        if _text(chip / "name") not in chips:
            continue
        for number in range(1, 17):
            # An average over the chip's own interval is better than a momentary value.
            for kind in ("average", "input"):
                path = chip / f"power{number}_{kind}"
                if os.path.exists(path):
                    found.append(str(path))
                    break
    return found


def _folders(root: Path) -> list[Path]:
    try:
        return [root / name for name in sorted(os.listdir(root))]
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


class Energy(JobSampler):
    """The job's share: between two samples, the part of the busy CPU time that was the job's."""

    name = "jobsight.energy"

    def __init__(
        self,
        *,
        meters: Sequence[str] = METERS,
        sampler_interval: float = 60.0,
        node: Node | None = None,
    ) -> None:
        super().__init__(sampler_interval=sampler_interval, node=node)
        chips = texts(self.name, "meters", meters)
        self._source = self.node.shared(("energy", chips), lambda: NodeEnergy(self.node, chips))
        self._chips = chips
        self._last: NodeUse | None = None
        self._last_cpu: int | None = None
        self._row: Row | None = None
        self._begun = self._ended = 0
        #: Microjoules, by source.
        self._shares: dict[str, float] = {}
        self._whole: dict[str, int] = {}

    def _look(self, view: JobView, cpu: int | None = None) -> bool:
        """Book the job's part of what was used since its last sample; False where that failed."""
        if not self._source.there:
            return False
        if cpu is None:
            if view.row is self._row:
                # Between two samples the job's CPU time is not known; the next one covers it.
                return self._last is not None
            self._row = view.row
            cpu = view.row.get("cpu.time", MISSING)
        if cpu == MISSING:
            return False
        try:
            reading = self.node.reading(("energy", self._chips), self._source.read)
        except (OSError, ValueError) as error:
            self.errors.note("energy", error)
            return False
        now, last = reading.value, self._last
        if last is not None and self._last_cpu is not None:
            if now.busy <= last.busy:
                return True
            part = min(1.0, max(0, cpu - self._last_cpu) / (now.busy - last.busy))
            for name, total in now.energy.items():
                used = total - last.energy.get(name, total)
                self._shares[name] = self._shares.get(name, 0.0) + used * part
                self._whole[name] = self._whole.get(name, 0) + used
        else:
            self._begun = reading.time
            self._shares = dict.fromkeys(now.energy, 0.0)
        # A source that could not be read this time is measured from its last good reading.
        energy = (last.energy if last is not None else {}) | now.energy
        self._last, self._last_cpu = NodeUse(energy, now.busy), cpu
        self._ended = reading.time
        return True

    def columns(self, view: JobView) -> Row:
        looked = self._look(view)
        return {
            f"energy.{name}": round(value) if looked else MISSING
            for name, value in self._shares.items()
        }

    def document(self, view: JobView) -> Document | None:
        self._look(view)
        return self._document() or None

    def final(self, view: JobView) -> Document:
        # The job's last counter is newer than its last sample.
        self._look(view, view.probe.totals().cpu_time)
        return self._document()

    def _document(self) -> Document:
        """Joules of the job, joules of the node meanwhile, and the job's average power."""
        found: Document = {}
        time = (self._ended - self._begun) / 1e9
        for name, share in self._shares.items():
            found[name] = {
                "energy": share / _MICRO,
                "node_energy": self._whole.get(name, 0) / _MICRO,
            }
            if time > 0:
                found[name]["power_average"] = share / _MICRO / time
        return found

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        if not self._source.there:
            reason = "the node has no energy counters that can be read"
            return {"energy": Coverage(quality="missing", reason=reason)}
        if self._shares:
            reason = "the node's energy, shared over its jobs by CPU time"
            return {"energy": Coverage(quality="estimate", reason=reason)}
        causes = {**self.node.errors.causes, **self.errors.causes}
        reason = next((f"{c}: {t}" for c, t in causes.items() if c.startswith("energy")), "")
        return {"energy": Coverage(quality="failed", reason=reason or "not read yet")}
