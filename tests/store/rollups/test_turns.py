"""Rollups in turns: no cluster keeps another waiting, and an ordinary stop is no failure."""

from collections.abc import Callable

import msgspec
import pytest

from jobsight.config.settings import SoftwareSettings
from jobsight.model import SECOND, Sighting
from jobsight.software import naming, worker
from jobsight.software.rules import RuleSet
from jobsight.store import dead_letters
from jobsight.store.checkpoints import list_checkpoints, set_checkpoint
from jobsight.store.database import Database
from jobsight.store.rollups import rollups, shares
from jobsight.store.rollups.rollups import sum_up_all
from jobsight.store.rollups.usage import Question, count_waiting, usage
from jobsight.store.schema.tables import usage_by_day
from jobsight.store.store import Store
from tests.store.many import count
from tests.store.sample import START, batch, info, part, use
from tests.store.sums import rows, sum_up_everything

HOUR = 3600 * SECOND


def _write(store: Store, job: int, cluster: str = "c1", paths: int = 0) -> None:
    record = msgspec.structs.replace(info(job, cpus=1, end=START + HOUR), cluster=cluster)
    uses = [use(b"/opt/%d/%d" % (job, number), SECOND) for number in range(paths)]
    seen = part(Sighting(cluster, job, "n1", "boot", START), executables=uses)
    store.write(batch(record, seen, cluster=cluster))


def _runs(store: Store, cluster: str) -> int:
    """The runs of a cluster that are in the rollups."""
    return sum(row[5] for row in rows(store, usage_by_day) if row[1] == cluster)


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group has one run."""
    monkeypatch.setattr(rollups, "WORK_BATCH_SIZE", 0)


def _after_turns(turns: int) -> tuple[Callable[[], bool], Callable[[], None]]:
    """A ``stopped`` that is true from a turn on, and the ``before_turn`` that counts them."""
    begun = 0

    def begin() -> None:
        nonlocal begun
        begun += 1

    return lambda: begun > turns, begin


@pytest.mark.usefixtures("small_groups")
def test_the_runs_of_one_cluster_do_not_keep_another_waiting(store: Store) -> None:
    for job in range(1, 8):
        _write(store, job, "hostile", paths=2)
    _write(store, 9, "honest", paths=2)
    naming.name_all_new(store.database, RuleSet([]))
    stopped, begin = _after_turns(1)
    sum_up_all(store.database, stopped=stopped, before_turn=begin)
    assert (_runs(store, "hostile"), _runs(store, "honest")) == (1, 1)
    with store.database.read() as connection:
        assert count_waiting(connection, "honest") == (0, 0)
        assert count_waiting(connection, "hostile") == (6, 0)
        assert count_waiting(connection) == (6, 0)


@pytest.mark.usefixtures("small_groups")
def test_what_arrives_meanwhile_does_not_wait_for_the_end(store: Store) -> None:
    """Neither the runs of a cluster whose pass has ended, nor their new paths."""
    for job in range(1, 8):
        _write(store, job, "hostile", paths=2)
    _write(store, 9, "honest")
    turns = 0

    def begin() -> None:
        nonlocal turns
        turns += 1
        if turns == 3:
            _write(store, 10, "honest", paths=2)
        naming.name_all_new(store.database, RuleSet([]))

    sum_up_all(store.database, stopped=lambda: turns > 4, before_turn=begin, interval=0)
    assert _runs(store, "honest") == 2
    assert _runs(store, "hostile") < 7
    # Without new runs the end is reached.
    assert sum_up_all(store.database, interval=0).after is None
    assert _runs(store, "hostile") == 7


@pytest.mark.usefixtures("small_groups")
def test_new_runs_do_not_make_a_round_endless(store: Store) -> None:
    _write(store, 1)
    turns = 0

    def begin() -> None:
        nonlocal turns
        turns += 1
        assert turns < 10
        _write(store, 1 + turns)

    sum_up_all(store.database, before_turn=begin)
    assert count(store, "runs", "stale")


def test_a_stop_leaves_no_mark_of_a_killed_process(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the runs of the group would be processed one by one, and one of them be a dead letter
    after the next stop."""
    for job in (1, 2, 3):
        _write(store, job)
    computed: list[int] = []
    compute = rollups.contribution

    def counting(run: shares.RunFacts, *arguments: object) -> object:
        computed.append(run.id)
        return compute(run, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rollups, "contribution", counting)
    sum_up_all(store.database, stopped=lambda: len(computed) > 1)
    assert len(computed) == 2
    with store.database.query() as transaction:
        assert list_checkpoints(transaction, rollups._IN_PROGRESS) == {}
    assert dead_letters.list_dead_letters(store.database) == []
    assert sum_up_everything(store).runs == 2


def test_a_contribution_of_many_rows_is_continued_after_a_stop(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollups, "ROWS_BATCH_SIZE", 2)
    store.write(batch(info(1, cpus=1, end=START + 240 * HOUR)))
    pieces = 0
    store_piece = rollups._store

    def counting(*arguments: object) -> object:
        nonlocal pieces
        pieces += 1
        return store_piece(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rollups, "_store", counting)
    sum_up_all(store.database, stopped=lambda: pieces >= 2)
    assert pieces == 2
    assert count(store, "runs", "stale") == 1
    assert dead_letters.list_dead_letters(store.database) == []
    sum_up_everything(store)
    with store.database.read() as connection:
        (row,) = usage(connection, Question(by=("user",)))
    assert row.core_hours == 240


def test_more_paths_than_a_turn_names_are_all_named(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(naming, "NEW_BATCH_SIZE", 1)
    monkeypatch.setattr(worker, "NEW_TURN_SIZE", 2)
    for job in (1, 2, 3):
        _write(store, job, paths=3)
    done = worker.Worker(store, SoftwareSettings()).once()
    assert (done.runs, done.after) == (3, None)
    assert _runs(store, "c1") == 3


@pytest.mark.usefixtures("small_groups")
def test_a_poison_run_delays_its_own_cluster_only(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs of a group in which a process was killed are tried one by one, before any group of
    that cluster, while the other clusters have their turns."""
    for job in (1, 2, 3):
        _write(store, job, "hostile", paths=1)
    for job in (4, 5):
        _write(store, job, "honest", paths=1)
    naming.name_all_new(store.database, RuleSet([]))
    with store.database.write() as transaction:
        set_checkpoint(transaction, f"{rollups._IN_PROGRESS}1", 3, "elsewhere 1 hostile")
    alone: list[int] = []
    sum_up_alone = rollups._sum_up_alone

    def counting(database: Database, run_id: int, stopped: Callable[[], bool]) -> rollups.Round:
        alone.append(run_id)
        return sum_up_alone(database, run_id, stopped)

    monkeypatch.setattr(rollups, "_sum_up_alone", counting)
    stopped, begin = _after_turns(2)
    sum_up_all(store.database, stopped=stopped, before_turn=begin)
    assert (_runs(store, "hostile"), _runs(store, "honest")) == (2, 2)
    assert sum_up_all(store.database).after is None
    assert len(alone) == 3
    assert _runs(store, "hostile") == 3
    with store.database.query() as transaction:
        assert list_checkpoints(transaction, rollups._IN_PROGRESS) == {}
