"""Lists of findings, the worst first, and their sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from jobsight.store.database import Database
from jobsight.store.findings.rows import (
    COLUMNS,
    FINDINGS_OF_RUNS,
    SQL,
    FindingRow,
    StoredCost,
    row_of,
)
from jobsight.store.read import pseudonyms, viewed
from jobsight.store.read.visibility import EVERYTHING, Visibility
from jobsight.store.schema.statements import quoted
from jobsight.store.transaction import Transaction

#: The dimensions of the sums.
DIMENSIONS: Final = ("day", "cluster", "user", "account", "partition", "kind")
#: Rows of a summary.
MAX_GROUPS: Final = 10_000
#: Series of totals: sites have some dozens of kinds.
MAX_TOTALS: Final = 2000


class FindingPosition(NamedTuple):
    """A place in a list: that of the finding with this weight, run and kind."""

    weight: int
    run_id: int
    kind: str


class AgePosition(NamedTuple):
    """A place in a list by age: that of the finding that first held at this time, of this run and
    kind."""

    first: int
    run_id: int
    kind: str


class FindingFilter(NamedTuple):
    """Which findings a list has. None passes all."""

    user: str | None = None
    account: str | None = None
    cluster: str | None = None
    partition: str | None = None
    kind: str | None = None
    #: The lowest severity: 0 info, 1 warning, 2 critical.
    severity: int = 0
    #: The first day of the starts of the runs, and the one after the last.
    since: int | None = None
    until: int | None = None
    audience: str | None = None
    #: Also those that were replied to, are gone or withheld.
    all_states: bool = False
    #: Only those in one state, with ``all_states``.
    state: str | None = None
    #: The runs that may be seen.
    visibility: Visibility = EVERYTHING

    def where(self) -> tuple[str, dict[str, Any]]:
        """The conditions on ``findings`` and their parameters."""
        names = ("user", "account", "cluster", "partition", "kind", "audience", "state")
        given = {name: getattr(self, name) for name in names}
        values = {name: value for name, value in given.items() if value is not None}
        conditions = [f"findings.{quoted(name)} = :{name}" for name in values]
        for name, comparison in (("since", ">="), ("until", "<")):
            if getattr(self, name) is not None:
                conditions.append(f"findings.day {comparison} :{name}")
                values[name] = getattr(self, name)
        if pseudonyms.is_active() and (self.user or self.account):
            # Whoever sees pseudonyms would find out whose they are.
            conditions.append("false")
        if self.severity:
            conditions.append("findings.severity >= :severity")
            values["severity"] = self.severity
        if not self.all_states:
            conditions.append("findings.state = 'open'")
        if not self.visibility.everything:
            # Names without a table are those of the innermost query.
            condition, seen = self.visibility.condition()
            conditions.append(
                "EXISTS (SELECT 1 FROM runs AS seen "
                f"WHERE seen.id = findings.run_id AND {condition})"
            )
            values |= seen
        return " AND ".join(conditions) or "true", values


class ListedFinding(NamedTuple):
    """A finding with the run that it is about."""

    finding: FindingRow
    job_id: int
    array_job_id: int | None
    array_task_id: int | None
    start: int
    job_name: str | None
    shown_state: str

    @property
    def position(self) -> FindingPosition:
        return FindingPosition(self.finding.weight, self.finding.run_id, self.finding.kind)

    @property
    def age_position(self) -> AgePosition:
        return AgePosition(self.finding.first, self.finding.run_id, self.finding.kind)


_OF_RUN: Final = ", ".join(f"runs.{name}" for name in ListedFinding._fields[1:-2])
_LISTED: Final = ", ".join(f"findings.{name.strip()}" for name in COLUMNS.split(","))


def list_findings(
    database: Database,
    wanted: FindingFilter,
    limit: int,
    after: FindingPosition | None = None,
) -> list[ListedFinding]:
    """Findings, those of the highest cost first; ``after`` is a position of the list."""
    where, values = wanted.where()
    if after is not None:
        where += (
            " AND (findings.weight < :after_weight OR (findings.weight = :after_weight AND "
            "(findings.run_id, findings.kind) > (:after_run, :after_kind)))"
        )
        values |= {
            "after_weight": after.weight,
            "after_run": after.run_id,
            "after_kind": after.kind,
        }
    query = (
        f"SELECT {_LISTED}, {_OF_RUN}, runs.name, runs.shown_state "
        f"FROM findings JOIN runs ON runs.id = findings.run_id WHERE {where} "
        "ORDER BY findings.weight DESC, findings.run_id, findings.kind LIMIT :limit"
    )
    width = len(FindingRow._fields)
    with database.query() as transaction:
        rows = transaction.execute(query, values | {"limit": limit}).fetchall()
    return [_listed(row, width) for row in rows]


def new_findings(
    database: Database, audience: str, severity: int, since: int, after: AgePosition, limit: int
) -> list[ListedFinding]:
    """Open findings for an audience, those whose rule first held earliest first, of runs that
    started on the day ``since`` or later. Runs that were judged together share the time: ``after``
    is a position of the list."""
    wanted = FindingFilter(audience=audience, severity=severity, since=since)
    where, values = wanted.where()
    query = (
        f"SELECT {_LISTED}, {_OF_RUN}, runs.name, runs.shown_state "
        f"FROM findings JOIN runs ON runs.id = findings.run_id "
        f"WHERE {where} AND (findings.first, findings.run_id, findings.kind) "
        "> (:after_first, :after_run, :after_kind) "
        "ORDER BY findings.first, findings.run_id, findings.kind LIMIT :limit"
    )
    values |= {
        "after_first": after.first,
        "after_run": after.run_id,
        "after_kind": after.kind,
        "limit": limit,
    }
    width = len(FindingRow._fields)
    with database.query() as transaction:
        rows = transaction.execute(query, values).fetchall()
    return [_listed(row, width) for row in rows]


def _listed(row: Sequence[Any], width: int) -> ListedFinding:
    listed = ListedFinding(row_of(tuple(row[:width])), *row[width:])
    return listed._replace(job_name=pseudonyms.pseudonym("job", listed.job_name))


def findings_of_run(database: Database, run_id: int) -> list[FindingRow]:
    """All findings of a run in every state, the worst first."""
    with database.query() as transaction:
        rows = [row_of(values) for values in transaction.look_up(FINDINGS_OF_RUNS, [(run_id,)])]
    return sorted(rows, key=worst_first)


def findings_of_runs(database: Database, run_ids: Sequence[int]) -> dict[int, list[FindingRow]]:
    """The findings that hold of some runs by their ids, the worst first."""
    found: dict[int, list[FindingRow]] = {}
    with database.query() as transaction:
        for values in transaction.look_up(FINDINGS_OF_RUNS, [(id,) for id in run_ids]):
            row = row_of(values)
            if row.holds:
                found.setdefault(row.run_id, []).append(row)
    return {run_id: sorted(rows, key=worst_first) for run_id, rows in found.items()}


def worst_first(row: FindingRow) -> tuple[int, int, str]:
    """The order of the findings of one run: by severity, then by cost."""
    return -row.severity, -row.weight, row.kind


class Worst(NamedTuple):
    """The findings of a run in a list of runs: the highest severity, and how many."""

    severity: int
    findings: int


def worst_of_runs(transaction: Transaction, run_ids: Sequence[int]) -> dict[int, Worst]:
    """Of the runs that have findings for their users."""
    rows = transaction.look_up(SQL["worst_of_runs"], [(id,) for id in run_ids])
    return {run_id: Worst(severity, findings) for run_id, severity, findings in rows}


def list_kinds(database: Database, since: int) -> dict[str, int]:
    """The kinds of findings of runs since a day, and how many there are."""
    with database.query() as transaction:
        rows = transaction.execute(SQL["kinds"], {"since": since}).fetchall()
    return {kind: int(runs) for kind, runs in rows}


def last_days(database: Database) -> dict[str, int]:
    """The day of the newest run with a finding of each kind, since 1970."""
    with database.query() as transaction:
        rows = transaction.execute(SQL["last_days"]).fetchall()
    return {kind: int(day) for kind, day in rows}


class FindingSum(NamedTuple):
    """The sum of the findings of one group."""

    #: In the order of the dimensions that were requested.
    key: tuple[str | int, ...]
    runs: int
    acknowledged: int
    not_helpful: int
    cost: StoredCost


def sum_findings(
    database: Database, by: Sequence[str], wanted: FindingFilter, limit: int = MAX_GROUPS
) -> list[FindingSum]:
    """The sums by some of the :data:`DIMENSIONS`, the most runs first; by day in their order.

    Only the filters that the daily rollups have are used.
    """
    assert set(by) <= {*DIMENSIONS}
    usable = FindingFilter(
        **{name: getattr(wanted, name) for name in (*DIMENSIONS[1:], "since", "until")},
        all_states=True,
    )
    where, values = usable.where()
    where = where.replace("findings.", "findings_by_day.")
    columns = "".join(f"{quoted(name)}, " for name in by)
    order = "day, runs DESC" if "day" in by else "runs DESC"
    group = f"GROUP BY {', '.join(map(quoted, by))}" if by else ""
    figures = ", ".join(
        f"sum({name}) AS {name}"
        for name in ("runs", "acknowledged", "not_helpful", *StoredCost._fields)
    )
    query = (
        f"SELECT {columns}{figures} FROM findings_by_day WHERE {where} {group} "
        f"ORDER BY {order}{''.join(f', {quoted(name)}' for name in by)} LIMIT :limit"
    )
    with database.query() as transaction:
        rows = transaction.execute(query, values | {"limit": limit}).fetchall()
    viewed.note(wanted.user if rows else None)
    sums = []
    for row in rows:
        runs, acknowledged, not_helpful, *cost = (int(value or 0) for value in row[len(by) :])
        key = tuple(
            pseudonyms.pseudonym(name, value) or "" if name in ("user", "account") else value
            for name, value in zip(by, row, strict=False)
        )
        if "user" in by:
            viewed.note(str(key[by.index("user")]))
        sums.append(FindingSum(key, runs, acknowledged, not_helpful, StoredCost(*cost)))
    return sums


class KindTotal(NamedTuple):
    """All findings of one kind in a cluster that hold."""

    cluster: str
    kind: str
    runs: int
    cost: StoredCost


def totals_by_kind(database: Database) -> list[KindTotal]:
    """The totals for monitoring."""
    with database.query() as transaction:
        rows = transaction.execute(SQL["totals_by_kind"], {"limit": MAX_TOTALS}).fetchall()
    return [
        KindTotal(cluster, kind, int(runs), StoredCost(*map(int, cost)))
        for cluster, kind, runs, *cost in rows
    ]
