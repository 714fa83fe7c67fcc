"""A store with very many runs, filled by bulk inserts: the same rows for SQLite and PostgreSQL.

A year of a centre with some 1,200 users. Few users submit most of the jobs, half of the jobs are
tasks of arrays, names repeat with a number at their end, four of five jobs complete, the latest
jobs are running, and one in a hundred was seen by agents only. The rows of the daily rollups are
those of the runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import psycopg

from jobsight.model import SECOND
from jobsight.store.rollups.shares import NOT_ATTRIBUTED, UNDETERMINED, first_day, month_of
from jobsight.store.schema.statements import quoted
from jobsight.store.store import Store

SEED: Final = 20261116
CLUSTERS: Final = ("north", "south")
#: The first day, in days since 1970, and how many days there are.
FIRST_DAY, DAYS = 20_400, 365
START: Final = FIRST_DAY * 86400 * SECOND
END: Final = START + DAYS * 86400 * SECOND
FIRST_JOB: Final = 4_200_000
USERS, ACCOUNTS, PARTITIONS, SOFTWARE, PATHS = 1200, 300, 12, 250, 4000
#: Runs of the newest part of the store that have not ended.
RUNNING: Final = 2000
#: Rows that are inserted together.
_BLOCK: Final = 20_000

_STATES = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", None)
_WEIGHTS = (0.80, 0.08, 0.06, 0.035, 0.01, 0.005, 0.01)
_STEMS = (
    *("md_prod", "relax", "scf", "train", "eval", "mesh", "align", "assembly", "post", "test"),
    *("sweep", "bands", "phonon", "forecast", "cfd", "render", "blast", "qc", "sim", "bash"),
)
_PROGRAMS = (
    *("gromacs", "vasp", "lammps", "pytorch", "openfoam", "namd", "wrf", "blast", "r", "matlab"),
    *("quantumespresso", "cp2k", "gaussian", "abaqus", "amber", "paraview", "julia", "stata"),
)


class Run(NamedTuple):
    """What the tables of one run are made from."""

    id: int
    cluster: str
    job_id: int
    array_job_id: int | None
    array_task_id: int | None
    user: int
    account: str
    partition: str
    name: str
    start: int
    end: int | None
    state: str | None
    cpus: int
    ended_on_node: bool
    software: tuple[int, ...]


def user_name(number: int) -> str:
    return f"user{number:04d}"


def make_runs(count: int) -> Iterator[Run]:
    """The runs by their start."""
    numbers = np.random.default_rng(SEED)
    rank = np.arange(1, USERS + 1) ** -0.8
    users = numbers.choice(USERS, count, p=rank / rank.sum()).tolist()
    starts = np.sort(numbers.integers(START, END, count)).tolist()
    states = numbers.choice(len(_STATES), count, p=_WEIGHTS).tolist()
    lengths = (numbers.lognormal(8, 1.6, count) + 1).clip(max=7 * 86400).tolist()
    draws = numbers.integers(0, 2**31, (count, 4)).tolist()
    cpus = numbers.choice((1, 2, 4, 8, 16, 32, 64, 128), count).tolist()
    array, task = 0, 0
    for place in range(count):
        user, state, draw = users[place], _STATES[states[place]], draws[place]
        start = starts[place] // SECOND * SECOND
        job_id = FIRST_JOB + place
        if task:
            task -= 1
        elif draw[0] % 100 == 0:
            array, task = job_id, 100
        end: int | None = min(start + int(lengths[place] * SECOND), END)
        if place >= count - min(RUNNING, count // 10):
            end = None
            state = "RUNNING" if state else None
        yield Run(
            id=place + 1,
            cluster=CLUSTERS[user % 7 == 0],
            job_id=job_id,
            array_job_id=array if task else None,
            array_task_id=100 - task if task else None,
            user=user,
            account=f"account{(user * 7 + draw[1] % 2) % ACCOUNTS:03d}",
            partition=f"partition{(user + draw[2] % 3) % PARTITIONS}",
            name=f"{_STEMS[(user + draw[3] % 4) % len(_STEMS)]}_{user * 17 % 97}_{draw[1] % 200}",
            start=start,
            # A run that only agents have seen has no end of the scheduler.
            end=end if state else None,
            state=state,
            cpus=cpus[place],
            ended_on_node=end is not None,
            software=_software(user, draw),
        )


def _software(user: int, draw: list[int]) -> tuple[int, ...]:
    """The rows of software of a run: some of its user's, and at times a program without a name."""
    own = {1 + (user * 31 + step * 17) % SOFTWARE for step in (draw[0] % 5, draw[1] % 5)}
    return (*sorted(own), UNDETERMINED) if draw[2] % 4 == 0 else tuple(sorted(own))


