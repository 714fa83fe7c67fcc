"""The archive: finished runs as Parquet files by cluster and month, for DuckDB and for the pages.

Start with :mod:`schema` (the tables), :mod:`part` (files that are written together) and
:mod:`writer` (one round of archiving). :mod:`storage` is the directory or S3 bucket. :mod:`reader`
reads runs, :mod:`restore` brings them back into the store, and :mod:`verify` checks the files.
"""
