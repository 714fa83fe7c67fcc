"""The store's own fixtures: both engines."""

from tests.store.conftest import location as location
from tests.store.conftest import postgresql_server as postgresql_server
from tests.store.conftest import store as store
