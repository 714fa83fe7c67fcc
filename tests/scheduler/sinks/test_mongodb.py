"""Into a server that speaks MongoDB's protocol: once each, and changed ones only."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from jobsight.errors import ConfigError
from jobsight.model import SECOND
from jobsight.scheduler.sinks.base import Figures, SinkError, SinkJob
from jobsight.scheduler.sinks.clockwork import job_document
from jobsight.scheduler.sinks.feeder import Feeder, feed, read_reasons
from jobsight.scheduler.sinks.mongodb import MongoSink
from jobsight.store.store import Store
from jobsight.util.workers import INTERNAL_ERROR
from tests.scheduler.sinks import servers
from tests.scheduler.sinks.site import START, book, keep, node, record
from tests.store.sample import batch, part, sighting, totals
from tests.waiting import wait_until

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.mongodb(tmp_path_factory.mktemp("mongo") / "data") as url:
        yield url


@pytest.fixture
def database(address: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    with MongoClient[dict[str, Any]](address) as client:
        name = f"db{abs(hash(request.node.nodeid))}"
        yield client[name]
        client.drop_database(name)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


def sink_for(address: str, database: Any, **more: Any) -> MongoSink:
    return MongoSink(address, database.name, **more)


# Fault 2: Slurm's 0:125 of a job that ran out of memory was SIGNALED:125.
@pytest.mark.parametrize(
    ("code", "number", "expected"),
    [(0, None, "SUCCESS:0"), (3, None, "ERROR:3"), (None, 9, "SIGNALED:9"), (2, 9, "SIGNALED:2"),
     (None, 125, None), (1, 125, "ERROR:1"), (None, None, None)],
)  # fmt: skip
def test_the_exit_of_a_job(code: int | None, number: int | None, expected: str | None) -> None:
    job = SinkJob(record(7, exit_code=code, exit_signal=number), Figures())
    assert job_document(job)["slurm"]["exit_code"] == expected


def test_documents_are_clockworks_and_ours(address: str, database: Any, store: Store) -> None:
    book(store, [record(7, comment="50% <&>"), record(8, START, exit_code=3, state="FAILED")])
    measured = part(sighting(job_id=7, birth=START * SECOND), totals=totals(1, 5 * SECOND))
    assert store.write(batch(measured))
    keep(store, nodes=[node("n1"), node("n2", features=("32gb",), gres={"gpu:v100": 8})],
         waiting=[record(9, None)])  # fmt: skip
    sink = sink_for(address, database, clock=lambda: 77.0)
    assert feed(store, sink) == 5
    found = {job["slurm"]["job_id"]: job for job in database.jobs.find()}
    assert found.keys() == {"7", "8", "9"}
    job = found["7"]
    assert job["_id"].startswith("c1:7:2026")
    assert job["slurm"] | {"uid": None} == job["slurm"]
    expected = {
        "username": "user0", "account": "physics", "cluster_name": "c1", "nodes": "n[1-2]",
        "job_state": "COMPLETED", "exit_code": "SUCCESS:0", "time_limit": 60,
        "submit_time": START - 60, "start_time": START, "end_time": START + 600,
        "tres_allocated": {"num_cpus": 4, "num_nodes": 2, "mem": 8192, "num_gpus": 2, "gres": 3},
        "comment": "50% <&>",
    }  # fmt: skip
    assert expected.items() <= job["slurm"].items()
    assert job["cw"] == {
        "mila_email_username": None,
        "last_slurm_update": 77.0,
        "last_slurm_update_by_sacct": 77.0,
    }
    assert (job["jobsight"]["cpu_seconds"], job["jobsight"]["slurm_cpu_seconds"]) == (5.0, 9.0)
    assert found["8"]["slurm"]["exit_code"] == "ERROR:3"
    assert found["9"]["slurm"]["start_time"] is None
    nodes = {found["slurm"]["name"]: found for found in database.nodes.find()}
    assert nodes["n1"]["cw"]["gpu"] == {"name": "a100", "number": 4, "cw_name": "a100"}
    assert nodes["n2"]["cw"]["gpu"]["cw_name"] == "v100l"
    sink.close()


def test_the_same_again_writes_nothing_and_a_change_one(
    address: str, database: Any, store: Store
) -> None:
    book(store, (record(number) for number in range(1, 1501)))
    keep(store, nodes=[node("n1")], waiting=[record(9000, None), record(9001, None)])
    sink = sink_for(address, database)
    assert feed(store, sink) == 1503
    assert feed(store, sink) == 0
    # One that waited has started, a node has gone, a job was renamed.
    book(store, [record(9000), record(5, name="another")])
    keep(store, nodes=[node("n2")], waiting=[record(9001, None)])
    assert feed(store, sink) == 5
    assert database.jobs.count_documents({}) == 1502
    assert [found["slurm"]["name"] for found in database.nodes.find()] == ["n2"]
    assert database.jobs.count_documents({"jobsight.pending": True}) == 1
    # A new process, and one that lost its mark: both see by the digests what is there.
    again = sink_for(address, database)
    assert feed(store, again) == 0
    with store.database.write() as transaction:
        transaction.execute("DELETE FROM checkpoints")
    assert feed(store, again) == 0
    for one in (sink, again):
        one.close()


def test_a_requeue_is_two_documents(address: str, database: Any, store: Store) -> None:
    book(store, [record(7), record(7, START + 1000)])
    sink = sink_for(address, database)
    feed(store, sink)
    starts = sorted(job["slurm"]["start_time"] for job in database.jobs.find())
    assert starts == [START, START + 1000]
    indices = database.jobs.index_information()
    assert indices["job_id_cluster_name_and_start"]["unique"]
    sink.close()


def test_the_query_of_the_documents(address: str, database: Any, store: Store) -> None:
    book(store, [record(7), record(14, START + 5000), record(8)])
    measured = part(sighting(job_id=7, birth=START * SECOND), totals=totals(1, 1800 * SECOND))
    assert store.write(batch(measured))
    keep(store, waiting=[record(9, None)])
    sink = sink_for(address, database)
    feed(store, sink)
    text = (Path(__file__).parents[3] / "docs" / "sinks.md").read_text()
    query = text.partition("db.jobs.aggregate(")[2].partition(")\n```")[0]
    # The shell's bare words in the place of JSON's names.
    stages = json.loads(re.sub(r"([{,]\s*)([$\w]+):", r'\1"\2":', query))
    found = list(database.jobs.aggregate(stages))
    hours = 4 * 600 / 3600
    assert found == [
        {"_id": "user0", "core_hours": 2 * hours, "cpu_hours": 0.5},
        {"_id": "user1", "core_hours": hours, "cpu_hours": 0},
    ]
    sink.close()


def test_a_server_that_is_away_is_one_line_and_nothing_is_lost(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    book(store, [record(7)])
    port = servers.free_port()
    sink = MongoSink(f"mongodb://127.0.0.1:{port}", "clockwork", timeout=0.3)
    feeder = Feeder(store, sink, interval=1)
    assert not feeder.feed_once()
    assert not feeder.feed_once()
    (line,) = [r.getMessage() for r in caplog.records]
    assert "MongoDB does not take the jobs: 12" in line
    assert read_reasons(store)["mongodb"].startswith("MongoDB does not take the jobs")
    with servers.mongodb(tmp_path / "data", port) as url:
        # It has not much patience, and the server may have just begun.
        wait_until(feeder.feed_once)
        assert read_reasons(store) == {"mongodb": ""}
        with MongoClient[dict[str, Any]](url) as client:
            assert client.clockwork.jobs.count_documents({}) == 1
    sink.close()


# Fault 10: only errors of the service were a reason in the health of all servers.
def test_a_bug_in_a_sink_is_in_the_health(
    address: str, database: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    book(store, [record(7)])
    sink = sink_for(address, database)
    feeder = Feeder(store, sink, 3600)
    with monkeypatch.context() as patch:
        patch.setattr(sink, "jobs", lambda jobs: 1 // 0)
        assert not feeder.feed_once()
        assert read_reasons(store) == {sink.name: INTERNAL_ERROR}
    assert feeder.feed_once()
    assert read_reasons(store) == {sink.name: ""}
    feeder.stop()


def test_a_wrong_password_is_one_line(tmp_path: Path, store: Store) -> None:
    port = servers.free_port()
    with (
        servers.mongodb(tmp_path / "data", port) as url,
        MongoClient[dict[str, Any]](url) as client,
    ):
        client.admin.command("createUser", "anna", pwd="right", roles=["root"])
    with servers.mongodb(tmp_path / "data", port, auth=True):
        wrong = MongoSink(f"mongodb://anna:wrong@127.0.0.1:{port}", "clockwork", timeout=60)
        with pytest.raises(SinkError, match=r"[Aa]uthentication") as refused:
            feed(store, wrong)
        assert "wrong" not in str(refused.value)
        right = MongoSink(f"mongodb://anna:right@127.0.0.1:{port}", "clockwork", timeout=60)
        assert feed(store, right) == 0
        for sink in (wrong, right):
            sink.close()
    with pytest.raises(ConfigError, match=r"sinks\.mongodb\.url: .*expected mongodb://"):
        MongoSink("http://x", "clockwork")


#: Feeds, and kills itself after the first group of jobs where it is told to.
_FEEDER = """
import os, signal, sys
from jobsight.scheduler.sinks.feeder import feed
from jobsight.scheduler.sinks.clockwork import job_document
from jobsight.scheduler.sinks.mongodb import MongoSink
from jobsight.store.store import Store
location, url, database, *dying = sys.argv[1:]
class Feeder(MongoSink):
    def jobs(self, group):
        written = super().jobs(group)
        if dying:
            os.kill(os.getpid(), signal.SIGKILL)
        return written
