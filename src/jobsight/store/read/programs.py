"""One program by its path: its software name, its users, and the newest runs that executed it; and
the programs and software of many runs together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jobsight.store.database import Database
from jobsight.store.read import pseudonyms, queries, viewed
from jobsight.store.read.queries import StoredRun
from jobsight.store.read.visibility import Visibility
from jobsight.store.sql.load import load_statements

if TYPE_CHECKING:
    from jobsight.store.transaction import Transaction

_SQL: Final = load_statements("programs")
#: The newest uses of a program that are counted: every run executes a shell.
MAX_USES: Final = 20_000
#: The newest uses among which runs are listed.
_LISTED_USES: Final = 2_000
#: Rows of executables that the programs of many runs are summed from, and the runs of which the
#: number of rows of the others is estimated.
MAX_SUMMED_USES: Final = 100_000
_FIRST_RUNS, _GROWTH = 16, 8


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


class ProgramOfRuns(NamedTuple):
    """What one program used in some runs. Times are nanoseconds."""

    path: bytes
    path_known: bool
    own_namespace: bool
    runs: int
    executions: int
    failures: int
    cpu_time: float
    gpu_time: float
    #: Of its largest single process.
    peak_memory: int


class SoftwareOfRuns(NamedTuple):
    """What the programs of one software used in some runs; no name: what no rule names."""

    name: str | None
    runs: int
    cpu_time: float
    gpu_time: float


class UseOfRuns(NamedTuple):
    """The programs and software of some runs, the most CPU time first."""

    programs: list[ProgramOfRuns]
    software: list[SoftwareOfRuns]
    #: The CPU time of all programs, those beyond the list included.
    cpu_time: float
    #: The runs that were read: the first ones, if the others have too many executables.
    runs: int


def use_of_runs(database: Database, run_ids: Sequence[int], limit: int) -> UseOfRuns:
    """What the programs of some runs used, at most ``limit`` of each. Users decide how many
    executables a run has, so a bounded number of them is read, those of the first runs."""
    sums: dict[tuple[int, bool], list[Any]] = {}
    named: dict[tuple[str | None, bool | None], list[Any]] = {}
    read = 0
    with database.query() as transaction:
        for ids in _within_bound(transaction, run_ids, sums):
            read += len(ids)
            for name, provided, *values in transaction.look_up(_SQL["software_of_runs"], ids):
                _add(named, (name, None if provided is None else bool(provided)), values)
        largest = sorted(sums.items(), key=lambda item: (-item[1][_CPU_TIME], item[0]))[:limit]
        ids = [(path_id,) for path_id in {path_id for (path_id, _), _ in largest}]
        paths = {row[0]: bytes(row[1]) for row in transaction.look_up(_SQL["paths_of_ids"], ids)}
    programs = [_program(paths[path_id], known, values) for (path_id, known), values in largest]
    software = [
        SoftwareOfRuns(pseudonyms.software(name, None, None, provided)[0], int(runs), cpu, gpu)
        for (name, provided), (runs, cpu, gpu) in named.items()
    ]
    software.sort(key=lambda each: (-each.cpu_time, each.name or ""))
    whole = sum(values[_CPU_TIME] for values in sums.values())
    return UseOfRuns(programs, software[:limit], whole, read)


def _program(path: bytes, known: bool, values: Sequence[Any]) -> ProgramOfRuns:
    own, runs, _, executions, failures, cpu_time, gpu_time, peak = values
    return ProgramOfRuns(
        path=pseudonyms.path(path, own_namespace=bool(own)),
        path_known=known,
        own_namespace=bool(own),
        runs=int(runs),
        executions=int(executions),
        failures=int(failures),
        cpu_time=cpu_time,
        gpu_time=gpu_time,
        peak_memory=peak,
    )


#: Places in the sums of a program.
_ROWS, _CPU_TIME, _PEAKS = 2, 5, (0, 7)


def _within_bound(
    transaction: Transaction, run_ids: Sequence[int], sums: dict[tuple[int, bool], list[Any]]
) -> Iterator[list[tuple[int]]]:
    """Add the programs of the first runs, as many as the bound permits; yields their keys."""
    position, size, rows = 0, _FIRST_RUNS, 0
    while position < len(run_ids) and size:
        keys = [(id,) for id in run_ids[position : position + size]]
        for path_id, known, *values in transaction.look_up(_SQL["programs_of_runs"], keys):
            rows += values[_ROWS]
            _add(sums, (path_id, bool(known)), values, _PEAKS)
        yield keys
        position += len(keys)
        left = MAX_SUMMED_USES - rows
        # The next runs may have more than those that were read.
        size = min(left * position // max(rows, 1), _GROWTH * len(keys)) if left > 0 else 0


def _add(
    sums: dict[Any, list[Any]], key: object, values: Sequence[Any], peaks: Sequence[int] = ()
) -> None:
    known = sums.get(key)
    if known is None:
        sums[key] = list(values)
        return
    for place, value in enumerate(values):
        known[place] = max(known[place], value) if place in peaks else known[place] + value
