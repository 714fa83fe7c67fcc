"""Reports: one object per run or cluster, shown by terminal, page and API alike.

Start with report.py (the report's structs, the state of a run, coverage as sentences), then
build.py (report and list row from the store) and cluster.py. terminal.py prints a report;
:mod:`jobsight.util.units` formats figures.
"""
