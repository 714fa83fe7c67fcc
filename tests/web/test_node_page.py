"""The page of a node with its own time series next to the sum of its jobs."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from jobsight.access.viewer import Role, Viewer
from jobsight.model import SECOND, Series
from jobsight.scheduler.records import NodeInfo
from jobsight.server.app import create_app
from jobsight.store.maintenance.node_days import complete_days
from jobsight.store.read.visibility import EVERYTHING
from jobsight.store.snapshot import Snapshot
from jobsight.store.store import Store
from tests.store.node_sample import CPUS, DAY, MEMORY, wave, write_day
from tests.store.sample import batch, info, part, sighting
from tests.web.conftest import TOKEN, served
from tests.web.document import Document
from tests.web.viewers import seen_by, user

#: A midnight.
NOON = 20_700 * DAY + DAY // 2
NOW = NOON + 300 * SECOND
PAGE = "/clusters/c1/nodes/n1"


def _job(job_id: int, start: int, hours: float, cores: float, memory: int) -> tuple[object, ...]:
    rows = round(hours * 120)
    times = array("q", (start + row * 30 * SECOND for row in range(rows)))
    cpu = array("q", (round(row * 30 * SECOND * cores) for row in range(rows)))
    columns = {"cpu.time": cpu, "memory.used": array("q", [memory] * rows)}
    end = start + round(hours * 3600) * SECOND
    made = info(
        job_id, start, end=end if end < NOON else None, user="anna", cpus=8, name=f"fit {job_id}",
        state="COMPLETED" if end < NOON else "RUNNING", nodes=("n1",),
    )  # fmt: skip
    return made, part(sighting(job_id, birth=start), series=Series(times, columns))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("node") / "store.db") as opened:
        # Until two hours ago, and again for the last hour: the agent was unreachable meanwhile.
        write_day(opened, NOON - DAY, hours=22, busy=wave)
        write_day(opened, NOON - 3600 * SECOND, hours=1, busy=lambda time: 6.0)
        hour = 3600 * SECOND
        for job in (
            _job(1, NOON - 20 * hour, 6, 1.5, 3 * 2**30),
            _job(2, NOON - 12 * hour, 9, 1.0, 2 * 2**30),
            _job(3, NOON - hour, 1, 4.0, 10 * 2**30),
        ):
            assert opened.write(batch(*job, written=NOON))  # type: ignore[arg-type]
        nodes = [
            (
                name,
                NodeInfo(cluster="c1", name=name, cpus=CPUS, memory=MEMORY, partitions=("main",)),
            )
            for name in ("n1", "n2")
        ]
        Snapshot(opened.database, "c1").replace("node", nodes)
        yield opened


@pytest.fixture
def client(store: Store) -> TestClient:
    made = TestClient(
        create_app(store, TOKEN, delay=0, clock=lambda: NOW), base_url="http://127.0.0.1:8080"
    )
    made.headers["Authorization"] = f"Bearer {TOKEN}"
    return made


def chart(text: str, title: str) -> str:
    """The description of a chart."""
    found = re.search(rf'aria-label="{title}: ([^"]*)"', text)
    assert found is not None, title
    return found[1]


def test_a_node_is_beside_the_sum_of_its_jobs(client: TestClient) -> None:
    text = client.get(f"{PAGE}?hours=1").text
    document = Document(text)
    assert "What the node and its jobs used" in document.text
    # Six CPUs worked, four of them for the job; memory is 4 + 2 * 6 GiB.
    cpus = chart(text, "CPUs")
    assert "held by jobs: at most 8.00" in cpus
    assert "used by the node: at most 6.00" in cpus
    assert "used by jobs: at most 4.00" in cpus
    assert "used by the node: at most 16.0 GiB" in chart(text, "Memory")
    assert "received: at most 9.54 MiB/s" in chart(text, "Network")
    assert "node: at most 250 W" in chart(text, "Power")
    assert "for I/O: at most 10 %" in chart(text, "Time in which processes waited")
    assert "load average: at most 6.50" in chart(text, "Load")
    # What was not measured has no line and no figure of zero.
    assert "written" not in chart(text, "Disks")
    assert re.search(r"No job used 2\.\d+ of the busy CPUs and 6\.\d+ GiB", document.text)


def test_a_gap_is_a_gap(client: TestClient) -> None:
    text = client.get(PAGE).text
    figure = text[text.index('aria-label="Load: ') :]
    figure = figure[: figure.index("</svg>")]
    assert figure.count("<polyline") == 2
    assert client.get(f"{PAGE}?hours=168").status_code == 200


def test_only_who_sees_everything_sees_the_node_as_a_whole(client: TestClient) -> None:
    """On a node with one job, its time series are those of the job."""
    with seen_by(user("bob")):
        text = client.get(PAGE).text
        assert "What the node and its jobs used" not in text
        assert 'aria-label="Network' not in text
    with seen_by(user("anna")):
        text = client.get(PAGE).text
        assert "What the jobs used" in text
        assert "used by the node" not in text
    auditor = Viewer(name="aud", role=Role.AUDITOR, visibility=EVERYTHING)
    with seen_by(auditor):
        assert "used by the node" in client.get(PAGE).text


def test_a_node_without_curves_has_none(client: TestClient) -> None:
    text = client.get("/clusters/c1/nodes/n2").text
    assert "<polyline" not in text


def test_a_cluster_shows_the_days_of_its_nodes(client: TestClient, store: Store) -> None:
    assert "CPU hours of the nodes by day" not in client.get("/clusters/c1?days=7").text
    # A whole day of another node, and the beginning of the next one.
    midnight = NOON - DAY // 2
    for day in (2, 3):
        write_day(store, midnight - day * DAY, node="n2", busy=lambda time: 5.0)
    write_day(store, midnight - DAY, hours=0.1, node="n2")
    complete_days(store.database, NOW)
    text = client.get("/clusters/c1?days=7").text
    # Five CPUs for two days, and on the third twelve of the other node for half of it.
    drawn = chart(text, "CPU hours of the nodes by day")
    assert "used by the nodes: at most 121 h, mean 120 h; used by jobs: at most 0 h" in drawn
    # Longer intervals are in steps of weeks and months.
    assert "CPU hours of the nodes by day" not in client.get("/clusters/c1?days=365").text
    # The sum of a cluster shows no job.
    with seen_by(user("bob")):
        assert "CPU hours of the nodes by day" in client.get("/clusters/c1?days=7").text


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_a_browser(store: Store, browser: object, scheme: str) -> None:
    with served(store, clock=lambda: NOW) as address:
        context = browser.new_context(  # type: ignore[attr-defined]
            color_scheme=scheme,
            extra_http_headers={"Authorization": f"Bearer {TOKEN}"},
            viewport={"width": 1280, "height": 900},
        )
        page = context.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"{address}{PAGE}")
        # Every chart has lines that can be seen, within its area.
        boxes = page.evaluate(
            """() => [...document.querySelectorAll('.charts .chart-area')].map(area =>
                [...area.querySelectorAll('polyline')].map(line => {
                    const own = line.getBoundingClientRect(), all = area.getBoundingClientRect();
                    return own.width > 5 && own.left >= all.left - 2 && own.right <= all.right + 2
                        && own.top >= all.top - 2 && own.bottom <= all.bottom + 2;
                }))"""
        )
        assert len(boxes) == 7
        assert all(lines and all(lines) for lines in boxes)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert problems == []
        context.close()
