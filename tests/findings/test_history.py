"""What earlier runs of the same work say: figures of a store with known runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from jobsight.cli.main import main
from jobsight.findings import history
from jobsight.findings.data import read_run
from jobsight.findings.engine import RuleSet
from jobsight.findings.figures import compute_figures
from jobsight.findings.finding import Verdict
from jobsight.findings.history import (
    add_history,
    compare_users,
    compare_waits,
    describe_change,
    expect_elapsed,
    find_change,
    shape_of,
)
from jobsight.findings.packed import encode_figures
from jobsight.findings.recommendations import recommendations
from jobsight.findings.texts import show
from jobsight.findings.vocabulary import FigureSet
from jobsight.model import SECOND, Coverage, JobInfo
from jobsight.store.history import ProgramUse, Wait
from jobsight.store.store import Store
from tests.store.sample import START, batch, find, part, sighting, totals, use

GIB = 2**30
HOUR = 3600
_ids = itertools.count(100)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


def _run(  # noqa: PLR0913 -- what a run of a history can differ in
    store: Store,
    *,
    used: int = 4 * GIB,
    seconds: int = HOUR,
    state: str = "COMPLETED",
    cpu: int = HOUR,
    day: float = 0.0,
    programs: tuple[bytes, ...] = (b"/bin/solve",),
    measured: float = 1.0,
    started: float | None = None,
    **more: Any,
) -> FigureSet:
    """Store a run and its figures; returns the figures."""
    job_id = next(_ids)
    start = START + job_id * HOUR * SECOND + int(day * 86400) * SECOND
    fields: dict[str, Any] = {
        "name": "sim1", "user": "anna", "account": "physics", "partition": "normal",
        "cpus": 4, "memory": 32 * GIB, "time_limit": 8 * HOUR * SECOND, "exit_code": 0,
        "end": start + seconds * SECOND, "submit": start - 60 * SECOND,
    }  # fmt: skip
    fields |= more
    info = JobInfo(cluster="c1", job_id=job_id, source="slurm", start=start, state=state, **fields)
    counted = totals(0, cpu * SECOND, memory_used_peak=used, memory_peak=used)
    counted.time = start + seconds * SECOND
    uses = [
        use(
            *(path, cpu * SECOND // len(programs)),
            first_seen=start + int((started or 0) * SECOND),
            last_seen=counted.time,
        )
        for path in programs
    ]
    seen_share = Coverage(quality="estimate", time_share=measured)
    coverage = dict.fromkeys(("cpu", "memory", "executables"), seen_share)
    seen = sighting(job_id, birth=start)
    sent = part(
        seen, totals=counted, executables=uses, coverage=coverage, final=fields["end"] is not None
    )
    store.record_jobs([info])
    assert store.write(batch(sent, written=counted.time))
    return _judge(store, job_id, start + (seconds + 10) * SECOND)


def _judge(store: Store, job_id: int, now: int) -> FigureSet:
    stored = find(store, str(job_id))
    data = read_run(store, stored, now)
    figures = compute_figures(data)
    work_id = add_history(store, data, figures)
    row = {
        "id": stored.id,
        "work": work_id,
        "data": encode_figures(figures),
    }
    with store.database.write() as transaction:
        transaction.execute(
            "INSERT INTO run_figures (run_id, work_id, revision, data) "
            "VALUES (:id, :work, 0, :data) ON CONFLICT (run_id) DO UPDATE SET data = excluded.data",
            row,
        )
    return figures


def test_the_first_run_has_no_history(store: Store) -> None:
    figures = _run(store)
    assert figures.values["history.runs"] == 0
    assert figures.values["fit.memory_runs"] == 1
    assert "history.slower_share" not in figures.values
    assert figures.reason("history.near_limit_share") == history._NO_HISTORY


def test_a_fitting_request_from_earlier_runs(store: Store) -> None:
    for index in range(12):
        figures = _run(store, used=4 * GIB + index * 2**20, seconds=HOUR + index)
    assert figures.values["history.runs"] == 11
    memory = figures.values["fit.memory"]
    assert isinstance(memory, float)
    assert 4 * GIB < memory < 6 * GIB
    assert figures.values["fit.memory_per_node"] == memory
    assert figures.values["fit.memory_runs"] == figures.values["fit.memory_passed"] == 12
    time = figures.values["fit.time"]
    assert isinstance(time, float)
    assert HOUR < time < 2 * HOUR
    latest = store.latest("anna")
    assert latest is not None
    listed = {each.resource: each for each in recommendations(store, latest)}
    assert listed["memory"].text.startswith(f"{listed['memory'].option} would have held all of")
    assert "You requested 32G" in listed["memory"].text
    assert (listed["memory"].saved_gb_hours or 0) > 100


def test_no_more_is_advised_where_every_run_had_room(store: Store) -> None:
    """One run that used half of its limit: 2.5 times its time is more than that."""
    figures = _run(store, used=4 * GIB, seconds=HOUR, memory=8 * GIB, time_limit=2 * HOUR * SECOND)
    assert figures.values["fit.time"] == 2 * HOUR
    latest = store.latest("anna")
    assert latest is not None
    listed = {each.resource: each for each in recommendations(store, latest)}
    assert listed["time"].option == "--time=02:00:00"
    assert listed["memory"].option == "--mem=8G"
    assert listed["time"].value == listed["time"].requested == 2 * HOUR


def _judge_memory(figures: FigureSet) -> Verdict:
    verdicts = RuleSet.load().judge(figures)
    return next(each for each in verdicts if each.kind == "memory-request-unused")


def test_a_recommendation_of_the_request_is_no_need_of_it(store: Store) -> None:
    """After a failed recommendation the request is recommended, which no run has needed."""
    for gib in (1, 10, 10, 10):
        figures = _run(store, used=gib * GIB, seconds=10 * HOUR, memory=64 * GIB)
    assert figures.values["fit.memory"] == 64 * GIB
    found = _judge_memory(figures)
    assert found.outcome == "fired"
    assert found.finding is not None
    assert found.finding.change == "#SBATCH --mem=12G"
    assert "would have passed" not in found.finding.text


def test_an_earlier_run_that_needed_most_of_its_request_excuses_it(store: Store) -> None:
    for gib in (10, 60, 10, 10):
        figures = _run(store, used=gib * GIB, seconds=10 * HOUR, memory=64 * GIB)
    assert figures.values["fit.memory_largest"] == 60 * GIB
    assert _judge_memory(figures).outcome == "excused"


def test_the_command_shows_what_fits(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(4):
        _run(store, name="a\x1b[2Jb")
    latest = store.latest("anna")
    assert latest is not None
    location = ["--store", str(tmp_path / "store.db")]
    assert main(["fit", str(latest.info.job_id), *location]) == 0
    shown = capsys.readouterr().out
    assert "--mem=" in shown
    assert "\x1b" not in shown
    assert main(["fit", str(latest.info.job_id), "--json", *location]) == 0
    listed = msgspec.json.decode(capsys.readouterr().out)["recommendations"]
    assert [each["resource"] for each in listed][:2] == ["memory", "time"]
    assert main(["fit", "--name", "nothing like it", *location]) == 1
    assert main(["fit", "1", "--name", "a", *location]) == 2
    assert main(["fit", "--script", str(tmp_path / "missing.sh"), *location]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_a_run_out_of_memory_raises_the_request(store: Store) -> None:
    for _ in range(5):
        _run(store, memory=8 * GIB)
    figures = _run(store, used=7 * GIB, memory=8 * GIB, state="OUT_OF_MEMORY", exit_code=1)
    memory = figures.values["fit.memory"]
    assert isinstance(memory, float)
    assert memory > 8 * GIB


def test_failures_and_what_they_cost(store: Store) -> None:
    _run(store)
    for _ in range(3):
        figures = _run(store, state="FAILED", exit_code=127, seconds=40)
    assert figures.values["history.failed_runs"] == 3
    assert figures.values["history.failures_in_a_row"] == 3
    assert figures.values["history.failed_fast"] == 3
    assert figures.values["history.same_failure"] == 1.0
    assert figures.values["history.failed_core_time"] == 3 * 4 * 40
    assert figures.values["history.short_runs_day"] == 3
    later = _run(store, day=40)
    assert later.values["history.failed_runs"] == 0
    assert later.values["history.failures_in_a_row"] == 0


def test_runs_of_others_and_of_other_programs_are_other_works(store: Store) -> None:
    _run(store)
    assert _run(store, user="bert").values["history.runs"] == 0
    assert _run(store, programs=(b"/bin/other",)).values["history.runs"] == 0
    assert _run(store, name="sim77").values["history.runs"] == 1


def test_a_run_that_was_seen_in_part_is_no_other_work(store: Store) -> None:
    whole = (b"/bin/prepare", b"/bin/solve")
    for _ in range(4):
        _run(store, programs=whole)
    # The agent stopped before the second program.
    partly = _run(store, programs=whole[:1], measured=0.3)
    assert partly.values["history.runs"] == 4
    running = _run(store, programs=whole[:1], end=None, state="RUNNING")
    assert running.values["history.runs"] == 5
    # What has ended well without it is another one.
    assert _run(store, programs=whole[:1]).values["history.runs"] == 0


def test_the_work_has_become_slower(store: Store) -> None:
    for index in range(10):
        _run(store, cpu=1000 + index)
    for index in range(6):
        figures = _run(store, cpu=1500 + index)
    share = figures.values["history.slower_share"]
    assert isinstance(share, float)
    assert share == pytest.approx(0.5, abs=0.02)
    assert figures.values["history.slower_runs"] == 6


def test_runs_that_were_measured_in_part_do_not_hide_a_change(store: Store) -> None:
    for index in range(12):
        _run(store, cpu=1000 + index)
    for index in range(9):
        # Of every third run an agent saw a fifth.
        part = 0.2 if index % 3 == 1 else 1.0
        figures = _run(store, cpu=int(1500 * part) + index, measured=part)
    assert figures.values["history.slower_share"] == pytest.approx(0.5, abs=0.02)
    assert figures.values["history.slower_runs"] == 6


def test_the_start_of_an_array_is_that_of_its_tasks(store: Store) -> None:
    for task, started in enumerate((600, 900, 900), 1):
        figures = _run(store, seconds=1000, started=started, array_job_id=9, array_task_id=task)
    # The first two are judged again, as when the last task has ended.
    assert figures.values["start.duration"] == pytest.approx(900, abs=1)
    assert figures.values["array.start_share"] == pytest.approx(0.8, abs=0.01)
    first = _judge(store, find_task(store, 1), START + 10**6 * SECOND)
    assert first.values["start.duration"] == pytest.approx(600, abs=1)
    assert first.values["array.start_share"] == pytest.approx(0.8, abs=0.01)
    assert first.values["array.start_core_time"] == pytest.approx(4 * 2400, rel=0.01)


def find_task(store: Store, task: int) -> int:
    return next(run.info.job_id for run in store.runs() if run.info.array_task_id == task)


def test_a_running_run_has_an_expected_end(store: Store) -> None:
    for _ in range(4):
        _run(store, seconds=2 * HOUR)
    figures = _run(store, seconds=600, state="RUNNING", end=None, time_limit=HOUR * SECOND)
    end, start = figures.values["history.expected_end"], figures.values["run.start"]
    assert isinstance(end, float)
    assert isinstance(start, float)
    assert end - start == pytest.approx(2 * HOUR)
    assert figures.values["history.expected_late"] == pytest.approx(HOUR)


def test_an_expected_end_has_a_band(store: Store) -> None:
    for tenths in range(11):
        _run(store, seconds=2 * HOUR + tenths * 360)
    running = {"cpus": 32, "state": "RUNNING", "end": None, "time_limit": HOUR * SECOND}
    figures = _run(store, seconds=1800, cpu=32 * 1800, **running)
    start = figures.values["run.start"]
    assert isinstance(start, float)
    names = ("earliest", "end", "latest")
    times = [figures.values[f"history.expected_{name}"] for name in names]
    assert times == pytest.approx([start + 2 * HOUR + each * 360 for each in (1, 5, 9)])
    [found] = [each for each in RuleSet.load().findings(figures) if each.kind == "time-limit-ahead"]
    earliest, _, latest = (show(time, "time") for time in times)
    assert f"between {earliest} and {latest}." in found.text


def test_the_tasks_of_an_array_are_split(store: Store) -> None:
    for task in range(1, 31):
        used = 20 * GIB if task in (3, 9) else 2 * GIB
        figures = _run(store, used=used, array_job_id=99, array_task_id=task)
    assert figures.values["array.tasks"] == 30
    assert figures.values["array.split_tasks"] == 28
    assert figures.values["array.split_rest"] == ["3", "9"]
    saving = figures.values["array.split_saving"]
    assert isinstance(saving, float)
    assert saving > 0.7


def test_hostile_figures_of_earlier_runs_raise_nothing(store: Store) -> None:
    for _ in range(3):
        _run(store)
    with store.database.write() as transaction:
        for data in (b"", b"no msgpack", zstandard.compress(b"\x80")):
            transaction.execute("UPDATE run_figures SET data = :data", {"data": data})
    assert _run(store).values["history.runs"] == 3


def test_a_change_is_lasting_and_large() -> None:
    assert find_change([10.0] * 10 + [15.0] * 10) == (10, 0.5)
    assert find_change([10.0, 15.0] * 20) is None
    assert find_change([10.0] * 20) is None
    assert find_change([10.0] * 10 + [11.0] * 10) is None
    assert find_change([15.0] * 10 + [10.0] * 10) is None
    assert find_change([10.0] * 17 + [15.0] * 3) is None
    # Five of ten may be higher by chance: there are many places to look at.
    assert find_change([10.0] * 5 + [15.0] * 5) is None
    assert find_change([]) is None
    assert find_change([0.0] * 20) is None


def test_what_changed_is_named() -> None:
    old = {"programs.software": ["gromacs 2024.1"], "programs.executions": 10, "io.read": 5}
    new = {"programs.software": ["gromacs 2024.3"], "programs.executions": 30, "io.read": 5}
    assert describe_change([old] * 5, [new] * 5) == (
        "gromacs 2024.1 was replaced by gromacs 2024.3; programs started: 3 times as many"
    )
    assert describe_change([old] * 5, [old] * 5) == ""
    assert describe_change([], [new]) == ""


def test_the_expected_time_follows_the_phases() -> None:
    past = [({"prepare": 0.0, "solve": 600.0}, 3600.0)] * 5
    # Twice as slow so far.
    assert expect_elapsed({"prepare": 0.0, "solve": 1200.0}, 1300.0, past) == [7200.0] * 5
    # The pace of the first minutes says nothing about hours.
    soon = [({"prepare": 0.0, "solve": 100.0}, 36_000.0)] * 5
    assert expect_elapsed({"prepare": 0.0, "solve": 400.0}, 500.0, soon) == [36_300.0] * 5
    # Not yet further than the first phase.
    assert expect_elapsed({"prepare": 0.0}, 100.0, past) == [3600.0] * 5
    # Never in the past.
    assert expect_elapsed({}, 9000.0, past) == [9000.0] * 5
    assert expect_elapsed({}, 1.0, []) == []


def test_waits_need_thirty_jobs_of_each_shape() -> None:
    large = Wait("normal", 32, 256 * GIB, 48 * HOUR * SECOND, 0, 4 * HOUR * SECOND)
    small = Wait("normal", 32, 32 * GIB, 48 * HOUR * SECOND, 0, HOUR * SECOND)
    now = shape_of(32, 256 * GIB, 48 * HOUR, 0)
    fitted = shape_of(32, 30 * GIB, 48 * HOUR, 0)
    compared = compare_waits([large, small] * 30, "normal", now, fitted)
    assert compared == (4 * HOUR, HOUR, 60)
    assert compare_waits([large, small] * 29, "normal", now, fitted) is None
    assert compare_waits([large, small] * 30, "other", now, fitted) is None


def test_others_are_at_least_five() -> None:
    def uses(users: int) -> list[ProgramUse]:
        hour = HOUR * SECOND
        return [
            ProgramUse(index, f"user{index}", "c1", 8, 4 * hour, 0, hour, 4 * hour)
            for index in range(users)
        ]

    others = compare_users(uses(6), "c1", "user0")
    assert others == (5, 0.5, 8)
    assert compare_users(uses(5), "c1", "user0") is None
    assert compare_users(uses(9), "c2", "user0") is None
