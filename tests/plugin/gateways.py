"""Gateways that work, hang or fail, and an agent's socket: the other side of the plugin."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple


class Request(NamedTuple):
    method: str
    path: str
    body: str


class Gateway(ThreadingHTTPServer):
    """Answers every request with one status and remembers it."""

    daemon_threads = True

    def __init__(self, status: int | str, port: int = 0) -> None:
        self.status = status
        self.requests: list[Request] = []
        self.connections = 0
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def verify_request(self, request: Any, client_address: Any) -> bool:
        self.connections += 1
        return True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gateway

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.requests.append(Request(self.command, self.path, body))
        if isinstance(self.server.status, str):
            self.wfile.write(f"HTTP/1.1 {self.server.status}\r\nContent-Length: 0\r\n\r\n".encode())
            return
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_DELETE = _answer  # noqa: N815  http.server looks them up by these names

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@contextmanager
def gateway(status: int | str = 200, port: int = 0) -> Iterator[Gateway]:
    with Gateway(status, port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def hanging(port: int = 0) -> Iterator[str]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", port), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def silent_agent(path: Path) -> Iterator[socket.socket]:
    """A socket that nobody reads."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        try:
            yield listener
        finally:
            path.unlink()


@contextmanager
def agent(path: Path) -> Iterator[list[dict[str, Any]]]:
    """What has come to the socket; all of it once the block has ended."""
    found: list[dict[str, Any]] = []
    with silent_agent(path) as listener:

        def read() -> None:
            # The kernel keeps some ten datagrams; an empty one ends the reading.
            while data := listener.recv(65536):
                found.append(json.loads(data))

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield found
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
                last.sendto(b"", str(path))
            thread.join()
