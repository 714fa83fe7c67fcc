"""Memory of one agent with 64 jobs and 1,000 processes, alongside SAMS's collector of each job.

Once with plain HTTP and a server that is unreachable, once over HTTPS with a client certificate and
a server that takes the batches.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.figures import Figures
from bench.peer_venv import peers
from bench.real_agent import AWAY, Way, memory, running
from tests.ports import free_port
from tests.sams.front import make_papers
from tests.waiting import wait_until

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


@contextmanager
def tls_server() -> Iterator[Way]:
    """A server of our own with TLS, which requests certificates; gives the agent's settings."""
    with tempfile.TemporaryDirectory(prefix="jobsight-bench-") as name:
        folder = Path(name)
        make_papers(folder)
        port = free_port()
        settings = folder / "server.toml"
        settings.write_text(
            f'[store]\nlocation = "{folder}/store.db"\n[server]\nport = {port}\n'
            f'tls_certificate = "{folder}/server.pem"\ntls_key = "{folder}/server.key"\n'
            f'tls_client_ca = "{folder}/ca.pem"\n'
        )
        command = [sys.executable, "-m", "jobsight.cli.main", "serve", "--config", settings]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            try:
                wait_until((folder / "token").exists, 30)
                yield Way(
                    f'url = "https://127.0.0.1:{port}"\ntoken_file = "{folder}/token"',
                    f'tls_ca = "{folder}/ca.pem"\ntls_certificate = "{folder}/node.pem"\n'
                    f'tls_key = "{folder}/node.key"',
                )
            finally:
                server.terminate()


def measure(way: Way) -> tuple[int, int]:
    """Resident bytes of an agent, and its share of them, after some rounds and batches."""
    with running(way) as (agent, node):
        for number in range(JOBS):
            tasks = PROCESSES // JOBS + (number < PROCESSES % JOBS)
            node.job(1000 + number).step("sleep", "600", tasks=tasks, step="batch")
        wait_until(lambda: agent.follows(JOBS, PROCESSES), 60)
        # Several rounds of each job, and batches of all of them in the spool or on their way.
        time.sleep(15)
        status = agent.status()
        assert agent.follows(JOBS, PROCESSES), status
        if way is not AWAY:
            assert not list((agent.folder / "spool").glob("*.batch")), "nothing was delivered"
        pid = agent.process.pid
        return memory(pid, "Rss"), memory(pid, "Pss")


def main() -> None:
    figures = Figures()
    plain = measure(AWAY)
    with tls_server() as server:
        secure = measure(server)
    with tempfile.TemporaryDirectory() as folder:
        sams_resident, sams_private = sams(Path(folder))
    peer = (
        f"SAMS, {JOBS} x the mean of {COLLECTORS} collectors: {JOBS * sams_resident / 1e6:.0f} MB "
        f"({JOBS * sams_private / 1e6:.0f} MB without what they share)"
    )
    for way, (resident, share) in (("", plain), (", over HTTPS", secure)):
        figures.row(
            f"memory of the agent, {JOBS} jobs and {PROCESSES} processes{way}",
            peer,
            f"{resident / 1e6:.1f} MB resident ({share / 1e6:.1f} MB without what others share)",
            f"{GOAL / 1e6:.0f} MB",
            reached=resident <= GOAL,
        )
    figures.end()


if __name__ == "__main__":
    main()
