"""A small made-up year goes the whole way: store, figures, rules, findings in the store."""

from pathlib import Path

import pytest

from jobsight.config.settings import FindingsSettings
from jobsight.findings.engine import RuleSet
from jobsight.findings.service import RuleJudge
from jobsight.findings.worker import Evaluation
from jobsight.model import SECOND
from jobsight.simulation.fill import Truth, fill
from jobsight.simulation.misbehaviour import KINDS
from jobsight.simulation.year import Year
from jobsight.store.findings.due import running_runs, unjudged_runs
from jobsight.store.store import Store
from tests.store.contents import assert_sound, rows

RUNS = 500
#: Kinds that one run is enough for, that no other finding explains and no small cost decides.
SURE = {
    *("cpu-not-used", "cpu-wrong-pinning", "held-after-work", "gpu-not-used"),
    *("memory-thrashing", "io-stalled", "scratch-not-used", "failed-inside", "gpu-errors"),
    "gpu-tensor-unused",
}
#: Decided by what the scheduler recorded, whatever agents saw.
BY_STATE = {
    *("out-of-memory", "time-limit-reached", "time-limit-ahead", "time-request-unused"),
    *("node-failed", "failed-again", "runs-beyond-limit"),
}


@pytest.fixture(scope="module")
def judged(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[list[Truth], dict[tuple[str, int], set[str]]]:
    """The truth of all runs, and the kinds of the findings that are stored of each."""
    folder: Path = tmp_path_factory.mktemp("year")
    year = Year(RUNS)
    now = year.end * SECOND
    with Store.open(folder / "store.db") as store:
        truths = fill(store, year)
        judge = RuleJudge(store, RuleSet.of_settings(FindingsSettings()))
        evaluation = Evaluation(store, judge, clock=lambda: now)
        ended = sorted(unjudged_runs(store.database, RUNS), key=lambda run: (run.start, run.id))
        running = running_runs(store.database, RUNS, now)
        assert len(ended) + len(running) == RUNS
        for first in range(0, len(ended), 50):
            assert evaluation.runs(ended[first : first + 50]).failed == 0
        assert evaluation.runs(running).failed == 0
        assert_sound(store)
        runs = {run.id: (run.info.cluster, run.info.job_id) for run in store.runs(limit=RUNS)}
        found: dict[tuple[str, int], set[str]] = {key: set() for key in runs.values()}
        names = [column.name for column in _findings_columns()]
        for row in rows(store)["findings"]:
            values = dict(zip(names, row, strict=True))
            found[runs[values["run_id"]]].add(values["kind"])
    return truths, found


def _findings_columns() -> list[object]:
    from jobsight.store.schema.tables import metadata

    return list(metadata.tables["findings"].columns)


def test_what_was_planted_is_found(
    judged: tuple[list[Truth], dict[tuple[str, int], set[str]]],
) -> None:
    truths, found = judged
    seen = [truth for truth in truths if truth.seen == "full" and not truth.running]
    assert {label for truth in seen for label in truth.labels} >= SURE
    for truth in seen:
        missing = set(truth.labels) & SURE - found[truth.cluster, truth.job_id]
        assert not missing, truth


def test_runs_that_behave_have_no_finding_of_these_kinds(
    judged: tuple[list[Truth], dict[tuple[str, int], set[str]]],
) -> None:
    truths, found = judged
    for truth in truths:
        known = {*truth.labels, *truth.undecided}
        assert not found[truth.cluster, truth.job_id] & SURE - known, truth


def test_runs_of_which_too_little_was_seen_are_not_judged(
    judged: tuple[list[Truth], dict[tuple[str, int], set[str]]],
) -> None:
    truths, found = judged
    unseen = [truth for truth in truths if truth.seen != "full"]
    assert unseen
    for truth in unseen:
        assert not found[truth.cluster, truth.job_id] & KINDS - BY_STATE - {"gpu-errors"}, truth
