"""Defects that monitoring systems have had, each as a run that the shipped rules must judge right.

Others of their kind are tested where the code is: units in test_conditions.py, keys and settings in
test_rule_file.py and test_engine.py, what no longer holds in test_worker.py, hostile names in
test_texts.py and on the pages, the order of lists in the tests of the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsight.findings.data import read_run
from jobsight.findings.engine import RuleSet
from jobsight.findings.figures import compute_figures
from jobsight.findings.finding import SEVERITIES, Finding, Verdict
from jobsight.findings.history import add_history
from jobsight.findings.stored import report_findings, to_row
from jobsight.model import SECOND, Coverage, RunReference
from jobsight.store.findings.write import store_judged
from jobsight.store.store import Store
from tests.findings.measured import (
    EXACT,
    GIB,
    HOUR,
    at,
    figures_of,
    gpu,
    node_info,
    program,
    until,
    write_nodes,
    write_run,
)
from tests.store.findings.sample import judged as judged_run

RULES = RuleSet.load()
WITH_GPU = EXACT | {"gpu": Coverage(quality="exact")}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "store.db")) as store:
        yield store


def judge(store: Store, **run: Any) -> dict[str, Verdict]:
    return {each.kind: each for each in RULES.judge(figures_of(store, **run))}


def fired(verdicts: dict[str, Verdict]) -> set[str]:
    return {kind for kind, each in verdicts.items() if each.outcome == "fired"}


def active_for_30_seconds(moment: float) -> float:
    return 100.0 if 600 < moment <= 630 else 0.0


IDLE_GPU: dict[str, Any] = {
    "length": 48 * HOUR,
    "gpus": [gpu("0", 48 * HOUR, 30)],
    "coverage": WITH_GPU,
    "columns": {
        "gpu.0.utilization": active_for_30_seconds,
        "gpu.held": lambda moment: 1,
        "gpu.idle": lambda moment: 0 if active_for_30_seconds(moment) else 1,
    },
}


def test_one_active_sample_does_not_clear_an_idle_gpu(store: Store) -> None:
    """Every sample was zero, but for one."""
    verdicts = judge(store, **IDLE_GPU, programs=[program("/opt/train", 60, 0, 48 * HOUR)])
    finding = verdicts["gpu-idle-long"].finding
    assert finding is not None
    assert finding.cost.gpu_hours == pytest.approx(47.99, abs=0.05)


def test_an_idle_gpu_does_not_hide_unused_memory(store: Store) -> None:
    verdicts = judge(
        store, **IDLE_GPU, memory=400 * GIB, totals={"memory_used_peak": 20 * GIB},
        programs=[program("/opt/train", 60, 0, 48 * HOUR)],
    )  # fmt: skip
    found = fired(verdicts)
    assert "memory-request-unused" in found
    assert found & {"gpu-idle-long", "held-after-work"}


def test_a_serial_program_above_100_percent_is_still_serial(store: Store) -> None:
    """A limit of "at most one core" drops a program with a helper thread."""
    length = 10 * HOUR
    verdicts = judge(
        store, length=length, cpus=16, cores=lambda moment: 1.01,
        programs=[program("/usr/bin/python3", 1.01 * length, 0, length)],
    )  # fmt: skip
    assert "cpu-one-core" in fired(verdicts)


def test_more_than_all_cpus_is_no_waste(store: Store) -> None:
    verdicts = judge(store, length=10 * HOUR, cpus=4, cores=lambda moment: 4.4)
    assert not fired(verdicts)


MEMORY: dict[str, Any] = {
    "length": 20 * HOUR,
    "memory": 100 * GIB,
    "totals": {"memory_used_peak": GIB},
}


def test_no_rule_needs_a_table_of_clusters(store: Store) -> None:
    """A cluster of whose nodes nothing is known."""
    assert "memory-request-unused" in fired(judge(store, **MEMORY))


@pytest.mark.parametrize("cpus_of_node", [4, 64])
def test_shared_and_exclusive_runs_are_judged(store: Store, cpus_of_node: int) -> None:
    """Whether other jobs are on the node changes nothing about the CPUs."""
    write_nodes(store, node_info("n1", cpus_of_node, 1024 * GIB))
    verdicts = judge(store, length=20 * HOUR, cpus=4, cores=lambda moment: 1.0)
    assert "cpu-one-core" in fired(verdicts)


def test_an_empty_run_has_no_finding(store: Store) -> None:
    """No CPU, no node, no program, no time."""
    verdicts = judge(
        store, length=0, cpus=None, cores=None, memory=None, series=False,
        totals={"memory_used_peak": None, "memory_peak": None, "oom_kills": None},
    )  # fmt: skip
    assert not fired(verdicts)
    assert not [each for each in verdicts.values() if "cannot be evaluated" in each.reason]


@pytest.mark.parametrize(
    ("memory", "leaks"),
    [
        # One allocation: (maximum - minimum) / duration is as large as that of the leak.
        (lambda moment: GIB if moment < HOUR else 12 * GIB, False),
        (lambda moment: GIB if moment < 15 * HOUR else 12 * GIB, False),
        (lambda moment: GIB + 11 * GIB * moment / (20 * HOUR), True),
    ],
)
def test_one_allocation_is_no_leak(store: Store, memory: Any, leaks: bool) -> None:
    verdicts = judge(store, length=20 * HOUR, columns={"memory.used": memory})
    assert ("memory-grows" in fired(verdicts)) == leaks


def test_the_word_sleep_is_not_a_sleep(store: Store) -> None:
    """In the name of the job, of a directory and of another program."""
    length = 10 * HOUR
    paths = ("/home/ada/sleep/simulate", "/opt/sleep-study/bin/sleepstages")
    verdicts = judge(
        store, length=length, cpus=1, cores=lambda moment: 1.0, name="sleep", command="sleep 100",
        programs=[program(path, length / 2, 0, length) for path in paths],
    )  # fmt: skip
    assert verdicts["sleeping"].outcome == "not fired"
    asleep = judge(
        store, length=length, cpus=1, cores=until(HOUR, 1.0), job_id=8,
        programs=[program("/home/ada/simulate", HOUR, 0, HOUR),
                  program("/usr/bin/sleep", 0, HOUR, length)],
    )  # fmt: skip
    assert asleep["sleeping"].outcome == "covered"


def test_what_was_not_reported_is_withheld_and_not_empty(store: Store) -> None:
    """The node was silent after an hour of twenty: nobody knows that the job was idle."""
    stale = EXACT | {"cpu": Coverage(quality="estimate", time_share=0.05, reason="no agent")}
    verdicts = judge(store, length=20 * HOUR, cpus=16, cores=until(HOUR, 1.0), coverage=stale)
    for kind in ("cpu-one-core", "held-after-work", "cpu-cores-idle"):
        assert verdicts[kind].outcome == "withheld", kind
        assert verdicts[kind].reason
    assert not {"cpu-one-core", "held-after-work", "cpu-cores-idle"} & fired(verdicts)


@pytest.mark.parametrize(
    ("tres", "count"),
    [
        ({"gres/gpu": 2}, 2),
        ({"gres/gpu:a100": 2}, 2),
        # The total and its parts are one count.
        ({"gres/gpu": 3, "gres/gpu:a100": 2, "gres/gpu:h200": 1}, 3),
        ({"gres/gpu:a100_1g.10gb": 4}, 4),
        ({"gres/gpu": 4, "gres/gpu:a100_1g.10gb": 4}, 4),
        ({"cpu": 4}, 0),
    ],
)
def test_gpus_are_counted_from_the_allocation(
    store: Store, tres: dict[str, int], count: int
) -> None:
    """--gpus, --gpus-per-node, --gres with a model, instances of a GPU."""
    figures = figures_of(store, tres=tres, gpus=())
    assert figures.values["gpu.count"] == count


def test_the_parts_of_a_gpu_do_not_add_up_to_more_than_it(store: Store) -> None:
    """Seven instances that are each busy half of the time."""
    names = [f"0:{number}" for number in range(7)]
    busy = round(0.5 * HOUR * SECOND)
    figures = figures_of(
        store, coverage=WITH_GPU,
        gpus=[gpu(name, HOUR, HOUR / 2, parent="0", multiprocessor_time=busy) for name in names],
    )  # fmt: skip
    assert figures.values["gpu.used_share"] == pytest.approx(0.5, abs=0.01)
    held, used = figures.values["gpu.held"], figures.values["gpu.used"]
    assert isinstance(held, float)
    assert isinstance(used, float)
    assert used <= held


def test_the_costs_of_the_tasks_add_up_to_that_of_the_array(store: Store) -> None:
    """A cause that many runs share is not counted once for each of them."""
    length, found, saved = 2 * HOUR, [], 0.0
    for task in range(12):
        run = write_run(
            store, length=length, job_id=100 + task, array_job_id=100, array_task_id=task,
            memory=400 * GIB, totals={"memory_used_peak": (300 if task == 7 else 2) * GIB},
        )  # fmt: skip
    for task in range(12):
        run = store.find(RunReference(100 + task, "c1"))
        data = read_run(store, run, at(length))
        figures = compute_figures(data)
        add_history(store, data, figures)
        verdicts = {each.kind: each for each in RULES.judge(figures)}
        assert (verdicts["array-split"].outcome == "fired") == (task != 7)
        if finding := verdicts["array-split"].finding:
            found.append(finding.cost.memory_gb_hours or 0.0)
            saved = float(figures.values["array.split_saved"]) / 1e9 / HOUR  # type: ignore[arg-type]
    assert sum(found) == pytest.approx(saved)


def test_a_report_has_the_worst_of_many_first(store: Store) -> None:
    """Cut after it is sorted: the five of a report are the worst."""
    run = write_run(store)
    found = [
        Finding(kind=f"kind-{number}", severity=severity, title="", text="")
        for number, severity in enumerate([*[SEVERITIES[0]] * 6, *SEVERITIES[1:]])
    ]
    store_judged(store.database, [judged_run(run, *map(to_row, found))], at(HOUR))
    shown = [each.severity for each in report_findings(store, run.id)]
    assert shown == ["critical", "warning", *["info"] * 6]


def test_a_job_that_slept_has_one_finding_and_no_advice_for_sleep(store: Store) -> None:
    """A sleep has no option for threads, and what it waited for did not take long to start."""
    length = 10 * HOUR
    verdicts = judge(
        store, length=length, cpus=16,
        cores=lambda moment: 16.0 if moment > 6 * HOUR else 0.002,
        programs=[program("/usr/bin/sleep", 40, 0, 6 * HOUR, executions=4000),
                  program("/apps/solve", 64 * HOUR, 6 * HOUR, length)],
    )  # fmt: skip
    assert verdicts["sleeping"].outcome == "fired"
    assert verdicts["start-up"].outcome == "excused", verdicts["start-up"]
    assert verdicts["program-leaves-cores-idle"].outcome != "fired"


def test_threads_that_waited_are_seen_without_pressure(store: Store) -> None:
    """The kernel counts no pressure of cgroups v1."""
    solve = [program("/apps/solve", 39 * HOUR, 0, 10 * HOUR)]
    crowd = judge(
        store, length=10 * HOUR, cpus=4, cores=lambda moment: 3.96, programs=solve,
        columns={"tasks.running": lambda moment: 64.0},
    )  # fmt: skip
    assert crowd["cpu-oversubscribed"].outcome == "fired", crowd["cpu-oversubscribed"]
    finding = crowd["cpu-oversubscribed"].finding
    assert finding is not None
    assert "not known" not in finding.text
    assert finding.cost.core_hours is None
    fitting = judge(
        store, length=10 * HOUR, cpus=4, cores=lambda moment: 3.96, programs=solve, job_id=8,
        columns={"tasks.running": lambda moment: 4.0},
    )  # fmt: skip
    assert fitting["cpu-oversubscribed"].outcome == "not fired"


def test_the_kernel_time_of_small_calls_is_one_finding(store: Store) -> None:
    """Each of them copies a few bytes and costs a system call."""
    length = 30 * HOUR
    verdicts = judge(
        store, length=length, cpus=1, cores=lambda moment: 1.0,
        totals={
            "cpu_user": round(length / 2) * SECOND, "cpu_system": round(length / 2) * SECOND,
            "read_characters": 10**10, "read_calls": 10**9, "written_characters": 0,
            "write_calls": 0,
        },
    )  # fmt: skip
    assert verdicts["io-small-calls"].outcome == "fired"
    assert verdicts["cpu-system-time"].outcome == "covered"


def test_a_session_that_nobody_used_is_one_finding(store: Store) -> None:
    """Not a job that used no CPU time, and no job that was held after some work."""
    length = 20 * HOUR
    server = [program("/opt/jupyter/bin/jupyter-lab", 60, 0, length)]
    verdicts = judge(
        store, length=length, cpus=8, cores=lambda moment: 0.001, programs=server,
        columns={"cores.0.time": lambda moment: moment * SECOND / 1000},
        coverage=EXACT | {"cores": Coverage(quality="exact")},
    )  # fmt: skip
    assert verdicts["cpu-core-imbalance"].outcome == "excused"
    ended = {"cpu-not-used", "cpu-core-imbalance", "held-after-work", "interactive-idle"}
    assert ended & fired(verdicts) == {"interactive-idle"}


def test_a_session_that_was_left_was_held_after_its_work(store: Store) -> None:
    length = 20 * HOUR
    server = [program("/opt/jupyter/bin/jupyter-lab", 6 * HOUR, 0, length)]
    verdicts = judge(store, length=length, cpus=8, cores=until(HOUR, 6.0), programs=server)
    assert {"cpu-not-used", "held-after-work", "interactive-idle"} & fired(verdicts) == {
        "held-after-work"
    }
