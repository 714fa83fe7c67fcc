"""Batches in, runs out: on SQLite and on PostgreSQL."""

import math
from array import array

import numpy as np
import pytest

from jobsight.model import MISSING, SECOND, Column, Coverage, ExecutableUse, RunReference, Series
from jobsight.store.maintenance.compact import compact
from jobsight.store.read.queries import RunNotFound
from jobsight.store.schema import statements
from jobsight.store.store import Store
from tests.store.sample import (
    EXACT,
    START,
    batch,
    find,
    info,
    part,
    seconds,
    series,
    sighting,
    totals,
    use,
)


def test_a_job_comes_back(store: Store) -> None:
    record = info(
        name="a%b'\n{}\x00é",
        user="anna",
        account="physics",
        nodes=("n1", "n2"),
        cpus=4,
        memory=2**33,
        state="RUNNING",
    )
    whole = part(
        series=series([0, 1, 2]),
        totals=totals(2, 5000, memory_peak=300, memory_used_peak=200),
        executables=[use(b"/bin/a", 4000), use(b"/bin/b", 900)],
        coverage=EXACT,
    )
    assert store.write(batch(record, whole), received=START + SECOND)
    run = find(store)
    assert str(run.run) == "c1:7:20260921T141320Z"
    assert run.info.name == "a%b'\n{}\\x00é"
    assert (run.info.user, run.info.cpus, run.info.nodes) == ("anna", 4, ("n1", "n2"))
    assert (run.cpu_time, run.memory_peak, run.memory_used_peak) == (5000, 300, 200)
    assert (run.node_count, run.provisional) == (2, False)
    assert (run.first_seen, run.last_seen) == (START, START + 2 * SECOND)
    (node,) = store.nodes(run.id)
    assert (node.node, node.final, node.clock_skew) == ("n1", False, -SECOND)
    assert node.totals == whole.totals
    assert node.coverage == EXACT
    assert [(found.node, found.use.path) for found in store.executables(run.id)] == [
        ("n1", b"/bin/a"),
        ("n1", b"/bin/b"),
    ]
    (curves,) = store.series(run.id)
    assert curves.node == "n1"
    assert curves.columns["cpu.time"].tolist() == [0, 1000, 2000]
    assert curves.columns["load"].tolist() == [0.5] * 3


def test_a_batch_is_stored_once(store: Store) -> None:
    first = batch(part(series=series([0])), sequence=1)
    for sequence in (1, 5, 3, 2, 4, 0, 9):
        again = batch(part(series=series([sequence])), sequence=sequence)
        assert store.write(again)
        assert not store.write(again)
        assert not store.write(first)
    assert seconds(store, find(store).id) == [0, 1, 2, 3, 4, 5, 9]
    # The same number in another spool, or from another node, is another batch.
    assert store.write(batch(part(series=series([20])), sequence=1, spool="spool 2"))
    assert store.write(batch(part(series=series([21])), sequence=1, node="n2"))
    with store.database.write() as transaction:
        kept = transaction.execute("SELECT first, last FROM batches ORDER BY 2, 1").fetchall()
    assert sorted(map(tuple, kept)) == [(0, 5), (1, 1), (1, 1), (9, 9)]


def test_reordered_batches_give_the_same(store: Store) -> None:
    batches = [
        batch(
            part(
                series=series([second]),
                totals=totals(second, second * 10, memory_used_peak=100 - second),
                executables=[use(b"/bin/a", second)],
                coverage={"cpu": Coverage(quality="exact", reason=str(second))},
                final=second == 9,
            ),
            sequence=second,
            written=START + second * SECOND,
        )
        for second in range(10)
    ]
    for sent in (batches[9], *batches[:3], *batches[6:9], *batches[3:6]):
        assert store.write(sent)
    run = find(store)
    assert seconds(store, run.id) == list(range(10))
    assert (run.cpu_time, run.memory_used_peak) == (90, 100)
    (node,) = store.nodes(run.id)
    assert node.final
    assert node.totals is not None
    assert node.totals.time == START + 9 * SECOND
    assert node.coverage["cpu"].reason == "9"
    (found,) = store.executables(run.id)
    assert found.use.cpu_time == 9
    # What came after the end waits for others, or for compaction.
    assert store.info().chunks == 10
    compact(store.database, vacuum=False)
    assert store.info().chunks == 1
    assert seconds(store, run.id) == list(range(10))


