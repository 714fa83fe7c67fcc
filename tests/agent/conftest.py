"""Tests of the agent touch the real kernel; nothing of theirs may stay behind."""

from tests.agent.left_behind import nothing_left_behind

__all__ = ["nothing_left_behind"]
