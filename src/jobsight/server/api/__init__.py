"""The API under /api/v1.

Start with jobs.py: the routes of runs; common.py has what all routes share. files.py has the
reports and plots of a run as files, findings.py the findings, usage.py software usage, health.py
the routes for monitoring.
"""
