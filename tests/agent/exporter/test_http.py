"""``/metrics`` over HTTP: both formats, TLS and passwords, and clients that do not behave."""

from __future__ import annotations

import base64
import gzip
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobsight.agent.exporter.exporter import Exporter, Lines
from jobsight.agent.exporter.http import (
    Endpoint,
    TooManyPasswords,
    parse_address,
    parse_request,
)
from jobsight.agent.exporter.passwords import Password, hash_password
from jobsight.config.settings import MetricsSettings
from jobsight.errors import ConfigError, JobsightError
from jobsight.prometheus.exposition import OPENMETRICS, PLAIN
from jobsight.prometheus.names import AGENT
from tests.ports import free_port
from tests.prometheus.readers import fetch, samples
from tests.sams.front import make_papers

JOBS = AGENT["jobsight_agent_jobs"]


@pytest.fixture
def exporter() -> Exporter:
    made = Exporter()
    text = "".join(f'{JOBS.name}{{node="n{number}"}} {number}\n' for number in range(200))
    made.sources.append(lambda: [Lines(JOBS, text)])
    return made


@contextmanager
def serving(exporter: Exporter, **settings: str) -> Iterator[str]:
    endpoint = Endpoint(exporter, MetricsSettings(listen="127.0.0.1:0", **settings))
    endpoint.open()
    endpoint.start()
    try:
        yield f"127.0.0.1:{endpoint.port}"
    finally:
        endpoint.close()


def status_of(url: str, headers: dict[str, str] | None = None, method: str = "GET") -> int:
    request = urllib.request.Request(url, headers=headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def basic(user: str, password: str) -> dict[str, str]:
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {token}"}


def test_both_formats_and_compression(exporter: Exporter) -> None:
    with serving(exporter) as address:
        url = f"http://{address}/metrics"
        with urllib.request.urlopen(url, timeout=60) as reply:
            assert reply.headers["Content-Type"] == PLAIN
            assert len(samples(reply.read())) == 200
        asked = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=asked), timeout=60
        ) as reply:
            assert reply.headers["Content-Type"] == OPENMETRICS
            assert reply.read().endswith(b"# EOF\n")
        packed = fetch(url, {"Accept-Encoding": "gzip"})
        assert len(samples(gzip.decompress(packed))) == 200
        assert exporter.scrapes == 3


def test_other_paths_and_methods(exporter: Exporter) -> None:
    with serving(exporter) as address:
        assert status_of(f"http://{address}/") == 200
        assert status_of(f"http://{address}/etc/passwd") == 404
        assert status_of(f"http://{address}/metrics", method="POST") == 405
        assert status_of(f"http://{address}/metrics?x=1", method="HEAD") == 200


def test_a_password_and_tls(exporter: Exporter, tmp_path: Path) -> None:
    make_papers(tmp_path)
    papers = {
        "tls_certificate": str(tmp_path / "server.pem"),
        "tls_key": str(tmp_path / "server.key"),
    }
    hashed = hash_password("se:cret", iterations=10)
    with serving(exporter, user="prom", password_hash=hashed, **papers) as address:
        url = f"https://{address}/metrics"
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        handler = urllib.request.HTTPSHandler(context=context)
        opener = urllib.request.build_opener(handler)
        for headers, wanted in (
            ({}, 401),
            (basic("other", "se:cret"), 401),
            ({"Authorization": "Basic ???"}, 401),
            ({"Authorization": "Bearer se:cret"}, 401),
            (basic("prom", "se:cret"), 200),
            (basic("prom", "wrong"), 401),
            (basic("prom", "se:cret"), 200),
        ):
            request = urllib.request.Request(url, headers=headers)
            try:
                with opener.open(request, timeout=60) as reply:
                    found = reply.status
            except urllib.error.HTTPError as error:
                with error:
                    found = error.code
            assert (headers, found) == (headers, wanted)
        with pytest.raises(OSError, match=r"."):
            fetch(f"http://{address}/metrics")
        # Whoever speaks no TLS costs nothing: the next one is served.
        assert (
            opener.open(
                urllib.request.Request(url, headers=basic("prom", "se:cret")), timeout=60
            ).close()
            is None
        )


