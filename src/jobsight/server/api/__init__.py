"""The API under /api/v1.

Start with jobs.py: the routes of runs, and the helpers of all routes. files.py has the reports and
plots of a run as files, findings.py the findings, usage.py software usage, health.py the routes for
monitoring.
"""
