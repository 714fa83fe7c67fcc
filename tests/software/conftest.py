"""Tests that take ``store`` run on SQLite and on PostgreSQL, as those of the store do."""

from tests.store.conftest import location, store

__all__ = ["location", "store"]
