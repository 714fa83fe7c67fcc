"""Maintenance of a store: retention, integrity check, compaction, backup and inventory.

Start with ``retention.py``, which downsamples and deletes old data. ``check.py`` verifies and
repairs a store, ``compact.py`` joins chunks and frees space, ``dump.py`` backs up, restores and
copies a store, ``inventory.py`` counts what a store holds.
"""
