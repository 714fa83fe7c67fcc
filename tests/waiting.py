"""Waiting for a condition instead of sleeping."""

import time
from collections.abc import Callable
from typing import Any


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until a condition is true and return its value; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"the condition was not true within {seconds:g} s")
