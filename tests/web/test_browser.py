"""The pages in a real browser: drawn, alive, quiet, and with nothing from elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from playwright.sync_api import expect

from jobsight.model import SECOND, JobInfo, Run
from jobsight.server.conditional import CLOCK_STEP
from jobsight.store.store import Store
from tests.web import sample
from tests.web.conftest import TOKEN, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

#: How many pixels of each canvas are painted, and how many values each uPlot holds.
PLOTS = """() => [...document.querySelectorAll('.plot-area')].map((area) => {
  const canvas = area.querySelector('canvas');
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let painted = 0;
  for (let at = 3; at < pixels.length; at += 4) if (pixels[at]) painted += 1;
  const values = area.uplot.data.slice(1).flat().filter((value) => value !== null).length;
  return { painted, values, times: area.uplot.data[0].length };
})"""


def drawn(page: Page) -> None:
    page.locator(".plot-area canvas").nth(3).wait_for(timeout=60_000)


def until(page: Page, expression: str, timeout: float = 60) -> None:
    """Wait for an expression; the browser may not do so itself, as its policy forbids eval."""
    deadline = time.monotonic() + timeout
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"still not: {expression}"
        time.sleep(0.05)


@contextmanager
def opened(
    browser: Browser, address: str, account: dict[str, str] | None = None, **options: Any
) -> Iterator[Page]:
    """A page of a browser that is signed in, with the server's token if no form of an account is
    given; it fails where anything was complained of."""
    context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    # What was still under way when the page was left is aborted, which nobody complains of.
    page.on(
        "requestfailed",
        lambda request: (
            request.failure == "net::ERR_ABORTED" or complaints.append(f"failed: {request.url}")
        ),
    )
    page.on(
        "request",
        lambda request: request.url.startswith(address) or complaints.append(request.url),
    )
    page.add_init_script(
        "document.addEventListener('securitypolicyviolation',"
        " (event) => console.error(`policy: ${event.violatedDirective}`))"
    )
    form = {"token": TOKEN} if account is None else account
    signed_in = context.request.post(f"{address}/sign-in", form=form, max_redirects=0)
    assert signed_in.status == 303
    page.goto(address)
    try:
        yield page
        assert complaints == []
    finally:
        context.close()


def test_curves_are_drawn(browser: Browser, address: str, runs: dict[str, Run]) -> None:
    with opened(browser, address) as page:
        page.get_by_role("link", name=str(runs["train-model"].job_id), exact=True).click()
        drawn(page)
        for plot in page.evaluate(PLOTS):
            assert plot["painted"] > 2000
            assert plot["values"] > plot["times"]
            assert plot["times"] > 60
        # What was requested is a line of its own in the plots of CPU and memory.
        last = "document.querySelectorAll('.plot-area')[0].uplot.data.at(-1)[5]"
        assert page.evaluate(last) == 4


@pytest.mark.parametrize("name", ["files", "unit-tests", "lammps-melt", sample.HOSTILE])
@pytest.mark.long
def test_every_kind_of_run_is_quiet(
    browser: Browser, address: str, runs: dict[str, Run], name: str
) -> None:
    with opened(browser, address) as page:
        page.goto(f"{address}/jobs/{runs[name]}")
        drawn(page)
        assert page.locator("main script, main img, h1 script").count() == 0


def test_cursor_zoom_and_legend(browser: Browser, address: str, runs: dict[str, Run]) -> None:
    with opened(browser, address) as page:
        page.goto(f"{address}/jobs/{runs['storm']}")
        drawn(page)
        first = page.locator(".plot-area").first
        first.focus()
        page.keyboard.press("Home")
        for _ in range(5):
            page.keyboard.press("ArrowRight")
        note = page.locator("#curves-note")
        expect(note).to_have_text("5 s after the start, 02:34:07 UTC")
        # All plots follow one cursor, and the legends read out what is under it.
        positions = (
            "[...document.querySelectorAll('.plot-area')].map((area) => area.uplot.cursor.idx)"
        )
        until(page, f"JSON.stringify({positions}) === '[5,5,5,5]'")

        assert all(page.locator(".legend button b").all_inner_texts())

        box = first.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 200, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + 350, box["y"] + 60, steps=3)
        page.mouse.up()
        width = "(() => { const x = document.querySelectorAll('.plot-area')[3].uplot.scales.x;"
        width += " return x.max - x.min; })()"
        until(page, f"{width} < 8")
        page.get_by_role("button", name="Entire run").click()
        until(page, f"{width} === 14")
        expect(page.locator("#entire-run")).to_be_hidden()

        requested = page.get_by_role("button", name="requested").first
        requested.click()
        expect(requested).to_have_attribute("aria-pressed", "false")
        until(page, "document.querySelector('.plot-area').uplot.scales.y.max < 2")


def test_many_nodes_as_mean_as_lines_and_one_by_one(
    browser: Browser, address: str, runs: dict[str, Run]
) -> None:
    def series(page: Page) -> int:
        found = page.evaluate("document.querySelector('.plot-area').uplot.data.length")
        assert isinstance(found, int)
        return found

    with opened(browser, address) as page:
        page.goto(f"{address}/jobs/{runs['lammps-melt']}")
        drawn(page)
        chooser = page.get_by_label("Nodes").and_(page.locator("select"))
        assert len(chooser.locator("option").all()) == 10
        # Times, mean, least, greatest, time in the kernel, asked.
        assert series(page) == 6
        length = "document.querySelector('.plot-area').uplot.data.length"
        chooser.select_option("each")
        until(page, f"{length} === 10")
        chooser.select_option("node03")
        until(page, f"{length} <= 6")
        memory = "document.querySelectorAll('.plot-area')[1].uplot.data[1]"
        until(page, f"{memory}.filter((value) => value == null).length > 10")


def test_nodes_are_brought_onto_one_row_of_times(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        joined = page.evaluate(
            """async () => {
              const { alignNodes, meanOfNodes } = await import('/static/nodes.js');
              const node = (name, times, mean) => ({ node: name, times, metrics: {
                m: { unit: 'cores', mean, minimum: mean, maximum: mean } } });
              const aligned = alignNodes([
                node('a', [0, 10, 20, 30], [1, 1, null, 1]),
                node('b', [5, 15, 45], [2, 4, 4]),
                node('c', [], []),
              ]);
              const silent = alignNodes([
                node('a', [0, 10, 155, 300], [1, 1, null, 2]),
                node('b', [0, 10, 100, 200, 300], [3, 3, 3, 3, 3]),
              ]);
              return { times: aligned.times, all: meanOfNodes(aligned).metrics.m,
                       gap: silent.nodes[0].metrics.m.mean };
            }"""
        )
    assert joined["times"] == [0, 10, 20, 30, 45]
    assert joined["all"]["mean"] == [1, 2, 4, 2.5, 4]
    assert joined["all"]["minimum"] == [1, 1, 4, 1, 4]
    assert joined["gap"] == [1, 1, None, None, 2]


@pytest.mark.long
def test_a_running_job_grows_until_it_ends(browser: Browser, tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store, served(store) as address:
        _watch(browser, address, store)


def _watch(browser: Browser, address: str, store: Store) -> None:
    make = sample.Maker("grows")
    (first,) = make.job(
        lambda share: (1.0, 2**28, 0.0), length=20, ago=20, name="grows", running=True
    )
    store.write(first, received=first.written)
    run = Run("grows", 1, sample.NOW - 20 * SECOND)
    with opened(browser, address) as page:
        page.clock.install()
        page.goto(f"{address}/jobs/{run}")
        drawn(page)
        page.locator(".command, h1").first.focus()
        count = "document.querySelector('.plot-area').uplot.data[0].length"
        before = page.evaluate(count)

        (second,) = sample.Maker("grows").job(
            lambda share: (1.0, 2**28, 0.0), length=50, ago=20, name="grows"
        )
        store.write(msgspec.structs.replace(second, sequence=2), received=second.written)
        page.clock.run_for(3500)
        until(page, f"{count} > {before}")
        until(page, "document.querySelector('#head .state').innerText === 'Completed'")
        until(page, "document.querySelector('#figures').innerText.includes('50.0 s')")

        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.clock.run_for(60_000)
        assert asked == []


@pytest.mark.long
def test_a_refresh_without_news_is_answered_304(browser: Browser, tmp_path: Path) -> None:
    """The page goes on with its elapsed times, and shows what is new when there is something."""
    now = [sample.NOW]
    with Store.open(tmp_path / "store.db") as store, served(store, lambda: now[0]) as address:
        _refresh(browser, address, store, now)


def _refresh(browser: Browser, address: str, store: Store, now: list[int]) -> None:
    def job(length: int, sequence: int) -> None:
        (made,) = sample.Maker("lasts").job(
            lambda share: (1.0, 2**28, 0.0), length=length, ago=600, name="lasts", running=True
        )
        store.write(msgspec.structs.replace(made, sequence=sequence), received=made.written)

    job(300, 1)
    run = Run("lasts", 1, sample.NOW - 600 * SECOND)
    elapsed = "document.querySelector('[data-elapsed]').innerText"
    for number, path in enumerate((f"/jobs/{run}", "/"), 2):
        with opened(browser, address) as page:
            page.clock.install()
            page.goto(f"{address}{path}")
            if path != "/":
                drawn(page)
            assert page.evaluate(elapsed).startswith("00:10:0")
            pages: list[int] = []
            curves: list[int] = []
            page.on("response", lambda answer, lists=(pages, curves): _note(answer, *lists))
            # The browser has no tag of the page that it loaded, only of the time series.
            _refreshes(page, pages, 4)
            assert pages[0] == 200
            assert {*pages[1:]} == {304}
            # The server's clock stands still: this is what the browser continued.
            until(page, f"{elapsed} > '00:10:05'")

            _clear(pages, curves)
            job(300 + 20 * number, number)
            _refreshes(page, pages, 4)
            # Whatever was under way meanwhile, the news were sent once.
            assert sorted(pages) == [200, *[304] * (len(pages) - 1)]
            if path != "/":
                read = "#figures time[datetime='2026-11-15T04:28:52Z']"
                until(page, f'document.querySelector("{read}") !== null')
                assert sorted(curves) == [200, *[304] * (len(curves) - 1)]

            _clear(pages, curves)
            now[0] += CLOCK_STEP
            _refreshes(page, pages, 4)
            assert sorted(pages) == [200, *[304] * (len(pages) - 1)]
            assert {*curves} <= {304}
            now[0] -= CLOCK_STEP


def _note(answer: Any, pages: list[int], curves: list[int]) -> None:
    # Not the icon and what else the browser loads by itself.
    if answer.request.resource_type == "fetch":
        (curves if "/series" in answer.url else pages).append(answer.status)


def _clear(*lists: list[int]) -> None:
    for each in lists:
        each.clear()


def _refreshes(page: Page, answers: list[int], count: int) -> None:
    """Let time pass until so many answers have come."""
    deadline = time.monotonic() + 60
    while len(answers) < count:
        assert time.monotonic() < deadline, answers
        page.clock.run_for(1000)
        page.wait_for_timeout(20)


def test_light_and_dark_differ_and_the_curves_follow(
    browser: Browser, address: str, runs: dict[str, Run]
) -> None:
    stroke = "document.querySelector('.plot-area').uplot.series[1].stroke()"
    paper = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, address, color_scheme="light") as page:
        page.goto(f"{address}/jobs/{runs['storm']}")
        drawn(page)
        light = [page.evaluate(paper), page.evaluate(stroke), page.screenshot()]
        page.emulate_media(color_scheme="dark")
        until(page, f"{stroke} !== {light[1]!r}")
        dark = [page.evaluate(paper), page.evaluate(stroke), page.screenshot()]
        assert all(one != other for one, other in zip(light, dark, strict=True))
        # On paper both are drawn in the colours of paper.
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate(stroke) == light[1]
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate(stroke) == dark[1]


@pytest.mark.parametrize("width", [320, 390, 760, 1024, 1920])
@pytest.mark.long
def test_no_page_scrolls_sideways(
    browser: Browser, address: str, runs: dict[str, Run], width: int
) -> None:
    with opened(browser, address, viewport={"width": width, "height": 800}) as page:
        for path in ("/", f"/jobs/{runs[sample.HOSTILE]}", f"/jobs/{runs['lammps-melt']}"):
            page.goto(address + path)
            if path != "/":
                drawn(page)
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, path


# Fault 23: a row with "Ended: out of memory" pushed the last columns out of the list.
@pytest.mark.parametrize("width", [1024, 1280, 1440, 1920])
def test_the_list_does_not_scroll_with_long_states(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    with Store.open(tmp_path / "store.db") as store, served(store) as address:
        for number, state in enumerate(("OUT_OF_MEMORY", "TIMEOUT", "NODE_FAIL", "COMPLETED")):
            info = JobInfo(
                cluster="alpha",
                job_id=4_294_901_748 + number,
                source="json",
                array_job_id=4_294_901_748,
                array_task_id=1_048_570 + number,
                name="a-name-that-is-longer-than-its-space",
                user="a-user-with-a-long-name",
                account="an-account-with-a-long-name",
                nodes=tuple(f"n{node}" for node in range(1_024)),
                cpus=131_072,
                memory=123 * 2**30,
                start=sample.NOW,
                end=sample.NOW + 123_456 * SECOND,
                state=state,
            )
            store.record_jobs([info])
        with store.database.write() as transaction:
            figures = {"cpu": 123_456 * 131_072 * SECOND // 3, "memory": 121 * 2**30}
            transaction.execute(
                "UPDATE runs SET cpu_time = :cpu, memory_used_peak = :memory", figures
            )
        with opened(browser, address, viewport={"width": width, "height": 800}) as page:
            page.goto(f"{address}/jobs?group=0")
            assert "Ended: out of memory" in page.locator("table.runs").inner_text()
            needed, given = page.evaluate(
                "[document.querySelector('table.runs').scrollWidth,"
                " document.querySelector('.table-frame').clientWidth]"
            )
            assert needed <= given


def test_readable_without_javascript(browser: Browser, address: str, runs: dict[str, Run]) -> None:
    with opened(browser, address, java_script_enabled=False) as page:
        page.goto(f"{address}/jobs")
        assert "59 runs" in page.locator("main").inner_text()
        page.goto(f"{address}/jobs/{runs['storm']}")
        text = page.locator("main").inner_text()
        for wanted in ("The plots need JavaScript", "Memory used", "3,000", "not attributed"):
            assert wanted in text
        assert page.locator(".curves-tools").is_hidden()


def test_sign_in_by_the_form(browser: Browser, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("The token is invalid.")
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_selector("table.runs")
    context.close()
