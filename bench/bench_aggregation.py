"""20,000 SAMS records into our store, beside SAMS's own aggregator on the same files and disk."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Figures
from bench.peer_venv import PROJECT, peers
from bench.sams_records import write_records
from jobsight.model import SECOND
from jobsight.store import Store

RECORDS = 20_000
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


def timed(command: Sequence[str | Path]) -> float:
    start = time.monotonic()
    subprocess.run(command, cwd=PROJECT, check=True)
    return time.monotonic() - start


def sams_total(folder: Path) -> float:
    (file,) = (folder / "db").glob("*.db")
    connection = sqlite3.connect(file)
    (total,) = connection.execute("SELECT sum(user_time) + sum(system_time) FROM jobs").fetchone()
    connection.close()
    return float(total)


def our_total(store: Path) -> float:
    with Store.open(store) as opened:
        return sum(run.cpu_time or 0 for run in opened.runs(limit=RECORDS)) / SECOND


def main() -> None:
    figures = Figures()
    # Beside the project and not in /tmp, which is memory on some machines.
    with tempfile.TemporaryDirectory(dir=PROJECT / ".cache") as name:
        folder = Path(name)
        jobs = write_records(folder / "records", RECORDS)
        ours, theirs = folder / "ours", folder / "theirs"
        config = prepare(folder / "records", ours)
        store = ours / "store.db"
        our_time = timed(
            [sys.executable, "-m", "jobsight.cli.aggregator", "--config", config, "--store", store]
        )
        config = prepare(folder / "records", theirs)
        their_time = timed([peers() / "sams-aggregator.py", "--config", config])
        for place in (ours, theirs):
            kept = sum(len(files) for _, _, files in os.walk(place / "archive"))
            assert kept == RECORDS, f"{kept} of {RECORDS} files were booked in {place.name}"
        difference = abs(our_total(store) - sams_total(theirs))
        assert difference < 0.01, f"the totals differ by {difference} s"
    ratio = their_time / our_time
    figures.row(
        f"aggregation of {RECORDS:,} SAMS records ({jobs:,} jobs)",
        f"sams-aggregator.py: 1.0 ({their_time:.1f} s)",
        f"{ratio:.1f} x ({our_time:.1f} s)",
        f"{GOAL:.0f} x",
        reached=ratio >= GOAL,
    )
    figures.end()


if __name__ == "__main__":
    main()
