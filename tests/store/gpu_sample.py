"""GPUs as an agent reports them, with figures that are easy to add up."""

from typing import Any

from jobsight.model import SECOND, Coverage, GpuUse
from tests.store.sample import START

GIB = 2**30
HOPPER = "NVIDIA H200"
NEEDS_HOPPER = {
    "profile": Coverage(
        quality="missing", reason="multiprocessor figures need Hopper or a later GPU"
    )
}


def gpu(key: str, held: int = 1000, **more: Any) -> GpuUse:
    """A GPU that a run has held for so many seconds, and used to 40 %: active all the time."""
    values: dict[str, Any] = {
        "uuid": f"GPU-{key}",
        "name": HOPPER,
        "first_seen": START,
        "last_seen": START + held * SECOND,
        "held_time": held * SECOND,
        "used": True,
        "active_time": held * SECOND,
        "multiprocessor_time": held * SECOND * 4 // 10,
        "occupancy_time": held * SECOND * 2 // 10,
        "tensor_time": held * SECOND * 3 // 10,
        "fp64_time": 0,
        "fp32_time": held * SECOND // 10,
        "fp16_time": held * SECOND // 20,
        "bandwidth_time": held * SECOND * 5 // 10,
        "memory_total": 141 * GIB,
        "memory_peak": 100 * GIB,
        "memory_time": 80 * GIB * held,
        "energy": 500 * held * 10**6,
        "pcie_received_bytes": held * 10**9,
        "pcie_sent_bytes": held * 10**8,
        "nvlink_received_bytes": held * 10**10,
        "nvlink_sent_bytes": held * 10**10,
        "throttled_time": {},
        "faults": [],
    }
    return GpuUse(key=key, **(values | more))


def idle_gpu(key: str, held: int = 1000, **more: Any) -> GpuUse:
    """A GPU that was held and never used; it needs 80 W all the same."""
    nothing = dict.fromkeys(
        ("active_time", "multiprocessor_time", "occupancy_time", "tensor_time", "fp64_time"), 0
    )
    nothing |= dict.fromkeys(("fp32_time", "fp16_time", "bandwidth_time", "memory_peak"), 0)
    values: dict[str, Any] = {"used": False, "memory_time": 0, "energy": 80 * held * 10**6}
    return gpu(key, held, **(nothing | values | more))


def old_gpu(key: str, held: int = 1000, **more: Any) -> GpuUse:
    """A GPU of which only the active time is known, 90 %."""
    names = ("multiprocessor_time", "occupancy_time", "tensor_time", "fp64_time")
    unknown: dict[str, Any] = dict.fromkeys((*names, "fp32_time", "fp16_time", "bandwidth_time"))
    unknown |= {"name": "NVIDIA A100", "coverage": dict(NEEDS_HOPPER)}
    return gpu(key, held, **(unknown | {"active_time": held * SECOND * 9 // 10} | more))
