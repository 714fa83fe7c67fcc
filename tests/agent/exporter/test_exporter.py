"""The series of jobs: right on both versions of cgroups, gone with the job, bounded."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.agent.exporter.exporter import Exporter, Lines
from jobsight.agent.job import JobView, Row, Sampler
from jobsight.agent.probes.cgroup import SlurmProbe
from jobsight.agent.probes.slurm_cgroup import SlurmCounters
from jobsight.agent.processes.executables import ExecutableNames
from jobsight.agent.processes.tracker import ProcessTracker
from jobsight.agent.samplers.gpu.devices import NodeGpus
from jobsight.agent.samplers.gpu.nvml import Nvml
from jobsight.agent.samplers.gpu.nvml_replay import ReplayLibrary
from jobsight.agent.samplers.gpu.sampler import GpuSampler
from jobsight.agent.sampling import SamplerPlan
from jobsight.model import MISSING, SECOND, JobInfo, JobTotals, Sighting
from jobsight.prometheus import names
from tests.agent.samplers.jobs import MIB, Clock, Job
from tests.prometheus.readers import one, samples, values

V2 = Path(__file__).parents[2] / "data" / "cgroup" / "v2"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def exporter(clock: Clock) -> Exporter:
    return Exporter(keep_ended=30, clock=lambda: clock.now / SECOND)


def begin(exporter: Exporter, view: JobView, *plans: SamplerPlan) -> Sampler:
    """What the agent does when a job comes; gives the sampler that stands for the exporter."""
    made = [plan.make(view) for plan in exporter.plans(plans)]
    return made[-1]


def sample(sampler: Sampler, view: JobView, **row: int) -> None:
    view.row = {name.replace("__", "."): value for name, value in row.items()}
    assert sampler.columns(view) == {}


def test_both_names_of_a_figure_and_what_is_missing(exporter: Exporter, job: Job) -> None:
    job.view.info = JobInfo(
        cluster="c", job_id=42, source="test", user="ann", name="n", cpus=4, memory=8 * MIB
    )
    sampler = begin(exporter, job.view)
    sample(sampler, job.view, cpu__time=5 * SECOND, memory__used=3 * MIB, cpu__user=MISSING)
    found = samples(exporter.text())
    own = {"cluster": "c", "node": "n1", "slurm_job": "42"}
    assert one(found, "jobsight_job_cpu_seconds_total", **own) == 5.0
    assert one(found, "jobsight_job_memory_used_bytes", **own) == 3 * MIB
    assert one(found, "jobs_rss", instance="n1", slurm_job="42") == 3.0
    assert one(found, "jobsight_job_requested_cpus", **own) == 4
    assert one(found, "jobsight_job_requested_memory_bytes", **own) == 8 * MIB
    assert not values(found, "jobs_user_time")
    assert not values(found, "jobsight_job_cpu_user_seconds_total")
    info = [dict(labels) for name, labels in found if name == "jobsight_job_info"]
    assert info == [{**own, "user": "ann", "account": "", "partition": "", "name": "n"}]


def test_who_the_job_is_may_be_said_later(exporter: Exporter, job: Job) -> None:
    sampler = begin(exporter, job.view)
    sample(sampler, job.view, cpu__time=1)
    job.view.info.account = 'al"pha\n'
    sample(sampler, job.view, cpu__time=2)
    info = [dict(labels) for name, labels in samples(exporter.text()) if name == names.INFO.name]
    assert [one["account"] for one in info] == [r'al"pha\x0a']


def test_the_last_values_stay_for_one_scrape(exporter: Exporter, clock: Clock, job: Job) -> None:
    sampler = begin(exporter, job.view)
    sample(sampler, job.view, cpu__time=5 * SECOND, cpu__user=2 * SECOND)
    # Slurm's last word: the counter went on behind the last sample.
    job.books.cpu, job.books.user = 6 * SECOND, 3 * SECOND
    assert sampler.final(job.view) == {}
    sampler.close()
    clock.go(29)
    found = samples(exporter.text())
    assert one(found, "jobs_cpu_time_total") == 6.0
    assert one(found, "jobs_user_time") == 3.0
    clock.go(2)
    assert exporter.text() == b""
    exporter.remove_expired()
    assert exporter.series == 0


def test_a_requeued_job_takes_the_place_of_the_first(exporter: Exporter, job: Job) -> None:
    first = begin(exporter, job.view)
    sample(first, job.view, cpu__time=9 * SECOND)
    first.final(job.view)
    again = job.another(42)
    second = begin(exporter, again)
    sample(second, again, cpu__time=SECOND)
    assert one(samples(exporter.text()), "jobs_cpu_time_total") == 1.0


def test_programs_of_any_name(exporter: Exporter, job: Job) -> None:
    sampler = begin(exporter, job.view)
    job.process(1, b'/x/a"\\\n\xff{}', threads=3)
    job.process(2, b"/x/b", threads=2)
    job.process(3, b"/y/b", threads=2)
    sample(sampler, job.view, cpu__time=1)
    found = samples(exporter.text())
    threads = {r'a"\\\x0a\xff{}': 3.0, "b": 4.0}
    assert values(found, "jobs_thread_count", instance="n1", slurm_job="42") == threads
    own = {"cluster": "c", "node": "n1", "slurm_job": "42"}
    assert values(found, "jobsight_job_program_threads", **own) == threads


def test_series_beyond_the_limit_are_left_out_and_counted(job: Job) -> None:
    exporter = Exporter(petricore_names=False, max_series=9)
    many: Row = {f"cores.{core}.time": core for core in range(5)}
    for number in (1, 2, 3):
        view = job.another(number)
        sampler = begin(exporter, view)
        view.row = {"cpu.time": 1, **many}
        sampler.columns(view)
    # Two series say who the job is and since when; then come its figures.
    assert [(one.count, one.left_out) for one in exporter.jobs] == [(8, 0), (1, 7), (0, 8)]
    assert (exporter.series, exporter.left_out) == (9, 15)
    assert len(samples(exporter.text())) == 9


def test_others_may_add_series(exporter: Exporter, job: Job) -> None:
    family = names.Family("site_power_watts", "gauge", "Of the node")
    exporter.sources.append(lambda: [Lines(family, 'site_power_watts{node="n1"} 250\n')])
    sample(begin(exporter, job.view), job.view, cpu__time=1)
    assert one(samples(exporter.text()), "site_power_watts") == 250


def test_samplers_of_the_settings_are_used_and_not_doubled(exporter: Exporter, job: Job) -> None:
    from jobsight.agent.samplers.cpu import CoreTimes

    job.on_v1()
    made: list[CoreTimes] = []

    def make(view: JobView) -> Sampler:
        made.append(CoreTimes(node=job.node, every=1))
        return made[-1]

    sampler = begin(exporter, job.view, SamplerPlan("cores", make, 60.0))
    job.view.row = {"cpu.time": 5 * SECOND}
    job.view.row.update(made[0].columns(job.view))
    sampler.columns(job.view)
    found = samples(exporter.text())
    assert values(found, "jobs_cpu_time_core", instance="n1", slurm_job="42") == {"0": 1, "1": 4}


def test_a_recorded_gpu_in_base_units(exporter: Exporter, job: Job) -> None:
    exporter.nvidia_smi_names = True
    job.process(405)
    gpus = job.node.shared("gpus", lambda: NodeGpus(job.node, "/none", 1.0))
    gpus.use(Nvml(ReplayLibrary.load(V2.parents[1] / "nvml" / "h200-busy.json"), job.node.errors))
    made = GpuSampler(node=job.node)
    sampler = begin(exporter, job.view, SamplerPlan("gpu", lambda view: made, 60.0))
    for _ in range(8):
        job.view.row = {"cpu.time": SECOND}
        job.view.row.update(made.columns(job.view))
        sampler.columns(job.view)
        job.clock.go(1)
    row, found = job.view.row, samples(exporter.text())
    assert one(found, "jobsight_job_gpu_power_watts", gpu="0") == row["gpu.0.power"] / 1e6
    assert 600 < row["gpu.0.power"] / 1e6 < 700
    assert one(found, "jobsight_job_gpu_utilization_ratio", gpu="0") == 1.0
    assert values(found, "jobs_gpus_used", instance="n1", slurm_job="42") == {"0": 1.0}
    # What petricore's pages request each of them.
    pages = {name: one(found, name, instance="n1", gpu="0") for name in names.NVIDIA_SMI}
    reading = made.readings["0"]
    assert (reading.memory_total, reading.temperature) != (None, None)
    assert pages["memory_total"] == pages["memory_free"] + pages["memory_used"]
    assert pages["memory_total"] == (reading.memory_total or 0) / MIB
    assert pages["utilization_gpu"] == 100
    assert pages["temperature_gpu"] == reading.temperature


def test_gpus_that_slurm_named_where_no_driver_answers(exporter: Exporter, job: Job) -> None:
    job.view.gpus = ("0", "10-11")
    made = GpuSampler(node=job.node)
    sampler = begin(exporter, job.view, SamplerPlan("gpu", lambda view: made, 60.0))
    sample(sampler, job.view, cpu__time=1)
    found = values(samples(exporter.text()), "jobs_gpus_used", instance="n1", slurm_job="42")
    assert found == {"0": 1.0, "10": 1.0, "11": 1.0}


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    running = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    yield running
    for process in running:
        process.kill()
        process.wait()


def recorded_v2(root: Path, pids: list[int]) -> Path:
    """The tree of a real job as it was recorded, with processes of ours in its tasks."""
    place = None
    for row in (V2 / "values.txt").read_text().splitlines():
        name, _, value = row.partition(" = ")
        file = root / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        # Recorded on one line; the kernel writes pairs one below the other.
        words = value.split()
        pairs = zip(words[::2], words[1::2], strict=False)
        stat = "\n".join(" ".join(pair) for pair in pairs)
        file.write_text((stat if file.name in ("cpu.stat", "memory.events") else value) + "\n")
        if file.parent.name.startswith("job_"):
            place = file.parent
    assert place is not None
    (place / "memory.stat").write_text((V2 / "memory.stat").read_text())
    for folder in [place, *(path for path in place.rglob("*") if path.is_dir())]:
        inside = pids if folder.name == "task_0" and folder.parents[1].name == "step_0" else []
        (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in inside))
    return place


def test_every_name_on_a_recorded_v2_tree(
    exporter: Exporter, tmp_path: Path, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    place = recorded_v2(tmp_path, [process.pid for process in sleepers])
    counters = SlurmCounters({"unified": place})
    probe = SlurmProbe(counters, ProcessTracker(ExecutableNames()), events=False)
    probe.count_from_start()
    probe.refresh()
    view = JobView(
        sighting=Sighting("c", 2, "node1", "boot", 1),
        info=JobInfo(cluster="c", job_id=2, source="test"),
        probe=probe,
        usage=probe.usage,
        counters=counters,
    )
    sampler = begin(exporter, view)
    for _ in range(2):
        view.row = probe.sample()
        sampler.columns(view)
    found = samples(exporter.text())
    labels = {"instance": "node1", "slurm_job": "2"}
    # The kernel's own figures: the sum of what lies in the steps' "user" directories.
    cpu = {"usage_usec": 0, "user_usec": 0, "system_usec": 0}
    for file in place.glob("step_*/user/cpu.stat"):
        words = file.read_text().split()
        for name in cpu:
            cpu[name] += int(words[words.index(name) + 1])
    assert one(found, "jobs_cpu_time_total", **labels) == cpu["usage_usec"] / 1e6
    assert one(found, "jobs_user_time", **labels) == pytest.approx(cpu["user_usec"] / 1e6, abs=0.01)
    assert one(found, "jobs_system_time", **labels) == pytest.approx(
        cpu["system_usec"] / 1e6, abs=0.01
    )
    memory = dict(row.split() for row in (place / "memory.stat").read_text().splitlines())
    current = int((place / "memory.current").read_text())
    used = current - int(memory["file"]) + int(memory["shmem"])
    assert one(found, "jobs_rss", **labels) == used / MIB
    assert one(found, "jobs_spawned_processes", **labels) == 3
    assert values(found, "jobs_thread_count", **labels) == {"sleep": 3}
    calls = sum(int(Path(f"/proc/{process.pid}/io").read_text().split()[5]) for process in sleepers)
    assert one(found, "jobs_read_count", **labels) == calls
    written = {name for name, _ in found if name in names.PETRICORE}
    # Nothing was used between the two samples, and no GPU is there.
    assert written == names.PETRICORE.keys() - {"jobs_gpus_used"}
    assert one(found, "jobs_cpu_percent", **labels) == 0
    assert set(values(found, "jobs_cpu_time_core", **labels)) == {"0", "1"}
    probe.close()
    counters.close()


def test_totals_that_are_not_known_change_nothing(exporter: Exporter, job: Job) -> None:
    sampler = begin(exporter, job.view)
    sample(sampler, job.view, cpu__time=5 * SECOND)
    job.view.probe.totals = lambda: JobTotals(time=0, cpu_source="test")  # type: ignore[method-assign]
    sampler.final(job.view)
    assert one(samples(exporter.text()), "jobs_cpu_time_total") == 5.0
