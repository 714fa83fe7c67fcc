"""What is fuzzed: every parser that reads what others write.

A target takes bytes. It may raise the errors that its callers handle; anything else is a finding:
another exception, a crash or a hang. Samples in ``tests/data/fuzz/NAME`` are where mutation starts;
a case that found something is kept there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from jobsight.errors import JobsightError

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "data" / "fuzz"


class Target(NamedTuple):
    """A parser and the errors that its callers handle."""

    name: str
    parse: Callable[[bytes], object]
    allowed: tuple[type[BaseException], ...] = (JobsightError,)
    #: Longest input, in bytes.
    largest: int = 4096
    #: What mutation inserts whole: the words of the language, where coverage alone would not lead
    #: to them because regular expressions and C code have none.
    words: tuple[str, ...] = ()


class _File:
    """One file in memory that a parser of files reads."""

    def __init__(self, suffix: str) -> None:
        shared = Path("/dev/shm")
        place = shared if os.access(shared, os.W_OK) else None
        self.directory = Path(tempfile.mkdtemp(prefix="jobsight-fuzz-", dir=place))
        self.path = self.directory / f"input{suffix}"

    def write(self, data: bytes) -> Path:
        self.path.write_bytes(data)
        return self.path


_files: list[_File] = []


def _file(suffix: str) -> _File:
    made = _File(suffix)
    _files.append(made)
    return made


def remove_files() -> None:
    """Remove what the targets wrote."""
    while _files:
        shutil.rmtree(_files.pop().directory, ignore_errors=True)


def _wire() -> Target:
    from jobsight.server.limits import estimate_memory, unpacked_size
    from jobsight.server.receiver import _decode
    from jobsight.store.write.validation import BatchError, check
    from jobsight.transport.wire import WireError

    def parse(data: bytes) -> None:
        unpacked_size(data)
        estimate_memory(data)
        check(_decode(data, None))

    return Target("wire", parse, (WireError, BatchError), 65536)


def _settings(suffix: str) -> Target:
    from jobsight.config.load import load_settings

    file = _file(suffix)
    name = f"settings-{suffix.removeprefix('.')}"
    return Target(name, lambda data: load_settings(file.write(data), {}), largest=1500)


def _software_rules() -> Target:
    from jobsight.software.rule_file import read_rules

    file = _file(".yaml")
    return Target("software-rules", lambda data: read_rules(file.write(data)))


def _finding_rules() -> Target:
    from jobsight.findings.rule_file import read_rules

    file = _file(".yaml")
    return Target("finding-rules", lambda data: read_rules(file.write(data)), largest=8192)


def _conditions() -> Target:
    """CEL, as a rule's condition."""
    from jobsight.findings.dimensions import FUNCTIONS
    from jobsight.findings.rule_file import parse_rules
    from jobsight.findings.vocabulary import FIGURES

    def parse(data: bytes) -> None:
        text = msgspec.json.encode(data.decode("utf-8", "replace")).decode()
        parse_rules(
            "input",
            "rules:\n- name: a-rule\n  title: A title\n  text: A text.\n  severity: notice\n"
            f"  help: A help.\n  condition: {text}\n",
        )

    functions = (f".{name}(" for name in FUNCTIONS)
    signs = ("&&", "||", "==", "!=", "<=", " in ", " ? ", " : ", "!", "[", "]", "{", "}", '"', "1u")
    units = ("0x", "1e308", " %", " min", " h", " GiB", "true", "null", "b'", "r'", "int(", "has(")
    return Target("conditions", parse, largest=512, words=(*FIGURES, *functions, *signs, *units))


def _sams_settings() -> Target:
    from jobsight.sams.settings import load_aggregator, load_receiver

    file = _file(".yaml")

    def parse(data: bytes) -> None:
        file.write(data)
        for load in (load_receiver, load_aggregator):
            try:
                load(file.path)
            except JobsightError:
                pass

    return Target("sams-settings", parse, largest=1500)


