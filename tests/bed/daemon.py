"""One daemon of the bed: how it is started, known to be ready, and stopped."""

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.bed import process
from tests.bed.errors import BedError
from tests.bed.settings import Settings


@dataclass
class Daemon:
    """`argv` must keep it in the foreground: then its pid is known before it does anything."""

    name: str
    settings: Settings
    argv: list[str]
    environment: Mapping[str, str]
    ready: Callable[[], bool]
    user: str | None = None
    log: Path | None = None
    #: What the log had before the last start.
    _log_size: int = field(default=0, init=False)

    @property
    def pid_file(self) -> Path:
        return self.settings.path("run", f"{self.name}.pid")

    @property
    def output(self) -> Path:
        return self.settings.path("log", f"{self.name}.out")

    @property
    def pid(self) -> int | None:
        return process.running(self.pid_file)

    def launch(self) -> None:
        if self.pid is None:
            self._log_size = self.log.stat().st_size if self.log and self.log.exists() else 0
            process.start(self.argv, self.output, self.pid_file, self.environment, self.user)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + self.settings.ready_seconds
        while not self.ready():
            process.reap()
            if self.pid is None or self._has_given_up():
                raise BedError(f"{self.name} ended while starting")
            if time.monotonic() > deadline:
                raise BedError(
                    f"{self.name} was not ready within {self.settings.ready_seconds} seconds"
                )
            time.sleep(0.05)

    def _has_given_up(self) -> bool:
        """Whether Slurm's daemon has logged a fatal error: its process may hang while it ends."""
        if self.log is None or not self.log.exists():
            return False
        with self.log.open("rb") as log:
            log.seek(self._log_size)
            return b"] fatal: " in log.read()

    def start(self) -> None:
        self.launch()
        self.wait_ready()

    def stop(self, grace: float = 60.0) -> None:
        """End it as an administrator would; one that does not end within the grace is killed."""
        process.end_by_file(self.pid_file, grace)

    def tail(self, lines: int = 12) -> str:
        for path in (self.log, self.output):
            if path is not None and path.exists() and path.stat().st_size:
                text = path.read_text(errors="replace").splitlines()[-lines:]
                return f"--- {self.name} ({path})\n" + "\n".join(text)
        return f"--- {self.name}: no log"


def port_open(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1.0)
        return client.connect_ex(("127.0.0.1", port)) == 0
