"""The HTTP client of the server side: what it sends, and the limits on what it accepts."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobsight.errors import ConfigError
from jobsight.transport.client import Address, HttpClient, HttpError, tls_context

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-More: yes\r\n\r\nhello"


@contextmanager
def server(
    reply: bytes | Callable[[socket.socket], None], path: Path | None = None
) -> Iterator[tuple[Address, list[bytes]]]:
    """Accepts one connection after the other and answers each request with the same bytes."""
    requests: list[bytes] = []
    family = socket.AF_INET if path is None else socket.AF_UNIX
    with socket.socket(family) as listener:
        listener.bind(("127.0.0.1", 0) if path is None else str(path))
        listener.listen()
        if path is None:
            text = f"http://user:secret@127.0.0.1:{listener.getsockname()[1]}/below/"
        else:
            text = f"unix:{path}"

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    requests.append(_received(connection))
                    if callable(reply):
                        reply(connection)
                    else:
                        connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Address.parse("service.url", text, unix=True), requests
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _received(connection: socket.socket) -> bytes:
    """One request: its head, and the body that the tests send, if it has one."""
    data = connection.recv(65536)
    while b"Content-Length: 4" in data and not data.endswith(b"body"):
        data += connection.recv(65536)
    return data


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_request_and_its_reply(kind: str, tmp_path: Path) -> None:
    with server(OK, tmp_path / "socket" if kind == "unix" else None) as (address, requests):
        client = HttpClient(address, timeout=60, keep_alive=False)
        reply = client.request("POST", "/path?a=b", content=b"body", headers={"X-Token": "t"})
        client.close()
    assert (reply.status, reply.phrase, reply.headers["x-more"], reply.body) == (
        200, "OK", "yes", b"hello",
    )  # fmt: skip
    head, _, body = requests[0].partition(b"\r\n\r\n")
    prefix = b"" if kind == "unix" else b"/below"
    assert head.startswith(b"POST " + prefix + b"/path?a=b HTTP/1.1\r\n")
    assert b"x-token: t" in head.lower()
    assert b"accept-encoding: identity" in head.lower()
    assert body == b"body"


def test_messages_hold_no_credentials() -> None:
    address = Address.parse("s.url", "https://user:secret@host:1/x")
    assert address.shown == "host:1"
    for text in ("ftp://user:secret@host", "http://", "http://user:secret@h:99999", "/socket"):
        with pytest.raises(ConfigError, match=r"s\.url: .* is not an address; expected") as caught:
            Address.parse("s.url", text)
        assert "secret" not in str(caught.value)


def test_a_reply_that_is_too_large() -> None:
    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                connection.sendall(b"x" * 65536)
        except OSError:
            pass

    with server(endless) as (address, _):
        client = HttpClient(address, timeout=60)
        with pytest.raises(HttpError, match="larger than 100000 bytes"):
            client.request("GET", "/", max_size=100_000)
        client.close()


def test_a_reply_that_drips() -> None:
    ended = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while not ended.wait(0.05):
                connection.sendall(b"x")
        except OSError:
            pass

    with server(drip) as (address, _):
        client = HttpClient(address, timeout=0.2)
        # Each piece comes in time; the reply as a whole does not.
        with pytest.raises(HttpError, match=r"too slow|no answer within"):
            client.request("GET", "/")
        client.close()
        ended.set()


def test_a_server_that_is_silent() -> None:
    ended = threading.Event()
    with server(lambda connection: bool(ended.wait(60)) and None) as (address, _):
        client = HttpClient(address, timeout=0.2)
        with pytest.raises(HttpError, match=r"no answer within 0\.2 s"):
            client.request("GET", "/")
        client.close()
        ended.set()


@pytest.mark.parametrize(
    "reply",
    [b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", b"", b"nonsense\r\n\r\n",
     b"HTTP/1.1 200 OK\r\n" + b"A: " + b"a" * 300_000 + b"\r\n\r\n"],
)  # fmt: skip
def test_replies_that_are_cut_or_not_http(reply: bytes) -> None:
    with server(reply) as (address, _):
        client = HttpClient(address, timeout=60)
        with pytest.raises(HttpError):
            client.request("GET", "/")
        client.close()


def test_redirects_are_not_followed() -> None:
    moved = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    with server(moved) as (address, requests):
        client = HttpClient(address, timeout=60)
        assert client.request("GET", "/").status == 302
        client.close()
    assert len(requests) == 1


def test_a_compressed_reply_does_not_expand() -> None:
    import gzip

    body = gzip.compress(bytes(10_000_000))
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    with server(head.encode() + body) as (address, _):
        client = HttpClient(address, timeout=60)
        assert client.request("GET", "/").body == body
        client.close()


def test_a_stream_is_read_piece_by_piece() -> None:
    with server(OK) as (address, _):
        client = HttpClient(address, timeout=60)
        reply = client.stream("GET", "/")
        assert reply.status == 200
        assert b"".join(reply) == b"hello"
        client.close()


def test_reasons_are_those_of_the_system(tmp_path: Path) -> None:
    for text, reason in (
        ("http://127.0.0.1:9", "Connection refused"),
        (f"unix:{tmp_path}/none", "No such file"),
    ):
        client = HttpClient(Address.parse("s.url", text, unix=True), timeout=60)
        with pytest.raises(HttpError, match=reason):
            client.request("GET", "/")
        with pytest.raises(HttpError):
            client.request("GET", "/", headers={"A": "b\r\nc: d"})
        client.close()


def test_files_of_tls(tmp_path: Path) -> None:
    wrong = tmp_path / "ca.pem"
    wrong.write_text("no certificate")
    with pytest.raises(ConfigError, match=r"ca\.pem: expected CA certificates"):
        tls_context(str(wrong))
    with pytest.raises(ConfigError, match="No such file"):
        tls_context(str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="cannot be used as certificate and key"):
        tls_context(certificate=str(wrong), key=str(wrong))
    assert tls_context(str(tmp_path)).check_hostname
