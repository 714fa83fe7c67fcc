"""The archive: bytes a value next to the store's chunks and long rows, and one run read back."""

from __future__ import annotations

import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.figures import Figures
from bench.workload import START, Job, make_jobs
from jobsight.archive.reader import Reader
from jobsight.archive.storage import Storage, open_storage
from jobsight.archive.writer import write_archive
from jobsight.config.settings import ArchiveSettings
from jobsight.model import SECOND, Batch, JobInfo, JobPart, Series, Sighting
from jobsight.store.store import Store

#: 20 jobs on each, an hour at 10 s.
NODES = 20
ROWS = 360
CLUSTER = "bench"
END = START + 30 * 86400 * SECOND


def fill(store: Store, jobs: list[Job]) -> None:
    """Store each job as one batch that ends it."""
    for number, job in enumerate(jobs):
        times = array("q", job.times.tobytes())
        columns = {name: array("q", column.tobytes()) for name, column in job.columns.items()}
        sighting = Sighting(CLUSTER, job.job_id, job.node, "boot", START)
        part = JobPart(sighting=sighting, epoch="one", series=Series(times, columns), final=True)
        info = JobInfo(
            cluster=CLUSTER,
            job_id=job.job_id,
            source="bench",
            start=START,
            end=int(job.times[-1]),
        )
        store.write(
            Batch(
                cluster=CLUSTER,
                node=job.node,
                spool="bench",
                sequence=number,
                written=START,
                monotonic=0,
                agent="bench",
                jobs=[info],
                parts=[part],
            )
        )


def write_long(jobs: list[Job], file: Path) -> int:
    """The same values as Parquet with a row each; bytes."""
    tables = []
    for job in jobs:
        rows = len(job.times)
        names = pa.array(list(job.columns)).take(
            pa.array(np.repeat(np.arange(len(job.columns)), rows))
        )
        tables.append(
            pa.table(
                {
                    "job_id": np.full(rows * len(job.columns), job.job_id),
                    "metric": names.dictionary_encode(),
                    "time": np.tile(job.times, len(job.columns)),
                    "value": np.concatenate(list(job.columns.values())),
                }
            )
        )
    table = pa.concat_tables(tables, promote_options="default").unify_dictionaries()
    encodings = {"time": "DELTA_BINARY_PACKED", "value": "DELTA_BINARY_PACKED"}
    pq.write_table(
        table,
        file,
        compression="zstd",
        compression_level=9,
        use_dictionary=["job_id", "metric"],
        column_encoding=encodings,
        row_group_size=1 << 20,
    )
    return file.stat().st_size


def best(work: Callable[[], object], times: int = 9) -> float:
    """Seconds of the quickest run."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def ask(query: str) -> float:
    """Seconds of a query by job, on one thread."""
    with duckdb.connect(config={"threads": 1}) as connection:
        return best(lambda: connection.execute(f"{query} GROUP BY job_id").fetchall())


def series_bytes(place: Storage) -> int:
    return sum(place.names("series").values())


def main() -> None:
    figures = Figures()
    jobs = make_jobs(NODES, ROWS)
    values = sum(len(job.times) * len(job.columns) for job in jobs)
    with tempfile.TemporaryDirectory(prefix="jobsight-bench-") as folder:
        place = open_storage(ArchiveSettings(location=f"{folder}/archive"))
        with Store.open(f"{folder}/store.db") as store:
            fill(store, jobs)
            took = best(lambda: write_archive(store, place, END), 1)
            chunks = store.info().series_size
            stored = store.runs(limit=1)[0]
            from_store = best(lambda: store.series(stored.id))
            reader = Reader(place)
            archived = reader.versions(CLUSTER)
            mine = next(run for run in archived if run.job_id == stored.info.job_id)
            reader.series(mine)
            from_archive = best(lambda: reader.series(mine))
            some = ["cpu.time", "memory.used"]
            few = best(lambda: reader.series(mine, some))
        wide = series_bytes(place) / values
        file = Path(folder) / "long.parquet"
        long = write_long(jobs, file) / values
        wide_query = ask(
            f"SELECT job_id, max(\"memory.used\") FROM '{folder}/archive/series/*/*/*.parquet'"
        )
        long_query = ask(f"SELECT job_id, max(value) FROM '{file}' WHERE metric = 'memory.used'")
    figures.row(
        "bytes a value in the archive (Parquet, a column for each metric)",
        f"Parquet with a row for each value {long:.2f}; the store's chunks {chunks / values:.2f}",
        f"{wide:.2f} ({wide / long:.2f} x)",
        "0.7 x of a row for each value",
        reached=wide <= 0.7 * long,
    )
    figures.row(
        "the peak of one metric in every job of the archive, by DuckDB",
        f"a row for each value {long_query * 1000:.1f} ms",
        f"{wide_query * 1000:.1f} ms ({wide_query / long_query:.2f} x)",
        "0.5 x",
        reached=wide_query <= 0.5 * long_query,
    )
    figures.row(
        f"one run of {len(jobs)} read from the archive, all {len(jobs[0].columns)} time series",
        f"from the store {from_store * 1000:.1f} ms",
        f"{from_archive * 1000:.1f} ms; two time series {few * 1000:.1f} ms",
        "under 300 ms",
        reached=from_archive < 0.3,
    )
    figures.row(
        "archiving, one core",
        "-",
        f"{values / took:,.0f} values/s, {len(jobs) / took:,.0f} runs/s",
        "-",
    )
    figures.end()


if __name__ == "__main__":
    main()
