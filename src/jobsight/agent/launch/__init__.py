"""Runs a command as a job on this machine: the engine of ``jobsight run``.

Read ``launcher.py`` first. ``child.py`` starts the command, ``cgroup.py`` creates and removes its
cgroup.
"""
