"""The one file that is copied to a cluster, and what is made of its answer."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from jobsight.config.settings import Settings
from jobsight.model import SECOND
from jobsight.scheduler.adapters import sacct, sinfo, squeue
from jobsight.scheduler.records import AdaptError, SourceError
from jobsight.scheduler.sources import onsite_script
from jobsight.scheduler.sources.base import open_source
from jobsight.scheduler.sources.onsite import OnsiteSource
from jobsight.scheduler.sources.text import TextSource
from tests.scheduler.adapters.test_squeue import ROW
from tests.scheduler.sources.test_sources import JOB, STEP, Tools

NODE = {"NodeList": "cn1", "PartitionName": "main", "StateComplete": "mixed", "CPUs": "2",
        "CPUsState": "1/1/0/2", "Memory": "4096", "Reason": "x=y\nz"}  # fmt: skip


class Programs:
    """sacct, squeue and sinfo, each with rows of its own."""

    def __init__(self) -> None:
        self.tools = {"sacct": Tools(JOB, STEP), "squeue": Tools(ROW), "sinfo": Tools(NODE)}

    def __call__(self, command: Sequence[str], timeout: float) -> tuple[bytes, str]:
        return b"".join(self.tools[command[0]](command, timeout)), ""


def document(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> bytes:
    monkeypatch.setattr(onsite_script, "run", Programs())
    monkeypatch.setattr(sys, "argv", ["onsite.py"])
    assert onsite_script.main() == 0
    return capsys.readouterr().out.encode()


def test_its_columns_are_those_of_the_text_source() -> None:
    assert tuple(onsite_script.SACCT) == sacct.COLUMNS
    assert tuple(onsite_script.SQUEUE) == squeue.COLUMNS
    assert tuple(onsite_script.NODES) == sinfo.NODE_COLUMNS
    assert tuple(onsite_script.PARTITIONS) == sinfo.PARTITION_COLUMNS


def test_an_old_python_can_read_it() -> None:
    source = Path(onsite_script.__file__).read_text()
    ast.parse(source, feature_version=(3, 6))
    modules = {
        name.name.partition(".")[0]
        for found in ast.walk(ast.parse(source))
        if isinstance(found, ast.Import)
        for name in found.names
    }
    assert modules <= sys.stdlib_module_names


def test_the_records_are_those_of_the_text_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = document(monkeypatch, capsys)
    source = OnsiteSource("hpc", lambda: data)
    assert "sacct, squeue, nodes, partitions" in source.probe()
    text = TextSource("hpc", run=Programs().tools["sacct"])
    assert source.accounting(0, 2**62).records == text.accounting(0, SECOND).records
    assert source.accounting_of([13]).records == []
    (queued,) = source.queue().records
    assert (queued.info.job_id, queued.info.user) == (7, "alice")
    (node,) = source.nodes().records
    assert (node.name, node.reason, node.memory) == ("cn1", "x=y\nz", 2**32)
    (partition,) = source.partitions().records
    assert partition.name == "main"


def test_a_command_that_fails_is_its_own_trouble(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(document(monkeypatch, capsys))
    found["replies"][0] = found["replies"][0] | {"reason": "sacct failed with 1: away"}
    source = OnsiteSource("hpc", lambda: json.dumps(found).encode())
    with pytest.raises(SourceError, match="sacct failed with 1: away"):
        source.accounting(0, 1)
    assert len(source.queue().records) == 1
    found["replies"][1]["columns"].remove("State")
    with pytest.raises(AdaptError, match="squeue lacks the columns State"):
        source.queue()
    for odd in (b"", b"python3: not found", b"[]", b'{"format": "x", "written": 1, "replies": []}'):
        with pytest.raises(AdaptError):
            OnsiteSource("hpc", lambda odd=odd: odd).probe()


def test_it_runs_where_there_is_no_slurm(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", onsite_script.__file__],
        env={"PATH": os.fspath(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "onsite: sacct cannot be run" in done.stderr
    assert {reply["name"] for reply in json.loads(done.stdout)["replies"]} == {
        "sacct", "squeue", "nodes", "partitions",
    }  # fmt: skip
    file = tmp_path / "slurm.onsite.json"
    file.write_text(done.stdout)
    settings = Settings(cluster="hpc")
    settings.scheduler.source = "onsite"
    settings.scheduler.onsite_file = str(file)
    with pytest.raises(SourceError, match="sacct cannot be run: No such file"):
        open_source(settings).source.probe()
    file.unlink()
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        open_source(settings).source.probe()
