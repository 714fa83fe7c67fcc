"""Debian's PostgreSQL for the tests: a private folder and socket, gone afterwards."""

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


@contextmanager
def running() -> Iterator[Server]:
    """Start a server, and stop and remove it at the end."""
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
    folder = Path(tempfile.mkdtemp(prefix="jobsight-pg", dir="/tmp"))
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
            "-c full_page_writes=off -c shared_buffers=32MB -c max_connections=64"
        )
        call("pg_ctl", "start", "-w", "-D", data, "-l", str(folder / "log"), "-o", options)
        try:
            yield Server(folder, user)
        finally:
            call("pg_ctl", "stop", "-w", "-m", "immediate", "-D", data)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
