"""What an interpreter runs is named where it may be, and nothing else of its command line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.agent.processes.executables import (
    ExecutableName,
    ExecutableNames,
    is_interpreter,
    same_file,
    script_of,
    without_script,
)
from tests.agent.workloads import Home

CASES = [
    ("python3.11", "run.py --password secret", "run.py"),
    ("python3", "-u -W ignore -X dev /a/run.py", "/a/run.py"),
    ("python3", "-Wignore -B run.py", "run.py"),
    ("python3", "-um mpi4py run.py", "-m mpi4py"),
    ("python3", "-m torch.distributed.run x.py", "-m torch.distributed.run"),
    ("python3", "-mpip", "-m pip"),
    ("python3", "-c print(1) secret", None),
    ("python3", "-uc secret", None),
    ("python3", "-", None),
    ("python3", "", None),
    ("python3", "--check-hash-based-pycs never -- run.py x", "run.py"),
    ("perl", "-w -I lib -MList::Util script.pl secret", "script.pl"),
    ("perl5.36.0", "-pe s/a/b/ file", None),
    ("perl", "-Ilib -i.bak x.pl", "x.pl"),
    ("julia", "-t 4 --project=. -O3 sim.jl secret", "sim.jl"),
    ("julia", "--threads 4 sim.jl", "sim.jl"),
    ("julia", "-e secret", None),
    ("julia", "--eval=secret", None),
    ("R", "--no-echo --no-restore --file=fit.R --args secret", "fit.R"),
    ("R", "-f fit.R", "fit.R"),
    ("R", "--no-echo -e secret", None),
    ("R", "--vanilla", None),
    ("java", "-Xmx4g -cp /a:/b -jar tool.jar secret", "tool.jar"),
    ("java", "-Dkey=secret -classpath x org.example.Main secret", "org.example.Main"),
    ("java", "--module-path m -m a/b.C", "a/b.C"),
    ("java", "-version", None),
    ("MATLAB", "-nodisplay -batch analyse", "analyse"),
    ("MATLAB", "-nodisplay -r disp('secret')", None),
    ("bash", "run.sh", None),
    ("pythonista", "x.py", None),
]


@pytest.mark.parametrize(("program", "arguments", "script"), CASES)
def test_the_script_is_found(program: str, arguments: str, script: str | None) -> None:
    found = script_of(f"/usr/bin/{program}".encode(), arguments.encode().split())
    assert found == (None if script is None else script.encode())


@given(
    st.sampled_from(["python3", "perl", "R", "julia", "java", "matlab"]),
    st.lists(st.binary(max_size=20)),
)
def test_any_command_line_gives_one_of_its_arguments_or_nothing(
    program: str, arguments: list[bytes]
) -> None:
    found = script_of(program.encode(), arguments)
    assert is_interpreter(program.encode())
    if found is not None:
        assert any(found.removeprefix(b"-m ") in argument for argument in arguments)


@contextmanager
def process(*command: str | Path) -> Iterator[int]:
    """A real process that has begun to run what it was told."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.read(1)
        yield child.pid
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("on", [True, False])
def test_a_job_says_what_its_interpreters_ran_where_it_was_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: bool
) -> None:
    home = Home(tmp_path)
    script = tmp_path / "fit.py"
    script.write_text("import time\ntime.sleep(3)\n")
    monkeypatch.setenv("JOBSIGHT_AGENT__NAME_SCRIPTS", str(on).lower())
    ended = home.run("/bin/sh", "-c", f"{sys.executable} {script} secret; :")
    assert ended.returncode == 0
    paths = {row["path"] for row in home.report()["executables"]}
    assert {path.partition("//")[2] for path in paths} == ({"", str(script)} if on else {""})
    assert not any("secret" in path for path in paths)


WAIT = "import sys\nprint('x', end='', flush=True)\nsys.stdin.read()\n"


def test_real_interpreters_are_named_with_their_scripts(tmp_path: Path) -> None:
    names, plain = ExecutableNames(), ExecutableNames()
    names.include_scripts = True
    script = tmp_path / "näme.py"
    script.write_text(WAIT)
    perl = tmp_path / "x.pl"
    perl.write_text('$| = 1; print "x"; <STDIN>;\n')
    with process(sys.executable, "-u", script, "--token", "secret") as pid:
        bare = plain.by_link(pid)
        assert bare is not None
        assert b"//" not in bare.path
        found = names.by_link(pid)
        assert found == ExecutableName(bare.path + b"//" + bytes(script), known=True)
        assert same_file(found, bare)
        # What is learned for records of others is the file alone.
        assert without_script(found) == bare
    with process(sys.executable, "-c", WAIT) as pid:
        assert names.by_link(pid) == bare
    with process("perl", perl, "secret") as pid:
        found = names.by_link(pid)
        assert found is not None
        assert found.path.endswith(b"//" + bytes(perl))
    with process("sh", "-c", "printf x; read line", "secret.py") as pid:
        found = names.by_link(pid)
        assert found is not None
        assert b"//" not in found.path
