"""Inside the guest: the agent measures real Slurm jobs on cgroup v2.

Next to it a watcher reads the counters of every job's cgroup again and again until they are gone.
What the agent put into its spool and what the watcher saw last comes back as one JSON document;
the host compares.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from jobsight.transport import wire
from tests.bed import Cluster
from tests.bed.steps import Steps

OUT = Path(os.environ.get("OUT", "/out"))
ALICE, BOB = "jobsight-alice", "jobsight-bob"

BURN = "python3 -c 'import time\nwhile time.process_time() < {}: pass'"
EAT = "python3 -c 'b = bytearray({} << 20)\nfor i in range(0, len(b), 4096): b[i] = 1'"
STORM = "i=0; while [ $i -lt 200 ]; do /bin/true; i=$((i+1)); done"


def script(*lines: str) -> str:
    return "\n".join(["#!/bin/bash", *lines, ""])


JOBS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "cpu": (ALICE, script(BURN.format(5)), ("--mem=100",)),
    "memory": (BOB, script(EAT.format(150)), ("--mem=400",)),
    "out of memory": (ALICE, script(f"srun {EAT.format(300)}"), ("--mem=100",)),
    "two nodes": (
        ALICE,
        script(f"srun --ntasks=2 --ntasks-per-node=1 {BURN.format(3)}"),
        ("--nodes=2", "--mem=100"),
    ),
    "storm": (BOB, script(STORM), ("--mem=100",)),
}


def main() -> int:
    systemd = Path("/run/systemd/system").exists()
    choices = {"name": "jsm", "cgroup": "v2", "systemd": systemd, "ready_seconds": 300}
    with Cluster(Steps(sys.stdout), **choices) as cluster:
        watcher = Watcher()
        watcher.start()
        agent = start_agent(cluster)
        try:
            found = run_jobs(cluster)
            time.sleep(8)
        finally:
            watcher.ended.set()
            agent.send_signal(signal.SIGTERM)
            agent.wait(120)
        found["parts"] = spooled()
        found["watched"] = watcher.seen
    (OUT / "result.json").write_text(json.dumps(found, indent=1))
    return 0


class Watcher(threading.Thread):
    """Keeps the last counters of every job's cgroups, by node and job: the CPU time of the user's
    processes by step, which slurmstepd is not part of, and the peak of the whole job. The counters
    at the end of a job are at least these: the last reading may come some time before it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.seen: dict[str, dict[str, Any]] = {}

    def run(self) -> None:
        while not self.ended.wait(0.02):
            for folder in Path("/sys/fs/cgroup/system.slice").glob("*_slurmstepd.scope/job_*"):
                node = folder.parent.name.removesuffix("_slurmstepd.scope")
                key = f"{node} {folder.name.removeprefix('job_')}"
                seen = self.seen.setdefault(key, {"cpu": {}, "peak": 0})
                try:
                    for step in folder.glob("step_*/user/cpu.stat"):
                        usage = int(step.read_text().split()[1]) * 1000
                        seen["cpu"][step.parts[-3]] = usage
                    seen["peak"] = int((folder / "memory.peak").read_text())
                except OSError:
                    continue


def start_agent(cluster: Cluster) -> subprocess.Popen[bytes]:
    config = OUT / "agent.toml"
    config.write_text(
        f'cluster = "{cluster.settings.name}"\n[agent]\nnode = "guest"\nquery_slurm = false\n'
        f'spool = "{OUT}/spool"\nrun_directory = "{OUT}/run"\nsamplers = ["pressure"]\n'
    )
    with (OUT / "agent.log").open("wb") as log:
        agent = subprocess.Popen(
            [sys.executable, "-m", "jobsight.cli.main", "agent", "--config", str(config)],
            stdout=log,
            stderr=log,
        )
    deadline = time.monotonic() + 120
    while not (OUT / "run" / "agent.sock").exists():
        if agent.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the agent did not start: {(OUT / 'agent.log').read_text()}")
        time.sleep(0.2)
    return agent


def run_jobs(cluster: Cluster) -> dict[str, Any]:
    jobs: dict[str, Any] = {}
    for name, (user, text, options) in JOBS.items():
        job = cluster.submit(user, text, *options)
        cluster.wait(job, timeout=400)
        rows = cluster.sacct(job, ["JobID", "State", "TotalCPU", "MaxRSS"])
        jobs[name] = {"id": job, "output": cluster.output(user, job), "sacct": rows}
    return {"jobs": jobs}


def spooled() -> list[dict[str, Any]]:
    """The last word about each job on each node."""
    found = []
    for file in sorted((OUT / "spool").glob("*.batch")):
        for part in wire.decode(file.read_bytes()).parts:
            if not part.final or part.totals is None:
                continue
            totals = part.totals
            found.append(
                {
                    "job": part.sighting.job_id,
                    "node": part.sighting.node,
                    "source": totals.cpu_source,
                    "cpu": totals.cpu_time,
                    "overhead": totals.cpu_overhead,
                    "memory_peak": totals.memory_peak,
                    "oom_kills": totals.oom_kills,
                    "executables": {
                        row.path.decode(errors="replace"): [row.executions, row.cpu_time]
                        for row in part.executables
                    },
                    "steps": {
                        step.step: [step.cpu_time, step.memory_peak, step.oom_kills]
                        for step in part.steps
                    },
                    "cpu_quality": part.coverage["cpu"].quality,
                    "events_lost": part.coverage["executables"].events_lost,
                    "quality": part.coverage["executables"].quality,
                }
            )
    return found


if __name__ == "__main__":
    sys.exit(main())
