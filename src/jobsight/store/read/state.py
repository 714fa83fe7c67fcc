"""The state of a run: :func:`decide_state` is the only place that decides it."""

from __future__ import annotations

from typing import Final, NamedTuple

from jobsight.model import JobInfo

#: States in which a job still holds its resources.
ACTIVE: Final = frozenset({"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED"})


class RunState(NamedTuple):
    """The state of a run and the durations that depend on it."""

    state: str
    running: bool
    start: int
    elapsed: int | None
    #: The time that the counters cover: up to now they are only as recent as the last batch.
    counted: int | None


def decide_state(
    info: JobInfo, start: int, *, ended_on_nodes: bool, as_of: int | None, now: int
) -> RunState:
    """Decide the state of a run for lists, pages, reports and the API.

    The scheduler's record takes precedence. Without one, the run is running until the agents of
    all its nodes have reported the end (``ended_on_nodes``); how it ended is then unknown.
    ``start`` is used if the record has none, ``as_of`` is the time of the newest totals.
    """
    if info.state:
        state = info.state
        running = info.end is None and state.upper() in ACTIVE
    else:
        running = info.end is None and not ended_on_nodes
        state = "RUNNING" if running else "UNKNOWN"
    start = start if info.start is None else info.start
    end = info.end if info.end is not None else now if running else as_of
    elapsed = None if end is None else max(end - start, 0)
    counted = max(as_of - start, 0) if running and as_of is not None else elapsed
    return RunState(state, running, start, elapsed, counted)
