"""CPU time of the commands that users type, alongside Slurm's sacct where it is installed.

User and system time of the process and its children, the best of several runs: what a user waits
for is mostly the import of Python modules.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Figures

#: Runs of each command, of which the fastest counts.
RUNS = 10
#: Seconds of CPU time.
QUERY_GOAL = 0.3
RUN_GOAL = 0.5
#: slurmctld calls it once for each job that ends: 500 within a minute are half a core.
MAIL_GOAL = 0.06


def cpu_time(command: Sequence[str], environment: dict[str, str]) -> float:
    """Seconds of CPU time of the fastest run."""
    times = []
    for _ in range(RUNS):
        before = os.times()
        subprocess.run(
            command,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        after = os.times()
        user = after.children_user - before.children_user
        times.append(user + after.children_system - before.children_system)
    return min(times)


def peer(environment: dict[str, str]) -> str:
    """What sacct needs to start, and to answer where it can."""
    if shutil.which("sacct") is None:
        return "sacct is not installed"
    figures = []
    for command in (["sacct", "--version"], ["sacct"]):
        try:
            figures.append(f"{' '.join(command)} {cpu_time(command, environment):.3f} s")
        except subprocess.CalledProcessError:
            figures.append(f"{' '.join(command)} fails here, without a cluster")
    return ", ".join(figures)


def main() -> None:
    figures = Figures()
    with tempfile.TemporaryDirectory() as directory:
        environment = {**os.environ, "XDG_DATA_HOME": directory, "XDG_CONFIG_HOME": directory}
        jobsight = [sys.executable, "-m", "jobsight.cli.main"]
        store = ["--store", str(Path(directory) / "store.db")]
        run = [*jobsight, "run", "-q", *store, "--", "true"]
        subprocess.run(run, env=environment, check=True)
        beside = peer(environment)
        mail = [*jobsight, "mail", "--queue", directory, "-s", "Slurm Job_id=1 Name=x Ended", "ada"]
        for title, command, goal in (
            ("jobsight report", [*jobsight, "report", *store], QUERY_GOAL),
            ("jobsight jobs", [*jobsight, "jobs", *store], QUERY_GOAL),
            ("jobsight run -q -- true", run, RUN_GOAL),
            ("jobsight mail", mail, MAIL_GOAL),
        ):
            seconds = cpu_time(command, environment)
            figures.row(
                f"CPU time of `{title}`, best of {RUNS}",
                beside,
                f"{seconds:.3f} s",
                f"{goal:g} s",
                reached=seconds <= goal,
            )
    figures.end()


if __name__ == "__main__":
    main()