def fill(store: Store, count: int) -> None:
    """Fill an empty store."""
    usage: dict[tuple[Any, ...], list[int]] = {}
    software: dict[tuple[Any, ...], list[int]] = {}
    _insert(store, "software", _software_rows())
    _insert(store, "paths", _path_rows())
    block: list[Run] = []
    for run in make_runs(count):
        block.append(run)
        _add_to_rollups(run, usage, software)
        if len(block) == _BLOCK:
            _insert_runs(store, block)
            block = []
    _insert_runs(store, block)
    figures = (
        *("runs", "executions", "cpu_time", "core_time", "gpu_time"),
        *("gpu_measured_time", "gpu_profiled_time", "gpu_used_time", "gpu_energy"),
    )
    owner = ("day", "cluster", "user", "account", "partition")
    _insert_sums(store, "usage_by_day", (*owner, *figures, "memory_time"), usage)
    names = ("name_runs", "version_runs", "local_version_runs")
    key = (*owner, "software_id")
    _insert_sums(store, "software_by_day", (*key, *figures, *names), software)
    _insert_months(store, "usage_by_month", (*owner[1:], *figures, "memory_time"), usage)
    _insert_months(store, "software_by_month", (*key[1:], *figures, *names), software)
    with store.database.alone() as connection:
        if store.database.postgresql:
            # As autovacuum does in time, for which a measurement cannot wait.
            connection.execute("VACUUM ANALYZE")
        else:
            connection.execute("ANALYZE")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _software_rows() -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "name": _PROGRAMS[number % len(_PROGRAMS)] if number % 25 else "%(user)s's programs",
            "version": f"{number % 5}.{number % 11}",
            "local_version": f"{number}",
            "user_provided": number % 25 == 0,
            "ignored": number % 50 == 1,
        }
        for number in range(1, SOFTWARE + 1)
    ]


def _path_rows() -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "digest": number.to_bytes(16, "big"),
            "path": f"/apps/{_PROGRAMS[number % len(_PROGRAMS)]}/{number}/bin/solve".encode(),
            "software_id": number % (SOFTWARE + 1),
        }
        for number in range(1, PATHS + 1)
    ]


