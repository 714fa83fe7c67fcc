"""Faults in single values of replies; each test failed before its fault was mended."""

import json

import pytest

from jobsight.scheduler.adapters.json import adapt_jobs, adapt_nodes, decode_json, stream_jobs
from jobsight.scheduler.adapters.sacct import jobs_from_rows
from jobsight.scheduler.adapters.sinfo import NODE_COLUMNS, nodes_from_rows
from jobsight.scheduler.records import AdaptError, SourceError
from jobsight.scheduler.sources.commands import split_records
from tests.scheduler import shapes

ROW = {"JobIDRaw": "7", "JobID": "7", "State": "COMPLETED", "Start": "1794720981",
       "End": "1794721281", "User": "alice", "JobName": "x", "NodeList": "n1"}  # fmt: skip


# Fault 10: a value that cannot be stored is reported and left out; the job is kept.
@pytest.mark.parametrize(
    ("field", "value"),
    [("cpus", 2**70), ("priority", -(2**70)), ("cpus", -5), ("node_count", float("inf"))],
)
def test_a_number_that_cannot_be_stored_is_left_out(field: str, value: object) -> None:
    jobs = adapt_jobs(shapes.reply(shapes.old_controller(**{field: value}, tres_alloc_str="")))
    (record,) = jobs.records
    assert record.info.cpus in (8, None)
    assert [problem.field for problem in jobs.problems] == [field]
    json.dumps(record.raw)


# Fault 10: lone surrogates are escaped like bytes that are not UTF-8.
def test_lone_surrogates_are_escaped() -> None:
    (record,) = adapt_jobs(shapes.reply(shapes.old_controller(name="a\ud800", cpus={"\ud800": 1})))
    assert record.info.name == "a\\ud800"
    assert record.raw == {"cpus": {"\\ud800": 1}}


# Fault 10: deep nesting is an error of the reply, not a traceback.
def test_deep_nesting_is_an_error_of_the_reply() -> None:
    data = b'{"jobs": [{"job_id": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}"
    with pytest.raises(AdaptError, match="nested too deeply"):
        decode_json(data, "sacct")
    with pytest.raises(AdaptError, match="nested too deeply"):
        list(stream_jobs([data], "sacct", "c", "sacct"))


# Fault 10: an integer of thousands of digits costs its field.
def test_an_integer_of_thousands_of_digits() -> None:
    data = json.dumps(shapes.reply(shapes.old_controller(cpus=4711, tres_alloc_str=""))).encode()
    jobs = stream_jobs([data.replace(b"4711", b"9" * 5000)], "squeue", "c", "squeue")
    assert [record.info.job_id for record in jobs] == [12]
    assert [problem.field for problem in jobs.problems] == ["cpus"]


# Fault 10: a row without a job id costs itself.
def test_a_row_without_a_job_id() -> None:
    jobs = jobs_from_rows([ROW, ROW | {"JobIDRaw": ""}, ROW | {"JobIDRaw": "8"}], "c", "sacct")
    assert [record.info.job_id for record in jobs] == [7, 8]
    assert [problem.field for problem in jobs.problems] == ["JobIDRaw"]
    without = {name: value for name, value in ROW.items() if name != "JobIDRaw"}
    with pytest.raises(AdaptError, match="none of 1 rows"):
        list(jobs_from_rows([without], "c", "sacct"))


# Fault 11: lines of a login script before the rows are no node.
def test_a_banner_is_not_a_node() -> None:
    output = b"Welcome to the cluster\nMaintenance on Monday\nn1~main~\nn2~main~\n"
    assert split_records(output, "~", 2, "sinfo") == [["n1", "main"], ["n2", "main"]]
    empty = dict.fromkeys(NODE_COLUMNS, "")
    rows = [empty | {"NodeList": name, "PartitionName": "main"} for name in ("n1", "Hello you")]
    nodes = nodes_from_rows(rows, "c")
    assert [node.name for node in nodes.records] == ["n1"]
    assert [problem.field for problem in nodes.problems] == ["NodeList"]


# Fault 11: a reply with Slurm's errors is not complete, whatever it has.
def test_a_reply_with_errors_and_records_is_not_complete() -> None:
    errors = [{"error_number": 1007, "error": "Protocol authentication error"}]
    document = {"nodes": [{"name": "n1"}], "errors": errors}
    with pytest.raises(SourceError, match="Protocol authentication error"):
        adapt_nodes(document, "c")
    with pytest.raises(AdaptError, match="has no list"):
        adapt_nodes({}, "c")


# Fault 20: messages have no words of Python's own exceptions.
@pytest.mark.parametrize("value", [{"a": 1}, [1], "twelve", 1.5])
def test_messages_are_not_those_of_python(value: object) -> None:
    controller = shapes.old_controller(
        cpus=value, job_state=value, exit_code=value, time_limit=value, tres_alloc_str=value
    )
    problems = " ".join(map(str, adapt_jobs(shapes.reply(controller)).problems))
    assert problems
    for words in ("object has no attribute", "invalid literal", "could not convert", "unpack"):
        assert words not in problems