def test_executables_of_two_lives_of_the_agent_add_up(store: Store) -> None:
    def figures(epoch: str, cpu_time: int, **more: int) -> None:
        uses = [
            ExecutableUse(path=b"/bin/a", executions=2, cpu_time=cpu_time, **more),
            ExecutableUse(path=b"a", path_known=False, executions=1, cpu_time=1),
        ]
        assert store.write(batch(part(epoch=epoch, executables=uses)))

    figures("life 1", 10, peak_memory=500, first_seen=START, last_seen=START + 1)
    figures("life 1", 30, peak_memory=700, first_seen=START, last_seen=START + 5)
    figures("life 2", 4, peak_memory=600, first_seen=START + 6, last_seen=START + 7)
    known, unknown = store.executables(find(store).id)
    assert known.use == ExecutableUse(
        path=b"/bin/a",
        executions=4,
        cpu_time=34,
        peak_memory=700,
        first_seen=START,
        last_seen=START + 7,
    )
    assert (unknown.use.path, unknown.use.path_known, unknown.use.cpu_time) == (b"a", False, 2)


def test_a_restart_of_the_agent_neither_doubles_nor_forgets(store: Store) -> None:
    before = totals(5, 100, memory_used_peak=900, memory_peak=1000, read_calls=7)
    after = totals(9, 150, memory_used_peak=20, memory_peak=1000)
    assert store.write(batch(part(totals=before)))
    assert store.write(batch(part(epoch="life 2", totals=after), spool="spool 2"))
    run = find(store)
    assert (run.cpu_time, run.memory_used_peak) == (150, 900)
    (node,) = store.nodes(run.id)
    assert node.epoch == "life 2"
    assert node.totals is not None
    assert (node.totals.time, node.totals.read_calls) == (START + 9 * SECOND, 7)


def test_sums_over_nodes_and_sightings(store: Store) -> None:
    def on(node: str, birth: int, cpu_time: int, peak: int) -> None:
        seen = sighting(node=node, birth=START + birth)
        assert store.write(batch(part(seen, totals=totals(1, cpu_time, memory_peak=peak))))

    assert store.write(batch(info()))
    on("n1", 0, 10, 100)
    on("n2", 0, 20, 50)
    # The cgroup was removed and made again: its CPU time adds up, the peak does not.
    on("n1", 5, 3, 130)
    on("n1", 5, 3, 130)
    run = find(store)
    assert (run.cpu_time, run.memory_peak, run.memory_used_peak) == (33, 180, None)
    assert run.node_count == 2
    assert [node.node for node in store.nodes(run.id)] == ["n1", "n1", "n2"]


def test_sums_that_move_seldom_are_stored_too(store: Store) -> None:
    """Nearly all parts change the same few sums; others must not be forgotten."""
    for second in (10, 20):
        store.write(batch(part(series=series([second]), totals=totals(second, second))))
    run = find(store)
    assert (run.first_seen, run.last_seen, run.cpu_time) == (
        *(START + 10 * SECOND, START + 20 * SECOND),
        20,
    )
    # A late batch, another node, and the end on one of them.
    store.write(batch(part(series=series([5]))))
    store.write(batch(part(sighting(node="n2"), totals=totals(7, 100)), node="n2"))
    store.write(batch(part(totals=totals(30, 30), final=True)))
    run = find(store)
    assert (run.first_seen, run.last_seen, run.cpu_time) == (
        *(START + 5 * SECOND, START + 20 * SECOND),
        130,
    )
    assert run.open_nodes == 1


