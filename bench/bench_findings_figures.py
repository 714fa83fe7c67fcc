"""The figures of a run for the findings: an ordinary run, a large one, and runs of extreme size.

Each is written into a store as agents send it, then read and computed several times; the least CPU
time counts. There is no peer: other systems compare one average with a threshold, which costs a
division. The size is that of the stored form.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from bench.figures import Figures
from bench.peer_venv import scratch_directory
from jobsight.findings.data import read_run
from jobsight.findings.figures import compute_figures
from jobsight.findings.packed import decode_figures, encode_figures
from jobsight.findings.surroundings import Surroundings
from jobsight.model import (
    SECOND,
    Batch,
    Coverage,
    ExecutableUse,
    GpuUse,
    JobInfo,
    JobPart,
    JobTotals,
    RunReference,
    Series,
    Sighting,
    StepUse,
)
from jobsight.scheduler.records import NodeInfo
from jobsight.store.snapshot import Snapshot
from jobsight.store.store import Store

START: Final = 1_790_000_000 * SECOND
HOUR: Final = 3600
#: Of small and of large runs.
ROUNDS: Final = (60, 5)
EXACT: Final = {
    group: Coverage(quality="exact") for group in ("cpu", "memory", "io", "executables", "gpu")
}


def sampled(seconds: int, interval: int, gpus: int, random: np.random.Generator) -> Series:
    """What the samplers of an agent send by default."""
    rows = seconds // interval + 1
    times = START + np.arange(rows, dtype=np.int64) * interval * SECOND

    def column(values: Any) -> array[int]:
        return array("q", np.asarray(values, np.int64).tobytes())

    counters = ("cpu.time", "cpu.user", "cpu.system", "io.read_characters", "io.written_characters",
                "io.read_bytes", "io.written_bytes", "io.read_calls", "io.write_calls")  # fmt: skip
    gauges = ("memory.used", "memory.current", "memory.anonymous", "memory.file", "memory.shared",
              "tasks.processes", "tasks.threads", "files.open")  # fmt: skip
    columns = {
        name: column(np.cumsum(random.integers(0, 16 * interval * SECOND, rows)))
        for name in counters
    }
    columns |= {name: column(random.integers(2**30, 2**31, rows)) for name in gauges}
    if gpus:
        columns["gpu.held"] = column(np.full(rows, gpus))
        columns["gpu.idle"] = column(random.integers(0, gpus + 1, rows))
    for key in range(gpus):
        columns[f"gpu.{key}.utilization"] = column(random.integers(0, 101, rows))
        columns[f"gpu.{key}.energy"] = column(np.cumsum(random.integers(0, 10**9, rows)))
        columns[f"gpu.{key}.memory_used"] = column(random.integers(0, 2**36, rows))
    return Series(column(times), columns)


def batches(
    job_id: int, nodes: int, seconds: int, *, interval: int = 30, gpus: int = 0,
    programs: int = 20, steps: int = 3,
) -> Iterator[Batch]:  # fmt: skip
    random = np.random.default_rng(job_id)
    end = START + seconds * SECOND
    names = tuple(f"n{number:04d}" for number in range(nodes))
    info = JobInfo(
        cluster="c1", job_id=job_id, source="slurm", name="solve", user="ada", account="physics",
        partition="short", nodes=names, cpus=64 * nodes, memory=nodes * 2**38, start=START,
        end=end, state="COMPLETED", exit_code=0, gpus=gpus * nodes or None,
        time_limit=2 * seconds * SECOND,
    )  # fmt: skip
    # An agent sends at most some thousand rows of executables in a batch.
    for index, node in enumerate(names):
        uses = [
            ExecutableUse(
                path=b"/apps/%d/bin/program" % number, executions=3, processes=3,
                cpu_time=int(random.integers(0, seconds * SECOND)), peak_memory=2**28,
                first_seen=START + number * SECOND, last_seen=end - number * SECOND // 10**5,
            )
            for number in range(programs)
        ]  # fmt: skip
        curves = sampled(seconds, interval, gpus, random)
        held = [
            GpuUse(key=str(key), name="NVIDIA H200", held_time=seconds * SECOND, used=True,
                   active_time=seconds * SECOND // 2, first_seen=START, last_seen=end)
            for key in range(gpus)
        ]  # fmt: skip
        done = [
            StepUse(step=str(number), cpu_time=SECOND * 100, first_seen=START, last_seen=end)
            for number in range(steps)
        ]
        totals = JobTotals(
            time=end, cpu_source="cgroup v2", cpu_time=curves.columns["cpu.time"][-1],
            memory_used_peak=2**31, memory_peak=2**32,
        )  # fmt: skip
        for first in range(0, max(len(uses), 1), 5000):
            yield Batch(
                cluster="c1", node=node, spool=f"{job_id} of {node}", sequence=first // 5000 + 1,
                written=end, monotonic=1, agent="bench", jobs=[info] if index == 0 else [],
                parts=[
                    JobPart(
                        sighting=Sighting("c1", job_id, node, "boot", START), epoch="one",
                        series=curves if first == 0 else None, totals=totals,
                        executables=uses[first : first + 5000], steps=done, gpus=held,
                        coverage=EXACT, final=first + 5000 >= len(uses),
                    )
                ],
            )  # fmt: skip


def in_pieces(whole: Batch) -> Iterator[Batch]:
    """The batches of a running job, one for each sample: the store has not joined the last."""
    (part,) = whole.parts
    assert part.series is not None
    assert part.totals is not None
    info = msgspec.structs.replace(whole.jobs[0], end=None, state="RUNNING", exit_code=None)
    for place, moment in enumerate(part.series.times):
        columns = {name: values[place : place + 1] for name, values in part.series.columns.items()}
        piece = msgspec.structs.replace(
            part,
            series=Series(part.series.times[place : place + 1], columns),
            totals=msgspec.structs.replace(part.totals, time=moment),
            final=False,
        )
        yield msgspec.structs.replace(
            whole, sequence=place + 1, written=moment, jobs=[info], parts=[piece]
        )


def main() -> None:
    figures = Figures()
    runs: dict[str, tuple[dict[str, Any], float]] = {
        "1 node, 4 h": ({"nodes": 1, "seconds": 4 * HOUR}, 10),
        "1 node, running for 4 h": ({"nodes": 1, "seconds": 4 * HOUR, "programs": 5}, 2.5),
        "1 node with 4 GPUs, 4 h": ({"nodes": 1, "seconds": 4 * HOUR, "gpus": 4}, 10),
        "64 nodes, 24 h": ({"nodes": 64, "seconds": 24 * HOUR}, 1000),
        "64 nodes with 4 GPUs each, 24 h": ({"nodes": 64, "seconds": 24 * HOUR, "gpus": 4}, 1000),
        "1,000 nodes, 2 h": ({"nodes": 1000, "seconds": 2 * HOUR, "programs": 5}, 2000),
        "1 node, 100,000 executables": (
            {"nodes": 1, "seconds": HOUR, "programs": 100_000}, 5000,
        ),
    }  # fmt: skip
    with scratch_directory() as directory, Store.open(f"{directory}/store.db") as store:
        shapes = [
            NodeInfo(cluster="c1", name=f"n{number:04d}", cpus=64, memory=2**38)
            for number in range(2000)
        ]
        Snapshot(store.database, "c1").replace("node", [(node.name, node) for node in shapes])
        surroundings = Surroundings(store)
        for number, (title, (shape, goal)) in enumerate(runs.items(), 1):
            made = batches(number, **shape)
            running = "running" in title
            for batch in in_pieces(next(made)) if running else made:
                store.write(batch, received=batch.written)
            stored = store.find(RunReference(number))
            now = START + (1 if running else 30 * 24) * 4 * HOUR * SECOND
            best = [float("inf")] * 2
            for _ in range(ROUNDS[goal > 10]):
                begun = time.process_time()
                data = read_run(store, stored, now, surroundings)
                read = time.process_time()
                computed = compute_figures(data)
                ended = time.process_time()
                best = [min(best[0], read - begun), min(best[1], ended - read)]
            spent = sum(best) * 1000
            figures.row(
                f"figures of a run: {title}",
                "-",
                f"{spent:.1f} ms ({best[0] * 1000:.1f} ms to read)",
                f"< {goal:g} ms",
                reached=spent < goal,
            )
        stored_form = encode_figures(computed)
        begun = time.process_time()
        for _ in range(1000):
            decode_figures(stored_form)
        each = (time.process_time() - begun) * 1000
        figures.row(
            "stored figures of a run", "-", f"{len(stored_form):,} bytes, read in {each:.0f} us",
            "< 4,000 bytes", reached=len(stored_form) < 4000,
        )  # fmt: skip
    figures.end()


if __name__ == "__main__":
    main()
