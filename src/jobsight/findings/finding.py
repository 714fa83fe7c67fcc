"""The results of the rules: findings, their costs and evidence, and the explanation of a run.

Durations are nanoseconds and sizes are bytes, as everywhere inside; the encoded form has hours and
units in the names. See :mod:`jobsight.util.outer`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from jobsight.util.outer import Time

#: The worst last.
Severity: TypeAlias = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")

#: Whom a finding is for: the user who can change the job, or the staff who can change the system.
Audience: TypeAlias = Literal["user", "staff"]

#: ``open``: the rule holds. ``gone``: it held before, and no longer does since the data or the rule
#: has changed. ``withheld``: too little was measured to decide. ``acknowledged`` and
#: ``not helpful``: what a person has replied; the rule still holds.
State: TypeAlias = Literal["open", "gone", "withheld", "acknowledged", "not helpful"]


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a finding has cost: resources that were held without use. None is not known."""

    core_hours: float | None = None
    gpu_hours: float | None = None
    #: 10^9 bytes held for an hour.
    memory_gb_hours: float | None = None
    energy_kwh: float | None = None

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            **{
                name: _sum(getattr(self, name), getattr(other, name))
                for name in Cost.__struct_fields__
            }
        )


def _sum(first: float | None, second: float | None) -> float | None:
    if first is None or second is None:
        return first if second is None else second
    return first + second


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Where the finding can be seen: the time series to show, the stretch of time, the program."""

    #: Names of metrics, such as ``cpu.time`` and ``gpu.*.utilization``.
    series: tuple[str, ...] = ()
    since: Time | None = None
    until: Time | None = None
    #: Paths as shown, with unprintable bytes as \xNN.
    programs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding about one run. Texts are plain text; they may contain names that users chose."""

    #: The name of the rule in kebab case. It never changes.
    kind: str
    severity: Severity
    audience: Audience = "user"
    #: A few words: "GPUs were held and never used".
    title: str
    #: One or two sentences with the figures.
    text: str
    #: The line to change, such as ``#SBATCH --mem=14G``; empty if there is none.
    change: str = ""
    cost: Cost = Cost()
    evidence: Evidence = Evidence()
    #: The figures that the condition used, as shown.
    figures: dict[str, str] = msgspec.field(default_factory=dict)
    #: Kinds of findings of the same run that have the same cause and are not listed on their own.
    explains: tuple[str, ...] = ()


#: ``withheld``: too short, too little coverage, a figure that is not known. ``excused``: an
#: intended pattern, by evidence. ``covered``: another finding explains it. ``not applicable``: the
#: rule is for other runs, such as running ones, other partitions, jobs with GPUs.
Outcome: TypeAlias = Literal[
    "fired", "not fired", "withheld", "excused", "covered", "not applicable"
]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What one rule decided about one run, and why: a row of ``jobsight explain``."""

    kind: str
    outcome: Outcome
    #: One sentence; empty where the figures say it all.
    reason: str = ""
    #: The figures and parameters of the condition, as shown.
    figures: dict[str, str] = msgspec.field(default_factory=dict)
    finding: Finding | None = None
