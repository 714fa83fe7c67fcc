"""Every page of the server with addresses to open it by, checked against the router.

A new route that answers with a page fails ``test_page_list`` until it is in :data:`PAGES`, and is
then opened by every test that opens all pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from jobsight.scheduler.records import JobRecord
from jobsight.store.history import find_work, work_of_run
from jobsight.store.read.queries import StoredRun
from jobsight.store.snapshot import read_snapshot
from jobsight.store.store import Store
from tests.web.conftest import SUBSCRIPTIONS

#: Routes that answer GET requests of people and programs with something other than a page.
FILES = frozenset(
    {
        *("/jobs.csv", "/jobs.json", "/jobs/{run}/series.csv"),
        *("/healthz", "/metrics", "/static", "/sign-in/oidc", "/sign-in/oidc/return", "/sign-out"),
    }
)


class Examples:
    """Things of a made-up site that pages are about."""

    def __init__(self, site: Store) -> None:
        runs = site.runs(limit=3000)
        self.run = next(run for run in runs if run.info.gpus and run.info.end is not None)
        self.running = next(run for run in runs if run.info.state == "RUNNING")
        pending = read_snapshot(site.database, "north", "pending", JobRecord)
        self.pending = next(f"{job.info.cluster}:{job.info.job_id}" for job in pending)
        self.node = site.nodes(self.run.id)[0].node
        tasks = Counter(
            (run.info.cluster, run.info.array_job_id) for run in runs if run.info.array_job_id
        )
        [((cluster, array), _)] = tasks.most_common(1)
        self.array = f"{cluster}:{array}"
        self.script, self.repeated = _repeated(site, runs)


def _repeated(site: Store, runs: list[StoredRun]) -> tuple[str, list[StoredRun]]:
    """The key of the work with the most ended runs, and two of these."""
    ended = [run for run in runs if run.info.end is not None]
    works = Counter(work_of_run(site.database, run.id) for run in ended)
    works.pop(None, None)
    [(work_id, _)] = works.most_common(1)
    assert work_id is not None
    work = find_work(site.database, work_id)
    assert work is not None
    return work.key.hex(), site.runs(limit=2, work_ids=[work_id])


def _unsubscribe(_: Examples) -> list[str]:
    links = SUBSCRIPTIONS.links("anna@example.org", "jobs")
    assert links is not None
    return ["/" + links.kind.split("/", 3)[3]]


def _fixed(*addresses: str) -> Callable[[Examples], list[str]]:
    return lambda _: [*addresses]


#: By the path of the route, as FastAPI writes it.
PAGES: Mapping[str, Callable[[Examples], list[str]]] = {
    "/": _fixed("/"),
    "/jobs": _fixed("/jobs", "/jobs?search=md&user=anna", "/jobs?state=PENDING"),
    "/jobs/{run}": lambda site: [
        f"/jobs/{site.run.run}",
        f"/jobs/{site.running.run}",
        f"/jobs/{site.pending}",
    ],
    "/arrays/{reference}": lambda site: [f"/arrays/{site.array}"],
    "/scripts/{key}": lambda site: [f"/scripts/{site.script}"],
    "/compare": lambda site: ["/compare?" + "&".join(f"run={each.run}" for each in site.repeated)],
    "/clusters": _fixed("/clusters"),
    "/clusters/{name}": _fixed("/clusters/north"),
    "/clusters/{name}/nodes": _fixed("/clusters/north/nodes"),
    "/clusters/{cluster}/nodes/{node}": lambda site: [
        f"/clusters/{site.run.info.cluster}/nodes/{site.node}"
    ],
    "/users": _fixed("/users"),
    "/users/{name:path}": lambda site: [f"/users/{site.run.info.user}"],
    "/accounts": _fixed("/accounts"),
    "/accounts/{name:path}": lambda site: [f"/accounts/{site.run.info.account}"],
    "/software": _fixed("/software"),
    "/software/{name:path}": _fixed("/software/gromacs?days=90"),
    "/programs": _fixed("/programs", "/programs?path=/usr/bin/sleep&days=90"),
    "/findings": _fixed("/findings"),
    "/findings/{kind}": _fixed("/findings/gpu-not-used"),
    "/operations": _fixed("/operations"),
    "/operations/accounts": _fixed("/operations/accounts"),
    "/settings": _fixed("/settings"),
    "/help": _fixed("/help"),
    "/help/{topic}": _fixed("/help/figures", "/help/metrics", "/help/privacy"),
    "/sign-in": _fixed("/sign-in"),
    "/unsubscribe": _unsubscribe,
}


def all_pages(site: Store) -> list[str]:
    """The addresses of all pages of a made-up site."""
    examples = Examples(site)
    return [address for find in PAGES.values() for address in find(examples)]
