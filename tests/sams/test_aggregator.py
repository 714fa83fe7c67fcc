"""Files into the store: exactly once, the trees kept, one bad file touching nothing else."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from starlette.testclient import TestClient

from jobsight.cli.compat.aggregator import main
from jobsight.config.settings import Settings, short_host_name
from jobsight.model import SECOND, Batch, JobInfo, JobPart, RunReference
from jobsight.sams.aggregator import Aggregator, Summary
from jobsight.sams.inbox import Inbox
from jobsight.sams.reader import Fallback, Reader
from jobsight.scheduler.state import write_cluster_name
from jobsight.server.app import create_app
from jobsight.store.store import Store
from jobsight.store.write.validation import BatchError
from tests.examples import examples
from tests.sams.documents import EXECS, INFO, START, Site, booked, document, encode
from tests.sams.test_record import DOCUMENTS

GMX, BASH = "/sw/GROMACS/2023.1/bin/gmx", "/usr/bin/bash"


def aggregate(
    site: Site, store: Store, fallback: Fallback | None = None, max_records: int = 1000
) -> Summary:
    reader = Reader(
        Inbox(site.loader()),
        "test",
        fallback=None if fallback is None else lambda: fallback,
        max_records=max_records,
    )
    return Aggregator(store, "test").run(reader)


@pytest.fixture
def store(site: Site) -> Any:
    with Store.open(site.store) as store:
        yield store


def test_records_are_booked_and_their_subfolders_kept(site: Site, store: Store) -> None:
    site.put(document(1234, "n1"))
    site.put(document(1234, "n2", length=7200))
    site.put(document(99, "n1"), name="99.n1.json")
    assert aggregate(site, store) == Summary(stored=3, refused=0)
    assert site.names("archive") == ["1/1234.n1.json", "1/1234.n2.json", "99.n1.json"]
    assert site.names("in") == site.names("error") == []
    run = store.find(RunReference(job_id=1234, cluster="test"))
    assert not run.provisional
    assert (run.info.user, run.info.account, run.info.cpus) == ("u1", "p1", 4)
    assert (run.start, run.info.end) == (START * SECOND, (START + 7200) * SECOND)
    assert [node.node for node in store.nodes(run.id)] == ["n1", "n2"]
    assert run.cpu_time == 2 * round(103.2 * SECOND)
    assert booked(store)[1234, START]["n2", GMX] == (100.5, 2.5)


# Issue 14, fault 18: the name that Slurm reported to this server is that of the records, too.
def test_records_without_a_cluster_are_of_the_one_that_is_scraped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none"))
    monkeypatch.delenv("JOBSIGHT_CLUSTER", raising=False)
    site = Site(tmp_path)
    site.config.write_text(site.config.read_text().replace("  cluster: test\n", ""))
    for job_id, name in ((1, short_host_name()), (2, "lab")):
        if name == "lab":
            with Store.open(site.store) as store:
                write_cluster_name(store.database, Settings(), name)
        site.put(document(job_id, "n1"))
        assert main(["--config", str(site.config)]) == 0
        with Store.open(site.store) as store:
            assert store.find(RunReference(job_id=job_id)).info.cluster == name


def test_the_same_files_again_change_nothing(site: Site, store: Store) -> None:
    for _ in range(3):
        for job in (1, 2):
            site.put(document(job, "n1"))
        aggregate(site, store)
        # Together with others, too: they are then another batch.
        site.put(document(1, "n1"))
        site.put(document(3, "n1"))
        aggregate(site, store)
    assert [len(rows) for rows in booked(store).values()] == [2, 2, 2]
    for job in (1, 2, 3):
        assert store.find(RunReference(job_id=job)).cpu_time == round(103.2 * SECOND)
    assert len(site.names("archive")) == 3


def test_the_aggregator_is_no_agent(site: Site, store: Store) -> None:
    """Prometheus would scrape a node that does not exist."""
    site.put(document(1))
    aggregate(site, store)
    client = TestClient(create_app(store, "token"), base_url="http://127.0.0.1:8080")
    client.headers["Authorization"] = "Bearer token"
    assert client.get("/api/v1/jobs").json()["total"] == 1
    assert client.get("/api/v1/discovery").json() == []


def test_a_requeued_job_is_another_run_and_keeps_both_files(site: Site, store: Store) -> None:
    for start in (START, START + 9000):
        site.put(document(7, "n1", start=start))
        aggregate(site, store)
    assert set(booked(store)) == {(7, START), (7, START + 9000)}
    assert site.names("archive") == ["0/7.n1.20240101T123000Z.json", "0/7.n1.json"]


def test_broken_files_get_a_reason_and_touch_nothing_else(site: Site, store: Store) -> None:
    good = document(1)
    site.put(good)
    site.put(b'{"sams.sampler.Core":{"jobid":2,"no', "0/2.n1.json")
    site.put(b"", "0/3.n1.json")
    site.put(document(4, execs={}))
    site.put(document(5, info=None))
    site.put(document(6, info={}))
    site.put(encode(document(8)).replace(b"100.5", b"NaN"), "0/8.n1.json")
    assert aggregate(site, store) == Summary(stored=1, refused=6)
    assert site.names("archive") == ["0/1.n1.json"]
    refused = [f"0/{job}.n1.json" for job in (2, 3, 4, 5, 6, 8)]
    assert site.names("error") == sorted(refused + [f"{name}.reason" for name in refused])
    reason = (site.folder / "error/0/6.n1.json.reason").read_text()
    assert "FileSlurmInfoFallback" in reason
    assert reason.count("\n") == 1
    assert set(booked(store)) == {(1, START)}


def test_temporary_and_odd_files_are_never_taken(site: Site, store: Store) -> None:
    site.put(b'{"half', "0/.1.n1.json")
    site.put(b'{"half', "0/.1.n1.json.n1.new")
    site.put(b"x", "0/readme.txt")
    (site.folder / "secret").write_text("x")
    (site.folder / "in/0/9.n1.json").symlink_to(site.folder / "secret")
    os.mkfifo(site.folder / "in/0/8.n1.json")
    assert aggregate(site, store) == Summary()
    assert site.names("error") == site.names("archive") == []


def test_archive_and_error_below_the_incoming_folder_are_not_read(tmp_path: Path) -> None:
    site = Site(tmp_path)
    text = site.config.read_text().replace(f"{tmp_path}/archive", f"{tmp_path}/in/archive")
    site.config.write_text(text.replace(f"{tmp_path}/error", f"{tmp_path}/in/error"))
    site.put(document(1))
    site.put(b"{", "2.n1.json")
    with Store.open(site.store) as store:
        assert aggregate(site, store) == Summary(stored=1, refused=1)
        assert aggregate(site, store) == Summary()


def test_a_huge_file_is_not_read(site: Site, store: Store) -> None:
    file = site.put(b"{", "0/1.n1.json")
    os.truncate(file, 2**40)
    assert aggregate(site, store) == Summary(refused=1)
    assert "bytes" in (site.folder / "error/0/1.n1.json.reason").read_text()


def test_what_the_store_refuses_is_found_among_the_others(
    site: Site, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job in range(1, 21):
        site.put(document(job))
    record_finished = store.record_finished

    def picky(cluster: str, jobs: Any, parts: Sequence[JobPart], key: str, **options: Any) -> bool:
        if any(part.sighting.job_id in (5, 13) for part in parts):
            raise BatchError("not this one")
        return record_finished(cluster, jobs, parts, key, **options)

    monkeypatch.setattr(store, "record_finished", picky)
    assert aggregate(site, store) == Summary(stored=18, refused=2)
    assert site.names("error") == sorted(
        name for job in (5, 13) for name in (f"0/{job}.n1.json", f"0/{job}.n1.json.reason")
    )


def test_what_slurm_booked_is_not_overwritten(site: Site, store: Store) -> None:
    end = (START + 3611) * SECOND
    real = JobInfo(
        cluster="test", job_id=1, source="sacct", start=START * SECOND, end=end, user="alice"
    )
    store.write(
        Batch(
            cluster="test", node="s", spool="s", sequence=1, written=START * SECOND,
            monotonic=0, agent="x", jobs=[real],
        )
    )  # fmt: skip
    site.put(document(1))
    aggregate(site, store)
    run = store.find(RunReference(job_id=1))
    assert (run.info.end, run.info.user, run.info.source) == (end, "alice", "sacct")
    assert run.info.account == "p1"
    assert len(booked(store)) == 1


def test_the_last_node_ends_the_run_in_whatever_order_they_come(site: Site, store: Store) -> None:
    for node, length in (("n1", 100), ("n2", 900), ("n3", 300)):
        site.put(document(1, node, length=length))
        aggregate(site, store)
    assert store.find(RunReference(job_id=1)).info.end == (START + 900) * SECOND


def runs(*found: JobInfo) -> Fallback:
    asked: list[list[int]] = []

    def ask(ids: Any) -> Any:
        asked.append(list(ids))
        return [info for info in found if info.job_id in ids]

    fallback = Fallback(ask)
    fallback.asked = asked  # type: ignore[attr-defined]
    return fallback


def run_info(job_id: int, start: int, end: int) -> JobInfo:
    return JobInfo(
        cluster="test", job_id=job_id, source="sacct", user="bob", uid=7, account="p9", cpus=8,
        start=start * SECOND, end=end * SECOND, state="COMPLETED", partition="long", nodes=("n1",),
    )  # fmt: skip


@pytest.mark.parametrize("info", [None, {}])
def test_sacct_completes_what_a_record_lacks(tmp_path: Path, info: dict[str, Any] | None) -> None:
    site = Site(tmp_path, fallback=True)
    site.put(document(1001, info=info, start=START + 5))
    site.put(document(1002))
    site.put(document(1003, info=info))
    fallback = runs(
        run_info(1001, START - 90_000, START - 80_000), run_info(1001, START, START + 4000)
    )
    with Store.open(site.store) as store:
        assert aggregate(site, store, fallback) == Summary(stored=2, refused=1)
        run = store.find(RunReference(job_id=1001))
        assert (run.info.user, run.info.account, run.info.state) == ("bob", "p9", "COMPLETED")
        assert run.start == START * SECOND
        # One question for all that lack it, and the one that does not is not requested.
        assert fallback.asked == [[1001, 1003]]  # type: ignore[attr-defined]
        # The archive has the whole record, in its subdirectory; read again it changes nothing.
        kept = json.loads((tmp_path / "archive/1/1001.n1.json").read_text())
        assert kept["sams.sampler.SlurmInfo"]["username"] == "bob"
        before = booked(store)
        site.put(kept)
        assert aggregate(site, store).stored == 1
        assert booked(store) == before
    assert "sacct knows no run" in (tmp_path / "error/1/1003.n1.json.reason").read_text()


def test_what_sacct_cannot_mean_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path, fallback=True)
    site.put(document(1001, info=None))
    site.put(document(1002, info=None))
    wrong, right = run_info(1001, START, START + 60), run_info(1002, START, START + 60)
    wrong.submit = 12
    with Store.open(site.store) as store:
        assert aggregate(site, store, runs(wrong, right)) == Summary(stored=1, refused=1)
    reason = (tmp_path / "error/1/1001.n1.json.reason").read_text()
    assert "the submit of job 1001 is 12, which is not between 1990 and 2200" in reason


def test_a_quick_requeue_does_not_take_the_first_runs_record(tmp_path: Path) -> None:
    site = Site(tmp_path, fallback=True)
    site.put(document(1001, "n1", info=None, start=START + 1))
    site.put(document(1001, "n2", info=None, start=START + 11))
    fallback = runs(run_info(1001, START, START + 8), run_info(1001, START + 11, START + 4000))
    with Store.open(site.store) as store:
        aggregate(site, store, fallback)
        by_run = {key: {node for node, _ in rows} for key, rows in booked(store).items()}
    assert by_run == {(1001, START): {"n1"}, (1001, START + 11): {"n2"}}


#: What a collector of jobsight wrote whose prolog gave only the owner.
OWNER = {"account": "p1", "partition": "batch", "uid": "1001", "username": "u1"}


def scraped(store: Store, *infos: JobInfo) -> None:
    sequence = len(store.runs(limit=100)) + 1
    store.write(
        Batch(
            cluster="test", node="s", spool="s", sequence=sequence, written=START * SECOND,
            monotonic=0, agent="x", jobs=list(infos),
        )
    )  # fmt: skip


def slurm_run(start: int, end: int | None) -> JobInfo:
    return JobInfo(
        cluster="test", job_id=1, source="sacct", start=start * SECOND, cpus=8, name="true",
        end=None if end is None else end * SECOND, state="COMPLETED" if end else "RUNNING",
    )  # fmt: skip


# Fault 13: a record without a start was stored on a run that begins now.
def test_a_record_without_a_start_is_a_run_at_its_own_time(site: Site, store: Store) -> None:
    site.put(document(1, "n1", info=OWNER))
    site.put(document(1, "n2", info=OWNER, start=START + 2, length=7200))
    assert aggregate(site, store) == Summary(stored=2)
    (run,) = store.runs(limit=10)
    assert run.start == START * SECOND
    assert run.info.end == (START + 7202) * SECOND
    assert (run.info.user, run.info.account, run.node_count) == ("u1", "p1", 2)
    assert run.cpu_time == 2 * round(103.2 * SECOND)


# Fault 13: nor did it find the run that the scraper knew.
@pytest.mark.parametrize("scraped_first", [True, False])
@pytest.mark.parametrize("running", [True, False])
def test_a_record_without_a_start_belongs_to_the_run_of_its_time(
    site: Site, store: Store, scraped_first: bool, running: bool
) -> None:
    # A requeued job: its first run is over when the record's begins.
    infos = [slurm_run(START - 9000, START - 100), slurm_run(START - 3, START + 3605)]
    if running:
        infos[1].end, infos[1].state = None, "RUNNING"
    site.put(document(1, "n1", info=OWNER))
    if scraped_first:
        scraped(store, *infos)
        aggregate(site, store)
    else:
        aggregate(site, store)
        scraped(store, *infos)
    rows = booked(store)
    assert {key: len(rows[key]) for key in rows} == {(1, START - 9000): 0, (1, START - 3): 2}
    run = store.find(RunReference(job_id=1))
    assert (run.start, run.provisional) == ((START - 3) * SECOND, False)
    assert run.info.end == (START + (3600 if running else 3605)) * SECOND
    assert (run.info.user, run.info.account, run.info.cpus) == ("u1", "p1", 8)
    assert (run.info.name, run.info.source) == ("true", "sacct")
    assert run.cpu_time == round(103.2 * SECOND)


# Fault 13: one node's record has a start, the other's has none.
@pytest.mark.parametrize("order", [("n1", "n2"), ("n2", "n1")])
@pytest.mark.parametrize("together", [True, False])
def test_the_nodes_of_a_run_are_one_run_with_and_without_a_start(
    site: Site, store: Store, order: tuple[str, str], together: bool
) -> None:
    for node in order:
        begin = START if node == "n1" else START + 4
        site.put(document(1, node, info=INFO if node == "n1" else OWNER, start=begin))
        if not together:
            aggregate(site, store)
    aggregate(site, store)
    (run,) = store.runs(limit=10)
    assert (run.start, run.node_count) == (START * SECOND, 2)
    assert run.info.end == (START + 3604) * SECOND
    assert run.info.cpus == 4


# Fault 13: the loader left a section as it was that had some of the fields.
def test_sacct_completes_a_partly_filled_section(tmp_path: Path) -> None:
    site = Site(tmp_path, fallback=True)
    own = {"username": "u1", "uid": "1001", "jobname": "j", "starttime": "Unknown"}
    site.put(document(1001, info=own, start=START + 5))
    # Slurm has forgotten this one.
    site.put(document(1002, info=OWNER))
    fallback = runs(run_info(1001, START, START + 4000))
    with Store.open(site.store) as store:
        assert aggregate(site, store, fallback) == Summary(stored=2, refused=0)
        run = store.find(RunReference(job_id=1001))
        assert (run.start, run.info.cpus, run.info.account) == (START * SECOND, 8, "p9")
        section = json.loads((tmp_path / "archive/1/1001.n1.json").read_text())[
            "sams.sampler.SlurmInfo"
        ]
        assert (section["username"], section["account"], section["cpus"]) == ("u1", "p9", "8")
        assert (section["jobname"], section["starttimestamp"]) == ("j", float(START))
        assert section["starttime"] != "Unknown"
        forgotten = store.find(RunReference(job_id=1002))
        assert (forgotten.info.user, forgotten.start) == ("u1", START * SECOND)


_SACCT = """#!{python}
import sys
columns = "JobIDRaw JobID State Start End User UID Account Partition AllocCPUS NodeList JobName"
values = "{job} {job} COMPLETED {start} {end} bob 7 p9 long 8 n1 a|b".split()
if "--helpformat" in sys.argv:
    print(columns)
    sys.exit()
