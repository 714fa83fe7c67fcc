"""A real HTTPS service that requests client certificates, registers documents, and can fail."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LIST = (
    "<services><service><name>Other</name><href>/other</href></service>"
    "<service><name>SoftwareAccountingRegistration</name><href>{href}</href></service></services>"
)


class Service:
    """What it got, and how it answers."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server
        self.documents: list[bytes] = []
        #: The names in the certificates of those who posted.
        self.clients: set[str] = set()
        self.status = 200
        #: Answers of its posts that differ, by their number.
        self.statuses: dict[int, int] = {}
        self.href = "/register"
        #: Seconds before it answers.
        self.delay = 0.0

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self._server.server_address[1]}/sgas"


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        service = self.server.service
        time.sleep(service.delay)
        body = LIST.format(href=service.href).encode() if self.path == "/sgas" else b"<none/>"
        self._answer(service.status, body)

    def do_POST(self) -> None:
        service = self.server.service
        document = self.rfile.read(int(self.headers["Content-Length"]))
        number = len(service.documents)
        service.documents.append(document)
        subject = dict(part[0] for part in self.connection.getpeercert()["subject"])  # type: ignore[attr-defined]
        service.clients.add(subject["commonName"])
        known = self.path == "/register"
        self._answer(service.statuses.get(number, service.status) if known else 404, b"ok")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    service: Service
    daemon_threads = True

    def handle_error(self, *arguments: object) -> None:
        """A client without a certificate is no error of the test."""


@contextmanager
def running(papers: Path) -> Iterator[Service]:
    """Serve with the server's certificate, for clients of the same authority."""
    server = _Server(("127.0.0.1", 0), _Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(papers / "server.pem", papers / "server.key")
    context.load_verify_locations(papers / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    # The handshake in the thread of the connection: one that hangs must not stop the others.
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    server.service = Service(server)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
