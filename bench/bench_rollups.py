"""Daily rollups: what they cost and what they save; and the naming of many paths."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import func, select

from bench.figures import Figures
from bench.peer_venv import scratch_directory
from jobsight.model import (
    SECOND,
    Batch,
    ExecutableUse,
    JobInfo,
    JobPart,
    JobTotals,
    Sighting,
)
from jobsight.software.naming import adopt_rules, name_all_new
from jobsight.software.rules import RuleSet
from jobsight.store.rollups.rollups import sum_up_all
from jobsight.store.rollups.usage import Question, usage
from jobsight.store.schema.tables import runs
from jobsight.store.store import Store

RUNS = 50_000
PATHS = 100_000
USERS = 200
#: 2026-01-01.
START = 1_767_225_600
BATCH_SIZE = 250

PROGRAMS = [
    b"/apps/easybuild/software/%s/%d.%d-foss-2023a/bin/%s" % (name, major, minor, name.lower())
    for name in (b"GROMACS", b"VASP", b"OpenFOAM", b"LAMMPS", b"ABINIT", b"CP2K", b"R", b"ORCA")
    for major in (2022, 2023, 2024)
    for minor in range(3)
]


def fill(store: Store) -> None:
    """A year of jobs, each with four programs on one node."""
    choose = random.Random(5)
    for first in range(0, RUNS, BATCH_SIZE):
        jobs, parts = [], []
        # Jobs come in arrays: some users at a time, on a day or two.
        day, users = choose.randrange(365), choose.sample(range(USERS), 4)
        for job in range(first + 1, first + BATCH_SIZE + 1):
            start = (START + day * 86400 + choose.randrange(86400)) * SECOND
            end = start + choose.randrange(60, 40_000) * SECOND
            cpus = choose.choice((1, 8, 64))
            cpu_time = int((end - start) * cpus * choose.uniform(0.3, 1))
            user = choose.choice(users)
            jobs.append(
                JobInfo(
                    cluster="bench", job_id=job, source="slurm", start=start, end=end, cpus=cpus,
                    user=f"user{user}", account=f"account{user % 20}", partition="batch",
                    state="COMPLETED", memory=cpus << 32,
                )
            )  # fmt: skip
            shares = dict.fromkeys(choose.sample(PROGRAMS, 3), 0.3) | {b"/usr/bin/bash": 0.05}
            uses = [
                ExecutableUse(path=path, executions=3, cpu_time=int(cpu_time * share))
                for path, share in shares.items()
            ]
            totals = JobTotals(time=end, cpu_source="cgroup v2", cpu_time=cpu_time)
            sighting = Sighting("bench", job, f"n{job % 500}", "boot", start)
            parts.append(
                JobPart(
                    sighting=sighting, epoch="life", totals=totals, executables=uses, final=True
                )
            )
        store.write(
            Batch(
                cluster="bench", node="n", spool="s", sequence=first, written=START * SECOND,
                monotonic=1, agent="bench", jobs=jobs, parts=parts,
            )
        )  # fmt: skip


def timed(work: Callable[[], object]) -> float:
    """The CPU seconds of this process: all of it happens here, and others may be at work, too."""
    start = time.process_time()
    work()
    return time.process_time() - start


def by_user_from_runs(store: Store) -> object:
    """What the sums spare: every run of the year, read and added up by the database."""
    length = runs.c.end - runs.c.start
    core_time = func.sum(runs.c.cpus * length / 1000)
    columns = (runs.c.user, func.count(), func.sum(runs.c.cpu_time / 1000), core_time)
    query = select(*columns).group_by(runs.c.user)
    with store.database.read() as connection:
        return connection.execute(query.where(runs.c.start >= START * SECOND)).all()


def by_user_from_sums(store: Store) -> object:
    with store.database.read() as connection:
        return usage(connection, Question(by=("user",), since=START // 86400))


def hostile_paths(count: int) -> list[bytes]:
    choose = random.Random(9)
    heads = [b"/apps/easybuild/software/A%d/1.%d-foss/bin", b"/home/user%d/code%d", b"/x%d/%d"]
    return [
        choose.choice(heads) % (choose.randrange(10**6), place) + b"/a" for place in range(count)
    ]


def insert_paths(store: Store, paths: list[bytes]) -> None:
    rows = [{"digest": place.to_bytes(16), "path": path} for place, path in enumerate(paths)]
    with store.database.write() as transaction:
        transaction.execute_many("INSERT INTO paths (digest, path) VALUES (:digest, :path)", rows)


def naming(folder: Path, rules: RuleSet, count: int) -> float:
    with Store.open(folder / f"paths-{count}.db") as store:
        insert_paths(store, hostile_paths(count))
        return timed(lambda: name_all_new(store.database, rules))


def main() -> None:
    figures = Figures()
    rules = RuleSet.ready()
    # Next to the project and not in /tmp, which is memory on some machines.
    with scratch_directory() as name:
        folder = Path(name)
        with Store.open(folder / "store.db") as store:
            written = timed(lambda: fill(store))
            adopt_rules(store.database, rules)
            name_all_new(store.database, rules)
            summed = timed(lambda: sum_up_all(store.database))
            figures.row(
                f"daily rollups of {RUNS:,} runs with 4 programs each",
                f"writing the same runs: 1.0 ({written:.1f} s)",
                f"{summed / written:.2f} ({RUNS / summed:,.0f} runs a second)",
                "2.5 or less",
                reached=summed <= 2.5 * written,
            )
            from_runs = min(timed(lambda: by_user_from_runs(store)) for _ in range(5))
            from_sums = min(timed(lambda: by_user_from_sums(store)) for _ in range(5))
            figures.row(
                f"a year's use by user, {RUNS:,} runs",
                f"adding up the runs: 1.0 ({from_runs * 1000:.0f} ms)",
                f"{from_sums / from_runs:.2f} ({from_sums * 1000:.0f} ms)",
                "0.5 or less",
                reached=from_sums <= 0.5 * from_runs,
            )
        once, twice = naming(folder, rules, PATHS), naming(folder, rules, 2 * PATHS)
        figures.row(
            f"naming of {2 * PATHS:,} distinct paths by the ready rules",
            f"{PATHS:,} paths: 1.0 ({once:.1f} s)",
            f"{twice / once:.1f} ({twice:.1f} s)",
            "2.5 or less",
            reached=twice / once <= 2.5,
        )
    figures.end()


if __name__ == "__main__":
    main()
