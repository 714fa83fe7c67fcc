"""The web pages: pages.py has the routes, templates/ the HTML, static/ styles and scripts.

In static/, charts.js draws the time series of a run with plot.js, gpus.js those of its GPUs, and
live.js refreshes a page while a job runs.
"""
