"""Odd requests of a visitor: foreign hosts, traversal, guessed tokens, methods, malformed heads."""

from __future__ import annotations

import sys
from random import Random

from tests.hostile.attacks.common import (
    Attack,
    Pace,
    add_address,
    connect,
    main,
    parser,
    status_of,
)

METHODS = ("GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PRI", "get")
PATHS = (
    "/",
    "/healthz",
    "/metrics",
    "/sign-in",
    "/jobs/1",
    "/jobs/alpha:1:00010101T000000Z",
    "/jobs/alpha:1:99991231T235959Z",
    "/api/v1/jobs",
    "/api/v1/jobs/' OR 1=1--",
    "/api/v1/usage?by=software&since=1e999",
    "/api/v1/batches",
    "/static/../../../../etc/passwd",
    "/static/..%2f..%2f..%2fetc%2fpasswd",
    "/static/%2e%2e/%2e%2e/etc/passwd",
    "//evil.example.org/%2f..",
    "/?token=guess",
    "/%00",
    "/%ff%fe",
    "http://evil.example.org/",
    "/" + "a" * 9000,
    "*",
)
HOSTS = (
    "127.0.0.1",
    "localhost",
    "evil.example.org",
    "[::1]evil",
    "127.0.0.1:1@evil.example.org",
    "",
    "127.0.0.1\r\nX-Injected: 1",
    "a" * 5000,
)
HEADERS = (
    "",
    "Authorization: Bearer guess\r\n",
    "Authorization: Bearer \r\n",
    "Authorization: Basic cm9vdDpyb290\r\n",
    "Cookie: jobsight-8080=0\r\n",
    "X-Forwarded-For: 127.0.0.1\r\n",
    "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    "Content-Length: 4\r\nContent-Length: 5\r\n",
    "Content-Length: -1\r\n",
    "Content-Length: 99999999999999999999\r\n",
    "Content-Encoding: zstd\r\n",
    "Expect: 100-continue\r\nContent-Length: 4\r\n",
    "Upgrade: websocket\r\nConnection: Upgrade\r\n",
    "Accept: text/html\r\n",
)


def odd_request(random: Random) -> bytes:
    """One request; some are cut or have bytes that no head has."""
    path, host, more = random.choice(PATHS), random.choice(HOSTS), random.choice(HEADERS)
    head = f"{random.choice(METHODS)} {path} HTTP/1.{random.choice('0112')}\r\nHost: {host}\r\n"
    made = (head + more + "Connection: close\r\n\r\n").encode() + random.choice((b"", b"0\r\n\r\n"))
    if random.random() < 0.1:
        made = made[: random.randrange(len(made))]
    if random.random() < 0.1:
        place = random.randrange(len(made) + 1)
        made = made[:place] + random.randbytes(8) + made[place:]
    return made


def attack(running: Attack) -> None:
    pace = Pace(running, running.options.rate)
    while running.goes_on():
        try:
            with connect(running.options, 2) as sent:
                sent.sendall(odd_request(running.random))
                running.counts[status_of(sent.recv(64))] += 1
        except OSError as error:
            running.counts[type(error).__name__] += 1
        pace.wait()


if __name__ == "__main__":
    made = parser(__doc__)
    add_address(made)
    made.add_argument("--rate", type=float, default=50, help="requests a second")
    sys.exit(main(attack, made, sys.argv[1:]))
