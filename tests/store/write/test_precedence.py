"""Threat S-13: what a node says of a job never overwrites the scheduler's record of it."""

import msgspec
import pytest

from jobsight.model import NODE_SOURCES, SECOND, JobInfo
from jobsight.store.store import Store
from tests.store.sample import START, batch, find, info

END = START + 60 * SECOND
TRUE = {"user": "alice", "account": "proj-a", "state": "RUNNING", "cpus": 4}
FORGED = {
    "user": "mallory",
    "account": "proj-b",
    "state": "FAILED",
    "end": END,
    "exit_code": 1,
    "exit_signal": 9,
}


def of_node(source: str, **values: object) -> JobInfo:
    return msgspec.structs.replace(info(), source=source, **values)


def of_scheduler(**values: object) -> JobInfo:
    return msgspec.structs.replace(info(), source="sacct", **values)


@pytest.mark.parametrize("source", sorted(NODE_SOURCES))
def test_a_node_fills_what_the_scheduler_left_open_but_never_the_outcome(
    store: Store, source: str
) -> None:
    store.record_jobs([of_scheduler(**TRUE)])
    assert store.write(batch(of_node(source, **FORGED, name="train")))
    found = find(store).info
    assert (found.user, found.account, found.cpus) == ("alice", "proj-a", 4)
    assert (found.state, found.end, found.exit_code, found.exit_signal) == (
        "RUNNING", None, None, None,
    )  # fmt: skip
    assert (found.name, found.source) == ("train", "sacct")


@pytest.mark.parametrize("source", sorted(NODE_SOURCES))
def test_the_scheduler_drops_the_outcome_that_a_node_claimed_before(
    store: Store, source: str
) -> None:
    assert store.write(batch(of_node(source, **FORGED, name="train")))
    store.record_jobs([of_scheduler(**TRUE)])
    found = find(store).info
    assert (found.user, found.account, found.name) == ("alice", "proj-a", "train")
    assert (found.state, found.end, found.exit_code) == ("RUNNING", None, None)


def test_a_node_that_knows_less_overwrites_nothing(store: Store) -> None:
    assert store.write(batch(of_node("squeue", user="alice", state="RUNNING")))
    assert store.write(batch(of_node("cgroup", user="12345", uid=7)))
    found = find(store).info
    assert (found.user, found.uid, found.source) == ("alice", 7, "squeue")


def test_the_launcher_ends_its_own_run(store: Store) -> None:
    assert store.write(batch(of_node("jobsight run", user="alice", state="RUNNING")))
    assert store.write(batch(of_node("squeue", **FORGED)))
    assert find(store).info.end is None
    assert store.write(batch(of_node("jobsight run", state="COMPLETED", end=END)))
    found = find(store).info
    assert (found.user, found.state, found.end) == ("alice", "COMPLETED", END)
