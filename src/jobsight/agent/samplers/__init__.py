"""The samplers: short name -> import string; the seeds' names lead to the same classes.

A sampler is one class in one file. It takes its settings as keyword arguments, and ``node`` for
a machine other than this one.
"""

from __future__ import annotations

from typing import Final

_HERE: Final = "jobsight.agent.samplers"

SAMPLERS: Final[dict[str, str]] = {
    "cgroup": f"{_HERE}.slurm_cgroup:SlurmCGroup",
    "core": f"{_HERE}.core:Core",
    "cores": f"{_HERE}.cores:Cores",
    "device": f"{_HERE}.io_stats:IOStats",
    "energy": f"{_HERE}.energy:Energy",
    "files": f"{_HERE}.files:Files",
    "filesystem": f"{_HERE}.fs_stats:FSStats",
    "gpu": f"{_HERE}.gpu:NvidiaSMI",
    "info": f"{_HERE}.slurm_info:SlurmInfo",
    "network": f"{_HERE}.network:Network",
    "pressure": f"{_HERE}.pressure:Pressure",
    "software": f"{_HERE}.software:Software",
    "threads": f"{_HERE}.threads:Threads",
    "zfs": f"{_HERE}.zfs_stats:ZFSStats",
    # The seeds' names.
    "sams.sampler.Core": f"{_HERE}.core:Core",
    "sams.sampler.FSStats": f"{_HERE}.fs_stats:FSStats",
    "sams.sampler.IOStats": f"{_HERE}.io_stats:IOStats",
    "sams.sampler.NvidiaSMI": f"{_HERE}.gpu:NvidiaSMI",
    "sams.sampler.Pressure": f"{_HERE}.pressure:Pressure",
    "sams.sampler.SlurmCGroup": f"{_HERE}.slurm_cgroup:SlurmCGroup",
    "sams.sampler.SlurmCGroup2": f"{_HERE}.slurm_cgroup:SlurmCGroup2",
    "sams.sampler.SlurmInfo": f"{_HERE}.slurm_info:SlurmInfo",
    "sams.sampler.Software": f"{_HERE}.software:Software",
    "sams.sampler.ZFSStats": f"{_HERE}.zfs_stats:ZFSStats",
}
