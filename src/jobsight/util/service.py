"""What makes a program a service: the background, the pid file, the signals, the log."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

#: All of them mean the same: the job is over, write down what there is.
STOPPING: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class Background:
    """The child of a double fork. Its parent waits in the foreground until it reports its result,
    so that a mistake in the settings is seen where the command was typed."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def report(self, code: int, text: str = "") -> None:
        """Make the parent print the text and exit with the code; after 0 this process continues."""
        if self._pipe >= 0:
            try:
                os.write(self._pipe, bytes([code]) + text.encode("utf-8", "replace")[:60000])
            except BrokenPipeError:
                pass
            os.close(self._pipe)
            self._pipe = -1


def make_absolute(options: argparse.Namespace) -> None:
    """Make the paths of a command absolute: the working directory changes in the background."""
    for name in ("config", "pidfile", "logfile", "test_output"):
        value = getattr(options, name, None)
        if value:
            setattr(options, name, os.path.abspath(value))


def go_to_background() -> Background:
    """Fork twice and let go of the terminal; only the grandchild returns."""
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        _wait_for_report(reader)
    os.setsid()
    if os.fork():
        # Not the leader of a session any more: no terminal can ever become ours.
        os._exit(0)
    os.chdir("/")
    _close_descriptors(keep=writer)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    if null > 2:
        os.close(null)
    return Background(writer)


def _wait_for_report(reader: int) -> NoReturn:
    report = b""
    while data := os.read(reader, 65536):
        report += data
    code, text = (report[0], report[1:]) if report else (1, b"ended before it was ready\n")
    sys.stderr.write(text.decode("utf-8", "replace"))
    sys.stderr.flush()
    # _exit: what the parent has open belongs to the child now.
    os._exit(code)


def _close_descriptors(keep: int) -> None:
    """Close what is open, which /proc knows; counting up to the limit can take seconds."""
    try:
        opened = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    except OSError:
        opened = list(range(1024))
    for descriptor in opened:
        if descriptor != keep:
            os.closerange(descriptor, descriptor + 1)


@contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Turn the signals into one call. Further ones change nothing: the end is bounded anyway.

    The handler only writes a byte. Python runs it between any two steps of the main thread, which
    may just hold the lock that ``stop`` needs; so a thread makes the call.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    ended = False

    def handle(number: int, frame: FrameType | None) -> None:
        os.write(writer, b"!")

    def wait() -> None:
        os.read(reader, 1)
        if not ended:
            stop()

    thread = threading.Thread(target=wait, name="signals", daemon=True)
    thread.start()
    before = {number: signal.signal(number, handle) for number in STOPPING}
    try:
        yield
    finally:
        ended = True
        for number, handler in before.items():
            signal.signal(number, handler)
        os.write(writer, b".")
        thread.join()
        os.close(reader)
        os.close(writer)
