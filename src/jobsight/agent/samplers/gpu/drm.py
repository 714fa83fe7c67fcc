"""AMD's and Intel's GPUs from the files of their kernel drivers: amdgpu, i915 and xe.

No library of the vendor is needed. A GPU is a directory of ``/sys/class/drm``; its processes are
found by the ``fdinfo`` of their open devices (the kernel's ``drm-usage-stats``), and those of ROCm
by the files of amdgpu's compute driver. The layout is that of the kernel's documentation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from jobsight.agent.samplers.gpu.source import Gpu, GpuProcess, GpuReading
from jobsight.agent.samplers.node import Node
from jobsight.model import SECOND

_DRIVERS: Final = {"amdgpu": "AMD", "i915": "Intel", "xe": "Intel"}
_CARD: Final = re.compile(r"card(\d{1,4})")
#: Open files of a process that are looked at, and processes with a GPU that are followed.
_MAX_FILES: Final = 4096
_MAX_CLIENTS: Final = 4096
#: How often a process without an open GPU is looked at again.
_SCAN_INTERVAL: Final = 10 * SECOND
_UNITS: Final = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_NOT_GIVEN: Final = "the kernel driver does not provide it"
#: File of Intel's throttle reasons, without its prefix -> reason.
_THROTTLE: Final = {
    "pl1": "power",
    "pl2": "power",
    "pl4": "power",
    "ratl": "power",
    "thermal": "temperature",
    "prochot": "temperature",
    "vr_thermalert": "temperature",
    "soc_thermal": "temperature",
    "mem_thermal": "temperature",
    "vr_tdc": "hardware",
}


class Client(NamedTuple):
    """One open GPU of one process, as its fdinfo describes it."""

    pci: str
    client_id: str
    #: Engine -> nanoseconds.
    engines: dict[str, int]
    #: Engine -> cycles of the client and of the engine itself (xe).
    cycles: dict[str, tuple[int, int]]
    #: Bytes in the GPU's own memory; None if the driver does not say.
    memory: int | None


def parse_fdinfo(text: str) -> Client | None:
    """Parse the lines ``drm-KEY: VALUE [UNIT]``; None for a file that is no GPU's."""
    values: dict[str, str] = {}
    for line in text.splitlines()[:256]:
        key, _, value = line.partition(":")
        if key.startswith("drm-"):
            values[key[4:]] = value.strip()
    if "pdev" not in values:
        return None
    engines: dict[str, int] = {}
    cycles: dict[str, tuple[int, int]] = {}
    memory: dict[str, int] = {}
    for key, value in values.items():
        number = _quantity(value)
        if number is None:
            continue
        if key.startswith("engine-") and not key.startswith("engine-capacity-"):
            engines[key[7:]] = number
        elif key.startswith("cycles-"):
            total = _quantity(values.get(f"total-{key}", ""))
            if total is not None:
                cycles[key[7:]] = (number, total)
        else:
            kind, _, region = key.partition("-")
            if region.startswith(("vram", "local")) and kind in ("resident", "memory", "total"):
                # What is resident is what is in use; older kernels have one of the others.
                rank = ("resident", "memory", "total").index(kind)
                memory[f"{rank}{region}"] = number
    best = min((name[0] for name in memory), default="")
    size = sum(value for name, value in memory.items() if name[0] == best) if memory else None
    return Client(values["pdev"], values.get("client-id", ""), engines, cycles, size)


def _quantity(text: str) -> int | None:
    number, _, unit = text.partition(" ")
    if not (number.isascii() and number.isdigit() and len(number) < 20):
        return None
    return int(number) * _UNITS.get(unit.strip(), 1)


