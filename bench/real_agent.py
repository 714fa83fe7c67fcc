"""A real agent as a process of its own, with jobs shaped like Slurm's under a root of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench import peer_venv
from bench.peer_venv import PROJECT
from jobsight.agent.control import Request, send_request
from tests.agent.slurm_trees import SlurmNode, available
from tests.waiting import wait_until

_SETTINGS = """
cluster = "bench"
[store]
location = "{folder}/store.db"
[server]
{server}
[agent]
{credentials}
node = "n1"
spool = "{folder}/spool"
run_directory = "{folder}/run"
cgroup_roots = ['{root}']
query_slurm = false
"""


class Way(NamedTuple):
    """The lines of an agent's settings that lead to its server."""

    server: str
    credentials: str = ""


#: Unless a benchmark has a server, it is unreachable.
AWAY = Way('url = "http://127.0.0.1:9"\ntoken_file = "{folder}/token"')


class RealAgent:
    """``jobsight agent`` with the settings of a compute node."""

    def __init__(self, folder: Path, node: SlurmNode, way: Way = AWAY) -> None:
        self.folder = folder
        (folder / "token").write_text("0123456789" * 5)
        (folder / "token").chmod(0o600)
        settings = folder / "jobsight.toml"
        server = way.server.format(folder=folder)
        settings.write_text(
            _SETTINGS.format(
                folder=folder, root=node.root, server=server, credentials=way.credentials
            )
        )
        python = peer_venv.node() / "python"
        self.process = subprocess.Popen(
            [python, "-m", "jobsight.cli.main", "agent", "--config", settings],
            env={**os.environ, "PYTHONPATH": str(PROJECT / "src")},
        )
        try:
            wait_until(self.status, 20)
        except AssertionError:
            self.end()
            raise

    def status(self) -> dict[str, object] | None:
        reply = send_request(self.folder / "run", Request("status"))
        return reply.status if reply is not None else None

    def follows(self, jobs: int, processes: int = 0) -> bool:
        status = self.status() or {}
        return status.get("jobs") == jobs and int(str(status["processes"])) >= processes

    def cpu_time(self) -> int:
        return cpu_time(self.process.pid)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def cpu_time(pid: int) -> int:
    """Nanoseconds that a process has run, all threads that live."""
    folder = f"/proc/{pid}/task"
    return sum(
        int(Path(folder, thread, "schedstat").read_text().split()[0])
        for thread in os.listdir(folder)
    )


def memory(pid: int, *names: str) -> int:
    """Bytes of the named rows of a process's smaps_rollup."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    rows = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return sum(rows[name] for name in names)


@contextmanager
def running(way: Way = AWAY) -> Iterator[tuple[RealAgent, SlurmNode]]:
    if not available():
        raise SystemExit("this benchmark needs root and the hierarchies of cgroup v1")
    node = SlurmNode()
    with tempfile.TemporaryDirectory(prefix="jobsight-bench-") as folder:
        agent = RealAgent(Path(folder), node, way)
        try:
            yield agent, node
        finally:
            agent.end()
            node.close()
