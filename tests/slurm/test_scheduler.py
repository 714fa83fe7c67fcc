"""JSON, text and slurmrestd of a real Slurm tell the same, and the store then knows it."""

import contextlib
import functools
import os
import pwd
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from jobsight.config.settings import Settings, StoreSettings
from jobsight.model import SECOND, JobInfo, RunReference
from jobsight.scheduler.adapters.squeue import jobs_of_node
from jobsight.scheduler.records import JobRecord
from jobsight.scheduler.scraper import Scraper
from jobsight.scheduler.sources.base import Choice, Source
from jobsight.scheduler.sources.commands import SshRunner, run_command, stream_command
from jobsight.scheduler.sources.json import JsonSource
from jobsight.scheduler.sources.onsite import OnsiteSource, from_command
from jobsight.scheduler.sources.rest import RestSource
from jobsight.scheduler.sources.text import TextSource
from jobsight.store.store import Store
from tests.bed import Cluster
from tests.scheduler import sshd
from tests.slurm.jobs import Gate
from tests.waiting import wait_until

ALICE, BOB = "jobsight-alice", "jobsight-bob"
HOSTILE = b'x Account=victim UserId=root(0) %(user)s "\n|\x01 \xff'
EAT = "python3 -c 'x = bytearray(400 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1'"

#: What 22.05's JSON of the accounting, and with it slurmrestd, does not tell.
NOT_IN_JSON = {"uid", "exit_code", "source"}


