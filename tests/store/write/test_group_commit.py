"""Writers that share a commit: each gets his own answer, and only one's own fault fails."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobsight.errors import StoreError
from jobsight.store.database import Transaction
from jobsight.store.store import Store
from jobsight.store.write.batch import Group
from tests.store.sample import batch, find, part, seconds, series, sighting


def together(count: int, work: Callable[[int], object]) -> list[object]:
    """Call from so many threads at once; what each got, or its exception."""
    results: list[object] = [None] * count
    barrier = threading.Barrier(count)

    def call(number: int) -> None:
        barrier.wait()
        try:
            results[number] = work(number)
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=call, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_each_gets_his_own_answer(store: Store) -> None:
    def send(number: int) -> bool:
        # Every batch comes twice, from two threads at once.
        sent = part(sighting(node=f"n{number // 2}"), series=series([number // 2]))
        return store.write(batch(sent, sequence=1, spool=f"s{number // 2}"))

    answers = together(20, send)
    for number in range(0, 20, 2):
        assert sorted(answers[number : number + 2]) == [False, True]  # type: ignore[type-var]
    assert len(find(store).nodes) == 10
    assert store.info().rows == 10


def test_commits_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(tmp_path / "store.db") as store:
        commits = 0
        begin = store.database.write

        def counted() -> object:
            nonlocal commits
            commits += 1
            return begin()

        monkeypatch.setattr(store.database, "write", counted)
        group = Group(store.database)

        def work(_transaction: Transaction) -> None:
            # As slow as a disk: the others come meanwhile.
            time.sleep(0.002)

        def many(_number: int) -> None:
            for _ in range(10):
                group.run(work)

        assert together(8, many) == [None] * 8
        assert commits < 40


def test_only_the_one_at_fault_fails(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        group = Group(store.database)
        gate = threading.Event()

        def work(number: int) -> Callable[[Transaction], int]:
            def run(transaction: Transaction) -> int:
                gate.wait(10)
                name = {"cluster": f"c{number}"}
                transaction.execute(
                    "INSERT INTO agents (cluster, node, version, written, received, clock_skew,"
                    " skew_found) VALUES (:cluster, 'n', '1', 1, 1, 0, 0)",
                    name,
                )
                if number % 5 == 0:
                    transaction.execute("SELECT * FROM nowhere")
                return number

            return run

        threading.Timer(0.2, gate.set).start()
        answers = together(20, lambda number: group.run(work(number)))
        for number, answer in enumerate(answers):
            if number % 5:
                assert answer == number
            else:
                assert isinstance(answer, StoreError)
        assert store.info().agents == 16
        assert store.write(batch(part(series=series([1]))))
        assert seconds(store, find(store).id) == [1]
