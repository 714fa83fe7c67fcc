"""Findings and figures as the store has them: the conversion in both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from jobsight.config.settings import PriceSettings
from jobsight.findings.costs import from_stored, price, stored_weight, to_stored
from jobsight.findings.finding import SEVERITIES, Finding, Verdict
from jobsight.findings.reported import NO_PRICES, ReportedFinding
from jobsight.findings.vocabulary import FIGURES, FigureSet
from jobsight.store.findings.rows import FindingRow
from jobsight.store.findings.works import pack_figures, unpack_figures
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


#: Whole numbers take fewer bytes than floating-point ones; up to here both are exact.
_EXACT: Final = 2.0**53


def encode_figures(figures: FigureSet) -> bytes:
    """The figures of a run in few bytes."""
    values: dict[str, Any] = {}
    for name, value in figures.values.items():
        is_whole = isinstance(value, float) and abs(value) < _EXACT and value == int(value)
        values[name] = int(value) if is_whole and not isinstance(value, (str, list)) else value
    return pack_figures([values, figures.unknown, figures.coverage])


def decode_figures(data: bytes) -> FigureSet:
    """Figures of this or an earlier release; names that no longer exist are left out."""
    values, unknown, coverage = msgspec.convert(
        unpack_figures(data), tuple[dict[str, Any], dict[str, str], dict[str, float]]
    )
    figures = FigureSet()
    for name, value in values.items():
        if name in FIGURES:
            figures.set(name, value)
    figures.unknown.update(unknown)
    figures.coverage.update(coverage)  # type: ignore[arg-type]
    return figures


def report_findings(
    store: Store, run_id: int, prices: Mapping[str, PriceSettings] = NO_PRICES
) -> list[ReportedFinding]:
    """The findings of a run that hold, the worst first, those with a reply last."""
    rows = [row for row in store.findings(run_id) if row.holds]
    rows.sort(key=lambda row: row.state != "open")
    return [from_row(row, prices) for row in rows]
