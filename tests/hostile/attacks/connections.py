"""Requests that never end: sign-ins without a body, half heads, silence, and floods."""

from __future__ import annotations

import selectors
import socket
import sys

from tests.hostile.attacks.common import (
    Attack,
    Pace,
    add_address,
    connect,
    main,
    parser,
    status_of,
)

_HOST = b"Host: 127.0.0.1\r\n"
#: What is sent before the silence, by kind.
BEGINNINGS = {
    "sign-in": b"POST /sign-in HTTP/1.1\r\n" + _HOST + b"Content-Length: 50\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\ntoken=",
    "head": b"GET / HTTP/1.1\r\n" + _HOST + b"X-Long: ",
    "silence": b"",
    "batch": b"POST /api/v1/batches HTTP/1.1\r\n" + _HOST + b"Content-Length: 1000000\r\n\r\nJSB2",
    "receive": b"GET /healthz HTTP/1.1\r\n" + _HOST + b"\r\n",
}


def attack(running: Attack) -> None:
    options = running.options
    pace = Pace(running, options.rate)
    waiting = selectors.DefaultSelector()
    open_ones: dict[socket.socket, str] = {}
    kinds = sorted(options.kind or BEGINNINGS)
    while running.goes_on():
        if len(open_ones) < options.count:
            kind = running.random.choice(kinds)
            try:
                made = connect(options, 2)
                made.sendall(BEGINNINGS[kind])
                made.setblocking(False)
            except OSError as error:
                running.counts[f"{kind}: {type(error).__name__}"] += 1
            else:
                open_ones[made] = kind
                waiting.register(made, selectors.EVENT_READ)
                running.counts[f"{kind}: opened"] += 1
        else:
            # Aborted in the middle of its request.
            made = running.random.choice(list(open_ones))
            waiting.unregister(made)
            running.counts[f"{open_ones.pop(made)}: aborted"] += 1
            made.close()
        for key, _ in waiting.select(0):
            ended = key.fileobj
            assert isinstance(ended, socket.socket)
            try:
                reply = ended.recv(65536)
            except OSError:
                reply = b""
            status = status_of(reply)
            # The body of a reply may come in a piece of its own.
            if status != "no HTTP":
                running.counts[f"{open_ones[ended]}: {status}"] += 1
            # A kept-alive connection stays open until the server ends it.
            if not reply:
                waiting.unregister(ended)
                del open_ones[ended]
                ended.close()
        pace.wait()
    for made in open_ones:
        made.close()


if __name__ == "__main__":
    made = parser(__doc__)
    add_address(made)
    made.add_argument("--kind", action="append", choices=sorted(BEGINNINGS), help="default: all")
    made.add_argument("--count", type=int, default=1100, help="connections at a time")
    made.add_argument("--rate", type=float, default=200, help="new connections a second")
    sys.exit(main(attack, made, sys.argv[1:]))