def _sams_record() -> Target:
    from jobsight.sams.record import parse_job_id, parse_record

    def parse(data: bytes) -> None:
        parse_job_id(data)
        parse_record(data, UTC)

    return Target("sams-record", parse)


def _slurm_json() -> Target:
    from jobsight.scheduler.adapters import json as adapter

    def parse(data: bytes) -> None:
        try:
            list(adapter.stream_jobs([data[:100], data[100:]], "squeue", "c", "json").records)
        except JobsightError:
            pass
        document = adapter.decode_json(data, "squeue")
        adapter.cluster_of(document)
        adapter.release_of(document)
        for adapt in (adapter.adapt_jobs, adapter.adapt_nodes, adapter.adapt_partitions):
            try:
                list(adapt(document, "c").records)
            except JobsightError:
                continue

    return Target("slurm-json", parse, largest=8192)


def _slurm_text() -> Target:
    from jobsight.scheduler.adapters import sacct, sinfo, squeue
    from jobsight.scheduler.adapters.policy import parse_scontrol
    from jobsight.scheduler.sources.commands import iterate_records

    columns = (
        *("JobIDRaw", "JobID", "Cluster", "User", "Account", "State", "Start", "End", "Submit"),
        *("ElapsedRaw", "ExitCode", "ReqTRES", "AllocTRES", "NodeList", "Timelimit", "MaxRSS"),
    )

    def rows(data: bytes, names: tuple[str, ...]) -> Iterator[dict[str, str]]:
        for fields in iterate_records([data], "|", len(names), "sacct"):
            yield dict(zip(names, fields, strict=True))

    def parse(data: bytes) -> None:
        for adapt, names in (
            (lambda given: sacct.jobs_from_rows(given, "c", "sacct"), columns),
            (lambda given: squeue.jobs_from_rows(given, "c"), squeue.COLUMNS),
            (lambda given: sinfo.nodes_from_rows(given, "c"), sinfo.NODE_COLUMNS),
            (lambda given: sinfo.partitions_from_rows(given, "c"), sinfo.PARTITION_COLUMNS),
        ):
            try:
                list(adapt(rows(data, names)).records)
            except JobsightError:
                continue
        parse_scontrol(data.decode("utf-8", "backslashreplace"))

    return Target("slurm-text", parse)


def _slurm_conf() -> Target:
    from jobsight.config.slurm import slurm_cluster_name

    file = _file(".conf")
    return Target("slurm-conf", lambda data: slurm_cluster_name({}, [file.write(data)]))


def _hostlist() -> Target:
    from jobsight.scheduler.hostlist import expand_hosts

    return Target("hostlist", lambda data: expand_hosts(data.decode("latin-1")), (ValueError,), 512)


def _fields() -> Target:
    from jobsight.scheduler import fields
    from jobsight.text import parse_size, path_bytes, readable_path, readable_text
    from jobsight.util.outer import parse_rfc3339

    functions: tuple[Callable[[str], object], ...] = (
        fields.parse_duration, fields.parse_time, fields.parse_amount, fields.hosts, fields.number,
        fields.minutes_or_duration, fields.cpu_time, fields.mebibytes, parse_rfc3339,
        lambda text: parse_size(text, "x"), readable_text, path_bytes,
    )  # fmt: skip

    def parse(data: bytes) -> None:
        readable_path(data)
        text = data.decode("utf-8", "backslashreplace")
        for function in functions:
            try:
                function(text)
            except (ValueError, JobsightError):
                continue

    return Target("fields", parse, (), 256)


def _dependencies() -> Target:
    """What a job depends on, and the command that submitted it."""
    from jobsight.scheduler.dependencies import MAX_AFTER, parse_dependency, parse_submit_line

    def parse(data: bytes) -> None:
        text = data.decode("utf-8", "backslashreplace")
        for function in (parse_dependency, parse_submit_line):
            assert len(function(text)) <= MAX_AFTER

    words = (
        "afterok:",
        "after",
        "(unfulfilled)",
        "--dependency=",
        " -d",
        "_*",
        "+15",
        "?",
        ",",
        "'",
    )
    return Target("dependencies", parse, (), 16384, words)


