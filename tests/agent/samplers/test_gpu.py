"""GPUs: by name, by process, divided, idle, silent, absent."""

import json
import logging
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobsight.agent.samplers.gpu.devices import NodeGpus
from jobsight.agent.samplers.gpu.nvml import Nvml
from jobsight.agent.samplers.gpu.nvml_replay import ReplayLibrary, main, plain, record
from jobsight.agent.samplers.gpu.sampler import _ALIASES, _PRINTED, GpuSampler
from jobsight.agent.samplers.gpu.source import Gpu, GpuProcess, GpuReading
from jobsight.agent.samplers.readings import Errors
from jobsight.model import MISSING
from tests.agent.samplers.jobs import Job, write

RECORDINGS = sorted((Path(__file__).parents[2] / "data" / "nvml").glob("*.json"))


class Library:
    """Speaks like pynvml for two GPUs, the second of them divided in two."""

    NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 0, 1, 2, 0
    nvmlMemory_v2 = 33554472  # noqa: N815

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failing: dict[str, int] = {}
        self.use = 0
        self.processes: dict[str, list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        if not hasattr(type(self), f"do_{name[4:]}"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.asked.append(name)
            if name in self.failing:
                raise self.NVMLError(self.failing[name])
            return getattr(self, f"do_{name[4:]}")(*arguments)

        return call

    def do_Init(self) -> None: ...  # noqa: N802
    def do_Shutdown(self) -> None: ...  # noqa: N802
    def do_SystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"580.1"

    def do_DeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def do_DeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return f"h{index}"

    def do_DeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return ("MIG-" if "m" in handle else "GPU-") + f"uuid-of-{handle}"

    def do_DeviceGetName(self, handle: str) -> str:  # noqa: N802
        return "NVIDIA H200"

    def do_DeviceGetMinorNumber(self, handle: str) -> int:  # noqa: N802
        return 5 - int(handle[1])

    def do_DeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        if handle == "h0":
            raise self.NVMLError(3)
        return [1, 1]

    def do_DeviceGetMaxMigDeviceCount(self, handle: str) -> int:  # noqa: N802
        return 7

    def do_DeviceGetMigDeviceHandleByIndex(self, handle: str, number: int) -> str:  # noqa: N802
        if number > 1:
            raise self.NVMLError(6)
        return f"{handle}m{number}"

    def do_DeviceGetGpuInstanceId(self, handle: str) -> int:  # noqa: N802
        return 9

    def do_DeviceGetComputeInstanceId(self, handle: str) -> int:  # noqa: N802
        return 0

    def do_DeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=self.use, memory=self.use // 2)

    def do_DeviceGetMemoryInfo(self, handle: str, version: int = 0) -> Any:  # noqa: N802
        return SimpleNamespace(total=2**37, used=2**30, free=2**36)

    def do_DeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        return 70_500

    def do_DeviceGetEnforcedPowerLimit(self, handle: str) -> int:  # noqa: N802
        return 700_000

    def do_DeviceGetTemperature(self, handle: str, sensor: int) -> int:  # noqa: N802
        return 33

    def do_DeviceGetClockInfo(self, handle: str, clock: int) -> int:  # noqa: N802
        return 1980 + clock

    def do_DeviceGetApplicationsClock(self, handle: str, clock: int) -> int:  # noqa: N802
        raise self.NVMLError(3)

    def do_DeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        pids = self.processes.get(handle, [])
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in pids]


@pytest.fixture
def library() -> Library:
    return Library()


def sampler(job: Job, library: Any, **settings: Any) -> GpuSampler:
    gpus = job.node.shared("gpus", lambda: NodeGpus(job.node, "/none", 1.0))
    gpus.use(Nvml(library, job.node.errors))
    return GpuSampler(node=job.node, **settings)


def test_a_gpu_by_its_number_used_and_idle(job: Job, library: Library) -> None:
    job.view.gpus = ("5",)
    gpu = sampler(job, library)
    row = gpu.columns(job.view)
    assert row == {
        "gpu.held": 1,
        "gpu.idle": 1,
        "gpu.0.utilization": 0,
        "gpu.0.memory_utilization": 0,
        "gpu.0.memory_used": 2**30,
        "gpu.0.power": 70_500_000,
        "gpu.0.temperature": 33,
        "gpu.0.clock": 1_981_000_000,
        "gpu.0.energy": 0,
    }
    assert gpu.final(job.view)["0"]["idle"] is True
    job.clock.go(10)
    library.use = 80
    row = gpu.columns(job.view)
    assert (row["gpu.idle"], row["gpu.0.utilization"]) == (0, 80)
    assert row["gpu.0.energy"] == 705_000_000
    assert gpu.document(job.view) == {
        "0": {
            "power_draw": "70.50",
            "power_limit": "700.00",
            "clocks_current_graphics": "1980",
            "clocks_current_sm": "1981",
            "utilization_gpu": "80",
            "utilization_memory": "40",
            "power_draw_average": 70.5,
            "utilization_gpu_average": 40.0,
            "utilization_memory_average": 20.0,
            "elapsed_time": 10.0,
        }
    }
    final = gpu.final(job.view)["0"]
    assert (final["idle"], final["utilization_max"], final["power_max"]) == (False, 80, 70.5)
    assert final["energy"] == pytest.approx(705.0)
    assert gpu.coverage(job.view)["gpu"].quality == "exact"


def test_what_a_gpu_does_not_support_is_asked_once(job: Job, library: Library) -> None:
    job.view.gpus = ("5",)
    gpu = sampler(job, library)
    for _ in range(3):
        gpu.columns(job.view)
        job.clock.go(1)
    assert library.asked.count("nvmlDeviceGetApplicationsClock") == 2
    assert library.asked.count("nvmlDeviceGetPowerUsage") == 3
    # Only the job's own GPU was queried, and the answers of a round serve all jobs.
    assert job.node.errors.causes == {}
    other = GpuSampler(node=job.node)
    view = job.another(7)
    view.gpus = ("5",)
    before = len(library.asked)
    other.columns(view)
    again = len(library.asked) - before
    gpu.columns(job.view)
    assert len(library.asked) - before == again


def test_an_instance_of_a_divided_gpu_has_memory_of_its_own_only(
    job: Job, library: Library
) -> None:
    job.view.gpus = ("MIG-uuid-of-h1m1",)
    gpu = sampler(job, library)
    row = gpu.columns(job.view)
    assert row == {"gpu.held": 1, "gpu.idle": 0, "gpu.1:1.memory_used": 2**30}
    final = gpu.final(job.view)["1:1"]
    assert final["name"] == "NVIDIA H200 MIG"
    assert "idle" not in final
    by_place = job.another(7)
    by_place.gpus = ("1:0", "GPU-uuid-of-h1")
    assert set(GpuSampler(node=job.node).final(by_place)) == {"1:0", "1"}


def test_without_a_word_the_processes_show_it(job: Job, library: Library) -> None:
    library.processes = {"h0": [77], "h1": [99], "h1m0": [99]}
    gpu = sampler(job, library)
    assert gpu.columns(job.view) == {}
    job.process(99)
    job.clock.go(5)
    assert gpu.columns(job.view)["gpu.held"] == 1
    assert gpu.gpus == {"1:0": True}
    job.view.usage.members.clear()
    job.clock.go(5)
    # It stays the job's after the process has ended.
    assert gpu.columns(job.view)["gpu.held"] == 1
    assert gpu.coverage(job.view)["gpu"].quality == "estimate"


def test_the_variable_counts_for_the_job_it_was_made_for(job: Job, library: Library) -> None:
    job.environment |= {"SLURM_JOB_ID": "41", "SLURM_JOB_GPUS": "5"}
    assert sampler(job, library).columns(job.view) == {}
    job.environment["SLURM_JOB_ID"] = "42"
    assert sampler(job, library).columns(job.view)["gpu.held"] == 1
    job.environment["OTHER"] = ""
    assert sampler(job, library, gpu_index_environment="OTHER").columns(job.view) == {}


def test_a_gpu_that_is_not_there_is_a_failure(job: Job, library: Library) -> None:
    job.view.gpus = ("5", "12")
    gpu = sampler(job, library)
    assert gpu.columns(job.view)["gpu.held"] == 1
    coverage = gpu.coverage(job.view)["gpu"]
    assert (coverage.quality, coverage.reason) == ("failed", "not present on the node: GPU 12")


def test_a_gpu_that_is_lost_in_the_middle(job: Job, library: Library) -> None:
    job.view.gpus = ("5",)
    gpu = sampler(job, library)
    gpu.columns(job.view)
    for name in ("UtilizationRates", "PowerUsage", "MemoryInfo", "Temperature", "ClockInfo"):
        library.failing[f"nvmlDeviceGet{name}"] = 15
    job.clock.go(1)
    row = gpu.columns(job.view)
    assert row["gpu.0.utilization"] == row["gpu.0.power"] == row["gpu.0.memory_used"] == MISSING
    assert "GPU 0: nvmlDeviceGetMemoryInfo" in job.node.errors.causes
    (use,) = gpu.gpu_uses(job.view, final=False)
    assert {one.reason for one in use.coverage.values()} == {"the GPU has fallen off the bus"}
    assert gpu.final(job.view)["0"]["utilization_gpu_average"] == 0.0


def test_a_node_without_a_gpu_says_so_once(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    gpu, other = GpuSampler(node=job.node), GpuSampler(node=job.node)
    for _ in range(5):
        assert gpu.columns(job.view) == {}
        assert gpu.document(job.view) is None
        assert other.final(job.view) == {}
        job.clock.go(1)
    assert len(caplog.records) == 1
    assert gpu.errors.causes == job.node.errors.causes == {}
    assert gpu.coverage(job.view) == {}
    job.view.gpus = ("0",)
    missing = gpu.coverage(job.view)["gpu"]
    assert (missing.quality, missing.reason) == ("missing", "this node has no GPU driver")
    # After some minutes it looks again: the driver may have been loaded since.
    job.clock.go(400)
    gpu.columns(job.view)
    assert len(caplog.records) == 2


def test_nvidia_smi_takes_over(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        "*applications*) echo 'Field \"clocks.applications.graphics\" is not valid' >&2; exit 2;;\n"
        "*compute-apps*) echo '77, GPU-bb';;\n"
        "*) echo '0, GPU-aa, NVIDIA A100, 5, 1, 100, 40960, 60.5, 400, 30, 1410, 1410, 1215'\n"
        "   echo '1, GPU-bb, NVIDIA A100, [N/A], 1, 100, 40960, [N/A], 400, 30, 1, 1, 1';;\n"
        "esac\n"
    )
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    write(job.root, {"dev/nvidiactl": ""})
    import pynvml

    def refuse() -> None:
        raise pynvml.NVMLError(9)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    job.view.gpus = ("0", "1")
    gpu = GpuSampler(node=job.node, nvidia_smi_command=str(command))
    source = gpu._gpus.source
    assert source is not None
    source._background.timeout = 10  # type: ignore[attr-defined]
    row = gpu.columns(job.view)
    assert row["gpu.0.power"] == 60_500_000
    assert row["gpu.0.memory_used"] == 100 * 2**20
    assert row["gpu.held"] == 2
    assert "gpu.1.utilization" not in row
    found = gpu.document(job.view)
    assert found is not None
    assert found["1"]["utilization_memory"] == "1"
    assert source.processes(()) == [GpuProcess(77, "1")]
    assert "is used instead" in job.node.errors.causes["NVML"]
    command.unlink()
    job.clock.go(60)
    assert gpu.columns(job.view)["gpu.0.power"] == MISSING


#: Answers like the nvidia-smi of an H200, from its recorded values.
_COMMAND = """#!{python}
import json, sys
fields = json.load(open("{table}"))
names = sys.argv[1].partition("=")[2].split(",")
for name in names:
    if name not in fields:
        print(f'Field "{{name}}" is not a valid field to query.\\n')
        sys.exit(2)
print(", ".join(fields[name][0] for name in names))
print(", ".join("uuid-of-0" if name == "uuid" else fields[name][1] for name in names))
"""
_TABLE = Path(__file__).parents[2] / "data" / "samplers" / "nvidia-smi-h200.json"


# Fault 17: only some 13 of nvidia-smi's names were known.
def test_every_metric_of_nvidia_smi_can_be_given(
    job: Job, library: Library, tmp_path: Path
) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(_COMMAND.format(python=sys.executable, table=_TABLE))
    command.chmod(0o755)
    gpus = job.node.shared("gpus", lambda: NodeGpus(job.node, str(command), 60.0))
    gpus.printed._background.timeout = 60
    fields = json.loads(_TABLE.read_text())
    job.view.gpus = ("5",)
    names = [*fields, "no.such.field", "x,y"]
    gpu = sampler(job, library, nvidia_smi_metrics=names, metrics_to_average=["power.draw.instant"])
    (key,) = {held.gpu.key for held in _held(gpu, job)}
    uuid = _held(gpu, job)[0].gpu.uuid
    command.write_text(command.read_text().replace("uuid-of-0", uuid))
    job.clock.go(60)
    document = gpu.document(job.view)
    assert document is not None
    found = document[key]
    others = [name for name in fields if name not in _PRINTED and name not in _ALIASES]
    assert len(others) > 230
    for name in others:
        column, text = fields[name]
        shown = None if text in ("", "N/A") or text.startswith("[") else text
        shown = uuid if column == "uuid" else shown
        assert found.get(column.split(" [")[0].replace(".", "_")) == shown, name
    assert found["power_draw_instant_average"] == float(fields["power.draw.instant"][1])
    assert found["clocks_event_reasons_gpu_idle"] == "Active"
    # What NVML has comes from there.
    assert found["temperature_gpu"] == "33"
    assert sorted(job.node.errors.causes) == ["metric no.such.field", "metric x,y"]


def _held(gpu: GpuSampler, job: Job) -> list[Any]:
    gpu.columns(job.view)
    return list(gpu._job_gpus.values())


def test_without_the_command_the_other_metrics_are_there(job: Job, library: Library) -> None:
    job.view.gpus = ("5",)
    gpu = sampler(job, library, nvidia_smi_metrics=["fan.speed", "temperature.gpu"])
    gpu._gpus.printed._background.timeout = 60
    found = gpu.document(job.view)
    assert found is not None
    assert found["0"]["temperature_gpu"] == "33"
    assert "fan_speed" not in found["0"]
    assert list(job.node.errors.causes) == ["nvidia-smi"]


def test_a_recording_is_replayed_word_by_word(library: Library, tmp_path: Path) -> None:
    library.use = 50
    found = json.loads(json.dumps(record(library, 2, 0)))
    assert "uuid-of" not in json.dumps(found)
    errors = Errors()
    replayed = Nvml(ReplayLibrary(found), errors)
    direct = Nvml(library, errors)
    assert [gpu.key for gpu in replayed.gpus] == [gpu.key for gpu in direct.gpus]
    for one, other in zip(replayed.gpus, direct.gpus, strict=True):
        assert replayed.read(one) == direct.read(other)
    assert replayed.processes(()) == []
    assert errors.causes == {}
    replayed.read(Gpu("9", 9, "", ""))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_what_real_gpus_said(job: Job, path: Path) -> None:
    replay = ReplayLibrary.load(path)
    errors = Errors()
    source = Nvml(replay, errors)
    assert source.gpus
    for gpu in source.gpus:
        assert gpu.uuid
        reading = source.read(gpu)
        assert reading != GpuReading()
        if gpu.parent is None and reading.utilization is not None:
            assert 0 <= reading.utilization <= 100
    job.view.gpus = tuple(gpu.uuid for gpu in source.gpus)
    sampled = sampler(job, ReplayLibrary.load(path))
    for _ in range(5):
        assert sampled.columns(job.view)["gpu.held"] == len(source.gpus)
        job.clock.go(1)
    json.dumps(sampled.final(job.view))


def recording(name: str) -> ReplayLibrary:
    return ReplayLibrary.load(Path(__file__).parents[2] / "data" / "nvml" / f"{name}.json")


def test_a_real_gpu_that_was_held_and_not_used(job: Job) -> None:
    job.view.gpus = ("0",)
    gpu = sampler(job, recording("h200-idle"))
    assert gpu.columns(job.view)["gpu.idle"] == 1
    final = gpu.final(job.view)["0"]
    assert (final["idle"], final["name"]) == (True, "NVIDIA H200")


def test_a_real_gpu_that_worked_for_a_process_of_the_job(job: Job) -> None:
    job.process(405)
    gpu = sampler(job, recording("h200-busy"))
    for _ in range(8):
        row = gpu.columns(job.view)
        job.clock.go(1)
    assert (row["gpu.held"], row["gpu.idle"]) == (1, 0)
    assert row["gpu.0.memory_used"] > 2**29
    final = gpu.final(job.view)["0"]
    # Eight seconds at 650 to 690 W, and less in the first moment.
    assert 5000 < final["energy"] < 5600
    assert final["utilization_gpu_average"] == 100.0
    assert gpu.coverage(job.view)["gpu"].quality == "estimate"


def test_the_recorder_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    assert main(["--record", str(tmp_path / "x.json")]) == 1
    assert "NVML cannot be used" in capsys.readouterr().err


def test_structures_of_c_become_plain() -> None:
    import ctypes

    class Pair(ctypes.Structure):
        _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))

    assert plain([Pair(1, 2), b"x", None]) == [{"gpu": 1, "memory": 2}, "x", None]


def test_a_node_without_a_gpu_loads_nothing_for_one(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from jobsight.agent.samplers.gpu.sampler import GpuSampler\n"
        "from jobsight.agent.samplers.node import Node\n"
        "root = Path(sys.argv[1])\n"
        "sampler = GpuSampler(node=Node(proc=root, sys=root, dev=root))\n"
        "assert sampler._gpus.source is None\n"
        "names = [name.rpartition('.')[2] for name in sys.modules]\n"
        "print(sorted({'pynvml', 'nvml', 'drm', 'meter', 'choose', 'ctypes'} & set(names)))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, check=True, text=True
    )
    assert ended.stdout.strip() in ("[]", "['ctypes']")
