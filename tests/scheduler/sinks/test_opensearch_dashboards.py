"""The saved objects of OpenSearch Dashboards: complete, of fields that exist, and with queries that
a server with OpenSearch's API answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from deploy.opensearch.generate import BOARDS, FILE, Visualization, render, saved_objects
from jobsight.model import SECOND
from jobsight.scheduler.sinks.feeder import feed
from jobsight.scheduler.sinks.opensearch import TEMPLATES, OpenSearchSink
from jobsight.store.store import Store
from tests.scheduler.sinks import servers
from tests.scheduler.sinks.site import START, book, keep, node, record
from tests.store.sample import batch, part, sighting, totals

VISUALIZATIONS = [each for board in BOARDS for each in board.visualizations]


def test_the_file_is_what_the_table_gives() -> None:
    assert FILE.read_text() == render(), "type `make docs`"


def test_every_reference_is_in_the_file_before_it() -> None:
    known: set[tuple[str, str]] = set()
    for each in saved_objects():
        for reference in each["references"]:
            assert (reference["type"], reference["id"]) in known
        assert (each["type"], each["id"]) not in known
        known.add((each["type"], each["id"]))
    assert len(known) > 20


#: What the mappings of OpenSearch Dashboards know. They are strict: an import with any other
#: attribute is refused.
ATTRIBUTES = {
    "index-pattern": {"title": str, "timeFieldName": str},
    "visualization": {"title": str, "description": str, "version": int, "visState": str,
                      "uiStateJSON": str, "kibanaSavedObjectMeta": dict},
    "dashboard": {"title": str, "description": str, "version": int, "panelsJSON": str,
                  "optionsJSON": str, "timeRestore": bool, "timeFrom": str, "timeTo": str,
                  "kibanaSavedObjectMeta": dict},
}  # fmt: skip
#: Kinds of visualizations, and the places that each has for aggregations.
PLACES = {
    "metric": {"metric"},
    "horizontal_bar": {"metric", "segment", "group"},
    "histogram": {"metric", "segment", "group"},
    "pie": {"metric", "segment"},
    "table": {"metric", "bucket"},
}


def test_the_structure_is_that_of_opensearch_dashboards() -> None:
    """As its sources have it; the file was never imported into a running one."""
    for each in saved_objects():
        assert each.keys() == {"id", "type", "attributes", "references"}
        known = ATTRIBUTES[each["type"]]
        for name, value in each["attributes"].items():
            assert type(value) is known[name], name
        for name in each["attributes"].keys() & {"visState", "uiStateJSON", "optionsJSON"}:
            assert isinstance(json.loads(each["attributes"][name]), dict)
        named = {reference["name"] for reference in each["references"]}
        if each["type"] == "visualization":
            state = json.loads(each["attributes"]["visState"])
            places = [one["schema"] for one in state["aggs"]]
            assert set(places) <= PLACES[state["type"]]
            assert places.count("segment") <= (9 if state["type"] == "pie" else 1)
            assert len({one["id"] for one in state["aggs"]}) == len(places)
            search = json.loads(each["attributes"]["kibanaSavedObjectMeta"]["searchSourceJSON"])
            assert {search["indexRefName"]} == named
        elif each["type"] == "dashboard":
            panels = json.loads(each["attributes"]["panelsJSON"])
            assert {panel["panelRefName"] for panel in panels} == named
            assert all(panel["gridData"]["i"] == panel["panelIndex"] for panel in panels)


def test_panels_do_not_overlap() -> None:
    for each in saved_objects():
        if each["type"] == "dashboard":
            taken: set[tuple[int, int]] = set()
            for panel in json.loads(each["attributes"]["panelsJSON"]):
                place = panel["gridData"]
                cells = {
                    (x, y)
                    for x in range(place["x"], place["x"] + place["w"])
                    for y in range(place["y"], place["y"] + place["h"])
                }
                assert place["x"] + place["w"] <= 48
                assert not cells & taken
                taken |= cells


@pytest.mark.parametrize("each", VISUALIZATIONS, ids=lambda each: each.name)
def test_every_field_is_in_the_index_template(each: Visualization) -> None:
    fields = TEMPLATES[each.index]["template"]["mappings"]["properties"]
    for name in [metric.field for metric in each.metrics if metric.field] + list(each.by):
        if name != "time":
            found: Any = {"properties": fields}
            for word in name.split("."):
                found = found["properties"][word]
            assert found["type"] in ("keyword", "long", "double")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with runs, pending jobs and nodes, written by the sink."""
    with (
        servers.opensearch() as url,
        Store.open(tmp_path_factory.mktemp("store") / "store.db") as store,
    ):
        book(store, [record(7), record(8, START + 86400, state="FAILED")])
        measured = part(sighting(job_id=7, birth=START * SECOND), totals=totals(1, 1200 * SECOND))
        assert store.write(batch(measured))
        keep(store, nodes=[node("n1"), node("n2", state="DOWN")], waiting=[record(9, None)])
        sink = OpenSearchSink(url)
        assert feed(store, sink) > 0
        sink.close()
        yield url


def query_of(saved: dict[str, Any]) -> dict[str, Any]:
    """The request that a visualization sends: its buckets inside each other, its metrics within."""
    state = json.loads(saved["attributes"]["visState"])
    metrics = {
        each["id"]: {each["type"]: {"field": each["params"]["field"]}}
        for each in state["aggs"]
        if each["schema"] == "metric" and each["type"] != "count"
    }
    inner: dict[str, Any] = metrics
    for each in reversed([one for one in state["aggs"] if one["schema"] != "metric"]):
        parameters = each["params"]
        if each["type"] == "date_histogram":
            body: dict[str, Any] = {
                "date_histogram": {"field": parameters["field"], "fixed_interval": "1d"}
            }
        else:
            body = {"terms": {"field": parameters["field"], "size": parameters["size"]}}
        inner = {each["id"]: body | ({"aggs": inner} if inner else {})}
    return {"size": 0, "track_total_hits": True, "aggs": inner}


#: Fields that the made-up runs have no value for.
EMPTY = {"findings", "findings-by-user", "node-reasons"}


@pytest.mark.server
@pytest.mark.parametrize("each", VISUALIZATIONS, ids=lambda each: each.name)
def test_every_query_is_answered(address: str, each: Visualization) -> None:
    (saved,) = [one for one in saved_objects() if one["id"] == f"jobsight-{each.name}"]
    patterns = {one["id"]: one["attributes"]["title"] for one in saved_objects()}
    index = patterns[saved["references"][0]["id"]]
    body = query_of(saved)
    if not body["aggs"]:
        del body["aggs"]
    reply = httpx.post(f"{address}/{index}/_search", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    found = reply.json()
    assert found["hits"]["total"]["value"] > 0
    for aggregation in found.get("aggregations", {}).values():
        if "buckets" in aggregation and each.name not in EMPTY:
            assert aggregation["buckets"], each.name
