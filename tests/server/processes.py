"""Servers as processes of their own, which can be killed and started again within moments."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from jobsight.transport.delivery import HttpTarget
from jobsight.transport.running_server import load_token
from tests.ports import free_port
from tests.sams.front import PROJECT
from tests.waiting import wait_until

#: Imports once and forks a server for each line: what takes long happens before the fork. For a
#: store in a database the directory next to it would be the machine's own.
_SPAWNER = """
import ctypes, json, os, signal, sys
from pathlib import Path
from jobsight.config import paths
from jobsight.cli.main import main
import jobsight.server.serve, jobsight.web.pages, jobsight.store.schema.versions
PR_SET_PDEATHSIG = 1
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    folder, arguments, variables = json.loads(line)
    # Before the fork, so that the log exists as soon as the PID is known.
    log = os.open(folder + "/server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    child = os.fork()
    if child == 0:
        # The server ends with this process, also where the tests are interrupted.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        for number in (1, 2):
            os.dup2(log, number)
        os.close(0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        paths.data_directory = lambda: Path(folder)
        os.environ.update(variables)
        os._exit(main(["serve", *arguments]))
    os.close(log)
    print(child, flush=True)
"""


class Spawner:
    """Starts servers fast; one for all tests of a module."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SPAWNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def spawn(self, folder: Path, arguments: list[str], variables: dict[str, str]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(folder), arguments, variables]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=60)


class ServerProcess:
    """``jobsight serve`` on a store, on the same port at every start."""

    def __init__(self, spawner: Spawner, folder: Path, location: str, **settings: str) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.token_file = folder / "token"
        self.token = load_token(self.token_file)
        self.pid = 0
        self._spawner = spawner
        self._options = ["--port", str(self.port), "--store", location]
        self._options += ["--token-file", str(self.token_file)]
        self._variables = {
            f"JOBSIGHT_SERVER__{name.upper()}": text for name, text in settings.items()
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.pid:
            self.end(signal.SIGTERM)

    def target(self) -> HttpTarget:
        # Patient, since the machine of the tests may have much else to do.
        return HttpTarget(self.url, self.token_file, timeout=100)

    def start(self) -> None:
        """Start it, and return when it answers."""
        self.pid = self._spawner.spawn(self.folder, self._options, self._variables)
        wait_until(self._answers)

    def _answers(self) -> bool:
        assert self.lives(), (self.folder / "server.log").read_text()
        return answers(self.port)

    def lives(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()

    def end(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)
        wait_until(lambda: not self.lives())
        self.pid = 0

    def peak_memory(self) -> int:
        """The highest resident size so far, in bytes."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def answers(port: int) -> bool:
    """Whether a server is ready: it listens before its store is open."""
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as connection:
            connection.sendall(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
            return connection.recv(100).startswith(b"HTTP/1.1 200")
    except OSError:
        return False
