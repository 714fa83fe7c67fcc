"""When a run worked: the intervals in which its CPUs or GPUs were used, and when the work ended."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from jobsight.findings.data import LATE, RunData
from jobsight.findings.timeline import CPU, Floats

#: A run works while it uses this share of its CPUs, or half a CPU if that is less: a program on one
#: of 64 CPUs works.
WORKING_SHARE: Final = 0.05
WORKING_CORES: Final = 0.5
NOT_TO_THE_END: Final = "the nodes did not report to the end of the run"
#: What is used for less than this share of the time since the work ended does not count: at its end
#: a job may use its CPUs once more.
_BURSTS: Final = 0.02


def working_cores(cores: int | None) -> float:
    """The CPUs that a run must use to be working."""
    return min(WORKING_SHARE * cores, WORKING_CORES) if cores else WORKING_SHARE


def gpus_active(data: RunData) -> Floats | None:
    """The GPUs that were active in each interval; None if that was not measured."""
    timeline = data.timeline
    if timeline is None or not data.gpus or data.unmeasured > LATE:
        return None
    held, idle = timeline.get("gpu.held"), timeline.get("gpu.idle")
    # An instance of a GPU without utilization is never counted as idle.
    measured = all(gpu.use.active_time is not None for gpu in data.gpus)
    if held is not None and idle is not None and measured:
        return np.maximum(held - idle, 0.0)
    return timeline.gpus.active if timeline.gpus.all_known.any() else None


def working(data: RunData) -> npt.NDArray[np.bool_] | None:
    """Whether the run worked in each interval; None if its CPU time is no time series, or if it is
    not known to the end of the run: what was not measured is not idle."""
    timeline = data.timeline
    cpu = None if timeline is None else timeline.get(CPU)
    if timeline is None or cpu is None or data.unmeasured > LATE:
        return None
    result: npt.NDArray[np.bool_] = cpu > working_cores(data.cores)
    active = gpus_active(data)
    return result if active is None else result | (active > 0)


def end_of_work(busy: npt.NDArray[np.bool_]) -> int:
    """The first of the intervals after the work; their number if it worked to the end."""
    count = len(busy)
    if not count or busy.all():
        return count
    # The beginnings of idle intervals, and the share of each rest of the run that is busy.
    begins = np.flatnonzero(~busy & np.append(True, busy[:-1]))
    after = np.cumsum(busy[::-1])[::-1]
    shares = after[begins] / (count - begins)
    found = begins[shares <= _BURSTS]
    return int(found[0]) if len(found) else count
