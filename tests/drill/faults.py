"""The faults of the drill. Each is injected while agents write and deliver, and undone; then both
ends are compared. The text that a fault returns says what was seen."""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import pytest

from jobsight.server.authority import Authority
from jobsight.transport.delivery import HttpTarget
from jobsight.transport.running_server import load_token
from tests.drill.link import Link
from tests.drill.relay import Relay
from tests.drill.site import Agents, Cluster, Front, Site, TlsServer
from tests.server.processes import ServerProcess, answers
from tests.waiting import wait_until

#: What a fault needs: one server on SQLite, the same on a small disk, the same with TLS, or two
#: servers behind nginx on PostgreSQL.
Kind: TypeAlias = Literal["sqlite", "disk", "tls", "postgresql"]
#: Seconds that a part is unreachable.
AWAY: Final = 2.0


class Drill(NamedTuple):
    """What a fault can break."""

    site: Site
    agents: Agents
    relay: Relay
    front: Front | None
    cluster: Cluster | None

    @property
    def server(self) -> ServerProcess:
        return self.site.server

    def failures(self) -> str:
        """How many attempts failed, and the first reason."""
        if not self.agents.failed:
            return "no attempt failed"
        # The parts of a reason that differ from run to run say nothing.
        reason = next(iter(self.agents.reasons)).partition("\n")[0].partition(": <")[0]
        return f'{self.agents.failed} attempts failed ("{reason}") and were repeated'


class Fault(NamedTuple):
    """One row of the report."""

    name: str
    injected: str
    kind: Kind
    inject: Callable[[Drill], str]
    #: Batches may be lost, if the spool counts each of them.
    counted: bool
    #: It is part of `make test-long`.
    short: bool


FAULTS: dict[str, Fault] = {}


def fault(
    name: str, injected: str, kind: Kind = "sqlite", *, counted: bool = False, short: bool = False
) -> Callable[[Callable[[Drill], str]], Callable[[Drill], str]]:
    def register(inject: Callable[[Drill], str]) -> Callable[[Drill], str]:
        FAULTS[name] = Fault(name, injected, kind, inject, counted, short)
        return inject

    return register


def _more_accepted(drill: Drill) -> None:
    """Wait until batches are accepted again."""
    before = drill.agents.accepted
    wait_until(lambda: drill.agents.accepted > before + 3)


# --- the server -----------------------------------------------------------------------------------


@fault("server killed", "kill -9 of the server, started again after 2 s", short=True)
def server_killed(drill: Drill) -> str:
    drill.server.end()
    time.sleep(AWAY)
    drill.server.start()
    _more_accepted(drill)
    return drill.failures()


@fault("server killed often", "ten times kill -9 at random moments")
def server_killed_often(drill: Drill) -> str:
    chance = random.Random(3)
    for _ in range(10):
        time.sleep(chance.uniform(0.0, 0.4))
        drill.server.end()
        drill.server.start()
    _more_accepted(drill)
    return drill.failures()


@fault("server ended", "SIGTERM, started again after 2 s")
def server_ended(drill: Drill) -> str:
    drill.server.end(signal.SIGTERM)
    time.sleep(AWAY)
    drill.server.start()
    _more_accepted(drill)
    return drill.failures()


@fault("server stopped", "SIGSTOP for 4 s, longer than agents wait", short=True)
def server_stopped(drill: Drill) -> str:
    os.kill(drill.server.pid, signal.SIGSTOP)
    time.sleep(4)
    os.kill(drill.server.pid, signal.SIGCONT)
    _more_accepted(drill)
    return drill.failures()


