"""Helpers without knowledge of jobs: files, locks, threads, retries, logs.

Everything here is cheap to import, because the agent uses it on every node: modules import the
standard library and ``jobsight.errors`` only. The exception is ``outer`` (units of the API and of
printed JSON), which imports msgspec. Read ``durable`` (atomic files) and ``locks`` first, then
``backoff``, ``log_once`` and ``workers`` (periodic threads); the others stand alone.
"""
