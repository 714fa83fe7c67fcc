"""Jobs that misbehave in one way each, next to jobs that behave, and the rules that judge them.

The jobs are short, so that the rules of a site of its own lower what a rule requests. What is
planted is planted so strongly that a busy machine comes to the same verdict: CPU time is planted in
seconds of CPU time, and what must be idle keeps to a share of a CPU whatever else runs.
"""

from __future__ import annotations

import shlex
from typing import Final, NamedTuple

from tests.slurm.jobs import ALICE, BOB, burn, eat, storm
from tests.slurm.samplers import SCRATCH

#: Lines of slurm.conf: partitions in which a site disables the rules that say the same of two CPUs,
#: and one whose jobs may exceed their limit.
PARTITIONS: Final = (
    "PartitionName=wide Nodes=ALL MaxTime=1-00:00:00 DefaultTime=10 DefMemPerCPU=512 State=UP",
    "PartitionName=phases Nodes=ALL MaxTime=1-00:00:00 DefaultTime=10 DefMemPerCPU=512 State=UP",
    "PartitionName=late Nodes=ALL MaxTime=1-00:00:00 DefaultTime=10 DefMemPerCPU=512 State=UP "
    "OverTimeLimit=UNLIMITED",
)

#: What short jobs can reach, for every rule that needs no GPU.
RULES: Final = """
adjust:
  - {rules: [cpu-not-used], parameters: {nothing: 1 %, floor: 8 core s, session: 8 s}}
  - {rules: [nodes-not-used], parameters: {floor: 4 core s}}
  - {rules: [cpu-one-core], parameters: {floor: 30 core s}}
  - {rules: [program-leaves-cores-idle], parameters: {used: 5 %, floor: 8 core s}}
  - {rules: [cpu-cores-idle], parameters: {low: 5 %, floor: 8 core s}}
  - {rules: [cpu-wrong-pinning], parameters: {floor: 1 core s}}
  - {rules: [cpu-oversubscribed], parameters: {busy: 25 %, floor: 0.5 core s}}
  - {rules: [cpu-core-imbalance], parameters: {least: 20 %, floor: 4 core s}}
  - {rules: [cpu-unsteady], parameters: {peak: 15 %, floor: 8 core s}}
  - {rules: [cpu-system-time], parameters: {floor: 0.8 core s}}
  - {rules: [nodes-uneven], parameters: {uneven: 70 %, floor: 2 core s}}
  - {rules: [held-after-work], parameters: {least: 8 s, floor: 8 core s}}
  - {rules: [memory-request-unused], parameters: {floor: 0.005 GB h}}
  - {rules: [memory-near-limit], parameters: {floor: 0.5 core s}}
  - {rules: [memory-grows], parameters: {floor: 8 core s}}
  - {rules: [memory-thrashing], parameters: {floor: 0.5 core s}}
  - {rules: [memory-request-tight], parameters: {close: 90 %, floor: 0.5 core s}}
  - {rules: [memory-is-cache], parameters: {large: 40 MB, floor: 0.0001 GB h}}
  - {rules: [large-memory-node-not-needed], parameters: {floor: 0.5 core s}}
  - {rules: [fork-storm], parameters: {rate: 5 /s, part: 5 %, floor: 0.1 core s, many: 8 core s}}
  - {rules: [start-up], parameters: {floor: 4 core s}}
  - {rules: [sleeping], parameters: {part: 10 %, floor: 4 core s}}
  - {rules: [steps-in-sequence], parameters: {used: 80 %, gain: 90 %, floor: 2 core s}}
  - {rules: [io-small-calls], parameters: {rate: 50000 /s, floor: 0.2 core s}}
  - {rules: [io-stalled], parameters: {floor: 0.5 core s}}
  - {rules: [scratch-not-used], parameters: {much: 30 MB, floor: 0.5 core s}}
  - {rules: [small-files], parameters: {many: 50, floor: 0.5 core s}}
  - {rules: [too-many-nodes], parameters: {floor: 4 core s}}
  - {rules: [whole-node-held], parameters: {half: 20 %, floor: 2 core s}}
  - {rules: [slower-than-before], parameters: {floor: 0.1 core s}}
  - {rules: [array-split], parameters: {floor: 0.0001 GB h}}
  - {rules: [array-start-up], parameters: {floor: 0.5 core s}}
  - {rules: [better-elsewhere], parameters: {floor: 0.5 core s}}
  - {rules: [time-limit-reached], parameters: {floor: 1 core s}}
  - {rules: [time-request-unused], parameters: {tiny: 0.1 %, floor: 0.5 core s}}
  - {rules: [time-limit-ahead], parameters: {floor: 0.5 core s}}
  - {rules: [failed-again], parameters: {floor: 0.1 core s}}
  - {rules: [failed-inside], parameters: {floor: 0.1 core s}}
  - {rules: [short-runs], parameters: {many: 3, short: 1 min, part: 60 %, floor: 0.5 core s}}
  - {rules: [node-failed], parameters: {floor: 0.1 core s}}
  - {rules: [runs-beyond-limit], parameters: {floor: 0.5 core s}}
  - {rules: [interactive-idle], parameters: {long: 8 s, floor: 8 core s}}
  # Of two CPUs, the one that is idle is already the one next to a busy one.
  - {rules: [cpu-one-core], partitions: [wide, phases], enabled: false}
  - {rules: [cpu-cores-idle, program-leaves-cores-idle], partitions: [phases], enabled: false}
  - {rules: [too-many-nodes], partitions: [phases], parameters: {half: 60 %}}
  - {rules: [start-up], partitions: [wide], parameters: {part: 70 %, least: 6 s}}
"""


