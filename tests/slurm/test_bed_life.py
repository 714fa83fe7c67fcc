"""The bed comes and goes, and leaves nothing behind, whatever happens to it."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed import BedError, Cluster, process
from tests.slurm import leftovers
from tests.waiting import wait_until

PROJECT = Path(__file__).resolve().parents[2]
ALICE = "jobsight-alice"


@pytest.fixture
def bed(slurm_packages: None) -> Iterator[Cluster]:
    """A bed that is not up, alongside the one that the other tests share."""
    cluster = Cluster(name=f"jsl{os.getpid()}")
    assert leftovers.of(cluster.settings) == []
    yield cluster
    cluster.down()
    assert leftovers.of(cluster.settings) == []


def command(cluster: Cluster, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bed", *arguments, f"--name={cluster.settings.name}"],
        cwd=PROJECT,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_until(process_: subprocess.Popen[str], step: str) -> None:
    assert process_.stderr is not None
    said = ""
    for line in process_.stderr:
        if line.startswith(step):
            return
        said += line
    raise AssertionError(f"the bed ended before {step!r}: {said}")


def sleepers(cluster: Cluster) -> list[str]:
    return [line for line in leftovers.processes(cluster.settings) if r"sleep\x001000\x00" in line]


def test_up_twice_and_down_leave_the_machine_as_it_was(bed: Cluster) -> None:
    mounts = leftovers.mounts()
    for said in ("up, in all", "is up already"):
        first = command(bed, "up")
        assert said in first.communicate()[1]
        assert first.returncode == 0
    with pytest.raises(BedError, match="up with other settings"):
        Cluster(name=bed.settings.name, nodes=2).up()
    with pytest.raises(BedError, match=f"the name {bed.settings.name} is taken"):
        Cluster(name=bed.settings.name, folder=f"{bed.settings.folder}-b").up()
    assert bed.running()
    # A process that ignores the polite signal, and one that left its session.
    job = bed.submit(ALICE, "trap '' TERM; setsid sleep 1000 & sleep 1000 & wait", "--nodes=2")
    bed.wait(job, "RUNNING")
    wait_until(lambda: len(sleepers(bed)) == 2)
    assert len(leftovers.processes(bed.settings)) > 8
    assert "end processes" in command(bed, "down").communicate()[1]
    assert leftovers.of(bed.settings) == []
    assert leftovers.mounts() == mounts
    assert "There is no bed" in command(bed, "down").communicate()[1]


@pytest.mark.parametrize(
    "step",
    [
        "mariadb: new data",
        pytest.param("folder, users", marks=pytest.mark.long),
        pytest.param("slurmctld", marks=pytest.mark.long),
    ],
)
def test_up_after_kill_9_in_the_middle_of_up(bed: Cluster, step: str) -> None:
    first = command(bed, "up")
    read_until(first, step)
    first.kill()
    first.communicate()
    assert Path(bed.settings.folder).exists()
    second = command(bed, "up")
    said = second.communicate()[1]
    assert "left of an earlier bed" in said
    assert second.returncode == 0, said
    assert bed.running()
    assert bed.srun(ALICE, "id", "-un").stdout.strip() == ALICE


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, marks=pytest.mark.long),
    ],
)
def test_a_signal_in_the_middle_of_up(bed: Cluster, number: signal.Signals) -> None:
    starting = command(bed, "up")
    read_until(starting, "mariadb  ")
    starting.send_signal(number)
    starting.communicate()
    assert starting.returncode == 130
    assert leftovers.of(bed.settings) == []


def test_a_daemon_that_does_not_start(bed: Cluster) -> None:
    broken = Cluster(name=bed.settings.name, extra=("SelectType=select/none_such",))
    with pytest.raises(BedError, match="slurmctld ended while starting") as caught:
        broken.up()
    assert re.search(r"--- slurmctld .*\n(.*\n)*.*none_such", str(caught.value))
    assert leftovers.of(bed.settings) == []


def test_an_owner_killed_with_9_is_cleaned_up_after(bed: Cluster) -> None:
    name = bed.settings.name
    code = f"from tests.bed import Cluster\nwith Cluster(name={name!r}): print('up'); input()"
    owner = subprocess.Popen(
        [sys.executable, "-c", code], cwd=PROJECT, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert owner.stdout is not None
    assert owner.stdout.readline() == "up\n"
    assert bed.running()
    owner.kill()
    owner.communicate()
    wait_until(lambda: not leftovers.of(bed.settings))


def test_a_folder_of_somebody_else_is_not_touched(bed: Cluster) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "file").touch()
        foreign = Cluster(name=bed.settings.name, folder=folder)
        for act in (foreign.up, foreign.down):
            with pytest.raises(BedError, match="was not made by a bed"):
                act()
        assert Path(folder, "file").exists()


def test_a_pid_that_now_belongs_to_somebody_else_is_not_ended(bed: Cluster) -> None:
    bed.up()
    stranger = subprocess.Popen(["sleep", "1000"])
    try:
        began = process.start_time(stranger.pid)
        assert began is not None
        stale = bed.settings.path("run", "stale.pid")
        stale.write_text(f"{stranger.pid} {began - 1} {process.boot_id()}\n")
        bed.down()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_ten_times_in_a_row(bed: Cluster) -> None:
    for _ in range(10):
        bed.up()
        assert bed.srun(ALICE, "--nodes=3", "true").returncode == 0
        bed.down()
        assert leftovers.of(bed.settings) == []
