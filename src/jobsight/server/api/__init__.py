"""The API under /api/v1.

Start with jobs.py: the routes of runs, and the helpers of all routes. series.py converts time
series, usage.py has software usage, health.py the routes for monitoring.
"""
