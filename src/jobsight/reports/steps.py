"""The rows of the steps of a run: each summed over its nodes, in the order people expect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jobsight.reports.report import StepRow

if TYPE_CHECKING:
    from jobsight.model import StepUse
    from jobsight.store.read.queries import StoredStep

#: The script comes before the steps that it starts; what runs beside them comes last.
_FIRST = ("", "batch", "interactive")
_LAST = ("extern",)


def step_rows(stored: Iterable[StoredStep]) -> list[StepRow]:
    """Join what the nodes say of each step."""
    found: dict[str, list[StepUse]] = {}
    for part in stored:
        found.setdefault(part.use.step, []).append(part.use)
    return [_row(name, found[name]) for name in sorted(found, key=_place)]


def has_steps(rows: list[StepRow]) -> bool:
    """Whether there is anything to tell: a job that is one step without a name is its own step."""
    return any(row.step for row in rows)


def _place(name: str) -> tuple[int, int, str]:
    if name in _FIRST:
        return 0, _FIRST.index(name), name
    number = name.partition("+")[0].partition(".")[0]
    if number.isdecimal():
        return 1, int(number), name
    return (3 if name in _LAST else 2), 0, name


def _row(name: str, uses: list[StepUse]) -> StepRow:
    # Zero stands for a moment that an agent did not know.
    begins = [use.first_seen for use in uses if use.first_seen]
    ends = [use.last_seen for use in uses if use.last_seen]
    return StepRow(
        step=name,
        nodes=len(uses),
        # A step has tasks: none means that the agent could not count them.
        tasks=sum(use.tasks for use in uses) or None,
        cpu_time=total(use.cpu_time for use in uses),
        cpu_overhead=total(use.cpu_overhead for use in uses),
        memory_peak=total(use.memory_peak for use in uses),
        oom_kills=total(use.oom_kills for use in uses),
        elapsed=max(max(ends) - min(begins), 0) if begins and ends else None,
        ended=all(use.ended for use in uses),
    )


def total(values: Iterable[int | None]) -> int | None:
    """The sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
