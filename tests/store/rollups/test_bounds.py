"""Rollups that no run can stop: bounded work, runs at fault set aside, all others go on."""

import os
import signal
import subprocess
import sys

import pytest

from jobsight.model import SECOND
from jobsight.software.naming import name_all_new
from jobsight.software.rules import RuleSet
from jobsight.store import dead_letters
from jobsight.store.checkpoints import list_checkpoints
from jobsight.store.dead_letters import ROLLUP
from jobsight.store.rollups import rollups, shares
from jobsight.store.rollups.rollups import sum_up_all
from jobsight.store.rollups.shares import DAY, MAX_PATHS, NOT_ATTRIBUTED, OTHER
from jobsight.store.rollups.usage import Question, count_waiting, usage
from jobsight.store.schema.tables import software_by_day, usage_by_day
from jobsight.store.store import Store
from jobsight.store.write.bounds import MAX_COUNT, MAX_CPUS, MAX_GPUS, MAX_MEMORY
from tests.software.rule_sets import rule_set
from tests.store.many import count
from tests.store.sample import START, batch, find, info, part, sighting, totals, use
from tests.store.sums import from_scratch, rows, sum_up_everything, sums

HOUR = 3600 * SECOND
#: Each path has a name of its own, as the users of conda have.
EACH = rule_set("^/envs/(?P<name>[^/]+)/ %(name)s 1")


def _many_names(store: Store, names: int, days: int, job: int = 7) -> None:
    end = START + days * DAY
    uses = [use(b"/envs/e%06d/bin/p" % number, (number + 1) * 1000) for number in range(names)]
    seen = part(
        sighting(job), totals=totals(10, sum(use.cpu_time for use in uses)), executables=uses
    )
    record = info(job, end=end, cpus=4, user="anna")
    store.write(batch(record, seen, written=end))


def _set(store: Store, job: int, **columns: object) -> None:
    """Values that intake refuses by now, as an older store may have them."""
    assignments = ", ".join(f'"{name}" = :{name}' for name in columns)
    with store.database.write() as transaction:
        sql = f"UPDATE runs SET {assignments} WHERE job_id = :job"
        transaction.execute(sql, columns | {"job": job})


def test_names_beyond_the_largest_are_one_row(store: Store) -> None:
    """S-03: the largest by CPU time are kept, and the sums stay exact."""
    names = MAX_PATHS + 50
    _many_names(store, names, days=1)
    sum_up_everything(store, EACH)
    software = rows(store, software_by_day)
    by_id: dict[int, int] = {}
    for row in software:
        by_id[row[5]] = by_id.get(row[5], 0) + row[8]
    assert len(by_id) == MAX_PATHS + 1
    # The smallest are together: 1 to 50 microseconds.
    assert by_id[OTHER] == 50 * 51 // 2
    assert sum(by_id.values()) == sum(row[7] for row in rows(store, usage_by_day))
    assert sum(by_id.values()) == names * (names + 1) // 2
    with store.database.read() as connection:
        kinds = {row.kind for row in usage(connection, Question(by=("software",)))}
    assert kinds == {"software", "other software"}
    assert sums(store) == from_scratch(store, EACH)


