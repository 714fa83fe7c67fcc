"""Replies of many releases become one shape, and what is not understood is seen."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.model import SECOND
from jobsight.scheduler.adapters.json import adapt_jobs, adapt_nodes, adapt_partitions, decode_json
from jobsight.scheduler.adapters.sacct import choose_columns, jobs_from_rows
from jobsight.scheduler.records import AdaptError, JobRecord, SourceError
from tests.scheduler import shapes

DATA = Path(__file__).parents[2] / "data" / "slurm"
HOSTILE = 'x Account=victim UserId=root(0) %(user)s "\n|\x01'


def only(document: dict[str, Any], cluster: str = "") -> JobRecord:
    jobs = adapt_jobs(document, cluster)
    assert jobs.problems == []
    (record,) = jobs.records
    return record


@pytest.mark.parametrize("shape", ["old_accounting", "new_accounting"])
def test_the_accounting_in_both_shapes(shape: str) -> None:
    record = only(shapes.reply(getattr(shapes, shape)()))
    info = record.info
    assert (info.cluster, info.job_id, info.array_job_id, info.array_task_id) == ("hpc", 12, 10, 3)
    assert (info.het_job_id, info.het_offset) == (None, None)
    assert (info.user, info.account, info.partition, info.name) == (
        "alice", "alpha", "gpu", "train",
    )  # fmt: skip
    assert (info.nodes, info.cpus, info.memory) == (("cn1", "cn2"), 8, 8 * 2**30)
    assert (info.submit, info.start, info.end) == tuple(
        second * SECOND for second in (shapes.SUBMIT, shapes.START, shapes.END)
    )
    assert (info.state, info.exit_code, info.exit_signal) == ("FAILED", 3, None)
    assert info.time_limit == 600 * SECOND
    # The job's own CPU time of 0 is none; its steps have it.
    assert record.cpu_time == 42 * SECOND + 1_000_000
    assert [step.step for step in record.steps] == ["batch", "0"]
    assert record.steps[1].memory_peak == 7 * 2**20
    assert (record.steps[0].exit_code, record.steps[0].exit_signal) == (None, 9)
    assert record.info.tres is not None
    assert record.info.tres["gres/gpu:a100"] == 2
    assert record.info.gpus == 2
    assert (record.comment, record.reservation, record.reason) == (
        "a note", None, "NonZeroExitCode",
    )  # fmt: skip
    if shape == "new_accounting":
        assert (info.sluid, info.restart_count) == ("s2R8DTTQ69MPGB", 2)


def test_both_shapes_of_the_controller_are_equal() -> None:
    old = only(shapes.reply(shapes.old_controller()))
    new = only(shapes.reply(shapes.new_controller(sluid=None)))
    assert msgspec.to_builtins(old) == msgspec.to_builtins(new)
    assert (old.info.restart_count, old.info.uid, old.info.exit_code) == (2, 1002, 3)
    assert old.info.command == "/home/alice/train.sh"


def test_controller_and_accounting_agree() -> None:
    one = only(shapes.reply(shapes.old_controller())).info
    other = only(shapes.reply(shapes.old_accounting())).info
    for field in one.__struct_fields__:
        if field not in ("uid", "command", "restart_count"):
            assert getattr(one, field) == getattr(other, field), field


def test_a_waiting_job_has_no_start_and_a_running_one_no_end() -> None:
    waits = only(shapes.reply(shapes.new_controller(job_state=["PENDING"], nodes="")))
    assert (waits.info.start, waits.info.end, waits.info.exit_code) == (None, None, None)
    assert waits.expected_start == shapes.START * SECOND
    assert not waits.ran
    runs = only(shapes.reply(shapes.old_controller(job_state="RUNNING")))
    assert (runs.ran, runs.info.end, runs.info.exit_code) == (True, None, None)
    state = {"current": "CANCELLED", "reason": "None"}
    never = only(shapes.reply(shapes.old_accounting(state=state, nodes="None assigned", steps=[])))
    assert (never.ran, never.info.state) == (False, "CANCELLED")


def test_the_id_of_a_het_job() -> None:
    record = only(shapes.reply(shapes.old_accounting(het={"job_id": 11, "job_offset": 1})))
    assert (record.info.het_job_id, record.info.het_offset) == (11, 1)


def test_an_exit_code_that_contradicts_the_state_is_not_believed() -> None:
    success = {"status": "SUCCESS", "return_code": 0}
    jobs = adapt_jobs(shapes.reply(shapes.old_accounting(exit_code=success)))
    assert jobs.records[0].info.exit_code is None
    assert [problem.field for problem in jobs.problems] == ["exit_code"]


def test_a_field_that_is_not_understood_is_kept_and_reported() -> None:
    odd = {"allocated": "cpu is 4", "requested": []}
    jobs = adapt_jobs(shapes.reply(shapes.old_accounting(nodes="cn[", tres=odd)))
    (record,) = jobs.records
    assert record.raw == {"nodes": "cn[", "tres.allocated": "cpu is 4"}
    assert {problem.field for problem in jobs.problems} == {"nodes", "tres.allocated"}
    assert record.info.user == "alice"


def test_a_reply_that_is_not_understood_is_no_empty_list() -> None:
    for document in ([], {}, {"jobs": None}, {"jobs": {}}, {"jobs": [{"id": 1}]}, {"jobs": [3]}):
        with pytest.raises(AdaptError):
            adapt_jobs(document)
    with pytest.raises(AdaptError, match="gave no JSON"):
        decode_json(b"slurm_load_jobs error: Unable to contact", "squeue")
    with pytest.raises(SourceError, match="Protocol authentication error"):
        adapt_jobs({"jobs": [], "errors": [{"error": "Protocol authentication error"}]})
    assert adapt_jobs({"jobs": [], "errors": [{"error_number": 9003}]}).records == []
    assert adapt_jobs(shapes.reply()).records == []


def test_one_broken_job_does_not_hide_the_others() -> None:
    jobs = adapt_jobs(shapes.reply({"name": "x"}, shapes.new_accounting()))
    assert [record.info.job_id for record in jobs.records] == [12]
    assert "no job id" in jobs.problems[0].reason


@given(st.text(max_size=60) | st.just(HOSTILE))
def test_names_are_only_names(name: str) -> None:
    data = json.dumps(shapes.reply(shapes.old_controller(name=name))).encode()
    info = only(decode_json(data, "squeue")).info
    assert info.name == (None if name in ("", "(null)") else name)
    assert (info.user, info.account) == ("alice", "alpha")


def test_what_is_not_quite_json_is_read_too() -> None:
    data = json.dumps(shapes.reply(shapes.old_controller(name="NAME"))).encode()
    for odd, name in ((b"a\tb\nc", "a\tb\nc"), (b"\\ud800", "\\ud800")):
        assert only(decode_json(data.replace(b"NAME", odd), "squeue")).info.name == name
    document = data.replace(b'"priority": 4294901759', b'"priority": NaN')
    jobs = adapt_jobs(decode_json(document, "squeue"))
    assert (jobs.records[0].info.name, jobs.problems[0].field) == ("NAME", "priority")
    with pytest.raises(AdaptError, match="no JSON"):
        decode_json(data[:-30], "squeue")


def test_bytes_that_are_no_text() -> None:
    data = json.dumps(shapes.reply(shapes.old_controller(name="NAME"))).encode()
    info = only(decode_json(data.replace(b"NAME", b"a\xff\xfeb\xc3"), "squeue")).info
    assert info.name == r"a\xff\xfeb\xc3"


def test_recorded_json_and_text_of_one_moment_agree() -> None:
    jobs = adapt_jobs(decode_json((DATA / "sacct.json").read_bytes(), "sacct"))
    assert len(jobs.records) == 54
    assert {problem.field for problem in jobs.problems} == {"exit_code"}
    by_id = {record.info.job_id: record for record in jobs.records}
    header, *lines = (DATA / "sacct-all-fields.psv").read_text().splitlines()
    names = header.split("|")
    # Without a mark that cannot be guessed, rows with the separator in a name or a command cannot
    # be read: they are left out here, and their steps are without a job.
    rows = [dict(zip(names, line.split("|"), strict=True))
            for line in lines if line.count("|") == len(names) - 1]  # fmt: skip
    text = jobs_from_rows(rows, "", "sacct")
    assert text.records
    assert {problem.reason for problem in text.problems} == {"is a step without its job"}
    assert len(text.records) >= 48
    for record in text.records:
        other = by_id[record.info.job_id]
        for field in record.info.__struct_fields__:
            if field not in ("exit_code", "uid", "source"):
                assert getattr(record.info, field) == getattr(other.info, field), (record, field)
        assert [step.step for step in record.steps] == [step.step for step in other.steps]
        if record.cpu_time is not None:
            # Text is cut to milliseconds in each step.
            assert abs(record.cpu_time - (other.cpu_time or 0)) <= len(record.steps) * 1_000_000
    failed = {record.info.job_id: record.info.exit_code for record in text.records}
    assert (failed[12], failed[14]) == (42, 127)


def test_recorded_queue_and_nodes() -> None:
    jobs = adapt_jobs(decode_json((DATA / "squeue.json").read_bytes(), "squeue"))
    assert jobs.problems == []
    assert (jobs.release, len({record.info.job_id for record in jobs.records})) == (
        "22.05.8", len(jobs.records),
    )  # fmt: skip
    exits = {record.info.job_id: record.info.exit_code for record in jobs.records}
    assert exits[12] == 42
    nodes = adapt_nodes(decode_json((DATA / "sinfo.json").read_bytes(), "sinfo"), "lab")
    assert nodes.problems == []
    first = nodes.records[0]
    assert (first.cluster, first.name, first.state, first.cpus) == ("lab", "node1", "ALLOCATED", 2)
    assert (first.memory, first.gres, first.load) == (2**32, {"gpu:fake": 2}, 0.27)
    assert first.partitions == ("main", "short")


def test_partitions_in_both_shapes() -> None:
    new = {
        "name": "gpu", "nodes": {"configured": "cn[1-2]", "total": 2}, "cpus": {"total": 64},
        "maximums": {"time": shapes.wrapped(120)}, "partition": {"state": ["UP"]},
        "tres": {"configured": "cpu=64,mem=2G"}, "priority": {"tier": 1, "job_factor": 1},
        "qos": {"allowed": "", "assigned": "long"}, "accounts": {"allowed": "a,b", "deny": ""},
    }  # fmt: skip
    old = {
        "name": "gpu", "nodes": "cn[1-2]", "total_nodes": 2, "total_cpus": 64, "state": "UP",
        "max_time_limit": 120, "tres": "cpu=64,mem=2G", "priority_tier": 1,
        "priority_job_factor": 1, "qos": "long", "allowed_accounts": "a,b",
    }  # fmt: skip
    (one,) = adapt_partitions({"partitions": [new]}, "c").records
    (other,) = adapt_partitions({"partitions": [old]}, "c").records
    assert one == other
    assert (one.nodes, one.time_limit, one.state) == (("cn1", "cn2"), 7200 * SECOND, "UP")


def test_columns_that_this_sacct_has() -> None:
    known = ["JobIDRaw", "JobID", "State", "Start", "End", "User", "JobName", "alloctres"]
    assert "AllocTRES" in choose_columns(known)
    assert "Restarts" not in choose_columns(known)
    with pytest.raises(AdaptError, match="does not list the columns End"):
        choose_columns(name for name in known if name != "End")
