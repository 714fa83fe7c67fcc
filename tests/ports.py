"""Ports for servers that a test stops and starts again on the same port."""

from __future__ import annotations

import os
import socket

#: Below the ephemeral ports and those of the test bed, so that no other program gets one while its
#: server is stopped.
FIRST, LAST = 10_000, 16_999

#: Abstract sockets that reserve a port as long as this process runs.
_reserved: list[socket.socket] = []


def free_port() -> int:
    """A port on loopback that no other process of the tests gets as long as this one runs."""
    count = LAST - FIRST + 1
    # Two workers begin at different ports.
    begin = os.getpid() * 97 + len(_reserved)
    for step in range(count):
        port = FIRST + (begin + step) % count
        if _reserve(port):
            return port
    raise AssertionError(f"no port from {FIRST} to {LAST} is free")


def _reserve(port: int) -> bool:
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0jobsight-test-port-{port}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        name.close()
        return False
    _reserved.append(name)
    return True
