"""Finds the jobs on a node and identifies them.

Read ``cgroup_watcher.py`` first: it finds jobs by their cgroups. ``first_seen.py`` keeps their
creation times over restarts of the agent, ``identity.py`` collects who they belong to.
"""
