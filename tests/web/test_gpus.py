"""Jobs with GPUs on the pages: the list, the rows, and the strip of many GPUs in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from starlette.testclient import TestClient

from jobsight.server.app import create_app
from jobsight.store.store import Store
from tests.web import gpu_jobs
from tests.web.conftest import TOKEN, served
from tests.web.document import Document
from tests.web.test_browser import opened, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def gpu_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("gpus") / "store.db") as store:
        gpu_jobs.fill(store)
        yield store


@pytest.fixture
def gpu_client(gpu_store: Store) -> TestClient:
    made = TestClient(create_app(gpu_store, TOKEN, delay=0), base_url="http://127.0.0.1:8080")
    made.headers["Authorization"] = f"Bearer {TOKEN}"
    return made


def _page(client: TestClient, store: Store, name: str) -> str:
    (run,) = (run for run in store.runs() if run.info.name == name)
    answer = client.get(f"/jobs/{run.run}")
    assert answer.status_code == 200
    return answer.text


def test_the_list_shows_held_and_used_at_a_glance(gpu_client: TestClient) -> None:
    text = gpu_client.get("/jobs").text
    assert "1 of 4 used" in text
    assert "30 of 32 used" in text
    only = gpu_client.get("/jobs?gpu=unused").text
    assert "finetune" in only
    assert "md-water" not in only
    assert '<option value="unused" selected>' in only
    Document(only)


def test_the_api_has_the_filter_and_the_figures(gpu_client: TestClient) -> None:
    listed = gpu_client.get("/api/v1/jobs?unused_gpus=true").json()
    assert {job["name"] for job in listed["jobs"]} == {"finetune", "pretrain-7b"}
    assert listed["total"] == 2
    (job,) = (job for job in listed["jobs"] if job["name"] == "finetune")
    assert (job["gpu_count"], job["gpu_unused_count"], job["gpu_held_seconds"]) == (4, 3, 14400)
    report = gpu_client.get(f"/api/v1/jobs/{job['run']}").json()
    assert report["gpu"]["unused_count"] == 3
    assert [row["used"] for row in report["gpus"]] == [True, False, False, False]


def test_a_row_for_each_gpu_with_its_marks(gpu_client: TestClient, gpu_store: Store) -> None:
    text = _page(gpu_client, gpu_store, "finetune")
    assert "4 GPUs held; held and never used: 3 of 4" in text
    assert text.count(">never</b>") == 3
    assert "a GPU can show 100 % and be nearly idle" in text
    old = _page(gpu_client, gpu_store, "md-water")
    assert "not measured, the driver gives them from Hopper on." in old
    assert "Tensor cores</th>" not in old
    assert ">shared</span>" in _page(gpu_client, gpu_store, "agents-rl")
    large = _page(gpu_client, gpu_store, "pretrain-7b")
    assert large.count('class="gpu-') >= 32
    assert "2 xid 63" in large
    assert "reduced clocks for 00:43:20 (temperature)" in large


def test_a_page_without_gpus_has_nothing_about_them(
    gpu_client: TestClient, gpu_store: Store
) -> None:
    text = _page(gpu_client, gpu_store, "pi-parallel")
    assert "GPU" not in text
    assert "gpus.js" not in text


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_lines_of_few_and_a_strip_of_many(browser: Browser, gpu_store: Store, width: int) -> None:
    runs = {run.info.name: run.run for run in gpu_store.runs()}
    size = {"width": width, "height": 900}
    with served(gpu_store) as address, opened(browser, address, viewport=size) as page:
        page.goto(f"{address}/jobs/{runs['pretrain-7b']}")
        page.locator("#gpu-curves .heat canvas").wait_for()
        expect(page.locator("#gpu-curves .heat-names span")).to_have_count(32)
        label = page.locator("#gpu-curves .heat canvas").get_attribute("aria-label") or ""
        assert "Never used: gpu08 2, gpu08 3." in label
        until(page, "() => document.documentElement.scrollWidth <= innerWidth")
        page.goto(f"{address}/jobs/{runs['finetune']}")
        page.locator("#gpu-curves .plot-area canvas").nth(1).wait_for()
        said = page.locator("#gpu-curves .plot-area").first.get_attribute("aria-label") or ""
        # A share of each GPU, not a counter.
        assert "GPU 1: from 0 % to 0 %" in said
        until(page, "() => document.documentElement.scrollWidth <= innerWidth")
