"""The store's own fixtures: both engines."""

from tests.store.conftest import location as location
from tests.store.conftest import store as store
