"""A network between agents and server that delays, cuts, resets and lies."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Final

_RESET: Final = struct.pack("ii", 1, 0)


class Relay:
    """Forwards connections on loopback; ``mode`` says what happens to each."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.mode = "pass"
        #: Share of the connections that the mode applies to.
        self.share = 1.0
        self.hit = 0
        self._random = random.Random(7)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._handle, args=(connection,), daemon=True).start()

    def _handle(self, connection: socket.socket) -> None:
        mode = self.mode if self._random.random() < self.share else "pass"
        if mode != "pass":
            self.hit += 1
        actions: dict[str, Callable[[socket.socket], None]] = {
            "refuse": _reset,
            "hole": self._hold,
            "delay": self._delay,
            "cut request": self._cut_request,
            "cut reply": self._cut_reply,
            "lose reply": self._lose_reply,
            "bad gateway": lambda each: _answer(each, 502, b"<html>Bad Gateway</html>"),
            "empty page": lambda each: _answer(each, 200, b"<html>Welcome</html>"),
            "not json": lambda each: _answer(each, 200, b'{"status": "sto'),
            "too many": lambda each: _answer(
                each, 429, b'{"detail": "later"}', "Retry-After: 1\r\n"
            ),
            "trickle": self._trickle,
            "wrong host": self._wrong_host,
        }
        with connection, contextlib.suppress(OSError):
            connection.settimeout(30)
            actions.get(mode, self._pass)(connection)

    def _exchange(self, request: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.target), 30) as server:
            server.sendall(request)
            reply = bytearray()
            while data := server.recv(65536):
                reply += data
        return bytes(reply)

    def _pass(self, connection: socket.socket) -> None:
        connection.sendall(self._exchange(_request(connection)))

    def _hold(self, connection: socket.socket) -> None:
        _request(connection)
        self._ended.wait(6)

    def _delay(self, connection: socket.socket) -> None:
        request = _request(connection)
        time.sleep(0.3)
        reply = self._exchange(request)
        time.sleep(0.3)
        connection.sendall(reply)

    def _cut_request(self, connection: socket.socket) -> None:
        request = _request(connection)
        with socket.create_connection(("127.0.0.1", self.target), 30) as server:
            server.sendall(request[: len(request) * 2 // 3])
        _reset(connection)

    def _cut_reply(self, connection: socket.socket) -> None:
        reply = self._exchange(_request(connection))
        connection.sendall(reply[: len(reply) - 8])

    def _lose_reply(self, connection: socket.socket) -> None:
        self._exchange(_request(connection))
        _reset(connection)

    def _wrong_host(self, connection: socket.socket) -> None:
        """As a proxy that does not pass on the name."""
        head, separator, body = _request(connection).partition(b"\r\n\r\n")
        lines = [
            b"Host: upstream" if line.lower().startswith(b"host:") else line
            for line in head.split(b"\r\n")
        ]
        connection.sendall(self._exchange(b"\r\n".join(lines) + separator + body))

    def _trickle(self, connection: socket.socket) -> None:
        request = _request(connection)
        with socket.create_connection(("127.0.0.1", self.target), 30) as server:
            for place in range(0, len(request), max(len(request) // 10, 1)):
                server.sendall(request[place : place + max(len(request) // 10, 1)])
                time.sleep(0.05)
            while data := server.recv(65536):
                connection.sendall(data)


def _request(connection: socket.socket) -> bytes:
    """A whole request of an agent."""
    data = bytearray()
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            raise ConnectionResetError
        data += more
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        more = connection.recv(65536)
        if not more:
            raise ConnectionResetError
        body += more
    return head + b"\r\n\r\n" + body


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()


def _answer(connection: socket.socket, status: int, body: bytes, more: str = "") -> None:
    _request(connection)
    head = f"HTTP/1.1 {status} X\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
