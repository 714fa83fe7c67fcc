"""One cluster with jobs of all kinds, scraped by every source: the stores are equal.

Faults 7, 8, 9, 11 and 12 were differences between the sources, and runs that sacct does not have.
"""

from __future__ import annotations

import functools
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from jobsight.config.settings import Settings, StoreSettings
from jobsight.model import SECOND, JobInfo
from jobsight.scheduler.cluster_metrics import count_tasks
from jobsight.scheduler.cluster_name import with_cluster_name
from jobsight.scheduler.records import JobRecord
from jobsight.scheduler.scraper import Scraper
from jobsight.scheduler.sources.base import Choice, Source
from jobsight.scheduler.sources.commands import stream_command
from jobsight.scheduler.sources.json import JsonSource
from jobsight.scheduler.sources.onsite import OnsiteSource, from_command
from jobsight.scheduler.sources.pyslurm import PySlurmSource
from jobsight.scheduler.sources.recorded import RecordedSource
from jobsight.scheduler.sources.rest import RestSource
from jobsight.scheduler.sources.text import TextSource
from jobsight.store.snapshot import read_snapshot
from jobsight.store.store import Store
from tests.bed import Cluster
from tests.slurm.jobs import ALICE, BOB, Gate, eat
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(900)

#: The Python of a PySlurm of this Slurm's release, which no registry has; see docs/test-bed.md.
PYSLURM = os.environ.get("JOBSIGHT_TEST_PYSLURM", "")
NAMES = ("text", "json", "rest", "onsite", "recorded", *(["pyslurm"] if PYSLURM else []))
SMALL = ("--mem=50", "--output=/dev/null")
#: What a source cannot tell; see the table in docs/scheduler.md.
UNKNOWN = {
    **{name: {"uid", "exit_code"} for name in ("json", "rest", "recorded")},
    "pyslurm": {"qos", "tres", "gpus", "het_job_id", "het_offset"},
}
#: Lists of tasks as people write them, and one that is longer than Slurm shows by default.
ARRAYS = ("1-50", "2-20:3", "1,3,5,7-9,40", "1-10%2", "0", ",".join(map(str, range(0, 990, 7))))


class Site(NamedTuple):
    """The cluster, and the directory in which its epilog waits."""

    cluster: Cluster
    folder: Path

    def source(self, name: str, folder: Path) -> Source:
        """A new source; ``folder`` is for the replies of that which is recorded."""
        environment = self.cluster.environment()
        run = functools.partial(stream_command, environment=environment)
        cluster = self.cluster.settings.name
        match name:
            case "text":
                return TextSource(cluster, run=run)
            case "json":
                return JsonSource(cluster, run=run)
            case "rest":
                return RestSource(cluster, f"unix:{self.cluster.settings.rest_socket}", timeout=60)
            case "onsite":
                return OnsiteSource(cluster, from_command(run, 60, 1))
            case "pyslurm":
                return PySlurmSource(
                    cluster, timeout=60, run=run, python=PYSLURM, clock=time.time_ns
                )
        folder.mkdir()
        for command in (
            ("squeue", "--states=all"),
            ("sacct", "--allusers", "--duplicates", "--starttime=now-1hour"),
            ("sinfo",),
        ):
            file = folder / f"{command[0]}.json"
            with file.open("wb") as stream:
                subprocess.run(
                    [*command, "--json"],
                    env=environment | {"SLURM_TIME_FORMAT": "standard", "TZ": "UTC"},
                    stdout=stream,
                    check=True,
                    timeout=60,
                )
        return RecordedSource(cluster, str(folder))


