"""Into a server that speaks OpenSearch's protocol: typed fields, monthly indices, once each."""

from __future__ import annotations

import http.server
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from jobsight.errors import ConfigError
from jobsight.model import SECOND
from jobsight.scheduler.sinks.base import SinkError
from jobsight.scheduler.sinks.feeder import feed
from jobsight.scheduler.sinks.opensearch import OpenSearchSink
from jobsight.store.store import Store
from jobsight.util.outer import format_rfc3339
from tests.scheduler.sinks import servers
from tests.scheduler.sinks.site import START, book, keep, node, record
from tests.store.sample import batch, part, sighting, totals

pytestmark = pytest.mark.server

MONTH = 31 * 86400


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with servers.opensearch() as url:
        yield url


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


def ask(address: str, path: str, body: dict[str, Any]) -> Any:
    reply = httpx.post(f"{address}{path}", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()


def count(address: str, index: str) -> int:
    return int(ask(address, f"/{index}/_count", {})["count"])


def test_jobs_and_nodes_can_be_asked_for(address: str, store: Store) -> None:
    book(store, [record(7, comment="50% <&>\n"), record(8, START + MONTH, state="FAILED")])
    measured = part(sighting(job_id=7, birth=START * SECOND), totals=totals(1, 1200 * SECOND))
    assert store.write(batch(measured))
    keep(store, nodes=[node("n1"), node("n2", state="DOWN")], waiting=[record(9, None)])
    sink = OpenSearchSink(address, prefix="asked")
    assert feed(store, sink) == 5
    listed = httpx.get(f"{address}/_cat/indices?format=json").json()
    indices = {entry["index"] for entry in listed}
    assert {"asked-jobs-2026.09", "asked-jobs-2026.10", "asked-nodes", "asked-waiting"} <= indices
    # The queries of docs/scheduler.md: hours by user, what is inefficient, failures by month.
    hours = ask(address, "/asked-jobs-*/_search", {
        "size": 0,
        "query": {"range": {"end": {"gte": format_rfc3339(START * SECOND)}}},
        "aggs": {"by_user": {"terms": {"field": "user"},
                             "aggs": {"core_seconds": {"sum": {"field": "core_seconds"}}}}},
    })  # fmt: skip
    found = hours["aggregations"]["by_user"]["buckets"]
    by_user = {bucket["key"]: bucket["core_seconds"]["value"] for bucket in found}
    assert by_user == {"user0": 2400.0, "user1": 2400.0}
    low = {"query": {"range": {"cpu_share": {"lte": 0.5}}}}
    wasteful = ask(address, "/asked-jobs-*/_search", low)
    (hit,) = wasteful["hits"]["hits"]
    assert hit["_id"] == "c1:7:20260921T141320Z"
    assert (hit["_source"]["cpu_seconds"], hit["_source"]["cpu_share"]) == (1200.0, 0.5)
    assert hit["_source"]["comment"] == "50% <&>\n"
    failed = ask(address, "/asked-jobs-*/_search", {"query": {"term": {"state": "FAILED"}}})
    assert [hit["_source"]["grafana_helpers"] for hit in failed["hits"]["hits"]] == [
        {"job_state_color": 0}
    ]
    mapping = httpx.get(f"{address}/asked-jobs-2026.09/_mapping").json()
    fields = mapping["asked-jobs-2026.09"]["mappings"]["properties"]
    assert (fields["start"]["type"], fields["user"]["type"]) == ("date", "keyword")
    sink.close()


def test_the_same_again_writes_nothing_and_a_change_one(address: str, store: Store) -> None:
    book(store, (record(number) for number in range(1, 701)))
    keep(store, nodes=[node("n1"), node("n2")], waiting=[record(9000, None), record(9001, None)])
    sink = OpenSearchSink(address, prefix="again")
    assert feed(store, sink) == 704
    assert feed(store, sink) == 0
    book(store, [record(9000), record(5, name="another")])
    keep(store, nodes=[node("n2")], waiting=[record(9001, None)])
    assert feed(store, sink) == 4
    assert (count(address, "again-jobs-*"), count(address, "again-nodes")) == (701, 1)
    assert count(address, "again-waiting") == 1
    sink.close()


def test_what_is_refused_for_good_holds_up_nothing(address: str, store: Store) -> None:
    # A site's own index with another mapping: one document does not fit it.
    mapping = {"mappings": {"properties": {"job_id": {"type": "date", "format": "yyyy"}}}}
    httpx.put(f"{address}/odd-jobs-2026.09", json=mapping).raise_for_status()
    book(store, [record(7), record(2026)])
    sink = OpenSearchSink(address, prefix="odd")
    assert feed(store, sink) == 1
    assert list(sink.refused) == ["c1:7:20260921T141320Z"]
    sink.close()


class _Refusing(http.server.BaseHTTPRequestHandler):
    status = 200
    reply: Any = None

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        data = json.dumps(type(self).reply).encode()
        self.send_response(type(self).status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_PUT(self) -> None:
        self.do_POST()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_away_refused_or_busy_is_one_line(store: Store, tmp_path: Path) -> None:
    book(store, [record(7)])
    server = http.server.HTTPServer(("127.0.0.1", 0), _Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    password = tmp_path / "password"
    password.write_text("secret\n")
    sink = OpenSearchSink(address, user="anna", password_file=str(password))
    for status, reply, words in (
        (401, {}, "the user or the password"),
        (500, {"error": {"reason": "no disk"}}, "500: no disk"),
        (429, {"error": "slowly"}, "429: slowly"),
    ):
        _Refusing.status, _Refusing.reply = status, reply
        with pytest.raises(SinkError, match=words) as refused:
            feed(store, sink)
        assert "\n" not in str(refused.value)
        assert "secret" not in str(refused.value)
    server.shutdown()
    server.server_close()
    with pytest.raises(SinkError, match="does not answer"):
        feed(store, sink)
    sink.close()
    with pytest.raises(ConfigError, match="is not an address"):
        OpenSearchSink("localhost:9200")
    with pytest.raises(ConfigError, match=r"needs sinks\.opensearch\.password_file"):
        OpenSearchSink(address, user="anna")


def test_an_item_that_is_put_off_comes_again(store: Store) -> None:
    sink = OpenSearchSink("http://127.0.0.1:9")
    items = [{"index": {"_id": "a", "status": 201}}, {"index": {"_id": "b", "status": 429}}]
    reply = {"items": items}
    sink._send = lambda method, path, body: reply  # type: ignore[method-assign]
    with pytest.raises(SinkError, match="put off 1 documents"):
        sink._bulk([{"index": {}}, {}], set())
    sink.close()


#: Kills itself when the first part of the jobs is written.
_FEEDER = """
import os, signal, sys
from jobsight.scheduler.sinks.feeder import feed
from jobsight.scheduler.sinks.opensearch import OpenSearchSink
from jobsight.store.store import Store
class Feeder(OpenSearchSink):
    def _bulk(self, lines, expected):
        if super()._bulk(lines, expected):
            os.kill(os.getpid(), signal.SIGKILL)
        return 0
location, url = sys.argv[1:]
with Store.open(location) as store:
    feed(store, Feeder(url, prefix="killed", timeout=60))
"""


def test_killed_in_the_middle_and_repeated(address: str, store: Store) -> None:
    book(store, (record(number) for number in range(1, 1501)))
    command = [sys.executable, "-c", _FEEDER, store.database.where, address]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert 0 < count(address, "killed-jobs-*") < 1500
    sink = OpenSearchSink(address, prefix="killed", timeout=60)
    feed(store, sink)
    assert count(address, "killed-jobs-*") == 1500
    assert feed(store, sink) == 0
    sink.close()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_five_thousand_jobs(address: str, store: Store) -> None:
    book(store, (record(number, START + number * 100) for number in range(1, 5001)))
    sink = OpenSearchSink(address, prefix="many", timeout=300)
    assert feed(store, sink) == 5000
    assert count(address, "many-jobs-*") == 5000
    again = OpenSearchSink(address, prefix="many", timeout=300)
    assert feed(store, again) == 0
    for one in (sink, again):
        one.close()
