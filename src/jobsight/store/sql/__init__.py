"""Static SQL statements in the dialect that SQLite and PostgreSQL share, by purpose of use.

Start with ``load.py``, which reads the files; ``write.sql`` has what runs for every batch,
``read.sql`` what reports and pages query. Statements that are generated from lists of fields are
in :mod:`jobsight.store.schema.statements`.
"""
