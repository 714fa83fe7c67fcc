"""Which of the recorded figures is the requested and which the used memory of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobsight.model import JobInfo

if TYPE_CHECKING:
    from jobsight.store.read.queries import NodesSummary


def requested_memory(info: JobInfo, on_nodes: NodesSummary) -> int | None:
    """The requested memory; if the scheduler gives none, the limits of the cgroups."""
    return info.memory or on_nodes.memory_limit


def is_out_of_memory(state: str) -> bool:
    """Whether the scheduler or the launcher has found that the job ran out of memory."""
    return state.upper() == "OUT_OF_MEMORY"


def used_peak(
    used: int | None, kernel: int | None, requested: int | None, state: str
) -> int | None:
    """The peak of the memory in use. Of a job that ran out of memory it is the kernel's, up to the
    limit: page cache is reclaimed before a process is killed."""
    if not is_out_of_memory(state) or used is None or kernel is None:
        return used
    return max(used, kernel if requested is None else min(kernel, requested))
