"""Lists of runs and reports of usage in a store with very many runs, on SQLite and PostgreSQL.

Each list is the first page and its count, as page and API query them: every filter, every sort and
some of both, searches for frequent and rare texts, and a page far down. The peer is slurmdbd's
table of jobs with its keys, in SQLite, asked what `sacct` would request the same filter; it has no
search, no order and no count.

BENCH_RUNS=1000000 is the size of the goal; `make bench` measures a smaller store.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench import run_store
from bench.figures import Figures
from bench.peer_venv import scratch_directory
from bench.run_store import END, FIRST_JOB, START, Run, fill, make_runs, user_name
from jobsight.model import SECOND
from jobsight.reports.pending import Cursor, list_grouped, list_page
from jobsight.server.api.health import read_health
from jobsight.store.read.filters import SORTS, Position, Sort
from jobsight.store.read.visibility import Visibility, VisibleAccount
from jobsight.store.rollups.usage import Question, left_out, usage
from jobsight.store.store import Store
from tests.store import postgresql

RUNS: Final = int(os.environ.get("BENCH_RUNS", "60000"))
ROUNDS: Final = 5
#: Milliseconds of a list, by engine.
GOALS: Final = {"SQLite": 100, "PostgreSQL": 50}
#: Milliseconds of a report of usage.
USAGE_GOAL: Final = 1000

_BUSY = user_name(0)
LISTS: Final[dict[str, dict[str, Any]]] = {
    "all runs": {},
    "all runs, far down": {"cursor": Cursor(run=Position(START + (END - START) // 50, 0))},
    "a busy user": {"user": _BUSY},
    "a user with few runs": {"user": user_name(run_store.USERS - 50)},
    "an account": {"account": "account007"},
    "COMPLETED": {"state": "COMPLETED"},
    "FAILED": {"state": "FAILED"},
    "RUNNING": {"state": "RUNNING"},
    "UNKNOWN": {"state": "UNKNOWN"},
    "NODE_FAIL": {"state": "NODE_FAIL"},
    "a state that no run has": {"state": "BOOT_FAIL"},
    "the last day": {"since": END - 86400 * SECOND},
    "a busy user and a rare state": {"user": _BUSY, "state": "NODE_FAIL"},
    "search by job id": {"search": str(FIRST_JOB + RUNS // 2)},
    "search by the beginning of job ids": {"search": str(FIRST_JOB + RUNS // 2)[:5]},
    "search for a frequent name": {"search": "md_prod"},
    "search for a rare name": {"search": "phonon_17_17"},
    "search for a text that no run has": {"search": "zzzzzz"},
    "search for two characters": {"search": "md"},
    "search in commands": {"search": "jobs/relax"},
    "search and a busy user": {"search": "scf", "user": _BUSY},
    "search and a rare state": {"search": "train", "state": "NODE_FAIL"},
    "a partition": {"partition": "partition3"},
    "a QOS": {"qos": "normal"},
    "a cluster": {"cluster": "south"},
    "a node": {"node": "n0017"},
    "a frequent software": {"software": "gromacs"},
    "a CPU share below": {"cpu_share_below": 0.5},
    "a CPU share that no run has": {"cpu_share_above": 1.5},
    "with GPUs, that no run has": {"gpus": True},
    "a busy user and a partition": {"user": _BUSY, "partition": "partition1"},
    "a busy user and an account of others": {"user": _BUSY, "account": "account150"},
    "a partition and a rare state": {"partition": "partition3", "state": "NODE_FAIL"},
    "two accounts that the viewer may see": {
        "visibility": Visibility(
            accounts=(VisibleAccount("account007"), VisibleAccount("account9"))
        )
    },
    **{f"by {key}": {"sort": Sort(key)} for key in SORTS if key != "start"},
    **{f"by {key}, ascending": {"sort": Sort(key, False)} for key in ("user", "elapsed", "gpus")},
    "a busy user by CPU share": {"user": _BUSY, "sort": Sort("cpu_share")},
    "a user with few runs by elapsed": {
        "user": user_name(run_store.USERS - 50),
        "sort": Sort("elapsed"),
    },
    "a partition by memory": {"partition": "partition3", "sort": Sort("memory_peak")},
    "RUNNING by CPU time": {"state": "RUNNING", "sort": Sort("cpu_time")},
    "a rare state by user": {"state": "NODE_FAIL", "sort": Sort("user")},
    "the last day by elapsed": {"since": END - 86400 * SECOND, "sort": Sort("elapsed")},
    "a frequent name by user": {"search": "md_prod", "sort": Sort("user")},
    "a node by elapsed": {"node": "n0017", "sort": Sort("elapsed")},
}
#: Lists with one row for each array.
GROUPED: Final[dict[str, dict[str, Any]]] = {
    "all runs": {},
    "all runs, far down": {"cursor": Cursor(run=Position(START + (END - START) // 50, 0))},
    "a busy user": {"user": _BUSY},
    "by elapsed": {"sort": Sort("elapsed")},
    "a rare state": {"state": "NODE_FAIL"},
}
USAGE: Final = (("software",), ("software", "user"), ("user",), ("account",), ("partition",))

_PEER_TABLE: Final = """
    CREATE TABLE job_table (job_db_inx INTEGER PRIMARY KEY, id_job, id_array_job, id_array_task,
        id_assoc, id_user, account, partition, job_name, state, cpus_req, time_submit, time_start,
        time_end);
    CREATE UNIQUE INDEX id_job ON job_table (id_job, time_submit);
    CREATE INDEX sacct_def ON job_table (id_user, time_start, time_end);
    CREATE INDEX sacct_def2 ON job_table (id_user, time_end, time_submit);
    CREATE INDEX rollup2 ON job_table (time_end, time_submit);
    CREATE INDEX association ON job_table (id_assoc);
    CREATE INDEX array_job ON job_table (id_array_job);
