"""Waiting for what is about to happen, without a guess at how long it takes."""

import time
from collections.abc import Callable
from typing import Any


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until something is so, and give it; ``seconds`` is when it will not be any more."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"it did not happen within {seconds:g} s")
