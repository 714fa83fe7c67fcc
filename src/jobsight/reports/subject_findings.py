"""What the findings say about several runs: the worst by cost, what would have fitted each script,
and what became better after it was shown.

A period is summed by the daily rollups of the findings, so that a year costs as much as a day; of
each kind, the finding of the highest cost is read. An array and a script are summed by run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from jobsight.findings.costs import from_stored, price, weight
from jobsight.findings.effect import measure_effect
from jobsight.findings.finding import SEVERITIES, Cost, Severity
from jobsight.findings.reported import (
    NO_PRICES,
    Amount,
    FittedRequest,
    WorkEffect,
    format_cost,
)
from jobsight.findings.stored import from_row
from jobsight.model import Run
from jobsight.store.findings.read import (
    FindingFilter,
    ListedFinding,
    findings_of_runs,
    list_findings,
    sum_findings,
)
from jobsight.store.findings.rows import FindingRow
from jobsight.store.findings.shown import ShownTo
from jobsight.store.history import WorkUse, find_work

if TYPE_CHECKING:
    from jobsight.config.settings import PriceSettings
    from jobsight.reports.build import JobRow
    from jobsight.store.store import Store

#: Kinds of findings, scripts and improvements that a report lists.
MAX_KINDS: Final = 8
MAX_SCRIPTS: Final = 8
MAX_IMPROVEMENTS: Final = 5
#: Scripts of which a report says what would have fitted: each reads its earlier runs.
MAX_FITTED: Final = 3
#: Works of which the runs before and after a finding was shown are compared.
_COMPARED: Final = 100
#: A request within this share above the recommendation is said to fit.
_FITS: Final = 1.15


class FindingGroup(msgspec.Struct, kw_only=True):
    """The findings of one kind in several runs, and the one of the highest cost."""

    kind: str
    severity: Severity
    title: str
    runs: int
    #: Of all these runs.
    cost: Cost
    prices: list[Amount]
    #: The run of the highest cost, with its user, what was found in it, and the line to change.
    run: str
    display_id: str
    user: str
    text: str
    change: str
    #: The page that explains the kind: an address, or its path.
    help: str = ""

    @property
    def cost_text(self) -> str:
        return format_cost(self.cost, self.prices)


class ScriptUse(msgspec.Struct, kw_only=True):
    """The runs of one script, or of one name and set of programs."""

    #: Hexadecimal, as ``jobsight report --script`` accepts it.
    key: str
    name: str
    user: str
    runs: int
    failed: int
    core_hours_held: float
    #: The newest run.
    run: str
    #: What would have fitted; read for the largest scripts only.
    fitted: list[FittedRequest] = msgspec.field(default_factory=list)


def findings_of_period(
    store: Store,
    wanted: FindingFilter,
    prices: Mapping[str, PriceSettings] = NO_PRICES,
) -> list[FindingGroup]:
    """The kinds of findings that cost most, by the daily rollups."""
    sums = [
        (from_stored(each.cost), str(each.key[0]), each.runs)
        for each in sum_findings(store.database, ("kind",), wanted)
    ]
    sums.sort(key=lambda item: -weight(item[0]))
    groups: list[FindingGroup] = []
    for cost, kind, runs in sums:
        if len(groups) >= MAX_KINDS:
            break
        worst = list_findings(store.database, wanted._replace(kind=kind), 1)
        if worst:
            groups.append(_group(worst[0], runs, cost, prices))
    return groups


def _group(
    worst: ListedFinding, runs: int, cost: Cost, prices: Mapping[str, PriceSettings]
) -> FindingGroup:
    row, task = worst.finding, worst.array_task_id
    number = str(worst.job_id)
    return _finding_group(
        row,
        runs,
        cost,
        prices,
        run=str(Run(row.cluster, worst.job_id, worst.start)),
        display_id=number if task is None else f"{worst.array_job_id or worst.job_id}_{task}",
    )


def _finding_group(
    row: FindingRow,
    runs: int,
    cost: Cost,
    prices: Mapping[str, PriceSettings],
    *,
    run: str,
    display_id: str,
) -> FindingGroup:
    finding = from_row(row)
    return FindingGroup(
        kind=row.kind,
        severity=SEVERITIES[row.severity],
        title=finding.title,
        runs=runs,
        cost=cost,
        prices=price(cost, prices),
        run=run,
        display_id=display_id,
        user=row.user,
        text=finding.text,
        change=finding.change,
        help=finding.help,
    )


def findings_of_rows(
    store: Store,
    rows: Mapping[int, JobRow],
    prices: Mapping[str, PriceSettings] = NO_PRICES,
) -> list[FindingGroup]:
    """The findings of some runs by kind, for their users. ``rows`` are the runs by their ids."""
    by_kind: dict[str, list[FindingRow]] = {}
    for found in findings_of_runs(store.database, list(rows)).values():
        for row in found:
            if row.audience == "user" and row.state == "open":
                by_kind.setdefault(row.kind, []).append(row)
    groups = []
    for each in by_kind.values():
        worst = max(each, key=lambda row: (row.weight, -row.run_id))
        cost = Cost()
        for row in each:
            cost += from_stored(row.cost)
        of_run = rows[worst.run_id]
        groups.append(
            _finding_group(
                worst, len(each), cost, prices, run=of_run.run, display_id=of_run.display_id
            )
        )
    groups.sort(key=lambda group: (-weight(group.cost), group.kind))
    return groups[:MAX_KINDS]


def scripts_of(
    store: Store, uses: Iterable[WorkUse], *, fitted: int = MAX_FITTED, now: int | None = None
) -> list[ScriptUse]:
    """Works with their names, and what would have fitted the first of them."""
    scripts: list[ScriptUse] = []
    for use in uses:
        work, newest = find_work(store.database, use.work_id), store.run_by_id(use.newest)
        if work is None or newest is None:
            continue
        scripts.append(
            ScriptUse(
                key=work.key.hex(),
                name=newest.info.name or work.name,
                user=work.user,
                runs=use.runs,
                failed=use.failed,
                core_hours_held=use.held / 3600e9,
                run=str(newest.run),
                fitted=fitted_requests(store, use.newest, now) if len(scripts) < fitted else [],
            )
        )
    return scripts


def fitted_requests(store: Store, run_id: int, now: int | None = None) -> list[FittedRequest]:
    """What would have fitted the work of a run."""
    from jobsight.findings.recommendations import recommendations

    stored = store.run_by_id(run_id)
    if stored is None:
        return []
    return [
        FittedRequest(
            **msgspec.structs.asdict(each),
            fits=each.requested is not None and each.value <= each.requested <= _FITS * each.value,
        )
        for each in recommendations(store, stored, now)
    ]


def improvements(
    store: Store,
    owner: ShownTo,
    prices: Mapping[str, PriceSettings] = NO_PRICES,
    work_ids: Collection[int] | None = None,
    since: int = 0,
) -> list[WorkEffect]:
    """Works that changed, or of which a finding is gone, since it was shown; the largest saving
    first."""
    measured = measure_effect(
        store, owner=owner, work_ids=work_ids, since=since, limit=_COMPARED, prices=prices
    )
    better = [each for each in measured.works if each.is_better]
    better.sort(key=lambda each: -weight(each.saved))
    return better[:MAX_IMPROVEMENTS]