def pulse(condition: str, busy: float = 0.045, program: str = "python3") -> str:
    """Busy now and then, for at most a fifth of the time, while a condition holds."""
    return (
        f"{program} -c 'import os, time\nstart = time.time()\nwhile {condition}:\n"
        f"  until = time.process_time() + {busy}\n"
        "  while time.process_time() < until: sum(range(1000))\n  time.sleep(0.2)'"
    )


def for_seconds(seconds: float) -> str:
    return f"time.time() < start + {seconds}"


#: While a file named after the job is missing in its directory: until the test creates it.
UNTIL_TOLD: Final = 'not os.path.exists("go-" + os.environ["SLURM_JOB_ID"])'


def grow(megabytes: int, seconds: float) -> str:
    """Memory that grows by the clock up to so many megabytes."""
    return (
        "python3 -c 'import time\nkept = []\nstart = time.time()\n"
        f"while (past := time.time() - start) < {seconds}:\n"
        f'  while len(kept) < past * {megabytes / seconds}: kept.append(b"x" * (1 << 20))\n'
        "  sum(range(200000))\n  time.sleep(0.005)'"
    )


def keep(megabytes: int, seconds: float) -> str:
    """The same memory from the beginning."""
    return (
        f'python3 -c \'import time\nkept = b"x" * ({megabytes} << 20)\n'
        f"end = time.time() + {seconds}\nwhile time.time() < end:\n"
        "  sum(range(200000))\n  time.sleep(0.005)'"
    )


def fill(share: float, then: str = for_seconds(5)) -> str:
    """Memory up to a share of the job's limit, by its own cgroup, and work while it is kept."""
    return (
        "python3 -c 'import os, time\n"
        'node, uid, job = os.environ["SLURMD_NODENAME"], os.getuid(), os.environ["SLURM_JOB_ID"]\n'
        'place = f"/sys/fs/cgroup/memory/slurm_{node}/uid_{uid}/job_{job}/memory."\n'
        'limit = int(open(place + "limit_in_bytes").read())\n'
        "def used():\n"
        '  lines = open(place + "stat").read().splitlines()\n'
        "  known = {name: int(size) for name, size in map(str.split, lines)}\n"
        '  charged = int(open(place + "usage_in_bytes").read())\n'
        '  return charged - known["total_cache"] + known["total_shmem"]\n'
        f'kept = []\nwhile used() < {share} * limit: kept.append(b"x" * (1 << 19))\n'
        f"start = time.time()\nwhile {then}:\n  sum(range(200000))\n  time.sleep(0.005)'"
    )


def simulate(*arguments: str) -> str:
    """A program of its own name that is started with each of some files."""
    starts = "; ".join(f'"$folder"/simulate {argument}' for argument in arguments)
    return f'folder=$(mktemp -d); cp /bin/cat "$folder"/simulate; {starts}; rm -r "$folder"'


def little(cpu_time: float, program: str) -> str:
    """Some work three times, after nothing for some seconds each time."""
    return (
        f"{program} -c 'import time\nfor part in 1, 2, 3:\n  time.sleep(4.5)\n"
        f"  while time.process_time() < part * {cpu_time}: sum(range(10000))'"
    )


def little_of(*names: str) -> str:
    """Programs of these names that do the same at the same time."""
    parts = ["folder=$(mktemp -d)"]
    for name in names:
        program = f'"$folder"/{name}'
        parts += [
            f'cp "$(readlink -f /usr/bin/python3)" {program}',
            f"{little(0.3 / len(names), program)} &",
        ]
    return "\n".join([*parts, "wait", 'rm -r "$folder"'])


