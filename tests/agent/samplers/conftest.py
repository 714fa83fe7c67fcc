from pathlib import Path

import pytest

from jobsight.agent.samplers.gpu import devices
from jobsight.agent.samplers.readings import Background
from tests.agent.samplers.jobs import Job


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampling loop waits some milliseconds for a thread; a busy machine begins it later."""
    monkeypatch.setattr(Background.__init__, "__defaults__", (60.0,))
    for name in ("_OPEN_TIMEOUT", "_FINAL_TIMEOUT", "_ROUND_TIMEOUT"):
        monkeypatch.setattr(devices, name, 60.0)
