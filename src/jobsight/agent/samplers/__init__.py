"""The samplers: each measures one kind of resource for each job.

Start with ``base.py`` (the base class) and ``readings.py`` (counters and gauges), then read any
sampler, such as ``network.py``; ``node.py`` has the readings that all jobs of a node share. The
table below maps short names, and the names of SAMS, to classes. A sampler's settings are the
keyword arguments of its class.
"""

from __future__ import annotations

from typing import Final

SAMPLERS: Final[dict[str, str]] = {
    "cgroup": "jobsight.agent.samplers.cgroup_memory:SlurmCGroup",
    "core": "jobsight.agent.samplers.base:JobIdentity",
    "cores": "jobsight.agent.samplers.cpu:CoreTimes",
    "device": "jobsight.agent.samplers.disk:IOStats",
    "energy": "jobsight.agent.samplers.energy:Energy",
    "files": "jobsight.agent.samplers.files:Files",
    "filesystem": "jobsight.agent.samplers.filesystems:FSStats",
    "gpu": "jobsight.agent.samplers.gpu.sampler:GpuSampler",
    "info": "jobsight.agent.samplers.slurm_info:SlurmInfo",
    "network": "jobsight.agent.samplers.network:Network",
    "pressure": "jobsight.agent.samplers.pressure:Pressure",
    "software": "jobsight.agent.samplers.processes:Software",
    "states": "jobsight.agent.samplers.processes:ThreadStates",
    "threads": "jobsight.agent.samplers.processes:Threads",
    "zfs": "jobsight.agent.samplers.filesystems:ZFSStats",
    # SAMS's names.
    "sams.sampler.Core": "jobsight.agent.samplers.base:JobIdentity",
    "sams.sampler.FSStats": "jobsight.agent.samplers.filesystems:FSStats",
    "sams.sampler.IOStats": "jobsight.agent.samplers.disk:IOStats",
    "sams.sampler.NvidiaSMI": "jobsight.agent.samplers.gpu.sampler:GpuSampler",
    "sams.sampler.Pressure": "jobsight.agent.samplers.pressure:Pressure",
    "sams.sampler.SlurmCGroup": "jobsight.agent.samplers.cgroup_memory:SlurmCGroup",
    "sams.sampler.SlurmCGroup2": "jobsight.agent.samplers.cgroup_memory:SlurmCGroup2",
    "sams.sampler.SlurmInfo": "jobsight.agent.samplers.slurm_info:SlurmInfo",
    "sams.sampler.Software": "jobsight.agent.samplers.processes:Software",
    "sams.sampler.ZFSStats": "jobsight.agent.samplers.filesystems:ZFSStats",
}
