"""The stores of tests/store, and the folders of a site that runs SAMS's programs."""

from tests.sams.conftest import site
from tests.store.conftest import location, postgresql_server, store

__all__ = ["location", "postgresql_server", "site", "store"]
