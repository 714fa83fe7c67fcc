"""Records that do not say whose they are, completed by the sacct of a real Slurm."""

import time
from pathlib import Path

import pytest

from jobsight.cli.compat.aggregator import main
from jobsight.model import SECOND
from jobsight.store.store import Store
from tests.bed import Cluster
from tests.sams.documents import Site, booked, document

ALICE = "jobsight-alice"


@pytest.mark.timeout(600)
@pytest.mark.long
def test_records_without_an_owner_are_booked_on_the_run_they_belong_to(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A requeued job: both runs have the same id, and each record belongs to one of them."""
    job = cluster.submit(ALICE, "sleep 300", "--mem=50", "--output=/dev/null", "--requeue")
    starts = []
    for _ in range(2):
        cluster.wait(job, "RUNNING")
        starts.append(int(time.time()))
        time.sleep(1.1)
        if len(starts) == 1:
            cluster.requeue(job)
    cluster.cancel(job)
    cluster.wait(job, timeout=90)
    environment = "".join(f"\n    {k}: '{v}'" for k, v in cluster.environment().items())
    site = Site(tmp_path, fallback=True, sacct=f"/usr/bin/sacct\n  environment:{environment}")
    site.put(document(job, "n1", info=None, start=starts[0]))
    site.put(document(job, "n2", info={}, start=starts[1]))
    site.put(document(job + 1_000_000, "n1", info=None, start=starts[1]))
    assert main(["--config", str(site.config)]) == 0
    with Store.open(site.store) as store:
        runs = sorted(store.runs(), key=lambda run: run.start)
        assert {run.info.job_id for run in runs} == {job}
        rows = cluster.sacct(job, ["Start", "User", "Account"], "--allocations", "--duplicates")
        assert [run.start // SECOND for run in runs] == sorted(int(row["Start"]) for row in rows)
        assert {(run.info.user, run.info.account) for run in runs} == {(ALICE, "alpha")}
        by_run = [{node for node, _ in rows} for _, rows in sorted(booked(store).items())]
        assert by_run == [{"n1"}, {"n2"}]
    reasons = list(site.folder.glob("error/*/*.reason"))
    assert len(reasons) == 1
    assert "sacct knows no run" in reasons[0].read_text()
