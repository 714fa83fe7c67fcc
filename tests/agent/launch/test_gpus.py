"""GPUs of `jobsight run`: those that the command uses, and free ones that are reserved."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobsight.agent.collector import Collector
from jobsight.agent.launch.launcher import Launcher, Outcome, RunRequest
from jobsight.agent.samplers.gpu import devices
from jobsight.agent.samplers.gpu.choose import reserve
from jobsight.agent.samplers.gpu.devices import NodeGpus
from jobsight.agent.samplers.gpu.nvml import Nvml
from jobsight.agent.samplers.node import Node
from jobsight.errors import CommandError
from jobsight.model import Batch, JobPart
from tests.agent.samplers.test_gpu import Library


class Machine(Library):
    """Two undivided GPUs; the processes of the first are those that a file lists."""

    def __init__(self, users: Path) -> None:
        super().__init__()
        self.users = users
        self.listed = 0

    def do_DeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        raise self.NVMLError(3)

    def do_DeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        # A name that no other test reserves at the same time.
        return f"GPU-{self.users}-{handle}"

    def do_DeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        if handle != "h0" or not self.users.exists():
            return []
        pids = self.users.read_text().split()
        self.listed += 1
        if self.listed > 1:
            self.users.with_suffix(".seen").touch()
        return [SimpleNamespace(pid=int(pid), usedGpuMemory=2**20) for pid in pids]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    # A busy machine begins a thread later than the launcher waits for it.
    monkeypatch.setattr(devices, "_FINAL_TIMEOUT", 60.0)
    node = Node(environment={})
    gpus = node.shared("gpus", lambda: NodeGpus(node, "/none", 1.0))
    gpus.use(Nvml(Machine(tmp_path / "users"), node.errors))
    gpus._looking.timeout = 60
    return node


def run(node: Node, arguments: list[str], gpus: int | None = None) -> tuple[Outcome, JobPart]:
    batches: list[Batch] = []
    collector = Collector(None, cluster="c", node="n1")
    collector.on_batch = batches.append
    try:
        request = RunRequest(arguments=arguments, job_id=1, gpus=gpus)
        outcome = Launcher(request, collector, node).run()
    finally:
        collector.close()
    part = batches[-1].parts[-1]
    assert part.final
    return outcome, part


#: Writes its own PID as that of a process on the GPU, and waits until it has been seen.
_USES_A_GPU = """
import os, sys, time
open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
while not os.path.exists(sys.argv[1] + ".seen"):
    time.sleep(0.05)
"""


def test_a_gpu_that_the_command_uses_is_its_own(machine: Node, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _USES_A_GPU, str(tmp_path / "users")]
    outcome, part = run(machine, command)
    assert outcome.state == "COMPLETED"
    (use,) = part.gpus
    assert (use.key, use.used, use.memory_peak) == ("0", True, 2**30)
    assert part.coverage["gpu"].quality == "estimate"
    assert max(one.gpu_memory_peak for one in part.executables) == 2**20
    assert outcome.unused_gpus == ()


def test_a_command_without_a_gpu(machine: Node) -> None:
    _, part = run(machine, ["/bin/true"])
    assert part.gpus == []
    assert "gpu" not in part.coverage


def test_reserved_gpus_are_visible_alone_and_one_is_not_used(
    machine: Node, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = 'printf %s "$CUDA_VISIBLE_DEVICES"'
    outcome, part = run(machine, ["/bin/sh", "-c", script], gpus=2)
    uuids = [f"GPU-{tmp_path / 'users'}-h{number}" for number in (0, 1)]
    assert capfd.readouterr().out == ",".join(uuids)
    assert [(use.uuid, use.used) for use in part.gpus] == [(uuid, False) for uuid in uuids]
    assert part.coverage["gpu"].quality == "exact"
    assert outcome.unused_gpus == ("0", "1")


def test_only_free_gpus_are_reserved_and_each_once(machine: Node, tmp_path: Path) -> None:
    (tmp_path / "users").write_text(str(os.getpid()))
    first = reserve(1, machine)
    assert [gpu.key for gpu in first.gpus] == ["1"]
    with pytest.raises(CommandError, match="--gpus 1: 0 of 2 GPUs are free; wait"):
        reserve(1, machine)
    first.release()
    reserve(1, machine).release()
    with pytest.raises(CommandError, match="--gpus 3: this machine has 2; expected 2 or fewer"):
        reserve(3, machine)
    (tmp_path / "users").unlink()
    # A failed reservation keeps nothing.
    reserve(2, machine).release()


def test_a_shell_that_sees_one_gpu_reserves_that_one(machine: Node, tmp_path: Path) -> None:
    machine.environment = {"CUDA_VISIBLE_DEVICES": f"GPU-{tmp_path / 'users'}-h1"}
    found = reserve(1, machine)
    assert [gpu.key for gpu in found.gpus] == ["1"]
    found.release()


def test_a_machine_without_a_gpu(tmp_path: Path) -> None:
    node = Node(proc=tmp_path, sys=tmp_path, dev=tmp_path, environment={})
    with pytest.raises(CommandError, match="--gpus 1: this node has no GPU driver"):
        reserve(1, node)
