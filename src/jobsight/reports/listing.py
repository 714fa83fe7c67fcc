"""One run as a row of a list, from the store's figures alone: no row costs a query of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jobsight.reports.build import display_id
from jobsight.reports.states import ACTIVE, describe_state

if TYPE_CHECKING:
    from jobsight.store.read.queries import StoredRun


class JobRow(msgspec.Struct, kw_only=True):
    run: str
    cluster: str
    job_id: int
    display_id: str
    name: str | None
    user: str | None
    account: str | None
    partition: str | None
    state: str
    state_text: str
    running: bool
    exit_code: int | None
    exit_signal: int | None
    start: int | None
    end: int | None
    elapsed: int | None
    nodes: int
    cpus: int | None
    cpu_time: int | None
    cpu_share: float | None
    memory_asked: int | None
    memory_used_peak: int | None
    memory_peak: int | None
    memory_share: float | None
    #: Only nodes have reported the run so far; the scheduler's own start may still change its key.
    provisional: bool


def job_row(stored: StoredRun, now: int) -> JobRow:
    """The figures of one run as a list shows them."""
    info = stored.info
    state = info.state or ("UNKNOWN" if info.end is not None else "RUNNING")
    running = info.end is None and state.upper() in ACTIVE
    start = info.start if info.start is not None else stored.run.start
    end = info.end if info.end is not None else now if running else stored.last_seen
    elapsed = max(end - start, 0) if end is not None else None
    # As in the report: the counters of a running job tell up to the last batch.
    counted = max(stored.last_seen - start, 0) if running and stored.last_seen else elapsed
    could = counted * info.cpus if counted and info.cpus else None
    used = stored.memory_used_peak
    used = used if used is not None else stored.memory_peak
    return JobRow(
        run=str(stored.run),
        cluster=info.cluster,
        job_id=info.job_id,
        display_id=display_id(info),
        name=info.name,
        user=info.user,
        account=info.account,
        partition=info.partition,
        state=state,
        state_text=describe_state(state, info.exit_code, info.exit_signal),
        running=running,
        exit_code=info.exit_code,
        exit_signal=info.exit_signal,
        start=start,
        end=info.end,
        elapsed=elapsed,
        nodes=len(stored.nodes),
        cpus=info.cpus,
        cpu_time=stored.cpu_time,
        cpu_share=stored.cpu_time / could if could and stored.cpu_time is not None else None,
        memory_asked=info.memory,
        memory_used_peak=stored.memory_used_peak,
        memory_peak=stored.memory_peak,
        memory_share=used / info.memory if info.memory and used is not None else None,
        provisional=stored.provisional,
    )
