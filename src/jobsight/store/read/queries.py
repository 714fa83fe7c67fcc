"""The read side: what pages, reports and the API ask of a store.

What the store gives back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, String, cast, func, or_, select

from jobsight.errors import StoreError
from jobsight.model import (
    SECOND,
    Coverage,
    ExecutableUse,
    JobInfo,
    JobTotals,
    Run,
    RunReference,
    Sighting,
    StepUse,
    format_start,
)
from jobsight.store.schema.statements import INFO_NAMES
from jobsight.store.schema.tables import (
    SUMMED_FIGURES,
    agents,
    chunks,
    executables,
    paths,
    run_nodes,
    runs,
    steps,
)
from jobsight.store.series import codec
from jobsight.store.series.codec import decompress
from jobsight.store.series.curves import SeriesBlock, Summary, between, combine, join, summarise
from jobsight.store.series.packing import Integers, Values
from jobsight.store.write.runs import HIGHEST, info_from_columns, total

_decode_totals = msgspec.msgpack.Decoder(JobTotals).decode
_decode_coverage = msgspec.msgpack.Decoder(dict[str, Coverage]).decode
_decode_summary = msgspec.msgpack.Decoder(dict[str, Summary]).decode


def list_runs(
    connection: Connection, filters: list[ColumnElement[bool]], limit: int, offset: int = 0
) -> list[StoredRun]:
    """Runs that pass all filters, the latest start first."""
    query = select(runs).where(*filters).order_by(runs.c.start.desc(), runs.c.id.desc())
    return _stored_runs(connection, query.limit(limit).offset(offset))


def count_runs(connection: Connection, filters: list[ColumnElement[bool]]) -> int:
    """How many runs pass all filters."""
    return connection.scalar(select(func.count()).select_from(runs).where(*filters)) or 0


def run_filters(
    *,
    user: str | None = None,
    account: str | None = None,
    state: str | None = None,
    search: str | None = None,
    since: int | None = None,
) -> list[ColumnElement[bool]]:
    """The conditions of a list of runs; ``since`` keeps the runs started then or later."""
    filters: list[ColumnElement[bool]] = []
    for column, value in ((runs.c.user, user), (runs.c.account, account), (runs.c.state, state)):
        if value is not None:
            filters.append(column == value)
    if since is not None:
        filters.append(runs.c.start >= since)
    if search:
        texts = (runs.c.name, runs.c.user, runs.c.account, runs.c.partition, runs.c.command)
        found = [column.icontains(search, autoescape=True) for column in texts]
        found.append(cast(runs.c.job_id, String).startswith(search, autoescape=True))
        filters.append(or_(*found))
    return filters


def find_run(connection: Connection, reference: RunReference, where: str) -> StoredRun:
    """The run that a person means, or :class:`RunNotFound`."""
    for condition in _meanings(reference):
        filters = [condition]
        if reference.cluster is not None:
            filters.append(runs.c.cluster == reference.cluster)
        if reference.start is not None:
            second = reference.start // SECOND * SECOND
            filters.append(runs.c.start.between(second, second + SECOND - 1))
        found = list_runs(connection, filters, 1)
        if found:
            return found[0]
    raise RunNotFound(_written(reference), where)


def _meanings(reference: RunReference) -> Iterator[ColumnElement[bool]]:
    job_id = reference.job_id
    if reference.array_task_id is not None:
        yield (runs.c.array_job_id == job_id) & (runs.c.array_task_id == reference.array_task_id)
    elif reference.het_offset is not None:
        yield (runs.c.het_job_id == job_id) & (runs.c.het_offset == reference.het_offset)
    else:
        yield runs.c.job_id == job_id
        # The id of a whole array or heterogeneous job, where no run has it as its own.
        yield or_(runs.c.array_job_id == job_id, runs.c.het_job_id == job_id)


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


def _stored_runs(connection: Connection, query: Select[Any]) -> list[StoredRun]:
    found = connection.execute(query).mappings().all()
    seen: dict[int, list[str]] = {row["id"]: [] for row in found}
    names = select(run_nodes.c.run_id, run_nodes.c.node).where(run_nodes.c.run_id.in_(seen))
    for run_id, node in connection.execute(names.order_by(run_nodes.c.node)) if seen else ():
        seen[run_id].append(node)
    # The scheduler's end and memory take precedence, so most runs need nothing from their nodes.
    on_nodes = _summaries_of_nodes(
        connection, [row["id"] for row in found if row["end"] is None or row["memory"] is None]
    )
    result = []
    for row in found:
        start = None if row["provisional"] else row["start"]
        columns = {name: row[name] for name in INFO_NAMES}
        info = info_from_columns(row["cluster"], row["job_id"], start, columns)
        result.append(
            StoredRun(
                id=row["id"],
                info=info,
                provisional=row["provisional"],
                cpu_time=row["cpu_time"],
                memory_used_peak=row["memory_used_peak"],
                memory_peak=row["memory_peak"],
                nodes=list(dict.fromkeys([*(info.nodes or ()), *seen[row["id"]]])),
                first_seen=row["first_seen"],
                last_seen=row["last_seen"],
                start=row["start"],
                on_nodes=on_nodes.get(row["id"], NodesSummary()),
            )
        )
    return result


def _summaries_of_nodes(connection: Connection, ids: Sequence[int]) -> dict[int, NodesSummary]:
    if not ids:
        return {}
    columns = (run_nodes.c.run_id, run_nodes.c.final, run_nodes.c.totals)
    nodes: dict[int, list[tuple[bool, JobTotals | None]]] = {}
    for run_id, final, totals in connection.execute(
        select(*columns).where(run_nodes.c.run_id.in_(ids))
    ):
        decoded = None if totals is None else _decode_totals(totals)
        nodes.setdefault(run_id, []).append((final, decoded))
    return {run_id: summarize_nodes(rows) for run_id, rows in nodes.items()}


def summarize_nodes(nodes: Sequence[tuple[bool, JobTotals | None]]) -> NodesSummary:
    """Combine what the nodes of a run report: whether each is final, and its totals."""
    limits = [totals.memory_limit if totals else None for _, totals in nodes]
    return NodesSummary(
        ended=bool(nodes) and all(final for final, _ in nodes),
        counted=max((totals.time for _, totals in nodes if totals), default=None),
        # The limits of some nodes are no limit for the memory of all.
        memory_limit=None if None in limits else total(limits),
    )


def list_nodes(connection: Connection, run_id: int) -> list[StoredNode]:
    """The sightings of a run, by node and birth."""
    same_node = (agents.c.cluster == run_nodes.c.cluster) & (agents.c.node == run_nodes.c.node)
    query = (
        select(run_nodes, agents.c.clock_skew)
        .join(agents, same_node, isouter=True)
        .where(run_nodes.c.run_id == run_id)
        .order_by(run_nodes.c.node, run_nodes.c.birth)
    )
    return [
        StoredNode(
            id=row["id"],
            sighting=Sighting(**{name: row[name] for name in Sighting.__struct_fields__}),
            epoch=row["epoch"],
            totals=None if row["totals"] is None else _decode_totals(row["totals"]),
            coverage={} if row["coverage"] is None else _decode_coverage(row["coverage"]),
            first_sample=row["first_sample"],
            last_sample=row["last_sample"],
            final=row["final"],
            clock_skew=row["clock_skew"],
        )
        for row in connection.execute(query).mappings()
    ]


def list_executables(connection: Connection, run_id: int) -> list[StoredExecutable]:
    """The executables of a run by node, each summed over the agent's epochs, most CPU first."""
    query = (
        select(run_nodes.c.node, paths.c.path, executables)
        .join(run_nodes, run_nodes.c.id == executables.c.run_node_id)
        .join(paths, paths.c.id == executables.c.path_id)
        .where(run_nodes.c.run_id == run_id)
    )
    return sum_executables(connection.execute(query).mappings())