class _Card:
    """The files of one GPU."""

    def __init__(self, gpu: Gpu, driver: str, directory: Path, pci: str) -> None:
        self.gpu = gpu
        self.driver = driver
        self.directory = directory
        self.device = directory / "device"
        self.pci = pci
        hwmon = sorted((self.device / "hwmon").glob("hwmon*"))
        self.hwmon = hwmon[0] if hwmon else None
        #: xe has one directory per tile, i915 one per GT.
        self.gts = sorted(self.device.glob("tile*/gt*")) or sorted(directory.glob("gt/gt*"))

    def power(self) -> int | None:
        """Milliwatts."""
        if self.hwmon is None:
            return None
        for name in ("power1_average", "power1_input"):
            value = _number(self.hwmon / name)
            if value is not None:
                return value // 1000
        return None

    def energy(self) -> int | None:
        """Microjoules; the first counter is that of the card."""
        if self.hwmon is None:
            return None
        counters = (_number(self.hwmon / f"energy{index}_input") for index in (1, 2))
        return next((value for value in counters if value is not None), None)

    def memory(self) -> tuple[int | None, int | None]:
        """Bytes of the GPU's own memory: in use, and in total."""
        if self.driver == "amdgpu":
            return (
                _number(self.device / "mem_info_vram_used"),
                _number(self.device / "mem_info_vram_total"),
            )
        total = _number(self.directory / "lmem_total_bytes")
        available = _number(self.directory / "lmem_avail_bytes")
        if total is None:
            sizes = [_number(path) for path in self.device.glob("tile*/physical_vram_size_bytes")]
            known = [size for size in sizes if size is not None]
            total = sum(known) if known else None
        if total is None or available is None:
            return None, total
        return total - available, total

    def throttled_now(self) -> frozenset[str] | None:
        """The reasons for which Intel's clocks are reduced; None if the driver does not say."""
        if self.driver == "amdgpu" or not self.gts:
            return None
        reasons: set[str] = set()
        known = False
        for gt in self.gts:
            for directory, prefix in (
                (gt, "throttle_reason_"),
                (gt / "freq0" / "throttle", "reason_"),
            ):
                for name, reason in _THROTTLE.items():
                    value = _number(directory / f"{prefix}{name}")
                    known = known or value is not None
                    if value:
                        reasons.add(reason)
        return frozenset(reasons) if known else None

    def clock(self) -> int | None:
        """Megahertz."""
        if self.hwmon is not None:
            value = _number(self.hwmon / "freq1_input")
            if value is not None:
                return value // 1_000_000
        for gt in self.gts:
            for name in ("rps_act_freq_mhz", "freq0/act_freq"):
                value = _number(gt / name)
                if value is not None:
                    return value
        return None

    def faults(self) -> dict[str, int] | None:
        """Errors of the memory that amdgpu counted, as lines ``ue: 0`` and ``ce: 0``."""
        text = _text(self.device / "ras" / "umc_err_count")
        if text is None:
            return None
        faults = {}
        for line in text.splitlines():
            name, _, value = line.partition(":")
            number = _quantity(value.strip())
            kind = {"ue": "ecc uncorrected", "ce": "ecc corrected"}.get(name.strip())
            if kind is not None and number is not None:
                faults[kind] = number
        return faults


