"""Every test that takes ``location`` or ``store`` runs on SQLite and on PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.store.store import Store
from tests.store import postgresql


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[postgresql.Server]:
    try:
        with postgresql.running() as server:
            yield server
    except postgresql.Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty store may be made."""
    if request.param == "postgresql":
        server: postgresql.Server = request.getfixturevalue("postgresql_server")
        return server.new_database()
    return str(tmp_path / "store.db")


@pytest.fixture
def store(location: str) -> Iterator[Store]:
    with Store.open(location) as store:
        yield store
