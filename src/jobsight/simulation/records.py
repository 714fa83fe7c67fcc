"""The records of a run: what a scheduler and the agents of its nodes would have sent.

:func:`make_run` computes all of them from one plan: totals are the integrals of the phases, the
time series end at the totals, and the executables add up to them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from jobsight.model import (
    SECOND,
    Column,
    Coverage,
    ExecutableUse,
    GpuFault,
    GpuUse,
    JobInfo,
    JobPart,
    JobTotals,
    Series,
    Sighting,
    StepUse,
)
from jobsight.scheduler.records import JobDetails, StepInfo
from jobsight.simulation.plan import BASH, Phase, Plan

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: Points of a time series.
_MIN_SAMPLES, _MAX_SAMPLES = 20, 200
_INTERVAL: Final = 30.0
#: CPU time of slurmstepd, in nanoseconds.
_OVERHEAD: Final = 200_000_000
#: Watts of a GPU when idle and at full use.
_IDLE_POWER, _FULL_POWER = 60.0, 420.0
_SOURCE: Final = "sacct"

#: Counters of a node, in the order of the rows of :func:`_rates`.
_COUNTERS: Final = (
    "cpu.time",
    "cpu.user",
    "cpu.system",
    "io.read_characters",
    "io.written_characters",
    "io.read_bytes",
    "io.written_bytes",
    "io.read_calls",
    "io.write_calls",
    "pressure.cpu",
    "pressure.memory",
    "pressure.memory_full",
    "pressure.io",
    "pressure.io_full",
)
_CPU_ROWS: Final = 3
_FIRST_PRESSURE: Final = 9
_GPU_COUNTERS: Final = ("multiprocessor_time", "energy", "throttled_time")


class SimulatedRun(NamedTuple):
    """The records of one run, and the truth about it."""

    info: JobInfo
    details: JobDetails
    parts: list[JobPart]
    #: Kinds of misbehaviour that it has, and those that are neither right nor wrong.
    labels: frozenset[str]
    undecided: frozenset[str]
    #: How much agents saw of it: "full", "low" or "none".
    seen: str


class Identity(NamedTuple):
    """The numbers that a scheduler gives a run."""

    job_id: int
    boot_id: str
    array_job_id: int | None = None
    het_job_id: int | None = None
    het_offset: int | None = None
    #: The job that it waited for.
    after: int | None = None


def make_run(plan: Plan, identity: Identity, random: np.random.Generator) -> SimulatedRun:
    """All records of the run of a plan."""
    nodes = _choose_nodes(plan, random)
    timeline = _Timeline(plan, random)
    info = _info(plan, identity, nodes)
    details = _details(plan, info, timeline, identity.after)
    parts: list[JobPart] = []
    if plan.seen != "none":
        activity = plan.node_activity or [1.0] * plan.nodes
        parts = [
            _part(plan, identity, node, index, share, timeline, random)
            for index, (node, share) in enumerate(zip(nodes, activity, strict=True))
        ]
    return SimulatedRun(
        info, details, parts, frozenset(plan.labels), frozenset(plan.undecided), plan.seen
    )


def _choose_nodes(plan: Plan, random: np.random.Generator) -> tuple[str, ...]:
    first = int(random.integers(plan.kind.size))
    numbers = sorted((first + step) % plan.kind.size + 1 for step in range(plan.nodes))
    return tuple(f"{plan.kind.prefix}{number:03d}" for number in numbers)


class _Timeline:
    """The integrals of the phases of a node with activity 1, and their samples."""

    def __init__(self, plan: Plan, random: np.random.Generator) -> None:
        self.phases = plan.phases
        durations = np.array([phase.duration for phase in plan.phases])
        #: Seconds since the start at which phases begin and end.
        self.edges: Floats = np.concatenate(([0.0], np.cumsum(durations)))
        self.elapsed = float(self.edges[-1])
        rates = _rates(plan)
        integrals = np.cumsum(rates * durations, axis=1)
        self.integrals: Floats = np.concatenate((np.zeros((len(rates), 1)), integrals), axis=1)
        self.offsets = self._sample_times(plan, random)
        place = np.searchsorted(self.edges, self.offsets, "right") - 1
        self.phase_of_sample = place.clip(0, len(durations) - 1)
        place = self.phase_of_sample
        within = (self.offsets - self.edges[place]) / durations[place]
        self.within: Floats = within.clip(0.0, 1.0)
        self.noise: Floats = random.uniform(0.97, 1.03, len(self.offsets))

    def _sample_times(self, plan: Plan, random: np.random.Generator) -> Floats:
        most = int(random.integers(40, 110)) if len(plan.phases) < 8 else _MAX_SAMPLES
        count = int(min(max(self.elapsed / _INTERVAL, _MIN_SAMPLES), most))
        last = self.elapsed
        if plan.seen == "low":
            last *= 0.1 + 0.35 * float(random.random())
            count = max(_MIN_SAMPLES, count // 2)
        return np.linspace(last / count, last, count)

    def counters(self, integrals: Floats) -> Integers:
        """Counters at the times of the samples, with noise, that end where they should."""
        place = self.phase_of_sample
        steps = integrals[:, place + 1] - integrals[:, place]
        values = integrals[:, place] + steps * self.within
        increments = np.diff(values, axis=1, prepend=0.0) * self.noise
        noisy = np.cumsum(increments, axis=1)
        last = noisy[:, -1:]
        scale = np.divide(values[:, -1:], last, out=np.zeros_like(last), where=last > 0)
        return np.rint(noisy * scale).astype(np.int64)

    def gauge(self, ends: list[tuple[float, float]]) -> Floats:
        """A gauge that moves from one value to another in each phase."""
        table = np.array(ends)[self.phase_of_sample]
        values: Floats = table[:, 0] + (table[:, 1] - table[:, 0]) * self.within
        return values


def _rates(plan: Plan) -> Floats:
    """The rates of the counters by phase, per second."""
    rows: list[list[float]] = []
    for phase in plan.phases:
        cpu = phase.cores * SECOND
        waits = (
            phase.cpu_pressure,
            min(phase.memory_full * 1.2, 1.0),
            phase.memory_full,
            phase.io_pressure,
            phase.io_full,
        )
        rows.append(
            [
                cpu,
                cpu * (1 - phase.system_share),
                cpu * phase.system_share,
                phase.read,
                phase.written,
                phase.read * 0.7,
                phase.written * 0.9,
                phase.read / phase.call_size,
                phase.written / phase.call_size,
                *(share * SECOND for share in waits),
            ]
        )
    return np.array(rows).T


def _info(plan: Plan, identity: Identity, nodes: tuple[str, ...]) -> JobInfo:
    cpus, gpus = plan.cpus * plan.nodes, plan.gpus * plan.nodes
    memory = plan.memory * plan.nodes
    tres = {"cpu": cpus, "mem": memory, "node": plan.nodes, "billing": cpus}
    if gpus:
        tres |= {"gres/gpu": gpus, f"gres/gpu:{plan.kind.gpu_type}": gpus}
    end = None if plan.running else (plan.start + round(plan.elapsed)) * SECOND
    return JobInfo(
        cluster=plan.kind.cluster,
        job_id=identity.job_id,
        source=_SOURCE,
        array_job_id=identity.array_job_id,
        array_task_id=plan.array_task,
        het_job_id=identity.het_job_id,
        het_offset=identity.het_offset,
        name=plan.name,
        user=plan.user.name,
        uid=plan.user.uid,
        account=plan.user.account,
        partition=plan.kind.partition,
        qos="normal",
        command=plan.script,
        nodes=nodes,
        cpus=cpus,
        memory=memory,
        gpus=gpus or None,
        tres=tres,
        time_limit=plan.time_limit * SECOND,
        submit=(plan.start - plan.wait) * SECOND,
        start=plan.start * SECOND,
        end=end,
        state="RUNNING" if plan.running else plan.state,
        exit_code=None if plan.running else plan.exit_code,
        exit_signal=None if plan.running else plan.exit_signal,
    )


def _details(plan: Plan, info: JobInfo, timeline: _Timeline, after: int | None) -> JobDetails:
    activity = sum(plan.node_activity or [1.0] * plan.nodes)
    cpu_time = int(timeline.integrals[0, -1] * activity)
    tres = dict(info.tres or {})
    gres: tuple[str, ...] = ()
    if plan.gpus:
        places = "0" if plan.gpus == 1 else f"0-{plan.gpus - 1}"
        gres = (f"gpu:{plan.kind.gpu_type}:{plan.gpus}(IDX:{places})",) * plan.nodes
    return JobDetails(
        accounted=not plan.running,
        submit_line=_submit_line(plan, after),
        working_directory=plan.script.rpartition("/")[0],
        standard_output=f"{plan.script}.out",
        priority=1000,
        eligible=info.submit,
        elapsed=None if plan.running else round(plan.elapsed) * SECOND,
        node_count=plan.nodes,
        tasks=plan.tasks,
        tres_requested=tres,
        gres=gres,
        cpu_time=None if plan.running else cpu_time,
        steps=[] if plan.running else _accounted_steps(plan, cpu_time),
    )


def _submit_line(plan: Plan, after: int | None) -> str:
    hours, rest = divmod(plan.time_limit, 3600)
    words = ["sbatch", *([f"--dependency=afterok:{after}"] if after is not None else [])]
    words += [f"--time={hours}:{rest // 60:02d}:00", f"--mem={plan.memory >> 20}M"]
    words.append("--exclusive" if plan.exclusive else f"--cpus-per-task={plan.cpus}")
    if plan.nodes > 1:
        words.append(f"--nodes={plan.nodes}")
    if plan.gpus:
        words.append(f"--gpus-per-node={plan.kind.gpu_type}:{plan.gpus}")
    if plan.array_size:
        words.append(f"--array=1-{plan.array_size}")
    return " ".join([*words, plan.script.rpartition("/")[2]])


def _accounted_steps(plan: Plan, cpu_time: int) -> list[StepInfo]:
    # Slurm's figure counts a part of the page cache.
    peak = int(min(plan.peak + 0.9 * plan.cache, plan.memory))
    start, length = plan.start, plan.elapsed
    shared = sum(step.cpu_share for step in plan.steps)
    batch = StepInfo(
        step="batch",
        name="batch",
        state=plan.state if not plan.steps else "COMPLETED",
        exit_code=plan.exit_code,
        start=start * SECOND,
        end=(start + round(length)) * SECOND,
        tasks=1,
        cpu_time=int(cpu_time * max(0.0, 1 - shared)),
        memory_peak=peak if not plan.steps else 20 * 2**20,
    )
    return [batch] + [
        StepInfo(
            step=str(number),
            name=plan.busy()[0].program.rpartition(b"/")[2].decode(),
            state=step.state,
            exit_code=step.exit_code,
            start=(start + round(length * step.first)) * SECOND,
            end=(start + round(length * step.last)) * SECOND,
            tasks=step.tasks,
            cpu_time=int(cpu_time * step.cpu_share),
            memory_peak=peak // max(step.tasks // plan.nodes, 1),
        )
        for number, step in enumerate(plan.steps)
    ]


def _part(
    plan: Plan,
    identity: Identity,
    node: str,
    index: int,
    activity: float,
    timeline: _Timeline,
    random: np.random.Generator,
) -> JobPart:
    start = plan.start * SECOND
    integrals = timeline.integrals * activity
    counters = timeline.counters(integrals)
    # The CPU time by program is exact, and the kernel's counter is its sum.
    executables = _executables(plan, timeline, index, activity)
    # What the samples of an agent that stopped early have seen is all that is known.
    covered = float(timeline.offsets[-1] / timeline.elapsed) if plan.seen == "low" else 1.0
    last = start + int(timeline.offsets[-1] * SECOND)
    cpu_time = int(counters[0, -1])
    extra = sum(use.cpu_time for use in executables) - cpu_time if covered == 1.0 else 0
    if covered < 1.0:
        executables = _seen_until(executables, last, covered)
    else:
        counters[:2, -1] += extra
        # Rounding may have left the last sample but one above the last.
        counters[:2] = np.minimum(counters[:2], counters[:2, -1:])
    gpus, columns = _gpus(plan, timeline, index, activity, random)
    columns |= _gauges(plan, timeline, index, activity)
    if plan.core_shares is not None:
        columns |= _cores(plan.core_shares, counters[0], random)
    totals = _totals(plan, counters[:, -1], last, activity, executables)
    return JobPart(
        sighting=Sighting(
            cluster=plan.kind.cluster,
            job_id=identity.job_id,
            node=node,
            boot_id=identity.boot_id,
            birth=start,
        ),
        epoch=identity.boot_id,
        series=_series(start, timeline.offsets, counters, columns),
        totals=totals,
        executables=executables,
        steps=_steps(plan, index, totals.cpu_time or 0, last),
        gpus=gpus,
        coverage=_coverage(plan, covered),
        final=not plan.running,
    )


def _executables(
    plan: Plan, timeline: _Timeline, index: int, activity: float
) -> list[ExecutableUse]:
    start = plan.start * SECOND
    uses: dict[bytes, ExecutableUse] = {}
    if activity > 0:
        for phase, begin, end in zip(
            plan.phases, timeline.edges[:-1], timeline.edges[1:], strict=True
        ):
            cpu = int(phase.cores * phase.duration * activity * SECOND)
            if index and plan.node_program:
                phase = msgspec.structs.replace(
                    phase, program=plan.node_program, executions=1, process_memory=0.001, gpu=0.0
                )
            _add_use(uses, plan, phase, cpu, start + int(begin * SECOND), start + int(end * SECOND))
    if index == 0:
        end = start + int(timeline.elapsed * SECOND)
        uses.setdefault(BASH, ExecutableUse(path=BASH, first_seen=start, last_seen=end))
        script = uses[BASH]
        script.executions += 1
        script.processes += 3
        script.cpu_time += 80_000_000
        script.cpu_user += 80_000_000
        script.first_seen, script.last_seen = start, end
        for helper in plan.helpers:
            cpu = int(helper.cpu_time * SECOND)
            uses[helper.program] = ExecutableUse(
                path=helper.program,
                executions=helper.executions,
                processes=helper.executions,
                failures=helper.failures,
                cpu_time=cpu,
                cpu_user=cpu,
                peak_memory=4 * 2**20,
                first_seen=start + int(timeline.elapsed * helper.first * SECOND),
                last_seen=start + int(timeline.elapsed * helper.last * SECOND),
            )
    return list(uses.values())


def _add_use(
    uses: dict[bytes, ExecutableUse], plan: Plan, phase: Phase, cpu: int, begin: int, end: int
) -> None:
    use = uses.get(phase.program)
    if use is None:
        use = uses[phase.program] = ExecutableUse(path=phase.program, first_seen=begin)
    system = int(cpu * phase.system_share)
    use.executions += phase.executions
    use.processes += phase.executions
    use.failures += phase.failures
    use.cpu_time += cpu
    use.cpu_user += cpu - system
    use.cpu_system += system
    use.read_bytes += int(phase.read * 0.7 * phase.duration)
    use.written_bytes += int(phase.written * 0.9 * phase.duration)
    largest = max(phase.memory) * phase.process_memory * plan.need
    use.peak_memory = max(use.peak_memory, int(largest))
    use.last_seen = end
    if phase.gpu and plan.gpus:
        active = sum(plan.gpu_activity or [1.0] * plan.gpus)
        use.gpu_time += int(phase.gpu * phase.duration * active * SECOND)
        use.gpu_memory_peak = int(plan.gpu_memory * plan.kind.gpu_memory * max(1, round(active)))


def _seen_until(executables: list[ExecutableUse], last: int, covered: float) -> list[ExecutableUse]:
    """What an agent has seen of them that stopped at a time."""
    names = ("cpu_time", "cpu_user", "cpu_system", "gpu_time", "read_bytes", "written_bytes")
    return [
        msgspec.structs.replace(
            use,
            last_seen=min(use.last_seen, last),
            **{name: int(getattr(use, name) * covered) for name in names},
        )
        for use in executables
        if use.first_seen < last
    ]


def _totals(
    plan: Plan, last: Integers, time: int, activity: float, executables: list[ExecutableUse]
) -> JobTotals:
    figures = dict(zip(_COUNTERS, last.tolist(), strict=True))
    used = int(plan.peak * (0.02 if activity == 0 else 1))
    return JobTotals(
        time=time,
        cpu_source="cgroup v2",
        cpu_time=figures["cpu.time"],
        cpu_user=figures["cpu.user"],
        cpu_system=figures["cpu.system"],
        cpu_overhead=_OVERHEAD,
        memory_peak=int(min(used + plan.cache, plan.memory)),
        memory_used_peak=used,
        memory_limit=plan.memory,
        swap_peak=int(max(phase.swap for phase in plan.phases)),
        oom_kills=plan.oom_kills,
        read_characters=figures["io.read_characters"],
        written_characters=figures["io.written_characters"],
        read_bytes=figures["io.read_bytes"],
        written_bytes=figures["io.written_bytes"],
        read_calls=figures["io.read_calls"],
        write_calls=figures["io.write_calls"],
        processes=sum(use.processes for use in executables),
        executions=sum(use.executions for use in executables),
    )


def _gauges(plan: Plan, timeline: _Timeline, index: int, activity: float) -> dict[str, Integers]:
    used = timeline.gauge(
        [(phase.memory[0] * plan.need, phase.memory[1] * plan.need) for phase in plan.phases]
    )
    if activity == 0:
        used = used * 0.02
    # Peaks are those of the samples as well.
    memory = np.minimum(used * (1 - 0.004 * np.abs(timeline.noise - 1) / 0.03), plan.memory)
    cache = plan.cache * np.minimum(timeline.offsets / timeline.elapsed * 4, 1.0)
    running = (
        timeline.gauge([(_running(phase, activity),) * 2 for phase in plan.phases]) * timeline.noise
    )
    threads = running + 3
    columns = {
        "memory.used": memory,
        "memory.current": np.minimum(memory + cache, plan.memory),
        "memory.file": cache,
        "memory.limit": np.full(len(memory), float(plan.memory)),
        "tasks.running": running,
        "tasks.threads": threads,
        "tasks.processes": np.minimum(threads, plan.cpus + 3),
        "files.open": np.full(len(memory), plan.open_files),
        "files.scratch": np.full(len(memory), plan.scratch_files),
    }
    if any(phase.swap for phase in plan.phases):
        columns["memory.swap"] = timeline.gauge([(phase.swap,) * 2 for phase in plan.phases])
    return {name: np.rint(values).astype(np.int64) for name, values in columns.items()}


def _cores(
    shares: list[float], cpu_time: Integers, random: np.random.Generator
) -> dict[str, Integers]:
    """The CPU time of each core, which adds up to that of the node."""
    parts = np.array(shares) * random.uniform(0.97, 1.03, len(shares))
    parts /= parts.sum()
    return {
        f"cores.{core}.time": (cpu_time * part).astype(np.int64) for core, part in enumerate(parts)
    }


def _running(phase: Phase, activity: float) -> float:
    return (phase.cores if phase.running is None else phase.running) * activity


def _gpus(
    plan: Plan, timeline: _Timeline, index: int, activity: float, random: np.random.Generator
) -> tuple[list[GpuUse], dict[str, Integers]]:
    if not plan.gpus:
        return [], {}
    shares = [share * activity for share in plan.gpu_activity or [1.0] * plan.gpus]
    durations = np.diff(timeline.edges)
    base = np.array([phase.gpu for phase in plan.phases])
    filled = base * np.array([phase.multiprocessors for phase in plan.phases])
    throttled = sum(plan.throttled.values())
    columns: dict[str, Integers] = {}
    uses = []
    idle = np.zeros(len(timeline.offsets))
    last = plan.start * SECOND + int(timeline.offsets[-1] * SECOND)
    for number, share in enumerate(shares):
        power = np.where(base * share > 0, _IDLE_POWER + filled * share * _FULL_POWER, _IDLE_POWER)
        rates = np.stack(
            [
                filled * share * SECOND,
                power * 1e6,
                np.where(base * share > 0, throttled, 0.0) * SECOND,
            ]
        )
        integrals = np.concatenate((np.zeros((3, 1)), np.cumsum(rates * durations, axis=1)), axis=1)
        counters = timeline.counters(integrals)
        for row, name in enumerate(_GPU_COUNTERS):
            columns[f"gpu.{number}.{name}"] = counters[row]
        active = base[timeline.phase_of_sample] * share
        idle += active == 0
        utilization = np.rint((active * 100 * timeline.noise).clip(0, 100))
        columns[f"gpu.{number}.utilization"] = utilization.astype(np.int64)
        held = _gpu_memory(plan, share, timeline)
        columns[f"gpu.{number}.memory_used"] = held
        uses.append(
            _gpu_use(plan, timeline, index, number, share, counters[:, -1], int(held.max()), last)
        )
    columns["gpu.held"] = np.full(len(idle), plan.gpus, np.int64)
    columns["gpu.idle"] = idle.astype(np.int64)
    return uses, columns


def _gpu_memory(plan: Plan, share: float, timeline: _Timeline) -> Integers:
    full = plan.gpu_memory * plan.kind.gpu_memory
    if share == 0:
        full = 420 * 2**20 if plan.gpu_opened else 0
        return np.full(len(timeline.offsets), int(full), np.int64)
    first = next((place for place, phase in enumerate(plan.phases) if phase.gpu), 0)
    return np.where(timeline.phase_of_sample >= first, int(full), 0).astype(np.int64)


def _gpu_use(
    plan: Plan,
    timeline: _Timeline,
    index: int,
    number: int,
    share: float,
    counters: Integers,
    memory_peak: int,
    last: int,
) -> GpuUse:
    held = float(timeline.offsets[-1])
    active = sum(
        phase.gpu * share * max(0.0, min(end, held) - begin)
        for phase, begin, end in zip(
            plan.phases, timeline.edges[:-1].tolist(), timeline.edges[1:].tolist(), strict=True
        )
    )
    multiprocessors, energy, throttled = counters.tolist()
    reason = next(iter(plan.throttled), "")
    faults = [
        GpuFault(kind=kind, count=count, last=last, code=code)
        for kind, count, code in plan.gpu_faults
        if number == 0 and index == 0
    ]
    return GpuUse(
        key=str(number),
        uuid=f"GPU-{plan.kind.prefix}-{index}-{number}",
        name=plan.kind.gpu_name,
        first_seen=plan.start * SECOND,
        last_seen=last,
        held_time=int(held * SECOND),
        used=(share > 0 and active > 0) or plan.gpu_opened,
        active_time=int(active * SECOND),
        multiprocessor_time=multiprocessors,
        occupancy_time=int(multiprocessors * 0.6),
        tensor_time=int(multiprocessors * plan.tensor),
        fp64_time=0,
        fp32_time=int(multiprocessors * 0.4),
        fp16_time=int(multiprocessors * 0.3),
        bandwidth_time=int(multiprocessors * 0.5),
        memory_total=plan.kind.gpu_memory,
        memory_peak=memory_peak,
        memory_time=int(memory_peak * held),
        energy=energy,
        throttled_time={reason: throttled} if throttled else {},
        faults=faults,
    )


def _steps(plan: Plan, index: int, cpu_time: int, last: int) -> list[StepUse]:
    start, length = plan.start * SECOND, plan.elapsed
    shared = sum(step.cpu_share for step in plan.steps)
    uses = [
        StepUse(
            step="extern",
            tasks=0,
            cpu_time=0,
            cpu_overhead=_OVERHEAD // 2,
            memory_peak=2**20,
            first_seen=start,
            last_seen=last,
            ended=not plan.running,
        )
    ]
    if index == 0:
        uses.append(
            StepUse(
                step="batch",
                tasks=1,
                cpu_time=int(cpu_time * max(0.0, 1 - shared)),
                cpu_overhead=_OVERHEAD // 2,
                memory_peak=int(plan.peak),
                oom_kills=plan.oom_kills,
                first_seen=start,
                last_seen=last,
                ended=not plan.running,
            )
        )
    for number, step in enumerate(plan.steps):
        begin = start + int(length * step.first * SECOND)
        if begin >= last:
            break
        uses.append(
            StepUse(
                step=str(number),
                tasks=max(step.tasks // plan.nodes, 1),
                cpu_time=int(cpu_time * step.cpu_share),
                cpu_overhead=_OVERHEAD // 4,
                memory_peak=int(plan.peak),
                first_seen=begin,
                last_seen=min(start + int(length * step.last * SECOND), last),
                ended=not plan.running,
            )
        )
    return uses


_EXACT: Final = Coverage(quality="exact", time_share=1.0)
_FULL: Final = {
    "cpu": _EXACT,
    "memory": _EXACT,
    "io": _EXACT,
    "executables": Coverage(quality="exact", time_share=1.0, cpu_share=1.0),
}
_FULL_GPU: Final = {**_FULL, "gpu": _EXACT, "gpu_programs": Coverage(quality="estimate")}


def _coverage(plan: Plan, covered: float) -> dict[str, Coverage]:
    if covered == 1.0:
        full = _FULL_GPU if plan.gpus else _FULL
        return full if plan.core_shares is None else {**full, "cores": _EXACT}
    seen = Coverage(
        quality="estimate",
        time_share=round(covered, 4),
        cpu_share=round(covered, 4),
        reason="the agent stopped during the run",
    )
    return dict.fromkeys(_FULL_GPU if plan.gpus else _FULL, seen)


def _series(
    start: int, offsets: Floats, counters: Integers, columns: dict[str, Integers]
) -> Series:
    times = start + np.rint(offsets * SECOND).astype(np.int64)
    rows = np.vstack([times[None], counters, *(row[None] for row in columns.values())])
    count = len(times)
    flat = memoryview(rows.tobytes()).cast("q")
    names = ("", *_COUNTERS, *columns)
    by_name: dict[str, Column] = {
        name: flat[place * count : (place + 1) * count] for place, name in enumerate(names)
    }
    return Series(by_name.pop(""), by_name)
