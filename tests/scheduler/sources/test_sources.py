"""The ways to ask: commands, slurmrestd over both kinds of socket, recorded files."""

import json
import re
import shutil
import socketserver
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.cli.agent import job_query
from jobsight.config.settings import Settings
from jobsight.errors import ConfigError, JobsightError
from jobsight.model import SECOND
from jobsight.scheduler.adapters.sacct import COLUMNS
from jobsight.scheduler.adapters.squeue import jobs_from_rows
from jobsight.scheduler.cluster_metrics import count_tasks
from jobsight.scheduler.records import AdaptError, SourceError
from jobsight.scheduler.sources.base import open_source
from jobsight.scheduler.sources.commands import command_environment
from jobsight.scheduler.sources.json import JsonSource
from jobsight.scheduler.sources.recorded import RecordedSource
from jobsight.scheduler.sources.rest import RestSource
from jobsight.scheduler.sources.text import TextSource
from tests.scheduler import shapes
from tests.scheduler.adapters.test_squeue import ROW

DATA = Path(__file__).parents[2] / "data" / "slurm"
JOB = {
    "JobIDRaw": "12", "JobID": "10_3", "Cluster": "hpc", "State": "CANCELLED by 0",
    "Submit": "1794720900", "Start": "1794720981", "End": "1794721281", "ElapsedRaw": "300",
    "User": "alice", "UID": "1002", "Account": "alpha", "Partition": "gpu", "NodeList": "cn[1-2]",
    "AllocTRES": "billing=8,cpu=8,gres/gpu=2,mem=8G,node=2", "TimelimitRaw": "10",
    "ExitCode": "0:15", "TotalCPU": "00:42.001", "JobName": "train",
}  # fmt: skip
STEP = {"JobIDRaw": "12.batch", "JobID": "10_3.batch", "State": "CANCELLED", "MaxRSS": "221184",
        "Start": "1794720981", "End": "1794721281", "TotalCPU": "00:42.001",
        "JobName": "batch", "NodeList": "cn1", "ExitCode": "0:15"}  # fmt: skip


class Tools:
    """Answers as sacct and sinfo do, with the mark that the caller chose."""

    def __init__(self, *rows: dict[str, str | bytes], columns: Sequence[str] = COLUMNS) -> None:
        self.rows = rows
        self.columns = columns
        self.commands: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str], timeout: float) -> list[bytes]:
        self.commands.append(command)
        if "--helpformat" in command:
            return [" ".join(self.columns).encode()]
        options = dict(word.split("=", 1) for word in command if "=" in word)
        if command[0] == "sacct":
            names = options["--format"].split(",")
            mark = options["--delimiter"]
        else:
            pairs = re.findall(r"(\w+):(~\w+~)", options["--Format"])
            names, mark = [name for name, _ in pairs], pairs[0][1]
        output = b""
        for row in self.rows:
            for name in names:
                value = row.get(name, "")
                output += (value.encode() if isinstance(value, str) else value) + mark.encode()
            output += b"\n"
        # In pieces that end anywhere, as a pipe gives them.
        return [output[place : place + 7] for place in range(0, len(output), 7)]


def test_rows_of_sacct() -> None:
    tools = Tools(JOB, STEP, JOB | {"JobIDRaw": "13", "JobID": "13+1", "JobName": "b"})
    first, second = TextSource("hpc", run=tools).accounting(0, 100 * SECOND).records
    info = first.info
    assert (info.job_id, info.array_job_id, info.array_task_id) == (12, 10, 3)
    assert (info.state, info.exit_code, info.exit_signal) == ("CANCELLED", None, 15)
    assert (first.cancelled_by, first.cpu_time) == ("0", 42_001_000_000)
    assert (first.steps[0].step, first.steps[0].memory_peak) == ("batch", 221184)
    assert (info.nodes, info.cpus, info.memory) == (("cn1", "cn2"), 8, 8 * 2**30)
    assert (second.info.het_job_id, second.info.het_offset) == (13, 1)
    window = [word for word in tools.commands[-1] if "time=" in word]
    assert window == ["--starttime=1970-01-01T00:00:00", "--endtime=1970-01-01T00:01:40"]


def test_marks_are_new_in_every_call() -> None:
    tools = Tools(JOB)
    source = TextSource("hpc", run=tools)
    for _ in range(2):
        assert source.accounting_of([12]).records
    marks = {word for command in tools.commands for word in command if "--delimiter" in word}
    assert len(marks) == 2


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_any_bytes_may_be_a_name_or_a_comment(name: bytes, comment: bytes) -> None:
    tools = Tools(JOB | {"JobName": name, "Comment": comment}, STEP, JOB | {"JobIDRaw": "14"})
    found = TextSource("hpc", run=tools).accounting_of([12])
    assert [record.info.job_id for record in found.records] == [12, 14]
    assert {record.info.user for record in found.records} == {"alice"}
    text = name.decode("utf-8", "backslashreplace")
    assert found.records[0].info.name == (None if text in ("", "(null)") else text)


