"""The GPUs of a job of ``jobsight run``: free ones are picked and reserved until the job ends."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from jobsight.agent.samplers.gpu.devices import NodeGpus, has_name
from jobsight.agent.samplers.gpu.source import NO_ANSWER, Gpu, GpuProcess, GpuSource
from jobsight.agent.samplers.node import Node
from jobsight.agent.samplers.readings import Background
from jobsight.errors import CommandError

_COMMAND: Final = "/usr/bin/nvidia-smi"
#: Seconds after which a command that waits for the driver gives up.
DRIVER_TIMEOUT: Final = 30.0
#: Files that exist if a driver that can be read is loaded.
_DRIVERS: Final = (
    "dev/nvidiactl",
    "proc/driver/nvidia/version",
    "sys/bus/pci/drivers/amdgpu",
    "sys/bus/pci/drivers/xe",
    "sys/bus/pci/drivers/i915",
)


def has_driver(root: Path = Path("/")) -> bool:
    """Whether a driver of a GPU is loaded. A machine without one imports nothing more."""
    return any(os.path.exists(root / name) for name in _DRIVERS)


class Reservation:
    """Free GPUs that no other ``jobsight run`` of this machine picks while this object exists.

    A reservation is a name in the abstract namespace of sockets: it is known to all users of the
    machine, and the kernel removes it with the process.
    """

    def __init__(self, gpus: list[Gpu], locks: list[socket.socket]) -> None:
        self.gpus = gpus
        self._locks = locks

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(gpu.uuid for gpu in self.gpus)

    def environment(self) -> dict[str, str]:
        """The variables by which programs of CUDA, ROCm and oneAPI see these GPUs alone."""
        indexes = ",".join(str(gpu.index) for gpu in self.gpus)
        if all(gpu.uuid.startswith(("GPU-", "MIG-")) for gpu in self.gpus):
            visible = ",".join(self.names)
            return {"CUDA_VISIBLE_DEVICES": visible, "ROCR_VISIBLE_DEVICES": visible}
        return {"ROCR_VISIBLE_DEVICES": indexes, "ZE_AFFINITY_MASK": indexes}

    def release(self) -> None:
        for lock in self._locks:
            lock.close()


def reserve(count: int, node: Node) -> Reservation:
    """Reserve so many GPUs that no process uses; raises CommandError if there are not enough."""
    gpus = node.shared("gpus", lambda: NodeGpus(node, _COMMAND, 10.0))
    source = gpus.wait_for_source(DRIVER_TIMEOUT)
    if source is None or not source.gpus:
        raise CommandError(f"--gpus {count}: {gpus.unavailable or 'no GPU was found'}", 2)
    usable = _usable(source, node.environment.get("CUDA_VISIBLE_DEVICES"))
    if count > len(usable):
        raise CommandError(
            f"--gpus {count}: this machine has {len(usable)}; expected {len(usable)} or fewer", 2
        )
    listing = Background[list[GpuProcess]]("gpu", DRIVER_TIMEOUT)
    processes = listing.run(lambda: source.processes(()))
    if processes is None:
        raise CommandError(f"--gpus {count}: {NO_ANSWER}; nvidia-smi may tell more", 1)
    busy = {process.key for process in processes}
    picked: list[Gpu] = []
    locks: list[socket.socket] = []
    for gpu in usable:
        if gpu.key not in busy and len(picked) < count:
            lock = _lock(gpu)
            if lock is not None:
                picked.append(gpu)
                locks.append(lock)
    if len(picked) < count:
        for lock in locks:
            lock.close()
        raise CommandError(
            f"--gpus {count}: {len(picked)} of {len(usable)} GPUs are free; wait for a job to end, "
            "or name the GPUs in CUDA_VISIBLE_DEVICES and leave --gpus out",
            1,
        )
    return Reservation(picked, locks)


def _usable(source: GpuSource, visible: str | None) -> list[Gpu]:
    """GPUs and MIG instances, without the GPUs that are divided into such; those that are visible
    in this shell if it names some."""
    parents = {gpu.parent for gpu in source.gpus}
    gpus = [gpu for gpu in source.gpus if gpu.key not in parents]
    if visible is None:
        return gpus
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return [gpu for gpu in gpus if any(has_name(gpu, name) for name in names)]


def _lock(gpu: Gpu) -> socket.socket | None:
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        lock.bind(f"\0jobsight-gpu-{gpu.uuid}"[:100])
    except OSError:
        lock.close()
        return None
    return lock
