"""Which jobs were judged since they changed."""

from __future__ import annotations

import pytest

from jobsight.store.findings.due import Failure, is_judged, set_aside, unjudged_runs
from jobsight.store.findings.write import Judged, store_judged
from jobsight.store.store import Store
from tests.store.sample import START, info


@pytest.mark.parametrize("column", ["job_id", "array_job_id", "het_job_id"])
def test_a_job_is_judged_when_all_of_its_runs_are(store: Store, column: str) -> None:
    parts = [7] if column == "job_id" else [7, 8]
    more = {} if column == "job_id" else {column: 7}
    store.record_jobs([info(part, end=START + 1, state="COMPLETED", **more) for part in parts])
    store.record_jobs([info(99, end=START + 1, state="COMPLETED")])
    due = unjudged_runs(store.database, 10)
    assert len(due) == len(parts) + 1
    for run in due[: len(parts)]:
        assert not is_judged(store.database, "c1", 7)
        store_judged(store.database, [Judged(run.id, run.changes, run.owner, None, ())], START)
    assert is_judged(store.database, "c1", 7)
    assert not is_judged(store.database, "c1", 99)
    assert is_judged(store.database, "another", 99)
    # A run that cannot be judged is not waited for.
    set_aside(store.database, [Failure(due[-1].id, "c1", "wrong")])
    assert is_judged(store.database, "c1", 99)
    # One that changes is judged again.
    store.record_jobs([info(7, end=START + 2, state="FAILED", **more)])
    assert not is_judged(store.database, "c1", 7)
