"""Tests that must not run at the same time, whichever worker runs them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tests.waiting import wait_until


@contextmanager
def alone_with(thing: str) -> Iterator[None]:
    """Hold an abstract socket address, which one process has at a time and its end releases."""
    with socket.socket(socket.AF_UNIX) as name:
        wait_until(lambda: _bound(name, f"\0jobsight-test-{thing}"), 110)
        yield


def _bound(name: socket.socket, address: str) -> bool:
    try:
        name.bind(address)
    except OSError:
        return False
    return True
