"""The launcher's parts that can be looked at without a whole job."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobsight.agent.launch.child import ChildProcess
from jobsight.agent.launch.launcher import Outcome
from jobsight.agent.probes.process_tree import ProcessTreeProbe
from jobsight.errors import CommandError
from jobsight.model import Run
from tests.waiting import wait_until


def nothing() -> None:
    pass


def command(*arguments: str, before: Callable[[], None] = nothing) -> ChildProcess:
    return ChildProcess(arguments, environment=dict(os.environ), before=before, signal_mask=set())


@pytest.fixture(autouse=True)
def no_descriptor_stays_open() -> object:
    before = set(os.listdir("/proc/self/fd"))
    yield
    # A thread of an earlier test may just be closing its own.
    wait_until(lambda: set(os.listdir("/proc/self/fd")) <= before)


def test_it_stands_ready_and_then_goes(tmp_path: Path) -> None:
    made = command("/bin/touch", str(tmp_path / "started"))
    assert Path(f"/proc/{made.pid}").exists()
    assert not (tmp_path / "started").exists()
    made.start()
    assert os.waitpid(made.pid, 0)[1] == 0
    assert (tmp_path / "started").exists()


def test_abandoned_it_never_starts(tmp_path: Path) -> None:
    command("/bin/touch", str(tmp_path / "started")).abandon()
    assert not (tmp_path / "started").exists()


def test_when_the_launcher_dies_it_never_starts(tmp_path: Path) -> None:
    script = (
        "import os; from jobsight.agent.launch.child import ChildProcess\n"
        f"made = ChildProcess(['/bin/touch', {str(tmp_path / 'started')!r}], environment={{}}, "
        "before=lambda: None, signal_mask=set())\n"
        "print(made.pid, flush=True); os._exit(0)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    pid = int(ended.stdout)
    while Path(f"/proc/{pid}").exists():
        pass
    assert not (tmp_path / "started").exists()


def test_an_error_before_the_exec_is_not_taken_for_the_command_s() -> None:
    def refuse() -> None:
        raise PermissionError(13, "Permission denied", "/sys/fs/cgroup/x/cgroup.procs")

    with pytest.raises(CommandError, match=r"could not be prepared: .*cgroup\.procs") as caught:
        command("/bin/true", before=refuse).start()
    assert caught.value.exit_code == 125


@pytest.mark.parametrize(
    ("code", "number", "status"), [(0, None, 0), (7, None, 7), (None, signal.SIGTERM, 143)]
)
def test_the_status_is_the_shell_s(code: int | None, number: int | None, status: int) -> None:
    outcome = Outcome(Run("alpha", 1, 1), "FAILED", code, number, 0)
    assert outcome.status == status


def test_a_tree_of_processes_is_seen_whole() -> None:
    child = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 60 & sleep 60 & echo ready; wait"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    probe = ProcessTreeProbe(child.pid)
    # On a busy machine a fork may be seen before its exec: the next sample shows it.
    deadline = time.monotonic() + 60
    found = probe.sample()
    while not any(use.path.endswith(b"sleep") for use in probe.executables()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
        found = probe.sample()
    assert found["tasks.processes"] == 3
    assert found["memory.used"] > 0
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    probe.finish()
    assert probe.totals().cpu_source == "rusage"
    assert probe.report(0).coverage["executables"].quality == "estimate"
    probe.close()
