"""Compatibility with SAMS software accounting on the server: its records, settings and databases.

Start with :mod:`record` (the format), then :mod:`aggregator`, which stores what :mod:`reader`
reads from the directories of :mod:`inbox`; :mod:`convert` maps a record to the store's model.
:mod:`receiver` accepts records over HTTP, :mod:`import_database` reads SAMS's databases, and
:mod:`settings` reads a site's YAML file. The collector on compute nodes is in :mod:`node`.
"""
