"""A judge without rules: it says of each job what a test has set."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jobsight.findings.finding import Cost, Finding, Verdict
from jobsight.findings.vocabulary import FigureSet
from jobsight.findings.worker import Measured
from jobsight.store.findings.rows import Owner
from jobsight.store.read.queries import StoredRun

KIND = "memory-request-unused"


def found(kind: str = KIND, **fields: object) -> Finding:
    values: dict[str, object] = {
        "severity": "warning",
        "title": "Most of the requested memory was not used",
        "text": "4 GiB of 64 GiB was used (6.3 %).",
        "change": "#SBATCH --mem=5G",
        "cost": Cost(memory_gb_hours=100.0),
        **fields,
    }
    return Finding(kind=kind, **values)  # type: ignore[arg-type]


def fired(kind: str = KIND, **fields: object) -> Verdict:
    return Verdict(kind=kind, outcome="fired", finding=found(kind, **fields))


class ToldJudge:
    """Measures the job id and the elapsed time, and judges by a function of them."""

    def __init__(
        self,
        say: Callable[[FigureSet], Sequence[Verdict]] = lambda figures: [fired()],
        digest: str = "rules 1",
    ) -> None:
        self.say = say
        self.digest = digest
        self.measured: list[int] = []
        self.judged = 0

    def measure(self, run: StoredRun, now: int) -> Measured:
        self.measured.append(run.info.job_id)
        figures = FigureSet()
        figures.set("run.elapsed", (run.info.end or now) - run.start)
        figures.set("run.name", run.info.name or "")
        figures.set("run.tasks", run.info.job_id)
        figures.set("gpu.count", None, "the job has no GPU")
        return Measured(figures)

    def measure_running(self, run: StoredRun, owner: Owner, now: int) -> Measured:
        return self.measure(run, now)

    def judge(self, figures: FigureSet, owner: Owner, *, every: bool = False) -> Sequence[Verdict]:
        self.judged += 1
        return self.say(figures)