def test_chunks_are_joined_and_compacted(store: Store) -> None:
    for second in range(150):
        assert store.write(batch(part(series=series([second]), final=second == 149)))
        if second in (62, 63, 100):
            assert seconds(store, find(store).id) == list(range(second + 1))
            assert store.info().chunks == {62: 63, 63: 1, 100: 38}[second]
    run = find(store)
    assert store.info().chunks == 1
    assert store.info().rows == 150
    assert seconds(store, run.id) == list(range(150))
    (curves,) = store.series(run.id, ["load"], START + 10 * SECOND, START + 12 * SECOND)
    assert list(curves.columns) == ["load"]
    assert ((curves.times - START) // SECOND).tolist() == [10, 11, 12]
    assert store.series(run.id, since=START + 1000 * SECOND) == []


def test_the_last_part_may_bring_no_samples(store: Store) -> None:
    for second in range(128):
        assert store.write(batch(part(series=series([second]))))
    assert store.info().chunks == 2
    assert store.write(batch(part(final=True)))
    assert store.info().chunks == 1
    assert seconds(store, find(store).id) == list(range(128))
    assert store.write(batch(part(sighting(8), final=True)))
    assert store.series(find(store, "8").id) == []


def test_columns_are_united_and_equal_times_become_one_row(store: Store) -> None:
    def send(second: int, columns: dict[str, Column], **more: bool) -> None:
        times = array("q", [START + second * SECOND])
        assert store.write(batch(part(series=Series(times, columns), **more)))

    send(2, {"a": array("q", [2]), "b": array("d", [0.25])})
    send(1, {"a": array("q", [1])})
    send(2, {"a": array("q", [MISSING]), "c": array("q", [7])})
    send(2, {"b": array("d", [0.75])})
    for final in (False, True):
        if final:
            assert store.write(batch(part(final=True)))
        (curves,) = store.series(find(store).id)
        assert curves.columns["a"].tolist() == [1, 2]
        assert np.isnan(curves.columns["b"][0])
        assert curves.columns["b"][1] == 0.75
        assert curves.columns["c"].tolist() == [MISSING, 7]


def test_summaries_are_right_at_every_moment(store: Store) -> None:
    seen: list[tuple[int, int]] = []
    for number, second in enumerate([*range(70), 100, 130]):
        seen.append((second, (second * 7) % 13))
        sent = series([second], [seen[-1][1]])
        assert store.write(batch(part(series=sent, final=second == 130)))
        if number in (0, 5, 63, 66, 71):
            (summary, load) = store.summaries(find(store).id)
            times, values = map(np.array, zip(*seen, strict=True))
            # By time: each value stands for the time since the one before.
            gaps = np.diff(times)
            mean = (values[1:] * gaps).sum() / gaps.sum() if len(gaps) else values[0]
            assert (summary.node, summary.metric) == ("n1", "cpu.time")
            assert (summary.minimum, summary.maximum) == (values.min(), values.max())
            assert summary.last == values[-1]
            assert math.isclose(summary.mean, mean)
            assert load.mean == 0.5


def test_lists_and_filters(store: Store) -> None:
    for number in range(1, 8):
        record = info(
            number,
            START + number * SECOND,
            name=f"job_{number}",
            user="anna" if number % 2 else "ben",
            account="physics",
            state="COMPLETED" if number < 4 else "RUNNING",
        )
        assert store.write(batch(record))

    def ids(**filters: object) -> list[int]:
        found = [run.info.job_id for run in store.runs(**filters)]  # type: ignore[arg-type]
        filters.pop("limit", None)
        filters.pop("offset", None)
        assert store.count_runs(**filters) >= len(found)  # type: ignore[arg-type]
        return found

    assert ids() == [7, 6, 5, 4, 3, 2, 1]
    assert ids(limit=2, offset=1) == [6, 5]
    assert ids(user="ben") == [6, 4, 2]
    assert ids(account="physics", state="RUNNING", user="anna") == [7, 5]
    assert ids(since=START + 6 * SECOND) == [7, 6]
    assert ids(search="JOB_3") == [3]
    assert ids(search="4") == [4]
    assert ids(search="%") == []
    assert ids(search="ann") == [7, 5, 3, 1]
    assert store.count_runs(user="anna") == 4
    latest = store.latest("ben")
    assert latest is not None
    assert latest.info.job_id == 6
    assert store.latest("carl") is None


def test_references(store: Store) -> None:
    later = START + 3600 * SECOND
    assert store.write(batch(info(12, START + 5, end=START + 60 * SECOND), info(12, later)))
    assert store.write(batch(info(62, array_job_id=60, array_task_id=3)))
    assert store.write(batch(info(89, het_job_id=88, het_offset=1)))
    assert find(store, "12").run.start == later
    assert find(store, "c1:12:20260921T141320Z").run.start == START + 5
    assert find(store, "60_3").info.job_id == 62
    assert find(store, "60").info.job_id == 62
    assert find(store, "88+1").info.job_id == 89
    for missing, words in {
        "13": "no run of job 13 is in the store",
        "c2:12": "12 of cluster c2",
        "60_4": "60_4",
        "88+2": r"88\+2",
        "c1:12:20260921T141321Z": "12 of cluster c1 started at 20260921T141321Z",
    }.items():
        with pytest.raises(RunNotFound, match=words):
            store.find(RunReference.parse(missing))


def test_paths_are_bytes(store: Store) -> None:
    odd = [b"/bin/\xff\xfe%s'\"\n{}", b"/" + b"x" * 4095, b"/" + b"x" * 4094 + b"y"]
    uses = [use(path, 10 - place) for place, path in enumerate(odd)]
    assert store.write(batch(part(executables=uses), part(sighting(8), executables=uses)))
    assert [found.use.path for found in store.executables(find(store).id)] == odd
    assert store.info().paths == 3


def test_clock_skew_is_the_least_delayed(store: Store) -> None:
    def skew_after(written: int, received: int) -> int | None:
        sent = batch(part(), written=START + written * SECOND)
        assert store.write(sent, received=START + received * SECOND)
        found = store.nodes(find(store).id)[0].clock_skew
        return None if found is None else found // SECOND

    assert skew_after(10, 5) == 5
    # It waited in the spool: that says nothing about the clock.
    assert skew_after(20, 600) == 5
    assert skew_after(8000, 8003) == -3


def test_info(store: Store) -> None:
    assert store.info().runs == 0
    assert store.write(batch(info(), part(series=series([0, 1]), executables=[use(b"/a", 1)])))
    found = store.info()
    assert (found.runs, found.nodes, found.chunks, found.rows) == (1, 1, 1, 2)
    assert (found.executables, found.steps, found.paths, found.agents) == (1, 0, 1, 1)
    assert found.version == statements.VERSION
    assert found.series_size > 0
    assert found.size is not None
    assert found.size > 0
    assert (found.oldest, found.newest) == (START, START)


def test_unknown_metrics_nan_and_infinity_are_kept(store: Store) -> None:
    values = array("d", [math.nan, math.inf, -math.inf, -0.0])
    times = array("q", [START + second for second in range(4)])
    extremes = array("q", [2**63 - 1, -(2**63), 0, -1])
    sent = Series(memoryview(times), {"their.own": memoryview(values), "extremes": extremes})
    assert store.write(batch(part(series=sent, final=True)))
    (curves,) = store.series(find(store).id)
    assert curves.columns["their.own"].tobytes() == values.tobytes()
    assert curves.columns["extremes"].tobytes() == extremes.tobytes()
    assert {summary.metric for summary in store.summaries(find(store).id)} == {
        "their.own",
        "extremes",
    }


def test_totals_after_a_clock_that_was_ahead(store: Store) -> None:
    """The counters of a cgroup only grow: those of the wrong hour are not the newest."""
    store.write(batch(part(sighting(1), totals=totals(10, 5)), sequence=1))
    store.write(batch(part(sighting(1), totals=totals(3610, 6)), sequence=2))
    store.write(batch(part(sighting(1), totals=totals(30, 9)), sequence=3))
    assert find(store, "1").cpu_time == 9
