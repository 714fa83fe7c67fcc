"""A site's own samplers and outputs, written only against ``jobsight.plugins``."""

from __future__ import annotations

import ast
import re
import sys
import syslog
from pathlib import Path
from typing import Any

import pytest

from jobsight import plugins
from jobsight.agent import registry
from jobsight.agent.outputs.worker import OutputPlan, OutputWorker
from tests.agent.samplers.jobs import Job

DOCS = Path(__file__).parents[1] / "docs"


def example(page: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The code block of a page that imports the public interface, as a module of the site."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    (code,) = [block for block in blocks if "jobsight.plugins" in block]
    imported = {
        node.module for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)
    }
    assert imported - {"typing"} == {"jobsight.plugins"}
    name = f"site_{Path(page).stem}"
    (directory / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(directory)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_every_public_name_exists() -> None:
    assert plugins.__all__ == sorted(
        plugins.__all__, key=lambda n: (not n.isupper(), n[0].islower(), n)
    )
    assert all(hasattr(plugins, name) for name in plugins.__all__)


def test_the_sampler_of_the_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = example("samplers.md", tmp_path, monkeypatch)
    kind = registry.load_part("sampler", f"{module}:ScratchSpace")
    job = Job(tmp_path)
    (tmp_path / "scratch" / "42").mkdir(parents=True)
    (tmp_path / "scratch" / "42" / "data").write_bytes(bytes(1000))
    sampler: plugins.Sampler = kind(path=f"{tmp_path}/scratch/%d", node=job.node)
    sampler._background.timeout = 60  # type: ignore[attr-defined]
    assert sampler.columns(job.view) == {"scratch.used": 1000}
    assert sampler.final(job.view) == {"used_max": 1000, "used_average": 1000}
    sampler.close()
    missing = kind(path=f"{tmp_path}/nowhere/%d", node=job.node)
    missing._background.timeout = 60
    assert missing.columns(job.view) == {}
    assert "No such file" in missing.errors.causes["scratch"]


def test_the_output_of_the_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = example("outputs.md", tmp_path, monkeypatch)
    kind = registry.load_part("output", f"{module}:SyslogOutput")
    lines: list[str] = []
    monkeypatch.setattr(syslog, "syslog", lines.append)
    view = Job(tmp_path).view

    def make(view: plugins.JobView) -> Any:
        return kind(kind.Options(), view, "syslog")

    worker = OutputWorker(OutputPlan("syslog", make))
    worker.job(view).write(view, {"a": {}, "b": {}})
    assert worker.stop(60)
    assert lines == ["job 42 has ended: a, b"]