@pytest.fixture(scope="module")
def sources(cluster: Cluster) -> Iterator[dict[str, Source]]:
    run = functools.partial(stream_command, environment=cluster.environment())
    name = cluster.settings.name
    with tempfile.TemporaryDirectory(prefix="js-rest-") as folder:
        entry = pwd.getpwnam(ALICE)
        os.chown(folder, entry.pw_uid, entry.pw_gid)
        path = f"{folder}/socket"
        # It refuses to be root, and serves its own user and root.
        daemon = subprocess.Popen(
            ["slurmrestd", "-a", "rest_auth/local", f"unix:{path}"],
            env=cluster.environment(),
            user=entry.pw_uid,
            group=entry.pw_gid,
            extra_groups=[],
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(Path(path).exists)
            with contextlib.ExitStack() as stack:
                yield {
                    "text": TextSource(name, run=run),
                    "json": JsonSource(name, run=run),
                    "rest": RestSource(name, f"unix:{path}", timeout=60),
                    "onsite": OnsiteSource(name, from_command(run, 30, 1)),
                    **_over_ssh(stack, cluster, Path(folder)),
                }
        finally:
            daemon.kill()
            daemon.wait()


def _over_ssh(stack: contextlib.ExitStack, cluster: Cluster, folder: Path) -> dict[str, Source]:
    environment = cluster.environment()
    try:
        settings = stack.enter_context(
            sshd.running(folder, {"SLURM_CONF": environment["SLURM_CONF"]})
        )
    except sshd.Unavailable:
        return {}
    return {"ssh": TextSource(cluster.settings.name, run=SshRunner(settings))}


@pytest.fixture(scope="module")
def ended(cluster: Cluster) -> dict[str, int]:
    """Forty jobs of all kinds, all at their end."""
    small = ("--mem=50", "--output=/dev/null")
    jobs = {
        "requeued": cluster.submit(ALICE, "sleep 300", *small, "--requeue"),
        "cancelled": cluster.submit(BOB, "sleep 300", *small),
        "waiting": cluster.submit(BOB, "true", *small, "--hold"),
    }
    cluster.wait(jobs["requeued"], "RUNNING")
    cluster.wait(jobs["cancelled"], "RUNNING")
    # The first run must have another second than the second.
    time.sleep(1.1)
    cluster.requeue(jobs["requeued"])
    script = "exit $((SLURM_ARRAY_TASK_ID % 2))"
    jobs |= {
        "array": cluster.submit(ALICE, script, *small, "--array=1-28%8"),
        "failed": cluster.submit(ALICE, "exit 42", *small),
        "killed": cluster.submit(BOB, "kill -9 $$", *small),
        "steps": cluster.submit(BOB, "srun true; srun sh -c 'exit 3'", *small),
        "memory": cluster.submit(ALICE, EAT, *small),
        "gpu": cluster.submit(BOB, "true", *small, "--gres=gpu:1"),
        "wide": cluster.submit(ALICE, "srun true", *small, "--nodes=2"),
        "hostile": cluster.submit(BOB, "true", *small, "--job-name", HOSTILE),
        "het": cluster.submit(ALICE, "true", *small, ":", *small),
    }
    after = f"--dependency=afterany:{jobs['array']}:{jobs['failed']}"
    jobs["after"] = cluster.submit(ALICE, "true", *small, after)
    cluster.cancel(jobs["cancelled"], user=BOB)
    cluster.cancel(jobs["waiting"], user=BOB)
    cluster.wait(jobs["requeued"], "RUNNING")
    cluster.cancel(jobs["requeued"])
    for name, job_id in jobs.items():
        if name != "waiting":
            cluster.wait(job_id, timeout=120)
    # The outermost step of a job ends after it, and is reported later still.
    wait_until(lambda: not unfinished(cluster))
    return jobs


def unfinished(cluster: Cluster) -> list[dict[str, str]]:
    rows = cluster.sacct(None, ["JobID", "State"], "--starttime=now-1hour")
    return [row for row in rows if row["State"] in ("RUNNING", "PENDING")]


def accounting(source: Source, since: int) -> dict[tuple[int, int | None], JobRecord]:
    found = source.accounting(since, time.time_ns() + 60 * SECOND)
    records = {(record.info.job_id, record.info.start): record for record in found}
    assert {problem.field for problem in found.problems} <= {"exit_code"}
    return records


def differences(one: JobInfo, other: JobInfo) -> set[str]:
    return {
        field for field in one.__struct_fields__ if getattr(one, field) != getattr(other, field)
    }


@pytest.mark.timeout(600)
@pytest.mark.long
def test_three_ways_tell_the_same(
    cluster: Cluster, sources: dict[str, Source], ended: dict[str, int]
) -> None:
    since = time.time_ns() - 3600 * SECOND
    text = accounting(sources["text"], since)
    assert len(text) >= 40
    # Over SSH, and by the file that is copied to a cluster, the same text comes.
    for name in ("ssh", "onsite"):
        if name in sources:
            assert accounting(sources[name], since) == text
            assert sources[name].nodes().records
    for name in ("json", "rest"):
        found = accounting(sources[name], since)
        assert set(found) == set(text)
        for key, record in found.items():
            other = text[key]
            missing = differences(record.info, other.info)
            assert missing <= NOT_IN_JSON, (name, key, missing)
            # Nothing is said that is wrong: what differs is not known.
            assert record.info.exit_code in (None, other.info.exit_code)
            steps = [(s.step, s.state, s.nodes, s.memory_peak) for s in record.steps]
            assert steps == [(s.step, s.state, s.nodes, s.memory_peak) for s in other.steps]
            if other.cpu_time is not None:
                assert abs((record.cpu_time or 0) - other.cpu_time) <= SECOND // 100
            assert record.info.tres == other.info.tres
    # The controller forgets a job after five minutes, and does so between any two questions.
    first = min(ended.values())
    queues = {
        name: {
            (record.info.job_id, record.info.start): record.info
            for record in source.queue().records
            if record.ran and record.info.job_id >= first
        }
        for name, source in sources.items()
    }
    for name in ("json", "rest"):
        assert set(queues[name]) == set(queues["text"])
        for key, info in queues[name].items():
            assert differences(info, queues["text"][key]) <= {"source"}, (name, key)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["text", "json", "rest"])