options = dict(word[2:].split("=", 1) for word in sys.argv if "=" in word)
row = dict(zip(columns.split(), values))
mark = options["delimiter"]
print("".join(row.get(name, "") + mark for name in options["format"].split(",")))
"""


def test_the_command_is_asked_for_fixed_columns(tmp_path: Path) -> None:
    sacct = tmp_path / "sacct"
    text = _SACCT.format(python=sys.executable, job=1001, start=START, end=START + 60)
    sacct.write_text(text)
    sacct.chmod(0o755)
    site = Site(tmp_path, fallback=True, sacct=str(sacct))
    site.put(document(1001, info=None))
    assert main(["--config", str(site.config)]) == 0
    with Store.open(site.store) as store:
        run = store.find(RunReference(job_id=1001))
    assert (run.info.user, run.info.uid, run.info.cpus, run.info.name) == ("bob", 7, 8, "a|b")


def test_files_wait_while_slurm_is_away(tmp_path: Path, capsys: Any) -> None:
    site = Site(tmp_path, fallback=True, sacct="/bin/false")
    site.put(document(1001, info=None))
    assert main(["--config", str(site.config)]) == 1
    assert "failed" in capsys.readouterr().err
    assert site.names("in") == ["1/1001.n1.json"]
    assert site.names("error") == []


def test_a_second_aggregator_is_refused(site: Site, capsys: Any) -> None:
    from jobsight.util.locks import LockFile

    lock = LockFile(Inbox(site.loader()).lock, "it")
    try:
        assert main(["--config", str(site.config)]) == 1
    finally:
        lock.close()
    assert "is already running" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x: {}", "no section sams.aggregator"),
        ("sams.aggregator: {loaders: []}", "names no loader"),
        ("sams.aggregator: {loaders: [sams.loader.Fil]}", "valid names"),
        ("sams.aggregator: {loaders: [sams.loader.File]}", "in_path: is missing"),
    ],
)
def test_settings_that_cannot_work_are_one_sentence(
    tmp_path: Path, capsys: Any, text: str, sentence: str
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    assert main(["--config", str(tmp_path / "c.yaml")]) == 2
    assert sentence in capsys.readouterr().err


_DYING = """
import os, sys
from tests.sams.documents import Site
from tests.sams.test_aggregator import aggregate
from jobsight.store.store import Store
from pathlib import Path
left = int(sys.argv[2])
def counted(function):
    def call(*arguments, **named):
        global left
        left -= 1
        if left == 0: os.kill(os.getpid(), 9)
        result = function(*arguments, **named)
        left -= 1
        if left == 0: os.kill(os.getpid(), 9)
        return result
    return call
