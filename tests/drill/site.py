"""What the drill breaks: servers, a database, and agents whose writings are known."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psycopg

from jobsight.server.authority import Authority
from jobsight.simulation.check import Checked, compare
from jobsight.simulation.nodes import Load, Node, Written, WrittenSpool
from jobsight.store.store import Store
from jobsight.transport.delivery import Answer, Delivery, DeliveryThread, HttpTarget
from jobsight.transport.tls import ClientTls
from tests.drill.relay import Relay
from tests.ports import free_port
from tests.sams.front import nginx_for, wait_for
from tests.server.processes import ServerProcess, Spawner
from tests.waiting import wait_until

#: Seconds between two batches of a node.
EVERY: Final = 0.2
_indexes = itertools.count(1)


class _Counted:
    """A target whose failures are kept."""

    def __init__(self, target: HttpTarget, agents: Agents) -> None:
        self.target = target
        self._agents = agents

    def send(self, data: bytes) -> Answer:
        answer = self.target.send(data)
        if answer.stored:
            self._agents.accepted += 1
        else:
            self._agents.failed += 1
            self._agents.reasons.setdefault(answer.reason[:100], 0)
            self._agents.reasons[answer.reason[:100]] += 1
        return answer


class Agents:
    """Some simulated agents in threads of this process, with real spools and deliveries."""

    def __init__(
        self,
        directory: Path,
        url: str,
        token_file: Path,
        *,
        nodes: int = 4,
        limit: int = 16 * 2**20,
        timeout: float = 3.0,
        authority: Authority | None = None,
    ) -> None:
        load = Load(nodes=nodes, jobs=2, every=EVERY, duration=0.0, restarts=0.0, storms=0.02,
                    storm_size=5, spool_limit=limit)  # fmt: skip
        self.directory = directory
        self.accepted = self.failed = 0
        self.reasons: dict[str, int] = {}
        self._url, self._token_file, self._timeout = url, token_file, timeout
        self._authority = authority
        self.nodes = [Node(next(_indexes), load, directory) for _ in range(nodes)]
        for node in self.nodes:
            if authority is not None:
                authority.issue(node.name, "node")
        self._deliveries = [self._delivery(node) for node in self.nodes]
        self.rows: list[Written | WrittenSpool] = []
        self.mutex = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _delivery(self, node: Node) -> DeliveryThread:
        tls = None
        if self._authority is not None:
            papers = (self._authority.certificate_file, *self._authority.files(node.name))
            tls = ClientTls(*map(str, papers))
        target = HttpTarget(self._url, self._token_file, timeout=self._timeout, tls=tls)
        thread = DeliveryThread(Delivery(node.spool, _Counted(target, self)), max_delay=0.5)
        thread.start()
        return thread

    def start(self) -> None:
        now = time.time_ns()
        for node in self.nodes:
            node.start(now, ())
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(EVERY):
            with self.mutex:
                for node, delivery in zip(self.nodes, self._deliveries, strict=True):
                    self.rows += node.tick(time.time_ns())
                    delivery.notify()

    @property
    def pending(self) -> int:
        return sum(len(node.spool) for node in self.nodes)

    def stop(self) -> None:
        """Write nothing more."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join(60)

    def restart(self, place: int, between: Callable[[Path], None] = lambda directory: None) -> None:
        """End the agent of a node and start it again on its spool."""
        with self.mutex:
            node = self.nodes[place]
            self._deliveries[place].end()
            before = node.written_spool()
            node.spool.close()
            between(node.spool.directory)
            node.reopen()
            if node.spool.uuid != before.spool:
                # A new numbering: the old one ends here.
                before.pending = 0
                self.rows.append(before)
            self._deliveries[place] = self._delivery(node)
            self._deliveries[place].notify()

    def use(self, url: str | None = None, token_file: Path | None = None) -> None:
        """Send to another server, or with another token."""
        with self.mutex:
            self._url, self._token_file = url or self._url, token_file or self._token_file
            for place, node in enumerate(self.nodes):
                self._deliveries[place].end()
                self._deliveries[place] = self._delivery(node)
                self._deliveries[place].notify()

    def drain(self, seconds: float = 90.0) -> None:
        self.stop()

        def delivered() -> bool:
            for delivery in self._deliveries:
                delivery.notify()
            time.sleep(0.05)
            return self.pending == 0

        wait_until(delivered, seconds)

    def close(self) -> list[Written | WrittenSpool]:
        self.stop()
        for delivery in self._deliveries:
            delivery.end()
        rows = list(self.rows)
        for node in self.nodes:
            rows += [each for each in node.running() if each.samples]
            rows.append(node.close())
        return rows