@fault("second server on one store", "another server starts on the same SQLite store", short=True)
def second_server(drill: Drill) -> str:
    folder = drill.site.folder / "second"
    folder.mkdir(mode=0o700, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "jobsight.cli.main", "serve", "--port", "0", "--store",
         drill.site.location, "--token-file", str(folder / "token")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "already running" in done.stderr
    _more_accepted(drill)
    return "the second one is refused with one sentence; the first one continues"


@fault("store locked", "another process holds the write lock of SQLite for 3 s", short=True)
def store_locked(drill: Drill) -> str:
    connection = sqlite3.connect(drill.site.location, timeout=30, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    time.sleep(3)
    connection.execute("ROLLBACK")
    connection.close()
    _more_accepted(drill)
    return drill.failures()


@fault("file descriptors exhausted", "the server may open no more files for 3 s")
def no_descriptors(drill: Drill) -> str:
    pid = drill.server.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = len(os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, before[1]))
    time.sleep(3)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    _more_accepted(drill)
    return drill.failures()


@fault("memory limited", "the server may allocate no more address space for 3 s")
def no_memory(drill: Drill) -> str:
    pid = drill.server.pid
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (size + 2**20, before[1]))
    time.sleep(3)
    if drill.server.lives():
        resource.prlimit(pid, resource.RLIMIT_AS, before)
        seen = "the server lives"
    else:
        drill.server.start()
        seen = "the server ended and was started again"
    _more_accepted(drill)
    return f"{seen}; {drill.failures()}"


@fault("slow clients", "50 connections that send one byte in half a second", short=True)
def slow_clients(drill: Drill) -> str:
    slow = [socket.create_connection(("127.0.0.1", drill.server.port), 10) for _ in range(50)]
    for _ in range(6):
        for connection in slow:
            try:
                connection.send(b"P")
            except OSError:
                # Closed by the server, which is its right.
                continue
        time.sleep(0.5)
    _more_accepted(drill)
    for connection in slow:
        connection.close()
    return drill.failures()


@fault("garbage", "200 requests with random bytes in place of a batch", short=True)
def garbage(drill: Drill) -> str:
    target = HttpTarget(drill.server.url, drill.server.token_file, timeout=10)
    chance = random.Random(5)
    answers_ = [target.send(chance.randbytes(chance.randrange(2000))) for _ in range(200)]
    assert not any(answer.stored for answer in answers_)
    _more_accepted(drill)
    return f"{sum(answer.refused for answer in answers_)} of 200 are refused for good"


@fault("oversized batch", "a body of 20 MB")
def oversized(drill: Drill) -> str:
    answer = HttpTarget(drill.server.url, drill.server.token_file, timeout=30).send(
        os.urandom(20 * 2**20)
    )
    assert answer.refused
    assert "413" in answer.reason
    _more_accepted(drill)
    return "refused with 413, before it is in memory"


@fault("duplicates", "every pending batch is sent four times at once", short=True)
def duplicates(drill: Drill) -> str:
    drill.relay.mode = "refuse"
    time.sleep(AWAY)
    target = HttpTarget(drill.server.url, drill.server.token_file, timeout=30)
    with drill.agents.mutex:
        pending = [data for node in drill.agents.nodes for _, data in node.spool.pending()]
    with ThreadPoolExecutor(8) as pool:
        assert all(answer.stored for answer in pool.map(target.send, pending * 4))
    drill.relay.mode = "pass"
    _more_accepted(drill)
    return f"{len(pending)} batches were sent five times each and stored once"


@fault("reordered batches", "pending batches are sent in the reverse order", short=True)
def reordered(drill: Drill) -> str:
    drill.relay.mode = "refuse"
    time.sleep(AWAY)
    target = HttpTarget(drill.server.url, drill.server.token_file, timeout=30)
    with drill.agents.mutex:
        pending = [data for node in drill.agents.nodes for _, data in node.spool.pending()]
    assert all(target.send(data).stored for data in reversed(pending))
    drill.relay.mode = "pass"
    _more_accepted(drill)
    return f"{len(pending)} batches came in the reverse order"


@fault("backup under load", "`jobsight store backup` while batches are written, then a restore")
def backup(drill: Drill) -> str:
    file = drill.site.folder / f"backup{time.monotonic_ns()}"
    restored = file.with_suffix(".db")
    for command in (
        ("backup", str(file), "--store", drill.site.location),
        ("restore", str(file), "--store", str(restored)),
        ("check", "--store", str(restored)),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "jobsight.cli.main", "store", *command],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    _more_accepted(drill)
    return "the restored store is sound, and the server was not disturbed"


