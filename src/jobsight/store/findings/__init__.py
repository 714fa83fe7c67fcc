"""Findings in the store: figures, works, findings with their daily rollups, and what was shown.

Start with write.py (how the findings of a run are replaced) and read.py (lists and sums). A finding
is stored as bytes with some columns; :mod:`jobsight.findings` encodes it.
"""
