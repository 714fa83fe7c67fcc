"""Every read of every sampler fails once, in every way: nothing is raised, the rest is told."""

import builtins
import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobsight.agent.registry import load_part
from jobsight.agent.samplers import SAMPLERS
from jobsight.agent.samplers.base import JobSampler
from jobsight.agent.samplers.gpu.devices import NodeGpus
from jobsight.agent.samplers.gpu.nvml import Nvml
from jobsight.metrics import find_metric
from jobsight.model import MISSING, SECOND
from tests.agent.samplers.jobs import Job, stat_line, write
from tests.agent.samplers.test_energy import rapl
from tests.agent.samplers.test_gpu import Library
from tests.agent.samplers.test_network import ethernet, infiniband
from tests.agent.samplers.test_processes import link
from tests.agent.samplers.test_storage import DISK

SETTINGS: dict[str, dict[str, Any]] = {
    "cores": {"every": 1},
    "device": {"iostat_devs": ["dm-*", "vg-x", "/dev/nothing*"]},
    "files": {"every": 1, "links_every": 1, "scratch_types": ["lustre"]},
    "filesystem": {"mount_points": ["/", "/no/such"]},
    "pressure": {"every": 1},
    "threads": {"every": 1, "states": True},
    "zfs": {"volumes": ["tank"], "zfs_command": "/no/such/zfs"},
}
SHORT_NAMES = [name for name in SAMPLERS if not name.startswith("sams.")]
#: All through which a sampler reaches the kernel.
CALLS = (
    (os, "open"),
    (os, "pread"),
    (os, "stat"),
    (os, "listdir"),
    (os, "readlink"),
    (os, "statvfs"),
    (builtins, "open"),
    (io, "open"),
)


class Faults:
    """Lets the n-th call fail, or answer with odd bytes."""

    def __init__(self, place: int, fault: int | bytes, *, lasting: bool) -> None:
        self.place = place
        self.fault = fault
        self.lasting = lasting
        self.count = 0

    def wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if isinstance(self.fault, bytes) and name != "pread":
                return real(*arguments, **keywords)
            here, self.count = self.count, self.count + 1
            if here == self.place or (self.lasting and here > self.place):
                if isinstance(self.fault, bytes):
                    return self.fault if arguments[-1] == 0 else b""
                raise OSError(self.fault, os.strerror(self.fault), "/some/file")
            return real(*arguments, **keywords)

        return call


@contextmanager
def injected(faults: Faults) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, name in CALLS:
            patch.setattr(module, name, faults.wrap(name, getattr(module, name)))
        yield


def machine(root: Path, version: str) -> Job:
    """A job with two processes on a machine that has everything."""
    job = Job(root)
    if version == "v1":
        job.on_v1()
        write(root, {"unified/s/cpu.pressure": "some avg10=1.00 avg60=0 avg300=0 total=5\n"})
        write(root, {"proc/self/mounts": f"c {root}/unified cgroup2 rw 0 0\n"})
    else:
        job.on_v2()
    for pid in (11, 12):
        process = job.process(pid, threads=pid - 10)
        process.polled_cpu = SECOND
        write(root / "proc", {f"{pid}/stat": stat_line(pid, 100, 1)})
        write(root / "proc", {f"{pid}/task/{pid}/stat": stat_line(pid, 100, 1)})
        write(root / "proc", {f"{pid}/cgroup": "0::/s\n"})
        link(job, pid, "/scratch/f", "/home/x")
    (root / "proc/self/fd").mkdir(parents=True, exist_ok=True)
    write(root / "proc", {"self/mountinfo": "1 0 0:1 / / rw - ext4 s rw\n"})
    write(root, {"proc/diskstats": DISK.format(3, 1, 2, 3, 4, 5, 6, 7, 8)})
    write(root, {"sys/block/dm-3/dm/name": "vg-x\n"})
    rapl(job, 5, busy=1)
    ethernet(job, "eth0", 1, 1)
    infiniband(job, 7)
    gpus = job.node.shared("gpus", lambda: NodeGpus(job.node, "/none", 1.0))
    gpus.use(Nvml(Library(), job.node.errors))
    job.view.gpus = ("5",)
    job.view.row = {"cpu.time": SECOND}
    return job


