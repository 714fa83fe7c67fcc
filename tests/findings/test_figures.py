"""The figures of runs whose behaviour is known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobsight.findings.analysis.activity import end_of_work
from jobsight.findings.analysis.memory import growth_of
from jobsight.findings.analysis.steps import Step, pack
from jobsight.findings.engine import RuleSet
from jobsight.findings.history import memory_of_node
from jobsight.findings.vocabulary import FIGURES, FigureSet
from jobsight.model import SECOND, Coverage, GpuFault
from jobsight.scheduler.records import JobDetails, StepInfo
from jobsight.store.store import Store
from tests.findings.measured import (
    EXACT,
    GIB,
    HOUR,
    START,
    at,
    figures_of,
    gpu,
    node_info,
    program,
    step,
    until,
    write_nodes,
    write_run,
)

GPU_COVERAGE = EXACT | {"gpu": Coverage(quality="exact")}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "store.db")) as store:
        yield store


def value(figures: FigureSet, name: str) -> Any:
    assert name in figures.values, (name, figures.reason(name))
    return figures.values[name]


def near(expected: float, tolerance: float = 0.02) -> Any:
    return pytest.approx(expected, rel=tolerance, abs=1e-6)


# The run and its CPUs


def test_the_run_and_its_cpus(store: Store) -> None:
    figures = figures_of(
        store, cores=lambda moment: 1.0, cpus=4, time_limit=2 * 3600 * SECOND,
        submit=START - 600 * SECOND, array_job_id=62, array_task_id=3, exit_signal=125,
    )  # fmt: skip
    assert value(figures, "run.state") == "COMPLETED"
    assert value(figures, "run.elapsed") == 3600
    assert value(figures, "run.array") is True
    assert value(figures, "run.exit_signal") == 0
    assert value(figures, "time.share") == 0.5
    assert value(figures, "queue.wait") == 600
    assert value(figures, "cpu.time") == near(3600)
    assert value(figures, "cpu.idle") == near(3 * 3600)
    assert value(figures, "cpu.share") == near(0.25)
    assert value(figures, "cpu.peak_cores") == near(1)
    assert value(figures, "cpu.steadiness") == near(1)
    assert figures.reason("time.left") == "the run has ended"
    assert figures.coverage["cpu"] == 1.0


def test_a_running_job_counts_up_to_its_last_totals(store: Store) -> None:
    figures = figures_of(store, running=True, length=600, time_limit=3600 * SECOND)
    assert value(figures, "run.running") is True
    assert value(figures, "cpu.share") == near(1)
    assert value(figures, "time.left") == 3000
    assert figures.reason("run.end") == "the run has not ended"


def test_more_than_all_cpus_is_shown(store: Store) -> None:
    """A ratio above 1 is not dropped."""
    figures = figures_of(store, cpus=1, cores=lambda moment: 1.3)
    assert value(figures, "cpu.share") == near(1.3)
    assert value(figures, "cpu.idle") == 0


def test_an_unused_node_is_named(store: Store) -> None:
    figures = figures_of(
        store, nodes=("n1", "n2"), cpus=8, cores_of={"n2": lambda moment: 0.0},
        programs={"n1": [program("/usr/bin/solve", 4 * HOUR, 0, HOUR)]},
    )  # fmt: skip
    assert value(figures, "cpu.nodes_unused") == 1
    assert value(figures, "cpu.unused_node_names") == ["n2"]
    assert value(figures, "cpu.node_imbalance") == near(1)
    assert value(figures, "cpu.imbalance_time") == near(4 * HOUR)


def test_equal_nodes_are_not_unused_nor_uneven(store: Store) -> None:
    programs = [program("/usr/bin/solve", 4 * HOUR, 0, HOUR)]
    figures = figures_of(store, nodes=("n1", "n2"), cpus=8, programs=programs)
    assert value(figures, "cpu.nodes_unused") == 0
    assert value(figures, "cpu.node_imbalance") == pytest.approx(0, abs=0.01)
    assert value(figures, "cpu.cores_95") == near(8)


def test_cores_of_a_node_are_compared(store: Store) -> None:
    columns = {f"cores.{core}.time": lambda moment, core=core: moment * SECOND * (core > 0)
               for core in range(4)}  # fmt: skip
    coverage = EXACT | {"cores": Coverage(quality="exact")}
    figures = figures_of(store, columns=columns, coverage=coverage)
    assert value(figures, "cpu.core_balance") == 0
    again = figures_of(store, job_id=8)
    assert again.reason("cpu.core_balance") == "the CPU time of single cores was not measured"


# The time after the work


def test_what_held_the_job_after_the_work(store: Store) -> None:
    figures = figures_of(
        store, length=10 * HOUR, cpus=32, cores=until(2 * HOUR, 30.0, 0.001),
        programs=[
            program("/apps/solve", 60 * HOUR, 10, 2 * HOUR),
            program("/usr/bin/bash", 0.1, 0, 10 * HOUR),
            program("/usr/bin/sleep", 0.002, 2 * HOUR, 10 * HOUR),
        ],
    )  # fmt: skip
    assert value(figures, "idle.since") == pytest.approx(START / SECOND + 2 * HOUR, abs=40)
    assert value(figures, "idle.duration") == near(8 * HOUR, 0.01)
    assert value(figures, "idle.share") == near(0.8, 0.01)
    assert value(figures, "idle.core_time") == near(8 * 32 * HOUR, 0.01)
    assert value(figures, "idle.holder") == "/usr/bin/sleep"
    assert value(figures, "idle.holders") == ["/usr/bin/sleep", "/usr/bin/bash"]
    assert value(figures, "programs.sleep_share") == near(0.8, 0.01)


def test_a_job_that_works_to_its_end_is_not_idle(store: Store) -> None:
    """Also on one of many CPUs."""
    programs = [program("/apps/solve", 10 * HOUR, 0, 10 * HOUR)]
    figures = figures_of(
        store, length=10 * HOUR, cpus=64, cores=lambda moment: 1.0, programs=programs
    )
    assert value(figures, "idle.duration") == 0
    assert figures.reason("idle.holder") == "the run worked to its end"


def test_a_burst_at_the_end_does_not_hide_idle_hours(store: Store) -> None:
    end = 10 * HOUR
    shape = lambda moment: 4.0 if moment < HOUR or moment > end - 30 else 0.0  # noqa: E731
    figures = figures_of(store, length=end, cores=shape)
    assert value(figures, "idle.duration") == near(9 * HOUR, 0.01)


def test_end_of_work() -> None:
    def ends(*parts: tuple[int, bool]) -> int:
        return end_of_work(np.repeat([busy for _, busy in parts], [count for count, _ in parts]))

    assert ends((100, True), (100, False)) == 100
    assert ends((100, True)) == 100
    assert ends((100, False)) == 0
    # Work that begins again is work.
    assert ends((100, True), (100, False), (50, True)) == 250
    assert ends((100, True), (400, False), (2, True)) == 100
    assert end_of_work(np.zeros(0, np.bool_)) == 0


# Memory


def test_memory_by_its_definitions(store: Store) -> None:
    details = JobDetails(steps=[StepInfo(step="batch", memory_peak=5 * GIB), StepInfo(step="0")])
    figures = figures_of(
        store, details=details, programs=[program("/apps/big", 10, 0, HOUR, peak_memory=3 * GIB)],
        totals={"memory_used_peak": 4 * GIB, "memory_peak": 12 * GIB, "swap_peak": GIB},
    )  # fmt: skip
    assert value(figures, "memory.used") == 4 * GIB
    assert value(figures, "memory.share") == 0.25
    assert value(figures, "memory.kernel_peak") == 12 * GIB
    assert value(figures, "memory.cache") == 8 * GIB
    assert value(figures, "memory.slurm_peak") == 5 * GIB
    assert value(figures, "memory.swap_peak") == GIB
    assert value(figures, "memory.unused_time") == 12 * GIB * HOUR
    assert value(figures, "memory.largest_program") == "/apps/big"
    assert value(figures, "memory.oom_kills") == 0


def test_the_fullest_node_decides_the_memory_of_a_node(store: Store) -> None:
    columns = {"n1": 12 * GIB, "n2": 2 * GIB}
    figures = figures_of(
        store, nodes=("n1", "n2"), memory=32 * GIB,
        columns_of={name: {"memory.used": lambda moment, size=size: size}
                    for name, size in columns.items()},
    )  # fmt: skip
    assert value(figures, "memory.used") == 14 * GIB
    assert value(figures, "memory.node_used") == near(12 * GIB)
    assert value(figures, "memory.node_requested") == 16 * GIB
    # --mem is that of a node.
    assert memory_of_node(28 * GIB, figures.values, 2) == near(24 * GIB, 0.1)
    assert memory_of_node(28 * GIB, {}, 2) == near(14 * GIB, 0.1)


def test_out_of_memory_is_a_kill_and_the_kernel_s_peak(store: Store) -> None:
    figures = figures_of(
        store, state="OUT_OF_MEMORY",
        totals={"memory_used_peak": 4 * GIB, "memory_peak": 16 * GIB, "oom_kills": 0},
    )  # fmt: skip
    assert value(figures, "memory.oom_kills") == 1
    assert value(figures, "memory.used") == 16 * GIB


def test_a_leak_is_linear_without_plateau(store: Store) -> None:
    slope = 14 * GIB / (6 * HOUR)
    columns = {"memory.used": lambda moment: GIB + slope * moment}
    figures = figures_of(store, length=6 * HOUR, columns=columns, running=True)
    assert value(figures, "memory.growth_rate") == near(slope, 0.01)
    assert value(figures, "memory.growth_share") == near(14 / 16 * 2 / 3, 0.01)
    assert value(figures, "memory.growth_fit") > 0.99
    assert value(figures, "memory.growth_plateau") is False
    assert value(figures, "memory.growth_node") == "n1"
    assert value(figures, "memory.time_to_limit") == near(GIB / slope, 0.05)


@pytest.mark.parametrize("when", [0.1, 0.5, 0.9])
def test_one_allocation_is_no_leak(store: Store, when: float) -> None:
    length = 6 * HOUR
    columns = {"memory.used": lambda moment: 12 * GIB if moment > when * length else GIB}
    figures = figures_of(store, length=length, columns=columns)
    leaking = (
        value(figures, "memory.growth_fit") > 0.9
        and value(figures, "memory.growth_share") > 0.2
        and not value(figures, "memory.growth_plateau")
    )
    assert not leaking
    assert figures.reason("memory.time_to_limit") == "the run has ended"


def test_the_node_that_grows_is_named(store: Store) -> None:
    nodes = [f"n{number}" for number in range(12)]
    grows = {"memory.used": lambda moment: GIB * moment / HOUR}
    figures = figures_of(
        store, nodes=nodes, memory=12 * 2 * GIB, interval=120,
        columns={"memory.used": lambda moment: GIB}, columns_of={"n7": grows},
    )  # fmt: skip
    assert value(figures, "memory.growth_node") == "n7"
    assert value(figures, "memory.growth_share") == near(1 / 2 * 2 / 3, 0.05)


def test_growth_of_few_or_constant_points() -> None:
    times = np.linspace(0.0, 100.0, 50)
    assert growth_of(times[:5], times[:5]) is None
    constant = growth_of(times, np.full(50, 1e9))
    assert constant is not None
    assert (constant.rate, constant.fit, constant.plateau) == (0.0, 0.0, True)
    assert growth_of(times, np.full(50, np.nan)) is None


# Programs


def test_the_program_that_left_cpus_idle(store: Store) -> None:
    """A pipeline: a parallel program for 6 h, then a serial one for 4 h."""
    figures = figures_of(
        store, length=10 * HOUR, cpus=32, cores=until(6 * HOUR, 32.0, 1.0),
        programs=[
            program("/apps/bwa", 192 * HOUR, 0, 6 * HOUR),
            program("/apps/samtools", 4 * HOUR, 6 * HOUR, 10 * HOUR),
            program("/usr/bin/bash", 0.1, 0, 10 * HOUR),
        ],
    )  # fmt: skip
    assert value(figures, "programs.top") == "/apps/bwa"
    assert value(figures, "programs.top_cores") == near(32)
    assert value(figures, "programs.wasteful") == "/apps/samtools"
    assert value(figures, "programs.wasteful_cores") == near(1)
    assert value(figures, "programs.wasteful_share") == near(0.4)
    assert value(figures, "programs.wasteful_idle") == near(31 * 4 * HOUR, 0.01)
    assert value(figures, "programs.serial_share") == near(4 / 196)
    assert value(figures, "programs.last") == "/apps/samtools"


@pytest.mark.parametrize("share", [0.97, 1.0, 1.01])
def test_a_serial_program_is_serial_above_100_percent_too(store: Store, share: float) -> None:
    programs = [program("/usr/bin/python3", share * HOUR, 0, HOUR)]
    figures = figures_of(store, cpus=16, cores=lambda moment: share, programs=programs)
    assert value(figures, "programs.serial_share") == 1
    assert value(figures, "programs.wasteful_idle") == near((16 - share) * HOUR)


def test_a_parallel_program_that_is_started_now_and_then_is_not_serial(store: Store) -> None:
    """On 32 CPUs for 1 of 100 minutes: its mean is a third of a CPU."""
    shape = lambda moment: 32.0 if moment % 6000 < 60 else 0.0  # noqa: E731
    programs = [program("/apps/solve", 32 * 360, 0, 10 * HOUR, executions=6)]
    figures = figures_of(store, length=10 * HOUR, cpus=32, cores=shape, programs=programs)
    assert value(figures, "programs.serial_share") == 0


def test_without_series_programs_are_judged_by_their_times(store: Store) -> None:
    figures = figures_of(
        store, series=False, cpus=32,
        programs=[program("/apps/one", HOUR / 2, 0, HOUR / 2),
                  program("/apps/all", 16 * HOUR, HOUR / 2, HOUR)],
    )  # fmt: skip
    assert value(figures, "programs.wasteful") == "/apps/one"
    assert value(figures, "programs.serial_share") == near(0.5 / 16.5)
    assert figures.reason("idle.since") == "no time series are stored"
    assert figures.reason("cpu.peak_cores") == "no time series are stored"


def test_failures_name_the_program_and_its_habit(store: Store) -> None:
    for job in range(20, 26):
        grep = program("/usr/bin/grep", 0.1, 0, 1, executions=50, failures=25)
        write_run(store, job_id=job, length=600, programs=[grep], user=f"user{job}")
    figures = figures_of(
        store, length=600,
        programs=[
            program("/apps/vasp_std", 10, 0, 500, executions=40, failures=37),
            program("/usr/bin/bash", 0.1, 0, 600, executions=50, failures=50),
        ],
    )  # fmt: skip
    assert value(figures, "programs.failed") == "/apps/vasp_std"
    assert value(figures, "programs.failures") == 37
    assert value(figures, "programs.failed_share") == near(37 / 40)
    assert figures.reason("programs.failed_habit") == "few other users have started it"
    habitual = figures_of(
        store, job_id=8, length=600,
        programs=[program("/usr/bin/grep", 0.1, 0, 1, executions=40, failures=30)],
    )  # fmt: skip
    assert value(habitual, "programs.failed_habit") == near(0.5)


def test_a_script_that_always_fails_is_no_habit_of_the_others(store: Store) -> None:
    for job in range(20, 32):
        failing = program("/apps/r/bin/R", 10, 0, 500, executions=50, failures=50)
        write_run(store, job_id=job, length=600, programs=[failing])
    alone = figures_of(store, length=600, programs=[failing])
    assert "programs.failed_habit" not in alone.values
    for job, user in enumerate(("grace", "alan", "edsger"), 40):
        good = program("/apps/r/bin/R", 10, 0, 500, executions=9, failures=0)
        write_run(store, job_id=job, length=600, programs=[good], user=user)
    assert (
        value(figures_of(store, job_id=8, length=600, programs=[failing]), "programs.failed_habit")
        == 0
    )


def test_an_exit_code_that_is_an_answer_does_not_hide_a_failure(store: Store) -> None:
    figures = figures_of(
        store, length=600,
        programs=[
            program("/usr/bin/grep", 0.1, 0, 1, executions=9, failures=9),
            program("/apps/solve", 100, 0, 600, executions=6, failures=6),
        ],
    )  # fmt: skip
    assert value(figures, "programs.failed") == "/apps/solve"
    only = [program("/usr/bin/grep", 0.1, 0, 1, executions=9, failures=9)]
    assert value(figures_of(store, job_id=8, programs=only), "programs.failed_habit") == 0.5


def test_nothing_failed(store: Store) -> None:
    figures = figures_of(store, programs=[program("/apps/solve", 4 * HOUR, 0, HOUR)])
    assert value(figures, "programs.failures") == 0
    assert figures.reason("programs.failed") == "no program failed"


def test_short_programs(store: Store) -> None:
    figures = figures_of(
        store, cores=lambda moment: 1.0,
        programs=[
            program("/usr/bin/awk", 0.38 * HOUR, 0, HOUR, executions=1_200_000),
            program("/usr/bin/python3", 0.6 * HOUR, 0, HOUR),
        ],
    )  # fmt: skip
    assert value(figures, "programs.short") == "/usr/bin/awk"
    assert value(figures, "programs.short_executions") == 1_200_000
    assert value(figures, "programs.short_share") == near(0.38 / 0.98)
    assert value(figures, "programs.rate") == near(1_200_001 / HOUR)


def test_the_start_of_the_work(store: Store) -> None:
    """conda and imports for 71 of 95 seconds."""
    figures = figures_of(
        store, length=95, cpus=2, interval=1, cores=until(71, 0.5, 2.0),
        programs=[
            program("/opt/conda/bin/conda", 4.5, 0, 30),
            program("/usr/bin/solve", 48, 71, 95),
        ],
    )  # fmt: skip
    assert value(figures, "start.duration") == pytest.approx(73.5, abs=3)
    assert value(figures, "start.share") == pytest.approx(0.77, abs=0.04)
    assert value(figures, "start.core_time") == pytest.approx(147, abs=6)
    none = figures_of(store, job_id=8, length=95, programs=[program("/usr/bin/true", 0.1, 0, 95)])
    assert none.reason("start.duration") == "no program used 5 s of CPU time"


def test_interactive_is_decided_by_programs_and_steps_not_by_the_job_name(store: Store) -> None:
    named = figures_of(
        store, name="interactive jupyter", programs=[program("/usr/bin/python3", 10, 0, HOUR)]
    )
    assert value(named, "run.interactive") is False
    for number, (programs, more) in enumerate(
        [
            ([program("/usr/bin/python3//-m jupyterlab", 10, 0, HOUR)], {}),
            ([program("/opt/rstudio/bin/rserver", 10, 0, HOUR)], {}),
            ([program("/home/ada/.vscode-server/bin/abc/node", 10, 0, HOUR)], {}),
            ([program("/usr/bin/vim", 10, 0, HOUR)], {"steps": [step("interactive", 1, 0, HOUR)]}),
            ([program("/usr/bin/vim", 10, 0, HOUR)],
             {"details": JobDetails(submit_line="srun -c4 --pty bash")}),
        ],
        start=20,
    ):  # fmt: skip
        figures = figures_of(store, job_id=number, programs=programs, **more)
        assert value(figures, "run.interactive") is True, number


# Steps


def test_steps_one_after_the_other(store: Store) -> None:
    """64 steps on 1 of 64 CPUs, 6 minutes each."""
    steps = [step(str(place), 360, 360 * place, 360 * (place + 1)) for place in range(64)]
    infos = [StepInfo(step=str(place), name="solve") for place in range(64)]
    figures = figures_of(
        store, length=64 * 360, cpus=64, cores=lambda moment: 1.0, steps=steps, memory=None,
        details=JobDetails(steps=infos), interval=60,
    )  # fmt: skip
    assert value(figures, "steps.count") == 64
    assert value(figures, "steps.sequential") is True
    assert value(figures, "steps.cores_peak") == near(1)
    assert value(figures, "steps.alike") == 1
    assert value(figures, "steps.idle") == near(63 * 64 * 360)
    assert value(figures, "steps.packed_elapsed") == near(360)


def test_steps_side_by_side(store: Store) -> None:
    steps = [step("batch", 1, 0, HOUR), *(step(str(place), HOUR, 0, HOUR) for place in range(4))]
    figures = figures_of(store, steps=steps)
    assert value(figures, "steps.count") == 4
    assert value(figures, "steps.sequential") is False
    assert value(figures, "steps.cores_peak") == near(4)
    assert value(figures, "steps.idle") == pytest.approx(0, abs=1)
    assert value(figures, "steps.packed_elapsed") == near(HOUR)


def test_packing_is_bounded_by_cores_and_memory() -> None:
    steps = [Step(0.0, 100.0, 100.0, GIB, None) for _ in range(8)]
    assert pack(steps, 8, None) == 100
    assert pack(steps, 4, None) == 200
    assert pack(steps, 8, 2.0 * GIB) == 400
    # A step larger than the allocation runs alone.
    assert pack([Step(0.0, 10.0, 1000.0, 4 * GIB, None)], 8, 1.0 * GIB) == 10


# GPUs


def gpu_columns(active: Any, keys: str = "0", idle_of: int | None = None) -> dict[str, Any]:
    """Series of GPUs that are active as a function of the time, 0 to 1."""
    columns: dict[str, Any] = {
        f"gpu.{key}.utilization": lambda moment: 100 * active(moment) for key in keys
    }
    columns["gpu.held"] = lambda moment: len(keys)
    columns["gpu.idle"] = lambda moment: 0 if active(moment) > 0 else len(keys)
    return columns


def test_one_active_sample_does_not_clear_an_idle_gpu(store: Store) -> None:
    length = 48 * HOUR
    shape = lambda moment: 1.0 if 600 < moment <= 630 else 0.0  # noqa: E731
    figures = figures_of(
        store, length=length, cores=lambda moment: 0.1, gpus=[gpu("0", length, 30)],
        columns=gpu_columns(shape), coverage=GPU_COVERAGE,
    )  # fmt: skip
    assert value(figures, "gpu.unused") == 0
    assert value(figures, "gpu.idle") == pytest.approx(47.99 * HOUR, abs=60)
    assert value(figures, "gpu.idle_share") > 0.999
    assert value(figures, "gpu.idle_duration") == near(length - 630, 0.01)


def test_a_gpu_that_was_never_opened(store: Store) -> None:
    figures = figures_of(
        store, gpus=[gpu("0", HOUR, 0), gpu("1", HOUR, HOUR), gpu("2", HOUR, 0, used=True)],
        columns={"gpu.1.utilization": lambda moment: 100, "gpu.0.utilization": lambda moment: 0,
                 "gpu.2.utilization": lambda moment: 0},
        coverage=GPU_COVERAGE,
    )  # fmt: skip
    assert value(figures, "gpu.count") == 3
    assert value(figures, "gpu.unused") == 2
    assert value(figures, "gpu.never_opened") == 1
    assert value(figures, "gpu.unused_time") == 2 * HOUR
    assert value(figures, "gpu.idle") == near(2 * HOUR)
    # Those that were never used wait for nothing.
    assert value(figures, "gpu.waiting") == pytest.approx(0, abs=1)
    assert value(figures, "gpu.imbalance_time") == pytest.approx(0, abs=1)


def test_a_mig_instance_without_utilization_is_not_idle(store: Store) -> None:
    """The agent never counts it as idle; what is not measured is not known."""
    figures = figures_of(
        store, gpus=[gpu("0:1", HOUR, None, parent="0")], coverage=GPU_COVERAGE,
        columns={"gpu.held": lambda moment: 1, "gpu.idle": lambda moment: 0},
    )  # fmt: skip
    for name in ("gpu.idle", "gpu.idle_share", "gpu.idle_since", "gpu.unused", "gpu.waiting"):
        assert name not in figures.values
        assert figures.reason(name) == "the activity of the GPUs was not measured"
    assert figures.coverage["gpu"] == 0
    assert value(figures, "gpu.count") == 1


def test_a_mig_instance_is_judged_by_its_multiprocessors(store: Store) -> None:
    length = 10 * HOUR
    busy = round(2 * HOUR * SECOND)
    figures = figures_of(
        store, length=length, cores=lambda moment: 0.01,
        gpus=[gpu("0:1", length, None, parent="0", used=True, multiprocessor_time=busy)],
        columns={"gpu.held": lambda moment: 1, "gpu.idle": lambda moment: 0,
                 "gpu.0:1.multiprocessor_time": lambda moment: min(moment, 2 * HOUR) * SECOND},
        coverage=GPU_COVERAGE,
    )  # fmt: skip
    assert value(figures, "gpu.idle") == near(8 * HOUR, 0.01)
    assert value(figures, "gpu.idle_duration") == near(8 * HOUR, 0.01)
    assert value(figures, "gpu.used_share") == near(0.2)


@pytest.mark.parametrize(
    ("cores", "more", "cause"),
    [
        (1.0, {}, "serial host code"),
        (15.0, {}, "data loading"),
        (0.05, {}, "nothing"),
        (0.2, {"io.read_bytes": lambda moment: 1e8 * moment}, "storage"),
        (0.2, {"tasks.blocked": lambda moment: 3}, "storage"),
        (1.0, {"pressure.memory_full": lambda moment: 0.5e9 * moment}, "memory"),
        (0.1, {"network.ib0.received_bytes": lambda moment: 1e9 * moment}, "network"),
    ],
)
def test_what_the_gpu_waited_for(store: Store, cores: float, more: Any, cause: str) -> None:
    """It computes in every second ten minutes, and waits in the others."""
    active = lambda moment: 1.0 if moment % 1200 < 600 else 0.0  # noqa: E731
    figures = figures_of(
        store, length=10 * HOUR, cpus=16,
        cores=lambda moment: 1.0 if active(moment) else cores,
        programs=[program("/usr/bin/python3", 10 * HOUR, 0, 10 * HOUR),
                  program("/usr/bin/bash", 1, 0, 10 * HOUR)],
        gpus=[gpu("0", 10 * HOUR, 5 * HOUR)], columns=gpu_columns(active) | more,
        coverage=GPU_COVERAGE | {"network": Coverage(quality="estimate")},
    )  # fmt: skip
    assert value(figures, "gpu.waiting") == near(5 * HOUR, 0.05)
    assert value(figures, "gpu.wait_cause") == cause
    assert value(figures, "gpu.wait_share") > 0.9
    assert value(figures, "gpu.wait_program") == "/usr/bin/python3"


def test_the_time_before_the_first_use_is_the_start_up(store: Store) -> None:
    active = lambda moment: 1.0 if moment > 2 * HOUR else 0.0  # noqa: E731
    figures = figures_of(
        store, length=10 * HOUR, gpus=[gpu("0", 10 * HOUR, 8 * HOUR)],
        columns=gpu_columns(active), coverage=GPU_COVERAGE,
    )  # fmt: skip
    assert value(figures, "gpu.wait_cause") == "start-up"
    assert value(figures, "gpu.waiting") == pytest.approx(0, abs=60)
    assert value(figures, "gpu.idle_duration") == 0


def test_gpus_wait_for_the_busiest(store: Store) -> None:
    figures = figures_of(
        store, gpus=[gpu("0", HOUR, HOUR), gpu("1", HOUR, HOUR / 2)],
        columns={"gpu.0.utilization": lambda moment: 100, "gpu.1.utilization": lambda moment: 50},
        coverage=GPU_COVERAGE,
    )  # fmt: skip
    assert value(figures, "gpu.imbalance_time") == near(HOUR / 2)
    assert value(figures, "gpu.idle") == pytest.approx(0, abs=1)


def test_clocks_faults_and_energy(store: Store) -> None:
    faults = [
        GpuFault(kind="xid", count=2, last=at(10), code=63),
        GpuFault(kind="ecc corrected", count=900, last=at(10)),
    ]
    figures = figures_of(
        store, gpus=[gpu("0", HOUR, 0, energy=10**6 * 360_000, faults=faults,
                         throttled_time={"temperature": 360 * SECOND, "power": 100 * SECOND})],
        columns={"gpu.0.utilization": lambda moment: 0,
                 "gpu.0.energy": lambda moment: moment * 100e6,
                 "energy.cpu": lambda moment: moment * 50e6},
        cores=until(HOUR / 2, 4.0), coverage=GPU_COVERAGE,
    )  # fmt: skip
    assert value(figures, "gpu.faults") == 2
    assert value(figures, "gpu.fault_kinds") == ["xid 63"]
    assert value(figures, "gpu.throttled_share") == near(0.1)
    assert value(figures, "gpu.throttle_reason") == "temperature"
    assert value(figures, "gpu.energy") == 360_000
    assert value(figures, "gpu.idle_energy") == near(360_000)
    assert value(figures, "energy.total") == near(360_000 + 180_000)
    assert value(figures, "energy.idle") == near(360_000 + 90_000)


def test_gpus_that_no_node_reports_are_held_and_not_known(store: Store) -> None:
    without = figures_of(store)
    assert value(without, "gpu.count") == 0
    assert without.reason("gpu.idle") == "the job has no GPU"
    allocated = figures_of(store, job_id=8, tres={"gres/gpu:h200": 2})
    assert value(allocated, "gpu.count") == 2
    assert value(allocated, "gpu.held") == 2 * HOUR
    assert "gpu.unused" not in allocated.values
    assert allocated.reason("gpu.unused") == "no node has reported the GPUs"
    assert allocated.coverage["gpu"] == 0


# The nodes


def test_the_shape_comes_from_the_scheduler(store: Store) -> None:
    write_nodes(
        store,
        *(node_info(f"n{number}", 64, 256 * GIB) for number in range(1, 9)),
        node_info("fat", 64, 4096 * GIB),
        node_info("g1", 96, 1024 * GIB, gres={"gpu:h200": 8}),
    )
    figures = figures_of(store, nodes=("n1", "n2", "n3", "n4"), cpus=16, cores=lambda moment: 4.0)
    assert value(figures, "node.cores") == 64
    assert value(figures, "node.memory") == 256 * GIB
    assert value(figures, "node.minimum") == 1
    assert value(figures, "node.cores_per_node") == 4
    assert value(figures, "memory.per_core_of_node") == 4 * GIB
    assert value(figures, "memory.cores_fill_node") is False
    assert value(figures, "node.large_memory") is False
    full = figures_of(store, job_id=8, nodes=("n1",), cpus=64)
    assert value(full, "memory.cores_fill_node") is True
    large = figures_of(store, job_id=9, nodes=("fat",), cpus=4)
    assert value(large, "node.large_memory") is True
    assert value(large, "node.normal_memory") == 256 * GIB
    gpus = [gpu(str(key), HOUR, HOUR) for key in range(2)]
    with_gpus = figures_of(store, job_id=10, nodes=("g1",), cpus=48, gpus=gpus, memory=512 * GIB)
    assert value(with_gpus, "gpu.cores_per_gpu") == 24
    assert value(with_gpus, "gpu.node_cores_per_gpu") == 12
    assert value(with_gpus, "gpu.memory_per_gpu") == 256 * GIB
    assert value(with_gpus, "gpu.node_memory_per_gpu") == 128 * GIB
    assert value(with_gpus, "gpu.nodes_needed") == 1
    assert value(with_gpus, "node.large_memory") is False


def test_a_cluster_without_records_is_not_judged(store: Store) -> None:
    """No table of a person, and no zero in its place."""
    figures = figures_of(store)
    for name in ("node.cores", "node.minimum", "memory.cores_fill_node", "node.large_memory"):
        assert name not in figures.values
        assert figures.reason(name) == "the scheduler's records of the nodes are not known"


def test_whole_nodes_by_allocation_or_command(store: Store) -> None:
    write_nodes(store, node_info("n1", 64, 256 * GIB))
    asked = figures_of(store, cpus=64, details=JobDetails(tres_requested={"cpu": 1}))
    assert value(asked, "run.exclusive") is True
    shared = figures_of(store, job_id=8, cpus=4, details=JobDetails(tres_requested={"cpu": 4}))
    assert value(shared, "run.exclusive") is False
    line = JobDetails(submit_line="sbatch --exclusive job.sh")
    assert value(figures_of(store, job_id=9, details=line), "run.exclusive") is True


def test_a_shared_node_gets_the_same_figures(store: Store) -> None:
    write_nodes(store, node_info("n1", 64, 256 * GIB))
    programs = [program("/usr/bin/python3", HOUR, 0, HOUR)]
    shape = lambda moment: 1.0  # noqa: E731
    shared = figures_of(store, cpus=16, cores=shape, programs=programs)
    alone = figures_of(store, job_id=8, cpus=16, cores=shape, programs=programs,
                       details=JobDetails(submit_line="sbatch --exclusive"))  # fmt: skip
    for name in ("programs.wasteful_idle", "programs.serial_share", "cpu.share", "idle.duration"):
        assert value(shared, name) == value(alone, name)


# Input and output


def test_input_and_output(store: Store) -> None:
    figures = figures_of(
        store,
        totals={"read_characters": 10**9, "written_characters": 10**9, "read_calls": 10**6,
                "write_calls": 10**6, "read_bytes": 10**8, "written_bytes": 0},
        programs=[program("/usr/bin/cat", 1, 0, HOUR, read_bytes=10**8)],
        columns={"files.open": lambda moment: 50, "files.scratch": lambda moment: moment / HOUR * 8,
                 "tasks.threads": lambda moment: 9, "tasks.running": lambda moment: 3},
    )  # fmt: skip
    assert value(figures, "io.calls") == 2 * 10**6
    assert value(figures, "io.bytes_per_call") == 1000
    assert value(figures, "io.calls_rate") == near(2e6 / HOUR)
    assert value(figures, "io.top_program") == "/usr/bin/cat"
    assert value(figures, "files.open_mean") == near(50)
    assert value(figures, "files.scratch_peak") == 8
    assert value(figures, "files.bytes_per_file") == near(2e9 / 50)
    assert value(figures, "programs.threads_peak") == 9
    assert value(figures, "programs.running_mean") == near(3)


def test_pressure_is_known_only_where_it_was_measured(store: Store) -> None:
    reason = "the job has no v2 cgroup of its own, or the kernel does not provide PSI"
    without = figures_of(
        store, coverage=EXACT | {"pressure": Coverage(quality="missing", reason=reason)}
    )
    for name in ("cpu.pressure", "io.pressure", "io.stalled", "memory.pressure_full"):
        assert name not in without.values
        assert without.reason(name) == reason
    columns = {"pressure.cpu": lambda moment: moment * SECOND / 4,
               "pressure.io_full": lambda moment: moment * SECOND / 10}  # fmt: skip
    figures = figures_of(store, job_id=8, columns=columns)
    assert value(figures, "cpu.pressure") == near(0.25)
    assert value(figures, "io.stalled") == near(0.1 * 4 * HOUR)


def test_what_was_not_measured_is_not_idle(store: Store) -> None:
    """The agent was gone after two of ten hours; the scheduler knows the end."""
    figures = figures_of(
        store, length=2 * HOUR, running=True, state="COMPLETED", end=at(10 * HOUR), exit_code=0,
        gpus=[gpu("0", 2 * HOUR, HOUR)], columns=gpu_columns(lambda moment: 1.0),
        coverage=GPU_COVERAGE,
    )  # fmt: skip
    assert value(figures, "run.elapsed") == 10 * HOUR
    assert figures.coverage["cpu"] == near(0.2)
    assert figures.coverage["gpu"] == near(0.2)
    for name in ("idle.since", "idle.duration", "gpu.idle_since"):
        assert name not in figures.values
    assert figures.reason("idle.since") == "the nodes did not report to the end of the run"


# Coverage, and runs of which little is known


def test_coverage_is_the_share_of_the_run(store: Store) -> None:
    coverage = {
        "cpu": Coverage(quality="exact"),
        "memory": Coverage(quality="estimate", time_share=0.9),
        "io": Coverage(quality="failed", reason="/proc/PID/io: permission denied"),
        "executables": Coverage(quality="estimate", cpu_share=0.8, time_share=0.97),
    }
    programs = [program("/usr/bin/solve", 3 * HOUR, 0, HOUR)]
    figures = figures_of(store, coverage=coverage, programs=programs)
    assert figures.coverage["cpu"] == 1
    assert figures.coverage["memory"] == 0.9
    assert figures.coverage["io"] == 0
    assert figures.coverage["executables"] == near(0.75)
    assert figures.reason("io.read") == "/proc/PID/io: permission denied"
    silent = figures_of(store, job_id=8, nodes=("n1",), tres={"node": 4})
    assert silent.coverage["cpu"] == 0.25


def test_a_run_that_only_the_scheduler_knows(store: Store) -> None:
    from jobsight.findings.data import read_run
    from jobsight.findings.figures import compute_figures
    from jobsight.model import JobInfo, RunReference

    info = JobInfo(cluster="c1", job_id=3, source="slurm", start=START, end=at(10), cpus=4)
    store.record_jobs([info], [JobDetails()], now=at(10))
    figures = compute_figures(read_run(store, store.find(RunReference(3)), at(20)))
    assert "cpu.time" not in figures.values
    assert figures.reason("cpu.time") == "no node has reported the run"
    assert figures.coverage["cpu"] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"end": START}, {"cpus": None}, {"cpus": 0}, {"memory": 0}, {"cores": None},
        {"columns": {"files.open": lambda moment: 0}}, {"length": 0.5, "interval": 0.1},
        {"totals": {"read_calls": 0, "write_calls": 0, "read_characters": 0}},
        {"gpus": [gpu("0", 0, 0)]}, {"time_limit": 0}, {"series": False, "programs": ()},
        {"programs": [program("/a", 0, None, None)]}, {"programs": [program("/a", 5, 3, 3)]},
        {"steps": [step("0", 0, 5, 5), step("1", None, 9, 2)]},
    ],
)  # fmt: skip
def test_nothing_is_divided_by_zero(store: Store, changes: Any) -> None:
    figures = figures_of(store, **({"length": 60.0, "interval": 10.0} | changes))
    for name, found in figures.values.items():
        assert name in FIGURES
        if isinstance(found, float):
            assert math.isfinite(found), name


def test_every_figure_can_be_known(store: Store) -> None:
    """Two runs, one of them running, have all figures but those of earlier runs."""
    write_nodes(store, node_info("n1", 64, 256 * GIB, gres={"gpu": 4}),
                node_info("n2", 64, 256 * GIB, gres={"gpu": 4}))  # fmt: skip
    for job in range(20, 24):
        again = program("/apps/fails", 1, 0, 10, executions=20, failures=1)
        write_run(store, job_id=job, length=60, programs=[again], user=f"user{job}")
    active = lambda moment: 0.5 if 600 < moment < 3000 else 0.0  # noqa: E731
    counters = dict.fromkeys(
        ("pressure.cpu", "pressure.memory_full", "pressure.io", "pressure.io_full"),
        lambda moment: moment * SECOND / 8,
    )
    run: dict[str, Any] = {
        "nodes": ("n1", "n2"), "cpus": 16, "qos": "normal", "exit_signal": 0,
        "time_limit": 7200 * SECOND, "submit": START - SECOND, "cores": until(3000, 4.0),
        "programs": [
            program("/apps/solve", 7000, 30, 3000, peak_memory=GIB, read_bytes=10),
            program("/apps/fails", 20, 0, 3000, executions=900, failures=3),
            program("/usr/bin/sleep", 0.001, 3000, HOUR),
        ],
        "columns": {
            **gpu_columns(active), **counters, "gpu.0.energy": lambda moment: moment * 1e8,
            "memory.used": lambda moment: GIB + moment * 1e5, "files.open": lambda moment: 9,
            "files.scratch": lambda moment: 2, "energy.cpu": lambda moment: moment * 1e8,
            "tasks.threads": lambda moment: 4, "tasks.running": lambda moment: 2,
            "cores.0.time": lambda moment: moment * SECOND,
        },
        "steps": [step("0", 10, 0, 100), step("1", 10, 100, 200)],
        "gpus": [
            gpu("0", HOUR, 1200, multiprocessor_time=SECOND, occupancy_time=SECOND, energy=10**9,
                tensor_time=SECOND, memory_peak=GIB, memory_total=4 * GIB,
                throttled_time={"power": SECOND}),
        ],
        "totals": {"swap_peak": 0, "read_characters": 9, "written_characters": 9, "read_calls": 1,
                   "write_calls": 1, "read_bytes": 9, "written_bytes": 9},
        "details": JobDetails(
            tasks=4, submit_line="sbatch job.sh", tres_requested={"cpu": 16},
            steps=[StepInfo(step="0", name="a", memory_peak=GIB)],
        ),
        "coverage": GPU_COVERAGE | {"cores": Coverage(quality="exact")},
    }  # fmt: skip
    ended = figures_of(store, **run)
    running = figures_of(store, job_id=8, **run, running=True)
    expected = {name for name, figure in FIGURES.items() if figure.group != "history"}
    # Rules name software; none are applied in this store.
    missing = expected - ended.values.keys() - running.values.keys()
    assert missing == {"programs.software"}
    assert ended.values.keys() <= expected


def test_a_loop_on_one_of_many_cpus_holds_all_of_them(store: Store) -> None:
    figures = figures_of(
        store, length=10 * HOUR, cpus=32, cores=until(7 * HOUR, 31.0, 0.7),
        programs=[
            program("/apps/solve", 31 * 7 * HOUR, 0, 7 * HOUR),
            program("/usr/bin/sed", 0.7 * 3 * HOUR, 7 * HOUR, 10 * HOUR, executions=2_000_000),
        ],
    )  # fmt: skip
    assert value(figures, "programs.short_share") < 0.02
    assert value(figures, "programs.short_held") == near(96 * HOUR)
    fired = {each.kind for each in RuleSet.load().findings(figures)}
    assert "fork-storm" in fired
    assert "program-leaves-cores-idle" not in fired


def test_the_last_sample_of_a_parallel_program_does_not_hide_a_serial_one(store: Store) -> None:
    """A sample every twenty minutes has CPU time of both programs."""
    figures = figures_of(
        store, length=8 * HOUR, cpus=256, cores=until(4.2 * HOUR, 230.0, 1.0), interval=1200,
        programs=[
            program("/apps/solve", 230 * 4.2 * HOUR, 0, 4.2 * HOUR),
            program("/usr/bin/sort", 3.8 * HOUR, 4.2 * HOUR, 8 * HOUR),
        ],
    )  # fmt: skip
    assert value(figures, "programs.wasteful") == "/usr/bin/sort"
    assert value(figures, "programs.wasteful_cores") == near(1.0)
