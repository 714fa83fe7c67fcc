"""Values as the jobs of a cluster give them, the same in every run: 20 jobs a node, 40 values each.

Counters move as real ones do (CPU time in nanoseconds with the sampling clock's jitter, storage in
sectors), gauges wander or stay (memory in pages, limits for ever). Three jobs of four have no GPU
worth speaking of, one in ten does nothing at all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jobsight.model import SECOND

Integers = npt.NDArray[np.int64]

SEED = 20261115
JOBS = 20
START = 1_788_000_000 * SECOND
FIRST_JOB = 4_200_000

_PAGE, _SECTOR = 4096, 512


class Job(NamedTuple):
    """One job on one node: the times of its samples and its columns."""

    job_id: int
    node: str
    times: Integers
    columns: dict[str, Integers]


def make_jobs(nodes: int, rows: int, step: float = 10.0, jobs: int = JOBS) -> list[Job]:
    """The jobs of so many nodes, each sampled ``rows`` times."""
    return [_job(node, number, rows, step) for node in range(nodes) for number in range(jobs)]


def _job(node: int, number: int, rows: int, step: float) -> Job:
    numbers = np.random.default_rng((SEED, node, number))
    # Timers are late by some tenths of a millisecond, and now and then by more.
    late = (
        numbers.exponential(0.0004 * SECOND, rows) + (numbers.random(rows) < 0.01) * 0.02 * SECOND
    )
    times = START + (np.arange(rows) * step * SECOND + late).astype(np.int64)
    cores = int(numbers.choice((1, 2, 4, 8)))
    busy = 0.0 if numbers.random() < 0.1 else cores * float(numbers.beta(6, 1.5))
    columns: dict[str, Integers] = {}
    _add_cpu(columns, numbers, times, busy)
    _add_memory(columns, numbers, rows, busy)
    _add_io(columns, numbers, rows, busy)
    _add_tasks(columns, numbers, rows, cores, busy)
    _add_gpu(columns, numbers, times, busy if numbers.random() < 0.25 else 0.0)
    return Job(FIRST_JOB + node * JOBS + number, f"n{node:04d}", times, columns)


def _add_cpu(
    columns: dict[str, Integers], numbers: np.random.Generator, times: Integers, busy: float
) -> None:
    elapsed = np.diff(times, prepend=times[0] - SECOND).astype(np.float64)
    # Most programs compute steadily; phases of waiting come and go.
    waits = np.repeat(numbers.random(len(times) // 30 + 1) < 0.1, 30)[: len(times)]
    share = np.clip(numbers.normal(1.0, 0.01, len(times)), 0, 1.05) * np.where(waits, 0.3, 1.0)
    used = (elapsed * busy * share).astype(np.int64)
    system = (used * 0.03 * numbers.random(len(times))).astype(np.int64)
    columns["cpu.time"] = np.cumsum(used)
    # The kernel gives the two parts in ticks.
    columns["cpu.user"] = np.cumsum(used - system) // 10_000_000 * 10_000_000
    columns["cpu.system"] = np.cumsum(system) // 10_000_000 * 10_000_000
    power = used * 12 // 1000 + 1
    columns["energy.cpu"] = np.cumsum(power)
    columns["energy.node"] = np.cumsum(power * 2 + numbers.integers(0, 5000, len(times)))
    for name in ("cpu", "memory", "memory_full", "io", "io_full"):
        likely = 0.5 if name == "cpu" and busy else 0.02
        columns[f"pressure.{name}"] = _bursts(numbers, len(times), likely, 1000, 40_000)


def _add_memory(
    columns: dict[str, Integers], numbers: np.random.Generator, rows: int, busy: float
) -> None:
    size = int(numbers.integers(20_000, 4_000_000)) if busy else 900
    moving = numbers.random(rows) < (0.4 if busy else 0.0)
    anonymous = size + np.cumsum(np.where(moving, numbers.integers(-300, 330, rows), 0))
    cached = _bursts(numbers, rows, 0.1 if busy else 0.0, 1, 5000)
    columns["memory.anonymous"] = anonymous * _PAGE
    columns["memory.file"] = cached * _PAGE
    columns["memory.shared"] = np.full(rows, 16 * _PAGE)
    columns["memory.kernel"] = (anonymous // 90 + 50) * _PAGE
    columns["memory.used"] = columns["memory.anonymous"] + columns["memory.shared"]
    columns["memory.current"] = columns["memory.used"] + columns["memory.file"]
    columns["memory.peak"] = np.maximum.accumulate(columns["memory.current"])
    columns["memory.swap"] = np.zeros(rows, np.int64)
    columns["memory.limit"] = np.full(rows, 64 << 30)
    columns["memory.oom_kills"] = np.zeros(rows, np.int64)


def _add_io(
    columns: dict[str, Integers], numbers: np.random.Generator, rows: int, busy: float
) -> None:
    for name in ("read", "written"):
        likely = float(numbers.choice((0.02, 0.2, 0.9))) if busy else 0.0
        calls = _bursts(numbers, rows, likely, 1, 900)
        columns[f"io.{name}_characters"] = calls * int(numbers.integers(100, 65536))
        columns[f"io.{name}_bytes"] = _bursts(numbers, rows, likely / 2, 8, 80_000) * _SECTOR
        columns["io.read_calls" if name == "read" else "io.write_calls"] = calls


def _add_tasks(
    columns: dict[str, Integers], numbers: np.random.Generator, rows: int, cores: int, busy: float
) -> None:
    columns["tasks.processes"] = np.full(rows, cores + 3)
    columns["tasks.threads"] = np.full(rows, cores * 4 + 3)
    columns["tasks.running"] = numbers.binomial(cores, min(busy / cores, 1.0), rows)
    columns["tasks.blocked"] = numbers.binomial(1, 0.03 if busy else 0.0, rows)
    columns["files.open"] = 20 + numbers.binomial(4, 0.1, rows)


def _add_gpu(
    columns: dict[str, Integers], numbers: np.random.Generator, times: Integers, busy: float
) -> None:
    rows = len(times)
    used = np.clip(numbers.normal(88, 6, rows), 0, 100).astype(np.int64) if busy else np.zeros(rows)
    columns["gpu.held"] = np.full(rows, int(busy > 0))
    columns["gpu.idle"] = (used == 0).astype(np.int64) * int(busy > 0)
    columns["gpu.0.utilization"] = used.astype(np.int64)
    columns["gpu.0.memory_utilization"] = (used * 0.6).astype(np.int64)
    columns["gpu.0.memory_used"] = np.full(rows, int(bool(busy)) * (18 << 30))
    watts = (used * 3.1 + numbers.normal(60, 2, rows)) if busy else np.full(rows, 55.0)
    columns["gpu.0.power"] = (watts * 1000).astype(np.int64) * 1000
    columns["gpu.0.energy"] = np.cumsum(columns["gpu.0.power"] * 10)
    columns["gpu.0.temperature"] = (40 + used * 0.3).astype(np.int64)
    columns["gpu.0.clock"] = np.where(used > 0, 1_410_000_000, 210_000_000)


def _bursts(
    numbers: np.random.Generator, rows: int, likely: float, least: int, most: int
) -> Integers:
    """A counter that grows now and then."""
    grown = np.where(numbers.random(rows) < likely, numbers.integers(least, most, rows), 0)
    return np.cumsum(grown)
