"""AMD's and Intel's GPUs, on trees made after the kernel's documentation."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from jobsight.agent.samplers.gpu.choose import has_driver
from jobsight.agent.samplers.gpu.drm import Drm, parse_fdinfo
from jobsight.agent.samplers.gpu.sampler import GpuSampler
from jobsight.agent.samplers.gpu.source import GpuProcess
from jobsight.model import SECOND
from tests.agent.samplers.jobs import Job, write

GIB = 2**30
#: As in Documentation/gpu/drm-usage-stats.rst and amdgpu's own.
AMD_FDINFO = """pos:\t0
flags:\t02100002
drm-driver:\tamdgpu
drm-client-id:\t{client}
drm-pdev:\t0000:c1:00.0
drm-memory-vram:\t{memory} KiB
drm-memory-gtt: \t2048 KiB
drm-engine-gfx:\t{time} ns
drm-engine-capacity-compute:\t4
drm-engine-compute:\t0 ns
"""
XE_FDINFO = """drm-driver:\txe
drm-client-id:\t7
drm-pdev:\t0000:03:00.0
drm-total-system:\t0
drm-total-vram0:\t64 MiB
drm-resident-vram0:\t48 MiB
drm-cycles-rcs:\t{own}
drm-total-cycles-rcs:\t{total}
drm-cycles-ccs:\t0
drm-total-cycles-ccs:\t{total}
"""


def add_card(job: Job, number: int, driver: str, pci: str, files: dict[str, str]) -> None:
    device = f"sys/class/drm/card{number}/device"
    write(job.root, {f"sys/bus/pci/drivers/{driver}/bind": ""})
    write(job.root, {f"{device}/uevent": f"DRIVER={driver}\nPCI_SLOT_NAME={pci}\n"})
    write(job.root, {f"{device}/{name}": text for name, text in files.items()})
    os.symlink(job.root / "sys/bus/pci/drivers" / driver, job.root / device / "driver")


def amd(job: Job) -> Path:
    add_card(
        job,
        1,
        "amdgpu",
        "0000:c1:00.0",
        {
            "unique_id": "5b1f7e2d9c3a\n",
            "product_name": "AMD Instinct MI210\n",
            "gpu_busy_percent": "40\n",
            "mem_busy_percent": "7\n",
            "mem_info_vram_total": f"{64 * GIB}\n",
            "mem_info_vram_used": f"{3 * GIB}\n",
            "hwmon/hwmon4/power1_average": "210000000\n",
            "hwmon/hwmon4/temp1_input": "51000\n",
            "hwmon/hwmon4/freq1_input": "1700000000\n",
            "ras/umc_err_count": "ue: 0\nce: 4\n",
            "drm/renderD128/dev": "226:128\n",
        },
    )
    write(
        job.root,
        {
            "sys/class/kfd/kfd/topology/nodes/1/gpu_id": "51963\n",
            "sys/class/kfd/kfd/topology/nodes/1/properties": "drm_render_minor 128\n",
        },
    )
    return job.root / "sys/class/drm/card1/device"


def open_gpu(job: Job, pid: int, descriptor: int, text: str) -> Path:
    write(job.root, {f"proc/{pid}/fdinfo/{descriptor}": text, f"proc/{pid}/fd/.keep": ""})
    link = job.root / f"proc/{pid}/fd/{descriptor}"
    if not link.is_symlink():
        os.symlink("/dev/dri/renderD128", link)
    return job.root / f"proc/{pid}/fdinfo/{descriptor}"


def test_an_amd_gpu_over_time(job: Job) -> None:
    device = amd(job)
    # The console of the board is no GPU.
    add_card(job, 0, "ast", "0000:02:00.0", {})
    job.view.gpus = ("128",)
    gpu = GpuSampler(node=job.node)
    gpu.columns(job.view)
    job.clock.go(10)
    (device / "ras/umc_err_count").write_text("ue: 1\nce: 4\n")
    row = gpu.columns(job.view)
    assert row["gpu.0.power"] == 210_000_000
    assert (row["gpu.0.temperature"], row["gpu.0.clock"]) == (51, 1_700_000_000)
    assert (row["gpu.0.utilization"], row["gpu.0.memory_utilization"]) == (40, 7)
    (use,) = gpu.gpu_uses(job.view, final=True)
    assert (use.name, use.uuid) == ("AMD Instinct MI210", "GPU-5b1f7e2d9c3a")
    assert (use.active_time, use.energy) == (4 * SECOND, 2_100_000_000)
    assert (use.memory_total, use.memory_peak) == (64 * GIB, 3 * GIB)
    assert use.faults is not None
    assert [(fault.kind, fault.count) for fault in use.faults] == [("ecc uncorrected", 1)]
    assert use.coverage["energy"].reason == "power integrated over time"
    assert use.coverage["profile"].reason == "the kernel driver does not provide it"


def test_the_processes_of_an_amd_gpu(job: Job) -> None:
    amd(job)
    source = Drm(job.node)
    file = open_gpu(job, 77, 5, AMD_FDINFO.format(client=3, memory=1024, time=10**9))
    # The same client, by a descriptor that was duplicated, and another one of the process.
    open_gpu(job, 77, 6, AMD_FDINFO.format(client=3, memory=1024, time=10**9))
    open_gpu(job, 77, 9, AMD_FDINFO.format(client=4, memory=512, time=0))
    os.symlink("/dev/null", job.root / "proc/77/fd/1")
    write(job.root, {"sys/class/kfd/kfd/proc/88/vram_51963": f"{2 * GIB}\n"})
    write(job.root, {"sys/class/kfd/kfd/proc/88/vram_7": "1\n"})
    found = sorted(source.processes({77, 99}))
    assert found == [
        GpuProcess(77, "0", 1536 * 1024, None),
        GpuProcess(88, "0", 2 * GIB, None),
    ]
    job.clock.go(4)
    file.write_text(AMD_FDINFO.format(client=3, memory=2048, time=3 * 10**9))
    (first, _) = sorted(source.processes({77}))
    assert first == GpuProcess(77, "0", 2560 * 1024, 0.5)


def test_an_intel_gpu_of_xe(job: Job) -> None:
    add_card(
        job,
        0,
        "xe",
        "0000:03:00.0",
        {
            "tile0/physical_vram_size_bytes": f"{16 * GIB}\n",
            "tile0/gt0/freq0/act_freq": "2100\n",
            "tile0/gt0/freq0/throttle/reason_pl1": "1\n",
            "tile0/gt0/freq0/throttle/reason_thermal": "0\n",
            "hwmon/hwmon2/energy1_input": "5000000\n",
        },
    )
    file = open_gpu(job, 77, 4, XE_FDINFO.format(own=0, total=1000))
    job.process(77)
    gpu = GpuSampler(node=job.node)
    gpu.columns(job.view)
    job.clock.go(10)
    file.write_text(XE_FDINFO.format(own=250, total=2000))
    energy = job.root / "sys/class/drm/card0/device/hwmon/hwmon2/energy1_input"
    energy.write_text("905000000\n")
    row = gpu.columns(job.view)
    assert (row["gpu.held"], row["gpu.0.clock"]) == (1, 2_100_000_000)
    (use,) = gpu.gpu_uses(job.view, final=True)
    assert (use.active_time, use.energy) == (2_500_000_000, 900_000_000)
    assert (use.memory_total, use.memory_peak) == (16 * GIB, 48 * 2**20)
    assert use.throttled_time == {"power": 10 * SECOND}
    assert (use.used, use.name) == (True, "Intel GPU")
    assert use.coverage["throttling"].quality == "estimate"


def test_an_intel_gpu_of_i915(job: Job) -> None:
    add_card(job, 0, "i915", "0000:00:02.0", {"hwmon/hwmon3/energy1_input": "1\n"})
    write(
        job.root,
        {
            "sys/class/drm/card0/gt/gt0/rps_act_freq_mhz": "300\n",
            "sys/class/drm/card0/gt/gt0/throttle_reason_thermal": "0\n",
            "sys/class/drm/card0/lmem_total_bytes": f"{8 * GIB}\n",
            "sys/class/drm/card0/lmem_avail_bytes": f"{7 * GIB}\n",
        },
    )
    source = Drm(job.node)
    reading = source.read(source.gpus[0])
    assert (reading.memory_used, reading.memory_total) == (GIB, 8 * GIB)
    assert (reading.clock_sm, reading.throttled_now) == (300, frozenset())
    assert reading.missing["activity"] == "the kernel driver does not provide it"
    assert source.describe(source.gpus[0])[:3] == ["driver i915", "memory", "energy counter"]


def test_a_gpu_whose_files_are_gone(job: Job) -> None:
    device = amd(job)
    source = Drm(job.node)
    device.rename(device.parent / "elsewhere")
    assert source.read(source.gpus[0]).failure == "the kernel no longer lists the GPU"


def test_whether_there_is_a_driver(job: Job) -> None:
    assert not has_driver(job.root)
    amd(job)
    assert has_driver(job.root)


@given(some.text(max_size=300) | some.binary(max_size=300).map(lambda raw: raw.decode("latin-1")))
def test_any_text_is_a_client_or_none(text: str) -> None:
    parse_fdinfo(text)
    parse_fdinfo(f"drm-pdev: x\n{text}")


@pytest.mark.parametrize("value", ["-1 ns", "9" * 30 + " ns", "x ns", "", "\u0661 ns"])
def test_a_number_that_is_none_is_left_out(value: str) -> None:
    client = parse_fdinfo(f"drm-pdev:\t0000:c1:00.0\ndrm-engine-gfx:\t{value}\n")
    assert client is not None
    assert client.engines == {}
