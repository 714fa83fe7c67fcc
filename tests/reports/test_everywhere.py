"""The comparison of renderings sees each figure that one of them has not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobsight.cli.main import main
from jobsight.store.store import Store
from tests.reports.everywhere import missing, told_values
from tests.web import sample


@pytest.fixture
def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """The JSON of a report, and its text."""
    location = str(tmp_path / "store.db")
    with Store.open(location) as store:
        sample.fill(store)
    options = ["report", "local:6", "--store", location]
    assert main([*options, "--json"]) == 0
    report = msgspec.json.decode(capsys.readouterr().out)
    assert main([*options, "--all"]) == 0
    return report, capsys.readouterr().out


def test_a_report_has_all_of_its_values(shown: tuple[dict[str, Any], str]) -> None:
    report, text = shown
    assert missing(report, "terminal", text) == []
    paths = {told.path for told in told_values(report, "terminal")}
    assert paths >= {
        "user", "cpu.cpu_seconds", "cpu.share", "memory.used_peak_bytes", "time.elapsed_seconds",
        "io.storage_read_bytes", "executables.executions", "steps.cpu_seconds",
        "node_rows.syscall_read_bytes", "coverage_notes", "state_text",
    }  # fmt: skip
    assert len(told_values(report, "document")) > 100


def test_a_changed_value_is_missed(shown: tuple[dict[str, Any], str]) -> None:
    report, text = shown
    groups = [(report, "user"), (report["cpu"], "cpu_seconds"), (report["cpu"], "share")]
    groups += [(report["memory"], name) for name in ("requested_bytes", "used_peak_bytes")]
    groups += [(report["time"], "elapsed_seconds")]
    groups += [(row, "cpu_seconds") for row in report["executables"] + report["steps"]]
    groups += [(row, "executions") for row in report["executables"][:1]]
    groups += [(row, "memory_used_peak_bytes") for row in report["node_rows"]]
    for values, name in groups:
        before = copy.copy(values[name])
        values[name] = f"{before}x" if isinstance(before, str) else before * 1.613 + 1
        assert missing(report, "terminal", text), name
        values[name] = before
