"""A server whose socket is held by another process, as systemd does: a restart loses no request."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.config.settings import Settings
from jobsight.errors import ConfigError
from jobsight.server.serve import open_listener
from tests.guest.units import CLOSED, KEEPING_CLIENTS
from tests.sams.front import PROJECT
from tests.server.certificates import Papers
from tests.waiting import wait_until

pytestmark = pytest.mark.server

#: What systemd does between fork and exec: the socket becomes descriptor 3.
_EXEC = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.executable, [sys.executable, "-m", "jobsight.cli.main", "serve", *sys.argv[2:]])
"""


class Manager:
    """Holds the socket, starts servers on it and receives their states."""

    def __init__(self, directory: Path, arguments: list[str]) -> None:
        self.directory = directory
        self.arguments = arguments
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.states = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.states.bind(str(directory / "notify"))
        self.states.settimeout(120)

    def start(self) -> subprocess.Popen[bytes]:
        number = str(self.listener.fileno())
        with (self.directory / "server.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", _EXEC, number, *self.arguments],
                cwd=PROJECT, pass_fds=[self.listener.fileno()], stdout=log, stderr=log,
                env={**os.environ, "NOTIFY_SOCKET": str(self.directory / "notify"),
                     "WATCHDOG_USEC": "300000"},
            )  # fmt: skip

    def wait_for(self, state: bytes) -> None:
        while state not in self.states.recv(4096).split(b"\n"):
            pass

    def close(self) -> None:
        self.listener.close()
        self.states.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    held = Manager(tmp_path, ["--store", str(tmp_path / "store.db")])
    yield held
    held.close()


def test_a_restart_under_load_loses_no_request(manager: Manager) -> None:
    ended, answered = threading.Event(), [0]
    errors, retried = list[str](), list[str]()

    def client(keep: bool) -> None:
        connection: http.client.HTTPConnection | None = None
        while not ended.is_set():
            reused = connection is not None
            connection = connection or http.client.HTTPConnection("127.0.0.1", manager.port, 120)
            try:
                connection.request("GET", "/healthz")
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    raise http.client.HTTPException(f"status {answer.status}")
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                connection = None
                # An idle connection may be closed at any time, without any part of an answer; every
                # client then connects again.
                (retried if reused and isinstance(error, CLOSED) else errors).append(repr(error))
                continue
            answered[0] += 1
            if not keep or answer.getheader("Connection") == "close":
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    server = manager.start()
    threads = [
        threading.Thread(target=client, args=(number % 2 == 0,))
        for number in range(2 * KEEPING_CLIENTS)
    ]
    try:
        manager.wait_for(b"READY=1")
        for thread in threads:
            thread.start()
        wait_until(lambda: answered[0] > 50)
        server.send_signal(signal.SIGTERM)
        manager.wait_for(b"STOPPING=1")
        assert server.wait(60) == 0
        # Nobody accepts now; these wait in the kernel.
        before = answered[0]
        server = manager.start()
        manager.wait_for(b"READY=1")
        manager.wait_for(b"WATCHDOG=1")
        wait_until(lambda: answered[0] > before + 50)
    finally:
        ended.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        server.terminate()
        server.wait(60)
    assert errors == []
    # A kept connection is closed at most once by the restart.
    assert len(retried) <= KEEPING_CLIENTS, retried


def test_a_tls_handshake_is_completed_before_the_server_stops(tmp_path: Path) -> None:
    directory = tmp_path / "papers"
    directory.mkdir()
    papers = Papers(directory)
    certificate, key = papers.pair("server")
    settings = tmp_path / "settings.toml"
    settings.write_text(
        f'[store]\nlocation = "{tmp_path}/store.db"\n[server]\n'
        f'tls_certificate = "{certificate}"\ntls_key = "{key}"\n'
    )
    manager = Manager(tmp_path, ["--config", str(settings)])
    server = manager.start()
    try:
        manager.wait_for(b"READY=1")
        manager.wait_for(b"WATCHDOG=1")
        plain = socket.create_connection(("127.0.0.1", manager.port), 60)
        # Accepted, and without a TLS handshake yet.
        wait_until(lambda: _accepted(server.pid, plain.getsockname()[1]))
        server.send_signal(signal.SIGTERM)
        manager.wait_for(b"STOPPING=1")
        context = ssl.create_default_context(cafile=papers.authority)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            secure.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = b"".join(iter(lambda: secure.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer.lower()
        assert server.wait(60) == 0
    finally:
        if server.poll() is None:
            server.kill()
            server.wait(60)
        manager.close()


def _accepted(pid: int, client_port: int) -> bool:
    """Whether the process has a descriptor of the connection from that port."""
    inodes = {
        line.split()[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[2].endswith(f":{client_port:04X}")
    }
    held = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            held.add(os.readlink(file))
        except OSError:
            continue
    return any(f"socket:[{inode}]" in held for inode in inodes)


@pytest.mark.parametrize(
    ("sockets", "sentence"),
    [
        (["inet", "inet"], "passed 2 sockets; expected one"),
        (["unix"], "not a TCP socket"),
        (["any"], "is not a loopback address"),
    ],
)
def test_sockets_that_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sockets: list[str], sentence: str
) -> None:
    opened = []
    for kind in sockets:
        if kind == "unix":
            one = socket.socket(socket.AF_UNIX)
            one.bind(str(tmp_path / "socket"))
            one.listen()
        else:
            one = socket.create_server(("0.0.0.0" if kind == "any" else "127.0.0.1", 0))
        opened.append(one.detach())
    monkeypatch.setattr("jobsight.server.serve.inherited_descriptors", lambda: opened)
    with pytest.raises(ConfigError, match=sentence):
        open_listener(Settings())
    for descriptor in opened:
        # All of them are closed.
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
