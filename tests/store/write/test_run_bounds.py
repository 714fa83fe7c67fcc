"""What is stored of a run over all its batches: bounded, and written only if it changed."""

from array import array

import pytest

from jobsight.model import SECOND, ExecutableUse, JobPart, Series
from jobsight.server.api.health import read_health
from jobsight.store.store import Store
from jobsight.store.write import parts
from jobsight.store.write.batch import Written
from jobsight.store.write.excess import read_excess
from tests.store.contents import check
from tests.store.many import count
from tests.store.sample import START, batch, find, info, part, seconds, series, sighting, step, use


def write(store: Store, *sent: JobPart) -> tuple[str, ...]:
    """Store parts; the sentences about what was left out."""
    (outcome,) = store.write_all([batch(*sent)])
    assert isinstance(outcome, Written)
    assert outcome.new
    return outcome.left_out


def _uses(count: int, *changed: int) -> list[ExecutableUse]:
    return [
        use(b"/opt/p%d" % number, 1000 + number + (number in changed)) for number in range(count)
    ]


def test_rows_that_have_not_changed_are_not_written_again(store: Store) -> None:
    """S-03: an agent may send all executables of a job with each batch."""

    def send(sequence: int, *changed: int, epoch: str = "life 1") -> int:
        """The number of rows that were written."""
        uses = _uses(300, *changed)
        assert store.write(batch(part(epoch=epoch, executables=uses), sequence=sequence))
        return count(store, "executables", f"sequence = {sequence}")

    assert send(1001) == 300
    assert send(1002) == 0
    assert send(1003, 5, 70, 299) == 3
    assert send(1004, epoch="life 2") == 300
    stored = {row.use.path: row.use.cpu_time for row in store.executables(find(store).id)}
    assert len(stored) == 300
    # Two agent epochs add up.
    assert stored[b"/opt/p5"] == 2 * 1005 + 1
    assert stored[b"/opt/p6"] == 2 * 1006
    assert check(store).faults == []


def test_a_row_that_a_part_does_not_carry_keeps_its_figures(store: Store) -> None:
    write(store, part(executables=_uses(40)))
    write(store, part(executables=[use(b"/opt/p3", 5000)]))
    stored = {row.use.path: row.use.cpu_time for row in store.executables(find(store).id)}
    assert stored == {use.path: use.cpu_time for use in _uses(40)} | {b"/opt/p3": 5000}


def test_a_late_batch_does_not_bring_back_old_figures(store: Store) -> None:
    def send(sequence: int, *changed: int) -> None:
        assert store.write(batch(part(executables=_uses(40, *changed)), sequence=sequence))

    send(101)
    send(103, 5)
    send(102)
    stored = {row.use.path: row.use.cpu_time for row in store.executables(find(store).id)}
    assert stored[b"/opt/p5"] == 1006


def test_executables_and_steps_of_a_node_are_bounded(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-07: over all batches and epochs of a run; what is stored stays, and is still updated."""
    monkeypatch.setattr(parts, "MAX_ROWS", 50)
    assert write(store, part(executables=_uses(30), steps=[step("batch", 1)])) == ()
    # Rows that are written again do not count, however often.
    for second in range(1, 8):
        changed = part(
            executables=[use(b"/opt/p1", 2000 + second)], steps=[step("batch", second, second)]
        )
        for _ in range(3):
            assert write(store, changed) == ()
    (sentence,) = write(store, part(epoch="life 2", executables=_uses(30)))
    assert sentence == "job 7 on n1 has more than 50 executables and steps"
    assert count(store, "executables") == 49
    (sentence,) = write(store, part(steps=[step("batch", 90, 90), step("1", 5)]))
    assert [row.use.cpu_time for row in store.steps(find(store).id)] == [90]
    assert write(store, part(epoch="life 2", executables=_uses(19, *range(19)))) == ()
    stored = {row.use.path: row.use.cpu_time for row in store.executables(find(store).id)}
    assert stored[b"/opt/p2"] == 1002 + 1003
    assert stored[b"/opt/p29"] == 1029
    # Another node and another run have bounds of their own.
    assert write(store, part(sighting(node="n2"), executables=_uses(50))) == ()
    assert write(store, part(sighting(8), executables=_uses(50))) == ()
    assert read_excess(store.database)["c1"] == (
        12,
        "job 7 on n1 has more than 50 executables and steps",
    )
    assert check(store).faults == []


def test_one_batch_cannot_exceed_the_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MAX_ROWS", 50)
    sent = [part(epoch=f"life {number}", executables=_uses(30)) for number in range(3)]
    assert len(write(store, *sent)) == 2
    assert count(store, "executables") == 50


def test_time_series_of_a_node_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-07: the totals of a part whose series are left out are stored."""
    monkeypatch.setattr(parts, "MAX_SERIES_VALUES", 60)
    # Three values in each row: the time and two metrics.
    assert write(store, part(series=series(range(10)))) == ()
    assert write(store, part(series=series(range(10, 20)))) == ()
    (sentence,) = write(store, part(series=series([20]), executables=_uses(1), final=True))
    assert sentence == "job 7 on n1 has time series of more than 60 values"
    run = find(store)
    assert seconds(store, run.id) == [*range(20)]
    assert len(store.executables(run.id)) == 1
    assert store.nodes(run.id)[0].final
    # One column more makes more values; the run of another node is not concerned.
    times = array("q", [START + SECOND])
    wide = Series(times, {f"m{number}": array("q", [1]) for number in range(60)})
    assert len(write(store, part(sighting(node="n2"), series=wide))) == 1
    assert read_excess(store.database)["c1"].value == 3 + 61
    assert check(store).faults == []


def test_sightings_of_a_run_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-07: a node chooses its name, boot id and creation time."""
    monkeypatch.setattr(parts, "MAX_SIGHTINGS", 6)
    monkeypatch.setattr(parts, "MAX_SIGHTINGS_OF_NODE", 3)
    store.write(batch(info(nodes=("n1", "n2"))))
    births = [part(sighting(birth=START + number)) for number in range(5)]
    assert len(write(store, *births[:4])) == 1
    (sentence,) = write(store, births[4])
    assert sentence == "job 7 on n1 is a new sighting beyond 6 of its run or 3 of its node"
    # Those that are known are updated.
    assert write(store, *births[:3]) == ()
    others = [part(sighting(node=f"n{number}")) for number in range(2, 9)]
    assert len(write(store, *others)) == 4
    run = find(store)
    assert len(store.nodes(run.id)) == 6
    assert run.node_count == 4
    assert check(store).faults == []


def test_what_is_left_out_is_counted_in_health(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MAX_SERIES_VALUES", 1)
    for second in (1, 2):
        write(store, part(series=series([second])))
    health = read_health(store)
    (cluster,) = health.clusters
    assert (cluster.cluster, cluster.left_out) == ("c1", 6)
    assert cluster.left_out_reason == "job 7 on n1 has time series of more than 1 values"
    # A user can cause it: it is no fault of the server.
    assert health.healthy
