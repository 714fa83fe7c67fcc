"""A test that takes ``location`` or ``store`` runs on SQLite, and on PostgreSQL."""

from tests.store.conftest import location, store

__all__ = ["location", "store"]
