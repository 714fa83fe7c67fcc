"""Daily rollups: right, whole, and the same however the records came."""

from __future__ import annotations

import msgspec

from jobsight.model import SECOND
from jobsight.software.naming import name_new
from jobsight.software.rules import RuleSet
from jobsight.store.maintenance.retention import EXECUTABLES
from jobsight.store.rollups.catalogue import undetermined_paths
from jobsight.store.rollups.rollups import sum_up
from jobsight.store.rollups.shares import DAY
from jobsight.store.rollups.usage import Question, node_usage
from jobsight.store.rollups.usage import usage as usage_of
from jobsight.store.schema import statements
from jobsight.store.schema.tables import software_by_day, usage_by_day
from jobsight.store.store import Store
from tests.store import postgresql
from tests.store.sample import (
    START,
    batch,
    find,
    info,
    part,
    series,
    sighting,
    totals,
    use,
    write_unbounded,
)
from tests.store.sums import from_scratch, rows, sum_up_everything, sums

FIRST_DAY = START // DAY
MINUTE = 60 * SECOND
#: Seconds from the start of the sample job to its first midnight.
TO_MIDNIGHT = ((FIRST_DAY + 1) * DAY - START) // SECOND
WHO = {"user": "anna", "account": "astro", "partition": "batch"}


def usage(store: Store) -> list[tuple[int, ...]]:
    """Day after the start, runs, CPU, core and GPU seconds, memory in MiB seconds."""
    return sorted(
        (row[0] - FIRST_DAY, row[5], *(value / 1e6 for value in row[7:10]), row[14])
        for row in rows(store, usage_by_day)
    )


def software(store: Store) -> list[tuple[int, ...]]:
    """Day, software, runs, executions, CPU, core and GPU seconds."""
    return sorted(
        (row[0] - FIRST_DAY, row[5], row[6], row[7], *(value / 1e6 for value in row[8:11]))
        for row in rows(store, software_by_day)
    )


def test_a_run_of_an_hour(store: Store) -> None:
    record = info(**WHO, cpus=4, gpus=2, memory=2**30, end=START + 60 * MINUTE, state="COMPLETED")
    uses = [use(b"/opt/a", 3000 * SECOND), use(b"/opt/b", 1000 * SECOND)]
    store.write(batch(record, part(totals=totals(3600, 5000 * SECOND), executables=uses)))
    done = sum_up_everything(store)
    assert (done.runs, done.changed, done.after) == (1, 1, None)
    assert usage(store) == [(0, 1, 5000, 4 * 3600, 2 * 3600, 1024 * 3600)]
    # Both paths wait for a name; what no path accounts for is a row of its own.
    assert software(store) == [
        (0, -1, 1, 0, 1000, 2880, 1440),
        (0, 0, 1, 2, 4000, 4 * 2880, 4 * 1440),
    ]
    assert {row[1:5] for row in rows(store, usage_by_day)} == {("c1", "anna", "astro", "batch")}
    assert sum_up_everything(store).runs == 0


def test_a_night_is_split_by_the_curve(store: Store) -> None:
    """All of the CPU time in the last minute before midnight; the allocation evenly."""
    end = TO_MIDNIGHT + 3600
    seconds = [0, TO_MIDNIGHT - 60, TO_MIDNIGHT, TO_MIDNIGHT + 60, end]
    curve = series(seconds, [0, 0, 60 * SECOND, 60 * SECOND, 60 * SECOND])
    store.write(
        batch(
            info(**WHO, cpus=1, end=START + end * SECOND),
            part(
                totals=totals(end, 60 * SECOND), series=curve, executables=[use(b"/a", 45 * SECOND)]
            ),
        )
    )
    sum_up_everything(store)
    assert usage(store) == [(0, 1, 60, TO_MIDNIGHT, 0, 0), (1, 0, 0, 3600, 0, 0)]
    assert software(store) == [
        (0, -1, 1, 0, 15, TO_MIDNIGHT / 4, 0),
        (0, 0, 1, 1, 45, TO_MIDNIGHT * 3 / 4, 0),
        (1, -1, 0, 0, 0, 900, 0),
        (1, 0, 0, 0, 0, 2700, 0),
    ]