@fault("compaction under load", "`jobsight store compact` while batches are written")
def compaction(drill: Drill) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "jobsight.cli.main", "store", "compact", "--store",
         drill.site.location],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _more_accepted(drill)
    return drill.failures()


# --- tokens ---------------------------------------------------------------------------------------


@fault("token removed", "the token file of the agents holds another token for 2 s", short=True)
def wrong_token(drill: Drill) -> str:
    file = drill.agents.directory / "own-token"
    file.write_text("this-is-not-the-token-of-anybody\n")
    file.chmod(0o600)
    drill.agents.use(token_file=file)
    time.sleep(AWAY)
    file.write_text(load_token(drill.server.token_file) + "\n")
    _more_accepted(drill)
    return f"{drill.failures()}; the new token is read without a restart"


# --- the network ----------------------------------------------------------------------------------


def _network(mode: str, share: float = 1.0, seconds: float = 3.0) -> Callable[[Drill], str]:
    def inject(drill: Drill) -> str:
        drill.relay.share = share
        drill.relay.mode = mode
        time.sleep(seconds)
        drill.relay.mode = "pass"
        _more_accepted(drill)
        assert drill.relay.hit
        return f"{drill.relay.hit} connections were hit; {drill.failures()}"

    return inject


for _name, _mode, _share, _injected, _short in (
    ("partition", "refuse", 1.0, "all connections are reset for 3 s", True),
    ("black hole", "hole", 1.0, "requests are read and never answered for 3 s", True),
    ("delay", "delay", 1.0, "0.3 s in each direction for 3 s", False),
    ("loss", "refuse", 0.3, "three of ten connections are reset for 3 s", False),
    ("requests cut", "cut request", 0.5, "half of the requests end after two thirds", True),
    ("receipts cut", "cut reply", 0.5, "half of the replies lack their last bytes", True),
    ("receipts lost", "lose reply", 0.5, "half of the batches are stored and not answered", True),
    ("proxy without server", "bad gateway", 1.0, "a proxy answers 502 with a page for 3 s", False),
    ("another web server", "empty page", 1.0, "somebody answers 200 with a page for 3 s", True),
    ("half a receipt", "not json", 0.5, "half of the replies are JSON that ends early", False),
    ("rate limited", "too many", 0.5, "half of the requests get 429 and Retry-After", False),
    ("wrong host name", "wrong host", 1.0, "a proxy sends another host name for 3 s", True),
    ("slow line", "trickle", 1.0, "requests arrive in ten pieces with pauses for 3 s", False),
):
    fault(_name, _injected, short=_short)(_network(_mode, _share))


def _through_link(drill: Drill, harm: Callable[[Link], None]) -> str:
    """Let agents send through a link of two network namespaces while it is harmed."""
    link = Link(drill.server.port)
    try:
        drill.agents.use(url=link.url)
        _more_accepted(drill)
        harm(link)
        _more_accepted(drill)
        resent = link.resent()
        assert resent
        # What is on its way arrives before the link is taken away.
        drill.agents.use(url=drill.relay.url)
    finally:
        link.close()
    return f"{resent} segments were sent again by the kernel; {drill.failures()}"


@fault("link down", "the network device of the server is down for 5 s", short=True)
def link_down(drill: Drill) -> str:
    def harm(link: Link) -> None:
        link.set("down")
        time.sleep(5)
        link.set("up")

    return _through_link(drill, harm)


@fault("link flaps", "the network device of the server goes down for 0.4 s, ten times")
def link_flaps(drill: Drill) -> str:
    def harm(link: Link) -> None:
        for _ in range(10):
            link.set("down")
            time.sleep(0.4)
            link.set("up")
            time.sleep(0.6)

    return _through_link(drill, harm)


# --- agents and their spools ----------------------------------------------------------------------


@fault("agents restarted", "all agents end and start again, twice", short=True)
def agents_restarted(drill: Drill) -> str:
    for _ in range(2):
        for place in range(len(drill.agents.nodes)):
            drill.agents.restart(place)
    _more_accepted(drill)
    return "their spools and sequence numbers continue; the epoch is new"


