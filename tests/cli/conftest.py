from pathlib import Path

import pytest

from tests.agent.left_behind import nothing_left_behind
from tests.agent.workloads import BURNERS, Home, build_burner

__all__ = ["nothing_left_behind"]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture(scope="session")
def burners(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("burners")
    return {kind: build_burner(kind, folder) for kind in BURNERS}
