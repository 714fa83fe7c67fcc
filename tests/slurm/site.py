"""A whole site on one machine: a Slurm cluster, an agent on each of its nodes, one server."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bed import Cluster
from tests.ports import free_port

REPOSITORY = Path(__file__).resolve().parents[2]
HOOKS = REPOSITORY / "deploy" / "slurm"


class Site:
    """Starts and ends the real commands; asks the server as anybody would."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.store = folder / "server" / "store.db"
        self.server: subprocess.Popen[bytes] | None = None
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        #: The server comes back where the agents look for it.
        self.port = free_port()
        #: Where each agent answers /metrics; the same after a restart.
        self.metrics = {node: free_port() for node in cluster.nodes}
        #: More settings of an agent, of every agent in its own table, and of the server, as TOML.
        self.more: dict[str, str] = {}
        self.agents_more = ""
        self.server_more = ""
        #: What the agents show, and whom those trust who ask over TLS.
        self.agents_token = self.token_file
        self.trust: ssl.SSLContext | None = None
        #: A directory that counts as scratch.
        self.scratch = cluster.settings.path("scratch")

    def __enter__(self) -> Site:
        self.start_server()
        for node in self.cluster.nodes:
            self.start_agent(node)
        return self

    def __exit__(self, *_: object) -> None:
        for node in list(self.agents):
            self.stop_agent(node)
        self.stop_server()

    def _start(self, *arguments: str, log: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **self.cluster.environment()}
        with (self.folder / f"{log}.log").open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "jobsight.cli.main", *arguments],
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                # As a service manager does: one that shares a session shares its part of the CPU.
                start_new_session=True,
                # Whoever starts a site may have blocked the signals that end it.
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, set()),
            )

    def start_server(self) -> None:
        self.store.parent.mkdir(mode=0o700, exist_ok=True)
        config = self.folder / "server.toml"
        config.write_text(
            f'cluster = "{self.cluster.settings.name}"\n'
            f'[store]\nlocation = "{self.store}"\n'
            "[scheduler]\ninterval = 2.0\n"
            f"{self.server_more}"
        )
        arguments = ("serve", "--config", str(config), "--port", str(self.port))
        self.server = self._start(*arguments, log="server")
        record = self.store.parent / "server.json"
        wait_for(lambda: record.exists() and self._healthy(), 90, self.log("server"))

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=60, context=self.trust):
                return True
        except OSError:
            return False

    @property
    def url(self) -> str:
        return str(json.loads((self.store.parent / "server.json").read_text())["url"])

    @property
    def token_file(self) -> Path:
        return self.store.parent / "token"

    def stop_server(self, number: int = signal.SIGTERM) -> None:
        if self.server is not None:
            self.server.send_signal(number)
            self.server.wait(60)
            self.server = None
            (self.store.parent / "server.json").unlink(missing_ok=True)

    def start_agent(self, node: str) -> None:
        place = self.folder / node
        place.mkdir(mode=0o700, exist_ok=True)
        config = place / "agent.toml"
        config.write_text(
            f'cluster = "{self.cluster.settings.name}"\n'
            f'[server]\nurl = "{self.url}"\ntoken_file = "{self.agents_token}"\n'
            f'[agent]\nnode = "{node}"\nspool = "{place / "spool"}"\n'
            f'run_directory = "{place / "run"}"\nonly_this_node = true\nsend_interval = 1.0\n'
            f"{self.agents_more}"
            f'[agent.metrics]\nlisten = "127.0.0.1:{self.metrics[node]}"\nkeep_ended = 3.0\n'
            f'scratch = ["{self.scratch}"]\n'
            f"{self.more.get(node, '')}"
        )
        self.agents[node] = self._start("agent", "--config", str(config), log=f"agent-{node}")
        socket = place / "run" / "agent.sock"
        wait_for(socket.exists, 90, self.log(f"agent-{node}"))

    def stop_agent(self, node: str, number: int = signal.SIGTERM) -> None:
        agent = self.agents.pop(node)
        agent.send_signal(number)
        agent.wait(60)
        if number == signal.SIGKILL:
            (self.folder / node / "run" / "agent.sock").unlink(missing_ok=True)

    def log(self, name: str) -> Callable[[], str]:
        file = self.folder / f"{name}.log"
        return lambda: file.read_text(errors="replace")[-2000:] if file.exists() else ""

    def get(self, path: str) -> Any:
        """Ask the server's API."""
        request = urllib.request.Request(
            f"{self.url}{path}",
            headers={"Authorization": f"Bearer {self.token_file.read_text().strip()}"},
        )
        with urllib.request.urlopen(request, timeout=60, context=self.trust) as reply:
            return json.load(reply)

    def report(self, reference: str | int) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self.get(f"/api/v1/jobs/{reference}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise
        return found

    def ended(self, reference: str | int, timeout: float = 120) -> dict[str, Any]:
        """The report of a job once every node has said its last word and Slurm how it ended."""
        seen: list[dict[str, Any]] = []

        def complete() -> bool:
            report = self.report(reference)
            if report is None or report["end"] is None or not report["node_rows"]:
                return False
            seen.append(report)
            return all(row["final"] for row in report["node_rows"])

        wait_for(complete, timeout, lambda: f"{self.report(reference)}\n{self.log('server')()}")
        return seen[-1]


def wait_for(
    condition: Callable[[], bool], timeout: float, explain: Callable[[], str] = lambda: ""
) -> None:
    """Wait until something is so, or fail with the reason."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:.0f} s: {explain()}")
        time.sleep(0.2)