print("ready", flush=True)
with Store.open(location) as store:
    feed(store, Feeder(url, database))
"""


def _killed_and_repeated(
    address: str, database: Any, store: Store, count: int, pauses: list[float]
) -> None:
    for place in range(0, count, 1000):
        book(store, (record(number) for number in range(place + 1, min(place + 1000, count) + 1)))
    command = [sys.executable, "-c", _FEEDER, store.database.where, address, database.name]
    subprocess.run([*command, "dying"], stdout=subprocess.DEVNULL, check=False)
    assert 0 < database.jobs.count_documents({}) < count
    for pause in pauses:
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(pause)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    sink = sink_for(address, database, timeout=120)
    feed(store, sink)
    assert database.jobs.count_documents({}) == count
    assert len(database.jobs.distinct("slurm.job_id")) == count
    assert feed(store, sink) == 0
    sink.close()


@pytest.mark.long
def test_killed_in_the_middle_and_repeated(address: str, database: Any, store: Store) -> None:
    _killed_and_repeated(address, database, store, 3000, [0.5, 0.9])


@pytest.mark.long
@pytest.mark.timeout(600)
def test_fifty_thousand_jobs(address: str, database: Any, store: Store) -> None:
    _killed_and_repeated(address, database, store, 50_000, [2.0, 5.0])


# Fault 18: Clockwork finds the jobs of a user by the address in its own users.
def test_jobs_have_the_address_of_their_user(address: str, database: Any, store: Store) -> None:
    database.users.insert_one(
        {"mila_email_username": "anna@example.org", "cc_account_username": "user0"}
    )
    other = record(8)
    other.info.user = "nobody"
    book(store, [record(7), other])
    sink = sink_for(address, database)
    feed(store, sink)
    sink.close()
    found = {job["slurm"]["username"]: job["cw"] for job in database.jobs.find()}
    assert found["user0"]["mila_email_username"] == "anna@example.org"
    assert found["nobody"]["mila_email_username"] is None


#: The queries of Clockwork's web application (/jobs/search), as recorded at the database.
_CLOCKWORK_CLUSTERS = {"slurm.cluster_name": {"$in": ["c1", "beluga"]}}


def clockwork_filter(email: str, *more: dict[str, Any]) -> dict[str, Any]:
    return {"$and": [{"cw.mila_email_username": email}, _CLOCKWORK_CLUSTERS, *more]}


# Fault 18: Clockwork's web application showed ordinary users no jobs.
def test_the_queries_of_clockwork_find_the_jobs_of_an_ordinary_user(
    store: Store, address: str, database: Any
) -> None:
    for email, name in (("anna@example.org", "user5"), ("bert@example.org", "user6")):
        database["users"].insert_one({"mila_email_username": email, "mila_cluster_username": name})
    book(store, [record(12), record(13), record(19, START + 9, state="FAILED", exit_code=3)])
    sink = sink_for(address, database)
    assert feed(store, sink) == 3
    sink.close()
    jobs = database["jobs"]
    order = {"slurm.submit_time": -1, "slurm.job_id": 1}
    listed = list(jobs.find(clockwork_filter("anna@example.org")).sort(order).limit(25))
    assert [job["slurm"]["job_id"] for job in listed] == ["12", "19"]
    failed = {"slurm.job_state": {"$in": ["FAILED"]}}
    (job,) = jobs.find(clockwork_filter("anna@example.org", failed))
    assert (job["slurm"]["exit_code"], job["slurm"]["start_time"]) == ("ERROR:3", START + 9)
    count = [
        {"$match": clockwork_filter("bert@example.org")},
        {"$group": {"_id": 1, "n": {"$sum": 1}}},
    ]
    assert list(jobs.aggregate(count)) == [{"_id": 1, "n": 1}]