def _server_reply() -> Target:
    """The documents of a server, as commands and the Python client read them."""
    from jobsight.client import ClientError, _decoded, _error
    from jobsight.reports.report import JobReport
    from jobsight.util.outer import decode_outer

    def parse(data: bytes) -> None:
        _error(400, data, "https://example.org")
        with contextlib.suppress(ClientError):
            _decoded(data, "https://example.org")
        decode_outer(data, JobReport)

    words = ("1e308", "-1e308", "null", "true", "{}", "[]", '""', "[[[[[[[[", '{"":{"":', "\\ud800")
    return Target("server-reply", parse, (msgspec.DecodeError,), 8192, words)


def _proc() -> Target:
    """Files of a process as OpenProcess and the samplers read them."""
    from jobsight.agent.processes.procfs import (
        OpenProcess,
        ProcessGone,
        parent_of,
        read_sched_stat,
        real_uid,
    )
    from jobsight.util.mounts import parse_mountinfo

    directory = _file("").directory
    process = directory / "7"
    (process / "task" / "7").mkdir(parents=True)
    names = ("stat", "io", "status", "schedstat", "cgroup", "mountinfo")

    def parse(data: bytes) -> None:
        for name in names:
            (process / name).write_bytes(data)
        (process / "task" / "7" / "io").write_bytes(data)
        proc = os.fsencode(directory)
        for function in (parent_of, real_uid):
            function(proc, 7)
        read_sched_stat(os.fsencode(process))
        parse_mountinfo(data)
        opened = OpenProcess(proc, 7)
        try:
            opened.has_ended()
            opened.read_stat()
            assert opened.start_ticks >= 0
        finally:
            opened.close()

    # What is no number is a failed reading, which the collector counts and marks.
    return Target("proc", parse, (ProcessGone, ValueError, IndexError), 1024)


def _cgroup() -> Target:
    from jobsight.agent.probes import cgroup_files as files

    directory = _file("").directory
    names = (
        *(
            "cpu.stat",
            "memory.stat",
            "memory.current",
            "memory.peak",
            "memory.max",
            "cpuacct.usage",
        ),
        *("cpuacct.stat", "memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.events"),
        *("memory.limit_in_bytes", "memory.memsw.usage_in_bytes", "memory.oom_control"),
        *("memory.swap.current", "memory.swap.peak", "cgroup.procs", "memory.failcnt"),
    )

    def parse(data: bytes) -> None:
        for name in names:
            (directory / name).write_bytes(data)
        opened = files.CgroupFiles(directory)
        try:
            for read in (
                *(files.cpu_v1, files.cpu_v2, files.memory_v1, files.memory_v2),
                *(files.peaks_v1, files.peaks_v2),
            ):
                try:
                    read(opened)
                except (OSError, ValueError, KeyError):
                    # A reading that fails is marked as failed by its caller.
                    continue
        finally:
            opened.close()
        files.processes_in(directory)

    return Target("cgroup", parse, (ValueError,), 1024)


def _exit_record() -> Target:
    from jobsight.agent.processes.netlink import parse_record

    return Target("exit-record", parse_record, (), 1024)


class _Collector:
    cluster, node = "c", "n"

    def watch(self, *given: object) -> None: ...

    def every(self, *given: object) -> None: ...


def _datagrams() -> Target:
    from jobsight.agent.exporter import profile_plugin

    place = _file(".sock")
    receiver: Any = object.__new__(profile_plugin.PluginSocket)
    # Without its socket: what is tried is what it does with a datagram.
    receiver.__dict__.update(
        _collector=_Collector(), _keep_ended=30.0, _max_samples=100, _clock=lambda: 0.0,
        _steps={}, refused=0, path=place.path,
    )  # fmt: skip

    def parse(data: bytes) -> None:
        receiver.handle(data)
        "".join(str(line) for line in receiver())

    return Target("datagrams", parse, ())


