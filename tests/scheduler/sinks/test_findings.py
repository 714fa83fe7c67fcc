"""Findings in the documents of both sinks."""

from pathlib import Path

from jobsight.findings.finding import Cost
from jobsight.findings.stored import to_row
from jobsight.model import SECOND
from jobsight.scheduler.records import JobDetails
from jobsight.scheduler.sinks.clockwork import job_document
from jobsight.scheduler.sinks.feeder import feed
from jobsight.scheduler.sinks.opensearch import job_source
from jobsight.store.store import Store
from tests.findings.judge import KIND, found
from tests.scheduler.sinks.test_gpus import KeptSink
from tests.store.findings.sample import add_findings
from tests.store.sample import START, find, info


def test_documents_have_findings_and_are_sent_again_when_they_change(tmp_path: Path) -> None:
    kept = KeptSink()
    with Store.open(tmp_path / "store.db") as store:
        record = info(end=START + 1000 * SECOND, state="COMPLETED")
        store.record_jobs([record], [JobDetails()], now=START)
        run = find(store, "7")
        add_findings(store, run, to_row(found(cost=Cost(gpu_hours=2.0))), now=START + 1)
        feed(store, kept)
        (finding,) = job_document(kept.given[7])["jobsight"]["findings"]
        assert finding == {
            "kind": KIND,
            "severity": "warning",
            "audience": "user",
            "state": "open",
            "title": "Most of the requested memory was not used",
            "text": "4 GiB of 64 GiB was used (6.3 %).",
            "change": "#SBATCH --mem=5G",
            "cost": {
                "core_hours": None,
                "gpu_hours": 2.0,
                "memory_gb_hours": None,
                "energy_kwh": None,
            },
        }
        assert job_source(kept.given[7])["findings"] == [finding]
        # Much later, after a change of the rules.
        kept.given.clear()
        other = info(8, START + 9 * 3600 * SECOND, end=START + 10 * 3600 * SECOND)
        store.record_jobs([other], [JobDetails()], now=START + 10 * 3600 * SECOND)
        feed(store, kept)
        kept.given.clear()
        feed(store, kept)
        assert 7 not in kept.given
        add_findings(store, run, now=START + 11 * 3600 * SECOND)
        feed(store, kept)
        assert "findings" not in job_source(kept.given[7])
