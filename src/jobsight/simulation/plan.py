"""What a run does over its time: the plan from which all its records are computed.

A run is a sequence of phases. Each phase has one busy program and constant rates on each node, so
that totals, time series, executables and GPUs all follow from the same integrals.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from jobsight.simulation.site import NodeKind, User

#: ``low``: the agent saw a part of the run. ``none``: no agent reported it.
Seen: TypeAlias = Literal["full", "low", "none"]

BASH: Final = b"/usr/bin/bash"
SLEEP: Final = b"/usr/bin/sleep"


class Phase(msgspec.Struct, kw_only=True):
    """A stretch of a run with constant rates, which are per second and node."""

    program: bytes
    #: Seconds.
    duration: float
    #: Busy CPUs.
    cores: float
    #: Used memory at the beginning and the end, as shares of the plan's need.
    memory: tuple[float, float] = (1.0, 1.0)
    #: Bytes from and to storage.
    read: float = 0.0
    written: float = 0.0
    #: Bytes of one call.
    call_size: float = 262_144.0
    system_share: float = 0.04
    cpu_pressure: float = 0.01
    io_pressure: float = 0.01
    io_full: float = 0.002
    memory_full: float = 0.0
    #: Activity of the GPUs in use, and of their multiprocessors while active.
    gpu: float = 0.0
    multiprocessors: float = 0.7
    #: Threads that run or could run; None is as many as busy CPUs.
    running: float | None = None
    #: Started programs and those that failed, on each node.
    executions: int = 1
    failures: int = 0
    #: Memory of one process, as a share of the need.
    process_memory: float = 1.0
    swap: float = 0.0


class Helper(msgspec.Struct, kw_only=True):
    """A program next to the phases, with little CPU time: ``mkdir``, ``grep``, a monitor."""

    program: bytes
    executions: int = 1
    failures: int = 0
    #: CPU seconds of all executions.
    cpu_time: float = 0.01
    #: As shares of the elapsed time.
    first: float = 0.0
    last: float = 1.0


class StepPlan(msgspec.Struct, kw_only=True):
    """A step that ``srun`` started, with its share of the elapsed time."""

    first: float
    last: float
    #: Share of the CPU time of the run.
    cpu_share: float
    tasks: int = 1
    state: str = "COMPLETED"
    exit_code: int = 0


class Plan(msgspec.Struct, kw_only=True):
    """One run: its request, its phases, how it ended, and what is wrong with it."""

    user: User
    name: str
    kind: NodeKind
    script: str
    #: Start and submit in seconds since 1970.
    start: int
    wait: int
    nodes: int
    #: On each node.
    cpus: int
    gpus: int
    memory: int
    #: Used memory at its highest, on each node.
    need: float
    time_limit: int
    phases: list[Phase]
    helpers: list[Helper] = msgspec.field(default_factory=list)
    steps: list[StepPlan] = msgspec.field(default_factory=list)
    tasks: int = 1
    exclusive: bool = False
    #: Activity of each node, of that of the busiest.
    node_activity: list[float] | None = None
    #: The only program on nodes other than the first, if it is another.
    node_program: bytes = b""
    #: CPU time of each core of a node in relation to the others; None if it is not measured.
    core_shares: list[float] | None = None
    #: Activity of each GPU of a node, of that of the busiest.
    gpu_activity: list[float] | None = None
    #: Whether an unused GPU was at least opened.
    gpu_opened: bool = False
    gpu_memory: float = 0.3
    #: Activity of the tensor cores, of that of the multiprocessors.
    tensor: float = 0.3
    throttled: dict[str, float] = msgspec.field(default_factory=dict)
    gpu_faults: list[tuple[str, int, int | None]] = msgspec.field(default_factory=list)
    #: Page cache at its highest, in bytes on each node.
    cache: float = 0.0
    open_files: float = 12.0
    scratch_files: float = 3.0
    state: str = "COMPLETED"
    exit_code: int = 0
    exit_signal: int = 0
    oom_kills: int = 0
    running: bool = False
    array_task: int | None = None
    array_size: int = 0
    seen: Seen = "full"
    #: Runs of the script since its habit began, and before it in the storm that it is part of.
    streak: int = 0
    storm: int = 0
    #: A short trial of the script.
    trial: bool = False
    #: Kinds of misbehaviour that this run has.
    labels: set[str] = msgspec.field(default_factory=set)
    #: Kinds that are symptoms of these, or too small to decide: neither right nor wrong.
    undecided: set[str] = msgspec.field(default_factory=set)

    @property
    def elapsed(self) -> float:
        return sum(phase.duration for phase in self.phases)

    @property
    def peak(self) -> float:
        """The memory that it used at most, on each node: less than its need if it ended early."""
        return self.need * max(max(phase.memory) for phase in self.phases)

    @property
    def core_hours(self) -> float:
        return self.nodes * self.cpus * self.elapsed / 3600

    @property
    def used_share(self) -> float:
        """CPU time of what the CPUs could have provided, on a node that works."""
        used = sum(phase.cores * phase.duration for phase in self.phases)
        return used / (self.cpus * self.elapsed) if self.elapsed else 0.0

    def busy(self) -> list[Phase]:
        """The phases that do the work: those with the most busy CPUs or GPUs."""
        most = max(phase.cores for phase in self.phases)
        return [phase for phase in self.phases if phase.cores >= most * 0.5 or phase.gpu > 0]

    def stretch(self, factor: float) -> None:
        """Let every phase take longer or shorter."""
        for phase in self.phases:
            phase.duration *= factor

    def cut(self, elapsed: float) -> None:
        """End the run after so many seconds."""
        kept: list[Phase] = []
        left = elapsed
        for phase in self.phases:
            if left <= 0:
                break
            if phase.duration > left:
                done = left / phase.duration
                begin, end = phase.memory
                phase = msgspec.structs.replace(
                    phase, duration=left, memory=(begin, begin + (end - begin) * done)
                )
            kept.append(phase)
            left -= phase.duration
        self.phases = kept

    def change(self, **values: Any) -> None:
        """Set the same values in all phases that do the work."""
        for phase in self.busy():
            for name, value in values.items():
                setattr(phase, name, value)
