"""Memory of one agent with 64 jobs and 1,000 processes, beside SAMS's collector of each job."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from pathlib import Path

from bench.figures import Figures
from bench.peer_venv import peers
from bench.real_agent import memory, running
from tests.agent.slurm_trees import wait_until

JOBS = 64
PROCESSES = 1000
#: SAMS starts one process a job; so many are started here and multiplied.
COLLECTORS = 4
GOAL = 30_000_000

_SAMS = """
sams.collector:
  pid_finder: sams.pidfinder.Slurm
  pid_finder_update_interval: 5
  samplers: [sams.sampler.Core, sams.sampler.Software]
  outputs: [sams.output.File]
sams.output.File:
  base_path: {folder}
"""


def sams(folder: Path) -> tuple[float, float]:
    """Resident and private bytes of one collector, the mean of several."""
    config = folder / "sams.yaml"
    config.write_text(_SAMS.format(folder=folder))
    command = [peers() / "python", peers() / "sams-collector.py", "--config", config]
    collectors = [
        subprocess.Popen([*command, "--jobid", str(number)]) for number in range(1, COLLECTORS + 1)
    ]
    try:
        time.sleep(3)
        resident = sum(memory(one.pid, "Rss") for one in collectors) / COLLECTORS
        private = sum(memory(one.pid, "Private_Clean", "Private_Dirty") for one in collectors)
        return resident, private / COLLECTORS
    finally:
        for one in collectors:
            one.send_signal(signal.SIGHUP)
        for one in collectors:
            try:
                one.wait(10)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()


def main() -> None:
    figures = Figures()
    with running() as (agent, node):
        for number in range(JOBS):
            tasks = PROCESSES // JOBS + (number < PROCESSES % JOBS)
            node.job(1000 + number).step("sleep", "600", tasks=tasks, step="batch")
        wait_until(lambda: agent.follows(JOBS, PROCESSES), 60)
        # Several rounds of each job, and batches of all of them in the spool.
        time.sleep(15)
        assert agent.follows(JOBS, PROCESSES), agent.status()
        pid = agent.process.pid
        resident, share = memory(pid, "Rss"), memory(pid, "Pss")
        with tempfile.TemporaryDirectory() as folder:
            sams_resident, sams_private = sams(Path(folder))
    figures.row(
        f"memory of the agent, {JOBS} jobs and {PROCESSES} processes",
        f"SAMS, {JOBS} x the mean of {COLLECTORS} collectors: {JOBS * sams_resident / 1e6:.0f} MB "
        f"({JOBS * sams_private / 1e6:.0f} MB without what they share)",
        f"{resident / 1e6:.1f} MB resident ({share / 1e6:.1f} MB without what others share)",
        f"{GOAL / 1e6:.0f} MB",
        reached=resident <= GOAL,
    )
    figures.end()


if __name__ == "__main__":
    main()
