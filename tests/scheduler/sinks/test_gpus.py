"""What agents measured of GPUs, in the documents of both sinks."""

from collections.abc import Sequence
from pathlib import Path

from jobsight.model import SECOND
from jobsight.scheduler.records import JobDetails, NodeInfo
from jobsight.scheduler.sinks.base import SinkJob
from jobsight.scheduler.sinks.clockwork import job_document
from jobsight.scheduler.sinks.feeder import feed
from jobsight.scheduler.sinks.opensearch import job_source
from jobsight.store.store import Store
from tests.store.gpu_sample import GIB, gpu, idle_gpu
from tests.store.sample import START, batch, info, part

EXPECTED = {
    "gpus_held": 2,
    "gpus_never_used": 1,
    "gpu_held_seconds": 2000.0,
    "gpu_measured_seconds": 2000.0,
    "gpu_profiled_seconds": 2000.0,
    "gpu_used_seconds": 400.0,
    "gpu_memory_peak_bytes": 100 * GIB,
    "gpu_energy_joules": 580_000.0,
}


class KeptSink:
    """A sink that keeps the jobs it is given."""

    name = "kept"

    def __init__(self) -> None:
        self.given: dict[int, SinkJob] = {}

    def prepare(self) -> None: ...

    def jobs(self, jobs: Sequence[SinkJob]) -> int:
        self.given |= {job.record.info.job_id: job for job in jobs}
        return len(jobs)

    def pending(self, cluster: str, jobs: Sequence[SinkJob]) -> int:
        return 0

    def nodes(self, cluster: str, nodes: Sequence[NodeInfo]) -> int:
        return 0

    def close(self) -> None: ...


def test_documents_have_the_figures_of_gpus(tmp_path: Path) -> None:
    kept = KeptSink()
    with Store.open(tmp_path / "store.db") as store:
        ended = {"end": START + 1000 * SECOND, "state": "COMPLETED"}
        store.write(batch(part(gpus=[gpu("0"), idle_gpu("1")], final=True)))
        store.record_jobs([info(gpus=2, **ended), info(8, **ended)], [JobDetails(), JobDetails()])
        feed(store, kept)
    document = job_document(kept.given[7])["jobsight"]
    assert {name: document[name] for name in EXPECTED} == EXPECTED
    source = job_source(kept.given[7])
    assert {name: source[name] for name in EXPECTED} == EXPECTED
    # A run without GPUs has no such figures, rather than zeros.
    assert job_document(kept.given[8])["jobsight"]["gpus_held"] is None
    assert not EXPECTED.keys() & job_source(kept.given[8]).keys()
