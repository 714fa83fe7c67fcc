"""A finding as reports, pages and the API have it. Imports nothing of the store: a report that
comes from a server is shown without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from jobsight.config.settings import PriceSettings
from jobsight.findings.finding import Audience, Cost, Evidence, Severity, State
from jobsight.util.outer import Time

#: No price list.
NO_PRICES: Final[Mapping[str, PriceSettings]] = {}


class Amount(msgspec.Struct, frozen=True):
    """A cost in one unit."""

    amount: float
    unit: str


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

    @property
    def cost_text(self) -> str:
        """ "1,240 core h, 38 GPU h (412 EUR)"; empty without any cost."""
        return format_cost(self.cost, self.prices)


def format_cost(cost: Cost, amounts: Sequence[Amount] = ()) -> str:
    """ "1,240 core h, 38 GPU h (412 EUR)"; empty without any cost."""
    units = (
        (cost.core_hours, "core h"),
        (cost.gpu_hours, "GPU h"),
        (cost.memory_gb_hours, "GB h"),
        (cost.energy_kwh, "kWh"),
    )
    text = ", ".join(f"{format_amount(value)} {unit}" for value, unit in units if value)
    if not text or not amounts:
        return text
    prices = ", ".join(f"{format_amount(each.amount)} {each.unit}" for each in amounts)
    return f"{text} ({prices})"


def format_amount(value: float) -> str:
    """Three significant digits, whole numbers from 100 on."""
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    if abs(value) >= 9.995:
        return f"{value:.1f}".removesuffix(".0")
    if abs(value) >= 0.01:
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return f"{value:.2g}"
