"""The web pages: pages.py has the routes, templates/ the HTML, static/ styles and scripts.

In static/, charts.js draws the time series of a run with plot.js, and live.js refreshes a page
while a job runs.
"""
