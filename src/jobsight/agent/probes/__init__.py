"""Probes: each measures one job.

Read ``cgroup.py`` first: it measures a job by the counters of its cgroup and the events of its
processes. ``slurm_cgroup.py`` sums the cgroups of a Slurm job, ``cgroup_files.py`` reads the files
of both cgroup versions. ``process_tree.py`` measures a job without a cgroup and without privileges.
"""
