"""Faults of the scraper that real sites met; each test failed before its fault was mended."""

from pathlib import Path

import pytest

from jobsight.cli.main import main
from jobsight.config.settings import Settings
from jobsight.model import SECOND
from jobsight.scheduler.records import (
    JobDetails,
    JobRecord,
    Jobs,
    NodeInfo,
    Nodes,
    SourceError,
    StepInfo,
)
from jobsight.scheduler.scraper import Scraper
from jobsight.scheduler.sources.base import Choice
from jobsight.scheduler.state import read_state
from jobsight.server.api.health import read_health
from jobsight.store.snapshot import read_snapshot, unpack
from jobsight.store.store import Store
from tests.scheduler.test_scraper import HOUR, NOW, Site, job, site
from tests.store.sample import batch, part, sighting

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


def details(site: Site) -> JobDetails:
    with site.store.database.query() as transaction:
        ((data,),) = transaction.execute("SELECT data FROM run_details", {}).fetchall()
    return unpack(data, JobDetails)


# Fault 7: the controller's record adds to the accounting's and takes nothing from it.
@pytest.mark.parametrize("away", [False, True])
def test_the_queue_only_completes_what_the_accounting_recorded(site: Site, away: bool) -> None:
    ended = job(state="TIMEOUT", end=NOW + 60 * SECOND, exit_code=0, cpus=4, gpus=2)
    booked = JobRecord(
        info=ended, cpu_time=62 * SECOND, steps=[StepInfo(step="batch"), StepInfo(step="0")]
    )
    site.slurm.accounting = lambda since, until: Jobs([booked])  # type: ignore[method-assign]
    assert site.scraper.once().healthy
    # The controller has the job longer than the overlap, or the accounting is unreachable.
    site.now += 2 * HOUR
    empty: list[JobRecord] = []
    site.slurm.accounting = lambda since, until: Jobs(empty)  # type: ignore[method-assign]
    if away:
        site.slurm.accounting_away = SourceError("slurmdbd is unreachable")
    live = job(state="FAILED", end=NOW + 61 * SECOND, exit_signal=15, cpus=1, gpus=0, uid=7)
    queued = JobRecord(info=live, reason="TimeLimit")
    site.slurm.queue = lambda: Jobs([queued])  # type: ignore[method-assign]
    site.scraper.once()
    (run,) = site.store.runs()
    assert (run.info.state, run.info.end, run.info.cpus, run.info.gpus) == (
        "TIMEOUT", NOW + 60 * SECOND, 4, 2,
    )  # fmt: skip
    assert (run.info.exit_code, run.info.exit_signal, run.info.uid) == (0, None, 7)
    stored = details(site)
    assert (stored.cpu_time, len(stored.steps), stored.reason) == (62 * SECOND, 2, "TimeLimit")
    assert site.scraper.once().changed == 0


# Fault 7: while the accounting is unreachable, the controller still ends a run.
def test_the_queue_ends_a_run_that_the_accounting_has_open(site: Site) -> None:
    site.slurm.booked = [job()]
    assert site.scraper.once().healthy
    site.slurm.accounting_away = SourceError("slurmdbd is unreachable")
    site.slurm.queued = [job(state="FAILED", end=NOW + SECOND, exit_code=3)]
    site.scraper.once()
    (run,) = site.store.runs()
    assert (run.info.state, run.info.end, run.info.exit_code) == ("FAILED", NOW + SECOND, 3)


# Fault 8: an open run that the accounting, queried by its id, does not have is deleted.
def test_a_run_that_never_happened_is_deleted(site: Site) -> None:
    site.slurm.queued = [job(1, NOW + 2 * HOUR), job(2), job(3), job(4)]
    site.slurm.booked = [job(3)]
    site.scraper.once()
    site.store.write(batch(part(sighting(job_id=4, birth=NOW))))
    site.slurm.queued = [job(2, None, state="PENDING")]
    site.slurm.accounting_away = SourceError("slurmdbd is unreachable")
    site.now += HOUR
    site.scraper.once()
    assert [run[0] for run in site.runs()] == [1, 2, 3, 4]
    # Job 1 would start in the future, job 2 is pending; the node has seen job 4.
    site.slurm.accounting_away = None
    site.scraper.once()
    assert [run[0] for run in site.runs()] == [3, 4]


# Fault 8: the accounting may be late; a run of which nothing else is known is kept for hours.
def test_a_late_accounting_loses_no_run(site: Site) -> None:
    site.slurm.queued = [job(1)]
    site.scraper.once()
    site.slurm.queued = []
    site.now += HOUR
    site.scraper.once()
    assert [run[0] for run in site.runs()] == [1]
    site.now += 24 * HOUR
    site.scraper.once()
    assert site.runs() == []


# Fault 10: any exception is the reason of a failed scrape, and the stored data is kept.
def test_an_internal_error_is_the_reason_in_the_health(site: Site) -> None:
    site.slurm.queued = site.slurm.booked = [job()]
    assert site.scraper.once().healthy

    def broken() -> Nodes:
        raise ZeroDivisionError("a surrogate \ud800")

    site.slurm.nodes = broken  # type: ignore[method-assign]
    state = site.scraper.once()
    assert not state.healthy
    assert "internal error: ZeroDivisionError" in state.reason
    assert read_state(site.store.database, "c1").reason == state.reason
    (cluster,) = read_health(site.store).clusters
    assert (cluster.healthy, cluster.reason) == (False, state.reason)
    assert site.runs() == [(1, 0, "RUNNING")]


# Fault 11: an empty reply about nodes does not delete those that are known.
def test_an_empty_reply_about_nodes_is_not_believed(site: Site) -> None:
    site.slurm.known_nodes = [NodeInfo(cluster="c1", name="n1", cpus=4)]
    assert site.scraper.once().healthy
    site.slurm.known_nodes = []
    state = site.scraper.once()
    assert "no nodes" in state.reason
    assert len(read_snapshot(site.store.database, "c1", "node", NodeInfo)) == 1


def test_a_field_out_of_bounds_is_left_out_and_reported(site: Site) -> None:
    # Threat S-07: what Slurm brings passes the same bounds as what nodes send.
    site.slurm.booked = [job(name="n" * 20_000, cpus=2**40, user="anna"), job(2)]
    state = site.scraper.once()
    assert state.healthy
    assert state.problems
    runs = {run.info.job_id: run.info for run in site.store.runs()}
    assert len(runs) == 2
    assert (runs[1].name, runs[1].cpus, runs[1].user) == (None, None, "anna")
