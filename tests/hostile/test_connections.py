"""A visitor who opens connections and says little: the server stays reachable, its log short."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.store.store import Store
from jobsight.store.tokens import Tokens
from jobsight.transport import wire
from jobsight.transport.delivery import HttpTarget
from tests.ports import free_port
from tests.sams.documents import START, document, encode
from tests.server.batches import batch
from tests.server.certificates import Papers
from tests.server.conftest import spawner as spawner
from tests.server.processes import ServerProcess, Spawner, answers
from tests.waiting import wait_until

pytestmark = pytest.mark.server

#: A timeout that no test waits for.
NEVER = "3000"

_SIGN_IN = b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"


@contextlib.contextmanager
def serving(spawner: Spawner, directory: Path, **settings: str) -> Iterator[ServerProcess]:
    with ServerProcess(spawner, directory, str(directory / "store.db"), **settings) as server:
        yield server


@contextlib.contextmanager
def stalled(server: ServerProcess, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    """Connections that send so much and then nothing; the last one has been accepted."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            client = socket.create_connection(("127.0.0.1", server.port), 100)
            opened.append(stack.enter_context(client))
            client.sendall(sent)
        yield opened


def read_to_end(client: socket.socket) -> bytes:
    """All that the server sends until it closes the connection."""
    client.settimeout(100)
    received = b""
    try:
        while part := client.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received


def log_of(server: ServerProcess) -> str:
    return (server.folder / "server.log").read_text()


def connections_of(server: ServerProcess) -> int:
    """Accepted connections that the server has not closed."""
    established, close_wait = "01", "08"
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(
        row[1].endswith(f":{server.port:04X}") and row[3] in (established, close_wait)
        for row in rows
    )


@pytest.mark.long
def test_s08_a_sign_in_that_never_ends_is_answered_and_closed(
    spawner: Spawner, tmp_path: Path
) -> None:
    with serving(spawner, tmp_path) as server:
        for sent in (b"", b"token=x"):
            with stalled(server, 1, _SIGN_IN + sent) as (client,):
                answer = read_to_end(client)
            assert answer.startswith(b"HTTP/1.1 408")
            assert b"the form was not complete after 5 seconds" in answer


def test_s08_an_aborted_sign_in_leaves_no_traceback(spawner: Spawner, tmp_path: Path) -> None:
    with serving(spawner, tmp_path) as server:
        with stalled(server, 5, _SIGN_IN + b"token="):
            wait_until(lambda: connections_of(server) == 5)
        wait_until(lambda: connections_of(server) == 0)
        assert answers(server.port)
        assert "Traceback" not in log_of(server)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="silent"),
        pytest.param(b"GET / HT", id="half a header"),
        pytest.param(_SIGN_IN, id="no body"),
        pytest.param(
            b"POST /api/v1/batches HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n"
            b"Authorization: Bearer wrong\r\n\r\nJSB2",
            id="a batch without a valid token",
        ),
    ],
)
def test_s08_more_clients_than_connections_keep_nobody_out(
    spawner: Spawner, tmp_path: Path, sent: bytes
) -> None:
    limits = {
        "connections__max": "16",
        "connections__max_per_address": "8",
        "connections__header_timeout": NEVER,
    }
    with serving(spawner, tmp_path, **limits) as server:
        target = server.target()
        with stalled(server, 40, sent):
            wait_until(lambda: connections_of(server) <= 8)
            for job_id in range(1, 6):
                assert answers(server.port)
                assert target.send(wire.encode(batch(job_id))).stored
        assert "the limit of 8 connections from 127.0.0.1 is reached" in log_of(server)
        assert len(log_of(server)) < 10_000


def test_s08_an_upload_with_a_token_is_not_closed_for_silent_clients(
    spawner: Spawner, tmp_path: Path
) -> None:
    limits = {"connections__max_per_address": "4", "connections__header_timeout": NEVER}
    data = wire.encode(batch())
    with serving(spawner, tmp_path, **limits) as server:
        head = (
            f"POST /api/v1/batches HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
            f"Authorization: Bearer {server.token}\r\nConnection: close\r\n"
            "Expect: 100-continue\r\n\r\n"
        ).encode()
        with stalled(server, 1, head) as (upload,):
            assert upload.recv(1000).startswith(b"HTTP/1.1 100")
            upload.sendall(data[:10])
            with stalled(server, 20, b"GET / HT") as silent:
                assert read_to_end(silent[0]) == b""
                upload.sendall(data[10:])
                assert b'{"status":"stored"}' in read_to_end(upload)