def on_each_core(command: str) -> str:
    return f"for core in 0 1; do taskset -c $core {command} & done; wait"


def burst(cpu_time: float) -> str:
    """Work, nothing for five times as long as it took, and the same work again."""
    return (
        "python3 -c 'import time\nstart = time.time()\n"
        f"while time.process_time() < {cpu_time}: sum(range(10000))\n"
        "time.sleep(max(13, 5 * (time.time() - start)))\n"
        f"while time.process_time() < {2 * cpu_time}: sum(range(10000))'"
    )


def load(seconds: float, cpu_time: float) -> str:
    """Wait as for data, then work, in one program."""
    return (
        f"python3 -c 'import time\ntime.sleep({seconds})\n"
        f"while time.process_time() < {cpu_time}: sum(range(10000))'"
    )


def opened(count: int) -> str:
    """So many files, open for some seconds of work."""
    return (
        f'python3 -c \'import time\nkept = [open("/etc/hostname") for _ in range({count})]\n'
        "for each in kept: each.read()\nwhile time.process_time() < 2: sum(range(10000))'"
    )


def write_into(folder: str) -> str:
    """A file of 60 MB that stays open for some seconds of work."""
    return (
        f"python3 -c 'import tempfile, time\n"
        f'file = tempfile.TemporaryFile(dir="{folder}")\n'
        'for _ in range(60): file.write(b"x" * 1000000)\nfile.flush()\n'
        "while time.process_time() < 2: sum(range(10000))'"
    )


def digest(megabytes: int) -> str:
    """Large reads, with work on what was read."""
    return (
        'python3 -c \'import hashlib\nsum, file = hashlib.sha512(), open("/dev/zero", "rb")\n'
        f"for _ in range({megabytes}): sum.update(file.read(1 << 20))'"
    )


def terminal(work: str) -> str:
    """A terminal server, as a person has it in a job, in which something runs."""
    return "\n".join(
        [
            "folder=$(mktemp -d)",
            f'cat > "$folder"/work <<"end"\n{work}\ntmux -S "$1" wait-for -S done\nend',
            'tmux -S "$folder"/socket new-session -d "bash $folder/work $folder/socket"',
            'tmux -S "$folder"/socket wait-for done',
            'rm -r "$folder"',
        ]
    )


def idle(seconds: float) -> str:
    """Nothing, and no program that sleeps."""
    pipe = "pipe-$SLURM_JOB_ID"
    return f"test -p {pipe} || mkfifo {pipe}; read -t {seconds} <> {pipe}"


STEP: Final = shlex.quote(f"{burn(0.8)}; python3 -c 'import time; time.sleep(1)'")
LONG_STEP: Final = shlex.quote(f"{burn(1.5)}; python3 -c 'import time; time.sleep(1)'")
#: One task works, the other waits for it.
UNEVEN: Final = shlex.quote(
    f"if [ $SLURM_PROCID = 0 ]; then {burn(3)}; touch done-$SLURM_JOB_ID; else "
    "python3 -c 'import os, time\n"
    'while not os.path.exists("done-" + os.environ["SLURM_JOB_ID"]): time.sleep(0.1)\'; fi'
)


class Case(NamedTuple):
    """A job and exactly the kinds of findings that it must have."""

    script: str
    options: tuple[str, ...] = ()
    expected: frozenset[str] = frozenset()
    user: str = ALICE
    #: Submitted so often, one after the other; the last one is judged, the others have no finding.
    times: int = 1


class Running(NamedTuple):
    """A job that ends when it is told to, and its findings before and after its end."""

    script: str
    options: tuple[str, ...] = ()
    before: frozenset[str] = frozenset()
    after: frozenset[str] = frozenset()
    user: str = ALICE


def job(*lines: str) -> str:
    return "\n".join(["#!/bin/bash", *lines, ""])


def kinds(*names: str) -> frozenset[str]:
    return frozenset(names)


SMALL: Final = ("--mem=60",)
BOTH: Final = ("--mem=60", "--nodes=1", "--ntasks=1", "--cpus-per-task=2")
TWO_NODES: Final = ("--mem=60", "--nodes=2", "--ntasks-per-node=1")
WIDE: Final = ("--partition=wide",)
PHASES: Final = ("--partition=phases",)

