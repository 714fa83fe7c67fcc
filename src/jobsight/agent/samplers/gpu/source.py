"""The contract between GPUs and their source: NVML, a command, the files of a kernel driver.

A :class:`GpuSource` lists the GPUs of the node and reads each of them. Where it can, a
:class:`GpuReading` has the mean since the reading before it, or a counter, and not the value of a
moment: a sample every ten seconds would miss what happens between two samples.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple, Protocol

import msgspec

#: The reason of all figures while a call of the driver hangs.
NO_ANSWER: Final = "the driver does not answer"


class Gpu(msgspec.Struct, frozen=True):
    """A GPU or a MIG instance of one."""

    #: The index as nvidia-smi gives it; ``0:1`` is the second instance of the first GPU.
    key: str
    index: int
    uuid: str
    name: str
    #: The minor number of its device file, which Slurm uses.
    minor: int | None = None
    #: Of a MIG instance: the key of its GPU, and its ids there.
    parent: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


class GpuReading(msgspec.Struct):
    """One reading of a GPU; None if the GPU does not provide a figure."""

    #: Percent of the driver's last sample period in which a kernel ran or memory was accessed.
    utilization: int | None = None
    memory_utilization: int | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    #: Milliwatts.
    power: int | None = None
    power_limit: int | None = None
    #: Degrees Celsius.
    temperature: int | None = None
    #: Megahertz.
    clock_graphics: int | None = None
    clock_sm: int | None = None
    clock_memory: int | None = None
    application_graphics: int | None = None
    application_memory: int | None = None
    #: The driver's energy counter in microjoules. It is not part of every reading.
    energy: int | None = None
    #: The share of a time in which the GPU was active, and that time in nanoseconds; None: the time
    #: since the last reading.
    activity: float | None = None
    activity_span: int | None = None
    #: Activity is not part of every reading: the next one that has it covers this one.
    activity_follows: bool = False
    #: Field of :class:`jobsight.model.GpuUse` -> its growth since the last reading: a share times
    #: the nanoseconds that it stands for. Some fields are not part of every reading.
    profile: dict[str, float] | None = None
    #: The time between the samples that ``profile`` and ``traffic`` were computed from, in
    #: nanoseconds; None: the time since the last reading.
    profile_span: int | None = None
    #: Field -> bytes since the last reading.
    traffic: dict[str, int] | None = None
    #: Reason -> the driver's counter of the time with reduced clocks, in nanoseconds.
    throttled: dict[str, int] | None = None
    #: Reasons for which the clocks are reduced now, where there is no counter.
    throttled_now: frozenset[str] | None = None
    #: Kind of fault -> the driver's counter.
    faults: dict[str, int] | None = None
    #: Xid errors since the last reading.
    xids: tuple[int, ...] = ()
    #: Group of :data:`jobsight.model.GPU_FIGURES` -> why its figures are not in this reading.
    missing: dict[str, str] = msgspec.field(default_factory=dict)
    #: Why nothing of the GPU can be read.
    failure: str = ""

    @property
    def is_empty(self) -> bool:
        return self.memory_used is None and self.power is None and self.utilization is None


class GpuProcess(NamedTuple):
    """A process that uses a GPU."""

    pid: int
    #: The key of the GPU.
    key: str
    #: Bytes of the GPU's memory; None if not known.
    memory: int | None = None
    #: Its share of the GPU's time since the last reading, from 0 to 1; None if not known.
    share: float | None = None


class GpuSource(Protocol):
    """A source of GPU readings: a library, a command, a driver's files, or a recording."""

    #: Whether its calls may block, so that they are made in a thread.
    blocks: bool

    @property
    def gpus(self) -> tuple[Gpu, ...]: ...
    def read(self, gpu: Gpu, *, samples: bool = True, counters: bool = True) -> GpuReading:
        """One reading. What takes milliseconds is part of it on request: the utilization samples
        that the driver keeps for seconds, and counters that it keeps for ever."""
        ...

    def processes(self, candidates: Collection[int]) -> list[GpuProcess]:
        """The processes that use a GPU. A source that cannot list them looks for their use among
        the candidates, the processes of the jobs."""
        ...

    def describe(self, gpu: Gpu) -> list[str]:
        """What the GPU provides and what not, for people."""
        ...

    def refresh(self) -> None:
        """List the GPUs again."""
        ...

    def close(self) -> None: ...
