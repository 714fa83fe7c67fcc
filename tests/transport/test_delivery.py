"""Delivery to a real HTTP server that answers in every way a server can."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from jobsight.errors import JobsightError
from jobsight.model import Batch
from jobsight.server.receiver import EmbeddedTarget, Receiver
from jobsight.store.store import Store
from jobsight.transport.delivery import Answer, Delivery, DeliveryThread, HttpTarget
from jobsight.transport.spool import Spool
from jobsight.transport.wire import decode
from tests.server.batches import batch as whole_batch
from tests.transport.test_spool import batch, sequences
from tests.waiting import wait_until

TOKEN = "a-token-of-the-delivery-tests"


class Server(ThreadingHTTPServer):
    """Answers each batch as the test says: a status, "close" (in the middle), "hang", "page" and
    "proxy" (somebody else's, with 200 and with 400)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[int | str] = []
        self.received: list[Batch] = []
        self.asked: list[tuple[str, str | None, str | None]] = []
        #: Seconds in the Retry-After of answers other than 200.
        self.wait: str | None = None
        #: The one token that is right; None takes any.
        self.token: str | None = None
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(
            (self.path, self.headers["Authorization"], self.headers["Content-Type"])
        )
        answer = self.server.answers.pop(0) if self.server.answers else 200
        if self.server.token and self.headers["Authorization"] != f"Bearer {self.server.token}":
            answer = 401
        if answer == "hang":
            self.server.ended.wait(60)
        elif answer == "page":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n<html>Please sign in</html>")
        elif answer == "proxy":
            self.wfile.write(b"HTTP/1.1 400 Bad Request\r\n\r\n<html>400 (nginx)</html>")
        elif answer == "close":
            self.wfile.write(b"HTTP/1.1 200 O")
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            assert isinstance(answer, int)
            if answer == 200:
                self.server.received.append(decode(data))
            body = b'{"status": "stored"}' if answer == 200 else b'{"detail": "as the test says"}'
            self.send_response(answer)
            if answer != 200 and self.server.wait is not None:
                self.send_header("Retry-After", self.server.wait)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.ended.set()
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    opened = Spool(tmp_path / "spool")
    for _ in range(3):
        opened.put(batch())
    yield opened
    opened.close()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    return file


@pytest.fixture
def delivery(server: Server, spool: Spool, token_file: Path) -> Delivery:
    return Delivery(spool, HttpTarget(server.url, token_file, timeout=60))


def received(server: Server) -> list[int]:
    return [taken.sequence for taken in server.received]


def test_everything_goes_in_order(server: Server, delivery: Delivery) -> None:
    assert delivery.deliver()
    assert received(server) == [1, 2, 3]
    assert len(delivery.spool) == 0
    assert delivery.reason == ""


def test_how_it_is_sent(server: Server, delivery: Delivery) -> None:
    delivery.deliver()
    assert server.asked[0] == (
        "/api/v1/batches",
        f"Bearer {TOKEN}",
        "application/vnd.jobsight.batch",
    )


def test_a_server_below_a_path(server: Server, spool: Spool, token_file: Path) -> None:
    assert Delivery(spool, HttpTarget(f"{server.url}/jobsight/", token_file)).deliver()
    assert server.asked[0][0] == "/jobsight/api/v1/batches"


@pytest.mark.parametrize(
    "answer", [401, 403, 404, 408, 421, 429, 500, 502, 503, 301, "close", "hang", "page", "proxy"]
)
def test_what_may_pass_is_tried_again_and_nothing_overtakes(
    server: Server, delivery: Delivery, token_file: Path, answer: int | str
) -> None:
    server.answers = [200, answer]
    if answer == "hang":
        # Long enough for those that do answer.
        hasty = Delivery(delivery.spool, HttpTarget(server.url, token_file, timeout=3))
        assert not hasty.deliver()
        assert hasty.reason.startswith("the server ")
    else:
        assert not delivery.deliver()
        assert delivery.reason.startswith("the server ")
    assert sequences(delivery.spool) == [2, 3]
    assert delivery.deliver()
    assert received(server) == [1, 2, 3]
    assert delivery.spool.refused == 0


@pytest.mark.parametrize("answer", [400, 413, 422])
def test_what_is_refused_is_put_aside_and_the_rest_goes_on(
    server: Server, delivery: Delivery, answer: int
) -> None:
    server.answers = [200, answer]
    assert delivery.deliver()
    assert received(server) == [1, 3]
    assert (len(delivery.spool), delivery.spool.refused) == (0, 1)
    assert delivery.refusal == f"the server answered {answer}: as the test says"


@pytest.mark.parametrize(
    ("said", "wait"), [("7", 7.0), (None, 0.0), ("Sun, 15 Nov 2026 09:00:00 GMT", 0.0), ("-1", 0.0)]
)
@pytest.mark.parametrize("answer", [429, 503])
def test_a_server_says_when_to_come_again(
    server: Server, delivery: Delivery, answer: int, said: str | None, wait: float
) -> None:
    server.answers, server.wait = [answer], said
    assert not delivery.deliver()
    assert delivery.wait == wait
    assert delivery.deliver()
    assert delivery.wait == 0


def test_a_rotated_token_is_taken_up_without_a_restart(
    server: Server, delivery: Delivery, token_file: Path
) -> None:
    server.token = "the-new-token-of-the-delivery-tests"
    assert not delivery.deliver()
    assert "the server answered 401" in delivery.reason
    assert len(server.asked) == 1
    token_file.write_text(server.token)
    assert delivery.deliver()
    assert received(server) == [1, 2, 3]
    # A file that cannot be used meanwhile leaves the token that was read before.
    server.asked.clear()
    server.token = "one-more-token-of-the-delivery-tests"
    token_file.unlink()
    delivery.spool.put(batch())
    assert not delivery.deliver()
    assert len(server.asked) == 1
    assert len(delivery.spool) == 1


def test_nobody_there(spool: Spool, token_file: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    delivery = Delivery(spool, HttpTarget(url, token_file))
    assert not delivery.deliver()
    assert "does not answer" in delivery.reason
    assert len(spool) == 3


@pytest.mark.parametrize(
    "url", ["", "localhost:8080", "ftp://host", "http://", "http://host:99999", "http://[::1", "x"]
)
def test_what_is_no_address(url: str, token_file: Path) -> None:
    with pytest.raises(JobsightError, match="is not the URL of a server; expected http://"):
        HttpTarget(url, token_file)


def test_into_a_store_of_this_process(tmp_path: Path, spool: Spool) -> None:
    spool.put(whole_batch())
    store = Store.open(tmp_path / "store.db")
    target = EmbeddedTarget(Receiver(store))
    *_, (_, data) = spool.pending()
    assert target.send(data) == Answer(stored=True)
    assert target.send(data) == Answer(stored=True)
    answer = target.send(data[:-1])
    assert answer.refused
    assert answer.reason.startswith("the batch cannot be unpacked")
    store.close()


def test_values_that_were_left_out_are_counted_and_logged_once(
    tmp_path: Path, spool: Spool
) -> None:
    said: list[str] = []
    with Store.open(tmp_path / "store.db") as store:
        delivery = Delivery(spool, EmbeddedTarget(Receiver(store)), said.append)
        # What the fixture has put into the spool.
        assert delivery.deliver()
        said.clear()
        refused = spool.refused
        for _ in range(3):
            spool.put(whole_batch(name="n" * 20_000))
        assert delivery.deliver()
        assert (len(spool), spool.refused, delivery.left_out) == (0, refused, 3)
        (sentence,) = said
        assert sentence.startswith("the server stored a batch without 1 values: name of job 12")


def test_a_damaged_batch_does_not_stop_the_others(tmp_path: Path, spool: Spool) -> None:
    spool.put(whole_batch())
    for name, _ in list(spool.pending())[1:3]:
        spool.done(name)
    first = sorted(spool.directory.glob("*.batch"))[0]
    first.write_bytes(b"JSB1 and then nothing")
    store = Store.open(tmp_path / "store.db")
    assert Delivery(spool, EmbeddedTarget(Receiver(store))).deliver()
    assert (len(spool), spool.refused) == (0, 1)
    store.close()


def test_the_thread_delivers_what_it_is_told_of(server: Server, delivery: Delivery) -> None:
    thread = DeliveryThread(delivery)
    thread.start()
    thread.notify()
    wait_until(lambda: received(server) == [1, 2, 3])
    delivery.spool.put(batch())
    thread.notify()
    wait_until(lambda: received(server) == [1, 2, 3, 4])
    thread.end()
    assert not thread.is_alive()


def test_the_thread_tries_again_by_itself(server: Server, delivery: Delivery) -> None:
    server.answers = [503]
    thread = DeliveryThread(delivery)
    thread.start()
    thread.notify()
    wait_until(lambda: received(server) == [1, 2, 3])
    thread.end()


def test_the_thread_waits_as_long_as_it_is_told(
    server: Server, delivery: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = []
    thread = DeliveryThread(delivery)
    monkeypatch.setattr(thread._ended, "wait", lambda pause: pauses.append(pause))
    server.answers, server.wait = [503, 429], "30"
    thread.start()
    thread.notify()
    wait_until(lambda: received(server) == [1, 2, 3])
    thread.end()
    assert len(pauses) == 2
    assert all(30 <= pause < 38 for pause in pauses)


def test_what_stands_in_the_way_is_said_once(
    server: Server, spool: Spool, token_file: Path
) -> None:
    said: list[str] = []
    delivery = Delivery(spool, HttpTarget(server.url, token_file), said.append)
    server.answers = [401, 401, 503, 200, 422, 422]
    for _ in range(4):
        delivery.deliver()
    assert [line.partition(":")[0] for line in said] == [
        "batches are pending",
        "batches are pending",
        "the server refused a batch, which is quarantined",
        "all pending batches are delivered",
    ]
    assert "401" in said[0]
    assert "503" in said[1]


def test_the_thread_outlives_a_disk_that_cannot_be_read(
    server: Server, delivery: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = delivery.spool.pending
    faults = [OSError(5, "Input/output error")]

    def pending() -> Iterator[tuple[str, bytes]]:
        if faults:
            raise faults.pop()
        return original()

    monkeypatch.setattr(delivery.spool, "pending", pending)
    thread = DeliveryThread(delivery)
    thread.start()
    thread.notify()
    wait_until(lambda: received(server) == [1, 2, 3])
    thread.end()


def test_the_thread_ends_while_it_waits(server: Server, delivery: Delivery) -> None:
    server.answers = [503]
    thread = DeliveryThread(delivery)
    thread.start()
    thread.notify()
    wait_until(lambda: delivery.reason != "")
    thread.end()
    assert sequences(delivery.spool) == [1, 2, 3]
