from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from jobsight.config.settings import IngestSettings, ServerSettings
from jobsight.server.app import create_app
from jobsight.server.auth import SignInCodes
from jobsight.store.store import Store
from tests.server.batches import batch
from tests.server.processes import Spawner
from tests.store.conftest import location as location

SETTINGS = ServerSettings(ingest=IngestSettings(body_limit=100_000))
TOKEN = "a-token-for-the-tests-of-the-server"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store.db")
    yield opened
    opened.close()


@pytest.fixture
def filled(store: Store) -> Store:
    assert store.write(batch(12))
    assert store.write(batch(13, name="[other]", user="bob", state="FAILED", exit_code=7))
    return store


@pytest.fixture
def codes() -> SignInCodes:
    return SignInCodes()


@pytest.fixture
def stranger(filled: Store, codes: SignInCodes) -> TestClient:
    """A client without a token."""
    app = create_app(filled, TOKEN, delay=0, settings=SETTINGS, codes=codes)
    return TestClient(app, base_url="http://127.0.0.1:8080", follow_redirects=False)


@pytest.fixture
def client(stranger: TestClient) -> TestClient:
    stranger.headers["Authorization"] = f"Bearer {TOKEN}"
    return stranger


@pytest.fixture(scope="session")
def spawner() -> Iterator[Spawner]:
    made = Spawner()
    yield made
    made.close()
