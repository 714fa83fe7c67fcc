import pytest

from jobsight.model import SECOND, Coverage
from jobsight.reports.report import StepRow, describe_state
from jobsight.reports.terminal import gauges
from tests.reports.samples import EXACT, GIB, START, USES, job, node, report, step, totals, use


def test_figures_of_one_node() -> None:
    made = report()
    assert made.cpu.time == 1800 * SECOND
    assert made.cpu.mean_cores == pytest.approx(3)
    assert made.cpu.share == pytest.approx(0.75)
    assert made.memory.share == pytest.approx(0.75)
    assert made.time.share == pytest.approx(600 / 3600)
    assert made.display_id == "12"
    assert made.run == "alpha:12:20261115T043312Z"
    assert not made.running


def test_remainder_is_a_row_and_shares_sum_to_one() -> None:
    rows = report().executables
    assert [row.kind for row in rows] == ["executable", "executable", "remainder"]
    assert rows[-1].cpu_time == 6 * SECOND
    assert sum(row.cpu_share for row in rows) == pytest.approx(1)


def test_executables_may_sum_to_more_than_the_counter() -> None:
    made = report(uses=[("n1", use(b"/bin/a", 1900))])
    assert [row.kind for row in made.executables] == ["executable"]
    assert made.executables[0].cpu_share == pytest.approx(1)
    assert any("5.6 % more than the CPU time" in note for note in made.coverage_notes)
    noise = report(uses=[("n1", use(b"/bin/a", 1801))])
    assert not any("more than" in note for note in noise.coverage_notes)


def test_a_row_that_was_taken_back_is_not_shown() -> None:
    empty = use(b"true", 0, 0, path_known=False)
    made = report(uses=[*USES, ("n1", empty)])
    assert "true" not in [row.path for row in made.executables]


def test_nodes_are_summed_and_executables_joined() -> None:
    uses = [*USES, ("n2", use(b"/usr/bin/true", 10, 100, peak_memory=GIB))]
    made = report(job(nodes=("n1", "n2")), [node(), node("n2")], uses)
    assert made.cpu.time == 3600 * SECOND
    assert made.memory.used_peak_bytes == 6 * GIB
    true = next(row for row in made.executables if row.path == "/usr/bin/true")
    assert (true.executions, true.cpu_time, true.peak_memory_bytes) == (400, 14 * SECOND, GIB)
    assert [row.node for row in made.node_rows] == ["n1", "n2"]


def test_memory_limit_of_the_cgroup_stands_in() -> None:
    limited = [node(totals=totals(memory_limit=6 * GIB))]
    assert report(job(memory=None), limited).memory.requested_bytes == 6 * GIB
    half = [*limited, node("n2")]
    assert report(job(memory=None), half).memory.requested_bytes is None


def test_running_job_counts_to_now_but_its_cpu_to_the_last_reading() -> None:
    info = job(state="RUNNING", end=None, exit_code=None)
    made = report(info, [node(final=False)], now=START + 610 * SECOND)
    assert made.running
    assert made.state_text == "running"
    assert made.time.elapsed == 610 * SECOND
    assert made.cpu.share == pytest.approx(0.75)
    late = report(info, [node(final=False)], now=START + 6000 * SECOND)
    assert any("No batch has been received for 01:30:00" in note for note in late.coverage_notes)


def test_a_run_without_any_figures() -> None:
    made = report(job(cpus=None, memory=None, state=None, end=None), [], [])
    assert made.cpu.time is None
    assert made.cpu.share is None
    assert made.executables == []
    assert {part.quality for part in made.coverage.values()} == {"missing"}
    assert made.coverage_notes[0] == "CPU time: not measured, nothing was reported."


def test_coverage_sentences() -> None:
    polled = Coverage(quality="estimate", reason="by polling; needs root: see jobsight doctor")
    coverage = {"cpu": EXACT, "memory": EXACT, "io": EXACT, "executables": polled}
    made = report(
        nodes=[node(totals=totals(cpu_source="rusage"), coverage=coverage)],
        uses=[("n1", use(b"/bin/a", 1476))],
    )
    assert made.coverage_notes == [
        "CPU time: exact, from the kernel's count for the waited-for processes (rusage).",
        "Memory: exact.",
        "I/O: exact.",
        "Split by executable: estimate, 82 % of the CPU time seen; by polling; needs root: see "
        "jobsight doctor.",
    ]
    assert report().coverage_notes[3] == (
        "Executables: exit records account for 99.7 % of the CPU time; 301 executions counted; "
        "0 events lost."
    )


