"""The same values over HTTP into our receiver, Prometheus and VictoriaMetrics, on one core each.

A request holds what one node has to say at once: one sample of each of its jobs, as agents send by
default every 10 s, or six (``send_interval = 60``). Counted are the values of the series, not the
totals, executables and coverages that our batches carry besides, over the CPU seconds that the
server's process took for them, until all runs have ended and are packed for good. So the disk and
other work on the machine do not count; how long it took is shown too. Neither does the work of a
server's start: each is left alone until it rests. An answer of ours means that
the values are on the disk, one of the others that they are in memory and on their way there.

The goal of six times Prometheus comes from a measurement in which requests had 10,000 values and
the encoding in Python counted. The last figure is taken in that way: requests of one size, ours
with 16 samples of each series of a node, remote write with what a scraper has at one time, one
sample of each series of 16 nodes; and the CPU seconds of the senders' encoding count, too.
"""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

from bench import stores
from bench.bodies import by_node, native, remote_write
from bench.figures import Figures
from bench.peer_venv import scratch_directory
from bench.workload import make_jobs
from tests.store import postgresql

GOAL = 1_000_000
RATIO = 6.0
NODES = 16
#: One hour at 10 s.
ROWS = 360


class Ingest:
    """One set of values, sent to one server after the other."""

    def __init__(self, folder: Path, rows: int) -> None:
        self._folder = folder
        self._rows = rows
        jobs = make_jobs(NODES, ROWS)
        self.values = sum(len(job.times) * len(job.columns) for job in jobs)
        self._nodes = by_node(jobs)

    def into(
        self,
        name: str,
        server: AbstractContextManager[stores.StoreServer],
        *,
        remote: bool,
        encoding: bool = False,
    ) -> float:
        """Values a second of the server's CPU time, and of the encoding's where that counts."""
        start = time.process_time()
        lanes = self._requests(remote=remote, together=encoding)
        encoded = time.process_time() - start
        with server as opened:
            measured = opened.send(lanes)
        if encoding:
            print(f"encoding for {name} took {encoded:.1f} s of CPU")
            measured = measured._replace(cpu=measured.cpu + encoded)
        rate = self.values / measured.cpu
        print(
            f"{self._rows} samples a request into {name}: {rate:,.0f} values a second of CPU "
            f"({self.values:,} values, {measured.cpu:.1f} s of CPU, {measured.wall:.1f} s in all)",
            flush=True,
        )
        return rate

    def _requests(self, *, remote: bool, together: bool) -> list[list[bytes]]:
        if not remote:
            return [list(native(node, self._rows)) for node in self._nodes]
        if together:
            return [list(remote_write([job for node in self._nodes for job in node], 1))]
        return [list(remote_write(node, self._rows)) for node in self._nodes]

    def into_postgresql(self) -> None:
        """For information: the server's own share, without that of the database."""
        try:
            with postgresql.running() as database:
                server = stores.jobsight(
                    self._folder / f"postgresql {self._rows}", database.new_database()
                )
                self.into("jobsight on PostgreSQL", server, remote=False)
        except postgresql.Unavailable as reason:
            print(reason)


def add_rows(figures: Figures, what: str, ours: float, theirs: float, victoria: float) -> None:
    """One row next to each peer: the two goals are missed or reached on their own."""
    rate = f"({ours:,.0f} values a second)"
    figures.row(
        what,
        f"Prometheus 1.0 ({theirs:,.0f} values a second)",
        f"{ours / theirs:.2f} {rate}",
        f"{GOAL:,} a second, {RATIO:.0f} x",
        reached=ours >= GOAL and ours / theirs >= RATIO,
    )
    figures.row(
        f"{what}, next to VictoriaMetrics",
        f"VictoriaMetrics 1.0 ({victoria:,.0f} values a second)",
        f"{ours / victoria:.2f} {rate}",
        "more than 1.0",
        reached=ours > victoria,
    )


def compare(folder: Path, figures: Figures, rows: int) -> None:
    """Requests with the same samples, the servers alone."""
    ingest = Ingest(folder, rows)
    ours = ingest.into("jobsight", stores.jobsight(folder / f"ours {rows}"), remote=False)
    theirs = ingest.into(
        "Prometheus", stores.prometheus(folder / f"prometheus {rows}"), remote=True
    )
    victoria = ingest.into(
        "VictoriaMetrics", stores.victoria_metrics(folder / f"victoria {rows}"), remote=True
    )
    if rows > 1:
        ingest.into_postgresql()
    samples = f"{rows} sample{'s' if rows > 1 else ''}"
    add_rows(
        figures,
        f"ingest on one core, {samples} of 20 jobs x 40 values a request",
        ours,
        theirs,
        victoria,
    )


def compare_as_the_goal_was_found(folder: Path, figures: Figures) -> None:
    """Requests of the same size, with the encoding."""
    ingest = Ingest(folder, NODES)
    ours = ingest.into("jobsight", stores.jobsight(folder / "ours"), remote=False, encoding=True)
    theirs = ingest.into(
        "Prometheus", stores.prometheus(folder / "prometheus"), remote=True, encoding=True
    )
    victoria = ingest.into(
        "VictoriaMetrics", stores.victoria_metrics(folder / "victoria"), remote=True, encoding=True
    )
    add_rows(
        figures,
        f"ingest on one core by requests of {NODES * 800:,} values, encoding included",
        ours,
        theirs,
        victoria,
    )


def main() -> None:
    figures = Figures()
    with scratch_directory() as name:
        folder = Path(name)
        for rows in (6, 1):
            compare(folder, figures, rows)
        compare_as_the_goal_was_found(folder, figures)
    figures.end()


if __name__ == "__main__":
    sys.exit(main())