def test_rows_that_are_cut_are_an_error() -> None:
    class Cut(Tools):
        def __call__(self, command: Sequence[str], timeout: float) -> list[bytes]:
            output = super().__call__(command, timeout)
            return output if "--helpformat" in command else output[:-6]

    with pytest.raises(AdaptError, match="columns have changed"):
        list(TextSource("hpc", run=Cut(JOB)).accounting_of([12]))


def test_nodes_of_sinfo() -> None:
    row = {"NodeList": "cn1", "PartitionName": "main", "StateComplete": "mixed*+drain",
           "CPUs": "2", "CPUsState": "1/1/0/2", "CPUsLoad": "4.44", "Memory": "4096",
           "FreeMem": "N/A", "Gres": "gpu:fake:2", "Features": "a,b", "UserLong": "root(0)",
           "Timestamp": "1794720981", "Reason": "x=y\nz"}  # fmt: skip
    tools = Tools(row, row | {"PartitionName": "short"})
    (node,) = TextSource("hpc", run=tools).nodes().records
    assert (node.state, node.state_flags) == ("MIXED", ("NOT_RESPONDING", "DRAIN"))
    assert (node.partitions, node.features) == (("main", "short"), ("a", "b"))
    assert (node.reason, node.reason_user, node.load) == ("x=y\nz", "root", 4.44)
    assert (node.memory, node.memory_free) == (2**32, None)


def test_recorded_files() -> None:
    source = RecordedSource("lab", DATA)
    assert "recorded replies" in source.probe()
    assert len(source.accounting(0, 2**62).records) == 54
    assert [r.info.state for r in source.accounting_of([15]).records] == ["OUT_OF_MEMORY"]
    assert len(source.nodes().records) == 4
    with pytest.raises(SourceError, match="holds no recorded replies"):
        RecordedSource("lab", DATA / "nothing").probe()


# --- slurmrestd ---------------------------------------------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    replies: dict[str, Any]
    asked: list[tuple[str, dict[str, str]]]

    def do_GET(self) -> None:
        type(self).asked.append((self.path, dict(self.headers)))
        found = type(self).replies.get(self.path.partition("?")[0])
        if isinstance(found, int) or found is None:
            self.send_response(found or 404)
            body = b"Unable find requested URL."
        else:
            status, found = found if isinstance(found, tuple) else (200, found)
            self.send_response(status)
            body = json.dumps(found).encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "local"

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def slurmrestd(replies: dict[str, Any], path: Path | None = None) -> Iterator[tuple[str, Any]]:
    handler = type("Handler", (_Handler,), {"replies": replies, "asked": []})
    if path is None:
        server: socketserver.BaseServer = socketserver.TCPServer(("127.0.0.1", 0), handler)
        url = f"http://127.0.0.1:{server.server_address[1]}"
    else:
        server = socketserver.UnixStreamServer(str(path), handler)
        url = f"unix:{path}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield url, handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


