"""SAMS itself, and a site's directories."""

from pathlib import Path

import pytest

from tests.peers.conftest import sams as sams
from tests.sams.documents import Site
from tests.store.conftest import location as location


@pytest.fixture
def site(tmp_path: Path, location: str) -> Site:
    """On SQLite and on PostgreSQL."""
    return Site(tmp_path, store=location)
