"""Snapshots of a cluster: written where they changed, and read back."""

from typing import Any

import pytest

from jobsight.errors import StoreError
from jobsight.scheduler.records import NodeInfo
from jobsight.store.snapshot import Snapshot, pack, read_snapshot, snapshot_clusters, unpack
from jobsight.store.store import Store


def node(name: str, **more: Any) -> NodeInfo:
    return NodeInfo(cluster="c1", name=name, **more)


def named(*nodes: NodeInfo) -> list[tuple[str, NodeInfo]]:
    return [(found.name, found) for found in nodes]


def test_nodes_come_change_and_go(store: Store) -> None:
    snapshot = Snapshot(store.database, "c1", clock=lambda: 5)
    assert snapshot.replace("node", named(node("a", cpus=4), node("b"))) == 2
    assert snapshot.replace("node", named(node("a", cpus=4), node("b"))) == 0
    # A scraper that was started again knows what is there.
    snapshot = Snapshot(store.database, "c1", clock=lambda: 9)
    assert snapshot.replace("node", named(node("a", cpus=4), node("c", gres={"gpu:a100": 4}))) == 2
    found = read_snapshot(store.database, "c1", "node", NodeInfo)
    assert found == [node("a", cpus=4), node("c", gres={"gpu:a100": 4})]
    with store.database.query() as transaction:
        changed = dict(transaction.execute("SELECT name, changed FROM cluster_records").fetchall())
    assert changed == {"a": 5, "c": 9}
    assert snapshot_clusters(store.database) == ["c1"]
    assert read_snapshot(store.database, "c2", "node", NodeInfo) == []


def test_a_damaged_record_is_an_error() -> None:
    data = pack(node("a"))
    for wrong in (data[:-3], b"", data[:5] + b"\x00" * 20):
        with pytest.raises(StoreError, match="cannot be read"):
            unpack(wrong, NodeInfo)