PATHS = {f"/{part}/v0.0.{number}/jobs": {} for part in ("slurm", "slurmdb") for number in (39, 41)}
REPLIES = {
    "/openapi/v3": {"paths": PATHS},
    "/slurm/v0.0.41/ping": shapes.reply(),
    "/slurm/v0.0.41/jobs": shapes.reply(shapes.new_controller()),
    "/slurmdb/v0.0.41/jobs/": shapes.reply(),
    "/slurmdb/v0.0.41/jobs": shapes.reply(shapes.new_accounting()),
    "/slurmdb/v0.0.41/job/12": shapes.reply(shapes.new_accounting()),
}


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_slurmrestd(kind: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("SLURM_JWT=abc.def\n")
    with slurmrestd(REPLIES, tmp_path / "s" if kind == "unix" else None) as (url, handler):
        source = RestSource("hpc", url, user="alice", token_file=str(token), timeout=60)
        assert source.probe() == "slurmrestd answers, Slurm 24.05.3, v0.0.41 and dbv0.0.41"
        assert [record.info.job_id for record in source.queue().records] == [12]
        assert len(source.accounting(SECOND, 90 * SECOND).records) == 1
        path, headers = handler.asked[-1]
        assert path.endswith("/jobs?start_time=uts1&end_time=uts90")
        assert headers["X-SLURM-USER-NAME"] == "alice"
        assert headers["X-SLURM-USER-TOKEN"] == "abc.def"
        assert source.accounting_of([12]).records[0].info.sluid == "s2R8DTTQ69MPGB"
        with pytest.raises(SourceError, match="404"):
            source.nodes()


def test_runs_of_requeued_jobs_are_asked_for_where_that_is_a_choice() -> None:
    takes = {"get": {"parameters": [{"name": "start_time"}, {"name": "show_duplicates"}]}}
    paths = {"paths": PATHS | {"/slurmdb/v0.0.41/jobs": takes}}
    with slurmrestd(REPLIES | {"/openapi/v3": paths}) as (url, handler):
        list(RestSource("hpc", url, timeout=60).accounting(SECOND, 90 * SECOND))
        assert handler.asked[-1][0].endswith("&show_duplicates=true")


def test_a_slurmrestd_that_does_not_describe_itself() -> None:
    replies: dict[str, Any] = {"/slurm/v0.0.37/ping": shapes.reply(), "/openapi/v3": 500}
    with slurmrestd(replies) as (url, _):
        assert "v0.0.37 and dbv0.0.37" in RestSource("hpc", url, timeout=60).probe()


def test_a_slurmrestd_that_refuses_or_is_away(tmp_path: Path) -> None:
    refused = pytest.raises(SourceError, match="refuses /openapi/v3 with 401")
    with slurmrestd({"/openapi/v3": 401}) as (url, _), refused:
        RestSource("hpc", url, timeout=60).probe()
    with pytest.raises(SourceError, match="does not answer: "):
        RestSource("hpc", url, timeout=60).probe()
    with pytest.raises(SourceError, match=r"nothing does not answer: No such file"):
        RestSource("hpc", f"unix:{tmp_path}/nothing", timeout=60).probe()
    with pytest.raises(ConfigError, match="is not an address"):
        RestSource("hpc", "ftp://x")


# --- the choice ---------------------------------------------------------------------------------


# Fault 17: there was no setting for the directory of Slurm's commands.
def test_commands_are_found_in_the_directory_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings()
    settings.scheduler.source = "text"
    settings.scheduler.slurm_directory = str(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for name in ("sacct", "squeue"):
        text = f"slurm 25.05.2 {' '.join(COLUMNS)}"
        (tmp_path / name).write_text(f"#!/bin/sh\necho {text}\n")
        (tmp_path / name).chmod(0o755)
    assert "25.05.2" in open_source(settings).source.probe()
    # The agent asks with squeue of that directory, and is told when there is none.
    query = job_query(settings, "n1")
    assert query is not None
    with pytest.raises(JobsightError, match="squeue"):
        query()
    settings.scheduler.slurm_directory = None
    if shutil.which("squeue") is None:
        assert job_query(settings, "n1") is None


def test_the_choice_says_why() -> None:
    settings = Settings(cluster="hpc")

    def old(command: Sequence[str], timeout: float, *, given: bytes = b"") -> list[bytes]:
        if "--json" in command:
            return [json.dumps({"meta": {"Slurm": {"release": "22.05.8"}}, "jobs": []}).encode()]
        if "--helpformat" in command:
            return [" ".join(COLUMNS).encode()]
        return [b"slurm 22.05.8\n"] if "--version" in command else []

    choice = open_source(settings, old)
    assert isinstance(choice.source, TextSource)
    assert "rest: scheduler.rest.url is not set" in choice.reason
    assert "22.05 lacks exit codes" in choice.reason

    def new(command: Sequence[str], timeout: float, *, given: bytes = b"") -> list[bytes]:
        return [json.dumps(shapes.reply()).encode()]

    assert isinstance(open_source(settings, new).source, JsonSource)

    def away(command: Sequence[str], timeout: float, *, given: bytes = b"") -> list[bytes]:
        raise SourceError(f"{command[0]} cannot be run: No such file or directory")

    with pytest.raises(SourceError, match=r"no source answers for Slurm: rest: .*json: .*text: "):
        open_source(settings, away)
    settings.scheduler.source = "json"
    assert open_source(settings, away).reason == "json: set by scheduler.source"


# Fault 20: a token that is missing, wrong or expired is named, whatever the status.
def test_a_slurmrestd_that_needs_a_token() -> None:
    error = {"errors": [{"error_number": 1007, "error": "Protocol authentication error"}]}
    everywhere = {"/openapi/v3": (500, error), "/openapi": (500, error)}
    with slurmrestd(everywhere) as (url, _), pytest.raises(SourceError, match="no token is set"):
        RestSource("hpc", url, timeout=60).probe()


# Fault 12: "auto" refuses rest where it refuses json for the same missing exit codes.
def test_the_choice_refuses_rest_without_exit_codes() -> None:
    old = shapes.reply(meta={"Slurm": {"release": "22.05.8"}})
    with slurmrestd(REPLIES | {"/slurm/v0.0.41/ping": old}) as (url, _):
        settings = Settings(cluster="hpc")
        settings.scheduler.rest.url = url

        def run(command: Sequence[str], timeout: float, *, given: bytes = b"") -> list[bytes]:
            return [json.dumps(shapes.reply()).encode()]

        choice = open_source(settings, run)
        assert isinstance(choice.source, JsonSource)
        assert "rest: slurmrestd of 22.05 lacks exit codes" in choice.reason


# Fault 12: squeue's text has the reason, and the pending tasks of an array as a list.
def test_the_text_counts_pending_arrays_and_has_reasons() -> None:
    row = ROW | {"State": "PENDING", "ArrayTaskID": "0-49%5", "Reason": "Priority", "NodeList": ""}
    jobs = jobs_from_rows([row, ROW | {"Reason": "None"}], "hpc")
    pending, running = jobs.records
    assert jobs.problems == []
    assert (pending.array_tasks, pending.reason, pending.info.array_job_id) == (
        "0-49%5", "Priority", 2,
    )  # fmt: skip
    assert count_tasks(pending) == 50
    assert (running.info.array_task_id, running.array_tasks, running.reason) == (1, None, None)
    assert command_environment(["squeue"])["SLURM_BITSTR_LEN"] == "0"
