"""Batches of a hostile node, which has the token of its cluster."""

from __future__ import annotations

import math
from array import array

import msgspec
import pytest
from starlette.testclient import TestClient

from jobsight.model import Coverage, RunReference, Series
from jobsight.reports.build import build_report
from jobsight.reports.terminal import report_text
from jobsight.server.app import create_app
from jobsight.store.series.codec import encode_series
from jobsight.store.store import Store
from jobsight.transport.wire import encode
from tests.server.batches import START, batch

TOKEN = "a-token-for-the-tests-of-hostile-batches"


def client_of(store: Store) -> TestClient:
    app = create_app(store, TOKEN, delay=0)
    return TestClient(
        app,
        base_url="http://127.0.0.1:8080",
        headers={"Authorization": f"Bearer {TOKEN}"},
        raise_server_exceptions=False,
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_in_a_store_are_shown_as_unknown(
    store: Store, value: float
) -> None:
    # Threat S-11, for a store that has taken such values before they were refused.
    assert store.write(batch(12))
    coverage = Coverage(quality="estimate", time_share=value, cpu_share=value)
    groups = ("cpu", "memory", "io", "executables")
    packed = msgspec.msgpack.encode(dict.fromkeys(groups, coverage))
    times = array("q", [START, START + 1])
    bad = array("d", [1.0, value])
    chunk = encode_series(Series(times, {"cpu.time": bad, "memory.used": bad}))
    with store.database.write() as transaction:
        transaction.execute("UPDATE run_nodes SET coverage = :packed", {"packed": packed})
        transaction.execute("UPDATE chunks SET data = :chunk, summary = NULL", {"chunk": chunk})
    client = client_of(store)
    for path in ("/", "/jobs/12", "/api/v1/jobs/12", "/api/v1/jobs/12/series"):
        reply = client.get(path)
        assert reply.status_code == 200, path
        assert "nan" not in reply.text.lower().replace("nanosecond", "")
        assert "Infinity" not in reply.text
    report = build_report(store, store.find(RunReference(12)))
    assert "covering - of the time" in report_text(report, 200)


@pytest.mark.parametrize("source", ["slurmdbd", "sacct", "rest", "SAMS record", "", "x" * 2**20])
def test_a_node_cannot_report_as_the_scheduler(store: Store, source: str) -> None:
    # Threat S-13.
    reply = client_of(store).post("/api/v1/batches", content=encode(batch(12, source=source)))
    assert reply.status_code == 422
    assert "a node reports as cgroup, epilog, jobsight run, prolog, squeue" in reply.text
    assert len(reply.text) < 600
    assert store.count_runs() == 0


def test_time_series_that_do_not_fit_into_memory_are_refused_by_readers(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Threat S-07: small batches of zeros that a page would decode as a whole.
    monkeypatch.setattr("jobsight.store.read.queries.MAX_READ_VALUES", 2**18)
    rows = 2**16
    for sequence in range(1, 4):
        sent = batch(12, sequence=sequence, spool="one")
        times = array("q", range(START + sequence * rows, START + (sequence + 1) * rows))
        zeros = array("q", bytes(8 * rows))
        sent.parts[0].series = Series(times, {"cpu.time": zeros, "memory.used": zeros})
        sent.parts[0].final = False
        assert store.write(sent)
    client = client_of(store)
    reply = client.get("/api/v1/jobs/12/series")
    assert reply.status_code == 413
    assert "more than 262,144 values; name fewer metrics or a shorter interval" in reply.text
    first = {"since": START / 1e9, "until": START / 1e9 + 1e-5, "metrics": "cpu.time"}
    assert client.get("/api/v1/jobs/12/series", params=first).status_code == 200
    # The page shows the rest of the report.
    assert client.get("/jobs/12").status_code == 200
    assert client.get("/").status_code == 200


def test_names_of_nodes_are_bounded_together(store: Store) -> None:
    nodes = tuple(f"{number:0255}" for number in range(2000))
    content = encode(batch(12, nodes=nodes))
    reply = client_of(store).post("/api/v1/batches", content=content)
    assert reply.json()["left_out"] == 1
    assert store.find(RunReference(12)).info.nodes is None
