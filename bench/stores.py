"""The servers that take the same values: ours, Prometheus and VictoriaMetrics, on one core each."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.peer_venv import PROJECT

#: The servers work on one core, who sends to them on the others.
CORES = sorted(os.sched_getaffinity(0))
SERVER, SENDERS = {CORES[0]}, set(CORES[1:]) or {CORES[0]}


#: A server has started when it takes less than so many seconds of CPU in so many seconds.
_IDLE, _SETTLED = 0.02, 1.0


class Measured(NamedTuple):
    wall: float
    #: Of the server's process.
    cpu: float


class StoreServer:
    """A server with its one way in."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, path: str) -> None:
        self.process = process
        self.port = port
        self.path = path
        self.headers: dict[str, str] = {}

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, self.headers)
            reply = connection.getresponse()
            text = reply.read()
        finally:
            connection.close()
        if reply.status >= 300:
            raise RuntimeError(f"{path} on {self.port}: {reply.status} {text[:200]!r}")
        return text

    def send(self, lanes: Sequence[Sequence[bytes]], connections: int = 16) -> Measured:
        """Send every lane in its order, several of them at a time; every answer must be good."""
        failures: list[BaseException] = []
        share = [lanes[number::connections] for number in range(connections)]
        threads = [
            threading.Thread(target=self._send, args=(some, failures)) for some in share if some
        ]
        self._settle()
        before, start = self.cpu(), time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        measured = Measured(time.monotonic() - start, self.cpu() - before)
        if failures:
            raise failures[0]
        return measured

    def _settle(self) -> None:
        """Wait until the server has ended the work of its start, such as reading rules."""
        known, still = self.cpu(), time.monotonic()
        while time.monotonic() - still < _SETTLED:
            time.sleep(0.1)
            if self.cpu() - known > _IDLE:
                known, still = self.cpu(), time.monotonic()

    def _send(self, lanes: Sequence[Sequence[bytes]], failures: list[BaseException]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            # Time goes on in all lanes alike: stores that want samples in order get them so.
            for place in range(max(map(len, lanes))):
                for lane in lanes:
                    if place < len(lane):
                        self._post(connection, lane[place])
        except BaseException as error:
            failures.append(error)
        finally:
            connection.close()

    def _post(self, connection: http.client.HTTPConnection, body: bytes) -> None:
        connection.request("POST", self.path, body, self.headers)
        reply = connection.getresponse()
        text = reply.read()
        if reply.status >= 300:
            raise RuntimeError(f"{self.path}: {reply.status} {text[:200]!r}")


@contextmanager
def jobsight(folder: Path, location: str | None = None) -> Iterator[StoreServer]:
    """Our own server with a new store."""
    folder.mkdir(parents=True)
    location = location or str(folder / "store.db")
    port = free_port()
    # One sender stands for the agents of a whole cluster, each of which has its own bound.
    unbounded = "[server.ingest]\nrequests_per_second = 0\nbytes_per_second = 0\n"
    (folder / "settings.toml").write_text(f'cluster = "bench"\n{unbounded}')
    command = [sys.executable, "-m", "jobsight.cli.main", "serve", "--store", location]
    command += ["--port", str(port), "--token-file", str(folder / "token")]
    with _running([*command, "--config", str(folder / "settings.toml")], folder, {}) as process:
        server = StoreServer(process, port, "/api/v1/batches")
        _wait(server)
        token = (folder / "token").read_text().strip()
        server.headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/octet-stream",
        }
        yield server


_REMOTE_WRITE = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}


@contextmanager
def prometheus(folder: Path) -> Iterator[StoreServer]:
    """Debian's Prometheus, which scrapes nothing and takes remote write."""
    folder.mkdir(parents=True)
    (folder / "prometheus.yml").write_text("global: {}\n")
    port = free_port()
    command = [
        _program("prometheus"),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-remote-write-receiver",
        "--web.enable-admin-api",
        "--log.level=error",
    ]
    with _running(command, folder, {"GOMAXPROCS": "1"}) as process:
        server = StoreServer(process, port, "/api/v1/write")
        _wait(server, "/-/ready")
        server.headers = _REMOTE_WRITE
        yield server


@contextmanager
def victoria_metrics(folder: Path) -> Iterator[StoreServer]:
    """Debian's VictoriaMetrics."""
    folder.mkdir(parents=True)
    port = free_port()
    command = [
        _program("victoria-metrics"),
        f"-storageDataPath={folder}/data",
        "-retentionPeriod=100y",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-loggerLevel=ERROR",
    ]
    with _running(command, folder, {"GOMAXPROCS": "1"}) as process:
        server = StoreServer(process, port, "/api/v1/write")
        _wait(server, "/health")
        server.headers = _REMOTE_WRITE
        yield server


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        sys.exit(f"{name} is not installed; expected: apt install {name}")
    return found


@contextmanager
def _running(
    command: list[str], folder: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            command, cwd=PROJECT, stdout=log, stderr=log, env={**os.environ, **environment}
        )
    try:
        os.sched_setaffinity(process.pid, SERVER)
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, SENDERS)
        try:
            yield process
        finally:
            os.sched_setaffinity(0, before)
    finally:
        process.terminate()
        process.wait(60)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait(server: StoreServer, path: str = "/api/v1/metrics") -> None:
    for _ in range(300):
        try:
            server.ask("GET", path)
            return
        except RuntimeError as error:
            # Ours requests its token, which is an answer.
            if " 401 " in str(error):
                return
        except OSError:
            pass
        if server.process.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError(f"the server on port {server.port} did not start")


def size_of(folder: Path) -> int:
    """The bytes of all files below a directory."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
