"""Replace the findings of runs, with the daily rollups in the same transaction.

:func:`plan` compares the stored findings of a run with the new ones and reads no database, so that
a dry run prints exactly what :func:`store_judged` would change. Replies of people stay as long as
the rule holds. A finding that no longer holds is deleted; one that somebody was shown, or has
replied to, is kept with the state "gone" or "withheld".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from jobsight.errors import StoreError
from jobsight.store.checkpoints import read_checkpoint, set_checkpoint
from jobsight.store.database import Database, Transaction
from jobsight.store.findings.rows import (
    FINDINGS_OF_RUNS,
    SQL,
    UPSERT,
    FindingRow,
    Owner,
    State,
    StoredCost,
    row_of,
)
from jobsight.store.read import pseudonyms

#: The checkpoint with the last day of which retention has removed findings, but not their sums.
REMOVED: Final = "findings removed"
#: No run has changed so often.
NO_CHANGES: Final = -1
_FIGURES: Final = ("runs", "acknowledged", "not_helpful", *StoredCost._fields)


class NewFinding(NamedTuple):
    """A finding as a rule yields it."""

    kind: str
    severity: int
    audience: str
    cost: StoredCost
    weight: int
    data: bytes


class Judged(NamedTuple):
    """What the rules have found in one run."""

    run_id: int
    #: runs.changes when it was read; NO_CHANGES leaves the mark that the run is to be judged.
    changes: int
    owner: Owner
    work_id: int | None
    findings: tuple[NewFinding, ...]
    #: Kinds that could not be decided.
    withheld: frozenset[str] = frozenset()
    #: Encoded figures; None leaves the stored ones.
    figures: bytes | None = None


class Change(NamedTuple):
    """One changed row: before, after, or both."""

    before: FindingRow | None
    after: FindingRow | None

    @property
    def _row(self) -> FindingRow:
        row = self.after or self.before
        assert row is not None
        return row

    @property
    def kind(self) -> str:
        return self._row.kind

    @property
    def run_id(self) -> int:
        return self._row.run_id

    @property
    def what(self) -> Literal["new", "changed", "gone"]:
        held = self.before is not None and self.before.holds
        holds = self.after is not None and self.after.holds
        if held == holds:
            return "changed"
        return "new" if holds else "gone"


def plan(
    judged: Judged, stored: Mapping[str, FindingRow], shown: Collection[str], now: int
) -> list[Change]:
    """What changes for a run: ``stored`` by kind, ``shown`` the kinds that somebody has seen."""
    changes = []
    for new in judged.findings:
        before = stored.get(new.kind)
        after = _row(judged, new, before, now)
        if before is None or after._replace(last=before.last) != before:
            changes.append(Change(before, after))
    found = {new.kind for new in judged.findings}
    for kind, before in stored.items():
        if kind in found:
            continue
        state: State = "withheld" if kind in judged.withheld else "gone"
        if kind not in shown and before.reply_user is None:
            changes.append(Change(before, None))
        elif before.state != state:
            changes.append(Change(before, before._replace(state=state, last=now)))
    return changes


def _row(judged: Judged, new: NewFinding, before: FindingRow | None, now: int) -> FindingRow:
    held = before is not None and before.holds
    return FindingRow(
        run_id=judged.run_id,
        kind=new.kind,
        severity=new.severity,
        audience=new.audience,
        state=before.state if before is not None and held else "open",
        first=before.first if before is not None and held else now,
        last=now,
        **new.cost._asdict(),
        weight=new.weight,
        **judged.owner._asdict(),
        work_id=judged.work_id,
        data=new.data,
        # A reply to a finding that had gone was to another one.
        reply_user=before.reply_user if before is not None and held else None,
        reply_time=before.reply_time if before is not None and held else None,
    )


def store_judged(database: Database, judged: Sequence[Judged], now: int) -> list[Change]:
    """Replace the findings of some runs in one transaction, without runs that a writer has locked;
    those stay to be judged."""
    with database.write() as transaction:
        _lock(transaction)
        found = _unlocked(transaction, judged)
        changes = _plans(transaction, found, now)
        figures = [
            {
                "run_id": each.run_id,
                "work_id": each.work_id,
                "revision": each.changes,
                "data": each.figures,
            }
            for each in found
            if each.figures is not None
        ]
        transaction.execute_many(SQL["set_figures"], figures)
        _write(transaction, changes)
        changed = sorted({change.run_id for change in changes})
        transaction.execute_many(
            SQL["feed_again"], [{"run_id": run_id, "now": now} for run_id in changed]
        )
        transaction.execute_many(
            SQL["set_judged"],
            [{"id": each.run_id, "changes": each.changes} for each in found],
        )
    return changes


def preview_judged(database: Database, judged: Sequence[Judged], now: int) -> list[Change]:
    """What :func:`store_judged` would change."""
    with database.query() as transaction:
        return _plans(transaction, judged, now)


def _plans(transaction: Transaction, judged: Sequence[Judged], now: int) -> list[Change]:
    keys = [(each.run_id,) for each in judged]
    stored: dict[int, dict[str, FindingRow]] = {}
    for values in transaction.look_up(FINDINGS_OF_RUNS, keys):
        row = row_of(values)
        stored.setdefault(row.run_id, {})[row.kind] = row
    shown: dict[int, set[str]] = {}
    for run_id, kind in transaction.look_up(SQL["shown_of_runs"], [(id,) for id in stored]):
        shown.setdefault(run_id, set()).add(kind)
    changes: list[Change] = []
    for each in judged:
        changes += plan(each, stored.get(each.run_id, {}), shown.get(each.run_id, ()), now)
    return changes


def _lock(transaction: Transaction) -> None:
    """Against other writers of the sums: a sum is read and written by one at a time."""
    transaction.lock("sums", ["findings"])


def _unlocked(transaction: Transaction, judged: Sequence[Judged]) -> list[Judged]:
    """Those whose runs still exist and are not locked: nothing waits here, so that no deadlock with
    a writer of batches is possible."""
    lock = " FOR NO KEY UPDATE OF runs SKIP LOCKED" if transaction.postgresql else ""
    keys = [(each.run_id,) for each in judged]
    present = dict(transaction.look_up(SQL["changes_of_runs"] + lock, keys))
    return [each for each in judged if each.run_id in present]


def _write(transaction: Transaction, changes: Iterable[Change]) -> None:
    """Write rows, and add the differences to the sums of their days."""
    sums: dict[tuple[Any, ...], list[int]] = {}
    rows, deleted = [], []
    for before, after in changes:
        _add(sums, -1, before)
        _add(sums, 1, after)
        if after is not None:
            rows.append(after._asdict())
        elif before is not None:
            deleted.append({"run_id": before.run_id, "kind": before.kind})
    transaction.execute_many(SQL["delete_finding"], deleted)
    transaction.execute_many(UPSERT, rows)
    names = (*Owner._fields, "kind")
    # Always in sorted order.
    differences = [
        dict(zip(names, key, strict=True)) | dict(zip(_FIGURES, values, strict=True))
        for key, values in sorted(sums.items())
        if any(values)
    ]
    transaction.execute_many(SQL["add_to_day"], differences)
    transaction.execute_many(
        SQL["remove_empty_day"],
        [{name: row[name] for name in names} for row in differences if row["runs"] < 0],
    )


def _add(sums: dict[tuple[Any, ...], list[int]], sign: int, row: FindingRow | None) -> None:
    if row is None or not row.holds:
        return
    values = sums.setdefault((*row.owner, row.kind), [0] * len(_FIGURES))
    replies = (row.state == "acknowledged", row.state == "not helpful")
    for index, figure in enumerate((1, *replies, *row.cost)):
        values[index] += sign * (figure or 0)


class NoSuchFinding(StoreError):
    """The run has no such finding that holds."""


def set_reply(
    database: Database,
    run_id: int,
    kind: str,
    state: Literal["open", "acknowledged", "not helpful"],
    user: str,
    now: int,
) -> FindingRow:
    """Record what a person has replied to a finding; "open" takes a reply back."""
    # The row is written back as it was read.
    assert not pseudonyms.is_active()
    with database.write() as transaction:
        _lock(transaction)
        rows = map(row_of, transaction.look_up(FINDINGS_OF_RUNS, [(run_id,)]))
        stored = {row.kind: row for row in rows if row.holds}
        before = stored.get(kind)
        if before is None:
            known = f"; it has {', '.join(sorted(stored))}" if stored else ""
            raise NoSuchFinding(f"the run has no finding {kind!r}{known}")
        replied = state != "open"
        after = before._replace(
            state=state,
            reply_user=user if replied else None,
            reply_time=now if replied else None,
        )
        _write(transaction, [Change(before, after)])
    return after


def delete_findings(transaction: Transaction, run_ids: Sequence[int]) -> None:
    """Delete all of some runs that never happened: their findings leave the sums, too."""
    keys = [(id,) for id in run_ids]
    rows = [row_of(values) for values in transaction.look_up(FINDINGS_OF_RUNS, keys)]
    if rows:
        _lock(transaction)
        _write(transaction, [Change(row, None) for row in rows])
    _delete_rows(transaction, keys)


def prune_findings(transaction: Transaction, run_ids: Sequence[int]) -> None:
    """Delete all of some runs that are too old; the daily rollups are kept."""
    keys = [(id,) for id in run_ids]
    days = [day for (day,) in transaction.look_up(SQL["latest_day_of_runs"], keys) if day]
    if days:
        before = read_checkpoint(transaction, REMOVED)
        set_checkpoint(transaction, REMOVED, max([*days, before.value if before else 0]))
    _delete_rows(transaction, keys)


def _delete_rows(transaction: Transaction, keys: Sequence[tuple[int]]) -> None:
    for statement in ("delete_shown_of_run", "delete_findings_of_run", "delete_figures_of_run"):
        transaction.execute_rows(SQL[statement], keys)
