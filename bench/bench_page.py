"""The data of one job's page: 64 nodes, 24 hours at 30 s, 20 metrics, from the store to JSON."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from bench.bodies import CLUSTER, native
from bench.figures import Figures
from bench.peer_venv import scratch_directory
from bench.workload import FIRST_JOB, Job, make_jobs
from jobsight.model import RunReference
from jobsight.reports import series
from jobsight.reports.build import build_report
from jobsight.server.receiver import Receiver
from jobsight.store.store import Store

GOAL = 0.3
NODES, METRICS = 64, 20
ROWS = 24 * 120
#: What a page asks for.
POINTS = 600
ROUNDS = 5


def one_job() -> list[Job]:
    """Each node's first job, taken together as one."""
    made = []
    for job in make_jobs(NODES, ROWS, 30.0, jobs=1):
        columns = dict(list(job.columns.items())[:METRICS])
        columns.setdefault("memory.peak", job.columns["memory.peak"])
        made.append(job._replace(job_id=FIRST_JOB, columns=dict(list(columns.items())[:METRICS])))
    return made


def main() -> None:
    figures = Figures()
    with (
        scratch_directory() as name,
        Store.open(Path(name) / "store.db") as store,
    ):
        # As an agent sends it: the end joins what came before.
        receiver = Receiver(store)
        for job in one_job():
            for body in native([job], 240):
                receiver.accept(body)
        run = store.find(RunReference(job_id=FIRST_JOB, cluster=CLUSTER))
        names = sorted({name for part in store.series(run.id) for name in part.columns})
        times, sizes = [], []
        for _ in range(ROUNDS):
            start = time.monotonic()
            found = store.series(run.id, names)
            reply = series.reply("run", found, names, POINTS)
            sizes.append(len(msgspec.json.encode(reply)))
            times.append(time.monotonic() - start)
        start = time.monotonic()
        msgspec.json.encode(build_report(store, run))
        report = time.monotonic() - start
    print(f"{len(found)} nodes, {len(names)} metrics, {sizes[0] / 1e6:.1f} MB of JSON")
    figures.row(
        f"one job's curves: {NODES} nodes, 24 h at 30 s, {METRICS} metrics, store to JSON",
        "-",
        f"{min(times):.2f} s, the best of {ROUNDS} (the slowest {max(times):.2f}), and its report "
        f"{report:.2f} s",
        f"{GOAL} s",
        reached=min(times) <= GOAL,
    )
    figures.end()


if __name__ == "__main__":
    main()
