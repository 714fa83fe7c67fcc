"""Helpers without knowledge of jobs: files, locks, threads, retries, logs.

Everything here imports the standard library and ``jobsight.errors`` only and is cheap to import,
because the agent uses it on every node. Read ``durable`` (atomic files) and ``locks`` first, then
``backoff``, ``log_once`` and ``workers`` (periodic threads); the others stand alone.
"""
