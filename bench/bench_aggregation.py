"""20,000 SAMS records into our store, alongside SAMS's own aggregator on the same files and disk.

Both begin with an empty database and end with every file in the archive and the same totals. Both
let SQLite wait for the disk: SAMS's aggregator some four times for each record, ours for each group
of a thousand records. So the ratio of the times grows with the time that a disk takes to answer;
the CPU seconds, of all processes of each side, do not depend on it. The two take turns, and of each
side's times the middle one counts.
"""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.figures import Figures
from bench.peer_venv import PROJECT, peers, scratch_directory
from bench.sams_records import write_records
from jobsight.model import SECOND
from jobsight.store.store import Store

RECORDS = 20_000
TURNS = 3
GOAL = 20.0

_CONFIG = r"""
sams.aggregator:
  loaders: [sams.loader.File]
  aggregators: [sams.aggregator.SoftwareAccounting]
sams.loader.File:
  in_path: {folder}/in
  archive_path: {folder}/archive
  error_path: {folder}/error
  file_pattern: '^.*\.json$'
sams.aggregator.SoftwareAccounting:
  db_path: {folder}/db
  cluster: bench
"""


def prepare(records: Path, folder: Path) -> Path:
    """A copy of the records and the settings; nothing of it waits in memory to be written."""
    for name in ("archive", "error", "db"):
        (folder / name).mkdir(parents=True)
    shutil.copytree(records, folder / "in")
    config = folder / "aggregator.yaml"
    config.write_text(_CONFIG.format(folder=folder))
    os.sync()
    return config


class Measured(NamedTuple):
    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall:.2f} s, {self.cpu:.2f} s of CPU"


def timed(command: Sequence[str | Path]) -> Measured:
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=PROJECT, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Measured(time.monotonic() - start, cpu)


def sams_total(folder: Path) -> float:
    (file,) = (folder / "db").glob("*.db")
    connection = sqlite3.connect(file)
    (total,) = connection.execute("SELECT sum(user_time) + sum(system_time) FROM jobs").fetchone()
    connection.close()
    return float(total)


def our_total(store: Path) -> float:
    with Store.open(store) as opened:
        return sum(run.cpu_time or 0 for run in opened.runs(limit=RECORDS)) / SECOND


def compare(folder: Path, records: Path) -> tuple[Measured, Measured]:
    """One turn: ours and theirs, with the same files and the same totals."""
    ours, theirs = folder / "ours", folder / "theirs"
    config = prepare(records, ours)
    store = ours / "store.db"
    our = timed(
        [
            sys.executable,
            "-m",
            "jobsight.cli.compat.aggregator",
            "--config",
            config,
            "--store",
            store,
        ]
    )
    config = prepare(records, theirs)
    their = timed([peers() / "sams-aggregator.py", "--config", config])
    print(f"jobsight {our}; sams-aggregator.py {their}", flush=True)
    for place in (ours, theirs):
        kept = sum(len(files) for _, _, files in os.walk(place / "archive"))
        assert kept == RECORDS, f"{kept} of {RECORDS} files were recorded in {place.name}"
    difference = abs(our_total(store) - sams_total(theirs))
    assert difference < 0.01, f"the totals differ by {difference} s"
    return our, their


def middle(measured: Sequence[Measured]) -> Measured:
    return sorted(measured)[len(measured) // 2]


def main() -> None:
    figures = Figures()
    with scratch_directory() as name:
        folder = Path(name)
        jobs = write_records(folder / "records", RECORDS)
        turns = [compare(folder / str(turn), folder / "records") for turn in range(TURNS)]
    our = middle([turn[0] for turn in turns])
    their = middle([turn[1] for turn in turns])
    ratio = their.wall / our.wall
    figures.row(
        f"aggregation of {RECORDS:,} SAMS records ({jobs:,} jobs)",
        f"sams-aggregator.py: 1.0 ({their})",
        f"{ratio:.1f} x in time, {their.cpu / our.cpu:.1f} x in CPU time ({our})",
        f"{GOAL:.0f} x",
        reached=ratio >= GOAL,
    )
    figures.end()


if __name__ == "__main__":
    main()
