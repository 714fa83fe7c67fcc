"""SAMS itself, and a site's folders."""

from pathlib import Path

import pytest

from tests.peers.conftest import sams as sams
from tests.sams.documents import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)