for name in ("rename", "fsync", "unlink", "open"):
    setattr(os, name, counted(getattr(os, name)))
Store.record_finished = counted(Store.record_finished)
site = Site(Path(sys.argv[1]), store=sys.argv[3])
with Store.open(site.store) as store:
    aggregate(site, store, max_records=3)
print("done")
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_pass_killed_at_any_step_can_be_repeated(site: Site) -> None:
    """Killed before and after every single change of a file and every write, one step later each
    time, over and over on one site."""
    expected = _fill(site)
    with Store.open(site.store):
        pass
    command = [sys.executable, "-c", _DYING, str(site.folder)]
    for step in range(1, 400):
        done = subprocess.run(
            [*command, str(step), site.store], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert step > 10
    _complete(site, expected)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.long)])
def test_the_command_killed_at_random_can_be_repeated(site: Site, kills: int) -> None:
    expected = _fill(site, 400)
    numbers = random.Random(5)
    for _ in range(kills):
        process = start(site)
        time.sleep(numbers.uniform(0.1, 1.2))
        process.kill()
        process.communicate()
        if not site.names("in"):
            # Again the same files, which must change nothing.
            expected = _fill(site, 400)
    # Its reader sees that it is alone and goes; until then it may hold the lock.
    deadline = time.monotonic() + 60
    while main(["--config", str(site.config)]) and time.monotonic() < deadline:
        time.sleep(0.2)
    _complete(site, expected)


