"""The list, the comparison and the page of a job that runs, in a real browser."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from jobsight.model import Run
from jobsight.store.store import Store
from tests.waiting import wait_until
from tests.web.conftest import served
from tests.web.test_browser import drawn, opened, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

HIDDEN_EDGE = """() => {
  const [, used] = document.querySelector('.plot-area').uplot.data;
  const first = used.findIndex((value) => value != null);
  return used[first] === used[first + 1];
}"""


def names(page: Page) -> list[str]:
    return [text.strip() for text in page.locator("table.runs td.name").all_inner_texts()]


def test_filter_sort_and_download_by_the_form_and_the_heads(
    browser: Browser, address: str, runs: dict[str, Run], tmp_path: Path
) -> None:
    with opened(browser, address) as page:
        page.get_by_role("link", name="Jobs", exact=True).click()
        page.get_by_role("textbox", name="User").fill("ada")
        page.get_by_role("combobox", name="State").select_option("COMPLETED")
        page.get_by_role("button", name="Show", exact=True).click()
        # Fields that are empty are not in the address.
        page.wait_for_url(f"{address}/jobs?user=ada&state=COMPLETED")
        assert len(names(page)) == 50
        page.get_by_role("link", name="Elapsed").click()
        page.wait_for_url(f"{address}/jobs?user=ada&state=COMPLETED&sort=-elapsed")
        longest = names(page)
        page.get_by_role("link", name="Elapsed").click()
        page.wait_for_url(f"{address}/jobs?user=ada&state=COMPLETED&sort=elapsed")
        assert names(page) != longest
        with page.expect_download() as download:
            page.get_by_role("link", name="This list as CSV").click()
        file = tmp_path / "jobs.csv"
        download.value.save_as(file)
        rows = list(csv.DictReader(file.read_text().splitlines()))
        assert {row["user"] for row in rows} == {"ada"}
        times = [float(row["elapsed_seconds"]) for row in rows]
        assert times == sorted(times)
        page.get_by_text("More filters and columns").click()
        page.get_by_role("checkbox", name="Partition").check()
        page.get_by_role("checkbox", name="CPUs").uncheck()
        page.get_by_role("button", name="Show", exact=True).click()
        expect(page.locator("table.runs thead th", has_text="Partition")).to_have_count(1)
        page.wait_for_load_state()
        heads = page.locator("table.runs thead th").all_inner_texts()
        assert "Partition" in heads
        assert "CPUs" not in heads
        assert page.locator("th[aria-sort=ascending]").inner_text().startswith("Elapsed")


def test_runs_are_drawn_over_each_other(
    browser: Browser, address: str, runs: dict[str, Run]
) -> None:
    with opened(browser, address) as page:
        page.goto(f"{address}/compare?run={runs['storm']}&run={runs['train-model']}")
        page.locator(".plot-area canvas").first.wait_for()
        series = "document.querySelector('.plot-area').uplot.series.length"
        until(page, f"{series} === 3")
        # Both begin at zero: the time since the start of each.
        first = page.evaluate("document.querySelectorAll('.plot-area')[1].uplot.data[0][0]")
        assert 0 <= first < 60
        page.locator(".plot-area").first.scroll_into_view_if_needed()
        area = page.locator(".plot-area").first.bounding_box()
        assert area is not None
        y = area["y"] + area["height"] / 2
        page.mouse.move(area["x"] + 120, y)
        page.mouse.down()
        page.mouse.move(area["x"] + 240, y, steps=5)
        page.mouse.up()
        # All charts show the part that was selected in one.
        zoomed = (
            "[...document.querySelectorAll('.plot-area')].filter((area) => area.uplot)"
            ".map((area) => area.uplot.scales.x.min)"
        )
        until(page, f"{zoomed}.every((least) => least > 0)")
        page.get_by_role("button", name="Entire runs").click()
        until(page, f"{zoomed}.every((least) => least < 60)")


def test_the_first_rate_begins_where_its_interval_does(
    browser: Browser, address: str, runs: dict[str, Run]
) -> None:
    with opened(browser, address) as page:
        page.goto(f"{address}/jobs/{runs['storm']}")
        drawn(page)
        assert page.evaluate(HIDDEN_EDGE)


def test_the_nodes_of_a_run_are_a_strip(browser: Browser, address: str, store: Store) -> None:
    run = next(run for run in store.runs(limit=100) if run.node_count > 1 and run.cpu_time)
    with opened(browser, address) as page:
        page.goto(f"{address}/jobs/{run.run}")
        drawn(page)
        strip = page.locator(".nodes-strip canvas")
        strip.wait_for()
        nodes = len(store.nodes(run.id))
        assert strip.get_attribute("aria-label") == f"The use of {nodes} nodes over time."


@pytest.mark.long
def test_a_page_follows_a_real_job_to_its_end(browser: Browser, tmp_path: Path) -> None:
    """A real job on this machine: its page shows it running, its samples as they come, its end."""
    file = tmp_path / "store.db"
    stop = tmp_path / "stop"
    script = f"while [ ! -e {stop} ]; do :; done"
    command = [sys.executable, "-m", "jobsight.cli.main", "run", "--quiet", "--name", "followed"]
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    with subprocess.Popen(
        [*command, "--store", str(file), "--", "/bin/sh", "-c", script], env=environment
    ) as job:
        try:
            with Store.open(file) as store:
                wait_until(lambda: bool(store.runs()))
                run = store.runs()[0].run
                with served(store) as address, opened(browser, address) as page:
                    assert "followed" in page.locator("#running").inner_text()
                    page.goto(f"{address}/jobs/{run}")
                    assert page.locator("#head .state").inner_text() == "Running"
                    drawn(page)
                    length = "document.querySelector('.plot-area').uplot?.data[0].length ?? 0"
                    before = page.evaluate(length)
                    until(page, f"({length}) > {before + 2}")
                    stop.touch()
                    job.wait(60)
                    until(page, "document.querySelector('#head .state').innerText !== 'Running'")
                    expect(page.locator("#head .state")).to_have_text("Completed")
        finally:
            stop.touch()
            job.wait(60)