def _add_to_rollups(
    run: Run, usage: dict[tuple[Any, ...], list[int]], software: dict[tuple[Any, ...], list[int]]
) -> None:
    end = _last_seen(run)
    time = (end - run.start) // 1000
    owner = (run.start // (86400 * SECOND), run.cluster, user_name(run.user))
    key = (*owner, run.account, run.partition)
    core_time = time * run.cpus
    cpu_time = core_time * 3 // 4
    no_gpus = [0] * 5
    _add(usage, key, [1, 3, cpu_time, core_time, *no_gpus, time // 1000])
    rows = (*run.software, NOT_ATTRIBUTED) if run.id % 3 == 0 else run.software
    for number in rows:
        share = core_time // len(rows)
        figures = [1, 3, cpu_time // len(rows), share, *no_gpus, 1, 1, 1]
        _add(software, (*key, number), figures)


def _add(rows: dict[tuple[Any, ...], list[int]], key: tuple[Any, ...], figures: list[int]) -> None:
    known = rows.get(key)
    rows[key] = figures if known is None else [a + b for a, b in zip(known, figures, strict=True)]


def _insert_runs(store: Store, block: list[Run]) -> None:
    _insert(store, "runs", [_run_row(run) for run in block])
    _insert(store, "run_nodes", [_node_row(run) for run in block])
    _insert(store, "executables", [row for run in block for row in _executable_rows(run)])


def _last_seen(run: Run) -> int:
    return END if run.end is None else run.end


def _cpu_time(run: Run) -> int:
    return (_last_seen(run) - run.start) * run.cpus * 3 // 4


def _run_row(run: Run) -> dict[str, Any]:
    end = _last_seen(run)
    return {
        "id": run.id,
        "cluster": run.cluster,
        "job_id": run.job_id,
        "start": run.start,
        "source": "sacct" if run.state else "sighting",
        "array_job_id": run.array_job_id,
        "array_task_id": run.array_task_id,
        "name": run.name,
        "user": user_name(run.user),
        "uid": 10_000 + run.user,
        "account": run.account,
        "partition": run.partition,
        "qos": "normal",
        "command": f"/home/{user_name(run.user)}/jobs/{run.name}.sh",
        "cpus": run.cpus,
        "memory": run.cpus << 31,
        "time_limit": 86400 * SECOND,
        "submit": run.start - 600 * SECOND,
        "end": run.end,
        "state": run.state,
        "provisional": run.state is None,
        "cpu_time": _cpu_time(run),
        "memory_used_peak": run.cpus << 30,
        "memory_peak": run.cpus << 30,
        "open_nodes": int(not run.ended_on_node),
        "first_seen": run.start,
        "last_seen": end,
        "updated": end,
        "stale": False,
    }


def _node_row(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "run_id": run.id,
        "cluster": run.cluster,
        "job_id": run.job_id,
        "node": f"n{run.id * 7919 % 1500:04d}",
        "boot_id": "boot",
        "birth": run.start,
        "epoch": "epoch",
        "written": _last_seen(run),
        "cpu_time": _cpu_time(run),
        "final": run.ended_on_node,
    }


def _executable_rows(run: Run) -> list[dict[str, Any]]:
    end = _last_seen(run)
    cpu_time = (end - run.start) * run.cpus // 3
    figures = dict.fromkeys(("cpu_system", "cpu_estimated", "read_bytes", "written_bytes"), 0)
    return [
        {
            "run_node_id": run.id,
            "path_id": 1 + (run.user * 37 + place * 1009 + run.id % 3) % PATHS,
            "path_known": True,
            "own_namespace": True,
            "epoch": 1,
            "sequence": 1,
            "executions": 3,
            "processes": 3,
            "cpu_time": cpu_time,
            "cpu_user": cpu_time,
            **figures,
            "failures": 0,
            "gpu_time": 0,
            "peak_memory": 1 << 30,
            "gpu_memory_peak": 0,
            "first_seen": run.start,
            "last_seen": end,
        }
        for place in range(2)
    ]


def _insert_sums(
    store: Store, table: str, names: tuple[str, ...], sums: dict[tuple[Any, ...], list[int]]
) -> None:
    rows = [dict(zip(names, (*key, *sums[key]), strict=True)) for key in sorted(sums)]
    for first in range(0, len(rows), _BLOCK):
        _insert(store, table, rows[first : first + _BLOCK])


def _insert_months(
    store: Store, table: str, names: tuple[str, ...], sums: dict[tuple[Any, ...], list[int]]
) -> None:
    months: dict[tuple[Any, ...], list[int]] = {}
    for (day, *rest), figures in sums.items():
        month = month_of(day)
        key = (month, *rest)
        days = months[key][-1] if key in months else 0
        _add(months, key, [*figures, 0])
        months[key][-1] = days | 1 << (day - first_day(month))
    _insert_sums(store, table, ("month", *names, "days"), months)


def _insert(store: Store, table: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    columns = ", ".join(map(quoted, rows[0]))
    with store.database.alone() as connection:
        if isinstance(connection, psycopg.Connection):
            into = f"COPY {table} ({columns}) FROM STDIN"
            with connection.cursor() as cursor, cursor.copy(into) as copy:
                for row in rows:
                    copy.write_row(tuple(row.values()))
            return
        values = ", ".join("?" * len(rows[0]))
        # The contents of a benchmark need not survive a power failure.
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        connection.executemany(
            f"INSERT INTO {table} ({columns}) VALUES ({values})",
            [tuple(row.values()) for row in rows],
        )
        connection.execute("COMMIT")
