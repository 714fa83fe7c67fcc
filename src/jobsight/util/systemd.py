"""The service manager's protocols: readiness, watchdog and sockets opened in advance.

All of it is environment variables, a datagram socket and inherited descriptors, so no library is
needed. Without systemd each function does nothing. See sd_notify(3), sd_watchdog_enabled(3) and
sd_listen_fds(3).
"""

from __future__ import annotations

import os
import socket
from typing import Final

#: The first inherited descriptor; the number is part of the protocol.
_FIRST_DESCRIPTOR: Final = 3


def notify(*states: str) -> bool:
    """Send states such as ``READY=1`` to the service manager; False if there is none.

    A manager that cannot be reached is not an error of this process: it has its own timeout.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        # An abstract name.
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.connect(address)
            sender.send("\n".join(states).encode())
    except OSError:
        return False
    return True


def watchdog_interval() -> float | None:
    """Seconds between two ``WATCHDOG=1``, a third of the timeout; None without a watchdog.

    A third, because one message may be delayed by a busy machine without a restart.
    """
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        microseconds = int(os.environ["WATCHDOG_USEC"])
    except (KeyError, ValueError):
        return None
    return microseconds / 3_000_000 if microseconds > 0 else None


def inherited_descriptors() -> list[int]:
    """Listening sockets that the service manager opened for this process.

    The variables are removed: a child of this process must not take them for its own.
    """
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    descriptors = list(range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(count)))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return descriptors
