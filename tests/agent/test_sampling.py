"""When the samplers of a job give their documents."""

from typing import cast

import pytest

from jobsight.agent.job import Document, FollowedJob, JobView, Sampler
from jobsight.agent.jobs.cgroup_watcher import JobCgroup
from jobsight.agent.outputs.worker import OutputPlan, OutputWorker
from jobsight.agent.probes.process_tree import ProcessTreeProbe
from jobsight.agent.samplers.base import JobIdentity, JobSampler
from jobsight.agent.samplers.slurm_info import SlurmInfo
from jobsight.agent.sampling import JobSamplers, Refreshable, SampledJob, SamplerPlan
from jobsight.cli.compat.collector import view_of
from jobsight.model import GpuUse


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


class Gpus(JobSampler):
    """A sampler that gives GPUs, and fails the first time."""

    name = "site.Gpus"
    finals: tuple[bool, ...] = ()

    def gpu_uses(self, view: JobView, *, final: bool) -> list[GpuUse]:
        self.finals += (final,)
        if len(self.finals) == 1:
            raise OSError("the driver was unloaded")
        return [GpuUse(key="0", held_time=5)]


def test_the_gpus_of_a_job_are_in_its_parts() -> None:
    view = view_of(7, "n1")
    made = Gpus()
    samplers = JobSamplers(
        view, [SamplerPlan(one.name, lambda _, one=one: one, 60.0) for one in (Counting(), made)]
    )
    followed = FollowedJob(view.sighting, ProcessTreeProbe(0), "epoch")
    samplers.attach(followed)
    # A failure costs the GPUs of one part, and is counted.
    assert followed.part(0).gpus == []
    assert list(samplers.errors.counts) == ["site.Gpus: OSError: the driver was unloaded"]
    assert followed.part(0, final=True).gpus == [GpuUse(key="0", held_time=5)]
    assert made.finals == (False, True)
    samplers.close()