def test_the_store_knows_every_run(
    cluster: Cluster,
    sources: dict[str, Source],
    ended: dict[str, int],
    name: str,
    tmp_path: Path,
) -> None:
    location = str(tmp_path / "store.db")
    settings = Settings(cluster=cluster.settings.name, store=StoreSettings(location=location))
    with Store.open(location) as store:
        choose = lambda settings: Choice(sources[name], name)  # noqa: E731
        state = Scraper(store, settings, choose=choose).once()
        assert (state.reason, state.healthy) == ("", True)
        runs: dict[int, list[JobInfo]] = {}
        for run in store.runs(limit=1000):
            runs.setdefault(run.info.job_id, []).insert(0, run.info)
        wide = store.find(RunReference(ended["wide"]))
        chain = store.runs(limit=1000, chain_job_id=ended["after"])
        assert Scraper(store, settings, choose=choose).once().changed == 0

    def only(kind: str) -> JobInfo:
        (info,) = runs[ended[kind]]
        return info

    first, second = runs[ended["requeued"]]
    assert (first.state, second.state) == ("REQUEUED", "CANCELLED")
    assert first.start is not None
    assert first.end is not None
    assert second.start is not None
    assert first.start < first.end <= second.start
    assert second.restart_count == 1
    assert (only("failed").state, only("failed").exit_code) == ("FAILED", 42)
    assert (only("cancelled").state, only("cancelled").user) == ("CANCELLED", BOB)
    assert only("memory").state == "OUT_OF_MEMORY"
    assert (only("killed").exit_signal, only("killed").exit_code) == (9, None)
    assert wide.node_count == len(wide.info.nodes or ()) == 2
    assert ended["waiting"] not in runs
    hostile = only("hostile")
    assert (hostile.user, hostile.account) == (BOB, "beta")
    assert hostile.name == HOSTILE.decode("utf-8", "backslashreplace")
    tasks = [info for found in runs.values() for info in found
             if info.array_job_id == ended["array"]]  # fmt: skip
    assert sorted((info.array_task_id, info.exit_code) for info in tasks) == [
        (task, task % 2) for task in range(1, 29)
    ]
    # The command that submitted the last one names what it waited for; JSON and REST of this
    # release do not have that command.
    members = {run.info.array_job_id or run.info.job_id for run in chain}
    if name == "text":
        assert members == {ended["array"], ended["failed"], ended["after"]}
        assert len(chain) == 28 + 2
    else:
        assert not members
    parts = [info for found in runs.values() for info in found if info.het_job_id == ended["het"]]
    assert sorted(info.het_offset or 0 for info in parts) == [0, 1]
    for kind in ("failed", "cancelled", "wide", "hostile", "gpu"):
        fields = ["Start", "End", "Submit", "Account", "User", "UID", "AllocCPUS"]
        (row,) = cluster.sacct(ended[kind], fields, "--allocations")
        info = only(kind)
        booked = [info.start, info.end, info.submit]
        assert [time and time // SECOND for time in booked] == [
            int(row[field]) for field in fields[:3]
        ]
        assert (info.account, info.user, str(info.uid), str(info.cpus)) == tuple(
            row[field] for field in fields[3:]
        )


def test_the_jobs_of_a_node_in_one_question(cluster: Cluster) -> None:
    node = cluster.nodes[1]
    options = (f"--nodelist={node}", "--mem=50", "--output=/dev/null")
    job = cluster.submit(BOB, "sleep 60", *options, "--job-name", HOSTILE)
    cluster.wait(job, "RUNNING")
    run = functools.partial(run_command, environment=cluster.environment())
    answer = jobs_of_node(node, cluster=cluster.settings.name, run=run)
    assert answer.known
    (info,) = [info for info in answer.jobs if info.job_id == job]
    assert (info.user, info.uid, info.account) == (BOB, pwd.getpwnam(BOB).pw_uid, "beta")
    assert (info.nodes, info.state, info.restart_count) == ((node,), "RUNNING", 0)
    assert (info.memory, info.cpus, info.end) == (50 << 20, 1, None)
    assert info.name == HOSTILE.decode("utf-8", "backslashreplace")
    cluster.cancel(job)
    cluster.wait(job, "CANCELLED")
    other = jobs_of_node("no-such-node", cluster="c", run=run)
    assert "Invalid node name" in other.reason


