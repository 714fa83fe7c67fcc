"""Did it help: what the next runs of the same work did after a finding was shown.

For each work and kind, the runs that started before the finding was first shown are compared with
those after it: whether the request changed, whether the finding is gone, whether jobs fail that did
not fail before, and how much less of the resources was wasted until now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from jobsight.config.settings import PriceSettings
from jobsight.findings.costs import from_stored, price
from jobsight.findings.finding import Cost
from jobsight.findings.reported import NO_PRICES, Amount, Request, WorkEffect, format_cost
from jobsight.store.findings.rows import HOLDING
from jobsight.store.findings.shown import (
    ANYBODY,
    MAX_WORKS,
    ShownTo,
    ShownWork,
    WorkRun,
    describe_work,
    runs_of_work,
    runs_of_work_until,
    shown_kinds_of_work,
)
from jobsight.store.findings.shown import shown_works as list_shown_works
from jobsight.store.store import Store
from jobsight.util.units import format_bytes, format_count, format_duration

#: Runs before the finding was shown that its waste is the mean of.
_BASELINE: Final = 10
#: What a request that is too small ends in.
_FAILED: Final = frozenset({"OUT_OF_MEMORY", "TIMEOUT"})


class KindEffect(msgspec.Struct, kw_only=True):
    """The effect of one kind of findings."""

    kind: str
    #: Works to whose users it was shown, and those of them that ran again.
    works: int
    works_again: int
    #: Works that changed their request, whose last run is without the finding, and whose runs fail
    #: more often after the change.
    changed: int
    gone: int
    harmed: int
    saved: Cost
    prices: list[Amount]


class Effect(msgspec.Struct, kw_only=True):
    """The effect of all findings that were shown."""

    kinds: list[KindEffect]
    #: The latest shown first.
    works: list[WorkEffect]


def measure_effect(
    store: Store,
    *,
    kind: str | None = None,
    since: int = 0,
    owner: ShownTo = ANYBODY,
    work_ids: Collection[int] | None = None,
    limit: int = MAX_WORKS,
    prices: Mapping[str, PriceSettings] = NO_PRICES,
) -> Effect:
    """Compare the runs of all works, or of some, of which a finding was shown since then."""
    works = []
    for shown in list_shown_works(store.database, kind, since, owner, limit):
        if work_ids is not None and shown.work_id not in work_ids:
            continue
        runs = runs_of_work(store.database, shown.work_id, shown.kind)
        works.append(_named(store, shown.work_id, compare(shown, runs, prices)))
    return Effect(kinds=sum_kinds(works, prices), works=works)


def _named(store: Store, work_id: int, effect: WorkEffect) -> WorkEffect:
    name = describe_work(store.database, work_id)
    effect.work, effect.cluster = name.name, name.cluster
    effect.user, effect.account = name.user, name.account
    effect.text = describe(effect)
    return effect


def effects_up_to_run(
    store: Store,
    work_id: int,
    run_id: int,
    start: int,
    prices: Mapping[str, PriceSettings] = NO_PRICES,
) -> list[WorkEffect]:
    """What one run and the runs of its work before it did after a finding was shown: of the kinds
    of findings that the run itself does not have. ``start`` is that of the run."""
    effects = []
    for shown in shown_kinds_of_work(store.database, work_id):
        if shown.first >= start:
            continue
        runs = runs_of_work_until(store.database, work_id, run_id, shown.kind)
        own = next((run for run in runs if run.run_id == run_id), None)
        if own is not None and own.finding not in HOLDING:
            effects.append(_named(store, work_id, compare(shown, runs, prices)))
    return effects


def compare(
    shown: ShownWork, runs: Sequence[WorkRun], prices: Mapping[str, PriceSettings] = NO_PRICES
) -> WorkEffect:
    """Compare the runs of one work, which are sorted by start."""
    before = [run for run in runs if run.start <= shown.first]
    after = [run for run in runs if run.start > shown.first]
    last = before[-1] if before else None
    changed = next((run for run in after if last and run.request != last.request), None)
    saved = _saved(before[-_BASELINE:], after)
    return WorkEffect(
        kind=shown.kind,
        work="",
        cluster="",
        user="",
        account="",
        shown=shown.first,
        times_shown=shown.times,
        runs_before=len(before),
        runs_after=len(after),
        changed=None if changed is None else changed.start,
        request_before=None if last is None else _request(last),
        request_after=None if changed is None else _request(after[-1]),
        runs_without=sum(run.finding not in HOLDING for run in after),
        failures_before=sum(run.state in _FAILED for run in before),
        failures_after=sum(run.state in _FAILED for run in after),
        saved=saved,
        prices=price(saved, prices),
    )


def _request(run: WorkRun) -> Request:
    return Request(cpus=run.cpus, gpus=run.gpus, memory=run.memory, time_limit=run.time_limit)


def _saved(before: Sequence[WorkRun], after: Sequence[WorkRun]) -> Cost:
    """The waste of as many runs as later ones, by the mean of those before, less theirs."""
    if not before or not after:
        return Cost()
    saved: dict[str, float | None] = {}
    for name in Cost.__struct_fields__:
        old, new = ([_waste(run, name) for run in runs] for runs in (before, after))
        known = [value for value in old if value is not None]
        saved[name] = (
            sum(known) / len(old) * len(after) - sum(value or 0.0 for value in new)
            if known
            else None
        )
    return Cost(**saved)


def _waste(run: WorkRun, name: str) -> float | None:
    if run.finding not in HOLDING:
        return None
    value: float | None = getattr(from_stored(run.cost), name)
    return value


def sum_kinds(
    works: Iterable[WorkEffect], prices: Mapping[str, PriceSettings] = NO_PRICES
) -> list[KindEffect]:
    """The effect by kind, the largest saving first."""
    by_kind: dict[str, list[WorkEffect]] = {}
    for each in works:
        by_kind.setdefault(each.kind, []).append(each)
    sums = []
    for kind, group in by_kind.items():
        saved = Cost()
        for each in group:
            saved += each.saved
        sums.append(
            KindEffect(
                kind=kind,
                works=len(group),
                works_again=sum(bool(each.runs_after) for each in group),
                changed=sum(each.changed is not None for each in group),
                gone=sum(bool(each.runs_without) for each in group),
                harmed=sum(each.is_harmful for each in group),
                saved=saved,
                prices=price(saved, prices),
            )
        )
    return sorted(sums, key=lambda each: (-each.works, each.kind))


def describe(effect: WorkEffect) -> str:
    """ "Changed from 64 GiB to 14 GiB of memory: 12 of 12 runs without the finding, 410 GB h saved,
    no failure." """
    if not effect.runs_after:
        return "It has not run again."
    runs = f"{format_count(effect.runs_without)} of {format_count(effect.runs_after)} runs"
    parts = [f"{runs} without the finding"]
    saved = format_cost(_gain(effect.saved), [each for each in effect.prices if each.amount > 0])
    if saved:
        parts.append(f"{saved} saved")
    new = effect.failures_after
    parts.append(f"{format_count(new)} out of memory or time" if new else "no failure")
    changes = _changes(effect.request_before, effect.request_after)
    request = f"Changed {', '.join(changes)}" if changes else "The request is unchanged"
    return f"{request}: {', '.join(parts)}."


def _gain(saved: Cost) -> Cost:
    values = {name: getattr(saved, name) for name in Cost.__struct_fields__}
    return Cost(**{name: value for name, value in values.items() if value and value > 0})


def _changes(before: Request | None, after: Request | None) -> list[str]:
    if before is None or after is None:
        return []
    pairs = (
        (before.memory, after.memory, format_bytes, "of memory"),
        (before.cpus, after.cpus, format_count, "CPUs"),
        (before.gpus, after.gpus, format_count, "GPUs"),
        (before.time_limit, after.time_limit, format_duration, "of time"),
    )
    return [
        f"from {show(old)} to {show(new)} {what}" for old, new, show, what in pairs if old != new
    ]
