"""Ports for servers that a test starts, ends, and starts again on the same one."""

from __future__ import annotations

import os
import socket

#: Below those that the kernel gives to clients and below those of the test bed, so that nobody
#: takes one while its server is away.
FIRST, LAST = 10_000, 16_999

#: Names in the kernel that say whose a port is, as long as this process lives.
_taken: list[socket.socket] = []


def free_port() -> int:
    """A port on loopback that no other process of the tests gets as long as this one lives."""
    count = LAST - FIRST + 1
    # Two workers begin at different places; one that wraps around meets only what is in use.
    begin = os.getpid() * 97 + len(_taken)
    for step in range(count):
        port = FIRST + (begin + step) % count
        if _claimed(port):
            return port
    raise AssertionError(f"no port from {FIRST} to {LAST} is free")


def _claimed(port: int) -> bool:
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0jobsight-test-port-{port}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        name.close()
        return False
    _taken.append(name)
    return True
