"""Silent connections and floods on the /metrics of an agent, from a user of its node."""

from __future__ import annotations

import socket
import sys
from collections import deque

from tests.hostile.attacks.common import (
    Attack,
    Pace,
    add_address,
    connect,
    main,
    parser,
    status_of,
)

_GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def attack(running: Attack) -> None:
    pace = Pace(running, running.options.rate)
    silent: deque[socket.socket] = deque()
    while running.goes_on():
        try:
            while len(silent) < running.options.silent:
                silent.append(connect(running.options, 2))
                # Some send the beginning of a request, some nothing.
                silent[-1].sendall(_GET[: running.random.choice((0, 4, 20))])
                running.counts["silent"] += 1
            silent.popleft().close()
            with connect(running.options, 2) as asked:
                asked.sendall(_GET)
                running.counts[status_of(asked.recv(64))] += 1
        except OSError as error:
            running.counts[type(error).__name__] += 1
        pace.wait()
    for connection in silent:
        connection.close()


if __name__ == "__main__":
    made = parser(__doc__)
    add_address(made)
    made.add_argument("--silent", type=int, default=32, help="silent connections at a time")
    made.add_argument("--rate", type=float, default=200, help="requests a second")
    sys.exit(main(attack, made, sys.argv[1:]))
