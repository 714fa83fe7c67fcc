"""Replies of releases that cannot be run here, from a directory that is not part of the project."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from jobsight.model import SECOND
from jobsight.scheduler.adapters.json import adapt_jobs, adapt_nodes, adapt_partitions, decode_json
from jobsight.scheduler.adapters.policy import read_associations, read_qos, read_reservations
from jobsight.scheduler.records import Problem, SourceError

FOLDER = os.environ.get("JOBSIGHT_REPLIES", "")
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="JOBSIGHT_REPLIES names no directory with recorded replies of other releases"
)


def documents(key: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for file in sorted(Path(FOLDER).glob("**/*")):
        if not file.is_file() or "pyslurm" in str(file):
            continue
        data = file.read_bytes()
        if not data.lstrip().startswith(b"{"):
            continue
        document = decode_json(data, file.name)
        if isinstance(document.get(key), list):
            found.append((str(file.relative_to(FOLDER)), document))
    return found


def plain(value: Any) -> Any:
    """A number object as a number, by a rule of its own."""
    if isinstance(value, dict) and "number" in value:
        return None if value["infinite"] or not value["set"] else value["number"]
    return value


def test_every_job_is_read_and_no_field_is_lost() -> None:
    releases: dict[str, int] = {}
    for name, document in documents("jobs"):
        if "jwt" in name:
            with pytest.raises(SourceError):
                adapt_jobs(document)
            continue
        jobs = adapt_jobs(document)
        assert len(jobs.records) == len(document["jobs"]), name
        # The one thing that is reported: exit codes of 22.05.
        assert {problem.field for problem in jobs.problems} <= {"exit_code"}, name
        for job, record in zip(document["jobs"], jobs.records, strict=True):
            check = check_controller if "job_state" in job else check_accounting
            check(job, record, f"{name}: job {job['job_id']}")
            release = re.match(r"\d+\.\d+", name)
            assert release is not None
            releases[release[0]] = releases.get(release[0], 0) + 1
    assert set(releases) >= {"21.08", "22.05", "24.05", "25.05"}


def check_common(job: dict[str, Any], record: Any, states: Any, where: str) -> None:
    info = record.info
    states = states if isinstance(states, list) else [states]
    assert info.job_id == job["job_id"], where
    assert info.state in states, where
    assert info.account == (job["account"] or None), where
    assert info.partition == (job["partition"] or None), where
    assert info.name == (job["name"] or None), where
    assert info.qos == (job["qos"] or None), where
    # A job that was never scheduled may have none in the reply either.
    waits = info.start is None
    assert info.cpus or waits, where
    assert info.memory or waits, where
    if "[" not in job["nodes"] and job["nodes"] not in ("", "None assigned"):
        assert info.nodes == tuple(job["nodes"].split(",")), where
    assert set(record.flags) == set(job["flags"]), where


def check_accounting(job: dict[str, Any], record: Any, where: str) -> None:
    check_common(job, record, job["state"]["current"], where)
    info, times = record.info, job["time"]
    assert info.user == (job["user"] or job["association"]["user"]), where
    assert info.cluster == job["cluster"], where
    assert info.submit == times["submission"] * 10**9, where
    start = times["start"] or 0
    if info.state == "PENDING":
        assert info.start is None, where
    else:
        assert info.start == (start * 10**9 or None), where
    assert info.end == (times["end"] * 10**9 or None), where
    limit = plain(times["limit"])
    assert info.time_limit == (limit * 60 * 10**9 if limit else None), where
    assert info.array_job_id == (job["array"]["job_id"] or None), where
    if info.array_job_id:
        assert info.array_task_id == plain(job["array"]["task_id"]), where
    assert info.het_job_id == (job["het"]["job_id"] or None), where
    assert record.working_directory == (job["working_directory"] or None), where
    assert record.group == (job["group"] or None), where
    reason = job["state"]["reason"]
    assert record.reason == (None if reason == "None" else reason or None), where
    assert len(record.steps) == len(job["steps"]), where
    allocated = {entry["type"]: entry["count"] for entry in job["tres"]["allocated"]}
    if "cpu" in allocated:
        assert info.cpus == allocated["cpu"], where
        assert info.memory == allocated["mem"] * 2**20, where
    gpus = sum(e["count"] for e in job["tres"]["allocated"] if e["type"] == "gres")
    tres = info.tres or {}
    assert sum(v for k, v in tres.items() if k.startswith("gres")) == gpus, where
    for step, raw in zip(record.steps, job["steps"], strict=True):
        assert step.step in str(raw["step"]["id"]), where
        assert step.state in raw["state"], where
        assert step.tasks == raw["tasks"]["count"], where
        assert set(step.nodes) == set(raw["nodes"]["list"]), where


def check_controller(job: dict[str, Any], record: Any, where: str) -> None:
    check_common(job, record, job["job_state"], where)
    info = record.info
    assert info.user == job["user_name"], where
    assert info.uid == job["user_id"], where
    assert record.gid == job["group_id"], where
    assert info.restart_count == job["restart_cnt"], where
    assert info.submit == plain(job["submit_time"]) * 10**9, where
    if info.state == "PENDING" or not job["nodes"]:
        assert info.start is None, where
    else:
        assert info.start == plain(job["start_time"]) * 10**9, where
    if record.info.end is not None:
        assert info.end == plain(job["end_time"]) * 10**9, where
    limit = plain(job["time_limit"])
    assert info.time_limit == (limit * 60 * 10**9 if limit else None), where
    assert info.array_job_id == (plain(job["array_job_id"]) or None), where
    assert info.het_job_id == (plain(job["het_job_id"]) or None), where
    assert info.command == (job["command"] or None), where
    assert record.working_directory == (job["current_working_directory"] or None), where
    assert record.gres == tuple(job["gres_detail"]), where
    assert record.dependency == (job["dependency"] or None), where
    assert record.standard_output == (job["standard_output"] or None), where
    assert record.constraints == (job["features"] or None), where
    assert record.node_count == plain(job["node_count"]), where


def test_every_node_is_read_and_no_field_is_lost() -> None:
    seen = 0
    for name, document in documents("nodes"):
        nodes = adapt_nodes(document, "c")
        assert nodes.problems == [], name
        for raw, node in zip(document["nodes"], nodes.records, strict=True):
            where = f"{name}: {raw['name']}"
            seen += 1
            states = raw["state"] if isinstance(raw["state"], list) else [raw["state"]]
            assert node.name == raw["name"]
            assert node.state == states[0].upper(), where
            flags = {flag.upper() for flag in [*states[1:], *raw.get("state_flags", [])]}
            assert set(node.state_flags) == flags, where
            assert (node.cpus, node.sockets, node.cores, node.threads) == (
                raw["cpus"], raw["sockets"], raw["cores"], raw["threads"],
            ), where  # fmt: skip
            assert node.memory == raw["real_memory"] * 2**20, where
            assert node.memory_allocated == raw["alloc_memory"] * 2**20, where
            assert node.cpus_allocated == raw["alloc_cpus"], where
            assert node.cpus_idle == raw.get("alloc_idle_cpus", raw.get("idle_cpus")), where
            assert list(node.partitions) == raw["partitions"], where
            assert node.reason == (raw["reason"] or None), where
            assert node.version == (raw.get("version", raw.get("slurmd_version")) or None), where
            assert bool(node.gres) == bool(raw["gres"]), where
            assert bool(node.tres) == bool(raw["tres"]), where
            assert bool(node.tres_used) == bool(raw["tres_used"]), where
            assert node.comment == (raw["comment"] or None), where
            boot = plain(raw["boot_time"])
            assert node.booted == (boot * 10**9 if boot else None), where
    assert seen > 100


def test_every_partition_is_read() -> None:
    seen = 0
    for name, document in documents("partitions"):
        partitions = adapt_partitions(document)
        assert partitions.problems == [], name
        for raw, partition in zip(document["partitions"], partitions.records, strict=True):
            seen += 1
            assert partition.name == raw["name"]
            assert partition.node_count == raw["nodes"]["total"] == len(partition.nodes or ())
            assert partition.cpus == raw["cpus"]["total"]
            assert [partition.state] == raw["partition"]["state"]
            assert partition.cluster
    assert seen


def test_every_reservation_qos_and_association_is_read() -> None:
    for key, read, name in (
        ("reservations", read_reservations, "name"),
        ("qos", read_qos, "name"),
        ("associations", read_associations, "account"),
    ):
        seen = 0
        for where, document in documents(key):
            problems: list[Problem] = []
            records = read(document[key], "c", problems)
            assert problems == [], where
            for raw, record in zip(document[key], records, strict=True):
                seen += 1
                assert getattr(record, name) == raw[name], where
                if key == "reservations":
                    assert len(record.nodes) == raw["node_count"], where
                    assert record.start == raw["start_time"]["number"] * SECOND, where
        assert seen, key
