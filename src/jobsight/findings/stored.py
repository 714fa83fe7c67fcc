"""Findings and figures as the store has them: the conversion in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from jobsight.config.settings import PriceSettings
from jobsight.findings.cost import Amount, from_stored, price, to_stored, weigh
from jobsight.findings.finding import (
    SEVERITIES,
    Audience,
    Cost,
    Evidence,
    Finding,
    Severity,
    State,
    Verdict,
)
from jobsight.findings.vocabulary import FIGURES, FigureSet
from jobsight.store.findings.rows import FindingRow
from jobsight.store.findings.works import pack_figures, unpack_figures
from jobsight.store.findings.write import NewFinding
from jobsight.util.outer import Time

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Finding).decode


class ReportedFinding(msgspec.Struct, kw_only=True):
    """A finding as reports, pages and the API have it."""

    kind: str
    severity: Severity
    audience: Audience
    state: State
    title: str
    text: str
    #: The line to change; empty if there is none.
    change: str
    cost: Cost
    #: The same in the units of the site's price list.
    prices: list[Amount]
    evidence: Evidence
    #: The figures that the condition used, as shown.
    figures: dict[str, str]
    #: Kinds of findings with the same cause, which are not listed on their own.
    explains: tuple[str, ...]
    #: When the rule first held, and when the finding last changed.
    first: Time
    last: Time
    #: Who has replied to it, and when.
    reply_user: str | None
    reply_time: Time | None

    @property
    def holds(self) -> bool:
        return self.state in ("open", "acknowledged", "not helpful")


def to_row(finding: Finding) -> NewFinding:
    """A finding that a rule has yielded."""
    return NewFinding(
        kind=finding.kind,
        severity=SEVERITIES.index(finding.severity),
        audience=finding.audience,
        cost=to_stored(finding.cost),
        weight=weigh(finding.cost),
        data=_encode(finding),
    )


def from_row(row: FindingRow, prices: Sequence[PriceSettings] = ()) -> ReportedFinding:
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