def test_a_hash_says_nothing_of_the_password_and_is_checked() -> None:
    first, second = hash_password("x", iterations=10), hash_password("x", iterations=10)
    assert first != second
    assert Password("u", first).matches("u", "x")
    assert not Password("u", second).matches("u", "y")
    for wrong in ("secret", "md5$1$a$b", first.replace("$10$", "$0$"), first + "$"):
        with pytest.raises(ConfigError, match="hash-password"):
            Password("u", wrong)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"user": "prom"}, "password_hash"),
        ({"password_hash": "x"}, "agent.metrics.user"),
        ({"tls_key": "/none"}, "tls_certificate"),
        ({"tls_certificate": "/no/such/file"}, "cannot be used"),
        ({"listen": "nonsense"}, "127.0.0.1:9306"),
    ],
)
def test_wrong_settings_are_one_sentence(
    exporter: Exporter, settings: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Endpoint(exporter, MetricsSettings(**settings))


def test_addresses() -> None:
    assert parse_address("127.0.0.1:9306") == ("127.0.0.1", 9306)
    assert parse_address("[::]:80") == ("::", 80)
    for wrong in ("9306", ":9306", "a:b", "a:99999", "a:"):
        with pytest.raises(ConfigError):
            parse_address(wrong)


def test_silent_and_slow_clients_delay_nobody(exporter: Exporter) -> None:
    with serving(exporter) as address:
        host, _, port = address.rpartition(":")
        clients = [socket.create_connection((host, int(port))) for _ in range(8)]
        for number, client in enumerate(clients):
            if number % 2:
                client.sendall(b"GET /metrics HT")
        assert len(samples(fetch(f"http://{address}/metrics"))) == 200
        for client in clients:
            # Still waited for, so nobody had to wait for them.
            client.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.recv(1)
            client.setblocking(True)
        clients[0].sendall(b"\x00\xff nonsense\r\n\r\n")
        assert clients[0].recv(100) == b""
        for client in clients:
            client.close()


def test_wrong_passwords_are_checked_once_a_second_for_each_address() -> None:
    now = [100.0]
    password = Password("u", hash_password("x", iterations=10), clock=lambda: now[0])
    assert not password.matches("u", "a", "10.0.0.1")
    with pytest.raises(TooManyPasswords):
        password.matches("u", "b", "10.0.0.1")
    assert not password.matches("u", "b", "10.0.0.2")
    assert password.matches("u", "x", "10.0.0.3")
    # Now that it is known, the right one is never delayed.
    assert password.matches("u", "x", "10.0.0.1")
    now[0] += 1
    assert not password.matches("u", "b", "10.0.0.1")
    for number in range(5000):
        password.matches("u", "b", str(number))
    assert len(password._wrong) <= 1024


def test_a_flood_of_scrapes_gets_the_same_text(exporter: Exporter) -> None:
    rendered = []
    text = exporter.text

    def counted(*, openmetrics: bool = False) -> bytes:
        rendered.append(openmetrics)
        return text(openmetrics=openmetrics)

    exporter.text = counted  # type: ignore[method-assign]
    begin = time.monotonic()
    with serving(exporter) as address:
        for _ in range(60):
            assert len(samples(fetch(f"http://{address}/metrics"))) == 200
    # Four in any second, however long this took.
    assert len(rendered) <= 4 * (int(time.monotonic() - begin) + 1)


def test_without_a_password_the_network_is_refused(exporter: Exporter) -> None:
    for listen in ("0.0.0.0:9306", "[::]:9306", "node1:9306"):
        with pytest.raises(ConfigError, match="allow_network"):
            Endpoint(exporter, MetricsSettings(listen=listen))
        Endpoint(exporter, MetricsSettings(listen=listen, allow_network=True))
    Endpoint(exporter, MetricsSettings(listen="[::1]:9306"))


def test_the_oldest_silent_client_gives_way(exporter: Exporter) -> None:
    with serving(exporter) as address:
        host, _, port = address.rpartition(":")
        clients = [socket.create_connection((host, int(port)), 60) for _ in range(20)]
        for client in clients[:4]:
            assert client.recv(10) == b""
        # The others are still waited for.
        clients[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            clients[-1].recv(1)
        for _ in range(30):
            assert len(samples(fetch(f"http://{address}/metrics"))) == 200
        for client in clients:
            client.close()


def test_an_address_in_use_is_an_error_or_waited_for(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobsight.agent.exporter.http._BIND_INTERVAL", 0.05)
    with socket.socket() as other:
        address = f"127.0.0.1:{free_port()}"
        other.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        other.listen()
        endpoint = Endpoint(exporter, MetricsSettings(listen=address))
        with pytest.raises(JobsightError, match="--listen"):
            endpoint.open()
        endpoint.start()
        time.sleep(0.2)
    deadline = time.monotonic() + 60
    while not endpoint.port:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert status_of(f"http://{address}/metrics") == 200
    endpoint.close()
    assert not [one for one in threading.enumerate() if one.name == "metrics"]


def test_requests_are_read_strictly() -> None:
    request = parse_request(b"GET /metrics?a=b HTTP/1.1\r\nACCEPT: x\r\nHost: y:1")
    assert request == ("GET", "/metrics", {"accept": "x", "host": "y:1"})
    for wrong in (b"", b"GET /", b"GET / HTTP/2", b"a b c d"):
        with pytest.raises(ValueError, match=r"."):
            parse_request(wrong)
