"""What a value costs on disk: the same ones in our store, Prometheus and VictoriaMetrics.

Each store has done what it does to data at rest: our runs have ended, Prometheus has written all
of its head into blocks (a snapshot), VictoriaMetrics has merged its parts. Everything that is kept
for the values counts, the index of the series as well as the rows of our runs; pages of our file
that are free again are not counted, since the next run gets them.
"""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path

from bench import stores
from bench.bodies import by_node, native, remote_write
from bench.figures import Figures
from bench.peer_venv import scratch_directory
from bench.workload import make_jobs

GOAL = 0.6
NODES = 8
#: Four hours at 10 s.
ROWS = 1440
TOGETHER = 30


def our_size(file: Path) -> int:
    connection = sqlite3.connect(file)
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    connection.close()
    return int((pages - free) * size)


def prometheus_size(server: stores.StoreServer, folder: Path) -> int:
    reply = json.loads(server.ask("POST", "/api/v1/admin/tsdb/snapshot?skip_head=false"))
    return stores.size_of(folder / "data" / "snapshots" / reply["data"]["name"])


def victoria_size(server: stores.StoreServer, folder: Path) -> int:
    """Once merging has come to its end."""
    server.ask("GET", "/internal/force_flush")
    server.ask("GET", "/internal/force_merge")
    sizes: list[int] = []
    while len(sizes) < 4 or len(set(sizes[-4:])) > 1:
        time.sleep(1)
        sizes.append(stores.size_of(folder / "data"))
    return sizes[-1]


def main() -> None:
    figures = Figures()
    jobs = make_jobs(NODES, ROWS)
    whole = sum(len(job.times) * len(job.columns) for job in jobs)
    nodes = by_node(jobs)
    print(f"{whole:,} values of {len(jobs)} jobs on {NODES} nodes")
    with scratch_directory() as name:
        folder = Path(name)
        with stores.jobsight(folder / "ours") as server:
            server.send([list(native(of_node, TOGETHER)) for of_node in nodes])
        ours = our_size(folder / "ours" / "store.db") / whole
        lanes = [list(remote_write(of_node, TOGETHER)) for of_node in nodes]
        with stores.prometheus(folder / "prometheus") as server:
            server.send(lanes)
            theirs = prometheus_size(server, folder / "prometheus") / whole
        with stores.victoria_metrics(folder / "victoria") as server:
            server.send(lanes)
            victoria = victoria_size(server, folder / "victoria") / whole
    figures.row(
        "disk, bytes a value after compaction",
        f"Prometheus 1.0 ({theirs:.2f}), VictoriaMetrics {victoria / theirs:.2f} ({victoria:.2f})",
        f"{ours / theirs:.2f} ({ours:.2f})",
        f"{GOAL}",
        reached=ours / theirs <= GOAL,
    )
    figures.end()


if __name__ == "__main__":
    main()
