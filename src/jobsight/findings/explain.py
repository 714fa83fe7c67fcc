"""The explanation of a run: what every rule says about it, and why."""

from __future__ import annotations

from typing import Final

import msgspec

from jobsight.findings.finding import Outcome, Verdict
from jobsight.findings.packed import decode_figures
from jobsight.findings.worker import Judge, Measured
from jobsight.store.findings import due
from jobsight.store.findings.works import figures_of_runs
from jobsight.store.maintenance.retention import EXECUTABLES, SERIES
from jobsight.store.read.queries import StoredRun
from jobsight.store.store import Store
from jobsight.util.outer import Time

#: The order in which people read them.
OUTCOMES: Final[tuple[Outcome, ...]] = (
    "fired",
    "covered",
    "excused",
    "withheld",
    "not fired",
    "not applicable",
)


class Explanation(msgspec.Struct, kw_only=True):
    """What every rule says about a run."""

    run: str
    #: When it was computed.
    time: Time
    #: The rules that were applied.
    rules_digest: str
    #: Rules that fired first, those that are for other runs last.
    verdicts: list[Verdict]


def explain_run(store: Store, judge: Judge, run: StoredRun, now: int) -> Explanation:
    """Judge a run now. Nothing is stored. A run whose data retention has removed is judged by the
    figures that were computed before."""
    wanted = due.due_run(store.database, run.id)
    assert wanted is not None
    stored = figures_of_runs(store.database, [run.id]).get(run.id)
    if stored is not None and wanted.pruned & (SERIES | EXECUTABLES):
        measured = Measured(decode_figures(stored.data), stored.work_id)
    else:
        measured = judge.measure(run, now)
    verdicts = sorted(
        judge.judge(measured.figures, wanted.owner, every=True),
        key=lambda each: (OUTCOMES.index(each.outcome), each.kind),
    )
    return Explanation(run=str(run.run), time=now, rules_digest=judge.digest, verdicts=verdicts)
