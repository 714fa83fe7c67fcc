"""Archiving takes no more memory for many runs than for some."""

import subprocess
import sys
from pathlib import Path

import pytest

from jobsight.store.store import Store
from tests.store.many import NOW, fill

ROOT = Path(__file__).parents[2]
#: A process of its own, since its peak is what is requested.
PROGRAM = f"""
import resource, sys
from jobsight.archive import writer
from jobsight.archive.storage import open_storage
from jobsight.config.settings import ArchiveSettings
from jobsight.store.store import Store
writer.MAX_PART_RUNS = 2000
with Store.open(sys.argv[1]) as store:
    place = open_storage(ArchiveSettings(location=sys.argv[2]))
    print(writer.write_archive(store, place, {NOW}).runs)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak(folder: Path, runs: int) -> int:
    """Kilobytes that an archiver of so many runs takes at most."""
    store = folder / f"{runs}.db"
    with Store.open(store) as opened:
        fill(opened, range(runs), age=50, now=NOW, rows=60)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(store), str(folder / f"archive of {runs}")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    written, highest = map(int, done.stdout.split())
    assert written == runs
    return highest


@pytest.mark.long
@pytest.mark.timeout(600)
def test_memory_does_not_grow_with_the_runs(tmp_path: Path) -> None:
    few, many = peak(tmp_path, 2500), peak(tmp_path, 15_000)
    assert many - few < 40_000, (few, many)
