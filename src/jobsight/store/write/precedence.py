"""Which record of a run prevails: the policy for records from several sources.

A node can know who a job belongs to and what it was given, but only the scheduler knows how the job
ended. So the sources have an order, and a record of a lower source never overwrites one of a higher
source: it only fills what is not known, and never the outcome. When the scheduler reports a run
for the first time, an outcome that nodes claimed is dropped.

A record of SAMS is written when the job has ended on its node, and stored by a command of the
administrator, not with the token of a node. It fills the end of a run that the scheduler has not
reported as ended yet; the scheduler's own end replaces it.

Nodes of one cluster share a token and are not distinguished: where no scheduler is scraped, they
can contradict each other.
"""

from __future__ import annotations

from typing import Final

import msgspec

from jobsight.model import (
    LAUNCHER_SOURCE,
    NODE_SOURCES,
    SAMS_SOURCE,
    JobInfo,
    merge_job_info,
)

#: The source of a run that only nodes have reported, without a record of it.
SIGHTED: Final = "sighting"

#: All sources that are not the scheduler's, from the least to the most that they know.
_ORDER: Final = (
    {SIGHTED},
    # The owner of a directory.
    {"cgroup"},
    # What slurmd tells a script that it starts as root.
    {"prolog"},
    # The reply of the controller to a query of the node, which a record of SAMS contains as well.
    {"epilog", "squeue", SAMS_SOURCE},
    # The launcher is the scheduler of its own job, and no other job.
    {LAUNCHER_SOURCE},
)
_RANKS: Final = {source: rank for rank, sources in enumerate(_ORDER) for source in sources}
_SCHEDULER: Final = len(_ORDER)
#: How a run ended, and whether.
OUTCOME: Final = ("end", "state", "exit_code", "exit_signal")


def rank(source: str) -> int:
    """The place of a source in the order; all sources of a scheduler have the highest."""
    return _RANKS.get(source, _SCHEDULER)


def merge_run_info(stored: JobInfo, arriving: JobInfo) -> JobInfo:
    """Merge a record that arrives into what is stored of its run."""
    known, own = rank(stored.source), rank(arriving.source)
    if own < known:
        return _fill(stored, arriving)
    if own == _SCHEDULER and stored.source in NODE_SOURCES:
        stored = msgspec.structs.replace(stored, **dict.fromkeys(OUTCOME))
    # A late record of a run that has ended completes it, but does not make it run again.
    late = stored.end is not None and arriving.end is None
    return merge_job_info(stored, arriving, "fill" if late else "overwrite")


def complete_run_info(stored: JobInfo, other: JobInfo) -> JobInfo:
    """Fill what is unknown of a run from another record of it."""
    if rank(other.source) < rank(stored.source):
        return _fill(stored, other)
    merged = merge_job_info(stored, other, "fill")
    if stored.source == other.source and stored.end is not None and other.end is not None:
        # Records of several nodes: the run ends on the last.
        merged.end = max(stored.end, other.end)
    return merged


def fill_run_info(stored: JobInfo, arriving: JobInfo) -> JobInfo:
    """Add to what is stored of a run what is not known of it."""
    merged = merge_job_info(stored, arriving, "fill")
    if stored.exit_code is not None or stored.exit_signal is not None:
        # Code and signal belong together.
        merged.exit_code, merged.exit_signal = stored.exit_code, stored.exit_signal
    return merged


def _fill(stored: JobInfo, other: JobInfo) -> JobInfo:
    """Fill from a record of a lower source, which does not know the outcome."""
    merged = merge_job_info(stored, other, "fill")
    known = {name: getattr(stored, name) for name in OUTCOME}
    if other.source == SAMS_SOURCE:
        known["end"] = merged.end
    return msgspec.structs.replace(merged, **known)
