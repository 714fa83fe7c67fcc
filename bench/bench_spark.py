"""The shipped queries on DuckDB and on a Spark cluster, over an archive of many runs.

    python -m bench spark --runs 1000000

The archive is that of a made-up year of some thousand runs, written by the archiver, and copies of
its parts: each with job ids and times of its own, through the archive's own files and schemas.
Both engines answer on this machine; the answers are compared row by row.
"""

from __future__ import annotations

import argparse
import calendar
import re
import secrets
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench import peer_venv
from bench.figures import Figures
from jobsight.archive import spark
from jobsight.archive.part import MANIFEST, Manifest, cluster_and_month
from jobsight.archive.reader import Reader
from jobsight.archive.schema import SCHEMAS
from jobsight.archive.storage import Storage, TableFile, open_storage
from jobsight.archive.verify import check_archive
from jobsight.archive.writer import MAX_PART_RUNS, write_archive
from jobsight.config.settings import ArchiveSettings
from jobsight.model import SECOND
from jobsight.simulation.fill import fill
from jobsight.simulation.year import Year
from jobsight.store.store import Store
from tests.archive import answers, spark_cluster

RUNS: Final = 20_000
#: Runs of the made-up year that are copied.
DISTINCT: Final = 20_000
#: Between the starts of a run and of its next copy.
_SHIFT: Final = 300 * SECOND
#: Columns of ids that follow the job id, and of times that do not follow the start.
_IDS: Final = frozenset({"job_id", "array_job_id", "het_job_id"})
_KEPT_TIMES: Final = frozenset({"archived", "updated"})
_DOCUMENT: Final = Path(__file__).parents[1] / "docs" / "archive.md"
#: Of each engine: what a laptop has.
_DUCKDB: Final = {"threads": 3, "memory_limit": "2GB"}
_EXECUTOR: Final = {"spark.driver.memory": "1g", "spark.executor.memory": "1g"}
_WORKER_MEMORY: Final = "1280m"


def shipped_queries() -> dict[str, str]:
    """The queries of docs/archive.md by their titles."""
    pattern = r"^### (.*?)\n\n```sql\n(.*?)```"
    return dict(re.findall(pattern, _DOCUMENT.read_text(), re.DOTALL | re.MULTILINE))


