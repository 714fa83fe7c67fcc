"""The agent's socket on the node: questions, followers, and clients that mean no good."""

import json
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from jobsight.agent.collector import Collector
from jobsight.agent.control import SOCKET, Control, Reply, Request, Subscription, send_request
from jobsight.agent.jobs.cgroup_watcher import CgroupWatcher
from jobsight.errors import JobsightError
from jobsight.model import JobInfo
from tests.agent.slurm_trees import (
    SlurmNode,
    available,
    built,
    following,
)
from tests.waiting import wait_until

needs_cgroups = pytest.mark.skipif(
    not available(), reason="needs root and the hierarchies of cgroup v1"
)


def connect(directory: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(60)
    try:
        connection.connect(str(directory / SOCKET))
    except OSError:
        connection.close()
        raise
    return connection


@pytest.mark.root
@needs_cgroups
def test_status_and_what_a_prolog_says(node: SlurmNode, tmp_path: Path) -> None:
    with following(node.finder(), run_directory=tmp_path, listen=True) as running:
        mode = stat.S_IMODE((tmp_path / SOCKET).stat().st_mode)
        assert mode == 0o600
        reply = send_request(tmp_path, Request("status"), timeout=60)
        assert reply is not None
        assert reply.status is not None
        assert (reply.status["jobs"], reply.status["events"]) == (0, False)
        # The prolog comes before the job.
        info = JobInfo(cluster="test", job_id=7, source="prolog", account="p1", name="a job")
        told = send_request(tmp_path, Request("job", info=info, gpus=["0", "1"]), timeout=60)
        assert told == Reply(True)
        job = node.job(7)
        job.step("sleep", "60")
        wait_until(lambda: running.agent.jobs)
        view = running.agent.jobs[0].view
        assert (view.info.account, view.gpus) == ("p1", ("0", "1"))
        # And one that comes late is heard, too.
        send_request(tmp_path, Request("job", info=info, gpus=["2"]), timeout=60)
        wait_until(lambda: view.gpus == ("2",))
        reply = send_request(tmp_path, Request("status"), timeout=60)
        assert reply is not None
        assert reply.status is not None
        assert (reply.status["jobs"], reply.status["faults"]) == (1, {})
    assert not (tmp_path / SOCKET).exists()
    assert send_request(tmp_path, Request("status"), timeout=60) is None


# Two slurmd on one machine: a follower got the parts of both nodes, and kept the last of them.
@pytest.mark.root
@needs_cgroups
def test_a_follower_gets_the_parts_of_its_node(node: SlurmNode, tmp_path: Path) -> None:
    other = SlurmNode()
    roots = [rf"slurm_(?P<node>{each.name})" for each in (node, other)]
    try:
        with following(
            CgroupWatcher(v1_roots=roots), run_directory=tmp_path, listen=True
        ) as running:
            jobs = [each.job(11) for each in (node, other)]
            for job in jobs:
                job.step("sleep", "60")
            wait_until(lambda: len(running.agent.jobs) == 2)
            followers = {each.name: Subscription(tmp_path, 11, each.name) for each in (node, other)}
            for job in jobs:
                job.end()
            for name, follower in followers.items():
                nodes = []
                for batch in follower.batches():
                    nodes += [part.sighting.node for part in batch.parts]
                    if any(part.final for part in batch.parts):
                        break
                assert set(nodes) == {name}
                follower.close()
    finally:
        other.close()


# Fault 13: nodes and CPUs were missing until Slurm had been queried.
@pytest.mark.root
@needs_cgroups
@pytest.mark.parametrize(
    ("per_node", "count", "cpus"), [("4(x2),8", "3", 16), ("4(x2)", "3", None), ("4;", "1", None)]
)
def test_the_deployed_prolog_sends_nodes_and_cpus(
    node: SlurmNode, tmp_path: Path, per_node: str, count: str, cpus: int | None
) -> None:
    hook = Path(__file__).parents[2] / "deploy" / "slurm" / "tell-agent"
    environment = {
        "JOBSIGHT_SOCKET": str(tmp_path / SOCKET), "SLURM_JOB_ID": "8", "SLURM_JOB_USER": "ada",
        "SLURM_CLUSTER_NAME": "test", "SLURM_NODELIST": "n[1-2],m7",
        "SLURM_JOB_NUM_NODES": count, "SLURM_JOB_CPUS_PER_NODE": per_node,
    }  # fmt: skip
    with following(node.finder(), run_directory=tmp_path, listen=True) as running:
        command = [sys.executable, "-IS", str(hook), "prolog"]
        subprocess.run(command, env=environment, check=True, timeout=60)
        node.job(8).step("sleep", "60")
        wait_until(lambda: running.agent.jobs)
        info = running.agent.jobs[0].view.info
        assert (info.user, info.nodes, info.cpus) == ("ada", ("n1", "n2", "m7"), cpus)


@pytest.mark.root
@needs_cgroups
def test_two_followers_get_the_same_as_the_spool(node: SlurmNode, tmp_path: Path) -> None:
    with following(node.finder(), run_directory=tmp_path, listen=True) as running:
        with pytest.raises(JobsightError, match="job 9 is not followed"):
            Subscription(tmp_path, 9)
        job = node.job(9)
        other = node.job(10)
        other.step("sleep", "60")
        job.step("sleep", "60")
        wait_until(lambda: len(running.agent.jobs) == 2)
        followers = [Subscription(tmp_path, 9), Subscription(tmp_path, 9)]
        job.step(built("processor"), "200000", step="1").wait()
        job.end()
        (final,) = wait_until(lambda: running.kept.finals(9))
        for follower in followers:
            for batch in follower.batches():
                (part,) = batch.parts
                assert part.sighting.job_id == 9
                if part.final:
                    break
            assert part.totals == final.totals
            assert part.executables == final.executables
            follower.close()


@pytest.mark.root
@needs_cgroups
@pytest.mark.parametrize(
    "sent",
    [
        b"\n",
        b"[]\n",
        b'{"do": "explode"}\n',
        b'{"do": "job"}\n',
        b'{"do": "follow"}\n',
        b'{"do": "follow", "job_id": -1}\n',
        b'{"do": "status", "job_id": "seven"}\n',
        b"\xff\xfe\n",
        b'{"do": "job", "info": {"cluster": 1}}\n',
        b"[" * 10_000 + b"\n",
    ],
)
def test_a_wrong_question_is_answered(node: SlurmNode, tmp_path: Path, sent: bytes) -> None:
    with following(node.finder(), run_directory=tmp_path, listen=True) as running:
        with connect(tmp_path) as connection:
            connection.sendall(sent)
            reply = json.loads(connection.makefile("rb").readline())
            assert reply["ok"] is False
            assert reply["error"]
            # The connection still serves.
            connection.sendall(b'{"do": "status"}\n')
            assert json.loads(connection.makefile("rb").readline())["ok"] is True
        assert running.error is None


@pytest.mark.root
@needs_cgroups
def test_a_question_without_end_is_hung_up_on(node: SlurmNode, tmp_path: Path) -> None:
    with following(node.finder(), run_directory=tmp_path, listen=True):
        with connect(tmp_path) as connection, pytest.raises(OSError, match="pipe"):
            connection.sendall(b"x" * 10_000_000)
        assert send_request(tmp_path, Request("status"), timeout=60) is not None


@pytest.mark.root
@needs_cgroups
def test_a_client_that_never_reads_delays_nobody(node: SlurmNode, tmp_path: Path) -> None:
    with following(node.finder(), run_directory=tmp_path, listen=True) as running:
        with connect(tmp_path) as slow:
            slow.setblocking(False)
            sent = 0
            try:
                while sent < 3000:
                    slow.send(b'{"do": "status"}\n')
                    sent += 1
            except BlockingIOError:
                pass
            assert send_request(tmp_path, Request("status"), timeout=60) is not None
            # What it is owed comes when it reads at last, without another question.
            slow.setblocking(True)
            slow.settimeout(60)
            stream = slow.makefile("rb")
            assert all(json.loads(stream.readline())["ok"] for _ in range(sent))
        assert running.error is None


def patiently(directory: Path) -> socket.socket:
    """Connect, again where too many wait to be let in."""

    def attempt() -> socket.socket | None:
        try:
            return connect(directory)
        except BlockingIOError:
            return None

    connection: socket.socket = wait_until(attempt)
    return connection


@pytest.mark.root
@needs_cgroups
def test_more_clients_than_are_served(node: SlurmNode, tmp_path: Path) -> None:
    with following(node.finder(), run_directory=tmp_path, listen=True):
        clients = [patiently(tmp_path) for _ in range(100)]
        for client in clients:
            client.close()
        wait_until(lambda: send_request(tmp_path, Request("status"), timeout=60))


def test_a_second_agent_is_refused_and_a_dead_ones_socket_is_not_in_the_way(
    tmp_path: Path,
) -> None:
    def control() -> tuple[Control, Collector]:
        collector = Collector(None, cluster="test", node="n1")
        try:
            return Control(tmp_path, collector, lambda request: Reply(True)), collector
        except JobsightError:
            collector.close()
            raise

    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left.bind(str(tmp_path / SOCKET))
    left.close()
    first, collector = control()
    with pytest.raises(JobsightError, match="is already running"):
        control()
    first.close()
    collector.close()
    second, collector = control()
    second.close()
    collector.close()


def test_without_a_descriptor_for_a_client_the_loop_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = Collector(None, cluster="test", node="n1")
    control = Control(tmp_path, collector, lambda request: Reply(True))

    class Refusing:
        def __init__(self, real: socket.socket) -> None:
            self.real = real

        def accept(self) -> object:
            raise OSError(24, "Too many open files")

        def fileno(self) -> int:
            return self.real.fileno()

    listener = control._listener
    try:
        monkeypatch.setattr(control, "_listener", Refusing(listener))
        control._accept()
        assert listener.fileno() not in collector._watched
        monkeypatch.setattr(control, "_listener", listener)
        control._listen_again()
        assert listener.fileno() in collector._watched
    finally:
        control.close()
        collector.close()


@pytest.mark.parametrize(
    "info",
    [
        {"job_id": 10**23},
        {"job_id": -1},
        {"job_id": 1, "memory": 2**63},
        {"job_id": 1, "tres": {"cpu": -(2**64)}},
    ],
)
def test_a_number_that_no_batch_can_carry_is_refused(tmp_path: Path, info: dict[str, Any]) -> None:
    """Threat S-28."""
    collector = Collector(None, cluster="c", node="n")
    handled: list[Request] = []

    def handle(request: Request) -> Reply:
        handled.append(request)
        return Reply(True)

    control = Control(tmp_path, collector, handle)
    thread = threading.Thread(target=collector.run)
    thread.start()
    try:
        with connect(tmp_path) as connection:
            request = {"do": "job", "info": {"cluster": "c", "source": "prolog"} | info}
            connection.sendall(json.dumps(request).encode() + b"\n")
            reply = json.loads(connection.makefile("rb").readline())
        assert not reply["ok"]
        assert "invalid request" in reply["error"]
        assert not handled
    finally:
        collector.stop()
        thread.join()
        control.close()
        collector.close()
