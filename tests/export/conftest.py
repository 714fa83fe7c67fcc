"""The stores of tests/store, and folders for what is exported."""

from tests.store.conftest import location, postgresql_server, store

__all__ = ["location", "postgresql_server", "store"]
