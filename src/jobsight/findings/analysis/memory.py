"""Memory: the peaks by their definitions, growth, and the time until the limit.

Used is the peak of the memory without page cache, which the kernel can take back. Growth is the
slope of Theil and Sen over the last two thirds of the run, on the node that has grown most in
relation to its limit: the median of all slopes between two points, which one allocation or one
outlier does not change. One allocation is no growth: it is not linear, and it has a plateau.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from jobsight.findings.analysis.arithmetic import quantile, ratio, total
from jobsight.findings.data import RunData
from jobsight.findings.timeline import MEMORY, Floats
from jobsight.findings.vocabulary import FigureSet
from jobsight.store.read.memory import is_out_of_memory, requested_memory, used_peak

Mask: TypeAlias = "npt.NDArray[np.bool_]"

#: Nodes whose growth is computed, those that have grown most.
_MAX_NODES = 8
#: Points that the growth needs.
_MIN_POINTS = 12
#: The last part of the points, and the share of the slope below which it is a plateau.
_LAST_PART, _PLATEAU = 4, 0.25


def add(data: RunData, figures: FigureSet) -> None:
    state, totals = data.state.state, data.totals
    requested = requested_memory(data.info, data.on_nodes)
    kernel = _sum(part.memory_peak for part in totals)
    used = used_peak(_sum(part.memory_used_peak for part in totals), kernel, requested, state)
    no_request = "no memory was requested"
    figures.set("memory.requested", requested, no_request)
    figures.set("memory.used", used)
    figures.set("memory.share", ratio(used, requested), "" if used is None else no_request)
    nodes = max(data.node_count, 1)
    figures.set(
        "memory.node_requested", None if requested is None else requested / nodes, no_request
    )
    peaks = [part.memory_used_peak or 0 for part in totals]
    fullest = max(peaks) / sum(peaks) if any(peaks) else 1 / nodes
    figures.set("memory.node_used", None if used is None else used * fullest)
    figures.set("memory.kernel_peak", kernel)
    cache = None if used is None or kernel is None else max(kernel - used, 0)
    figures.set("memory.cache", cache)
    steps = data.details.steps if data.details else []
    recorded = [step.memory_peak for step in steps if step.memory_peak is not None]
    figures.set("memory.slurm_peak", max(recorded, default=None), "Slurm's accounting has none")
    if requested is not None and used is not None and data.span:
        figures.set("memory.unused_time", max(requested - used, 0) * data.span)
    else:
        figures.set("memory.unused_time", None, "" if used is None else no_request)
    kills = _sum(part.oom_kills for part in totals)
    # Slurm's state proves a kill; a count of zero was read too early.
    figures.set("memory.oom_kills", max(kills or 0, 1) if is_out_of_memory(state) else kills)
    figures.set("memory.swap_peak", _sum(part.swap_peak for part in totals))
    largest = max(data.programs, key=lambda program: program.peak_memory, default=None)
    if largest is not None and largest.peak_memory:
        figures.set("memory.largest_program", largest.shown)
        figures.set("memory.largest_process", largest.peak_memory)
    _add_growth(data, figures, requested)


def _sum(values: object) -> int | None:
    result = total(values)  # type: ignore[arg-type]
    return None if result is None else round(result)


class Growth(NamedTuple):
    """How the memory of a node grew over the last two thirds of the run."""

    #: Bytes by second.
    rate: float
    #: Bytes in that time, by the slope.
    grown: float
    #: R squared of the line; 0 for memory that does not change.
    fit: float
    plateau: bool
    last: float


def growth_of(times: Floats, values: Floats) -> Growth | None:
    """The growth of the memory at some times; None with too few points."""
    known = ~np.isnan(values)
    times, values = times[known], values[known]
    if len(values) < _MIN_POINTS:
        return None
    slope, offset = _theil_sen(times, values)
    left = float(((values - (offset + slope * times)) ** 2).sum())
    spread = float(((values - values.mean()) ** 2).sum())
    # The same in units of a page: readings of memory that does not change differ by some of them.
    fit = max(1.0 - left / spread, 0.0) if spread > len(values) * 4096.0**2 else 0.0
    part = max(len(values) // _LAST_PART, 3)
    last_slope, _ = _theil_sen(times[-part:], values[-part:])
    return Growth(
        rate=slope,
        grown=slope * float(times[-1] - times[0]),
        fit=fit,
        plateau=slope <= 0 or last_slope < _PLATEAU * slope,
        last=float(values[-1]),
    )


@lru_cache(8)
def _pairs(count: int) -> Mask:
    """All pairs of so many points, each pair once."""
    return np.triu(np.ones((count, count), np.bool_), 1)


def _theil_sen(times: Floats, values: Floats) -> tuple[float, float]:
    """The median of the slopes of all pairs, and the offset of the line."""
    pairs = _pairs(len(times))
    slopes = (values - values[:, None])[pairs] / (times - times[:, None])[pairs]
    slope = quantile(slopes, 0.5)
    return slope, quantile(values - slope * times, 0.5)


def _add_growth(data: RunData, figures: FigureSet, requested: int | None) -> None:
    names = ("rate", "share", "fit", "plateau", "node")
    timeline = data.timeline
    if timeline is None or timeline.get(MEMORY) is None:
        reason = data.timeline_reason if timeline is None else "the memory was not sampled"
        for name in names:
            figures.set(f"memory.growth_{name}", None, reason)
        figures.set("memory.time_to_limit", None, reason)
        return
    limits = _limits(data, requested)
    found: list[tuple[float, str, Growth]] = []
    for name in _candidates(timeline.memory_of, limits):
        values = timeline.memory_of[name]
        if is_out_of_memory(data.state.state):
            # What follows the kill says nothing about what led to it.
            known = np.where(np.isnan(values), -np.inf, values)
            values = values[: int(known.argmax()) + 1]
        growth = growth_of(timeline.memory_times[: len(values)], values)
        if growth is not None:
            found.append((growth.grown / limits.get(name, 1.0), name, growth))
    if not found:
        for name in names:
            figures.set(f"memory.growth_{name}", None, "it has too few samples")
        figures.set("memory.time_to_limit", None, "it has too few samples")
        return
    share, node, growth = max(found)
    figures.set("memory.growth_rate", growth.rate)
    figures.set("memory.growth_share", share if node in limits else None, "it has no limit")
    figures.set("memory.growth_fit", growth.fit)
    figures.set("memory.growth_plateau", growth.plateau)
    figures.set("memory.growth_node", node)
    if not data.state.running:
        figures.set("memory.time_to_limit", None, "the run has ended")
    elif node not in limits or growth.rate <= 0:
        reason = "it does not grow" if node in limits else "it has no limit"
        figures.set("memory.time_to_limit", None, reason)
    else:
        figures.set("memory.time_to_limit", max(limits[node] - growth.last, 0.0) / growth.rate)


def _limits(data: RunData, requested: int | None) -> dict[str, float]:
    """The limit of each node: of its cgroup, else an equal part of the request."""
    equal = requested / data.node_count if requested and data.node_count else None
    limits: dict[str, float] = {}
    for node in data.nodes:
        limit = (node.totals.memory_limit if node.totals else None) or equal
        if limit:
            limits[node.node] = float(limit)
    return limits


def _candidates(memory: dict[str, Floats], limits: dict[str, float]) -> list[str]:
    """The nodes whose memory grew most in relation to their limits."""
    if len(memory) <= _MAX_NODES:
        return list(memory)
    names = list(memory)
    values = np.stack([memory[name] for name in names])
    part = max(values.shape[1] // _LAST_PART, 1)
    with np.errstate(all="ignore"):
        grown = np.nan_to_num(values[:, -part:]).mean(1) - np.nan_to_num(values[:, :part]).mean(1)
    shares = grown / np.array([limits.get(name, 1.0) for name in names])
    return [names[place] for place in np.argsort(-shares)[:_MAX_NODES]]