def test_silent_nodes_make_an_estimate() -> None:
    made = report(job(nodes=("n1", "n2", "n3")))
    assert made.coverage["cpu"].quality == "estimate"
    assert "Nodes that sent nothing: 2 (n2, n3)." in made.coverage_notes


def test_the_stored_coverage_is_left_as_it_is() -> None:
    shared = node()
    report(job(nodes=("n1", "n2")), [shared])
    assert shared.coverage["cpu"].quality == "exact"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"state": "FAILED", "exit_code": 7}, "failed with exit code 7"),
        (
            {"state": "FAILED", "exit_code": 0, "exit_signal": 9},
            "failed, killed by signal 9 (SIGKILL)",
        ),
        ({"state": "TIMEOUT"}, "ended: time limit reached"),
        ({"state": "SOMETHING_NEW"}, "something new"),
    ],
)
def test_states_in_words(changes: dict[str, object], text: str) -> None:
    assert report(job(**changes)).state_text == text


def test_steps_are_summed_over_nodes_and_in_order() -> None:
    made = report(
        steps=[
            ("n1", step("extern", 0.1)),
            (
                "n1",
                step(
                    "10",
                    5,
                    tasks=2,
                    memory_peak=GIB,
                    cpu_overhead=7,
                    oom_kills=0,
                    gpu_time=3 * SECOND,
                    gpu_memory_peak=GIB,
                ),
            ),
            ("n1", step("2", tasks=1, ended=False)),
            ("n1", step("batch", 9, last_seen=0)),
            (
                "n2",
                step(
                    "10",
                    6,
                    tasks=2,
                    memory_peak=GIB,
                    last_seen=START + 90 * SECOND,
                    gpu_time=4 * SECOND,
                ),
            ),
            ("n2", step("2", 1, ended=True)),
            ("n1", step("TBD", 1)),
        ]
    )
    assert [row.step for row in made.steps] == ["batch", "2", "10", "TBD", "extern"]
    assert made.steps[2] == StepRow(
        step="10", nodes=2, tasks=4, cpu_time=11 * SECOND, cpu_overhead=7,
        memory_kernel_peak_bytes=2 * GIB, oom_kills=0, elapsed=90 * SECOND, ended=True,
        gpu_time=7 * SECOND, gpu_memory_peak_bytes=GIB, first_seen=START,
    )  # fmt: skip
    assert made.steps[0].gpu_time is None
    unfinished = made.steps[1]
    assert (unfinished.cpu_time, unfinished.tasks, unfinished.ended) == (SECOND, 1, False)
    assert (made.steps[0].elapsed, made.steps[0].tasks) == (None, None)
    assert report().steps == []


def test_the_share_of_slurm_itself_is_said_to_be_apart() -> None:
    made = report(nodes=[node(totals=totals(cpu_overhead=4 * SECOND)), node("n2")])
    assert made.cpu.overhead == 4 * SECOND
    assert made.cpu.overhead_text == (
        "4.00 s of slurmstepd, Slurm's process in each step, not included."
    )
    assert report().cpu.overhead_text == ""


def test_array_and_component_ids() -> None:
    assert report(job(array_job_id=62, array_task_id=3)).display_id == "62_3"
    assert report(job(het_job_id=88, het_offset=1)).display_id == "88+1"


# Fault 2: Slurm's exit code 0:125 is no signal, and its state proves a kill.
def test_out_of_memory_under_slurm() -> None:
    late = node(totals=totals(memory_used_peak=GIB, memory_peak=4 * GIB, oom_kills=0))
    made = report(job(state="OUT_OF_MEMORY", exit_code=0, exit_signal=125, memory=4 * GIB), [late])
    assert made.state_text == "ended: out of memory"
    assert made.exit_signal is None
    assert made.memory.oom_kills is None
    assert (made.memory.used_peak_bytes, made.memory.share) == (4 * GIB, 1)
    assert [gauge.verdict for gauge in gauges(made) if gauge.name == "Memory"] == ["out of memory"]


def test_a_signal_is_named() -> None:
    assert describe_state("FAILED", None, 11) == "failed, killed by signal 11 (SIGSEGV)"
    assert describe_state("FAILED", 1, 125) == "failed with exit code 1"
