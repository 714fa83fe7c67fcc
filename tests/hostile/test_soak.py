"""All attacks at the same time for two minutes: nothing honest is lost, and nothing ends.

Figures of speed are those of ``make soak``; see tests/hostile/soak.py.
"""

import pytest

from tests.agent.left_behind import nothing_left_behind
from tests.agent.slurm_trees import available
from tests.alone import alone_with
from tests.hostile.soak import Plan, soak

__all__ = ["nothing_left_behind"]

pytestmark = [
    pytest.mark.root,
    pytest.mark.server,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not available(), reason="needs root and the hierarchies of cgroup v1"),
]


def test_honest_data_survive_all_attacks_at_once() -> None:
    with alone_with("soak"):
        verdict = soak(Plan(seconds=120, seed=1, together=True))
    verdict.show()
    assert verdict.faults == []
