"""Everything that is known about one run, read from the store once.

:func:`read_run` is the entry point; :mod:`jobsight.findings.figures` computes the figures from what
it returns. Times of programs, steps and series are seconds since the start of the run, up to the
time that the counters cover: of a running job they are as recent as the last batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from jobsight.findings.program_names import is_waiting
from jobsight.findings.scope import ALL, Scope
from jobsight.findings.surroundings import ClusterShape, NodeShape, Surroundings
from jobsight.findings.timeline import GPU_METRICS, METRICS, Timeline
from jobsight.model import SECOND, JobInfo, JobTotals, RunReference
from jobsight.scheduler.fields import count_gpus
from jobsight.scheduler.records import JobDetails
from jobsight.store.read.queries import TooLarge, summarize_nodes
from jobsight.store.read.state import RunState, decide_state
from jobsight.store.write.gpus import used_time
from jobsight.text import readable_path

if TYPE_CHECKING:
    from jobsight.store.read.queries import (
        MetricSummary,
        NodesSummary,
        StoredExecutable,
        StoredGpu,
        StoredNode,
        StoredRun,
        StoredStep,
    )
    from jobsight.store.store import Store

#: Seconds between two reports of a program that is alive and waits, and some for their way; see
#: jobsight.agent.processes.process.
_ALIVE: Final = 330.0


#: Seconds at the end of a run that need not be reported: batches are sent every ten seconds, and
#: samples of long jobs are taken every thirty.
LATE: Final = 90.0


class Program:
    """An executable of the run over all its nodes."""

    __slots__ = (
        *("cpu", "executions", "failures", "first", "gpu_time", "known", "last", "nodes"),
        *("path", "peak_memory", "processes", "read", "system", "written"),
    )

    def __init__(self, path: bytes, known: bool) -> None:
        self.path = path
        #: False if ``path`` is only a command name.
        self.known = known
        #: CPU seconds, and those in the kernel.
        self.cpu = 0.0
        self.system = 0.0
        self.gpu_time = 0.0
        self.executions = 0
        self.processes = 0
        self.failures = 0
        self.read = 0
        self.written = 0
        #: Of one process.
        self.peak_memory = 0
        self.nodes = 0
        #: When it was first and last seen; None if the agent did not know.
        self.first: float | None = None
        self.last: float | None = None

    @property
    def shown(self) -> str:
        """The path as it is shown."""
        return readable_path(self.path)

    @property
    def starts(self) -> int:
        """How often it was started; a fork without exec counts if there was nothing else."""
        return self.executions or self.processes

    @property
    def span(self) -> float | None:
        """Seconds from its first start to its last end."""
        if self.first is None or self.last is None:
            return None
        return max(self.last - self.first, 0.0)

    def mean_cores(self, cores: float | None) -> float | None:
        """The CPUs that it kept busy from its first start to its last end, at most ``cores``."""
        span = self.span
        if span is None:
            return None
        # A program of some milliseconds has a span of nothing.
        least = self.cpu / cores if cores else 0.0
        return self.cpu / max(span, least) if max(span, least) > 0 else None


class RunData:
    """One run: what the scheduler, the nodes and the time series say."""

    def __init__(
        self,
        stored: StoredRun,
        nodes: list[StoredNode],
        state: RunState,
        on_nodes: NodesSummary,
        now: int,
    ) -> None:
        self.stored = stored
        self.info: JobInfo = stored.info
        self.nodes = nodes
        self.state = state
        self.on_nodes = on_nodes
        self.now = now
        self.start = state.start
        #: Seconds that the counters cover; 0 if that is not known.
        self.span = (state.counted or 0) / SECOND
        self.totals: list[JobTotals] = [node.totals for node in nodes if node.totals is not None]
        self.details: JobDetails | None = None
        #: The most CPU time first.
        self.programs: list[Program] = []
        #: How many programs were seen on each node.
        self.programs_of_node: Counter[str] = Counter()
        self.software: list[str] = []
        self.steps: list[StoredStep] = []
        self.gpus: list[StoredGpu] = []
        #: The run's nodes as the scheduler knows them, and all nodes of the cluster.
        self.shapes: list[NodeShape] = []
        self.cluster = ClusterShape({}, {})
        self.timeline: Timeline | None = None
        #: Why there is none.
        self.timeline_reason = "no time series are stored"
        #: The growth of the counters of cores by node, where a sampler reads them.
        self.cores_of_node: dict[str, list[float]] = {}
        #: Share of the starts of the most failing program that failed in other runs.
        self.surroundings: Surroundings | None = None

    @property
    def cores(self) -> int | None:
        return self.info.cpus or None

    @property
    def node_count(self) -> int:
        """The number of nodes: as the scheduler says, or that report."""
        return self.info.node_count or self.stored.node_count or len(self.nodes)

    @property
    def node_names(self) -> list[str]:
        """Names of all nodes: of the scheduler's record, and those that report."""
        return list(dict.fromkeys([*(self.info.nodes or ()), *(node.node for node in self.nodes)]))

    @property
    def gpu_count(self) -> int:
        """The number of GPUs: that the nodes report, else of the allocation in any of its forms."""
        return len(self.gpus) or self.info.gpus or count_gpus(self.info.tres or {}) or 0

    def measured_until(self, node: StoredNode) -> float:
        """Seconds up to which a node has reported the run: all of it once it has ended there."""
        if node.final:
            return self.span
        last = max(node.totals.time if node.totals else 0, node.last_sample or 0)
        return min(max((last - self.start) / SECOND, 0.0), self.span)

    @property
    def unmeasured(self) -> float:
        """Seconds at the end of the run of which no node has reported anything."""
        return self.span - max(map(self.measured_until, self.nodes), default=0.0)

    def at(self, moment: float) -> float:
        """A time of the run as seconds since 1970."""
        return self.start / SECOND + moment


