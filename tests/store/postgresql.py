"""Debian's PostgreSQL for the tests: a private directory and socket, gone afterwards."""

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict


class Unavailable(Exception):
    """There is no PostgreSQL to test with; the text says why."""


class Server:
    """A running PostgreSQL that hands out empty databases."""

    def __init__(self, folder: Path, user: str) -> None:
        self._folder = folder
        self._user = user
        self._numbers = itertools.count(1)

    def url(self, database: str) -> str:
        return f"postgresql:///{database}?host={self._folder}&user={self._user}"

    def new_database(self) -> str:
        name = f"jobsight{next(self._numbers)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database that ``new_database`` has made, whoever is still connected to it."""
        name = conninfo_to_dict(url)["dbname"]
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def memory_directory() -> Path:
    """Where many small databases cost no disk; /tmp where there is little shared memory."""
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 * 2**30:
        return memory
    return Path("/tmp")


@contextmanager
def running(parent: Path = Path("/tmp"), settings: str = "") -> Iterator[Server]:
    """Start a server in a directory below `parent`, and stop and remove it at the end."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        raise Unavailable("PostgreSQL is not installed (apt install postgresql)")
    programs = found[-1].parent
    user = pwd.getpwuid(os.geteuid()).pw_name
    account: dict[str, object] = {}
    if os.geteuid() == 0:
        # It refuses to run as root.
        user = "postgres"
        account = {"user": user, "group": user, "extra_groups": []}
    # The path of a socket has to be short.
    folder = Path(tempfile.mkdtemp(prefix="jobsight-pg", dir=parent))
    try:
        if account:
            shutil.chown(folder, user, user)

        def call(*command: str) -> None:
            subprocess.run(
                [programs / command[0], *command[1:]],
                cwd=folder,
                check=True,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                **account,  # type: ignore[call-overload]
            )

        data = str(folder / "data")
        call("initdb", "--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "-D", data)
        options = (
            f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off "
            "-c full_page_writes=off -c shared_buffers=32MB -c max_connections=64 "
            f"{settings}"
        )
        call("pg_ctl", "start", "-w", "-D", data, "-l", str(folder / "log"), "-o", options)
        try:
            yield Server(folder, user)
        finally:
            call("pg_ctl", "stop", "-w", "-m", "immediate", "-D", data)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
