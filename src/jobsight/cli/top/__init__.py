"""``jobsight top``: what running jobs use now.

Start with readings.py (what is known of a job at one time, and rates between two readings).
sources.py reads a node, a store or a server; app.py is the screen.
"""
