"""What a node ran and reported, on both databases."""

from array import array

from jobsight.model import (
    SECOND,
    Batch,
    GpuFault,
    GpuUse,
    JobInfo,
    JobPart,
    JobTotals,
    Series,
    Sighting,
)
from jobsight.store.read.nodes import (
    agent_of_node,
    agents_of_cluster,
    gpu_faults,
    gpus_of_node,
    runs_on_node,
    series_of_runs,
)
from jobsight.store.read.visibility import EVERYTHING, Visibility, VisibleUser
from jobsight.store.store import Store

START = 1_700_000_000 * SECOND
HOUR = 3600 * SECOND


def batch(node: str, *jobs: JobInfo, gpus: list[GpuUse] | None = None) -> Batch:
    """One node's report of some jobs, each with a time series of an hour."""
    parts = []
    for info in jobs:
        start = info.start or 0
        times = array("q", range(start, start + HOUR + 1, 600 * SECOND))
        cpu = array("q", (2 * (time - start) for time in times))
        parts.append(
            JobPart(
                sighting=Sighting(
                    cluster=info.cluster, job_id=info.job_id, node=node, boot_id="b", birth=start
                ),
                series=Series(times=times, columns={"cpu.time": cpu}),
                totals=JobTotals(time=times[-1], cpu_source="cgroup v2", cpu_time=cpu[-1]),
                epoch="e",
                gpus=gpus or [],
                final=info.end is not None,
            )
        )
    now = START + 10 * HOUR
    return Batch(
        cluster="alpha", node=node, spool="s", sequence=1, written=now, monotonic=now, agent="1.0",
        jobs=list(jobs), parts=parts,
    )  # fmt: skip


def job(number: int, start: int, **fields: object) -> JobInfo:
    given = {"user": "alice", "end": start + HOUR, "state": "COMPLETED", "source": "slurm"}
    return JobInfo(cluster="alpha", job_id=number, start=start, **(given | fields))  # type: ignore[arg-type]


def fill(store: Store) -> None:
    jobs = [
        job(1, START),
        job(2, START + 2 * HOUR, user="bob"),
        job(3, START + 4 * HOUR, state="NODE_FAIL"),
        job(4, START + 5 * HOUR, end=None, state="RUNNING"),
    ]
    store.write(batch("n1", *jobs), received=START + 10 * HOUR)
    store.write(batch("n2", job(5, START)), received=START + 11 * HOUR)


def ids(store: Store, visible: Visibility = EVERYTHING, **between: int) -> list[int]:
    interval = {"since": START - HOUR, "until": START + 10 * HOUR} | between
    found = runs_on_node(
        store.database, "alpha", "n1", limit=10, visibility=visible, since=interval["since"],
        until=interval["until"],
    )  # fmt: skip
    return [run.info.job_id for run in found]


def test_runs_of_a_node_are_found_by_time_and_viewer(store: Store) -> None:
    fill(store)
    assert ids(store) == [4, 3, 2, 1]
    assert ids(store, since=START + 3 * HOUR + SECOND) == [4, 3]
    assert ids(store, until=START + HOUR) == [1]
    assert ids(store, Visibility(users=(VisibleUser("bob"),))) == [2]
    assert ids(store, Visibility()) == []
    failed = runs_on_node(
        store.database, "alpha", "n1", since=START, until=START + 9 * HOUR, limit=10,
        visibility=EVERYTHING, state="NODE_FAIL",
    )  # fmt: skip
    assert [run.info.job_id for run in failed] == [3]


def test_series_are_those_of_the_node_and_the_interval(store: Store) -> None:
    fill(store)
    runs = store.runs(limit=10)
    wanted = [run.id for run in runs if run.info.job_id in (1, 5)]
    found = list(
        series_of_runs(store.database, wanted, "n1", ("cpu.time",), START, START + 1800 * SECOND)
    )
    # Job 5 ran on the other node.
    assert [series.node for series in found] == ["n1"]
    assert found[0].times[-1] == START + 1800 * SECOND
    assert list(found[0].columns["cpu.time"])[-1] == 3600 * SECOND


def test_agents_are_those_that_sent_a_batch(store: Store) -> None:
    fill(store)
    agent = agent_of_node(store.database, "alpha", "n2")
    assert agent is not None
    assert (agent.version, agent.received) == ("1.0", START + 11 * HOUR)
    assert agent_of_node(store.database, "alpha", "n3") is None
    assert {*agents_of_cluster(store.database, "alpha")} == {"n1", "n2"}


def test_gpus_and_their_faults(store: Store) -> None:
    faults = [GpuFault(kind="xid", count=2, last=START + HOUR, code=79)]
    gpus = [
        GpuUse(key="0", uuid="GPU-a", name="H200", first_seen=START, last_seen=START + HOUR,
               held_time=HOUR, memory_total=2**37, faults=faults),
        GpuUse(key="1", uuid="GPU-b", name="H200", first_seen=START, last_seen=START + HOUR,
               held_time=HOUR, faults=[]),
    ]  # fmt: skip
    store.write(batch("n1", job(1, START), gpus=gpus), received=START + HOUR)
    known = gpus_of_node(store.database, "alpha", "n1", START)
    assert [(gpu.key, gpu.uuid, gpu.memory_total) for gpu in known] == [
        ("0", "GPU-a", 2**37),
        ("1", "GPU-b", None),
    ]
    assert gpus_of_node(store.database, "alpha", "n1", START + HOUR) == []
    [found] = gpu_faults(store.database, "alpha", "n1", START)
    assert (found.key, found.faults) == ("0", faults)
