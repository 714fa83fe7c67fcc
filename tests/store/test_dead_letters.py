"""Dead letters: marked, resolved, listed, retried and given up; on both kinds of store."""

import logging

import msgspec
import pytest

from jobsight.cli import main as command
from jobsight.errors import StoreError
from jobsight.server.api.health import read_health
from jobsight.store import dead_letters
from jobsight.store.dead_letters import INTERRUPTED, MAX_REASON, ROLLUP
from jobsight.store.schema import statements
from jobsight.store.store import Store
from tests.store.contents import check
from tests.store.many import count
from tests.store.sample import START, batch, find, info, part


def _mark(store: Store, key: str, reason: str = INTERRUPTED, now: int = START) -> None:
    with store.database.write() as transaction:
        dead_letters.mark(transaction, ROLLUP, key, "c1", reason, now)


def _run(store: Store, job: int = 7) -> str:
    store.write(batch(info(job, end=START + 10)))
    return str(find(store, str(job)).id)


def test_a_mark_counts_its_tries_and_keeps_the_first(store: Store) -> None:
    key = _run(store)
    _mark(store, key)
    _mark(store, key, "too much", START + 5)
    (letter,) = dead_letters.list_dead_letters(store.database)
    assert (letter.kind, letter.key, letter.cluster, letter.name) == (
        ROLLUP,
        key,
        "c1",
        f"rollup:{key}",
    )
    assert (letter.reason, letter.first, letter.last, letter.tries) == (
        "too much",
        START,
        START + 5,
        2,
    )
    assert letter.run == "c1:7:20260921T141320Z"
    with store.database.write() as transaction:
        dead_letters.resolve(transaction, ROLLUP, key)
    assert dead_letters.list_dead_letters(store.database) == []


def test_a_reason_is_bounded(store: Store) -> None:
    key = _run(store)
    _mark(store, key, "x" * 10_000)
    with store.database.write() as transaction:
        dead_letters.set_reason(transaction, ROLLUP, key, "y" * 10_000, START + 1)
    (letter,) = dead_letters.list_dead_letters(store.database)
    assert (letter.reason, letter.tries, letter.last) == ("y" * MAX_REASON, 1, START + 1)


def test_a_key_of_another_kind_names_no_run(store: Store) -> None:
    with store.database.write() as transaction:
        dead_letters.mark(transaction, "mail", "not a number", "c1", "refused", START)
    (letter,) = dead_letters.list_dead_letters(store.database)
    assert letter.run is None
    assert check(store).faults == []


def test_a_dead_letter_goes_with_its_run(store: Store) -> None:
    key = _run(store)
    _mark(store, key)
    with store.database.write() as transaction:
        for statement in statements.REMOVE_RUN:
            transaction.execute(statement, {"id": int(key)})
    assert count(store, "dead_letters") == 0


def test_health_gives_the_number_as_a_reason_of_the_cluster(store: Store) -> None:
    assert read_health(store).healthy
    for job in (1, 2):
        _mark(store, _run(store, job))
    health = read_health(store)
    (cluster,) = health.clusters
    assert (health.healthy, cluster.cluster, cluster.healthy) == (False, "c1", False)
    assert cluster.dead_letters == 2
    assert cluster.reason == "2 dead letters; see `jobsight store dead-letters`"


def test_the_check_notes_dead_letters_and_removes_those_of_no_run(store: Store) -> None:
    _mark(store, _run(store))
    found = check(store)
    assert found.faults == []
    assert found.notes == ["1 dead letters of cluster c1, rollup; see jobsight store dead-letters"]
    _mark(store, "999")
    assert [fault.where for fault in check(store).faults] == ["dead_letters"]
    assert check(store, repair=True).sound
    assert check(store).faults == []
    assert count(store, "dead_letters") == 1


def test_the_command_lists_retries_and_drops(
    location: str, store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBSIGHT_STORE__LOCATION", location)
    monkeypatch.setenv("COLUMNS", "200")

    def shown(*arguments: str, code: int = 0) -> str:
        assert command.main(["store", "dead-letters", *arguments]) == code
        captured = capsys.readouterr()
        return captured.out or captured.err

    assert shown() == "no dead letters\n"
    first, second, third = (_run(store, job) for job in (1, 2, 3))
    for key in (first, second, third):
        _mark(store, key, "the sum is too large")
    assert "c1:1:20260921T141320Z" in shown()
    listed = msgspec.json.decode(shown("--json"))
    assert [each["key"] for each in listed] == [first, second, third]
    assert listed[0]["first"] == "2026-09-21T14:13:20.000000000Z"
    assert f"rollup:{first} " not in shown("--retry", f"rollup:{first}")
    # Given up: the run waits no longer for its rollups.
    assert count(store, "runs", "stale") == 3
    shown("--drop", f"rollup:{second}")
    assert count(store, "runs", "stale") == 2
    assert "there is no dead letter 'rollup:99'" in shown("--retry", "rollup:99", code=1)
    assert shown("--drop", "all") == "no dead letters\n"
    assert count(store, "runs", "stale") == 1


def test_what_is_no_dead_letter_is_refused(store: Store) -> None:
    for name in ("", "rollup", "rollup:x", "x:1"):
        with pytest.raises(StoreError, match="there is no dead letter"):
            dead_letters.drop(store.database, name)


def test_decisions_are_logged_at_debug(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "jobsight"):
        key = _run(store)
        store.write(batch(part()))
        store.record_jobs([msgspec.structs.replace(info(7, end=START + 10), name="renamed")])
        _mark(store, key, "too much")
        dead_letters.retry(store.database, f"{ROLLUP}:{key}")
    lines = "\n".join(record.getMessage() for record in caplog.records)
    assert f"sighting of job 7 on n1, created {START}: run {key} of 1 known" in lines
    assert f"job 7, run {key}: information of " in lines
    assert f"dead letter {ROLLUP}:{key} of cluster c1: too much" in lines
    assert f"dead letter {ROLLUP}:{key}: tried again" in lines