def read_run(
    store: Store,
    stored: StoredRun,
    now: int,
    surroundings: Surroundings | None = None,
    scope: Scope = ALL,
) -> RunData:
    """Read a run. A caller that reads many passes ``surroundings``, which keeps what they share;
    with a ``scope`` only what its figures need is read."""
    surroundings = surroundings or Surroundings(store)
    info = stored.info
    if info.nodes is None and info.tres is None:
        # A row of a list lacks them.
        reference = RunReference(info.job_id, info.cluster, stored.start)
        found = store.find(reference)
        stored = found if found.id == stored.id else stored
    nodes = store.nodes(stored.id)
    on_nodes = summarize_nodes([(node.final, node.totals) for node in nodes])
    state = decide_state(
        stored.info, stored.start, ended_on_nodes=on_nodes.ended, as_of=on_nodes.counted, now=now
    )
    data = RunData(stored, nodes, state, on_nodes, now)
    data.surroundings = surroundings
    data.details = store.details(stored.id, JobDetails)
    data.cluster = surroundings.cluster(stored.info.cluster, now)
    known = data.cluster.nodes
    data.shapes = [known[name] for name in data.node_names if name in known]
    _join_programs(data, store.executables(stored.id))
    if data.programs and scope.has("programs"):
        data.software = _software(store, stored)
    data.steps = store.steps(stored.id)
    data.gpus = store.gpus(stored.id)
    if data.span > 0 and nodes:
        _read_series(store, data, scope)
    return data


def _join_programs(data: RunData, stored: Iterable[StoredExecutable]) -> None:
    programs: dict[tuple[bytes, bool], Program] = {}
    start, span = data.start, data.span
    for part in stored:
        use = part.use
        if not (use.executions or use.processes or use.cpu_time or use.gpu_time):
            # It was renamed: the agent has learned the path of the executable since.
            continue
        program = programs.get((use.path, use.path_known))
        if program is None:
            program = programs[use.path, use.path_known] = Program(use.path, use.path_known)
        # A launcher that waits for programs of other nodes is no use of its own node.
        if not is_waiting(use.path):
            data.programs_of_node[part.node] += 1
        program.cpu += use.cpu_time / SECOND
        program.system += use.cpu_system / SECOND
        program.gpu_time += use.gpu_time / SECOND
        program.executions += use.executions
        program.processes += use.processes
        program.failures += use.failures
        program.read += use.read_bytes
        program.written += use.written_bytes
        program.peak_memory = max(program.peak_memory, use.peak_memory)
        program.nodes += 1
        # Zero is a time that the agent did not know.
        if use.first_seen and use.last_seen:
            first = min(max((use.first_seen - start) / SECOND, 0.0), span)
            last = min(max((use.last_seen - start) / SECOND, first), span)
            program.first = first if program.first is None else min(program.first, first)
            program.last = last if program.last is None else max(program.last, last)
    if data.state.running:
        for program in programs.values():
            _extend(program, span, data.cores)
    data.programs = sorted(
        programs.values(), key=lambda program: (-program.cpu, -program.executions, program.path)
    )


def _extend(program: Program, span: float, cores: int | None) -> None:
    """Of a running job, the last time of a live program is that of its last report."""
    if program.first is None or program.last is None:
        return
    alive = program.last >= span - _ALIVE
    # It used more CPU time than fits before.
    if alive or (cores and program.cpu > cores * (program.last - program.first + 1.0)):
        program.last = span


def _software(store: Store, stored: StoredRun) -> list[str]:
    user, account = stored.info.user or "", stored.info.account or ""
    return [
        name.replace("%(user)s", user).replace("%(project)s", account)
        for name in store.software_of(stored.id)
    ]


def _read_series(store: Store, data: RunData, scope: Scope) -> None:
    """Read the time series, one node after the other."""
    sightings: dict[str, list[StoredNode]] = {}
    for node in data.nodes:
        sightings.setdefault(node.node, []).append(node)
    used: dict[str, set[str]] = {}
    for gpu in data.gpus:
        if gpu.use.used is not False and used_time(gpu.use) != 0:
            used.setdefault(gpu.node, set()).add(gpu.use.key)
    keys = {gpu.use.key for gpu in data.gpus}
    metrics = scope.metrics(METRICS)
    metrics += [f"gpu.{key}.{name}" for key in sorted(keys) for name in GPU_METRICS]
    summaries = _summaries(store, data, scope)
    metrics += sorted(
        {
            summary.metric
            for summary in summaries
            if summary.metric.startswith("network.") and summary.metric.endswith(".received_bytes")
        }
    )
    timeline = Timeline(data.start, data.span, len(sightings))
    try:
        for series in store.series_by_node(data.stored.id, metrics):
            timeline.add(series, sightings.get(series.node, ()), used.get(series.node, ()))
    except TooLarge as error:
        data.timeline_reason = str(error)
        return
    if timeline.nodes:
        data.timeline = timeline
    for summary in summaries:
        if summary.metric.startswith("cores.") and summary.metric.endswith(".time"):
            growth = (summary.maximum - summary.minimum) / SECOND
            data.cores_of_node.setdefault(summary.node, []).append(growth)


def _summaries(store: Store, data: RunData, scope: Scope) -> list[MetricSummary]:
    """The summaries of all series, if the run has those of single cores or links: their names are
    known by nothing else, and only the growth of cores is needed."""
    groups = {group for node in data.nodes for group in node.coverage}
    if "cores" in groups or ("network" in groups and data.gpus and scope.has("waits")):
        return store.summaries(data.stored.id)
    return []
