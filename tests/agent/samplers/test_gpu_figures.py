"""What GPUs did over time: counters, means, shares of jobs, and drivers that fail."""

import itertools
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobsight.agent.samplers.gpu.devices import NodeGpus
from jobsight.agent.samplers.gpu.nvml import Nvml
from jobsight.agent.samplers.gpu.nvml_replay import ReplayLibrary
from jobsight.agent.samplers.gpu.sampler import GpuSampler
from jobsight.model import GPU_FIGURES, MISSING, SECOND, GpuFault, GpuUse
from tests.agent.samplers.jobs import Job, write
from tests.agent.samplers.test_gpu import Library, recording
from tests.waiting import wait_until


class Driver(Library):
    """A driver with counters, utilization samples and GPM, for GPUs that do what they are told."""

    NVML_GPU_UTILIZATION_SAMPLES = 1
    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job
        self.fields = {74: 0, 76: 0, 269: 0, 3: 0, 4: 0, 142: 0, 143: 0, 270: 0, 271: 0}
        self.energy = 5_000_000
        #: Percent of each metric of GPM; traffic in MiB a second.
        self.metrics = {2: 60.0, 3: 20.0, 5: 50.0, 10: 25.0, 13: 4.0, 20: 1.0, 21: 8.0}
        self.events: list[Any] = []
        self.shares: list[tuple[int, int]] = []
        self.mig = False
        #: The clients of an MPS server on the first GPU.
        self.clients: list[int] = []
        #: PID -> bytes of the GPU's memory.
        self.memory: dict[int, int] = {}
        self.answers = threading.Event()
        self.answers.set()

    def __getattr__(self, name: str) -> Any:
        if name == "c_nvmlGpmMetricsGet_t":
            return lambda: SimpleNamespace(metrics=[SimpleNamespace() for _ in range(20)])
        return super().__getattr__(name)

    def do_DeviceGetMemoryInfo(self, handle: str, version: int = 0) -> Any:  # noqa: N802
        self.answers.wait()
        return super().do_DeviceGetMemoryInfo(handle, version)

    def do_DeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        return [int(self.mig or handle == "h1")] * 2

    def do_DeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        if self.mig:
            raise self.NVMLError(3)
        return super().do_DeviceGetUtilizationRates(handle)

    def do_DeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        return self.energy

    def do_DeviceGetSamples(self, handle: str, kind: int, last: int) -> Any:  # noqa: N802
        """A sample each 200 ms, for 14 seconds."""
        if self.mig:
            raise self.NVMLError(3)
        now = self.job.clock.now // 1000
        times = [time for time in range(now - 14_000_000, now, 200_000) if time > last]
        if not times:
            raise self.NVMLError(6)
        value = SimpleNamespace(uiVal=self.use)
        return 1, [SimpleNamespace(timeStamp=time, sampleValue=value) for time in times]

    def do_DeviceGetFieldValues(self, handle: str, fields: list[int]) -> Any:  # noqa: N802
        return [
            SimpleNamespace(
                fieldId=field,
                nvmlReturn=0 if field in self.fields else 3,
                valueType=3,
                value=SimpleNamespace(ullVal=self.fields.get(field, 0)),
            )
            for field in fields
        ]

    def do_DeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        found = super().do_DeviceGetComputeRunningProcesses(handle)
        for process in found:
            process.usedGpuMemory = self.memory.get(process.pid)
        return found

    def do_DeviceGetMPSComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in self.clients]

    def do_SystemGetProcessName(self, pid: int) -> bytes:  # noqa: N802
        return b"nvidia-cuda-mps-server" if pid == 50 else b"/usr/bin/app"

    def do_DeviceGetProcessUtilization(self, handle: str, last: int) -> Any:  # noqa: N802
        now = self.job.clock.now // 1000
        return [SimpleNamespace(pid=pid, smUtil=use, timeStamp=now) for pid, use in self.shares]

    def do_GpmQueryDeviceSupport(self, handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(isSupportedDevice=1)

    def do_GpmSampleAlloc(self) -> object:  # noqa: N802
        return object()

    def do_GpmSampleFree(self, sample: object) -> None: ...  # noqa: N802
    def do_GpmSampleGet(self, handle: str, sample: object) -> None: ...  # noqa: N802
    def do_GpmMigSampleGet(  # noqa: N802
        self, handle: str, instance: int, sample: object
    ) -> None:
        assert (handle, instance) == ("h1", 9)

    def do_GpmMetricsGet(self, request: Any) -> None:  # noqa: N802
        for metric in request.metrics[: request.numMetrics]:
            metric.nvmlReturn = 0 if metric.metricId in self.metrics else 3
            metric.value = self.metrics.get(metric.metricId, 0.0)

    def do_EventSetCreate(self) -> str:  # noqa: N802
        return "set"

    def do_EventSetFree(self, events: str) -> None: ...  # noqa: N802
    def do_DeviceRegisterEvents(self, handle: str, kind: int, events: str) -> None: ...  # noqa: N802
    def do_EventSetWait(self, events: str, timeout: int) -> Any:  # noqa: N802
        if not self.events:
            raise self.NVMLError(10)
        return self.events.pop()


@pytest.fixture
def driver(job: Job) -> Driver:
    return Driver(job)


def measured(job: Job, driver: Any) -> GpuSampler:
    """The sampler of a job on a driver with the clock of the job."""
    gpus = job.node.shared("gpus", lambda: NodeGpus(job.node, "/none", 1.0))
    gpus.use(Nvml(driver, job.node.errors, job.clock))
    # Without a driver that hangs, nothing takes longer than this.
    gpus._looking.timeout = 60
    return GpuSampler(node=job.node)


def use_of(gpu: GpuSampler, job: Job, *, final: bool = True) -> GpuUse:
    (use,) = gpu.gpu_uses(job.view, final=final)
    return use


def test_sums_of_ten_seconds(job: Job, driver: Driver) -> None:
    job.view.gpus = ("5",)
    gpu = measured(job, driver)
    assert use_of(gpu, job).held_time == 0
    driver.use, driver.energy = 80, driver.energy + 4_000_000
    driver.fields[74], driver.fields[270], driver.fields[3] = 3 * SECOND, SECOND, 2
    driver.events.append(SimpleNamespace(device="h0", eventData=79))
    job.clock.go(10)
    use = use_of(gpu, job)
    assert (use.held_time, use.used, use.shared) == (10 * SECOND, True, False)
    assert use.active_time == pytest.approx(8 * SECOND, rel=0.03)
    assert (use.multiprocessor_time, use.tensor_time) == (6 * SECOND, 5 * SECOND)
    assert (use.occupancy_time, use.bandwidth_time) == (2 * SECOND, 2_500_000_000)
    assert (use.fp16_time, use.fp64_time) == (400_000_000, None)
    # The counter, not the 70.5 W of each moment.
    assert use.energy == 4_000_000_000
    assert (use.pcie_received_bytes, use.pcie_sent_bytes) == (80 * 2**20, 10 * 2**20)
    assert (use.memory_total, use.memory_peak) == (2**37, 2**30)
    assert use.memory_time == 10 * 2**30
    assert use.throttled_time == {"power": 3 * SECOND, "temperature": SECOND}
    wall = job.node.wall()
    assert use.faults == [
        GpuFault(kind="ecc corrected", count=2, last=wall),
        GpuFault(kind="xid", code=79, count=1, last=wall),
    ]
    # What is exact has no row; this GPU has no NVLink.
    assert {name: one.reason for name, one in use.coverage.items()} == {
        "nvlink": "not supported by this GPU"
    }
    row = gpu.columns(job.view)
    assert row["gpu.0.tensor_time"] == 5 * SECOND
    assert row["gpu.0.energy"] == 4_000_000_000
    assert row["gpu.0.throttled_time"] == 3 * SECOND


def test_samples_of_gpm_that_are_too_close_are_not_compared(job: Job, driver: Driver) -> None:
    # An H200 answers zeros for samples that are a millisecond apart.
    job.view.gpus = ("5",)
    gpu = measured(job, driver)
    use_of(gpu, job)
    job.clock.go(10)
    use_of(gpu, job)
    usual, driver.metrics = driver.metrics, dict.fromkeys(driver.metrics, 0.0)
    job.clock.go(0.001)
    assert use_of(gpu, job).tensor_time == 5 * SECOND
    driver.metrics = usual
    job.clock.go(9.999)
    assert use_of(gpu, job).tensor_time == 10 * SECOND


def test_a_gpu_that_was_held_and_never_touched(job: Job, driver: Driver) -> None:
    job.view.gpus = ("5",)
    driver.metrics = dict.fromkeys(driver.metrics, 0.0)
    gpu = measured(job, driver)
    for _ in range(3):
        gpu.columns(job.view)
        job.clock.go(10)
    use = use_of(gpu, job)
    assert (use.used, use.active_time, use.held_time) == (False, 0, 30 * SECOND)


def test_energy_between_two_readings_of_the_counter(job: Job, driver: Driver) -> None:
    job.view.gpus = ("5",)
    gpu = measured(job, driver)
    gpu.columns(job.view)
    asked = driver.asked.count("nvmlDeviceGetTotalEnergyConsumption")
    job.clock.go(2)
    # Two seconds at 70.5 W; the counter takes milliseconds and is not read in every round.
    assert gpu.columns(job.view)["gpu.0.energy"] == 141_000_000
    assert driver.asked.count("nvmlDeviceGetTotalEnergyConsumption") == asked
    driver.energy += 100
    # The counter says less: the sum does not fall.
    assert use_of(gpu, job).energy == 141_000_000
    driver.energy += 999_900
    job.clock.go(1)
    assert use_of(gpu, job).energy == 1_000_000_000


def test_one_reading_serves_all_jobs_of_a_round(job: Job, driver: Driver) -> None:
    jobs = [job.view, *(job.another(number) for number in range(7))]
    samplers = []
    for view in jobs:
        view.gpus = ("5",)
        samplers.append(measured(job, driver) if view is job.view else GpuSampler(node=job.node))
    for _ in range(2):
        for view, gpu in zip(jobs, samplers, strict=True):
            gpu.columns(view)
        job.clock.go(1)
    driver.asked.clear()
    for view, gpu in zip(jobs, samplers, strict=True):
        gpu.columns(view)
    assert max(driver.asked.count(name) for name in set(driver.asked)) <= 3
    assert driver.asked.count("nvmlDeviceGetMemoryInfo") == 1
    for view, gpu in zip(jobs, samplers, strict=True):
        gpu.final(view)
        gpu.close()
    assert job.node.shared("gpus", lambda: None).wanted == {}  # type: ignore[attr-defined]


def test_two_jobs_share_a_gpu(job: Job, driver: Driver) -> None:
    other = job.another(7)
    job.process(77, b"/opt/first")
    write(job.root, {"proc/99/stat": ""})
    driver.processes = {"h0": [77, 99]}
    driver.shares = [(77, 60), (99, 20)]
    job.view.gpus = other.gpus = ("5",)
    gpu = measured(job, driver)
    second = GpuSampler(node=job.node)
    other.usage.members[99] = job.process(99)
    del job.view.usage.members[99]
    for view, one in ((job.view, gpu), (other, second)):
        one.gpu_uses(view, final=True)
    driver.use = 100
    for _ in range(3):
        job.clock.go(10)
        driver.energy += 4_000_000
        for view, one in ((job.view, gpu), (other, second)):
            one.gpu_uses(view, final=True)
    (use,), (less,) = gpu.gpu_uses(job.view, final=True), second.gpu_uses(other, final=True)
    assert use.shared
    assert less.shared
    assert use.energy is not None
    assert less.energy is not None
    assert use.energy + less.energy == pytest.approx(12_000_000_000)
    assert use.energy == pytest.approx(3 * less.energy, rel=0.01)
    assert use.coverage["energy"].quality == "estimate"
    assert "other jobs" in use.coverage["activity"].reason
    (row,) = [row for row in job.view.usage.executables.values() if row.path == b"/opt/first"]
    assert row.gpu_time == use.active_time
    coverage = gpu.coverage(job.view)
    assert (coverage["gpu"].quality, coverage["gpu_programs"].quality) == ("exact", "estimate")


def test_a_process_counts_from_the_reading_before_it_was_seen(job: Job, driver: Driver) -> None:
    gpu = measured(job, driver)
    assert gpu.columns(job.view) == {}
    job.clock.go(10)
    job.process(77, b"/opt/first")
    driver.processes = {"h0": [77]}
    driver.use, driver.energy = 50, driver.energy + 3_000_000
    assert gpu.columns(job.view)["gpu.held"] == 1
    job.clock.go(1)
    use = use_of(gpu, job)
    assert (use.key, use.held_time, use.used) == ("0", 11 * SECOND, True)
    assert use.energy == 3_000_000_000
    assert use.first_seen == job.node.wall() - 11 * SECOND
    assert [one.gpu_time for one in job.view.usage.executables.values()] == [use.active_time]


def test_gpu_time_by_step(job: Job, driver: Driver) -> None:
    for pid, step in ((77, "0"), (78, "0"), (79, "1")):
        job.process(pid).step = step
    driver.processes = {"h0": [77, 78, 79]}
    driver.memory = {77: 2**20, 78: 2**21, 79: 2**22}
    job.view.gpus = ("5",)
    gpu = measured(job, driver)
    use_of(gpu, job)
    assert job.view.usage.step_gpu_time == {"0": 0, "1": 0}
    driver.use = 60
    job.clock.go(10)
    use = use_of(gpu, job)
    times = job.view.usage.step_gpu_time
    assert times["0"] == pytest.approx(2 * times["1"], abs=5)
    assert sum(times.values()) == pytest.approx(use.active_time, abs=5)
    assert job.view.usage.step_gpu_memory == {"0": 3 * 2**20, "1": 2**22}
    # A step that ends keeps what it used.
    del job.view.usage.members[79]
    driver.processes = {"h0": [77, 78]}
    before = times["1"]
    job.clock.go(10)
    use_of(gpu, job)
    assert times["1"] == before
    assert times["0"] > 2 * before


def test_processes_without_end_keep_their_gpu_time(
    job: Job, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobsight.agent.samplers.gpu.sampler._MAX_ENDED", 2)
    job.view.gpus = ("5",)
    gpu = measured(job, driver)
    use_of(gpu, job)
    driver.use = 50
    for pid in range(100, 110):
        job.process(pid)
        driver.processes = {"h0": [pid]}
        job.clock.go(10)
        use = use_of(gpu, job)
        del job.view.usage.members[pid]
    (row,) = job.view.usage.executables.values()
    assert row.gpu_time == pytest.approx(use.active_time, abs=20)
    assert len(gpu._seen) <= 3


def test_a_row_has_the_sums_at_its_own_time(job: Job, driver: Driver) -> None:
    """A GPU is read some time after the time of the row: the ratio is right all the same."""
    job.view.gpus = ("5",)
    driver.metrics[2] = 100.0
    gpu = measured(job, driver)
    delays = (0.002, 0.072, 0.004, 0.05, 0.3, 0.0)
    rows = []
    for delay in delays:
        job.view.row_time = job.clock.now
        job.clock.go(delay)
        rows.append((job.view.row_time, gpu.columns(job.view).get("gpu.0.multiprocessor_time", 0)))
        job.clock.go(1 - delay)
    for (time, value), (later, higher) in itertools.pairwise(rows[1:]):
        assert higher - value == pytest.approx(later - time, abs=2)
    # The sums of the job are those of the readings.
    assert use_of(gpu, job).multiprocessor_time == pytest.approx(5 * SECOND + 998_000_000, abs=2)


def test_a_row_whose_reading_is_late_has_no_values(job: Job, driver: Driver) -> None:
    job.view.gpus = ("5",)
    gpu = measured(job, driver)
    gpus = job.node.shared("gpus", lambda: NodeGpus(job.node, "/none", 1.0))

    def row() -> dict[str, int]:
        job.clock.go(1)
        job.view.row_time = job.clock.now
        return gpu.columns(job.view)

    row()
    assert row()["gpu.0.tensor_time"] == SECOND // 2
    gpus._looking.timeout = 0.01
    driver.answers.clear()
    late = row()
    driver.answers.set()
    assert late["gpu.held"] == 1
    assert {value for name, value in late.items() if name.startswith("gpu.0.")} == {MISSING}
    wait_until(lambda: not gpus._looking.busy)
    gpus._looking.timeout = 60
    # The late reading is used, and a new one is made.
    assert row()["gpu.0.tensor_time"] == 3 * SECOND // 2


def test_a_long_gap_is_known_to_the_hardware_counters(job: Job, driver: Driver) -> None:
    job.view.gpus = ("5",)
    gpu = measured(job, driver)
    use_of(gpu, job)
    job.clock.go(300)
    use = use_of(gpu, job)
    assert (use.multiprocessor_time, use.held_time) == (180 * SECOND, 300 * SECOND)
    assert "profile" not in use.coverage
    assert use.coverage["activity"].time_share == pytest.approx(14 / 300, abs=0.01)


def test_an_energy_counter_that_is_reset(job: Job, driver: Driver) -> None:
    job.view.gpus = ("5",)
    driver.energy = 10**12
    gpu = measured(job, driver)
    use_of(gpu, job)
    job.clock.go(10)
    # The driver was loaded again, and its counter goes on from elsewhere.
    driver.energy = 9 * 10**11
    use = use_of(gpu, job)
    assert use.energy == 705_000_000
    assert use.coverage["energy"].quality == "estimate"
    job.clock.go(10)
    driver.energy += 1_000_000
    assert use_of(gpu, job).energy == 1_705_000_000


def test_memory_of_a_shared_gpu_whose_processes_have_none(job: Job, driver: Driver) -> None:
    job.process(77)
    write(job.root, {"proc/99/stat": ""})
    driver.processes = {"h0": [77, 99]}
    job.view.gpus = ("5",)
    gpu = measured(job, driver)
    use_of(gpu, job)
    driver.use = 100
    job.clock.go(10)
    use = use_of(gpu, job)
    assert (use.shared, use.memory_peak) == (True, 2**29)


def test_clients_of_an_mps_server(job: Job, driver: Driver) -> None:
    for pid, step in ((77, "0"), (78, "1")):
        job.process(pid).step = step
    write(job.root, {"proc/50/stat": ""})
    driver.processes = {"h0": [50]}
    driver.clients = [77, 78]
    driver.shares = [(77, 30), (78, 90_000)]
    job.view.gpus = ("5",)
    gpu = measured(job, driver)
    use_of(gpu, job)
    for _ in range(2):
        driver.use = 60
        job.clock.go(10)
        use = use_of(gpu, job)
    # The server belongs to no job and uses nothing itself.
    assert (use.shared, use.used) == (False, True)
    times = job.view.usage.step_gpu_time
    assert sum(times.values()) == pytest.approx(use.active_time, abs=5)
    # A share is at most the whole GPU.
    assert times["1"] < 4 * times["0"]


def test_errors_of_a_gpu_while_the_first_one_is_not_read(job: Job, driver: Driver) -> None:
    job.view.gpus = ("4",)
    gpu = measured(job, driver)
    use_of(gpu, job)
    driver.events.append(SimpleNamespace(device="h1", eventData=63))
    job.clock.go(10)
    use = use_of(gpu, job)
    assert use.key == "1"
    assert use.faults == [GpuFault(kind="xid", code=63, count=1, last=job.node.wall())]


def test_a_counter_that_fails_once_does_not_count_again(job: Job, driver: Driver) -> None:
    job.view.gpus = ("5",)
    driver.fields |= {270: 500 * SECOND, 142: 3, 143: 4}
    gpu = measured(job, driver)
    use_of(gpu, job)
    for missing in (270, 143, None):
        fields = dict(driver.fields)
        if missing is not None:
            del driver.fields[missing]
        job.clock.go(10)
        use = use_of(gpu, job)
        driver.fields = fields
    assert (use.throttled_time, use.faults) == ({}, [])


def test_an_instance_of_a_divided_gpu_has_its_own_metrics(job: Job, driver: Driver) -> None:
    job.view.gpus = ("1:1",)
    driver.metrics[1] = 30.0
    gpu = measured(job, driver)
    use_of(gpu, job)
    job.clock.go(10)
    use = use_of(gpu, job)
    assert (use.parent, use.tensor_time, use.active_time) == ("1", 5 * SECOND, 3 * SECOND)
    assert use.energy is None
    assert use.coverage["energy"].reason == "a MIG instance has none of its own"


# The faults of drivers.


def test_a_driver_that_hangs_does_not_stop_the_loop(job: Job, driver: Driver) -> None:
    job.view.gpus = ("5",)
    gpu = measured(job, driver)
    use_of(gpu, job)
    job.clock.go(10)
    assert use_of(gpu, job).coverage.keys() == {"nvlink"}
    gpus = job.node.shared("gpus", lambda: NodeGpus(job.node, "/none", 1.0))
    gpus._looking.timeout = 0.01
    driver.answers.clear()
    try:
        for _ in range(20):
            job.clock.go(1)
            gpu.columns(job.view)
        use = use_of(gpu, job, final=False)
        # It is held all the same; what is known covers half of that time.
        assert use.held_time == 30 * SECOND
        assert use.multiprocessor_time == 6 * SECOND
        assert use.coverage["profile"].time_share == pytest.approx(1 / 3, abs=0.01)
        assert {one.reason for one in use.coverage.values()} == {"the driver does not answer"}
    finally:
        driver.answers.set()
    wait_until(lambda: not gpus._looking.busy)
    gpu.columns(job.view)
    job.clock.go(10)
    gpus._looking.timeout = 60
    assert "the driver does not answer" not in {
        one.reason for one in use_of(gpu, job).coverage.values()
    }


def test_a_driver_that_hangs_when_it_is_opened(
    job: Job, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(job.root, {"dev/nvidiactl": ""})
    opened = threading.Event()

    def open_late(self: NodeGpus) -> Nvml:
        opened.wait()
        return Nvml(driver, job.node.errors, job.clock)

    monkeypatch.setattr(NodeGpus, "_open_nvml", open_late)
    job.view.gpus = ("5",)
    gpu = GpuSampler(node=job.node)
    gpu._gpus._opening.timeout = 0.01
    try:
        for _ in range(3):
            assert gpu.columns(job.view) == {}
            job.clock.go(1)
        coverage = gpu.coverage(job.view)["gpu"]
        assert (coverage.quality, coverage.reason) == ("missing", "the driver does not answer")
    finally:
        opened.set()
    wait_until(lambda: not gpu._gpus._opening.busy)
    assert gpu.columns(job.view)["gpu.held"] == 1
    assert gpu.coverage(job.view)["gpu"].quality == "exact"


def test_the_number_of_an_ended_process_is_another_job_s(job: Job, driver: Driver) -> None:
    job.view.gpus = ("5",)
    job.process(77, b"/opt/first")
    driver.processes = {"h0": [77]}
    gpu = measured(job, driver)
    use_of(gpu, job)
    other, second = job.another(7), GpuSampler(node=job.node)
    other.gpus = ("5",)
    other.usage.members[77] = job.view.usage.members.pop(77)
    second.gpu_uses(other, final=True)
    driver.use = 100
    job.clock.go(10)
    second.gpu_uses(other, final=True)
    use = use_of(gpu, job)
    assert (use.shared, use.active_time) == (True, 0)
    (theirs,) = second.gpu_uses(other, final=True)
    assert theirs.active_time


def test_a_gpu_that_falls_off_the_bus(job: Job, driver: Driver) -> None:
    job.view.gpus = ("5",)
    gpu = measured(job, driver)
    use_of(gpu, job)
    job.clock.go(10)
    driver.energy += 4_000_000
    use_of(gpu, job)
    names = [name[3:] for name in dir(driver) if name.startswith("do_DeviceGet")]
    driver.failing = {f"nvml{name}": 15 for name in names} | {"nvmlGpmSampleGet": 15}
    for _ in range(9):
        job.clock.go(10)
        row = gpu.columns(job.view)
    assert (row["gpu.held"], row["gpu.0.memory_used"]) == (1, MISSING)
    use = use_of(gpu, job, final=False)
    # What was known stays; the reason is said.
    assert (use.energy, use.multiprocessor_time) == (4_000_000_000, 6 * SECOND)
    assert use.held_time == 100 * SECOND
    assert use.coverage["energy"].time_share == pytest.approx(0.1, abs=0.01)
    reasons = {one.reason for one in use.coverage.values()}
    assert reasons <= {"the GPU has fallen off the bus", "the driver no longer lists the GPU"}


def test_a_gpu_that_had_fallen_off_the_bus_before_the_job(job: Job, driver: Driver) -> None:
    job.view.gpus = ("5",)
    gpu = measured(job, driver)
    names = [name[3:] for name in dir(driver) if name.startswith("do_DeviceGet")]
    driver.failing = {f"nvml{name}": 15 for name in names} | {"nvmlGpmSampleGet": 15}
    gpu.columns(job.view)
    job.clock.go(10)
    use = use_of(gpu, job)
    assert use.held_time == 10 * SECOND
    assert (use.used, use.active_time, use.energy, use.faults) == (None, None, None, None)
    assert {(one.quality, one.reason) for one in use.coverage.values()} == {
        ("missing", "the GPU has fallen off the bus")
    }
    assert use.coverage.keys() == GPU_FIGURES.keys()
    # An administrator resets it.
    driver.failing = {}
    job.clock.go(60)
    gpu.columns(job.view)
    for _ in range(3):
        job.clock.go(10)
        driver.energy += 1_000_000
        use = use_of(gpu, job)
    assert use.energy
    assert use.coverage["energy"].time_share is not None
    assert use.multiprocessor_time


def test_mig_mode_that_is_switched_on_while_a_job_runs(job: Job, driver: Driver) -> None:
    job.view.gpus = ("5",)
    gpu = measured(job, driver)
    use_of(gpu, job)
    job.clock.go(10)
    use_of(gpu, job)
    driver.mig = True
    driver.failing = {"nvmlGpmSampleGet": 3}
    for _ in range(2):
        job.clock.go(10)
        gpu.columns(job.view)
    use = use_of(gpu, job)
    assert use.multiprocessor_time == 6 * SECOND
    for group in ("activity", "profile"):
        assert use.coverage[group].reason == "MIG mode is on"
        assert use.coverage[group].time_share == pytest.approx(1 / 3, abs=0.02)
    # Memory and energy are the GPU's as before.
    assert "memory" not in use.coverage


@pytest.mark.parametrize(
    ("failing", "reason"),
    [
        ({"nvmlGpmSampleAlloc": 13}, "the NVIDIA driver is too old"),
        ({"nvmlGpmQueryDeviceSupport": 4}, "no permission"),
        ({"nvmlGpmQueryDeviceSupport": 3}, "needs Hopper or later"),
        ({"nvmlGpmSampleGet": 4}, "no permission"),
    ],
)
def test_why_there_are_no_metrics(
    job: Job, driver: Driver, failing: dict[str, int], reason: str
) -> None:
    job.view.gpus = ("5",)
    driver.failing = failing
    gpu = measured(job, driver)
    gpu.columns(job.view)
    job.clock.go(10)
    use = use_of(gpu, job)
    assert use.tensor_time is None
    assert (use.coverage["profile"].quality, use.coverage["profile"].reason) == ("missing", reason)
    assert use.active_time is not None


def test_a_library_from_before_gpm_and_counters(job: Job) -> None:
    job.view.gpus = ("5",)
    library = Library()
    library.use = 40
    gpu = measured(job, library)
    gpu.columns(job.view)
    job.clock.go(10)
    use = use_of(gpu, job)
    assert (use.active_time, use.energy) == (4 * SECOND, 705_000_000)
    assert use.coverage["profile"].reason == "the NVIDIA driver is too old"
    assert use.coverage["faults"].reason == "the NVIDIA driver is too old"
    assert use.coverage["energy"].reason == "power integrated over time"
    assert use.coverage["activity"].reason == "the utilization at each sample"
    assert set(use.coverage) <= set(GPU_FIGURES)


def test_a_gpu_that_is_taken_away_and_another_with_its_number(job: Job, driver: Driver) -> None:
    job.view.gpus = ("1:1",)
    gpu = measured(job, driver)
    use_of(gpu, job)
    source = gpu._gpus.source
    assert isinstance(source, Nvml)
    source.gpus = tuple(one for one in source.gpus if one.parent is None)
    job.clock.go(10)
    use = use_of(gpu, job)
    assert use.held_time == 10 * SECOND
    assert {one.reason for one in use.coverage.values()} == {"the driver no longer lists the GPU"}


# Recorded on an H200, with the programs of bench/gpu_programs.py.


@pytest.fixture
def replayed(job: Job, request: pytest.FixtureRequest) -> GpuUse:
    job.view.gpus = ("0",)
    library = recording(request.param)
    gpu = measured(job, library)
    job.process(library.nvmlDeviceGetComputeRunningProcesses("gpu0")[0].pid)
    for _ in range(6):
        gpu.gpu_uses(job.view, final=True)
        job.clock.go(1)
    return use_of(gpu, job)


@pytest.mark.parametrize("replayed", ["h200-multiply"], indirect=True)
def test_a_recorded_matrix_product(replayed: GpuUse) -> None:
    use = replayed
    assert use.tensor_time is not None
    assert use.multiprocessor_time is not None
    assert use.occupancy_time is not None
    assert 0.85 < use.tensor_time / use.held_time < use.multiprocessor_time / use.held_time < 1
    assert use.occupancy_time / use.held_time < 0.2
    assert use.throttled_time is not None
    assert use.throttled_time["power"] > 3 * SECOND
    assert (use.used, use.faults) == (True, [])


@pytest.mark.parametrize("replayed", ["h200-tiny"], indirect=True)
def test_recorded_kernels_of_one_block(replayed: GpuUse) -> None:
    use = replayed
    assert use.active_time
    assert use.multiprocessor_time is not None
    # Utilization shows the GPU in use, and hardly one of 132 multiprocessors was.
    assert use.multiprocessor_time < use.active_time / 50


@pytest.mark.parametrize("replayed", ["h200-transfer"], indirect=True)
def test_recorded_copies_from_the_host(replayed: GpuUse) -> None:
    use = replayed
    assert use.pcie_received_bytes is not None
    assert use.pcie_received_bytes / (use.held_time / SECOND) > 30e9
    assert use.multiprocessor_time == pytest.approx(0, abs=SECOND // 100)
    assert use.active_time is not None
    assert use.active_time > 4 * SECOND


@pytest.mark.parametrize("replayed", ["h200-hold"], indirect=True)
def test_recorded_memory_that_was_held(replayed: GpuUse) -> None:
    use = replayed
    assert (use.used, use.active_time) == (True, 0)
    assert use.memory_peak is not None
    assert use.memory_peak > 4 * 2**30


def test_recordings_do_not_identify_a_gpu() -> None:
    for path in (Path(__file__).parents[2] / "data" / "nvml").glob("*.json"):
        replay = ReplayLibrary.load(path)
        uuid = replay.nvmlDeviceGetUUID("gpu0")
        assert uuid == "GPU-00000000-0000-0000-0000-000000000000"
