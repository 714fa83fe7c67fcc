"""Stores that are full, held by another, read only or away: 503, and the spool keeps the data."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from jobsight.store.store import Store
from jobsight.transport.delivery import Delivery, HttpTarget
from jobsight.transport.spool import Spool
from tests.ports import free_port
from tests.sams.front import PROJECT
from tests.server.batches import batch
from tests.server.processes import ServerProcess, Spawner, answers
from tests.store.postgresql import Server
from tests.waiting import wait_until

#: Holds a store as a backup or a migration of another process would, until its input ends.
_HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def spooled(folder: Path, target: object) -> Iterator[Delivery]:
    """Two batches that wait to be delivered."""
    spool = Spool(folder / "spool")
    try:
        spool.put(batch(12))
        spool.put(batch(13))
        yield Delivery(spool, target)  # type: ignore[arg-type]
    finally:
        spool.close()


@contextmanager
def held(location: str) -> Iterator[None]:
    """Somebody else has the store for himself."""
    if "://" in location:
        with psycopg.connect(location) as connection:
            connection.execute("LOCK TABLE agents IN ACCESS EXCLUSIVE MODE")
            yield
        return
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, location],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield
        finally:
            process.communicate()


def count_jobs(url: str, token: str) -> int:
    """How many runs the server shows."""
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/api/v1/jobs", headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return int(json.load(answer)["total"])


def assert_kept(delivery: Delivery, words: str) -> None:
    assert not delivery.deliver()
    assert "the server answered 503" in delivery.reason
    assert words in delivery.reason
    assert delivery.wait > 0
    assert len(delivery.spool) == 2


def test_a_store_that_another_process_holds(
    spawner: Spawner, location: str, tmp_path: Path
) -> None:
    with (
        ServerProcess(
            spawner, tmp_path / "server", location, ingest__queue_timeout="0.3"
        ) as server,
        spooled(tmp_path, server.target()) as delivery,
    ):
        with held(location):
            assert_kept(delivery, "the store is busy")
            # While writers wait, pages are served.
            assert count_jobs(server.url, server.token) == 0
        wait_until(delivery.deliver)
    with Store.open(location) as store:
        assert store.info().runs == 2
        assert store.info().rows == 22


def test_a_database_that_may_only_be_read(
    spawner: Spawner, postgresql_server: Server, tmp_path: Path
) -> None:
    location = postgresql_server.new_database()
    with (
        ServerProcess(spawner, tmp_path / "server", location) as server,
        spooled(tmp_path, server.target()) as delivery,
        psycopg.connect(location, autocommit=True) as connection,
    ):
        name = connection.info.dbname
        # With a time it waits for their end: one about to end could still be queried something.
        others = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = %s"
        others += " AND pid <> pg_backend_pid()"
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        connection.execute(others, [name])
        assert_kept(delivery, "is read-only")
        connection.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        connection.execute(others, [name])
        assert delivery.deliver()
    with Store.open(location) as store:
        assert store.info().runs == 2


@contextmanager
def immutable(*files: Path) -> Iterator[None]:
    """Files that may only be read, also by root."""
    chattr = shutil.which("chattr")
    names = [str(file) for file in files]
    if not chattr or subprocess.run([chattr, "+i", *names], capture_output=True).returncode:
        pytest.skip("needs root and a file system that can refuse to write to single files")
    try:
        yield
    finally:
        subprocess.run([chattr, "-i", *names], check=True)


def test_a_file_that_may_only_be_read(spawner: Spawner, tmp_path: Path) -> None:
    """As where the kernel has made a file system read only after an error of its disk."""
    location = tmp_path / "store.db"
    with (
        ServerProcess(spawner, tmp_path / "server", str(location)) as server,
        spooled(tmp_path, server.target()) as delivery,
    ):
        # Not the WAL index: see the next test.
        with immutable(location, tmp_path / "store.db-wal"):
            assert_kept(delivery, "has an I/O error")
            assert count_jobs(server.url, server.token) == 0
        wait_until(delivery.deliver)
    with Store.open(str(location)) as store:
        assert store.info().runs == 2


def test_a_wal_index_that_may_only_be_read(spawner: Spawner, tmp_path: Path) -> None:
    """SQLite maps the index into memory. A file system that refuses a write to a mapped page, as
    ext4 does here and XFS after a shutdown, sends SIGBUS: the server ends, and nothing is lost."""
    location = tmp_path / "store.db"
    index = tmp_path / "store.db-shm"
    with (
        ServerProcess(spawner, tmp_path / "server", str(location)) as server,
        spooled(tmp_path, server.target()) as delivery,
    ):
        with immutable(index):
            with index.open("rb") as opened:
                # Until its next write-back, a page that was written to before is not refused.
                os.fsync(opened.fileno())
            # Other file systems do not refuse it; then the batches are stored at once.
            delivery.deliver()

        def delivered() -> bool:
            if not server.lives():
                server.start()
            return delivery.deliver()

        wait_until(delivered)
    with Store.open(str(location)) as store:
        assert store.info().runs == 2
        assert store.info().rows == 22


def test_a_database_that_goes_away_and_comes_back(
    spawner: Spawner, postgresql_server: Server, tmp_path: Path
) -> None:
    location = postgresql_server.new_database()
    with (
        ServerProcess(spawner, tmp_path / "server", location) as server,
        spooled(tmp_path, server.target()) as delivery,
        psycopg.connect(postgresql_server.url("postgres"), autocommit=True) as other,
    ):
        name = location.partition("?")[0].rpartition("/")[2]
        other.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        other.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = %s",
            [name],
        )
        assert_kept(delivery, "not currently accepting connections")
        other.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        assert delivery.deliver()


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[tuple[str, Path, int]]:
    """A server whose store lies on a small file system, in a mount namespace of its own."""
    inside = folder / "small"
    inside.mkdir()
    token = folder / "token"
    port = free_port()
    serve = [sys.executable, "-m", "jobsight.cli.main", "serve", "--port", str(port)]
    serve += ["--store", str(inside / "store.db"), "--token-file", str(token)]
    script = f'mount -t tmpfs -o size={mebibytes}m,mode=755 tmpfs "$0" && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, str(inside), *serve]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=PROJECT)
    try:

        def ready() -> bool:
            assert process.poll() is None, (folder / "server.log").read_text()
            return answers(port)

        wait_until(ready)
        yield f"http://127.0.0.1:{port}", token, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.mark.root
def test_a_full_disk(tmp_path: Path) -> None:
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("needs the right to make a mount namespace")
    with (
        small_disk(tmp_path, 6) as (url, token, pid),
        spooled(tmp_path, HttpTarget(url, token)) as delivery,
    ):
        # What the server sees there, seen from here.
        inside = Path(f"/proc/{pid}/root{tmp_path}/small")
        fill(inside / "filler")
        assert_kept(delivery, "is full")
        assert count_jobs(url, token.read_text().strip()) == 0
        (inside / "filler").unlink()
        assert delivery.deliver()
        assert count_jobs(url, token.read_text().strip()) == 2
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def fill(file: Path) -> None:
    """Write until nothing fits any more."""
    with file.open("wb", buffering=0) as opened:
        size = 2**20
        while size:
            try:
                opened.write(os.urandom(size))
            except OSError:
                size //= 2
