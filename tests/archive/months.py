"""Jobs of two months with all that a store can hold of them."""

from array import array
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from jobsight.archive.schema import to_rows
from jobsight.model import MISSING, SECOND, Batch, Coverage, JobInfo, Series, Sighting
from jobsight.store.read.queries import StoredRun
from jobsight.store.store import Store
from tests.store.sample import batch, info, part, sighting, step, totals, use

OCTOBER = int(datetime(2026, 10, 30, 22, tzinfo=UTC).timestamp()) * SECOND
NOVEMBER = int(datetime(2026, 11, 3, 9, tzinfo=UTC).timestamp()) * SECOND
#: After all of them.
LATER = int(datetime(2026, 11, 20, tzinfo=UTC).timestamp()) * SECOND
HOUR = 3600 * SECOND

#: A NaN whose bits are not the usual ones.
ODD_NAN = float(np.uint64(0x7FF80000DEADBEEF).view(np.float64))
PATHS = (b"/apps/gromacs/bin/gmx", b"/home/anna/a \xff\n'path'", b"sh")

#: Job ids of the runs that have ended, in the order of the archive.
FINISHED = (1, 2, 3, 3, 4, 5)


def curves(start: int, rows: int, **more: Any) -> Series:
    times = array("q", [start + second * 10 * SECOND for second in range(rows)])
    counter = array("q", [second * 7 * SECOND + second % 3 for second in range(rows)])
    counter[rows // 2] = MISSING
    load = array("d", [0.5 * second for second in range(rows)])
    load[0], load[1], load[2] = ODD_NAN, float("-inf"), -0.0
    return Series(times, {"cpu.time": counter, "load": load} | more)


def fill(store: Store) -> None:
    """Seven runs of six jobs; one still runs."""
    _one(store, 1, OCTOBER, user="anna", account="physics", cpus=8, memory=2**34)
    # Two nodes, of which one was rebooted: two sightings there.
    seen = [
        Sighting("c1", 2, "n1", "boot 1", OCTOBER + HOUR),
        Sighting("c1", 2, "n1", "boot 2", OCTOBER + 2 * HOUR),
        Sighting("c1", 2, "n2", "boot 1", OCTOBER + HOUR),
    ]
    record = info(
        2,
        OCTOBER + HOUR,
        end=OCTOBER + 5 * HOUR,
        user="bert",
        account="physics",
        cpus=16,
        nodes=("n1", "n2"),
        tres={"cpu": 16, "gres/gpu:a100": 2},
        state="COMPLETED",
    )
    store.write(batch(record, *(_part(one, number) for number, one in enumerate(seen))))
    _one(store, 3, NOVEMBER, user="anna", account="chemistry", restart_count=0)
    _one(store, 3, NOVEMBER + 2 * HOUR, user="anna", account="chemistry", restart_count=1)
    # What no agent saw, and a job that was cancelled before it began.
    store.write(batch(info(4, NOVEMBER, end=NOVEMBER + HOUR, user="carl", name="a 'name'\n\\")))
    waited = info(5, None, submit=NOVEMBER, end=NOVEMBER + HOUR, state="CANCELLED")
    store.write(batch(waited))
    store.write(batch(info(6, NOVEMBER, state="RUNNING"), _part(sighting(6, birth=NOVEMBER), 0)))


def _one(store: Store, job_id: int, start: int, **more: Any) -> None:
    restart = more.get("restart_count")
    seen = sighting(job_id, birth=start + SECOND, restart_count=restart)
    record = info(job_id, start, end=start + HOUR, state="COMPLETED", time_limit=2 * HOUR, **more)
    store.write(batch(record, _part(seen, job_id)))


def _part(seen: Sighting, number: int) -> Any:
    return part(
        seen,
        series=curves(seen.birth, 40 + number),
        totals=totals(5, 10**12 * (number + 1), memory_peak=2**33, read_bytes=number),
        executables=[
            use(path, 10**11 * (place + 1), first_seen=seen.birth, path_known=path != b"sh")
            for place, path in enumerate(PATHS)
        ],
        steps=[step("batch", 5, 3, gpu_time=7, gpu_memory_peak=8), step("0", None, 9, ended=True)],
        coverage={"cpu": Coverage(quality="exact"), "io": Coverage(quality="failed", reason="no")},
        final=seen.job_id != 6,
    )


def late(store: Store, job_id: int, start: int, **more: Any) -> None:
    """A record that comes after the run was archived."""
    assert store.record_jobs([info(job_id, start, **more)])


def other_cluster(store: Store, cluster: str) -> None:
    record = JobInfo(cluster=cluster, job_id=1, source="slurm", start=OCTOBER, end=NOVEMBER)
    content: Batch = batch(cluster=cluster)
    content.jobs.append(record)
    store.write(content)


def content(store: Store, run: StoredRun) -> list[Any]:
    """All that pages and reports ask of a run, comparable bit for bit."""
    series = [
        (found.node, found.times.tobytes(), [(k, v.tobytes()) for k, v in found.columns.items()])
        for found in store.series(run.id)
    ]
    # Of a NaN only the words are equal.
    return [
        series,
        store.executables(run.id),
        store.steps(run.id),
        repr(store.summaries(run.id)),
        [(n.sighting, n.totals, n.coverage, n.final, n.epoch) for n in store.nodes(run.id)],
    ]


def everything(store: Store) -> dict[str, list[Any]]:
    """The content of all runs that have ended."""
    return {
        f"{run.run} {run.start}": [run.info, run.cpu_time, run.node_count, *content(store, run)]
        for run in store.runs(limit=1000)
        if run.info.end is not None
    }


def prune(store: Store) -> None:
    """Take away what retention takes away."""
    with store.database.write() as transaction:
        for table in ("chunks", "executables", "steps"):
            transaction.execute(
                f"DELETE FROM {table} WHERE run_node_id IN (SELECT run_nodes.id FROM run_nodes "
                "JOIN runs ON runs.id = run_id WHERE archived IS NOT NULL)"
            )
        transaction.execute("UPDATE runs SET pruned = 7 WHERE archived IS NOT NULL")


def drop_runs(store: Store) -> None:
    """Forget all runs."""
    with store.database.write() as transaction:
        for table in ("chunks", "executables", "steps", "run_nodes", "run_details", "runs"):
            transaction.execute(f"DELETE FROM {table}")


def archived_rows(folder: Path) -> list[tuple[int, int]]:
    """Job id and start of every row of runs in the files, whatever they are."""
    found = []
    for file in sorted(folder.glob("runs/*/*/*.parquet")):
        found += [(row["job_id"], row["start"]) for row in rows(file)]
    return sorted(found)


def rows(file: Path) -> list[dict[str, Any]]:
    return to_rows(pq.ParquetFile(file).read())
