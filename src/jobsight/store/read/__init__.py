"""Queries of runs.

Start with ``queries.py``; ``external.py`` has the protocols of the archive and of external storage
for time series, which answer for data that the store does not hold.
"""
