"""The made-up year: reproducible, complete, and exactly what was planted."""

from pathlib import Path

import msgspec
import pytest

from jobsight.cli.main import main
from jobsight.errors import StoreError
from jobsight.findings.work import name_key
from jobsight.metrics import find_metric
from jobsight.model import JobPart
from jobsight.simulation.fill import Truth, fill, read_truth
from jobsight.simulation.misbehaviour import KINDS
from jobsight.simulation.plan import Plan
from jobsight.simulation.records import SimulatedRun
from jobsight.simulation.year import Year
from jobsight.store.store import Store
from tests.store.contents import assert_sound, rows

RUNS = 1000


def small(seed: int = 1, runs: int = RUNS) -> Year:
    return Year(runs, seed=seed)


@pytest.fixture(scope="module")
def runs() -> list[SimulatedRun]:
    return list(small().runs())


def encoded(run: SimulatedRun) -> bytes:
    """All records of a run as bytes."""
    pieces = [msgspec.msgpack.encode((run.info, run.details, sorted(run.labels), run.seen))]
    for part in run.parts:
        series = part.series
        assert series is not None
        pieces += [
            series.times.tobytes(),
            *(column.tobytes() for column in series.columns.values()),
        ]
        pieces.append(msgspec.msgpack.encode(msgspec.structs.replace(part, series=None)))
    return b"".join(pieces)


def test_the_same_seed_gives_the_same_bytes(runs: list[SimulatedRun]) -> None:
    again = small()
    assert [encoded(run) for run in again.runs()] == [encoded(run) for run in runs]
    # Each run by itself, in any order.
    assert [encoded(run) for run in again.runs(40, 60)] == [encoded(run) for run in runs[40:60]]


def test_another_seed_gives_another_year(runs: list[SimulatedRun]) -> None:
    other = list(small(seed=2, runs=50).runs())
    assert [encoded(run) for run in other] != [encoded(run) for run in runs[:50]]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_kind_is_planted(seed: int) -> None:
    # A small site has too few users of a program to compare them, and few running jobs.
    year = small(seed, runs=40_000)
    planted = {label for number in range(year.count) for label in year.plan(number).labels}
    assert planted == KINDS


def test_a_program_that_others_use_better_is_planted_in_a_large_site() -> None:
    def worse(runs: int) -> list[Plan]:
        year = small(runs=runs)
        return [
            year.plan(number)
            for number, each in enumerate(year.appointments)
            if each.work.habit == "better-elsewhere"
        ]

    assert any("better-elsewhere" in plan.labels for plan in worse(20_000))
    # Nothing is said where few others run the program.
    assert any("better-elsewhere" in plan.undecided for plan in worse(3000))


def test_names_of_different_works_differ_in_more_than_digits() -> None:
    works = small(runs=20_000).works
    names = [(work.user.name, name_key(work.name)) for work in works]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("count", [1, 2, 37, 100, 400, 999, 5000])
def test_a_year_has_as_many_runs_as_requested(count: int) -> None:
    year = small(runs=count)
    assert len(year.appointments) == count
    assert year.plan(count - 1).running


def test_a_label_is_never_undecided(runs: list[SimulatedRun]) -> None:
    for run in runs:
        assert not run.labels & run.undecided
        assert run.labels | run.undecided <= KINDS


def test_the_site_has_all_shapes(runs: list[SimulatedRun]) -> None:
    infos = [run.info for run in runs]
    states = {info.state for info in infos}
    assert {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "RUNNING"} <= states
    assert any(info.array_task_id is not None for info in infos)
    assert any(info.het_offset == 1 for info in infos)
    assert any(len(info.nodes or ()) > 1 for info in infos)
    assert any(info.gpus for info in infos)
    assert {run.seen for run in runs} == {"full", "low", "none"}
    assert len({info.job_id for info in infos}) == len(infos)


def test_components_of_a_heterogeneous_job_have_its_id(runs: list[SimulatedRun]) -> None:
    by_id = {run.info.job_id: run.info for run in runs}
    seconds = [run.info for run in runs if run.info.het_offset == 1]
    for info in seconds:
        first = by_id[info.job_id - 1]
        assert first.het_job_id == info.het_job_id == first.job_id
        assert (first.het_offset, first.start) == (0, info.start)