def test_a_night_without_a_curve_is_split_evenly(store: Store) -> None:
    record = info(**WHO, cpus=2, end=START + 2 * TO_MIDNIGHT * SECOND)
    store.write(batch(record, part(totals=totals(9, 100 * SECOND))))
    sum_up_everything(store)
    assert usage(store) == [
        (0, 1, 50, 2 * TO_MIDNIGHT, 0, 0),
        (1, 0, 50, 2 * TO_MIDNIGHT, 0, 0),
    ]


def test_a_broken_curve_costs_only_its_detail(store: Store) -> None:
    record = info(**WHO, cpus=2, end=START + 2 * TO_MIDNIGHT * SECOND)
    curve = series([0, 60], [0, 0])
    store.write(batch(record, part(totals=totals(9, 100 * SECOND), series=curve)))
    with store.database.write() as transaction:
        transaction.execute("UPDATE chunks SET data = :data", {"data": b"\x01nothing"})
    sum_up_everything(store)
    assert [row[2] for row in usage(store)] == [50, 50]


def test_an_open_run_counts_to_its_last_sample_and_is_corrected(store: Store) -> None:
    store.write(batch(info(**WHO, cpus=2), part(series=series([0, 60]), totals=totals(60, 5))))
    sum_up_everything(store)
    assert usage(store) == [(0, 1, 0, 120, 0, 0)]
    store.record_jobs([info(end=START + 100 * SECOND, state="COMPLETED")])
    assert sum_up_everything(store).changed == 1
    assert usage(store) == [(0, 1, 0, 200, 0, 0)]


def test_a_job_that_waits_or_never_began_counts_nothing(store: Store) -> None:
    store.record_jobs([info(start=None, submit=START, state="PENDING", cpus=8)])
    assert sum_up_everything(store).runs == 1
    store.record_jobs([info(start=None, end=START + MINUTE, state="CANCELLED")])
    sum_up_everything(store)
    assert sums(store) == (set(), set())


def test_without_cpu_time_the_allocation_is_not_attributed(store: Store) -> None:
    store.write(
        batch(
            info(**WHO, cpus=3, end=START + MINUTE),
            part(executables=[use(b"/bin/sleep", 0)], totals=totals(60, None)),
        )
    )
    sum_up_everything(store)
    assert software(store) == [(0, -1, 1, 0, 0, 180, 0), (0, 0, 1, 1, 0, 0, 0)]


def test_processes_beyond_the_counter_are_scaled_to_it(store: Store) -> None:
    uses = [use(b"/a", 6 * SECOND), use(b"/b", 2 * SECOND)]
    record = info(**WHO, cpus=1, end=START + MINUTE)
    store.write(batch(record, part(executables=uses, totals=totals(60, 4 * SECOND))))
    sum_up_everything(store)
    assert usage(store) == [(0, 1, 4, 60, 0, 0)]
    assert software(store) == [(0, 0, 1, 2, 4, 60, 0)]


def test_wrong_numbers_do_not_run_over(store: Store) -> None:
    record = info(**WHO, cpus=2**62, gpus=-5, memory=2**63 - 1, end=START + MINUTE)
    uses = [use(b"/a", 2**63 - 1), use(b"/b", -7), use(b"/c", 2**63 - 1)]
    write_unbounded(store, batch(record, part(executables=uses, totals=totals(60, 2**63 - 1))))
    # A start of a clock that had stopped: not 200 years of days.
    stopped = info(8, start=700_000_000 * SECOND, cpus=1, end=6 * 10**18)
    write_unbounded(store, batch(stopped))
    sum_up_everything(store)
    assert len(rows(store, usage_by_day)) == 3662
    assert sums(store) == from_scratch(store)
    assert all(0 <= value < 2**63 for row in rows(store, software_by_day) for value in row[6:])


