"""Lists of findings with their runs, and sums, as the API and the commands show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from jobsight.config.settings import PriceSettings
from jobsight.findings.costs import from_stored, price
from jobsight.findings.finding import Cost
from jobsight.findings.reported import NO_PRICES, Amount, ReportedFinding, format_cost
from jobsight.findings.stored import from_row
from jobsight.model import Run
from jobsight.store.findings.read import (
    FindingFilter,
    FindingPosition,
    ListedFinding,
    list_findings,
    sum_findings,
)
from jobsight.store.rollups.usage import date_of
from jobsight.store.store import Store
from jobsight.util.outer import Time


class FindingReport(msgspec.Struct, kw_only=True):
    """A finding with the run that it is about."""

    run: str
    #: 12 or 62_3.
    display_id: str
    job_name: str | None
    cluster: str
    user: str
    account: str
    partition: str
    start: Time
    #: Of the run.
    state: str
    finding: ReportedFinding


class FindingSummary(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The sum of one group; keys that were not requested are left out."""

    day: str | None = None
    cluster: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    kind: str | None = None
    #: Findings that hold, each of one run.
    runs: int
    #: Of these, the ones with a reply.
    acknowledged: int
    not_helpful: int
    cost: Cost
    prices: list[Amount]

    @property
    def cost_text(self) -> str:
        return format_cost(self.cost, self.prices)


def list_reports(
    store: Store,
    wanted: FindingFilter,
    limit: int,
    after: FindingPosition | None = None,
    prices: Mapping[str, PriceSettings] = NO_PRICES,
) -> tuple[list[FindingReport], FindingPosition | None]:
    """Findings, the highest cost first, and the position of the next page."""
    # One more than is shown: it tells whether there is a next page.
    rows = list_findings(store.database, wanted, limit + 1, after)
    following = rows[limit - 1].position if len(rows) > limit else None
    return [_report(row, prices) for row in rows[:limit]], following


def _report(row: ListedFinding, prices: Mapping[str, PriceSettings]) -> FindingReport:
    finding = row.finding
    task = row.array_task_id
    return FindingReport(
        run=str(Run(finding.cluster, row.job_id, row.start)),
        display_id=str(row.job_id) if task is None else f"{row.array_job_id or row.job_id}_{task}",
        job_name=row.job_name,
        cluster=finding.cluster,
        user=finding.user,
        account=finding.account,
        partition=finding.partition,
        start=row.start,
        state=row.shown_state,
        finding=from_row(finding, prices),
    )


def summarize(
    store: Store,
    by: Sequence[str],
    wanted: FindingFilter,
    prices: Mapping[str, PriceSettings] = NO_PRICES,
) -> list[FindingSummary]:
    """Sums by some dimensions of :data:`jobsight.store.findings.read.DIMENSIONS`."""
    rows = []
    for each in sum_findings(store.database, by, wanted):
        key = dict(zip(by, each.key, strict=True))
        if "day" in key:
            key["day"] = date_of(int(key["day"])).isoformat()
        cost = from_stored(each.cost)
        rows.append(
            FindingSummary(
                **key,  # type: ignore[arg-type]
                runs=each.runs,
                acknowledged=each.acknowledged,
                not_helpful=each.not_helpful,
                cost=cost,
                prices=price(cost, prices),
            )
        )
    return rows