def test_s08_one_byte_of_the_next_request_does_not_keep_a_connection(
    spawner: Spawner, tmp_path: Path
) -> None:
    with serving(spawner, tmp_path, connections__header_timeout="0.5") as server:
        request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with stalled(server, 1, request) as (client,):
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
            client.sendall(b"G")
            assert b"HTTP/1.1" not in read_to_end(client)


def test_s08_a_body_that_nobody_reads_does_not_keep_a_connection(
    spawner: Spawner, tmp_path: Path
) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n"
    with (
        serving(spawner, tmp_path, connections__header_timeout="0.5") as server,
        stalled(server, 1, head) as (client,),
    ):
        assert client.recv(65536).startswith(b"HTTP/1.1 200")

        def ended() -> bool:
            try:
                client.sendall(b"x")
            except OSError:
                return True
            return False

        wait_until(ended)


def test_s08_a_response_that_is_not_read_does_not_keep_a_connection(
    spawner: Spawner, tmp_path: Path
) -> None:
    with serving(spawner, tmp_path, connections__response_timeout="0.5") as server:
        request = b"GET /static/style.css HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            # More than the buffers of the kernel hold.
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.sendall(request * 5_000)
            wait_until(lambda: connections_of(server) == 1)
            wait_until(lambda: connections_of(server) == 0)
        assert "Traceback" not in log_of(server)


def test_s08_a_tls_handshake_that_never_begins_is_closed(spawner: Spawner, tmp_path: Path) -> None:
    papers = tmp_path / "papers"
    papers.mkdir()
    certificate, key = Papers(papers).pair("server")
    tls = {"tls_certificate": certificate, "tls_key": key}
    server = ServerProcess(
        spawner, tmp_path, str(tmp_path / "store.db"), connections__header_timeout="0.5", **tls
    )
    server.pid = spawner.spawn(server.folder, server._options, server._variables)
    try:
        wait_until(lambda: "listening on" in log_of(server))
        with stalled(server, 1, b"") as (client,):
            assert read_to_end(client) == b""
    finally:
        server.end(15)


def test_s08_a_server_without_descriptors_logs_little_and_recovers(
    spawner: Spawner, tmp_path: Path
) -> None:
    with serving(spawner, tmp_path, connections__header_timeout=NEVER) as server:
        used = len(os.listdir(f"/proc/{server.pid}/fd"))
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (used + 10, used + 10))
        with stalled(server, 60, _SIGN_IN):
            wait_until(lambda: "out of file descriptors" in log_of(server))
        wait_until(lambda: answers(server.port))
        assert len(log_of(server)) < 10_000


