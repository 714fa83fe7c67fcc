"""The ways in which a run goes wrong, each as a change of its plan.

:data:`MISBEHAVIOUR` is the table of all kinds. A function of the table changes the plan of a run
that would have behaved, and labels it. A run whose loss is too small to matter is not labelled but
left undecided, as are the symptoms of what was planted: a rule may report them or not.
:func:`label_request` labels what follows from the request and the need alone, also of runs in
which nothing was planted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
import numpy as np

from jobsight.simulation.plan import SLEEP, Phase, Plan, StepPlan
from jobsight.simulation.site import GIB, MAX_TIME, NODE_KINDS
from jobsight.simulation.works import MIB, Work, choose

Random = np.random.Generator

#: A loss below these is left undecided: core hours, GPU hours, GB hours.
CORE_HOURS, GPU_HOURS, GB_HOURS = 25.0, 2.5, 300.0
#: The same of what a shape costs, which always costs something.
SHAPE_CORE_HOURS = 60.0
#: Runs that are shorter are left undecided.
SHORTEST = 15 * 60

_CONDA: Final = b"/apps/miniconda/bin/conda"
_HOLDERS: Final = (
    SLEEP,
    b"/usr/bin/tail",
    b"/usr/bin/ssh",
    b"/apps/jupyter/bin/jupyter-lab",
    # A hung run: its own program is alive and does nothing.
    b"",
)


class Misbehaviour(NamedTuple):
    """A kind of misbehaviour."""

    name: str
    help: str
    #: Any of these tags of a template is needed.
    tags: frozenset[str]
    apply: Callable[[Plan, Work, Random], None]
    #: Kinds that the same cause may show as.
    symptoms: tuple[str, ...] = ()
    #: It needs earlier runs of the same script.
    history: bool = False
    #: Share of the runs of a script with this habit.
    rate: float = 0.8
    #: It is seen while the run lasts.
    live: bool = False


def plant(plan: Plan, work: Work, kind: str, random: Random) -> None:
    """Let a run go wrong in one way."""
    misbehaviour = MISBEHAVIOUR[kind]
    misbehaviour.apply(plan, work, random)
    if kind in plan.labels or kind in plan.undecided:
        plan.undecided |= set(misbehaviour.symptoms)


def shrink(plan: Plan, elapsed: float) -> None:
    """Make a run a short trial of the same script. What goes wrong in it costs nothing, and is not
    worth a report."""
    plan.stretch(elapsed / plan.elapsed)
    plan.labels &= _WHATEVER_LENGTH
    plan.undecided &= _WHATEVER_LENGTH


def settle(plan: Plan, work: Work) -> None:
    """Label what the request itself shows, and leave undecided what is too short or running, and
    what the earlier runs of its script suggest."""
    _leave_to_history(plan, work)
    if plan.trial:
        plan.undecided -= plan.labels
        return
    label_request(plan)
    if plan.elapsed < SHORTEST:
        _withdraw(plan, plan.labels - _WHATEVER_LENGTH)
    if plan.running:
        _settle_running(plan)
    if plan.state == "TIMEOUT":
        plan.undecided.add("time-limit-reached")
    if plan.labels & _LOW_CPU_CAUSES or plan.used_share < 0.6:
        plan.undecided |= {"better-elsewhere", "cpu-unsteady", "cpu-core-imbalance"}
    if plan.nodes > 1 and plan.cpus < 0.55 * plan.kind.cores and plan.used_share < 0.85:
        plan.undecided.add("too-many-nodes")
    if plan.labels & _GPU_CAUSES:
        plan.undecided |= {"gpu-memory-unused", "gpu-too-powerful", "gpu-idle-long"}
    plan.undecided -= plan.labels


def _leave_to_history(plan: Plan, work: Work) -> None:
    """What rules conclude from earlier runs is neither right nor wrong where these runs do not say
    what is planted in this one."""
    if work.habit and plan.state != "COMPLETED":
        # A habit that ends runs ends one after the other, whatever ended this one.
        plan.undecided.add("failed-again")
    changed = work.habit_since > 0 or work.habit_until < 1
    if changed and work.habit != "slower-than-before":
        # Runs that go wrong use more or less CPU time than those before or after them.
        plan.undecided.add("slower-than-before")
    if plan.running and work.habit and work.habit_rate > 0:
        # Earlier runs that were held, or that had no GPU, took much longer than this one may.
        plan.undecided.add("time-limit-ahead")
    last = plan.phases[-1]
    if plan.state != "COMPLETED" and last.memory[1] > 1.05 * last.memory[0]:
        # Nobody can know whether the memory would have stopped growing.
        plan.undecided.add("memory-grows")


def _settle_running(plan: Plan) -> None:
    """What shows while a run lasts has names of its own."""
    if "gpu-not-used" in plan.labels:
        _label(plan, "gpu-not-opened-yet", matters=plan.elapsed >= 3600)
    if plan.gpus and plan.labels & {"held-after-work", "gpu-not-used"}:
        plan.undecided.add("gpu-idle-now")
    if plan.gpus and not plan.phases[-1].gpu:
        plan.undecided.add("gpu-idle-now")
    if plan.peak >= 0.85 * plan.memory:
        plan.undecided.add("memory-near-limit")
    # The name of the ended run is another.
    _withdraw(plan, {name for name in plan.labels if name not in LIVE - {"gpu-not-used"}})


def label_request(plan: Plan) -> None:
    """Label a request of far more memory, time or CPUs than the run needed."""
    hours = plan.elapsed / 3600
    share = plan.peak / plan.memory
    unused = plan.nodes * (plan.memory - plan.peak) / 1e9 * hours
    fills_node = plan.cpus >= 0.85 * plan.kind.cores or plan.exclusive
    # Memory that the CPUs of the run entitle it to is in nobody's way.
    entitled = plan.memory <= 1.05 * plan.cpus * plan.kind.memory_per_core
    if share < 0.35 and unused >= GB_HOURS and not fills_node and not entitled:
        plan.labels.add("memory-request-unused")
    elif share < 0.55 and not fills_node:
        plan.undecided.add("memory-request-unused")
    if plan.gpus and share < 0.65 and plan.memory > plan.gpus * plan.kind.memory / plan.kind.gpus:
        plan.undecided.add("gpu-host-memory")
    if plan.state == "COMPLETED" and plan.elapsed < 0.15 * plan.time_limit:
        _label(plan, "time-request-unused", matters=plan.core_hours > 8)
    elif plan.elapsed < 0.4 * plan.time_limit:
        plan.undecided.add("time-request-unused")
    if plan.kind.partition == "bigmem" and plan.peak < 0.6 * _usual_memory(plan):
        _label(plan, "large-memory-node-not-needed", matters=plan.core_hours >= CORE_HOURS)


def _usual_memory(plan: Plan) -> int:
    kinds = [kind for kind in NODE_KINDS if kind.cluster == plan.kind.cluster and not kind.gpus]
    return min(kind.memory for kind in kinds)


def _withdraw(plan: Plan, names: set[str]) -> None:
    plan.labels -= names
    plan.undecided |= names


def _label(plan: Plan, name: str, *, matters: bool) -> None:
    (plan.labels if matters else plan.undecided).add(name)


def _label_idle(plan: Plan, name: str, idle_share: float, floor: float = CORE_HOURS) -> None:
    _label(plan, name, matters=plan.core_hours * idle_share >= floor)


def _gpu_hours(plan: Plan) -> float:
    return plan.nodes * plan.gpus * plan.elapsed / 3600


def _allow(plan: Plan, margin: float = 1.3) -> None:
    """Raise the time limit where the run has become longer."""
    plan.time_limit = max(plan.time_limit, math.ceil(plan.elapsed * margin / 600) * 600)


def _at_least(plan: Plan, core_hours: float) -> None:
    """Let the run last until it has held so many core hours, so that its loss matters."""
    if plan.core_hours < core_hours:
        factor = min(core_hours / plan.core_hours, MAX_TIME * 0.5 / plan.elapsed)
        plan.stretch(factor)
        _allow(plan)


def _more_cores(plan: Plan, random: Random, least: int = 16) -> None:
    """Give a run enough CPUs for the kind to be possible."""
    if plan.cpus < least:
        _resize(plan, int(choose(random, (least, 2 * least))))


def _resize(plan: Plan, cpus: int) -> None:
    for phase in plan.phases:
        if phase.cores > 1.5:
            phase.cores *= cpus / plan.cpus
    plan.cpus = cpus


# After the work


def _held_after_work(plan: Plan, work: Work, random: Random) -> None:
    _at_least(plan, 6)
    worked = plan.elapsed
    holder = choose(random, _HOLDERS) or plan.busy()[-1].program
    idle = max(worked * float(random.uniform(0.6, 3)), 2 * 3600)
    idle = max(idle, 3600 * 1.3 * CORE_HOURS / (plan.nodes * plan.cpus))
    if plan.gpus:
        idle = max(idle, 3600 * 1.3 * GPU_HOURS / (plan.nodes * plan.gpus))
    idle = min(idle, MAX_TIME * 0.4)
    plan.phases.append(
        Phase(
            program=holder,
            duration=idle,
            cores=0.0 if holder == SLEEP else 0.002,
            memory=(0.3, 0.3) if holder == SLEEP else (1.0, 1.0),
            executions=0 if holder == plan.phases[-1].program else 1,
            process_memory=0.01,
        )
    )
    plan.steps = [
        msgspec.structs.replace(step, last=step.last * worked / plan.elapsed) for step in plan.steps
    ]
    if random.random() < 0.4:
        plan.time_limit, plan.state = int(plan.elapsed), "TIMEOUT"
        plan.undecided.add("time-limit-reached")
    else:
        _allow(plan, 1.1)
        if random.random() < 0.5:
            plan.state = "CANCELLED"
    plan.labels.add("held-after-work")


def _polling(plan: Plan, work: Work, random: Random) -> None:
    """The script waits in a loop of sleep for something outside, before the work begins."""
    waiting = max(plan.elapsed * float(random.uniform(0.8, 2)), 3600.0)
    waiting = max(waiting, 3600 * 1.3 * CORE_HOURS / (plan.nodes * plan.cpus))
    waiting = min(waiting, MAX_TIME * 0.4)
    phase = Phase(
        program=SLEEP,
        duration=waiting,
        cores=0.001,
        memory=(0.01, 0.01),
        executions=int(waiting / 30),
        process_memory=0.001,
    )
    plan.phases.insert(0, phase)
    shift = waiting / plan.elapsed
    plan.steps = [
        msgspec.structs.replace(step, first=shift + step.first * (1 - shift)) for step in plan.steps
    ]
    _allow(plan)
    plan.labels.add("sleeping")


def _cpu_never_used(plan: Plan, work: Work, random: Random) -> None:
    """The program waits for a licence from its first moment and never gets one."""
    program = plan.busy()[0].program
    plan.stretch(max(1.0, 3600 * 1.3 * CORE_HOURS / (plan.cpus * plan.nodes) / plan.elapsed))
    plan.stretch(max(1.0, 5400 / plan.elapsed))
    elapsed = min(plan.elapsed, MAX_TIME * 0.4)
    plan.phases = [
        Phase(program=program, duration=elapsed, cores=0.0005, memory=(0.02, 0.02), executions=1)
    ]
    plan.state = "CANCELLED"
    _allow(plan)
    plan.labels.add("cpu-not-used")


def _interactive_idle(plan: Plan, work: Work, random: Random) -> None:
    plan.cpus = 16
    hours = float(random.uniform(9, 20))
    program = b"/apps/jupyter/bin/jupyter-lab"
    python = plan.phases[1].program
    plan.phases = [
        Phase(program=program, duration=900, cores=0.1, memory=(0.2, 0.3)),
        Phase(program=python, duration=1500, cores=6.0, memory=(0.4, 1.0)),
        Phase(program=program, duration=hours * 3600, cores=0.004, memory=(1, 1), executions=0),
    ]
    _allow(plan, 1.05)
    plan.state = choose(random, ("CANCELLED", "TIMEOUT"))
    if plan.state == "TIMEOUT":
        plan.time_limit = int(plan.elapsed)
        plan.undecided.add("time-limit-reached")
    plan.labels.add("interactive-idle")


# CPUs


def _serial(plan: Plan, work: Work, random: Random) -> None:
    plan.nodes = 1
    _more_cores(plan, random, 8)
    _at_least(plan, 3 * CORE_HOURS)
    # A serial program with a helper thread uses a little more than one CPU.
    cores = float(choose(random, (0.97, 0.99, 1.01, 1.02)))
    for phase in plan.phases:
        phase.cores, phase.running = cores, 1.0
        phase.executions, phase.process_memory = 1, 1.0
        phase.read, phase.written = 0.5 * MIB, 0.2 * MIB
    plan.steps, plan.tasks = [], 1
    _label_idle(plan, "cpu-one-core", 1 - cores / plan.cpus)


def _cores_unused(plan: Plan, work: Work, random: Random) -> None:
    """A program with a fixed number of threads on more CPUs than that."""
    _more_cores(plan, random)
    _at_least(plan, 4 * CORE_HOURS)
    threads = float(choose(random, (2, 4)) if plan.cpus < 32 else choose(random, (4, 8)))
    for phase in plan.phases:
        phase.cores = min(phase.cores, threads * 0.96)
        phase.running = phase.cores
    _label_idle(plan, "cpu-cores-idle", 1 - threads / plan.cpus)


def _wasteful_program(plan: Plan, work: Work, random: Random) -> None:
    """One program of a pipeline runs on one CPU for a large share of the time."""
    _more_cores(plan, random)
    _at_least(plan, 4 * CORE_HOURS)
    serial = plan.phases[-1]
    serial.program = choose(
        random, (b"/apps/samtools/1.20/bin/samtools", b"/usr/bin/gzip", b"/usr/bin/sort")
    )
    serial.cores, serial.running, serial.executions = 0.98, 1.0, 1
    serial.duration = sum(phase.duration for phase in plan.phases[:-1]) * float(
        random.uniform(0.6, 1.3)
    )
    _allow(plan)
    idle = serial.duration / plan.elapsed * (1 - 1 / plan.cpus)
    _label_idle(plan, "program-leaves-cores-idle", idle)


def _wrong_pinning(plan: Plan, work: Work, random: Random) -> None:
    """All processes share a few of the CPUs: low use, high pressure."""
    _more_cores(plan, random)
    _at_least(plan, 4 * CORE_HOURS)
    pinned = float(choose(random, (1, 2, 4)))
    for phase in plan.phases:
        phase.cores = min(phase.cores, pinned * 0.995)
    plan.change(running=float(plan.cpus), cpu_pressure=float(random.uniform(0.75, 0.97)))
    _label_idle(plan, "cpu-wrong-pinning", 1 - pinned / plan.cpus)


def _oversubscribed(plan: Plan, work: Work, random: Random) -> None:
    """Every process starts as many threads as the node has CPUs."""
    _more_cores(plan, random, 8)
    _at_least(plan, 4 * CORE_HOURS)
    plan.change(
        cores=plan.cpus * 0.985,
        running=plan.cpus * float(random.uniform(2.5, 8)),
        cpu_pressure=float(random.uniform(0.7, 0.98)),
        system_share=0.14,
    )
    _label_idle(plan, "cpu-oversubscribed", 0.3)


def _system_time(plan: Plan, work: Work, random: Random) -> None:
    _more_cores(plan, random, 8)
    _at_least(plan, 4 * CORE_HOURS)
    plan.change(system_share=float(random.uniform(0.45, 0.7)))
    _label_idle(plan, "cpu-system-time", 0.4)


def _fork_storm(plan: Plan, work: Work, random: Random) -> None:
    """A loop of the script starts very many short programs: on the only CPU, on one of many while
    the others wait, or on all of them at once."""
    if plan.cpus > 1:
        _at_least(plan, 4 * CORE_HOURS)
    plan.stretch(max(1.0, (9 if plan.cpus == 1 else 5) * 3600 / plan.elapsed))
    _allow(plan)
    program = choose(random, (b"/usr/bin/awk", b"/usr/bin/sed", b"/usr/bin/bc"))
    main = max(plan.busy(), key=lambda phase: phase.duration)
    storm = float(random.uniform(0.35, 0.7)) * main.duration
    rate = float(random.uniform(130, 240))
    if plan.cpus > 1 and work.number % 4 >= 2:
        rate *= 0.9 * plan.cpus
    cores = rate * 0.004
    main.duration -= storm
    plan.phases.append(
        Phase(
            program=program,
            duration=storm,
            cores=cores,
            memory=(0.05, 0.05),
            system_share=0.55,
            executions=int(rate * storm),
            process_memory=0.0001,
            running=cores,
        )
    )
    plan.nodes, plan.steps, plan.tasks = 1, [], 1
    # On many CPUs it is a habit of the run if it takes a large part of its time.
    lost = (cores if cores > 0.5 * plan.cpus else plan.cpus) * storm / 3600
    much = lost >= CORE_HOURS and storm >= 0.2 * plan.elapsed
    _label(plan, "fork-storm", matters=lost >= 1.3 if plan.cpus == 1 else much)


def _cores_uneven(plan: Plan, work: Work, random: Random) -> None:
    """Tasks with more and with less work, each bound to its cores."""
    plan.nodes, plan.cpus = 1, int(choose(random, (8, 16)))
    _at_least(plan, 6 * CORE_HOURS)
    idle = float(random.uniform(0.08, 0.25))
    little = int(plan.cpus * float(random.uniform(0.25, 0.4)))
    plan.core_shares = [0.97] * (plan.cpus - little) + [idle] * little
    for phase in plan.phases:
        phase.cores = phase.running = sum(plan.core_shares)
    plan.steps, plan.tasks = [], plan.cpus
    _label_idle(plan, "cpu-core-imbalance", 1 - sum(plan.core_shares) / plan.cpus)


def _worse_than_others(plan: Plan, work: Work, random: Random) -> None:
    """The program has a setting that others know: half of the CPUs are enough for it."""
    _more_cores(plan, random)
    _at_least(plan, 4 * CORE_HOURS)
    share = float(random.uniform(0.3, 0.45))
    for phase in plan.phases:
        phase.cores = min(phase.cores, plan.cpus * share)
        phase.running = phase.cores
    matters = plan.nodes * plan.cpus * plan.elapsed / 3600 * (1 - share) >= CORE_HOURS
    # With fewer users nothing is said about them; some may not have run it yet.
    _label(plan, "better-elsewhere", matters=matters and work.peers >= 7)


def _array_start_up(plan: Plan, work: Work, random: Random) -> None:
    """Each task of an array spends most of its time on starting an environment."""
    plan.cpus = 4
    _start_slowly(plan, float(random.uniform(400, 900)), float(random.uniform(200, 400)))
    plan.labels.add("array-start-up")


def _start_up(plan: Plan, work: Work, random: Random) -> None:
    """A large run waits for its environment at first."""
    _more_cores(plan, random)
    start = float(random.uniform(1500, 3600))
    _start_slowly(plan, start, start * float(random.uniform(0.7, 1.3)))
    plan.time_limit = math.ceil(plan.elapsed * 2 / 600) * 600
    plan.nodes, plan.steps = 1, []
    lost = plan.cpus * start / 3600
    _label(plan, "start-up", matters=lost >= 3)


def _start_slowly(plan: Plan, start: float, useful: float) -> None:
    main = plan.busy()[-1]
    main.duration = useful
    plan.phases = [
        Phase(
            program=_CONDA,
            duration=start,
            # Most of it waits for small files: no program reaches 5 s of CPU time in it.
            cores=4.0 / start,
            memory=(0.05, 0.2),
            read=0.05 * MIB,
            call_size=4096,
            io_pressure=0.5,
            executions=3,
            process_memory=0.05,
        ),
        main,
    ]
    _allow(plan)


# Memory


def _memory_over_request(plan: Plan, work: Work, random: Random) -> None:
    if plan.cpus > plan.kind.cores // 4:
        _resize(plan, plan.kind.cores // 8)
    plan.nodes = 1
    plan.need = min(plan.need, 0.12 * plan.kind.memory)
    share = float(random.uniform(0.04, 0.25))
    entitled = plan.cpus * plan.kind.memory_per_core
    wanted = max(plan.need / share, 2.5 * entitled)
    plan.memory = min(int(wanted / GIB) * GIB, int(plan.kind.memory * 0.98 / GIB) * GIB)
    plan.need = min(plan.need, plan.memory * 0.25)
    unused = (plan.memory - plan.need) / 1e9
    plan.stretch(max(1.0, GB_HOURS * 1.5 / unused * 3600 / plan.elapsed))
    _allow(plan)
    # label_request labels it.


def _leak(plan: Plan, work: Work, random: Random) -> None:
    plan.stretch(max(1.0, 3 * 3600 / plan.elapsed))
    plan.memory = max(plan.memory, 4 * GIB)
    plan.need = plan.memory * float(random.uniform(0.7, 0.93))
    total, level = plan.elapsed, 0.08
    for phase in plan.phases:
        grown = level + 0.92 * phase.duration / total
        phase.memory, level = (level, grown), grown
    # What is lost when the limit is reached: all that the run has held.
    _at_least(plan, CORE_HOURS)
    _allow(plan)
    plan.labels.add("memory-grows")


def _out_of_memory(plan: Plan, work: Work, random: Random) -> None:
    plan.need = plan.memory * 0.999
    if random.random() < 0.3:
        # A child is killed, the script goes on, and the job completes.
        plan.busy()[0].failures += 1
        plan.oom_kills = 1
        plan.labels.add("out-of-memory")
        return
    plan.cut(plan.elapsed * float(random.uniform(0.4, 1.0)))
    last = plan.phases[-1]
    last.memory = (min(last.memory[0], 0.7), 1.0)
    last.failures = 1
    plan.state, plan.exit_code, plan.exit_signal, plan.oom_kills = "OUT_OF_MEMORY", 0, 125, 1
    plan.steps = [
        msgspec.structs.replace(step, state="OUT_OF_MEMORY", exit_code=137) for step in plan.steps
    ]
    plan.labels.add("out-of-memory")


def _near_limit(plan: Plan, work: Work, random: Random) -> None:
    """Run after run needs all but a few per cent of what is requested."""
    plan.memory = max(plan.memory, 4 * GIB)
    plan.need = plan.memory * float(random.uniform(0.962, 0.992))
    _label(plan, "memory-request-tight", matters=plan.streak >= 8 and plan.core_hours >= 2)


def _close_to_limit(plan: Plan, work: Work, random: Random) -> None:
    """Only of a running job: it has nearly reached its memory limit."""
    _at_least(plan, 10)
    plan.memory = max(plan.memory, 4 * GIB)
    plan.need = plan.memory * float(random.uniform(0.94, 0.98))
    for phase in plan.phases:
        phase.memory = (1.0, 1.0)
    plan.labels.add("memory-near-limit")


def _thrashing(plan: Plan, work: Work, random: Random) -> None:
    _at_least(plan, 4 * CORE_HOURS)
    plan.need = plan.memory * 0.98
    stalled = float(random.uniform(0.35, 0.7))
    for phase in plan.busy():
        phase.cores *= 1 - stalled
        phase.memory_full, phase.swap = stalled, 0.4 * plan.memory
        phase.memory = (0.9, 1.0)
    _label_idle(plan, "memory-thrashing", stalled)


def _page_cache(plan: Plan, work: Work, random: Random) -> None:
    plan.need = min(plan.need, 0.4 * plan.memory)
    plan.memory = max(plan.memory, 16 * GIB)
    plan.cache = plan.memory * float(random.uniform(0.5, 0.58))
    unused = (plan.memory - plan.need) / 1e9
    plan.stretch(max(1.0, 3600 * 80 / unused / plan.elapsed, 1800 / plan.elapsed))
    plan.change(read=plan.cache * 3 / plan.elapsed)
    _allow(plan)
    plan.labels.add("memory-is-cache")


def _large_memory_node(plan: Plan, work: Work, random: Random) -> None:
    plan.need = 0.4 * _usual_memory(plan) * float(random.uniform(0.5, 1.0))
    plan.memory = min(plan.memory, int(0.45 * plan.kind.memory))
    _at_least(plan, 2 * CORE_HOURS)
    # label_request labels it.


# Input and output


def _io_stalls(plan: Plan, work: Work, random: Random) -> None:
    _at_least(plan, 4 * CORE_HOURS)
    stalled = float(random.uniform(0.4, 0.75))
    for phase in plan.busy():
        phase.cores *= 1 - stalled
        phase.io_full, phase.io_pressure = stalled, min(1.0, stalled + 0.15)
        phase.read = 300 * MIB
    _label_idle(plan, "io-stalled", stalled)


def _tiny_io(plan: Plan, work: Work, random: Random) -> None:
    plan.stretch(max(1.0, 6 * 3600 / plan.elapsed))
    _allow(plan)
    size = float(random.uniform(8, 200))
    plan.change(
        read=float(random.uniform(20_000, 90_000)) * size, call_size=size, system_share=0.35
    )
    plan.labels.add("io-small-calls")


def _small_files(plan: Plan, work: Work, random: Random) -> None:
    plan.stretch(max(1.0, 3600 * 1.5 / plan.nodes / plan.cpus / plan.elapsed, 1800 / plan.elapsed))
    _allow(plan)
    plan.open_files = float(random.integers(1500, 6000))
    for phase in plan.phases:
        phase.read = phase.written = 2e9 / plan.elapsed
    plan.labels.add("small-files")


def _no_scratch(plan: Plan, work: Work, random: Random) -> None:
    """It writes a lot, and none of it to scratch."""
    plan.stretch(max(1.0, 3600 * 2 / plan.nodes / plan.cpus / plan.elapsed, 1800 / plan.elapsed))
    _allow(plan)
    plan.scratch_files = 0.0
    plan.change(written=float(random.uniform(40e9, 400e9)) / plan.elapsed)
    plan.labels.add("scratch-not-used")


def _unsteady(plan: Plan, work: Work, random: Random) -> None:
    """All CPUs for a while, then a few of them for longer, in turns."""
    _more_cores(plan, random)
    _at_least(plan, 2 * SHAPE_CORE_HOURS)
    main, total = plan.busy()[0], plan.elapsed
    few = float(random.uniform(0.05, 0.12)) * plan.cpus
    plan.phases = []
    for number in range(4):
        first = main.executions if number == 0 else 0
        plan.phases += [
            msgspec.structs.replace(main, duration=total * 0.05, executions=first),
            msgspec.structs.replace(main, duration=total * 0.2, cores=few, executions=0),
        ]
    _label_idle(plan, "cpu-unsteady", 0.7, SHAPE_CORE_HOURS)


# Programs and steps


def _failed_inside(plan: Plan, work: Work, random: Random) -> None:
    """The program fails in nearly all of its starts, and the script goes on."""
    plan.stretch(max(1.0, 3600 / plan.elapsed))
    _allow(plan)
    main = plan.busy()[0]
    starts = int(random.integers(10, 60))
    main.executions = starts
    main.failures = max(6, int(starts * float(random.uniform(0.6, 1.0))))
    plan.labels.add("failed-inside")


def _sequential_steps(plan: Plan, work: Work, random: Random) -> None:
    """Many steps of one task each, one after the other, on many CPUs."""
    _more_cores(plan, random)
    _at_least(plan, 5 * CORE_HOURS)
    main = plan.busy()[0]
    count = int(random.integers(12, 40))
    main.duration = plan.elapsed
    main.cores, main.running, main.executions = 0.97, 1.0, count
    plan.phases = [main]
    edges = np.linspace(0.005, 0.995, count + 1)
    plan.steps = [
        StepPlan(first=float(first), last=float(last) - 0.0005, cpu_share=0.98 / count)
        for first, last in pairwise(edges)
    ]
    plan.nodes, plan.tasks, plan.node_activity = 1, 1, None
    # There must be memory for all of them at once.
    plan.need, plan.memory = 0.5 * GIB, 32 * GIB
    plan.cache = 0.1 * GIB
    _label_idle(plan, "steps-in-sequence", 1 - 1 / plan.cpus)


# Nodes and shape


def _node_unused(plan: Plan, work: Work, random: Random) -> None:
    """A program without MPI on several nodes: all but the first do nothing."""
    plan.nodes = int(choose(random, (2, 2, 3, 4)))
    plan.stretch(max(1.0, 5400 / plan.elapsed))
    _at_least(plan, 4 * CORE_HOURS)
    # The daemon of a launcher may have started there.
    daemon = 2 / (plan.elapsed * plan.cpus) if random.random() < 0.3 else 0.0
    plan.node_activity = [1.0] + [daemon] * (plan.nodes - 1)
    plan.node_program = b"/usr/bin/orted" if daemon else b""
    _allow(plan)
    _label_idle(plan, "nodes-not-used", 1 - 1 / plan.nodes)


def _node_imbalance(plan: Plan, work: Work, random: Random) -> None:
    plan.nodes = int(choose(random, (2, 3, 4)))
    _at_least(plan, 4 * SHAPE_CORE_HOURS)
    slow = float(random.uniform(0.15, 0.4))
    plan.node_activity = [1.0] + [slow] * (plan.nodes - 1)
    _label_idle(plan, "nodes-uneven", (1 - slow) * (1 - 1 / plan.nodes), SHAPE_CORE_HOURS)


def _too_many_nodes(plan: Plan, work: Work, random: Random) -> None:
    """A few CPUs on each of several nodes, which one node would have had."""
    plan.nodes = int(choose(random, (3, 4)))
    _resize(plan, plan.kind.cores // 8)
    plan.need = min(plan.need, plan.kind.memory / 8)
    plan.memory = max(GIB, int(plan.need * 1.4 / GIB + 1) * GIB)
    plan.stretch(max(1.0, 3 * 3600 / plan.elapsed))
    plan.tasks = plan.nodes * plan.cpus
    # What the processes say to each other goes over the network.
    slowed = float(random.uniform(0.55, 0.75))
    for phase in plan.phases:
        phase.cores *= slowed
    _at_least(plan, SHAPE_CORE_HOURS / (1 - slowed))
    _label_idle(plan, "too-many-nodes", 1 - slowed, 0.9 * SHAPE_CORE_HOURS)


def _whole_node(plan: Plan, work: Work, random: Random) -> None:
    """--exclusive for a program that uses a small part of the node."""
    plan.nodes, plan.exclusive = 1, True
    used = float(choose(random, (2, 4, 6)))
    for phase in plan.phases:
        phase.cores = min(phase.cores, used * 0.97)
        phase.running = phase.cores
    plan.cpus = plan.kind.cores
    plan.memory = plan.kind.memory
    plan.need = min(plan.need, 0.2 * plan.kind.memory)
    _at_least(plan, 2 * SHAPE_CORE_HOURS)
    plan.tasks, plan.steps = 1, []
    _label_idle(plan, "whole-node-held", 1 - used / plan.cpus, SHAPE_CORE_HOURS)


# Time, state and history


def _time_over_request(plan: Plan, work: Work, random: Random) -> None:
    _at_least(plan, 10)
    plan.stretch(min(1.0, MAX_TIME * 0.1 / plan.elapsed))
    wanted = plan.elapsed / float(random.uniform(0.03, 0.1))
    plan.time_limit = min(math.ceil(wanted / 3600) * 3600, MAX_TIME)
    # label_request labels it.


def _hit_limit(plan: Plan, work: Work, random: Random) -> None:
    """It worked until the end of its time."""
    limit = max(600, int(plan.elapsed * float(random.uniform(0.6, 0.95)) / 600) * 600)
    plan.time_limit = limit
    plan.stretch(max(1.0, 1.2 * limit / plan.elapsed))
    plan.cut(limit)
    plan.state = "TIMEOUT"
    plan.labels.add("time-limit-reached")


def _will_hit_limit(plan: Plan, work: Work, random: Random) -> None:
    """Only of a running job: its time limit ends before its earlier runs would have."""
    plan.time_limit = max(1800, int(plan.elapsed * float(random.uniform(0.6, 0.8)) / 600) * 600)
    # Half of it has passed; the limit must end before the run does.
    matters = plan.core_hours >= 4 and plan.time_limit < 0.85 * plan.elapsed
    _label(plan, "time-limit-ahead", matters=matters)


def _beyond_limit(plan: Plan, work: Work, random: Random) -> None:
    """Only of a running job: the scheduler has not ended it at its limit."""
    plan.stretch(max(1.0, 3 * 3600 / plan.elapsed))
    _at_least(plan, 20)
    plan.time_limit = int(plan.elapsed * 0.25 / 600) * 600
    plan.labels.add("runs-beyond-limit")


def _repeated_failure(plan: Plan, work: Work, random: Random) -> None:
    """The same failure within minutes of the start, again and again."""
    _more_cores(plan, random, 32)
    plan.cut(float(random.uniform(60, 270)))
    plan.phases[-1].failures = 1
    plan.state, plan.exit_code = "FAILED", 127 if work.number % 2 else 1
    plan.steps = [
        msgspec.structs.replace(step, state="FAILED", exit_code=plan.exit_code)
        for step in plan.steps
    ]
    lost = plan.streak * plan.nodes * plan.cpus * 60 / 3600
    _label(plan, "failed-again", matters=plan.streak >= 4 and lost >= 1.5)


def _slower(plan: Plan, work: Work, random: Random) -> None:
    """A new version of its program needs more time since a day of the year."""
    plan.stretch(1.45 + 0.4 * (work.number % 7) / 7)
    for phase in plan.phases:
        phase.program = phase.program.replace(b"/2024.1/", b"/2024.3/").replace(
            b"/6.4.2/", b"/6.4.3/"
        )
    _allow(plan)
    used = plan.core_hours * plan.used_share
    # Some of the runs since then fail, and a few are no proof; after fifty it is as before.
    certain = 9 <= plan.streak <= 40 and work.habit_first >= 9
    _label(plan, "slower-than-before", matters=certain and used * 0.3 >= 8)


def _array_outliers(plan: Plan, work: Work, random: Random) -> None:
    """A few tasks need much more memory than the others, and all request it."""
    big = 40 * GIB
    plan.memory = 48 * GIB
    outlier = plan.array_task is not None and plan.array_task % 11 == 3
    plan.need = big * float(random.uniform(0.9, 1.0)) if outlier else 3 * GIB
    plan.stretch(max(1.0, 5400 / plan.elapsed))
    _allow(plan)
    # The tasks that need less have what the split saves.
    _label(plan, "array-split", matters=not outlier)
    if not outlier:
        plan.undecided.add("memory-request-unused")


def _short_jobs(plan: Plan, work: Work, random: Random) -> None:
    """Very many runs of a minute, half of which is the start."""
    useful = float(random.uniform(20, 60))
    _start_slowly(plan, useful, useful)
    plan.time_limit = 3600
    # At its beginning nobody can know that it is one.
    _label(plan, "short-runs", matters=plan.storm >= 280)


def _node_failure(plan: Plan, work: Work, random: Random) -> None:
    plan.cut(plan.elapsed * float(random.uniform(0.3, 0.95)))
    plan.state = "NODE_FAIL"
    _label(plan, "node-failed", matters=plan.core_hours >= 0.5)


# GPUs


def _last_gpu_hours(plan: Plan, hours: float) -> None:
    """Let the run last until it has held so many GPU hours."""
    plan.stretch(max(1.0, hours / _gpu_hours(plan)))
    _allow(plan)


def _gpu_not_used(plan: Plan, work: Work, random: Random) -> None:
    """A program that was built for CPUs, or uses only the first of several GPUs."""
    some = bool(random.random() < 0.5)
    if some:
        _with_gpus(plan, random, (2, 4))
    if random.random() < 0.2:
        # All GPUs of a node for less than half an hour.
        _with_gpus(plan, random, (plan.kind.gpus,))
        plan.stretch(1700 / plan.elapsed)
    else:
        _last_gpu_hours(plan, 3 * GPU_HOURS)
    plan.gpu_activity = [1.0 if some else 0.0] + [0.0] * (plan.gpus - 1)
    if not some:
        for phase in plan.phases:
            phase.gpu = 0.0
            phase.cores = plan.cpus * 0.93
        plan.gpu_opened = bool(random.random() < 0.3)
    _label(plan, "gpu-not-used", matters=_gpu_hours(plan) >= 1.5)


def _gpu_idle_long(plan: Plan, work: Work, random: Random) -> None:
    """The GPU works for some minutes, then the CPUs do all the rest."""
    _last_gpu_hours(plan, 4 * GPU_HOURS)
    main, total = plan.busy()[-1], plan.elapsed
    used = max(120.0, total * float(random.uniform(0.01, 0.2)))
    after = msgspec.structs.replace(
        main, duration=total - used, gpu=0.0, cores=plan.cpus * 0.92, executions=0
    )
    main.duration = used
    plan.phases = [main, after]
    plan.labels.add("gpu-idle-long")


def _with_gpus(plan: Plan, random: Random, counts: tuple[int, ...]) -> None:
    if plan.gpus < min(counts):
        gpus = int(choose(random, counts))
        _resize(plan, min(plan.cpus * gpus, plan.kind.cores * gpus // plan.kind.gpus))
        plan.memory = min(plan.memory * gpus, plan.kind.memory * gpus // plan.kind.gpus)
        plan.need, plan.gpus = plan.need * gpus, gpus
        plan.need = min(plan.need, 0.85 * plan.memory)


def _gpu_waits(plan: Plan, work: Work, random: Random) -> None:
    """The GPU works, then waits for the host, in turns."""
    _last_gpu_hours(plan, 5 * GPU_HOURS)
    main = plan.busy()[-1]
    total = plan.elapsed
    waits = float(random.uniform(0.5, 0.75))
    cause = choose(random, ("serial", "loader", "storage"))
    cores = {"serial": 0.98, "loader": plan.cpus * 0.97, "storage": 0.1}[cause]
    stalled = 0.85 if cause == "storage" else 0.01
    cycles = 6
    plan.phases = []
    for number in range(cycles):
        host = msgspec.structs.replace(
            main,
            duration=total * waits / cycles,
            gpu=0.0,
            cores=cores,
            running=cores,
            io_full=stalled,
            io_pressure=min(1.0, stalled + 0.1),
            executions=1 if number == 0 else 0,
        )
        device = msgspec.structs.replace(
            main,
            duration=total * (1 - waits) / cycles,
            gpu=0.93,
            cores=min(1.0, plan.cpus * 0.9),
            executions=0,
        )
        plan.phases += [host, device]
    plan.labels.add("gpu-waits")


def _gpu_low_use(plan: Plan, work: Work, random: Random) -> None:
    _last_gpu_hours(plan, 5 * GPU_HOURS)
    plan.change(gpu=float(random.uniform(0.04, 0.11)), multiprocessors=0.4)
    plan.gpu_memory = 0.05
    plan.labels.add("gpu-low-use")


def _gpu_too_powerful(plan: Plan, work: Work, random: Random) -> None:
    """A small model on one large GPU: some kernels, some of the multiprocessors, little memory."""
    plan.nodes, plan.gpus, plan.gpu_activity = 1, 1, None
    most = plan.kind.cores // plan.kind.gpus
    _resize(plan, 1 if random.random() < 0.5 else min(plan.cpus, most))
    plan.need = min(plan.need, 20 * GIB)
    for phase in plan.phases:
        phase.cores = min(phase.cores, 0.9 * plan.cpus)
    _last_gpu_hours(plan, 12 * GPU_HOURS)
    if random.random() < 0.5:
        plan.change(gpu=float(random.uniform(0.3, 0.45)), multiprocessors=0.25)
    else:
        plan.change(gpu=float(random.uniform(0.06, 0.13)), multiprocessors=0.8)
    plan.gpu_memory = float(random.uniform(0.03, 0.12))
    plan.labels.add("gpu-too-powerful")


def _gpu_memory_unused(plan: Plan, work: Work, random: Random) -> None:
    """Batches that are far too small for the memory of the GPUs."""
    _last_gpu_hours(plan, 14 * GPU_HOURS)
    plan.change(gpu=float(random.uniform(0.8, 0.9)), multiprocessors=0.33)
    plan.gpu_memory = float(random.uniform(0.05, 0.15))
    plan.labels.add("gpu-memory-unused")


def _gpu_idle_now(plan: Plan, work: Work, random: Random) -> None:
    """Only of a running job: the CPUs work on, and the GPUs have nothing to do any more."""
    plan.stretch(max(1.0, 6 * 3600 / plan.elapsed))
    main, total = plan.busy()[-1], plan.elapsed
    after = msgspec.structs.replace(
        main, duration=total * 0.8, gpu=0.0, cores=plan.cpus * 0.92, executions=0
    )
    main.duration = total * 0.2
    plan.phases = [main, after]
    _allow(plan)
    plan.labels.add("gpu-idle-now")


def _gpu_small_kernels(plan: Plan, work: Work, random: Random) -> None:
    """Always busy by utilization, and nearly empty by multiprocessors."""
    _last_gpu_hours(plan, 4 * GPU_HOURS)
    plan.change(gpu=float(random.uniform(0.85, 0.99)), multiprocessors=0.07)
    plan.labels.add("gpu-small-kernels")


def _gpu_tensor_unused(plan: Plan, work: Work, random: Random) -> None:
    """A model is trained in single precision on a GPU that has tensor cores."""
    _last_gpu_hours(plan, 10 * GPU_HOURS)
    plan.change(gpu=float(random.uniform(0.86, 0.97)), multiprocessors=0.75)
    plan.tensor = 0.0
    plan.labels.add("gpu-tensor-unused")


def _gpu_throttled(plan: Plan, work: Work, random: Random) -> None:
    _last_gpu_hours(plan, 5 * GPU_HOURS)
    plan.throttled = {"temperature": float(random.uniform(0.3, 0.8))}
    plan.labels.add("gpu-throttled")


def _gpu_faults(plan: Plan, work: Work, random: Random) -> None:
    plan.gpu_faults = [("ecc uncorrected", 2, None), ("xid", 1, 63)]
    if random.random() < 0.5:
        plan.cut(plan.elapsed * float(random.uniform(0.3, 0.9)))
        plan.state, plan.exit_code = "FAILED", 1
    plan.labels.add("gpu-errors")


def _gpus_uneven(plan: Plan, work: Work, random: Random) -> None:
    _with_gpus(plan, random, (4,))
    _last_gpu_hours(plan, 14 * GPU_HOURS)
    slow = float(random.uniform(0.25, 0.4))
    plan.gpu_activity = [1.0] + [slow] * (plan.gpus - 1)
    plan.labels.add("gpu-uneven")


def _cores_per_gpu(plan: Plan, work: Work, random: Random) -> None:
    """All CPUs of a node for one GPU: the other GPUs cannot be used."""
    plan.nodes, plan.gpus = 1, 1
    plan.cpus = plan.kind.cores
    plan.gpu_activity = None
    for phase in plan.phases:
        phase.cores = min(phase.cores, 4.0)
        phase.running = phase.cores
    plan.stretch(max(1.0, 3 * 3600 / plan.elapsed))
    _at_least(plan, 4 * CORE_HOURS)
    _allow(plan)
    plan.labels.add("gpu-too-many-cores")


def _memory_per_gpu(plan: Plan, work: Work, random: Random) -> None:
    plan.nodes, plan.gpus = 1, 1
    plan.cpus = min(plan.cpus, 8)
    plan.gpu_activity = None
    plan.memory = int(plan.kind.memory * 0.9 / GIB) * GIB
    plan.need = plan.memory * float(random.uniform(0.05, 0.2))
    for phase in plan.phases:
        phase.cores = min(phase.cores, plan.cpus * 0.9)
    plan.stretch(max(1.0, 4 * 3600 / plan.elapsed))
    _allow(plan)
    plan.labels.add("gpu-host-memory")


def _gpus_spread(plan: Plan, work: Work, random: Random) -> None:
    """One GPU on each of several nodes, and half of the speed of one node."""
    plan.nodes, plan.gpus = int(choose(random, (2, 4))), 1
    plan.cpus = min(plan.cpus, plan.kind.cores // plan.kind.gpus)
    plan.gpu_activity = None
    for phase in plan.phases:
        phase.cores = min(phase.cores, plan.cpus * 0.9)
    plan.change(gpu=float(random.uniform(0.3, 0.45)))
    _last_gpu_hours(plan, 8 * GPU_HOURS)
    plan.labels.add("gpu-spread")


def _kinds(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PARALLEL: Final = _kinds("cpu mpi")
_SMALL: Final = _kinds("cpu serial")
_GPU: Final = _kinds("gpu")
_LOW_CPU: Final = ("cpu-cores-idle", "cpu-one-core", "program-leaves-cores-idle")
_LOW_GPU: Final = ("gpu-low-use", "gpu-small-kernels")

_TABLE: Final = (
    Misbehaviour(
        "held-after-work",
        "Held after the work had ended",
        _kinds("cpu mpi gpu"),
        _held_after_work,
        ("gpu-waits", *_LOW_CPU, *_LOW_GPU, "sleeping", "cpu-not-used"),
        live=True,
    ),
    Misbehaviour(
        "sleeping",
        "Waited in a loop of sleep",
        _PARALLEL,
        _polling,
        (*_LOW_CPU, "fork-storm", "start-up", "held-after-work"),
    ),
    Misbehaviour(
        "cpu-not-used",
        "Never used its CPUs",
        _PARALLEL,
        _cpu_never_used,
        ("held-after-work", "nodes-not-used", "start-up", "time-request-unused", *_LOW_CPU),
    ),
    Misbehaviour(
        "interactive-idle",
        "Interactive session of many hours without use",
        _kinds("interactive"),
        _interactive_idle,
        ("held-after-work", *_LOW_CPU),
    ),
    Misbehaviour(
        "cpu-one-core",
        "Serial program on many CPUs",
        _kinds("cpu serial"),
        _serial,
        ("cpu-cores-idle", "program-leaves-cores-idle", "whole-node-held", "nodes-not-used"),
    ),
    Misbehaviour(
        "cpu-cores-idle",
        "Fewer threads than CPUs",
        _PARALLEL,
        _cores_unused,
        ("program-leaves-cores-idle", "cpu-one-core", "whole-node-held"),
    ),
    Misbehaviour(
        "program-leaves-cores-idle",
        "A serial program in a parallel pipeline",
        _kinds("pipeline"),
        _wasteful_program,
        ("cpu-cores-idle", "cpu-one-core", "held-after-work"),
    ),
    Misbehaviour(
        "cpu-wrong-pinning",
        "All processes on a few CPUs",
        _PARALLEL,
        _wrong_pinning,
        (*_LOW_CPU, "cpu-oversubscribed"),
    ),
    Misbehaviour(
        "cpu-oversubscribed",
        "More threads than CPUs",
        _PARALLEL,
        _oversubscribed,
        ("cpu-wrong-pinning",),
    ),
    Misbehaviour(
        "cpu-system-time",
        "Most of the CPU time in the kernel",
        _PARALLEL,
        _system_time,
    ),
    Misbehaviour(
        "fork-storm",
        "Very many short programs",
        _kinds("serial cpu"),
        _fork_storm,
        (*_LOW_CPU, "cpu-system-time", "held-after-work", "cpu-unsteady"),
    ),
    Misbehaviour(
        "cpu-core-imbalance",
        "Some cores do most of the work",
        _kinds("cpu"),
        _cores_uneven,
        _LOW_CPU,
    ),
    Misbehaviour(
        "better-elsewhere",
        "The same program uses its CPUs better elsewhere",
        _kinds("cpu"),
        _worse_than_others,
        _LOW_CPU,
    ),
    Misbehaviour(
        "array-start-up",
        "Most of the time of each task of an array is its start",
        _kinds("array"),
        _array_start_up,
        ("start-up", "short-runs", "time-request-unused", *_LOW_CPU),
        rate=1.0,
    ),
    Misbehaviour(
        "start-up",
        "Most of the time is the start",
        _PARALLEL,
        _start_up,
        (*_LOW_CPU, "time-request-unused"),
    ),
    Misbehaviour(
        "memory-request-unused",
        "Most of the requested memory unused",
        _SMALL,
        _memory_over_request,
    ),
    Misbehaviour(
        "memory-grows",
        "Memory grows from beginning to end",
        _kinds("cpu serial mpi"),
        _leak,
        ("memory-request-tight",),
        live=True,
    ),
    Misbehaviour(
        "out-of-memory",
        "Killed for want of memory",
        _kinds("cpu serial mpi gpu"),
        _out_of_memory,
        ("memory-request-tight", "failed-again", "memory-grows", "failed-inside"),
        rate=0.35,
    ),
    Misbehaviour(
        "memory-request-tight",
        "Run after run within 5 % of the memory limit",
        _kinds("cpu"),
        _near_limit,
        ("memory-grows",),
        history=True,
        rate=1.0,
    ),
    Misbehaviour(
        "memory-near-limit",
        "Close to its memory limit",
        _kinds("cpu"),
        _close_to_limit,
        rate=0.0,
        live=True,
    ),
    Misbehaviour(
        "memory-thrashing",
        "Stopped for memory",
        _SMALL,
        _thrashing,
        (*_LOW_CPU, "memory-request-tight", "memory-grows"),
    ),
    Misbehaviour(
        "memory-is-cache",
        "Page cache counted as used memory",
        _kinds("cpu pipeline"),
        _page_cache,
        ("memory-request-unused",),
    ),
    Misbehaviour(
        "large-memory-node-not-needed",
        "Large-memory node without need",
        _kinds("bigmem"),
        _large_memory_node,
    ),
    Misbehaviour("io-stalled", "All processes wait for I/O", _SMALL, _io_stalls, _LOW_CPU),
    Misbehaviour(
        "io-small-calls",
        "Calls of a few bytes",
        _SMALL,
        _tiny_io,
        ("cpu-system-time",),
    ),
    Misbehaviour("small-files", "Very many open files with few bytes", _SMALL, _small_files),
    Misbehaviour("scratch-not-used", "Much written, nothing to scratch", _SMALL, _no_scratch),
    Misbehaviour(
        "cpu-unsteady",
        "All CPUs now and then",
        _kinds("cpu"),
        _unsteady,
        ("held-after-work", *_LOW_CPU),
    ),
    Misbehaviour(
        "failed-inside",
        "Programs fail and the run completes",
        _SMALL,
        _failed_inside,
    ),
    Misbehaviour(
        "steps-in-sequence",
        "Steps one after the other on many CPUs",
        _kinds("cpu"),
        _sequential_steps,
        _LOW_CPU,
    ),
    Misbehaviour(
        "nodes-not-used",
        "Nodes on which nothing ran",
        _PARALLEL,
        _node_unused,
        # The memory of a node without work is unused, too.
        ("nodes-uneven", "too-many-nodes", "memory-request-unused", *_LOW_CPU),
    ),
    Misbehaviour(
        "nodes-uneven",
        "Nodes wait for the busiest",
        _kinds("mpi"),
        _node_imbalance,
        ("too-many-nodes", *_LOW_CPU),
    ),
    Misbehaviour(
        "too-many-nodes", "A few CPUs on many nodes", _kinds("mpi"), _too_many_nodes, _LOW_CPU
    ),
    Misbehaviour(
        "whole-node-held",
        "Whole node for a few CPUs",
        _PARALLEL,
        _whole_node,
        (*_LOW_CPU, "memory-request-unused", "large-memory-node-not-needed"),
    ),
    Misbehaviour("time-request-unused", "Far too much time requested", _SMALL, _time_over_request),
    Misbehaviour(
        "time-limit-reached",
        "Ended by the time limit while it worked",
        _kinds("cpu mpi gpu serial"),
        _hit_limit,
        ("failed-again",),
        rate=0.4,
    ),
    Misbehaviour(
        "time-limit-ahead",
        "Will be ended by its time limit",
        _kinds("cpu mpi serial"),
        _will_hit_limit,
        history=True,
        rate=0.0,
        live=True,
    ),
    Misbehaviour(
        "runs-beyond-limit",
        "Running beyond its time limit",
        _kinds("cpu mpi"),
        _beyond_limit,
        ("time-limit-ahead",),
        rate=0.0,
        live=True,
    ),
    Misbehaviour(
        "failed-again",
        "The same failure again and again",
        _kinds("cpu mpi serial"),
        _repeated_failure,
        ("failed-inside", "short-runs", "time-request-unused", "cpu-not-used"),
        history=True,
        rate=1.0,
    ),
    Misbehaviour(
        "slower-than-before",
        "The script got slower",
        _kinds("mpi"),
        _slower,
        ("cpu-cores-idle",),
        history=True,
        rate=1.0,
    ),
    Misbehaviour(
        "array-split",
        "A few tasks of an array need more memory than the rest",
        _kinds("array"),
        _array_outliers,
        ("memory-request-unused",),
        history=True,
        rate=1.0,
    ),
    Misbehaviour(
        "short-runs",
        "Very many runs of a minute",
        _kinds("array"),
        _short_jobs,
        ("array-start-up", "time-request-unused"),
        history=True,
        rate=1.0,
    ),
    Misbehaviour(
        "node-failed",
        "A node failed",
        _kinds("cpu mpi gpu serial"),
        _node_failure,
        ("failed-again",),
        rate=0.2,
    ),
    Misbehaviour(
        "gpu-not-used",
        "GPUs, or some of them, never used",
        _kinds("train"),
        _gpu_not_used,
        (*_LOW_GPU, "gpu-waits", "held-after-work", "gpu-uneven", "gpu-idle-long"),
        live=True,
    ),
    Misbehaviour(
        "gpu-idle-long",
        "GPU used at the beginning only",
        _kinds("train"),
        _gpu_idle_long,
        (*_LOW_GPU, "held-after-work"),
    ),
    Misbehaviour(
        "gpu-waits",
        "The GPU waits for the host",
        _kinds("train"),
        _gpu_waits,
        (*_LOW_GPU, "io-stalled", *_LOW_CPU),
    ),
    Misbehaviour(
        "gpu-low-use",
        "The GPU is hardly used",
        _kinds("train"),
        _gpu_low_use,
        (*_LOW_GPU, "gpu-waits"),
    ),
    Misbehaviour(
        "gpu-small-kernels",
        "Kernels that fill a small part of the GPU",
        _kinds("train"),
        _gpu_small_kernels,
        ("gpu-low-use",),
    ),
    Misbehaviour(
        "gpu-too-powerful",
        "A large GPU for a small model",
        _kinds("train"),
        _gpu_too_powerful,
        (*_LOW_GPU, "gpu-waits", "gpu-memory-unused"),
    ),
    Misbehaviour(
        "gpu-memory-unused",
        "Most of the memory of the GPUs unused",
        _kinds("train"),
        _gpu_memory_unused,
        (*_LOW_GPU, "gpu-waits"),
    ),
    Misbehaviour(
        "gpu-idle-now",
        "The GPUs have been idle for an hour",
        _kinds("train"),
        _gpu_idle_now,
        rate=0.0,
        live=True,
    ),
    # They last until the pauses between their kernels matter, too.
    Misbehaviour(
        "gpu-tensor-unused",
        "Training that leaves the tensor cores unused",
        _kinds("tensor"),
        _gpu_tensor_unused,
        ("gpu-waits",),
    ),
    Misbehaviour("gpu-throttled", "Reduced clocks", _GPU, _gpu_throttled, ("gpu-waits",)),
    Misbehaviour("gpu-errors", "Errors of the GPU", _GPU, _gpu_faults, ("failed-again",)),
    Misbehaviour(
        "gpu-uneven",
        "GPUs wait for the busiest",
        _kinds("train"),
        _gpus_uneven,
        (*_LOW_GPU, "gpu-waits"),
    ),
    Misbehaviour(
        "gpu-too-many-cores",
        "The CPUs of a whole node for one GPU",
        _kinds("train"),
        _cores_per_gpu,
        (*_LOW_CPU, "whole-node-held"),
    ),
    Misbehaviour(
        "gpu-host-memory",
        "The memory of a whole node for one GPU",
        _kinds("train"),
        _memory_per_gpu,
        ("memory-request-unused",),
    ),
    Misbehaviour(
        "gpu-spread",
        "One GPU on each of several nodes",
        _kinds("train"),
        _gpus_spread,
        (*_LOW_GPU, "too-many-nodes", "gpu-waits"),
    ),
)
MISBEHAVIOUR: Final[dict[str, Misbehaviour]] = {each.name: each for each in _TABLE}
#: These are decided however short the run was.
_WHATEVER_LENGTH: Final = frozenset(
    {"out-of-memory", "failed-again", "short-runs", "node-failed", "array-start-up",
     "array-split", "gpu-errors"}
)  # fmt: skip
#: The kinds that a run can have while it lasts.
LIVE: Final = frozenset(name for name, each in MISBEHAVIOUR.items() if each.live) | {
    "gpu-not-opened-yet"
}
#: All kinds that can be labelled.
KINDS: Final = frozenset(MISBEHAVIOUR) | LIVE
_LOW_CPU_CAUSES: Final = frozenset(
    {"held-after-work", "sleeping", "cpu-not-used", "interactive-idle", "nodes-not-used",
     "nodes-uneven", "steps-in-sequence", "io-stalled", "memory-thrashing", "whole-node-held",
     "cpu-wrong-pinning", "too-many-nodes", "start-up", *_LOW_CPU}
)  # fmt: skip
_GPU_CAUSES: Final = frozenset(
    {"gpu-not-used", "gpu-waits", "held-after-work", "gpu-uneven", "gpu-spread", "gpu-idle-long",
     *_LOW_GPU}
)  # fmt: skip
