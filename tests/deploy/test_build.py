"""Wheel and sdist built twice are the same bytes, and the bill of materials names what is in them.

The packages themselves take minutes: `make packages`, tested by `make test-packages`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.packages import build


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The project, copied to two directories at different times, and built in each."""
    made = []
    for number in (1, 2):
        copy = tmp_path_factory.mktemp("project") / f"copy{number}"
        shutil.copytree(
            build.PROJECT,
            copy,
            ignore=shutil.ignore_patterns(
                ".git",
                ".venv",
                ".cache",
                "build",
                "dist",
                "node_modules",
                "__pycache__",
                ".*_cache",
            ),
            copy_function=shutil.copy,
        )
        moment = time.time() - 86400 * number
        for path in copy.rglob("*.py"):
            os.utime(path, (moment, moment))
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "--directory", str(copy / "out")],
            cwd=copy,
            env={**os.environ, "SOURCE_DATE_EPOCH": "1767225600"},
            check=True,
            capture_output=True,
            timeout=120,
        )
        made.append(copy / "out")
    return made


def test_wheel_and_sdist_are_the_same_bytes(built: list[Path]) -> None:
    first, second = built
    names = sorted(file.name for file in first.iterdir())
    assert [name.rsplit(".", 1)[1] for name in names] == ["whl", "gz"]
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_the_bill_of_materials(built: list[Path]) -> None:
    (wheel,) = built[0].glob("*.whl")
    other = wheel.with_name("another-1.0-py3-none-any.whl")
    shutil.copy(wheel, other)
    parts = [{"type": "library", "bom-ref": "source:openssl@3.5", "name": "openssl"}]
    bill = build.sbom("jobsight-agent", "1.2.3", [wheel, other], parts)
    assert bill["bomFormat"] == "CycloneDX"
    assert bill == build.sbom("jobsight-agent", "1.2.3", [other, wheel], parts)
    # Not the project's own wheel, which is what the bill is of.
    assert [component["name"] for component in bill["components"]] == ["openssl", "jobsight"]
    (component,) = bill["components"][1:]
    assert component["purl"].startswith("pkg:pypi/jobsight@")
    assert len(component["hashes"][0]["content"]) == 64
    assert component["licenses"] == [{"expression": "Apache-2.0"}]
    json.dumps(bill)


def test_a_command_finds_its_interpreter_beside_itself(built: list[Path], tmp_path: Path) -> None:
    (wheel,) = built[0].glob("jobsight-*.whl")
    (tmp_path / "bin").mkdir()
    build.write_commands(tmp_path, wheel)
    (tmp_path / "bin" / "python3").symlink_to("/bin/echo")
    link = tmp_path / "jobsight"
    link.symlink_to("bin/jobsight")
    answer = subprocess.run([link, "agent", "a b"], capture_output=True, text=True, timeout=60)
    assert answer.stdout == (
        "-I -c import sys; from jobsight.cli.main import main; sys.exit(main()) agent a b\n"
    )
    names = {file.name for file in (tmp_path / "bin").iterdir()}
    assert {"sams-collector.py", "jobs_exporter", "jobsight"} <= names
