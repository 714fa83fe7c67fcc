"""The report of one run: what was asked for, what was used, how sure each figure is.

Every place that shows a run (terminal, page, API) takes its words and figures from here.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from jobsight.reports.coverage import RunCoverage


class CpuUse(msgspec.Struct, kw_only=True):
    asked: int | None
    time: int | None
    user: int | None
    system: int | None
    #: The share of slurmstepd and its like; it is not in ``time``.
    overhead: int | None
    #: CPU time over elapsed time: how many CPUs were busy on average.
    cores_mean: float | None
    #: CPU time over what the CPUs asked for could have given.
    share: float | None
    source: str | None
    #: One sentence about the overhead, for people.
    overhead_text: str = ""


class MemoryUse(msgspec.Struct, kw_only=True):
    asked: int | None
    used_peak: int | None
    kernel_peak: int | None
    swap_peak: int | None
    oom_kills: int | None
    share: float | None


class TimeUse(msgspec.Struct, kw_only=True):
    asked: int | None
    elapsed: int | None
    share: float | None


class IoUse(msgspec.Struct, kw_only=True):
    read_characters: int | None
    written_characters: int | None
    read_bytes: int | None
    written_bytes: int | None
    read_calls: int | None
    write_calls: int | None


class ExecutableRow(msgspec.Struct, kw_only=True):
    #: "remainder" is the CPU time of the counter that no exit record or poll accounts for.
    kind: Literal["executable", "path unknown", "remainder"]
    #: Bytes that are not printable UTF-8 stand as \xNN.
    path: str
    executions: int | None
    processes: int | None
    cpu_time: int
    cpu_user: int | None
    cpu_system: int | None
    cpu_estimated: int
    #: Of the job's CPU time.
    cpu_share: float | None
    read_bytes: int | None
    written_bytes: int | None
    peak_memory: int | None
    failures: int | None


class NodeRow(msgspec.Struct, kw_only=True):
    node: str
    cpu_time: int | None
    memory_used_peak: int | None
    memory_peak: int | None
    read_characters: int | None
    written_characters: int | None
    #: The node's agent has said that nothing follows.
    final: bool
    #: How far the node's clock goes before the server's.
    clock_skew: int | None = None


class StepRow(msgspec.Struct, kw_only=True):
    """One step, summed over its nodes."""

    #: As Slurm names it: "batch", "0", "1", "extern"; a job without steps may be one without name.
    step: str
    nodes: int
    tasks: int | None
    cpu_time: int | None
    cpu_overhead: int | None
    #: The kernel's own high-water marks, page cache included.
    memory_peak: int | None
    oom_kills: int | None
    #: From when the first node saw it to when the last one did.
    elapsed: int | None
    #: On all its nodes.
    ended: bool


class JobReport(msgspec.Struct, kw_only=True):
    run: str
    cluster: str
    job_id: int
    #: As people write it: 12, 62_3 or 88+1.
    display_id: str
    name: str | None
    user: str | None
    account: str | None
    partition: str | None
    command: str | None
    state: str
    exit_code: int | None
    exit_signal: int | None
    submit: int | None
    start: int | None
    end: int | None
    source: str
    nodes: list[str]
    cpu: CpuUse
    memory: MemoryUse
    time: TimeUse
    io: IoUse
    #: By CPU time, the largest first; the remainder last.
    executables: list[ExecutableRow]
    node_rows: list[NodeRow]
    #: By group of figures: "cpu", "memory", "io", "executables".
    coverage: dict[str, RunCoverage]
    #: One sentence per group, for people.
    coverage_notes: list[str]
    #: The state in words, with the exit code or the signal.
    state_text: str = ""
    running: bool = False
    #: The moment up to which the counters tell.
    as_of: int | None = None
    #: The script first, then by number; "extern" last.
    steps: list[StepRow] = msgspec.field(default_factory=list)