def test_s08_the_limit_of_descriptors_is_raised(spawner: Spawner, tmp_path: Path) -> None:
    limits = resource.prlimit(spawner.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(spawner.pid, resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        with serving(spawner, tmp_path) as server:
            soft, _ = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
            assert soft >= 4096
    finally:
        resource.prlimit(spawner.pid, resource.RLIMIT_NOFILE, limits)


def cluster_token(store: str, cluster: str) -> str:
    with Store.open(store) as opened:
        return Tokens(opened.database).add(cluster)[1]


def upload_head(token: str, size: int) -> bytes:
    return (
        f"POST /api/v1/batches HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n"
        f"Authorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    ).encode()


def test_s10_stalled_uploads_of_a_cluster_take_nothing_from_another(
    spawner: Spawner, tmp_path: Path
) -> None:
    limit = 100_000
    settings = {
        "ingest__body_limit": str(limit),
        "ingest__body_timeout": NEVER,
        "ingest__stall_timeout": NEVER,
    }
    store = str(tmp_path / "store.db")
    alpha, beta = (cluster_token(store, name) for name in ("alpha", "beta"))
    with serving(spawner, tmp_path, **settings) as server:
        (tmp_path / "beta").write_text(beta)
        (tmp_path / "beta").chmod(0o600)
        honest = HttpTarget(server.url, tmp_path / "beta", timeout=100)
        attack = upload_head(alpha, limit) + b"x" * (limit - 1)
        with stalled(server, 9, attack):
            for job_id in range(1, 40):
                sent = batch(job_id)
                sent.cluster, sent.parts, sent.jobs = "beta", [], []
                answer = honest.send(wire.encode(sent))
                assert answer.stored, answer.reason
        assert "Traceback" not in log_of(server)


def test_s19_half_requests_do_not_keep_out_the_posts_of_collectors(tmp_path: Path) -> None:
    port, inbox = free_port(), tmp_path / "in"
    settings = tmp_path / "receiver.yaml"
    settings.write_text(
        f"sams.post-receiver:\n  base_path: {inbox}\n  bind: 127.0.0.1\n  port: {port}\n"
    )
    with (tmp_path / "log").open("wb") as log:
        receiver = subprocess.Popen(
            [sys.executable, "-m", "jobsight.cli.compat.post_receiver", f"--config={settings}"],
            stdout=log,
            stderr=log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300)),
        )
    try:
        wait_until(lambda: "listens on" in (tmp_path / "log").read_text())
        with contextlib.ExitStack() as stack:
            for _ in range(400):
                client = socket.create_connection(("127.0.0.1", port), 100)
                stack.enter_context(client).sendall(b"POST /1/1.n1.json HT")
            for number in range(5):
                body = encode(document(1, start=START + number))
                url = f"http://127.0.0.1:{port}/1/1.n1.json"
                with urllib.request.urlopen(url, body, timeout=100) as reply:
                    assert reply.status == 200
        assert len(list(inbox.rglob("*.json"))) == 5
        assert len((tmp_path / "log").read_text()) < 10_000
    finally:
        receiver.terminate()
        receiver.wait(60)


@pytest.mark.root
def test_s15_silent_clients_and_floods_do_not_keep_out_scrapes(tmp_path: Path) -> None:
    port = free_port()
    settings = tmp_path / "jobsight.toml"
    settings.write_text(f'[agent]\nrun_directory = "{tmp_path}/run"\nquery_slurm = false\n')
    options = ["--config", str(settings), "--listen", f"127.0.0.1:{port}"]
    exporter = subprocess.Popen(
        [sys.executable, "-m", "jobsight.cli.compat.jobs_exporter", *options]
    )
    url = f"http://127.0.0.1:{port}/metrics"

    def scrape() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=100) as reply:
                return b"jobsight_agent_info" in reply.read()
        except OSError:
            return False

    def flood() -> None:
        while not stopped.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), 100) as client,
            ):
                client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                read_to_end(client)

    stopped = threading.Event()
    try:
        wait_until(scrape)
        flooding = [threading.Thread(target=flood) for _ in range(4)]
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: [thread.join() for thread in flooding])
            stack.callback(stopped.set)
            for thread in flooding:
                thread.start()
            for _ in range(60):
                client = socket.create_connection(("127.0.0.1", port), 100)
                stack.enter_context(client)
            for _ in range(20):
                assert scrape()
    finally:
        exporter.terminate()
        assert exporter.wait(60) == 0


@pytest.mark.long
def test_s08_a_thousand_stalled_sign_ins_with_the_default_limits(
    spawner: Spawner, tmp_path: Path
) -> None:
    with serving(spawner, tmp_path) as server:
        target = server.target()
        with stalled(server, 1_100, _SIGN_IN):
            for job_id in range(1, 50):
                assert answers(server.port)
                assert target.send(wire.encode(batch(job_id))).stored
        assert len(log_of(server)) < 100_000


def test_log_is_bounded_for_requests_that_are_not_http(spawner: Spawner, tmp_path: Path) -> None:
    with serving(spawner, tmp_path) as server:
        for _ in range(100):
            with stalled(server, 1, b"\x00nonsense\r\n\r\n") as (client,):
                assert read_to_end(client).startswith(b"HTTP/1.1 400")
        assert 1 <= log_of(server).count("Invalid HTTP request") <= 10


def test_s29_two_lengths_of_one_request_are_refused(spawner: Spawner, tmp_path: Path) -> None:
    with serving(spawner, tmp_path) as server:
        head = (
            f"POST /api/v1/batches HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
            f"Transfer-Encoding: chunked\r\nAuthorization: Bearer {server.token}\r\n\r\n"
        ).encode()
        smuggled = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with stalled(server, 1, head + b"0\r\n\r\n" + smuggled) as (client,):
            answer = read_to_end(client)
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"Transfer-Encoding and Content-Length" in answer
        assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.long
def test_an_invalid_body_leaves_no_traceback(spawner: Spawner, tmp_path: Path) -> None:
    """It arrives with the head, or after the response has begun."""
    with serving(spawner, tmp_path) as server:
        head = b"POST /api/v1/batches HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        for lengths in (b"", b"Content-Length: 5\r\n"):
            with stalled(server, 1, head + lengths + b"\r\nno length\r\n") as (client,):
                assert read_to_end(client).startswith(b"HTTP/1.1 400")
        with stalled(server, 1, head + b"Authorization: Bearer wrong\r\n\r\n5\r\n") as (client,):
            assert client.recv(12) == b"HTTP/1.1 401"
            client.sendall(b"12345no length\r\n")
            read_to_end(client)
        assert answers(server.port)
        assert "Traceback" not in log_of(server)
