"""The health of a real server with all of its workers: each is seen when it fails or ends."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from jobsight.config.settings import Settings
from jobsight.errors import JobsightError, StoreError
from jobsight.prometheus.names import SERVER
from jobsight.server.serve import BackgroundServer
from jobsight.store.store import Store
from jobsight.transport import wire
from jobsight.util import workers
from jobsight.util.workers import PeriodicWorker
from tests.scheduler.test_cluster_name import DATA
from tests.server.batches import batch
from tests.waiting import wait_until

pytestmark = pytest.mark.server

#: Every worker that a server can have.
WORKERS = [
    "archive",
    "findings",
    "mail",
    "node-days",
    "prune",
    "scrape",
    "server.remote_write",
    "sink-opensearch",
    "software",
    "statistics",
]


class Site:
    def __init__(self, server: BackgroundServer, store: Store) -> None:
        self.store = store
        self.client = httpx2.Client(
            base_url=server.url, headers={"Authorization": f"Bearer {server.token}"}
        )

    def health(self) -> dict[str, Any]:
        return dict(self.client.get("/api/v1/health").json())

    def worker(self, name: str) -> dict[str, Any]:
        return next(each for each in self.health()["workers"] if each["worker"] == name)

    def metrics(self) -> dict[tuple[str, str], float]:
        """The values of the workers by the name of the family and of the worker."""
        return {
            (sample.name, sample.labels["worker"]): sample.value
            for family in text_string_to_metric_families(self.client.get("/metrics").text)
            for sample in family.samples
            if "worker" in sample.labels
        }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("server")
    settings = Settings(cluster="lab")
    settings.store.location = str(directory / "store" / "store.db")
    settings.store.retention.daily = True
    settings.server.port = 0
    settings.server.remote_write.url = "http://127.0.0.1:1/api/v1/write"
    settings.archive.location = str(directory / "archive")
    settings.archive.interval = 3600
    settings.scheduler.recorded = str(DATA)
    settings.scheduler.interval = 3600
    settings.sinks.opensearch.url = "http://127.0.0.1:1"
    settings.mail.queue = str(directory / "mail")
    settings.mail.interval = 3600
    (directory / "store").mkdir(mode=0o700)
    with (
        Store.open(settings.store.location) as store,
        BackgroundServer(settings, store) as server,
    ):
        made = Site(server, store)
        yield made
        made.client.close()


def test_every_part_is_listed(site: Site) -> None:
    names = {each["worker"].replace("scrape-lab", "scrape") for each in site.health()["workers"]}
    assert names == set(WORKERS)
    worker = wait_until(lambda: (found := site.worker("findings"))["succeeded"] and found)
    assert (worker["healthy"], worker["reason"], worker["state"]) == (True, "", "waiting")
    assert worker["calls"] >= 1
    assert worker["next_run"] > worker["succeeded"] >= worker["started"]
    assert worker["success_age_seconds"] >= 0
    # An address at which nothing listens: the health says so, and when it is tried again.
    failing = wait_until(lambda: (found := site.worker("sink-opensearch"))["failed"] and found)
    assert (failing["healthy"], failing["state"]) == (False, "failing")
    assert failing["error"] == failing["reason"] != ""
    assert not site.health()["healthy"]
    values = site.metrics()
    assert values["jobsight_server_worker_healthy", "findings"] == 1
    assert values["jobsight_server_worker_healthy", "sink-opensearch"] == 0
    assert values["jobsight_server_worker_failures_total", "sink-opensearch"] >= 1
    assert {name for name, _ in values} == {
        name for name in SERVER if name.startswith("jobsight_server_worker_")
    }


@pytest.mark.long
def test_every_family_of_the_server_is_exposed(site: Site) -> None:
    assert site.client.post("/api/v1/batches", content=wire.encode(batch(76))).status_code == 200
    text = wait_until(
        lambda: (
            (found := site.client.get("/metrics").text)
            and "jobsight_server_agents{" in found
            and "jobsight_server_sink_healthy{" in found
            and found
        )
    )
    families = {family.name for family in text_string_to_metric_families(text)}
    expected = {name.removesuffix("_total") for name in SERVER}
    # There is no certificate; tests/server/test_tls.py has one. No scrape has reported the nodes of
    # the batch's cluster.
    missing = {"jobsight_server_certificate_end_time_seconds", "jobsight_server_agents_silent"}
    assert expected - families <= missing
    assert 'jobsight_server_batches_total{status="stored"}' in text


def test_the_ingest_counts_batches(site: Site) -> None:
    before = site.health()["ingest"]["batches"]
    data = wire.encode(batch(77))
    for _ in range(2):
        assert site.client.post("/api/v1/batches", content=data).status_code == 200
    assert site.client.post("/api/v1/batches", content=b"?").status_code == 400
    ingest = site.health()["ingest"]
    more = {name: count - before[name] for name, count in ingest["batches"].items()}
    assert more == {"stored": 1, "duplicate": 1, "refused": 1, "failed": 0}
    assert ingest["healthy"]
    assert ingest["succeeded"] is not None


def test_a_store_that_fails_is_an_unhealthy_ingest(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(batches: list[object]) -> list[Exception]:
        return [StoreError("the disk is full") for _ in batches]

    data = wire.encode(batch(78))
    with monkeypatch.context() as patch:
        patch.setattr(site.store, "write_all", fail)
        assert site.client.post("/api/v1/batches", content=data).status_code == 503
    ingest = site.health()["ingest"]
    assert (ingest["healthy"], ingest["reason"]) == (False, "the disk is full")
    assert site.client.post("/api/v1/batches", content=data).status_code == 200
    ingest = site.health()["ingest"]
    assert (ingest["healthy"], ingest["reason"], ingest["error"]) == (True, "", "the disk is full")


@pytest.mark.parametrize("name", [name for name in WORKERS if name != "server.remote_write"])
def test_a_worker_that_fails_is_seen(
    site: Site, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = registered(name)
    assert isinstance(worker, PeriodicWorker)

    def fail(stopped: threading.Event) -> None:
        raise JobsightError(f"{name} has no space")

    with monkeypatch.context() as patch:
        patch.setattr(worker, "_work", fail)
        worker.run_once()
    found = site.worker(worker.name)
    assert (found["healthy"], found["state"]) == (False, "failing")
    assert found["reason"] == found["error"] == f"{name} has no space"
    assert site.metrics()["jobsight_server_worker_healthy", worker.name] == 0


# The last test of the module: it leaves no worker alive.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_whose_thread_has_ended_is_seen(site: Site, name: str) -> None:
    worker = registered(name)
    thread = worker._thread  # type: ignore[attr-defined]
    assert thread.is_alive()
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
    )
    # The exception is raised as soon as the thread runs: it is woken from whatever it waits for.
    if isinstance(worker, PeriodicWorker):
        worker.stopped.set()
        worker._woken.set()
    else:
        thread._ended.set()
        thread.notify()
    thread.join(60)
    found = site.worker(worker.name)
    assert (found["healthy"], found["state"]) == (False, "ended")
    assert "its thread has ended; restart the server" in found["reason"]
    assert site.metrics()["jobsight_server_worker_healthy", worker.name] == 0
    assert not site.health()["healthy"]


def registered(name: str) -> workers.Reporting:
    return next(
        worker for worker in workers._running.values() if worker.name in (name, f"{name}-lab")
    )
