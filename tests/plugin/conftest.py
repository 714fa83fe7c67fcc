"""The plugin's C files, compiled without Slurm and with the sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "slurm-plugin"
FLAGS = (
    *("-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-pthread", "-fno-sanitize-recover=all"),
    *("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"),
)

Compiled = Callable[..., Path]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """`compiled("driver", "-fsanitize=thread")` gives the program; with Slurm's headers in `slurm`
    the part of the plugin that includes them belongs to it, too."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc; `make test` as root installs it")
    folder = tmp_path_factory.mktemp("plugin")

    def compile_once(name: str, *options: str, slurm: Sequence[Path] = ()) -> Path:
        program = folder / "".join([name, *options]).replace("/", "_")
        if not program.exists():
            modules = [path for path in SOURCES.glob("*.c") if slurm or path.name != "plugin.c"]
            headers = [part for path in slurm for part in ("-isystem", path)]
            sources = [SOURCES / "tests" / f"{name}.c", *modules]
            command = ["gcc", *FLAGS, *options, *headers, *sources, "-lm", "-o", program]
            subprocess.run(command, check=True, timeout=100)
        return program

    return compile_once
