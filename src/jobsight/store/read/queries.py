"""The queries of reports, pages and the API, and the records that they return.

A query takes the :class:`Transaction` of :meth:`Database.query`. SQLAlchemy is not imported, and
numpy only by the queries for time series: ``jobsight report`` would otherwise spend most of its
time on imports. Read ``list_runs`` and ``find_run`` first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from jobsight.errors import StoreError
from jobsight.model import (
    SECOND,
    Coverage,
    ExecutableUse,
    GpuUse,
    JobInfo,
    JobTotals,
    Run,
    RunReference,
    Sighting,
    StepUse,
    format_start,
)
from jobsight.store.read import pseudonyms, viewed
from jobsight.store.read.budget import ReadBudget, Reservation
from jobsight.store.read.filters import (
    ANY_FINDING,
    LATEST,
    SORTS,
    UNUSED_GPUS,
    Equal,
    Filters,
    IdSet,
    Position,
    RunFilter,
    Sort,
    run_filter,
)
from jobsight.store.read.visibility import EVERYTHING, Visibility
from jobsight.store.schema.statements import (
    GPUS_OF_RUN,
    HIGHEST,
    INFO_NAMES,
    PEAK_FIGURES,
    SUMMED_FIGURES,
    RunSums,
    path_digest,
    quoted,
)
from jobsight.store.sql.load import load_statements
from jobsight.store.transaction import Transaction
from jobsight.store.write.gpus import GpuSums, merge_epochs, rows_by_gpu
from jobsight.store.write.runs import info_from_columns, total

if TYPE_CHECKING:
    from jobsight.store.series.blocks import SeriesBlock
    from jobsight.store.series.packing import Integers, Values

__all__ = [
    "ANY_FINDING",
    "LATEST",
    "SORTS",
    "Filters",
    "Position",
    "RunFilter",
    "Sort",
    "run_filter",
]

_SQL: Final = load_statements("read")
#: Executables of a report, and bytes of their paths; the others are one row.
MAX_EXECUTABLES, MAX_PATHS_SIZE = 500, 2**18
#: Sums of 63 bits could overflow; sums of 32 bits cannot.
_EXECUTABLE_SUMS: Final = ", ".join(
    [f"sum(executables.{name} >> 32) AS {name}_high" for name in SUMMED_FIGURES]
    + [f"sum(executables.{name} & 4294967295) AS {name}_low" for name in SUMMED_FIGURES]
)
_EXECUTABLE_PEAKS: Final = ", ".join(f"max({name}) AS {name}" for name in PEAK_FIGURES)
_LARGEST_EXECUTABLES: Final = _SQL["largest_executables"].replace(
    ":figures", f"{_EXECUTABLE_SUMS}, {_EXECUTABLE_PEAKS}"
)
_ALL_EXECUTABLES: Final = _SQL["all_executables"].replace(":sums", _EXECUTABLE_SUMS)
#: Before and after every time that can be stored.
_EVER: Final = (-(2**63), 2**63 - 1)

#: Values that the queries of a process have decoded at one time: 256 MiB.
MAX_READ_VALUES: Final = 2**25
#: Values that a query reserves to summarise chunks, group by group.
_SUMMARISED_VALUES: Final = 2**22
#: Shared by all stores of the process.
read_budget: Final = ReadBudget()
#: Values of chunks that are joined to be summarised, and bytes of encoded chunks in memory.
_MAX_JOINED_VALUES: Final = 2**21
_MAX_READ_SIZE: Final = 8 * 2**20

_decode_totals = msgspec.msgpack.Decoder(JobTotals).decode
_decode_coverage = msgspec.msgpack.Decoder(dict[str, Coverage]).decode


#: Sightings whose totals a list reads for all its runs. Runs beyond show their last sample in place
#: of the time of their figures, and no memory limit unless the scheduler knows it.
_MAX_SUMMARIZED: Final = 20_000
#: The columns of ``runs`` that a list shows. Of the nodes it reads how many there are.
_LISTED: Final = ", ".join(
    (
        *("id", "cluster", "job_id", "start", "provisional", "chain_job_id"),
        *(quoted(name) for name in INFO_NAMES if name not in ("nodes", "tres")),
        *RunSums._fields,
        "substr(nodes, 1, 5) AS start_of_nodes",
    )
)

#: Runs that are counted; a list of more is not counted to its end.
COUNT_LIMIT: Final = 2000
#: Runs that a condition may find for all of them to be read and sorted.
_FEW: Final = 5000
#: Where an index has the order but not all conditions: how many of its runs are compared with the
#: others first, then at a time, and in all. A list continues there by its position.
_FIRST_WINDOW, _WINDOW, _MAX_COMPARED = 1000, 10_000, 20_000
#: Of a list that is counted: how many runs are compared.
_COUNT_WINDOW: Final = 5000


class _Lookup(NamedTuple):
    """A query of the ids of runs by an index, and the conditions that all of these runs meet."""

    ids: str
    conditions: tuple[str, ...]
    parameters: Mapping[str, Any]


class Found:
    """The runs that pass a filter, found by the index of the condition that has the fewest.

    They are looked up when a list needs them: what many runs have fills the first page from the
    runs that are compared with it first.
    """

    def __init__(self, transaction: Transaction, filter: RunFilter, sort: Sort = LATEST) -> None:
        self._transaction = transaction
        self._filter = filter
        self._sort = sort
        self._ids: list[int] | None = None
        #: Whether they were looked up.
        self.is_known = False

    def look_up(self) -> list[int] | None:
        """The ids; None if each of the conditions finds very many runs."""
        if not self.is_known:
            self.is_known = True
            self._ids = self._look_up()
        return self._ids

    def few(self, filter: RunFilter, compared: Iterable[str]) -> _Where | None:
        """The condition of these runs and of what another filter has beyond this one; None if they
        are many."""
        if self._ids is None:
            return None
        beyond = [each for each in filter.conditions if each not in self._filter.conditions]
        among = _among(self._transaction, self._ids)
        return among._replace(sql=" AND ".join((among.sql, *beyond, *compared)))

    def _look_up(self) -> list[int] | None:
        found: list[int] | None = None
        met: tuple[str, ...] = ()
        for lookup in _lookups(self._filter, self._sort, self._transaction.postgresql):
            if found is not None and len(found) < _FIRST_WINDOW:
                break
            ids = _ids_of(self._transaction, lookup.ids, lookup.parameters)
            if ids is not None and (found is None or len(ids) < len(found)):
                found, met = ids, lookup.conditions
        return None if found is None else self._passing(found, met)

    def _passing(self, ids: list[int], met: Iterable[str]) -> list[int]:
        """Those of few runs that meet the other conditions as well."""
        filter, postgresql = self._filter, self._transaction.postgresql
        conditions = [*filter.interval, *filter.others()]
        if filter.search is not None:
            conditions.append(filter.search.condition(postgresql))
        conditions = [each for each in conditions if each not in met]
        if not ids or not conditions:
            return ids
        among = _among(self._transaction, ids)
        searched = {} if filter.search is None else filter.search.parameters
        rows = self._transaction.execute(
            f"SELECT id FROM runs WHERE {' AND '.join((among.sql, *conditions))}",
            {**filter.parameters, **searched, **among.parameters},
        ).fetchall()
        return [id for (id,) in rows]


def _lookups(filter: RunFilter, sort: Sort, postgresql: bool) -> Iterator[_Lookup]:
    """The indices that can find the runs of a filter, those that cost little first."""
    found_by: list[tuple[str, tuple[str, ...]]] = [
        (each.ids, (each.condition,)) for each in filter.indexed
    ]
    compared: list[tuple[str, ...]] = [(each,) for each in filter.conditions]
    if sort.key != "start":
        compared += [filter.interval] if filter.interval else []
    elif not (compared or filter.sets or filter.search or len(filter.equal) > 1):
        # The index of the list has all conditions.
        return
    found_by += [(f"SELECT id FROM runs WHERE {' AND '.join(each)}", each) for each in compared]
    for ids, conditions in found_by:
        yield _Lookup(ids, conditions, filter.parameters)
    if filter.search is not None:
        search = filter.search
        # SQLite finds runs with all trigrams of the text, PostgreSQL compares the text as well.
        conditions = (search.condition(postgresql),) if postgresql else ()
        parameters = {**search.parameters, "terms": search.terms(postgresql)}
        yield _Lookup(search.candidates(postgresql), conditions, parameters)


class RunPage(NamedTuple):
    """Some runs of a list."""

    runs: list[StoredRun]
    #: Where the list continues; None at its end. The page may have fewer runs than were requested:
    #: so many were compared with the filter that the rest is left to the next page.
    next: Position | None


def list_page_of_runs(
    transaction: Transaction,
    filter: RunFilter,
    limit: int,
    *,
    sort: Sort = LATEST,
    after: Position | None = None,
    offset: int = 0,
    found: Found | None = None,
) -> RunPage:
    """Runs that pass the filter in the order of the sort, and where the next page begins."""
    # One more than is shown: it tells whether there is a next page.
    rows, rest = _select(
        transaction, filter, _LISTED, limit + 1, offset, found, sort=sort, after=after
    )
    if len(rows) > limit:
        last = rows[limit - 1] if limit else None
        rest = after if last is None else Position(last["start"], last["id"], last["sort_value"])
    runs = [
        _stored_run(row, summary) for row, summary in _with_summaries(transaction, rows[:limit])
    ]
    return RunPage(runs, rest)


class GroupKey(NamedTuple):
    """A chain of dependent jobs, an array, or a heterogeneous job."""

    #: The column of ``runs`` that has the id.
    column: str
    cluster: str
    id: int

    @property
    def condition(self) -> str:
        return f"{self.column} = :group_id AND cluster = :group_cluster"

    @property
    def parameters(self) -> dict[str, Any]:
        return {"group_id": self.id, "group_cluster": self.cluster}

    @classmethod
    def of(cls, run: StoredRun, *, chains: bool = True) -> GroupKey | None:
        """The group of a run, without ``chains`` within its chain; None of a run on its own."""
        info = run.info
        if chains and run.chain_job_id is not None:
            return cls("chain_job_id", info.cluster, run.chain_job_id)
        if info.array_job_id is not None:
            return cls("array_job_id", info.cluster, info.array_job_id)
        if info.het_job_id is not None:
            return cls("het_job_id", info.cluster, info.het_job_id)
        return None


#: Groups that one page may skip: their other runs are not listed again.
_MAX_SKIPPED: Final = 200


def list_groups(
    transaction: Transaction,
    filter: RunFilter,
    limit: int,
    *,
    sort: Sort = LATEST,
    after: Position | None = None,
    found: Found | None = None,
) -> RunPage:
    """As :func:`list_page_of_runs`, with one run of each chain, array and heterogeneous job: that
    which comes first in the order of the list. A list of one chain has its arrays as groups."""
    chains = not filter.has_column("chain_job_id")
    runs: list[StoredRun] = []
    skipped: set[GroupKey] = set()
    position = after
    while True:
        page = list_page_of_runs(
            transaction,
            _without(filter, skipped),
            2 * limit,
            sort=sort,
            after=position,
            found=found,
        )
        for run in page.runs:
            group = GroupKey.of(run, chains=chains)
            if group is not None:
                if group in skipped:
                    continue
                skipped.add(group)
                if after is not None and not _is_first(transaction, filter, sort, group, run.id):
                    continue
            runs.append(run)
            if len(runs) == limit:
                rest = page.next or page.runs[-1].id != run.id
                place = run.position if rest else None
                return RunPage(runs, place)
        position = page.next
        # A page of few rows has compared all runs that it may.
        if position is None or len(page.runs) < 2 * limit or len(skipped) >= _MAX_SKIPPED:
            return RunPage(runs, position)


def _without(filter: RunFilter, groups: Iterable[GroupKey]) -> RunFilter:
    """The same filter without the runs of some groups."""
    conditions = [*filter.conditions]
    for column in ("chain_job_id", "array_job_id", "het_job_id"):
        ids = sorted({group.id for group in groups if group.column == column})
        if ids:
            # The same id on another cluster is rare, and on the next page.
            among = ", ".join(map(str, ids))
            conditions.append(f"({column} IS NULL OR {column} NOT IN ({among}))")
    return filter._replace(conditions=tuple(conditions))


def _is_first(
    transaction: Transaction, filter: RunFilter, sort: Sort, group: GroupKey, run_id: int
) -> bool:
    """Whether a run comes first of those of its group that pass the filter."""
    where = _Where(
        f"{group.condition} AND {filter.where()}", {**filter.parameters, **group.parameters}
    )
    if filter.search is not None:
        condition = filter.search.condition(transaction.postgresql)
        parameters = {**where.parameters, **filter.search.parameters}
        where = _Where(f"{where.sql} AND {condition}", parameters)
    for part in _parts(filter, sort, None):
        within = where._replace(sql=" AND ".join((where.sql, *part.compared)))
        rows = part.select(transaction, "id", within, 1)
        if rows:
            return bool(rows[0]["id"] == run_id)
    return False


class GroupSummary(NamedTuple):
    """The runs of a group: how many by state, and the spread of some."""

    states: dict[str, int]
    #: Runs that the other figures are of.
    summarized: int
    shortest: int | None
    longest: int | None
    lowest_cpu_share: float | None
    mean_cpu_share: float | None
    highest_cpu_share: float | None
    highest_memory_share: float | None
    memory_peak: int | None

    @classmethod
    def waiting(cls, jobs: int) -> GroupSummary:
        """Of jobs that have not started."""
        return cls({"PENDING": jobs}, 0, None, None, None, None, None, None, None)

    @property
    def runs(self) -> int:
        return sum(self.states.values())


#: Runs of a group whose figures are read for a list.
_MAX_IN_GROUP: Final = 200


def summarize_groups(
    transaction: Transaction, groups: Iterable[GroupKey], visibility: Visibility = EVERYTHING
) -> dict[GroupKey, GroupSummary]:
    """States and spread of groups, of the runs that a viewer may see."""
    summaries = {}
    visible, seen = visibility.condition()
    for group in groups:
        condition, parameters = group.condition, group.parameters
        # An array is of one user and account; the jobs of a chain may be of several accounts.
        if group.column == "chain_job_id" and not visibility.everything:
            condition, parameters = f"{condition} AND {visible}", {**parameters, **seen}
        states = transaction.execute(
            _SQL["states_of_group"].replace(":condition", condition), parameters
        ).fetchall()
        row = transaction.execute(
            _SQL["spread_of_group"].replace(":condition", condition),
            {**parameters, "limit": _MAX_IN_GROUP},
        ).fetchone()
        summaries[group] = GroupSummary({state: int(count) for state, count in states}, *row)
    return summaries


def list_runs(
    transaction: Transaction,
    filter: RunFilter,
    limit: int,
    offset: int = 0,
    *,
    complete: bool = False,
    found: Found | None = None,
    after: Position | None = None,
    sort: Sort = LATEST,
) -> list[StoredRun]:
    """Runs that pass the filter, by default the latest start first.

    Names of nodes and resources are read only with ``complete``: a job may have 256 KiB of them.
    ``found`` is what a condition has found, if it was queried before.
    """
    columns = "*" if complete else _LISTED
    rows, _ = _select(transaction, filter, columns, limit, offset, found, sort=sort, after=after)
    return [_stored_run(row, summary) for row, summary in _with_summaries(transaction, rows)]


def list_these_runs(
    transaction: Transaction,
    filter: RunFilter,
    ids: Iterable[int],
    limit: int,
    *,
    complete: bool = False,
) -> list[StoredRun]:
    """Those of some runs that pass a filter without a search, the latest start first."""
    among = _among(transaction, list(ids))
    where = _Where(f"{among.sql} AND {filter.where()}", {**among.parameters, **filter.parameters})
    (whole,) = _parts(filter, LATEST, None)
    rows = whole.select(transaction, "*" if complete else _LISTED, where, limit)
    return [_stored_run(row, summary) for row, summary in _with_summaries(transaction, rows)]


def _with_summaries(
    transaction: Transaction, rows: Sequence[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], NodesSummary]]:
    """Rows of ``runs``, each with the summary of its nodes if the row needs one."""
    # The scheduler's end and memory take precedence, so most runs need nothing from their nodes.
    incomplete = []
    left = _MAX_SUMMARIZED
    for row in rows:
        left -= row["sightings"] or 0
        if left >= 0 and (row["end"] is None or row["memory"] is None):
            incomplete.append((row["id"],))
    reports: dict[int, list[tuple[bool, JobTotals | None]]] = {}
    for run_id, final, totals in transaction.look_up(_SQL["nodes_of_runs"], incomplete):
        decoded = None if totals is None else _decode_totals(totals)
        reports.setdefault(run_id, []).append((bool(final), decoded))
    for row in rows:
        if row["id"] in reports:
            yield row, summarize_nodes(reports[row["id"]])
        else:
            yield row, NodesSummary(ended=row["open_nodes"] == 0, counted=row["last_seen"])


def _select(
    transaction: Transaction,
    filter: RunFilter,
    columns: str,
    limit: int,
    offset: int,
    found: Found | None,
    *,
    sort: Sort,
    after: Position | None,
) -> tuple[list[dict[str, Any]], Position | None]:
    """Columns of the runs that pass the filter, and where to continue if not all of them were
    compared with it."""
    found = found or Found(transaction, filter, sort)
    rows: list[dict[str, Any]] = []
    left = _MAX_COMPARED
    for part in _parts(filter, sort, after):
        walk = _Walk(transaction, filter, part, found)
        more, left = walk.rows(columns, limit + offset - len(rows), left)
        rows += more
        if len(rows) >= limit + offset:
            break
        if walk.stopped is not None:
            return rows[offset:], walk.stopped
    return rows[offset:], None


class _Where(NamedTuple):
    """Conditions on ``runs``, with their parameters."""

    sql: str
    parameters: Mapping[str, Any]


class _Part(NamedTuple):
    """A part of a list with one order: the runs with a value of the sort, or those without."""

    #: What is sorted by before start and id; None in a list by start, and without a value.
    value: str | None
    descending: bool
    #: Which runs are in the part, if an index has these conditions with the order, and if not.
    conditions: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    #: Whether an index has this order.
    indexed: bool = True
    #: The part begins after this run.
    after: Position | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        return ("start", "id") if self.value is None else (self.value, "start", "id")

    @property
    def order(self) -> str:
        direction = " DESC" if self.descending else ""
        return ", ".join(key + direction for key in self.keys)

    def where(self) -> _Where:
        """The conditions that an index has."""
        if self.after is None:
            return _Where(" AND ".join(self.conditions) or "true", {})
        after = self.compare("<" if self.descending else ">", "after", self.after)
        return _Where(" AND ".join((*self.conditions, after.sql)), after.parameters)

    def compare(self, comparison: str, prefix: str, position: Position) -> _Where:
        """The condition that a run has such a position."""
        values = {f"{prefix}_start": position.start, f"{prefix}_id": position.id}
        if self.value is not None:
            values = {f"{prefix}_value": position.value, **values}  # type: ignore[dict-item]
        names = ", ".join(f":{name}" for name in values)
        return _Where(f"({', '.join(self.keys)}) {comparison} ({names})", values)

    def select(
        self, transaction: Transaction, columns: str, where: _Where, limit: int
    ) -> list[dict[str, Any]]:
        """Columns of the first runs of the part that pass, with the value of the sort."""
        own = self.where()
        return transaction.mappings(
            f"SELECT {columns}, {self.value or 'NULL'} AS sort_value FROM runs "
            f"WHERE {own.sql} AND {where.sql} ORDER BY {self.order} LIMIT :limit",
            {**where.parameters, **own.parameters, "limit": limit},
        )


def _parts(filter: RunFilter, sort: Sort, after: Position | None) -> Iterator[_Part]:
    """The parts of a list in their order, from a position on."""
    key = SORTS[sort.key]
    if sort.key == "start":
        yield _Part(None, sort.descending, after=after)
        return
    running = bool(key.running) and filter.has_only_running
    value = key.running if running else quoted(key.column)
    if after is None or after.value is not None:
        known = (f"{value} IS NOT NULL",)
        yield _Part(value, sort.descending, known, indexed=not running, after=after)
        after = None
    if running or (key.optional and not key.running):
        unknown = (f"{value} IS NULL",)
        yield _Part(None, True, unknown, indexed=not running, after=after)
    elif key.optional:
        yield _Part(None, True, compared=(f"{value} IS NULL",), after=after)


def _ids_of(
    transaction: Transaction, query: str, parameters: Mapping[str, Any]
) -> list[int] | None:
    """The ids that a query finds; None if they are very many."""
    # Not all of them are different runs: a job may have thousands of nodes.
    rows = transaction.execute(
        f"SELECT * FROM ({query}) AS found LIMIT :few", {**parameters, "few": _FEW + 1}
    ).fetchall()
    return None if len(rows) > _FEW else list({id for (id,) in rows})


def _among(transaction: Transaction, ids: list[int]) -> _Where:
    """The condition that a run is one of few."""
    if transaction.postgresql:
        return _Where("id = ANY(:ids)", {"ids": ids})
    return _Where("id IN (SELECT value FROM json_each(:ids))", {"ids": str(ids)})


class _Walk:
    """Reads the runs of a part in the order of an index, and compares them with the conditions that
    the index does not have. If the first of them do not fill a page, it reads the runs that were
    found by the index of a condition, provided that they are few."""

    def __init__(
        self, transaction: Transaction, filter: RunFilter, part: _Part, found: Found
    ) -> None:
        self._transaction = transaction
        self._filter = filter
        self._part = part
        self._found = found
        driving = None
        indexed: list[str] = []
        if part.value is None and not part.conditions:
            driving = _driving(filter)
            indexed += filter.interval
            others = filter.others(driving)
        else:
            others = [*filter.interval, *filter.others()]
        if driving is not None:
            indexed.append(driving.condition)
        self._search = filter.search
        if not part.indexed or (driving is not None and _is_covered(filter, driving)):
            indexed, others = [*indexed, *others], []
        self._indexed = indexed
        self._others = [*part.compared, *others]
        self._parameters = filter.parameters
        #: The position of the last run that was compared, if there are more.
        self.stopped: Position | None = None

    @property
    def _is_complete(self) -> bool:
        """Whether an index has all conditions, or all runs are sorted anyway."""
        return not self._part.indexed or not (self._others or self._search)

    def rows(self, columns: str, limit: int, left: int) -> tuple[list[dict[str, Any]], int]:
        """The first runs that pass, and how many more may be compared."""
        part, transaction = self._part, self._transaction
        few = self._found.few(self._filter, part.compared)
        if few is not None:
            return part.select(transaction, columns, few, limit), left
        if self._is_complete:
            return part.select(transaction, columns, self._within(part, None), limit), left
        transaction.expect_pages_in_memory()
        rows: list[dict[str, Any]] = []
        window = min(_FIRST_WINDOW, _WINDOW)
        while len(rows) < limit and left > 0:
            window = min(window, left)
            end = self._end_of(part, window)
            rows += part.select(transaction, columns, self._within(part, end), limit - len(rows))
            self.stopped = end
            if end is None:
                break
            if len(rows) < limit and not self._found.is_known:
                self._found.look_up()
                few = self._found.few(self._filter, self._part.compared)
                if few is not None:
                    self.stopped = None
                    return self._part.select(transaction, columns, few, limit), left
            part = part._replace(after=end)
            left -= window
            window = _WINDOW
        return rows, left

    def count(self, limit: int) -> tuple[int, bool]:
        """How many runs pass, and whether that are all; not more than the limit are counted."""
        end = None
        if not self._is_complete:
            self._transaction.expect_pages_in_memory()
            # A query of another table for each run costs more than a comparison.
            asks = any(each.startswith("(SELECT") for each in self._others)
            window = _FIRST_WINDOW if asks else _COUNT_WINDOW
            end = self._end_of(self._part, min(window, _WINDOW))
        return _count(self._transaction, self._within(self._part, end), limit), end is None

    def _end_of(self, part: _Part, window: int) -> Position | None:
        """The position of the last of so many runs; None if there are fewer."""
        own = part.where()
        rows = self._transaction.execute(
            f"SELECT {', '.join(part.keys)} FROM runs "
            f"WHERE {' AND '.join((own.sql, *self._indexed))} "
            f"ORDER BY {part.order} LIMIT 1 OFFSET :window",
            {**self._parameters, **own.parameters, "window": window - 1},
        ).fetchall()
        if not rows:
            return None
        *value, start, id = rows[0]
        return Position(start, id, value[0] if value else None)

    def _within(self, part: _Part, end: Position | None) -> _Where:
        """The conditions of the filter, and for the runs up to a position."""
        postgresql = self._transaction.postgresql
        conditions = [*self._indexed]
        parameters = {**self._parameters}
        if end is not None:
            up_to = part.compare(">=" if part.descending else "<=", "end", end)
            conditions.append(up_to.sql)
            parameters |= up_to.parameters
        # The sign keeps SQLite from reading another index and sorting all runs that it finds.
        conditions += [each if postgresql else _without_index(each) for each in self._others]
        if self._search is not None:
            conditions.append(self._search.condition(postgresql))
            parameters |= self._search.parameters
        return _Where(" AND ".join(conditions) or "true", parameters)


def _without_index(condition: str) -> str:
    return condition if condition.startswith(("EXISTS", "(", "false")) else f"+{condition}"


def _count(transaction: Transaction, where: _Where, limit: int) -> int:
    row = transaction.execute(
        f"SELECT count(*) FROM (SELECT 1 FROM runs WHERE {where.sql} LIMIT :limit) AS counted",
        {**where.parameters, "limit": limit},
    ).fetchone()
    return int(row[0])


def _driving(filter: RunFilter) -> Equal | IdSet | None:
    """The condition whose index a list by start reads."""
    if filter.equal:
        return filter.equal[0]
    return UNUSED_GPUS if UNUSED_GPUS in filter.sets else None


def _is_covered(filter: RunFilter, driving: Equal | IdSet) -> bool:
    """Whether the index of a condition has all columns of the filter."""
    columns = [each.column for each in filter.equal]
    if filter.conditions or [each for each in filter.sets if each is not driving]:
        return False
    # Those of one array are sorted after they were read.
    return columns[:1] in (["chain_job_id"], ["array_job_id"], ["het_job_id"]) or columns in (
        ["user", "shown_state"],
        ["account", "shown_state"],
    )


def _stored_run(row: Mapping[str, Any], on_nodes: NodesSummary) -> StoredRun:
    start = None if row["provisional"] else row["start"]
    columns = {name: row.get(name) for name in INFO_NAMES}
    info = info_from_columns(row["cluster"], row["job_id"], start, columns)
    # All columns are read of a run that is shown by itself.
    run = Run(row["cluster"], row["job_id"], row["start"]) if "nodes" in row else ""
    viewed.note(info.user, str(run))
    info = pseudonyms.info(info)
    named_nodes = _count_items(row["nodes"] if "nodes" in row else row["start_of_nodes"])
    return StoredRun(
        id=row["id"],
        info=info,
        provisional=bool(row["provisional"]),
        cpu_time=row["cpu_time"],
        memory_used_peak=row["memory_used_peak"],
        memory_peak=row["memory_peak"],
        node_count=max(named_nodes, row["reporting_nodes"] or 0),
        first_seen=row["first_seen"],
        last_seen=row["last_seen"],
        start=row["start"],
        open_nodes=row["open_nodes"],
        gpus=GpuSums(*(row[name] for name in GpuSums._fields)),
        on_nodes=on_nodes,
        sort_value=row["sort_value"],
        chain_job_id=row["chain_job_id"],
    )


def _count_items(array: bytes | None) -> int:
    """The length of a msgpack array, which its first bytes hold."""
    if array is None:
        return 0
    kind = array[0]
    size = {0xDC: 2, 0xDD: 4}.get(kind)
    return kind & 0x0F if size is None else int.from_bytes(array[1 : 1 + size], "big")


class Count(NamedTuple):
    """How many runs pass a filter; without ``exact`` there are more."""

    number: int
    exact: bool

    def at_least(self, number: int) -> Count:
        """The same, of a list that shows so many: fewer may have been counted."""
        return self._replace(number=max(self.number, number))


def count_runs(
    transaction: Transaction,
    filter: RunFilter,
    limit: int = COUNT_LIMIT + 1,
    found: Found | None = None,
) -> Count:
    """How many runs pass the filter; not more than the limit are counted."""
    if found is None:
        found = Found(transaction, filter)
        found.look_up()
    ids = found.look_up() if found.is_known else None
    if ids is not None:
        return Count(min(len(ids), limit), len(ids) < limit)
    (whole,) = _parts(filter, LATEST, None)
    number, exact = _Walk(transaction, filter, whole, found).count(limit)
    return Count(number, exact and number < limit)


def count_states(transaction: Transaction, filter: RunFilter, newest: int) -> dict[str, int]:
    """The newest runs that pass the filter, counted by the state that is shown."""
    rows = transaction.execute(
        _SQL["states_of_runs"].replace(":conditions", filter.where()),
        {**filter.parameters, "newest": newest},
    ).fetchall()
    return {state: int(count) for state, count in rows}


def list_largest(
    transaction: Transaction, filter: RunFilter, newest: int, limit: int
) -> list[StoredRun]:
    """Of the newest runs that pass the filter, those that held the most core time."""
    ids = [
        int(id)
        for (id,) in transaction.execute(
            _SQL["largest_runs"].replace(":conditions", filter.where()),
            {**filter.parameters, "newest": newest, "limit": limit},
        ).fetchall()
    ]
    runs = {run.id: run for run in list_these_runs(transaction, RunFilter(), ids, len(ids))}
    return [runs[id] for id in ids if id in runs]


def find_row(transaction: Transaction, run_id: int) -> StoredRun | None:
    """A run by its row; None if there is none."""
    rows = transaction.mappings(_SQL["run_by_row"], {"run_id": run_id})
    for row, summary in _with_summaries(transaction, rows):
        return _stored_run(row, summary)
    return None


def find_run(
    transaction: Transaction,
    reference: RunReference,
    where: str,
    visibility: Visibility = EVERYTHING,
) -> StoredRun:
    """The run that a reference names among those that may be seen, or :class:`RunNotFound`."""
    condition, values = visibility.condition()
    parameters: dict[str, Any] = {"job_id": reference.job_id, **values}
    conditions = [condition]
    if reference.cluster is not None:
        conditions.append("cluster = :cluster")
        parameters["cluster"] = reference.cluster
    if reference.start is not None:
        conditions.append("start BETWEEN :first AND :last")
        first = reference.start // SECOND * SECOND
        parameters |= {"first": first, "last": first + SECOND - 1}
    if reference.array_task_id is not None:
        parameters["task"] = reference.array_task_id
    if reference.het_offset is not None:
        parameters["offset_in_job"] = reference.het_offset
    for meaning in _meanings(reference):
        # One statement for a run that may not be seen and one that does not exist: another one
        # would be heard in the time of the answer. The limit keeps both engines from reading all
        # runs of the viewer in place of those with the id.
        ids = (
            'SELECT one.id FROM (SELECT id, cluster, "user", account, start FROM runs '
            f"WHERE {meaning} LIMIT {HIGHEST}) AS one WHERE {' AND '.join(conditions)}"
        )
        filter = RunFilter((), parameters, sets=(IdSet(ids, f"id IN ({ids})"),))
        found = Found(transaction, filter)
        # They are few: the newest runs need not be compared first.
        found.look_up()
        runs = list_runs(transaction, filter, 1, complete=True, found=found)
        if runs:
            return runs[0]
    raise RunNotFound(_written(reference), where)


def _meanings(reference: RunReference) -> Iterator[str]:
    if reference.array_task_id is not None:
        yield "array_job_id = :job_id AND array_task_id = :task"
    elif reference.het_offset is not None:
        yield "het_job_id = :job_id AND het_offset = :offset_in_job"
    else:
        yield "job_id = :job_id"
        # The id of an array or heterogeneous job, if no run has it as its own.
        yield "(array_job_id = :job_id OR het_job_id = :job_id)"


def _written(reference: RunReference) -> str:
    text = str(reference.job_id)
    if reference.array_task_id is not None:
        text += f"_{reference.array_task_id}"
    if reference.het_offset is not None:
        text += f"+{reference.het_offset}"
    if reference.cluster is not None:
        text += f" of cluster {reference.cluster}"
    if reference.start is not None:
        text += f" started at {format_start(reference.start)}"
    return text


def summarize_nodes(nodes: Sequence[tuple[bool, JobTotals | None]]) -> NodesSummary:
    """Combine what the nodes of a run report: whether each is final, and its totals."""
    limits = [totals.memory_limit if totals else None for _, totals in nodes]
    return NodesSummary(
        ended=bool(nodes) and all(final for final, _ in nodes),
        counted=max((totals.time for _, totals in nodes if totals), default=None),
        # The limits of some nodes are no limit for the memory of all.
        memory_limit=None if None in limits else total(limits),
    )


class RunRevision(NamedTuple):
    """A run, and a text that differs after each change of what its report shows."""

    run_id: int
    text: str
    #: Whether the end is known: nothing in the report depends on the time of the request.
    ended: bool


def find_revision(
    transaction: Transaction,
    reference: RunReference,
    where: str,
    visibility: Visibility = EVERYTHING,
) -> RunRevision:
    """The revision of the run that a reference names, or :class:`RunNotFound`."""
    run = find_run(transaction, reference, where, visibility)
    row = transaction.execute(_SQL["revision_of_run"], {"run_id": run.id}).fetchone()
    return RunRevision(run.id, " ".join(map(str, row)), run.info.end is not None)


def list_nodes(transaction: Transaction, run_id: int) -> list[StoredNode]:
    """The sightings of a run, by node and creation time."""
    return [
        StoredNode(
            id=row["id"],
            sighting=Sighting(**{name: row[name] for name in Sighting.__struct_fields__}),
            epoch=row["epoch"],
            totals=None if row["totals"] is None else _decode_totals(row["totals"]),
            coverage={} if row["coverage"] is None else _decode_coverage(row["coverage"]),
            first_sample=row["first_sample"],
            last_sample=row["last_sample"],
            final=bool(row["final"]),
            clock_skew=row["clock_skew"],
        )
        for row in transaction.mappings(_SQL["nodes_of_run"], {"run_id": run_id})
    ]


def find_details(transaction: Transaction, run_id: int) -> bytes | None:
    """The packed details that a scheduler recorded of a run."""
    row = transaction.execute(_SQL["details_of_run"], {"run_id": run_id}).fetchone()
    return None if row is None else bytes(row[0])


def list_executables(transaction: Transaction, run_id: int) -> list[StoredExecutable]:
    """The executables of a run by node, each summed over the agent epochs, most CPU time first."""
    return sum_executables(transaction.mappings(_SQL["executables_of_run"], {"run_id": run_id}))


class ExecutableSums(NamedTuple):
    """The executables of a run, each summed over nodes and agent epochs."""

    #: Those with the most CPU and GPU time.
    largest: list[ExecutableUse]
    #: The sums of all others, without peaks; None if there are none.
    others: ExecutableUse | None
    #: How many there are in all, and how many of them have a path of another mount namespace.
    executables: int
    own_namespace: int

    @classmethod
    def of(cls, stored: Iterable[StoredExecutable]) -> ExecutableSums:
        """The sums of rows that were read completely."""
        uses: dict[tuple[bytes, bool], ExecutableUse] = {}
        for each in stored:
            key = (each.use.path, each.use.path_known)
            uses[key] = _add(uses[key], each.use) if key in uses else each.use
        used = [use for use in uses.values() if _was_used(use)]
        used.sort(key=lambda use: (-use.cpu_time - use.gpu_time, -use.executions, use.path))
        largest = _within_size(used[:MAX_EXECUTABLES])
        rest = used[len(largest) :]
        sums = {name: sum(getattr(use, name) for use in rest) for name in SUMMED_FIGURES}
        others = ExecutableUse(path=b"", **sums) if rest else None
        return cls(largest, others, len(used), sum(use.own_namespace for use in used))


def sum_largest_executables(transaction: Transaction, run_id: int) -> ExecutableSums:
    """The largest executables of a run and the sum of the others.

    Users decide how many there are, so the database sums them.
    """
    values = {"run_id": run_id, "limit": MAX_EXECUTABLES}
    rows = transaction.mappings(_LARGEST_EXECUTABLES, values)
    if not rows:
        return ExecutableSums([], None, 0, 0)
    count, own = int(rows[0]["executable_count"]), int(rows[0]["own_count"])
    largest = _within_size(
        [
            ExecutableUse(
                path=_path(row),
                path_known=bool(row["path_known"]),
                own_namespace=bool(row["own_namespace"]),
                **_joined_sums(row),
                **{name: row[name] for name in PEAK_FIGURES},
            )
            for row in rows
        ]
    )
    if len(largest) == count:
        return ExecutableSums(largest, None, count, own)
    (row,) = transaction.mappings(_ALL_EXECUTABLES, {"run_id": run_id})
    left = {
        name: whole - sum(getattr(use, name) for use in largest)
        for name, whole in _joined_sums(row).items()
    }
    return ExecutableSums(largest, ExecutableUse(path=b"", **left), count, own)


def _was_used(use: ExecutableUse) -> bool:
    """A row without figures was renamed: the agent has learned the path of the executable since."""
    return bool(use.executions or use.processes or use.cpu_time or use.gpu_time)


def _within_size(uses: list[ExecutableUse]) -> list[ExecutableUse]:
    """The first ones, up to a size of their paths."""
    sizes = itertools.accumulate(len(use.path) for use in uses)
    return [use for use, size in zip(uses, sizes, strict=True) if size <= MAX_PATHS_SIZE]


def _path(row: Mapping[Any, Any]) -> bytes:
    return pseudonyms.path(bytes(row["path"]), own_namespace=bool(row["own_namespace"]))


def _joined_sums(row: Mapping[str, Any]) -> dict[str, int]:
    return {
        name: (int(row[f"{name}_high"]) << 32) + int(row[f"{name}_low"]) for name in SUMMED_FIGURES
    }


def sum_executables(rows: Iterable[Mapping[Any, Any]]) -> list[StoredExecutable]:
    """Sum rows of ``executables`` of one run, each with its node and path."""
    uses: dict[tuple[str, bytes, bool], ExecutableUse] = {}
    for row in rows:
        path, known = _path(row), bool(row["path_known"])
        figures = {
            # An archive of an older release lacks figures of GPUs.
            name: row[name] or 0
            for name in (*SUMMED_FIGURES, *PEAK_FIGURES, "first_seen", "last_seen")
        }
        use = ExecutableUse(
            path=path, path_known=known, own_namespace=bool(row["own_namespace"]), **figures
        )
        key = (row["node"], path, known)
        uses[key] = _add(uses[key], use) if key in uses else use
    order = sorted(uses, key=lambda key: (key[0], -uses[key].cpu_time, key[1]))
    return [StoredExecutable(key[0], uses[key]) for key in order]


def _add(use: ExecutableUse, other: ExecutableUse) -> ExecutableUse:
    sums = {
        name: min(getattr(use, name) + getattr(other, name), HIGHEST) for name in SUMMED_FIGURES
    }
    peaks = {name: max(getattr(use, name), getattr(other, name)) for name in PEAK_FIGURES}
    return msgspec.structs.replace(
        use,
        **sums,
        **peaks,
        own_namespace=use.own_namespace or other.own_namespace,
        # Zero is a time that the agent did not know.
        first_seen=min(use.first_seen or other.first_seen, other.first_seen or use.first_seen),
        last_seen=max(use.last_seen, other.last_seen),
    )


class PathUse(NamedTuple):
    """A use of an executable on a node of a run."""

    user: str | None
    executions: int
    failures: int


def list_path_failures(transaction: Transaction, path: bytes, limit: int) -> list[PathUse]:
    """The newest uses of an executable in all runs."""
    parameters = {"digest": path_digest(path), "limit": limit}
    rows = transaction.execute(_SQL["failures_of_path"], parameters).fetchall()
    return [PathUse(*row) for row in rows]


def list_software(transaction: Transaction, run_id: int, limit: int) -> list[str]:
    """The names of the software that a run used, the most CPU time first."""
    rows = transaction.execute(_SQL["software_of_run"], {"run_id": run_id, "limit": limit})
    names = (pseudonyms.software(name, "", "", own)[0] or "" for name, own in rows.fetchall())
    return list(dict.fromkeys(names))


class SoftwareUse(NamedTuple):
    """What the programs of one software used in a run; no name: what no rule names."""

    name: str | None
    version: str | None
    local_version: str | None
    user_provided: bool | None
    ignored: bool | None
    cpu_time: int
    gpu_time: int
    executions: int


def list_software_use(transaction: Transaction, run_id: int, limit: int) -> list[SoftwareUse]:
    """The use of a run by software, the most CPU time first."""
    rows = transaction.execute(_SQL["software_use_of_run"], {"run_id": run_id, "limit": limit})
    return [
        SoftwareUse(
            *pseudonyms.software(*row[:4]), _flag(row[3]), _flag(row[4]), *map(int, row[5:])
        )
        for row in rows.fetchall()
    ]


def _flag(value: int | bool | None) -> bool | None:
    return None if value is None else bool(value)


def list_gpus(transaction: Transaction, run_id: int) -> list[StoredGpu]:
    """The GPUs of a run by node and key, each summed over the agent epochs."""
    rows = transaction.execute(GPUS_OF_RUN, {"id": run_id}).fetchall()
    gpus = [StoredGpu(node, merge_epochs(uses)) for (node, _), uses in rows_by_gpu(rows).items()]
    return sorted(gpus, key=lambda gpu: (gpu.node, _natural(gpu.use.key)))


def _natural(key: str) -> list[tuple[int, int | str]]:
    """A key of GPUs, ordered by its numbers: 10 comes after 9."""
    parts = key.split(":")
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in parts]


def list_steps(transaction: Transaction, run_id: int) -> list[StoredStep]:
    """The steps of a run by node, each summed over the sightings of the node."""
    return sum_steps(transaction.mappings(_SQL["steps_of_run"], {"run_id": run_id}))


def sum_steps(rows: Iterable[Mapping[Any, Any]]) -> list[StoredStep]:
    """Sum rows of ``steps`` of one run, each with its node; the order stays."""
    uses: dict[tuple[str, str], StepUse] = {}
    for row in rows:
        use = StepUse(**{name: row[name] for name in StepUse.__struct_fields__})
        use.ended = bool(use.ended)
        key = (row["node"], use.step)
        uses[key] = _add_step(uses[key], use) if key in uses else use
    return [StoredStep(node, use) for (node, _), use in uses.items()]


def _add_step(use: StepUse, other: StepUse) -> StepUse:
    # A cgroup that was created again counts from zero: times add up, peaks do not.
    peaks = [step.memory_peak for step in (use, other) if step.memory_peak is not None]
    gpu_peaks = [step.gpu_memory_peak for step in (use, other) if step.gpu_memory_peak is not None]
    return StepUse(
        step=use.step,
        tasks=max(use.tasks, other.tasks),
        cpu_time=total([use.cpu_time, other.cpu_time]),
        cpu_overhead=total([use.cpu_overhead, other.cpu_overhead]),
        memory_peak=max(peaks, default=None),
        oom_kills=total([use.oom_kills, other.oom_kills]),
        first_seen=min(use.first_seen or other.first_seen, other.first_seen or use.first_seen),
        last_seen=max(use.last_seen, other.last_seen),
        ended=max(use, other, key=lambda step: step.last_seen).ended,
        gpu_time=total([use.gpu_time, other.gpu_time]),
        gpu_memory_peak=max(gpu_peaks, default=None),
    )


def list_series(
    transaction: Transaction,
    run_id: int,
    metrics: Sequence[str] | None,
    since: int | None,
    until: int | None,
) -> list[StoredSeries]:
    """The time series of a run, one entry per node."""

    def read(reservation: Reservation) -> list[StoredSeries]:
        return _read_series(transaction, run_id, metrics, since, until, reservation)

    return read_budget.read(read, MAX_READ_VALUES)


def _read_series(
    transaction: Transaction,
    run_id: int,
    metrics: Sequence[str] | None,
    since: int | None,
    until: int | None,
    reservation: Reservation,
) -> list[StoredSeries]:
    from jobsight.store.series.blocks import between, join

    wanted = None if metrics is None else frozenset(metrics)
    result = []
    sizes = []
    for node, of_node in _chunks_by_node(transaction, run_id, since, until).items():
        blocks = _read_blocks(transaction, of_node, wanted, reservation)
        result.append(StoredSeries(node, *between(join(blocks), since, until)))
        # A part of the rows is a view of all of them.
        sizes.append(sum(map(_count_values, blocks)))
    # After all nodes: what is kept no longer counts as this reader's own, which would then wait for
    # itself.
    for series, size in zip(result, sizes, strict=True):
        reservation.keep(series, size)
    return result


def iterate_series(
    transaction: Transaction, run_id: int, metrics: Sequence[str]
) -> Iterator[StoredSeries]:
    """The time series of a run, one node after the other, with those of one node in memory."""
    from jobsight.store.series.blocks import join

    wanted = frozenset(metrics)
    for node, of_node in _chunks_by_node(transaction, run_id).items():

        def read(
            reservation: Reservation, node: str = node, chunks: Sequence[_Chunk] = of_node
        ) -> StoredSeries:
            blocks = _read_blocks(transaction, chunks, wanted, reservation)
            series = StoredSeries(node, *join(blocks))
            reservation.keep(series, sum(map(_count_values, blocks)))
            return series

        yield read_budget.read(read, MAX_READ_VALUES)


def series_on_node(
    transaction: Transaction,
    run_id: int,
    node: str,
    metrics: Sequence[str],
    since: int,
    until: int,
) -> StoredSeries | None:
    """The time series of a run on one of its nodes; None if there are none."""
    chunks = _chunks_by_node(transaction, run_id, since, until).get(node)
    if not chunks:
        return None
    interval = (since, until)
    return read_series(transaction, node, chunks, _SQL["chunk_data"], metrics, interval)


def read_series(
    transaction: Transaction,
    node: str,
    chunks: Sequence[tuple[int, int]],
    statement: str,
    metrics: Sequence[str],
    interval: tuple[int, int],
) -> StoredSeries:
    """Join chunks, given by id and size, that a statement of their own reads."""
    from jobsight.store.series.blocks import between, join

    def read(reservation: Reservation) -> StoredSeries:
        wanted = frozenset(metrics)
        blocks = _read_blocks(transaction, chunks, wanted, reservation, statement)
        series = StoredSeries(node, *between(join(blocks), *interval))
        reservation.keep(series, sum(map(_count_values, blocks)))
        return series

    return read_budget.read(read, MAX_READ_VALUES)


#: The id and the size of a chunk.
_Chunk: TypeAlias = tuple[int, int]


def _chunks_by_node(
    transaction: Transaction, run_id: int, since: int | None = None, until: int | None = None
) -> dict[str, list[_Chunk]]:
    parameters = {
        "run_id": run_id,
        "since": _EVER[0] if since is None else since,
        "until": _EVER[1] if until is None else until,
    }
    chunks: dict[str, list[_Chunk]] = {}
    for node, chunk_id, size in transaction.execute(_SQL["chunks_of_run"], parameters).fetchall():
        chunks.setdefault(node, []).append((chunk_id, size))
    return chunks


def _read_blocks(
    transaction: Transaction,
    chunks: Sequence[_Chunk],
    wanted: frozenset[str] | None,
    reservation: Reservation,
    statement: str = _SQL["chunk_data"],
) -> list[SeriesBlock]:
    from jobsight.store.series import codec
    from jobsight.store.series.blocks import SeriesBlock

    blocks: list[SeriesBlock] = []
    # Chunks that arrived one after the other mostly have the same columns: decode them together.
    for times, columns in codec.decode_many(_read_chunks(transaction, chunks, statement), wanted):
        block = SeriesBlock(times, columns)
        if not reservation.add(_count_values(block)):
            raise TooLarge("name fewer metrics or a shorter interval")
        blocks.append(block)
    return blocks


def _count_values(series: SeriesBlock | StoredSeries) -> int:
    return len(series.times) * (1 + len(series.columns))


def _read_chunks(
    transaction: Transaction,
    chunks: Sequence[tuple[int, int]],
    statement: str = _SQL["chunk_data"],
) -> Iterator[bytes]:
    """The data of chunks by their ids and sizes, with few of them in memory."""
    waiting: list[tuple[int]] = []
    size = 0
    for index, (chunk_id, bytes_of_chunk) in enumerate(chunks):
        waiting.append((chunk_id,))
        size += bytes_of_chunk
        if size >= _MAX_READ_SIZE or index == len(chunks) - 1:
            for (data,) in transaction.look_up(statement, waiting):
                yield data
            waiting, size = [], 0


def list_summaries(transaction: Transaction, run_id: int) -> list[MetricSummary]:
    """Minimum, mean, maximum and last value of every metric by node."""
    from jobsight.store.series import codec
    from jobsight.store.series.blocks import Summary, combine, join_in_groups, summarise

    decode = msgspec.msgpack.Decoder(dict[str, Summary]).decode
    summaries: dict[tuple[str, str], list[Summary]] = {}
    without_summary: dict[str, list[tuple[int, int]]] = {}
    chunks = transaction.execute(_SQL["summaries_of_run"], {"run_id": run_id}).fetchall()
    for node, chunk_id, size, packed in chunks:
        if packed is None:
            without_summary.setdefault(node, []).append((chunk_id, size))
            continue
        for metric, summary in decode(codec.decompress(packed)).items():
            summaries.setdefault((node, metric), []).append(summary)

    def read_arrived(reservation: Reservation) -> dict[tuple[str, str], list[Summary]]:
        found: dict[tuple[str, str], list[Summary]] = {}
        reservation.add(min(_SUMMARISED_VALUES, MAX_READ_VALUES))
        for node, arrived in without_summary.items():
            values = 0
            for block in join_in_groups(_read_chunks(transaction, arrived), _MAX_JOINED_VALUES):
                values += _count_values(block)
                if values > MAX_READ_VALUES:
                    raise TooLarge("they are summarised when the run has ended")
                for metric, summary in summarise(block).items():
                    found.setdefault((node, metric), []).append(summary)
        return found

    # Parts that have just arrived are few: they are summarised here, not with every batch.
    if without_summary:
        for key, some in read_budget.read(read_arrived, MAX_READ_VALUES).items():
            summaries.setdefault(key, []).extend(some)
    return [
        MetricSummary(node, metric, *combine(summaries[node, metric]))
        for node, metric in sorted(summaries)
    ]


class TooLarge(StoreError):
    """A query would decode more values than fit into the memory of a server."""

    def __init__(self, advice: str) -> None:
        super().__init__(
            f"the time series of the run have more than {MAX_READ_VALUES:,} values; {advice}"
        )


class RunNotFound(StoreError):
    """The store holds no such run."""

    def __init__(self, reference: str, where: str) -> None:
        #: Without the location of the store.
        self.sentence = f"no run of job {reference} is in the store"
        super().__init__(f"{self.sentence} {where}")


class NodesSummary(NamedTuple):
    """What the nodes of a run report about it, independent of the scheduler."""

    #: The agent of every node has reported the end of the job.
    ended: bool = False
    #: The time of the newest totals.
    counted: int | None = None
    #: The sum of the cgroups' limits; None unless every node has one.
    memory_limit: int | None = None


class StoredRun(msgspec.Struct, kw_only=True):
    """A run with the figures a list shows, summed over its nodes."""

    id: int
    info: JobInfo
    #: No record of the scheduler has confirmed it yet; ``start`` is the creation time
    #: on the node.
    provisional: bool
    cpu_time: int | None
    memory_used_peak: int | None
    memory_peak: int | None
    #: Nodes that the scheduler named, or that reported if those are more.
    node_count: int
    first_seen: int | None
    last_seen: int | None
    #: The key's start; ``info.start`` is None until the scheduler has given one.
    start: int
    #: Sightings without a final report; None before the first sighting.
    open_nodes: int | None = None
    gpus: GpuSums = GpuSums()
    #: Read only where ``info`` lacks the end or the memory.
    on_nodes: NodesSummary = NodesSummary()
    #: Of the column that the list is sorted by.
    sort_value: str | int | float | None = None
    #: The chain of dependent jobs that it belongs to.
    chain_job_id: int | None = None

    @property
    def position(self) -> Position:
        """Its place in the list that it was read with."""
        return Position(self.start, self.id, self.sort_value)

    @property
    def run(self) -> Run:
        return Run(self.info.cluster, self.info.job_id, self.start)


class StoredNode(msgspec.Struct, kw_only=True):
    """A run on one node: one sighting, with the newest figures."""

    id: int
    sighting: Sighting
    epoch: str
    totals: JobTotals | None
    #: By group of figures: "cpu", "memory", "io", "executables".
    coverage: dict[str, Coverage]
    first_sample: int | None
    last_sample: int | None
    final: bool
    #: How far the node's clock is ahead of the server's; None where no agent reported itself.
    clock_skew: int | None

    @property
    def node(self) -> str:
        return self.sighting.node


class StoredExecutable(msgspec.Struct):
    """An executable of a run on one node, summed over the agent epochs."""

    node: str
    use: ExecutableUse


class StoredGpu(msgspec.Struct):
    """A GPU of a run on one node, summed over the agent epochs."""

    node: str
    use: GpuUse


class StoredStep(msgspec.Struct):
    """A step of a run on one node."""

    node: str
    use: StepUse


class StoredSeries(msgspec.Struct, weakref=True):
    """The time series of a run on one node, by time."""

    node: str
    times: Integers
    columns: dict[str, Values]


class MetricSummary(NamedTuple):
    """A time series in four numbers. The mean is weighted by time: sampling is not regular."""

    node: str
    metric: str
    minimum: float
    mean: float
    maximum: float
    last: float


class StoreInfo(msgspec.Struct, kw_only=True):
    """How much a store holds."""

    location: str
    engine: str
    version: str
    runs: int
    nodes: int
    chunks: int
    rows: int
    executables: int
    steps: int
    gpus: int
    paths: int
    agents: int
    #: Bytes of the compressed series, and of the whole database.
    series_size: int
    size: int | None
    oldest: int | None
    newest: int | None
