"""One job's page: 64 nodes, 24 hours at 30 s, 20 metrics: its data from the store to JSON, and the
page in Chromium until its charts are drawn."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from bench.bodies import CLUSTER, native
from bench.figures import Figures
from bench.peer_venv import scratch_directory
from bench.workload import FIRST_JOB, Job, make_jobs
from jobsight.model import RunReference
from jobsight.reports import series
from jobsight.reports.build import build_report
from jobsight.server.receiver import Receiver
from jobsight.store.store import Store
from tests.web.conftest import CHROMIUM, TOKEN, served

GOAL = 0.3
#: Seconds to the charts, and bytes of the page.
PAGE_GOAL, SIZE_GOAL = 1.0, 200_000
NODES, METRICS = 64, 20
ROWS = 24 * 120
#: What a page requests.
POINTS = 600
ROUNDS = 5


def one_job() -> list[Job]:
    """Each node's first job, taken together as one."""
    made = []
    for job in make_jobs(NODES, ROWS, 30.0, jobs=1):
        columns = dict(list(job.columns.items())[:METRICS])
        columns.setdefault("memory.peak", job.columns["memory.peak"])
        made.append(job._replace(job_id=FIRST_JOB, columns=dict(list(columns.items())[:METRICS])))
    return made


def browser_seconds(store: Store) -> tuple[int, float, float] | None:
    """The size of the page, and seconds to its text and to its charts; None without a browser."""
    if not os.access(CHROMIUM, os.X_OK):
        return None
    from playwright.sync_api import sync_playwright

    measured = []
    with served(store) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.request.post(f"{address}/sign-in", form={"token": TOKEN}, max_redirects=0)
        page = context.new_page()
        for _ in range(ROUNDS):
            start = time.monotonic()
            answer = page.goto(f"{address}/jobs/{FIRST_JOB}", wait_until="commit")
            page.wait_for_selector("#executables")
            text = time.monotonic() - start
            # Drawn after all charts.
            page.locator(".nodes-strip canvas").wait_for()
            assert answer is not None
            measured.append((len(answer.body()), text, time.monotonic() - start))
        browser.close()
    return min(measured, key=lambda each: each[2])


def main() -> None:
    figures = Figures()
    with (
        scratch_directory() as name,
        Store.open(Path(name) / "store.db") as store,
    ):
        # As an agent sends it: the end joins what came before.
        receiver = Receiver(store)
        for job in one_job():
            for body in native([job], 240):
                receiver.accept(body)
        run = store.find(RunReference(job_id=FIRST_JOB, cluster=CLUSTER))
        names = sorted({name for part in store.series(run.id) for name in part.columns})
        times, sizes = [], []
        for _ in range(ROUNDS):
            start = time.monotonic()
            found = store.series(run.id, names)
            reply = series.reply("run", found, names, POINTS)
            sizes.append(len(msgspec.json.encode(reply)))
            times.append(time.monotonic() - start)
        start = time.monotonic()
        msgspec.json.encode(build_report(store, run))
        report = time.monotonic() - start
        opened = browser_seconds(store)
    print(f"{len(found)} nodes, {len(names)} metrics, {sizes[0] / 1e6:.1f} MB of JSON")
    figures.row(
        f"one job's time series: {NODES} nodes, 24 h at 30 s, {METRICS} metrics, store to JSON",
        "-",
        f"{min(times):.2f} s, the best of {ROUNDS} (the slowest {max(times):.2f}), and its report "
        f"{report:.2f} s",
        f"{GOAL} s",
        reached=min(times) <= GOAL,
    )
    if opened is None:
        print(f"the page is not opened: no browser at {CHROMIUM}")
    else:
        size, text, charts = opened
        figures.row(
            f"one job's page in Chromium: {NODES} nodes, 24 h at 30 s, {METRICS} metrics",
            "-",
            f"{text:.2f} s to its text, {charts:.2f} s to its charts, the best of {ROUNDS}; "
            f"{size / 1000:.0f} kB without time series",
            f"{PAGE_GOAL} s, {SIZE_GOAL // 1000} kB",
            reached=charts <= PAGE_GOAL and size < SIZE_GOAL,
        )
    figures.end()


if __name__ == "__main__":
    main()
