"""Bounds on what agents may send: rate, size, time, number, and the memory of it all."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from jobsight.config.settings import IngestSettings, ServerSettings, Settings
from jobsight.model import ExecutableUse, GpuUse, JobInfo, Series, StepUse
from jobsight.server import limits, receiver
from jobsight.server.app import create_app
from jobsight.server.limits import (
    MAX_AGENTS,
    Agent,
    BodyBudget,
    Busy,
    MemoryBudget,
    RateLimiter,
    estimate_memory,
)
from jobsight.server.serve import BackgroundServer
from jobsight.store.store import Store
from jobsight.store.write.batch import Written
from jobsight.transport import wire
from tests.server.batches import batch
from tests.server.conftest import TOKEN
from tests.waiting import wait_until

BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_requests_and_bytes_a_second() -> None:
    clock = Clock()
    rates = RateLimiter(2, 100, clock)
    assert [rates.admit("a") for _ in range(20)] == [0.0] * 20
    assert rates.admit("a") == pytest.approx(0.5)
    assert rates.admit("b") == 0
    clock.now += 0.5
    assert rates.admit("a") == 0
    assert rates.admit("a") > 0
    # Ten seconds' worth may come at once; what is beyond has to be waited for.
    rates.charge("b", 1000)
    assert rates.admit("b") == 0
    rates.charge("b", 50)
    assert rates.admit("b") == pytest.approx(0.5)
    clock.now += 0.5
    assert rates.admit("b") == 0


def test_zero_sets_no_bound() -> None:
    rates = RateLimiter(0, 0, Clock())
    for _ in range(1000):
        assert rates.admit("a") == 0
        rates.charge("a", 2**40)


def test_the_table_of_agents_is_bounded() -> None:
    rates = RateLimiter(1, 1, Clock())
    for number in range(MAX_AGENTS + 500):
        rates.admit(number)
    assert len(rates) == MAX_AGENTS


def app_with(store: Store, **limits: Any) -> TestClient:
    settings = ServerSettings(ingest=IngestSettings(**limits))
    made = create_app(store, TOKEN, delay=0, settings=settings)
    return TestClient(made, base_url="http://127.0.0.1:8080", headers=BEARER)


def test_an_agent_that_sends_too_often_is_told_when_to_come_again(store: Store) -> None:
    client = app_with(store, requests_per_second=0.01)
    data = wire.encode(batch())
    assert client.post("/api/v1/batches", content=data).status_code == 200
    answer = client.post("/api/v1/batches", content=data)
    assert answer.status_code == 429
    assert "exceeds 0.01 requests" in answer.json()["detail"]
    assert 0 < int(answer.headers["Retry-After"]) <= 100
    # Pages are not agents.
    assert client.get("/api/v1/jobs").status_code == 200


def test_an_agent_that_sends_too_much_is_told_when_to_come_again(store: Store) -> None:
    client = app_with(store, bytes_per_second=1)
    assert client.post("/api/v1/batches", content=wire.encode(batch())).status_code == 200
    answer = client.post("/api/v1/batches", content=wire.encode(batch(13)))
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) > 100


def filled(budget: BodyBudget, agent: Agent, size: int, limit: int = 10_000) -> int:
    """What an agent holds after it has sent all that it may."""
    held = 0
    while held < limit and budget.admits(agent):
        budget.add(agent, size)
        held += size
    return held


def test_a_token_alone_may_use_all_memory_for_bodies() -> None:
    assert filled(BodyBudget(1000), (1, "a"), 10) == 1010


def test_below_its_share_a_token_is_never_refused() -> None:
    budget = BodyBudget(1000)
    filled(budget, (1, "a"), 10)
    assert filled(budget, (2, "b"), 10) == 510
    assert filled(budget, (None, "c"), 10) == pytest.approx(340, abs=10)
    assert not budget.admits((1, "a"))
    # Another node of the first cluster has as much as those of the others would, and no more.
    assert not budget.admits((1, "z"))


def test_below_its_share_an_address_of_a_token_is_not_refused() -> None:
    budget = BodyBudget(1000)
    filled(budget, (1, "a"), 10)
    assert 0 < filled(budget, (1, "b"), 10) <= 1000
    assert not budget.admits((1, "a"))


def test_many_addresses_of_a_token_have_two_shares() -> None:
    budget = BodyBudget(1000)
    for number in range(500):
        filled(budget, (1, str(number)), 10)
    assert budget.used <= 2020


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.integers(0, 500))))
def test_what_is_released_leaves_nothing(steps: list[tuple[int, str, int]]) -> None:
    budget = BodyBudget(1000)
    added = []
    for token, address, size in steps:
        if budget.admits((token, address)):
            budget.add((token, address), size)
            added.append(((token, address), size))
    assert budget.used <= 2 * (1000 + 500) * (1 + 1 / 2 + 1 / 3 + 1 / 4)
    for agent, size in added:
        budget.remove(agent, size)
    assert (budget.used, budget._tokens, budget._addresses) == (0, {}, {})


def test_bytes_that_are_given_up_or_decompressed_are_charged(store: Store) -> None:
    bomb = wire.MAGIC + zstd(b"\0" * 10_000_000)
    assert len(bomb) < 10_000
    client = app_with(store, bytes_per_second=100_000)
    assert client.post("/api/v1/batches", content=bomb).status_code == 400
    answer = client.post("/api/v1/batches", content=b"")
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) > 80


def test_the_batches_of_one_token_do_not_keep_out_those_of_another() -> None:
    async def scene() -> None:
        full = MemoryBudget(memory=1000, timeout=0.01)
        await full.acquire(900, 1)
        with pytest.raises(Busy):
            await full.acquire(200, 1)
        await full.acquire(200, 2)
        # More than half of its share has to wait.
        with pytest.raises(Busy):
            await full.acquire(200, 2)
        full.release(900, 1)
        full.release(200, 2)
        assert (full._used, full._batches, full._tokens) == (0, 0, {})

    asyncio.run(scene())


def test_one_batch_alone_has_room_and_the_next_waits() -> None:
    async def scene() -> list[str]:
        said = []
        small = MemoryBudget(memory=100, timeout=60)

        async def work(name: str, size: int) -> None:
            await small.acquire(size)
            said.append(f"{name} in")
            await asyncio.sleep(0.01)
            said.append(f"{name} out")
            small.release(size)

        await asyncio.gather(work("large", 1000), work("one", 60), work("two", 60))
        return said

    assert asyncio.run(scene()) == [
        *("large in", "large out", "one in", "one out", "two in", "two out")
    ]


def test_many_small_ones_go_side_by_side_up_to_a_number() -> None:
    async def scene() -> int:
        full = MemoryBudget(memory=10**6, timeout=60)
        inside = most = 0

        async def work() -> None:
            nonlocal inside, most
            await full.acquire(1)
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1
            full.release(1)

        await asyncio.gather(*(work() for _ in range(100)))
        return most

    assert asyncio.run(scene()) == limits.MAX_BATCHES


def test_who_waits_too_long_is_told_so_and_leaves_no_trace() -> None:
    async def scene() -> None:
        full = MemoryBudget(memory=100, timeout=0.01)
        await full.acquire(100)
        with pytest.raises(Busy, match="limit of batches"):
            await full.acquire(1)
        full.release(100)
        await full.acquire(100)
        full.release(100)
        assert (full._used, full._batches, full._waiting) == (0, 0, {})

    asyncio.run(scene())


def test_the_weight_of_a_batch_is_known_before_it_is_unpacked() -> None:
    data = wire.encode(batch())
    assert len(data) < estimate_memory(data) < 10**6
    bomb = wire.MAGIC + zstd(b"\0" * wire.MAX_UNPACKED)
    assert estimate_memory(bomb) > wire.MAX_UNPACKED + 10 * wire.MAX_HEADER
    assert estimate_memory(b"JSB2") == 4
    assert estimate_memory(b"nonsense") == 8


def zstd(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=True).compress(body)


@pytest.mark.parametrize("what", ["parts", "jobs", "metrics", "executables", "steps", "gpus"])
def test_a_batch_of_too_many_things_is_refused(
    store: Store, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = batch()
    part = sent.parts[0]
    monkeypatch.setitem(receiver.MAX_ITEMS, what, 3)
    if what == "parts":
        sent.parts = [part] * 4
    elif what == "jobs":
        sent.jobs = sent.jobs * 4
    elif what == "metrics":
        assert part.series is not None
        times = part.series.times
        part.series = Series(times, {f"m{number}": times for number in range(4)})
    elif what == "executables":
        part.executables = [ExecutableUse(path=b"a")] * 4
    elif what == "gpus":
        part.gpus = [GpuUse(key="0")] * 4
    else:
        part.steps = [StepUse(step=str(number)) for number in range(4)]
    answer = app_with(store).post("/api/v1/batches", content=wire.encode(sent))
    assert (answer.status_code, answer.json()["detail"]) == (
        422,
        f"the batch has 4 {what}; at most 3 allowed",
    )
    assert store.info().agents == 0


class Held:
    """A store whose writer waits until it is let go."""

    writes_in_parallel = False

    def __init__(self, store: Store) -> None:
        self._store = store
        self.database = store.database
        self.go_on = threading.Event()
        self.written: list[bool] = []

    def write_all(self, sent: Any) -> list[Written]:
        self.go_on.wait(100)
        answers = [self._store.write(one) for one in sent]
        self.written += answers
        return [Written(answer) for answer in answers]


def test_a_busy_store_is_said_in_time_and_the_next_try_is_a_duplicate(store: Store) -> None:
    held: Any = Held(store)
    settings = ServerSettings(ingest=IngestSettings(queue_timeout=0.05))
    app = create_app(held, TOKEN, delay=0, settings=settings)
    data = wire.encode(batch())
    # One event loop for both requests, since the first one's thread outlives its answer.
    with TestClient(app, base_url="http://127.0.0.1", headers=BEARER) as client:
        answer = client.post("/api/v1/batches", content=data)
        assert answer.status_code == 503
        assert answer.json()["detail"].startswith("the store is busy")
        assert int(answer.headers["Retry-After"]) > 0
        held.go_on.set()
        wait_until(lambda: held.written == [True])
        wait_until(lambda: client.post("/api/v1/batches", content=data).status_code == 200)
        assert set(held.written[1:]) == {False}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BackgroundServer]:
    settings = Settings()
    settings.store.location = str(tmp_path / "store.db")
    settings.server.port = 0
    settings.server.ingest = IngestSettings(body_limit=1_000_000, body_timeout=3)
    with BackgroundServer(settings) as running:
        yield running


def raw(server: BackgroundServer, *pieces: bytes) -> bytes:
    """Send bytes as they are and read to the end."""
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        for piece in pieces:
            connection.sendall(piece)
        received = b""
        while part := connection.recv(65536):
            received += part
    return received


def head(server: BackgroundServer, size: int, token: str | None = None) -> bytes:
    return (
        f"POST /api/v1/batches HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n"
        f"Authorization: Bearer {token or server.token}\r\nConnection: close\r\n\r\n"
    ).encode()


def test_a_client_that_sends_slowly_or_not_at_all_is_given_up(server: BackgroundServer) -> None:
    answer = raw(server, head(server, 1000), b"JSB2")
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"not complete after 3 seconds" in answer


def test_an_upload_that_stalls_is_given_up(tmp_path: Path) -> None:
    settings = Settings()
    settings.store.location = str(tmp_path / "store.db")
    settings.server.port = 0
    settings.server.ingest = IngestSettings(stall_timeout=0.1)
    with BackgroundServer(settings) as server:
        answer = raw(server, head(server, 1000), b"JSB2")
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"no data of the batch arrived for 0.1 seconds" in answer


def test_a_client_that_goes_away_leaves_nothing_behind(server: BackgroundServer) -> None:
    data = wire.encode(batch())
    port = int(server.url.rpartition(":")[2])
    for cut in (0, 1, len(data) // 2, len(data) - 1):
        with socket.create_connection(("127.0.0.1", port), 60) as connection:
            connection.sendall(head(server, len(data)) + data[:cut])
    with Store.open(server.settings.store.location) as store:
        assert store.info().agents == 0
    assert b'{"status":"stored"}' in raw(server, head(server, len(data)) + data)


def test_a_refusal_is_heard_by_who_is_still_sending(server: BackgroundServer) -> None:
    large = b"x" * 8_000_000
    assert raw(server, head(server, len(large)), large).startswith(b"HTTP/1.1 413")
    assert raw(server, head(server, len(large), "wrong"), large).startswith(b"HTTP/1.1 401")


def test_huge_numbers_of_jobs_do_not_reach_the_store(store: Store) -> None:
    sent = batch()
    info = JobInfo(cluster="alpha", job_id=1, source="cgroup")
    sent.jobs = [info] * (receiver.MAX_ITEMS["jobs"] + 1)
    answer = app_with(store).post("/api/v1/batches", content=wire.encode(sent))
    assert answer.status_code == 422
    assert "16,385 jobs; at most 16,384 allowed" in answer.json()["detail"]


def test_refused_batches_are_logged_once(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    client = app_with(store)
    caplog.set_level("INFO", "jobsight.server")
    for _ in range(3):
        assert client.post("/api/v1/batches", content=b"nonsense").status_code == 400
    (refused,) = [record for record in caplog.records if "refused a batch" in record.message]
    assert refused.levelname == "WARNING"
    assert client.post("/api/v1/batches", content=wire.encode(batch())).status_code == 200
    assert "are accepted again" in caplog.text


def test_slow_requests_are_logged(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobsight.server.app.SLOW", 0.0)
    caplog.set_level("DEBUG", "jobsight.server")
    app_with(store).get("/api/v1/jobs?user=secret")
    assert "GET /api/v1/jobs took" in caplog.text
    assert "secret" not in caplog.text