_CHILD: Final = """
import sys, time
from pathlib import Path
from jobsight.simulation.nodes import Load, Node
load = Load(nodes=1, jobs=2, every=0.05, duration=0, restarts=0)
node = Node(int(sys.argv[2]), load, Path(sys.argv[1]))
node.start(time.time_ns(), ())
while True:
    node.tick(time.time_ns())
    print(node.spool.next_sequence - 1, flush=True)
    time.sleep(0.02)
"""


@fault("agent killed", "kill -9 of an agent between two writes, five times", short=True)
def agent_killed(drill: Drill) -> str:
    from jobsight.simulation.nodes import WrittenSpool
    from jobsight.transport.delivery import Delivery
    from jobsight.transport.spool import Spool

    directory = drill.agents.directory / "killed"
    directory.mkdir(mode=0o700)
    target = HttpTarget(drill.server.url, drill.server.token_file, timeout=30)
    total = 0
    for number in range(90_001, 90_006):
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(directory), str(number)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout is not None
        for _ in range(10):
            last = int(child.stdout.readline())
        child.kill()
        rest = child.communicate()[0].split()
        last = int(rest[-1]) if rest else last
        spool = Spool(directory / f"sim{number:05d}", sync=False)
        # It may have been killed after a write and before it said so.
        assert last <= spool.next_sequence - 1 <= last + 1
        assert Delivery(spool, target).deliver()
        drill.site.rows.append(
            WrittenSpool(node=f"sim{number:05d}", spool=spool.uuid, last=spool.next_sequence - 1)
        )
        total += spool.next_sequence - 1
        spool.close()
    return f"{total} batches were in the spools and are delivered by the next agent"


@fault(
    "spool full",
    "the server is unreachable until spools of 40 kB are full",
    counted=True,
    short=True,
)
def spool_full(drill: Drill) -> str:
    for node in drill.agents.nodes:
        node.spool.limit = 40_000
    drill.relay.mode = "refuse"
    wait_until(lambda: all(node.spool.dropped for node in drill.agents.nodes))
    drill.relay.mode = "pass"
    _more_accepted(drill)
    return "the oldest batches were dropped and counted"


@fault(
    "spool gone",
    "the directory of a node's spool is gone, until three batches could not be written",
    counted=True,
)
def spool_gone(drill: Drill) -> str:
    spool = drill.agents.nodes[0].spool
    with drill.agents.mutex:
        # Root may write anywhere: the directory is gone instead.
        away = spool.directory.with_name("away")
        spool.directory.rename(away)
    wait_until(lambda: spool.dropped > 2)
    with drill.agents.mutex:
        if spool.directory.exists():
            subprocess.run(["rm", "-r", str(spool.directory)], check=True)
        away.rename(spool.directory)
    _more_accepted(drill)
    return "batches that could not be written were counted; measuring continued"


def _damage(drill: Drill, change: Callable[[Path], None], count: int = 3) -> str:
    """Change pending batch files while the server is unreachable."""
    drill.relay.mode = "refuse"
    node = drill.agents.nodes[0]
    wait_until(lambda: len(node.spool) > count)

    def damage(directory: Path) -> None:
        for file in sorted(directory.glob("*.batch"))[:count]:
            change(file)

    drill.agents.restart(0, damage)
    drill.relay.mode = "pass"
    wait_until(lambda: drill.agents.nodes[0].spool.refused >= count)
    _more_accepted(drill)
    return f"{count} batches are refused, quarantined and counted; all others are delivered"


