"""The GPUs in the report: what was held and used, by which measure, and what is not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobsight.model import SECOND, Coverage, GpuFault
from jobsight.reports.build import build_report, job_row
from jobsight.reports.gpu import (
    ONLY_UTILIZATION,
    WHY_UTILIZATION_IS_NOT_USE,
    conspicuous_first,
    gpu_cell,
    gpu_groups,
)
from jobsight.reports.report import JobReport
from jobsight.reports.terminal import report_text
from jobsight.store.store import Store
from jobsight.util.outer import from_outer, to_outer
from tests.reports.samples import EXACT, job, node, report, step, use
from tests.store.gpu_sample import GIB, gpu, idle_gpu, old_gpu
from tests.web import gpu_jobs


def _report(*gpus: Any, **more: Any) -> JobReport:
    made: JobReport = report(job(gpus=len(gpus), **more), gpus=[("n1", each) for each in gpus])
    return made


def test_one_of_four_was_used() -> None:
    made = _report(gpu("0"), idle_gpu("1"), idle_gpu("2"), idle_gpu("3"))
    totals = made.gpu
    assert totals is not None
    assert (totals.count, totals.used_count, totals.unused_count) == (4, 1, 3)
    assert totals.text == "4 GPUs held; held and never used: 3 of 4"
    assert (totals.used_share, totals.measure) == (0.1, "multiprocessors")
    assert totals.utilization_share == 0.25
    assert (totals.held, totals.used) == (4000 * SECOND, 400 * SECOND)
    assert (totals.memory_mean_bytes, totals.memory_peak_bytes) == (20 * GIB, 100 * GIB)
    assert totals.energy_joules == (500 + 3 * 80) * 1000
    assert totals.notes == [WHY_UTILIZATION_IS_NOT_USE]
    text = report_text(made, 100)
    assert "held and never used: 3 of 4" in text
    assert "3 of 4 never used" in text
    # Those that were never used come first.
    assert text.index("GPU 1  NVIDIA H200") < text.index("GPU 0  NVIDIA H200")


def test_a_gpu_that_only_holds_memory_is_hardly_used() -> None:
    made = _report(gpu("0", multiprocessor_time=0))
    assert made.gpu is not None
    assert (made.gpu.used_count, made.gpu.text) == (1, "1 GPU held, hardly used")


def test_a_row_has_the_shares_of_a_gpu() -> None:
    (row,) = _report(gpu("0")).gpus
    assert (row.used_share, row.measure, row.utilization_share) == (0.4, "multiprocessors", 1)
    assert (row.occupancy_share, row.tensor_share, row.bandwidth_share) == (0.2, 0.3, 0.5)
    assert (row.fp64_share, row.fp32_share, row.fp16_share) == (0, 0.1, 0.05)
    assert (row.memory_mean_bytes, row.memory_total_bytes) == (80 * GIB, 141 * GIB)
    assert (row.energy_joules, row.pcie_received_bytes) == (500_000, 10**12)
    assert {own.quality for own in row.coverage.values()} == {"exact"}


def test_an_older_gpu_says_that_utilization_is_all_there_is() -> None:
    made = _report(old_gpu("0"))
    (row,) = made.gpus
    assert (row.used_share, row.measure) == (0.9, "utilization")
    assert row.multiprocessor_share is None
    assert made.gpu is not None
    assert made.gpu.notes[0] == ONLY_UTILIZATION
    assert "not measured, multiprocessor figures need Hopper" in made.gpu.notes[1]


def test_one_reason_for_several_figures_is_one_sentence() -> None:
    why = Coverage(quality="missing", reason="needs Hopper or later")
    groups = dict.fromkeys(("profile", "pcie", "nvlink", "throttling"), why)
    unknown: dict[str, Any] = dict.fromkeys(
        ("pcie_received_bytes", "pcie_sent_bytes", "nvlink_received_bytes", "nvlink_sent_bytes")
    )
    made = _report(old_gpu("0", coverage=groups, throttled_time=None, **unknown), gpu("1"))
    assert made.gpu is not None
    assert made.gpu.notes[1:] == [
        "Multiprocessors, tensor cores and memory bandwidth, PCIe traffic, NVLink traffic, reduced "
        "clocks of 1 GPU: not measured, needs Hopper or later."
    ]


def test_shares_refer_to_the_time_that_was_measured() -> None:
    coverage = {"profile": Coverage(quality="estimate", time_share=0.5, reason="the driver hung")}
    made = _report(gpu("0", multiprocessor_time=400 * SECOND, coverage=coverage))
    assert made.gpus[0].used_share == 0.8
    assert made.gpu is not None
    assert made.gpu.used_share == 0.8
    assert any("estimate, the driver hung" in note for note in made.gpu.notes)


def test_a_shared_gpu_is_an_estimate() -> None:
    made = _report(gpu("0", shared=True))
    assert made.gpus[0].coverage["profile"].quality == "estimate"
    assert made.gpu is not None
    assert any("shared" in note for note in made.gpu.notes)


def test_errors_and_reduced_clocks_are_remarks() -> None:
    fault = GpuFault(kind="xid", count=2, last=0, code=79)
    text = report_text(_report(gpu("0", faults=[fault], throttled_time={"power": 90 * SECOND})))
    assert "n1 GPU 0: 2 xid 79, reduced clocks for 00:01:30 (power)" in text


def test_requested_gpus_of_which_nothing_is_known() -> None:
    made = report(job(gpus=2))
    assert made.gpu.text == "2 GPUs requested; no node reported their use"
    assert made.gpu.used_share is None
    assert "no node reported their use" in report_text(made)


def test_a_run_without_gpus_has_no_section() -> None:
    made = report()
    assert (made.gpu, made.gpus) == (None, [])
    assert "GPU" not in report_text(made)


def test_the_groups_of_many_gpus() -> None:
    rows = _report(
        *(gpu(str(number)) for number in range(6)),
        *(idle_gpu(str(number)) for number in range(6, 9)),
        gpu("9", multiprocessor_time=10 * SECOND),
    )
    assert [(group.title, len(group.rows)) for group in gpu_groups(rows.gpus)] == [
        ("never used", 3), ("used below 10 %", 1), ("used 10 % to 50 %", 6),
    ]  # fmt: skip
    assert "3 never used  n1:6, n1:7, n1:8" in report_text(rows, 100)


def test_what_is_conspicuous_comes_first() -> None:
    fault = GpuFault(kind="xid", count=1, last=0, code=79)
    rows = _report(
        gpu("0", multiprocessor_time=800 * SECOND),
        gpu("1", multiprocessor_time=800 * SECOND, faults=[fault]),
        gpu("2"),
        gpu("3", multiprocessor_time=10 * SECOND),
        idle_gpu("4"),
    ).gpus
    assert [row.gpu for row in conspicuous_first(rows)] == ["4", "3", "2", "1", "0"]


def test_programs_have_their_gpu_time() -> None:
    uses = [
        ("n1", use(b"/bin/train", 10, gpu_time=30 * SECOND, gpu_memory_peak=GIB)),
        ("n2", use(b"/bin/train", 10, gpu_time=60 * SECOND, gpu_memory_peak=2 * GIB)),
        ("n1", use(b"/bin/plot", 90, gpu_time=10 * SECOND)),
    ]
    made = report(nodes=[node(coverage={"cpu": EXACT})], uses=uses, gpus=[("n1", gpu("0"))])
    rows = {row.path: row for row in made.executables}
    train = rows["/bin/train"]
    assert (train.gpu_time, train.gpu_share) == (90 * SECOND, 0.9)
    assert train.gpu_memory_peak_bytes == 2 * GIB
    assert "GPU time" in report_text(made)


def test_steps_have_their_gpu_time() -> None:
    steps = [
        ("n1", step("0", 10, gpu_time=90 * SECOND, gpu_memory_peak=GIB)),
        ("n1", step("batch", 5, gpu_time=0, gpu_memory_peak=0)),
    ]
    made = report(steps=steps, gpus=[("n1", gpu("0"))])
    assert [row.gpu_time for row in made.steps] == [0, 90 * SECOND]
    assert to_outer(made)["steps"][1]["gpu_seconds"] == 90
    (line,) = [line for line in report_text(made).splitlines() if line.startswith("Step ")]
    assert "GPU time" in line
    assert "GPU time" not in report_text(report(steps=[("n1", step("0", 10))]))


def test_the_report_survives_its_outer_form() -> None:
    made = _report(gpu("0", faults=[GpuFault(kind="xid", count=1, last=7, code=1)]), old_gpu("1"))
    outer = to_outer(made)
    assert outer["gpu"]["held_seconds"] == 2000
    assert outer["gpus"][0]["faults"][0]["last"].startswith("1970-01-01T00:00:00")
    assert from_outer(msgspec.json.decode(msgspec.json.encode(outer)), JobReport) == made


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((4, 3, 0.23, 4), "1/4 GPU 23 %"), ((1, 0, None, 1), "1/1 GPU"),
        ((None, None, None, 2), "2 GPU"), ((None, None, None, None), ""),
    ],
)  # fmt: skip
def test_the_cell_of_a_list(values: tuple[Any, ...], text: str) -> None:
    assert gpu_cell(*values) == text


def test_list_and_report_of_stored_runs_agree(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        gpu_jobs.fill(store)
        rows = {run.info.name: (job_row(run, gpu_jobs.NOW), run) for run in store.runs()}
        for row, run in rows.values():
            made = build_report(store, run, clock=lambda: gpu_jobs.NOW)
            if made.gpu is None:
                assert row.gpu_count is None
                continue
            assert (row.gpu_count, row.gpu_unused_count) == (made.gpu.count, made.gpu.unused_count)
            assert (row.gpu_share, row.gpu_measure) == (made.gpu.used_share, made.gpu.measure)
            assert row.gpu_used == made.gpu.used
            assert sum(each.held for each in made.gpus) == row.gpu_held
        large, _ = rows["pretrain-7b"]
        assert (large.gpu_count, large.gpu_unused_count) == (32, 2)
