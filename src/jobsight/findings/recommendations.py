"""What would have fitted as texts: the option, how many past runs would have passed, the saving."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from jobsight.findings import fit
from jobsight.findings.fit import Fit
from jobsight.findings.history import (
    Needs,
    add_history,
    figure_values,
    fit_memory,
    fit_time,
    memory_of_node,
    read_earlier,
    read_needs,
)
from jobsight.findings.reported import Recommendation
from jobsight.model import SECOND
from jobsight.store.findings.works import figures_of_runs
from jobsight.store.history import tasks_of_array
from jobsight.store.read import pseudonyms
from jobsight.store.read.state import decide_state
from jobsight.util.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from jobsight.store.read.queries import StoredRun
    from jobsight.store.store import Store

_GB_HOUR = 1e9 * 3600


def recommendations(
    store: Store, stored: StoredRun, now: int | None = None
) -> list[Recommendation]:
    """What would have fitted the work of a run: that run and its earlier ones."""
    now = time.time_ns() if now is None else now
    state = decide_state(
        stored.info,
        stored.start,
        ended_on_nodes=stored.on_nodes.ended,
        as_of=stored.on_nodes.counted,
        now=now,
    )
    known = figures_of_runs(store.database, [stored.id]).get(stored.id)
    # Of a running job only the figures are stored that its rules need.
    if known is not None and known.work_id is not None and not state.running:
        values, work_id = figure_values(known.data), known.work_id
    elif pseudonyms.is_active():
        # The work is found by the names of the run.
        return []
    else:
        from jobsight.findings.data import read_run
        from jobsight.findings.figures import compute_figures

        data = read_run(store, stored, now)
        figures = compute_figures(data)
        found = add_history(store, data, figures)
        if found is None:
            return []
        values, work_id = dict(figures.values), found
    past = [run for run in read_earlier(store, work_id, stored.id) if run.run.end is not None]
    needs = read_needs(stored, state, values, past)
    nodes = max(stored.info.node_count or stored.node_count, 1)
    fills_node = values.get("memory.cores_fill_node") is True
    listed = [
        None if fills_node else _memory(needs, values, nodes),
        _time(needs, stored.info.time_limit),
        _count("cores", "--cpus-per-task", needs.cores, stored.info.cpus),
        _count("gpus", "--gpus", needs.gpus, stored.info.gpus or len(needs.gpus) or None),
        _growth(store, stored, nodes),
    ]
    return [each for each in listed if each is not None]


def _passed(found: Fit, requests: str, largest: str) -> str:
    if found.few:
        runs = "one run" if found.runs == 1 else f"{found.runs} runs"
        return f"{requests} is a first guess from {runs}; the largest needed {largest}"
    failed = found.runs - found.passed
    if not failed:
        return f"{requests} would have held all of your last {found.runs} runs"
    others = "the other needed" if failed == 1 else f"the other {failed} needed up to"
    held = f"{found.passed} of your last {found.runs} runs"
    return f"{requests} would have held {held} ({others} {largest})"


def _memory(needs: Needs, values: dict[str, Any], nodes: int) -> Recommendation | None:
    requested = values.get("memory.requested")
    asked = float(requested) if isinstance(requested, (int, float)) and requested > 0 else None
    found = fit_memory(needs, asked)
    if found is None:
        return None
    option = f"--mem={fit.memory_option(memory_of_node(found.request, values, nodes))}"
    text = _passed(found, option, format_bytes(found.largest))
    saved = found.saving / _GB_HOUR
    if asked is not None:
        text += f". You requested {fit.memory_option(asked / nodes)}"
        if saved >= 1:
            text += f": {format_count(round(saved))} GB h were held for nothing"
    return Recommendation(
        resource="memory",
        option=option,
        value=found.request,
        requested=asked,
        runs=found.runs,
        passed=found.passed,
        few=found.few,
        saved_gb_hours=saved,
        text=f"{text}.",
    )


def _time(needs: Needs, limit: int | None) -> Recommendation | None:
    asked = limit / SECOND if limit else None
    found = fit_time(needs, asked)
    if found is None:
        return None
    option = f"--time={fit.time_option(found.request)}"
    text = _passed(found, option, format_duration(int(found.largest * SECOND)))
    if asked is not None:
        text += f". You requested {fit.time_option(asked)}"
    return Recommendation(
        resource="time",
        option=option,
        value=found.request,
        requested=asked,
        runs=found.runs,
        passed=found.passed,
        few=found.few,
        text=f"{text}.",
    )


def _count(
    resource: Literal["cores", "gpus"], option: str, needs: list[float], requested: int | None
) -> Recommendation | None:
    if not requested or not needs:
        return None
    count = 0 if resource == "gpus" and not any(needs) else fit.fit_count(needs)
    if count is None:
        return None
    count = min(count, requested)
    what = "cores" if resource == "cores" else "GPUs"
    enough = sum(need <= count + 0.1 for need in needs)
    return Recommendation(
        resource=resource,
        option=f"{option}={count}",
        value=count,
        requested=requested,
        runs=len(needs),
        passed=enough,
        few=len(needs) < fit.FEW_RUNS,
        text=(
            f"{count} {what} would have kept up with {enough} of your last {len(needs)} runs. "
            f"You requested {requested}."
        ),
    )


def _growth(store: Store, stored: StoredRun, nodes: int) -> Recommendation | None:
    """The memory of an array whose need grows with the index of the task."""
    info = stored.info
    if info.array_job_id is None:
        return None
    tasks = [
        (float(task.task_id), float(task.memory_used_peak))
        for task in tasks_of_array(store.database, info.cluster, info.array_job_id)
        if task.task_id is not None and task.memory_used_peak and task.state == "COMPLETED"
    ]
    growth = fit.find_growth([index for index, _ in tasks], [need for _, need in tasks])
    if growth is None:
        return None
    middle, last = tasks[len(tasks) // 2][0], max(index for index, _ in tasks)
    sizes = [fit.round_memory(growth.at(index) / nodes) for index in (middle, last)]
    options = [fit.memory_option(size) for size in sizes]
    return Recommendation(
        resource="array",
        option=f"--mem={options[1]}",
        value=sizes[1] * nodes,
        runs=len(tasks),
        passed=len(tasks),
        text=(
            f"Memory grows with the index of the array: up to task {middle:.0f} --mem={options[0]} "
            f"suffices, up to task {last:.0f} --mem={options[1]}."
        ),
    )
