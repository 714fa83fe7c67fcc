"""Uploads with the token of a cluster that stop one byte before their end."""

from __future__ import annotations

import socket
import sys
from collections import deque
from pathlib import Path

from tests.hostile.attacks.common import Attack, add_address, connect, main, parser, status_of


def attack(running: Attack) -> None:
    options = running.options
    head = (
        "POST /api/v1/batches HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "
        f"{options.token_file.read_text().strip()}\r\nContent-Length: {options.size}\r\n\r\n"
    ).encode()
    stalled: deque[socket.socket] = deque()
    piece = b"JSB2" + bytes(65532)
    while running.goes_on():
        while len(stalled) < options.count and running.goes_on():
            try:
                made = connect(options, 2)
                made.sendall(head)
                left = options.size - 1
                while left > 0:
                    made.sendall(piece[:left])
                    left -= len(piece[:left])
                running.counts["stalled"] += 1
            except OSError as error:
                running.counts[type(error).__name__] += 1
                running.pause(0.2)
            else:
                stalled.append(made)
        running.pause(running.random.uniform(0.5, 3))
        # The oldest may have an answer; it is given up in any case, and another one begins.
        if stalled:
            oldest = stalled.popleft()
            oldest.setblocking(False)
            try:
                running.counts[status_of(oldest.recv(64))] += 1
            except BlockingIOError:
                running.counts["unanswered"] += 1
            except OSError as error:
                running.counts[type(error).__name__] += 1
            oldest.close()
    for made in stalled:
        made.close()


if __name__ == "__main__":
    made = parser(__doc__)
    add_address(made)
    made.add_argument("--token-file", type=Path, required=True)
    made.add_argument("--count", type=int, default=9, help="uploads at a time")
    made.add_argument("--size", type=int, default=16 * 2**20, help="bytes of each")
    sys.exit(main(attack, made, sys.argv[1:]))
