"""The queries of reports, pages and the API, and the records that they return.

A query takes the :class:`Transaction` of :meth:`Database.query`. SQLAlchemy is not imported, and
numpy only by the queries for time series: ``jobsight report`` would otherwise spend most of its
time on imports. Read ``list_runs`` and ``find_run`` first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

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
from jobsight.store.schema.statements import INFO_NAMES, SUMMED_FIGURES, quoted
from jobsight.store.sql.load import load_statements
from jobsight.store.transaction import Transaction
from jobsight.store.write.runs import HIGHEST, info_from_columns, total

if TYPE_CHECKING:
    from jobsight.store.series.packing import Integers, Values

_SQL: Final = load_statements("read")
#: Before and after every time that can be stored.
_EVER: Final = (-(2**63), 2**63 - 1)

_decode_totals = msgspec.msgpack.Decoder(JobTotals).decode
_decode_coverage = msgspec.msgpack.Decoder(dict[str, Coverage]).decode


#: An array task or a component of a heterogeneous job as Slurm shows it: 62_3, 88+1.
_SHOWN_ID: Final = re.compile(r"(\d{1,18})([_+])(\d{1,9})", re.ASCII)
_ID_COLUMNS: Final = {"_": ("array_job_id", "array_task_id"), "+": ("het_job_id", "het_offset")}
#: Runs without a state of the scheduler by the state that ``decide_state`` of the reports shows.
_ENDED_ON_NODES: Final = (
    "(EXISTS (SELECT 1 FROM run_nodes WHERE run_id = runs.id)"
    " AND NOT EXISTS (SELECT 1 FROM run_nodes WHERE run_id = runs.id AND NOT final))"
)
_UNRECORDED: Final = {
    "RUNNING": f'(state IS NULL AND "end" IS NULL AND NOT {_ENDED_ON_NODES})',
    "UNKNOWN": f'(state IS NULL AND ("end" IS NOT NULL OR {_ENDED_ON_NODES}))',
}


class RunFilter(NamedTuple):
    """Conditions on ``runs`` that all must hold, with their parameters."""

    conditions: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = {}

    def where(self) -> str:
        return " AND ".join(self.conditions) or "true"


def run_filter(
    *,
    user: str | None = None,
    account: str | None = None,
    state: str | None = None,
    search: str | None = None,
    since: int | None = None,
) -> RunFilter:
    """The filter of a list of runs; ``since`` keeps the runs started at that time or later.

    ``state`` is the state that is shown, which runs without a record of the scheduler have as well.
    """
    given = {"user": user, "account": account, "state": state}
    parameters: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    conditions = [f"{quoted(name)} = :{name}" for name in parameters if name != "state"]
    if state is not None:
        unrecorded = _UNRECORDED.get(state)
        conditions.append(f"(state = :state OR {unrecorded})" if unrecorded else "state = :state")
    if since is not None:
        conditions.append("start >= :since")
        parameters["since"] = since
    if search:
        escaped = "".join(f"/{char}" if char in "%_/" else char for char in search)
        parameters |= {"anywhere": f"%{escaped}%", "prefix": f"{escaped}%"}
        texts = ("name", "user", "account", "partition", "command")
        matches = [f"lower({quoted(name)}) LIKE lower(:anywhere) ESCAPE '/'" for name in texts]
        matches.append("CAST(job_id AS VARCHAR) LIKE :prefix ESCAPE '/'")
        shown = _SHOWN_ID.fullmatch(search.strip())
        if shown:
            parameters |= {"shown_job": int(shown[1]), "shown_part": int(shown[3])}
            job, part = _ID_COLUMNS[shown[2]]
            matches.append(f"({job} = :shown_job AND {part} = :shown_part)")
        conditions.append(f"({' OR '.join(matches)})")
    return RunFilter(tuple(conditions), parameters)


def list_runs(
    transaction: Transaction, filter: RunFilter, limit: int, offset: int = 0
) -> list[StoredRun]:
    """Runs that pass the filter, the latest start first."""
    rows = transaction.mappings(
        f"SELECT * FROM runs WHERE {filter.where()} "
        "ORDER BY start DESC, id DESC LIMIT :limit OFFSET :offset",
        {**filter.parameters, "limit": limit, "offset": offset},
    )
    names: dict[int, list[str]] = {row["id"]: [] for row in rows}
    # The scheduler's end and memory take precedence, so most runs need nothing from their nodes.
    incomplete = {row["id"] for row in rows if row["end"] is None or row["memory"] is None}
    reports: dict[int, list[tuple[bool, JobTotals | None]]] = {}
    nodes = transaction.look_up(_SQL["nodes_of_runs"], [(run_id,) for run_id in names])
    for run_id, node, final, totals in nodes:
        names[run_id].append(node)
        if run_id in incomplete:
            decoded = None if totals is None else _decode_totals(totals)
            reports.setdefault(run_id, []).append((bool(final), decoded))
    return [
        _stored_run(row, names[row["id"]], summarize_nodes(reports.get(row["id"], ())))
        for row in rows
    ]


def _stored_run(row: Mapping[str, Any], nodes: Sequence[str], on_nodes: NodesSummary) -> StoredRun:
    start = None if row["provisional"] else row["start"]
    columns = {name: row[name] for name in INFO_NAMES}
    info = info_from_columns(row["cluster"], row["job_id"], start, columns)
    return StoredRun(
        id=row["id"],
        info=info,
        provisional=bool(row["provisional"]),
        cpu_time=row["cpu_time"],
        memory_used_peak=row["memory_used_peak"],
        memory_peak=row["memory_peak"],
        nodes=list(dict.fromkeys([*(info.nodes or ()), *nodes])),
        first_seen=row["first_seen"],
        last_seen=row["last_seen"],
        start=row["start"],
        on_nodes=on_nodes,
    )


def count_runs(transaction: Transaction, filter: RunFilter) -> int:
    """How many runs pass the filter."""
    query = f"SELECT count(*) FROM runs WHERE {filter.where()}"
    return int(transaction.execute(query, filter.parameters).fetchone()[0])


def find_run(transaction: Transaction, reference: RunReference, where: str) -> StoredRun:
    """The run that a reference names, or :class:`RunNotFound`."""
    parameters: dict[str, Any] = {"job_id": reference.job_id}
    conditions = []
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
        runs = list_runs(transaction, RunFilter((meaning, *conditions), parameters), 1)
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


def sum_executables(rows: Iterable[Mapping[Any, Any]]) -> list[StoredExecutable]:
    """Sum rows of ``executables`` of one run, each with its node and path."""
    uses: dict[tuple[str, bytes, bool], ExecutableUse] = {}
    for row in rows:
        path, known = bytes(row["path"]), bool(row["path_known"])
        figures = {
            name: row[name] for name in (*SUMMED_FIGURES, "peak_memory", "first_seen", "last_seen")
        }
        use = ExecutableUse(path=path, path_known=known, **figures)
        key = (row["node"], path, known)
        uses[key] = _add(uses[key], use) if key in uses else use
    order = sorted(uses, key=lambda key: (key[0], -uses[key].cpu_time, key[1]))
    return [StoredExecutable(key[0], uses[key]) for key in order]


def _add(use: ExecutableUse, other: ExecutableUse) -> ExecutableUse:
    sums = {
        name: min(getattr(use, name) + getattr(other, name), HIGHEST) for name in SUMMED_FIGURES
    }
    return msgspec.structs.replace(
        use,
        **sums,
        peak_memory=max(use.peak_memory, other.peak_memory),
        # Zero is a time that the agent did not know.
        first_seen=min(use.first_seen or other.first_seen, other.first_seen or use.first_seen),
        last_seen=max(use.last_seen, other.last_seen),
    )


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
    )


def list_series(
    transaction: Transaction,
    run_id: int,
    metrics: Sequence[str] | None,
    since: int | None,
    until: int | None,
) -> list[StoredSeries]:
    """The time series of a run, one entry per node."""
    from jobsight.store.series import codec
    from jobsight.store.series.blocks import SeriesBlock, between, join

    wanted = None if metrics is None else frozenset(metrics)
    parameters = {
        "run_id": run_id,
        "since": _EVER[0] if since is None else since,
        "until": _EVER[1] if until is None else until,
    }
    blocks: dict[str, list[SeriesBlock]] = {}
    for node, data in transaction.execute(_SQL["chunks_of_run"], parameters).fetchall():
        blocks.setdefault(node, []).append(SeriesBlock(*codec.decode(data, wanted)))
    return [
        StoredSeries(node, *between(join(of_node), since, until))
        for node, of_node in blocks.items()
    ]


def list_summaries(transaction: Transaction, run_id: int) -> list[MetricSummary]:
    """Minimum, mean, maximum and last value of every metric by node."""
    from jobsight.store.series import codec
    from jobsight.store.series.blocks import SeriesBlock, Summary, combine, join, summarise

    decode = msgspec.msgpack.Decoder(dict[str, Summary]).decode
    summaries: dict[tuple[str, str], list[Summary]] = {}
    without_summary: dict[str, list[int]] = {}
    chunks = transaction.execute(_SQL["summaries_of_run"], {"run_id": run_id}).fetchall()
    for node, chunk_id, packed in chunks:
        if packed is None:
            without_summary.setdefault(node, []).append(chunk_id)
            continue
        for metric, summary in decode(codec.decompress(packed)).items():
            summaries.setdefault((node, metric), []).append(summary)
    # Parts that have just arrived are few: they are summarised here, not with every batch.
    for node, ids in without_summary.items():
        data = transaction.look_up(_SQL["chunk_data"], [(chunk_id,) for chunk_id in ids])
        block = join([SeriesBlock(*codec.decode(chunk)) for (chunk,) in data])
        for metric, summary in summarise(block).items():
            summaries.setdefault((node, metric), []).append(summary)
    return [
        MetricSummary(node, metric, *combine(summaries[node, metric]))
        for node, metric in sorted(summaries)
    ]


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
    """An executable of a run on one node, summed over the agent epochs."""

    node: str
    use: ExecutableUse


class StoredStep(msgspec.Struct):
    """A step of a run on one node."""

    node: str
    use: StepUse


class StoredSeries(msgspec.Struct):
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
    paths: int
    agents: int
    #: Bytes of the compressed series, and of the whole database.
    series_size: int
    size: int | None
    oldest: int | None
    newest: int | None
