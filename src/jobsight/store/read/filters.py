"""What a list of runs is filtered and sorted by: :class:`Filters` and :data:`SORTS`.

:func:`run_filter` turns the filters into conditions on ``runs``. :mod:`.queries` decides which of
them an index is read by, and which are compared with the rows that it finds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypedDict, Unpack

from jobsight.store.read import pseudonyms
from jobsight.store.read.search import Search, parse_search
from jobsight.store.read.state import ACTIVE
from jobsight.store.read.visibility import EVERYTHING, Visibility
from jobsight.store.schema.statements import quoted

#: In place of the kind of a finding.
ANY_FINDING: Final = "any"


class SortKey(NamedTuple):
    """A column that lists are sorted by; an index has it, the start and the id."""

    column: str
    kind: type
    #: The same of a run that has not ended; lists of running runs only are sorted by it.
    running: str = ""
    #: Whether the column can be unknown. Such runs are last, whatever the direction is.
    optional: bool = True


_RUNNING_TIME: Final = "(CAST(last_seen AS DOUBLE PRECISION) - start)"
_RUNNING_MEMORY: Final = "coalesce(memory_used_peak, memory_peak)"

#: What lists can be sorted by.
SORTS: Final[Mapping[str, SortKey]] = {
    "start": SortKey("start", int, optional=False),
    "job_id": SortKey("job_id", int, optional=False),
    "name": SortKey("name", str),
    "user": SortKey("user", str),
    "account": SortKey("account", str),
    "cluster": SortKey("cluster", str, optional=False),
    "partition": SortKey("partition", str),
    "qos": SortKey("qos", str),
    "state": SortKey("shown_state", str, optional=False),
    "end": SortKey("end", int),
    # The longest of those that run has the earliest start.
    "elapsed": SortKey("elapsed", int, "(0 - start)"),
    "cpus": SortKey("cpus", int),
    "cpu_time": SortKey("ended_cpu_time", int, "cpu_time"),
    "cpu_share": SortKey(
        "cpu_share",
        float,
        f"(CASE WHEN last_seen > start AND cpus > 0 THEN cpu_time / ({_RUNNING_TIME} * cpus) END)",
    ),
    "memory_peak": SortKey("ended_memory_peak", int, _RUNNING_MEMORY),
    "memory_share": SortKey(
        "memory_share",
        float,
        f"(CASE WHEN memory > 0 THEN CAST({_RUNNING_MEMORY} AS DOUBLE PRECISION) / memory END)",
    ),
    "gpus": SortKey("held_gpus", int),
    "gpu_share": SortKey(
        "gpu_share",
        float,
        "(CASE WHEN gpu_measured_time > 0 "
        "THEN CAST(gpu_used_time AS DOUBLE PRECISION) / gpu_measured_time END)",
    ),
}


class Sort(NamedTuple):
    """The order of a list: by one of :data:`SORTS`, then by start and id."""

    key: str = "start"
    descending: bool = True

    @classmethod
    def parse(cls, text: str) -> Sort:
        """The order that ``-cpu_share`` (descending) or ``user`` names, or :class:`ValueError`."""
        key = text.removeprefix("-")
        if key not in SORTS:
            known = ", ".join(SORTS)
            raise ValueError(f"{key[:40]!r} is no column to sort by; expected one of {known}")
        return cls(key, text.startswith("-"))

    def __str__(self) -> str:
        return f"-{self.key}" if self.descending else self.key

    @property
    def shown(self) -> Sort:
        """The order that a list has. One by names would tell, in pages and in cursors, whose
        pseudonyms are shown."""
        naming = self.key in ("user", "account", "name")
        return LATEST if naming and pseudonyms.is_active() else self


#: The latest start first.
LATEST: Final = Sort()


class Position(NamedTuple):
    """A place in a list: that of the run with this start and id.

    ``value`` is that of the column of the sort; None in a list by start, and of a run without one.
    """

    start: int
    id: int
    value: str | int | float | None = None

    def check(self, sort: Sort) -> None:
        """Refuse the position of a list with another order: :class:`ValueError`."""
        key = SORTS[sort.key]
        has_value = sort.key != "start"
        value = self.value
        if value is None and (not has_value or key.optional or key.running):
            return
        numbers = (int, float)
        if not has_value or not isinstance(value, str if key.kind is str else numbers):
            raise ValueError("the cursor belongs to a list with another order")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError("the cursor has a number that no run has")


class Equal(NamedTuple):
    """A column that must be equal to a parameter. An index has it, the start and the id."""

    column: str
    parameter: str

    @property
    def condition(self) -> str:
        return f"{quoted(self.column)} = :{self.parameter}"

    @property
    def ids(self) -> str:
        return f"SELECT id FROM runs WHERE {self.condition}"


class IdSet(NamedTuple):
    """Runs that an index names without their order: a query of their ids, and the same as a
    condition on ``runs``."""

    #: Returns the ids; the caller limits them.
    ids: str
    condition: str


class RunFilter(NamedTuple):
    """Conditions on ``runs`` that all must hold, with their parameters."""

    conditions: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = {}
    search: Search | None = None
    #: Those that usually find the fewest runs first.
    equal: tuple[Equal, ...] = ()
    sets: tuple[IdSet, ...] = ()
    #: Conditions on the start, which are a part of the index of a list by start.
    interval: tuple[str, ...] = ()

    def where(self) -> str:
        """All conditions but the search."""
        return " AND ".join((*self.interval, *self.others())) or "true"

    def others(self, but: Equal | IdSet | None = None) -> list[str]:
        """The conditions without those on the start and without one."""
        indexed = [each.condition for each in self.indexed if each is not but]
        return [*indexed, *self.conditions]

    @property
    def indexed(self) -> tuple[Equal | IdSet, ...]:
        return (*self.equal, *self.sets)

    def has_column(self, column: str) -> bool:
        """Whether a column must be equal to a value."""
        return any(each.column == column for each in self.equal)

    @property
    def has_only_running(self) -> bool:
        return any(
            each.column == "shown_state" and self.parameters[each.parameter] in ACTIVE
            for each in self.equal
        )


class Filters(TypedDict, total=False):
    """What people filter a list of runs by; all that is given must hold."""

    user: str | None
    account: str | None
    #: The state that is shown, which runs without a record of the scheduler have as well.
    state: str | None
    search: str | None
    #: Runs started at that time or later.
    since: int | None
    #: Runs started before that time.
    until: int | None
    #: Runs that held a GPU which they never used.
    unused_gpus: bool
    #: Runs that held or requested a GPU.
    gpus: bool
    #: Runs with a finding of that kind, or of any kind.
    finding: str | None
    cluster: str | None
    partition: str | None
    qos: str | None
    name: str | None
    #: Runs that a node has reported.
    node: str | None
    #: Runs that used software of that name.
    software: str | None
    #: The part of the time of the requested CPUs that was used, of runs that have ended.
    cpu_share_below: float | None
    cpu_share_above: float | None
    #: Runs of jobs with a property of this name, and with a value if one follows.
    property: tuple[str, str | None] | None
    #: Runs of a chain of dependent jobs, of an array, or of a heterogeneous job.
    chain_job_id: int | None
    array_job_id: int | None
    het_job_id: int | None
    #: Judged runs of these works.
    work_ids: Sequence[int] | None
    #: What the viewer may see; everything if it is not given.
    visibility: Visibility


#: The filters that compare a column for equality, those that usually find the fewest runs first.
_EQUAL: Final = {
    "chain_job_id": "chain_job_id",
    "array_job_id": "array_job_id",
    "het_job_id": "het_job_id",
    "user": "user",
    "account": "account",
    "name": "name",
    "qos": "qos",
    "partition": "partition",
    "state": "shown_state",
    "cluster": "cluster",
}
#: The index of these has the start and the id.
UNUSED_GPUS: Final = IdSet("SELECT id FROM runs WHERE gpu_unused_count > 0", "gpu_unused_count > 0")
_COMPARED: Final = {
    "cpu_share_below": "cpu_share < :cpu_share_below",
    "cpu_share_above": "cpu_share >= :cpu_share_above",
}
_FINDINGS: Final = "FROM findings WHERE {} AND state IN ('open', 'acknowledged')"
_NODE: Final = "FROM run_nodes WHERE node = :node"
#: CROSS JOIN fixes the order of the joins in SQLite.
_SOFTWARE: Final = (
    "SELECT run_nodes.run_id FROM software CROSS JOIN paths CROSS JOIN executables "
    "CROSS JOIN run_nodes WHERE software.name = :software AND paths.software_id = software.id "
    "AND executables.path_id = paths.id AND run_nodes.id = executables.run_node_id"
)
_PROPERTIES: Final = (
    "FROM :from WHERE job_properties.name = :property "
    "AND job_properties.cluster = runs.cluster AND job_properties.job_id = runs.job_id "
    'AND job_properties."user" = runs."user"'
)
#: A query for each run: of EXISTS, PostgreSQL makes a join with all executables.
_USES_SOFTWARE: Final = (
    "(SELECT 1 FROM run_nodes CROSS JOIN executables CROSS JOIN paths CROSS JOIN software "
    "WHERE run_nodes.run_id = runs.id AND executables.run_node_id = run_nodes.id "
    "AND paths.id = executables.path_id AND software.id = paths.software_id "
    "AND software.name = :software LIMIT 1) IS NOT NULL"
)


#: Filters that compare what pseudonyms stand for.
_NAMING: Final = ("user", "account", "name", "search", "property")


def run_filter(**filters: Unpack[Filters]) -> RunFilter:
    """The filter of a list of runs."""
    parameters: dict[str, Any] = {}
    equal = []
    for name, column in _EQUAL.items():
        if (value := filters.get(name)) is not None:
            equal.append(Equal(column, name))
            parameters[name] = value
    interval = []
    for name, condition in (("since", "start >= :since"), ("until", "start < :until")):
        if (value := filters.get(name)) is not None:
            interval.append(condition)
            parameters[name] = value
    conditions = []
    for name, condition in _COMPARED.items():
        if (value := filters.get(name)) is not None:
            conditions.append(condition)
            parameters[name] = value
    if pseudonyms.is_active() and any(filters.get(name) for name in _NAMING):
        # Whoever sees pseudonyms would find out whose they are.
        conditions.append("false")
    if filters.get("gpus"):
        conditions.append("held_gpus IS NOT NULL")
    sets = _sets(filters, parameters)
    visibility = filters.get("visibility", EVERYTHING)
    if not visibility.everything:
        alternatives, values = visibility.alternatives()
        parameters |= values
        if len(alternatives) == 1 and [*values] == ["seen_user0_0"]:
            equal.insert(0, Equal("user", "seen_user0_0"))
        else:
            ids = (f"SELECT id FROM runs WHERE {each}" for each in alternatives or ["false"])
            sets.append(IdSet(" UNION ALL ".join(ids), visibility.condition()[0]))
    search = filters.get("search")
    return RunFilter(
        tuple(conditions),
        parameters,
        parse_search(search) if search else None,
        tuple(equal),
        tuple(sets),
        tuple(interval),
    )


def _sets(filters: Filters, parameters: dict[str, Any]) -> list[IdSet]:
    sets = []
    if filters.get("unused_gpus"):
        sets.append(UNUSED_GPUS)
    if (finding := filters.get("finding")) is not None:
        # A list marks the findings for users; those for staff are found by their kind.
        which = "audience = 'user'" if finding == ANY_FINDING else "kind = :finding"
        found = _FINDINGS.format(which)
        sets.append(
            IdSet(
                f"SELECT run_id {found}",
                f"(SELECT 1 {found} AND findings.run_id = runs.id LIMIT 1) IS NOT NULL",
            )
        )
        if finding != ANY_FINDING:
            parameters["finding"] = finding
    if (work_ids := filters.get("work_ids")) is not None:
        among = ", ".join(str(int(work_id)) for work_id in work_ids) or "NULL"
        found = f"FROM run_figures WHERE work_id IN ({among})"
        condition = f"(SELECT 1 {found} AND run_figures.run_id = runs.id LIMIT 1) IS NOT NULL"
        sets.append(IdSet(f"SELECT run_id {found}", condition))
    if (node := filters.get("node")) is not None:
        condition = f"(SELECT 1 {_NODE} AND run_nodes.run_id = runs.id LIMIT 1) IS NOT NULL"
        sets.append(IdSet(f"SELECT run_id {_NODE}", condition))
        parameters["node"] = node
    if (wanted := filters.get("property")) is not None:
        parameters["property"], value = wanted
        has_value = ""
        if value is not None:
            # A text, or any other JSON value as it is written.
            parameters |= {"property_text": json.dumps(value, ensure_ascii=False)}
            parameters |= {"property_value": value}
            has_value = " AND value IN (:property_text, :property_value)"
        found = _PROPERTIES + has_value
        sets.append(
            IdSet(
                f"SELECT runs.id {found.replace(':from', 'job_properties CROSS JOIN runs')}",
                f"EXISTS (SELECT 1 {found.replace(':from', 'job_properties')})",
            )
        )
    if (software := filters.get("software")) is not None:
        # The names of what users have installed are parts of their paths.
        named = "software.name = :software"
        shown = f"{named} AND NOT software.user_provided" if pseudonyms.is_active() else named
        sets.append(IdSet(_SOFTWARE.replace(named, shown), _USES_SOFTWARE.replace(named, shown)))
        parameters["software"] = software
    return sets