def test_wrong_numbers_of_several_runs_do_not_run_over(store: Store) -> None:
    most = 2**63 - 1
    for job in (1, 2, 3):
        record = info(job, **WHO, cpus=most, gpus=most, memory=most, end=START + 60 * MINUTE)
        uses = [msgspec.structs.replace(use(b"/opt/a", most), executions=most)]
        report = part(sighting(job), totals=totals(3600, most), executables=uses)
        write_unbounded(store, batch(record, report, sequence=job))
    sum_up_everything(store)
    assert sums(store) == from_scratch(store)
    with store.database.read() as connection:
        (row,) = usage_of(connection, Question(by=("user",)))
        assert row.executions == 3 * 2**40
        (row,) = node_usage(connection, Question(by=("user", "node")))
        assert row.executions > most
        (path,) = undetermined_paths(connection, limit=10)
        assert (path.jobs, path.executions > most) == (3, True)


def test_a_run_that_moves_to_another_user_leaves_nothing_behind(store: Store) -> None:
    store.write(batch(info(user="anna", cpus=1, end=START + MINUTE), part(totals=totals(9, 5))))
    sum_up_everything(store)
    store.record_jobs([info(user="bert", end=START + MINUTE)])
    sum_up_everything(store)
    assert {row[2] for row in rows(store, usage_by_day)} == {"bert"}
    assert {row[2] for row in rows(store, software_by_day)} == {"bert"}


def test_a_provisional_run_that_is_absorbed_is_taken_out(store: Store) -> None:
    later = START + 10 * SECOND
    store.write(batch(part(sighting(birth=later), totals=totals(60, SECOND), series=series([60]))))
    sum_up_everything(store)
    assert [row[:2] for row in usage(store)] == [(0, 1)]
    store.record_jobs([info(**WHO, cpus=1, end=START + MINUTE)])
    sum_up_everything(store)
    assert usage(store) == [(0, 1, 1, 60, 0, 0)]
    assert sums(store) == from_scratch(store)


def test_a_contribution_that_was_dropped_is_taken_out_once(store: Store) -> None:
    for job in (1, 2, 3):
        store.write(batch(info(job, **WHO, cpus=1, end=START + MINUTE)))
    sum_up_everything(store)
    gone = [find(store, "1").id, find(store, "3").id]
    with store.database.write() as transaction:
        for run_id in gone:
            for statement in statements.REMOVE_RUN:
                transaction.execute(statement, {"id": run_id})
    for _ in range(2):
        sum_up_everything(store)
        assert usage(store) == [(0, 1, 0, 60, 0, 0)]


def test_a_revision_is_given_only_where_something_changed(store: Store) -> None:
    def revision() -> int:
        with store.database.write() as transaction:
            sql = "SELECT max(revision) FROM contributions"
            return int(transaction.execute(sql).fetchone()[0])

    for job in (1, 2, 3):
        store.write(batch(info(job, **WHO, cpus=1, end=START + MINUTE)))
    sum_up_everything(store)
    assert revision() == 3
    # News that no sum depends on.
    store.record_jobs([info(2, name="other", end=START + MINUTE)])
    assert sum_up_everything(store)[:2] == (1, 0)
    assert revision() == 3
    store.record_jobs([info(2, cpus=2, end=START + MINUTE)])
    assert sum_up_everything(store)[:2] == (1, 1)
    assert revision() == 4


def test_small_transactions_come_to_the_same(store: Store) -> None:
    for job in range(1, 8):
        store.write(batch(info(job, **WHO, cpus=job, end=START + MINUTE)))
    after: int | None = 0
    rounds = []
    while after is not None:
        one = sum_up(store.database, "c1", after, limit=3)
        rounds.append(one.runs)
        after = one.after
    assert rounds == [3, 3, 1, 0]
    assert usage(store) == [(0, 7, 0, 28 * 60, 0, 0)]


