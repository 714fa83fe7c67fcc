"""The samplers: short name -> import string; the seeds' names lead to the same classes.

A sampler is one class in one file. It takes its settings as keyword arguments, and ``node`` for
a machine other than this one.
"""

from __future__ import annotations

from typing import Final

SAMPLERS: Final[dict[str, str]] = {
    "cgroup": "jobsight.agent.samplers.cgroup_memory:SlurmCGroup",
    "core": "jobsight.agent.samplers.base:Core",
    "cores": "jobsight.agent.samplers.cpu:Cores",
    "device": "jobsight.agent.samplers.disk:IOStats",
    "energy": "jobsight.agent.samplers.energy:Energy",
    "files": "jobsight.agent.samplers.files:Files",
    "filesystem": "jobsight.agent.samplers.filesystems:FSStats",
    "gpu": "jobsight.agent.samplers.gpu.sampler:NvidiaSMI",
    "info": "jobsight.agent.samplers.slurm_info:SlurmInfo",
    "network": "jobsight.agent.samplers.network:Network",
    "pressure": "jobsight.agent.samplers.pressure:Pressure",
    "software": "jobsight.agent.samplers.processes:Software",
    "threads": "jobsight.agent.samplers.processes:Threads",
    "zfs": "jobsight.agent.samplers.filesystems:ZFSStats",
    # The seeds' names.
    "sams.sampler.Core": "jobsight.agent.samplers.base:Core",
    "sams.sampler.FSStats": "jobsight.agent.samplers.filesystems:FSStats",
    "sams.sampler.IOStats": "jobsight.agent.samplers.disk:IOStats",
    "sams.sampler.NvidiaSMI": "jobsight.agent.samplers.gpu.sampler:NvidiaSMI",
    "sams.sampler.Pressure": "jobsight.agent.samplers.pressure:Pressure",
    "sams.sampler.SlurmCGroup": "jobsight.agent.samplers.cgroup_memory:SlurmCGroup",
    "sams.sampler.SlurmCGroup2": "jobsight.agent.samplers.cgroup_memory:SlurmCGroup2",
    "sams.sampler.SlurmInfo": "jobsight.agent.samplers.slurm_info:SlurmInfo",
    "sams.sampler.Software": "jobsight.agent.samplers.processes:Software",
    "sams.sampler.ZFSStats": "jobsight.agent.samplers.filesystems:ZFSStats",
}