def test_only_training_without_tensor_cores_is_planted_as_such() -> None:
    year = small(runs=3000)
    plans = [year.plan(number) for number in range(year.count)]
    programs = {
        (plan.tensor, "gpu-tensor-unused" in plan.labels): plan.phases[-1].program
        for plan in plans
        if plan.gpus and not plan.running
    }
    # Molecular dynamics without tensor cores is as it should be.
    assert b"pmemd" in programs[0.0, False]
    assert b"/PyTorch/" in programs[0.0, True]
    assert (0.3, True) not in programs


def parts_of(runs: list[SimulatedRun]) -> list[tuple[SimulatedRun, JobPart]]:
    return [(run, part) for run in runs for part in run.parts]


def test_totals_series_and_executables_agree(runs: list[SimulatedRun]) -> None:
    for run, part in parts_of(runs):
        totals, series = part.totals, part.series
        assert totals is not None
        assert series is not None
        columns = series.columns
        assert 20 <= len(series) <= 200
        assert all(find_metric(name) for name in columns)
        assert totals.cpu_time == columns["cpu.time"][-1]
        for name in ("read_characters", "written_bytes", "read_calls"):
            assert getattr(totals, name) == columns[f"io.{name}"][-1]
        assert max(columns["memory.used"]) <= (totals.memory_used_peak or 0) + 1
        counters = [name for name in columns if getattr(find_metric(name), "kind", "") == "counter"]
        for name in counters:
            values = list(columns[name])
            assert values == sorted(values), name
        if run.seen == "full":
            assert totals.cpu_time == sum(use.cpu_time for use in part.executables)
            assert totals.executions == sum(use.executions for use in part.executables)


def test_no_run_uses_more_than_it_holds(runs: list[SimulatedRun]) -> None:
    for run, part in parts_of(runs):
        info, totals = run.info, part.totals
        assert totals is not None
        assert info.cpus
        assert info.start is not None
        held = (totals.time - info.start) * info.cpus // len(info.nodes or (1,))
        # The script itself and its helpers take a second next to the planned programs.
        assert (totals.cpu_time or 0) <= held + 3 * 10**9
        assert (totals.memory_peak or 0) <= (totals.memory_limit or 0)
        for gpu in part.gpus:
            assert (gpu.multiprocessor_time or 0) <= gpu.held_time
            assert (gpu.active_time or 0) <= gpu.held_time


def test_a_filled_store_is_sound_and_has_what_was_planted(
    tmp_path: Path, runs: list[SimulatedRun]
) -> None:
    with Store.open(tmp_path / "store.db") as store:
        truths = fill(store, small())
        assert_sound(store)
        assert len(truths) == RUNS
        stored = {run.info.job_id: run for run in store.runs(limit=RUNS + 1)}
        assert len(stored) == RUNS
        for run in runs:
            found = stored[run.info.job_id]
            cpu_times = [part.totals.cpu_time or 0 for part in run.parts if part.totals]
            assert found.cpu_time == (sum(cpu_times) if cpu_times else None)
            assert found.info.state == run.info.state
            assert found.info.end == run.info.end


def test_a_store_with_runs_is_refused_without_append(tmp_path: Path) -> None:
    year = small(runs=30)
    with Store.open(tmp_path / "store.db") as store:
        fill(store, year)
        before = rows(store)
        with pytest.raises(StoreError, match="has runs; expected an empty one"):
            fill(store, year)
        # The same year again changes nothing.
        fill(store, year, append=True)
        assert rows(store) == before


def test_the_command_fills_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, truth = tmp_path / "store.db", tmp_path / "truth.jsonl"
    options = ["--store", str(store), "--runs", "40", "--days", "30", "--truth", str(truth)]
    assert main(["simulate", "fill", *options]) == 0
    assert capsys.readouterr().out.startswith("40 runs of 12 users and ")
    truths = read_truth(truth)
    assert len(truths) == 40
    assert all(isinstance(each, Truth) for each in truths)
    assert main(["simulate", "fill", *options]) != 0
    assert "expected an empty one, or --append" in capsys.readouterr().err