def test_a_run_that_a_batch_holds_waits_for_the_next_round(
    postgresql_server: postgresql.Server,
) -> None:
    """Summing up waits for no batch (SQLite has one writer at a time anyway)."""
    with Store.open(postgresql_server.new_database()) as store:
        for job in (1, 2, 3):
            store.write(batch(info(job, **WHO, cpus=1, end=START + MINUTE)))
        sum_up_everything(store)
        held = find(store, "3").id
        store.record_jobs([info(job, cpus=4, end=START + MINUTE) for job in (1, 2, 3)])
        with store.database.write() as writer:
            writer.execute("UPDATE runs SET cpus = 2, stale = true WHERE job_id = 1")
            writer.execute(f"UPDATE contributions SET dropped = true WHERE run_id = {held}")
            assert sum_up_everything(store).runs == 1
        assert sum_up_everything(store).runs == 2
        assert usage(store) == [(0, 3, 0, 600, 0, 0)]


def test_days_and_software_add_up(store: Store) -> None:
    """Awkward numbers: three nodes, seven programs, five days."""
    end = 4 * 86400 + 12345
    record = info(**WHO, cpus=7, gpus=3, end=START + end * SECOND + 1)
    parts = [
        part(
            sighting(node=f"n{node}"),
            totals=totals(end, 10**9 * node + 7),
            executables=[
                use(b"/opt/%d" % number, 123_456_789 * number + 1) for number in range(node + 4)
            ],
        )
        for node in (1, 2, 3)
    ]
    store.write(batch(record, *parts))
    sum_up_everything(store)
    by_day: dict[int, list[int]] = {}
    for row in rows(store, software_by_day):
        sums_of_day = by_day.setdefault(row[0], [0, 0, 0, 0])
        for place in range(4):
            sums_of_day[place] += row[7 + place]
    assert {row[0]: list(row[6:10]) for row in rows(store, usage_by_day)} == by_day
    assert len(by_day) == 5
    assert sum(values[1] for values in by_day.values()) == (6 * 10**9 + 21) // 1000


def test_what_an_export_reads_is_the_run_s_whole(store: Store) -> None:
    from jobsight.store.rollups.rollups import decode_contribution

    record = info(**WHO, cpus=2, end=START + 2 * DAY)
    store.write(batch(record, part(totals=totals(9, SECOND), executables=[use(b"/a", SECOND)])))
    sum_up_everything(store)
    with store.database.write() as transaction:
        data = transaction.execute("SELECT data FROM contributions").fetchone()[0]
    share = decode_contribution(bytes(data)).software()[0]
    no_gpus = (0, 0, 0, 0, 0)
    figures = (0, 1, 1, 10**6, 4 * 86400 * 10**6, *no_gpus, 1, 1, 1)
    assert msgspec.structs.astuple(share) == figures


def test_a_run_waits_until_its_paths_have_names(store: Store) -> None:
    for job, path in ((1, b"/a"), (2, b"/b")):
        seen = part(sighting(job), executables=[use(path, SECOND)])
        store.write(batch(info(job, **WHO, cpus=1, end=START + MINUTE), seen))
    assert sum_up(store.database, "c1").runs == 0
    assert name_new(store.database, RuleSet([]), limit=1) == 1
    assert sum_up(store.database, "c1").runs == 1
    assert sum_up_everything(store).runs == 1
    assert usage(store) == [(0, 2, 2, 120, 0, 0)]


def test_what_was_summed_up_stands_when_its_programs_are_removed_by_age(store: Store) -> None:
    record = info(**WHO, cpus=2, end=START + MINUTE)
    seen = part(totals=totals(9, SECOND), executables=[use(b"/a", SECOND)])
    store.write(batch(record, seen))
    sum_up_everything(store)
    before = sums(store)
    with store.database.write() as transaction:
        transaction.execute("DELETE FROM executables")
        transaction.execute(f"UPDATE runs SET pruned = {EXECUTABLES}, stale = true")
    assert sum_up_everything(store)[:2] == (1, 0)
    assert sums(store) == before
