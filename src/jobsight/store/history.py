"""Earlier runs of the same work, the tasks of an array, waits of the queue, and batch scripts.

Every query is bounded: the latest 200 runs of a work, 2,000 tasks of an array, 5,000 waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jobsight.model import Run
from jobsight.store.database import Database
from jobsight.store.findings.rows import SQL as FINDINGS_SQL
from jobsight.store.read import pseudonyms, viewed
from jobsight.store.sql.load import load_statements

if TYPE_CHECKING:
    from jobsight.store.read.queries import RunFilter

_SQL: Final = load_statements("history")
#: Runs of a work that are read.
MAX_EARLIER: Final = 200
MAX_TASKS: Final = 2000
MAX_WAITS: Final = 5000
MAX_PROGRAM_USES: Final = 2000
#: Works of one name that a run is compared with.
_MAX_WORKS: Final = 50


class EarlierRun(NamedTuple):
    """A run of the same work. None is not known."""

    id: int
    job_id: int
    start: int
    end: int | None
    state: str
    exit_code: int | None
    exit_signal: int | None
    submit: int | None
    time_limit: int | None
    cpus: int | None
    memory: int | None
    gpus: int | None
    partition: str | None
    cpu_time: int | None
    memory_used_peak: int | None
    gpu_count: int | None
    gpu_unused_count: int | None
    gpu_held_time: int | None
    #: To be read by :func:`jobsight.findings.packed.decode_figures`.
    figures: bytes

    @property
    def elapsed(self) -> int | None:
        return None if self.end is None else max(self.end - self.start, 0)


class Work(NamedTuple):
    """A work: runs of the same script, name and programs, or programs."""

    id: int
    cluster: str
    user: str
    account: str
    #: "script", "name" or "signature".
    kind: str
    name: str
    key: bytes


class WorkUse(NamedTuple):
    """What some runs of a work held."""

    work_id: int
    runs: int
    #: CPUs by nanoseconds.
    held: float
    failed: int
    #: The id of the newest run.
    newest: int


class ArrayTask(NamedTuple):
    """An ended task of an array."""

    task_id: int | None
    start: int
    end: int
    state: str
    cpus: int | None
    memory: int | None
    memory_used_peak: int | None


class Wait(NamedTuple):
    """The shape of a job, and how long it was pending."""

    qos: str | None
    cpus: int
    memory: int
    time_limit: int
    gpus: int
    wait: int


class ProgramUse(NamedTuple):
    """A run of somebody in which a program ran, and the program's CPU time on one node."""

    run_id: int
    user: str
    cluster: str
    cpus: int
    cpu_time: int
    start: int
    end: int
    program_time: int


def script_of_run(database: Database, run_id: int) -> bytes | None:
    """The key of the batch script of a run."""
    with database.query() as transaction:
        row = transaction.execute(_SQL["script_of_run"], {"run_id": run_id}).fetchone()
    return None if row is None or row[0] is None else bytes(row[0])


def works_of_name(database: Database, cluster: str, user: str, name: str) -> list[bytes]:
    """The keys of a user's works of this folded name, the latest first."""
    values = {"cluster": cluster, "user": user, "name": name, "limit": _MAX_WORKS}
    with database.query() as transaction:
        rows = transaction.execute(_SQL["works_of_name"], values).fetchall()
    return [bytes(key) for (key,) in rows]


def work_of_run(database: Database, run_id: int) -> int | None:
    """The work that a run was assigned to."""
    with database.query() as transaction:
        row = transaction.execute(_SQL["work_of_run"], {"run_id": run_id}).fetchone()
    return None if row is None else row[0]


def works_of_key(database: Database, prefix: bytes) -> list[Work]:
    """The works whose key begins with these bytes, the latest first."""
    following = (int.from_bytes(prefix) + 1).to_bytes(len(prefix) + 1)[1:]
    # After the last of all keys there is none.
    end = following if any(following) else b"\xff" * 256
    values = {"key": prefix, "following": end, "limit": _MAX_WORKS}
    with database.query() as transaction:
        rows = transaction.execute(_SQL["works_of_key"], values).fetchall()
    return [_work(row) for row in rows]


def versions_of_work(database: Database, work: Work) -> list[Work]:
    """The scripts of the same user and name, the latest first."""
    values = {"id": work.id, "limit": _MAX_WORKS}
    with database.query() as transaction:
        rows = transaction.execute(_SQL["versions_of_work"], values).fetchall()
    return [_work(row) for row in rows]


def find_work(database: Database, work_id: int) -> Work | None:
    with database.query() as transaction:
        row = transaction.execute(_SQL["work_by_id"], {"id": work_id}).fetchone()
    return None if row is None else _work(row)


def note_scripts(works: Iterable[Work]) -> None:
    """Note that the page of these works is shown, for the log of views."""
    for work in works:
        viewed.note(work.user, f"script {work.key.hex()}")


def _work(row: Sequence[Any]) -> Work:
    work = Work(*row)._replace(key=bytes(row[-1]))
    if not pseudonyms.is_active():
        return work
    return work._replace(
        user=pseudonyms.pseudonym("user", work.user) or "",
        account=pseudonyms.pseudonym("account", work.account) or "",
        name=pseudonyms.pseudonym("job", work.name) or "",
        # The digest of a name tells whether a guess of the name is right.
        key=b"",
    )


