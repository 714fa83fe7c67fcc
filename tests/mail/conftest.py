"""What the tests of mails share: a store of each kind."""

from tests.store.conftest import location as location
