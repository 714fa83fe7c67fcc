#!/usr/bin/env python3
"""Query Slurm on a host where nothing may be installed, and write one JSON document.

Copy this file to the host; it needs only Python 3.6 and Slurm's commands:

    python3 onsite_script.py --since-hours 24 > slurm.onsite.json

The delimiter between columns is random in each call, so that no job name can pass for another
column.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

FORMAT = "jobsight on-site 1"

# No syntax newer than Python 3.6.
SACCT = (
    "JobIDRaw JobID Cluster State SLUID Restarts Submit Eligible Start End ElapsedRaw Suspended "
    "User UID Group GID Account Partition QOS NodeList NNodes AllocCPUS ReqCPUS ReqMem AllocTRES "
    "ReqTRES TimelimitRaw ExitCode DerivedExitCode Priority NTasks TotalCPU UserCPU SystemCPU "
    "MaxRSS Flags Reason Reservation Constraints Licenses Container WCKey StdOut StdErr StdIn "
    "WorkDir Comment SubmitLine JobName"
).split()
SQUEUE = (
    "JobID ArrayJobID ArrayTaskID UserName UserID Account Partition State RestartCnt NodeList "
    "NumCPUs tres-alloc TimeLimit SubmitTime StartTime EndTime exit_code QOS HetJobID HetJobOffset "
    "Reason Command Name"
).split()
NODES = (
    "NodeList PartitionName StateComplete CPUs CPUsState CPUsLoad Sockets Cores Threads Memory "
    "AllocMem FreeMem Disk Weight Gres GresUsed Features features_act NodeAddr NodeHost Port "
    "Version UserLong Timestamp Comment Extra Reason"
).split()
PARTITIONS = (
    "PartitionName Available Time DefaultTime Nodes CPUsState PriorityTier PriorityJobFactor "
    "Groups NodeList"
).split()

# Variables of users that would change the columns and rows of the output.
IGNORED_VARIABLES = ("SACCT_", "SQUEUE_", "SINFO_", "SLURM_BITSTR_LEN", "SLURM_CLUSTERS")

Maker = Callable[[Sequence[str], str], List[str]]


def run(command: Sequence[str], timeout: float) -> Tuple[bytes, str]:
    """The output of a command, or the reason why there is none."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(IGNORED_VARIABLES)}
    environment.update(TZ="UTC", LC_ALL="C.UTF-8", SLURM_TIME_FORMAT="%s", SLURM_BITSTR_LEN="0")
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            timeout=timeout,
        )
    except OSError as error:
        return b"", f"{command[0]} cannot be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return b"", f"{command[0]} gave no answer within {timeout:g} s"
    if done.returncode != 0:
        text = " ".join(done.stderr.decode("utf-8", "backslashreplace").split())[-300:]
        return b"", f"{command[0]} failed with {done.returncode}: {text or 'without a message'}"
    return done.stdout, ""


def reply(name: str, columns: Sequence[str], make_command: Maker, timeout: float) -> Dict[str, Any]:
    """One query, without the columns that this release does not have."""
    columns = list(columns)
    while True:
        mark = f"~{os.urandom(12).hex()}~"
        output, reason = run(make_command(columns, mark), timeout)
        refused = [c for c in columns[1:] if reason and c.lower() in reason.lower()]
        if refused and "format" in reason.lower():
            columns = [c for c in columns if c not in refused]
            continue
        found: Dict[str, Any] = {"name": name, "columns": columns, "mark": mark}
        if reason:
            found["reason"] = reason
        else:
            found["output"] = output.decode("utf-8", "backslashreplace")
        return found


def sacct_columns(timeout: float) -> List[str]:
    """The columns that this sacct has."""
    output, reason = run(["sacct", "--helpformat"], timeout)
    if reason:
        return SACCT
    there = {word.lower() for word in output.decode("utf-8", "replace").split()}
    return [column for column in SACCT if column.lower() in there]


def query_all(since: float, timeout: float) -> Iterator[Dict[str, Any]]:
    """All replies, one after the other."""
    begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since))
    end = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + 60))

    def sacct(columns: Sequence[str], mark: str) -> List[str]:
        return ["sacct", "--parsable", "--noheader", "--noconvert", "--duplicates", "--allusers",
                "--delimiter=" + mark, "--format=" + ",".join(columns),
                "--starttime=" + begin, "--endtime=" + end]  # fmt: skip

    def layout(columns: Sequence[str], mark: str) -> str:
        return "--Format=" + ",".join(f"{column}:{mark}" for column in columns)

    yield reply("sacct", sacct_columns(timeout), sacct, timeout)
    yield reply("squeue", SQUEUE, lambda columns, mark: [
        "squeue", "--noheader", "--states=all", layout(columns, mark)], timeout)  # fmt: skip
    yield reply("nodes", NODES, lambda columns, mark: [
        "sinfo", "--noheader", "--Node", layout(columns, mark)], timeout)  # fmt: skip
    yield reply("partitions", PARTITIONS, lambda columns, mark: [
        "sinfo", "--noheader", layout(columns, mark)], timeout)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--since-hours", type=float, default=24.0, metavar="HOURS",
                        help="read the accounting of this many hours [%(default)s]")  # fmt: skip
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS",
                        help="timeout of each command [%(default)s]")  # fmt: skip
    chosen = parser.parse_args()
    replies = list(query_all(time.time() - chosen.since_hours * 3600, chosen.timeout))
    json.dump({"format": FORMAT, "written": int(time.time()), "replies": replies}, sys.stdout)
    sys.stdout.write("\n")
    for found in replies:
        if "reason" in found:
            sys.stderr.write(f"onsite: {found['reason']}\n")
    return 1 if all("reason" in found for found in replies) else 0


if __name__ == "__main__":
    sys.exit(main())
