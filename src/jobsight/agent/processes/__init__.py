"""The processes of jobs: what they execute and what they use.

Read ``tracker.py`` first: it applies the kernel's events to processes. ``process.py`` holds the
account of a job by executable. ``netlink.py`` receives the events, ``procfs.py`` reads live
processes, ``executables.py`` names what they run.
"""