class TlsServer(ServerProcess):
    """A server with certificates of an authority, which asks agents for theirs."""

    #: The name of its own certificate.
    NAME: Final = "server.test"

    def __init__(self, spawner: Spawner, folder: Path, location: str, authority: Authority) -> None:
        authority.issue(self.NAME, "server", (self.NAME, "127.0.0.1"))
        certificate, key = authority.files(self.NAME)
        super().__init__(
            spawner,
            folder,
            location,
            tls_certificate=str(certificate),
            tls_key=str(key),
            tls_client_ca=str(authority.certificate_file),
            tls_client_crl=str(authority.crl_file),
        )
        self.url = f"https://127.0.0.1:{self.port}"
        self._authority = authority

    def certificate(self) -> str:
        """The certificate that it shows."""
        return ssl.get_server_certificate(("127.0.0.1", self.port), timeout=30)

    def _answers(self) -> bool:
        assert self.lives(), (self.folder / "server.log").read_text()
        context = ssl.create_default_context(cafile=str(self._authority.certificate_file))
        try:
            with urllib.request.urlopen(
                f"{self.url}/healthz", timeout=10, context=context
            ) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False


class Site:
    """A store, its servers and what was written for it so far."""

    def __init__(
        self,
        spawner: Spawner,
        folder: Path,
        location: str,
        authority: Authority | None = None,
    ) -> None:
        self.authority = authority
        self.spawner = spawner
        self.folder = folder
        self.location = location
        self.servers: list[ServerProcess] = []
        self.rows: list[Written | WrittenSpool] = []
        #: Batches that spools have counted as lost, up to the last check.
        self.counted = 0
        self._numbers = itertools.count(1)

    @property
    def server(self) -> ServerProcess:
        return self.servers[0]

    def add_server(self, location: str | None = None, **settings: str) -> ServerProcess:
        folder = self.folder / f"server{len(self.servers) + 1}"
        server: ServerProcess
        if self.authority is not None:
            server = TlsServer(self.spawner, folder, location or self.location, self.authority)
        else:
            server = ServerProcess(self.spawner, folder, location or self.location, **settings)
        server.start()
        self.servers.append(server)
        return server

    def agents(self, url: str | None = None, **options: object) -> Agents:
        directory = self.folder / f"agents{next(self._numbers)}"
        directory.mkdir(mode=0o700)
        made = Agents(directory, url or self.server.url, self.server.token_file,
                      authority=self.authority, **options)  # type: ignore[arg-type]  # fmt: skip
        made.start()
        return made

    @contextmanager
    def relay(self) -> Iterator[Relay]:
        relay = Relay(self.server.port)
        try:
            yield relay
        finally:
            relay.close()

    def check(self, agents: Agents | None) -> Checked:
        """Deliver the rest and compare both ends, over everything since the start."""
        if agents is not None:
            agents.drain()
            self.rows += agents.close()
        with Store.open(self.location) as store:
            return compare(self.rows, store)

    def close(self) -> None:
        for server in self.servers:
            if server.pid:
                os.kill(server.pid, signal.SIGCONT)
                server.end(signal.SIGTERM)


