"""The same values over HTTP into our receiver, Prometheus and VictoriaMetrics, on one core each.

A request holds what one node has to say at once. Counted are the values of the series (not the
totals, executables and coverages that our batches carry besides), over the time from the first
request to the last answer; an answer of ours means that the values are on the disk, one of the
others that they are in memory and on their way there. The requests are made beforehand, and sent
from another core over 16 connections.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from bench import stores
from bench.bodies import by_node, native, remote_write
from bench.figures import Figures
from bench.peer_venv import PROJECT
from bench.workload import Job, make_jobs

GOAL = 1_000_000
RATIO = 6.0
NODES = 32
#: One hour at 10 s.
ROWS = 360
#: Samples of a job in one request.
TOGETHER = 6


def values(jobs: Iterable[Job]) -> int:
    return sum(len(job.times) * len(job.columns) for job in jobs)


def main() -> None:
    figures = Figures()
    jobs = make_jobs(NODES, ROWS)
    whole = values(jobs)
    nodes = by_node(jobs)
    print(f"{whole:,} values of {len(jobs)} jobs on {NODES} nodes")

    def rate(measured: stores.Measured) -> float:
        return whole / measured.wall

    def text(measured: stores.Measured) -> str:
        return f"{rate(measured):,.0f} a second ({measured.cpu:.1f} s of CPU)"

    with tempfile.TemporaryDirectory(dir=PROJECT / ".cache") as name:
        folder = Path(name)
        ours: dict[int, stores.Measured] = {}
        for rows in (TOGETHER, 1):
            lanes = [list(native(of_node, rows)) for of_node in nodes]
            with stores.jobsight(folder / f"ours {rows}") as server:
                ours[rows] = server.send(lanes)
        lanes = [list(remote_write(of_node, TOGETHER)) for of_node in nodes]
        with stores.prometheus(folder / "prometheus") as server:
            theirs = server.send(lanes)
        with stores.victoria_metrics(folder / "victoria") as server:
            victoria = server.send(lanes)
    for rows, measured in ours.items():
        ratio = rate(measured) / rate(theirs)
        figures.row(
            f"ingest on one core, {rows} samples of 20 jobs x 40 values a request",
            f"Prometheus 1.0 ({text(theirs)}), VictoriaMetrics {rate(victoria) / rate(theirs):.1f}",
            f"{ratio:.1f} x, {text(measured)}",
            f"{GOAL:,} a second, {RATIO:.0f} x" if rows == TOGETHER else "-",
            reached=rows != TOGETHER or (rate(measured) >= GOAL and ratio >= RATIO),
        )
    figures.end()


if __name__ == "__main__":
    main()