def rounds(sampler: JobSampler, job: Job) -> None:
    """What the engine does with a sampler; it must never raise."""
    for number in range(1, 3):
        row = sampler.columns(job.view)
        for name, value in row.items():
            assert find_metric(name) is not None, name
            assert type(value) is int
            assert value == MISSING or 0 <= value < 2**63
        document = sampler.document(job.view)
        assert document is None or document
        job.clock.go(20)
        job.view.row = {"cpu.time": number * 2 * SECOND}
    sampler.final(job.view)
    sampler.coverage(job.view)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("name", SHORT_NAMES)
def test_every_read_may_fail(name: str, version: str, tmp_path: Path) -> None:
    kind = load_part("sampler", name)
    faults: list[tuple[int | bytes, bool]] = [
        (errno.ENOENT, False),
        (errno.ENODEV, True),
        (errno.EACCES, True),
        (errno.ESRCH, False),
        (errno.EIO, False),
        (b"", False),
        (b"max\n", True),
        (b"[N/A]\n", False),
        (b"-5 x\n", False),
    ]
    job = machine(tmp_path / "machine", version)
    for fault, lasting in faults:
        place = 0
        while True:
            job.node.close()
            job.node.errors.causes.clear()
            gpus = job.node.shared("gpus", lambda: NodeGpus(job.node, "/none", 1.0))
            gpus.use(Nvml(Library(), job.node.errors))
            injector = Faults(place, fault, lasting=lasting)
            with injected(injector):
                sampler = kind(node=job.node, **SETTINGS.get(name, {}))
                rounds(sampler, job)
                sampler.close()
            if injector.count <= place or place > 60:
                break
            # The first places are all different; later ones repeat them round by round.
            place += 1 if place < 20 else 7
    assert isinstance(sampler.name, str)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("name", SHORT_NAMES)
def test_a_machine_that_vanishes_in_the_middle(name: str, version: str, tmp_path: Path) -> None:
    job = machine(tmp_path / "machine", version)
    kind = load_part("sampler", name)
    sampler = kind(node=job.node, **SETTINGS.get(name, {}))
    rounds(sampler, job)
    before = sampler.final(job.view)
    shutil.rmtree(tmp_path / "machine")
    job.node.files.close()
    rounds(sampler, job)
    # The last word is not made empty by what is no longer there.
    assert bool(sampler.final(job.view)) == bool(before)
    sampler.close()


@pytest.mark.parametrize("name", list(SAMPLERS))
def test_nothing_is_left_open(name: str, tmp_path: Path) -> None:
    job = machine(tmp_path / "machine", "v1")
    assert job.view.counters is not None
    job.view.counters.memory()
    job.view.counters.memory_peaks()
    before = set(os.listdir("/proc/self/fd"))
    module = SAMPLERS[name].split(":")[0]
    short = next(
        (short for short in SHORT_NAMES if SAMPLERS[short] == SAMPLERS[name]),
        next(short for short in SHORT_NAMES if SAMPLERS[short].split(":")[0] == module),
    )
    sampler = load_part("sampler", name)(node=job.node, **SETTINGS.get(short, {}))
    rounds(sampler, job)
    sampler.close()
    job.node.close()
    assert set(os.listdir("/proc/self/fd")) == before
    if name.startswith("sams."):
        assert sampler.name == name


def test_an_unknown_sampler_is_an_error_that_names_the_valid_ones() -> None:
    with pytest.raises(
        Exception, match=r"no sampler named 'sams\.sampler\.Cor'.*sams\.sampler\.Core"
    ):
        load_part("sampler", "sams.sampler.Cor")


def test_names_of_curves() -> None:
    for name, metric in (
        ("gpu.0.power", "gpu.*.power"),
        ("gpu.1:0.memory_used", "gpu.*.memory_used"),
        ("network.eth0.100.sent_bytes", "network.*.sent_bytes"),
        ("filesystem./a.b/c.used", "filesystem.*.used"),
        ("gpu.held", "gpu.held"),
        ("cpu.time", "cpu.time"),
    ):
        found = find_metric(name)
        assert found is not None
        assert found.name == metric
    for name in ("gpu.power", "gpu..power", "x.0.power", "", "gpu.0.nosuch"):
        assert find_metric(name) is None
