"""Every figure of the seed's exporter of jobs, with right meanings, from one view of a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

from jobsight.agent.samplers.cores import Cores
from jobsight.agent.samplers.files import Files
from jobsight.agent.samplers.gpu import NvidiaSMI
from jobsight.agent.samplers.node_gpus import parse_gpu_list
from jobsight.agent.samplers.threads import Threads
from jobsight.agent.view import JobView, Sampler
from jobsight.model import MISSING, SECOND

T = TypeVar("T")

MEBIBYTE: Final = 2**20
#: Figure -> metric of the engine's row, and what it is divided by.
_ROW: Final = {
    "jobs_spawned_processes": ("tasks.processes", 1),
    "jobs_system_time": ("cpu.system", SECOND),
    "jobs_user_time": ("cpu.user", SECOND),
    "jobs_cpu_time_total": ("cpu.time", SECOND),
    "jobs_rss": ("memory.used", MEBIBYTE),
    "jobs_read_mb": ("io.read_bytes", MEBIBYTE),
    "jobs_write_mb": ("io.written_bytes", MEBIBYTE),
    "jobs_read_count": ("io.read_calls", 1),
    "jobs_write_count": ("io.write_calls", 1),
}


def petricore_figures(view: JobView, samplers: Iterable[Sampler]) -> dict[str, Any]:
    """The seed's figures by its names; one with a label is a dictionary by the label's value.

    Times are seconds, sizes mebibytes, CPU use percent of one core; reads and writes include the
    processes that have ended. What is not known is left out.
    """
    there = list(samplers)
    found: dict[str, Any] = {}
    for name, (metric, divisor) in _ROW.items():
        value = view.row.get(metric, MISSING)
        if value != MISSING:
            found[name] = value if divisor == 1 else value / divisor
    cores = _one(there, Cores)
    if cores is not None:
        _add_cores(found, cores)
    threads = _one(there, Threads)
    if threads is not None:
        programs = threads.programs(view)
        found["jobs_thread_count"] = {name: one["threads"] for name, one in programs.items()}
    files = _one(there, Files)
    if files is not None:
        # The seed counts paths; where links may not be read, descriptors are the next best.
        opened = files.open_paths if files.open_paths is not None else files.open_now
        if opened is not None:
            found["jobs_opened_files"] = opened
        if files.scratch_used is not None:
            found["jobs_uses_scratch"] = int(files.scratch_used)
    gpus = _one(there, NvidiaSMI)
    if gpus is not None:
        # Without a driver to ask there is still what Slurm or the prolog said.
        said = parse_gpu_list(",".join(view.gpus or ()))
        found["jobs_gpus_used"] = dict.fromkeys(gpus.gpus or said, 1)
    return found


def _add_cores(found: dict[str, Any], cores: Cores) -> None:
    times = cores.times
    if times:
        found["jobs_cpu_time_core"] = {str(core): time / SECOND for core, time in times.items()}
    if cores.in_use is None:
        return
    found["jobs_cpu_percent"] = cores.in_use * 100
    count = len(cores.cores) if cores.cores is not None else len(times)
    if count:
        found["jobs_cpu_percent_per_core"] = cores.in_use * 100 / count


def _one(samplers: list[Sampler], kind: type[T]) -> T | None:
    return next((sampler for sampler in samplers if isinstance(sampler, kind)), None)
