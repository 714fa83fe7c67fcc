"""Replies made by hand, of one job in the shapes that releases gave it."""

from typing import Any

SUBMIT, START, END = 1794720900, 1794720981, 1794721281


def wrapped(number: int | None) -> dict[str, Any]:
    return {"set": number is not None, "infinite": False, "number": number or 0}


def reply(*jobs: dict[str, Any], **more: Any) -> dict[str, Any]:
    meta = {"slurm": {"release": "24.05.3", "cluster": "hpc"}}
    return {"jobs": list(jobs), "meta": meta, "errors": [], "warnings": []} | more


def _seconds(seconds: int, microseconds: int = 0) -> dict[str, int]:
    return {"seconds": seconds, "microseconds": microseconds}


def old_accounting(**more: Any) -> dict[str, Any]:
    """As 21.08 and 22.05: plain numbers, one word of state, nulls."""
    job = {
        "account": "alpha", "cluster": "hpc", "user": "alice", "group": "science",
        "association": {"account": "alpha", "cluster": "hpc", "partition": None, "user": "alice"},
        "allocation_nodes": 2, "job_id": 12, "name": "train", "nodes": "cn[1-2]",
        "partition": "gpu", "qos": "normal", "priority": 4294901759, "constraints": "a100",
        "array": {"job_id": 10, "task_id": 3, "task": None,
                  "limits": {"max": {"running": {"tasks": 0}}}},
        "het": {"job_id": 0, "job_offset": None},
        "comment": {"administrator": None, "job": "a note", "system": None},
        "state": {"current": "FAILED", "reason": "NonZeroExitCode"},
        "exit_code": {"status": "ERROR", "return_code": 3},
        "derived_exit_code": {"status": "SUCCESS", "return_code": 0},
        "required": {"CPUs": 8, "memory": 4096},
        "time": {"elapsed": END - START, "eligible": SUBMIT, "end": END, "start": START,
                 "submission": SUBMIT, "suspended": 0, "limit": 10, "total": _seconds(0),
                 "user": _seconds(0), "system": _seconds(0)},
        "tres": {"allocated": [{"type": "cpu", "name": None, "id": 1, "count": 8},
                               {"type": "mem", "name": None, "id": 2, "count": 8192},
                               {"type": "node", "name": None, "id": 4, "count": 2},
                               {"type": "billing", "name": None, "id": 5, "count": 8},
                               {"type": "gres", "name": "gpu:a100", "id": 1002, "count": 2}],
                 "requested": []},
        "flags": ["CLEAR_SCHEDULING"], "reservation": {"id": 0, "name": 0},
        "wckey": {"wckey": "", "flags": []}, "working_directory": "/home/alice",
        "kill_request_user": None,
        "steps": [_old_step("batch", 40, 1024), _old_step(0, 2, 7 * 2**20)],
    }  # fmt: skip
    return job | more


def _old_step(name: str | int, seconds: int, peak: int) -> dict[str, Any]:
    return {
        "nodes": {"list": ["cn1"], "count": 1, "range": "cn1"},
        "tres": {"requested": {"max": [{"type": "mem", "name": None, "id": 2, "count": peak}]},
                 "allocated": [{"type": "cpu", "name": None, "id": 1, "count": 8}]},
        "time": {"elapsed": 9, "end": END, "start": START, "suspended": 0,
                 "total": _seconds(seconds, 500), "user": _seconds(seconds), "system": _seconds(0)},
        "exit_code": {"status": "SIGNALED", "return_code": None,
                      "signal": {"signal_id": 9, "name": "Killed"}},
        "tasks": {"count": 2}, "state": "FAILED",
        "step": {"job_id": 12, "het": {"component": None}, "id": name, "name": "train"},
    }  # fmt: skip


