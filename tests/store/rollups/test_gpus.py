"""GPU hours held and used, and energy, by day, owner and software: planted figures come out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from jobsight.model import SECOND, GpuUse
from jobsight.server.app import create_app
from jobsight.store.rollups.usage import (
    GpuUsage,
    Question,
    UsageRow,
    gpu_usage,
    node_usage,
    usage,
)
from jobsight.store.store import Store
from tests.software.rule_sets import PLAIN, rule_set
from tests.store.contents import assert_sound
from tests.store.gpu_sample import gpu, idle_gpu, old_gpu
from tests.store.plans import traced
from tests.store.sample import START, batch, find, info, part, sighting, use
from tests.store.sums import from_scratch, sum_up_everything, sums

HOUR = 3600
NAMED = rule_set("^/bin/(?P<s>[a-z]+)$ %(s)s 1")


def _run(store: Store, job: int, length: int, nodes: dict[str, list[GpuUse]], **more: Any) -> None:
    """A run of so many seconds, whose nodes report after the scheduler."""
    uses = more.pop("uses", [use(b"/bin/train", 10 * SECOND)])
    record = info(job, end=START + length * SECOND, state="COMPLETED", **more)
    assert store.write(batch(record, spool="scheduler"))
    for node, gpus in nodes.items():
        seen = part(sighting(job, node), gpus=gpus, executables=uses, final=True)
        assert store.write(batch(seen, node=node, spool=f"spool of {node}"))


def _usage(store: Store, *by: str, **filters: Any) -> dict[tuple[str, ...], UsageRow]:
    with store.database.read() as connection:
        rows = usage(connection, Question(by=by, ignored=True, **filters))
    names = ["period" if name in ("day", "month") else name for name in by]
    return {tuple(getattr(row, name) or "" for name in names): row for row in rows}


def _figures(row: UsageRow) -> tuple[float | None, ...]:
    return (
        row.gpu_hours, row.gpu_used_hours, row.gpu_measured_hours, row.gpu_profiled_hours,
        row.gpu_energy_joules,
    )  # fmt: skip


def test_hours_by_owner_and_day(store: Store) -> None:
    owner = {"user": "ada", "account": "physics", "partition": "gpu"}
    uses = [gpu("0", HOUR), idle_gpu("1", HOUR)]
    _run(store, 1, HOUR, {"n1": uses, "n2": [gpu("0", HOUR), old_gpu("1", HOUR)]}, gpus=4, **owner)
    _run(store, 2, HOUR, {"n1": [old_gpu("0", HOUR)]}, gpus=1, **(owner | {"user": "bob"}))
    # No scheduler says how many GPUs: what the node reported was held.
    _run(store, 3, HOUR, {"n3": [gpu("0", HOUR)]}, user="eve")
    sum_up_everything(store, PLAIN)
    joules = 500 * HOUR
    ada = (4.0, 1.7, 4.0, 3.0, joules * 3 + 80 * HOUR)
    bob = (1.0, 0.9, 1.0, 0.0, joules)
    by_user = _usage(store, "user")
    assert _figures(by_user["ada",]) == ada
    assert _figures(by_user["bob",]) == bob
    assert _figures(by_user["eve",]) == (1.0, 0.4, 1.0, 1.0, joules)
    together = tuple(round(one + two, 9) for one, two in zip(ada, bob, strict=True))
    for key in ("account", "partition"):
        row = next(row for key, row in _usage(store, key).items() if key != ("",))
        assert tuple(round(value or 0, 9) for value in _figures(row)) == together
    (day,) = _usage(store, "day", user="ada").values()
    assert _figures(day) == ada
    (month,) = _usage(store, "month", user="ada").values()
    assert _figures(month) == ada
    with store.database.read() as connection:
        nodes = {row.node: row for row in node_usage(connection, Question(by=("node",)))}
    assert _figures(nodes["n2"]) == (2.0, 1.3, 2.0, 1.0, 2 * joules)
    assert _figures(nodes["n1"])[0] == 3.0
    assert_sound(store)


def test_a_late_batch_is_added_exactly(store: Store) -> None:
    _run(store, 1, HOUR, {"n1": [gpu("0", 600)]}, gpus=1, user="ada")
    sum_up_everything(store, PLAIN)
    before = sums(store)
    for epoch, uses in (("life 2", [gpu("0", 1200)]), ("life 3", [idle_gpu("1", 100)])):
        late = part(sighting(1), epoch, gpus=uses)
        assert store.write(batch(late, spool="spool of n1"))
    sum_up_everything(store, PLAIN)
    after = sums(store)
    assert after != before
    assert after == from_scratch(store, PLAIN)
    (row,) = _usage(store, "user").values()
    run = find(store, "1").gpus
    assert row.gpu_used_hours == (run.gpu_used_time or 0) / SECOND / HOUR == 720 / HOUR
    assert row.gpu_energy_joules == 500 * 1800 + 80 * 100


def test_days_of_a_long_run_add_up(store: Store) -> None:
    length = 3 * 86400
    odd = gpu("0", length, multiprocessor_time=100_000_000_000_001, energy=7_777_777_777_777)
    _run(store, 1, length, {"n1": [odd]}, gpus=1)
    sum_up_everything(store, PLAIN)
    days = _usage(store, "day")
    assert len(days) == 4
    used = sum(round((row.gpu_used_hours or 0) * 3.6e9) for row in days.values())
    assert used == 100_000_000_000
    energy = sum(round((row.gpu_energy_joules or 0) * 1000) for row in days.values())
    assert energy == 7_777_777_777


def test_software_gets_its_share_by_gpu_time(store: Store) -> None:
    uses = [
        use(b"/bin/train", 10 * SECOND, gpu_time=3000 * SECOND),
        use(b"/bin/load", 990 * SECOND, gpu_time=1000 * SECOND),
    ]
    _run(store, 1, HOUR, {"n1": [gpu("0", HOUR)]}, gpus=1, uses=uses)
    plain = [use(b"/bin/train", 30 * SECOND), use(b"/bin/load", 10 * SECOND)]
    _run(store, 2, HOUR, {"n1": [gpu("0", HOUR)]}, gpus=1, uses=plain)
    assert sum_up_everything(store, NAMED).runs == 2
    rows = _usage(store, "software")
    # By GPU time in the first run, by CPU time in the second, where no GPU time is known.
    assert _figures(rows["train",])[:2] == (1.5, 0.6)
    assert _figures(rows["load",])[:2] == (0.5, 0.2)
    assert sums(store) == from_scratch(store, NAMED)


def test_the_list_of_unused_gpus_is_read_by_index(tmp_path: Path) -> None:
    """A centre looks for the few runs that held GPUs for nothing, among a million."""
    with Store.open(tmp_path / "store.db") as store, traced(store) as sent:
        store.write(batch(info(), part(gpus=[idle_gpu("0")])))
        assert len(store.runs(unused_gpus=True)) == store.count_runs(unused_gpus=True) == 1
        asked = [sql for sql in sent if "gpu_unused_count > 0" in sql]
        with store.database.alone() as connection:
            for sql in asked:
                plan = str(connection.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall())
                assert "ix_runs_unused_gpus" in plan
        assert len(asked) == 2


def test_the_api_has_the_hours(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        uses = {"n1": [gpu("0", HOUR), idle_gpu("1", HOUR)]}
        _run(store, 1, HOUR, uses, gpus=2, user="ada")
        sum_up_everything(store, PLAIN)
        client = TestClient(create_app(store, "secret", delay=0), base_url="http://127.0.0.1:8080")
        client.headers["Authorization"] = "Bearer secret"
        (row,) = client.get("/api/v1/usage?by=user").json()["rows"]
        assert (row["gpu_hours"], row["gpu_used_hours"]) == (2, 0.4)
        assert row["gpu_energy_joules"] == 580 * HOUR


def test_gpus_of_partitions_for_prometheus(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(store, 1, HOUR, {"n1": [gpu("0", HOUR), idle_gpu("1", HOUR)]}, gpus=2, partition="gpu")
    _run(store, 2, HOUR, {"n2": [old_gpu("0", HOUR)]}, gpus=1, partition="old", user="ada")
    _run(store, 3, HOUR, {"n3": [old_gpu("0", HOUR)]}, user="eve")
    _run(store, 4, HOUR, {"n4": []}, cpus=4, partition="cpu")
    sum_up_everything(store, PLAIN)
    joules = 500 * HOUR
    old = (HOUR, HOUR, HOUR * 0.9, joules)
    expected = [
        GpuUsage("c1", "", *old),
        GpuUsage("c1", "gpu", 2 * HOUR, 2 * HOUR, HOUR * 0.4, joules + 80 * HOUR),
        GpuUsage("c1", "old", *old),
    ]
    with store.database.read() as connection:
        assert gpu_usage(connection, 200) == expected
        # However many partitions nodes name, the sums are those of all of them.
        gpus, others = gpu_usage(connection, 1)
    assert gpus == expected[1]
    assert others == GpuUsage("c1", "other", *(2 * figure for figure in old))
    client = TestClient(create_app(store, "t" * 20), base_url="http://localhost")
    client.headers["Authorization"] = f"Bearer {'t' * 20}"
    text = client.get("/metrics").text
    assert 'jobsight_cluster_gpu_used_seconds{cluster="c1",partition="gpu"} 1440\n' in text
    assert 'jobsight_cluster_gpu_energy_joules{cluster="c1",partition="None"} 1800000\n' in text
    assert "ada" not in text
    # They are read once a minute.
    monkeypatch.setattr("jobsight.server.api.health.gpu_usage", None)
    again = client.get("/metrics").text
    assert gpu_lines(again) == gpu_lines(text) != []


def gpu_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("jobsight_cluster_gpu_")]
