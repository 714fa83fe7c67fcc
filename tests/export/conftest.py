"""The stores of tests/store, and the directories of a site that runs SAMS's programs."""

from tests.sams.conftest import site
from tests.store.conftest import location, store

__all__ = ["location", "site", "store"]
