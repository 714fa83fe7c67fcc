"""What a scrape of a large cluster costs, alongside the way of loading the collection.

A generator writes the reply of ``sacct --json`` while it is read: 200,000 jobs with two steps each
and 10,000 nodes, and a tenth of that to see how the cost grows. The peer does what Clockwork's
scraper does: it reads the whole reply, loads every stored job of the cluster into memory, merges,
and writes what it merged; its collection is a file of JSON lines here, which costs less than a
database would.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.figures import Figures

START = 1_794_720_000
SIZES = ((1_000, 20_000), (10_000, 200_000))
#: Memory may not grow with the jobs; nodes are held at once, some kilobytes each.
GROWTH, LINEAR = 2.0, 12.0


def jobs(count: int) -> Iterator[bytes]:
    """The accounting's reply, as 24.05 writes it."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.scheduler.shapes import new_accounting

    entry = new_accounting()
    text = json.dumps(entry).replace(f'"job_id": {entry["job_id"]}', '"job_id": NUMBER')
    yield b'{"jobs": ['
    for number in range(1, count + 1):
        yield text.replace("NUMBER", str(number)).encode() + (b"," if number < count else b"]}")


def nodes(count: int) -> bytes:
    node = {"state": ["MIXED"], "cpus": 128, "alloc_cpus": 64, "real_memory": 512000,
            "partitions": ["main", "long"], "gres": "gpu:a100:4", "gres_used": "gpu:a100:2",
            "architecture": "x86_64", "operating_system": "Linux 6.1", "version": "24.05.1",
            "features": ["a", "b"], "boot_time": START, "address": "10.0.0.1"}  # fmt: skip
    return json.dumps({"nodes": [node | {"name": f"n{i:05d}"} for i in range(count)]}).encode()


def ours(folder: Path, node_count: int, job_count: int) -> None:
    from jobsight.config.settings import Settings, StoreSettings
    from jobsight.scheduler.scraper import Scraper
    from jobsight.scheduler.sources.base import Choice
    from jobsight.scheduler.sources.json import JsonSource
    from jobsight.store.store import Store

    def run(command: Sequence[str], timeout: float, *, given: bytes = b"") -> Iterator[bytes]:
        if command[0] == "sacct":
            yield from jobs(job_count)
        elif command[0] == "squeue":
            yield b'{"jobs": []}'
        elif "nodes" in command or "partitions" in command:
            yield nodes(node_count) if "nodes" in command else b'{"partitions": []}'
        else:
            yield b"No reservations in the system" if command[0] == "scontrol" else b""

    location = str(folder / "store.db")
    settings = Settings(cluster="c", store=StoreSettings(location=location))
    settings.scheduler.history = 0.01
    with Store.open(location) as store:
        source = JsonSource("c", run=run)
        scraper = Scraper(
            store,
            settings,
            choose=lambda _: Choice(source, "bench"),
            clock=lambda: (START + 2000) * 10**9,
        )
        for _ in range(2):
            begin = time.process_time()
            state = scraper.once()
            assert not state.reason, state.reason
            assert state.seen == job_count, state
            _say(begin)


def peer(folder: Path, node_count: int, job_count: int) -> None:
    """Whole reply, whole collection, merge, write."""
    collection = folder / "collection.jsonl"
    collection.touch()
    for _ in range(2):
        begin = time.process_time()
        found = json.loads(b"".join(jobs(job_count)))["jobs"]
        with collection.open() as file:
            stored = {document["slurm"]["job_id"]: document for document in map(json.loads, file)}
        for job in found:
            slurm = {
                "job_id": str(job["job_id"]), "name": job["name"], "account": job.get("account"),
                "partition": job["partition"], "nodes": job["nodes"], "state": job["state"],
                "times": job["time"], "tres": job["tres"],
            }  # fmt: skip
            document = stored.setdefault(slurm["job_id"], {"slurm": {}, "cw": {}})
            document["slurm"] |= slurm
        with collection.open("w") as file:
            file.writelines(json.dumps(document) + "\n" for document in stored.values())
        _say(begin)


def _say(begin: float) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps([time.process_time() - begin, used.ru_maxrss * 1024]), flush=True)


def measure(who: str, node_count: int, job_count: int) -> list[list[float]]:
    """CPU seconds and highest memory of the first scrape and of the same again."""
    with tempfile.TemporaryDirectory(prefix="jobsight-bench-") as folder:
        arguments = [who, folder, str(node_count), str(job_count)]
        done = subprocess.run(
            [sys.executable, "-m", "bench.bench_scrape", *arguments],
            cwd=Path(__file__).parent.parent, stdout=subprocess.PIPE, check=True, text=True,
        )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> None:
    figures = Figures()
    (small, large) = [measure("ours", *size) for size in SIZES]
    other = measure("peer", *SIZES[1])
    seconds = large[0][0] / small[0][0]
    figures.row(
        "scrape of 200,000 jobs and 10,000 nodes, CPU time against a tenth of them",
        f"loading the collection: {other[0][0]:.0f} s, the same again {other[1][0]:.0f} s",
        f"{seconds:.1f} x ({large[0][0]:.0f} s, the same again {large[1][0]:.0f} s)",
        f"{LINEAR:.0f} x or less",
        reached=seconds <= LINEAR,
    )
    growth = large[1][1] / small[1][1]
    figures.row(
        "memory of the same",
        f"loading the collection: {other[1][1] / 1e6:.0f} MB",
        f"{growth:.2f} x ({large[1][1] / 1e6:.0f} MB)",
        f"{GROWTH:.0f} x or less",
        reached=growth <= GROWTH,
    )
    figures.end()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        {"ours": ours, "peer": peer}[sys.argv[1]](
            Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
        )
    else:
        main()
