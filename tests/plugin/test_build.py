"""`make plugin` says in one sentence what it cannot do."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "plugin"


def refusal(**environment: str) -> str:
    done = subprocess.run(
        [SCRIPT], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("jobsight: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("version", ["19.05.5", "23.02.1", "30.11.0-0rc1"])
def test_a_release_that_is_not_known_is_refused(tmp_path: Path, version: str) -> None:
    slurmd = tmp_path / "slurmd"
    slurmd.write_text(f"#!/bin/sh\necho slurm-wlm {version}\n")
    slurmd.chmod(0o755)
    sentence = refusal(PATH=f"{tmp_path}:{os.environ['PATH']}", SLURM_SOURCE="")
    assert f"Slurm {version} is not known" in sentence
    assert "known are 22.05 and 24.11" in sentence


def test_sources_of_a_release_that_is_not_known_are_refused(tmp_path: Path) -> None:
    (tmp_path / "META").write_text("  Meta:\t1\n  Name:\tslurm\n  Version:\t25.11.0\n")
    assert "Slurm 25.11.0 is not known" in refusal(SLURM_SOURCE=str(tmp_path))


def test_a_directory_without_slurm_is_refused(tmp_path: Path) -> None:
    assert "is not the directory of Slurm's sources" in refusal(SLURM_SOURCE=str(tmp_path))


def test_the_header_knows_the_same_releases_as_the_script() -> None:
    header = (SCRIPT.parents[1] / "slurm-plugin" / "release.h").read_text()
    known = SCRIPT.read_text().partition('known="')[2].partition('"')[0].split()
    for release in known:
        assert f"JOBSIGHT_SLURM == SLURM_{release.replace('.', '_')}\n" in header
    assert header.count("JOBSIGHT_SLURM == ") == len(known)


def test_the_plugin_is_built_with_the_protections_of_a_distribution(tmp_path: Path) -> None:
    """It runs as root in slurmstepd. The sources are compiled with the flags of the script."""
    if shutil.which("gcc") is None or shutil.which("readelf") is None:
        pytest.skip("needs gcc and readelf; `make test` as root installs them")
    command = SCRIPT.read_text().partition('\n"$cc" ')[2].partition("-o ")[0].replace("\\\n", " ")
    flags = [flag for flag in shlex.split(command) if not flag.startswith(("$", "-isystem"))]
    sources = SCRIPT.parents[1] / "slurm-plugin"
    library = tmp_path / "plugin.so"
    parts = [sources / name for name in ("http.c", "message.c", "text.c", "target.c")]
    subprocess.run(["gcc", *flags, "-o", library, *parts], check=True, timeout=300)
    shown = subprocess.run(
        ["readelf", "--wide", "--dynamic", "--program-headers", "--dyn-syms", library],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "BIND_NOW" in shown
    assert "GNU_RELRO" in shown
    assert "__stack_chk_fail" in shown
    assert re.search(r"__\w+_chk@", shown), "no fortified function"
    assert "-fstack-clash-protection" in flags
