"""Every test that takes ``location`` or ``store`` runs on SQLite and on PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.store.store import Store
from tests.store import postgresql


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where an empty store may be made."""
    if request.param != "postgresql":
        yield str(tmp_path / "store.db")
        return
    server: postgresql.Server = request.getfixturevalue("postgresql_server")
    url = server.new_database()
    yield url
    server.drop(url)


@pytest.fixture
def store(location: str) -> Iterator[Store]:
    with Store.open(location) as store:
        yield store
