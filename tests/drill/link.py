"""A network of its own between agents and server: two network namespaces joined by a pair of
virtual Ethernet devices, which can go down. Needs root."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from tests.waiting import wait_until

_CLONE_NEWNET: Final = 0x40000000
#: For documents only (RFC 5737), and in namespaces that nothing else is in.
_NEAR, _FAR = "192.0.2.1", "192.0.2.2"
_DEVICE: Final = "drill"
_libc = ctypes.CDLL(None, use_errno=True)
_Result = TypeVar("_Result")


class _Namespace:
    """A network namespace, held by a process that sleeps."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.path = Path(f"/proc/{self.process.pid}/ns/net")
        own = os.readlink("/proc/self/ns/net")
        wait_until(lambda: os.readlink(self.path) != own)

    def command(self, *arguments: str) -> None:
        subprocess.run(
            ["nsenter", f"--net={self.path}", "ip", *arguments], check=True, capture_output=True
        )

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Call a function in a thread in the namespace: a socket stays where it was made."""
        results: list[_Result] = []
        errors: list[OSError] = []

        def run() -> None:
            try:
                with self.path.open("rb") as file:
                    if _libc.setns(file.fileno(), _CLONE_NEWNET):
                        number = ctypes.get_errno()
                        raise OSError(number, os.strerror(number))
                results.append(function())
            except OSError as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(60)


class Link:
    """Connections to a port of loopback pass through two namespaces to another port of loopback."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._ended = False
        self._near, self._far = _Namespace(), _Namespace()
        try:
            self._near.command(
                "link", "add", _DEVICE, "type", "veth", "peer", "name", _DEVICE,
                "netns", str(self._far.process.pid),
            )  # fmt: skip
            for namespace, address in ((self._near, _NEAR), (self._far, _FAR)):
                namespace.command("address", "add", f"{address}/30", "dev", _DEVICE)
                namespace.command("link", "set", _DEVICE, "up")
            self._entrance = socket.create_server(("127.0.0.1", 0))
            self._exit = self._far.call(lambda: socket.create_server((_FAR, 0)))
        except BaseException:
            self._near.close()
            self._far.close()
            raise
        self.url = f"http://127.0.0.1:{self._entrance.getsockname()[1]}"
        self._threads = [
            threading.Thread(target=self._accept, args=(self._entrance, self._cross), daemon=True),
            threading.Thread(target=self._accept, args=(self._exit, self._leave), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def set(self, state: str) -> None:
        """Set the device of the server "up" or "down": packets of the agents vanish."""
        self._far.command("link", "set", _DEVICE, state)

    def resent(self) -> int:
        """Segments that agents sent again."""
        text = subprocess.run(
            ["nsenter", f"--net={self._near.path}", "nstat", "-asz", "TcpRetransSegs"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        return int(text.split()[-2])

    def _cross(self) -> socket.socket:
        address = self._exit.getsockname()
        return self._near.call(lambda: socket.create_connection(address, 30))

    def _leave(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._target), 30)

    def _accept(self, listener: socket.socket, connect: Callable[[], socket.socket]) -> None:
        while not self._ended:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(connection, connect), daemon=True).start()

    def _join(self, connection: socket.socket, connect: Callable[[], socket.socket]) -> None:
        with connection, contextlib.suppress(OSError), connect() as other:
            back = threading.Thread(target=_copy, args=(other, connection), daemon=True)
            back.start()
            _copy(connection, other)
            back.join(60)

    def close(self) -> None:
        self._ended = True
        for listener in (self._entrance, self._exit):
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for thread in self._threads:
            thread.join(10)
        self._near.close()
        self._far.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Pass on what comes, up to the end."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
