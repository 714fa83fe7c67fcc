"""Compare what jobsight measures of GPU programs with what the programs measured themselves.

    python bench/check_gpu.py --output FILE [--record DIRECTORY]

Needs root, a GPU of NVIDIA and PyTorch. Each program of ``gpu_programs.py`` runs once as a job of
the launcher of ``jobsight run``, and as a job of the agent in cgroups as Slurm makes them; two
programs run at once on one GPU. A line per figure is printed, and everything is written as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from jobsight.agent.agent import Agent
from jobsight.agent.collector import Collector
from jobsight.agent.launch.launcher import Launcher, RunRequest
from jobsight.agent.registry import load_part
from jobsight.agent.samplers.gpu.nvml import Nvml
from jobsight.agent.samplers.readings import Errors
from jobsight.agent.sampling import SamplerPlan
from jobsight.model import SECOND, Batch, JobInfo, JobPart

PROGRAMS = Path(__file__).with_name("gpu_programs.py")
SCOPE = Path("/sys/fs/cgroup/system.slice/slurmstepd.scope")


def command(program: str, seconds: float, output: Path) -> list[str]:
    return [
        *(sys.executable, str(PROGRAMS), program),
        *("--seconds", str(seconds), "--output", str(output)),
    ]


class Parts:
    """The last part of each job."""

    def __init__(self) -> None:
        self.last: dict[int, JobPart] = {}
        self.columns: dict[int, dict[str, int]] = {}
        self.bytes = 0

    def take(self, batch: Batch) -> None:
        from jobsight.transport.wire import encode

        self.bytes = max(self.bytes, len(encode(batch)))
        for part in batch.parts:
            self.last[part.sighting.job_id] = part
            for name, column in (part.series.columns if part.series else {}).items():
                self.columns.setdefault(part.sighting.job_id, {})[name] = int(column[-1])


def launch(number: int, program: str, seconds: float, work: Path, gpus: int | None) -> Any:
    parts, output = Parts(), work / f"{number}.json"
    collector = Collector(None, cluster="check", node="n1", flush_interval=2.0)
    collector.on_batch = parts.take
    request = RunRequest(arguments=command(program, seconds, output), job_id=number, gpus=gpus)
    energy = Energy()
    try:
        outcome = Launcher(request, collector).run()
    finally:
        joules = energy.joules()
        collector.close()
    truth = json.loads(output.read_text())
    found = describe(parts, number)
    unused = outcome.unused_gpus
    return {"truth": truth, "part": found, "unused": unused, "outer_joules": joules}


def describe(parts: Parts, number: int) -> Any:
    part = parts.last[number]
    return {
        "gpus": msgspec.to_builtins(part.gpus),
        "executables": [
            (use.path.decode(), use.gpu_time / SECOND, use.gpu_memory_peak)
            for use in part.executables
            if use.gpu_time or use.gpu_memory_peak
        ],
        "coverage": {
            name: msgspec.to_builtins(one)
            for name, one in part.coverage.items()
            if name.startswith("gpu")
        },
        "columns": parts.columns.get(number, {}),
        "batch_bytes": parts.bytes,
    }


class SlurmJob:
    """A job in cgroups of version 2 as slurmstepd makes them, without slurmstepd."""

    def __init__(self, number: int) -> None:
        self.directory = SCOPE / f"job_{number}"
        self.task = self.directory / "step_0" / "user" / "task_0"
        self.task.mkdir(parents=True)

    def start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        procs = str(self.task / "cgroup.procs")
        script = 'echo $$ > "$0"; exec "$@"'
        return subprocess.Popen(["/bin/sh", "-c", script, procs, *arguments])

    def remove(self) -> None:
        for path in (self.task, *list(self.task.parents)[:3]):
            deadline = time.monotonic() + 10
            while True:
                try:
                    path.rmdir()
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)


def follow(jobs: dict[int, str], seconds: float, work: Path, announced: bool) -> Any:
    parts = Parts()
    kind = load_part("sampler", "gpu")
    plan = SamplerPlan("gpu", lambda view: kind(), 60.0)
    SCOPE.mkdir(parents=True, exist_ok=True)
    agent = Agent(cluster="check", node="n1", spool=None, samplers=[plan], flush_interval=5.0)
    agent.collector.on_batch = parts.take
    thread = threading.Thread(target=agent.run, daemon=True)
    thread.start()
    time.sleep(0.5)
    found: dict[str, Any] = {}
    made = {}
    energy = Energy()
    for number in jobs:
        if announced:
            agent.announce(JobInfo(cluster="check", job_id=number, source="prolog", gpus=1))
            agent._assign_gpus(number, ("0",))
        made[number] = SlurmJob(number)
    running = {
        number: job.start(command(jobs[number], seconds, work / f"{number}.json"))
        for number, job in made.items()
    }
    for process in running.values():
        process.wait()
    joules = energy.joules()
    for job in made.values():
        job.remove()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if all(number in parts.last and parts.last[number].final for number in jobs):
            break
        time.sleep(0.1)
    agent.stop()
    thread.join()
    for number, program in jobs.items():
        truth = json.loads((work / f"{number}.json").read_text())
        found[f"{program} {number}"] = {
            "truth": truth,
            "part": describe(parts, number),
            "outer_joules": joules,
        }
    return found


class Energy:
    """The driver's counter, read by this program: of all that happens between two calls."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._read = pynvml.nvmlDeviceGetTotalEnergyConsumption
        self._gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        self._before = self._read(self._gpu)

    def joules(self) -> float:
        return float(self._read(self._gpu) - self._before) / 1000


