"""Servers that are killed, doubled, shut out of their store or sent bombs; nothing is lost."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from jobsight.config.settings import IngestSettings
from jobsight.store.store import Store
from jobsight.transport import wire
from jobsight.transport.delivery import Answer, Delivery, DeliveryThread, HttpTarget
from jobsight.transport.spool import Spool
from tests.server import damage
from tests.server.batches import batch
from tests.server.processes import ServerProcess, Spawner
from tests.store import sample
from tests.store.postgresql import Server
from tests.waiting import wait_until

MEBIBYTE = 2**20


class Sender:
    """An agent in small: batches of one sample each through a spool, as fast as they are taken."""

    def __init__(self, folder: Path, number: int, server: ServerProcess) -> None:
        self.number = number
        self.sent = 0
        self.spool = Spool(folder / f"spool-{number}")
        self.delivery = DeliveryThread(Delivery(self.spool, server.target()), max_delay=0.05)
        self._ended = threading.Event()
        self._producer = threading.Thread(target=self._produce)

    def start(self) -> None:
        self.delivery.start()
        self._producer.start()

    def _produce(self) -> None:
        while not self._ended.is_set():
            seen = sample.sighting(self.number, node=f"n{self.number}")
            steps = [sample.step("batch", self.sent, second=self.sent)]
            part = sample.part(seen, series=sample.series([self.sent]), steps=steps)
            assert self.spool.put(sample.batch(part, node=f"n{self.number}"))
            self.sent += 1
            self.delivery.notify()
            # A spool that runs ahead of the server would only make the test longer.
            self._ended.wait(0.002 if len(self.spool) < 50 else 0.05)

    def end(self) -> None:
        """Stop producing and wait until everything is delivered."""
        self._ended.set()
        self._producer.join()
        try:
            wait_until(lambda: len(self.spool) == 0)
        finally:
            self.delivery.end()
            self.spool.close()


def kill_often(spawner: Spawner, location: str, folder: Path, kills: int) -> None:
    choose = random.Random()
    with ServerProcess(spawner, folder / "server", location) as server:
        senders = [Sender(folder, number, server) for number in range(1, 4)]
        for sender in senders:
            sender.start()
        try:
            for _ in range(kills):
                time.sleep(choose.uniform(0, 0.3))
                server.end()
                server.start()
        finally:
            for sender in senders:
                sender.end()
    with Store.open(location) as store:
        for sender in senders:
            assert sender.sent > kills
            assert sender.spool.refused == sender.spool.dropped == 0
            run = sample.find(store, str(sender.number))
            assert sample.seconds(store, run.id) == list(range(sender.sent))
            assert store.steps(run.id)[0].use.cpu_time == sender.sent - 1
        # Not one row twice, also where reading would hide it.
        assert store.info().rows == sum(sender.sent for sender in senders)


def test_a_receiver_that_is_killed_has_every_batch_once(
    spawner: Spawner, location: str, tmp_path: Path
) -> None:
    kill_often(spawner, location, tmp_path, 5)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_receiver_that_is_killed_a_hundred_times(
    spawner: Spawner, location: str, tmp_path: Path
) -> None:
    kill_often(spawner, location, tmp_path, 100)


def test_two_servers_on_one_database_get_the_same_batches(
    spawner: Spawner, postgresql_server: Server, tmp_path: Path
) -> None:
    location = postgresql_server.new_database()
    made = [
        wire.encode(
            sample.batch(
                sample.part(
                    sample.sighting(7, node=f"n{number % 5}"), series=sample.series([number])
                ),
                node=f"n{number % 5}",
                sequence=number,
            )
        )
        for number in range(60)
    ]
    with (
        ServerProcess(spawner, tmp_path / "one", location) as one,
        ServerProcess(spawner, tmp_path / "other", location) as other,
        ThreadPoolExecutor(8) as threads,
    ):
        targets = (one.target(), other.target())
        answers = threads.map(lambda data: [target.send(data).stored for target in targets], made)
        backwards = threads.map(
            lambda data: [target.send(data).stored for target in reversed(targets)], made[::-1]
        )
        assert all(stored for pair in [*answers, *backwards] for stored in pair)
    with Store.open(location) as store:
        assert store.info().rows == 60
        (run,) = store.runs()
        assert sorted(len(found.times) for found in store.series(run.id)) == [12] * 5


def tiny_records(what: str, one: dict[str, object]) -> bytes:
    """A header as large as is allowed of the smallest records there are."""
    tree, _ = damage.opened(batch())
    part = tree["parts"][0]
    del part["series"]
    part[what] = []
    room = wire.MAX_HEADER - len(msgspec.msgpack.encode(tree)) - 8
    part[what] = [one] * (room // len(msgspec.msgpack.encode(one)))
    return damage.packed(tree)


def deliver(target: HttpTarget, data: bytes) -> Answer:
    """Send as an agent does: again after the time that a refusal for the rate names."""
    while (answer := target.send(data)).wait:
        time.sleep(answer.wait)
    return answer


@pytest.mark.parametrize("rate", [0, IngestSettings().bytes_per_second])
def test_bombs_from_many_sides_do_not_fill_the_memory(
    spawner: Spawner, tmp_path: Path, rate: int
) -> None:
    bombs = {
        "zeros": damage.sealed(b"\0" * wire.MAX_UNPACKED),
        "executables": tiny_records("executables", {"path": b""}),
        "steps": tiny_records("steps", {"step": ""}),
        "noise": wire.MAGIC + random.Random(1).randbytes(16 * MEBIBYTE - 4),
    }
    memory = 400 * MEBIBYTE
    store = str(tmp_path / "store.db")
    limits = {"ingest__memory": str(memory), "ingest__bytes_per_second": str(rate)}
    with ServerProcess(spawner, tmp_path / "server", store, **limits) as server:
        assert server.target().send(wire.encode(batch())).stored
        before = server.peak_memory()
        with ThreadPoolExecutor(16) as threads:
            answers = list(
                threads.map(lambda data: server.target().send(data), list(bombs.values()) * 5)
            )
        grown = server.peak_memory() - before
        assert deliver(server.target(), wire.encode(batch(13))).stored
    assert not any(answer.stored for answer in answers)
    assert any(answer.refused for answer in answers)
    for answer in answers:
        assert rate or "bytes per second" not in answer.reason
        assert answer.reason.startswith(("the server answered 4", "the server answered 503"))
    # What is unpacked at once, the bodies that wait, and what the allocator keeps of both.
    # Without bounds it would be thousands.
    print(f"the server grew by {grown / MEBIBYTE:.0f} MiB")
    assert grown < memory + (8 * 16 + 256) * MEBIBYTE
