"""The pages of clusters and nodes."""

from __future__ import annotations

import re

from starlette.testclient import TestClient

from jobsight.model import SECOND
from jobsight.scheduler.records import JobRecord, NodeInfo
from jobsight.scheduler.state import read_state, write_state
from jobsight.server.app import create_app
from jobsight.store.read.nodes import runs_on_node
from jobsight.store.read.visibility import EVERYTHING
from jobsight.store.snapshot import read_snapshot
from jobsight.store.store import Store
from jobsight.web.pages.clusters import NodeRow, NodeSort
from tests.web.conftest import SITE_NOW, TOKEN
from tests.web.document import Document
from tests.web.viewers import seen_by, user


def open_page(client: TestClient, address: str) -> Document:
    reply = client.get(address)
    assert reply.status_code == 200, reply.text
    return Document(reply.text)


def busiest_node(store: Store) -> tuple[str, str]:
    with store.database.query() as transaction:
        row = transaction.execute(
            "SELECT run_nodes.cluster, run_nodes.node FROM run_nodes "
            'JOIN runs ON runs.id = run_nodes.run_id WHERE runs."end" IS NULL '
            "GROUP BY 1, 2 ORDER BY count(*) DESC, 1, 2 LIMIT 1"
        ).fetchone()
    return str(row[0]), str(row[1])


def test_a_cluster_has_its_resources_queue_and_load(visit: TestClient, site: Store) -> None:
    document = open_page(visit, "/clusters/north")
    nodes = read_snapshot(site.database, "north", "node", NodeInfo)
    total = sum(node.cpus or 0 for node in nodes)
    allocated = sum(node.cpus_allocated or 0 for node in nodes)
    assert f"{allocated:,} of {total:,} Idle" in document.text
    assert "scraped 00:02:00 ago" in document.text
    # Every node is a link on the map, with its state as text.
    links = [each["href"] for each in document.all("a") if "/nodes/n" in (each["href"] or "")]
    assert {f"/clusters/north/nodes/{node.name}" for node in nodes} <= {*links}
    for text in ("Why jobs wait", "Longest waiting", "maintenance", "bigmem", "Core hours by day"):
        assert text in document.text
    # The chart has a column for each day, and the table below it the same figures.
    assert len(re.findall(r'class="chart-accent"', visit.get("/clusters/north").text)) == 30


def test_reasons_are_counted_by_task_and_explained(visit: TestClient, site: Store) -> None:
    pending = read_snapshot(site.database, "north", "pending", JobRecord)
    assert len({record.reason for record in pending}) > 2
    text = open_page(visit, "/clusters/north").text
    assert "It is next, and waits until enough nodes" in text
    assert all((record.reason or "") in text for record in pending)


def test_all_clusters_are_listed(visit: TestClient) -> None:
    document = open_page(visit, "/clusters")
    assert {"/clusters/north", "/clusters/south"} <= {each["href"] for each in document.all("a")}


def test_an_old_scrape_is_shown_as_old(site: Store) -> None:
    later = SITE_NOW + 2 * 3600 * SECOND
    with TestClient(
        create_app(site, TOKEN, delay=0, clock=lambda: later), base_url="http://127.0.0.1:8080"
    ) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        text = open_page(client, "/clusters/north").text
        assert "The last scrape that succeeded was 02:02:00 ago" in text
        state, failed = (read_state(site.database, "south") for _ in range(2))
        failed.reason = "slurmctld <unreachable>"
        write_state(site.database, failed)
        try:
            assert "Reason: slurmctld <unreachable>" in open_page(client, "/clusters/south").text
        finally:
            write_state(site.database, state)


def test_a_node_has_its_jobs_as_a_time_line(visit: TestClient, site: Store) -> None:
    cluster, node = busiest_node(site)
    runs = runs_on_node(
        site.database, cluster, node, since=SITE_NOW - 86400 * SECOND, until=SITE_NOW, limit=50,
        visibility=EVERYTHING,
    )  # fmt: skip
    assert runs
    document = open_page(visit, f"/clusters/{cluster}/nodes/{node}")
    links = [each.get("href") for each in document.all("a")]
    for run in runs:
        # In the time line, and in the table.
        assert links.count(f"/jobs/{run.run}") == 2
    assert "What the jobs used" in document.text
    assert "never seen" in document.text


