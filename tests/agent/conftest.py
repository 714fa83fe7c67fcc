"""Tests of the agent touch the real kernel; nothing of theirs may stay behind."""

from collections.abc import Iterator

import pytest

from tests.agent.left_behind import nothing_left_behind
from tests.agent.slurm_trees import SlurmNode

__all__ = ["nothing_left_behind"]


@pytest.fixture
def node() -> Iterator[SlurmNode]:
    node = SlurmNode()
    try:
        yield node
    finally:
        node.close()
