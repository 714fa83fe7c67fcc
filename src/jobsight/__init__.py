"""jobsight: what each job on a cluster really did, and what to change next time."""

__version__ = "0.3.0"