def test_users_see_their_own_jobs_only(visit: TestClient, site: Store) -> None:
    cluster, node = busiest_node(site)
    owners = {
        run.info.user
        for run in runs_on_node(
            site.database, cluster, node, since=SITE_NOW - 86400 * SECOND, until=SITE_NOW,
            limit=50, visibility=EVERYTHING,
        )
    }  # fmt: skip
    with seen_by(user("nobody-of-these")):
        text = visit.get(f"/clusters/{cluster}/nodes/{node}").text
        assert "/jobs/" not in text
        assert not any(f">{owner}<" in text for owner in owners)
        queue = open_page(visit, f"/clusters/{cluster}").text
        assert "Why jobs wait" in queue
        assert "Longest waiting" not in queue
        # Who drained a node and who has a reservation is for staff.
        assert "operator" not in queue
        assert "chem2024" not in queue


def test_nodes_are_filtered_by_state_and_partition(visit: TestClient, site: Store) -> None:
    nodes = read_snapshot(site.database, "north", "node", NodeInfo)
    wanted = [node.name for node in nodes if "gpu" in node.partitions]
    document = open_page(visit, "/clusters/north/nodes?partition=gpu")
    listed = [each["href"] for each in document.all("a") if "/nodes/n" in (each["href"] or "")]
    assert listed == [f"/clusters/north/nodes/{name}" for name in wanted]
    assert "No node passes the filter" in open_page(visit, "/clusters/north/nodes?state=lost").text
    first = open_page(visit, "/clusters/north/nodes")
    assert "1 to 100 of 220" in first.text
    assert "201 to 220 of 220" in open_page(visit, "/clusters/north/nodes?offset=200").text


def _listed(document: Document) -> list[str]:
    links = [each["href"] or "" for each in document.all("a")]
    return [link.rpartition("/")[2] for link in links if "/nodes/n" in link]


def test_nodes_are_sorted_by_the_titles_of_columns(visit: TestClient, site: Store) -> None:
    nodes = {node.name: node for node in read_snapshot(site.database, "north", "node", NodeInfo)}
    document = open_page(visit, "/clusters/north/nodes?sort=-load")
    loads = [nodes[name].load for name in _listed(document)]
    known = [load for load in loads if load is not None]
    assert known == sorted(known, reverse=True)
    assert None not in loads[: len(known)]
    # The same again turns it around, and the page after it keeps the order.
    links = [each["href"] for each in document.all("a")]
    assert "?sort=load" in links
    assert "?sort=-load&offset=100" in links
    assert "?sort=-cpus" in links
    assert "?sort=state" in links
    # The first order has no parameter.
    assert "?" in links
    pages = (f"/clusters/north/nodes?sort=-memory&offset={offset}" for offset in (0, 100, 200))
    whole = [name for address in pages for name in _listed(open_page(visit, address))]
    assert sorted(whole) == sorted(nodes)
    shares = [(nodes[name].memory_allocated or 0) / (nodes[name].memory or 1) for name in whole]
    assert shares == sorted(shares, reverse=True)
    for sort in ("node", "state", "gpus", "agent", "reason", "-reason"):
        assert len(_listed(open_page(visit, f"/clusters/north/nodes?sort={sort}"))) == 100
    reply = visit.get("/clusters/north/nodes?sort=colour")
    assert reply.status_code == 422
    assert "is no column to sort nodes by; expected one of node, state" in reply.text


def test_names_are_in_the_order_of_their_numbers() -> None:
    names = ["n10", "n2", "m", "n2-10", "n2-9", "10", "9"]
    rows = [
        NodeRow(info=NodeInfo(cluster="c", name=name), state="idle", tone="idle") for name in names
    ]
    found = [row.info.name for row in NodeSort().sorted(rows)]
    assert found == ["9", "10", "m", "n2", "n2-9", "n2-10", "n10"]
    assert [row.info.name for row in NodeSort("node", True).sorted(rows)] == found[::-1]


def test_what_does_not_exist_is_not_found(visit: TestClient) -> None:
    for address in ("/clusters/west", "/clusters/west/nodes", "/clusters/north/nodes/nope"):
        reply = visit.get(address)
        assert reply.status_code == 404
        assert "There is no cluster" in reply.text or "has no node" in reply.text
    assert visit.get("/clusters/north?days=0").status_code == 422


def test_a_site_without_a_scheduler_says_how_to_scrape(client: TestClient) -> None:
    assert "No cluster has been scraped" in open_page(client, "/clusters").text
