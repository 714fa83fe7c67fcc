#!/usr/bin/env python3
"""What Slurm says on a host where nothing may be installed, as one JSON document.

Copy this one file there; it needs Python 3.6 and Slurm's commands and nothing else:

    python3 onsite.py --since-hours 24 > slurm.onsite.json

The columns are asked for with a mark between them that is random in each call, so that no name of
a job can pass for another column.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

FORMAT = "jobsight on-site 1"

# Python 3.6 reads this file: no newer words of the language.
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
    "Command Name"
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

# Users set these for themselves; here they would change which columns and rows come.
FOREIGN = ("SACCT_", "SQUEUE_", "SINFO_", "SLURM_BITSTR_LEN", "SLURM_CLUSTERS")

Maker = Callable[[Sequence[str], str], List[str]]


def run(command: Sequence[str], timeout: float) -> Tuple[bytes, str]:
    """What a command wrote, and the reason why it wrote nothing."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    environment.update(TZ="UTC", LC_ALL="C.UTF-8", SLURM_TIME_FORMAT="%s")
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
        said = " ".join(done.stderr.decode("utf-8", "backslashreplace").split())[-300:]
        return b"", f"{command[0]} failed with {done.returncode}: {said or 'no word why'}"
    return done.stdout, ""


def reply(name: str, columns: Sequence[str], make_command: Maker, timeout: float) -> Dict[str, Any]:
    """One question; columns that this release does not have are left out."""
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
    """Those of our columns that this sacct lists."""
    output, reason = run(["sacct", "--helpformat"], timeout)
    if reason:
        return SACCT
    there = {word.lower() for word in output.decode("utf-8", "replace").split()}
    return [column for column in SACCT if column.lower() in there]


def questions(since: float, timeout: float) -> Iterator[Dict[str, Any]]:
    """Every reply, one after the other."""
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
                        help="how far the accounting is read back [%(default)s]")  # fmt: skip
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS",
                        help="within which each command must answer [%(default)s]")  # fmt: skip
    chosen = parser.parse_args()
    replies = list(questions(time.time() - chosen.since_hours * 3600, chosen.timeout))
    json.dump({"format": FORMAT, "written": int(time.time()), "replies": replies}, sys.stdout)
    sys.stdout.write("\n")
    for found in replies:
        if "reason" in found:
            sys.stderr.write(f"onsite: {found['reason']}\n")
    return 1 if all("reason" in found for found in replies) else 0


if __name__ == "__main__":
    sys.exit(main())
