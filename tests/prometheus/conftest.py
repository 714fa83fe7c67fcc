"""Tests of the exporter touch the real kernel; nothing of theirs may stay behind."""

from pathlib import Path

import pytest

from tests.agent.left_behind import nothing_left_behind
from tests.agent.samplers.jobs import Job

__all__ = ["nothing_left_behind"]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)
