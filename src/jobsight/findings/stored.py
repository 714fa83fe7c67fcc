"""Findings as the store has them: the conversion in both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from jobsight.config.settings import PriceSettings
from jobsight.findings.costs import from_stored, price, stored_weight, to_stored
from jobsight.findings.finding import SEVERITIES, Finding, Verdict
from jobsight.findings.reported import NO_PRICES, ReportedFinding, help_path
from jobsight.store.findings.rows import FindingRow
from jobsight.store.findings.write import NewFinding
from jobsight.store.store import Store

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Finding).decode


def to_row(finding: Finding) -> NewFinding:
    """A finding that a rule has yielded."""
    return NewFinding(
        kind=finding.kind,
        severity=SEVERITIES.index(finding.severity),
        audience=finding.audience,
        cost=to_stored(finding.cost),
        weight=stored_weight(finding.cost),
        data=_encode(finding),
    )


def from_row(row: FindingRow, prices: Mapping[str, PriceSettings] = NO_PRICES) -> ReportedFinding:
    """A stored finding. The cost is that of the sums."""
    finding = _decode(row.data)
    cost = from_stored(row.cost)
    return ReportedFinding(
        kind=row.kind,
        severity=SEVERITIES[row.severity],
        audience=finding.audience,
        state=row.state,
        title=finding.title,
        text=finding.text,
        change=finding.change,
        cost=cost,
        prices=price(cost, prices),
        evidence=finding.evidence,
        figures=finding.figures,
        explains=finding.explains,
        help=help_path(row.kind),
        first=row.first,
        last=row.last,
        reply_user=row.reply_user,
        reply_time=row.reply_time,
    )


def findings_in(verdicts: Sequence[Verdict]) -> list[Finding]:
    """The findings of rules that fired; those that another one explains are not among them."""
    return [
        verdict.finding
        for verdict in verdicts
        if verdict.outcome == "fired" and verdict.finding is not None
    ]


def report_findings(
    store: Store, run_id: int, prices: Mapping[str, PriceSettings] = NO_PRICES
) -> list[ReportedFinding]:
    """The findings of a run that hold, the worst first, those with a reply last."""
    rows = [row for row in store.findings(run_id) if row.holds]
    rows.sort(key=lambda row: row.state != "open")
    return [from_row(row, prices) for row in rows]
