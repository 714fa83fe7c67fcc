"""Findings of runs, as the engine would hand them to the store."""

from __future__ import annotations

from jobsight.findings.packed import encode_figures
from jobsight.findings.vocabulary import FigureSet
from jobsight.store.findings.rows import Owner, StoredCost
from jobsight.store.findings.works import WorkKey, find_or_add_work
from jobsight.store.findings.write import NO_CHANGES, Change, Judged, NewFinding, store_judged
from jobsight.store.read.queries import StoredRun
from jobsight.store.store import Store
from tests.store.sample import START

DAY = 86400 * 10**9
KIND = "memory-request-unused"


def finding(
    kind: str = KIND, severity: int = 1, data: bytes = b"\x80", weight: int = 10, **cost: int
) -> NewFinding:
    return NewFinding(
        kind, severity, "user", StoredCost(**(cost or {"core_time": 3600})), weight, data
    )


def work(name: str = "train", user: str = "anna") -> WorkKey:
    return WorkKey("c1", user, "lab", "name", name.encode(), name)


def owner(run: StoredRun) -> Owner:
    info = run.info
    return Owner(
        info.cluster,
        info.user or "",
        info.account or "",
        info.partition or "",
        run.start // DAY,
    )


def judged(
    run: StoredRun,
    *findings: NewFinding,
    work_id: int | None = None,
    changes: int = NO_CHANGES,
    withheld: frozenset[str] = frozenset(),
) -> Judged:
    return Judged(
        run_id=run.id,
        changes=changes,
        owner=owner(run),
        work_id=work_id,
        findings=findings,
        withheld=withheld,
        figures=encode_figures(FigureSet()),
    )


def add_findings(
    store: Store,
    run: StoredRun,
    *findings: NewFinding,
    work: WorkKey | None = None,
    now: int = START,
    withheld: frozenset[str] = frozenset(),
) -> list[Change]:
    """Make these the findings of a run."""
    work_id = None if work is None else find_or_add_work(store.database, work)
    each = judged(run, *findings, work_id=work_id, withheld=withheld)
    return store_judged(store.database, [each], now)