def compare(title: str, result: Any) -> None:
    truth = result["truth"]
    for gpu in result["part"]["gpus"]:
        # A GPU that was allocated is the job's from its start, else from its first use.
        allocated = result["part"]["coverage"]["gpu"]["quality"] == "exact"
        energy = result["outer_joules"] if allocated else truth["energy_joules"]
        pairs = [("energy J", energy, gpu.get("energy", 0) / 1e6)]
        for name, key, field, unit in (
            ("tensor s", "tensor_seconds", "tensor_time", 1e9),
            ("bandwidth s", "bandwidth_seconds", "bandwidth_time", 1e9),
            ("received bytes", "received_bus_bytes", "pcie_received_bytes", 1),
            ("active s", "busy_seconds", "active_time", 1e9),
            ("memory", "memory_bytes", "memory_peak", 1),
        ):
            if key in truth:
                pairs.append((name, truth[key], gpu.get(field, 0) / unit))
        for name, own, measured in pairs:
            error = (measured / own - 1) * 100 if own else 0.0
            line = f"{title:28} GPU {gpu['key']} {name:14} own {own:16.2f}"
            print(f"{line} jobsight {measured:16.2f} {error:+6.1f} %", flush=True)
        held = gpu["held_time"] / 1e9
        shares = {
            name: round(gpu.get(name, 0) / 1e9 / held, 4)
            for name in ("active_time", "multiprocessor_time", "tensor_time", "occupancy_time")
        }
        print(f"{title:28} held {held:.1f} s, used {gpu.get('used')}, {shares}", flush=True)


class TimedLibrary:
    """Forwards every call and adds up the time of each function."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        if not name.startswith("nvml") or not callable(function):
            return function

        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                key = name if name != "nvmlDeviceGetClockInfo" else f"{name} {arguments[1]}"
                self.seconds[key] = self.seconds.get(key, 0) + time.perf_counter() - began
                self.calls[key] = self.calls.get(key, 0) + 1

        return call


def cost(rounds: int = 50) -> dict[str, Any]:
    """Milliseconds of one sample of all GPUs, with and without the slow counters, and the calls."""
    import pynvml

    library = TimedLibrary(pynvml)
    source = Nvml(library, Errors())
    figures: dict[str, Any] = {}
    for title, samples, counters in (
        ("look", False, False),
        ("look with samples", True, False),
        ("look with counters", True, True),
    ):
        for gpu in source.gpus:
            source.read(gpu)
        library.seconds.clear()
        library.calls.clear()
        cpu, began = time.process_time(), time.perf_counter()
        for _ in range(rounds):
            source.processes(())
            for gpu in source.gpus:
                source.read(gpu, samples=samples, counters=counters)
        figures[f"{title}, ms"] = (time.perf_counter() - began) / rounds * 1000
        figures[f"{title}, CPU ms"] = (time.process_time() - cpu) / rounds * 1000
        figures[f"{title}, calls"] = sum(library.calls.values()) / rounds
        figures[f"{title}, us by call"] = {
            name: round(seconds / rounds * 1e6)
            for name, seconds in sorted(library.seconds.items(), key=lambda one: -one[1])
        }
    return figures


def record(directory: Path, program: str, seconds: float, work: Path) -> None:
    """Record NVML's replies while a program runs."""
    running = subprocess.Popen(command(program, seconds, work / "recorded.json"))
    time.sleep(6)
    subprocess.run(
        [
            *(sys.executable, "-m", "jobsight.agent.samplers.gpu.nvml_replay"),
            *("--record", str(directory / f"h200-{program}.json"), "--samples", "12"),
            *("--interval", "0.5"),
        ],
        check=False,
    )
    running.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--record", type=Path, metavar="DIRECTORY")
    parser.add_argument("--only", choices=["run", "agent", "record"], action="append")
    options = parser.parse_args()
    only = options.only or ["run", "agent", "record"]
    results: dict[str, Any] = {"cost": cost()}
    print(results["cost"], flush=True)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        try:
            if "run" in only:
                for number, program in enumerate(("multiply", "zeros", "tiny", "copy", "transfer")):
                    result = launch(number + 1, program, options.seconds, work, None)
                    results[f"run {program}"] = result
                    compare(f"run {program}", result)
                result = launch(9, "hold", options.seconds, work, 1)
                results["run hold"] = result
                compare("run --gpus 1 hold", result)
            if "agent" in only:
                for jobs, announced in (
                    ({71: "zeros"}, True),
                    ({72: "hold"}, True),
                    ({73: "copy"}, False),
                    ({74: "multiply", 75: "multiply"}, False),
                    ({76: "multiply", 77: "tiny"}, True),
                ):
                    for title, result in follow(jobs, options.seconds, work, announced).items():
                        results[f"agent {title}"] = result
                        compare(f"agent {title}", result)
            if "record" in only and options.record:
                for program in ("multiply", "tiny", "hold", "transfer"):
                    record(options.record, program, 8.0, work)
        finally:
            options.output.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
