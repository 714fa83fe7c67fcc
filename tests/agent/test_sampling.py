"""When the samplers of a job give their documents."""

from typing import cast

import pytest

from jobsight.agent.job import Document, FollowedJob, JobView, Sampler
from jobsight.agent.jobs.cgroup_watcher import JobCgroup
from jobsight.agent.outputs.worker import OutputPlan, OutputWorker
from jobsight.agent.samplers.base import JobIdentity, JobSampler
from jobsight.agent.samplers.slurm_info import SlurmInfo
from jobsight.agent.sampling import Refreshable, SampledJob, SamplerPlan
from jobsight.cli.compat.collector import view_of


class Counting(JobSampler):
    name = "site.Counting"
    count = 0

    def document(self, view: JobView) -> Document | None:
        self.count += 1
        return {"count": self.count}


class Kept:
    """An output that keeps what it gets."""

    name = "kept"

    def __init__(self) -> None:
        self.documents: list[tuple[str, Document]] = []

    def store(self, view: JobView, sampler: str, document: Document) -> None:
        self.documents.append((sampler, document))

    def write(self, view: JobView, documents: dict[str, Document]) -> None:
        pass

    def close(self) -> None:
        pass


# Fault 17: live outputs were silent for the first interval of a job.
@pytest.mark.parametrize("interval", [60.0, 3600.0])
def test_the_first_documents_come_at_once(interval: float) -> None:
    kept, view = Kept(), view_of(7, "n1")
    worker = OutputWorker(OutputPlan("kept", lambda view: kept))

    def plan(made: Sampler) -> SamplerPlan:
        return SamplerPlan(made.name, lambda view: made, interval)

    job = SampledJob(
        cast("JobCgroup", None),
        cast("FollowedJob", None),
        view,
        cast("Refreshable", None),
        [plan(JobIdentity()), plan(Counting()), plan(SlurmInfo())],
        [worker.job],
    )
    job.tick(1000.0)
    # What Slurm says is passed on as soon as it is known, other documents at their interval.
    view.info.account = "p1"
    job.tick(1001.0)
    job.tick(1002.0)
    job.tick(1000.0 + interval)
    assert worker.stop(60)
    assert kept.documents == [
        ("sams.sampler.Core", {"jobid": 7, "node": "n1"}),
        ("site.Counting", {"count": 1}),
        ("sams.sampler.SlurmInfo", {"account": "p1"}),
        ("site.Counting", {"count": 2}),
    ]
