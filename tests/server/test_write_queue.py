"""What waits together is written together, and everyone gets his own answer."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from jobsight.server.ingest import WriteQueue
from jobsight.server.receiver import Receipt, Receiver
from jobsight.store.store import Store
from jobsight.store.write.validation import BatchError
from jobsight.transport import wire
from jobsight.transport.wire import WireError
from tests.server.batches import batch


class Doubling:
    """Doubles numbers; a negative one is an error. The first call waits until it is let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.calls: list[list[int]] = []

    def __call__(self, numbers: Sequence[int]) -> list[int | Exception]:
        self.calls.append(list(numbers))
        self.go_on.wait(100)
        return [number * 2 if number >= 0 else ValueError(str(number)) for number in numbers]


def test_what_waits_is_taken_together() -> None:
    write = Doubling()
    writers = WriteQueue(write, threads=1, batch_size=4)

    async def send() -> list[object]:
        first = writers.submit(0)
        # The thread is at work with the first; the others wait for it.
        while not write.calls:
            await asyncio.sleep(0.001)
        others = [writers.submit(number) for number in (1, -2, 3, 4, 5)]
        write.go_on.set()
        return await asyncio.gather(first, *others, return_exceptions=True)

    answers = asyncio.run(send())
    assert write.calls == [[0], [1, -2, 3, 4], [5]]
    assert [str(answer) for answer in answers] == ["0", "2", "-2", "6", "8", "10"]
    # And from another loop, by the same thread.
    assert asyncio.run(one(writers, 7)) == 14


async def one(writers: WriteQueue[int, int], number: int) -> int:
    return await writers.submit(number)


def test_a_fault_of_all_is_told_to_all() -> None:
    def fail(_numbers: Sequence[int]) -> list[int | Exception]:
        raise OSError("the machine is on fire")

    writers: WriteQueue[int, int] = WriteQueue(fail, threads=1, batch_size=4)
    for _ in range(2):
        with pytest.raises(OSError, match="on fire"):
            asyncio.run(one(writers, 1))


def test_an_answer_that_nobody_waits_for() -> None:
    write = Doubling()
    writers = WriteQueue(write, threads=1, batch_size=1)

    async def leave() -> None:
        writers.submit(1)
        cancelled = writers.submit(2)
        cancelled.cancel()

    # The loop ends before the thread does.
    asyncio.run(leave())
    write.go_on.set()
    assert asyncio.run(one(writers, 3)) == 6
    assert write.calls == [[1], [2], [3]]


def test_several_threads_do_not_wait_for_each_other() -> None:
    both = threading.Barrier(2)

    def meet(numbers: Sequence[int]) -> list[int | Exception]:
        both.wait(60)
        return [*numbers]

    writers = WriteQueue(meet, threads=2, batch_size=1)

    async def send() -> list[int]:
        return await asyncio.gather(writers.submit(1), writers.submit(2))

    assert asyncio.run(send()) == [1, 2]


def test_each_batch_of_several_has_its_own_outcome(store: Store) -> None:
    good, late = batch(sequence=1), batch(sequence=2)
    wrong = batch(sequence=3)
    wrong.parts[0].epoch = ""
    foreign = wire.encode(batch(sequence=4))
    copied: list[bytes] = []
    arrived = [
        (wire.encode(good), None),
        (b"no batch", None),
        (wire.encode(wrong), None),
        (wire.encode(good), good.cluster),
        (foreign, "another"),
        (wire.encode(late), None),
    ]
    outcomes = Receiver(store, copied.append).accept_all(arrived)
    assert [outcomes[place] for place in (0, 3, 5)] == [
        Receipt("stored"),
        Receipt("duplicate"),
        Receipt("stored"),
    ]
    assert isinstance(outcomes[1], WireError)
    assert isinstance(outcomes[2], BatchError)
    assert "the token belongs to cluster 'another'" in str(outcomes[4])
    assert copied == [arrived[0][0], arrived[5][0]]


def test_a_copy_that_fails_is_told_to_its_own_sender_alone(store: Store) -> None:
    first, second = wire.encode(batch(sequence=1)), wire.encode(batch(sequence=2))

    def copy(data: bytes) -> None:
        if data == first:
            raise OSError("no room for a copy")

    failed, stored = Receiver(store, copy).accept_all([(first, None), (second, None)])
    assert str(failed) == "no room for a copy"
    assert stored == Receipt("stored")
