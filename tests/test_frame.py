"""The frame holds: the lock, the scripts, the Makefile and what a bare machine is told."""

import ast
import importlib.metadata
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import jobsight

ROOT = Path(__file__).parent.parent
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
SCRIPTS = sorted((ROOT / "scripts").iterdir())
TOOLS = (
    "bash",
    "basename",
    "cat",
    "cut",
    "dirname",
    "flock",
    "id",
    "rm",
    "sha256sum",
    "tail",
    "tr",
)
NOBODY = 65534


def requirements(lock: Path) -> dict[str, str]:
    """Each requirement of a lock file, name and version, with its hashes."""
    joined = lock.read_text().replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    return {line.split(" ", 1)[0]: line for line in lines}


@pytest.fixture
def copy() -> Iterator[Path]:
    """The project as a fresh clone has it, without .venv, readable by every user."""
    with tempfile.TemporaryDirectory(prefix="jobsight-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        copy_project(directory)
        yield directory


def copy_project(directory: Path) -> None:
    for part in ("scripts", "requirements", "src"):
        shutil.copytree(ROOT / part, directory / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / part, directory / part)


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def install(directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", "scripts/install"],
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def one_sentence(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode != 0
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("jobsight: ")
    return result.stderr


def test_the_locks_are_there() -> None:
    names = [
        "agent.txt",
        "build.txt",
        "dev.txt",
        "fuzz.txt",
        "packages.txt",
        "peers.txt",
        "server.txt",
        "spark.txt",
    ]
    assert [lock.name for lock in LOCKS] == names


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_pins_with_hashes_and_names_no_address(lock: Path) -> None:
    text = lock.read_text()
    assert not re.search(r"://|^-|@|index|find-links", text, re.MULTILINE)
    for name, line in requirements(lock).items():
        assert "==" in name, f"{name} is not pinned"
        assert "--hash=sha256:" in line, f"{name} has no hash"


@pytest.mark.parametrize("part", ["agent.txt", "server.txt"])
def test_the_development_lock_holds_the_others_with_the_same_versions(part: str) -> None:
    development = requirements(ROOT / "requirements" / "dev.txt")
    assert requirements(ROOT / "requirements" / part).keys() <= development.keys()


def test_the_agent_lock_stays_small() -> None:
    names = {name.split("==")[0] for name in requirements(ROOT / "requirements" / "agent.txt")}
    assert names == {"msgspec", "nvidia-ml-py", "pyyaml", "zstandard"}


def test_the_lock_knows_every_direct_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    direct = {re.split(r"[\[>=<]", line)[0].lower() for group in groups for line in group}
    locked = {name.split("==")[0] for name in requirements(ROOT / "requirements" / "dev.txt")}
    assert direct - {"jobsight"} <= locked, "type: make lock"


def test_the_installed_packages_fit_together() -> None:
    # The lock is installed without a resolver, so this is where a gap in it would show.
    result = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stdout


def test_the_installed_version_is_the_version_of_the_source() -> None:
    assert importlib.metadata.version("jobsight") == jobsight.__version__


@pytest.mark.parametrize("script", [*SCRIPTS, ROOT / ".ci" / "run"], ids=lambda path: path.name)
def test_a_script_can_be_executed_and_is_sound(script: Path) -> None:
    assert script.stat().st_mode & stat.S_IXUSR
    text = script.read_text()
    if text.startswith("#!/usr/bin/env python3\n"):
        assert ast.get_docstring(ast.parse(text))
    else:
        assert text.startswith("#!/usr/bin/env bash\n# ")
        subprocess.run(["bash", "-n", script], check=True, timeout=60)


def test_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):(?!=)", makefile, re.MULTILINE))
    shown = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, timeout=60
    ).stdout
    assert set(re.findall(r"^  make ([a-z-]+) +\S", shown, re.MULTILINE)) == targets
    assert {"help", "install", "run", "test", "check", "bench", "lock", "clean"} <= targets


def test_a_python_that_is_not_there_is_one_sentence(copy: Path) -> None:
    assert "PYTHON=/no/such/python does not run" in one_sentence(
        install(copy, PYTHON="/no/such/python")
    )


def test_an_old_python_is_one_sentence(copy: Path, tmp_path: Path) -> None:
    old = executable(tmp_path / "python", "#!/bin/sh\necho 3.9\n")
    assert "is Python 3.9, and 3.11 or newer is needed" in one_sentence(
        install(copy, PYTHON=str(old))
    )


def bare_path(directory: Path, **pythons: str) -> str:
    """A PATH with the tools of a bare machine and only the Pythons given, as shell text."""
    directory.mkdir()
    for tool in TOOLS:
        (directory / tool).symlink_to(shutil.which(tool) or tool)
    for name, text in pythons.items():
        executable(directory / name.replace("_", "."), f"#!/bin/sh\n{text}\n")
    return str(directory)


def test_no_python_at_all_names_the_apt_line(copy: Path, tmp_path: Path) -> None:
    sentence = one_sentence(install(copy, PATH=bare_path(tmp_path / "bin"), PYTHON=""))
    assert "none is here" in sentence
    assert "apt-get install python3-venv" in sentence


def test_only_an_old_python_names_the_apt_line(copy: Path, tmp_path: Path) -> None:
    path = bare_path(tmp_path / "bin", python3="echo 3.10")
    sentence = one_sentence(install(copy, PATH=path, PYTHON=""))
    assert "python3 is 3.10" in sentence
    assert "apt-get install python3.11-venv" in sentence


def test_a_python_without_venv_names_the_apt_line(copy: Path, tmp_path: Path) -> None:
    lacking = 'case "$2" in *ensurepip*) exit 1;; esac; echo 3.12'
    path = bare_path(tmp_path / "bin", python3=lacking)
    sentence = one_sentence(install(copy, PATH=path, PYTHON=""))
    assert "apt-get install python3-venv" in sentence


def test_a_newer_python_next_to_an_old_python3_is_found(copy: Path, tmp_path: Path) -> None:
    path = bare_path(tmp_path / "bin", python3="echo 3.10", python3_12="echo 3.12")
    result = subprocess.run(
        ["/bin/bash", "scripts/find-python"],
        cwd=copy,
        env={**os.environ, "PATH": path, "PYTHON": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout == f"{path}/python3.12\n", result.stderr


def test_a_read_only_directory_is_one_sentence(copy: Path) -> None:
    executable(copy / "python", "#!/bin/sh\necho 3.12\n")
    copy.chmod(0o555)
    # Root may write everywhere, so it becomes somebody else for this.
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    result = subprocess.run(
        [*(as_nobody if os.geteuid() == 0 else []), "/bin/bash", "scripts/install"],
        cwd=copy,
        env={**os.environ, "PYTHON": str(copy / "python")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    copy.chmod(0o755)
    assert "cannot be written" in one_sentence(result)


def test_the_run_ends_by_naming_what_was_skipped(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "conftest.py")
    (tmp_path / "test_skips.py").write_text(
        "import pytest\n"
        "def test_full(): pass\n"
        "@pytest.mark.skip(reason='no moon tonight')\n"
        "def test_moon(): pass\n"
    )
    (tmp_path / "test_module.py").write_text(
        "import pytest\npytest.skip('no sun at all', allow_module_level=True)\n"
    )

    def closing(*arguments: str) -> list[str]:
        shown = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "xdist", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        return shown.partition("Skipped, and why")[2].splitlines()

    assert closing("-n", "2")[1:3] == [
        "test_module.py: no sun at all",
        "test_skips.py::test_moon: no moon tonight",
    ]
    assert closing("test_skips.py::test_full")[1] == "Nothing was skipped."
