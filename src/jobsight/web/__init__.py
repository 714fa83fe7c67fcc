"""The web pages, rendered on the server.

pages/ has the routes, render.py what they share, templates/ the HTML, static/ styles and scripts.

In static/, charts.js draws the time series of a run with plot.js, gpus.js those of its GPUs, and
live.js refreshes a page while a job runs.
"""
