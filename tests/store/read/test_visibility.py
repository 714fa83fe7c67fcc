"""The runs that a viewer may see: the same in a query and in memory, on both databases."""

import itertools
from pathlib import Path

import pytest

from jobsight.model import SECOND, JobInfo, RunReference
from jobsight.store.read.queries import RunNotFound
from jobsight.store.read.visibility import (
    EVERYTHING,
    NOTHING,
    Visibility,
    VisibleAccount,
    VisibleUser,
)
from jobsight.store.store import Store

START = 1_700_000_000 * SECOND
RUNS = [
    JobInfo(
        cluster=cluster,
        job_id=number,
        start=START + number * SECOND,
        user=user,
        account=account,
        state="RUNNING",
        source="slurmdbd",
    )
    for number, (cluster, user, account) in enumerate(
        itertools.product(("alpha", "beta"), ("alice", "bob", None), ("physics", "%", None)), 1
    )
]
VISIBILITIES = [
    EVERYTHING,
    NOTHING,
    Visibility(users=(VisibleUser("alice"),)),
    Visibility(users=(VisibleUser("alice", "beta"), VisibleUser("bob"))),
    Visibility(accounts=(VisibleAccount("physics"),)),
    Visibility(accounts=(VisibleAccount("%", "alpha", START + 5 * SECOND, START + 8 * SECOND),)),
    Visibility(users=(VisibleUser("bob"),), accounts=(VisibleAccount("physics", "beta"),)),
    Visibility(users=(VisibleUser("x' OR 1=1 --"),)),
]


@pytest.mark.parametrize("visibility", VISIBILITIES)
def test_a_query_and_a_record_in_memory_agree(store: Store, visibility: Visibility) -> None:
    store.record_jobs(RUNS)
    expected = {
        info.job_id
        for info in RUNS
        if visibility.includes(
            cluster=info.cluster, user=info.user, account=info.account, start=info.start
        )
    }
    assert {run.info.job_id for run in store.runs(visibility=visibility)} == expected
    assert store.count_runs(visibility=visibility) == len(expected)
    for info in RUNS:
        reference = RunReference(job_id=info.job_id, cluster=info.cluster)
        if info.job_id in expected:
            assert store.find(reference, visibility).info.job_id == info.job_id
        else:
            with pytest.raises(RunNotFound):
                store.find(reference, visibility)


def test_a_run_that_may_not_be_seen_is_named_as_one_that_does_not_exist(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        store.record_jobs(RUNS)
        errors = []
        for job_id in (1, 999):
            with pytest.raises(RunNotFound) as error:
                store.find(RunReference(job_id=job_id), NOTHING)
            errors.append(error.value.sentence.replace(str(job_id), "N"))
        assert errors[0] == errors[1]
