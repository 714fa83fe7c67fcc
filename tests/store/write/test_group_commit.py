"""Batches that are written together share a commit; only the invalid one fails."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from jobsight.errors import StoreError
from jobsight.store.database import Transaction
from jobsight.store.store import Store
from jobsight.store.write.batch import Written, commit_all
from tests.store.sample import batch, find, part, seconds, series, sighting


def in_threads(count: int, call: Callable[[int], object]) -> list[object]:
    """Call from ``count`` threads at once; the result or the exception of each."""
    results: list[object] = [None] * count
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        barrier.wait()
        try:
            results[number] = call(number)
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def insert_agent(number: int, *, fails: bool = False) -> Callable[[Transaction], int]:
    def insert(transaction: Transaction) -> int:
        transaction.execute(
            "INSERT INTO agents (cluster, node, version, written, received, clock_skew,"
            " skew_measured) VALUES (:cluster, 'n', '1', 1, 1, 0, 0)",
            {"cluster": f"c{number}"},
        )
        if fails:
            transaction.execute("SELECT * FROM nowhere")
        return number

    return insert


def test_writers_in_several_threads_get_their_own_answers(store: Store) -> None:
    def send(number: int) -> bool:
        # Every batch is sent twice, from two threads at once.
        sent = part(sighting(node=f"n{number // 2}"), series=series([number // 2]))
        return store.write(batch(sent, sequence=1, spool=f"s{number // 2}"))

    answers = in_threads(20, send)
    for number in range(0, 20, 2):
        assert sorted(answers[number : number + 2]) == [False, True]  # type: ignore[type-var]
    assert find(store).node_count == 10
    assert store.info().rows == 10


def test_batches_that_come_together_share_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "store.db") as store:
        commits = 0
        begin = store.database.write

        def counted() -> object:
            nonlocal commits
            commits += 1
            return begin()

        monkeypatch.setattr(store.database, "write", counted)
        sent = [batch(part(series=series([number])), sequence=number) for number in range(1, 33)]
        assert store.write_all(sent) == [Written(True)] * 32
        assert commits == 1
        assert store.write_all(sent) == [Written(False)] * 32
        assert store.write_all([]) == []


def test_only_the_failing_operation_fails(store: Store) -> None:
    operations = [insert_agent(number, fails=number % 5 == 0) for number in range(20)]
    outcomes = commit_all(store.database, operations)
    for number, outcome in enumerate(outcomes):
        if number % 5:
            assert outcome == number
        else:
            assert isinstance(outcome, StoreError)
    assert store.info().agents == 16
    assert store.write(batch(part(series=series([1]))))
    assert seconds(store, find(store).id) == [1]


def test_a_single_operation_reports_its_own_failure(store: Store) -> None:
    (outcome,) = commit_all(store.database, [insert_agent(1, fails=True)])
    assert isinstance(outcome, StoreError)
    assert store.info().agents == 0