def sum_executables(rows: Iterable[Mapping[Any, Any]]) -> list[StoredExecutable]:
    """Rows of ``executables`` with node and path, of one run."""
    found: dict[tuple[str, bytes, bool], ExecutableUse] = {}
    for row in rows:
        path, known = bytes(row["path"]), bool(row["path_known"])
        figures = {
            name: row[name] for name in (*SUMMED_FIGURES, "peak_memory", "first_seen", "last_seen")
        }
        use = ExecutableUse(path=path, path_known=known, **figures)
        key = (row["node"], path, known)
        found[key] = _add(found[key], use) if key in found else use
    order = sorted(found, key=lambda key: (key[0], -found[key].cpu_time, key[1]))
    return [StoredExecutable(key[0], found[key]) for key in order]


def _add(one: ExecutableUse, other: ExecutableUse) -> ExecutableUse:
    sums = {
        name: min(getattr(one, name) + getattr(other, name), HIGHEST) for name in SUMMED_FIGURES
    }
    return msgspec.structs.replace(
        one,
        **sums,
        peak_memory=max(one.peak_memory, other.peak_memory),
        # Zero stands for a time that the agent did not know.
        first_seen=min(one.first_seen or other.first_seen, other.first_seen or one.first_seen),
        last_seen=max(one.last_seen, other.last_seen),
    )


def list_steps(connection: Connection, run_id: int) -> list[StoredStep]:
    """The steps of a run by node, each summed over the node's sightings."""
    query = (
        select(run_nodes.c.node, steps)
        .join(run_nodes, run_nodes.c.id == steps.c.run_node_id)
        .where(run_nodes.c.run_id == run_id)
        .order_by(run_nodes.c.node, steps.c.first_seen, steps.c.step, run_nodes.c.birth)
    )
    return sum_steps(connection.execute(query).mappings())