def largest_works(database: Database, filter: RunFilter, newest: int, limit: int) -> list[WorkUse]:
    """The works of the newest runs that pass a filter, those that held most first."""
    query = _SQL["largest_works"].replace(":conditions", filter.where())
    values = {**filter.parameters, "newest": newest, "limit": limit}
    with database.query() as transaction:
        rows = transaction.execute(query, values).fetchall()
    return [
        WorkUse(work_id, int(runs), float(held or 0), int(failed or 0), run_id)
        for work_id, runs, held, failed, run_id in rows
    ]


def count_samples(database: Database, run_ids: Sequence[int]) -> int:
    """The number of samples that the store holds of some runs."""
    with database.query() as transaction:
        rows = transaction.look_up(_SQL["samples_of_runs"], [(id,) for id in run_ids])
        return sum(int(samples) for _, samples in rows)


def latest_run(
    database: Database, user: str, *, name: str | None = None, key: bytes | None = None
) -> Run | None:
    """The last judged run of a user's works with this folded name, or with this script."""
    with database.query() as transaction:
        values = {"user": user, "name": name, "key": key}
        row = transaction.execute(_SQL["latest_run"], values).fetchone()
    return None if row is None else Run(*row)


def earlier_runs(database: Database, work_id: int, run_id: int) -> list[EarlierRun]:
    """The latest runs of a work that were stored before a run, by their start."""
    values = {"work_id": work_id, "run_id": run_id, "limit": MAX_EARLIER}
    with database.query() as transaction:
        rows = transaction.execute(_SQL["earlier_runs"], values).fetchall()
    return sorted((EarlierRun(*row) for row in rows), key=lambda run: (run.start, run.id))


def count_short_runs(
    database: Database, work_id: int, run_id: int, since: int, short: int, limit: int
) -> int:
    """Runs of a work since a time that were shorter than ``short``; of the latest ``limit``."""
    values = {
        "work_id": work_id, "run_id": run_id, "since": since, "short": short, "limit": limit,
    }  # fmt: skip
    with database.query() as transaction:
        return int(transaction.execute(_SQL["short_runs"], values).fetchone()[0])


def tasks_of_array(database: Database, cluster: str, array_job_id: int) -> list[ArrayTask]:
    """The ended tasks of an array."""
    values = {"cluster": cluster, "array_job_id": array_job_id, "limit": MAX_TASKS}
    with database.query() as transaction:
        rows = transaction.execute(_SQL["tasks_of_array"], values).fetchall()
    return [ArrayTask(*row) for row in rows]


def figures_of_tasks(
    database: Database, cluster: str, array_job_id: int, limit: int
) -> list[tuple[int | None, bytes]]:
    """The ids and the figures of some ended tasks of an array, the latest first."""
    values = {"cluster": cluster, "array_job_id": array_job_id, "limit": limit}
    with database.query() as transaction:
        rows = transaction.execute(_SQL["judged_tasks_of_array"], values).fetchall()
    return [(task_id, bytes(data)) for task_id, data in rows]


def state_of_array(database: Database, cluster: str, array_job_id: int) -> tuple[int, int]:
    """How many tasks of an array have ended, and a number that grows if one changes."""
    values = {"cluster": cluster, "array_job_id": array_job_id}
    with database.query() as transaction:
        count, changes = transaction.execute(_SQL["state_of_array"], values).fetchone()
    return int(count), int(changes or 0)


def list_waits(
    database: Database, cluster: str, partition: str, since: int, until: int
) -> list[Wait]:
    """The latest waits of a partition between two times."""
    values = {
        "cluster": cluster, "partition": partition, "since": since, "until": until,
        "limit": MAX_WAITS,
    }  # fmt: skip
    with database.query() as transaction:
        return [Wait(*row) for row in transaction.execute(_SQL["waits"], values).fetchall()]


def uses_of_program(database: Database, digest: bytes) -> list[ProgramUse]:
    """The latest uses of a program, by the digest of its path."""
    values = {"digest": digest, "limit": MAX_PROGRAM_USES}
    with database.query() as transaction:
        rows = transaction.execute(_SQL["runs_of_program"], values).fetchall()
    return [ProgramUse(*row) for row in rows]


# --- batch scripts --------------------------------------------------------------------------------


def jobs_without_script(database: Database, cluster: str, job_ids: Sequence[int]) -> set[int]:
    """Those of the jobs that have a run and whose script is not known."""
    missing: set[int] = set()
    with database.query() as transaction:
        keys = [(cluster, job_id) for job_id in job_ids]
        for job_id, script in transaction.look_up(_SQL["scripts_of_jobs"], keys):
            if script is None:
                missing.add(job_id)
    return missing


def store_script(
    database: Database, cluster: str, job_ids: Iterable[int], key: bytes, text: str
) -> None:
    """Store a script and that these jobs ran it."""
    with database.write() as transaction:
        transaction.execute(
            FINDINGS_SQL["insert_script"], {"key": key, "text": text.replace("\0", "")}
        )
        transaction.execute_many(
            _SQL["set_script"],
            [{"cluster": cluster, "job_id": job_id, "key": key} for job_id in job_ids],
        )
