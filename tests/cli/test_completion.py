"""Completion in the real shells: commands, subcommands, options and their values."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from jobsight.cli.arguments import collected_parsers
from jobsight.cli.completion import RENDERERS, collect
from jobsight.cli.main import COMMANDS, main

#: What is typed, and some of what is offered.
CASES = [
    ("jobsight repo", {"report"}),
    ("jobsight mail pau", {"pause", "pauses"}),
    ("jobsight store mo", {"move"}),
    ("jobsight findings eff", {"effect"}),
    ("jobsight report --scr", {"--script"}),
    ("jobsight mail pause --unt", {"--until"}),
    ("jobsight top --sort cor", {"cores"}),
    ("jobsight completion ba", {"bash"}),
]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("completion")
    commands = collect()
    files = {shell: directory / f"_{shell}" for shell in RENDERERS}
    for shell, render in RENDERERS.items():
        files[shell].write_text(render(commands))
    return files


def run(shell: str, *arguments: str) -> str:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run(
        [shell, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_every_command_and_option_is_known() -> None:
    commands = {each.path: each for each in collect()}
    assert {path[0] for path in commands} == set(COMMANDS)
    report = commands[("report",)]
    assert "--pdf" in {name for option in report.options for name in option.names}
    assert commands[("mail", "calendar")].help
    assert "revoke" in commands[("token",)].values
    # Nothing stays collected.
    with collected_parsers() as parsers:
        assert parsers == {}


@pytest.mark.parametrize(("typed", "offered"), CASES)
def test_bash(scripts: dict[str, Path], typed: str, offered: set[str]) -> None:
    words = typed.split()
    script = (
        f"source {scripts['bash']}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
        '_jobsight; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    assert set(run("bash", "--norc", "-c", script).split()) == offered


@pytest.mark.parametrize(("typed", "offered"), CASES)
def test_fish(scripts: dict[str, Path], typed: str, offered: set[str]) -> None:
    script = f"source {scripts['fish']}; complete -C '{typed}'"
    shown = run("fish", "--no-config", "-c", script)
    assert {line.split("\t")[0] for line in shown.splitlines()} == offered


def test_zsh(scripts: dict[str, Path], tmp_path: Path) -> None:
    """In an interactive shell: zsh completes nowhere else."""
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    shutil.copy(scripts["zsh"], tmp_path / "_jobsight")
    run("zsh", "-n", str(tmp_path / "_jobsight"))
    (tmp_path / ".zshrc").write_text(
        f"fpath=({tmp_path} $fpath)\nautoload -Uz compinit\ncompinit -u -D\n"
        "unsetopt beep\nPS1='READY> '\nbindkey '^I' complete-word\n"
    )
    typed = [
        "jobsight repo",
        "jobsight store mo",
        "jobsight report --scr",
        "jobsight completion ba",
    ]
    wanted = [
        "jobsight report",
        "jobsight store move",
        "jobsight report --script",
        "completion bash",
    ]
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {"PATH": "/usr/bin:/bin", "ZDOTDIR": str(tmp_path), "TERM": "dumb"}
        os.execve("/usr/bin/zsh", ["zsh", "-i"], environment)
    try:
        _read_until(terminal, "READY> ")
        for text, expected in zip(typed, wanted, strict=True):
            os.write(terminal, text.encode() + b"\t")
            # A terminal without movements of the cursor repeats the line.
            _read_until(terminal, expected.rpartition(text[-2:])[2] or expected)
            # Ctrl-U removes the line.
            os.write(terminal, b"\x15")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def _read_until(terminal: int, text: str) -> None:
    shown, deadline = "", time.monotonic() + 60
    while text not in shown:
        ready, _, _ = select.select([terminal], [], [], max(deadline - time.monotonic(), 0))
        assert ready, f"expected {text!r} in {shown!r}"
        shown += os.read(terminal, 4096).decode(errors="replace")


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert "complete -o bashdefault" in capsys.readouterr().out
    assert main(["completion", "csh"]) == 2
    assert "expected one of bash, zsh, fish" in capsys.readouterr().err