def test_days_times_paths_are_bounded_and_exact(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-01: a run of years with hundreds of executables."""
    monkeypatch.setattr(shares, "MAX_SHARES", 6100)
    _many_names(store, 300, days=1)
    _set(store, 7, start=START - 3000 * DAY)
    sum_up_everything(store, EACH)
    software, days = rows(store, software_by_day), rows(store, usage_by_day)
    assert len(days) == 3002
    assert len(software) <= shares.MAX_SHARES + 2 * len(days)
    assert sum(row[7] for row in days) == sum(row[8] for row in software) == 300 * 301 // 2
    assert sum(row[8] for row in days) == sum(row[9] for row in software)
    assert sum(row[8] for row in days) == 4 * 3001 * 86400 * 10**6
    assert sum(row[6] for row in days) == 300
    assert sums(store) == from_scratch(store, EACH)


def test_a_change_of_many_rows_is_stored_in_pieces(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each transaction leaves the rollups equal to the stored contributions."""
    monkeypatch.setattr(rollups, "ROWS_BATCH_SIZE", 40)
    _many_names(store, 20, days=10)
    sum_up_everything(store, EACH)
    whole = sums(store)
    assert len(whole[1]) == 11 * 20
    # To another user: first all is taken out, then put in.
    store.record_jobs([info(end=START + 10 * DAY, user="bert")])
    sum_up_everything(store, EACH)
    assert {row[2] for row in rows(store, software_by_day)} == {"bert"}
    assert sums(store) == from_scratch(store, EACH)


def test_a_run_of_too_many_executables_is_summed_by_the_database(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    _many_names(store, 60, days=3)
    sum_up_everything(store, EACH)
    expected = sums(store)
    monkeypatch.setattr(rollups, "USES_BATCH_SIZE", 10)
    assert from_scratch(store, EACH) == expected
    monkeypatch.setattr(rollups, "MAX_PATHS", 5)
    monkeypatch.setattr(shares, "MAX_PATHS", 5)
    days, software = from_scratch(store, EACH)
    # Executions are split over days by path: only their sum does not depend on the paths.
    assert sum(row[6] for row in days) == sum(row[6] for row in expected[0])
    without = [{(*row[:6], *row[7:]) for row in each} for each in (days, expected[0])]
    assert without[0] == without[1]
    assert len({row[5] for row in software}) == 6


def test_a_sum_beyond_63_bits_sets_its_run_aside(store: Store) -> None:
    """S-02: the sums of all others go on, and can be read."""
    for job in range(1, 81):
        store.write(batch(info(job, cpus=1, user="anna", end=START + 20 * HOUR)))
        _set(store, job, cpus=2**24)
    store.write(batch(info(99, cpus=2, user="carol", end=START + HOUR)))
    sum_up_everything(store)
    letters = dead_letters.list_dead_letters(store.database)
    assert 0 < len(letters) < 80
    assert all(letter.cluster == "c1" and letter.run for letter in letters)
    with store.database.read() as connection:
        hours = {row.user: row.core_hours for row in usage(connection, Question(by=("user",)))}
        assert len(usage(connection, Question(by=("software", "day")))) > 0
        assert count_waiting(connection, "c1") == (0, len(letters))
    assert hours["carol"] == 2
    assert hours["anna"] == (80 - len(letters)) * 20 * 2**22
    # Not tried again by the next round, and not lost.
    assert sum_up_all(store.database).runs == 0
    assert count(store, "runs", "stale") == len(letters)
    dead_letters.retry(store.database, letters[0].name)
    assert sum_up_all(store.database).runs == 0
    assert len(dead_letters.list_dead_letters(store.database)) == len(letters)


def test_long_names_of_owners_fit_an_index(store: Store) -> None:
    """S-02 on PostgreSQL: 2,704 bytes are the most that a row of an index may have."""
    noise = [os.urandom(1000).hex() for _ in range(3)]
    store.write(batch(info(1, cpus=1, end=START + HOUR), info(2, cpus=1, end=START + HOUR)))
    _set(store, 1, account=noise[0], partition=noise[1])
    sum_up_everything(store)
    assert dead_letters.list_dead_letters(store.database) == []
    assert sum(row[5] for row in rows(store, usage_by_day)) == 2


def test_a_run_that_cannot_be_computed_is_set_aside(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job in (1, 2, 3):
        store.write(batch(info(job, cpus=job, end=START + HOUR)))
    poison = find(store, "2").id
    compute = rollups.contribution

    def failing(run: shares.RunFacts, *arguments: object) -> object:
        if run.id == poison:
            raise MemoryError
        return compute(run, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rollups, "contribution", failing)
    assert sum_up_everything(store).runs == 2
    (letter,) = dead_letters.list_dead_letters(store.database)
    assert (letter.key, letter.reason, letter.tries) == (str(poison), "MemoryError", 1)
    # Tried again after an hour, three times in all, and resolved by a success.
    monkeypatch.setattr(rollups, "RETRY_DELAY", 0)
    for tries in (2, 3, 3):
        sum_up_all(store.database)
        (letter,) = dead_letters.list_dead_letters(store.database)
        assert (letter.tries, letter.reason) == (tries, "MemoryError")
    monkeypatch.setattr(rollups, "contribution", compute)
    dead_letters.retry(store.database, letter.name)
    assert sum_up_all(store.database).runs == 1
    assert dead_letters.list_dead_letters(store.database) == []
    assert sum(row[8] for row in rows(store, usage_by_day)) == 6 * 3600 * 10**6


#: Updates the rollups, and is killed in the work on one run.
KILLED = """
import os, signal, sys
from jobsight.store.rollups import rollups
from jobsight.store.store import Store
compute = rollups.contribution
def killed(run, *arguments):
    if run.id == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return compute(run, *arguments)
rollups.contribution = killed
with Store.open(sys.argv[1]) as store:
    rollups.sum_up_all(store.database)
print("survived")
"""


def test_a_run_that_kills_the_process_is_passed_over(store: Store, location: str) -> None:
    """S-01: a crash leaves the mark; the third start survives, with the sums of all others."""
    for job in (1, 2, 3):
        store.write(batch(info(job, cpus=job, end=START + HOUR)))
    name_all_new(store.database, RuleSet([]))
    poison = find(store, "2").id
    command = [sys.executable, "-c", KILLED, location, str(poison)]
    ended = [subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(4)]
    assert [each.stdout for each in ended] == ["", "", "survived\n", "survived\n"]
    (letter,) = dead_letters.list_dead_letters(store.database)
    assert (letter.key, letter.reason) == (str(poison), dead_letters.INTERRUPTED)
    assert sum(row[8] for row in rows(store, usage_by_day)) == 4 * 3600 * 10**6
    with store.database.query() as transaction:
        assert list_checkpoints(transaction, rollups._IN_PROGRESS) == {}


def test_a_run_that_changes_during_the_work_stays_stale(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(batch(info(1, cpus=1, end=START + HOUR)))
    compute = rollups.contribution

    def interrupted(run: shares.RunFacts, *arguments: object) -> object:
        store.record_jobs([info(1, cpus=5, end=START + HOUR)])
        return compute(run, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(rollups, "contribution", interrupted)
        rollups.sum_up(store.database, "c1")
    assert count(store, "runs", "stale") == 1
    sum_up_everything(store)
    assert sum(row[8] for row in rows(store, usage_by_day)) == 5 * 3600 * 10**6


def test_cpu_time_that_no_path_has_is_kept_apart_from_the_others(store: Store) -> None:
    uses = [use(b"/envs/e%d/p" % number, SECOND) for number in range(MAX_PATHS + 1)]
    seen = part(totals=totals(10, (MAX_PATHS + 5) * SECOND), executables=uses)
    store.write(batch(info(end=START + HOUR, cpus=1), seen))
    sum_up_everything(store, EACH)
    by_id = {row[5]: row[8] for row in rows(store, software_by_day)}
    assert (by_id[OTHER], by_id[NOT_ATTRIBUTED]) == (10**6, 4 * 10**6)


def test_a_run_whose_last_try_never_returned_is_not_tried_by_itself(
    store: Store, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry of what killed the process before would kill it again, every hour."""
    for job in (1, 2):
        store.write(batch(info(job, cpus=job, end=START + HOUR)))
    name_all_new(store.database, RuleSet([]))
    poison = find(store, "2").id
    with store.database.write() as transaction:
        dead_letters.mark(transaction, ROLLUP, str(poison), "c1", "MemoryError", START)
    # It is tried again, and ends the process in this try.
    killed = [sys.executable, "-c", KILLED, location, str(poison)]
    assert subprocess.run(killed, capture_output=True, check=False).returncode == -signal.SIGKILL
    (letter,) = dead_letters.list_dead_letters(store.database)
    assert (letter.tries, letter.reason) == (2, dead_letters.INTERRUPTED)
    # However long ago that was, it is not tried again by itself.
    monkeypatch.setattr(rollups, "RETRY_DELAY", 0)
    assert sum_up_all(store.database).runs == 1
    assert subprocess.run(killed, capture_output=True, check=False).returncode == 0
    assert dead_letters.list_dead_letters(store.database) == [letter]
    dead_letters.retry(store.database, letter.name)
    assert sum_up_all(store.database).runs == 1
    assert dead_letters.list_dead_letters(store.database) == []


def test_the_sums_of_the_largest_machine_fit(store: Store) -> None:
    """Honest sums never reach 63 bits: all CPUs of a cluster for a day, by one user."""
    midnight = (START // DAY + 1) * DAY
    for job in range(1, MAX_CPUS // shares._MAX_CPUS + 1):
        record = info(
            job, start=midnight, cpus=shares._MAX_CPUS, gpus=MAX_GPUS // 4, memory=MAX_MEMORY // 4,
            end=midnight + DAY, user="anna",
        )  # fmt: skip
        uses = [use(b"/envs/e/p%d" % number, 0) for number in range(10)]
        for each in uses:
            each.executions = MAX_COUNT
        store.write(batch(record, part(sighting(job, birth=midnight), executables=uses)))
    sum_up_everything(store)
    assert dead_letters.list_dead_letters(store.database) == []
    (row,) = rows(store, usage_by_day)
    assert row[8] == MAX_CPUS * 86400 * 10**6
    # Of ten executables with as many executions as one may have, each run counts as one such.
    assert row[6] == 4 * MAX_COUNT