@fault("batch files corrupt", "a bit is changed in three pending batches", counted=True, short=True)
def corrupt(drill: Drill) -> str:
    def flip(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0x10
        file.write_bytes(data)

    return _damage(drill, flip)


@fault("batch files cut", "three pending batches end in the middle", counted=True)
def cut(drill: Drill) -> str:
    return _damage(drill, lambda file: os.truncate(file, file.stat().st_size // 2))


@fault("batch files empty", "three pending batches have no content", counted=True)
def empty(drill: Drill) -> str:
    return _damage(drill, lambda file: os.truncate(file, 0))


@fault("spool state lost", "spool.json is deleted while batches are pending", short=True)
def state_lost(drill: Drill) -> str:
    def remove(directory: Path) -> None:
        (directory / "spool.json").unlink()

    drill.agents.restart(0, remove)
    _more_accepted(drill)
    return "a new UUID starts a new numbering"


@fault("second agent on one spool", "another agent starts on the spool of a node", short=True)
def second_agent(drill: Drill) -> str:
    from jobsight.transport.spool import Spool, SpoolError

    with pytest.raises(SpoolError, match="in use by another agent"):
        Spool(drill.agents.nodes[0].spool.directory)
    return "refused with one sentence; the first one continues"


def _step(seconds: float) -> Callable[[Drill], str]:
    def inject(drill: Drill) -> str:
        with drill.agents.mutex:
            drill.agents.nodes[0].step_clock(seconds)
        time.sleep(1)
        with drill.agents.mutex:
            drill.agents.nodes[0].step_clock(-seconds)
        time.sleep(1)
        _more_accepted(drill)
        return "samples have the times of the clock; none is lost, and the skew is shown"

    return inject


fault("clock forward", "the clock of a node is an hour ahead for a second")(_step(3600.0))
fault("clock back", "the clock of a node is an hour behind for a second")(_step(-3600.0))


# --- a small disk of the server -------------------------------------------------------------------


@fault("server's disk full", "the file system of the store is full for 3 s", "disk")
def disk_full(drill: Drill) -> str:
    ballast = Path(drill.site.location).parent / "ballast"
    with ballast.open("wb") as file:
        try:
            while True:
                file.write(bytes(65536))
                file.flush()
        except OSError:
            pass
    time.sleep(3)
    ballast.unlink(missing_ok=True)
    _more_accepted(drill)
    return drill.failures()


@fault(
    "server's disk read-only",
    "the server is ended, the file system of its store is read-only for 3 s, and the server is "
    "started again",
    "disk",
)
def disk_read_only(drill: Drill) -> str:
    folder = str(Path(drill.site.location).parent)
    # Files that are open for writing keep it busy: the server is killed first, as by a lost disk.
    drill.server.end()
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    time.sleep(3)
    subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
    drill.server.start()
    _more_accepted(drill)
    return drill.failures()


# --- certificates ---------------------------------------------------------------------------------


def _without_papers(drill: Drill, harm: Callable[[Authority, str], object]) -> str:
    """Let a node have a certificate that the server refuses, and then a new one."""
    authority, node = drill.site.authority, drill.agents.nodes[0]
    assert authority is not None
    harm(authority, node.name)
    # Nothing of the node is accepted, and everything of the others.
    wait_until(lambda: len(node.spool) > 15)
    _more_accepted(drill)
    # A server that refuses a certificate may close before the agent reads why.
    reason = max(drill.agents.reasons, key=lambda each: drill.agents.reasons[each])
    authority.renew(node.name)
    wait_until(lambda: len(node.spool) < 5)
    return f'the node is refused ("{reason}") until `jobsight ca renew`; the others continue'


@fault("certificate revoked", "`jobsight ca revoke` of a node that is sending", "tls", short=True)
def certificate_revoked(drill: Drill) -> str:
    return _without_papers(drill, lambda authority, name: authority.revoke(name))


@fault("certificate ended", "the certificate of a node ends while it sends", "tls")
def certificate_ended(drill: Drill) -> str:
    def end(authority: Authority, name: str) -> None:
        now = datetime.now(UTC)
        earlier = Authority(authority.directory, lambda: now - timedelta(days=1, seconds=-5))
        earlier.renew(name, days=1)

    return _without_papers(drill, end)


@fault(
    "certificate of the server replaced", "`jobsight ca renew` of a running server", "tls",
    short=True,
)  # fmt: skip
def certificate_replaced(drill: Drill) -> str:
    assert isinstance(drill.server, TlsServer)
    assert drill.site.authority is not None
    server, before = drill.server, drill.server.certificate()
    drill.site.authority.renew(server.NAME)
    wait_until(lambda: server.certificate() != before)
    _more_accepted(drill)
    return f"it is shown without a restart; {drill.failures()}"


# --- two servers behind nginx on PostgreSQL -------------------------------------------------------


@fault("one of two servers killed", "kill -9 of one server behind nginx", "postgresql", short=True)
def one_of_two(drill: Drill) -> str:
    drill.site.servers[1].end()
    time.sleep(AWAY)
    _more_accepted(drill)
    drill.site.servers[1].start()
    return f"the other one serves alone; {drill.failures()}"


@fault("both servers killed", "kill -9 of both servers, started again", "postgresql")
def both(drill: Drill) -> str:
    for server in drill.site.servers[:2]:
        server.end()
    time.sleep(AWAY)
    for server in drill.site.servers[:2]:
        server.start()
    _more_accepted(drill)
    return drill.failures()


@fault("servers take turns", "each server is killed five times, one at a time", "postgresql")
def turns(drill: Drill) -> str:
    for _ in range(5):
        for server in drill.site.servers[:2]:
            server.end()
            time.sleep(0.2)
            server.start()
    _more_accepted(drill)
    return drill.failures()


@fault("nginx killed", "kill -9 of nginx, started again after 2 s", "postgresql")
def nginx_killed(drill: Drill) -> str:
    assert drill.front is not None
    drill.front.end(signal.SIGTERM)
    time.sleep(AWAY)
    drill.front.start()
    _more_accepted(drill)
    return drill.failures()


@fault("nginx reloaded", "SIGHUP to nginx, five times", "postgresql")
def nginx_reloaded(drill: Drill) -> str:
    assert drill.front is not None
    assert drill.front.process is not None
    for _ in range(5):
        os.kill(drill.front.process.pid, signal.SIGHUP)
        time.sleep(0.3)
    _more_accepted(drill)
    return drill.failures()


@fault("PostgreSQL crashed", "immediate stop, started again after 2 s", "postgresql", short=True)
def postgresql_crashed(drill: Drill) -> str:
    assert drill.cluster is not None
    drill.cluster.stop()
    time.sleep(AWAY)
    drill.cluster.start()
    _more_accepted(drill)
    return drill.failures()


@fault("PostgreSQL stopped", "SIGSTOP of all its processes for 3 s", "postgresql")
def postgresql_stopped(drill: Drill) -> str:
    assert drill.cluster is not None
    pids = _family(drill.cluster.pid())
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(3)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    _more_accepted(drill)
    return drill.failures()


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(int(child) for child in children)]


@fault("connections terminated", "pg_terminate_backend of all, ten times", "postgresql", short=True)
def terminated(drill: Drill) -> str:
    assert drill.cluster is not None
    with drill.cluster.connect() as connection:
        for _ in range(10):
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = 'jobsight' AND pid <> pg_backend_pid()"
            )
            time.sleep(0.2)
    _more_accepted(drill)
    return drill.failures()


@fault("table locked", "another client locks the table of runs for 3 s", "postgresql")
def table_locked(drill: Drill) -> str:
    assert drill.cluster is not None
    with drill.cluster.connect(database="jobsight") as connection, connection.transaction():
        connection.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
        time.sleep(3)
    _more_accepted(drill)
    return drill.failures()


@fault("connections used up", "other clients hold all connections for 3 s", "postgresql")
def connections_used_up(drill: Drill) -> str:
    import psycopg

    assert drill.cluster is not None
    held = []
    while len(held) < 100:
        try:
            held.append(drill.cluster.connect())
        except psycopg.OperationalError:
            break
    for server in drill.site.servers[:2]:
        # Those of the servers are given up, too.
        assert answers(server.port)
    time.sleep(3)
    for connection in held:
        connection.close()
    _more_accepted(drill)
    return f"{len(held)} were held; {drill.failures()}"


@fault("standby promoted", "the primary crashes for good, the standby is promoted", "postgresql")
def promoted(drill: Drill) -> str:
    assert drill.cluster is not None
    drill.cluster.add_standby()
    _more_accepted(drill)
    drill.cluster.stop(0)
    time.sleep(AWAY)
    drill.cluster.promote()
    with drill.cluster.connect(1) as connection:
        # There is no other server to wait for.
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
        connection.execute("SELECT pg_reload_conf()")
    _more_accepted(drill)
    return f"servers find the new primary by target_session_attrs; {drill.failures()}"
