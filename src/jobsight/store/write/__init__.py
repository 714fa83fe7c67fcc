"""Writing to a store.

Start with ``intake.py``, the interface, then ``batch.py``: each batch is validated
(``validation.py``) and stored once. ``runs.py`` upserts runs and matches sightings to them,
``parts.py`` stores the figures of nodes, ``scheduler.py`` the records of the scheduler.
"""
