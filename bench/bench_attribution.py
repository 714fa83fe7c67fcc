"""Storms of short programs: how much of a job's CPU time stands on executables, and whether every
execution is counted and named. SAMS with an interval of 5 s looks at one of the jobs."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.figures import Figures
from bench.peer_venv import peers
from jobsight.model import JobPart
from tests.agent.slurm_trees import (
    MOUNT,
    RunningAgent,
    SlurmJob,
    SlurmNode,
    attributed,
    available,
    built,
    following,
    remove_tree,
    row,
)
from tests.waiting import wait_until


class Storm(NamedTuple):
    #: Microseconds of each program; none for /bin/true.
    length: int
    #: "wall" spins for that time by the clock, "processor" by its own CPU time.
    kind: str
    programs: int
    goal: float | None


#: Long enough for SAMS to look at it twice.
WATCHED = Storm(50_000, "wall", 300, None)
ATTEMPTS = 3
STORMS = (
    Storm(50_000, "wall", 80, 0.995),
    Storm(50_000, "processor", 80, 0.995),
    Storm(10_000, "wall", 300, None),
    Storm(10_000, "processor", 300, None),
    Storm(3_000, "wall", 2000, 0.97),
    Storm(3_000, "processor", 1000, 0.97),
    Storm(0, "true", 1000, None),
)
_SAMS = """
sams.collector:
  pid_finder: sams.pidfinder.Slurm
  pid_finder_update_interval: 5
  samplers: [sams.sampler.Core, sams.sampler.Software]
  outputs: [sams.output.File]
sams.sampler.Software:
  sampler_interval: 5
sams.output.File:
  base_path: {folder}
  file_pattern: record.json
"""


@contextmanager
def in_cpuset(job: SlurmJob) -> Iterator[list[str]]:
    """Words that move what follows them into the job's cpuset, which SAMS looks for."""
    folder = job.directory("cpuset", "step_0")
    folder.mkdir(parents=True)
    try:
        for place in (*reversed(folder.parents), folder):
            if place.is_relative_to(MOUNT / "cpuset" / job.node.root):
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (place / name).write_text((place.parent / name).read_text())
        script = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
        yield ["/bin/sh", "-c", script, str(folder)]
    finally:
        remove_tree(MOUNT / "cpuset" / job.node.root)


def sams_share(job: SlurmJob, storm: Storm) -> float:
    """Run a storm with SAMS's collector alongside it; the share that its record records."""
    with tempfile.TemporaryDirectory() as folder, in_cpuset(job) as start:
        config = Path(folder, "sams.yaml")
        config.write_text(_SAMS.format(folder=folder))
        command = [peers() / "python", peers() / "sams-collector.py"]
        collector = subprocess.Popen([*command, "--config", config, "--jobid", str(job.job_id)])
        job.step(*start, *words(storm)).wait()
        counter = job.cpu_time()
        collector.send_signal(signal.SIGHUP)
        collector.wait(30)
        record = json.loads(Path(folder, "record.json").read_text())
        job.end()
    booked = record["sams.sampler.Software"].get("execs", {}).values()
    return float(sum(one["user"] + one["system"] for one in booked) * 1e9 / counter)


def words(storm: Storm) -> list[str]:
    program = "/bin/true" if storm.kind == "true" else str(built(storm.kind))
    return [str(built("storm")), str(storm.programs), "2", program, str(storm.length)]


def main() -> None:
    if not available():
        raise SystemExit("this benchmark needs root and the hierarchies of cgroup v1")
    figures = Figures()
    node = SlurmNode()
    try:
        with following(node.finder()) as running:
            peer = f"SAMS at 5 s: {sams_share(node.job(1), WATCHED):.1%}"
            for number, storm in enumerate(STORMS):
                # Other work on the machine takes from the programs' time by the clock and not
                # from what the kernel needs for them: the best of some runs counts.
                for attempt in range(ATTEMPTS):
                    job = node.job(10 * (number + 1) + attempt)
                    part = run(running, job, storm)
                    job.end()
                    if is_reached(storm, part):
                        break
                report(figures, storm, part, peer if storm.length == WATCHED.length else "-")
    finally:
        node.close()
    figures.end()


def run(running: RunningAgent, job: SlurmJob, storm: Storm) -> JobPart:
    """What the agent says when the storm is over."""
    job.step(*words(storm)).wait()
    counter = job.cpu_time()

    def complete() -> JobPart | None:
        parts = running.kept.parts(job.job_id)
        return parts[-1] if parts and (parts[-1].totals.cpu_time or 0) >= counter else None

    part: JobPart = wait_until(complete)
    return part


def counted(storm: Storm, part: JobPart) -> int:
    program = Path("/bin/true" if storm.kind == "true" else built(storm.kind)).resolve()
    return row(part, program).executions


def is_reached(storm: Storm, part: JobPart) -> bool:
    share = attributed(part)
    return counted(storm, part) == storm.programs and (storm.goal or 0) <= share <= 1.001


def report(figures: Figures, storm: Storm, part: JobPart, peer: str) -> None:
    length = f"{storm.length / 1000:.0f} ms on the {storm.kind}" if storm.length else "bare true"
    share = attributed(part)
    figures.row(
        f"CPU time on executables, {storm.programs} programs of {length}",
        peer if storm.length == 50_000 else "-",
        f"{share:.2%}, {counted(storm, part)} counted and named",
        f"{storm.goal:.1%}, all" if storm.goal else "all counted and named",
        reached=is_reached(storm, part),
    )


if __name__ == "__main__":
    main()
