"""The table of connections: which one is closed for a new one, and what counts as an address."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.server.connections import (
    Connection,
    ConnectionLimits,
    ConnectionTable,
    address_key,
    fit_descriptors,
    limited_log,
)

LIMITS = ConnectionLimits(
    connections=6,
    connections_per_address=3,
    header_timeout=100,
    body_timeout=100,
    response_timeout=100,
)


class Clients:
    """Connections of a table, each with a socket of its own, and which of them were closed."""

    def __init__(self, **options: list[str]) -> None:
        self.table = ConnectionTable(LIMITS, **options)
        self.closed: list[str] = []
        self._sockets: list[socket.socket] = []

    def open(self, name: str, host: str) -> Connection | None:
        sock = socket.socket()
        self._sockets.append(sock)
        connection = self.table.admit(sock, host)
        if connection is not None:
            connection.abort = lambda: self.closed.append(name)
        return connection

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


@pytest.fixture
def clients() -> Iterator[Callable[..., Clients]]:
    made: list[Clients] = []

    def make(**options: list[str]) -> Clients:
        made.append(Clients(**options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def run(scene: Callable[[], None]) -> None:
    async def inside() -> None:
        scene()

    asyncio.run(inside())


def test_the_oldest_of_an_address_is_closed_for_its_next(clients: Callable[..., Clients]) -> None:
    made = clients()

    def scene() -> None:
        for number in range(5):
            assert made.open(f"a{number}", "10.0.0.1")
        assert made.open("b", "10.0.0.2")

    run(scene)
    assert made.closed == ["a0", "a1"]
    assert len(made.table) == 4
    assert made.table.refused == 2


def test_in_all_the_address_with_most_connections_gives_way(
    clients: Callable[..., Clients],
) -> None:
    made = clients()

    def scene() -> None:
        for name, host in (("a", "10.0.0.1"), ("b", "10.0.0.2"), ("b", "10.0.0.2")):
            made.open(name, host)
        for host in ("10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"):
            made.open(host, host)

    run(scene)
    assert made.closed == ["b"]
    assert len(made.table) == 6


def test_a_request_with_a_token_is_not_closed(clients: Callable[..., Clients]) -> None:
    made = clients()

    def scene() -> None:
        opened = [made.open(f"a{number}", "10.0.0.1") for number in range(3)]
        for connection in opened:
            assert connection is not None
            connection.protect()
        assert made.open("a3", "10.0.0.1") is None
        assert opened[1] is not None
        opened[1].unprotect()
        assert made.open("a4", "10.0.0.1") is not None

    run(scene)
    assert made.closed == ["a1"]


def test_a_trusted_proxy_has_no_limit_of_its_own(clients: Callable[..., Clients]) -> None:
    made = clients(proxies=["10.0.0.0/24", "proxy.example.org"])

    def scene() -> None:
        for number in range(7):
            assert made.open(f"a{number}", "10.0.0.1")

    run(scene)
    # Only that of all connections.
    assert made.closed == ["a0"]


def test_what_closes_is_counted_once(clients: Callable[..., Clients]) -> None:
    made = clients()

    def scene() -> None:
        opened = [made.open(f"a{number}", "10.0.0.1") for number in range(5)]
        for connection in opened:
            assert connection is not None
            # Also those that were closed for another one, and whose response ends only now.
            connection.unprotect()
            connection.closed()

    run(scene)
    assert len(made.table) == 0
    assert (made.table._counts, made.table._closable, made.table._open) == ({}, {}, {})


def test_what_counts_as_an_address() -> None:
    assert address_key("10.0.0.1") == "10.0.0.1"
    assert address_key("::ffff:10.0.0.1") == "10.0.0.1"
    assert address_key("2001:db8:1:2:3::4") == "2001:db8:1:2::/64"
    assert address_key("2001:db8:1:2::9") == "2001:db8:1:2::/64"
    assert address_key("fe80::1%eth0") == "fe80::/64"


@given(st.ip_addresses())
def test_every_address_has_a_key(address: object) -> None:
    assert address_key(str(address))


def test_fewer_connections_where_descriptors_do_not_suffice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 1000))
    monkeypatch.setattr("resource.setrlimit", lambda _, limits: given.append(limits))
    with caplog.at_level(logging.WARNING):
        assert fit_descriptors(LIMITS._replace(connections=4096)).connections == 744
        assert "expected LimitNOFILE=4352" in caplog.text
    assert fit_descriptors(LIMITS._replace(connections=500)).connections == 500
    assert given == [(1000, 1000), (756, 1000)]


def test_messages_are_limited_only_while_a_server_runs(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("jobsight.server.connections")

    def logged() -> int:
        caplog.clear()
        for _ in range(5):
            logger.warning("a client caused this")
        return len(caplog.records)

    with limited_log():
        assert logged() == 1
        with limited_log():
            assert logged() == 0
        assert logged() == 0
    assert logged() == 5
    with limited_log():
        assert logged() == 1
