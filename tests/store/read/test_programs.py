"""The use of one program and of the store, on both databases."""

from array import array

from jobsight.model import (
    SECOND,
    Batch,
    ExecutableUse,
    JobInfo,
    JobPart,
    JobTotals,
    Series,
    Sighting,
)
from jobsight.store.read.operations import count_agents, lost_batches, silent_agents, store_size
from jobsight.store.read.programs import find_program, runs_of_program, users_of_program
from jobsight.store.read.visibility import EVERYTHING, Visibility, VisibleUser
from jobsight.store.store import Store

START = 1_700_000_000 * SECOND
HOUR = 3600 * SECOND
GMX = b"/apps/gmx"


def write(store: Store, number: int, user: str | None, sequence: int, **use: int) -> None:
    """One job of an hour on two CPUs that executed a program for half of its CPU time."""
    start = START + number * HOUR
    info = JobInfo(
        cluster="alpha", job_id=number, start=start, end=start + HOUR, user=user, cpus=2,
        state="COMPLETED", source="slurm",
    )  # fmt: skip
    figures = {"executions": 3, "processes": 3, "cpu_time": HOUR // 2} | use
    part = JobPart(
        sighting=Sighting(cluster="alpha", job_id=number, node="n1", boot_id="b", birth=start),
        epoch="e",
        series=Series(times=array("q", [start]), columns={"cpu.time": array("q", [0])}),
        totals=JobTotals(time=start + HOUR, cpu_source="cgroup v2", cpu_time=HOUR),
        executables=[
            ExecutableUse(path=GMX, **figures),
            ExecutableUse(path=b"/bin/sh", executions=1, processes=1, cpu_time=HOUR // 2),
        ],
        final=True,
    )
    batch = Batch(
        cluster="alpha", node="n1", spool="s", sequence=sequence, written=start + HOUR,
        monotonic=start + HOUR, agent="1.0", jobs=[info], parts=[part],
    )  # fmt: skip
    store.write(batch, received=start + HOUR)


def test_the_users_of_a_program_and_its_runs(store: Store) -> None:
    for number, user in enumerate(("alice", "alice", "bob", None), 1):
        write(store, number, user, number, failures=1 if user == "bob" else 0)
    program = find_program(store.database, GMX)
    assert program is not None
    assert (program.path, program.software) == (GMX, None)
    assert find_program(store.database, b"/apps/other") is None
    users = users_of_program(store.database, program.id, START)
    assert [(each.user, each.runs, each.executions, each.failures) for each in users] == [
        ("alice", 2, 6, 0),
        ("", 1, 3, 0),
        ("bob", 1, 3, 1),
    ]
    # Half of the CPU time of two CPUs for an hour, twice.
    assert users[0].core_time == 2 * HOUR
    assert users[0].cpu_time == HOUR
    late = users_of_program(store.database, program.id, START + 3 * HOUR)
    assert [each.user for each in late] == ["", "bob"]
    runs = runs_of_program(store.database, program.id, 10, EVERYTHING)
    assert [run.info.job_id for run in runs] == [4, 3, 2, 1]
    own = runs_of_program(store.database, program.id, 10, Visibility(users=(VisibleUser("bob"),)))
    assert [run.info.job_id for run in own] == [3]


def test_late_agents_and_lost_batches_are_found(store: Store) -> None:
    for number, sequence in enumerate((1, 2, 5, 9), 1):
        write(store, number, "alice", sequence)
    [agents] = count_agents(store.database, START + 5 * HOUR)
    assert (agents.cluster, agents.agents, agents.late) == ("alpha", 1, 0)
    [agents] = count_agents(store.database, START + 6 * HOUR)
    assert agents.late == 1
    [silent] = silent_agents(store.database)
    assert (silent.node, silent.received) == ("n1", START + 5 * HOUR)
    # 3, 4, 6, 7 and 8.
    [lost] = lost_batches(store.database)
    assert lost == ("alpha", "n1", 5)
    size = store_size(store.database)
    assert size.size > 0
    assert (size.free is None) == store.database.postgresql
