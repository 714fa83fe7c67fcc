"""The scraper forgets nothing: absences, requeues, jobs that end while nobody looks."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from jobsight.config.settings import Settings, StoreSettings
from jobsight.model import SECOND, JobInfo
from jobsight.scheduler.adapters.policy import CoordinatorInfo, Policy, QosInfo
from jobsight.scheduler.records import (
    AdaptError,
    JobDetails,
    JobRecord,
    Jobs,
    NodeInfo,
    Nodes,
    Partitions,
    Problem,
    SourceError,
    StepInfo,
)
from jobsight.scheduler.scraper import Scraper
from jobsight.scheduler.sources.base import Choice
from jobsight.scheduler.state import read_state
from jobsight.store.accounts.coordinators import coordinated_by
from jobsight.store.snapshot import read_snapshot
from jobsight.store.store import Store
from tests.store.sample import batch, part, sighting

NOW = 1_790_000_000 * SECOND
HOUR = 3600 * SECOND
WEEK = 7 * 24 * HOUR


def job(job_id: int = 1, start: int | None = NOW, **more: object) -> JobInfo:
    values: dict[str, object] = {"source": "sacct", "state": "RUNNING", "partition": "main"}
    values |= {"user": "anna", "nodes": ("n1",), "name": "train"} | more
    return JobInfo(cluster="c1", job_id=job_id, start=start, **values)  # type: ignore[arg-type]


class Slurm:
    """A cluster with a controller that forgets and an accounting that does not."""

    name = "test"
    whole = False

    def __init__(self) -> None:
        self.queued: list[JobInfo] = []
        self.records: list[JobRecord] = []
        self.booked: list[JobInfo] = []
        self.problems: list[Problem] = []
        self.windows: list[tuple[int, int]] = []
        self.asked: list[list[int]] = []
        self.known_nodes: list[NodeInfo] = []
        self.coordinators: list[tuple[str, str]] | None = []
        self.controller_away: Exception | None = None
        self.accounting_away: Exception | None = None

    def probe(self) -> str:
        return "yes"

    def queue(self) -> Jobs:
        if self.controller_away:
            raise self.controller_away
        return Jobs(records=[*self.records, *(JobRecord(info=info) for info in self.queued)])

    def accounting(self, since: int, until: int) -> Jobs:
        if self.accounting_away:
            raise self.accounting_away
        self.windows.append((since, until))
        alive = [
            info
            for info in self.booked
            if (info.end is None or info.end >= since) and (info.start or 0) < until
        ]
        return Jobs(records=[JobRecord(info=info) for info in alive], problems=self.problems)

    def accounting_of(self, job_ids: Sequence[int]) -> Jobs:
        if self.accounting_away:
            raise self.accounting_away
        self.asked.append(list(job_ids))
        found = [info for info in self.booked if info.job_id in job_ids]
        return Jobs(records=[JobRecord(info=info) for info in found])

    def nodes(self) -> Nodes:
        if self.controller_away:
            raise self.controller_away
        return Nodes(records=self.known_nodes)

    def cluster_name(self) -> str:
        return "c1"

    def policy(self) -> Policy:
        found = self.coordinators
        return Policy(
            qos=[QosInfo(cluster="c1", name="normal")],
            coordinators=None
            if found is None
            else [CoordinatorInfo(account=account, user=user) for account, user in found],
        )

    def partitions(self) -> Partitions:
        return Partitions(records=[])


class Site:
    """A store, a Slurm and a clock; the scraper can be started again."""

    def __init__(self, folder: Path) -> None:
        self.settings = Settings(
            cluster="c1", store=StoreSettings(location=str(folder / "store.db"))
        )
        self.store = Store.open(self.settings.store.location)
        self.slurm = Slurm()
        self.now = NOW
        self.restart()

    def restart(self) -> None:
        self.scraper = Scraper(
            self.store,
            self.settings,
            choose=lambda settings: Choice(self.slurm, "test: the only one"),
            clock=lambda: self.now,
        )

    def runs(self) -> list[tuple[int, int, str | None]]:
        found = [(run.info.job_id, run.start - NOW, run.info.state) for run in self.store.runs()]
        return sorted(found)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.store.close()


def test_a_job_that_ends_while_the_scraper_is_away(site: Site) -> None:
    site.slurm.queued = site.slurm.booked = [job()]
    assert site.scraper.once().healthy
    assert site.runs() == [(1, 0, "RUNNING")]
    # Three weeks later: longer than the history, and the controller has forgotten it.
    site.slurm.queued = []
    site.slurm.booked = [job(state="FAILED", end=NOW + HOUR, exit_code=3)]
    site.now += 3 * WEEK
    site.restart()
    state = site.scraper.once()
    assert state.healthy
    (run,) = site.store.runs()
    assert (run.info.state, run.info.end, run.info.exit_code) == ("FAILED", NOW + HOUR, 3)
    assert site.store.open_runs("c1") == []


def test_nodes_and_waiting_jobs_are_kept(site: Site) -> None:
    site.slurm.known_nodes = [NodeInfo(cluster="c1", name="n1", cpus=4)]
    site.slurm.queued = [job(2, None, state="PENDING"), job(3)]
    assert site.scraper.once().healthy
    assert [node.name for node in read_snapshot(site.store.database, "c1", "node", NodeInfo)] == [
        "n1"
    ]
    (waits,) = read_snapshot(site.store.database, "c1", "pending", JobRecord)
    assert waits.info.job_id == 2
    assert site.runs() == [(3, 0, "RUNNING")]
    site.slurm.queued = [job(2), job(3)]
    site.scraper.once()
    assert read_snapshot(site.store.database, "c1", "pending", JobRecord) == []
    # The controller is unreachable: what was known of the cluster stays.
    site.slurm.controller_away = SourceError("squeue failed")
    assert not site.scraper.once().healthy
    assert len(read_snapshot(site.store.database, "c1", "node", NodeInfo)) == 1


def test_jobs_that_depend_on_each_other_are_a_chain(site: Site) -> None:
    """The controller names a dependency only while a job waits."""
    waits = JobRecord(
        info=job(3, None, state="PENDING", user="u"), dependency="afterok:2(unfulfilled)"
    )
    site.slurm.queued, site.slurm.records = [job(2, user="u"), job(4, user="u")], [waits]
    assert site.scraper.once().healthy
    site.slurm.records = []
    site.slurm.queued = [job(3, NOW + HOUR, user="u"), job(4, user="u")]
    assert site.scraper.once().healthy
    chains = {run.info.job_id: run.chain_job_id for run in site.store.runs()}
    assert chains == {2: 3, 3: 3, 4: None}


def test_who_coordinated_which_account_when(site: Site) -> None:
    def intervals(user: str) -> list[tuple[str, int, int | None]]:
        found = coordinated_by(site.store.database, user)
        return [(one.account, one.since - NOW, one.until and one.until - NOW) for one in found]

    site.slurm.coordinators = [("physics", "anna")]
    site.scraper.once()
    # Nothing says who coordinated before the first scrape, which also reads runs of that time.
    assert intervals("anna") == [("physics", -NOW, None)]
    for hours, found in ((2, [("physics", "bob")]), (4, None), (6, [("physics", "anna")])):
        site.slurm.coordinators = found
        site.now = NOW + hours * HOUR
        site.scraper.once()
    assert intervals("anna") == [("physics", -NOW, 2 * HOUR), ("physics", 6 * HOUR, None)]
    # A source that does not report coordinators ends nobody's rights.
    assert intervals("bob") == [("physics", 2 * HOUR, 6 * HOUR)]


def test_catching_up_goes_in_bounded_windows(site: Site) -> None:
    site.scraper.once()
    site.slurm.windows.clear()
    site.now += WEEK
    site.slurm.booked = [
        job(number, NOW + number * HOUR, state="COMPLETED", end=NOW + (number + 1) * HOUR)
        for number in range(1, 160)
    ]
    site.restart()
    assert site.scraper.once().changed == 159
    longest = max(end - begin for begin, end in site.slurm.windows)
    assert longest <= 6 * HOUR + 60 * SECOND
    ends = [end for _, end in site.slurm.windows]
    begins = [begin for begin, _ in site.slurm.windows]
    assert begins[0] <= NOW - 900 * SECOND
    assert begins[1:] == ends[:-1]
    assert ends[-1] >= site.now
    # The next round requests the overlap only.
    site.slurm.windows.clear()
    site.now += 60 * SECOND
    site.scraper.once()
    assert len(site.slurm.windows) == 1


def test_progress_is_kept_when_the_accounting_goes_away_on_the_way(site: Site) -> None:
    site.scraper.once()
    site.now += WEEK
    real = site.slurm.accounting
    calls = 0

    def flaky(since: int, until: int) -> Jobs:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise SourceError("sacct failed with 1: slurmdbd is unreachable")
        return real(since, until)

    site.slurm.accounting = flaky  # type: ignore[method-assign]
    assert site.scraper.once().reason == "sacct failed with 1: slurmdbd is unreachable"
    reached = read_state(site.store.database, "c1").until
    assert reached is not None
    assert NOW < reached < site.now
    site.restart()
    site.slurm.windows.clear()
    assert site.scraper.once().healthy
    assert site.slurm.windows[0][0] == reached - 900 * SECOND


def test_a_second_identical_scrape_writes_nothing(site: Site) -> None:
    live = job(source="squeue", restart_count=0, uid=7)
    site.slurm.queued, site.slurm.booked = [live], [job(), job(2, state="FAILED", end=NOW + 1)]
    assert site.scraper.once().changed == 2
    state = site.scraper.once()
    assert (state.seen, state.changed) == (2, 0)


def test_a_requeued_job_is_two_runs(site: Site) -> None:
    site.slurm.queued = site.slurm.booked = [job(restart_count=0)]
    site.scraper.once()
    later = NOW + 300 * SECOND
    site.slurm.queued = [job(start=later, restart_count=1, source="squeue")]
    site.slurm.booked = [
        job(state="REQUEUED", end=NOW + 100 * SECOND),
        job(start=later),
    ]
    site.now += 400 * SECOND
    site.scraper.once()
    assert site.runs() == [(1, 0, "REQUEUED"), (1, 300 * SECOND, "RUNNING")]


def test_slurm_away_leaves_what_is_stored(site: Site) -> None:
    site.slurm.queued = site.slurm.booked = [job()]
    site.scraper.once()
    before = site.runs()
    site.slurm.controller_away = SourceError("squeue gave no answer within 60 s")
    site.slurm.accounting_away = AdaptError("sacct gave no JSON")
    state = site.scraper.once()
    assert not state.healthy
    assert state.reason == "squeue gave no answer within 60 s; sacct gave no JSON"
    assert site.runs() == before
    kept = read_state(site.store.database, "c1")
    assert (kept.reason, kept.succeeded) == (state.reason, NOW)
    site.slurm.controller_away = site.slurm.accounting_away = None
    assert site.scraper.once().healthy


def test_the_queue_alone_serves_while_the_accounting_is_away(site: Site) -> None:
    site.slurm.accounting_away = SourceError("slurmdbd is unreachable")
    site.slurm.queued = [job()]
    assert site.scraper.once().reason == "slurmdbd is unreachable"
    assert site.runs() == [(1, 0, "RUNNING")]


def test_jobs_that_never_ran_are_no_runs(site: Site) -> None:
    site.slurm.queued = [job(1, None, state="PENDING", nodes=None)]
    site.slurm.booked = [job(2, None, state="CANCELLED", end=NOW, nodes=None)]
    site.scraper.once()
    assert site.runs() == []
    # One that a node has seen (its prolog began) ends without a start.
    site.store.write(batch(part(sighting(job_id=2, birth=NOW - SECOND))))
    site.scraper.once()
    (run,) = site.store.runs()
    assert (run.info.state, run.info.end, run.info.start) == ("CANCELLED", NOW, None)


def test_a_stub_of_the_accounting_makes_nobody_root(site: Site) -> None:
    site.slurm.booked = [job(user="root", partition=None, state="COMPLETED", end=NOW)]
    site.scraper.once()
    assert site.runs() == []
    site.slurm.booked = [job(state="COMPLETED", end=NOW)]
    site.scraper.once()
    assert [run.info.user for run in site.store.runs()] == ["anna"]


def test_the_name_that_the_user_wrote_stays(site: Site) -> None:
    site.slurm.queued = [job(name='a "name" é', source="squeue")]
    site.slurm.booked = [job(name="a `name` ?")]
    site.scraper.once()
    site.slurm.queued = []
    site.slurm.booked = [job(name="a `name` ?", state="COMPLETED", end=NOW + SECOND)]
    site.scraper.once()
    (run,) = site.store.runs()
    assert (run.info.name, run.info.state) == ('a "name" é', "COMPLETED")


@pytest.mark.parametrize(
    ("booked", "live", "expected"),
    [
        ((0, None), (None, 15), (0, None)),
        ((None, 9), (None, 9), (None, 9)),
        ((None, None), (42, None), (42, None)),
    ],
)
def test_exit_code_and_signal_come_from_one_side(
    site: Site,
    booked: tuple[int | None, int | None],
    live: tuple[int | None, int | None],
    expected: tuple[int | None, int | None],
) -> None:
    end = {"end": NOW + SECOND, "state": "FAILED"}
    site.slurm.booked = [job(exit_code=booked[0], exit_signal=booked[1], **end)]
    site.slurm.queued = [job(exit_code=live[0], exit_signal=live[1], **end)]
    site.scraper.once()
    (run,) = site.store.runs()
    assert (run.info.exit_code, run.info.exit_signal) == expected


def test_an_open_run_that_nobody_knows_is_asked_for_ever_less(site: Site) -> None:
    site.store.write(batch(part(sighting(job_id=5, birth=NOW))))
    site.store.record_jobs([job(6, source="jobsight run")])
    for _ in range(120):
        site.scraper.once()
        site.now += 60 * SECOND
    assert all(asked == [5] for asked in site.slurm.asked)
    assert 5 <= len(site.slurm.asked) <= 9


def test_a_record_that_cannot_be_stored_does_not_hold_up_the_others(site: Site) -> None:
    site.slurm.booked = [job(1), job(2, nodes=("bad\x01name",)), job(3)]
    state = site.scraper.once()
    assert (state.problems, state.healthy) == (1, True)
    assert [run[0] for run in site.runs()] == [1, 3]


def test_details_of_a_job_are_bounded(site: Site) -> None:
    """S-07: users choose the submit line, the directory and the comment, and how many steps."""
    steps = [StepInfo(step=str(number)) for number in range(5000)]
    record = JobRecord(
        info=job(1),
        comment="c" * 20_000,
        submit_line="sbatch " + "x" * 2**20,
        working_directory="/home/anna",
        steps=steps,
        raw={"unknown": "y" * 2**21},
    )
    waiting = JobRecord(info=job(2, None, state="PENDING"), comment="c" * 20_000)
    site.slurm.records = [record, waiting]
    state = site.scraper.once()
    assert (state.problems, state.healthy) == (5, True)
    (run,) = site.store.runs()
    details = site.store.details(run.id, JobDetails)
    assert details is not None
    assert (details.comment, details.submit_line, details.raw) == (None, None, {})
    assert (details.working_directory, len(details.steps)) == ("/home/anna", 4096)
    (waits,) = read_snapshot(site.store.database, "c1", "pending", JobRecord)
    assert waits.comment is None