class Copies:
    """Writes copies of the parts of one archive into another."""

    def __init__(self, source: Storage, target: Storage) -> None:
        self._source = source
        self._target = target
        self._reader = Reader(source)
        self._parts = [(file, self._reader.manifest(file)) for file in self._reader.parts()]
        #: The ids of a copy follow those of the one before.
        self._stride = 0
        for file, _ in self._parts:
            with source.open(file) as stream:
                ids = pq.read_table(stream, columns=["job_id"]).column("job_id").to_numpy()
            self._stride = max(self._stride, int(ids.max()) + 1)

    @property
    def runs(self) -> int:
        return sum(manifest.runs for _, manifest in self._parts)

    def write(self, count: int) -> tuple[int, int, int]:
        """Write so many copies; the runs, samples and bytes of them."""
        runs = samples = size = 0
        for file, manifest in self._parts:
            together = max(1, MAX_PART_RUNS // manifest.runs)
            for first in range(0, count, together):
                copies = range(first, min(first + together, count))
                size += self._part(file, manifest, copies)
                runs += manifest.runs * len(copies)
                samples += manifest.samples * len(copies)
        return runs, samples, size

    def _part(self, runs_file: str, manifest: Manifest, copies: range) -> int:
        """One part with some copies of another."""
        name = f"{manifest.part.partition('-')[0]}-{secrets.token_hex(4)}"
        middle = _middle(cluster_and_month(runs_file)[1])
        entries = []
        for entry in manifest.files:
            with self._source.open(entry.name) as stream:
                parquet = pq.ParquetFile(stream)
                schema = parquet.schema_arrow
                groups = [parquet.read_row_group(each) for each in range(parquet.num_row_groups)]
            file = TableFile(self._target, entry.name.replace(manifest.part, name), schema)
            for copy in copies:
                for group in groups:
                    file.write(self._shifted(group, copy, name, middle))
            entries.append(file.put())
        with self._source.open(runs_file) as stream:
            runs = pq.ParquetFile(stream).read()
        made = Manifest(name, manifest.runs * len(copies), manifest.samples * len(copies), entries)
        schema = SCHEMAS["runs"].with_metadata({MANIFEST: msgspec.json.encode(made)})
        whole = pa.concat_tables(self._shifted(runs, copy, name, middle) for copy in copies)
        target = runs_file.replace(manifest.part, name).rpartition("-")[0] + ".parquet"
        last = TableFile(self._target, target, schema)
        last.write(whole.combine_chunks().replace_schema_metadata(schema.metadata))
        entries.append(last.put(digest_in_name=True))
        return sum(entry.size for entry in entries)

    def _shifted(self, table: pa.Table, copy: int, part: str, middle: int) -> pa.Table:
        """The rows of a copy: no run leaves its month."""
        starts = table.column("start").cast(pa.int64()).to_numpy()
        shift = pa.array(np.where(starts < middle, copy * _SHIFT, -copy * _SHIFT))
        columns = []
        for field in table.schema:
            column = table.column(field.name)
            if field.name in _IDS:
                column = pc.add(column, copy * self._stride)
            elif field.name == "part":
                column = pa.array([part]).take(pa.array(np.zeros(len(column), np.int64)))
            elif pa.types.is_timestamp(field.type) and field.name not in _KEPT_TIMES:
                moved = pc.add(column.cast(pa.int64()), shift)
                column = moved.cast(field.type)
            columns.append(column)
        return pa.table(columns, schema=table.schema)


def _middle(month: str) -> int:
    """The middle of a month, in nanoseconds."""
    first = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    days = calendar.monthrange(first.year, first.month)[1]
    return (int(first.timestamp()) + days * 43200) * SECOND


def make_archive(
    folder: Path, runs: int, distinct: int, figures: Figures
) -> tuple[ArchiveSettings, int]:
    """An archive of at least so many runs, and how many it has."""
    source = open_storage(ArchiveSettings(location=str(folder / "one")))
    begun = time.process_time()
    year = Year(min(runs, distinct))
    with Store.open(folder / "store.db") as store:
        fill(store, year)
        write_archive(store, source, year.end * SECOND)
    settings = ArchiveSettings(location=str(folder / "archive"))
    copies = Copies(source, open_storage(settings))
    made = time.process_time() - begun
    begun = time.process_time()
    count, samples, size = copies.write(-(-runs // copies.runs))
    figures.row(
        f"an archive of {count:,} runs, {samples:,} samples (copies of {copies.runs:,} runs)",
        "-",
        f"{size / 1e9:.2f} GB, {size / count / 1e3:.1f} kB a run; CPU time {made:.0f} s for the "
        f"runs, {time.process_time() - begun:.0f} s for the copies",
        "-",
    )
    return settings, count


def compare(settings: ArchiveSettings, master: str, python: str, figures: Figures) -> None:
    """Ask both engines each query, and compare the answers."""
    options = spark_cluster.OPTIONS | _EXECUTOR

    def of_spark(text: str) -> tuple[list[list[object]], float]:
        begun = time.perf_counter()
        answer = spark.query(settings, master, text, python=python, options=options)
        return answer.rows, time.perf_counter() - begun

    _, session = of_spark("SELECT 1")
    figures.row("start and end of a Spark session", "-", f"{session:.1f} s", "-")
    for title, shipped in shipped_queries().items():
        query = answers.adapted(settings, shipped)
        begun = time.perf_counter()
        expected = answers.of_duckdb(settings, query, **_DUCKDB)
        duckdb_took = time.perf_counter() - begun
        rows, spark_took = of_spark(query)
        found = answers.difference(expected, rows)
        if found is not None:
            print(f"{title}: {found}")
        figures.row(
            f"{title}: {len(rows):,} rows",
            f"DuckDB {duckdb_took:.1f} s",
            f"Spark {spark_took:.1f} s with its session ({spark_took / duckdb_took:.1f} x); "
            f"{'the answers differ' if found else 'equal row by row'}",
            "equal",
            reached=found is None and bool(rows),
        )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench spark")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--distinct", type=int, default=DISTINCT, help="runs that are not copies")
    parser.add_argument("--check", action="store_true", help="read every byte of the archive first")
    options = parser.parse_args(arguments)
    figures = Figures()
    if not peer_venv.is_built("spark"):
        # A part of `make bench` that needs more than the project installs.
        print("pyspark is not installed; `python -m bench.peer_venv spark` does it")
        for title in shipped_queries():
            figures.row(f"query: {title}", "-", "not measured: pyspark is not installed", "-")
        figures.end()
    with peer_venv.scratch_directory() as scratch:
        folder = Path(scratch)
        settings, count = make_archive(folder, options.runs, options.distinct, figures)
        if options.check:
            checked = check_archive(open_storage(settings))
            print(*checked.problems[:5], sep="\n")
            figures.row(
                f"problems that `jobsight archive check` finds in {checked.files:,} files",
                "-",
                f"{len(checked.problems)}",
                "0",
                reached=not checked.problems and checked.runs == count,
            )
        with spark_cluster.running(folder, memory=_WORKER_MEMORY) as (master, python):
            compare(settings, master, python, figures)
    figures.end()


if __name__ == "__main__":
    main(sys.argv[1:])
