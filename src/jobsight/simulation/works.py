"""The scripts of the users: what each runs, how it scales, and what its owner requests.

A :class:`Template` is a kind of work, such as molecular dynamics; a :class:`Work` is one script of
one user. :func:`plan_run` makes the plan of one run as it is when nothing goes wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from jobsight.simulation.plan import Helper, Phase, Plan, StepPlan
from jobsight.simulation.site import GIB, MAX_TIME, NODE_KINDS, NodeKind, User

MIB: Final = 2**20

_Item = TypeVar("_Item")


class Part(NamedTuple):
    """A phase of a template."""

    program: bytes
    #: Of the elapsed time.
    share: float
    #: Busy share of the CPUs; 0 is one CPU.
    cores: float
    memory: tuple[float, float] = (1.0, 1.0)
    #: MiB per second and busy CPU.
    read: float = 0.2
    written: float = 0.1
    gpu: float = 0.0


class Template(NamedTuple):
    """A kind of work."""

    stems: tuple[str, ...]
    #: ``cpu``, ``mpi``, ``gpu``, ``array``, ``serial``, ``bigmem``, ``interactive``, ``pipeline``,
    #: ``train`` of any program that learns or infers, ``tensor`` of training with tensor cores.
    tags: frozenset[str]
    partitions: tuple[str, ...]
    parts: tuple[Part, ...]
    nodes: tuple[int, ...] = (1,)
    cpus: tuple[int, ...] = (1,)
    gpus: tuple[int, ...] = (0,)
    #: GiB of memory by CPU, or by node where large.
    memory: tuple[float, float] = (0.5, 2.0)
    #: Hours of the median run.
    hours: tuple[float, float] = (0.5, 6.0)
    #: How likely a script is of this kind.
    weight: float = 1.0


def _tags(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CPU: Final = ("cpu", "main")
_R: Final = b"/apps/r/4.4.1/lib/R/bin/exec/R"
_SPADES: Final = b"/apps/spades/4.0/bin/spades-core"
_PYTHON: Final = b"/apps/python/3.11/bin/python3.11//home/"
_TORCH: Final = b"/apps/PyTorch/2.4.0/bin/python3.11//home/"

TEMPLATES: Final = (
    Template(
        ("md_prod", "npt", "membrane"),
        _tags("cpu mpi"),
        _CPU,
        (
            Part(b"/apps/gromacs/2024.1/bin/gmx", 0.01, 0),
            Part(b"/apps/gromacs/2024.1/bin/gmx_mpi", 0.99, 0.96),
        ),
        nodes=(1, 1, 2, 4),
        cpus=(32, 64),
        memory=(0.3, 1.0),
        hours=(2, 20),
        weight=1.5,
    ),
    Template(
        ("relax", "scf", "bands", "phonon"),
        _tags("cpu mpi"),
        _CPU,
        (Part(b"/apps/vasp/6.4.2/bin/vasp_std", 1.0, 0.95),),
        nodes=(1, 1, 2, 3),
        cpus=(32, 64),
        memory=(1.5, 3.2),
        hours=(1, 14),
        weight=1.5,
    ),
    Template(
        ("cfd", "wing", "mesh"),
        _tags("cpu mpi pipeline"),
        _CPU,
        (
            Part(b"/apps/openfoam/11/bin/decomposePar", 0.03, 0, (0.3, 0.4), 40, 60),
            Part(b"/apps/openfoam/11/bin/simpleFoam", 0.93, 0.95),
            Part(b"/apps/openfoam/11/bin/reconstructPar", 0.04, 0, (0.4, 0.4), 60, 60),
        ),
        nodes=(1, 2, 2, 4),
        cpus=(32, 64),
        memory=(1.0, 2.4),
        hours=(1.5, 12),
    ),
    Template(
        ("align", "rnaseq", "variants"),
        _tags("cpu pipeline"),
        _CPU,
        (
            Part(b"/apps/bwa/0.7.17/bin/bwa", 0.72, 0.94, (0.8, 0.9), 3, 2),
            Part(b"/apps/samtools/1.20/bin/samtools", 0.22, 0.85, (1.0, 1.0), 6, 5),
            Part(b"/apps/multiqc/bin/multiqc", 0.06, 0, (0.2, 0.2), 5, 1),
        ),
        cpus=(8, 16, 32),
        memory=(1.2, 3.0),
        hours=(0.8, 8),
        weight=1.5,
    ),
    Template(
        ("blast", "hmm", "annotate"),
        _tags("cpu"),
        _CPU,
        (Part(b"/apps/blast/2.15/bin/blastp", 1.0, 0.93, (0.9, 1.0), 2, 0.2),),
        cpus=(8, 16, 32),
        memory=(0.8, 2.0),
        hours=(0.5, 6),
    ),
    Template(
        ("opt", "freq", "td"),
        _tags("cpu"),
        _CPU,
        (
            Part(b"/apps/gaussian/16/l502.exe", 0.7, 0.95, (0.8, 1.0), 0.5, 0.5),
            Part(b"/apps/gaussian/16/l703.exe", 0.3, 0.93, (1.0, 1.0), 1, 1),
        ),
        cpus=(16, 32),
        memory=(1.5, 3.5),
        hours=(1, 16),
    ),
    Template(
        ("sweep", "montecarlo", "fit"),
        _tags("serial array"),
        _CPU,
        (Part(_PYTHON, 0.15, 0, (0.5, 1.0), 2, 0.1), Part(_PYTHON, 0.85, 0, (1.0, 1.0), 0.3, 0.1)),
        memory=(1.0, 4.0),
        hours=(0.25, 3),
        weight=1.5,
    ),
    Template(
        ("stats", "bayes", "panel"),
        _tags("serial"),
        _CPU,
        (Part(_R, 0.2, 0, (0.3, 1.0), 2, 0.2), Part(_R, 0.8, 0, (1.0, 1.0), 0.1, 0.2)),
        memory=(2.0, 7.0),
        hours=(0.5, 5),
    ),
    Template(
        ("train", "finetune", "resnet", "llm"),
        _tags("gpu train tensor"),
        ("gpu",),
        (
            Part(_TORCH, 0.02, 0, (0.2, 0.5), 60, 0.1),
            Part(_TORCH, 0.98, 0.45, (0.9, 1.0), 8, 0.5, gpu=0.88),
        ),
        cpus=(8, 12, 16),
        gpus=(1, 1, 2, 4),
        memory=(2.5, 5.5),
        hours=(1, 16),
        weight=2,
    ),
    Template(
        ("pmemd", "binding", "fep"),
        _tags("gpu"),
        ("gpu",),
        (Part(b"/apps/amber/24/bin/pmemd.cuda", 1.0, 0.9, (0.9, 1.0), 0.5, 1, gpu=0.94),),
        cpus=(1, 2),
        gpus=(1,),
        memory=(2, 5),
        hours=(2, 18),
    ),
    Template(
        ("infer", "embed", "evaluate"),
        _tags("gpu train"),
        ("gpu",),
        (
            Part(_PYTHON, 0.06, 0, (0.3, 0.8), 80, 0.1),
            Part(_PYTHON, 0.94, 0.55, (0.9, 1.0), 10, 2, gpu=0.72),
        ),
        cpus=(4, 8),
        gpus=(1,),
        memory=(3, 6),
        hours=(0.5, 5),
    ),
    Template(
        ("assembly", "metagenome"),
        _tags("bigmem cpu"),
        ("bigmem",),
        (
            Part(_SPADES, 0.25, 0.9, (0.3, 1.0), 4, 4),
            Part(_SPADES, 0.55, 0.9, (1.0, 1.0), 2, 2),
            Part(b"/apps/spades/4.0/bin/spades-corrector", 0.2, 0.85, (0.6, 0.6), 2, 2),
        ),
        cpus=(32, 64),
        memory=(14, 24),
        hours=(3, 20),
        weight=0.8,
    ),
    Template(
        ("notebook", "explore"),
        _tags("interactive"),
        _CPU,
        (
            Part(b"/apps/jupyter/bin/jupyter-lab", 0.3, 0.02, (0.3, 0.5), 1, 0.1),
            Part(_PYTHON, 0.5, 0.7, (0.6, 1.0), 2, 0.5),
            Part(b"/apps/jupyter/bin/jupyter-lab", 0.2, 0.02, (1.0, 1.0), 0.1, 0.1),
        ),
        cpus=(1, 2),
        memory=(3, 8),
        hours=(0.7, 3),
        weight=0.6,
    ),
    Template(
        ("database", "broker"),
        _tags("server"),
        _CPU,
        (Part(b"/usr/lib/postgresql/16/bin/postgres", 1.0, 0.1, (0.9, 1.0), 1, 1),),
        cpus=(2, 4),
        memory=(2, 4),
        hours=(6, 30),
        weight=0.4,
    ),
    Template(
        # A server of models waits for requests: it is held on purpose.
        ("chat", "endpoint"),
        _tags("server"),
        ("gpu",),
        (Part(b"/apps/triton/bin/tritonserver", 1.0, 0.2, (0.9, 1.0), 1, 0.1, gpu=0.12),),
        cpus=(4, 8),
        gpus=(1, 2),
        memory=(3, 5),
        hours=(6, 20),
        weight=0.6,
    ),
    Template(
        # The loader needs more CPUs and memory than the share of a GPU, and uses them.
        ("video", "imagenet"),
        _tags("loader"),
        ("gpu",),
        (Part(_TORCH, 1.0, 0.9, (0.95, 1.0), 8, 0.5, gpu=0.9),),
        cpus=(40, 48),
        gpus=(1,),
        memory=(5, 6),
        hours=(2, 10),
        weight=0.6,
    ),
    Template(
        # GPUs on two nodes that are used well.
        ("pretrain", "ddp"),
        _tags("spread"),
        ("gpu",),
        (Part(_TORCH, 1.0, 0.7, (0.9, 1.0), 8, 0.5, gpu=0.97),),
        nodes=(2,),
        cpus=(8, 12),
        gpus=(2,),
        memory=(3, 5),
        hours=(3, 15),
        weight=0.6,
    ),
    Template(
        ("forecast", "ocean", "regional"),
        _tags("cpu mpi"),
        _CPU,
        (
            Part(b"/apps/wrf/4.6/bin/real.exe", 0.05, 0.9, (0.5, 0.6), 4, 4),
            Part(b"/apps/wrf/4.6/bin/wrf.exe", 0.95, 0.94, (0.9, 1.0), 0.3, 1.5),
        ),
        nodes=(2, 3, 4),
        cpus=(64,),
        memory=(0.8, 2.0),
        hours=(1, 10),
    ),
)


class Work(msgspec.Struct, kw_only=True):
    """One script of one user, with its habits."""

    number: int
    user: User
    template: Template
    kind: NodeKind
    name: str
    nodes: int
    cpus: int
    gpus: int
    #: Bytes on each node, and seconds, of the median run at the beginning of the year.
    need: float
    elapsed: float
    #: Standard deviation of the logarithm, from run to run.
    spread: float
    #: By how much the input grows in the year.
    growth: float
    memory_margin: float
    time_margin: float
    #: What goes wrong in it, in which share of its runs, and in which part of the year.
    habit: str = ""
    habit_rate: float = 1.0
    habit_since: float = 0.0
    habit_until: float = 1.0
    #: The number of its first run with the habit, and of all its runs.
    habit_first: int = 0
    runs: int = 0
    #: Tasks of its arrays; 0 if it has none.
    array_size: int = 0
    #: It has a second component with one node.
    het: bool = False
    #: Other users who run the same program well on the same cluster.
    peers: int = 0
    #: The CPU time of single cores is measured.
    cores_measured: bool = False
    #: The part of the year in which its owner runs it.
    begin: float = 0.0
    end: float = 1.0

    @property
    def script(self) -> str:
        return f"/home/{self.user.name}/{self.name}/{self.name}.sh"


def make_work(
    number: int, user: User, template: Template, random: np.random.Generator, *, habit: str = ""
) -> Work:
    """A script of a user, with random habits."""
    kinds = [kind for kind in NODE_KINDS if kind.partition in template.partitions]
    kind = kinds[int(random.integers(len(kinds)))]
    cpus = choose(random, template.cpus)
    gpus = min(choose(random, template.gpus), kind.gpus)
    if gpus > 1:
        cpus = min(cpus * gpus, kind.cores * gpus // kind.gpus)
    if gpus and "loader" not in template.tags:
        cpus = min(cpus, kind.cores * gpus // kind.gpus)
    nodes = choose(random, template.nodes)
    if nodes > 1 and not gpus and random.random() < 0.8:
        # Who spreads a job over nodes mostly takes all of their CPUs.
        cpus = kind.cores
    low, high = template.memory
    need = float(random.uniform(low, high)) * cpus * GIB
    low, high = template.hours
    hours = math.exp(float(random.uniform(math.log(low), math.log(high))))
    stem = choose(random, template.stems)
    return Work(
        number=number,
        user=user,
        template=template,
        kind=kind,
        name=f"{stem}_{_letters(number)}" if random.random() < 0.7 else stem,
        nodes=nodes,
        cpus=cpus,
        gpus=gpus,
        need=min(need, kind.memory * 0.7),
        elapsed=hours * 3600,
        spread=float(random.uniform(0.03, 0.12)),
        growth=float(random.uniform(0, 0.15)),
        memory_margin=float(random.uniform(1.25, 1.5)),
        time_margin=float(random.uniform(1.5, 2.3)),
        habit=habit,
    )


def _letters(number: int) -> str:
    """A number in letters. Names that differ in digits only are those of one work."""
    text = ""
    while number or not text:
        number, place = divmod(number, 26)
        text = chr(ord("a") + place) + text
    return text


def choose(random: np.random.Generator, items: Sequence[_Item]) -> _Item:
    """One of some items, each as likely."""
    return items[int(random.integers(len(items)))]


def plan_run(work: Work, start: int, position: float, random: np.random.Generator) -> Plan:
    """The plan of a run that starts at a time, which is this share of the year, as it should be."""
    template = work.template
    grown = 1 + work.growth * position
    need = work.need * grown * math.exp(work.spread * float(random.standard_normal()) / 2)
    elapsed = work.elapsed * grown * math.exp(work.spread * float(random.standard_normal()))
    elapsed = min(max(elapsed, 60.0), MAX_TIME * 0.5)
    # The request does not follow the input: it is what the owner once wrote into the script.
    expected = work.need * (1 + work.growth)
    memory = min(_round_memory(expected * work.memory_margin), work.kind.memory)
    need = min(need, memory * 0.88)
    time_limit = min(_round_time(work.elapsed * (1 + work.growth) * work.time_margin), MAX_TIME)
    elapsed = min(elapsed, time_limit * 0.85)
    plan = Plan(
        user=work.user,
        name=work.name,
        kind=work.kind,
        script=work.script,
        start=start,
        wait=_wait(work, time_limit, memory, random),
        nodes=work.nodes,
        cpus=work.cpus,
        gpus=work.gpus,
        memory=memory,
        need=need,
        time_limit=time_limit,
        phases=[_phase(part, work, elapsed, random) for part in template.parts],
        helpers=_helpers(work, random),
        tasks=work.cpus * work.nodes if "mpi" in template.tags else 1,
        cache=min(0.15 * need, memory * 0.1),
        core_shares=[1.0] * work.cpus if work.cores_measured else None,
        # Molecular dynamics needs a precision that tensor cores do not have.
        tensor=0.0 if template.tags == _tags("gpu") else 0.3,
    )
    if "mpi" in template.tags:
        plan.steps = [StepPlan(first=0.01, last=0.995, cpu_share=0.985, tasks=plan.tasks)]
    return plan


def _phase(part: Part, work: Work, elapsed: float, random: np.random.Generator) -> Phase:
    cores = 0.98 if part.cores == 0 else work.cpus * part.cores
    cores *= 1 - 0.05 * float(random.random())
    program = part.program
    if program.endswith(b"//home/"):
        program += f"{work.user.name}/{work.name}/main.py".encode()
    tasks = work.cpus if "mpi" in work.template.tags and part.cores else 1
    return Phase(
        program=program,
        duration=elapsed * part.share,
        cores=cores,
        memory=part.memory,
        read=part.read * MIB * max(cores, 1),
        written=part.written * MIB * max(cores, 1),
        gpu=part.gpu * (1 - 0.08 * float(random.random())) if work.gpus else 0.0,
        multiprocessors=0.85 if "spread" in work.template.tags else 0.7,
        executions=tasks,
        process_memory=1 / tasks,
        cpu_pressure=0.01 + 0.02 * float(random.random()),
    )


def _helpers(work: Work, random: np.random.Generator) -> list[Helper]:
    few = int(random.integers(1, 6))
    helpers = [
        Helper(program=b"/usr/bin/mkdir", executions=few, last=0.01),
        Helper(program=b"/usr/bin/date", executions=2),
        Helper(program=b"/usr/bin/cp", executions=few, cpu_time=0.4, first=0.0, last=0.02),
    ]
    if random.random() < 0.3:
        # grep exits with 1 where it finds nothing: a habit, not a failure.
        helpers.append(
            Helper(program=b"/usr/bin/grep", executions=20, failures=int(random.integers(4, 16)))
        )
    if "mpi" in work.template.tags:
        helpers.append(Helper(program=b"/usr/bin/srun", executions=1, cpu_time=0.8, first=0.01))
    return helpers


def _wait(work: Work, time_limit: int, memory: int, random: np.random.Generator) -> int:
    """Seconds in the queue: the larger the request, the longer."""
    size = work.nodes * work.cpus / work.kind.cores + memory / work.kind.memory + work.gpus
    hours = 0.1 * size + 0.02 * time_limit / 3600
    return int(3600 * hours * float(random.lognormal(0, 1)))


def _round_memory(size: float) -> int:
    """As people write it: in GiB, in larger steps where it is more."""
    gib = size / GIB
    step = 1 if gib < 16 else 4 if gib < 64 else 16
    return max(1, math.ceil(gib / step) * step) * GIB


def _round_time(seconds: float) -> int:
    step = 600 if seconds < 7200 else 3600
    return max(1, math.ceil(seconds / step)) * step
