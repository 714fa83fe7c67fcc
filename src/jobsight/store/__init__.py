"""The store: runs with their nodes, time series, executables and steps, in SQLite or PostgreSQL.

Start with ``store.py``, the object that other packages use. ``database.py`` opens a database and
``transaction.py`` runs SQL on it. ``schema`` defines the tables, ``sql`` the static statements,
``write`` stores batches and scheduler records, ``read`` queries runs, ``series`` encodes time
series, ``rollups`` keeps daily usage, ``maintenance`` has retention, check, compaction and backup.
"""
