"""Energy of the node and its division over jobs."""

import pytest

from jobsight.agent.samplers.energy import Energy
from jobsight.model import MISSING, SECOND
from tests.agent.samplers.jobs import Job, write

RANGE = 262143328850


def rapl(job: Job, package: int, dram: int = 0, busy: float = 0.0) -> None:
    """One socket with its memory, a sub-zone of cores, a second interface, and the busy ticks."""
    zones = {
        "intel-rapl": ("", None),
        "intel-rapl:0": ("package-0", package),
        "intel-rapl:0:0": ("core", 999),
        "intel-rapl:0:1": ("dram", dram),
        "intel-rapl-mmio:0": ("package-0", package),
    }
    for zone, (name, energy) in zones.items():
        files = {"name": f"{name}\n", "max_energy_range_uj": f"{RANGE}\n"}
        if energy is not None:
            files["energy_uj"] = f"{energy}\n"
        write(job.root / "sys/class/powercap" / zone, files)
    write(job.root, {"proc/stat": f"cpu  {round(busy * 100)} 0 0 5000 0 0 0 0 0 0\n"})


def test_jobs_share_the_energy_by_cpu_time(job: Job) -> None:
    rapl(job, 1000, 500)
    other = job.another(7)
    one, two = Energy(node=job.node), Energy(node=job.node)
    job.view.row, other.row = {"cpu.time": 0}, {"cpu.time": 0}
    assert one.columns(job.view) == {"energy.cpu": 0}
    assert two.columns(other) == {"energy.cpu": 0}
    job.clock.go(10)
    rapl(job, 1000 + 90_000_000, 500 + 10_000_000, busy=40)
    job.view.row, other.row = {"cpu.time": 30 * SECOND}, {"cpu.time": 10 * SECOND}
    assert one.columns(job.view) == {"energy.cpu": 75_000_000}
    assert two.columns(other) == {"energy.cpu": 25_000_000}
    assert one.final(job.view) == {
        "cpu": {"energy": 75.0, "node_energy": 100.0, "power_average": pytest.approx(7.5)}
    }
    assert one.coverage(job.view)["energy"].quality == "estimate"


def test_a_document_between_two_samples_shifts_nothing(job: Job) -> None:
    rapl(job, 0)
    energy = Energy(node=job.node)
    job.view.row = {"cpu.time": 0}
    energy.columns(job.view)
    job.clock.go(5)
    rapl(job, 50_000_000, busy=20)
    assert energy.document(job.view) == {"cpu": {"energy": 0.0, "node_energy": 0.0}}
    job.clock.go(5)
    rapl(job, 100_000_000, busy=40)
    job.view.row = {"cpu.time": 20 * SECOND}
    assert energy.columns(job.view) == {"energy.cpu": 50_000_000}
    job.clock.go(5)
    rapl(job, 150_000_000, busy=60)
    job.books.cpu = 30 * SECOND
    assert energy.final(job.view)["cpu"]["energy"] == 75.0


def test_the_counter_wraps(job: Job) -> None:
    rapl(job, RANGE - 1_000_000, busy=0)
    energy = Energy(node=job.node)
    job.view.row = {"cpu.time": 0}
    energy.columns(job.view)
    job.clock.go(1)
    rapl(job, 2_000_000 - 1, busy=10)
    job.view.row = {"cpu.time": 10 * SECOND}
    assert energy.columns(job.view) == {"energy.cpu": 3_000_000}


def test_a_meter_is_integrated_over_time(job: Job) -> None:
    write(job.root / "sys/class/hwmon/hwmon0", {"name": "nvme\n", "power1_input": "5\n"})
    meter = job.root / "sys/class/hwmon/hwmon1"
    write(meter, {"name": "power_meter\n", "power1_average": "300000000\n", "power1_input": "1\n"})
    write(job.root, {"proc/stat": "cpu  0 0 0 0\n"})
    energy = Energy(node=job.node)
    job.view.row = {"cpu.time": 0}
    energy.columns(job.view)
    job.clock.go(10)
    write(meter, {"power1_average": "500000000\n"})
    write(job.root, {"proc/stat": "cpu  1000 0 0 0\n"})
    job.view.row = {"cpu.time": 5 * SECOND}
    assert energy.columns(job.view) == {"energy.node": 2_000_000_000}


def test_a_failed_reading_is_missing_and_the_next_covers_its_time(job: Job) -> None:
    rapl(job, 0)
    energy = Energy(node=job.node)
    job.view.row = {"cpu.time": 0}
    energy.columns(job.view)
    job.clock.go(1)
    rapl(job, 10_000_000, busy=1)
    job.view.row = {"cpu.time": MISSING}
    assert energy.columns(job.view) == {"energy.cpu": MISSING}
    job.clock.go(1)
    (job.root / "proc/stat").write_text("")
    job.view.row = {"cpu.time": SECOND}
    assert energy.columns(job.view) == {"energy.cpu": MISSING}
    job.clock.go(1)
    rapl(job, 20_000_000, busy=2)
    job.view.row = {"cpu.time": 2 * SECOND}
    assert energy.columns(job.view) == {"energy.cpu": 20_000_000}
    assert list(energy.errors.causes) == ["energy"]


def test_a_machine_without_counters(job: Job) -> None:
    energy = Energy(node=job.node)
    assert energy.columns(job.view) == {}
    assert energy.document(job.view) is None
    assert energy.final(job.view) == {}
    assert energy.coverage(job.view)["energy"].quality == "missing"


def test_energy_that_may_not_be_read(job: Job) -> None:
    rapl(job, 0)
    (job.root / "sys/class/powercap/intel-rapl:0/energy_uj").unlink()
    energy = Energy(node=job.node)
    job.view.row = {"cpu.time": 0}
    assert energy.columns(job.view) == {}
    coverage = energy.coverage(job.view)["energy"]
    assert coverage.quality == "failed"
    assert "energy_uj" in coverage.reason
