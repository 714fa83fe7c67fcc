"""Pressure: the time in which processes waited for a CPU, for memory or for I/O.

The kernel counts it for cgroups of version 2. On version 1 it is not known, which says nothing
about whether processes waited.
"""

from __future__ import annotations

from typing import Final

from jobsight.findings.analysis.arithmetic import NO_CORES
from jobsight.findings.data import RunData
from jobsight.findings.vocabulary import FigureSet

_SHARES: Final = {
    "cpu.pressure": "pressure.cpu",
    "memory.pressure_full": "pressure.memory_full",
    "io.pressure": "pressure.io",
    "io.pressure_full": "pressure.io_full",
}


def add(data: RunData, figures: FigureSet) -> None:
    reason = next(
        (
            node.coverage["pressure"].reason
            for node in data.nodes
            if "pressure" in node.coverage and node.coverage["pressure"].reason
        ),
        "pressure was not measured",
    )
    for figure, metric in _SHARES.items():
        share = None if data.timeline is None else data.timeline.share_of_time(metric)
        figures.set(figure, None if share is None else min(share, 1.0), reason)
    full = figures.values.get("io.pressure_full")
    if not isinstance(full, float):
        figures.set("io.stalled", None, reason)
    elif data.cores is None:
        figures.set("io.stalled", None, NO_CORES)
    else:
        figures.set("io.stalled", full * data.cores * data.span)