def start(site: Site) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "jobsight.cli.compat.aggregator", "--config", str(site.config)],
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_started_at_once_book_everything_once(site: Site) -> None:
    """One does the work, the other says why it does not; or it finds nothing left to do."""
    expected = _fill(site, 300)
    both = [start(site), start(site)]
    said = [process.communicate(timeout=60)[1] for process in both]
    codes = [process.returncode for process in both]
    assert 0 in codes
    for code, text in zip(codes, said, strict=True):
        assert (code, "is already running" in text) in ((0, False), (1, True)), text
    _complete(site, expected)


def test_two_folders_go_into_one_store_at_once(site: Site) -> None:
    """Two receivers of one site: records of the same jobs, from other nodes."""
    other = Site(site.folder / "other", store=site.store)
    for job in range(1, 301):
        site.put(document(job, "n1"))
        other.put(document(job, "n2"))
    with Store.open(site.store) as store:
        both = [start(site), start(other)]
        for process in both:
            said = process.communicate(timeout=60)[1]
            assert process.returncode == 0, said
        assert site.names("in") == other.names("in") == []
        assert set(booked(store)) == {(job, START) for job in range(1, 301)}
        assert all(run.cpu_time == 2 * round(103.2 * SECOND) for run in store.runs(limit=1000))


