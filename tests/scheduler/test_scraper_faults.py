"""Faults of the scraper that real sites met; each test failed before its fault was mended."""

from pathlib import Path

import pytest

from jobsight.cli.main import main
from jobsight.config.settings import Settings
from jobsight.scheduler.scraper import Scraper
from jobsight.scheduler.sources.base import Choice
from jobsight.scheduler.state import read_state
from jobsight.store.store import Store
from tests.scheduler.test_scraper import HOUR, NOW, Site, job, site

__all__ = ["site"]


# Fault 6: the position of the scrape is in the store, so a restored store reads the gap.
def test_a_restored_store_reads_what_happened_since_the_backup(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = {"state": "COMPLETED", "partition": "main"}
    site.slurm.booked = [job(n, NOW - HOUR, end=NOW - HOUR // 2, **ended) for n in range(1, 4)]
    assert site.scraper.once().healthy
    location = site.settings.store.location
    assert main(["store", "backup", str(tmp_path / "b.dump"), "--store", location]) == 0
    site.now += 20 * HOUR
    site.slurm.booked += [
        job(10 + n, NOW + n * HOUR, end=NOW + (n + 1) * HOUR, **ended) for n in range(12)
    ]
    assert site.scraper.once().healthy
    assert len(site.runs()) == 15
    site.store.close()
    restore = ["store", "restore", str(tmp_path / "b.dump"), "--replace", "--yes"]
    assert main([*restore, "--store", location]) == 0
    capsys.readouterr()
    site.store = Store.open(location)
    assert len(site.runs()) == 3
    site.now += HOUR
    site.restart()
    assert site.scraper.once().healthy
    assert len(site.runs()) == 15


# Fault 6: two stores in one directory have a position each.
def test_a_second_store_in_the_directory_reads_its_own_history(site: Site, tmp_path: Path) -> None:
    site.slurm.booked = [job(1, NOW - 10 * HOUR, state="COMPLETED", end=NOW - 9 * HOUR)]
    assert site.scraper.once().healthy
    with Store.open(tmp_path / "second.db") as second:
        settings = Settings(cluster="c1")
        settings.store.location = str(tmp_path / "second.db")
        scraper = Scraper(
            second, settings, choose=lambda _: Choice(site.slurm, "test"), clock=lambda: site.now
        )
        assert scraper.once().healthy
        assert second.count_runs() == 1
        assert read_state(second.database, "c1").until == NOW
    assert not list(tmp_path.glob("scrape-*"))
