"""Tests that take ``store`` run on SQLite and on PostgreSQL, as those of the store do."""

from tests.store.conftest import location, postgresql_server, store

__all__ = ["location", "postgresql_server", "store"]