def sum_steps(rows: Iterable[Mapping[Any, Any]]) -> list[StoredStep]:
    """Rows of ``steps`` with their node, of one run, in the order in which they are shown."""
    found: dict[tuple[str, str], StepUse] = {}
    for row in rows:
        use = StepUse(**{name: row[name] for name in StepUse.__struct_fields__})
        key = (row["node"], use.step)
        found[key] = _add_step(found[key], use) if key in found else use
    return [StoredStep(node, use) for (node, _), use in found.items()]


def _add_step(one: StepUse, other: StepUse) -> StepUse:
    # A cgroup that was made anew counts from nothing: times add up, peaks do not.
    peaks = [use.memory_peak for use in (one, other) if use.memory_peak is not None]
    return StepUse(
        step=one.step,
        tasks=max(one.tasks, other.tasks),
        cpu_time=total([one.cpu_time, other.cpu_time]),
        cpu_overhead=total([one.cpu_overhead, other.cpu_overhead]),
        memory_peak=max(peaks, default=None),
        oom_kills=total([one.oom_kills, other.oom_kills]),
        first_seen=min(one.first_seen or other.first_seen, other.first_seen or one.first_seen),
        last_seen=max(one.last_seen, other.last_seen),
        ended=max(one, other, key=lambda use: use.last_seen).ended,
    )


def list_series(
    connection: Connection,
    run_id: int,
    metrics: Sequence[str] | None,
    since: int | None,
    until: int | None,
) -> list[StoredSeries]:
    """The curves of a run, one entry per node."""
    query = (
        select(run_nodes.c.node, chunks.c.data)
        .join(run_nodes, run_nodes.c.id == chunks.c.run_node_id)
        .where(run_nodes.c.run_id == run_id)
        .order_by(run_nodes.c.node, chunks.c.id)
    )
    if since is not None:
        query = query.where(chunks.c.last >= since)
    if until is not None:
        query = query.where(chunks.c.first <= until)
    wanted = None if metrics is None else frozenset(metrics)
    parts: dict[str, list[SeriesBlock]] = {}
    for node, data in connection.execute(query):
        parts.setdefault(node, []).append(SeriesBlock(*codec.decode(data, wanted)))
    return [
        StoredSeries(node, *between(join(pieces), since, until)) for node, pieces in parts.items()
    ]


def list_summaries(connection: Connection, run_id: int) -> list[MetricSummary]:
    """Minimum, mean, maximum and last of every metric by node."""
    query = (
        select(run_nodes.c.node, chunks.c.id, chunks.c.summary)
        .join(run_nodes, run_nodes.c.id == chunks.c.run_node_id)
        .where(run_nodes.c.run_id == run_id)
        .order_by(run_nodes.c.node, chunks.c.id)
    )
    by_curve: dict[tuple[str, str], list[Summary]] = {}
    waiting: dict[str, list[int]] = {}
    for node, chunk_id, packed in connection.execute(query):
        if packed is None:
            waiting.setdefault(node, []).append(chunk_id)
            continue
        for metric, summary in _decode_summary(decompress(packed)).items():
            by_curve.setdefault((node, metric), []).append(summary)
    # Parts that have just arrived are few: they are summed up now, not with every batch.
    for node, ids in waiting.items():
        data = connection.scalars(select(chunks.c.data).where(chunks.c.id.in_(ids)))
        curves = join([SeriesBlock(*codec.decode(piece)) for piece in data])
        for metric, summary in summarise(curves).items():
            by_curve.setdefault((node, metric), []).append(summary)
    return [
        MetricSummary(node, metric, *combine(by_curve[node, metric]))
        for node, metric in sorted(by_curve)
    ]


class RunNotFound(StoreError):
    """The store holds no such run."""

    def __init__(self, reference: str, where: str) -> None:
        #: Without the place of the store.
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
    #: No record of the scheduler has confirmed it yet; ``start`` is the birth on the node.
    provisional: bool
    cpu_time: int | None
    memory_used_peak: int | None
    memory_peak: int | None
    #: As the scheduler gave them, then those that reported without being named.
    nodes: list[str]
    first_seen: int | None
    last_seen: int | None
    #: The key's start; ``info.start`` is None until the scheduler has given one.
    start: int
    #: Read only where ``info`` lacks the end or the memory.
    on_nodes: NodesSummary = NodesSummary()

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
    """An executable of a run on one node, summed over the lives of the agent."""

    node: str
    use: ExecutableUse


class StoredStep(msgspec.Struct):
    """A step of a run on one node."""

    node: str
    use: StepUse


class StoredSeries(msgspec.Struct):
    """The curves of a run on one node, in the order of time."""

    node: str
    times: Integers
    columns: dict[str, Values]


class MetricSummary(NamedTuple):
    """A curve in four numbers. The mean is by time, not by sample: sampling is not regular."""

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
    paths: int
    agents: int
    #: Bytes of the compressed series, and of the whole database.
    series_size: int
    size: int | None
    oldest: int | None
    newest: int | None