"""
_PEER: Final = {
    "a busy user": "id_user = 0",
    "COMPLETED": "state = 'COMPLETED'",
    "NODE_FAIL": "state = 'NODE_FAIL'",
    "the last day": f"time_start >= {(END - 86400 * SECOND) // SECOND}",
    "search by job id": f"id_job = {FIRST_JOB + RUNS // 2}",
    "search for a rare name": "job_name = 'phonon_17_17'",
}


def milliseconds(work: Callable[[], object]) -> float:
    """The median of several rounds, the first of which fills the caches and does not count."""
    times = []
    for _ in range(ROUNDS + 1):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[1:]) * 1000


def peer(file: Path) -> dict[str, float]:
    """The same filters on slurmdbd's table."""
    connection = sqlite3.connect(file)
    connection.executescript(_PEER_TABLE)
    rows = map(_peer_row, make_runs(RUNS))
    connection.executemany(f"INSERT INTO job_table VALUES ({', '.join('?' * 14)})", rows)
    connection.commit()
    connection.execute("ANALYZE")
    found = {
        name: milliseconds(
            lambda where=where: connection.execute(  # type: ignore[misc]
                f"SELECT * FROM job_table WHERE {where} ORDER BY time_start DESC LIMIT 50"
            ).fetchall()
        )
        for name, where in _PEER.items()
    }
    connection.close()
    return found


def _peer_row(run: Run) -> tuple[Any, ...]:
    start = run.start // SECOND
    end = 0 if run.end is None else run.end // SECOND
    owner = (run.user * 3, run.user, run.account, run.partition)
    ids = (run.id, run.job_id, run.array_job_id, run.array_task_id)
    return (*ids, *owner, run.name, run.state, run.cpus, start - 600, start, end)


def measure(engine: str, store: Store, beside: dict[str, float], figures: Figures) -> None:
    goal = GOALS[engine]
    for name, filters in LISTS.items():
        spent = milliseconds(
            lambda filters=filters: list_page(store, now=END, limit=50, **filters)  # type: ignore[misc]
        )
        other = f"slurmdbd's table: {beside[name]:.1f} ms" if name in beside else "-"
        figures.row(
            f"list with its count, {RUNS:,} runs, {engine}: {name}",
            other,
            f"{spent:.1f} ms",
            f"{goal} ms",
            reached=spent <= goal,
        )
    for name, filters in GROUPED.items():
        spent = milliseconds(
            lambda filters=filters: list_grouped(store, now=END, limit=50, **filters)  # type: ignore[misc]
        )
        figures.row(
            f"list with arrays as one row, {RUNS:,} runs, {engine}: {name}",
            "-",
            f"{spent:.1f} ms",
            f"{goal} ms",
            reached=spent <= goal,
        )
    for by in USAGE:
        question = Question(by=by)

        def report(question: Question = question) -> None:
            with store.database.read() as connection:
                usage(connection, question)
                left_out(connection, question)

        spent = milliseconds(report)
        figures.row(
            f"usage of a year by {' and '.join(by)}, {RUNS:,} runs, {engine}",
            "-",
            f"{spent:.0f} ms",
            f"{USAGE_GOAL} ms",
            reached=spent <= USAGE_GOAL,
        )
    spent = milliseconds(lambda: read_health(store))
    figures.row(f"health, {RUNS:,} runs, {engine}", "-", f"{spent:.1f} ms", "-")


def main() -> None:
    figures = Figures()
    with scratch_directory() as name:
        folder = Path(name)
        beside = peer(folder / "peer.db")
        with Store.open(folder / "store.db") as store:
            fill(store, RUNS)
            measure("SQLite", store, beside, figures)
        try:
            with postgresql.running() as server, Store.open(server.new_database()) as store:
                fill(store, RUNS)
                measure("PostgreSQL", store, {}, figures)
        except postgresql.Unavailable as reason:
            print(f"PostgreSQL is not measured: {reason}")
    figures.end()


if __name__ == "__main__":
    main()