def new_accounting(**more: Any) -> dict[str, Any]:
    """As 23.11 to 25.05: number objects, lists of states, empty texts; with a SLUID as 25.11."""
    zero = {"set": True, "infinite": False, "number": 0}
    job = old_accounting() | {
        "array": {"job_id": 10, "task_id": wrapped(3), "task": "",
                  "limits": {"max": {"running": {"tasks": 0}}}},
        "het": {"job_id": 0, "job_offset": wrapped(None)},
        "state": {"current": ["FAILED"], "reason": "NonZeroExitCode"},
        "exit_code": {"status": ["ERROR"], "return_code": wrapped(3),
                      "signal": {"id": wrapped(None), "name": ""}},
        "derived_exit_code": {"status": ["SUCCESS"], "return_code": zero,
                              "signal": {"id": wrapped(None), "name": ""}},
        "required": {"CPUs": 8, "memory_per_cpu": wrapped(1024), "memory_per_node": wrapped(None)},
        "priority": wrapped(4294901759), "restart_cnt": 2, "sluid": "s2R8DTTQ69MPGB",
        "reservation": {"id": 0, "name": ""}, "kill_request_user": "", "submit_line": "sbatch x",
    }  # fmt: skip
    job["time"] = job["time"] | {"limit": wrapped(10)}
    steps = []
    for step, name in zip(job["steps"], ("12.batch", "12.0"), strict=True):
        times = step["time"] | {"start": wrapped(START), "end": wrapped(END)}
        killed = {"id": wrapped(9), "name": "Killed"}
        exit = {"status": ["SIGNALED"], "return_code": wrapped(None), "signal": killed}
        named = {"step": {"id": name, "name": "train"}, "state": ["FAILED"], "time": times}
        steps.append(step | named | {"exit_code": exit})
    return job | {"steps": steps} | more


def old_controller(**more: Any) -> dict[str, Any]:
    """As squeue --json of 22.05."""
    job = {
        "account": "alpha", "cluster": "hpc", "user_name": "alice", "user_id": 1002,
        "group_name": "science", "group_id": 100, "job_id": 12, "name": "train",
        "array_job_id": 10, "array_task_id": 3, "array_max_tasks": 0, "array_task_string": "",
        "het_job_id": 0, "het_job_offset": 0, "partition": "gpu", "qos": "normal",
        "nodes": "cn[1-2]", "node_count": 2, "cpus": 8, "tasks": 2, "restart_cnt": 2,
        "job_state": "FAILED", "state_reason": "NonZeroExitCode", "exit_code": 768,
        "derived_exit_code": 0, "submit_time": SUBMIT, "start_time": START, "end_time": END,
        "eligible_time": SUBMIT, "time_limit": 10, "command": "/home/alice/train.sh",
        "current_working_directory": "/home/alice", "priority": 4294901759,
        "tres_alloc_str": "cpu=8,mem=8G,node=2,billing=8,gres/gpu:a100=2",
        "tres_req_str": "cpu=8,mem=8G,node=2,billing=8,gres/gpu=2", "memory_per_cpu": 1024,
        "memory_per_node": None, "gres_detail": ["gpu:a100:2(IDX:0-1)"], "features": "a100",
        "flags": ["TRES_STR_CALC"], "comment": "a note", "resv_name": "", "wckey": "",
    }  # fmt: skip
    return job | more


def new_controller(**more: Any) -> dict[str, Any]:
    """As squeue --json and slurmrestd from 23.11 on."""
    job = old_controller()
    for name in ("array_job_id", "array_task_id", "array_max_tasks", "het_job_id", "node_count",
                 "cpus", "tasks", "submit_time", "start_time", "end_time", "eligible_time",
                 "time_limit", "priority", "memory_per_cpu", "memory_per_node"):  # fmt: skip
        job[name] = wrapped(job[name])
    exit = {"status": ["ERROR"], "return_code": wrapped(3), "signal": {"id": wrapped(None)}}
    success = {"status": ["SUCCESS"], "return_code": wrapped(0), "signal": {"id": wrapped(None)}}
    job |= {"job_state": ["FAILED"], "exit_code": exit, "derived_exit_code": success}
    job["derived_exit_code"]["return_code"] = {"set": True, "infinite": False, "number": 0}
    return job | {"sluid": "s2R8DTTQ69MPGB"} | more
