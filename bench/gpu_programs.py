"""Programs that use a GPU in a known way and print, as JSON, what they did by their own count.

    python bench/gpu_programs.py multiply --seconds 20

``multiply`` multiplies large bf16 matrices, ``tiny`` starts kernels of one block, ``hold`` takes
memory and sleeps, ``copy`` copies within the GPU's memory, ``transfer`` copies from the host. They
need PyTorch, and nvidia-ml-py for clocks and energy; nothing of jobsight. ``check_gpu.py`` compares
what they print with what jobsight measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

#: FLOP of a bf16 product with accumulation in fp32 in one cycle of a Hopper multiprocessor.
HOPPER_TENSOR_FLOP = 4096


class Truth:
    """The energy and the clocks of the GPU while the program runs, as the driver gives them."""

    def __init__(self) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
        if visible.startswith("GPU-"):
            self._gpu = pynvml.nvmlDeviceGetHandleByUUID(visible)
        else:
            self._gpu = pynvml.nvmlDeviceGetHandleByIndex(int(visible))
        self._energy = pynvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu)
        self.started = time.time()

    def memory_bandwidth(self) -> float:
        """Bytes a second at the highest memory clock."""
        nvml = self._nvml
        width = nvml.nvmlDeviceGetMemoryBusWidth(self._gpu)
        clock = nvml.nvmlDeviceGetMaxClockInfo(self._gpu, nvml.NVML_CLOCK_MEM)
        return float(width / 8 * clock * 1e6 * 2)

    def finish(self) -> dict[str, Any]:
        energy = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu)
        return {
            "energy_joules": (energy - self._energy) / 1000,
            "started": self.started,
            "ended": time.time(),
            "seconds": time.time() - self.started,
        }


#: Waits on one multiprocessor and writes its cycles and the nanoseconds of the GPU's own timer.
_CLOCK_SOURCE = r"""
extern "C" __global__ void count_cycles(long long *found, long long nanoseconds) {
    unsigned long long first, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(first));
    long long cycles = clock64();
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - first < nanoseconds);
    found[0] += clock64() - cycles;
    found[1] += now - first;
}
"""


class LoadedClock:
    """The clock of the multiprocessors under the load of other kernels, in hertz. Without a load it
    is a tenth higher, so it cannot be measured afterwards."""

    def __init__(self, torch: Any) -> None:
        self._kernel = torch.cuda._compile_kernel(_CLOCK_SOURCE, "count_cycles")
        self._found = torch.zeros(2, device="cuda", dtype=torch.int64)
        self._stream = torch.cuda.Stream()
        torch.cuda.synchronize()

    def measure(self, nanoseconds: int) -> None:
        """Count cycles while the kernels that were started before this one run."""
        self._kernel((1, 1, 1), (1, 1, 1), (self._found, nanoseconds), stream=self._stream)

    def hertz(self) -> float:
        cycles, nanoseconds = self._found.tolist()
        return float(cycles / nanoseconds * 1e9)


def multiply(torch: Any, truth: Truth, seconds: float, fill: str = "randn") -> dict[str, Any]:
    size = 8192
    make = getattr(torch, fill)
    first = make(size, size, device="cuda", dtype=torch.bfloat16)
    second = make(size, size, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(first)
    clocks = LoadedClock(torch)
    began, products = time.time(), 0
    while time.time() - began < seconds:
        for _ in range(40):
            torch.matmul(first, second, out=target)
        products += 40
        clocks.measure(20_000_000)
        torch.cuda.synchronize()
    elapsed = time.time() - began
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    flop = 2 * size**3 * products
    clock = clocks.hertz()
    return {
        "flop": flop,
        "tflop_per_second": flop / elapsed / 1e12,
        "clock_hertz": clock,
        "tensor_seconds": flop / (processors * HOPPER_TENSOR_FLOP * clock),
        "busy_seconds": elapsed,
    }


def zeros(torch: Any, truth: Truth, seconds: float) -> dict[str, Any]:
    """Products of zeros: so little power that the clock stays the highest."""
    return multiply(torch, truth, seconds, "zeros")


def tiny(torch: Any, truth: Truth, seconds: float) -> dict[str, Any]:
    few = torch.zeros(32, device="cuda")
    began, kernels = time.time(), 0
    while time.time() - began < seconds:
        for _ in range(100):
            few.add_(1)
        kernels += 100
        torch.cuda.synchronize()
        time.sleep(0.002)
    return {"kernels": kernels, "busy_seconds": time.time() - began}


def hold(torch: Any, truth: Truth, seconds: float) -> dict[str, Any]:
    size = 4 * 2**30
    held = torch.empty(size, device="cuda", dtype=torch.uint8)
    time.sleep(seconds)
    return {"held_bytes": held.numel()}


def copy(torch: Any, truth: Truth, seconds: float) -> dict[str, Any]:
    size = 4 * 2**30
    source = torch.zeros(size, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    began, copies = time.time(), 0
    while time.time() - began < seconds:
        for _ in range(20):
            target.copy_(source)
        copies += 20
        torch.cuda.synchronize()
    moved = 2 * size * copies
    return {
        "moved_bytes": moved,
        "bytes_per_second": moved / (time.time() - began),
        "bandwidth_seconds": moved / truth.memory_bandwidth(),
        "busy_seconds": time.time() - began,
    }


def transfer(torch: Any, truth: Truth, seconds: float) -> dict[str, Any]:
    size = 2**30
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(size, device="cuda", dtype=torch.uint8)
    began, received, sent = time.time(), 0, 0
    while time.time() - began < seconds:
        for _ in range(6):
            target.copy_(host, non_blocking=True)
        for _ in range(2):
            host.copy_(target, non_blocking=True)
        received, sent = received + 6 * size, sent + 2 * size
        torch.cuda.synchronize()
    elapsed = time.time() - began
    return {
        "received_bytes": received,
        "sent_bytes": sent,
        # On the bus, each 256 bytes have a header of 16.
        "received_bus_bytes": received * 272 // 256,
        "bytes_per_second": (received + sent) / elapsed,
        "busy_seconds": elapsed,
    }


def _memory_in_use(torch: Any) -> int:
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


PROGRAMS = {
    "multiply": multiply,
    "zeros": zeros,
    "tiny": tiny,
    "hold": hold,
    "copy": copy,
    "transfer": transfer,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--output", metavar="FILE", help="write the JSON there as well")
    options = parser.parse_args()
    import torch

    # From here on the program uses the GPU.
    truth = Truth()
    found = {
        "program": options.program,
        **PROGRAMS[options.program](torch, truth, options.seconds),
        # With the memory of the CUDA context.
        "memory_bytes": _memory_in_use(torch),
        **truth.finish(),
    }
    print(json.dumps(found), flush=True)
    if options.output:
        with open(options.output, "w") as file:
            json.dump(found, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