def test_reservations_shares_and_associations(cluster: Cluster, sources: dict[str, Source]) -> None:
    def scontrol(*words: str) -> None:
        subprocess.run(["scontrol", *words], env=cluster.environment(), check=True, timeout=60)

    subprocess.run(
        ["sacctmgr", "--immediate", "add", "coordinator", "account=beta", f"names={BOB}"],
        env=cluster.environment(), check=True, timeout=60,
    )  # fmt: skip
    begin = int(time.time()) + 3600
    scontrol("create", "reservation", "ReservationName=course", f"StartTime=uts{begin}",
             "Duration=60", f"Users={ALICE}", f"Nodes={cluster.nodes[0]}")  # fmt: skip
    try:
        for name in ("text", "json", "rest", "ssh"):
            if name not in sources:
                continue
            policy = sources[name].policy()
            (course,) = policy.reservations
            assert (course.name, course.nodes, course.users) == (
                "course", (cluster.nodes[0],), (ALICE,),
            )  # fmt: skip
            assert (course.start, course.end) == (begin * SECOND, (begin + 3600) * SECOND)
            assert "normal" in {qos.name for qos in policy.qos}
            known = {(each.account, each.user): each for each in policy.associations}
            assert known[("beta", BOB)].shares == 1
            if name != "rest":
                assert known[("beta", BOB)].fair_share is not None
            assert policy.coordinators is not None
            assert [(found.account, found.user) for found in policy.coordinators] == [("beta", BOB)]
            assert policy.problems == []
    finally:
        scontrol("delete", "ReservationName=course")


@pytest.mark.timeout(600)
@pytest.mark.long
def test_a_controller_that_is_away(cluster: Cluster, tmp_path: Path) -> None:
    run = functools.partial(stream_command, environment=cluster.environment())
    location = str(tmp_path / "store.db")
    settings = Settings(cluster=cluster.settings.name, store=StoreSettings(location=location))
    # One that hangs is left after some seconds; one that answers may take its time.
    patience = {"seconds": 60.0}

    def patient(command: Sequence[str], timeout: float) -> Iterator[bytes]:
        return run(command, patience["seconds"])

    source = TextSource(cluster.settings.name, run=patient)
    with Gate(cluster.settings.path()) as gate, Store.open(location) as store:
        job = cluster.submit(ALICE, gate.line, "--mem=50", "--output=/dev/null")
        cluster.wait(job, "RUNNING")
        scraper = Scraper(store, settings, choose=lambda settings: Choice(source, "text"))
        assert scraper.once().healthy
        assert job in {run.job_id for run in store.open_runs(cluster.settings.name)}
        count = store.count_runs()
        cluster.stop_controller()
        patience["seconds"] = 3.0
        try:
            state = scraper.once()
            assert "squeue" in state.reason
            assert store.count_runs() >= count
        finally:
            cluster.start_controller()
        patience["seconds"] = 60.0
        gate.open()
        cluster.wait(job)
        assert scraper.once().healthy
        assert job not in {run.job_id for run in store.open_runs(cluster.settings.name)}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_job_at_its_time_limit(cluster: Cluster, sources: dict[str, Source]) -> None:
    job = cluster.submit(ALICE, "sleep 300", "--mem=50", "--output=/dev/null", "--time=1")
    cluster.wait(job, "TIMEOUT", timeout=200)
    for source in sources.values():
        # The first query of a round, with which the source onsite fetches all replies.
        list(source.queue())
        (record,) = source.accounting_of([job]).records
        assert (record.info.state, record.info.time_limit) == ("TIMEOUT", 60 * SECOND)
        assert record.info.start is not None
        assert record.info.end is not None
        assert record.info.end - record.info.start >= 60 * SECOND
