"""Jobs with GPUs for the pages: many GPUs of several nodes, one of four used, older GPUs of which
only the utilization is known, and a GPU that two jobs share."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jobsight.model import SECOND, Batch, Coverage, GpuFault, GpuUse, Series, StepUse
from tests.web.sample import EXACT, GIB, MIB, NOW, Maker, steps_of, use

if TYPE_CHECKING:
    from jobsight.store.store import Store

__all__ = ["NOW", "batches", "fill"]

NEEDS_HOPPER = Coverage(quality="missing", reason="the driver gives them from Hopper on")


class Behaviour(NamedTuple):
    """How a GPU is used over the share of the run that has passed."""

    #: Busy multiprocessors, utilization and memory, each 0 to 1.
    curve: Callable[[float], tuple[float, float, float]] = lambda share: (0.0, 0.0, 0.0)
    used: bool = True
    model: str = "NVIDIA H200"
    memory: int = 141 * GIB
    watts: float = 700
    profiled: bool = True
    more: Mapping[str, Any] = MappingProxyType({})


IDLE = Behaviour(used=False)


def gpu_of(
    key: str, what: Behaviour, series: Series, seed: int
) -> tuple[GpuUse, dict[str, array[int]]]:
    """The figures of one GPU and its time series, sampled as the other series of the job."""
    chance = random.Random(seed)
    times = list(series.times)
    sums = dict.fromkeys(("multiprocessor_time", "active_time", "memory_time", "energy"), 0.0)
    columns: dict[str, array[int]] = {
        name: array("q") for name in ("multiprocessor_time", "utilization", "memory_used")
    }
    peak, before = 0, times[0]
    for moment in times:
        passed, before = moment - before, moment
        busy, active, memory = what.curve((moment - times[0]) / (times[-1] - times[0] or 1))
        busy *= chance.uniform(0.85, 1)
        sums["multiprocessor_time"] += busy * passed
        sums["active_time"] += active * passed
        sums["memory_time"] += memory * what.memory * passed / SECOND
        sums["energy"] += (80 + (what.watts - 80) * busy) * passed / 1000
        peak = max(peak, round(memory * what.memory))
        columns["multiprocessor_time"].append(round(sums["multiprocessor_time"]))
        columns["utilization"].append(round(active * 100))
        columns["memory_used"].append(round(memory * what.memory))
    held = times[-1] - times[0]
    figures: dict[str, Any] = {name: round(value) for name, value in sums.items()}
    mean = figures["multiprocessor_time"]
    figures |= {
        "occupancy_time": round(mean * 0.4),
        "tensor_time": round(mean * 0.8),
        "fp64_time": 0,
        "fp32_time": round(mean * 0.12),
        "fp16_time": round(mean * 0.05),
        "bandwidth_time": round(mean * 0.55),
        "pcie_received_bytes": round(mean * 2),
        "pcie_sent_bytes": round(mean * 0.4),
        "nvlink_received_bytes": round(mean * 20),
        "nvlink_sent_bytes": round(mean * 20),
        "throttled_time": {},
        "faults": [],
    }
    if not what.profiled:
        del columns["multiprocessor_time"]
        names = ("multiprocessor", "occupancy", "tensor", "fp64", "fp32", "fp16", "bandwidth")
        figures |= dict.fromkeys(f"{name}_time" for name in names)
        figures["coverage"] = {"profile": NEEDS_HOPPER}
    known = {
        "uuid": f"GPU-{seed:08x}-0000-0000-0000-{int(key.replace(':', '')):012x}",
        "name": what.model,
        "first_seen": times[0],
        "last_seen": times[-1],
        "held_time": held,
        "used": what.used,
        "memory_total": what.memory,
        "memory_peak": peak,
    }
    use = GpuUse(key=key, **(known | figures | dict(what.more)))
    return use, {f"gpu.{key}.{name}": column for name, column in columns.items()}


def with_gpus(
    made: Iterator[Batch], behaviours: Callable[[int], list[Behaviour]]
) -> Iterator[Batch]:
    """Batches of one job with GPUs on each of its nodes."""
    for index, batch in enumerate(made):
        (part,) = batch.parts
        assert part.series is not None
        columns = dict(part.series.columns)
        for number, what in enumerate(behaviours(index)):
            seed = part.sighting.job_id * 1000 + index * 16 + number
            gpu, own = gpu_of(str(number), what, part.series, seed)
            part.gpus.append(gpu)
            columns |= own
        part.series = Series(part.series.times, columns)
        part.coverage = part.coverage | {
            "gpu": Coverage(quality="exact", reason="the GPUs that Slurm assigned"),
            "gpu_programs": Coverage(
                quality="estimate", reason="divided among the processes that were seen"
            ),
        }
        yield batch


def _training(slow: float) -> Behaviour:
    def curve(share: float) -> tuple[float, float, float]:
        if share < 0.05:
            return 0.0, 0.02, 0.04
        # Every tenth of the run is written to disk.
        if share % 0.1 < 0.012:
            return 0.02, 0.1, 0.82
        return slow * (0.86 + 0.05 * math.sin(share * 40)), 0.99, 0.82

    more: dict[str, Any] = {}
    if slow < 0.6:
        more["throttled_time"] = {"temperature": 2600 * SECOND}
    return Behaviour(curve, more=more)


def _node_of_training(index: int) -> list[Behaviour]:
    if index == 5:
        fault = [GpuFault(kind="xid", count=2, last=1_794_700_000 * SECOND, code=63)]
        broken = _training(0.9)
        return [*(_training(0.93) for _ in range(3)), broken._replace(more={"faults": fault})]
    if index == 7:
        return [_training(0.5), _training(0.5), IDLE, IDLE]
    return [_training(1 - 0.01 * index) for _ in range(4)]


def _tiny_kernels(share: float) -> tuple[float, float, float]:
    return 0.004, 0.97, 0.11


def _older(share: float) -> tuple[float, float, float]:
    return 0.0, 0.62 if share > 0.1 else 0.0, 0.4


def batches() -> Iterator[Batch]:
    make = Maker("gpus")
    nodes = tuple(f"gpu{number:02d}" for number in range(1, 9))
    more: dict[str, Any] = {"source": "slurm", "partition": "gpu", "user": "emmy", "cpus": 64}

    def python(spent: int, gpu_time: float) -> list[Any]:
        return [
            use(b"/opt/conda/bin/python3.12", spent * 0.98, 4, peak_memory=20 * GIB,
                gpu_time=round(gpu_time * SECOND), gpu_memory_peak=100 * GIB),
            use(b"/usr/bin/tar", spent * 0.01),
        ]  # fmt: skip

    def steps(index: int, spent: int) -> list[StepUse]:
        """A step that trains on the node's GPUs, and the script, which uses none."""
        trained = round(3250 * SECOND)
        on_gpus = {"0": (trained, 4 * 100 * GIB), "batch": (0, 0), "extern": (0, 0)}
        return [
            msgspec.structs.replace(
                step, gpu_time=on_gpus[step.step][0], gpu_memory_peak=on_gpus[step.step][1]
            )
            for step in steps_of(index, spent)
        ]

    yield from with_gpus(
        make.job(
            lambda share: (12.0, 200 * GIB, 5e8 * (share % 0.1 < 0.01)), length=7200, ago=20000,
            nodes=nodes, name="pretrain-7b", command="srun torchrun train.py --model 7b",
            gpus=32, memory=8 * 512 * GIB, time_limit=4 * 3600 * SECOND, coverage=EXACT,
            executables=lambda spent: python(spent, 3250), steps=steps, **more,
        ),
        _node_of_training,
    )  # fmt: skip
    one_of_four = [_training(0.95), IDLE, IDLE, IDLE]
    yield from with_gpus(
        make.job(
            lambda share: (3.1, 30 * GIB, 2e7), length=3600, ago=11000, nodes=("gpu03",),
            name="finetune", command="python3 finetune.py --device cuda:0", gpus=4,
            memory=256 * GIB, time_limit=2 * 3600 * SECOND, coverage=EXACT,
            executables=lambda spent: python(spent, 3400), **(more | {"user": "ada", "cpus": 16}),
        ),
        lambda index: one_of_four,
    )  # fmt: skip
    old = Behaviour(_older, model="NVIDIA A100-SXM4-80GB", memory=80 * GIB, watts=400,
                    profiled=False)  # fmt: skip
    yield from with_gpus(
        make.job(
            lambda share: (2.2, 12 * GIB, 1e6), length=1800, ago=7000, nodes=("gpu11",),
            name="md-water", command="gmx_mpi mdrun -deffnm water", gpus=2, memory=64 * GIB,
            coverage=EXACT, executables=lambda spent: python(spent, 2100),
            **(more | {"user": "grace", "cpus": 8}),
        ),
        lambda index: [old, old],
    )  # fmt: skip
    tiny = Behaviour(_tiny_kernels, more={"shared": True})
    yield from with_gpus(
        make.job(
            lambda share: (1.0, 2 * GIB, 1e5), length=900, ago=900, nodes=("gpu12",), running=True,
            name="agents-rl", command="python3 rollouts.py", gpus=1, memory=16 * GIB,
            coverage=EXACT, executables=lambda spent: python(spent, 300),
            **(more | {"user": "ada", "cpus": 4}),
        ),
        lambda index: [tiny],
    )  # fmt: skip
    yield from make.job(
        lambda share: (3.0, 92 * MIB, 2e4), length=180, ago=600, name="pi-parallel",
        command="python3 pi.py",
    )  # fmt: skip


def fill(store: Store) -> None:
    """Write the runs into a store."""
    for batch in batches():
        assert store.write(batch, received=batch.written)
