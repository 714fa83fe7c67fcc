"""Ring, texts, datasets and settings of the plugin, under the sanitizers and under valgrind."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.plugin.conftest import SOURCES, Compiled


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_units(compiled: Compiled, sanitizer: str) -> None:
    run(compiled("units", f"-fsanitize={sanitizer}"))


def test_units_under_valgrind(compiled: Compiled) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("needs valgrind; `make test` as root installs it")
    run(
        "valgrind",
        "-q",
        "--leak-check=full",
        "--fair-sched=yes",
        "--error-exitcode=9",
        compiled("units"),
    )


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("source", sorted(SOURCES.rglob("*.[ch]")), ids=lambda path: path.name)
def test_a_file_says_its_licence_and_is_short_enough_to_read(source: Path) -> None:
    lines = source.read_text().splitlines()
    assert lines[0] == "/* SPDX-License-Identifier: GPL-2.0-or-later */"
    assert len(lines) <= 350
    assert max(len(line.expandtabs(8)) for line in lines) <= 100


def test_the_licence_is_with_the_plugin() -> None:
    assert (
        "GNU GENERAL PUBLIC LICENSE\n                       Version 2, June 1991"
        in (SOURCES / "LICENSE").read_text()
    )
