"""Servers as processes of their own, which can be killed and started again within moments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from jobsight.agent.server_target import HttpTarget
from jobsight.server.tokens import load_token
from tests.sams.front import PROJECT, free_port

#: Imports once and forks a server for each line: what takes long happens before the fork. For a
#: store in a database the folder beside it would be the machine's own.
_SPAWNER = """
import os, sys
from pathlib import Path
from jobsight import places
from jobsight.cli.main import main
import jobsight.server.serve, jobsight.web.pages, jobsight.store.schema
places.data_folder = lambda: Path(sys.argv[1])
arguments = sys.argv[2:]
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.close(0)
        os._exit(main(["serve", *arguments]))
    print(child, flush=True)
    os.waitpid(child, 0)
    print("ended", flush=True)
"""


class ServerProcess:
    """``jobsight serve`` on a store, on the same port at every start."""

    def __init__(self, folder: Path, location: str, **settings: str) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.token_file = folder / "token"
        self.token = load_token(self.token_file)
        self.pid = 0
        options = ["--port", str(self.port), "--store", location]
        options += ["--token-file", str(self.token_file)]
        variables = {f"JOBSIGHT_SERVER__{name.upper()}": text for name, text in settings.items()}
        with (folder / "server.log").open("ab") as log:
            self._spawner = subprocess.Popen(
                [sys.executable, "-c", _SPAWNER, str(folder), *options],
                stdin=subprocess.PIPE,
                # What a server prints goes the way of the spawner's own lines.
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | variables,
                cwd=PROJECT,
            )

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
        self._spawner.communicate(timeout=30)

    def target(self) -> HttpTarget:
        return HttpTarget(self.url, self.token_file)

    def start(self) -> None:
        """Start it, and return when it listens."""
        assert self._spawner.stdin is not None
        self._spawner.stdin.write("start\n")
        self._spawner.stdin.flush()
        self.pid = int(self._line(str.isdigit))
        self._line(lambda line: "Ctrl-C" in line)

    def end(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)
        self._line(lambda line: line == "ended")
        self.pid = 0

    def peak_memory(self) -> int:
        """The highest resident size so far, in bytes."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

    def _line(self, wanted: object) -> str:
        assert self._spawner.stdout is not None
        for line in self._spawner.stdout:
            if wanted(line.strip()):  # type: ignore[operator]
                return line.strip()
        raise AssertionError("the server's process has ended by itself")


def wait_until(done: object, limit: float = 60.0) -> None:
    deadline = time.monotonic() + limit
    while not done():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
