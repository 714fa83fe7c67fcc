"""The page of one run, as the server renders it."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from jobsight.findings.finding import Cost
from jobsight.findings.reported import Amount, FittedRequest
from jobsight.model import SECOND, Coverage, Run
from jobsight.reports.report import (
    CpuUse,
    ExecutableRow,
    IoUse,
    JobReport,
    MemoryUse,
    NodeRow,
    SoftwareRow,
    StepRow,
    TimeUse,
    quality_text,
)
from jobsight.util import units
from jobsight.web.pages.run import SimilarRuns
from jobsight.web.render import metric_value, path_pieces, percent, render, state_of
from tests.web.document import Document
from tests.web.sample import HOSTILE

MIB = 2**20


def executable(**changes: Any) -> ExecutableRow:
    fields: dict[str, Any] = {
        "kind": "executable", "path": "/usr/bin/solver", "own_namespace": False,
        "executions": 1201, "processes": 1302,
        "cpu_time": 403 * SECOND, "cpu_user": 304 * SECOND, "cpu_system": 205 * SECOND,
        "cpu_estimated": 106 * SECOND, "cpu_share": 0.617, "storage_read_bytes": 71 * MIB,
        "storage_written_bytes": 72 * MIB, "peak_memory_bytes": 73 * MIB, "failures": 1703,
    }  # fmt: skip
    return ExecutableRow(**(fields | changes))


def report(**changes: Any) -> JobReport:
    """A report in which every figure is another one, so that each can be found."""
    start = 1_794_717_192 * SECOND
    fields: dict[str, Any] = {
        "run": "alpha:12:20261115T043312Z", "cluster": "alpha", "job_id": 12, "display_id": "62_3",
        "name": "melt", "user": "ada", "account": "physics", "partition": "long",
        "command": "srun solve \\\n  --fast", "state": "FAILED", "exit_code": 7, "exit_signal": 11,
        "submit": start - 60 * SECOND, "start": start, "end": start + 61 * SECOND,
        "source": "slurm", "nodes": ["n1", "n2"],
        "cpu": CpuUse(requested_cpus=8, time=1001 * SECOND, user=902 * SECOND, system=93 * SECOND,
                      overhead=4 * SECOND, mean_cores=5.43, share=0.678, source="cgroup v2",
                      overhead_text="4.00 s of Slurm's, <apart>."),
        "memory": MemoryUse(requested_bytes=501 * MIB, used_peak_bytes=402 * MIB,
                            kernel_peak_bytes=453 * MIB, swap_peak_bytes=14 * MIB,
                            oom_kills=3, share=0.802),
        "time": TimeUse(requested=7205 * SECOND, elapsed=5106 * SECOND, share=0.709),
        "io": IoUse(syscall_read_bytes=21 * MIB, syscall_written_bytes=22 * MIB,
                    storage_read_bytes=23 * MIB, storage_written_bytes=24 * MIB,
                    read_calls=2501, write_calls=2602),
        "executables": [
            executable(),
            executable(kind="path unknown", path="worker", cpu_share=0.111),
            executable(path="/opt/inside/solver", own_namespace=True, cpu_share=0.07),
            executable(kind="remainder", path="not attributed", cpu_share=0.272, executions=None,
                       processes=None, cpu_user=None, cpu_system=None, cpu_estimated=0,
                       storage_read_bytes=None, storage_written_bytes=None,
                       peak_memory_bytes=None, failures=None),
        ],
        "node_rows": [NodeRow(node="n1", cpu_time=601 * SECOND, memory_used_peak_bytes=61 * MIB,
                              memory_kernel_peak_bytes=62 * MIB, syscall_read_bytes=63 * MIB,
                              syscall_written_bytes=64 * MIB, final=False, clock_skew=65 * 10**6)],
        "coverage": {"cpu": Coverage(quality="exact", time_share=0.981, cpu_share=0.982),
                     "memory": Coverage(quality="estimate", reason="why & how", events_lost=83),
                     "io": Coverage(quality="failed"), "executables": Coverage(quality="missing")},
        "steps": [StepRow(step="17", nodes=18, tasks=191, cpu_time=1921 * SECOND,
                          cpu_overhead=1931 * SECOND, memory_kernel_peak_bytes=74 * MIB,
                          oom_kills=1951,
                          elapsed=1961 * SECOND, ended=False),
                  StepRow(step="<i>", nodes=1, tasks=None, cpu_time=None, cpu_overhead=None,
                          memory_kernel_peak_bytes=None, oom_kills=None, elapsed=None, ended=True)],
        "coverage_notes": ["CPU time: exact, as a <test> says."],
        "state_text": "failed with exit code 7", "running": False, "as_of": start + 59 * SECOND,
    }  # fmt: skip
    return JobReport(**(fields | changes))


def show(shown: JobReport) -> Document:
    return Document(render("run.html", report=shown, summaries=[]))


def expected(value: object, name: str) -> str:
    """How a figure stands on the page, by the name of its field."""
    if name == "quality":
        return quality_text(str(value))
    if isinstance(value, float):
        return units.format_cores(value) if name == "mean_cores" else units.format_share(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return str(value)
    if name in ("submit", "start", "end", "as_of"):
        return units.format_time(value)
    if value % MIB == 0 and value:
        return units.format_bytes(value)
    if value >= 10**6:
        return units.format_duration(value)
    return units.format_count(value)


_SAID_OTHERWISE = frozenset(
    (
        "state",
        "job_id",
        "kind",
        "own_namespace",
        "final",
        "running",
        "ended",
        "state_text",
        "command",
    )
)


def figures(value: object, name: str = "") -> list[str]:
    """Every figure and word of a report, found by walking through it."""
    if isinstance(value, msgspec.Struct):
        return [
            text
            for field in value.__struct_fields__
            if field not in _SAID_OTHERWISE
            for text in figures(getattr(value, field), field)
        ]
    if isinstance(value, list):
        return [text for each in value for text in figures(each, name)]
    if isinstance(value, dict):
        return [text for each in value.values() for text in figures(each, name)]
    return [] if value is None or value == "" else [expected(value, name)]


def test_every_figure_of_the_report_is_on_the_page() -> None:
    document = show(report())
    wanted = [*figures(report()), "Failed with exit code 7", "path unknown", "incomplete"]
    wanted += ["not ended", "Job id 12", "own namespace"]
    assert len(wanted) > 70
    # A path is split into directory and file, and the parser sees words: compare without spaces.
    seen = document.text.replace(" ", "")
    assert [text for text in wanted if text.replace(" ", "") not in seen] == []


def test_the_page_has_cost_software_and_advice() -> None:
    shown = report(
        samples=71234,
        cost=Cost(core_hours=1001.0, energy_kwh=0.77),
        prices=[Amount(3003.0, "EUR")],
        software=[
            SoftwareRow(
                software="GROMACS", version="2024.1", user_provided=False, executions=517,
                cpu_time=123456 * SECOND, cpu_share=0.6543, gpu_time=0,
            )
        ],
        fitted=[
            FittedRequest(resource="memory", option="--mem=14G", value=1.0, fits=False, text="Fit.")
        ],
    )  # fmt: skip
    similar = SimilarRuns(kind="name", key="ab", rows=[], text=None)
    html = render("run.html", report=shown, summaries=[], similar=similar)
    seen = " ".join(Document(html).text.split())
    for text in ("Held 1,001 core h, 0.77 kWh (3,003 EUR)", "71,234 samples", "--mem=14G Fit."):
        assert text in seen
    assert re.search(r"GROMACS 2024.1 .*65.4 %.* 517", seen)


def test_a_figure_that_is_not_known_is_never_a_zero() -> None:
    nothing = dict.fromkeys(CpuUse.__struct_fields__)
    document = show(
        report(
            cpu=CpuUse(**nothing),
            memory=MemoryUse(**dict.fromkeys(MemoryUse.__struct_fields__)),
            time=TimeUse(requested=None, elapsed=None, share=None),
            io=IoUse(**dict.fromkeys(IoUse.__struct_fields__)),
            executables=[], node_rows=[], nodes=[], name=None, user=None, start=None, end=None,
            coverage={"io": Coverage(quality="failed", reason="denied")}, coverage_notes=[],
        )
    )  # fmt: skip
    assert "unknown" in document.text
    # Fault 23: "failed" in red read like a failed job.
    assert document.text.count("not readable") >= 6
    assert "failed" not in document.text.split("Requested and used")[-1].split("Time series")[0]
    assert re.search(r"\b0 (B|s|%)", document.text) is None
    assert "No executable was seen." in document.text


def test_a_job_without_steps_has_no_table_of_them() -> None:
    nameless = msgspec.structs.replace(report().steps[0], step="")
    for steps in ([], [nameless]):
        assert "summed over their nodes" not in show(report(steps=steps)).text


def test_each_quality_is_a_word() -> None:
    text = show(report()).text
    for quality in ("exact", "estimate", "not readable", "not measured"):
        assert quality in text


def test_bars_stay_within_their_width() -> None:
    assert [percent(share) for share in (None, 0.0, 0.5, 7.0, float("nan"), -1.0)] == [
        "0", "0", "50.00", "100.00", "0", "0",
    ]  # fmt: skip
    over = show(report(time=TimeUse(requested=1, elapsed=2, share=2.0)))
    assert "bar-over" in [each.get("class") for each in over.all("rect")]


@pytest.mark.parametrize("name", ["storm", "lammps-melt", "unit-tests", "train-model", HOSTILE])
def test_nothing_inline_and_nothing_from_elsewhere(
    client: TestClient, runs: dict[str, Run], name: str
) -> None:
    answer = client.get(f"/jobs/{runs[name]}")
    assert answer.status_code == 200
    document = Document(answer.text)
    for tag, attributes in document.elements:
        assert tag != "style"
        assert "style" not in attributes
        assert not [each for each in attributes if each.startswith("on")]
        for value in (attributes.get("src"), attributes.get("href"), attributes.get("action")):
            assert value is None or value.startswith(("/", "#", "?")), value
    scripts = document.all("script")
    assert len(scripts) == 3
    assert all(script.get("src", "") for script in scripts)


def test_hostile_names_are_text(client: TestClient, runs: dict[str, Run]) -> None:
    html = client.get(f"/jobs/{runs[HOSTILE]}").text
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert "\u202e" not in html
    text = Document(html).text
    assert "{{ 7 * 7 }}" in text
    assert "\\xff\\x0a%d" in text
    assert "</table>" in text.replace(" ", "")
    assert "y" * 4096 in text


def test_a_copied_command_is_the_command() -> None:
    command = "printf 'a\\n' \\\n  | sort"
    html = render("run.html", report=report(command=command), summaries=[])
    assert "printf &#39;a\\n&#39; \\\n  | sort" in html


def test_without_javascript_the_curves_are_a_table(
    client: TestClient, runs: dict[str, Run]
) -> None:
    html = client.get(f"/jobs/{runs['lammps-melt']}").text
    inside = html[html.index("<noscript>") : html.index("</noscript>")]
    text = Document(inside.removeprefix("<noscript>")).text
    assert "The plots need JavaScript" in text
    for metric in ("CPU", "Memory used", "Read from storage", "Threads", "Maximum"):
        assert metric in text


def test_a_run_that_is_not_there(client: TestClient) -> None:
    for address in ("/jobs/999999", "/jobs/%3Cscript%3Ealert(1)%3C/script%3E", "/jobs/x%0Ay"):
        answer = client.get(address)
        assert answer.status_code == 404
        assert "<script>" not in answer.text
        Document(answer.text)


def test_small_pieces() -> None:
    assert path_pieces("/usr/bin/true") == ("/usr/bin/", "true")
    assert path_pieces("worker") == ("", "worker")
    assert state_of("COMPLETED") == ("Completed", "good")
    assert state_of("NEW_STATE").tone == "idle"
    assert metric_value(1.5, "count per second") == "1.50/s"
    assert metric_value(None, "bytes") == units.UNKNOWN
    assert metric_value(2.0e9, "nanoseconds") == "2.00 s"
    assert metric_value(2.0**20, "bytes per second") == "1.00 MiB/s"
    assert metric_value(3.25, "cores") == "3.25"
