"""A finding, what would have fitted and what improved, as reports, pages and the API have them.
Imports nothing of the store: a report that comes from a server is shown without it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, Protocol
from urllib.parse import quote

import msgspec

from jobsight.config.settings import PriceSettings
from jobsight.findings.finding import Audience, Cost, Evidence, Severity, State
from jobsight.util.outer import Duration, Size, Time

_RESOURCES: Final = {"gpus": "GPUs", "array": "memory of the array"}
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
    #: The page that explains it: an address, or its path where that of the server is not known.
    help: str = ""
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


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """One request that would have fitted. Sizes are bytes and times are seconds."""

    resource: Literal["memory", "time", "cores", "gpus", "array"]
    #: The line to change, such as ``--mem=14G``.
    option: str
    value: float
    #: What the run requested; None if that is not known.
    requested: float | None = None
    runs: int = 0
    passed: int = 0
    #: Based on fewer than three runs.
    few: bool = False
    #: GB hours of memory that were not used with the past requests, less those with this one.
    saved_gb_hours: float | None = None
    text: str


class FittedRequest(Recommendation, frozen=True, kw_only=True):
    """One resource of a request: the option that would have fitted."""

    #: Whether the request was near enough.
    fits: bool


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a run requested."""

    cpus: int | None
    gpus: int | None
    memory: Size | None = msgspec.field(name="memory_bytes")
    time_limit: Duration | None = msgspec.field(name="time_limit_seconds")


class WorkEffect(msgspec.Struct, kw_only=True):
    """One finding of one work, before and after it was shown."""

    kind: str
    #: For people: the name of the job or its program.
    work: str
    cluster: str
    user: str
    account: str
    #: When it was first shown, and how often since then.
    shown: Time
    times_shown: int
    #: Ended runs that are compared.
    runs_before: int
    runs_after: int
    #: The first later run with another request; null if there is none.
    changed: Time | None
    request_before: Request | None
    request_after: Request | None
    #: Later runs without the finding.
    runs_without: int
    #: Runs that ran out of memory or time.
    failures_before: int
    failures_after: int
    #: Waste of the later runs, compared with as many runs as before; negative if there is more.
    saved: Cost
    prices: list[Amount]
    #: All of it as a sentence.
    text: str = ""

    @property
    def is_harmful(self) -> bool:
        """Later runs fail more often than those before."""
        before = self.failures_before / self.runs_before if self.runs_before else 0.0
        after = self.failures_after / self.runs_after if self.runs_after else 0.0
        return self.changed is not None and after > before

    @property
    def is_better(self) -> bool:
        """Most of the later runs are without the finding, and none of the changes does harm."""
        return (
            self.runs_after > 0 and not self.is_harmful and 2 * self.runs_without > self.runs_after
        )


def fits_text(fitted: Sequence[FittedRequest]) -> str:
    """ "The request fits: memory, time and cores." """
    resources = [_RESOURCES.get(each.resource, each.resource) for each in fitted]
    listed = " and ".join(filter(None, (", ".join(resources[:-1]), resources[-1])))
    return f"The request fits: {listed}."


class HasHelp(Protocol):
    """A finding, or a group of findings of one kind."""

    kind: str
    help: str


def help_path(kind: str) -> str:
    """The path of the page that explains a kind of findings, on each server of jobsight."""
    return f"/findings/{quote(kind, safe='')}"


def add_address(findings: Iterable[HasHelp], pages: str | None) -> None:
    """Complete the paths of help pages with the address of the pages, if it is known."""
    if pages:
        for each in findings:
            each.help = pages.rstrip("/") + help_path(each.kind)


def help_address(finding: HasHelp) -> str:
    """The address of the page, for a link; empty where only the path is known."""
    return finding.help if "://" in finding.help else ""


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
