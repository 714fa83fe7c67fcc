"""What a batch costs when the store is large: 1 million runs against 10 thousand.

The stores are filled by statements that copy rows, not by a million batches. Then batches of new
and of known jobs are written to both, and the queries of scrapers and pages are run on both; no
plan of any of these may read a whole table.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from bench.bodies import CLUSTER, by_node, native
from bench.figures import Figures
from bench.peer_venv import scratch_directory
from bench.workload import FIRST_JOB, make_jobs
from jobsight.model import SECOND, RunReference
from jobsight.server.receiver import Receiver
from jobsight.store.store import Store
from tests.store.plans import scans, traced

SMALL, LARGE = 10_000, 1_000_000
#: For what is written; what is read may miss the caches of a larger file.
GOAL, READING = 1.3, 2.0
NODES, ROWS, TOGETHER = 8, 60, 6

#: Runs of earlier days, each seen on one node with two programs and one chunk; a thousand of them
#: have not ended.
_FILL = (
    """
    INSERT INTO runs (id, cluster, job_id, start, source, name, "user", uid, account, partition,
        cpus, "end", state, provisional, cpu_time, updated, stale)
    WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :count)
    SELECT n, :cluster, n, :start + n * 7000000000, 'sacct', 'run', 'u' || n % 400, n % 400,
        'p' || n % 60, 'batch', 8,
        CASE WHEN n % (:count / 1000) THEN :start + n * 7000000000 + 3600000000000 END,
        'COMPLETED', false, n * 1000, :start, false FROM number
    """,
    """
    INSERT INTO run_nodes (id, run_id, cluster, job_id, node, boot_id, birth, epoch, written,
        cpu_time, final)
    SELECT id, id, cluster, job_id, 'n' || id % 1500, 'boot', start, 'epoch', start, cpu_time, true
    FROM runs
    """,
    """
    INSERT INTO chunks (run_node_id, first, last, rows, level, data)
    SELECT id, birth, birth + 3600000000000, 360, 2, zeroblob(400) FROM run_nodes
    """,
    """
    INSERT INTO paths (digest, path) WITH RECURSIVE number(n) AS
        (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 1 + :count / 100)
    SELECT cast(printf('%016d', n) AS BLOB), cast('/sw/program' || n AS BLOB) FROM number
    """,
    """
    INSERT INTO executables SELECT run_nodes.id, 1 + (run_nodes.id * 7 + which.n) % (:count / 100),
        true, 1, 1, true, 1, 1, 5, 5, 0, 5, 0, 0, 0, 0, birth, birth
    FROM run_nodes, (SELECT 0 AS n UNION SELECT 1) AS which
    """,
)


def fill(file: Path, count: int) -> None:
    with Store.open(file):
        pass
    connection = sqlite3.connect(file)
    # A bench may lose its store; only the filling is done this way.
    connection.execute("PRAGMA synchronous = OFF")
    start = 1_700_000_000 * SECOND
    for statement in _FILL:
        connection.execute(statement, {"count": count, "cluster": CLUSTER, "start": start})
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def timed(work: Callable[[], object], rounds: int) -> float:
    """The median of the CPU time, in milliseconds: other work on the machine must not count."""
    times = []
    for _ in range(rounds):
        before = time.process_time()
        work()
        times.append(time.process_time() - before)
    return statistics.median(times) * 1000


def measure(file: Path, bodies: list[bytes]) -> tuple[dict[str, float], list[str]]:
    with Store.open(file) as store:
        receiver = Receiver(store)
        with traced(store) as seen:
            for body in bodies[:NODES]:
                receiver.accept(body)
            rest = iter(bodies[NODES:])
            costs = {"a batch": timed(lambda: receiver.accept(next(rest)), len(bodies) - NODES)}
            reference = RunReference(job_id=FIRST_JOB, cluster=CLUSTER)
            costs["finding a run"] = timed(lambda: store.find(reference), 50)
            costs["querying open runs"] = timed(lambda: store.open_runs(CLUSTER), 20)
        # A list reads the index of its order from the end, and stops.
        costs["a list of 50 runs"] = timed(lambda: store.runs(limit=50), 20)
        return costs, scans(str(file), seen)


def main() -> None:
    figures = Figures()
    nodes = by_node(make_jobs(NODES, ROWS))
    lanes = [list(native(node, TOGETHER)) for node in nodes]
    bodies = [body for some in zip(*lanes, strict=True) for body in some]
    costs: dict[int, dict[str, float]] = {}
    plans: list[str] = []
    with scratch_directory() as name:
        for count in (SMALL, LARGE):
            file = Path(name) / f"{count}.db"
            fill(file, count)
            costs[count], found = measure(file, bodies)
            plans += found
    for what, small in costs[SMALL].items():
        large = costs[LARGE][what]
        figures.row(
            f"cost of {what} with {LARGE:,} runs in the store",
            f"with {SMALL:,} runs: 1.0 ({small:.2f} ms of CPU)",
            f"{large / small:.2f} ({large:.2f} ms)",
            "about 1" if what == "a batch" else f"under {READING:.0f}",
            reached=large / small <= (GOAL if what == "a batch" else READING),
        )
    for plan in plans:
        print(plan)
    figures.row("statements that read a whole table", "-", str(len(plans)), "0", reached=not plans)
    figures.end()


if __name__ == "__main__":
    main()
