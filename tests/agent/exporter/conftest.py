from pathlib import Path

import pytest

from tests.agent.samplers.jobs import Job


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)
