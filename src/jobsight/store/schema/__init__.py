"""The schema of a store.

Start with ``tables.py``, the tables. ``create.py`` opens or creates a store, ``versions.py``
migrates it by the revisions in ``migrations``, ``statements.py`` has the statements of the write
path. ``new_store.sql`` is generated from the revisions.
"""
