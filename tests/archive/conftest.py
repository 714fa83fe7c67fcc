"""A store with two months of jobs, and the two kinds of places for an archive."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.archive.storage import Storage, open_storage
from jobsight.config.settings import ArchiveSettings
from jobsight.store.store import Store
from tests.archive import months, s3
from tests.store.conftest import location as location
from tests.store.conftest import store as store


@pytest.fixture
def filled(store: Store) -> Store:
    months.fill(store)
    return store


@pytest.fixture
def settings(tmp_path: Path) -> ArchiveSettings:
    return ArchiveSettings(location=str(tmp_path / "archive"))


@pytest.fixture
def place(settings: ArchiveSettings) -> Storage:
    return open_storage(settings)


@pytest.fixture(scope="session")
def service() -> Iterator[s3.Service]:
    with s3.running() as service:
        yield service
