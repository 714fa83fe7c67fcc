"""What the store gives back."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from jobsight.errors import StoreError
from jobsight.model import Coverage, ExecutableUse, JobInfo, JobTotals, Run, Sighting, StepUse
from jobsight.store.transforms import Integers, Values


class RunNotFound(StoreError):
    """The store holds no such run."""

    def __init__(self, reference: str, where: str) -> None:
        #: Without the place of the store.
        self.sentence = f"no run of job {reference} is in the store"
        super().__init__(f"{self.sentence} {where}")


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