CASES: Final[dict[str, Case]] = {
    # The longest ones begin first.
    "cpu-one-core": Case(job(pulse(for_seconds(34), 0.1)), BOTH, kinds("cpu-one-core")),
    "memory-request-tight": Case(
        job(fill(0.965)), ("--mem=200",), kinds("memory-request-tight"), times=6
    ),
    "memory-request-with-room": Case(job(fill(0.7)), ("--mem=200",), user=BOB, times=6),
    "short-runs": Case(job(burn(5.5)), SMALL, kinds("short-runs"), times=3),
    "few-short-runs": Case(job(burn(5.5)), SMALL, user=BOB, times=2),
    "start-up": Case(job(load(12, 7)), (*SMALL, *WIDE), kinds("start-up")),
    "starts-at-once": Case(job(load(0, 11)), (*SMALL, *WIDE), user=BOB),
    "held-after-work": Case(job(burn(2), "sleep 14"), SMALL, kinds("held-after-work")),
    "works-to-its-end": Case(
        # What a script says of sleep is no sleep.
        job("# sleep 100", "sleep=100", "cat > /dev/null <<end", "sleep $sleep", "end", burn(2)),
        SMALL,
        user=BOB,
    ),
    "cpu-not-used": Case(job("sleep 14"), BOTH, kinds("cpu-not-used")),
    "two-cores": Case(job(on_each_core(burn(2))), BOTH, user=BOB),
    "program-leaves-cores-idle": Case(
        job(load(13, 0.8)), (*BOTH, *WIDE), kinds("program-leaves-cores-idle")
    ),
    "cpu-cores-idle": Case(
        job(little_of("first", "second", "third", "fourth")),
        (*BOTH, *WIDE),
        kinds("cpu-cores-idle"),
    ),
    "program-uses-cores": Case(
        job(on_each_core(burn(2.2))), (*BOTH, *WIDE), user=BOB
    ),
    "cpu-oversubscribed": Case(
        job(*[f"{burn(1)} &"] * 6, "wait"), BOTH, kinds("cpu-oversubscribed")
    ),
    "cpu-core-imbalance": Case(
        job(f"taskset -c 0 {pulse(for_seconds(9), 0.1)}"),
        (*BOTH, *PHASES),
        kinds("cpu-core-imbalance"),
    ),
    "cores-in-balance": Case(job(on_each_core(burn(1.5))), (*BOTH, *PHASES), user=BOB),
    "cpu-unsteady": Case(
        job(on_each_core(burst(1))), (*BOTH, *PHASES), kinds("cpu-unsteady")
    ),
    "cpu-steady": Case(
        job(on_each_core(pulse(for_seconds(12)))), (*BOTH, *PHASES), user=BOB
    ),
    "whole-node-held": Case(
        job(on_each_core(pulse(for_seconds(12), 0.025))),
        ("--mem=60", "--nodes=1", "--ntasks=1", "--exclusive", *PHASES),
        kinds("whole-node-held"),
    ),
    "whole-node-used": Case(
        job(on_each_core(burn(1.5))),
        ("--mem=60", "--nodes=1", "--ntasks=1", "--exclusive", *PHASES),
        user=BOB,
    ),
    "too-many-nodes": Case(
        job(f"srun --ntasks=2 --ntasks-per-node=1 {pulse(for_seconds(12))}"),
        (*TWO_NODES, *PHASES),
        kinds("too-many-nodes"),
    ),
    "nodes-uneven": Case(
        job(f"srun --ntasks=2 --ntasks-per-node=1 bash -c {UNEVEN}"),
        TWO_NODES,
        kinds("nodes-uneven"),
    ),
    "nodes-not-used": Case(job(pulse(for_seconds(9), 0.1)), TWO_NODES, kinds("nodes-not-used")),
    "both-nodes": Case(
        job(f"srun --ntasks=2 --ntasks-per-node=1 {burn(2)}"), TWO_NODES, user=BOB
    ),
    "sleeping": Case(job(burn(1), "sleep 9", burn(1)), SMALL, kinds("sleeping")),
    "out-of-memory": Case(job(eat(300)), ("--mem=80",), kinds("out-of-memory")),
    "failed-inside": Case(
        job(burn(1), simulate(*["/no/such/input"] * 6), "true"), SMALL, kinds("failed-inside")
    ),
    "failed-once": Case(
        job(burn(1), simulate("/no/such/input", *["/dev/null"] * 5), "true"), SMALL, user=BOB
    ),
    "fork-storm": Case(job(storm(1500)), SMALL, kinds("fork-storm")),
    "few-programs": Case(job(storm(10), burn(2)), SMALL, user=BOB),
    "steps-in-sequence": Case(
        job(*[f"srun --ntasks=1 bash -c {STEP}"] * 5),
        ("--mem=60", "--nodes=1", "--ntasks=2"),
        kinds("steps-in-sequence"),
    ),
    "steps-side-by-side": Case(
        job(*[f"srun --exact --ntasks=1 --mem=20 bash -c {LONG_STEP} &"] * 2, "wait"),
        ("--mem=60", "--nodes=1", "--ntasks=2"),
        user=BOB,
    ),
    "memory-request-unused": Case(
        job(pulse(for_seconds(11))), ("--mem=2400",), kinds("memory-request-unused")
    ),
    "memory-is-cache": Case(
        # Pages of a file with holes are cached as any others.
        job("truncate -s 300M holes", "cat holes > /dev/null", burn(5), "rm holes"),
        ("--mem=150",),
        kinds("memory-is-cache"),
    ),
    "memory-grows": Case(job(grow(240, 20)), ("--mem=400",), kinds("memory-grows")),
    "memory-of-one-allocation": Case(job(keep(240, 12)), ("--mem=400",), user=BOB),
    "io-small-calls": Case(
        job("dd if=/dev/zero of=/dev/null bs=1 count=3000000"), SMALL, kinds("io-small-calls")
    ),
    "cpu-system-time": Case(
        job("python3 -c 'import os, time\nwhile time.process_time() < 2: os.getppid()'"),
        SMALL,
        kinds("cpu-system-time"),
    ),
    "io-large-calls": Case(job(digest(600)), SMALL, user=BOB),
    "scratch-not-used": Case(job(write_into(".")), ("--mem=200",), kinds("scratch-not-used")),
    "scratch-used": Case(job(write_into(SCRATCH)), ("--mem=200",), user=BOB),
    "small-files": Case(job(opened(400)), SMALL, kinds("small-files")),
    "few-files": Case(job(opened(4)), SMALL, user=BOB),
    "time-request-unused": Case(
        job(burn(2)), (*SMALL, "--time=1-00:00:00"), kinds("time-request-unused")
    ),
    "interactive-idle": Case(job(terminal(idle(14))), BOTH, kinds("interactive-idle")),
    "interactive-used": Case(job(terminal(burn(4))), SMALL, user=BOB),
    "failed-again": Case(
        job(burn(0.5), "sleep 1", "exit 3"), SMALL, kinds("failed-again"), times=3
    ),
    "failed-before": Case(
        job(burn(0.5), "sleep 1", "echo >> runs", "test $(wc -l < runs) -eq 3"), SMALL, user=BOB,
        times=3,
    ),
}  # fmt: skip

