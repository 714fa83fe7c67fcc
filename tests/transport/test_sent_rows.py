"""Rows of executables are sent when they changed, and none is lost with a batch."""

import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from jobsight.model import Batch, ExecutableUse, JobPart, Sighting
from jobsight.server.receiver import EmbeddedTarget, Receiver
from jobsight.store.store import Store
from jobsight.transport.delivery import Answer, Delivery
from jobsight.transport.spool import COMPLETE_INTERVAL, SentRows, Spool, SpoolWriter
from jobsight.transport.wire import decode
from tests.server.batches import START
from tests.server.batches import batch as whole_batch


class Job:
    """A running job with executables whose figures are known."""

    def __init__(self, executables: int) -> None:
        self.rows = [
            ExecutableUse(path=b"/home/alice/programs/%04d" % number, executions=1, cpu_time=number)
            for number in range(executables)
        ]
        self._number = 0

    def run(self, number: int) -> None:
        """One more execution of an executable."""
        use = self.rows[number]
        use.executions += 1
        use.cpu_time += 1_000_000

    def batch(self, *, final: bool = False) -> Batch:
        self._number += 1
        made = whole_batch(end=None, state="RUNNING")
        made.written = START + self._number
        made.parts = [
            JobPart(
                sighting=Sighting("alpha", 12, "n1", "boot", START),
                epoch="one",
                executables=[ExecutableUse(**_fields(use)) for use in self.rows],
                final=final,
            )
        ]
        return made

    def figures(self) -> dict[bytes, tuple[int, int]]:
        return {use.path: (use.executions, use.cpu_time) for use in self.rows}


def _fields(use: ExecutableUse) -> dict[str, object]:
    return {name: getattr(use, name) for name in use.__struct_fields__}


def stored(store: Store) -> dict[bytes, tuple[int, int]]:
    (run,) = store.runs()
    found = store.executables(run.id)
    return {one.use.path: (one.use.executions, one.use.cpu_time) for one in found}


class Writer:
    """Writes a batch and waits until it is in the spool."""

    def __init__(self, spool: Spool) -> None:
        self._written = threading.Semaphore(0)
        self.writer = SpoolWriter(spool, self._written.release)

    def put(self, batch: Batch, *, complete: bool = False) -> None:
        self.writer.put(batch, complete=complete)
        assert self._written.acquire(timeout=60)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "spool", sync=False)
    yield spool
    spool.close()


def sent(spool: Spool) -> list[int]:
    """The rows of each batch in the spool."""
    return [
        sum(len(part.executables) for part in decode(data).parts) for _, data in spool.pending()
    ]


def test_a_batch_has_the_rows_that_changed_and_the_last_one_has_all(
    tmp_path: Path, spool: Spool
) -> None:
    """Threat S-03: a job of many programs does not send all of them every time."""
    job, writer = Job(1000), Writer(spool)
    writer.put(job.batch())
    for number in (3, 500, 999):
        job.run(number)
    writer.put(job.batch())
    writer.put(job.batch())
    job.run(7)
    writer.put(job.batch(final=True))
    writer.put(job.batch())
    writer.put(job.batch(), complete=True)
    assert sent(spool) == [1000, 3, 0, 1000, 1000, 1000]
    with Store.open(tmp_path / "store.db") as store:
        assert Delivery(spool, EmbeddedTarget(Receiver(store))).deliver()
        assert stored(store) == job.figures()
    writer.writer.end()


def test_a_new_writer_begins_with_all_rows(spool: Spool) -> None:
    """As after a restart of the agent."""
    job = Job(10)
    for _ in range(2):
        writer = Writer(spool)
        writer.put(job.batch())
        writer.writer.end()
    assert sent(spool) == [10, 10]


def test_all_rows_are_sent_again_now_and_then() -> None:
    """A store that was restored from a backup gets what it lacks."""
    times = [0.0, 1.0, COMPLETE_INTERVAL, COMPLETE_INTERVAL + 1]
    rows = SentRows(iter(times).__next__)
    job = Job(10)
    counts = []
    for _ in times:
        changed = rows.changes(job.batch(), 0)
        rows.add(changed)
        counts.append(len(changed.parts[0].executables))
    assert counts == [10, 0, 10, 0]


class Refusing:
    """A server that never accepts some batches."""

    def __init__(self, target: EmbeddedTarget, random: Random) -> None:
        self._target = target
        self._random = random
        self.refuses = True

    def send(self, data: bytes) -> Answer:
        if self.refuses and self._random.random() < 0.2:
            return Answer(stored=False, refused=True, reason="for the test")
        return self._target.send(data)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_lost_with_a_batch_is_sent_again(
    tmp_path: Path, spool: Spool, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Batches are dropped because the spool is full or cannot be written, and refused."""
    random = Random(seed)
    job, writer = Job(200), Writer(spool)
    written = spool._write

    def write(name: str, data: bytes) -> None:
        if name.endswith(".batch") and random.random() < 0.2:
            raise OSError(28, "No space left on device")
        written(name, data)

    with Store.open(tmp_path / "store.db") as store:
        target = Refusing(EmbeddedTarget(Receiver(store)), random)
        delivery = Delivery(spool, target)
        monkeypatch.setattr(spool, "_write", write)
        for _ in range(40):
            for _ in range(random.randrange(5)):
                job.run(random.randrange(len(job.rows)))
            spool.limit = random.choice([4_000, 2**20])
            writer.put(job.batch())
            if random.random() < 0.5:
                assert delivery.deliver()
        assert spool.dropped
        assert spool.refused
        # From now on nothing is lost: the next batch has all that was.
        monkeypatch.undo()
        spool.limit, target.refuses = 2**20, False
        assert delivery.deliver()
        writer.put(job.batch())
        assert delivery.deliver()
        assert stored(store) == job.figures()
    writer.writer.end()
