"""Runs sample jobs and takes the pictures of the documents: pages by Chromium, a report as SVG, and
a page of paper.

The jobs run in a directory of their own with the system's Python, so that no picture shows a path
of the machine on which it was taken. Pictures of GPUs show the jobs of :mod:`tests.web.gpu_jobs`,
since a machine without GPUs takes them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import Browser, sync_playwright
from shrink import shrink

import jobsight.samples
from jobsight.cli.report import find_report
from jobsight.config.load import load_settings
from jobsight.config.settings import Settings
from jobsight.reports.terminal import report_svg
from jobsight.server.serve import BackgroundServer

if TYPE_CHECKING:
    from jobsight.store.read.queries import StoredRun
    from jobsight.store.store import Store

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))
SAMPLES = Path(jobsight.samples.__file__).parent
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = "no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"


def run_job(folder: Path) -> None:
    for script in (SAMPLES / "memory.py", HERE / "analysis.sh"):
        shutil.copy(script, folder)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("JOBSIGHT_")},
        "PATH": "/usr/bin:/bin",
        "JOBSIGHT_CLUSTER": "demo",
        "JOBSIGHT_AGENT__NODE": "node1",
        "JOBSIGHT_STORE__LOCATION": str(folder / "store.db"),
    }
    print("Running the job, some 25 seconds ...")
    words = [sys.executable, "-m", "jobsight.cli.main", "run", "--quiet", "--name", "analysis"]
    words += ["--account", "astro", "--cpus", "2", "--memory", "1G", "--", "sh", "analysis.sh"]
    subprocess.run(words, cwd=folder, env=environment, check=True)


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[f"--{name}" for name in ARGUMENTS.split()]
        )
        yield made
        made.close()


def take_page(settings: Settings, scheme: str, file: Path) -> None:
    with BackgroundServer(settings) as server, browser() as opened:
        context = opened.new_context(
            viewport={"width": 1280, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
            timezone_id="UTC",
        )
        page = context.new_page()
        page.goto(server.sign_in_url())
        page.get_by_role("link", name="1", exact=True).click()
        page.locator(".plot-area canvas").nth(3).wait_for()
        page.wait_for_timeout(500)
        # What follows the executables says the same of every job.
        below = page.locator("#nodes").bounding_box()
        clip = {"x": 0, "y": 0, "width": 1280, "height": below["y"] if below else 900}
        shrink(opened, page.screenshot(full_page=True, clip=clip), file)


def take_gpus(settings: Settings, directory: Path) -> None:
    """The GPUs of two jobs: one of four used, and thirty-two as a strip."""
    from jobsight.store.store import Store
    from tests.web import gpu_jobs

    settings.store.location = str(directory / "gpus.db")
    with Store.open(settings.store.location) as store:
        gpu_jobs.fill(store)
    with BackgroundServer(settings) as server, browser() as opened:
        page = opened.new_context(
            viewport={"width": 1280, "height": 900}, color_scheme="light", timezone_id="UTC"
        ).new_page()
        page.goto(server.sign_in_url())
        for name, file in (("finetune", "gpus.png"), ("pretrain-7b", "gpu-strip.png")):
            page.goto(server.url)
            page.get_by_role("row", name=name).get_by_role("link").click()
            page.locator("#gpu-curves canvas").first.wait_for()
            page.wait_for_timeout(500)
            top, below = (page.locator(part).bounding_box() for part in ("#gpus", "#curves"))
            assert top is not None
            assert below is not None
            height = below["y"] - top["y"]
            clip = {"x": 0, "y": top["y"] - 8, "width": 1280, "height": height}
            shrink(opened, page.screenshot(full_page=True, clip=clip), HERE / file)


def take_site(settings: Settings, directory: Path) -> None:
    """The list of jobs and the page of a script, of a made-up site."""
    from jobsight.store.history import find_work, work_of_run
    from jobsight.store.store import Store

    settings.store.location = str(directory / "site.db")
    command = [sys.executable, "-m", "jobsight.cli.main"]
    options = ["--store", settings.store.location]
    size = ["--runs", "1500", "--days", "45", "--running", "20"]
    subprocess.run([*command, "simulate", "fill", *options, *size], check=True)
    for words in (("findings", "update"), ("software", "update")):
        subprocess.run([*command, *words, *options], check=True, stdout=subprocess.DEVNULL)
    with Store.open(settings.store.location) as store:
        runs = [run for run in store.runs(limit=1500) if run.info.end is not None]
        arrays = Counter(
            (run.info.user, run.info.name) for run in runs if run.info.array_job_id is not None
        )
        works: dict[int, list[int]] = {}
        for run in runs:
            if (work_id := work_of_run(store.database, run.id)) is not None:
                works.setdefault(work_id, []).append(run.start)
        longest = max(works, key=lambda each: (len(works[each]) > 12) * (
            max(works[each]) - min(works[each])
        ))  # fmt: skip
        work = find_work(store.database, longest)
        assert work is not None
        paper = paper_of(store, runs)
    user, name = arrays.most_common(1)[0][0]
    with BackgroundServer(settings) as server, browser() as opened:
        page = opened.new_context(
            viewport={"width": 1280, "height": 820}, color_scheme="light", timezone_id="UTC"
        ).new_page()
        page.goto(server.sign_in_url())
        shrink(opened, paper, HERE / "report-page.png")
        for path, file in (
            (f"jobs?user={user}&search={name}", "jobs.png"),
            (f"scripts/{work.key.hex()}", "script.png"),
        ):
            page.goto(f"{server.url.rstrip('/')}/{path}")
            page.wait_for_timeout(500)
            shrink(opened, page.screenshot(), HERE / file)


def paper_of(store: Store, runs: list[StoredRun]) -> bytes:
    """The first page of the report of a run on several nodes, or with GPUs, that has findings."""
    from jobsight.config.settings import PriceSettings
    from jobsight.reports.build import build_report
    from jobsight.reports.pending import job_rows
    from jobsight.reports.with_plots import pdf_of, read_series

    now = max(run.info.end or 0 for run in runs)
    rows = dict(zip((run.id for run in runs), job_rows(store, runs, now), strict=True))
    chosen = max(
        (run for run in runs if run.cpu_time and (run.node_count > 1 or run.info.gpus)),
        key=lambda run: (rows[run.id].findings, rows[run.id].cpu_time or 0),
    )
    prices = {"EUR": PriceSettings(core_hour=0.02, gpu_hour=0.6, energy_kwh=0.3)}
    report = build_report(store, chosen, prices=prices, clock=lambda: now)
    pdf = pdf_of(report, read_series(store, report), now)
    options = ["-png", "-r", "70", "-f", "1", "-l", "1", "-singlefile", "-"]
    done = subprocess.run(["pdftoppm", *options], input=pdf, capture_output=True, check=True)
    return done.stdout


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="jobsight-pictures-") as name:
        folder = Path(name)
        run_job(folder)
        settings = load_settings(environment={})
        settings.store.location = str(folder / "store.db")
        settings.server.port = 0
        take_page(settings, "light", HERE / "job-page.png")
        take_page(settings, "dark", HERE / "job-page-dark.png")
        report = find_report(settings.store.location, "1")
        (HERE / "report.svg").write_text(report_svg(report, title="jobsight report 1", width=92))
        take_gpus(settings, folder)
        take_site(settings, folder)
    for file in sorted(HERE.glob("*.png")) + sorted(HERE.glob("*.svg")):
        print(f"{file.name}: {file.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
