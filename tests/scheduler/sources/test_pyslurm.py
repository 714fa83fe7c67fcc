"""PySlurm's recorded answers, given by a module of its name in a real child process."""

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobsight.model import SECOND, JobInfo
from jobsight.scheduler.adapters.json import adapt_jobs, adapt_nodes, decode_json
from jobsight.scheduler.adapters.pyslurm import adapt_accounting
from jobsight.scheduler.fields import count_gpus, numbered_tres
from jobsight.scheduler.records import SourceError
from jobsight.scheduler.scraper import combine_infos
from jobsight.scheduler.sources.commands import stream_command
from jobsight.scheduler.sources.pyslurm import PySlurmSource

DATA = Path(__file__).parents[2] / "data"
MOMENT = 1794714700

#: A module that answers as PySlurm 22.5.3 did, in the older way, the newer way, or both.
MODULE = f"""
import json, os, signal
__version__ = "22.5.3"
DATA = {str(DATA / "pyslurm")!r}

def _load(name):
    with open(os.path.join(DATA, name + ".json")) as file:
        return json.load(file)

class _Old:
    def __init__(self, name):
        self.name = name
    def get(self, **given):
        for time in given.values():
            # As the real one, which hands them to C.
            if not isinstance(time, bytes):
                raise TypeError("expected bytes, %s found" % type(time).__name__)
        return _load(self.name)

class _Record:
    def __init__(self, values):
        self.__dict__.update(values)
    def to_dict(self):
        if getattr(self, "memory_per_node", None):
            raise AttributeError("'Job' object has no attribute 'min_nodes'")
        return dict(self.__dict__)

class _New:
    def __init__(self, name):
        self.name = name
    def load(self, *given):
        return {{key: _Record(value) for key, value in _load(self.name).items()
                if "error" not in value}}
"""
OLD = """
job = lambda: _Old("job")
node = lambda: _Old("node")
partition = lambda: _Old("partition")
slurmdb_jobs = lambda: _Old("slurmdb_jobs")
"""
NEW = """
Jobs, Nodes, Partitions = _New("Jobs"), _New("Nodes"), _New("Partitions")

class db:
    class JobFilter:
        def __init__(self, start_time, end_time):
            self.start_time, self.end_time = start_time, end_time
    class Jobs:
        @staticmethod
        def load(wanted):
            # A het job with a step over both components: the whole answer is lost.
            if wanted.start_time <= 1794714650 < wanted.end_time:
                raise IndexError("list index out of range")
            return [entry for entry in _load("slurmdb_jobs").values()
                    if wanted.start_time <= entry["start"] < wanted.end_time]
"""


@pytest.fixture
def pyslurm(tmp_path: Path) -> Callable[[str], PySlurmSource]:
    def make(text: str) -> PySlurmSource:
        (tmp_path / "pyslurm.py").write_text(MODULE + text)
        environment = dict(os.environ, PYTHONPATH=str(tmp_path), PYTHONDONTWRITEBYTECODE="1")
        run = functools.partial(stream_command, environment=environment)
        return PySlurmSource("lab", timeout=60, run=run, python=sys.executable, clock=time.time_ns)

    return make


def recorded(name: str) -> dict[int, JobInfo]:
    document = decode_json((DATA / "slurm" / name).read_bytes(), name)
    return {record.info.job_id: record.info for record in adapt_jobs(document, "lab").records}


def differences(one: JobInfo, other: JobInfo) -> set[str]:
    return {name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)}


def test_the_queue_is_that_of_the_json(pyslurm: Callable[[str], PySlurmSource]) -> None:
    jobs = pyslurm(OLD).queue()
    expected = recorded("squeue.json")
    found = {record.info.job_id: record.info for record in jobs.records}
    assert found.keys() == expected.keys()
    assert jobs.problems == []
    for job_id, info in found.items():
        # The recording host knew the users' names; where it does not, only the number is there.
        different = differences(info, expected[job_id]) - {"source", "user"}
        if info.start is None and info.state == "CANCELLED":
            # It never ran; the signal is another job's and is not believed.
            assert (info.exit_code, info.exit_signal) == (None, None)
            different -= {"cpus", "exit_code"}
        assert different == set(), (job_id, different)
        assert info.user in (None, expected[job_id].user)


def test_the_accounting_is_that_of_the_json(pyslurm: Callable[[str], PySlurmSource]) -> None:
    found = pyslurm(OLD).accounting(0, (MOMENT + 600) * SECOND)
    expected = recorded("sacct.json")
    by_id = {record.info.job_id: record for record in found.records}
    assert by_id.keys() == expected.keys()
    for job_id, record in by_id.items():
        # It numbers its resources and its QOS and does not tell het jobs; 22.05's JSON lacks the
        # user's number and the exit codes of failed jobs, which PySlurm has.
        different = differences(record.info, expected[job_id])
        lacking = {"source", "uid", "exit_code", "qos", "tres", "gpus", "het_job_id", "het_offset"}
        assert different <= lacking, (job_id, different)
    steps = {step.step for record in by_id.values() for step in record.steps}
    assert {"batch", "0"} <= steps
    assert (by_id[12].info.exit_code, by_id[13].info.exit_signal) == (42, 11)