class Cluster:
    """PostgreSQL with a synchronous standby, in private directories."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        if not found:
            raise RuntimeError("PostgreSQL is not installed (apt install postgresql)")
        self._programs = found[-1].parent
        root = os.geteuid() == 0
        self.user = "postgres" if root else pwd.getpwuid(os.geteuid()).pw_name
        self._account: dict[str, object] = (
            {"user": self.user, "group": self.user, "extra_groups": []} if root else {}
        )
        if root:
            shutil.chown(folder, self.user, self.user)
        # A standby is another server: each has a port, which is part of the name of its socket.
        self.ports = (free_port(), free_port())
        self.running: set[int] = set()

    def data(self, number: int) -> str:
        return str(self.folder / f"data{number}")

    def call(self, *command: str) -> None:
        done = subprocess.run(
            [self._programs / command[0], *command[1:]],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            **self._account,  # type: ignore[call-overload]
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stderr or done.stdout}")

    def url(self, database: str = "jobsight") -> str:
        """Both servers; libpq takes the one that accepts writes."""
        hosts = f"host={self.folder},{self.folder}&port={self.ports[0]},{self.ports[1]}"
        return (
            f"postgresql:///{database}?{hosts}&user={self.user}"
            "&target_session_attrs=read-write&connect_timeout=5"
        )

    def connect(self, number: int = 0, database: str = "postgres") -> psycopg.Connection[object]:
        return psycopg.connect(
            host=str(self.folder), port=self.ports[number], user=self.user, dbname=database,
            autocommit=True,
        )  # fmt: skip

    def start(self, number: int = 0, *more: str) -> None:
        options = (
            f"-c listen_addresses= -c unix_socket_directories={self.folder} "
            f"-c port={self.ports[number]} -c fsync=off -c shared_buffers=32MB "
            f"-c max_connections=60 {' '.join(more)}"
        )
        log = str(self.folder / f"log{number}")
        self.call("pg_ctl", "start", "-w", "-D", self.data(number), "-l", log, "-o", options)
        self.running.add(number)

    def stop(self, number: int = 0) -> None:
        self.call("pg_ctl", "stop", "-w", "-m", "immediate", "-D", self.data(number))
        self.running.discard(number)

    def create(self) -> None:
        self.call(
            "initdb", "--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "-D",
            self.data(0),
        )  # fmt: skip
        self.start(0, "-c wal_level=replica -c hot_standby=on")
        with self.connect() as connection:
            connection.execute("CREATE DATABASE jobsight")

    def add_standby(self) -> None:
        """A standby that has every transaction before it is acknowledged."""
        self.call(
            "pg_basebackup", "-h", str(self.folder), "-p", str(self.ports[0]), "-U", self.user,
            "-D", self.data(1), "-R", "--no-sync", "-X", "stream", "-c", "fast",
        )  # fmt: skip
        self.start(1, "-c hot_standby=on")
        with self.connect() as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("ALTER SYSTEM SET synchronous_commit = 'remote_write'")
            connection.execute("SELECT pg_reload_conf()")

        def synchronous() -> bool:
            with self.connect() as connection:
                row = connection.execute("SELECT sync_state FROM pg_stat_replication").fetchone()
            return row is not None and "sync" in str(row)

        wait_until(synchronous)

    def promote(self) -> None:
        self.call("pg_ctl", "promote", "-w", "-D", self.data(1))

    def pid(self, number: int = 0) -> int:
        return int(Path(self.data(number), "postmaster.pid").read_text().split()[0])

    def close(self) -> None:
        for number in sorted(self.running):
            self.stop(number)
        shutil.rmtree(self.folder, ignore_errors=True)


_NGINX: Final = """
upstream jobsight {{ {servers} }}
server {{
    listen 127.0.0.1:{port};
    access_log off;
    client_max_body_size 20m;
    location / {{
        proxy_pass http://jobsight;
        proxy_next_upstream error timeout http_502 http_503 non_idempotent;
        proxy_connect_timeout 2s;
        proxy_read_timeout 20s;
        proxy_set_header Host $http_host;
        proxy_set_header X-Forwarded-For $remote_addr;
    }}
}}
"""


class Front:
    """nginx in front of several servers."""

    def __init__(self, folder: Path, servers: list[ServerProcess]) -> None:
        folder.mkdir()
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        upstream = " ".join(f"server 127.0.0.1:{each.port} fail_timeout=1s;" for each in servers)
        self._command = nginx_for(folder, _NGINX.format(servers=upstream, port=self.port))
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with (self.folder / "nginx.log").open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        wait_for(self.port, self.folder)

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            os.kill(self.process.pid, number)
            self.process.wait(60)
            self.process = None


@contextmanager
def small_disk(folder: Path, size: str = "24m") -> Iterator[Path]:
    """A file system of its own that a fault can fill or make read-only; needs root."""
    folder.mkdir(mode=0o700)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "drill", str(folder)], check=True
    )
    with ExitStack() as stack:
        stack.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=False)
        yield folder
