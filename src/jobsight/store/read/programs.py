"""One program by its path: its software name, its users, and the newest runs that executed it."""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from jobsight.store.database import Database
from jobsight.store.read import pseudonyms, queries, viewed
from jobsight.store.read.queries import StoredRun
from jobsight.store.read.visibility import Visibility
from jobsight.store.sql.load import load_statements

_SQL: Final = load_statements("programs")
#: The newest uses of a program that are counted: every run executes a shell.
MAX_USES: Final = 20_000
#: The newest uses among which runs are listed.
_LISTED_USES: Final = 2_000


class Program(NamedTuple):
    """A path and the name that the rules assign to it; None if no rule matches."""

    id: int
    path: bytes
    software: str | None
    version: str | None
    local_version: str | None


class ProgramUser(NamedTuple):
    """The use of a program by one user; an unknown user is an empty text."""

    user: str
    runs: int
    executions: int
    failures: int
    #: Nanoseconds; the core time is an estimate by the share of the CPU time of each run.
    cpu_time: float
    core_time: float
    first: int
    last: int


def find_program(database: Database, path: bytes) -> Program | None:
    """The program at a path; None if no run has executed it."""
    if pseudonyms.is_hidden(path):
        return None
    digest = hashlib.blake2b(path, digest_size=16).digest()
    with database.query() as transaction:
        row = transaction.execute(_SQL["find_program"], {"digest": digest}).fetchone()
    return None if row is None else Program(row[0], bytes(row[1]), *pseudonyms.software(*row[2:]))


def users_of_program(database: Database, path_id: int, since: int) -> list[ProgramUser]:
    """The users of a program in runs that started since then, of its :data:`MAX_USES` newest
    uses; those who held the most core time first."""
    values = {"path_id": path_id, "since": since, "limit": MAX_USES}
    with database.query() as transaction:
        rows = transaction.execute(_SQL["program_users"], values).fetchall()
    users = [
        ProgramUser(
            pseudonyms.pseudonym("user", user) or "",
            int(runs),
            int(executions),
            int(failures),
            float(cpu),
            float(core),
            first,
            last,
        )
        for user, runs, executions, failures, cpu, core, first, last in rows
    ]
    for each in users:
        viewed.note(each.user)
    return sorted(users, key=lambda each: (-each.core_time, each.user))


def runs_of_program(
    database: Database, path_id: int, limit: int, visibility: Visibility
) -> list[StoredRun]:
    """The newest runs that executed a program, of those that the viewer may see."""
    filter = queries.run_filter(visibility=visibility)
    with database.query() as transaction:
        values = {"path_id": path_id, "limit": _LISTED_USES}
        rows = transaction.execute(_SQL["program_runs"], values).fetchall()
        ids = [run_id for (run_id,) in rows]
        return queries.list_these_runs(transaction, filter, ids, limit)
