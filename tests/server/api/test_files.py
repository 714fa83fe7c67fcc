"""The report of a job as PDF and HTML, and its plots, over HTTP."""

import asyncio
import threading
from typing import get_args
from xml.etree import ElementTree

import pytest
from fastapi import HTTPException
from starlette.testclient import TestClient

from jobsight.reports.plots import CHARTS, MAPS
from jobsight.server.api.files import DrawingQueue, PlotName
from jobsight.store.store import Store
from tests.server.batches import batch

HOSTILE = "<script>alert(1)</script> #panic() $\\frac{ \"'&\x1b[31m\n" + "x" * 4096


def test_the_report_as_pdf(client: TestClient) -> None:
    reply = client.get("/api/v1/jobs/12/report.pdf")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/pdf"
    assert reply.headers["content-disposition"] == 'attachment; filename="job-12.pdf"'
    assert reply.content.startswith(b"%PDF-")


def test_the_report_as_html(client: TestClient) -> None:
    reply = client.get("/api/v1/jobs/12/report.html")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert "sandbox" in reply.headers["content-security-policy"]
    assert "Job 12" in reply.text
    assert "alice" in reply.text


@pytest.mark.parametrize("name", ["cpu", "memory"])
def test_a_plot_as_svg(client: TestClient, name: str) -> None:
    reply = client.get(f"/api/v1/jobs/12/plots/{name}.svg")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "image/svg+xml"
    assert ElementTree.fromstring(reply.content).tag.endswith("}svg")


def test_the_names_of_the_plots_are_those_that_are_drawn() -> None:
    assert get_args(PlotName) == (*CHARTS, *MAPS)


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("12/plots/gpu.svg", 404, "job 12 has no data for the plot gpu"),
        ("12/plots/cpu-map.svg", 404, "job 12 has no data for the plot cpu-map"),
        ("12/plots/passwd.svg", 422, "name: "),
        ("12/report.pdf?pages=2", 422, "unknown parameter 'pages'"),
        ("99/report.pdf", 404, "no run of job 99"),
        ("99/report.html", 404, "no run of job 99"),
        ("99/plots/cpu.svg", 404, "no run of job 99"),
        ("x/report.pdf", 400, "'x' does not name a run"),
    ],
)
def test_errors(client: TestClient, path: str, status: int, sentence: str) -> None:
    reply = client.get(f"/api/v1/jobs/{path}")
    assert reply.status_code == status
    assert reply.json()["detail"].startswith(sentence)


def test_hostile_names_are_text(client: TestClient, filled: Store) -> None:
    assert filled.write(batch(14, name=HOSTILE, user="<b>eve</b>", account="$x_{"))
    page = client.get("/api/v1/jobs/14/report.html").text
    assert "<script" not in page
    assert "<b>eve" not in page
    assert "&lt;b&gt;eve&lt;/b&gt;" in page
    assert client.get("/api/v1/jobs/14/report.pdf").content.startswith(b"%PDF-")
    assert client.get("/api/v1/jobs/14/plots/cpu.svg").status_code == 200


def test_a_few_are_drawn_at_once_and_too_many_are_refused() -> None:
    held = threading.Event()
    counts = {"now": 0, "most": 0}
    mutex = threading.Lock()

    def draw() -> str:
        with mutex:
            counts["now"] += 1
            counts["most"] = max(counts["most"], counts["now"])
        held.wait(60)
        with mutex:
            counts["now"] -= 1
        return "drawn"

    async def ask() -> tuple[list[str], HTTPException]:
        queue = DrawingQueue(max_drawn=2, waiting=3)
        tasks = [asyncio.create_task(queue.run(draw)) for _ in range(5)]
        while queue._waiting < 3 or counts["now"] < 2:
            await asyncio.sleep(0.01)
        with pytest.raises(HTTPException) as refused:
            await queue.run(draw)
        held.set()
        return await asyncio.gather(*tasks), refused.value

    drawn, refused = asyncio.run(ask())
    assert drawn == ["drawn"] * 5
    assert counts["most"] == 2
    assert refused.status_code == 503
    assert refused.headers == {"Retry-After": "5"}
