"""Executables with names and places that are meant to break something."""

import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from jobsight.agent.processes.process import Process
from jobsight.transport.wire import decode, encode
from tests.agent.slurm_trees import (
    SlurmNode,
    available,
    built,
    following,
    row,
)
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not available(), reason="needs root and the hierarchies of cgroup v1"),
]

NAMES = [
    b"100%(jobid)s%n",
    b'it\'s "quoted"',
    b"{braces} {0} ${HOME} `id`",
    b"two\nlines\r",
    b"not utf-8 \xff\xfe\x80",
    b"trailing (deleted)",
    b") R 1 1 1 (",
    "ünïcode 🚀".encode(),
    b"x" * 255,
]


def test_names_that_mean_something_elsewhere(node: SlurmNode, tmp_path: Path) -> None:
    paths = [os.path.join(os.fsencode(tmp_path), name) for name in NAMES]
    with following(node.finder()) as running:
        running.listen(node)
        job = node.job(1)
        processes = running.agent.collector.tracker.processes
        for number, path in enumerate(paths):
            shutil.copy("/bin/cat", path)
            step = job.step(path, step=str(number), stdin=subprocess.PIPE)
            # However busy the machine is, the program lives until its link has been read.
            wait_until(lambda: path in {_path(each) for each in list(processes.values())})  # noqa: B023
            step.communicate()
        part = running.last(job)
        for path in paths:
            assert (row(part, path).executions, row(part, path).path_known) == (1, True)
            assert row(part, path).cpu_time > 0
        # And they come through the wire as they are.
        (batch,) = [batch for batch in running.kept.batches if part in batch.parts]
        again = decode(encode(msgspec.structs.replace(batch, spool="s", sequence=1)))
        (sent,) = [one for one in again.parts if one.sighting == part.sighting]
        assert {use.path for use in sent.executables} >= set(paths)


def _path(process: Process) -> bytes | None:
    return process.name.path if process.name is not None else None


def test_a_path_of_four_thousand_characters(node: SlurmNode, tmp_path: Path) -> None:
    # A path of that length can only be reached step by step.
    here = os.open(tmp_path, os.O_RDONLY)
    length = len(os.fsencode(tmp_path))
    name = b"d" * 200
    try:
        while length + 201 < 4000:
            os.mkdir(name, dir_fd=here)
            below = os.open(name, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here, length = below, length + 201
        program = os.open(b"p", os.O_WRONLY | os.O_CREAT, 0o755, dir_fd=here)
        os.write(program, built("processor").read_bytes())
        os.close(program)
        with following(node.finder()) as running:
            running.listen(node)
            job = node.job(1)
            job.step("/bin/sh", "-c", "exec ./p 100000", preexec_fn=lambda: os.fchdir(here)).wait()
            part = running.last(job)
            (use,) = [use for use in part.executables if use.path.endswith(b"/p")]
            assert len(use.path) == length + 2
            assert use.executions == 1
            assert use.cpu_time >= 0.05e9
    finally:
        os.close(here)
        subprocess.run(["rm", "-rf", tmp_path / os.fsdecode(name)], check=True)


def test_a_deleted_executable(node: SlurmNode, tmp_path: Path) -> None:
    program = tmp_path / "gone"
    shutil.copy(built("processor"), program)
    with following(node.finder()) as running:
        running.listen(node)
        job = node.job(1)
        step = job.step(program, "400000")
        wait_until(lambda: job.used() > 0.05e9)
        program.unlink()
        step.wait()
        assert row(running.last(job), program).executions == 1


@pytest.mark.parametrize("kind", ["namespace", "chroot"])
def test_an_executable_that_is_not_seen_from_here(
    node: SlurmNode, tmp_path: Path, kind: str
) -> None:
    """A container's files: the link gives the path inside, a search from outside finds nothing."""
    inside = tmp_path / "inside"
    inside.mkdir()
    static = inside / "burn"
    source = built("processor").with_suffix(".c")
    command = ["cc", "-O2", "-static", "-DCLOCK=CLOCK_PROCESS_CPUTIME_ID", "-o", static, source]
    if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("needs a static C library")
    if kind == "chroot":
        words = ["chroot", str(inside), "/burn", "100000"]
    else:
        script = (
            f"mount -t tmpfs none {inside} && cp {tmp_path}/burn {inside}/only-here"
            f" && {inside}/only-here 100000; true"
        )
        shutil.copy(static, tmp_path / "burn")
        words = ["unshare", "-m", "sh", "-c", script]
    with following(node.finder()) as running:
        running.listen(node)
        job = node.job(1)
        assert job.step(*words).wait() == 0
        part = running.last(job)
        (use,) = [use for use in part.executables if use.path.endswith((b"burn", b"only-here"))]
        assert use.executions == 1
        assert use.cpu_time >= 0.05e9
    assert not (inside / "only-here").exists()
