"""A store with many runs, and what a test wants to know of it."""

import random
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
from sqlalchemy import text

from jobsight.model import SECOND, Series
from jobsight.store.store import Store
from tests.store.gpu_sample import gpu
from tests.store.sample import START, batch, info, part, sighting, step, totals, use

DAY = 86400 * SECOND
#: So many samples of each run, 30 s apart.
ROWS = 600


def curves(start: int, rows: int = ROWS) -> Series:
    choose = random.Random(start)
    times = array("q", (start + place * 30 * SECOND for place in range(rows)))
    counter = array("q", (place * 20 * SECOND + choose.randrange(10**6) for place in range(rows)))
    memory = array("q", (2**30 + choose.randrange(2**20) for _ in range(rows)))
    return Series(times, {"cpu.time": counter, "memory.used": memory})


def fill(
    store: Store, jobs: Iterable[int], age: int, now: int, rows: int = ROWS, **more: Any
) -> None:
    """Runs that ended so many days before ``now``, 50 in a batch."""
    end = now - age * DAY
    start = end - ROWS * 30 * SECOND
    waiting: list[Any] = []
    for job in jobs:
        path = f"/apps/{job % 7}/bin/solve".encode()
        waiting.append(info(job, start, end=end, state="COMPLETED", user="anna", cpus=4))
        waiting.append(
            part(
                sighting(job, birth=start),
                series=curves(start, rows) if rows else None,
                totals=totals(0, 1000 + job),
                executables=[use(path, 900), use(b"/bin/of job %d" % job, 1)],
                steps=[step("batch", 40)],
                gpus=[gpu("0")],
                **({"final": True} | more),
            )
        )
        if len(waiting) >= 100:
            assert store.write(batch(*waiting))
            waiting = []
    assert store.write(batch(*waiting))


def summed(store: Store) -> None:
    """As if all runs had been summed up, by hand: each adds one to one day."""
    with store.database.write() as transaction:
        transaction.execute("UPDATE runs SET stale = false")
        transaction.execute(
            "INSERT INTO contributions (run_id, revision, data) SELECT id, id, :data FROM runs "
            "WHERE true ON CONFLICT (run_id) DO NOTHING",
            {"data": b"\x90"},
        )


def count(store: Store, table: str, where: str = "true") -> int:
    with store.database.read() as connection:
        return int(connection.scalar(text(f"SELECT count(*) FROM {table} WHERE {where}")) or 0)


def cpu_growth(store: Store, run_id: int) -> list[int]:
    return [int(np.ptp(found.columns["cpu.time"])) for found in store.series(run_id)]


NOW = START + 4000 * DAY