def test_the_newer_interface(pyslurm: Callable[[str], PySlurmSource]) -> None:
    source = pyslurm(NEW)
    expected = recorded("squeue.json")
    found = source.queue().records
    assert found
    for record in found:
        different = differences(record.info, expected[record.info.job_id])
        # It has no list of resources, and no counter of restarts in this version.
        lacking = {"source", "tres", "gpus", "restart_count", "memory", "command"}
        assert different <= lacking, (record.info.job_id, different)
    nodes = source.nodes().records
    document = decode_json((DATA / "slurm" / "sinfo.json").read_bytes(), "sinfo")
    for node, other in zip(nodes, adapt_nodes(document, "lab").records, strict=True):
        for name in ("name", "state", "cpus", "cpus_allocated", "memory", "gres", "partitions",
                     "load", "version", "host", "booted"):  # fmt: skip
            assert getattr(node, name) == getattr(other, name), name
    (main, short) = source.partitions().records
    assert (main.name, main.time_limit, main.node_count) == ("main", 86400 * SECOND, 4)
    assert short.name == "short"


def test_old_nodes_and_partitions(pyslurm: Callable[[str], PySlurmSource]) -> None:
    source = pyslurm(OLD)
    first = source.nodes().records[0]
    assert (first.load, first.gres) == (0.27, {"gpu:fake": 2})
    newer = pyslurm(NEW).partitions().records
    for one, other in zip(source.partitions().records, newer, strict=True):
        assert (one.time_limit, one.default_time, one.accounts_allowed) == (
            other.time_limit, other.default_time, other.accounts_allowed,
        )  # fmt: skip


def test_one_job_that_raises_costs_a_stretch_of_time(
    pyslurm: Callable[[str], PySlurmSource],
) -> None:
    begin = MOMENT - 7 * 86400
    jobs = pyslurm(NEW).accounting(begin * SECOND, (MOMENT + 86400) * SECOND)
    starts = [record.info.start for record in jobs.records if record.info.start]
    assert any("IndexError" in problem.reason for problem in jobs.problems)
    assert all(abs(start // SECOND - 1794714650) < 86400 for start in starts)


def test_crashes_and_absence_are_answers(pyslurm: Callable[[str], PySlurmSource]) -> None:
    crash = OLD + "\nclass _Crash:\n    def get(self, **given):\n"
    crash += "        os.kill(os.getpid(), signal.SIGSEGV)\nslurmdb_jobs = _Crash\n"
    source = pyslurm(crash)
    with pytest.raises(SourceError, match="failed with -11"):
        source.accounting(0, SECOND)
    assert len(source.queue().records) == 58
    with pytest.raises(SourceError, match=r"PySlurm raised .*OSError\('no controller'\)"):
        pyslurm("def job():\n    raise OSError('no controller')\n").queue()
    with pytest.raises(SourceError, match="has none of node, Nodes"):
        pyslurm("").nodes()
    absent = PySlurmSource(
        "lab", timeout=60, run=stream_command, python=sys.executable, clock=time.time_ns
    )
    with pytest.raises(SourceError, match="PySlurm cannot be imported"):
        absent.probe()


def test_what_cannot_be_read_is_kept(pyslurm: Callable[[str], PySlurmSource]) -> None:
    odd = {"1": {"job_id": 1, "job_state": "NEW_STATE", "nodes": "cn[", "name": "x\udcff"}}
    text = f"class job:\n    def get(self):\n        return json.loads({json.dumps(odd)!r})\n"
    jobs = pyslurm(text).queue()
    assert [record.info.name for record in jobs.records] == ["x\\udcff"]
    assert {problem.field for problem in jobs.problems} >= {"nodes"}


# Fault 9: the accounting of 22.5 takes times as bytes, and its resources by number hide no GPU.
def test_the_accounting_takes_times_as_bytes(pyslurm: Callable[[str], PySlurmSource]) -> None:
    jobs = pyslurm(OLD).accounting((MOMENT - 3600) * SECOND, MOMENT * SECOND)
    assert jobs.records
    assert jobs.problems == []
    with_number = numbered_tres("1=4,2=100,1001=2")
    assert count_gpus(with_number) is None
    assert count_gpus(numbered_tres("1=4,2=100")) == 0


# Fault 9: the controller's count of GPUs counts where the accounting has only numbers.
def test_the_controller_has_the_gpus_by_name() -> None:
    document = {"jobid": 7, "state_str": "RUNNING", "start": MOMENT, "nodes": "n1",
                "tres_alloc_str": "1=4,2=100,4=1,1001=2"}  # fmt: skip
    (accounting,) = adapt_accounting([document], "c").records
    info = JobInfo(cluster="c", job_id=7, source="pyslurm", gpus=2, tres={"gres/gpu": 2, "cpu": 4})
    combined = combine_infos(accounting.info, info)
    assert (combined.gpus, combined.tres, combined.cpus) == (2, info.tres, 4)


# Fault 9: a window of which nothing could be read fails, with one message.
def test_a_window_that_cannot_be_read_fails(pyslurm: Callable[[str], PySlurmSource]) -> None:
    always = (
        OLD
        + """
class _Broken:
    def get(self, **given):
        raise ValueError("no database")
slurmdb_jobs = _Broken
"""
    )
    source = pyslurm(always)
    with pytest.raises(SourceError, match=r"nothing of the accounting could be read.*no database"):
        source.accounting((MOMENT - 30 * 86400) * SECOND, MOMENT * SECOND)


# Fault 9: intervals that are lost have one reason, so they are logged once.
def test_lost_intervals_have_one_reason(pyslurm: Callable[[str], PySlurmSource]) -> None:
    jobs = pyslurm(NEW).accounting((MOMENT - 86400) * SECOND, (MOMENT + 600) * SECOND)
    assert jobs.records
    assert {problem.reason for problem in jobs.problems} == {
        "PySlurm raised IndexError('list index out of range')"
    }
