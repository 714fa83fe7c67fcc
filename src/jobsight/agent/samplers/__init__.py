"""The samplers: short name -> import string; the seeds' names lead to the same classes.

A sampler is one class in one file. It takes its settings as keyword arguments, and ``node`` for
a machine other than this one.
"""

from __future__ import annotations

from typing import Final

SAMPLERS: Final[dict[str, str]] = {
    "cgroup": "jobsight.agent.samplers.slurm_cgroup:SlurmCGroup",
    "core": "jobsight.agent.samplers.core:Core",
    "cores": "jobsight.agent.samplers.cores:Cores",
    "device": "jobsight.agent.samplers.io_stats:IOStats",
    "energy": "jobsight.agent.samplers.energy:Energy",
    "files": "jobsight.agent.samplers.files:Files",
    "filesystem": "jobsight.agent.samplers.fs_stats:FSStats",
    "gpu": "jobsight.agent.samplers.gpu:NvidiaSMI",
    "info": "jobsight.agent.samplers.slurm_info:SlurmInfo",
    "network": "jobsight.agent.samplers.network:Network",
    "pressure": "jobsight.agent.samplers.pressure:Pressure",
    "software": "jobsight.agent.samplers.software:Software",
    "threads": "jobsight.agent.samplers.threads:Threads",
    "zfs": "jobsight.agent.samplers.zfs_stats:ZFSStats",
    # The seeds' names.
    "sams.sampler.Core": "jobsight.agent.samplers.core:Core",
    "sams.sampler.FSStats": "jobsight.agent.samplers.fs_stats:FSStats",
    "sams.sampler.IOStats": "jobsight.agent.samplers.io_stats:IOStats",
    "sams.sampler.NvidiaSMI": "jobsight.agent.samplers.gpu:NvidiaSMI",
    "sams.sampler.Pressure": "jobsight.agent.samplers.pressure:Pressure",
    "sams.sampler.SlurmCGroup": "jobsight.agent.samplers.slurm_cgroup:SlurmCGroup",
    "sams.sampler.SlurmCGroup2": "jobsight.agent.samplers.slurm_cgroup:SlurmCGroup2",
    "sams.sampler.SlurmInfo": "jobsight.agent.samplers.slurm_info:SlurmInfo",
    "sams.sampler.Software": "jobsight.agent.samplers.software:Software",
    "sams.sampler.ZFSStats": "jobsight.agent.samplers.zfs_stats:ZFSStats",
}
