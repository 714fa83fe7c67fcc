"""What a sample of 8 GPUs costs with 8 jobs on the node: calls of NVML a round, and their time.

The replies are those that an H200 gave (``tests/data/nvml``), repeated for each GPU. The time in
the driver is what each call took there (``h200_costs.json``, by ``check_gpu.py``); the time of the
agent is measured here. The peer is a sample for each job of its own.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from bench.figures import Figures
from jobsight.agent.job import JobView
from jobsight.agent.processes.process import JobUsage
from jobsight.agent.samplers.gpu.devices import NodeGpus
from jobsight.agent.samplers.gpu.nvml import Nvml
from jobsight.agent.samplers.gpu.nvml_replay import ReplayLibrary
from jobsight.agent.samplers.gpu.sampler import GpuSampler
from jobsight.agent.samplers.node import Node
from jobsight.model import SECOND, JobInfo, Sighting

HERE = Path(__file__).parent
RECORDING = HERE.parent / "tests" / "data" / "nvml" / "h200-multiply.json"
GPUS = JOBS = 8
ROUNDS = 200
#: Milliseconds of a sample of 8 GPUs.
GOAL = 5.0


def uuid(index: int) -> str:
    return f"GPU-0000000{index}"


class CountingLibrary(ReplayLibrary):
    """The recording of one GPU for all GPUs; counts the calls."""

    def __init__(self, recording: dict[str, Any]) -> None:
        calls = dict(recording["calls"])
        calls["nvmlDeviceGetCount()"] = [{"value": GPUS}]
        for key, results in list(calls.items()):
            for index in range(GPUS):
                if "gpu0" in key:
                    calls[key.replace("gpu0", f"gpu{index}")] = results
                calls[f"nvmlDeviceGetHandleByIndex({index})"] = [{"handle": f"gpu{index}"}]
        for index in range(GPUS):
            calls[f"nvmlDeviceGetUUID(gpu{index})"] = [{"value": uuid(index)}]
            calls[f"nvmlDeviceGetMinorNumber(gpu{index})"] = [{"value": index}]
        calls["nvmlGpmSampleAlloc()"] = [{"handle": "sample"}]
        super().__init__({**recording, "calls": calls})
        self.counts: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        call = super().__getattr__(name)

        def counted(*arguments: Any) -> Any:
            self.counts[name] = self.counts.get(name, 0) + 1
            return call(*arguments)

        return counted


class Clock:
    now = 1000 * SECOND

    def __call__(self) -> int:
        return self.now


def view(number: int, jobs: int) -> JobView:
    """A job with its part of the GPUs."""
    info = JobInfo(cluster="c", job_id=number, source="test")
    sighting = Sighting("c", number, "n1", "boot", 1)
    gpus = tuple(map(uuid, range(number * GPUS // jobs, (number + 1) * GPUS // jobs)))
    # Samplers of GPUs read nothing of the probe.
    probe: Any = None
    return JobView(sighting=sighting, info=info, probe=probe, usage=JobUsage(), gpus=gpus)


def rounds(jobs: int, interval: int) -> tuple[dict[str, float], float]:
    """Calls by function and milliseconds of CPU time of this process, both for a round."""
    clock = Clock()
    node = Node(clock=clock, environment={})
    library = CountingLibrary(json.loads(RECORDING.read_text()))
    gpus = node.shared("gpus", lambda: NodeGpus(node, "/none", 1.0))
    source = Nvml(library, node.errors, clock)
    # In this thread: the time of a thread's start is not that of a sample.
    source.blocks = False
    gpus.use(source)
    pairs = [(GpuSampler(node=node), view(number, jobs)) for number in range(jobs)]
    for sampler, one in pairs:
        sampler.columns(one)
    library.counts.clear()
    began = time.process_time()
    for _ in range(ROUNDS):
        clock.now += interval
        for sampler, one in pairs:
            sampler.columns(one)
    milliseconds = (time.process_time() - began) / ROUNDS * 1000
    return {name: count / ROUNDS for name, count in library.counts.items()}, milliseconds


def main() -> None:
    figures = Figures()
    costs = json.loads((HERE / "h200_costs.json").read_text())["microseconds"]

    def driver(calls: dict[str, float]) -> float:
        return sum(costs.get(name, 0) * count for name, count in calls.items()) / 1000

    alone, _ = rounds(1, SECOND)
    usual, own = rounds(JOBS, SECOND)
    slow = ("nvmlDeviceGetSamples", "nvmlDeviceGetTotalEnergyConsumption")
    quick = {name: count for name, count in usual.items() if name not in slow}
    total = driver(quick) + own
    figures.row(
        f"GPU look, {GPUS} GPUs and {JOBS} jobs: NVML calls a round",
        f"a sample for each job: {sum(alone.values()) * JOBS:.0f}",
        f"{sum(usual.values()):.0f}",
        "as for one job",
        reached=sum(usual.values()) <= sum(alone.values()) * 1.05,
    )
    figures.row(
        "the same, milliseconds: in the driver as recorded on an H200, and in the agent",
        "-",
        f"{driver(quick):.1f} + {own:.1f}",
        f"{GOAL:g}",
        reached=total < GOAL,
    )
    often, _ = rounds(JOBS, 10 * SECOND)
    share = (driver(often) + own) / 10_000
    figures.row(
        "the same every 10 s with utilization samples and counters, share of a core",
        "-",
        f"{share:.2%}",
        "0.5 %",
        reached=share < 0.005,
    )
    figures.end()


if __name__ == "__main__":
    main()
