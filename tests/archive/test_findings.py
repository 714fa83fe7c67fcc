"""Findings go into the archive and come back."""

import pyarrow.parquet as pq

from jobsight.archive.reader import Reader
from jobsight.archive.restore import restore
from jobsight.archive.storage import Storage
from jobsight.archive.writer import write_archive
from jobsight.config.settings import RetentionSettings
from jobsight.findings.finding import Cost
from jobsight.findings.stored import from_row, to_row
from jobsight.store.findings.read import FindingFilter, findings_of_run, sum_findings
from jobsight.store.findings.write import set_reply
from jobsight.store.maintenance.check import Checker
from jobsight.store.maintenance.retention import prune
from jobsight.store.store import Store
from tests.archive.months import LATER
from tests.findings.judge import KIND, found
from tests.store.findings.sample import add_findings
from tests.store.many import DAY, summed


def test_findings_come_back_with_their_run(filled: Store, place: Storage) -> None:
    run = next(run for run in filled.runs() if run.info.job_id == 1)
    cost = Cost(core_hours=1.25, memory_gb_hours=100.0)
    add_findings(filled, run, to_row(found(cost=cost)), to_row(found("other")), now=5000)
    set_reply(filled.database, run.id, KIND, "acknowledged", "anna", 7000)
    before = [row._replace(run_id=0) for row in findings_of_run(filled.database, run.id)]
    sums = sum_findings(filled.database, ["day", "kind"], FindingFilter())
    write_archive(filled, place, LATER)
    files = list(place.names("findings"))
    tables = []
    for name in files:
        with place.open(name) as source:
            tables += pq.read_table(source).to_pylist()
    assert {(row["kind"], row["finding_state"], row["title"]) for row in tables} == {
        (KIND, "acknowledged", from_row(before[0]).title),
        ("other", "open", from_row(before[0]).title),
    }
    summed(filled)
    prune(filled.database, RetentionSettings(runs=1), LATER + 90 * DAY, pause=lambda _: None)
    assert all(run.info.end is None for run in filled.runs())
    # The sums stay, and the check knows that their rows are gone.
    assert sum_findings(filled.database, ["day", "kind"], FindingFilter()) == sums
    assert Checker(filled.database).run().faults == []
    reader = Reader(place)
    for archived in reader.versions():
        restore(filled, reader, archived)
    again = next(run for run in filled.runs() if run.info.job_id == 1)
    after = [row._replace(run_id=0) for row in findings_of_run(filled.database, again.id)]
    assert after == before
    assert sum_findings(filled.database, ["day", "kind"], FindingFilter()) == sums
    assert Checker(filled.database).run().faults == []