class Drm:
    """The GPUs below ``/sys/class/drm`` that amdgpu, i915 or xe drives."""

    #: A file of a GPU that hangs may hang as well.
    blocks = True

    def __init__(self, node: Node) -> None:
        self._node = node
        self._cards: dict[str, _Card] = {}
        self._by_pci: dict[str, str] = {}
        #: amdgpu's compute driver's id of a GPU -> its key.
        self._compute_ids: dict[str, str] = {}
        #: PID -> the descriptors of its GPUs, and when they were looked for.
        self._descriptors: dict[int, tuple[int, list[str]]] = {}
        #: GPU, PID and client -> its last description.
        self._clients: dict[tuple[str, int, str], Client] = {}
        self._read_at: int | None = None
        #: GPU -> the share of the time since the last reading in which its processes used it.
        self._activity: dict[str, float] = {}
        self.gpus: tuple[Gpu, ...] = ()
        self.refresh()

    def refresh(self) -> None:
        self._cards = {card.gpu.key: card for card in self._find()}
        self._by_pci = {card.pci: key for key, card in self._cards.items()}
        self._compute_ids = dict(self._find_compute_ids())
        self.gpus = tuple(card.gpu for card in self._cards.values())

    def _find(self) -> Iterator[_Card]:
        root = self._node.sys / "class" / "drm"
        try:
            names = os.listdir(root)
        except OSError:
            return
        numbers = sorted(int(match[1]) for name in names if (match := _CARD.fullmatch(name)))
        index = 0
        for number in numbers:
            directory = root / f"card{number}"
            driver = os.path.basename(os.path.realpath(directory / "device" / "driver"))
            if driver not in _DRIVERS:
                continue
            device = directory / "device"
            uevent = _text(device / "uevent") or ""
            found = re.search(r"^PCI_SLOT_NAME=(\S+)$", uevent, re.MULTILINE)
            pci = found[1] if found else ""
            unique = _text(device / "unique_id")
            uuid = f"GPU-{unique}" if unique else f"PCI-{pci}"
            name = _text(device / "product_name") or f"{_DRIVERS[driver]} GPU"
            gpu = Gpu(str(index), index, uuid, name, self._render_minor(device))
            yield _Card(gpu, driver, directory, pci)
            index += 1

    def _render_minor(self, device: Path) -> int | None:
        """The number of its render device, by which Slurm's gres.conf names it."""
        for path in device.glob("drm/renderD*"):
            digits = path.name.removeprefix("renderD")
            if digits.isdigit():
                return int(digits)
        return None

    def _find_compute_ids(self) -> Iterator[tuple[str, str]]:
        minors = {gpu.gpu.minor: key for key, gpu in self._cards.items()}
        for node in (self._node.sys / "class/kfd/kfd/topology/nodes").glob("*"):
            gpu_id, properties = _text(node / "gpu_id"), _text(node / "properties") or ""
            found = re.search(r"^drm_render_minor (\d+)$", properties, re.MULTILINE)
            if gpu_id and found and int(found[1]) in minors:
                yield gpu_id, minors[int(found[1])]

    def read(self, gpu: Gpu, *, samples: bool = True, counters: bool = True) -> GpuReading:
        card = self._cards.get(gpu.key)
        if card is None or not os.path.exists(card.device):
            return GpuReading(failure="the kernel no longer lists the GPU")
        reading = GpuReading()
        reading.utilization = _percent(card.device / "gpu_busy_percent")
        reading.memory_utilization = _percent(card.device / "mem_busy_percent")
        reading.memory_used, reading.memory_total = card.memory()
        if reading.memory_used is None:
            reading.memory_used = self._memory_of_clients(gpu.key)
        reading.power, reading.energy = card.power(), card.energy()
        if card.hwmon is not None:
            temperature = _number(card.hwmon / "temp1_input")
            reading.temperature = None if temperature is None else temperature // 1000
        reading.clock_sm = card.clock()
        if reading.utilization is None:
            reading.activity = self._activity.get(gpu.key)
        reading.throttled_now = card.throttled_now()
        reading.faults = card.faults()
        reading.missing = dict.fromkeys(("profile", "pcie", "nvlink"), _NOT_GIVEN)
        if reading.throttled_now is None:
            reading.missing["throttling"] = _NOT_GIVEN
        if reading.faults is None:
            reading.missing["faults"] = _NOT_GIVEN
        if reading.utilization is None and reading.activity is None:
            reading.missing["activity"] = _NOT_GIVEN
        if reading.memory_used is None:
            reading.missing["memory"] = _NOT_GIVEN
        return reading

    def _memory_of_clients(self, key: str) -> int | None:
        sizes = [client.memory for (gpu, _, _), client in self._clients.items() if gpu == key]
        known = [size for size in sizes if size is not None]
        return sum(known) if known else None

    def processes(self, candidates: Collection[int]) -> list[GpuProcess]:
        now = self._node.clock()
        span = 0 if self._read_at is None else now - self._read_at
        self._read_at = now
        before, self._clients = self._clients, {}
        busy: dict[tuple[int, str], float] = {}
        memory: dict[tuple[int, str], int | None] = {}
        for pid, client in self._open_clients(candidates, now):
            key = self._by_pci.get(client.pci)
            identity = (key or "", pid, client.client_id)
            # Descriptors that were duplicated describe the same client.
            if key is None or identity in self._clients or len(self._clients) >= _MAX_CLIENTS:
                continue
            self._clients[identity] = client
            one = (pid, key)
            busy[one] = busy.get(one, 0.0) + _busy(before.get(identity), client, span)
            if client.memory is not None:
                memory[one] = (memory.get(one) or 0) + client.memory
            memory.setdefault(one, None)
        for pid, key, size in self._compute_processes():
            one = (pid, key)
            memory[one] = max(memory.get(one) or 0, size)
            busy.setdefault(one, 0.0)
        self._activity = {}
        if span > 0 and self._clients:
            for (_, key), share in busy.items():
                self._activity[key] = min(1.0, self._activity.get(key, 0.0) + share)
        return [
            GpuProcess(pid, key, memory.get((pid, key)), min(1.0, share) if share else None)
            for (pid, key), share in busy.items()
        ]

    def _open_clients(self, candidates: Collection[int], now: int) -> Iterator[tuple[int, Client]]:
        self._descriptors = {
            pid: found for pid, found in self._descriptors.items() if pid in candidates
        }
        for pid in candidates:
            scanned_at, names = self._descriptors.get(pid, (-_SCAN_INTERVAL, []))
            if now - scanned_at >= _SCAN_INTERVAL:
                names = self._scan(pid)
                self._descriptors[pid] = (now, names)
            for name in names:
                text = _text(self._node.proc / str(pid) / "fdinfo" / name)
                client = parse_fdinfo(text) if text else None
                if client is not None:
                    yield pid, client

    def _scan(self, pid: int) -> list[str]:
        """The descriptors of a process that are GPUs."""
        directory = self._node.proc / str(pid) / "fd"
        try:
            names = os.listdir(directory)[:_MAX_FILES]
        except OSError:
            return []
        found = []
        for name in names:
            try:
                if os.readlink(directory / name).startswith("/dev/dri/"):
                    found.append(name)
            except OSError:
                # It was closed meanwhile.
                continue
        return found

    def _compute_processes(self) -> Iterator[tuple[int, str, int]]:
        """The processes of ROCm: their memory by GPU, from amdgpu's compute driver."""
        root = self._node.sys / "class/kfd/kfd/proc"
        if not self._compute_ids:
            return
        try:
            names = os.listdir(root)
        except OSError:
            return
        for name in names:
            if name.isdigit():
                for compute_id, key in self._compute_ids.items():
                    size = _number(root / name / f"vram_{compute_id}")
                    if size is not None:
                        yield int(name), key, size

    def describe(self, gpu: Gpu) -> list[str]:
        reading = self.read(gpu)
        if reading.failure:
            return [reading.failure]
        found = [f"driver {self._cards[gpu.key].driver}"]
        found.append("memory" if reading.memory_total is not None else "memory of processes")
        if reading.energy is not None:
            found.append("energy counter")
        elif reading.power is not None:
            found.append("power, no energy counter")
        busy = reading.utilization is not None
        found.append("utilization" if busy else "engine time of processes")
        found.append(f"no multiprocessor, tensor and bandwidth figures: {_NOT_GIVEN}")
        return found

    def close(self) -> None:
        """No file stays open."""


def _busy(before: Client | None, now: Client, span: int) -> float:
    """The share of the time since the last reading in which the busiest engine worked."""
    if before is None or span <= 0:
        return 0.0
    shares: list[float] = [0.0]
    for engine, time in now.engines.items():
        shares.append(max(0, time - before.engines.get(engine, time)) / span)
    for engine, (own, total) in now.cycles.items():
        own_before, total_before = before.cycles.get(engine, (own, total))
        if total > total_before:
            shares.append(max(0, own - own_before) / (total - total_before))
    return min(1.0, max(shares))


def _text(path: Path) -> str | None:
    try:
        with open(path, "rb", 0) as file:
            return file.read(65536).decode("utf-8", "replace").strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return None if text is None else _quantity(text)


def _percent(path: Path) -> int | None:
    value = _number(path)
    return None if value is None else min(100, value)
