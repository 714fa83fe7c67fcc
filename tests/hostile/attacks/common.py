"""What all attacks share: a random source, an end, and counts. Standard library only."""

from __future__ import annotations

import argparse
import json
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from random import Random


class Attack:
    """One run of an attack."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.random = Random(options.seed)
        #: What happened, by kind.
        self.counts: Counter[str] = Counter()
        self._end = time.monotonic() + options.seconds
        self._stopped = False

    def stop(self, *_: object) -> None:
        self._stopped = True

    def goes_on(self) -> bool:
        return not self._stopped and time.monotonic() < self._end

    def pause(self, seconds: float) -> None:
        """Sleep, but not beyond the end."""
        end = min(time.monotonic() + seconds, self._end)
        while not self._stopped and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))


class Pace:
    """Keeps a loop at a number of rounds a second."""

    def __init__(self, attack: Attack, rate: float) -> None:
        self._attack = attack
        self._interval = 1 / rate
        self._next = time.monotonic()

    def wait(self) -> None:
        # After a stall the lost rounds are not made up for.
        self._next = max(self._next + self._interval, time.monotonic() - 1)
        self._attack.pause(self._next - time.monotonic())


def parser(description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    made.add_argument("--seed", type=int, default=1, help="random seed (default: %(default)s)")
    made.add_argument("--seconds", type=float, default=10.0, help="duration (default: %(default)s)")
    return made


def add_address(made: argparse.ArgumentParser) -> None:
    made.add_argument("--port", type=int, required=True, help="port on 127.0.0.1")
    made.add_argument(
        "--source", default="127.0.0.1", help="own address on loopback (default: %(default)s)"
    )


def main(
    attack: Callable[[Attack], None], made: argparse.ArgumentParser, arguments: list[str]
) -> int:
    running = Attack(made.parse_args(arguments))
    signal.signal(signal.SIGTERM, running.stop)
    try:
        attack(running)
    finally:
        json.dump(dict(sorted(running.counts.items())), sys.stdout)
        print(flush=True)
    return 0


def connect(options: argparse.Namespace, timeout: float = 10.0) -> socket.socket:
    return socket.create_connection(
        ("127.0.0.1", options.port), timeout, source_address=(options.source, 0)
    )


def status_of(reply: bytes) -> str:
    """The status of an HTTP reply, or what came instead of one."""
    if not reply:
        return "closed"
    words = reply.split(b" ", 2)
    if reply.startswith(b"HTTP/1.") and len(words) > 1:
        return words[1][:3].decode("ascii", "replace")
    return "no HTTP"