RUNNING: Final[dict[str, Running]] = {
    "memory-near-limit": Running(
        job(fill(0.95, UNTIL_TOLD)), ("--mem=200",), kinds("memory-near-limit")
    ),
    "held-while-running": Running(
        job(burn(2), f"while [ ! -e go-$SLURM_JOB_ID ]; do {idle(1)}; done"),
        SMALL,
        kinds("held-after-work"),
        kinds("held-after-work"),
    ),
    "runs-beyond-limit": Running(
        job(pulse(UNTIL_TOLD, 0.02)),
        ("--mem=25", "--partition=late", "--time=1"),
        kinds("runs-beyond-limit"),
    ),
    "runs-well": Running(job(pulse(UNTIL_TOLD)), SMALL, user=BOB),
}

LIMITED: Final[dict[str, Case]] = {
    "time-limit-reached": Case(
        job(pulse(for_seconds(600), 0.02)),
        ("--mem=40", "--time=1"),
        kinds("time-limit-reached"),
    ),
    # More time would not help it.
    "held-until-the-limit": Case(
        job(burn(4), "sleep 600"), ("--mem=40", "--time=1"), kinds("held-after-work"), BOB
    ),
}

#: Until it is told to end, or longer than the shortest limit that Slurm knows.
LONG_RUN: Final = Case(
    job(pulse(f"{UNTIL_TOLD} and {for_seconds(75)}", 0.02)), SMALL, kinds("time-limit-ahead")
)

#: Kinds that have a test of their own: several runs or tasks, or a fault of a node.
OWN_TESTS: Final = kinds("array-split", "node-failed", "slower-than-before", "time-limit-ahead")

#: All kinds of which a real job has a finding.
TESTED: Final = frozenset[str]().union(
    OWN_TESTS,
    *(case.expected for case in CASES.values()),
    *(case.expected for case in LIMITED.values()),
    *(each.before for each in RUNNING.values()),
)
