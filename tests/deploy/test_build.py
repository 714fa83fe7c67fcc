"""Wheel and sdist built twice are the same bytes, and the bill of materials names what is in them.

The packages themselves take minutes: `make packages`, tested by `make test-packages`.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
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


def test_the_sdist_has_what_its_tests_import(built: list[Path]) -> None:
    (sdist,) = built[0].glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tests = [name for name in names if re.fullmatch(r"tests/.*\.py", name)]
    assert len(tests) > 300
    own = {path.name for path in build.PROJECT.iterdir() if path.is_dir()} - {"src"}
    imported = set()
    for name in tests:
        for node in ast.walk(ast.parse((build.PROJECT / name).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module)
            elif isinstance(node, ast.Import):
                imported |= {each.name for each in node.names}
    modules = {name.replace(".", "/") for name in imported if name.partition(".")[0] in own}
    assert {"deploy/packages/build", "docs/generate"} <= modules
    missing = {name for name in modules if f"{name}.py" not in names and name not in {
        directory.rpartition("/")[0] for directory in names if directory.startswith(f"{name}/")
    }}  # fmt: skip
    assert missing == set()
    assert {"Makefile", "mkdocs.yml", "LICENSE", "slurm-plugin/plugin.c"} <= names


def test_the_completion_of_each_shell_is_in_the_packages(tmp_path: Path) -> None:
    build.completion(tmp_path)
    written = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert written == {
        "usr/share/bash-completion/completions/jobsight",
        "usr/share/zsh/site-functions/_jobsight",
        "usr/share/fish/vendor_completions.d/jobsight.fish",
    }
    for name in written:
        assert "jobsight" in (tmp_path / name).read_text()


def test_a_completion_that_fails_ends_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build.sys, "executable", "/bin/false")
    with pytest.raises(build.BuildError, match="jobsight completion bash ended with 1"):
        build.completion(tmp_path)


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