@pytest.fixture(scope="module")
def site(slurm_packages: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Its epilog waits for each job that has a file there."""
    folder = tmp_path_factory.mktemp("epilog")
    folder.chmod(0o755)
    epilog = folder / "epilog"
    epilog.write_text(
        f"#!/bin/sh\nwhile [ -e {folder}/$SLURM_JOB_ID ]; do sleep 0.1; done\nexit 0\n"
    )
    epilog.chmod(0o755)
    with Cluster.unused("q", epilog=str(epilog), rest=True, nodes=4) as cluster:
        yield Site(cluster, folder)


class Found(NamedTuple):
    """What a store has after a scrape, in forms that can be compared."""

    runs: dict[tuple[int, int], JobInfo]
    #: For each pending job its tasks, its reason and its state.
    pending: dict[int, tuple[int, str | None, str | None]]


class Stores:
    """A store and a scraper for each source."""

    def __init__(self, site: Site, folder: Path) -> None:
        self._site = site
        self._folder = folder
        self._stores = {name: Store.open(folder / f"{name}.db") for name in NAMES}
        self._rounds = 0

    def close(self) -> None:
        for store in self._stores.values():
            store.close()

    def scrape(self) -> dict[str, Found]:
        self._rounds += 1
        return {name: self._scrape(name, store) for name, store in self._stores.items()}

    def _scrape(self, name: str, store: Store) -> Found:
        cluster = self._site.cluster.settings.name
        source = self._site.source(name, self._folder / f"{name}-{self._rounds}")
        location = StoreSettings(location=str(self._folder / f"{name}.db"))
        settings = Settings(cluster=cluster, store=location)
        state = Scraper(store, settings, choose=lambda _: Choice(source, name)).once()
        assert (state.reason, state.healthy) == ("", True), name
        pending = read_snapshot(store.database, cluster, "pending", JobRecord)
        counts: Counter[int] = Counter()
        for record in pending:
            if name == "pyslurm" and record.reason is not None:
                # PySlurm replaces the spaces of a description.
                record.reason = record.reason.replace("_", " ")
            counts[record.info.array_job_id or record.info.job_id] += count_tasks(record)
        return Found(
            {_key(run.info): run.info for run in store.runs(limit=1000)},
            {
                record.info.array_job_id or record.info.job_id: (
                    counts[record.info.array_job_id or record.info.job_id],
                    record.reason,
                    record.info.state,
                )
                for record in pending
            },
        )


@pytest.fixture(scope="module")
def stores(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    opened = Stores(site, tmp_path_factory.mktemp("stores"))
    yield opened
    opened.close()


def _key(info: JobInfo) -> tuple[int, int]:
    assert info.start is not None
    return info.job_id, info.start // SECOND


def runs_of_sacct(cluster: Cluster) -> set[tuple[int, int]]:
    """The runs of the accounting: the rows with nodes. A requeued job has several."""
    fields = ["JobIDRaw", "Start", "NodeList", "Partition"]
    options = ("--allocations", "--duplicates", "--starttime=now-1hour")
    return {
        (int(row["JobIDRaw"]), int(row["Start"]))
        for row in cluster.sacct(None, fields, *options)
        if row["NodeList"] != "None assigned" and row["Partition"] and row["Start"].isdigit()
    }


def reasons_of_squeue(cluster: Cluster) -> dict[int, str]:
    """Why each job waits, in squeue's own words. Its --array shows one task too few of 2-20:3."""
    command = ["squeue", "--noheader", "--states=all", "--format=%F %t %r"]
    rows = [line.split(maxsplit=2) for line in cluster.run(command).stdout.splitlines()]
    return {int(job): reason for job, state, reason in rows if state in ("PD", "SE", "RH", "RD")}


def in_accounting(cluster: Cluster, job: int) -> Callable[[], list[Any]]:
    return lambda: cluster.sacct(job, ["NodeList"], "--allocations")


def assert_equal(found: dict[str, Found]) -> None:
    reference = found["text"]
    for name, other in found.items():
        assert other.runs.keys() == reference.runs.keys(), name
        assert other.pending == reference.pending, name
        for key, info in other.runs.items():
            unknown = UNKNOWN.get(name, set())
            different = {
                field: (value, getattr(reference.runs[key], field))
                for field, value in msgspec.structs.asdict(info).items()
                if value != getattr(reference.runs[key], field) and field != "source"
                and not (value is None and field in unknown)
            }  # fmt: skip
            assert different == {}, (name, key)


@pytest.mark.long
def test_all_sources_agree_on_jobs_of_all_kinds(site: Site, stores: Stores) -> None:
    cluster, folder = site.cluster, site.folder
    submit = cluster.submit
    with Gate(cluster.settings.path()) as gate:
        running = {
            name: submit(ALICE, gate.line, *SMALL, "--requeue")
            for name in ("requeue hold", "special exit", "completing", "suspended", "runs")
        }
        # Two tasks run, and the others wait.
        started = submit(ALICE, gate.line, *SMALL, "--array=1-6%2")
        waiting = {
            "held by the user": submit(BOB, "true", *SMALL, "--hold"),
            "held": submit(BOB, "true", *SMALL, "--begin=now+1hour"),
        }
        waiting["dependent"] = submit(
            BOB, "true", *SMALL, f"--dependency=afterok:{waiting['held by the user']}"
        )
        waiting["reservation over"] = submit_to_short_reservation(cluster)
        arrays = {tasks: submit(ALICE, "true", *SMALL, "--hold", f"--array={tasks}")
                  for tasks in ARRAYS}  # fmt: skip
        cluster.scontrol("hold", str(waiting["held"]))
        ended = {
            "out of memory": submit(ALICE, eat(300), *SMALL),
            "failed": submit(BOB, "exit 42", *SMALL),
            "steps": submit(BOB, "srun true; srun sh -c 'exit 3'", *SMALL),
            "het": submit(ALICE, "true", *SMALL, ":", *SMALL),
            "cancelled while it waits": submit(BOB, "true", *SMALL, "--hold"),
        }
        cluster.cancel(ended["cancelled while it waits"], user=BOB)
        for job in running.values():
            cluster.wait(job, "RUNNING", timeout=120)
            # Of a run that is put back earlier than the accounting has it, a stub remains.
            wait_until(in_accounting(cluster, job))
        wait_until(lambda: running_tasks(cluster, started) == 2)
        wait_until(lambda: len(cluster.sacct(started, ["NodeList"], "--state=RUNNING")) >= 2)
        cluster.scontrol("suspend", str(running["suspended"]))
        for name, job in ended.items():
            if "waits" not in name:
                cluster.wait(job, timeout=120)
        # Not earlier: it would keep the nodes from all jobs that come later.
        waiting["wide"] = submit(BOB, "true", *SMALL, "--exclusive", "--nodes=4")
        for name, job in running.items():
            if name not in ("runs", "suspended"):
                (folder / str(job)).touch()
        cluster.scontrol("requeuehold", str(running["requeue hold"]))
        cluster.scontrol("requeuehold", "State=SpecialExit", str(running["special exit"]))
        cluster.scontrol("requeue", str(running["completing"]))
        for name in ("requeue hold", "special exit"):
            (folder / str(running[name])).unlink()
            wait_until(lambda job=running[name]: cluster.queue(job)[0].state != "COMPLETING")
        assert cluster.queue(running["completing"])[0].state == "COMPLETING"
        wait_until(lambda: reasons_of_squeue(cluster)[waiting["wide"]] == "Resources")
        over = waiting["reservation over"]
        wait_until(lambda: cluster.queue(over)[0].state == "RESV_DEL_HOLD", 150)
        wait_until(lambda: not _being_recorded(cluster))

        found = stores.scrape()
        assert cluster.queue(running["completing"])[0].state == "COMPLETING"
        assert_equal(found)
        text = found["text"]
        assert text.runs.keys() == runs_of_sacct(cluster)
        reasons = {job: reason for job, (_, reason, _) in text.pending.items()}
        assert reasons == reasons_of_squeue(cluster)
        counts = {job: count for job, (count, _, _) in text.pending.items()}
        tasks = {job: number_of_tasks(tasks) for tasks, job in arrays.items()}
        assert counts == dict.fromkeys(counts, 1) | tasks | {started: 4}
        assert waiting.keys() == {name for name, job in waiting.items() if job in text.pending}
        open_runs = {info.job_id: info.state for info in text.runs.values() if info.end is None}
        assert open_runs[running["runs"]] == "RUNNING"
        assert open_runs[running["suspended"]] == "SUSPENDED"
        in_array = [info for info in text.runs.values() if info.array_job_id == started]
        assert {info.array_task_id for info in in_array} == {1, 2}

        (folder / str(running["completing"])).unlink()
        for job in (*running.values(), started, *waiting.values(), *arrays.values()):
            cluster.cancel(job)
    for job in (*running.values(), started):
        wait_until(lambda job=job: _has_ended(cluster, job))
    wait_until(lambda: not _being_recorded(cluster))
    found = stores.scrape()
    assert_equal(found)
    assert found["text"].pending == {}
    assert found["text"].runs.keys() == runs_of_sacct(cluster)
    assert not [key for key, info in found["text"].runs.items() if info.end is None]
    states = {job: info.state for (job, _), info in found["text"].runs.items()}
    assert states[ended["out of memory"]] == "OUT_OF_MEMORY"
    assert states[ended["failed"]] == "FAILED"
    assert ended["cancelled while it waits"] not in states


# Issue 14, fault 18: without slurm.conf the cluster had the name of the server's host.
@pytest.mark.long
def test_all_sources_report_the_name_of_the_cluster(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = site.cluster
    # The on-site script and recorded replies have the name from the accounting.
    job = cluster.submit(ALICE, "true", *SMALL)
    cluster.wait(job, timeout=120)
    wait_until(in_accounting(cluster, job))
    names = {name: site.source(name, tmp_path / name).cluster_name() for name in NAMES}
    assert names == dict.fromkeys(NAMES, cluster.settings.name)

    # As a server does it: over REST, and by the commands of this machine.
    with Store.open(tmp_path / "store.db") as store:
        settings = Settings()
        settings.scheduler.source = "rest"
        settings.scheduler.rest.url = f"unix:{cluster.settings.rest_socket}"
        assert with_cluster_name(settings, store.database).cluster == cluster.settings.name
        settings = Settings()
        settings.scheduler.source = "text"
        for name, value in cluster.environment().items():
            monkeypatch.setenv(name, value)
        assert with_cluster_name(settings, store.database).cluster == cluster.settings.name


def submit_to_short_reservation(cluster: Cluster) -> int:
    """A job whose reservation ends, in a minute, before the job has begun: Slurm then holds it."""
    options = ("StartTime=now", "Duration=1", f"Users={BOB}", f"Nodes={cluster.nodes[-1]}")
    cluster.scontrol("create", "reservation", "Reservation=short", *options)
    return cluster.submit(BOB, "true", *SMALL, "--reservation=short", "--begin=now+1hour")


def running_tasks(cluster: Cluster, array: int) -> int:
    return sum(part.state == "RUNNING" for part in cluster.queue(array))


def number_of_tasks(tasks: str) -> int:
    """As people write it: 1-10%2, 2-20:3."""
    count = 0
    for part in tasks.partition("%")[0].split(","):
        ends, _, step = part.partition(":")
        first, _, last = ends.partition("-")
        count += len(range(int(first), int(last or first) + 1, int(step or 1)))
    return count


def _has_ended(cluster: Cluster, job: int) -> bool:
    return all(part.state in ("CANCELLED", "COMPLETED") for part in cluster.queue(job))


def _being_recorded(cluster: Cluster) -> list[dict[str, str]]:
    """Rows of jobs that have ended, and not yet in the accounting: a stub or an open step."""
    rows = cluster.sacct(None, ["JobIDRaw", "State", "Partition"], "--duplicates",
                         "--starttime=now-1hour")  # fmt: skip
    running = {
        line.strip()
        for line in cluster.run(
            ["squeue", "--noheader", "--states=RUNNING,SUSPENDED", "--format=%A"]
        ).stdout.splitlines()
    }
    return [
        row
        for row in rows
        if row["JobIDRaw"].partition(".")[0] not in running
        and (row["State"] == "RUNNING" or ("." not in row["JobIDRaw"] and not row["Partition"]))
    ]