def _control() -> Target:
    from jobsight.agent.control import parse_request

    return Target("control", parse_request, (msgspec.MsgspecError,))


def _http_reply() -> Target:
    from jobsight.transport.delivery import _decoded, _Receipt, _Refusal
    from jobsight.transport.http import BadReply, _parsed

    def parse(data: bytes) -> None:
        _decoded(data, _Receipt)
        _decoded(data, _Refusal)
        assert _parsed(data, 2**20).retry_after >= 0

    return Target("http-reply", parse, (BadReply,))


def _http_request() -> Target:
    from jobsight.agent.exporter.http import parse_request

    return Target("http-request", parse_request, (ValueError,))


def _mail_request() -> Target:
    from jobsight.mail.queue import MailQueue
    from jobsight.mail.request import KEPT_VARIABLES, slurm_request, split_recipients

    directory = _file("").directory
    queue = MailQueue(directory)

    def parse(data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape")
        accepted, _ = split_recipients(text)
        environment = dict.fromkeys(("SLURM_JOB_ID", *KEPT_VARIABLES), text)
        for to in accepted[:3] or ["user"]:
            made = slurm_request(to, text, environment, 0)
            name = queue.put(made)
            # What was queued is what is read.
            assert [each.request for each in queue.requests()] == [made], made
            queue.remove(name)
        (directory / "x.json").write_bytes(data)
        queue.requests()
        queue.remove("x")
        for file in queue.failed.glob("*"):
            file.unlink()

    return Target("mail-request", parse, ())


def _mail_bounce() -> Target:
    from jobsight.mail.bounce import read_bounce

    words = (
        "message/delivery-status", "message/rfc822", "text/rfc822-headers", "multipart/report",
        "Content-Type: ", "boundary=", "\n--b\n", "Action: failed", "Status: 5.1.1", "=?utf-8?B?",
        "Content-Transfer-Encoding: base64", "charset=", "filename*0*=", "X-Jobsight-Bounce: ",
    )  # fmt: skip
    return Target("mail-bounce", read_bounce, (), words=words)


def _api() -> Target:
    """Query parameters of lists: cursor, times, filters, references of runs."""
    from fastapi import HTTPException

    from jobsight.server.api.common import _names_of, parse_reference, parse_time

    def parse(data: bytes) -> None:
        text = unquote_to_bytes(data).decode("utf-8", "replace")
        for function in (_names_of, parse_reference, parse_time):
            try:
                function(text)
            except (HTTPException, ValueError, JobsightError):
                continue

    return Target("api", parse, (), 512)


FACTORIES: dict[str, Callable[[], Target]] = {
    "wire": _wire,
    "settings-toml": lambda: _settings(".toml"),
    "settings-yaml": lambda: _settings(".yaml"),
    "software-rules": _software_rules,
    "finding-rules": _finding_rules,
    "conditions": _conditions,
    "sams-settings": _sams_settings,
    "sams-record": _sams_record,
    "slurm-json": _slurm_json,
    "slurm-text": _slurm_text,
    "slurm-conf": _slurm_conf,
    "hostlist": _hostlist,
    "fields": _fields,
    "dependencies": _dependencies,
    "proc": _proc,
    "cgroup": _cgroup,
    "exit-record": _exit_record,
    "datagrams": _datagrams,
    "control": _control,
    "http-reply": _http_reply,
    "server-reply": _server_reply,
    "http-request": _http_request,
    "mail-request": _mail_request,
    "mail-bounce": _mail_bounce,
    "api": _api,
}


def samples(name: str) -> list[bytes]:
    """The corpus of a target."""
    return [file.read_bytes() for file in sorted((CORPUS / name).glob("*")) if file.is_file()]