def _fill(site: Site, count: int = 12) -> set[tuple[int, int]]:
    for job in range(1, count + 1):
        site.put(document(job))
    site.put(document(1, start=START + 9000), name="1/1.n1.json")
    site.put(b"{broken", "0/broken.json")
    return {(job, START) for job in range(1, count + 1)} | {(1, START + 9000)}


def _complete(site: Site, expected: set[tuple[int, int]]) -> None:
    with Store.open(site.store) as store:
        aggregate(site, store)
        found = booked(store)
        assert set(found) == expected
        for rows in found.values():
            assert rows == {
                ("n1", path): (use["user"], use["system"]) for path, use in EXECS.items()
            }
        assert all(run.cpu_time == round(103.2 * SECOND) for run in store.runs(limit=1000))
    assert site.names("in") == []
    # The same broken file again is the same file there.
    assert site.names("error") == ["0/broken.json", "0/broken.json.reason"]
    assert len(site.names("archive")) == len(expected)


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(DOCUMENTS)
def test_any_document_is_booked_or_refused_and_its_neighbour_booked(
    site: Site, store: Store, made: Any
) -> None:
    site.put(json.dumps(made).encode(), "0/5000001.n1.json")
    site.put(document(5_000_000, info=INFO))
    summary = aggregate(site, store)
    assert summary.stored + summary.refused == 2
    assert summary.stored >= 1
    assert site.names("in") == []
    assert (5_000_000, START) in booked(store)
