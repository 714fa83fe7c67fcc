"""The server: receives batches, serves the API and the web pages.

Start with serve.py (start, stop, background work) and app.py (the routes). A batch goes through
auth.py, ingest.py (with limits.py) and receiver.py. errors.py has the error replies, api/ the
routes for programs, promql.py reads time series from Prometheus.
"""
