"""What the scheduler alone knows is kept, changed only where it changed, and read back whole."""

from typing import Any

import msgspec
import pytest
from sqlalchemy import select

from jobsight.errors import StoreError
from jobsight.model import SECOND, JobInfo, RunReference
from jobsight.scheduler.records import JobRecord, NodeInfo, StepInfo
from jobsight.scheduler.snapshot import Snapshot, pack, read_snapshot, snapshot_clusters, unpack
from jobsight.store.schema.tables import run_details
from jobsight.store.store import Store
from jobsight.store.write.scheduler import details_of, list_records

START = 1_790_000_000 * SECOND


def node(name: str, **more: Any) -> NodeInfo:
    return NodeInfo(cluster="c1", name=name, **more)


def record(job_id: int = 7, start: int | None = START, **more: Any) -> JobRecord:
    info = JobInfo(cluster="c1", job_id=job_id, source="sacct", start=start, state="RUNNING")
    return JobRecord(info=info, **more)


def named(*nodes: NodeInfo) -> list[tuple[str, NodeInfo]]:
    return [(found.name, found) for found in nodes]


def test_nodes_come_change_and_go(store: Store) -> None:
    mirror = Snapshot(store, "c1", clock=lambda: 5)
    assert mirror.keep("node", named(node("a", cpus=4), node("b"))) == 2
    assert mirror.keep("node", named(node("a", cpus=4), node("b"))) == 0
    # A scraper that was started anew knows what is there.
    mirror = Snapshot(store, "c1", clock=lambda: 9)
    assert mirror.keep("node", named(node("a", cpus=4), node("c", gres={"gpu:a100": 4}))) == 2
    found = read_snapshot(store, "c1", "node", NodeInfo)
    assert found == [node("a", cpus=4), node("c", gres={"gpu:a100": 4})]
    with store.database.read() as connection:
        changed = {found.name: found.changed for found in list_records(connection, "c1", "node")}
    assert changed == {"a": 5, "c": 9}
    assert snapshot_clusters(store) == ["c1"]
    assert read_snapshot(store, "c2", "node", NodeInfo) == []


def test_all_that_is_known_of_a_run(store: Store) -> None:
    known = record(reservation="maint", steps=[StepInfo(step="batch", memory_peak=7)], elapsed=5)
    store.record_jobs([known.info])
    run = store.find(RunReference(7))

    def stored(mirror: Snapshot, told: JobRecord) -> tuple[JobRecord, int]:
        mirror.keep_details([told])
        with store.database.read() as connection:
            data = details_of(connection, run.id)
            assert data is not None
            return unpack(data, JobRecord), connection.scalars(select(run_details.c.changed)).one()

    # The time that a job has run is another one in each reply, and no news.
    expected = msgspec.structs.replace(known, elapsed=None)
    assert stored(Snapshot(store, "c1", lambda: 1), known) == (expected, 1)
    known.elapsed = 9
    assert stored(Snapshot(store, "c1", lambda: 2), known) == (expected, 1)
    known.comment = "more"
    assert stored(Snapshot(store, "c1", lambda: 3), known)[1] == 3


def test_a_job_that_is_no_run_has_no_details(store: Store) -> None:
    Snapshot(store, "c1").keep_details([record(8), record(9, start=None)])
    with store.database.read() as connection:
        assert connection.execute(select(run_details)).all() == []


def test_a_damaged_record_is_an_error() -> None:
    data = pack(node("a"))
    for wrong in (data[:-3], b"", data[:5] + b"\x00" * 20):
        with pytest.raises(StoreError, match="cannot be read"):
            unpack(wrong, NodeInfo)
